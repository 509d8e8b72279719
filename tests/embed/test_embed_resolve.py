"""What may be passed where an embedder is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from memcore.embed import CallableEmbedder, HashedEmbedder, StaticEmbedder, resolve
from memcore.errors import DimensionMismatch, InvalidInput


class Foreign:
    """An embedder of the user's, which forgot to normalise."""

    name = "ours"
    dim = 2
    fingerprint = "ours/7"

    def embed(self, texts, kind="document"):
        return np.array([[3, 4] if kind == "document" else [4, 3] for _ in texts], dtype=np.float64)

    def __call__(self, texts):
        raise AssertionError("embed is the way")


def test_names():
    assert isinstance(resolve("static"), StaticEmbedder)
    assert isinstance(resolve("hashed"), HashedEmbedder)
    assert resolve("hashed").dim == 256


@pytest.mark.parametrize("own", [StaticEmbedder(), HashedEmbedder(64), CallableEmbedder(len, name="mine", dim=2)])
def test_an_embedder_of_memcore_is_itself(own):
    assert resolve(own) is own


def test_a_foreign_embedder_keeps_its_names_and_passes_the_gate():
    embedder = resolve(Foreign())
    assert (embedder.name, embedder.dim, embedder.fingerprint) == ("ours", 2, "ours/7")
    got = embedder.embed(["a"])
    assert got.dtype == np.float32
    assert got.tolist() == [[np.float32(0.6), np.float32(0.8)]]
    assert embedder.embed(["a"], kind="query").tolist() == [[np.float32(0.8), np.float32(0.6)]]


def test_a_foreign_embedder_is_held_to_its_width():
    foreign = Foreign()
    foreign.dim = 5
    with pytest.raises(DimensionMismatch, match="the result of embedder 'ours' has 2 dimensions and the store has 5"):
        resolve(foreign).embed(["a"])


def test_a_callable():
    embedder = resolve(lambda texts: [[len(text), 0.0] for text in texts])
    assert isinstance(embedder, CallableEmbedder)
    assert embedder.embed(["a", ""]).tolist() == [[1, 0], [0, 0]]


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("Static", "'Static' (str)"),
        ("", "'' (str)"),
        (None, "None (NoneType)"),
        (256, "256 (int)"),
        (HashedEmbedder, "<class 'memcore.embed.hashed.HashedEmbedder'> (type)"),
    ],
)
def test_anything_else_is_refused(spec, shown):
    with pytest.raises(InvalidInput) as error:
        resolve(spec)
    assert str(error.value) == (
        f"embedder is {shown}; allowed are 'static', 'hashed', 'e5', the URL of an embeddings API with #MODEL behind "
        "it, 'sentence-transformers/MODEL', an object with name, dim, fingerprint and embed, or a callable that takes "
        "a list of texts and returns one row of numbers for each"
    )

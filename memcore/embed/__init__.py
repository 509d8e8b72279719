"""Texts to vectors: the protocol, and the embedders that come with memcore.

Importing this loads NumPy and nothing heavier; wordllama's tables are loaded by the first `StaticEmbedder.embed`.
"""

from __future__ import annotations

import builtins
import contextlib
from typing import TypeGuard

from memcore import gate
from memcore.embed.callable import CallableEmbedder
from memcore.embed.e5 import E5Embedder
from memcore.embed.hashed import HashedEmbedder
from memcore.embed.http import HttpEmbedder
from memcore.embed.protocol import Embedder, EmbedderSpec, Kind, Vectors
from memcore.embed.sentence import SentenceTransformerEmbedder
from memcore.embed.static import StaticEmbedder
from memcore.errors import InvalidInput, MissingExtra

__all__ = [
    "CallableEmbedder",
    "E5Embedder",
    "Embedder",
    "EmbedderSpec",
    "HashedEmbedder",
    "HttpEmbedder",
    "Kind",
    "SentenceTransformerEmbedder",
    "StaticEmbedder",
    "Vectors",
    "name_of",
    "opening",
    "resolve",
]

_NAMED: dict[str, type[StaticEmbedder] | type[HashedEmbedder] | type[E5Embedder]] = {
    "static": StaticEmbedder, "hashed": HashedEmbedder, "e5": E5Embedder,
}  # fmt: skip
_OWN = (StaticEmbedder, HashedEmbedder, E5Embedder, HttpEmbedder, SentenceTransformerEmbedder, CallableEmbedder)
_URL = ("http://", "https://")
_SENTENCE = "sentence-transformers/"


def resolve(spec: EmbedderSpec) -> Embedder:
    """The embedder that `spec` stands for.

    - "static": a `StaticEmbedder`, wordllama's token vectors; "hashed": a `HashedEmbedder` of 256 dimensions; "e5": an
      `E5Embedder`, a small sentence encoder.
    - A URL with a model behind a `#`: an `HttpEmbedder`, for any server with OpenAI's embeddings API.
    - "sentence-transformers/MODEL": a `SentenceTransformerEmbedder`.
    - One of memcore's own embedders: itself.
    - Another object with `name`, `dim`, `fingerprint` and `embed`: a `CallableEmbedder` around its `embed` with the
      other three, so that its results pass the gate like all that comes from outside.
    - Another callable: a `CallableEmbedder` around it.

    Nothing is embedded yet. Errors: `InvalidInput` for anything else.
    """
    if isinstance(spec, str):
        if spec in _NAMED:
            return _NAMED[spec]()
        if spec.startswith(_URL):
            return HttpEmbedder(spec)
        if spec.startswith(_SENTENCE):
            return SentenceTransformerEmbedder(spec.removeprefix(_SENTENCE))
    elif isinstance(spec, _OWN):
        return spec
    elif not isinstance(spec, type):  # a class can be called, but it makes embedders and not rows
        if _is_embedder(spec):
            return CallableEmbedder(spec.embed, name=spec.name, dim=spec.dim, fingerprint=spec.fingerprint)
        if builtins.callable(spec):  # in this package `callable` is the submodule
            return CallableEmbedder(spec)
    raise InvalidInput(
        f"embedder is {gate.shown(spec)}; allowed are 'static', 'hashed', 'e5', the URL of an embeddings API with "
        "#MODEL behind it, 'sentence-transformers/MODEL', an object with name, dim, fingerprint and embed, or a "
        "callable that takes a list of texts and returns one row of numbers for each"
    )


def name_of(fingerprint: str) -> str | None:
    """The name of the embedder with a fingerprint, if that tells it."""
    head, _, rest = fingerprint.partition("/")
    if head == "callable":
        return rest.rpartition("/")[0] or None
    return head if head in _NAMED else None


def opening(fingerprint: str) -> str:
    """How to open a store with the embedder that has a fingerprint, for the end of a sentence: "with …"."""
    name = name_of(fingerprint)
    with contextlib.suppress(MissingExtra):
        if name in _NAMED and _NAMED[name]().fingerprint == fingerprint:
            return f'with embedder="{name}" (--embedder {name})'
    dim = fingerprint.split("/")[1] if name == HashedEmbedder.name else ""
    if dim.isdecimal() and HashedEmbedder(max(1, int(dim))).fingerprint == fingerprint:
        return f"with embedder=memcore.embed.HashedEmbedder({dim})"
    return f"with the embedder of which the fingerprint is {fingerprint!r}"


def _is_embedder(spec: object) -> TypeGuard[Embedder]:
    return all(hasattr(spec, member) for member in ("name", "dim", "fingerprint", "embed"))

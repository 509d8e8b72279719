"""Texts to vectors: the protocol, and the embedders that come with memcore.

Importing this loads NumPy and nothing heavier; wordllama's tables are loaded by the first `StaticEmbedder.embed`.
"""

from __future__ import annotations

import builtins
from typing import TypeGuard

from memcore import gate
from memcore.embed.callable import CallableEmbedder
from memcore.embed.hashed import HashedEmbedder
from memcore.embed.protocol import Embedder, EmbedderSpec, Kind, Vectors
from memcore.embed.static import StaticEmbedder
from memcore.errors import InvalidInput

__all__ = [
    "CallableEmbedder",
    "Embedder",
    "EmbedderSpec",
    "HashedEmbedder",
    "Kind",
    "StaticEmbedder",
    "Vectors",
    "resolve",
]

_NAMED: dict[str, type[StaticEmbedder] | type[HashedEmbedder]] = {"static": StaticEmbedder, "hashed": HashedEmbedder}


def resolve(spec: EmbedderSpec) -> Embedder:
    """The embedder that `spec` stands for.

    - "static": a `StaticEmbedder`, wordllama's token vectors; "hashed": a `HashedEmbedder` of 256 dimensions.
    - One of memcore's own embedders: itself.
    - Another object with `name`, `dim`, `fingerprint` and `embed`: a `CallableEmbedder` around its `embed` with the
      other three, so that its results pass the gate like all that comes from outside.
    - Another callable: a `CallableEmbedder` around it.

    Nothing is embedded yet. Errors: `InvalidInput` for anything else.
    """
    if isinstance(spec, str):
        if spec in _NAMED:
            return _NAMED[spec]()
    elif isinstance(spec, (StaticEmbedder, HashedEmbedder, CallableEmbedder)):
        return spec
    elif not isinstance(spec, type):  # a class can be called, but it makes embedders and not rows
        if _is_embedder(spec):
            return CallableEmbedder(spec.embed, name=spec.name, dim=spec.dim, fingerprint=spec.fingerprint)
        if builtins.callable(spec):  # in this package `callable` is the submodule
            return CallableEmbedder(spec)
    raise InvalidInput(
        f"embedder is {gate.shown(spec)}; allowed are 'static', 'hashed', an object with name, dim, fingerprint and "
        "embed, or a callable that takes a list of texts and returns one row of numbers for each"
    )


def _is_embedder(spec: object) -> TypeGuard[Embedder]:
    return all(hasattr(spec, member) for member in ("name", "dim", "fingerprint", "embed"))

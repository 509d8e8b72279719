"""How does an embedder that memcore did not make fit in? Any callable, checked at the gate."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from memcore import gate
from memcore.embed.protocol import Kind, Vectors, as_texts
from memcore.errors import InvalidInput

_PROBE = "memcore"


class CallableEmbedder:
    """Wraps a callable of `(list[str])` or `(list[str], kind)` that returns one row of numbers a text.

    `kind` ("document" or "query") is passed if the callable has a parameter of that name, or a second positional
    parameter without a default; otherwise the callable gets the texts alone.

    The result may be whatever NumPy reads as a 2-D array of real numbers. It goes through `gate.vectors`: a float32
    copy in C order, L2-normalised, zero rows allowed; the callable's array is never written to. The callable is not
    called for an empty list, and it is called in whichever thread embeds, by several at once if several do.

    `name` is by default the callable's module and qualified name. Pass `name=` for a lambda or a local function, whose
    qualified name says little: the name is what tells a store's embedder from another, and two lambdas of one module
    have the same one.
    `dim`, if not given, is the width of the first result. Reading `dim`, `fingerprint` or the result for no texts
    before that calls the callable once, with one short text.
    `fingerprint` is by default `callable/NAME/DIM`. Pass one that names the model's version, if it may change.

    Errors: `InvalidInput` for something that is not callable, or is async, and for a result that holds no finite real
    numbers; `DimensionMismatch` for a result of another shape. Exceptions of the callable come through as they are.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        name: str | None = None,
        dim: int | None = None,
        fingerprint: str | None = None,
    ) -> None:
        if not callable(fn):
            raise InvalidInput(
                f"embedder is {gate.shown(fn)}; it must be a callable that takes a list of texts and returns one row "
                "of numbers for each"
            )
        self.name = _name(fn) if name is None else gate.text(name, "the embedder's name")
        if inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__):
            raise InvalidInput(
                f"embedder {self.name!r} is async; memcore calls it from ordinary code: pass a function that waits for "
                "the result, such as lambda texts: asyncio.run(embed(texts))"
            )
        self._call = _caller(fn)
        self._dim = None if dim is None else gate.count(dim, "dim", least=1)
        self._fingerprint = None if fingerprint is None else gate.text(fingerprint, "the embedder's fingerprint")

    @property
    def dim(self) -> int:
        """The width of the vectors; calls the callable with one short text if it is not known yet."""
        if self._dim is None:
            self.embed([_PROBE])
        assert self._dim is not None  # embed sets it
        return self._dim

    @property
    def fingerprint(self) -> str:
        """The one given, or `callable/NAME/DIM`."""
        return self._fingerprint or f"callable/{self.name}/{self.dim}"

    def embed(self, texts: Sequence[str], kind: Kind = "document") -> Vectors:
        """float32 `(len(texts), dim)`, C order, rows of norm 1 or zero."""
        listed = as_texts(texts)
        if not listed:
            return np.zeros((0, self.dim), dtype=np.float32)
        count = len(listed)  # before the call, which may change its list
        rows = self._call(listed, kind)
        vectors = gate.vectors(rows, rows=count, dim=self._dim, what=f"the result of embedder {self.name!r}")
        self._dim = vectors.shape[1]
        return vectors


def _name(fn: Callable[..., Any]) -> str:
    """Module and qualified name, of the object's type if it has none of its own (functools.partial, an instance)."""
    named = fn if hasattr(fn, "__qualname__") else type(fn)
    return f"{getattr(named, '__module__', None) or 'builtins'}.{named.__qualname__}"


def _caller(fn: Callable[..., Any]) -> Callable[[list[str], Kind], Any]:
    """`fn` as a function of texts and kind: the kind is passed by name, by place, or not at all."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # some C functions have no signature to inspect
        parameters = []
    if any(p.name == "kind" and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters):
        return lambda texts, kind: fn(texts, kind=kind)
    placed = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(placed) >= 2 and (placed[1].name == "kind" or placed[1].default is inspect.Parameter.empty):
        return fn
    return lambda texts, kind: fn(texts)

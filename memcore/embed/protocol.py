"""What must an embedder offer, and what may be passed where one is asked for?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from memcore import gate
from memcore.errors import InvalidInput

Vectors: TypeAlias = npt.NDArray[np.float32]
"""float32, shape `(n, dim)`, C-contiguous, each row of L2 norm 1 or all zero."""

Kind: TypeAlias = Literal["document", "query"]
"""Is the text stored or asked? Models trained with a prefix for each need to know; the others ignore it."""


class Embedder(Protocol):
    """Turns texts into vectors.

    A text's vector depends on the text and the kind alone: not on the batch it came in, the order, the process or the
    thread. Any number of threads may call `embed` at once.
    """

    @property
    def name(self) -> str:
        """For people and error messages: "static", "hashed", or the callable's name."""
        ...

    @property
    def dim(self) -> int:
        """The width of every vector."""
        ...

    @property
    def fingerprint(self) -> str:
        """Equal fingerprints promise equal vectors. A store keeps it, and refuses an embedder with another one."""
        ...

    def embed(self, texts: Sequence[str], kind: Kind = "document") -> Vectors:
        """One row a text, in the order of `texts`; a text in which nothing is known is a row of zeros."""
        ...


EmbedderSpec: TypeAlias = str | Embedder | Callable[..., Any]
"""What `resolve` takes: a name, an embedder, or a callable of `(list[str])` or `(list[str], kind)` returning rows."""


def as_texts(texts: Iterable[object]) -> list[str]:
    """A new list of the texts. A lone text is refused: as a sequence it would be embedded letter by letter."""
    if isinstance(texts, (str, bytes, bytearray)):
        raise InvalidInput(f"texts is {gate.shown(texts)}; embed takes a list of texts: pass [text]")
    listed: list[str] = []
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidInput(f"texts[{i}] is {gate.shown(text)}; every item must be a text (str): convert it first")
        listed.append(text)
    return listed

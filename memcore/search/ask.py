"""What is asked for, and what was found? What recall hands to a search and gets back, without loading a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memcore.config import Weights


class Ask(NamedTuple):
    """What is asked for, in memcore's own form. `decay_rate` per hour, `now` in µs. With a `budget`, of tokens, the k
    best are those that it is filled from.
    """

    k: int
    weights: Weights
    decay_rate: float
    now: int
    min_similarity: float = -np.inf
    min_score: float = -np.inf
    budget: int | None = None


class Found(NamedTuple):
    """The best rows in order: float64 scores and int64 positions `(m,)`, m <= k, and what finding them took: `counted`
    as of `memcore_kernels.scan.COUNTED`. `parts`, float64 `(m,)` each: where something else stood in place of the
    similarity, that relevance and what it is made of (`relevance.Parts`).
    """

    scores: npt.NDArray[np.float64]
    positions: npt.NDArray[np.int64]
    plan: str
    rows: int  # in the scope
    passed: int  # of them, through the filter
    counted: Sequence[int]
    parts: tuple[npt.NDArray[np.float64], ...] | None = None

"""Which k rows are best? A bounded heap whose root is the worst row kept, under the total order of results.

The order: higher score, then newer event time, then lower id (two uint64 halves, high first). It is total, since ids
are unique, so what a heap holds never depends on the order in which rows were offered.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memcore_kernels.settings import exact_kernel

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


@exact_kernel
def before(s: float, t: int, hi: int, lo: int, s2: float, t2: int, hi2: int, lo2: int) -> bool:
    """Does the row (score, event time, id high, id low) come before the other one in a result?"""
    if s != s2:
        return s > s2
    if t != t2:
        return t > t2
    if hi != hi2:
        return hi < hi2
    return lo < lo2


@exact_kernel
def offer(
    scores: F64, times: I64, his: U64, los: U64, rows: I64, size: int, s: float, t: int, hi: int, lo: int, row: int
) -> int:
    """Offer a row to the heap held in five arrays `(k,)`, of which `size` are in use; returns the new size."""
    k = scores.size
    if size < k:  # sift up from a new leaf
        at = size
        size += 1
        while at > 0:
            up = (at - 1) // 2
            if not before(scores[up], times[up], his[up], los[up], s, t, hi, lo):
                break
            scores[at], times[at], his[at], los[at], rows[at] = scores[up], times[up], his[up], los[up], rows[up]
            at = up
    else:
        if k == 0 or not before(s, t, hi, lo, scores[0], times[0], his[0], los[0]):
            return size
        at = _sunk(scores, times, his, los, rows, k, s, t, hi, lo)
    scores[at], times[at], his[at], los[at], rows[at] = s, t, hi, lo, row
    return size


@exact_kernel
def _sunk(scores: F64, times: I64, his: U64, los: U64, rows: I64, size: int, s: float, t: int, hi: int, lo: int) -> int:
    """Where a row belongs that takes the root's place in a heap of `size` entries; those above it have moved up."""
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            return at
        other = child + 1
        if other < size and before(
            scores[child], times[child], his[child], los[child], scores[other], times[other], his[other], los[other]
        ):
            child = other
        if not before(s, t, hi, lo, scores[child], times[child], his[child], los[child]):
            return at
        scores[at], times[at], his[at] = scores[child], times[child], his[child]
        los[at], rows[at] = los[child], rows[child]
        at = child


@exact_kernel
def arrange(scores: F64, times: I64, his: U64, los: U64, rows: I64) -> None:
    """Brings a heap of five arrays `(n,)` into the order of results, best first."""
    for last in range(scores.size - 1, 0, -1):
        s, t, hi, lo, row = scores[last], times[last], his[last], los[last], rows[last]
        scores[last], times[last], his[last], los[last], rows[last] = scores[0], times[0], his[0], los[0], rows[0]
        at = _sunk(scores, times, his, los, rows, last, s, t, hi, lo)
        scores[at], times[at], his[at], los[at], rows[at] = s, t, hi, lo, row


def ranked(k: int, scores: F64, times: I64, his: U64, los: U64, rows: I64) -> tuple[F64, I64]:
    """The best k of any number of entries `(n,)`, in order: their scores and rows."""
    order = np.lexsort((los, his, -times, -scores))[:k]
    return scores[order], rows[order]

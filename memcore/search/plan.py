"""Which plan answers a recall? The exact scan, a batched product, or graphs where they are expected to be faster."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memcore.search import approximate, exact
from memcore.search.ask import Ask, Found
from memcore.search.planner import Planner
from memcore.store.graphs import kind_of
from memcore.store.snapshot import Masks, Snapshot
from memcore_kernels.decay import recency

# What graphs are tried for when they are made, and so what they answer: of the weights as they are by `now`, when what
# recency can add has shrunk, similarity has at least this share, and importance at most that. Beyond, hundreds of rows
# tie in a graph's 8-bit numbers: at (.2, 0, .8) it found .90 of the top 10, and of more than 10 hits ever less.
MOST_K = 10
LEAST_SIMILARITY = 0.2
MOST_IMPORTANCE = 0.5

F32 = npt.NDArray[np.float32]


def best(snapshot: Snapshot, masks: Masks, query: F32 | None, ask: Ask, planner: Planner) -> Found:
    """The top k by the total score. `query` float32 `(d,)`, L2-normalised; None or all zero: similarity 0."""
    there = None if query is None else _covered(snapshot, masks, ask, planner)
    if there is None:
        return exact.best(snapshot, masks, query, ask)
    assert query is not None
    (found,) = approximate.best_many(snapshot, masks, there, query[None], ask)
    return found


def best_many(snapshot: Snapshot, masks: Masks, queries: F32, ask: Ask, planner: Planner) -> list[Found]:
    """The same for each row of `queries`, float32 `(q, d)`."""
    there = _covered(snapshot, masks, ask, planner) if len(queries) else None
    if there is None:
        return exact.best_many(snapshot, masks, queries, ask)
    return approximate.best_many(snapshot, masks, there, queries, ask)


def _covered(snapshot: Snapshot, masks: Masks, ask: Ask, planner: Planner) -> approximate.Covered | None:
    """The graphs that can answer, if it is worth it; None: the exact scan is to."""
    if planner.backend is None or not snapshot.dim or ask.k > MOST_K:
        return None
    passed = exact.scanned(snapshot, masks).passed
    if passed < max(planner.least_rows, ask.k):
        return None
    snapshot.graphs.look()
    runs = [run for run in snapshot.graphs.of(planner.backend, ask.decay_rate) if run.newest <= ask.now]
    if not runs:
        return None
    alpha, beta, gamma = ask.weights
    beta *= recency(max(run.newest for run in runs), ask.now, ask.decay_rate)
    left = alpha + beta + gamma
    if alpha < LEAST_SIMILARITY * left or gamma > MOST_IMPORTANCE * left or not alpha:
        return None
    made_of = (snapshot.graphs.runs, planner.backend, ask.decay_rate, kind_of(alpha, beta, gamma))
    there: approximate.Covered | None = masks.covered
    if there is None or there.of != made_of:
        there = masks.covered = approximate.covering(snapshot, masks, made_of)
    usable = there.passed >= planner.least_share * there.rows and there.passed * 2 >= passed
    if not there.used or not usable or any(used.run.newest > ask.now for used in there.used):
        return None
    return there

"""What are about the k best rows, where graphs cover most of a scope? Their candidates, and all rows without a graph,
scored exactly.

A graph gives the best so many of all its rows, forgotten ones too. Those of them that the masks let through are the
best of the rows that pass, if they are at least k; with fewer, others may have been crowded out, and the query is
answered by the exact scan. So a row that is out never costs one that is in its place.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memcore.search import exact
from memcore.search.ask import Ask, Found
from memcore.store.graphs import SCORED, Run, asked, key_of
from memcore.store.snapshot import EVERY, Mask, Masks, Snapshot

MOST_EFFORT = 4  # times a graph's own, for filters
MOST_RESULTS = 1 << 19  # of walks at once, which take 4 MB, and as much again while they are sorted

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


class Used(NamedTuple):
    """A graph, as far as a snapshot has its rows and masks let them through."""

    run: Run
    moved: I64  # by segment: from a row's number in the graph to its position
    allowed: Mask  # uint8 `(rows,)`, or EVERY
    passed: int


class Covered(NamedTuple):
    """What of a snapshot graphs cover, and masks for the rest."""

    of: tuple[tuple[Run, ...], str, float, int]  # what it was made for
    used: list[Used]
    rows: int  # of the graphs
    passed: int  # of them, through the masks
    rest: Masks


def covering(snapshot: Snapshot, masks: Masks, made_of: tuple[tuple[Run, ...], str, float, int]) -> Covered:
    """What the graphs of `made_of` (all of them, a backend, a lambda, and the kind of weights) cover of what the masks
    let through.
    """
    _, backend, decay_rate, kind = made_of
    places = {key_of(part.segment): i for i, part in enumerate(snapshot.parts) if part.n == part.segment.n}
    rest = Masks(masks)
    used, rows, passed = [], 0, 0
    for run in snapshot.graphs.of(backend, decay_rate):
        usable = run.dim == snapshot.dim and run.efforts[kind]
        if not usable or not places.keys() & set(run.keys) or run.graph() is None:
            continue
        allowed: Mask = np.zeros(run.rows, np.uint8)
        moved = np.zeros(len(run.keys), np.int64)
        for s, key in enumerate(run.keys):
            first, last = int(run.starts[s]), int(run.starts[s + 1])
            i = places.pop(key, None)
            if i is not None and snapshot.parts[i].n == last - first:
                allowed[first:last] = 1 if masks[i] is EVERY else masks[i]
                moved[s] = snapshot.parts[i].base - first
                rest[i] = np.zeros(last - first, np.uint8)
        mine = int(np.count_nonzero(allowed))
        used.append(Used(run, moved, EVERY if mine == run.rows else allowed, mine))
        rows, passed = rows + run.rows, passed + mine
    rest.since, rest.until = masks.since, masks.until
    return Covered(made_of, used, rows, passed, rest)


def best_many(snapshot: Snapshot, masks: Masks, there: Covered, queries: F32, ask: Ask) -> list[Found]:
    """About the top k for each row of `queries`, float32 `(q, d)`, L2-normalised; exact scores, in exact order."""
    table = exact.scanned(snapshot, masks)
    k = min(ask.k, table.passed)
    wanted = max(SCORED, 2 * k)
    efforts = [_effort(used, there, wanted) for used in there.used]
    at_once = max(MOST_RESULTS // max(efforts), 1)
    if len(queries) > at_once:
        shares = (queries[first : first + at_once] for first in range(0, len(queries), at_once))
        return [found for share in shares for found in best_many(snapshot, masks, there, share, ask)]
    others = exact.best_many(snapshot, there.rest, queries, ask)
    columns: list[I64] = []
    sure = np.logical_or.reduce(queries != 0, axis=1)  # nothing is similar to a query of zeros
    for used, effort in zip(there.used, efforts, strict=True):
        candidates, many = _candidates(used, queries, ask, effort, wanted)
        columns.append(candidates)
        sure &= many >= min(k, used.passed)
    rest = np.full((len(queries), max(len(other.positions) for other in others)), -1, np.int64)
    for row, other in zip(rest, others, strict=True):
        row[: len(other.positions)] = other.positions
    candidates, sizes = _together([*columns, rest])
    best_of, ranked = exact.rescored(table, queries, ask, wanted, candidates, sizes)
    plan = f"{there.used[0].run.backend} HNSW, {len(there.used)} graph{'s' if len(there.used) > 1 else ''}"
    if there.passed < table.passed:
        plan += " and exact scan of the rest"
    found: list[Found] = []
    for i in range(len(queries)):
        scores = best_of[0][i]
        # Where a walk's last row is as good as the k-th, others that are as good may have been left out, and be newer.
        if ranked[i] >= k and sure[i] and (ranked[i] < wanted or scores[wanted - 1] < scores[k - 1]):
            blocks, first, second, third, read, scored = others[i].counted
            size = int(sizes[i])
            counted = (blocks, first, second, third, read + size, scored + size)
            found.append(
                Found(best_of[0][i, :k].copy(), best_of[4][i, :k].copy(), plan, snapshot.rows(), table.passed, counted)
            )
        else:
            found.append(exact.best(snapshot, masks, queries[i], ask))
    return found


def _effort(used: Used, there: Covered, wanted: int) -> int:
    """How many rows a walk keeps in view: the more, the fewer of them the masks let through."""
    base = used.run.efforts[there.of[-1]]
    return max(min(int(base * used.run.rows / max(used.passed, 1)), MOST_EFFORT * base), wanted)


def _candidates(used: Used, queries: F32, ask: Ask, effort: int, wanted: int) -> tuple[I64, I64]:
    """Positions of a graph's best rows that the masks let through, `(q, wanted)`, -1 where there are no more; and how
    many the walk has found in all.
    """
    run, graph = used.run, used.run.graph()
    assert graph is not None
    made = asked(queries, ask.weights, ask.decay_rate, ask.now, run.newest)
    looked_at = wanted if used.allowed is EVERY else effort
    rows = graph.search(made, looked_at, effort)
    there = rows >= 0
    if used.allowed is not EVERY:
        there &= used.allowed[rows].view(np.bool_)
    rows = _in_front(np.where(there, rows, -1), there)[:, :wanted]
    segment = np.searchsorted(run.starts, rows, side="right") - 1
    positions = np.where(rows >= 0, rows + used.moved[np.maximum(segment, 0)], -1)
    return positions, there.sum(axis=1)


def _together(columns: list[I64]) -> tuple[I64, I64]:
    """Columns side by side, with what is there in front; and how much that is in each row."""
    every = np.concatenate(columns, axis=1)
    there = every >= 0
    return _in_front(every, there), there.sum(axis=1)


def _in_front(rows: I64, there: npt.NDArray[np.bool_]) -> I64:
    """Those of each row that are there first, in the order they had."""
    return rows if there.all() else np.take_along_axis(rows, np.argsort(~there, axis=1, kind="stable"), 1)

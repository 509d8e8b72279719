"""From how many rows on is a graph faster than the exact scan, on this machine? Measures both, on real text."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from memcore import sample
from memcore.config import Weights
from memcore.memory import Memory, Scope, open
from memcore.search import planner
from memcore.search.planner import EXACT, Measured, Planner
from memcore.store.graphs import Progress
from memcore.store.segment import ROWS

SIZES = (ROWS, 4 * ROWS)  # rows of the two scopes that are measured: full segments, so that a graph covers all of them
WEIGHTS = (Weights(0.5, 0.3, 0.2), Weights(1.0, 0.0, 0.0))
SHARES = (2, 3, 4)  # of so many rows one passes the filters that are measured
_NOW = 1_790_000_000.0
_DAYS = 90
_K = 10
_QUERIES = 40
_BATCH = 400
_MOST_ROWS = 1 << 24
_KINDS = ("one query", "in a batch")

F32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Point:
    """What a query took at so many rows, in ms: one by one, or as one of many."""

    rows: int
    weights: Weights
    kind: str
    exact_ms: float
    graph_ms: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured, and what the planner makes of it: from how many rows on a graph is faster for all weights, one
    query or many; and which share of the rows must pass a filter.
    """

    points: list[Point]
    filtered: dict[int, tuple[float, float]]  # one row in so many passes: ms of the exact scan, and of a graph
    least_rows: int
    least_share: float


def measure(progress: Progress) -> Calibration:
    """Takes about a minute, and 0.5 GB: graphs in RAM, over lines of Python's own library."""
    small, large = sizes = SIZES
    with open(index="faiss", clock=lambda: _NOW) as mem:
        scopes = [mem.scope(project_id=f"rows-{rows}") for rows in sizes]
        texts = sample.lines(small + large + _QUERIES)
        first = 0
        for scope, rows in zip(scopes, sizes, strict=True):
            _fill(scope, texts[first : first + rows])
            first += rows
        mem.compact(progress=progress)
        queries = mem._engine.embed(texts[first:], "query")
        assert queries is not None
        points = [
            Point(rows, weights, kind, *_both(mem, scope, queries, kind, weights=weights))
            for scope, rows in zip(scopes, sizes, strict=True)
            for weights in WEIGHTS
            for kind in _KINDS
        ]
        filtered = {
            share: _both(mem, scopes[1], queries, _KINDS[0], where=pc.field(f"metadata.of{share}") == 0)
            for share in SHARES
        }
    least_rows = max(_crossing(*pair) for pair in _pairs(points))
    return Calibration(points, filtered, least_rows, _least_share(points, filtered, least_rows))


def _fill(scope: Scope, texts: Sequence[str]) -> None:
    rng = np.random.default_rng(0)
    times = np.sort(_NOW - rng.random(len(texts)) * _DAYS * 86_400)
    importance = rng.random(len(texts))
    marks = rng.integers(0, math.lcm(*SHARES), len(texts))
    scope.remember_many(
        [
            {
                "content": text, "event_time": times[i], "importance": importance[i],
                "metadata": {f"of{share}": int(marks[i] % share) for share in SHARES},
            }
            for i, text in enumerate(texts)
        ]
    )  # fmt: skip


def _both(mem: Memory, scope: Scope, queries: F32, kind: str, **asked: Any) -> tuple[float, float]:
    """What a query takes by the exact scan, and by a graph, in ms."""
    took = []
    for chosen in (EXACT, Planner("faiss", 0, 0.0)):
        mem._engine.planner = chosen
        took.append(_timed(scope, queries, kind, **asked))
    return took[0], took[1]


def _timed(scope: Scope, queries: F32, kind: str, **asked: Any) -> float:
    def one(query: F32) -> float:
        begun = time.perf_counter()
        scope.recall(vector=query, k=_K, **asked)
        return time.perf_counter() - begun

    def batch(many: F32) -> float:
        begun = time.perf_counter()
        scope.recall_many(vectors=many, k=_K, **asked)
        return time.perf_counter() - begun

    if kind == _KINDS[0]:
        return 1e3 * statistics.median([one(query) for query in [*queries, *queries]][len(queries) :])
    many = np.tile(queries, (-(-_BATCH // len(queries)), 1))
    return 1e3 * min(batch(many) for _ in range(3)) / len(many)


def _pairs(points: Sequence[Point]) -> list[tuple[Point, Point]]:
    """The two sizes of each way that was measured."""
    half = len(points) // 2
    return list(zip(points[:half], points[half:], strict=True))


def _at(small: Point, large: Point, rows: float) -> tuple[float, float]:
    """What the exact scan and a graph would take at so many rows: the one in proportion to them, the other to their
    logarithm.
    """
    exact = small.exact_ms + (large.exact_ms - small.exact_ms) * (rows - small.rows) / (large.rows - small.rows)
    steps = math.log(rows / small.rows) / math.log(large.rows / small.rows)
    return exact, small.graph_ms + max(large.graph_ms - small.graph_ms, 0.0) * steps


def _crossing(small: Point, large: Point) -> int:
    """From how many rows on the graph is the faster one, for all that are more."""
    rows = float(_MOST_ROWS)
    while rows >= small.rows:
        exact, graph = _at(small, large, rows)
        if graph > exact:
            break
        rows /= 1.05
    return min(int(rows * 1.05), _MOST_ROWS)


def _least_share(points: Sequence[Point], filtered: dict[int, tuple[float, float]], least_rows: int) -> float:
    """The least share of rows that pass with which a graph of twice that many rows is faster."""
    pair = _pairs(points)[0]
    exact, graph = _at(*pair, 2 * least_rows)
    here = pair[1]
    faster = [
        share
        for share, (exact_ms, graph_ms) in filtered.items()
        if graph * graph_ms / here.graph_ms <= exact * exact_ms / here.exact_ms
    ]
    return 1 / max(faster) if faster else 1.0


def keep(found: Calibration) -> str:
    """Has stores that are opened from now on go by it; where it was written."""
    path = planner.path()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(Measured(found.least_rows, found.least_share)._asdict()), encoding="utf-8")
    part.replace(path)
    return str(path)

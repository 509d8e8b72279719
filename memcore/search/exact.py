"""What are the exact k best rows of a snapshot, for one query or for many? Runs the scan kernels over its parts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memcore.config import Weights
from memcore.store.segment import NO_CODES, ROWS
from memcore.store.snapshot import EVERY, Mask, Part, Snapshot
from memcore_kernels import scan, topk
from memcore_kernels.codes import query_codes
from memcore_kernels.decay import BLOCK, known_terms

THREADS = min(os.cpu_count() or 1, 8)
PARALLEL_ROWS = 30_000  # rows from which a second thread gains more than the 40 µs that handing work over costs
CODED_ROWS = 4_000  # rows from which int8 codes are worth having; below, the float32 rows fit the caches
NO_QUERY_CODES = (np.zeros(0, np.int16), 0.0, 0.0)
BATCH_BYTES = 64 << 20  # the float32 dot products of `best_many` held at once
SPARE = 32  # candidates beyond k a query of a batch: enough that float32 ties rarely send it to the single scan

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ask:
    """What is asked for, in memcore's own form. `decay_rate` per hour, `now` in µs."""

    k: int
    weights: Weights
    decay_rate: float
    now: int
    min_similarity: float = -np.inf
    min_score: float = -np.inf


@dataclass(frozen=True, slots=True)
class Found:
    """The best rows in order: float64 scores and int64 positions `(m,)`, m <= k, and what finding them took."""

    scores: F64
    positions: I64
    plan: str
    rows: int  # in the scope
    passed: int  # of them, through the filter
    coded: int  # int8 rows read
    read: int  # float32 vectors read
    scored: int  # rows scored in float64


def best(snapshot: Snapshot, masks: Sequence[Mask], query: F32 | None, ask: Ask) -> Found:
    """The exact top k by the total score. `query` float32 `(d,)`, L2-normalised; None or all zero: similarity 0."""
    passed = _passed(snapshot, masks)
    k = min(ask.k, passed)
    if k == 0:
        return Found(np.empty(0), np.empty(0, np.int64), "nothing to scan", snapshot.rows(), passed, 0, 0, 0)
    plain = query is None or not query.any()
    alpha = 0.0 if plain else ask.weights.alpha
    least = -np.inf if plain and ask.min_similarity <= 0 else ask.min_similarity
    if plain and least > 0:
        return Found(np.empty(0), np.empty(0, np.int64), "no similarity", snapshot.rows(), passed, 0, 0, 0)
    asked = np.zeros(snapshot.dim, dtype=np.float32) if query is None else query
    coded = passed >= CODED_ROWS and alpha > 0
    numbers, step, missed = query_codes(asked) if coded else NO_QUERY_CODES
    threads = THREADS if passed >= PARALLEL_ROWS else 1
    pieces = iter(_pieces(snapshot, threads))
    floor = np.array([ask.min_score])

    def run(_: int) -> tuple[Any, ...]:
        heap, counts, known = _heap(k), np.zeros(4, dtype=np.int64), _scratch()
        for i, first, last in pieces:  # shared: each thread takes the next one until none is left
            part = snapshot.parts[i]
            columns = part.columns
            codes = part.segment.codes() if coded else NO_CODES
            scan.scan(
                first, last, columns["vector"], asked, *codes, numbers, step, missed, masks[i], columns["event_time"],
                columns["importance"], columns["id_hi"], columns["id_lo"], ask.now, ask.decay_rate, alpha, ask.weights.beta,
                ask.weights.gamma, least, part.base, known, floor, *heap, counts,
            )  # fmt: skip
        return (*(array[: counts[0]] for array in heap), counts)

    runs = _each(run, threads)
    heap = [np.concatenate(arrays) for arrays in list(zip(*runs, strict=True))[:5]]
    scores, positions = topk.ranked(*heap, k)
    counts = sum(r[5] for r in runs)
    plan = f"exact scan, {threads} thread{'s' if threads > 1 else ''}"
    return Found(scores, positions, plan, snapshot.rows(), passed, *(int(n) for n in counts[1:]))


def _pieces(snapshot: Snapshot, threads: int) -> list[tuple[int, int, int]]:
    """Shares of work for one query: (part, first row, row after the last), the newest first.

    The newest rows have the highest scores as a rule, so the k-th score is high from the start. One thread takes whole
    parts; several take about four pieces each, so that one which another process holds up delays the end by little.
    """
    most = ROWS if threads == 1 else max(BLOCK, snapshot.rows() // (4 * threads) // BLOCK * BLOCK)
    return [
        (i, first, min(first + most, snapshot.parts[i].n))
        for i in range(len(snapshot.parts) - 1, -1, -1)
        for first in reversed(range(0, snapshot.parts[i].n, most))
    ]


def best_many(snapshot: Snapshot, masks: Sequence[Mask], queries: F32, ask: Ask) -> list[Found]:
    """The exact top k for each row of `queries`, float32 `(q, d)`: a blocked matrix product, then exact rescoring.

    Per block the product, decay, importance and selection are done before the next block, so memory stays within
    `BATCH_BYTES`. A query for which float32 may have dropped a row of its top k, as with many equal scores, is answered by
    `best` instead.
    """
    passed = _passed(snapshot, masks)
    k = min(ask.k, passed)
    if k == 0 or len(queries) == 1:
        return [best(snapshot, masks, query, ask) for query in queries]
    known = _known(snapshot, masks, ask)
    q, capacity = len(queries), min(k + SPARE + k // 8, passed)
    heaps = [np.stack([array] * q) for array in _heap(capacity)]
    sizes = np.zeros(q, dtype=np.int64)
    alpha, beta, gamma = ask.weights
    width = max(BLOCK, BATCH_BYTES // (4 * q) // BLOCK * BLOCK)
    for part, terms in zip(snapshot.parts, known, strict=True):
        columns = part.columns
        for start in range(0, part.n, width):
            rows = slice(start, min(start + width, part.n))
            dots = queries @ columns["vector"][rows].T
            share = -(-q // THREADS)

            def screened(thread: int, dots: F32 = dots, rows: slice = rows, terms: F32 = terms, part: Part = part) -> None:
                mine, columns = slice(thread * share, (thread + 1) * share), part.columns
                scan.screen(
                    dots[mine], terms[rows], columns["event_time"][rows], columns["id_hi"][rows], columns["id_lo"][rows],
                    queries.shape[1], alpha, ask.min_similarity, ask.min_score, part.base + (rows.start or 0),
                    *(array[mine] for array in heaps), sizes[mine],
                )  # fmt: skip

            _each(screened, THREADS)
    exact = np.full((q, capacity), -np.inf)
    for part in snapshot.parts:
        columns = part.columns
        scan.rescore(
            columns["vector"], queries, columns["event_time"], columns["importance"], ask.now, ask.decay_rate,
            alpha, beta, gamma, ask.min_similarity, ask.min_score, part.base, heaps[4], sizes, exact,
        )  # fmt: skip
    error = scan.KNOWN_ERROR + alpha * scan.dot_error(queries.shape[1])
    found = []
    for i in range(q):
        size = int(sizes[i])
        barred = np.isneginf(exact[i, :size])
        lists = [array[i, :size][~barred] for array in (exact, *heaps[1:])]
        scores, positions = topk.ranked(*lists, k)
        dropped = float(heaps[0][i, 0]) if size == capacity and size < passed else -np.inf
        if dropped > -np.inf and (len(scores) < k or scores[-1] <= dropped + error):
            found.append(best(snapshot, masks, queries[i], ask))
        else:
            found.append(Found(scores, positions, "batched product", snapshot.rows(), passed, 0, passed, size))
    return found


def _passed(snapshot: Snapshot, masks: Sequence[Mask]) -> int:
    return sum(
        part.n if mask is EVERY else int(np.count_nonzero(mask)) for part, mask in zip(snapshot.parts, masks, strict=True)
    )


def _known(snapshot: Snapshot, masks: Sequence[Mask], ask: Ask) -> list[F32]:
    """For each part, the score terms that need no vector."""
    known = [np.empty(part.n, dtype=np.float32) for part in snapshot.parts]

    def run(thread: int) -> None:
        for i in range(thread, len(known), THREADS):
            columns = snapshot.parts[i].columns
            peaks = np.empty(-(-snapshot.parts[i].n // BLOCK), dtype=np.float32)
            known_terms(
                columns["event_time"], columns["importance"], masks[i], ask.now, ask.decay_rate,
                ask.weights.beta, ask.weights.gamma, known[i], peaks,
            )  # fmt: skip

    _each(run, THREADS if snapshot.rows() >= PARALLEL_ROWS else 1)
    return known


_local = threading.local()


def _scratch() -> F32:
    """Room for a segment's known terms, one a thread: it stays in the cache from query to query."""
    if not hasattr(_local, "scratch"):
        _local.scratch = np.empty(ROWS, np.float32)
    scratch: F32 = _local.scratch
    return scratch


def _heap(k: int) -> tuple[npt.NDArray[Any], ...]:
    """Room for k entries: scores, event times, ids in two halves, positions."""
    return np.empty(k), np.empty(k, np.int64), np.empty(k, np.uint64), np.empty(k, np.uint64), np.empty(k, np.int64)


_pool: ThreadPoolExecutor | None = None
_pool_lock = threading.Lock()


def _each(run: Callable[[int], Any], threads: int) -> list[Any]:
    """run(0) in this thread and run(1) … run(threads - 1) in helpers; the kernels release the GIL."""
    if threads == 1:
        return [run(0)]
    helpers = [_helpers().submit(run, thread) for thread in range(1, threads)]
    return [run(0), *(helper.result() for helper in helpers)]


def _helpers() -> ThreadPoolExecutor:
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(THREADS, thread_name_prefix="memcore-scan")
        return _pool


def _forget_pool() -> None:
    """A forked child inherits the pool but not its threads, and maybe a held lock."""
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_pool)

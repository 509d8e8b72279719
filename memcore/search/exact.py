"""What are the exact k best rows of a snapshot, for one query or for many? Runs the scan kernels over its parts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from memcore.config import Weights
from memcore.store.segment import NO_CODES, ROWS
from memcore.store.snapshot import EVERY, Mask, Snapshot
from memcore_kernels import scan, topk
from memcore_kernels.codes import query_codes
from memcore_kernels.decay import BLOCK, KNOWN_ERROR, known_terms

THREADS = min(os.cpu_count() or 1, 8)
PARALLEL_ROWS = 30_000  # rows from which a second thread gains more than handing work over costs
CODED_ROWS = 1_000  # rows from which int8 codes save more than the 5 µs that coding the query takes
NO_QUERY_CODES = (np.zeros(0, np.int16), 0.0, 0.0)
FEW = 6  # queries from which one pass for all is faster than one scan each (break-even: 4 at 20,000 rows, 8 at 200,000)
BATCH_BYTES = 8 << 20  # the dot products of `best_many` held at once: 64 MB, past the caches, took 1.3 times as long
MOST = BATCH_BYTES // (4 * BLOCK)  # queries of one pass: more of them come in several
SCANNED = ("vector", "event_time", "importance", "id_hi", "id_lo")
SPARE = 32  # candidates beyond k a query of a batch: enough that float32 ties rarely send it to the single scan

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Heap = tuple[Any, Any, Any, Any, Any]  # float64 scores, int64 event times, ids as two uint64 halves, int64 positions


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
    # One thread takes whole segments; several, four pieces each, so that one which is held up delays the end by little.
    most = ROWS if threads == 1 else max(BLOCK, snapshot.rows() // (4 * threads) // BLOCK * BLOCK)
    pieces = iter(_pieces(snapshot, most))
    floor = np.array([ask.min_score])

    def run() -> tuple[list[npt.NDArray[Any]], I64]:
        heap, counts, known = _heap(k), np.zeros(4, dtype=np.int64), _scratch(snapshot)
        for i, first, last in pieces:  # shared: each thread takes the next one until none is left
            part = snapshot.parts[i]
            columns = part.columns
            codes = part.segment.codes() if coded else NO_CODES
            scan.scan(
                first, last, columns["vector"], asked, *codes, numbers, step, missed, masks[i], columns["event_time"],
                columns["importance"], columns["id_hi"], columns["id_lo"], ask.now, ask.decay_rate, alpha,
                ask.weights.beta, ask.weights.gamma, least, part.base, known, floor, *heap, counts,
            )  # fmt: skip
        return [array[: counts[0]] for array in heap], counts

    heaps, counts = zip(*_each(run, threads), strict=True)
    scores, positions = topk.ranked(k, *map(np.concatenate, zip(*heaps, strict=True)))
    _, codes_read, vectors_read, scored = sum(counts).tolist()
    plan = f"exact scan, {threads} thread{'s' if threads > 1 else ''}"
    return Found(scores, positions, plan, snapshot.rows(), passed, codes_read, vectors_read, scored)


def best_many(snapshot: Snapshot, masks: Sequence[Mask], queries: F32, ask: Ask) -> list[Found]:
    """The exact top k for each row of `queries`, float32 `(q, d)`: a blocked matrix product, then exact rescoring.

    Per block the product, decay, importance and selection are done before the next block, so memory stays within
    `BATCH_BYTES`. The selection runs in this thread alone: BLAS's threads spin for a while after each product, and a
    second one of ours beside them gained nothing. A query for which float32 may have dropped a row of its top k, as
    with many equal scores, is answered by `best` instead.
    """
    if len(queries) > MOST:
        shares = (queries[start : start + MOST] for start in range(0, len(queries), MOST))
        return [found for share in shares for found in best_many(snapshot, masks, share, ask)]
    passed = _passed(snapshot, masks)
    k = min(ask.k, passed)
    if k == 0 or len(queries) < FEW:
        return [best(snapshot, masks, query, ask) for query in queries]
    q, capacity = len(queries), min(k + SPARE + k // 8, passed)
    heaps, exact = _heap(q, capacity), np.full((q, capacity), -np.inf)
    sizes = np.zeros(q, dtype=np.int64)
    alpha, beta, gamma = ask.weights
    width = min(ROWS, BATCH_BYTES // (4 * q) // BLOCK * BLOCK)
    room, known = np.empty(q * width, np.float32), np.empty(width, np.float32)
    peaks = np.empty(width // BLOCK, np.float32)
    for i, first, last in _pieces(snapshot, width):
        part, n = snapshot.parts[i], last - first
        vector, event_time, importance, id_hi, id_lo = (part.columns[name][first:last] for name in SCANNED)
        known_terms(
            event_time, importance, masks[i][first:last], ask.now, ask.decay_rate, beta, gamma, known[:n],
            peaks[: -(-n // BLOCK)],
        )  # fmt: skip
        dots = np.matmul(queries, vector.T, out=room[: q * n].reshape(q, n))
        scan.screen(
            dots, known[:n], event_time, id_hi, id_lo, queries.shape[1], alpha, ask.min_similarity, ask.min_score,
            part.base + first, *heaps, sizes,
        )  # fmt: skip
    for part in snapshot.parts:
        columns = part.columns
        scan.rescore(
            columns["vector"], queries, columns["event_time"], columns["importance"], ask.now, ask.decay_rate,
            alpha, beta, gamma, ask.min_similarity, ask.min_score, part.base, heaps[4], sizes, exact,
        )  # fmt: skip
    error = KNOWN_ERROR + alpha * scan.dot_error(queries.shape[1])
    found = []
    for i in range(q):
        size = int(sizes[i])
        allowed = exact[i, :size] > -np.inf
        scores, positions = topk.ranked(k, *(array[i, :size][allowed] for array in (exact, *heaps[1:])))
        dropped = float(heaps[0][i, 0]) if size == capacity and size < passed else -np.inf
        if dropped > -np.inf and (len(scores) < k or scores[-1] <= dropped + error):
            found.append(best(snapshot, masks, queries[i], ask))
        else:
            found.append(Found(scores, positions, "batched product", snapshot.rows(), passed, 0, passed, size))
    return found


def _pieces(snapshot: Snapshot, most: int) -> list[tuple[int, int, int]]:
    """The rows in shares of at most so many: (part, first row, row after the last), the newest first.

    The newest rows have the highest scores as a rule, so the k-th score is high from the start.
    """
    return [
        (i, first, min(first + most, snapshot.parts[i].n))
        for i in range(len(snapshot.parts) - 1, -1, -1)
        for first in reversed(range(0, snapshot.parts[i].n, most))
    ]


def _passed(snapshot: Snapshot, masks: Sequence[Mask]) -> int:
    return sum(
        part.n if mask is EVERY else int(np.count_nonzero(mask))
        for part, mask in zip(snapshot.parts, masks, strict=True)
    )


_local = threading.local()


def _scratch(snapshot: Snapshot) -> F32:
    """Room for the known terms of the largest segment, one a thread: it stays in the cache from query to query."""
    scratch: F32 | None = getattr(_local, "scratch", None)
    most = max(part.n for part in snapshot.parts)
    if scratch is None or scratch.size < most:
        scratch = _local.scratch = np.empty(max(most, ROWS), np.float32)
    return scratch


def _heap(*shape: int) -> Heap:
    """Room for so many entries."""
    return (
        np.empty(shape), np.empty(shape, np.int64), np.empty(shape, np.uint64), np.empty(shape, np.uint64),
        np.empty(shape, np.int64),
    )  # fmt: skip


_Call = tuple["Future[Any]", Callable[[], Any]]
_calls: SimpleQueue[_Call] | None = None  # what waits for a helper
_calls_lock = threading.Lock()


def _each(run: Callable[[], Any], threads: int) -> list[Any]:
    """What `run` returns in this thread and in helpers; its calls share the work, and the kernels release the GIL."""
    if threads == 1:
        return [run()]
    calls = _helped()
    helpers: list[Future[Any]] = [Future() for _ in range(threads - 1)]
    for helper in helpers:
        calls.put((helper, run))
    mine = run()  # and when it returns no work is left: who has not begun need not
    return [mine, *(helper.result() for helper in helpers if not helper.cancel())]


def _helped() -> SimpleQueue[_Call]:
    """The queue that the helpers serve.

    They are daemons and no ThreadPoolExecutor, which takes no work once the interpreter begins to end, when threads and
    `atexit` functions may still recall.
    """
    global _calls
    with _calls_lock:
        if _calls is None:
            calls: SimpleQueue[_Call] = SimpleQueue()
            for number in range(1, max(THREADS, 2)):
                threading.Thread(target=_help, args=(calls,), name=f"memcore-scan-{number}", daemon=True).start()
            _calls = calls
        return _calls


def _help(calls: SimpleQueue[_Call]) -> None:
    while True:
        helper, run = calls.get()
        if helper.set_running_or_notify_cancel():
            try:
                helper.set_result(run())
            except BaseException as fault:
                helper.set_exception(fault)
        del helper, run  # or an idle helper would keep a snapshot alive


def _forget_helpers() -> None:
    """A forked child inherits the queue but not the threads, and maybe a held lock."""
    global _calls, _calls_lock
    _calls, _calls_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_helpers)

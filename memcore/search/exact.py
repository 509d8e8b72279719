"""What are the exact k best rows of a snapshot, for one query or for many? Runs the scan kernels over its parts.

One query is one call of `scan.scan` in this thread and in a helper, which take units of rows in turns, the newest
first. Neither waits for the other: what the helper has not finished when no unit is left, as when it does not run at
all because the system or the GIL is someone else's, this thread scans too. A call holds the GIL at its beginning alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memcore.search.ask import Ask, Found
from memcore.store.codes import Codes, Rotation
from memcore.store.segment import ROWS
from memcore.store.snapshot import EVERY, Masks, Part, Snapshot
from memcore_kernels import scan, topk
from memcore_kernels.codes import code_query, cuts, turned
from memcore_kernels.decay import BLOCK, KNOWN_ERROR, known_terms

THREADS = min(os.cpu_count() or 1, 8)
PARALLEL_ROWS = 30_000  # rows from which a second thread gains more than handing work over costs
LISTED = 12  # of so many rows of a part at most one is allowed: then each by itself is faster than the part in stripes
# Queries from which one pass for all is faster than one scan each: 4 at 20,000 rows, 8 at 200,000, and more on cores
# that have other work too.
FEW = 12
BATCH_BYTES = 8 << 20  # the dot products of `best_many` held at once: 64 MB, past the caches, took 1.3 times as long
MOST = BATCH_BYTES // (4 * BLOCK)  # queries of one pass: more of them come in several
SCANNED = ("vector", "event_time", "importance", "id_hi", "id_lo")
SPARE = 32  # candidates beyond k a query of a batch: enough that float32 ties rarely send it to the single scan

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Heap = tuple[Any, Any, Any, Any, Any]  # float64 scores, int64 event times, ids as two uint64 halves, int64 positions


_APART = 16  # numbers of 8 bytes: two cache lines, which are fetched in pairs
NO_CODES = (np.zeros((1, 0), np.int16), np.zeros((1, 3, 4)))
NOTHING = (0,) * len(scan.COUNTED)


def best(snapshot: Snapshot, masks: Masks, query: F32 | None, ask: Ask) -> Found:
    """The exact top k by the total score. `query` float32 `(d,)`, L2-normalised; None or all zero: similarity 0."""
    rows = snapshot.rows()
    table = scanned(snapshot, masks)
    passed = table.passed
    k = min(ask.k, passed)
    if k == 0:
        return Found(np.empty(0), np.empty(0, np.int64), "nothing to scan", rows, passed, NOTHING)
    plain = query is None or not query.any()
    alpha = 0.0 if plain else ask.weights.alpha
    least = -np.inf if plain and ask.min_similarity <= 0 else ask.min_similarity
    if plain and least > 0:
        return Found(np.empty(0), np.empty(0, np.int64), "no similarity", rows, passed, NOTHING)
    asked = np.zeros(snapshot.dim, dtype=np.float32) if query is None else query
    numbers, told = _coded(asked, table) if alpha > 0 and table.turns else NO_CODES
    many = min(THREADS, len(table.units)) if passed >= PARALLEL_ROWS else 1
    shared, done = np.zeros(1, np.int64), np.zeros(len(table.units), np.int64)
    floor = np.array([ask.min_score, ask.min_score])
    threads = [_Thread(k, alone=many == 1) for _ in range(many)]

    def run(thread: _Thread, again: bool) -> None:
        scan.scan(
            table.parts, table.units, shared, done, again, table.ends, asked, numbers, told, ask.now, ask.decay_rate,
            alpha, ask.weights.beta, ask.weights.gamma, least, floor, *thread.heap, *thread.kept, thread.mine,
            *_scratch(), thread.counts,
        )  # fmt: skip

    for thread in threads[1:]:
        help_with(partial(run, thread, False))
    run(threads[0], False)
    again = many > 1 and not done.all()
    if again:
        run(threads[0], True)
    scores, positions = _together(k, threads, again=again)
    counted = threads[0].counts if many == 1 else np.sum([thread.counts for thread in threads], axis=0)
    return Found(
        scores, positions, f"exact scan, {many} thread{'s' if many > 1 else ''}", rows, passed, counted.tolist()
    )


class _Thread:
    """What one thread finds: its heap, the copy of it that others may read, and what it counts."""

    __slots__ = ("counts", "heap", "kept", "mine")

    def __init__(self, k: int, *, alone: bool) -> None:
        self.heap, self.kept = _heap(k), _heap(2, k)
        self.mine = np.zeros(3, np.int64)
        self.counts = np.zeros(len(scan.COUNTED), np.int64)
        if not alone:
            # Apart from what other threads write, which else shares its cache lines: 0.50 ms a scan, and not 0.55.
            apart: Any = [np.empty(k + 2 * _APART, a.dtype)[_APART : _APART + k] for a in self.heap]
            self.heap = tuple(apart)
            self.counts = np.zeros(len(self.counts) + 2 * _APART, np.int64)[_APART:-_APART]

    def found(self) -> list[npt.NDArray[Any]]:
        slot = self.mine[scan.SLOT]
        size = self.mine[scan.SIZES + slot]
        return [array[slot, :size] for array in self.kept]


def _together(k: int, threads: Sequence[_Thread], *, again: bool) -> tuple[F64, I64]:
    """The best of what threads have found; `again` if one has taken over units of others, so that two may have found
    the same rows.
    """
    if len(threads) == 1:
        found = threads[0].found()
        topk.arrange(*found)
        return found[0], found[4]
    columns = [np.concatenate(column) for column in zip(*(thread.found() for thread in threads), strict=True)]
    if again:
        _, first = np.unique(columns[4], return_index=True)
        columns = [column[first] for column in columns]
    return topk.ranked(k, *columns)


class Table(NamedTuple):
    """The parts of a snapshot as the kernel takes them, the units to scan in order, and what keeps the arrays alive."""

    parts: I64
    units: I64
    ends: I64
    turns: list[Rotation | None]  # of the codes that there are: which a part's are for is its "turn"
    kept: list[Any]
    passed: int  # rows that the masks let through


def scanned(snapshot: Snapshot, masks: Masks) -> Table:
    if masks.scanned is None:
        masks.scanned = _made(snapshot, masks)
    table: Table = masks.scanned
    return table


def _made(snapshot: Snapshot, masks: Masks) -> Table:
    parts = np.zeros((len(masks), len(scan.FIELDS)), dtype=np.int64)
    turns: list[Rotation | None] = []
    kept: list[Any] = list(masks)
    units: list[tuple[int, int, int]] = []
    coder, passed = snapshot.coder, 0
    row_by_row = snapshot.row_by_row
    # The oldest first: it has rows enough for a rotation, which the tail then takes too.
    coded_parts = [
        coder.codes(part.segment, part.n) if part.segment.dim == snapshot.dim else None for part in snapshot.parts
    ]
    for i in range(len(masks) - 1, -1, -1):  # the newest rows have the highest scores as a rule
        part, mask, row, codes = snapshot.parts[i], masks[i], parts[i], coded_parts[i]
        row[:] = _row(part, codes)
        row[scan.BASE] = part.base
        if row_by_row:
            file, row[scan.OFFSET] = part.segment.place()
            row[scan.FILE] = file + 1
        coded = 0 if codes is None else min(codes.rows, part.n)
        row[scan.CODED] = coded
        if codes is not None:
            if codes.rotation not in turns:
                turns.append(codes.rotation)
            row[scan.TURN] = turns.index(codes.rotation)
        kept.append((part, codes))
        mine = part.n if mask is EVERY else int(np.count_nonzero(mask))
        passed += mine
        if mask is not EVERY:
            if mine * LISTED <= part.n:
                listed = np.flatnonzero(mask).astype(np.int32)
                kept.append(listed)
                row[scan.LISTED] = _address(listed)
                units += _pieces(i, 0, mine, scan.UNIT)
                continue
            row[scan.ALLOWED] = _address(mask)
        units += _pieces(i, coded, part.n, scan.UNIT)
        units += _pieces(i, 0, coded, scan.UNIT)
    ends = np.array(cuts(snapshot.dim), np.int64)
    return Table(parts, np.array(units, np.int64).reshape(-1, 3), ends, turns, kept, passed)


def _row(part: Part, codes: Codes | None) -> I64:
    """A part's row of the table, as far as its segment tells. Kept there, since to ask an array for its address takes
    0.4 µs.
    """
    segment, vectors = part.segment, part.columns["vector"]
    told: tuple[Any, Any, I64] | None = segment.scanned
    if told is not None and told[0] is part.view.made_of and told[1] is codes:
        return told[2]
    row = np.zeros(len(scan.FIELDS), dtype=np.int64)
    row[scan.VECTORS : scan.ID_LO + 1] = [_address(part.columns[name]) for name in SCANNED]
    if codes is not None:
        arrays = (*codes.slabs, codes.scale, codes.missed, codes.left)
        row[scan.SLAB0 : scan.ROOM] = [_address(array) for array in arrays]
        row[scan.ROOM : scan.HEAVIEST + 1] = codes.room, _address(codes.newest), _address(codes.heaviest)
    if vectors.shape[1] == segment.dim:
        segment.scanned = (part.view.made_of, codes, row)
    return row


def _address(array: npt.NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def _coded(query: F32, table: Table) -> tuple[npt.NDArray[np.int16], F64]:
    """The query's codes for each rotation that there is."""
    many = len(table.turns)
    numbers, told = np.empty((many, query.size), np.int16), np.empty((many, 3, 4))
    for turn, rotation in enumerate(table.turns):
        numbers[turn], told[turn] = coded(query, rotation)
    return numbers, told


def coded(query: F32, rotation: Rotation | None) -> tuple[npt.NDArray[np.int16], F64]:
    """The query's codes for rows that were turned so: see `code_query`."""
    numbers, told = np.empty(query.size, np.int16), np.empty((3, 4))
    wide = query.astype(np.float64)
    if rotation is not None:
        turned(query, rotation.matrix, wide)
    code_query(wide, np.array(cuts(query.size), np.int64), numbers, told)
    return numbers, told


def best_many(snapshot: Snapshot, masks: Masks, queries: F32, ask: Ask) -> list[Found]:
    """The exact top k for each row of `queries`, float32 `(q, d)`: a blocked matrix product, then exact rescoring.

    Per block the product, decay, importance and selection are done before the next block, so memory stays within
    `BATCH_BYTES`. The selection runs in this thread alone: BLAS's threads spin for a while after each product, and a
    second one of ours beside them gained nothing. A query for which float32 may have dropped a row of its top k, as
    with many equal scores, is answered by `best` instead.
    """
    if len(queries) > MOST:
        shares = (queries[start : start + MOST] for start in range(0, len(queries), MOST))
        return [found for share in shares for found in best_many(snapshot, masks, share, ask)]
    table = scanned(snapshot, masks)
    passed = table.passed
    k = min(ask.k, passed)
    if k == 0 or len(queries) < FEW:
        return [best(snapshot, masks, query, ask) for query in queries]
    q, capacity = len(queries), min(k + SPARE + k // 8, passed)
    heaps, sizes = _heap(q, capacity), np.zeros(q, dtype=np.int64)
    alpha, beta, gamma = ask.weights
    width = min(ROWS, BATCH_BYTES // (4 * q) // BLOCK * BLOCK)
    room, known = np.empty(q * width, np.float32), np.empty(width, np.float32)
    peaks = np.empty(width // BLOCK, np.float32)
    some = [i for i, mask in enumerate(masks) if mask is EVERY or mask.any()]
    pieces = [piece for i in reversed(some) for piece in _pieces(i, 0, snapshot.parts[i].n, width)]
    for i, first, last in pieces:
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
    best_of, many = rescored(table, queries, ask, k, heaps[4], sizes)
    error = KNOWN_ERROR + alpha * scan.dot_error(queries.shape[1])
    found = []
    for i in range(q):
        size = int(sizes[i])
        scores, positions = best_of[0][i, : many[i]], best_of[4][i, : many[i]]
        dropped = float(heaps[0][i, 0]) if size == capacity and size < passed else -np.inf
        if dropped > -np.inf and (len(scores) < k or scores[-1] <= dropped + error):
            found.append(best(snapshot, masks, queries[i], ask))
        else:
            counted = (0, 0, 0, 0, passed, size)
            found.append(Found(scores, positions, "batched product", snapshot.rows(), passed, counted))
    return found


def rescored(table: Table, queries: F32, ask: Ask, k: int, candidates: I64, sizes: I64) -> tuple[Heap, list[int]]:
    """The exact top k among the candidates of each query, in order, and how many they are. As `scan.rescore`."""
    found, many = _heap(len(queries), k), np.zeros(len(queries), np.int64)
    scan.rescore(
        table.parts, queries, ask.now, ask.decay_rate, *ask.weights, ask.min_similarity, ask.min_score, candidates,
        sizes, *found, many,
    )  # fmt: skip
    return found, many.tolist()


def _pieces(part: int, first: int, last: int, most: int) -> list[tuple[int, int, int]]:
    """Rows of a part in shares of at most so many: (part, first row, row after the last), the last ones first."""
    return [(part, start, min(start + most, last)) for start in reversed(range(first, last, most))]


_local = threading.local()


def _scratch() -> tuple[F32, F32, npt.NDArray[np.int32], F32]:
    """Room for a unit's known terms, bounds, sums and tops, one a thread: it stays in the caches."""
    scratch: tuple[F32, F32, npt.NDArray[np.int32], F32] | None = getattr(_local, "scratch", None)
    if scratch is None:
        scratch = _local.scratch = (
            np.empty(scan.UNIT, np.float32), np.empty(scan.UNIT, np.float32), np.empty(BLOCK, np.int32),
            np.empty(scan.UNIT // scan.STRIPE, np.float32),
        )  # fmt: skip
    return scratch


def _heap(*shape: int) -> Heap:
    """Room for so many entries."""
    return (
        np.empty(shape), np.empty(shape, np.int64), np.empty(shape, np.uint64), np.empty(shape, np.uint64),
        np.empty(shape, np.int64),
    )  # fmt: skip


_calls: SimpleQueue[Callable[[], Any]] | None = None  # what waits for a helper
_calls_lock = threading.Lock()


def help_with(run: Callable[[], Any]) -> None:
    """Has a helper do this, when one is free. Who asks does by itself what is not done, so a fault is of no account.

    Helpers are daemons and no ThreadPoolExecutor, which takes no work once the interpreter begins to end, when threads
    and `atexit` functions may still recall.
    """
    global _calls
    with _calls_lock:
        if _calls is None:
            calls: SimpleQueue[Callable[[], Any]] = SimpleQueue()
            for number in range(1, max(THREADS, 2)):
                threading.Thread(target=_serve, args=(calls,), name=f"memcore-scan-{number}", daemon=True).start()
            _calls = calls
        _calls.put(run)


def _serve(calls: SimpleQueue[Callable[[], Any]]) -> None:
    while True:
        run = calls.get()
        with suppress(Exception):
            run()
        del run  # or an idle helper would keep a snapshot alive


def _forget_helpers() -> None:
    """A forked child inherits the queue but not the threads, and maybe a held lock."""
    global _calls, _calls_lock
    _calls, _calls_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_helpers)

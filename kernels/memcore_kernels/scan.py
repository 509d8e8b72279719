"""Which rows have the best hybrid score? The exact top k, reading only what can still be in it.

total = alpha * cosine + beta * exp(-lambda * age_hours) + gamma * importance. The last two terms are known before a
vector is read (`decay.known_terms`), and a cosine is at most 1: a block whose newest row and highest importance leave
it below the k-th best score found so far is out before any row of it is read.

What is left is scanned in units of rows. First all rows of a unit get a bound from the first slab of their int8 codes
(`codes.first_bounds`): a quarter of the codes. The best row of each of the most promising stripes is then scored
exactly, so that the k-th score is nearly final; and only rows whose bound reaches it are looked at further, in the
second slab, then the third, and in the end in float64 in a fixed order. Rows without codes are screened in float32.
What comes out is the exact result, whatever the order of rows, units and threads.

At 200,000 x 256 real text vectors and weights (.5, .3, .2), about 2 % of the rows are left after the first slab, and
some hundred are scored exactly; at (1, 0, 0) the second slab is read of most blocks, and the third of 1 %.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memcore_kernels.codes import (
    BOUND_ERROR,
    F32,
    F64,
    I16,
    I32,
    I64,
    SLABS,
    first_bounds,
    next_bounds,
    next_bounds_of,
)  # fmt: skip
from memcore_kernels.decay import BLOCK, KNOWN_ERROR, known_terms, recency
from memcore_kernels.dots import dot32, dot64
from memcore_kernels.lanes import BITS, bits_reaching, highest, lent, lowest
from memcore_kernels.memory import add, bytes_, code_rows, float_row, float_rows, floats, halves, ints, longs, shorts
from memcore_kernels.settings import exact_kernel, kernel
from memcore_kernels.topk import U64, arrange, offer

U8 = npt.NDArray[np.uint8]
LONGEST = 1.0 + 3e-6  # a stored row's norm times a query's: each is 1 within 1e-6
STRIPE = BITS  # rows compared with the bar at once
WIDE = 8 * STRIPE  # rows of a product that are compared at once, before stripes are
DENSE = 10  # of so many rows of a block one is still in: then the second slab of all is read at once
MOST = 3  # the same for the third slab, which is read one by one at half the speed
SOME = 256  # listed rows of which each slab is read together
VAIN = 8  # promising rows in a row that raise no floor, after which no more are tried
UNIT = 8 * BLOCK  # rows that one thread scans at a time; with 4 * BLOCK a scan took as long

# The columns of the table of parts, int64: sizes, and addresses of C-contiguous arrays.
FIELDS = (
    "coded",  # how many rows have codes: the first ones
    "base",  # added to row numbers
    "vectors",  # float32 (n, d), L2-normalised or zero
    "times",  # int64 (n,), event times in us
    "importance",  # float32 (n,)
    "id_hi", "id_lo",  # uint64 (n,)
    "allowed",  # uint8 (n,), or 0: every row
    "listed",  # int32 (m,), rising rows that are all that is allowed, or 0
    "turn",  # which of the query's codes the rows' are for
    "slab0", "slab1", "slab2",  # int8 (room, width)
    "scale", "missed", "left",  # uint16 (3, room), (3, room), (2, room)
    "room",
    "newest",  # int64 (blocks,): of BLOCK coded rows, the latest event time
    "heaviest",  # float32 (blocks,): of BLOCK coded rows, the highest importance
    "file", "offset",  # of the vectors, as of `memory.float_row`; 0: they are read from memory
)  # fmt: skip
(
    CODED, BASE, VECTORS, TIMES, IMPORTANCE, ID_HI, ID_LO, ALLOWED, LISTED, TURN, SLAB0, SLAB1, SLAB2, SCALE, MISSING,
    BEHIND, ROOM, NEWEST, HEAVIEST, FILE, OFFSET,
) = range(len(FIELDS))  # fmt: skip
# What a scan counts.
COUNTED = ("blocks", "first", "second", "third", "vectors", "scored")
BLOCKS, FIRST, SECOND, THIRD, READ, SCORED = range(len(COUNTED))
# What threads tell each other.
TAKEN, SLOT, SIZES = 0, 0, 1


@exact_kernel
def dot_error(dim: int) -> float:
    """How far `dot32` of two unit vectors can be from `dot64`: twice the textbook bound d * 2^-24."""
    return (dim + 8) * 2.0**-23


@exact_kernel
def exact_score(
    cosine: float,
    event_time: int,
    importance: float,
    now: int,
    decay_rate: float,
    alpha: float,
    beta: float,
    gamma: float,
) -> float:
    """The score of DESIGN section 3 in float64, added from left to right. Times in µs, `decay_rate` per hour."""
    return alpha * cosine + beta * recency(event_time, now, decay_rate) + gamma * np.float64(importance)


@kernel
def reaching(values: F32, bar: float | np.floating) -> np.int32:
    """How many of the values are at least `bar`.

    A loop from 0 over a slice: one that begins elsewhere is compiled into gathers, at a tenth of the speed, since for
    Numba an index may be negative.
    """
    many = np.int32(0)
    for j in range(values.size):
        many += np.int32(values[j] >= bar)
    return many


@kernel
def reaching_together(line: F32, terms: F32, share: np.float32, bar: float | np.floating) -> np.int32:
    """How many of share * line + terms are at least `bar`, without writing the sums down."""
    many = np.int32(0)
    for j in range(line.size):
        many += np.int32(share * line[j] + terms[j] >= bar)
    return many


@exact_kernel
def _score(
    r: int, vector: F32, query: F32, event_time: int, importance: float, now: int, decay_rate: float, alpha: float,
    beta: float, gamma: float, reads: bool, min_similarity: float, hi: int, lo: int, row: int, floor: F64, scores: F64,
    times: I64, his: U64, los: U64, rows: I64, size: int, counts: I64,
) -> int:  # fmt: skip
    """Scores a row exactly and offers it to the heap, whose new size it returns; raises the floor to its k-th score."""
    cosine = 0.0
    if reads:
        counts[READ] += 1
        cosine = dot64(vector, query)
        if cosine < min_similarity:
            return size
    counts[SCORED] += 1
    score = exact_score(cosine, event_time, importance, now, decay_rate, alpha, beta, gamma)
    if score < floor[0]:
        return size
    size = offer(scores, times, his, los, rows, size, score, event_time, hi, lo, row)
    if size == scores.size:
        floor[0] = max(floor[0], scores[0])
    return size


@kernel
def _coded(
    part: I64, first: int, last: int, dim: int, ends: I64, query: F32, numbers: I16, told: F64, now: int,
    decay_rate: float, alpha: float, beta: float, gamma: float, min_similarity: float, floor: F64, scores: F64,
    times: I64, his: U64, los: U64, rows: I64, size: int, known: F32, upper: F32, totals: I32, tops: F32, counts: I64,
) -> int:  # fmt: skip
    """Rows `first` to `last` of a part, all of which have codes; the heap's new size. `first` begins a block."""
    n, room = last - first, 2 * part[ROOM]
    read = np.empty(dim, dtype=np.float32)
    event_time, importance = longs(part[TIMES], last), floats(part[IMPORTANCE], last)
    id_hi, id_lo = halves(part[ID_HI], last), halves(part[ID_LO], last)
    allowed = bytes_(part[ALLOWED], last if part[ALLOWED] else 0)
    slab0 = code_rows(part[SLAB0], last, ends[0])
    slab1 = code_rows(part[SLAB1], last, ends[1] - ends[0])
    slab2 = code_rows(part[SLAB2], last, ends[2] - ends[1])
    scale0, missed0, left0 = shorts(part[SCALE], last), shorts(part[MISSING], last), shorts(part[BEHIND], last)
    scale1, missed1 = shorts(part[SCALE] + room, last), shorts(part[MISSING] + room, last)
    scale2, missed2 = shorts(part[SCALE] + 2 * room, last), shorts(part[MISSING] + 2 * room, last)
    left1 = shorts(part[BEHIND] + room, last)
    blocks = -(-last // BLOCK)
    newest, heaviest = longs(part[NEWEST], blocks), floats(part[HEAVIEST], blocks)
    q0, q1, q2 = numbers[: ends[0]], numbers[ends[0] : ends[1]], numbers[ends[1] :]
    slack = KNOWN_ERROR + BOUND_ERROR
    reach = alpha * LONGEST + slack
    near = np.float32(alpha * min_similarity - BOUND_ERROR)  # below, a bound of the similarity's share is out
    peak = np.empty(1, dtype=np.float32)
    stripes = -(-n // STRIPE)

    # A bound for every row, from the first slab. Blocks that are out are not read.
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        i, j = first + start, first + stop
        b = i // BLOCK
        most = beta * recency(newest[b], now, decay_rate) + gamma * np.float64(heaviest[b])
        peak[0] = -np.inf
        if most + reach >= floor[0]:
            counts[BLOCKS] += 1
            some = allowed[i:j] if allowed.size else allowed
            known_terms(event_time[i:j], importance[i:j], some, now, decay_rate, beta, gamma, known[start:stop], peak)
        if peak[0] == -np.inf or np.float64(peak[0]) + reach < floor[0]:
            tops[start // STRIPE : -(-stop // STRIPE)] = -np.inf
            continue
        counts[FIRST] += stop - start
        first_bounds(
            slab0[i:j], q0, told[0], scale0[i:j], missed0[i:j], left0[i:j], alpha, known[start:stop],
            totals[: stop - start], upper[start:stop],
        )  # fmt: skip
        if min_similarity > -np.inf:
            _bar(upper[start:stop], known[start:stop], near)
        for stripe in range(start // STRIPE, -(-stop // STRIPE)):
            tops[stripe] = highest(upper[stripe * STRIPE : min((stripe + 1) * STRIPE, n)])

    # The best rows of the most promising stripes, scored exactly: now the floor is nearly the k-th score. Again while
    # no thread has found k, since until then all rows are let in.
    k = scores.size
    many = min(2 * k + 16, stripes)
    best, at, same = np.empty(many), np.empty(many, np.int64), np.zeros(many, np.int64)
    order, level = np.empty(many, np.uint64), np.zeros(many, np.uint64)
    while True:
        chosen = 0
        for stripe in range(stripes):
            peak_of = np.float64(tops[stripe])
            if peak_of > -np.inf and peak_of + slack >= floor[0] and (chosen < many or peak_of > best[0]):
                chosen = offer(best, same, level, order, at, chosen, peak_of, 0, 0, stripe, stripe)
        vain = 0
        for c in np.argsort(-best[:chosen], kind="mergesort"):
            if best[c] + slack < floor[0] or vain == VAIN:
                break
            vain += 1
            before = floor[0]
            start = at[c] * STRIPE
            stop = min(start + STRIPE, n)
            top, place = tops[at[c]], start
            for i in range(start, stop):
                if upper[i] == top:
                    place = i
            r = first + place
            upper[place] = -np.inf
            tops[at[c]] = highest(upper[start:stop])
            vector = float_row(part[VECTORS], part[FILE], part[OFFSET], r, dim, read)
            size = _score(
                r, vector, query, event_time[r], importance[r], now, decay_rate, alpha, beta, gamma, True,
                min_similarity, id_hi[r], id_lo[r], part[BASE] + r, floor, scores, times, his, los, rows, size, counts,
            )  # fmt: skip
            if floor[0] > before or size < k:
                vain = 0
        if chosen == 0 or size == k or floor[0] > floor[1]:
            break

    # What can still be among the best, slab by slab.
    left, bounds = np.empty(BLOCK, np.int64), np.empty(BLOCK, np.float32)
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        i, j = first + start, first + stop
        bar = np.float32(floor[0] - slack)
        if tops[start // STRIPE] == -np.inf and highest(tops[start // STRIPE : -(-stop // STRIPE)]) == -np.inf:
            continue
        # Where many rows are in, the second slab of all is read at once, which is faster than one by one.
        dense = q1.size > 0 and reaching(upper[start:stop], bar) * DENSE >= stop - start
        if dense:
            counts[SECOND] += stop - start
            next_bounds(
                slab1[i:j], q1, told[1], scale1[i:j], missed1[i:j], left1[i:j], told[0], left0[i:j], alpha,
                totals[: stop - start], upper[start:stop],
            )  # fmt: skip
        whole = dense and q2.size > 0 and reaching(upper[start:stop], bar) * MOST >= stop - start
        if whole:  # as of rows that point everywhere, of which no slab tells much
            counts[THIRD] += stop - start
            next_bounds(
                slab2[i:j], q2, told[2], scale2[i:j], missed2[i:j], left1[i:j], told[1], left1[i:j], alpha,
                totals[: stop - start], upper[start:stop],
            )  # fmt: skip
        m = 0
        for stripe in range(start // STRIPE, -(-stop // STRIPE)):
            if tops[stripe] >= bar:
                if (stripe + 1) * STRIPE > n:
                    upper[n : (stripe + 1) * STRIPE] = -np.inf
                bits = bits_reaching(upper, stripe * STRIPE, bar)
                while bits:
                    left[m] = stripe * STRIPE + lowest(bits)
                    bits &= bits - 1
                    m += 1
        for c in range(m):
            bounds[c] = upper[left[c]]
        # Each step for all that are left, and then the check: so that memory is waited for once and not for each row.
        if q1.size and not dense:
            counts[SECOND] += m
            next_bounds_of(
                left[:m], slab1[first:last], q1, told[1], scale1[first:last], missed1[first:last], left1[first:last],
                told[0], left0[first:last], alpha, totals[:m], bounds[:m],
            )  # fmt: skip
            m = _still(left, bounds, m, bar, known, near)
        elif near > -np.inf:
            m = _still(left, bounds, m, bar, known, near)
        if q2.size and not whole:
            counts[THIRD] += m
            next_bounds_of(
                left[:m], slab2[first:last], q2, told[2], scale2[first:last], missed2[first:last], left1[first:last],
                told[1], left1[first:last], alpha, totals[:m], bounds[:m],
            )  # fmt: skip
            m = _still(left, bounds, m, bar, known, near)
        for c in range(m):
            if bounds[c] < floor[0] - slack:
                continue
            r = first + left[c]
            vector = float_row(part[VECTORS], part[FILE], part[OFFSET], r, dim, read)
            size = _score(
                r, vector, query, event_time[r], importance[r], now, decay_rate, alpha, beta, gamma, True,
                min_similarity, id_hi[r], id_lo[r], part[BASE] + r, floor, scores, times, his, los, rows, size, counts,
            )  # fmt: skip
    return size


@kernel
def _still(left: I64, bounds: F32, many: int, bar: np.float32, known: F32, near: np.float32) -> int:
    """Moves the rows whose bounds are still in to the front; how many they are."""
    m = 0
    for c in range(many):
        x, bound = left[c], bounds[c]
        if bound >= bar and bound >= known[x] + near:
            left[m], bounds[m] = x, bound
            m += 1
    return m


@kernel
def _bar(upper: F32, known: F32, near: np.float32) -> None:
    """Takes out the rows whose similarity is too low for certain."""
    for r in range(upper.size):
        if upper[r] < known[r] + near:
            upper[r] = -np.inf


@kernel
def _plain(
    part: I64, first: int, last: int, dim: int, query: F32, now: int, decay_rate: float, alpha: float, beta: float,
    gamma: float, min_similarity: float, floor: F64, scores: F64, times: I64, his: U64, los: U64, rows: I64, size: int,
    known: F32, counts: I64,
) -> int:  # fmt: skip
    """Rows `first` to `last` of a part, screened in float32; the heap's new size. With alpha 0 only the known terms are
    read, and rows are visited from the end, where the newest lie: from the front each would beat the one before it.
    """
    n = last - first
    vectors = float_rows(part[VECTORS], last, dim)
    event_time, importance = longs(part[TIMES], last), floats(part[IMPORTANCE], last)
    id_hi, id_lo = halves(part[ID_HI], last), halves(part[ID_LO], last)
    allowed = bytes_(part[ALLOWED], last if part[ALLOWED] else 0)
    reads = alpha > 0.0 or min_similarity > -np.inf
    off = dot_error(dim)
    slack = KNOWN_ERROR + alpha * off  # how far a float32 score can be from the exact one
    reach = alpha * LONGEST + slack if reads else slack
    peak = np.empty(1, dtype=np.float32)
    for start in range((n - 1) // BLOCK * BLOCK, -1, -BLOCK):
        stop = min(start + BLOCK, n)
        i, j = first + start, first + stop
        counts[BLOCKS] += 1
        some = allowed[i:j] if allowed.size else allowed
        known_terms(event_time[i:j], importance[i:j], some, now, decay_rate, beta, gamma, known[start:stop], peak)
        if peak[0] == -np.inf or np.float64(peak[0]) + reach < floor[0]:
            continue
        # Within a stripe memory is read forwards, since that is faster.
        for stripe in range(start + (stop - start - 1) // STRIPE * STRIPE, start - 1, -STRIPE):
            bounds = known[stripe : min(stripe + STRIPE, stop)]
            if reaching(bounds, floor[0] - reach) == 0:
                continue
            for x in range(bounds.size):
                if bounds[x] == -np.inf or bounds[x] < floor[0] - reach:
                    continue
                r = first + stripe + x
                if reads:
                    rough = np.float64(dot32(vectors[r], query))
                    if alpha * rough + np.float64(bounds[x]) + slack < floor[0] or rough + off < min_similarity:
                        counts[READ] += 1
                        continue
                size = _score(
                    r, vectors[r], query, event_time[r], importance[r], now, decay_rate, alpha, beta, gamma, reads,
                    min_similarity, id_hi[r], id_lo[r], part[BASE] + r, floor, scores, times, his, los, rows, size,
                    counts,
                )  # fmt: skip
    return size


@kernel
def _listed(
    part: I64, first: int, last: int, dim: int, ends: I64, query: F32, numbers: I16, told: F64, now: int,
    decay_rate: float, alpha: float, beta: float, gamma: float, min_similarity: float, floor: F64, scores: F64,
    times: I64, his: U64, los: U64, rows: I64, size: int, known: F32, upper: F32, totals: I32, counts: I64,
) -> int:  # fmt: skip
    """The listed rows `first` to `last` of a part, which are few: some at a time, the last ones first.

    Each slab for all of those that are still in, as in `_coded`: one row after the other through all slabs takes three
    times as long, since each waits for memory by itself.
    """
    listed = ints(part[LISTED], last)
    n = listed[last - 1] + 1
    coded, room = min(part[CODED], n), 2 * part[ROOM]
    read = np.empty(dim, dtype=np.float32)
    event_time, importance = longs(part[TIMES], n), floats(part[IMPORTANCE], n)
    id_hi, id_lo = halves(part[ID_HI], n), halves(part[ID_LO], n)
    slabs = (
        code_rows(part[SLAB0], coded, ends[0]),
        code_rows(part[SLAB1], coded, ends[1] - ends[0]),
        code_rows(part[SLAB2], coded, ends[2] - ends[1]),
    )
    asked = (numbers[: ends[0]], numbers[ends[0] : ends[1]], numbers[ends[1] :])
    scale, missed = part[SCALE], part[MISSING]
    scales = (shorts(scale, coded), shorts(scale + room, coded), shorts(scale + 2 * room, coded))
    misses = (shorts(missed, coded), shorts(missed + room, coded), shorts(missed + 2 * room, coded))
    left0, left1 = shorts(part[BEHIND], coded), shorts(part[BEHIND] + room, coded)
    behind, before = (left0, left1, left1), (left0, left0, left1)
    reads = alpha > 0.0 or min_similarity > -np.inf
    bounded = alpha > 0.0
    off = dot_error(dim)
    rough_slack = KNOWN_ERROR + alpha * off
    slack = KNOWN_ERROR + BOUND_ERROR
    reach = alpha * LONGEST + rough_slack if reads else rough_slack
    near = np.float32(alpha * min_similarity - BOUND_ERROR)
    m = last - first
    when, heavy, peak = np.empty(m, np.int64), np.empty(m, np.float32), np.empty(-(-m // BLOCK), np.float32)
    for x in range(m):
        when[x], heavy[x] = event_time[listed[first + x]], importance[listed[first + x]]
    known_terms(when, heavy, np.empty(0, np.uint8), now, decay_rate, beta, gamma, known[:m], peak)
    some, left, nothing = np.empty(SOME, np.int64), np.empty(SOME, np.int64), np.zeros(4)
    for start in range((m - 1) // SOME * SOME, -1, -SOME):
        stop = min(start + SOME, m)
        c = 0
        for x in range(start, stop):
            if bounded and listed[first + x] < coded and np.float64(known[x]) + reach >= floor[0]:
                left[c], upper[c] = x, known[x]
                c += 1
        for slab in range(SLABS):
            if asked[slab].size and c:
                counts[FIRST + slab] += c
                for i in range(c):
                    some[i] = listed[first + left[i]]
                next_bounds_of(
                    some[:c], slabs[slab], asked[slab], told[slab], scales[slab], misses[slab], behind[slab],
                    told[slab - 1] if slab else nothing, before[slab], alpha, totals[:c], upper[:c],
                )  # fmt: skip
                c = _still(left, upper, c, np.float32(floor[0] - slack), known, near)
        for i in np.argsort(-upper[:c], kind="mergesort"):
            if upper[i] < floor[0] - slack:
                break
            r = listed[first + left[i]]
            vector = float_row(part[VECTORS], part[FILE], part[OFFSET], r, dim, read)
            size = _score(
                r, vector, query, event_time[r], importance[r], now, decay_rate, alpha, beta, gamma, True,
                min_similarity, id_hi[r], id_lo[r], part[BASE] + r, floor, scores, times, his, los, rows, size, counts,
            )  # fmt: skip
        for x in range(stop - 1, start - 1, -1):
            r = listed[first + x]
            if (bounded and r < coded) or np.float64(known[x]) + reach < floor[0]:
                continue
            vector = read
            if reads:
                vector = float_row(part[VECTORS], part[FILE], part[OFFSET], r, dim, read)
                rough = np.float64(dot32(vector, query))
                if alpha * rough + np.float64(known[x]) + rough_slack < floor[0] or rough + off < min_similarity:
                    counts[READ] += 1
                    continue
            size = _score(
                r, vector, query, event_time[r], importance[r], now, decay_rate, alpha, beta, gamma, reads,
                min_similarity, id_hi[r], id_lo[r], part[BASE] + r, floor, scores, times, his, los, rows, size, counts,
            )  # fmt: skip
    return size


@kernel
def scan(
    parts: I64, units: I64, shared: I64, done: I64, again: bool, ends: I64, query: F32, numbers: I16, told: F64,
    now: int, decay_rate: float, alpha: float, beta: float, gamma: float, min_similarity: float, floor: F64,
    scores: F64, times: I64, his: U64, los: U64, rows: I64, kept_scores: F64, kept_times: I64, kept_his: U64,
    kept_los: U64, kept_rows: I64, mine: I64, known: F32, upper: F32, totals: I32, tops: F32, counts: I64,
) -> None:  # fmt: skip
    """Offers the rows of all units to a heap, `scores` ... `rows` `(k,)`, k >= 1.

    `parts` int64 `(p, len(FIELDS))`, and `units` int64 `(u, 3)`: a part, its first row and the one after the last, or
    of a part with `listed` rows places in that list. A unit is at most UNIT rows, and begins with a block where its
    rows have codes; all of them have, or none. `ends` int64 `(3,)` as of `codes.cuts`; `query` float32 `(d,)`,
    L2-normalised or zero; `numbers` int16 `(turns, d)` and `told` float64 `(turns, 3, 4)` of `codes.code_query`, for
    each rotation that there is. `now` in us, `decay_rate` per hour. A row whose cosine is below `min_similarity` (which
    may be minus infinity) is out.

    `floor` float64 `(2,)` is a score that a row must reach, twice: the first is raised to the heap's k-th. Several
    threads may share it: a raise lost in a race leaves it lower, never wrong, and one that is seen spares reads.

    Threads that scan together share `shared` int64 `(1,)`, at first 0: the next unit that nobody has taken; and `done`
    int64 `(u,)`, at first 0. What a thread has found when it ends a unit it copies to `kept_scores` ... `(2, k)`, in
    turns, so that it can be read while the thread may be at its last unit; then `mine` int64 `(3,)` tells which of the
    two it was, and the size of either, and `done` is raised. With `again`, units that are not yet done are scanned,
    whoever has taken them: so that nobody waits for a thread that is not running.

    `known` and `upper` float32 `(UNIT,)`, `totals` int32 `(BLOCK,)` and `tops` float32 `(UNIT / STRIPE,)` are scratch.
    `counts` int64 `(len(COUNTED),)` grows by the blocks whose columns were read, the rows of which each slab was read,
    the vectors read, and the rows scored exactly.
    """
    # The caller has all of these until the end. To count each slice of them in every loop took a seventh of the time.
    parts, units, query, numbers, told = lent(parts), lent(units), lent(query), lent(numbers), lent(told)
    floor, scores, times, his, los, rows = lent(floor), lent(scores), lent(times), lent(his), lent(los), lent(rows)
    known, upper, totals, tops, counts = lent(known), lent(upper), lent(totals), lent(tops), lent(counts)
    dim = query.size
    size = mine[SIZES + mine[SLOT]]
    u = -1
    while True:
        if again:
            u += 1
            if u < units.shape[0] and add(done, u, 0) > 0:
                continue
        else:
            u = add(shared, TAKEN, 1)
        if u >= units.shape[0]:
            break
        part, first, last = parts[units[u, 0]], units[u, 1], units[u, 2]
        turn = part[TURN]
        if part[LISTED]:
            size = _listed(
                part, first, last, dim, ends, query, numbers[turn], told[turn], now, decay_rate, alpha, beta, gamma,
                min_similarity, floor, scores, times, his, los, rows, size, known, upper, totals, counts,
            )  # fmt: skip
        elif alpha > 0.0 and last <= part[CODED]:
            size = _coded(
                part, first, last, dim, ends, query, numbers[turn], told[turn], now, decay_rate, alpha, beta, gamma,
                min_similarity, floor, scores, times, his, los, rows, size, known, upper, totals, tops, counts,
            )  # fmt: skip
        else:
            size = _plain(
                part, first, last, dim, query, now, decay_rate, alpha, beta, gamma, min_similarity, floor, scores,
                times, his, los, rows, size, known, counts,
            )  # fmt: skip
        slot = 1 - mine[SLOT]
        for i in range(size):
            kept_scores[slot, i], kept_times[slot, i], kept_his[slot, i] = scores[i], times[i], his[i]
            kept_los[slot, i], kept_rows[slot, i] = los[i], rows[i]
        mine[SIZES + slot] = size
        mine[SLOT] = slot
        add(done, u, 1)


@exact_kernel
def rank(
    relevance: F64, known: F32, event_time: I64, importance: F32, id_hi: U64, id_lo: U64, base: int, now: int,
    decay_rate: float, alpha: float, beta: float, gamma: float, min_score: float, scores: F64, times: I64, his: U64,
    los: U64, rows: I64, size: int,
) -> int:  # fmt: skip
    """Offers rows whose relevance is known, float64 `(n,)`, to a heap, `scores` ... `rows` `(k,)`, k >= 1, of which
    `size` are in use; the new size. The columns `(n,)` as for `scan`; `known` as of `decay.known_terms`.
    """
    for r in range(relevance.size):
        most = alpha * relevance[r] + np.float64(known[r]) + KNOWN_ERROR
        if most < min_score or (size == scores.size and most < scores[0]) or known[r] == -np.inf:
            continue  # an exponential spared: 50,000 of them took 5 ms
        score = exact_score(relevance[r], event_time[r], importance[r], now, decay_rate, alpha, beta, gamma)
        if score >= min_score:
            size = offer(scores, times, his, los, rows, size, score, event_time[r], id_hi[r], id_lo[r], base + r)
    return size


@kernel
def screen(
    dots: F32,
    known: F32,
    event_time: I64,
    id_hi: U64,
    id_lo: U64,
    dim: int,
    alpha: float,
    min_similarity: float,
    min_score: float,
    base: int,
    scores: F64,
    times: I64,
    his: U64,
    los: U64,
    rows: I64,
    sizes: I64,
) -> None:
    """Many queries at once: offers a block's rows to each query's heap by their float32 score.

    `dots` float32 `(queries, n)` from a matrix product of vectors `dim` wide, `known` float32 `(n,)` from
    `decay.known_terms`; `event_time` int64, the ids' halves uint64, `(n,)` each; `base` is added to row numbers. The
    heaps `scores` … `rows` are `(queries, c)`, of which `sizes` `(queries,)` are in use. c is larger than the k asked
    for, so that the caller can tell from the lowest score kept whether float32 may have dropped a row of the top k.
    """
    off = dot_error(dim)
    slack = KNOWN_ERROR + alpha * off
    width, capacity = known.size, scores.shape[1]
    a32 = np.float32(alpha)
    for q in range(dots.shape[0]):
        every, size = dots[q], sizes[q]
        threshold = np.float32(scores[q, 0] if size == capacity else -np.inf)
        for wide in range((width - 1) // WIDE * WIDE, -1, -WIDE):  # from the end, as in `_plain`
            end = min(wide + WIDE, width)
            if reaching_together(every[wide:end], known[wide:end], a32, threshold) == 0:
                continue
            for start in range(wide + (end - wide - 1) // STRIPE * STRIPE, wide - 1, -STRIPE):
                stop = min(start + STRIPE, end)
                line, terms = every[start:stop], known[start:stop]
                if reaching_together(line, terms, a32, threshold) == 0:
                    continue
                for j in range(line.size):
                    score, r = a32 * line[j] + terms[j], start + j
                    if score < threshold or score == -np.inf:
                        continue
                    if np.float64(line[j]) + off < min_similarity or np.float64(score) + slack < min_score:
                        continue
                    size = offer(
                        scores[q], times[q], his[q], los[q], rows[q], size, score, event_time[r], id_hi[r], id_lo[r],
                        base + r,
                    )  # fmt: skip
                    if size == capacity:
                        threshold = np.float32(scores[q, 0])
        sizes[q] = size


@exact_kernel
def rescore(
    parts: I64,
    queries: F32,
    now: int,
    decay_rate: float,
    alpha: float,
    beta: float,
    gamma: float,
    min_similarity: float,
    min_score: float,
    candidates: I64,
    sizes: I64,
    scores: F64,
    times: I64,
    his: U64,
    los: U64,
    rows: I64,
    found: I64,
) -> None:
    """The exact top k among each query's candidates, best first.

    `parts` as for `scan`, by rising base; `candidates` int64 `(queries, c)`, of which `sizes[q]` are in use, are row
    numbers counted through all parts, each once. The results `scores` … `rows` are `(queries, k)`, k >= 1, of which
    `found` `(queries,)` are in use; a row that a minimum bars is none. The scalars as for `scan`.
    """
    dim = queries.shape[1]
    read = np.empty(dim, dtype=np.float32)
    for q in range(candidates.shape[0]):
        size = 0
        for i in range(sizes[q]):
            row = candidates[q, i]
            at, behind = 0, parts.shape[0]
            while behind - at > 1:
                middle = (at + behind) // 2
                if parts[middle, BASE] <= row:
                    at = middle
                else:
                    behind = middle
            part, r = parts[at], row - parts[at, BASE]
            cosine = dot64(float_row(part[VECTORS], part[FILE], part[OFFSET], r, dim, read), queries[q])
            if cosine < min_similarity:
                continue
            time = longs(part[TIMES], r + 1)[r]
            heavy = floats(part[IMPORTANCE], r + 1)[r]
            score = exact_score(cosine, time, heavy, now, decay_rate, alpha, beta, gamma)
            if score >= min_score:
                size = offer(
                    scores[q], times[q], his[q], los[q], rows[q], size, score, time,
                    halves(part[ID_HI], r + 1)[r], halves(part[ID_LO], r + 1)[r], row,
                )  # fmt: skip
        arrange(scores[q, :size], times[q, :size], his[q, :size], los[q, :size], rows[q, :size])
        found[q] = size

"""Which rows have the best hybrid score? The exact top k, reading only the vectors that can still be in it.

total = alpha * cosine + beta * exp(-lambda * age_hours) + gamma * importance. The last two terms are known before a
vector is read (`decay.known_terms`), and a cosine is at most 1: a block whose known terms plus alpha are below the k-th
best score found so far is out for certain. Blocks are visited by falling known terms, so that the k-th score is soon
high. In a block that is in, int8 codes (`codes.upper_bounds`) bound each row's score; the few rows whose bound reaches
the k-th score are screened in float32, and those within the float32 error of it are scored in float64 in a fixed order.
What comes out is the exact result, whatever the order of rows, blocks and threads.

At 200,000 x 256 the float32 rows alone (205 MB) take as long to read as NumPy's whole query; the codes are a quarter.
To read the codes of only those rows of a block that their own known terms leave in is no gain: with gaps, memory is
read at less than half the speed, so that the time doubled with half of the rows in, and was the same with a quarter.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memcore_kernels.codes import F32, I8, I16, upper_bounds
from memcore_kernels.decay import BLOCK, KNOWN_ERROR, known_terms, recency
from memcore_kernels.dots import dot32, dot64
from memcore_kernels.settings import exact_kernel, kernel
from memcore_kernels.topk import F64, I64, U64, offer

U8 = npt.NDArray[np.uint8]
LONGEST = 1.0 + 3e-6  # a stored row's norm times a query's: each is 1 within 1e-6
STRIPE = 64  # rows compared with the bar at once


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
def scan(
    first: int,
    last: int,
    vectors: F32,
    query: F32,
    codes: I8,
    scale: F32,
    missed: F32,
    query_codes: I16,
    step: float,
    query_missed: float,
    allowed: U8,
    event_time: I64,
    importance: F32,
    id_hi: U64,
    id_lo: U64,
    now: int,
    decay_rate: float,
    alpha: float,
    beta: float,
    gamma: float,
    min_similarity: float,
    base: int,
    known: F32,
    floor: F64,
    scores: F64,
    times: I64,
    his: U64,
    los: U64,
    rows: I64,
    counts: I64,
) -> None:
    """Offers rows `first` to `last` of a chunk to the heap, `scores` … `rows` `(k,)`, k >= 1, `counts[0]` of it in use.

    `vectors` float32 `(n, d)` L2-normalised or zero, `query` float32 `(d,)` likewise; `codes`, `scale`, `missed` from
    `codes.quantise`, or of length 0 where the chunk has none, and `query_codes`, `step`, `query_missed` from
    `codes.query_codes`; `allowed` uint8 `(n,)` or `(0,)` for all; `event_time` int64 µs, `importance` float32, the ids'
    halves uint64, `(n,)` each. `now` in µs, `decay_rate` per hour. A row whose cosine is below `min_similarity` (which
    may be minus infinity) is out. `base` is added to row numbers. `known` is scratch, float32, at least `last - first`.

    `floor` float64 `(1,)` is a score that a row must reach, and that is raised to the heap's k-th. Several scans may
    share one at the same time: a raise lost in a race leaves it lower, never wrong, and one that is seen spares reads.

    `counts[1]` grows by the codes read, `counts[2]` by the float32 vectors read, `counts[3]` by the rows scored in
    float64.
    """
    n, k, size = last - first, scores.size, counts[0]
    peaks = np.empty(-(-n // BLOCK), dtype=np.float32)
    some = allowed[first:last] if allowed.size else allowed
    known_terms(event_time[first:last], importance[first:last], some, now, decay_rate, beta, gamma, known, peaks)
    totals, upper = np.empty(BLOCK, dtype=np.int32), np.empty(BLOCK, dtype=np.float32)
    reads = alpha > 0.0 or min_similarity > -np.inf
    coded = codes.shape[0] > 0 and alpha > 0.0
    off = dot_error(query.size)
    slack = KNOWN_ERROR + alpha * off  # how far a float32 score can be from the exact one
    reach = alpha * LONGEST + slack
    room = slack if coded else reach  # how far an exact score can be above its row's bound
    for b in np.argsort(-peaks, kind="mergesort"):  # stable: equal blocks, as with weights (1, 0, 0), in memory's order
        if peaks[b] == -np.inf or np.float64(peaks[b]) + reach < floor[0]:
            break  # and so are all blocks after it
        start, stop = b * BLOCK, min((b + 1) * BLOCK, n)
        bounds = known[start:stop]
        if coded:
            i, j = first + start, first + stop
            bounds = upper[: stop - start]
            upper_bounds(
                codes[i:j], scale[i:j], missed[i:j], query_codes, step, query_missed, known[start:stop], alpha,
                totals[: stop - start], bounds,
            )  # fmt: skip
            counts[1] += stop - start
        # Rows lie nearly in time order: from the front each would beat the one before it and enter the heap, which took
        # three times as long at weights (.2, .7, .1). Within a stripe memory is read forwards, since that is faster.
        for stripe in range((stop - start - 1) // STRIPE * STRIPE, -1, -STRIPE):
            if reaching(bounds[stripe : stripe + STRIPE], floor[0] - room) == 0:
                continue
            for i in range(stripe, min(stripe + STRIPE, stop - start)):
                if bounds[i] == -np.inf or bounds[i] < floor[0] - room:
                    continue
                r, cosine = first + start + i, 0.0
                if reads:
                    counts[2] += 1
                    rough = np.float64(dot32(vectors[r], query))
                    if alpha * rough + np.float64(known[start + i]) + slack < floor[0] or rough + off < min_similarity:
                        continue
                    cosine = dot64(vectors[r], query)
                    if cosine < min_similarity:
                        continue
                counts[3] += 1
                score = exact_score(cosine, event_time[r], importance[r], now, decay_rate, alpha, beta, gamma)
                if score < floor[0]:
                    continue
                size = offer(scores, times, his, los, rows, size, score, event_time[r], id_hi[r], id_lo[r], base + r)
                if size == k:
                    floor[0] = max(floor[0], scores[0])
    counts[0] = size


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
    a32, stripe = np.float32(alpha), np.empty(STRIPE, dtype=np.float32)
    for q in range(dots.shape[0]):
        every, size = dots[q], sizes[q]
        threshold = np.float32(scores[q, 0] if size == capacity else -np.inf)
        for start in range((width - 1) // STRIPE * STRIPE, -1, -STRIPE):  # from the end, as in `scan`
            stop = min(start + STRIPE, width)
            line, terms = every[start:stop], known[start:stop]
            for j in range(line.size):
                stripe[j] = a32 * line[j] + terms[j]
            if reaching(stripe[: stop - start], threshold) == 0:
                continue
            for j in range(line.size):
                score, r = stripe[j], start + j
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
    vectors: F32,
    queries: F32,
    event_time: I64,
    importance: F32,
    now: int,
    decay_rate: float,
    alpha: float,
    beta: float,
    gamma: float,
    min_similarity: float,
    min_score: float,
    base: int,
    rows: I64,
    sizes: I64,
    out: F64,
) -> None:
    """out[q, i] = the exact score of candidate rows[q, i] where that is in this chunk, -inf if a minimum bars it.

    `rows` int64 `(queries, c)`, of which `sizes[q]` are in use, counts the chunk's first row as `base`; `out` is
    float64 `(queries, c)`. The chunk's columns and the scalars as for `scan`.
    """
    n = event_time.size
    for q in range(rows.shape[0]):
        for i in range(sizes[q]):
            r = rows[q, i] - base
            if r < 0 or r >= n:
                continue
            cosine = dot64(vectors[r], queries[q])
            score = exact_score(cosine, event_time[r], importance[r], now, decay_rate, alpha, beta, gamma)
            out[q, i] = score if cosine >= min_similarity and score >= min_score else -np.inf

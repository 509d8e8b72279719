"""Which rows have the best hybrid score? The exact top k, reading only the vectors that can still be in it.

total = alpha * cosine + beta * exp(-lambda * age_hours) + gamma * importance. The last two terms are known before a
vector is read (`decay.known_terms`), and a cosine is at most 1: a block whose known terms plus alpha are below the k-th
best score found so far is out for certain. Blocks are visited by falling known terms, so that the k-th score is high early.
In a block that is in, int8 codes (`codes.upper_bounds`) bound each row's score; the few rows whose bound reaches the k-th
score are screened in float32, and those within the float32 error of it are scored in float64 in a fixed order. What comes
out is the exact result, whatever the order of rows, blocks and threads.

At 200,000 x 256 the float32 rows alone (205 MB) take as long to read as NumPy's whole query; the codes are a quarter.
Reading the codes only of the rows that their own known terms leave in is no gain: memory gives rows with gaps at half the
speed or less, so with half of them in, the time doubled, and it broke even at a quarter.
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
STRIPE = 64  # scores compared at once by `screen`


@exact_kernel
def dot_error(dim: int) -> float:
    """How far `dot32` of two unit vectors can be from `dot64`: twice the textbook bound d * 2^-24."""
    return (dim + 8) * 2.0**-23


@exact_kernel
def exact_score(
    cosine: float, event_time: int, importance: float, now: int, decay_rate: float, alpha: float, beta: float, gamma: float
) -> float:
    """The score of DESIGN section 3 in float64, its terms added from left to right."""
    return alpha * cosine + beta * recency(event_time, now, decay_rate) + gamma * np.float64(importance)


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
    """Offers rows `first` to `last` of a chunk to the heap (`scores` … `rows`, of which `counts[0]` entries are in use).

    `vectors` float32 `(n, d)` L2-normalised or zero, `query` float32 `(d,)` likewise; `codes`, `scale`, `missed` from
    `codes.quantise`, or of length 0 where the chunk has none, and `query_codes`, `step`, `query_missed` from
    `codes.query_codes`; `allowed` uint8 `(n,)` or `(0,)` for all; `event_time` int64 µs, `importance` float32, the ids'
    halves uint64, `(n,)` each. `now` in µs, `decay_rate` per hour. A row whose cosine is below `min_similarity` (which may
    be minus infinity) is out. `base` is added to row numbers. `known` is scratch, float32 of at least `last - first`.

    `floor` float64 `(1,)` is a score that a row must reach, and that is raised to the heap's k-th. Scans at the same time
    may share one: a raise that is lost in a race leaves it lower, never wrong, and one that is seen spares the other reads.

    `counts[1]` grows by the codes read, `counts[2]` by the float32 vectors read, `counts[3]` by the rows scored in float64.
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
        if peaks[b] == -np.inf or peaks[b] + reach < floor[0]:
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
        for i in range(stop - start):
            if bounds[i] + room < floor[0] or bounds[i] == -np.inf:
                continue
            r, cosine = first + start + i, 0.0
            if reads:
                counts[2] += 1
                rough = np.float64(dot32(vectors[r], query))
                if alpha * rough + known[start + i] + slack < floor[0] or rough + off < min_similarity:
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

    `dots` float32 `(queries, b)` from a matrix product, `known` float32 `(b,)`; the heaps `(queries, c)` with `sizes`
    `(queries,)`. c is larger than k, so that `settle` can tell whether float32 may have dropped a row of the top k.
    """
    off = dot_error(dim)
    slack = KNOWN_ERROR + alpha * off
    width, capacity = known.size, scores.shape[1]
    a32 = np.float32(alpha)
    for q in range(dots.shape[0]):
        line, size = dots[q], sizes[q]
        threshold = np.float32(-np.inf)
        if size == capacity:
            threshold = np.float32(scores[q, 0])
        for start in range(0, width, STRIPE):
            stop = min(start + STRIPE, width)
            above = np.int32(0)
            for j in range(start, stop):
                above += np.int32(a32 * line[j] + known[j] >= threshold)
            if above == 0:
                continue
            for j in range(start, stop):
                score = a32 * line[j] + known[j]
                if score < threshold or known[j] == -np.inf:
                    continue
                if line[j] + off < min_similarity or score + slack < min_score:
                    continue
                size = offer(
                    scores[q], times[q], his[q], los[q], rows[q], size, score, event_time[j], id_hi[j], id_lo[j], base + j
                )
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
    """out[q, i] = the float64 score of candidate rows[q, i] where that row is in this chunk; minus infinity if a minimum bars it."""
    n = event_time.size
    for q in range(rows.shape[0]):
        for i in range(sizes[q]):
            r = rows[q, i] - base
            if r < 0 or r >= n:
                continue
            cosine = dot64(vectors[r], queries[q])
            score = exact_score(cosine, event_time[r], importance[r], now, decay_rate, alpha, beta, gamma)
            out[q, i] = score if cosine >= min_similarity and score >= min_score else -np.inf

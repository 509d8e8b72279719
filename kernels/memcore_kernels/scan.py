"""Which rows have the best hybrid score? The exact top k, reading only the vectors that can still be in it.

total = alpha * cosine + beta * exp(-lambda * age_hours) + gamma * importance. The last two terms are known before a
vector is read (`decay.known_terms`), and a cosine is at most 1: a row whose known terms plus alpha are below the k-th
best score found so far is out for certain. Blocks are visited in the order of their best known terms, so that the k-th
score is high early and the rest falls out by whole blocks. Rows that stay in are screened in float32; those within the
float32 error of the k-th are scored in float64 in a fixed order. What comes out is the exact result, whatever the order
of rows, blocks and threads.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memcore_kernels.decay import BLOCK, recency
from memcore_kernels.dots import dot32, dot64
from memcore_kernels.settings import exact_kernel, kernel
from memcore_kernels.topk import F64, I64, U64, offer

F32 = npt.NDArray[np.float32]
KNOWN_ERROR = 2e-6  # of decay.known_terms, for beta + gamma <= 1
LONGEST = 1.0 + 3e-6  # a stored row's norm times a query's: float32 rows are normalised within 1e-6
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
    return alpha * cosine + beta * recency(event_time, now, decay_rate) + gamma * importance


@kernel
def scan(
    vectors: F32,
    query: F32,
    known: F32,
    peaks: F32,
    order: I64,
    first: int,
    step: int,
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
    min_score: float,
    base: int,
    scores: F64,
    times: I64,
    his: U64,
    los: U64,
    rows: I64,
    counts: I64,
) -> None:
    """Offers the rows of a chunk to the heap (`scores` … `rows`, `counts[0]` entries in use).

    `vectors` float32 `(n, d)` L2-normalised or zero; `query` float32 `(d,)` likewise; `known` and `peaks` from
    `known_terms`; `order` the blocks by falling peak, of which this call takes `first`, `first + step`, …; `base` is added
    to row numbers. `min_similarity` and `min_score` may be minus infinity. `counts[1]` grows by the vectors read,
    `counts[2]` by the rows scored in float64.
    """
    n, k = known.size, scores.size
    reads = alpha > 0.0 or min_similarity > -np.inf
    off = dot_error(query.size)
    slack = KNOWN_ERROR + alpha * off
    reach = alpha * LONGEST + slack
    size, read, scored = counts[0], 0, 0
    for o in range(first, order.size, step):
        b = order[o]
        threshold = max(scores[0] if size == k else -np.inf, min_score)
        if peaks[b] + reach < threshold or peaks[b] == -np.inf:
            break  # and so are all blocks after it
        for r in range(b * BLOCK, min((b + 1) * BLOCK, n)):
            if known[r] + reach < threshold or known[r] == -np.inf:
                continue
            cosine = 0.0
            if reads:
                read += 1
                rough = dot32(vectors[r], query)
                if alpha * rough + known[r] + slack < threshold or rough + off < min_similarity:
                    continue
                cosine = dot64(vectors[r], query)
                if cosine < min_similarity:
                    continue
            scored += 1
            score = exact_score(cosine, event_time[r], importance[r], now, decay_rate, alpha, beta, gamma)
            if score < min_score:
                continue
            size = offer(scores, times, his, los, rows, size, score, event_time[r], id_hi[r], id_lo[r], base + r)
            threshold = max(scores[0] if size == k else -np.inf, min_score)
    counts[0] = size
    counts[1] += read
    counts[2] += scored


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

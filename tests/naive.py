"""The oracle: slow, obvious twins of memcore's kernels and of recall, in plain Python and NumPy, believed at sight.

A twin says what a kernel must return, not how. Everything is float64 unless a function says otherwise; times, `now`
too, are int64 µs since the epoch, `decay_rate` is per hour, and vectors are float32 rows, L2-normalised or all zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


# Vectors


def unit(vector: Any) -> F32:
    """A float32 vector of norm 1, or all zero."""
    wide = np.asarray(vector, dtype=np.float64)
    peak = np.abs(wide).max(initial=0)
    if peak == 0:
        return np.zeros(wide.shape, dtype=np.float32)
    wide = wide / peak  # squares of very small numbers are 0
    return (wide / np.sqrt((wide * wide).sum())).astype(np.float32)


def dot(row: F32, query: F32) -> float:
    """The dot product, with one rounding at the end."""
    return math.fsum(float(a) * float(b) for a, b in zip(row, query, strict=True))


def dot64(row: F32, query: F32) -> float:
    """The dot product, added in the order that memcore promises: four running sums, these in pairs, then the rest."""
    products = [float(a) * float(b) for a, b in zip(row, query, strict=True)]
    whole = len(products) - len(products) % 4
    sums = [0.0, 0.0, 0.0, 0.0]
    for j in range(whole):
        sums[j % 4] += products[j]
    total = (sums[0] + sums[1]) + (sums[2] + sums[3])
    for product in products[whole:]:
        total += product
    return total


def cosines(vectors: F32, rows: Iterable[int], queries: F32, asked: Iterable[int]) -> F64:
    return np.array([dot64(vectors[row], queries[query]) for row, query in zip(rows, asked, strict=True)])


# Codes


def quantise(row: F32) -> tuple[npt.NDArray[np.int8], float, float]:
    """The codes of a row, -127 … 127, the number that one of them stands for, and the norm of what they miss. 127 times
    that number is a multiple of 1 / 65,000.
    """
    one = math.ceil(float(np.abs(row).max(initial=0)) * 65_000) / (127 * 65_000)
    if one == 0:
        return np.zeros(row.size, dtype=np.int8), 0.0, 0.0
    codes = np.rint(row.astype(np.float64) / one)
    return codes.astype(np.int8), one, norm(row - codes * one)


class Slab(NamedTuple):
    """A slab of a row or a query: its codes, what one stands for, and the norms of what they miss, of itself, and of
    what lies behind it.
    """

    codes: npt.NDArray[Any]
    one: float
    missed: float
    norm: float
    left: float


def slabs(row: npt.NDArray[Any], ends: Sequence[int]) -> list[Slab]:
    """A row in slabs that end there, each with its own codes."""
    found, begin = [], 0
    for end in ends:
        codes, one, missed = quantise(row[begin:end])
        found.append(Slab(codes, one, missed, norm(row[begin:end]), norm(row[end:])))
        begin = end
    return found


def query_slabs(query: npt.NDArray[Any], ends: Sequence[int]) -> list[Slab]:
    """The same for a query, with 16 bits, as many steps as leave the sum of products with int8 codes within 32 bits."""
    most = min(8000.0, (2**31 - 1) / (128 * max(query.size, 1)))
    found, begin = [], 0
    for end in ends:
        mine = query[begin:end]
        step = float(np.abs(mine).max(initial=0)) / most
        codes = np.rint(mine.astype(np.float64) / step) if step else np.zeros(mine.size)
        found.append(Slab(codes.astype(np.int16), step, norm(mine - codes * step), norm(mine), norm(query[end:])))
        begin = end
    return found


def code_dots(codes: npt.NDArray[np.int8], query: npt.NDArray[np.int16]) -> list[int]:
    return [sum(int(a) * int(b) for a, b in zip(row, query, strict=True)) for row in codes]


def norm(vector: npt.NDArray[Any]) -> float:
    return math.sqrt(math.fsum(float(x) * float(x) for x in vector))


def centre(vectors: F32) -> F64:
    """The mean of rows and of one row of zeros."""
    return np.array([math.fsum(map(float, column)) for column in vectors.T]) / (len(vectors) + 1)


def likeness(vectors: F32, query: F32) -> list[float]:
    """How alike rows and a query are about that mean, from 0 to 1; a row or a query of zeros is like nothing."""
    mean = centre(vectors)
    apart = query - mean
    size = norm(apart) * math.sqrt(1 - norm(mean) ** 2)
    found = []
    for row in vectors:
        alike = math.fsum((row - mean) * apart) / size if row.any() and query.any() else 0.0
        found.append(min(max(alike, 0.0), 1.0))
    return found


def whole_sum(vectors: F32) -> list[int]:
    """The sum of rows, each number as whole 2^-30ths, halves to even."""
    return [sum(round(Fraction(float(x)) * 2**30) for x in column) for column in vectors.T]


def bm25(
    rows: Sequence[Sequence[int]],
    groups: Sequence[tuple[Sequence[int], float]],
    lengths: Sequence[int] | None = None,
    k1: float = 0.9,
    b: float = 0.4,
) -> list[float]:
    """BM25 of rows, lists of terms, for groups of terms of which any will do, each with a weight, over the most that a
    row could have. `lengths` are those of the rows, if not all of their terms make them longer.
    """
    lengths = list(map(len, rows)) if lengths is None else lengths
    n, mean = len(rows), max(sum(lengths) / max(len(rows), 1), 1.0)
    scores, most = [0.0] * n, 0.0
    for group, weight in groups:
        often = [max((row.count(term) for term in group), default=0) for row in rows]
        df = sum(f > 0 for f in often)
        idf = weight * math.log1p((n - df + 0.5) / (df + 0.5))
        most += idf * (k1 + 1)
        for place, f in enumerate(often):
            scores[place] += idf * f * (k1 + 1) / (f + k1 * (1 - b + b * lengths[place] / mean)) if f else 0.0
    return [score / most if most else 0.0 for score in scores]


def activation(base: Sequence[float], sessions: Sequence[int | None]) -> list[float]:
    """What each turn gains from its neighbours in its session, None for what is no turn."""
    gained = [0.0] * len(base)
    for session in {one for one in sessions if one is not None}:
        turns = [place for place, mine in enumerate(sessions) if mine == session]
        best = sorted((base[turn] for turn in turns), reverse=True)[:2]
        for i, turn in enumerate(turns):
            for away, share in ((1, 0.4), (2, 0.2)):
                gained[turn] += sum(share * base[turns[j]] for j in (i - away, i + away) if 0 <= j < len(turns))
            gained[turn] += 0.6 * sum(best) / len(best)
    return gained


# The score


def recency(event_time: int, now: int, decay_rate: float) -> float:
    """exp(-lambda * age in hours); what is still to come has age 0."""
    age_hours = max(int(now) - int(event_time), 0) / 3_600_000_000
    return math.exp(-decay_rate * age_hours)


def known_terms(
    event_time: I64,
    importance: F32,
    allowed: npt.NDArray[np.uint8],
    now: int,
    decay_rate: float,
    beta: float,
    gamma: float,
) -> F64:
    """The part of each row's score that needs no vector; minus infinity for a row that is not allowed."""
    terms = [
        beta * recency(int(t), now, decay_rate) + gamma * float(i) for t, i in zip(event_time, importance, strict=True)
    ]
    return np.array([term if not allowed.size or allowed[row] else -math.inf for row, term in enumerate(terms)])


def score(
    cosine: float, event_time: int, importance: float, now: int, decay_rate: float, weights: Sequence[float]
) -> float:
    """alpha * cosine + beta * exp(-lambda * age) + gamma * importance, added from left to right."""
    alpha, beta, gamma = weights
    return alpha * cosine + beta * recency(event_time, now, decay_rate) + gamma * float(importance)


# The order of results


class Entry(NamedTuple):
    """A row that is a candidate: what it is ranked by, and its number."""

    score: float
    event_time: int
    id_hi: int
    id_lo: int
    row: int


def rank(entry: Entry) -> tuple[float, int, int, int]:
    """What to sort by: higher score first, then newer event time, then lower id."""
    return (-entry.score, -entry.event_time, entry.id_hi, entry.id_lo)


def before(a: Entry, b: Entry) -> bool:
    return rank(a) < rank(b)


def best(entries: Iterable[Entry], k: int) -> list[Entry]:
    return sorted(entries, key=rank)[:k]


# Pruning


def faded(
    event_time: int, importance: float, now: int, importance_below: float, recency_below: float, rate: str
) -> bool:
    """Whether importance, as the kept float32, and recency exp(-rate * age) are below, each number as it reads."""
    with localcontext() as context:
        context.prec = 60
        age_hours = Decimal(max(now - event_time, 0)) / 3_600_000_000
        recency = (-Decimal(rate) * age_hours).exp()
        return np.float32(importance) < np.float32(importance_below) and recency < Decimal(repr(recency_below))


def overdue(event_time: int, now: int, days: int) -> bool:
    """Whether it was more than so many days ago."""
    return now - event_time > days * 86_400_000_000


# A scan of rows


class Chunk(NamedTuple):
    """Rows as columns: float32 `(n, d)`, int64, float32, two halves of unique ids, uint64; `allowed` `(0,)` is all."""

    vectors: F32
    event_time: I64
    importance: F32
    id_hi: npt.NDArray[np.uint64]
    id_lo: npt.NDArray[np.uint64]
    allowed: npt.NDArray[np.uint8]


def scan(
    chunk: Chunk,
    query: F32,
    k: int,
    weights: Sequence[float],
    now: int,
    decay_rate: float,
    min_similarity: float = -math.inf,
    min_score: float = -math.inf,
) -> list[Entry]:
    """The k best rows: every row that is allowed is scored, then all are sorted."""
    entries = []
    for row in range(len(chunk.vectors)):
        if chunk.allowed.size and not chunk.allowed[row]:
            continue
        cosine = dot64(chunk.vectors[row], query)
        event_time = int(chunk.event_time[row])
        total = score(cosine, event_time, float(chunk.importance[row]), now, decay_rate, weights)
        if cosine >= min_similarity and total >= min_score:
            entries.append(Entry(total, event_time, int(chunk.id_hi[row]), int(chunk.id_lo[row]), row))
    return best(entries, k)


# Recall


class Answer(NamedTuple):
    id: str
    total_score: float
    semantic_similarity: float


def micros(time: datetime) -> int:
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def recall(
    records: Iterable[Any],
    query: F32 | None,
    *,
    k: int = 5,
    now: int,
    weights: Sequence[float] = (0.5, 0.3, 0.2),
    decay_rate: float = 0.01,
    kinds: Sequence[str] = ("episodic", "semantic"),
    where: Callable[[Any], bool] = lambda record: True,
    min_similarity: float = -math.inf,
    min_score: float = -math.inf,
) -> list[Answer]:
    """What recall must answer from these records (objects with the columns of a record as attributes).

    Without a vector, a record's or the query's, similarity is 0. Importance counts as the float32 that is kept.
    """
    found = []
    for record in records:
        if record.kind not in kinds or not where(record):
            continue
        similarity = 0.0 if query is None or record.vector is None else dot64(record.vector, query)
        event_time = micros(record.event_time)
        total = score(similarity, event_time, np.float32(record.importance), now, decay_rate, weights)
        if similarity >= min_similarity and total >= min_score:
            hi, lo = int(record.id.replace("-", "")[:16], 16), int(record.id.replace("-", "")[16:], 16)
            found.append((Entry(total, event_time, hi, lo, 0), Answer(record.id, total, similarity)))
    return [answer for _, answer in sorted(found, key=lambda pair: rank(pair[0]))][:k]

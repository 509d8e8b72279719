"""What do the tests of kernels and of the exact search draw? Rows, queries and chunks, the awkward ones among them."""

from __future__ import annotations

import os

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

import naive
from memcore_kernels import codes

PLAIN = os.environ.get("NUMBA_DISABLE_JIT") == "1"  # kernels run as plain Python
NOW = 1_790_000_000_000_000  # µs
HOUR = 3_600_000_000  # µs
WEIGHTS = ((0.5, 0.3, 0.2), (0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.2, 0.8, 0.0))
RATES = (0.01, 0.0, 1e-9, 0.1, 30.0, 1e6, 1e300)  # per hour


def thorough(examples: int) -> settings:
    """Hypothesis settings: so many examples, a third of them where kernels run as plain Python."""
    return settings(max_examples=examples // 3 if PLAIN else examples, deadline=None)


def weights() -> st.SearchStrategy[tuple[float, float, float]]:
    """Triples that sum to 1 within float64: the corners, the usual ones, and any."""
    cuts = st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted)
    return st.sampled_from(WEIGHTS) | cuts.map(lambda c: (c[0], c[1] - c[0], 1 - c[1]))


def unit_rows(rng: np.random.Generator, n: int, d: int, kind: str) -> np.ndarray:
    """float32 `(n, d)`, each row of norm 1 within 1e-6 or all zero."""
    rows = rng.standard_normal((n, d))
    if kind == "one hot":
        rows = np.eye(d)[rng.integers(0, d, n)] * rng.choice((-1, 1), (n, 1))
    elif kind == "signs":
        rows = np.where(np.arange(d) % 2 == 0, 1.0, -1.0) * rng.choice((-1, 1), (n, 1))
    elif kind == "few":  # each of a few rows many times
        rows = rows[rng.integers(0, min(n, 3), n)]
    elif kind == "zeros":
        rows[rng.random(n) < 0.5] = 0
    elif kind == "one large":  # the others are half a step of the codes: as much is missed as can be
        rows = np.where(np.arange(d) == 0, 1.0, rng.choice((-1, 1), (n, d)) * (0.5 + 1e-4) / 127)
    elif kind == "tiny":  # numbers down to the smallest that float32 has
        rows = rows * np.where(rng.random((n, d)) < 0.7, 10.0 ** rng.uniform(-45, -30, (n, d)), 1.0)
    unit = np.array([naive.unit(row) for row in rows], dtype=np.float32).reshape(n, d)
    if kind == "long":  # as far from norm 1 as a stored row may be
        unit = (unit.astype(np.float64) * (1 + 9e-7)).astype(np.float32)
    return unit


KINDS = ("normal", "one hot", "signs", "few", "zeros", "one large", "tiny", "long")


@st.composite
def rows(draw: st.DrawFn, n: st.SearchStrategy[int] | int, d: st.SearchStrategy[int] | int) -> np.ndarray:
    """float32 `(n, d)` unit rows of one of the kinds."""
    n = n if isinstance(n, int) else draw(n)
    d = d if isinstance(d, int) else draw(d)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return unit_rows(rng, n, d, draw(st.sampled_from(KINDS)))


@st.composite
def event_times(draw: st.DrawFn, n: int) -> np.ndarray:
    """int64 µs `(n,)`: rising, equal, in disorder, of all ages, or yet to come."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(("recent", "rising", "equal", "few", "all ages", "to come")))
    if kind == "equal":
        return np.full(n, NOW - 5 * HOUR)
    if kind == "few":
        return NOW - rng.integers(0, 3, n) * HOUR
    if kind == "all ages":  # 1 µs to 31,000 years
        return NOW - (10.0 ** rng.uniform(0, 18, n)).astype(np.int64)
    if kind == "to come":
        return NOW + rng.integers(-5, 5, n) * HOUR
    ages = (rng.exponential(200, n) * HOUR).astype(np.int64)
    return NOW - (np.sort(ages)[::-1] if kind == "rising" else ages)


@st.composite
def importances(draw: st.DrawFn, n: int) -> np.ndarray:
    """float32 `(n,)` in [0, 1]: any, equal, or of a few values."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(("any", "equal", "few")))
    if kind == "equal":
        return np.full(n, draw(st.sampled_from((0.0, 0.5, 1.0))), dtype=np.float32)
    return (rng.random(n) if kind == "any" else rng.integers(0, 3, n) / 2).astype(np.float32)


@st.composite
def masks(draw: st.DrawFn, n: int) -> np.ndarray:
    """uint8 `(n,)`, or `(0,)`, which allows all."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from((None, 0.0, 0.1, 0.9)))
    return np.empty(0, np.uint8) if share is None else (rng.random(n) < share).astype(np.uint8)


@st.composite
def chunks(draw: st.DrawFn, n: st.SearchStrategy[int], d: st.SearchStrategy[int]) -> naive.Chunk:
    """Rows with all that a scan needs of them. Ids are unique; many share their high half."""
    vectors = draw(rows(n, d))
    many = len(vectors)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return naive.Chunk(
        vectors,
        draw(event_times(many)),
        draw(importances(many)),
        rng.integers(0, 2, many).astype(np.uint64) * np.uint64(2**64 - 1),
        rng.permutation(many).astype(np.uint64) + np.uint64(draw(st.sampled_from((0, 2**63, 2**64 - 4096)))),
        draw(masks(many)),
    )


@st.composite
def queries(draw: st.DrawFn, vectors: np.ndarray) -> np.ndarray:
    """float32 `(d,)`: one of the rows, its opposite, zero, or another unit vector."""
    n, d = vectors.shape
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(("row", "opposite", "zero", "other")))
    if kind == "zero" or (kind != "other" and n == 0):
        return np.zeros(d, dtype=np.float32)
    if kind == "other":
        return unit_rows(rng, 1, d, draw(st.sampled_from(KINDS)))[0]
    row = vectors[rng.integers(0, n)]
    return row.copy() if kind == "row" else -row


def query_codes(query, ends):
    """A query as the kernel codes it: its numbers, and what is told of each slab."""
    numbers, told = np.full(query.size, 99, np.int16), np.full((3, 4), 7.0)
    codes.code_query(query, np.array(ends, np.int64), numbers, told)
    return numbers, told

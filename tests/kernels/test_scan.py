import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import drawn
import naive
from drawn import NOW
from memcore_kernels import codes, scan, topk
from memcore_kernels.decay import BLOCK, KNOWN_ERROR, known_terms

NO_CODES = np.zeros((0, 0), np.int8), np.zeros(0, np.float32), np.zeros(0, np.float32)
CHUNKS = drawn.chunks(st.integers(0, 70), st.integers(1, 20) | st.integers(1, 300)) | drawn.chunks(
    st.sampled_from((BLOCK - 1, BLOCK, BLOCK + 1)), st.integers(1, 3)
)


def heap(*shape):
    """Scores, event times, ids in two halves, rows."""
    return tuple(np.empty(shape, dtype) for dtype in (float, np.int64, np.uint64, np.uint64, np.int64))


class Scan:
    """One query's scan, in as many calls as it is asked to make."""

    def __init__(self, chunk, query, k, weights, rate, *, coded, min_similarity=-math.inf, min_score=-math.inf, base=0):
        self.chunk, self.query, self.weights, self.rate, self.base = chunk, query, weights, rate, base
        self.least = min_similarity
        self.heap, self.counts, self.floor = heap(k), np.zeros(4, np.int64), np.array([float(min_score)])
        n, d = chunk.vectors.shape
        self.codes = NO_CODES
        if coded:
            self.codes = np.empty((n, d), np.int8), np.empty(n, np.float32), np.empty(n, np.float32)
            codes.quantise(chunk.vectors, *self.codes)
        self.numbers = codes.query_codes(query)

    def rows(self, first, last):
        c = self.chunk
        scan.scan(
            first, last, c.vectors, self.query, *self.codes, *self.numbers, c.allowed, c.event_time, c.importance,
            c.id_hi, c.id_lo, NOW, self.rate, *self.weights, self.least, self.base, np.empty(last - first, np.float32),
            self.floor, *self.heap, self.counts,
        )  # fmt: skip
        return self

    def found(self):
        size = self.counts[0]
        scores, rows = topk.ranked(len(self.heap[0]), *(column[:size] for column in self.heap))
        return list(zip(scores.tolist(), rows.tolist(), strict=True))


def expected(entries, base=0):
    return [(entry.score, entry.row + base) for entry in entries]


@st.composite
def asked(draw):
    """A chunk, a query, and how it is asked: k, weights, decay, and minima that are often a row's very score."""
    chunk = draw(CHUNKS)
    query = draw(drawn.queries(chunk.vectors))
    n = len(chunk.vectors)
    k = draw(st.sampled_from((1, 2, 10, n, n + 3)).filter(bool))
    shares, rate = draw(drawn.weights()), draw(st.sampled_from(drawn.RATES))
    minima = {"min_similarity": -math.inf, "min_score": -math.inf}
    if n and draw(st.booleans()):
        minima["min_similarity"] = naive.dot64(chunk.vectors[draw(st.integers(0, n - 1))], query)
    if n and draw(st.booleans()):
        entries = naive.scan(chunk._replace(allowed=np.empty(0, np.uint8)), query, n, shares, NOW, rate)
        minima["min_score"] = draw(st.sampled_from(entries[: 2 * k])).score
    return chunk, query, k, shares, rate, minima


@drawn.thorough(400)
@given(case=asked(), coded=st.booleans(), base=st.sampled_from((0, 2**40)))
def test_a_scan_finds_the_best_to_the_bit(case, coded, base):
    chunk, query, k, shares, rate, minima = case
    n = len(chunk.vectors)
    run = Scan(chunk, query, k, shares, rate, coded=coded, base=base, **minima).rows(0, n)
    assert run.found() == expected(naive.scan(chunk, query, k, shares, NOW, rate, **minima), base)
    many, coded_rows, read, scored = run.counts.tolist()
    passed = int(chunk.allowed.sum()) if chunk.allowed.size else n
    assert many <= scored <= passed
    assert coded_rows <= n * coded
    assert read <= passed


@drawn.thorough(200)
@given(case=asked(), coded=st.booleans(), data=st.data())
def test_a_scan_in_pieces_and_in_any_order_finds_the_same(case, coded, data):
    chunk, query, k, shares, rate, minima = case
    n = len(chunk.vectors)
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, n), max_size=3))), n]
    pieces = data.draw(st.permutations(list(itertools.pairwise(cuts))))
    run = Scan(chunk, query, k, shares, rate, coded=coded, **minima)
    for first, last in pieces:
        run.rows(first, last)
    assert run.found() == expected(naive.scan(chunk, query, k, shares, NOW, rate, **minima))


@drawn.thorough(200)
@given(case=asked(), coded=st.booleans(), data=st.data())
def test_scans_that_share_a_floor_find_the_same_together(case, coded, data):
    chunk, query, k, shares, rate, minima = case
    n = len(chunk.vectors)
    cut = data.draw(st.integers(0, n))
    one, two = (Scan(chunk, query, k, shares, rate, coded=coded, **minima) for _ in range(2))
    two.floor = one.floor
    one.rows(0, cut)
    two.rows(cut, n)
    lists = [np.concatenate([a[: one.counts[0]], b[: two.counts[0]]]) for a, b in zip(one.heap, two.heap, strict=True)]
    scores, rows = topk.ranked(k, *lists)
    found = list(zip(scores.tolist(), rows.tolist(), strict=True))
    assert found == expected(naive.scan(chunk, query, k, shares, NOW, rate, **minima))


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.2), (1.0, 0.0, 0.0), (0.0, 0.5, 0.5)])
@pytest.mark.parametrize("n", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_a_scan_of_whole_blocks_and_one_row_more_or_less(n, shares, coded):
    rng = np.random.default_rng(n)
    d = 3
    chunk = naive.Chunk(
        drawn.unit_rows(rng, n, d, "normal"),
        NOW - np.sort(rng.integers(0, 10**12, n))[::-1],
        rng.random(n).astype(np.float32),
        np.zeros(n, np.uint64),
        rng.permutation(n).astype(np.uint64),
        np.empty(0, np.uint8),
    )
    query = drawn.unit_rows(rng, 1, d, "normal")[0]
    run = Scan(chunk, query, 10, shares, 0.01, coded=coded).rows(0, n)
    assert run.found() == expected(naive.scan(chunk, query, 10, shares, NOW, 0.01))


def test_equal_scores_are_ranked_by_time_and_then_by_id():
    n = 200
    rng = np.random.default_rng(1)
    chunk = naive.Chunk(
        np.tile(np.float32([0.6, 0.8]), (n, 1)),
        NOW + rng.integers(0, 3, n),  # to come: recency is 1 for all
        np.full(n, 0.5, np.float32),
        rng.integers(0, 2, n).astype(np.uint64),
        rng.permutation(n).astype(np.uint64),
        np.empty(0, np.uint8),
    )
    order = sorted(range(n), key=lambda row: (-chunk.event_time[row], chunk.id_hi[row], chunk.id_lo[row]))
    for coded in (False, True):
        run = Scan(chunk, chunk.vectors[0], 25, (0.5, 0.3, 0.2), 0.01, coded=coded).rows(0, n)
        assert [row for _, row in run.found()] == order[:25]


def crowd(n, d=64):
    """Rows among which one is like the query, and few are new: most can be left unread."""
    rng = np.random.default_rng(2)
    vectors = drawn.unit_rows(rng, n, d, "normal")
    event_time = NOW - np.sort(rng.integers(0, 2000, n))[::-1] * drawn.HOUR
    ids = np.arange(n, dtype=np.uint64)
    return naive.Chunk(vectors, event_time, np.zeros(n, np.float32), ids, ids, np.empty(0, np.uint8)), vectors[n // 3]


@pytest.mark.skipif(drawn.PLAIN, reason="needs many rows")
def test_most_vectors_stay_unread():
    chunk, query = crowd(20 * BLOCK)
    n = len(chunk.vectors)
    run = Scan(chunk, query, 5, (1.0, 0.0, 0.0), 0.01, coded=True).rows(0, n)
    _, coded_rows, read, scored = run.counts.tolist()
    assert coded_rows == n
    assert read < n / 10
    assert scored < n / 100
    run = Scan(chunk, query, 5, (0.2, 0.8, 0.0), 0.01, coded=True).rows(0, n)
    assert run.counts[1] < n / 2  # blocks that are too old fall out before their codes are read
    run = Scan(chunk, query, 5, (0.2, 0.8, 0.0), 0.01, coded=False).rows(0, n)
    assert run.counts[2] < n / 2
    run = Scan(chunk, query, 5, (0.0, 1.0, 0.0), 0.01, coded=True).rows(0, n)
    assert run.counts[1:3].tolist() == [0, 0]
    assert run.counts[3] <= 3 * scan.STRIPE  # the newest rows are the last of their block, and are looked at first


def test_a_floor_spares_the_reading_and_is_raised():
    chunk, query = crowd(200, 8)
    run = Scan(chunk, query, 5, (1.0, 0.0, 0.0), 0.01, coded=True, min_score=0.999999).rows(0, 200)
    assert len(run.found()) == 1
    assert run.counts[2] <= 3
    run = Scan(chunk, query, 5, (1.0, 0.0, 0.0), 0.01, coded=True).rows(0, 200)
    assert run.floor[0] == run.found()[-1][0]
    run = Scan(chunk, query, 201, (1.0, 0.0, 0.0), 0.01, coded=True).rows(0, 200)
    assert run.floor[0] == -math.inf  # the heap is not full: no score is too low yet


def screened(chunk, queries, capacity, shares, rate, minima, block=64, base=5):
    """What a batch does: per block a product and `screen`, in the end `rescore`. Heaps, sizes, exact scores."""
    n, q = len(chunk.vectors), len(queries)
    heaps, sizes, exact = heap(q, capacity), np.zeros(q, np.int64), np.full((q, capacity), 7.0)
    for first in range(0, n, block):
        rows = slice(first, first + block)
        columns = [column[rows] for column in chunk]
        known = np.empty(len(columns[0]), np.float32)
        known_terms(*columns[1:3], columns[5], NOW, rate, *shares[1:], known, np.empty(1, np.float32))
        scan.screen(
            queries @ columns[0].T, known, columns[1], columns[3], columns[4], queries.shape[1], shares[0],
            *minima.values(), base + first, *heaps, sizes,
        )  # fmt: skip
    for first in range(0, n, block + 1):
        rows = slice(first, first + block + 1)
        scan.rescore(
            chunk.vectors[rows], queries, chunk.event_time[rows], chunk.importance[rows], NOW, rate, *shares,
            *minima.values(), base + first, heaps[4], sizes, exact,
        )  # fmt: skip
    return heaps, sizes, exact


@drawn.thorough(300)
@given(case=asked(), data=st.data())
def test_screening_keeps_what_may_be_among_the_best_and_rescoring_is_exact(case, data):
    chunk, query, k, shares, rate, minima = case
    assume(len(chunk.vectors) < BLOCK - 1)
    other = data.draw(drawn.queries(chunk.vectors))
    queries = np.stack([query, other])
    capacity = k + data.draw(st.integers(0, 5))
    heaps, sizes, exact = screened(chunk, queries, capacity, shares, rate, minima)
    error = KNOWN_ERROR + shares[0] * scan.dot_error(queries.shape[1])
    for q in range(2):
        size = sizes[q]
        scores = {entry.row + 5: entry for entry in naive.scan(chunk, queries[q], 9999, shares, NOW, rate)}
        kept = heaps[4][q, :size].tolist()
        assert len(set(kept)) == len(kept)
        lowest = heaps[0][q, 0] if size == capacity else -math.inf
        for row, entry in scores.items():
            cosine = naive.dot64(chunk.vectors[row - 5], queries[q])
            meets = cosine >= minima["min_similarity"] and entry.score >= minima["min_score"]
            if row in kept:
                at = kept.index(row)
                assert abs(heaps[0][q, at] - entry.score) <= error
                assert exact[q, at] == (entry.score if meets else -math.inf)
            elif meets:
                assert entry.score <= lowest + error
        assert set(kept) <= set(scores)
        assert (exact[q, size:] == 7).all()


@drawn.thorough(50)
@given(case=asked())
def test_screening_with_room_for_all_is_exact(case):
    chunk, query, k, shares, rate, minima = case
    n = len(chunk.vectors)
    assume(0 < n < BLOCK - 1)
    heaps, sizes, exact = screened(chunk, query[None], n, shares, rate, minima)
    allowed = exact[0, : sizes[0]] > -math.inf
    scores, rows = topk.ranked(k, *(column[0, : sizes[0]][allowed] for column in (exact, *heaps[1:])))
    found = list(zip(scores.tolist(), rows.tolist(), strict=True))
    assert found == expected(naive.scan(chunk, query, k, shares, NOW, rate, **minima), 5)


@drawn.thorough(100)
@given(
    cosine=st.floats(-1, 1), age=st.integers(-(10**15), 10**17), importance=st.floats(0, 1, width=32),
    rate=st.sampled_from(drawn.RATES), shares=drawn.weights(),
)  # fmt: skip
def test_exact_score_is_its_twin_to_the_bit(cosine, age, importance, rate, shares):
    found = scan.exact_score(cosine, NOW - age, np.float32(importance), NOW, rate, *shares)
    assert found == naive.score(cosine, NOW - age, importance, NOW, rate, shares)


def test_exact_score_by_hand():
    assert scan.exact_score(0.8, NOW - 100 * drawn.HOUR, 0.5, NOW, 0.01, 0.5, 0.3, 0.2) == pytest.approx(
        0.5 * 0.8 + 0.3 / math.e + 0.2 * 0.5, abs=1e-15
    )


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65])
def test_reaching_counts_what_is_at_least_the_bar(n):
    values = np.arange(n, dtype=np.float32)
    for bar in (-math.inf, -1.0, 0.0, 0.5, n - 1.0, n, math.inf):
        assert scan.reaching(values, bar) == (values >= bar).sum()

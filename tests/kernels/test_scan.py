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

CHUNKS = drawn.chunks(st.integers(0, 70), st.integers(1, 20) | st.sampled_from((127, 128, 200, 300))) | drawn.chunks(
    st.sampled_from((BLOCK - 1, BLOCK, BLOCK + 1)), st.integers(1, 3)
)


def heap(*shape):
    """Scores, event times, ids in two halves, rows."""
    return tuple(np.empty(shape, dtype) for dtype in (float, np.int64, np.uint64, np.uint64, np.int64))


def address(array):
    return array.__array_interface__["data"][0]


class Asked:
    """A chunk as the parts of a table, and one query of it. `cuts` part the rows; of each part the first rows may have
    codes, of rows that were turned about or not; or its allowed rows are listed.
    """

    def __init__(self, chunk, query, k, weights, rate, *, coded, turned=False, listed=False, cuts=(), **minima):
        self.chunk, self.query, self.k, self.weights, self.rate = chunk, query, k, weights, rate
        self.least = minima.get("min_similarity", -math.inf)
        self.floor = np.full(2, float(minima.get("min_score", -math.inf)))
        n, d = chunk.vectors.shape
        self.ends = codes.cuts(d)
        turn = np.linalg.qr(np.random.default_rng(d).standard_normal((d, d)))[0] if turned else np.eye(d)
        self.numbers, self.told = (
            array[None] for array in drawn.query_codes(query.astype(np.float64) @ turn, self.ends)
        )
        self.kept, self.units, rows = [], [], []
        edges = [0, *cuts, n]
        for part, (begin, end) in enumerate(itertools.pairwise(edges)):
            rows.append(self.part(part, begin, end, chunk.vectors[begin:end].astype(np.float64) @ turn, coded, listed))
        self.parts = np.array(rows, np.int64).reshape(-1, len(scan.FIELDS))
        self.units = np.array(self.units, np.int64).reshape(-1, 3)
        self.shared, self.done = np.zeros(1, np.int64), np.zeros(len(self.units), np.int64)
        self.base = 0

    def part(self, part, begin, end, turned, coded, listed):
        c, m = self.chunk, end - begin
        row = dict.fromkeys(scan.FIELDS, 0)
        arrays = {
            name: np.ascontiguousarray(column[begin:end])
            for name, column in zip(
                ("vectors", "times", "importance", "id_hi", "id_lo", "allowed"),
                (*c[:5], c.allowed if c.allowed.size else np.ones(len(c.vectors), np.uint8)),
                strict=True,
            )
        }
        if not c.allowed.size:
            del arrays["allowed"]
        first = 0
        if coded and m:
            first = m if part % 2 == 0 else m // 2
            room = m + part
            widths = np.diff([0, *self.ends])
            slabs = [np.empty((room, width), np.int8) for width in widths]
            rest = [np.empty((count, room), np.uint16) for count in (3, 3, 2)]
            codes.quantise(turned[:first], np.array(self.ends, np.int64), 0, *slabs, *rest)
            names = ("slab0", "slab1", "slab2", "scale", "missed", "left")
            arrays.update(zip(names, (*slabs, *rest), strict=True))
            blocks = range(0, first, BLOCK)
            arrays["newest"] = np.array([arrays["times"][b : min(b + BLOCK, first)].max() for b in blocks], np.int64)
            arrays["heaviest"] = np.array(
                [arrays["importance"][b : min(b + BLOCK, first)].max() for b in blocks], np.float32
            )
            row["room"] = room
        row["coded"], row["base"] = first, begin
        if listed:
            passed = np.flatnonzero(arrays.pop("allowed", np.ones(m, np.uint8))).astype(np.int32)
            arrays["listed"] = passed
            if len(passed):
                self.units.append((part, 0, len(passed)))
        else:
            self.units += [(part, a, b) for a, b in ((0, first), (first, m)) if a < b]
        self.kept.append(arrays)
        row.update((name, address(array)) for name, array in arrays.items())
        return list(row.values())

    def thread(self):
        return Thread(self)


class Thread:
    def __init__(self, asked):
        self.asked = asked
        self.heap, self.kept = heap(asked.k), heap(2, asked.k)
        self.mine, self.counts = np.zeros(3, np.int64), np.zeros(len(scan.COUNTED), np.int64)

    def run(self, again=False, units=None):
        a = self.asked
        scan.scan(
            a.parts, a.units if units is None else units, a.shared, a.done, again, np.array(a.ends, np.int64), a.query,
            a.numbers, a.told, NOW, a.rate, *a.weights, a.least, a.floor, *self.heap, *self.kept, self.mine,
            np.empty(scan.UNIT, np.float32), np.empty(scan.UNIT, np.float32), np.empty(BLOCK, np.int32),
            np.empty(scan.UNIT // scan.STRIPE, np.float32), self.counts,
        )  # fmt: skip
        return self

    def columns(self):
        slot = self.mine[scan.SLOT]
        return [column[slot, : self.mine[scan.SIZES + slot]] for column in self.kept]


def found(k, *threads):
    scores, rows = topk.ranked(k, *map(np.concatenate, zip(*(thread.columns() for thread in threads), strict=True)))
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


WAYS = {
    "float32": {"coded": False},
    "codes": {"coded": True},
    "codes of turned rows": {"coded": True, "turned": True},
    "listed": {"coded": False, "listed": True},
    "listed, codes": {"coded": True, "turned": True, "listed": True},
}


@pytest.mark.parametrize("way", WAYS)
@drawn.thorough(150)
@given(case=asked(), data=st.data())
def test_a_scan_finds_the_best_to_the_bit(way, case, data):
    chunk, query, k, shares, rate, minima = case
    n = len(chunk.vectors)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=3)))
    run = Asked(chunk, query, k, shares, rate, cuts=cuts, **WAYS[way], **minima).thread().run()
    assert found(k, run) == expected(naive.scan(chunk, query, k, shares, NOW, rate, **minima))
    _, first, second, third, read, scored = run.counts.tolist()
    passed = int(chunk.allowed.sum()) if chunk.allowed.size else n
    assert run.mine[scan.SIZES + run.mine[scan.SLOT]] <= scored <= passed
    assert third <= second <= first <= n * WAYS[way]["coded"] or query.size < 128
    assert read <= passed
    assert run.asked.done.all()


@pytest.mark.parametrize("way", WAYS)
@drawn.thorough(100)
@given(case=asked(), data=st.data())
def test_the_order_of_units_changes_nothing(way, case, data):
    chunk, query, k, shares, rate, minima = case
    n = len(chunk.vectors)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=3)))
    asked_ = Asked(chunk, query, k, shares, rate, cuts=cuts, **WAYS[way], **minima)
    order = data.draw(st.permutations(range(len(asked_.units))))
    run = asked_.thread().run(units=np.ascontiguousarray(asked_.units[list(order)]))
    assert found(k, run) == expected(naive.scan(chunk, query, k, shares, NOW, rate, **minima))


@pytest.mark.parametrize("way", WAYS)
@drawn.thorough(100)
@given(case=asked(), data=st.data())
def test_threads_that_take_turns_find_the_same_together(way, case, data):
    """The first takes some units and never ends the last of them; the other does the rest, and that one too."""
    chunk, query, k, shares, rate, minima = case
    n = len(chunk.vectors)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=4)))
    asked_ = Asked(chunk, query, k, shares, rate, cuts=cuts, **WAYS[way], **minima)
    taken = data.draw(st.integers(0, len(asked_.units)))
    lost = data.draw(st.integers(0, taken))
    one, two = asked_.thread(), asked_.thread()
    if taken - lost:
        one.run(units=np.ascontiguousarray(asked_.units[: taken - lost]))
    asked_.shared[0] = taken
    two.run()
    assert asked_.done.tolist() == [1] * (taken - lost) + [0] * lost + [1] * (len(asked_.units) - taken)
    two.run(again=True)
    assert (asked_.done == 1).all()
    assert found(k, one, two) == expected(naive.scan(chunk, query, k, shares, NOW, rate, **minima))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.2), (1.0, 0.0, 0.0), (0.0, 0.5, 0.5)])
@pytest.mark.parametrize("n", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1])
def test_a_scan_of_whole_blocks_and_one_row_more_or_less(n, shares, way):
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
    run = Asked(chunk, query, 10, shares, 0.01, **WAYS[way]).thread().run()
    assert found(10, run) == expected(naive.scan(chunk, query, 10, shares, NOW, 0.01))


@pytest.mark.parametrize("way", WAYS)
def test_equal_scores_are_ranked_by_time_and_then_by_id(way):
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
    run = Asked(chunk, chunk.vectors[0], 25, (0.5, 0.3, 0.2), 0.01, **WAYS[way]).thread().run()
    assert [row for _, row in found(25, run)] == order[:25]


def crowd(n, d=64):
    """Rows among which one is like the query, and few are new: most can be left unread."""
    rng = np.random.default_rng(2)
    vectors = drawn.unit_rows(rng, n, d, "normal")
    event_time = NOW - np.sort(rng.integers(0, 2000, n))[::-1] * drawn.HOUR
    ids = np.arange(n, dtype=np.uint64)
    return naive.Chunk(vectors, event_time, np.zeros(n, np.float32), ids, ids, np.empty(0, np.uint8)), vectors[n // 3]


def counted(chunk, query, shares, coded=True, cuts=(), **minima):
    """What a scan for the best five counts, by name."""
    run = Asked(chunk, query, 5, shares, 0.01, coded=coded, cuts=cuts, **minima).thread().run()
    return dict(zip(scan.COUNTED, run.counts.tolist(), strict=True)), run


@pytest.mark.skipif(drawn.PLAIN, reason="needs many rows")
def test_most_vectors_stay_unread():
    n = 8 * BLOCK
    chunk, query = crowd(n, 256)
    told, _ = counted(chunk, query, (1.0, 0.0, 0.0))
    assert told["first"] == n
    assert told["vectors"] < n / 50
    told, _ = counted(chunk, query, (0.2, 0.8, 0.0), cuts=(6 * BLOCK,))
    assert told["first"] > n / 2  # the old part comes first, when nothing is known yet
    chunk = chunk._replace(event_time=chunk.event_time[::-1].copy())
    told, _ = counted(chunk, query, (0.2, 0.8, 0.0), cuts=(2 * BLOCK, 4 * BLOCK))
    assert told["first"] < n / 2  # blocks that are too old fall out before their codes are read
    assert told["blocks"] < 8  # and before their columns are
    told, _ = counted(chunk, query, (0.2, 0.8, 0.0), coded=False, cuts=(2 * BLOCK,))
    assert told["vectors"] < n / 2
    told, _ = counted(chunk, query, (0.0, 1.0, 0.0))
    assert (told["first"], told["vectors"]) == (0, 0)


def test_the_newest_rows_are_looked_at_first_where_vectors_do_not_count():
    chunk, query = crowd(200, 8)
    told, _ = counted(chunk, query, (0.0, 1.0, 0.0), coded=False)
    assert told["scored"] <= scan.STRIPE


def test_a_floor_spares_the_reading_and_is_raised():
    chunk, query = crowd(200, 8)
    told, run = counted(chunk, query, (1.0, 0.0, 0.0), min_score=0.999999)
    assert len(found(5, run)) == 1
    assert told["vectors"] <= 3
    _, run = counted(chunk, query, (1.0, 0.0, 0.0))
    assert run.asked.floor[0] == found(5, run)[-1][0]
    run = Asked(chunk, query, 201, (1.0, 0.0, 0.0), 0.01, coded=True).thread().run()
    assert run.asked.floor[0] == -math.inf  # the heap is not full: no score is too low yet


def test_a_minimum_of_similarity_spares_the_reading():
    chunk, query = crowd(1000, 200)
    told, _ = counted(chunk, query, (1.0, 0.0, 0.0))
    assert told["second"] == told["third"] == 1000
    told, run = counted(chunk, query, (1.0, 0.0, 0.0), min_similarity=0.9)
    assert len(found(5, run)) == 1
    assert (told["second"], told["third"], told["scored"]) == (0, 0, 1)
    assert told["vectors"] <= -(-1000 // scan.STRIPE)  # the best of each stripe, to find out


def screened(chunk, queries, capacity, shares, rate, minima, block=64, base=5):
    """What a batch does: per block a product and `screen`. The heaps and their sizes."""
    n, q = len(chunk.vectors), len(queries)
    heaps, sizes = heap(q, capacity), np.zeros(q, np.int64)
    for first in range(0, n, block):
        rows = slice(first, first + block)
        columns = [column[rows] for column in chunk]
        known = np.empty(len(columns[0]), np.float32)
        known_terms(*columns[1:3], columns[5], NOW, rate, *shares[1:], known, np.empty(1, np.float32))
        scan.screen(
            queries @ columns[0].T, known, columns[1], columns[3], columns[4], queries.shape[1], shares[0],
            *minima.values(), base + first, *heaps, sizes,
        )  # fmt: skip
    return heaps, sizes


def rescored(chunk, queries, k, candidates, sizes, shares, rate, minima, base=5, width=65):
    """The best k of the candidates of each query, as a batch ends: (score, row) in order."""
    parts, kept = [], []
    for first in range(0, len(chunk.vectors), width):
        arrays = [np.ascontiguousarray(column[first : first + width]) for column in chunk[:5]]
        kept.append(arrays)
        row = dict.fromkeys(scan.FIELDS, 0)
        row["base"] = base + first
        row.update(
            zip(("vectors", "times", "importance", "id_hi", "id_lo"), (address(array) for array in arrays), strict=True)
        )
        parts.append(list(row.values()))
    found, many = heap(len(queries), k), np.zeros(len(queries), np.int64)
    scan.rescore(
        np.array(parts, np.int64).reshape(-1, len(scan.FIELDS)), queries, NOW, rate, *shares, *minima.values(),
        candidates, sizes, *found, many,
    )  # fmt: skip
    return [
        list(zip(found[0][q, :size].tolist(), found[4][q, :size].tolist(), strict=True)) for q, size in enumerate(many)
    ]


@drawn.thorough(300)
@given(case=asked(), data=st.data())
def test_screening_keeps_what_may_be_among_the_best(case, data):
    chunk, query, k, shares, rate, minima = case
    assume(len(chunk.vectors) < BLOCK - 1)
    other = data.draw(drawn.queries(chunk.vectors))
    queries = np.stack([query, other])
    capacity = k + data.draw(st.integers(0, 5))
    heaps, sizes = screened(chunk, queries, capacity, shares, rate, minima)
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
                assert abs(heaps[0][q, kept.index(row)] - entry.score) <= error
            elif meets:
                assert entry.score <= lowest + error
        assert set(kept) <= set(scores)


@drawn.thorough(200)
@given(case=asked(), data=st.data())
def test_rescoring_ranks_the_candidates_exactly(case, data):
    chunk, query, k, shares, rate, minima = case
    n = len(chunk.vectors)
    assume(0 < n < BLOCK - 1)
    queries = np.stack([query, data.draw(drawn.queries(chunk.vectors))])
    chosen = [data.draw(st.lists(st.integers(0, n - 1), unique=True)) for _ in queries]
    candidates = np.full((2, max(map(len, chosen))), -1, np.int64)
    for q, rows in enumerate(chosen):
        candidates[q, : len(rows)] = np.array(rows, np.int64) + 5
    told = rescored(chunk, queries, k, candidates, np.array([len(rows) for rows in chosen]), shares, rate, minima)
    for q, rows in enumerate(chosen):
        only = np.zeros(n, np.uint8)
        only[rows] = 1
        assert told[q] == expected(
            naive.scan(chunk._replace(allowed=only), queries[q], k, shares, NOW, rate, **minima), 5
        )


@drawn.thorough(50)
@given(case=asked())
def test_screening_with_room_for_all_is_exact(case):
    chunk, query, k, shares, rate, minima = case
    n = len(chunk.vectors)
    assume(0 < n < BLOCK - 1)
    heaps, sizes = screened(chunk, query[None], n, shares, rate, minima)
    (told,) = rescored(chunk, query[None], k, heaps[4], sizes, shares, rate, minima)
    assert told == expected(naive.scan(chunk, query, k, shares, NOW, rate, **minima), 5)


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

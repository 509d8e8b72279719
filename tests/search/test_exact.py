"""recall and recall_many against the oracle: the same ids in the same order, and the same scores to the last bit."""

import contextlib
import itertools
import math
import uuid
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import drawn
import memcore
import naive
from drawn import NOW
from memcore.search import exact
from memcore.store import codes, graphs, segment
from memcore_kernels.decay import BLOCK

# How many threads, from how many rows on they are used, and from how many queries on one pass is made; whether the rows
# of sealed segments have codes, those of turned rows, and whether the rows that a filter lets through are listed.
ROUTES = {
    "as it comes": {"THREADS": exact.THREADS},
    "one thread": {"THREADS": 1},
    "one thread, codes": {"THREADS": 1, "LISTED": 10**9},
    "two threads": {"THREADS": 2, "PARALLEL_ROWS": 1},
    "two threads, codes": {"THREADS": 2, "PARALLEL_ROWS": 1},
    "eight threads, codes, turned": {"THREADS": 8, "PARALLEL_ROWS": 1, "LISTED": 10**9},
    "one thread, codes, listed": {"THREADS": 1, "LISTED": 0},
    "batches": {"FEW": 1},
    "batches in shares and pieces": {"FEW": 1, "MOST": 2, "BATCH_BYTES": 8 * BLOCK},
    "batches without a spare candidate": {"FEW": 1, "SPARE": 0},
    "graphs": {"THREADS": 1},  # which miss nothing where they are so small
}
SECONDS = NOW / 1e6


@contextlib.contextmanager
def route(name, rows_a_segment=16):
    """On this route, in segments of so many rows: all but the last are sealed and have codes."""
    with (
        mock.patch.multiple(exact, **ROUTES[name]),
        mock.patch.multiple(segment, ROWS=rows_a_segment, LEAST_CODED=1 if "codes" in name else 10**9),
        mock.patch.multiple(codes, FITTED=8, LEAST_ROTATED=2 if "turned" in name else 10**9),
        mock.patch.multiple(graphs, LEAST_ROWS=1 if name == "graphs" else 10**9),
    ):
        yield


def stored(chunk, order=None, kinds=("episodic",), without_vector=(), decay_rate=0.01):
    """A store of the chunk's rows, inserted in this order. Row r is of kind r, cyclically, and its metadata.n is r.
    On the route of graphs, what is sealed has one.
    """
    mem = memcore.open(embedder=None, index="faiss", decay_rate=decay_rate)
    rows = range(len(chunk.vectors)) if order is None else order
    items = [
        {
            "content": f"row {r}",
            "vector": None if r in without_vector else chunk.vectors[r],
            "event_time": int(chunk.event_time[r]) / 1e6,
            "importance": float(chunk.importance[r]),
            "id": str(uuid.UUID(int=int(chunk.id_hi[r]) << 64 | int(chunk.id_lo[r]))),
            "kind": kinds[r % len(kinds)],
            "metadata": {"n": int(r)},
        }
        for r in rows
    ]
    if items:
        mem.remember_many(items, now=SECONDS)
    mem.compact()
    return mem


def told(hits):
    return [naive.Answer(hit.id, hit.total_score, hit.semantic_similarity) for hit in hits]


@st.composite
def asked(draw, most=60):
    """A chunk whose times survive the way through seconds, queries, and how they are asked."""
    chunk = draw(drawn.chunks(st.integers(0, most), st.integers(1, 24) | st.sampled_from((63, 256))))
    chunk = chunk._replace(event_time=np.maximum(chunk.event_time, -(6 * 10**16)) // 10**6 * 10**6)
    queries = [naive.unit(draw(drawn.queries(chunk.vectors))) for _ in range(draw(st.integers(1, 4)))]
    terms = {
        "k": draw(st.sampled_from((0, 1, 5, 10, len(chunk.vectors), len(chunk.vectors) + 3))),
        "weights": draw(drawn.weights()),
        "decay_rate": draw(st.sampled_from(drawn.RATES)),
    }
    if draw(st.booleans()):
        terms["min_similarity"] = draw(st.sampled_from((-1.0, 0.0, 0.5, 1.0)))
    return chunk, queries, terms


def answers(mem, query, terms, **more):
    return naive.recall(mem.list(kinds=memcore.KINDS, now=SECONDS), query, now=NOW, **terms, **more)


@pytest.mark.parametrize("name", ROUTES)
@settings(max_examples=40, deadline=None)
@given(case=asked(), data=st.data())
def test_recall_is_the_oracles(name, case, data):
    chunk, queries, terms = case
    n = len(chunk.vectors)
    without = set(data.draw(st.lists(st.integers(0, max(n - 1, 0)), max_size=3)))
    with route(name):
        mem = stored(chunk, kinds=memcore.KINDS[1:], without_vector=without, decay_rate=terms["decay_rate"])
        expected = [answers(mem, query, terms) for query in queries]
        if expected[0] and data.draw(st.booleans()):  # a minimum that the last hit just meets
            terms = {**terms, "min_score": expected[0][-1].total_score}
            expected = [answers(mem, query, terms) for query in queries]
        assert [told(mem.recall(vector=query, now=SECONDS, **terms)) for query in queries] == expected
        assert list(map(told, mem.recall_many(vectors=np.stack(queries), now=SECONDS, **terms))) == expected
        free = {name: value for name, value in terms.items() if name != "min_similarity"}
        assert told(mem.recall(now=SECONDS, **free)) == answers(mem, None, free)
    for query, hits in zip(queries, expected, strict=True):
        for hit in hits:
            record = mem.get(hit.id, now=SECONDS)
            plain = 0.0 if record.vector is None else float(record.vector.astype(float) @ query.astype(float))
            assert abs(hit.semantic_similarity - plain) <= 1e-12


@pytest.mark.parametrize("name", ROUTES)
@settings(max_examples=20, deadline=None)
@given(case=asked(), data=st.data())
def test_the_order_of_insertion_changes_nothing(name, case, data):
    chunk, queries, terms = case
    order = data.draw(st.permutations(range(len(chunk.vectors))))
    with route(name, data.draw(st.sampled_from((7, 16, 100)))):
        mem = stored(chunk, order, decay_rate=terms["decay_rate"])
        expected = answers(mem, queries[0], terms)
        assert told(mem.recall(vector=queries[0], now=SECONDS, **terms)) == expected
        batch = mem.recall_many(vectors=np.stack([queries[0]] * 3), now=SECONDS, **terms)
        assert list(map(told, batch)) == [expected] * 3


@pytest.mark.parametrize("name", ROUTES)
@settings(max_examples=20, deadline=None)
@given(case=asked(), data=st.data())
def test_filters_leave_exactly_the_rows_that_pass(name, case, data):
    chunk, queries, terms = case
    wanted = data.draw(st.integers(0, 60))
    kinds = data.draw(st.sampled_from((("episodic",), ("semantic", "procedural"), memcore.KINDS)))
    with route(name):
        mem = stored(chunk, kinds=memcore.KINDS[1:], decay_rate=terms["decay_rate"])
        gone = data.draw(st.sets(st.integers(0, max(len(chunk.vectors) - 1, 0)), max_size=5))
        mem.forget([record.id for record in mem.list(now=SECONDS) if record.metadata["n"] in gone], now=SECONDS)
        for where, test in (
            ({"metadata.n": wanted}, lambda record: record.metadata["n"] == wanted),
            (None, lambda record: True),
        ):
            expected = [answers(mem, query, terms, kinds=kinds, where=test) for query in queries]
            found = [mem.recall(vector=q, now=SECONDS, kinds=kinds, where=where, **terms) for q in queries]
            assert list(map(told, found)) == expected
            batch = mem.recall_many(vectors=np.stack(queries), now=SECONDS, kinds=kinds, where=where, **terms)
            assert list(map(told, batch)) == expected


def crowd(n, d, seed=0):
    rng = np.random.default_rng(seed)
    return naive.Chunk(
        drawn.unit_rows(rng, n, d, "normal"),
        (NOW - np.sort(rng.integers(0, 2000 * drawn.HOUR, n))[::-1]) // 10**6 * 10**6,
        rng.random(n).astype(np.float32),
        np.zeros(n, np.uint64),
        np.arange(n, dtype=np.uint64),
        np.empty(0, np.uint8),
    )


@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.2), (1.0, 0.0, 0.0), (0.2, 0.8, 0.0)])
@pytest.mark.parametrize("name", ROUTES)
def test_several_blocks_in_several_segments(name, shares):
    chunk = crowd(3 * BLOCK + 5, 5)
    queries = drawn.unit_rows(np.random.default_rng(1), 3, 5, "normal")
    terms = {"k": 7, "weights": shares}
    with route(name, 2 * BLOCK + 100):
        mem = stored(chunk, kinds=("episodic", "procedural", "semantic"))
        expected = [answers(mem, query, terms) for query in queries]
        assert [told(mem.recall(vector=query, now=SECONDS, **terms)) for query in queries] == expected
        assert list(map(told, mem.recall_many(vectors=queries, now=SECONDS, **terms))) == expected


@pytest.mark.parametrize("name", ROUTES)
def test_a_crowd_of_equal_rows_is_ranked_by_time_then_id(name):
    """More equal scores than a batch has spare candidates for."""
    chunk = crowd(300, 8)._replace(importance=np.full(300, 0.5, np.float32))
    chunk.vectors[:] = chunk.vectors[0]
    chunk.event_time[:] = NOW + (np.arange(300) % 3) * 10**6  # to come: recency is 1 for all
    with route(name):
        mem = stored(chunk, np.random.default_rng(2).permutation(300))
        expected = answers(mem, chunk.vectors[0], {"k": 20})
        assert [hit.id for hit in expected] == sorted(hit.id for hit in expected)
        assert told(mem.recall(vector=chunk.vectors[0], now=SECONDS, k=20)) == expected
        for hits in mem.recall_many(vectors=[chunk.vectors[0]] * 6, now=SECONDS, k=20):
            assert told(hits) == expected


@pytest.mark.parametrize("name", ROUTES)
def test_scores_closer_than_float32_can_tell(name):
    """Sixty rows within 1e-7 of each other: float32 alone would rank them by chance."""
    rng = np.random.default_rng(3)
    chunk = crowd(200, 16)
    near = chunk.vectors[0].astype(np.float64) + rng.normal(0, 1e-7, (60, 16))
    chunk.vectors[100:160] = [naive.unit(row) for row in near]
    chunk.event_time[:] = NOW
    chunk.importance[:] = 0
    with route(name):
        mem = stored(chunk)
        expected = answers(mem, chunk.vectors[0], {"k": 40})
        assert len({hit.total_score for hit in expected}) > 30
        assert told(mem.recall(vector=chunk.vectors[0], now=SECONDS, k=40)) == expected
        for hits in mem.recall_many(vectors=[chunk.vectors[0]] * 6, now=SECONDS, k=40):
            assert told(hits) == expected


@pytest.mark.parametrize("k", [0, 1, 3, 10])
def test_fewer_than_k_come_only_where_fewer_match(k):
    mem = stored(crowd(3, 4))
    query = np.eye(4, dtype=np.float32)[0]
    assert len(mem.recall(vector=query, k=k, now=SECONDS)) == min(k, 3)
    assert len(mem.recall_many(vectors=[query] * 9, k=k, now=SECONDS)[8]) == min(k, 3)
    assert len(mem.recall(vector=query, k=k, where={"metadata.n": 1}, now=SECONDS)) == min(k, 1)


def test_an_empty_store_answers_nothing():
    mem = memcore.open(embedder=None)
    assert len(mem.recall(vector=[1.0, 0.0], k=5)) == 0
    assert [len(hits) for hits in mem.recall_many(vectors=[[1.0, 0.0]] * 8)] == [0] * 8
    assert len(mem.recall(k=5)) == 0


@pytest.mark.parametrize("name", ROUTES)
def test_a_query_of_zeros_is_like_nothing(name):
    chunk = crowd(40, 4)
    zero = np.zeros(4, dtype=np.float32)
    with route(name):
        mem = stored(chunk)
        for terms in ({}, {"min_similarity": 0.0}, {"min_similarity": -1.0}):
            expected = answers(mem, None, {"k": 9})
            hits = mem.recall(vector=zero, k=9, now=SECONDS, **terms)
            assert told(hits) == expected
            assert hits.explain()["vectors_read"] == 0
            assert told(mem.recall_many(vectors=[zero] * 7, k=9, now=SECONDS, **terms)[6]) == expected
        assert len(mem.recall(vector=zero, k=9, now=SECONDS, min_similarity=0.1)) == 0
        assert len(mem.recall_many(vectors=[zero] * 7, k=9, now=SECONDS, min_similarity=0.1)[6]) == 0


def test_more_queries_than_one_pass_takes():
    chunk = crowd(70, 4)
    queries = drawn.unit_rows(np.random.default_rng(5), 50, 4, "normal")
    with mock.patch.object(exact, "MOST", 7):
        mem = stored(chunk)
        found = mem.recall_many(vectors=queries, now=SECONDS)
        assert list(map(told, found)) == [answers(mem, query, {}) for query in queries]


def test_the_batch_in_memory_is_bounded():
    chunk = crowd(2 * BLOCK, 4)
    mem = stored(chunk)
    shapes, product = [], np.matmul

    def seen(*arguments, **named):
        shapes.append(named["out"].nbytes)
        return product(*arguments, **named)

    queries = drawn.unit_rows(np.random.default_rng(6), exact.MOST + exact.FEW, 4, "normal")
    with mock.patch.object(np, "matmul", seen):
        mem.recall_many(vectors=queries, k=1, now=SECONDS)
    assert max(shapes) <= exact.BATCH_BYTES
    assert len(shapes) >= 3


def test_the_plan_is_told():
    mem = stored(crowd(100, 4))
    query = np.eye(4, dtype=np.float32)[0]
    plain = mem.recall(vector=query, k=3, now=SECONDS).explain()
    assert (plain["plan"], plain["rows"], plain["passed_filter"]) == ("exact scan, 1 thread", 100, 100)
    assert 3 <= plain["scored_exactly"] <= plain["vectors_read"] <= 100
    assert plain["codes_read"] == [0, 0, 0]
    with route("two threads, codes"):
        mem = stored(crowd(100, 4))
        told_ = mem.recall(vector=query, k=3, where={"importance": 0.5}, now=SECONDS).explain()
        assert (told_["plan"], told_["rows"], told_["passed_filter"]) == ("nothing to scan", 100, 0)
        told_ = mem.recall(vector=query, k=3, where={"metadata.n": 5}, now=SECONDS).explain()
        assert (told_["plan"], told_["rows"], told_["passed_filter"]) == ("exact scan, 1 thread", 100, 1)
        assert mem.recall(vector=query, k=3, now=SECONDS).explain()["plan"] == "exact scan, 2 threads"
        assert mem.recall(vector=query, k=3, now=SECONDS).explain()["codes_read"][0] > 0
    many = stored(crowd(100, 4)).recall_many(vectors=[query] * exact.FEW, k=3, now=SECONDS)
    assert many[0].explain()["plan"] == "batched product"


def test_terms_at_the_ends_of_their_ranges():
    chunk = crowd(50, 4)
    query = np.eye(4, dtype=np.float32)[0]
    mem = stored(chunk)
    for shares, rate in itertools.product(drawn.WEIGHTS, (0.0, 5e-324, 1e-300, 1e18, 1e300)):
        terms = {"k": 50, "weights": shares, "decay_rate": rate}
        expected = answers(mem, query, terms)
        assert all(math.isfinite(hit.total_score) for hit in expected)
        assert told(mem.recall(vector=query, now=SECONDS, **terms)) == expected
        assert told(mem.recall_many(vectors=[query] * 6, now=SECONDS, **terms)[0]) == expected


@pytest.mark.parametrize("name", ROUTES)
def test_candidates_that_a_minimum_bars_make_no_room_for_themselves(name):
    """Sixty rows score well, but are below the minimum by less than float32 can tell; those to find are behind them."""
    query = naive.unit([1.0, 0.0])
    like, less = naive.unit([0.6, 0.8]), naive.unit([0.6 - 1e-7, 0.8])
    least = naive.dot64(like, query)
    assert least - 3e-7 < naive.dot64(less, query) < least
    chunk = crowd(80, 2)
    chunk.vectors[:60], chunk.vectors[60:] = less, like
    chunk.event_time[:] = NOW
    chunk.importance[:60], chunk.importance[60:], chunk.importance[70] = 0.9, 0.0, 1.0
    terms = {"k": 5, "min_similarity": least}
    with route(name):
        mem = stored(chunk)
        expected = answers(mem, query, terms)
        assert len(expected) == 5
        assert told(mem.recall(vector=query, now=SECONDS, **terms)) == expected
        for hits in mem.recall_many(vectors=[query] * 6, now=SECONDS, **terms):
            assert told(hits) == expected


def test_each_query_of_a_batch_may_have_a_scope_of_its_own():
    mem = memcore.open(embedder=None)
    rng = np.random.default_rng(7)
    scopes = [mem.scope(tenant_id=f"tenant {i % 4}", session_id=f"s{i % 2}" if i % 4 else None) for i in range(8)]
    for scope in scopes:
        scope.remember_many([{"content": "x", "vector": rng.standard_normal(6)} for _ in range(9)], now=SECONDS)
    asked = [scopes[i] for i in rng.integers(0, 8, 40)]
    queries = drawn.unit_rows(rng, 40, 6, "normal")
    for terms in ({}, {"where": {"importance": 0.5}, "k": 30}, {"weights": (1, 0, 0), "k": 2}):
        expected = [told(scope.recall(vector=q, now=SECONDS, **terms)) for scope, q in zip(asked, queries, strict=True)]
        assert list(map(told, mem.recall_many(vectors=queries, scopes=asked, now=SECONDS, **terms))) == expected
        assert len({tuple(hits) for hits in expected}) == 40
    text = memcore.open(embedder="hashed", clock=lambda: SECONDS)
    here, there = text.scope("here"), text.scope("there")
    here.remember("the door is blue")
    there.remember("the door is red")
    for relevance in ("cosine", "hybrid"):
        found = text.recall_many(["door", "the door", "door"], scopes=[there, here, here], relevance=relevance)
        assert [[hit.content for hit in hits] for hits in found] == [
            ["the door is red"],
            ["the door is blue"],
            ["the door is blue"],
        ]
        assert [hits[0].total_score for hits in found] == [
            scope.recall(query, relevance=relevance)[0].total_score
            for scope, query in ((there, "door"), (here, "the door"), (here, "door"))
        ]
    assert text.recall_many([], scopes=[]) == []


def test_scopes_that_cannot_be_asked_are_refused():
    mem, other = memcore.open(embedder=None), memcore.open(embedder=None)
    mem.remember("x", vector=[1.0, 0.0])
    for scopes, message in (
        ([mem], "scopes is 1 for 2 queries; pass one scope for each query"),
        ("ab", "scopes is 'ab' (str) for 2 queries; pass one scope for each query"),
        (3, "scopes is 3 (int) for 2 queries; pass one scope for each query"),
        (["a", mem], "scopes[0] is 'a' (str); it must be a scope of this store, as scope() returns it"),
    ):
        with pytest.raises(memcore.InvalidInput) as raised:
            mem.recall_many(vectors=[[1.0, 0.0]] * 2, scopes=scopes)
        assert str(raised.value) == message
    with pytest.raises(memcore.InvalidInput, match=r"^scopes\[1\] is <Memory .* it must be a scope of this store"):
        mem.recall_many(vectors=[[1.0, 0.0]] * 2, scopes=[mem, other])


def test_what_each_stage_took_is_told():
    mem = stored(crowd(100, 4))
    query = np.eye(4, dtype=np.float32)[0]
    for hits in (mem.recall(vector=query, now=SECONDS), *mem.recall_many(vectors=[query] * 9, now=SECONDS)):
        took = hits.explain()["ms"]
        assert list(took) == ["filter", "search", "read"]
        assert took["search"] > 0

"""Recall by graphs: when they answer, how much of the exact result they find, and that what is out costs nothing that
is in. That their scores and order are exact: the route "graphs" of test_exact.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

import memcore
from memcore.search import approximate, planner
from memcore.store import segment

DIM, N, SEALED = 32, 24_000, 20_000
NOW = 1.8e9
WEIGHTS = [(0.5, 0.3, 0.2), (0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.34, 0.33, 0.33), (0.2, 0.7, 0.1)]
RNG = np.random.default_rng(11)
CENTRES = RNG.standard_normal((400, DIM))
VECTORS = CENTRES[RNG.integers(0, len(CENTRES), N)] + 0.8 * RNG.standard_normal((N, DIM))
QUERIES = VECTORS[RNG.integers(0, N, 100)] + 0.1 * RNG.standard_normal((100, DIM))
TIMES = np.sort(NOW - 30 * 86_400 * RNG.random(N))
IMPORTANCE = RNG.random(N).astype(np.float32)


def filled(
    index: str = "faiss",
    decay_rate: float = 0.01,
    vectors: Any = VECTORS,
    times: Any = TIMES,
    importance: Any = IMPORTANCE,
) -> memcore.Memory:
    mem = memcore.open(embedder=None, clock=lambda: NOW, index=index, decay_rate=decay_rate)
    mem.remember_many(
        [
            {
                "content": f"row {i}", "vector": vectors[i], "event_time": times[i], "importance": float(importance[i]),
                "metadata": {"quarter": i % 4, "hundredth": i % 100},
            }
            for i in range(len(vectors))
        ]
    )  # fmt: skip
    mem.compact()
    return mem


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """One segment that is sealed, and so has a graph, and a tail."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment, "ROWS", SEALED)
        yield


@pytest.fixture(scope="module")
def mem(small: None) -> memcore.Memory:
    return filled()


@pytest.fixture(scope="module", params=[0.005, 0.01, 0.05])
def faded(small: None, request: Any) -> memcore.Memory:
    return filled(decay_rate=request.param)


@pytest.fixture(scope="module")
def reference(small: None) -> memcore.Memory:
    return filled("exact")


def plans(found: list[memcore.Recall]) -> set[str]:
    return {hits.explain()["plan"] for hits in found}


def share(found: list[memcore.Recall], expected: list[memcore.Recall]) -> float:
    """Of the hits that are among the best, with those as good as the last of them."""
    return float(
        np.mean(
            [
                sum(hit.total_score >= best[-1].total_score - 1e-9 for hit in hits) / len(best)
                for hits, best in zip(found, expected, strict=True)
            ]
        )
    )


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_nearly_all_of_the_exact_hits_are_found(weights, faded, reference):
    decay_rate = faded.stats()["decay_rate"]
    found = faded.recall_many(vectors=QUERIES, k=10, weights=weights)
    assert plans(found) == {"faiss HNSW, 1 graph and exact scan of the rest"}
    expected = reference.recall_many(vectors=QUERIES, k=10, weights=weights, decay_rate=decay_rate)
    assert share(found, expected) >= 0.99
    for hits, best in zip(found, expected, strict=True):
        scores = {hit.content: hit.total_score for hit in best}
        assert all(hit.total_score == scores.get(hit.content, hit.total_score) for hit in hits)
        assert [hit.total_score for hit in hits] == sorted((hit.total_score for hit in hits), reverse=True)


def test_hnswlib_answers_behind_the_same_call(reference):
    pytest.importorskip("hnswlib", reason="the extra hnsw is not installed")
    with filled("hnswlib") as mem:
        found = mem.recall_many(vectors=QUERIES, k=10)
    assert plans(found) == {"hnswlib HNSW, 1 graph and exact scan of the rest"}
    assert share(found, reference.recall_many(vectors=QUERIES, k=10)) >= 0.99


def test_one_query_and_many_find_the_same(mem):
    many = mem.recall_many(vectors=QUERIES[:20], k=10)
    assert [mem.recall(vector=query, k=10).ids for query in QUERIES[:20]] == [hits.ids for hits in many]


def test_more_queries_than_one_pass_takes(mem, monkeypatch):
    expected = [hits.ids for hits in mem.recall_many(vectors=QUERIES, k=10)]
    monkeypatch.setattr(approximate, "MOST_RESULTS", 7 * 400)
    assert [hits.ids for hits in mem.recall_many(vectors=QUERIES, k=10)] == expected


def test_rows_that_came_after_the_graph_are_found():
    with filled() as mem:
        ids = mem.remember_many([{"content": "new", "vector": query} for query in QUERIES])
        found = mem.recall_many(vectors=QUERIES, k=1, weights=(1, 0, 0))
        assert plans(found) == {"faiss HNSW, 1 graph and exact scan of the rest"}
        assert [hits.ids for hits in found] == [[id] for id in ids]


def test_rows_that_are_the_same_are_found_among():
    """Four fifths are twenty rows, again and again, all at one time, so that few links lead from one to another."""
    again = RNG.random(N) < 0.8
    vectors, times, importance = VECTORS.copy(), TIMES.copy(), IMPORTANCE.copy()
    vectors[again] = CENTRES[RNG.integers(0, 20, N)][again]
    times[again], importance[again] = NOW - 86_400, 0.5
    queries = np.concatenate([QUERIES, CENTRES[:20]])
    rows = {"vectors": vectors, "times": times, "importance": importance}
    with filled(**rows) as mem, filled("exact", **rows) as exact:
        for weights in WEIGHTS:
            found = mem.recall_many(vectors=queries, k=10, weights=weights)
            assert share(found, exact.recall_many(vectors=queries, k=10, weights=weights)) >= 0.99


# What is out


@pytest.mark.parametrize("same", [60, 70, 300])
def test_of_rows_that_are_equally_good_the_newest_come_first(same):
    vectors = VECTORS.copy()
    vectors[np.sort(RNG.choice(SEALED, same, replace=False))] = VECTORS[0]
    with filled(vectors=vectors) as mem:
        found = mem.recall(vector=VECTORS[0], k=5, weights=(1, 0, 0))
        (together,) = mem.recall_many(vectors=VECTORS[:1], k=5, weights=(1, 0, 0))
        plan = "faiss HNSW, 1 graph and exact scan of the rest" if same == 60 else "exact scan, 1 thread"
        assert found.explain()["plan"] == together.explain()["plan"] == plan
        equal = np.flatnonzero((vectors == VECTORS[0]).all(axis=1))
        assert (
            [hit.content for hit in found] == [hit.content for hit in together] == [f"row {i}" for i in equal[::-1][:5]]
        )


def test_what_was_forgotten_never_takes_a_place():
    """The nearest thousand and more rows of a query are forgotten: more than a walk keeps in view."""
    with filled() as mem, filled("exact") as exact:
        query = QUERIES[0]
        nearest = [hit.content for hit in exact.recall(vector=query, k=3000, weights=(1, 0, 0))]
        for store in (mem, exact):
            named = {record.content: record for record in store.list()}
            store.forget([named[content].id for content in nearest])
            assert store.recall(vector=query, weights=(1, 0, 0)).explain()["passed_filter"] == N - 3000
        for weights in WEIGHTS:
            found = mem.recall(vector=query, k=10, weights=weights)
            best = exact.recall(vector=query, k=10, weights=weights)
            assert len(found) == 10
            assert share([found], [best]) == 1.0
        # this query's walk saw nothing else, and so the exact scan has answered
        assert mem.recall(vector=query, weights=(1, 0, 0)).explain()["plan"].startswith("exact scan")
        assert mem.recall(vector=QUERIES[1], weights=(1, 0, 0)).explain()["plan"].startswith("faiss")


def test_what_was_replaced_never_takes_a_place():
    with memcore.open(embedder=None, clock=lambda: NOW, index="faiss") as mem:
        for first in range(0, N, 4000):
            mem.remember_many(
                [
                    {"content": f"{first + i}", "vector": VECTORS[i], "key": f"k{i}", "kind": "semantic"}
                    for i in range(4000)
                ]
            )
        mem.compact()
        found = mem.recall_many(vectors=QUERIES, k=10)
        assert all(int(hit.content) >= N - 4000 for hits in found for hit in hits)
        assert all(len(hits) == 10 for hits in found)


def test_a_filter_that_most_rows_pass_is_answered_by_the_graph(mem, reference):
    where = pc.field("metadata.quarter") > 0
    found = mem.recall_many(vectors=QUERIES, k=10, where=where)
    assert plans(found) == {"faiss HNSW, 1 graph and exact scan of the rest"}
    expected = reference.recall_many(vectors=QUERIES, k=10, where=where)
    assert share(found, expected) >= 0.99
    assert all(hit.metadata["quarter"] > 0 for hits in found for hit in hits)


def test_a_selective_filter_is_answered_exactly(mem, reference):
    where = {"metadata.hundredth": 7}
    found = mem.recall_many(vectors=QUERIES, k=10, where=where)
    assert not any(plan.startswith("faiss") for plan in plans(found))
    expected = reference.recall_many(vectors=QUERIES, k=10, where=where)
    assert [[h.content for h in hits] for hits in found] == [[h.content for h in hits] for hits in expected]


def test_a_minimum_leaves_out_what_is_below(mem, reference):
    for minimum in ({"min_similarity": 0.6}, {"min_score": 0.9}, {"min_similarity": 0.999}):
        found = mem.recall_many(vectors=QUERIES[:30], k=10, **minimum)
        expected = reference.recall_many(vectors=QUERIES[:30], k=10, **minimum)
        assert [len(hits) for hits in found] == [len(hits) for hits in expected]


# When the exact scan answers


@pytest.mark.parametrize(
    "asked",
    [
        {"decay_rate": 0.02}, {"now": NOW - 40 * 86_400}, {"as_of": NOW - 1}, {"weights": (0, 0.5, 0.5)}, {"k": 11},
        {"weights": (0.3, 0.1, 0.6)}, {"weights": (0.04, 0.92, 0.04)},
        {"weights": (0.3, 0.32, 0.38), "now": NOW + 90 * 86_400},
        {"vector": np.zeros(DIM)}, {"vector": None},
    ],
    ids=["another lambda", "before the newest row", "as of then", "no similarity", "many",
        "importance", "little similarity", "importance by then", "zero", "no query"],
)  # fmt: skip
def test_the_exact_scan_answers_what_a_graph_cannot(mem, reference, asked):
    asked = {"vector": QUERIES[0], "k": 10, **asked}
    found, expected = mem.recall(**asked), reference.recall(**asked)
    assert found.explain()["plan"].startswith(("exact scan", "nothing to scan"))
    assert [(hit.content, hit.total_score) for hit in found] == [(hit.content, hit.total_score) for hit in expected]


def test_as_of_a_moment_after_the_newest_row_a_graph_answers():
    with filled() as mem:
        assert mem.recall(vector=QUERIES[0], as_of=NOW + 10).explain()["plan"].startswith("faiss")


def test_exact_forbids_graphs(mem, reference):
    assert reference._engine.catalog.graphs.runs == ()
    assert reference.recall(vector=QUERIES[0]).explain()["plan"].startswith("exact scan")


def test_by_default_graphs_begin_where_this_machine_was_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert planner.path() == tmp_path / "memcore" / "planner.json"
    assert planner.planner("auto") == planner.Planner("faiss", 1_000_000, 0.25)
    with filled("auto") as mem:
        assert mem.stats()["graphs"] == []
    planner.path().parent.mkdir()
    planner.path().write_text(json.dumps({"least_rows": 20_000, "least_share": 0.6}))
    with filled("auto") as mem:
        assert mem.recall(vector=QUERIES[0]).explain()["plan"].startswith("faiss")
        half = mem.recall(vector=QUERIES[0], where={"metadata.quarter": 1})
        assert half.explain()["plan"].startswith("exact scan")  # fewer rows pass than graphs are for
    for nonsense in (
        "",
        "[]",
        '{"least_rows": 1e999, "least_share": 0.5}',
        '{"least_rows": -1, "least_share": 0.5}',
        '{"least_rows": 5, "least_share": 2}',
    ):
        planner.path().write_text(nonsense)
        assert planner.planner("auto") == planner.Planner("faiss", 1_000_000, 0.25)


def test_a_small_scope_beside_a_large_one_is_scanned():
    with filled() as mem:
        small = mem.scope(tenant_id="small")
        small.remember_many([{"content": "x", "vector": vector} for vector in VECTORS[:300]])
        assert small.recall(vector=QUERIES[0]).explain()["plan"] == "exact scan, 1 thread"
        assert mem.recall(vector=QUERIES[0]).explain()["plan"].startswith("faiss HNSW, 1 graph")


# What is refused


@pytest.mark.parametrize("value", ["hnsw", None, 3, "Exact"])
def test_another_index_is_refused(value):
    with pytest.raises(memcore.InvalidInput) as raised:
        memcore.open(embedder=None, index=value)
    shown = {"hnsw": "'hnsw' (str)", None: "None (NoneType)", 3: "3 (int)", "Exact": "'Exact' (str)"}[value]
    assert str(raised.value) == (
        f"index is {shown}; pass 'auto' (a graph where it is faster), 'exact' (never a graph), 'faiss' or 'hnswlib' (a "
        "graph of that library wherever there is one)"
    )


def test_without_the_library_the_message_gives_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "hnswlib", None)
    with pytest.raises(memcore.MissingExtra) as raised:
        memcore.open(embedder=None, index="hnswlib")
    assert str(raised.value) == (
        "index='hnswlib' needs the package hnswlib, which is not installed: pip install 'memcore-engine[hnsw]', or "
        "leave index out"
    )

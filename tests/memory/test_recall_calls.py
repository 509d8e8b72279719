"""recall and recall_many as calls: what they take, what they refuse, and what a result is. Scores: tests/search."""

from __future__ import annotations

import pytest

import memcore


@pytest.fixture
def mem() -> memcore.Memory:
    mem = memcore.open(embedder=None, clock=lambda: 1000)
    mem.remember_many([{"content": f"row {i}", "vector": [1.0, i], "metadata": {"n": i}} for i in range(4)])
    return mem


@pytest.mark.parametrize("vector", [[1.0], [1.0, 0.0, 0.0], [[1.0, 0.0]]], ids=["narrow", "wide", "nested"])
def test_a_vector_of_another_width_is_refused(mem, vector):
    for call in (lambda: mem.recall(vector=vector), lambda: mem.recall_many(vectors=[vector])):
        with pytest.raises(memcore.DimensionMismatch):
            call()
    with pytest.raises(memcore.DimensionMismatch, match="vector has 3 dimensions and the store has 2"):
        mem.recall(vector=[1.0, 0.0, 0.0])


def test_before_the_first_vector_any_width_is_like_nothing():
    mem = memcore.open(embedder=None)
    mem.remember("x")
    for vector in ([1.0], [1.0, 0.0, 0.0]):
        assert [hit.semantic_similarity for hit in mem.recall(vector=vector)] == [0.0]
        assert [[hit.semantic_similarity for hit in hits] for hits in mem.recall_many(vectors=[vector] * 2)] == [
            [0.0]
        ] * 2
    assert mem.stats()["dim"] is None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.recall("x", vector=[1.0, 0.0]), "recall got both a query and a vector; pass one of them"),
        (lambda m: m.recall_many(), "recall_many takes queries or vectors; pass one of them"),
        (
            lambda m: m.recall_many(["x"], vectors=[[1.0, 0.0]]),
            "recall_many takes queries or vectors; pass one of them",
        ),
        (lambda m: m.recall_many("x"), "recall_many got one text; pass a list of queries, or use recall"),
        (
            lambda m: m.recall("x", relevance="cosine"),
            (
                "this store has no embedder, so a text cannot be compared; pass vector=, or open the store with an "
                "embedder"
            ),
        ),
        (lambda m: m.recall(k=1, relevance="dense"), "relevance is 'dense' (str); allowed: cosine, lexical, hybrid"),
    ],
)
def test_what_makes_no_sense_is_refused(mem, call, message):
    with pytest.raises(memcore.InvalidInput) as raised:
        call(mem)
    assert str(raised.value) == message


def test_no_queries_no_results(mem):
    assert mem.recall_many(vectors=[]) == []
    assert memcore.open(embedder="hashed").recall_many([]) == []


def test_a_result_is_a_sequence_a_table_and_an_account(mem):
    hits = mem.recall(vector=[1.0, 0.0], k=3, where={"metadata.n": 2})
    assert (len(hits), hits[0].content, [hit.content for hit in hits]) == (1, "row 2", ["row 2"])
    assert hits.ids == [hits[0].id]
    table = hits.to_arrow()
    assert table.column("content").to_pylist() == ["row 2"]
    assert table.column("metadata").to_pylist() == ['{"n":2}']
    assert table.column("event_time").to_pylist()[0].timestamp() == 1000
    assert hits.explain()["rows"] == 4
    assert hits.explain()["passed_filter"] == 1
    assert mem.recall(k=0).to_arrow().schema == table.schema


def test_a_query_that_is_like_nothing_is_no_error():
    mem = memcore.open(embedder="hashed")
    mem.remember("x")
    for query in ("", " ", "\u200b", "!?"):
        for relevance in ("cosine", "hybrid"):
            (hit,) = mem.recall(query, relevance=relevance)
            assert (hit.semantic_similarity, hit.relevance_component) == (0.0, 0.0)


def test_without_an_embedder_a_text_is_answered_by_its_words():
    mem = memcore.open(embedder=None)
    mem.remember_many(["the printer is out of paper", "the gateway is down"], now=1e9)
    hits = mem.recall("gateway", now=1e9)
    assert [hit.content for hit in hits] == ["the gateway is down", "the printer is out of paper"]
    assert (hits[0].lexical > 0, hits[0].likeness, hits[0].semantic_similarity) == (True, 0.0, 0.0)
    assert [many.ids for many in mem.recall_many(["gateway"], now=1e9)] == [hits.ids]


def test_of_a_vector_the_default_is_the_cosine(mem):
    default, plain = (mem.recall(vector=[1.0, 0.0], now=2e9, **more) for more in ({}, {"relevance": "cosine"}))
    assert [(hit.id, hit.total_score) for hit in default] == [(hit.id, hit.total_score) for hit in plain]
    assert default.explain()["plan"] == plain.explain()["plan"] == "exact scan, 1 thread"
    (many,) = mem.recall_many(vectors=[[1.0, 0.0]], now=2e9)
    assert [(hit.id, hit.total_score) for hit in many] == [(hit.id, hit.total_score) for hit in plain]

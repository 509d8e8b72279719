"""The figures that the contract gives: cosines, hybrid scores and their order, and what the three stores hold."""

import json
from collections import Counter
from pathlib import Path

import pytest

import memcore

HERE = Path(__file__).parent


def cases(name):
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", cases("cosine"))
def test_cosine(case):
    mem = memcore.open(embedder=None)
    mem.remember("b", vector=case["b"])
    (hit,) = mem.recall(vector=case["a"])
    assert hit.semantic_similarity == pytest.approx(case["expected"], abs=1e-6)
    (hits,) = mem.recall_many(vectors=[case["a"]])
    assert hits[0].semantic_similarity == hit.semantic_similarity


def figures(hit, item):
    """A hit as the contract's figures tell it."""
    return {
        "item": item,
        "total_score": round(hit.total_score, 4),
        "semantic_similarity": round(hit.semantic_similarity, 4),
        "recency_component": round(hit.recency_component, 4),
        "importance_component": hit.importance_component,
        "age_hours": round(hit.age_hours, 2),
    }


@pytest.mark.parametrize("case", cases("hybrid_score"))
def test_hybrid_score(case):
    """The figures and the order. Only among equal scores, which the file lists by item, do newer events come first."""
    mem = memcore.open(embedder=None)
    ids = mem.remember_many(
        [
            {
                "content": f"item {number}",
                "vector": item["vector"],
                "importance": item["importance"],
                "event_time": item["event_time_s"],
            }
            for number, item in enumerate(case["items"])
        ],
        now=case["now_s"],
    )
    asked = {
        "weights": tuple(case["weights"][name] for name in ("alpha", "beta", "gamma")),
        "decay_rate": case["decay_per_hour"],
        "now": case["now_s"],
        "relevance": "cosine",
    }
    ranking = mem.recall(vector=case["query_vector"], k=len(ids), **asked)
    assert len(ranking) == len(ids)
    assert list(ranking) == sorted(ranking, key=lambda hit: (-hit.total_score, -hit.event_time.timestamp(), hit.id))
    scores = Counter(hit.total_score for hit in ranking)
    expected = [
        {**hit, "importance_component": pytest.approx(hit["importance_component"], abs=5e-5)}
        for hit in case["expected"]
    ]
    alone = mem.recall(vector=case["query_vector"], k=case["top_k"], **asked)
    batched = mem.recall_many(vectors=[case["query_vector"]] * 8, k=case["top_k"], **asked)
    for hits in (alone, *batched):
        found = [figures(hit, ids.index(hit.id)) for hit in hits]
        assert [hit["total_score"] for hit in found] == [hit["total_score"] for hit in expected]
        by_item = {hit["item"]: hit for hit in expected}
        for hit, mine, theirs in zip(hits, found, expected, strict=True):
            if scores[hit.total_score] == 1:
                assert mine == theirs
            elif mine["item"] in by_item:
                assert mine == by_item[mine["item"]]
        assert list(hits) == list(ranking)[: case["top_k"]]


@pytest.mark.parametrize("case", cases("stores"))
def test_stores(case):
    mem = memcore.open(embedder=None, working_capacity=case["working_capacity"])
    for step, op in enumerate(case["ops"]):
        mem.remember(op["content"], kind=op["kind"], key=op["key"], now=1.7e9 + step)
    held = {
        kind: [[record.key, record.content] for record in mem.list(kinds=kind, now=1.8e9)] for kind in case["expected"]
    }
    assert held == case["expected"]

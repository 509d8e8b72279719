"""Hybrid recall over int8 codes finds what it would find over the vectors, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import memcore
from memcore.store.codes import Coder

NOW = 1.8e9
_SAID = (
    "gateway timeout deploy failed billing database invoice printer paper lunch holiday server memory disk queue retry",
    "alert customer refund token login page cache shard replica backup latency budget meeting release",
)
WORDS = [word for line in _SAID for word in line.split()]


@pytest.fixture(scope="module", params=["in RAM", "in a directory"])
def filled(request, tmp_path_factory):
    """6,000 turns of 60 sessions, many of which are the same, in three blocks of codes and some rows without."""
    rng = np.random.default_rng(0)
    path = None if request.param == "in RAM" else tmp_path_factory.mktemp("store") / "m"
    with memcore.open(path, embedder="hashed", clock=lambda: NOW) as mem:
        for session in range(60):
            rows = [
                {
                    "content": " ".join(rng.choice(WORDS, 6)) if i % 5 else "the queue is full",
                    "event_time": NOW - float(rng.integers(0, 90 * 86_400)), "importance": float(rng.random()),
                }
                for i in range(100)
            ]  # fmt: skip
            mem.scope("default", "default", f"s{session}").remember_many(rows)
        if path is not None:
            mem.compact()
        mem.forget(where={"session_id": "s7"})
        yield mem


def told(mem: memcore.Memory, query: str, **more: Any) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
    hits = mem.recall(query, **more)
    return [(h.id, h.total_score, h.likeness, h.lexical, h.activation) for h in hits], hits.explain()


@pytest.mark.parametrize(
    "more",
    [
        {}, {"weights": (1, 0, 0), "k": 50}, {"weights": (0.2, 0.7, 0.1)}, {"k": 1}, {"where": {"session_id": "s3"}},
        {"min_similarity": 0.3}, {"min_score": 0.4, "k": 100}, {"weights": (0, 0.5, 0.5)}, {"k": 6000},
        {"as_of": NOW + 1}, {"kinds": ["semantic"]}, {"budget_tokens": 200},
    ],
)  # fmt: skip
def test_the_same_as_from_the_vectors(filled, monkeypatch, more):
    queries = ["gateway timeout", "the queue is full", "refund for a customer last week", "nothing of that", "a"]
    coded = [told(filled, query, **more) for query in queries]
    monkeypatch.setattr(Coder, "codes", lambda self, segment, n: None)
    plain = [told(filled, query, **more) for query in queries]
    for (hits, how), (same, plainly) in zip(coded, plain, strict=True):
        assert hits == same
        assert how["passed_filter"] == plainly["passed_filter"]
        assert (how["plan"], plainly["plan"]) == ("hybrid, int8 codes", "hybrid, all rows")

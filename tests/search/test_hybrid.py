"""The hybrid relevance: its parts, what neighbours add, and that it depends on nothing but what the call may see."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import memcore
import naive
from memcore.search import relevance
from memcore.store import words
from memcore_kernels import activation

NOW = 1.8e9
TEXTS = (
    "the deploy of the gateway failed", "rolled it back at once", "who was on call", "Ana was", "lunch is at noon",
    "o servidor caiu de novo", "reiniciado por Rui", "the printer is out of paper", "ordered some", "done for today",
)  # fmt: skip


@pytest.fixture(params=["in RAM", "in a directory"])
def mem(request, tmp_path):
    path = None if request.param == "in RAM" else tmp_path / "m"
    with memcore.open(path, embedder="hashed", clock=lambda: NOW) as opened:
        yield opened


def hybrid(scope: Any, query: str, **more: Any) -> memcore.Recall:
    return scope.recall(query, relevance="hybrid", **{"weights": (1, 0, 0), "k": 50, **more})


def filled(mem: memcore.Memory) -> memcore.Memory:
    """Two sessions, row by row in turns, a fact, and a note that is in none."""
    for i, text in enumerate(TEXTS):
        mem.scope("default", "default", f"s{i % 2}").remember(text)
    mem.remember("the gateway is owned by Ana", kind="semantic")
    mem.remember("a note about the gateway")
    return mem


def lexical_of(texts: list[str], query: str) -> list[float]:
    read = [words.terms(text) for text in texts]
    dated = [[*terms, *words.of_date(int(NOW * 1e6))] for terms, _ in read]
    groups = words.asked(query, sorted({code for _, code in read}))
    return naive.bm25(dated, groups, [len(terms) for terms, _ in read])


def likeness_of(mem: memcore.Memory, texts: list[str], query: str) -> list[float]:
    rows = {record.content: record.vector for record in mem.list(limit=100)}
    (asked,) = memcore.embed.resolve("hashed").embed([query], "query")
    return naive.likeness(np.array([rows[text] for text in texts]), naive.unit(asked))


@pytest.mark.parametrize(
    ("query", "near"),
    [("why did the gateway fail", 0.0), ("did the gateway fail yesterday", 2 ** (-8 / 24)), ("today", 1.0), ("", 0.0)],
)
def test_it_is_what_the_formula_says(mem, query, near):
    """All that is written happened at eight today: eight hours behind yesterday, which is 24 long."""
    filled(mem)
    hits = {hit.content: hit for hit in hybrid(mem, query)}
    texts = [*TEXTS, "the gateway is owned by Ana", "a note about the gateway"]
    assert len(hits) == len(texts)
    likeness, lexical = likeness_of(mem, texts, query), lexical_of(texts, query)
    base = [(alike + 3 * match + 0.25 * near) / 4.25 for alike, match in zip(likeness, lexical, strict=True)]
    gained = naive.activation(base, [i % 2 if i < len(TEXTS) else None for i in range(len(texts))])
    for text, alike, match, mine, more in zip(texts, likeness, lexical, base, gained, strict=True):
        hit = hits[text]
        assert hit.likeness == pytest.approx(alike, abs=1e-5)
        assert hit.lexical == pytest.approx(match, abs=1e-9)
        assert hit.temporal == pytest.approx(near, abs=1e-9)
        assert hit.activation == pytest.approx(more / activation.MOST, abs=1e-5)
        cubed = ((mine + more) / (1 + activation.MOST)) ** 3
        assert hit.relevance_component == pytest.approx(cubed / (cubed + relevance.HALF**3), abs=1e-4)
        assert hit.total_score == hit.relevance_component
        assert hit.cosine == hit.semantic_similarity


def test_the_centre_is_that_of_what_stands(mem):
    """Whatever was written, forgotten and asked for in between: the sum is taken in as rows come."""
    filled(mem)
    texts, query = [*TEXTS, "the gateway is owned by Ana", "a note about the gateway"], "the gateway is down"

    def likeness() -> dict[str, float]:
        return {hit.content: hit.likeness for hit in hybrid(mem, query)}

    def check() -> None:
        expected = likeness_of(mem, texts, query)
        assert likeness() == pytest.approx(dict(zip(texts, expected, strict=True)), abs=1e-5)

    check()
    whole = likeness()
    for i in range(12):
        texts.append(f"the gateway is up again, {i}")
        mem.remember(texts[-1])
    check()
    assert likeness()[TEXTS[0]] != whole[TEXTS[0]]
    mem.forget(where={"kind": "semantic"})  # one of many: it is taken off
    texts.remove("the gateway is owned by Ana")
    check()
    mem.compact()
    check()
    for text in texts[:-3]:  # most: what stands is added anew
        mem.forget(hybrid(mem, text, k=1, where={"content": text})[0].id)
    texts = texts[-3:]
    check()


def test_after_reembed_the_centre_is_that_of_the_new_vectors(mem):
    filled(mem)
    query = "the gateway is down"
    before = {hit.content: hit.likeness for hit in hybrid(mem, query)}
    for dim in (256, 40):  # as wide as those before, and not
        made = np.random.default_rng(dim)
        table = {text: made.standard_normal(dim) for text in [query, *before]}
        embed = functools.partial(lambda table, texts: [table[text] for text in texts], table)
        mem.reembed(memcore.embed.CallableEmbedder(embed, name=f"drawn/{dim}", dim=dim))
        found = {hit.content: hit.likeness for hit in hybrid(mem, query)}
        vectors = np.array([naive.unit(table[text]) for text in before])
        expected = naive.likeness(vectors, naive.unit(table[query]))
        assert found == pytest.approx(dict(zip(before, expected, strict=True)), abs=1e-5)
        assert found != before


def test_a_row_without_words_is_like_nothing_and_counts_as_one(mem):
    texts = ["the gateway is down", "lunch is at noon", "!?", "...", "--"]
    mem.remember_many(texts)
    hits = {hit.content: hit.likeness for hit in hybrid(mem, "gateway")}
    rows = {record.content: record.vector for record in mem.list()}
    assert not any(np.any(rows[text]) for text in texts[2:])
    vectors = np.array([np.zeros(256) if rows[text] is None else rows[text] for text in texts], np.float32)
    (asked,) = memcore.embed.resolve("hashed").embed(["gateway"], "query")
    expected = naive.likeness(vectors, naive.unit(asked))
    assert expected[0] > 0.3
    assert hits == pytest.approx(dict(zip(texts, expected, strict=True)), abs=1e-5)


def test_the_answer_beside_the_turn_that_matches_comes_forward(mem):
    filled(mem)
    assert hybrid(mem.scope("default", "default", "s1"), "servidor caiu", k=2)[0].content == TEXTS[5]
    near, far = (next(hit for hit in hybrid(mem, "servidor") if hit.content == TEXTS[i]) for i in (7, 0))
    assert near.lexical == far.lexical == 0
    assert near.activation > far.activation  # in the same session, one turn away; in another session


def test_k_filters_and_other_scopes_change_nothing(mem):
    filled(mem)
    every = {hit.id: hit.relevance_component for hit in hybrid(mem, "gateway")}
    assert {hit.id: hit.relevance_component for hit in hybrid(mem, "gateway", k=2)}.items() <= every.items()
    facts = hybrid(mem, "gateway", where={"kind": "semantic"})
    assert {hit.id: hit.relevance_component for hit in facts}.items() <= every.items()
    assert len(facts) == 1
    mem.scope("other", "p").remember_many(["gateway"] * 3)
    assert {hit.id: hit.relevance_component for hit in hybrid(mem, "gateway")} == every


def test_minima_many_and_no_vector(mem):
    filled(mem)
    least = sorted(hit.cosine for hit in hybrid(mem, "the gateway"))[-3]
    found = hybrid(mem, "the gateway", min_similarity=least - 1e-6)
    assert len(found) == 3
    (one, two) = mem.recall_many(["the gateway", "servidor"], relevance="hybrid", weights=(1, 0, 0), k=50)
    assert [one.ids, two.ids] == [hybrid(mem, "the gateway").ids, hybrid(mem, "servidor").ids]
    assert hybrid(mem, "").ids  # like nothing: the rest ranks
    with memcore.open(embedder=None) as bare:
        assert list(hybrid(bare, "gateway")) == []
        bare.remember("gateway")
        (hit,) = hybrid(bare, "gateway")
        assert (hit.cosine, hit.lexical > 0) == (0.0, True)


def test_the_same_hits_after_sealing_and_reopening(tmp_path):
    with memcore.open(tmp_path, embedder="hashed", clock=lambda: NOW) as mem:
        before = [(hit.id, hit.total_score) for hit in hybrid(filled(mem), "gateway")]
        mem.compact()
        assert [(hit.id, hit.total_score) for hit in hybrid(mem, "gateway")] == before
    with memcore.open(tmp_path, embedder="hashed", clock=lambda: NOW) as mem:
        assert [(hit.id, hit.total_score) for hit in hybrid(mem, "gateway")] == before
        table = hybrid(mem, "gateway").to_arrow()
        assert {"relevance_component", "likeness", "lexical", "temporal", "activation"} <= set(table.column_names)
        assert np.all(np.diff(table.column("total_score").to_numpy()) <= 0)


def test_rows_without_vectors_are_found_by_their_words_alone(tmp_path):
    with memcore.open(tmp_path, embedder=None, clock=lambda: NOW) as bare:
        bare.remember_many(["gateway timeout", "lunch"])
    with memcore.open(tmp_path, embedder="hashed", clock=lambda: NOW) as mem:
        hits = hybrid(mem, "gateway")
        assert (hits[0].content, hits[0].likeness, hits[0].lexical > 0) == ("gateway timeout", 0.0, True)
        assert list(hybrid(mem, "gateway", min_similarity=0.1)) == []

"""Recall by words: which words match, that scores are BM25's, and that nothing but what stands in the scope counts."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import memcore
import naive
from drawn import thorough
from memcore.cli import RELEVANCES, main
from memcore.memory import RELEVANCES as IN_MEMORY
from memcore.store import postings, segment, words

NOW = 1.8e9
WORDS = (
    *("deploy", "failed", "gateway", "timeout", "billing", "database", "the", "of", "x", "504", "2026"),
    *("pagamento", "falhou", "servidor", "servidores", "informações", "conexão", "ação", "ações", "não", "el"),
    *("srv-prod-db01", "/v1/billing", "getUserName", "日本語", "歯医者の予約", "예약이", "café", "naïve", "Zürich"),
)
NOUNS = (
    *("weather", "holidays", "printers", "lunch", "parking", "keys", "desks", "plants", "lamps", "chairs", "doors"),
    *("paint", "carpets", "pens", "mugs", "tea", "coats", "bags", "shoes", "maps"),
)
LATIN = [f"note {i} of the week about {noun}" for i, noun in enumerate(NOUNS)]


@pytest.fixture(params=["in RAM", "in a directory"])
def mem(request, tmp_path):
    with memcore.open(None if request.param == "in RAM" else tmp_path / "m", embedder=None, clock=lambda: NOW) as mem:
        yield mem


def by_words(scope: Any, query: str, k: int = 50, **more: Any) -> list[tuple[str, float]]:
    hits = scope.recall(query, relevance="lexical", weights=(1, 0, 0), k=k, **more)
    assert all(hit.total_score == hit.relevance_component for hit in hits)
    return [(hit.content, hit.relevance_component) for hit in hits]


def first(scope: Any, query: str) -> str:
    """The row that matches best; it matches."""
    content, score = by_words(scope, query, k=1)[0]
    assert 0 < score <= 1
    return content


def expected(texts: list[str], query: str) -> dict[str, float]:
    read = [words.terms(text) for text in texts]
    groups = words.asked(query, sorted({code for _, code in read}))
    dated = [[*terms, *words.of_date(int(NOW * 1e6))] for terms, _ in read]
    scores = naive.bm25(dated, groups, [len(terms) for terms, _ in read])
    return dict(zip(texts, scores, strict=True))


TEXTS = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map(" ".join), max_size=40, unique=True)


@thorough(150)
@given(texts=TEXTS, query=st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join), cuts=st.lists(st.integers(1, 39)))
def test_scores_are_those_of_bm25(texts, query, cuts):
    with memcore.open(embedder=None, clock=lambda: NOW) as mem:
        ends = sorted({min(cut, len(texts)) for cut in cuts} | {len(texts)})
        for begin, end in zip([0, *ends], ends, strict=False):
            mem.remember_many(texts[begin:end])
            by_words(mem, query)  # takes in what has come since, chunk by chunk
        found = dict(by_words(mem, query))
        for text, score in expected(texts, query).items():
            assert found[text] == pytest.approx(score, abs=1e-12)
            assert 0 <= score <= 1


def test_scores_do_not_depend_on_how_rows_lie(tmp_path, monkeypatch):
    texts = [f"{WORDS[i % 7]} {WORDS[i % 11]} {WORDS[i % 13]} {i}" for i in range(300)]
    with memcore.open(embedder=None, clock=lambda: NOW) as mem:
        mem.remember_many(texts)
        whole = {query: sorted(by_words(mem, query, 300)) for query in WORDS[:13]}
    monkeypatch.setattr(segment, "ROWS", 70)
    with memcore.open(tmp_path, embedder=None, clock=lambda: NOW) as mem:
        for text in texts[::-1]:
            mem.remember(text)
        assert {query: sorted(by_words(mem, query, 300)) for query in whole} == whole
        mem.compact()
        assert {query: sorted(by_words(mem, query, 300)) for query in whole} == whole
    with memcore.open(tmp_path, embedder=None, clock=lambda: NOW) as mem:
        assert {query: sorted(by_words(mem, query, 300)) for query in whole} == whole


def test_chunks_stay_few():
    with memcore.open(embedder=None) as mem:
        for i in range(200):
            mem.remember(f"row {i}")
            by_words(mem, "row")
        (partition,) = mem._engine.catalog.partitions.values()
        (only,) = partition.shown.segments
        chunks = only.worded
        assert sum(chunk.n for chunk in chunks) == 200
        assert len(chunks) <= 9
        assert only.nbytes() > sum(chunk.nbytes() for chunk in chunks)
        assert isinstance(chunks[0], postings.Chunk)


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("HTTP 504 on /v1/billing at srv-prod-db01", "srv-prod-db01"),
        ("HTTP 504 on /v1/billing at srv-prod-db01", "db01"),
        ("HTTP 504 on /v1/billing at srv-prod-db01", "v1/billing"),
        ("HTTP 504 on /v1/billing at srv-prod-db01", "BILLINGS"),
        ("getUserName has failed", "user name failing"),
        ("as informações foram enviadas ontem", "informação"),
        ("as informações foram enviadas ontem", "informacoes"),
        ("os servidores não respondem", "servidor"),
        ("los servidores no responden", "servidor"),
        ("she was running to the station", "runs"),
        ("João pediu um café", "joao cafe"),
        ("mail to a.b@c.org", "a.b@c.org"),
        ("the straße is closed", "STRASSE"),
    ],
)
def test_what_is_found_by_its_words(mem, text, query):
    mem.remember_many([*LATIN, text])
    assert first(mem, query) == text


def test_an_identifier_whole_is_more_than_its_parts(mem):
    mem.remember_many([*LATIN, "srv-prod-db02 and srv and prod and db", "srv-prod-db01 is down"])
    assert first(mem, "srv-prod-db01") == "srv-prod-db01 is down"


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("明日は歯医者の予約がある", "歯医者"),
        ("내일 치과 예약이 있다", "치과"),
        ("v2-リリース", "リリース"),
        ("พรุ่งนี้มีนัด", "นัด"),
    ],
)
def test_case_G3_scripts_without_spaces_are_found(mem, text, query):
    mem.remember_many([*LATIN, text])
    assert first(mem, query) == text


@pytest.mark.parametrize(
    "query", ["caf\u00e9", "cafe\u0301", "cafe", "Zu\u0308rich", "Z\u00fcrich", "abc", "\uff21\uff22\uff23"]
)
def test_case_G9_forms_of_one_word_match_and_texts_stay_as_they_were(mem, query):
    text = "cafe\u0301 Z\u00fcrich \uff21\uff22\uff23"
    mem.remember_many([*LATIN, text])
    assert first(mem, query) == text


def test_case_G9_scopes_in_two_forms_are_two_scopes(mem):
    for form in ("NFC", "NFD"):
        mem.scope(unicodedata.normalize(form, "caf\u00e9"), "p").remember(f"secret of {form}")
    assert by_words(mem.scope("caf\u00e9", "p"), "secret")[0][0] == "secret of NFC"
    assert len(by_words(mem.scope("caf\u00e9", "p"), "secret")) == 1


def test_only_the_scope_itself_is_counted(mem):
    for scope in (mem.scope("a", "p"), mem.scope("b", "p")):
        scope.remember_many(["gateway timeout", "deploy failed"])
    before = by_words(mem.scope("a", "p"), "gateway")
    mem.scope("b", "p").remember_many([f"gateway {i}" for i in range(50)])
    assert by_words(mem.scope("a", "p"), "gateway") == before


def test_what_is_forgotten_replaced_or_filtered(mem):
    texts = ["gateway timeout", "gateway restarted", "deploy failed", "the billing report"]
    ids = mem.remember_many([{"content": text, "metadata": {"n": i}} for i, text in enumerate(texts)]).ids
    every = dict(by_words(mem, "gateway"))
    assert dict(by_words(mem, "gateway", where={"metadata.n": 1})) == {texts[1]: every[texts[1]]}  # of the whole scope
    mem.forget(ids[0])
    assert dict(by_words(mem, "gateway")) == pytest.approx(expected(texts[1:], "gateway"), abs=1e-12)
    mem.update(ids[1], content="the proxy restarted")
    rest = ["the proxy restarted", *texts[2:]]
    assert dict(by_words(mem, "gateway")) == dict.fromkeys(rest, 0.0)


def test_as_of_a_moment_counts_what_stood_then(mem):
    one = mem.remember("gateway timeout", now=100)
    mem.remember("deploy failed", now=100)
    before = by_words(mem, "gateway", as_of=150)
    mem.update(one, content="all is well", now=200)
    mem.remember_many(["gateway a", "gateway b"], now=300)
    assert by_words(mem, "gateway", as_of=150) == before


def test_the_score_is_as_always_with_words_in_place_of_vectors(mem):
    for i, text in enumerate(LATIN):
        mem.remember(text, importance=i / 40, event_time=NOW - i * 3600)
    hits = mem.recall("tea note", relevance="lexical", k=30, weights=(0.5, 0.3, 0.2))
    assert hits.explain()["plan"] == "lexical index"
    relevance = expected(LATIN, "tea note")
    for hit in hits:
        assert hit.relevance_component == pytest.approx(relevance[hit.content], abs=1e-12)
        assert hit.semantic_similarity == 0
        total = 0.5 * hit.relevance_component + 0.3 * hit.recency_component + 0.2 * hit.importance_component
        assert hit.total_score == pytest.approx(total, abs=1e-7)
    assert [hit.id for hit in hits] == [hit.id for hit in sorted(hits, key=lambda hit: -hit.total_score)]
    least = hits[3].total_score
    bounded = mem.recall("tea note", relevance="lexical", k=30, weights=(0.5, 0.3, 0.2), min_score=least)
    assert [hit.id for hit in bounded] == [hit.id for hit in hits[:4]]
    assert mem.recall("deploy", k=0, relevance="lexical").ids == []


def test_many_queries_and_scopes(mem):
    a, b = mem.scope("a", "p"), mem.scope("b", "p")
    a.remember("gateway timeout")
    b.remember("deploy failed")
    asked = ["gateway", "deploy", "gateway"]
    many = mem.recall_many(asked, scopes=[a, b, b], relevance="lexical")
    assert [[hit.content for hit in hits] for hits in many] == [
        ["gateway timeout"],
        ["deploy failed"],
        ["deploy failed"],
    ]
    assert [hits[0].relevance_component > 0 for hits in many] == [True, True, False]
    assert [hits.ids for hits in a.recall_many(iter(asked), relevance="lexical")] == [
        a.recall(query, relevance="lexical").ids for query in asked
    ]


@pytest.mark.parametrize("query", ["", "   ", "!?", "zzz", "the"])
def test_a_query_that_matches_nothing_ranks_by_the_rest(mem, query):
    mem.remember("old", event_time=NOW - 9e6)
    mem.remember("new")
    hits = mem.recall(query, relevance="lexical")
    assert [(hit.content, hit.relevance_component) for hit in hits] == [("new", 0.0), ("old", 0.0)]


def test_in_an_empty_scope_nothing_is_found(mem):
    assert by_words(mem, "gateway") == []


def test_with_an_embedder_no_text_is_embedded_for_it():
    asked: list[Any] = []

    def embedder(texts: list[str]) -> Any:
        asked.extend(texts)
        return np.ones((len(texts), 4))

    with memcore.open(embedder=embedder) as mem:
        mem.remember("gateway timeout")
        assert first(mem, "gateway") == "gateway timeout"
        assert "gateway" not in asked
        (hit,) = mem.recall("gateway", relevance="cosine")
        assert hit.relevance_component == hit.semantic_similarity != 0
        ((again,),) = mem.recall_many(["gateway"], relevance="cosine")
        assert again.relevance_component == hit.relevance_component


def test_what_goes_by_words_is_told_words(mem):
    for call, message in (
        (lambda: mem.recall(relevance="lexical"), "by the words of a text; pass a query, and no vector"),
        (lambda: mem.recall("x", vector=[1, 0], relevance="lexical"), "recall got both a query and a vector"),
        (lambda: mem.recall(vector=[1, 0], relevance="lexical"), "by the words of a text; pass a query, and no vector"),
        (
            lambda: mem.recall_many(vectors=[[1, 0]], relevance="lexical"),
            "by the words of a text; pass a query, and no vector",
        ),
        (lambda: mem.recall("x", relevance="lexical", min_similarity=0.1), "min_similarity bounds the cosine, which"),
        (lambda: mem.recall("x", relevance="words"), "relevance is 'words' (str); "),
    ):
        with pytest.raises(memcore.InvalidInput) as raised:
            call()
        assert message in str(raised.value)


def test_on_the_command_line(tmp_path):
    assert RELEVANCES == IN_MEMORY

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(main, ["--store", str(tmp_path / "m"), "--embedder", "hashed", *arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    run("remember", "o servidor caiu")
    run("remember", "all is well")
    told = json.loads(run("recall", "servidores", "--relevance", "lexical", "--json"))
    assert told[0]["content"] == "o servidor caiu"
    lines = run("recall", "servidores", "--relevance", "lexical")
    assert f"     relevance {told[0]['relevance_component']:.3f}, recency" in lines
    lines = run("recall", "servidores", "--relevance", "cosine")
    assert "     similarity " in lines
    assert "     relevance " not in lines

"""Questions that name a time, asked of a memory: what happened then comes first, and nothing is left out for it."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import memcore

NOW = datetime(2026, 12, 1, 12, tzinfo=UTC)  # a Tuesday
ANSWERS = {
    # The day on which the answer happened, and questions that name it.
    "2023-05-08": (
        "what did we do on 8 May 2023", "What did we do on May 8th, 2023?", "what did we do on 2023-05-08",
        "o que fizemos em 8 de maio de 2023", "o que fizemos em 8/5/2023", "qué hicimos el 8 de mayo de 2023",
    ),
    "2026-05-20": ("what happened in May", "o que aconteceu em maio", "qué pasó en mayo"),
    "2026-03-15": ("o que aconteceu em 15 de março", "what happened on March 15", "qué pasó el 15 de marzo"),
    "2022-07-02": ("what happened in 2022", "o que aconteceu em 2022", "qué pasó en 2022"),
}  # fmt: skip
RELATIVE = {
    "2026-11-30": ("what did we do yesterday", "o que fizemos ontem", "qué hicimos ayer"),
    "2026-11-25": ("what happened last week", "o que aconteceu na semana passada", "qué pasó la semana pasada"),
    "2026-11-28": ("what did we do 3 days ago", "o que fizemos há 3 dias", "qué hicimos hace tres días"),
    "2026-11-18": ("what happened two weeks ago", "o que aconteceu há duas semanas", "qué pasó hace dos semanas"),
}
OTHERS = ("2021-01-12", "2023-09-19", "2024-10-06", "2025-02-14", "2026-08-10", "2026-10-07")
TEXT = "the team met and the plan was changed"  # has no word of a question but small ones


def noon(day: str) -> datetime:
    return datetime.fromisoformat(day).replace(hour=12, tzinfo=UTC)


@pytest.fixture(params=[None, "static"], ids=["no embedder", "static"])
def mem(request):
    with memcore.open(embedder=request.param, clock=lambda: NOW) as opened:
        yield opened


def days(scope: Any, query: str, relevance: str, **more: Any) -> list[str]:
    hits = scope.recall(query, relevance=relevance, **{"weights": (1, 0, 0), "k": 50, **more})
    return [hit.event_time.date().isoformat() for hit in hits]


def filled(mem: memcore.Memory, answer: str, text: str = TEXT) -> list[str]:
    """Rows of one text and many times, the answer's among them. Newer ones win ties, so it must win by its date."""
    told = [*OTHERS[:3], answer, *OTHERS[3:]]
    for day in told:
        mem.remember(text, event_time=noon(day))
    return told


@pytest.mark.parametrize("relevance", ["lexical", "hybrid"])
@pytest.mark.parametrize(("day", "query"), [(day, query) for day, several in ANSWERS.items() for query in several])
def test_a_named_date_comes_first(mem, day, query, relevance):
    told = filled(mem, day)
    found = days(mem, query, relevance)
    assert found[0] == day
    assert sorted(found) == sorted(told)  # none is left out
    decomposed = unicodedata.normalize("NFD", query)
    assert days(mem, decomposed, relevance) == found
    assert days(mem, query.upper(), relevance)[0] == day


@pytest.mark.parametrize(("day", "query"), [(day, query) for day, several in RELATIVE.items() for query in several])
def test_a_span_told_from_now_comes_first(mem, day, query):
    told = filled(mem, day)
    found = days(mem, query, "hybrid")
    assert found[0] == day
    assert sorted(found) == sorted(told)
    assert days(mem, unicodedata.normalize("NFD", query), "hybrid") == found


def test_now_is_that_of_the_question(mem):
    filled(mem, "2025-02-13")
    assert days(mem, "what did we do yesterday", "hybrid", now=noon("2025-02-14"))[0] == "2025-02-13"
    assert days(mem, "what did we do yesterday", "hybrid", now=noon("2025-02-15"))[0] == "2025-02-14"
    told = mem.recall_many(["what did we do yesterday"], k=1, now=noon("2025-02-14"), weights=(1, 0, 0))
    assert [hit.event_time for hit in told[0]] == [noon("2025-02-13")]


def test_how_near_is_told(mem):
    day = noon("2026-11-23")  # Monday of the last week
    for away in (-14, -7, 0, 3, 7):
        mem.remember(TEXT, event_time=day + timedelta(days=away))
    hits = mem.recall("na semana passada", weights=(1, 0, 0), k=50)
    near = {(hit.event_time - day).days: hit.temporal for hit in hits}
    assert near[0] == near[3] == 1
    assert near[-7] == pytest.approx(2 ** -(6.5 / 7), rel=1e-9)  # half a day less than a week before Monday 0:00
    assert near[-14] == pytest.approx(2 ** -(13.5 / 7), rel=1e-9)
    assert near[7] == pytest.approx(2 ** -(0.5 / 7), rel=1e-9)
    assert [hit.temporal for hit in hits] == sorted(near.values(), reverse=True)
    assert [hit.relevance_component for hit in hits] == sorted((h.relevance_component for h in hits), reverse=True)
    for relevance in ("lexical", *(["cosine"] if mem.stats()["embedder"] else [])):
        assert {hit.temporal for hit in mem.recall("na semana passada", relevance=relevance)} == {0.0}
    assert {hit.temporal for hit in mem.recall("who changed the plan")} == {0.0}


def test_words_count_more_than_the_time(mem):
    """A span raises what is of it, and is no filter: what answers by its words stands first from any time."""
    mem.remember("the gateway was replaced", event_time=noon("2024-01-10"))
    for day in ("2026-11-24", "2026-11-25", "2026-11-26"):
        mem.remember("lunch is at noon", event_time=noon(day))
    hits = mem.recall("was the gateway replaced last week?", weights=(1, 0, 0), k=50)
    assert len(hits) == 4
    assert hits[0].content == "the gateway was replaced"
    assert (hits[0].temporal, [hit.temporal for hit in hits[1:]]) == (pytest.approx(0, abs=1e-9), [1, 1, 1])


def test_time_decides_between_rows_whose_words_match_alike(mem):
    for day in ("2026-11-10", "2026-11-26", "2026-12-01"):
        mem.remember("the gateway failed", event_time=noon(day))
    mem.remember("lunch is at noon", event_time=noon("2026-11-26"))
    for i in range(20):  # else "gateway" is so common that it says nothing
        mem.remember(f"note {i}", event_time=noon("2024-01-10"))
    found = mem.recall("why did the gateway fail last week", weights=(1, 0, 0), k=50)
    assert (found[0].content, found[0].event_time) == ("the gateway failed", noon("2026-11-26"))
    assert [hit.content for hit in found[1:4]] == ["the gateway failed", "the gateway failed", "lunch is at noon"]


def test_a_weekday_in_words_finds_all_of_it_and_the_span_the_last(mem):
    for day in ("2026-11-19", "2026-11-20", "2026-11-26", "2026-11-27"):  # Thursday, Friday, twice
        mem.remember(TEXT, event_time=noon(day))
    fridays = {"2026-11-20", "2026-11-27"}
    for query in ("what did we do last Friday", "o que fizemos na sexta-feira passada", "¿qué hicimos el viernes?"):
        assert set(days(mem, query, "lexical")[:2]) == fridays
        assert days(mem, query, "hybrid")[0] == "2026-11-27"


def test_the_day_is_found_whatever_language_the_text_is_in(mem):
    mem.remember("fomos ao mercado", event_time=noon("2023-05-08"))
    mem.remember("we went to the market", event_time=noon("2023-05-09"))
    mem.remember("市場に行った", event_time=noon("2023-05-10"))
    for number, day in enumerate(("2023-05-08", "2023-05-09", "2023-05-10"), 8):
        for query in (f"{number} May 2023", f"{number} de maio de 2023", f"{number} de mayo de 2023"):
            assert days(mem, query, "lexical")[0] == day


def test_before_1970_and_at_the_ends_of_the_calendar(mem):
    for day in ("0001-01-01", "1969-07-20", "1970-01-01", "9999-12-31"):
        mem.remember(TEXT, event_time=noon(day))
    assert days(mem, "what happened on 20 July 1969", "lexical")[0] == "1969-07-20"
    assert days(mem, "what happened on 20 July 1969", "hybrid")[0] == "1969-07-20"
    assert days(mem, "what happened on 0001-01-01", "hybrid")[0] == "0001-01-01"
    assert days(mem, "what happened on 9999-12-31", "hybrid")[0] == "9999-12-31"
    for now in (noon("0001-01-01"), noon("9999-12-31")):
        for query in ("last week", "next year", "9999 years ago", "in December", "the last 100 months", "tomorrow"):
            assert len(days(mem, query, "hybrid", now=now)) == 4


def test_a_question_of_small_words_alone(mem):
    mem.remember("who is it", event_time=noon("2026-11-01"))
    mem.remember("lunch at noon", event_time=noon("2026-11-02"))
    hits = mem.recall("who is it?", relevance="lexical", weights=(1, 0, 0))
    assert hits[0].content == "who is it"
    assert 0 < hits[0].lexical <= 1
    assert hits[1].lexical == 0
    hybrid = mem.recall("who is it?", weights=(1, 0, 0))
    assert hybrid[0].content == "who is it"
    assert {hit.temporal for hit in hybrid} == {0.0}


def test_a_small_word_does_not_outweigh_one_that_says_something(mem):
    """However rare: "does" is here in one row alone, as "gateway" is."""
    mem.remember("gateway notes", event_time=noon("2026-11-01"))
    mem.remember("she does so", event_time=noon("2026-11-02"))
    for i in range(5):
        mem.remember(f"lunch {i}", event_time=noon("2026-11-03"))
    hits = mem.recall("does the gateway", relevance="lexical", weights=(1, 0, 0), k=2)
    assert [hit.content for hit in hits] == ["gateway notes", "she does so"]
    assert hits[0].lexical > 3 * hits[1].lexical > 0


@pytest.mark.parametrize(
    "query", ["31 June", "May 0", "13/13/2023", "０/０/２０２３", "²⁹ February", "\x01 May 8 \ufffd"]
)
def test_odd_dates_are_asked_like_any_words(mem, query):
    told = filled(mem, "2026-06-05")
    for relevance in ("lexical", "hybrid"):
        assert sorted(days(mem, query, relevance)) == sorted(told)

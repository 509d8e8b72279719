"""Which spans does a question name, in three languages, at a fixed moment; and how near to them is an event?"""

from __future__ import annotations

import datetime
import unicodedata

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drawn import thorough
from memcore.search import times
from memcore.search.times import Span

HOUR = 3_600_000_000
LEAST, MOST = -(2**63), 2**63 - 1  # of int64


def at(text: str) -> int:
    """ISO 8601 without a zone as us UTC."""
    moment = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
    return (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)


NOW = at("2026-12-01T12:00")  # a Tuesday


def told(query: str, now: int = NOW) -> list[tuple[str, str]]:
    """The spans as texts; of midnight only the date."""
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    moments = [[epoch + datetime.timedelta(microseconds=end) for end in span] for span in times.spans(query, now)]
    start, end = ([f"{m[i]:%Y-%m-%dT%H:%M:%S.%f}" for m in moments] for i in (0, 1))
    return [(_short(a), _short(b)) for a, b in zip(start, end, strict=True)]


def _short(text: str) -> str:
    return text.removesuffix(".000000").removesuffix("T00:00:00")


JUST_AFTER_NOW = "2026-12-01T12:00:00.000001"
ONE_DAY = {
    "2023-05-08": (
        "what did we do on 8 May 2023", "May 8, 2023", "May 8th, 2023", "8th of May 2023", "the 8th of May, 2023",
        "MAY 8 2023", "8 may 2023", "8 May, 2023 at 3", "o que fizemos a 8 de maio de 2023",
        "qué hicimos el 8 de mayo del 2023", "2023-05-08", "2023-5-8", "on 2023/05/08 (Mon) 23:40",
        "at 2023-05-08T10:00:00Z", "2023-05-08 10:00", "what happened on 5/8/2023", "o que aconteceu em 8/5/2023",
        "qué pasó el 8/5/2023", "8.5.2023 foi quando?", "o que houve em 08-05-2023", "８ Ｍａｙ ２０２３", "٨ May 2023",
    ),
    "2023-08-05": ("what happened on 8/5/2023", "o que aconteceu em 5/8/2023", "qué pasó el 5/8/2023"),
    # There is one way only to read these.
    "2023-05-13": ("what happened on 13/5/2023", "what happened on 5/13/2023", "o que aconteceu em 13/5/2023",
                   "o que aconteceu em 5/13/2023"),
    # Without a year: the last one that has begun.
    "2026-05-08": ("the 8th of May", "on May 8", "8 de maio", "el 8 de mayo"),
    "2026-05-01": ("1º de maio", "1o de maio", "1.º de maio", "1st of May"),
    "2026-03-15": ("15 de março", "15 de marzo", "15 March", "mar 15"),
    "2026-12-01": ("on 1 December", "today", "hoje", "hoy", "on Tuesday", "terça-feira", "tonight", "0 days ago"),
    "2025-12-02": ("on 2 December", "2 de dezembro", "2 dic"),
    "2024-02-29": ("29 February 2024",),
    "2026-11-30": ("yesterday", "what did I say yesterday?", "yesterday's lunch", "ontem", "¿qué dije ayer?",
                   "on Monday", "na segunda", "segunda-feira", "segunda passada", "last Monday", "el lunes pasado",
                   "a day ago", "há um dia", "the last day"),
    "2026-11-29": ("the day before yesterday", "anteontem", "antes de ontem", "anteayer", "antes de ayer",
                   "2 days ago", "no domingo", "a couple of days ago", "há um par de dias"),
    "2026-11-28": ("há 3 dias", "ha 3 dias", "3 dias atrás", "há três dias atrás", "faz três dias", "hace tres días",
                   "hace 3 dias", "three days ago", "no sábado", "el sábado pasado"),
    "2026-11-27": ("last Friday", "on Friday", "friday", "Friday's outage", "sexta-feira passada", "na sexta-feira",
                   "na sexta", "sexta passada", "última sexta", "el viernes pasado"),
    "2026-11-25": ("quarta-feira", "na quarta", "quarta feira", "miércoles"),
    "2026-11-24": ("last Tuesday", "terça-feira passada", "el martes pasado"),
    "2026-12-02": ("tomorrow", "amanhã"),
    "2026-12-04": ("next Friday", "próxima sexta", "el próximo viernes"),
    "2026-12-07": ("próxima segunda", "next Monday"),
}  # fmt: skip
LONGER = {
    ("2026-05-01", "2026-06-01"): ("in May", "in may", "em maio", "o que aconteceu em maio", "en mayo", "last May"),
    ("2023-05-01", "2023-06-01"): ("May 2023", "may 2023", "em maio de 2023", "mayo de 2023", "2023-05", "mai 2023"),
    ("2026-03-01", "2026-04-01"): ("in March", "em março", "en marzo", "last March"),
    ("2023-03-01", "2023-04-01"): ("the march of 2023", "March 2023"),
    ("2026-12-01", "2027-01-01"): ("in December", "this month", "este mês", "este mes"),
    ("2025-12-01", "2026-01-01"): ("last December", "dezembro passado", "in December 2025"),
    ("2027-05-01", "2027-06-01"): ("next May", "próximo maio"),
    ("2023-09-01", "2023-10-01"): ("sept 2023", "set 2023", "set de 2023"),
    # A day that the month has not is that month.
    ("2026-06-01", "2026-07-01"): ("31 June", "on June 31", "31 de junho", "el 31 de junio"),
    ("2023-06-01", "2023-07-01"): ("31 June 2023", "2023-06-31"),
    ("2023-02-01", "2023-03-01"): ("29 February 2023", "2023-02-31", "30 de fevereiro de 2023"),
    ("2022-01-01", "2023-01-01"): ("in 2022", "em 2022", "en 2022", "2022"),
    ("2026-11-23", "2026-11-30"): ("last week", "the past week", "na semana passada", "a semana passada",
                                   "o que fizemos a semana passada", "la semana pasada", "na última semana"),
    ("2026-11-30", "2026-12-07"): ("this week", "esta semana", "nesta semana", "essa semana"),
    ("2026-12-07", "2026-12-14"): ("next week", "próxima semana", "na próxima semana", "la próxima semana"),
    ("2026-11-28", "2026-11-30"): ("last weekend", "no fim de semana passado", "el fin de semana pasado",
                                   "no último fim de semana"),
    ("2026-12-05", "2026-12-07"): ("this weekend", "neste fim de semana", "este fin de semana"),
    ("2026-11-01", "2026-12-01"): ("last month", "a month ago", "no mês passado", "el mes pasado", "há um mês"),
    ("2025-01-01", "2026-01-01"): ("last year", "a year ago", "no ano passado", "el año pasado", "hace un año"),
    ("2026-01-01", "2027-01-01"): ("this year", "este ano", "este año", "in 2026"),
    ("2026-11-14", "2026-11-21"): ("two weeks ago", "a couple of weeks ago", "há duas semanas", "hace dos semanas",
                                   "faz duas semanas", "2 semanas atrás", "hace un par de semanas"),
    ("2026-11-14", JUST_AFTER_NOW): ("in the last two weeks", "nas últimas duas semanas", "nas duas semanas passadas",
                                     "en las últimas dos semanas"),
    ("2026-11-28", JUST_AFTER_NOW): ("in the last 3 days", "nos últimos 3 dias", "en los últimos tres días"),
    ("2026-11-29T11:30:00", JUST_AFTER_NOW): ("in the past 48 hours",),
    ("2026-12-01T10:30:00", "2026-12-01T11:30:00"): ("an hour ago", "há uma hora", "hace una hora"),
    ("2026-12-01T11:00:00", "2026-12-01T12:00:00"): ("last hour", "na última hora"),
    ("2026-03-01", "2026-12-01T12:00:00"): ("since March", "desde março", "desde marzo"),
    ("2026-11-30", "2026-12-01T12:00:00"): ("since yesterday", "desde ontem", "desde ayer"),
    ("2026-11-27", "2026-12-01T12:00:00"): ("since last Friday",),
    ("9998-12-01", "9999-01-01"): ("9998-12",),
}  # fmt: skip
NOTHING = (
    "", " ", "?", "who is it", "what is the meaning of life",
    # Words that are names of times elsewhere.
    "may I go", "May I go in?", "may we", "what may happen", "it may take 5 days", "march on", "the long march",
    "quarta", "a quarta vez", "segunda", "a segunda", "de segunda mão", "a quinta do avô", "sexta", "set 3 alarms",
    "2 out of 3 retries failed", "check out 3 books", "the sun sat 3 times", "o mar", "dez pessoas", "second", "a day",
    "every day", "5 days", "3 months old", "a week after", "weekend", "fim de semana", "on the 3rd", "the 8th", "ago",
    "mañana", "last", "passada", "since", "since we met", "há", "hace", "past 3", "the next two weeks",
    # Years and parts that no calendar has.
    "0000-01-01", "9999-12-31", "99999-01-01", "99999", "in 9999", "in 2100", "May 9999", "2023-13-01", "2023-00-01",
    "13/13/2023", "0/0/2023", "1.2.3", "10.0.0.1", "v2023", "99999 years ago", "9999 years ago", "2026 years ago",
    "last 9999 years",
    # Other languages are not read.
    "2023年5月8日", "5月8日", "昨天", "вчера", "gestern",
)  # fmt: skip


@pytest.mark.parametrize(("day", "query"), [(day, query) for day, queries in ONE_DAY.items() for query in queries])
def test_days(day, query):
    after = datetime.date.fromisoformat(day) + datetime.timedelta(days=1)
    assert told(query) == [(day, after.isoformat())]


@pytest.mark.parametrize(("span", "query"), [(span, query) for span, queries in LONGER.items() for query in queries])
def test_longer_spans(span, query):
    assert told(query) == [span]


@pytest.mark.parametrize("query", NOTHING)
def test_most_questions_name_nothing(query):
    assert told(query) == []


@pytest.mark.parametrize("query", [query for table in (ONE_DAY, LONGER) for each in table.values() for query in each])
def test_decomposed_and_without_accents_it_is_the_same(query):
    assert told(unicodedata.normalize("NFD", query)) == told(query)
    composed = unicodedata.normalize("NFC", query)
    bare = "".join(c for c in unicodedata.normalize("NFD", composed) if not "\u0300" <= c <= "\u036f")
    assert told(bare) == told(query)


def test_several_are_named():
    assert told("8 May 2023 and 9 June 2022") == [("2023-05-08", "2023-05-09"), ("2022-06-09", "2022-06-10")]
    assert told("8 May 2023, 9 June 2022") == told("May 8, 2023, June 9, 2022") == told("8 May 2023 and 9 June 2022")
    assert told("May 8, June 9 2022") == [("2026-05-08", "2026-05-09"), ("2022-06-09", "2022-06-10")]
    assert told("May 2023, 9 June 2022") == [("2023-05-01", "2023-06-01"), ("2022-06-09", "2022-06-10")]
    assert told("on 8 May or 9 May 2023") == [("2026-05-08", "2026-05-09"), ("2023-05-09", "2023-05-10")]
    assert told("from 2023-05-01 to 2023-05-07") == [("2023-05-01", "2023-05-02"), ("2023-05-07", "2023-05-08")]
    assert told("yesterday, yes, yesterday") == [("2026-11-30", "2026-12-01")]
    assert told("yesterday or last week") == [("2026-11-30", "2026-12-01"), ("2026-11-23", "2026-11-30")]


@pytest.mark.parametrize(
    ("now", "query", "span"),
    [
        ("2024-03-01T00:00", "yesterday", ("2024-02-29", "2024-03-01")),
        ("2024-02-29T23:59:59.999999", "last year", ("2023-01-01", "2024-01-01")),
        ("2024-02-29T12:00", "29 February", ("2024-02-29", "2024-03-01")),
        ("2025-03-31T12:00", "last month", ("2025-02-01", "2025-03-01")),
        ("2025-01-15T12:00", "in December", ("2024-12-01", "2025-01-01")),
        ("2025-01-15T12:00", "2 months ago", ("2024-11-01", "2024-12-01")),
        ("2025-01-15T12:00", "há 13 meses", ("2023-12-01", "2024-01-01")),
        ("2025-06-15T12:00", "next August", ("2025-08-01", "2025-09-01")),
        ("2025-06-15T12:00", "next June", ("2026-06-01", "2026-07-01")),
        ("2025-06-15T12:00", "next month", ("2025-07-01", "2025-08-01")),
        ("2025-12-15T12:00", "next month", ("2026-01-01", "2026-02-01")),
        ("1969-12-31T23:00", "today", ("1969-12-31", "1970-01-01")),
        ("1969-12-31T23:00", "last week", ("1969-12-22", "1969-12-29")),
        ("1969-07-20T20:17", "on Friday", ("1969-07-18", "1969-07-19")),
        ("2026-11-30T00:00", "last weekend", ("2026-11-28", "2026-11-30")),
        ("2026-11-29T23:59", "this week", ("2026-11-23", "2026-11-30")),
        ("0001-01-02T00:00", "yesterday", ("0001-01-01", "0001-01-02")),
        ("9999-12-30T00:00", "today", ("9999-12-30", "9999-12-31")),
    ],
)
def test_other_moments(now, query, span):
    expected = [tuple(f"{part:0>10}" for part in span)]
    assert [tuple(f"{part:0>10}" for part in each) for each in told(query, at(now))] == expected


@pytest.mark.parametrize("now", [at("0001-01-01T00:00"), at("9999-12-31T23:59"), LEAST, MOST])
@pytest.mark.parametrize("query", ["last week", "next week", "10 years ago", "in the last 3 months", "last 5 hours"])
def test_at_the_ends_of_the_calendar_a_span_is_told_or_none(now, query):
    """Where the calendar ends nothing is named, rather than refused: the question still has its words."""
    for start, end in times.spans(query, now):
        assert start < end


WORDS = sorted(
    {word for each in (*ONE_DAY.values(), *LONGER.values(), NOTHING) for query in each for word in query.split()}
)
QUESTIONS = st.text() | st.lists(st.sampled_from(WORDS) | st.integers(0, 99_999).map(str), max_size=12).map(" ".join)


@thorough(400)
@given(QUESTIONS, st.integers(LEAST, MOST) | st.integers(at("0001-01-01T00:00"), at("9999-12-31T23:59")))
@example("2026 years ago", NOW)
@example("December", at("9999-12-15T00:00"))
@example("this month", at("9999-12-15T00:00"))
@example("in May", at("0001-01-15T00:00"))
@example("8 May", at("0001-01-15T00:00"))
@example("next Friday", at("9999-12-31T00:00"))
@example("\ud800 May 8 \x00", NOW)
@example("İ ß ſ May 8", NOW)
def test_any_text_at_any_moment_names_spans_or_nothing(query, now):
    found = times.spans(query, now)
    assert all(isinstance(span, Span) and span.start < span.end for span in found)
    assert len(set(found)) == len(found)
    assert times.spans(query, now) == found


def test_words_that_stand_between_are_passed_over_once():
    """A megabyte of them: were they passed over from each word anew, this would take hours."""
    for text in ("of " * 300_000 + "May", "5 " + "de " * 300_000 + "maio", "May " + "of the " * 150_000 + "2023"):
        assert len(times.spans(text, NOW)) == 1
    assert len(times.spans("may of " * 150_000, NOW)) == 0
    assert times.spans("8 May 2023 " * 90_000, NOW) == times.spans("8 May 2023", NOW)
    assert times.spans("a" + "-" * 1_000_000, NOW) == times.spans("a-" * 500_000, NOW) == []


def naive_nearness(event: int, named: list[Span]) -> float:
    best = 0.0
    for start, end in named:
        away = start - event if event < start else event - (end - 1) if event >= end else 0
        best = max(best, 2.0 ** -(away / (end - start)))
    return best


MOMENTS = st.integers(at("0001-01-01T00:00"), at("9999-12-31T00:00"))
NEAR = st.integers(NOW - 10**13, NOW + 10**13)
SPANS = st.builds(lambda start, length: Span(start, start + length), MOMENTS | NEAR, st.integers(1, 10**14))


@thorough(200)
@given(st.lists(MOMENTS | NEAR, max_size=20), st.lists(SPANS, max_size=4))
def test_nearness_is_what_a_plain_loop_says(events, named):
    near = times.nearness(np.array(events, np.int64), named)
    assert near.shape == (len(events),)
    assert ((near >= 0) & (near <= 1)).all()
    np.testing.assert_allclose(near, [naive_nearness(event, named) for event in events], rtol=1e-12, atol=1e-300)


def test_nearness_is_one_within_and_halves_for_each_length_outside():
    span = Span(NOW, NOW + HOUR)
    inside = np.array([NOW, NOW + 1, NOW + HOUR - 1])
    assert times.nearness(inside, [span]).tolist() == [1, 1, 1]
    before = np.array([NOW - HOUR * i for i in range(6)])
    assert times.nearness(before, [span]).tolist() == [0.5**i for i in range(6)]
    behind = np.array([NOW + HOUR - 1 + HOUR * i for i in range(6)])
    assert times.nearness(behind, [span]).tolist() == [0.5**i for i in range(6)]
    far = np.array([at("0001-01-01T00:00"), at("9999-12-31T00:00")])
    assert times.nearness(far, [span]).tolist() == [0, 0]


def test_the_nearest_of_several_counts():
    long, short = Span(NOW - 100 * HOUR, NOW), Span(NOW + 10 * HOUR, NOW + 11 * HOUR)
    near = times.nearness(np.array([NOW + 5 * HOUR, NOW + 10 * HOUR]), [long, short])
    assert near.tolist() == pytest.approx([2 ** -(5 / 100), 1], rel=1e-9)
    assert times.nearness(np.array([NOW]), []).tolist() == [0]
    assert times.nearness(np.array([], np.int64), [long]).tolist() == []

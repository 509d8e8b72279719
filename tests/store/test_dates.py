"""The calendar of an event as terms, beside datetime's; and what the words of a question name."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drawn import thorough
from memcore.store import dates, words
from memcore.text import bare, normal


def at(*parts: int) -> datetime.datetime:
    return datetime.datetime(*parts, tzinfo=datetime.UTC)


EPOCH = at(1970, 1, 1)
FIRST, LAST = at(1, 1, 1), at(9999, 12, 31, 23, 59, 59, 999_999)
DAY = 86_400_000_000


def us(moment: datetime.datetime) -> int:
    return (moment - EPOCH) // datetime.timedelta(microseconds=1)


@thorough(500)
@given(st.datetimes(timezones=st.just(datetime.UTC)))
@example(FIRST)
@example(LAST)
@example(at(1969, 12, 31, 23, 59, 59, 999_999))
@example(EPOCH)
@example(at(2024, 2, 29))
@example(at(1900, 2, 28, 23))
def test_the_terms_of_a_moment_are_datetimes_calendar(moment):
    expected = (f"@y{moment.year}", f"@m{moment.month}", f"@d{moment.day}", f"@w{moment.weekday()}")
    assert dates.of(us(moment)) == expected
    assert words.of_date(us(moment)) == tuple(map(words.term, expected))


def test_each_day_of_four_centuries():
    day = at(1800, 1, 1)
    while day.year < 2201:
        assert dates.of(us(day)) == (f"@y{day.year}", f"@m{day.month}", f"@d{day.day}", f"@w{day.weekday()}")
        day += datetime.timedelta(days=1)


@pytest.mark.parametrize("moment", [-(2**63), us(FIRST) - 1, us(LAST) + 1, 2**63 - 1])
def test_a_moment_that_no_calendar_knows_has_the_terms_of_no_date(moment):
    year, month, day, weekday = dates.of(moment)
    assert (month, day) == ("@m", "@d")
    assert weekday == f"@w{(moment // DAY + 3) % 7}"
    assert not any(year == dates.of(us(at(y, 1, 1)))[0] for y in range(1, 10_000))


def named(text: str, day_first: bool = False) -> dict[str, tuple[str, ...]]:
    """What each word that names something names."""
    tokens = normal(text).replace(",", " ").replace("?", " ").split()
    found = dates.named([bare(t.casefold()) for t in tokens], [t[0].isupper() for t in tokens], day_first=day_first)
    assert len(found) == len(tokens)
    return {token: names for token, names in zip(tokens, found, strict=True) if names}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on 8 May 2023", {"8": ("@d8",), "May": ("@m5",), "2023": ("@y2023",)}),
        ("May 8th, 2023", {"8th": ("@d8",), "May": ("@m5",), "2023": ("@y2023",)}),
        ("the 8th of may", {"8th": ("@d8",), "may": ("@m5",)}),
        ("1º de maio", {"1o": ("@d1",), "maio": ("@m5",)}),
        ("1.º de maio", {"1.o": ("@d1",), "maio": ("@m5",)}),
        ("15 de MARÇO de 2023", {"15": ("@d15",), "MARÇO": ("@m3",), "2023": ("@y2023",)}),
        ("el 31 de junio", {"31": ("@d31",), "junio": ("@m6",)}),
        ("32 May", {"May": ("@m5",)}),
        ("0 May", {"May": ("@m5",)}),
        ("last Friday", {"Friday": ("@w4",)}),
        ("na sexta", {"sexta": ("@w4",)}),
        ("quarta feira", {"quarta": ("@w2",)}),
        ("segunda-feira", {"segunda-feira": ("@w0",)}),
        ("sábado", {"sábado": ("@w5",)}),
        ("domingos", {"domingos": ("@w6",)}),
        ("2023-05-08", {"2023-05-08": ("@y2023", "@m5", "@d8")}),
        ("2023-05", {"2023-05": ("@y2023", "@m5")}),
        ("2023/5/8", {"2023/5/8": ("@y2023", "@m5", "@d8")}),
        ("2023-05-08T10:00:00Z", {"2023-05-08T10:00:00Z": ("@y2023", "@m5", "@d8")}),
        ("in 1999", {"1999": ("@y1999",)}),
        ("3 de out", {"3": ("@d3",), "out": ("@m10",)}),
        ("set 2023", {"set": ("@m9",), "2023": ("@y2023",)}),
        ("2 out of 3", {}),
        ("set 3 alarms", {}),
        ("may I", {}),
        ("May I", {}),
        ("what may be", {}),
        ("did she call in may", {"may": ("@m5",)}),
        ("was it May", {"May": ("@m5",)}),
        ("march on", {}),
        ("a quarta vez", {}),
        ("segunda", {}),
        ("the 3rd", {}),
        ("8 2023", {"2023": ("@y2023",)}),
        ("99999 and 1899 and 2100", {}),
        ("12345-05-08 and 2023-005-08", {}),
        ("", {}),
    ],
)
def test_what_a_question_names(text, expected):
    assert named(text) == named(text, day_first=True) == expected


def test_which_of_two_numbers_is_the_day():
    for text in ("5/8/2023", "5.8.2023", "5-8-2023", "05/08/2023"):
        assert named(text) == {text: ("@y2023", "@m5", "@d8")}
        assert named(text, day_first=True) == {text: ("@y2023", "@m8", "@d5")}
    for day_first in (False, True):
        assert named("13/5/2023", day_first) == {"13/5/2023": ("@y2023", "@m5", "@d13")}
        assert named("5/13/2023", day_first) == {"5/13/2023": ("@y2023", "@m5", "@d13")}


@thorough(200)
@given(st.dates(datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)), st.sampled_from(["-", "/", "."]))
def test_each_date_is_named_as_it_is_written_in_three_languages(day, joint):
    expected = {f"@y{day.year}", f"@m{day.month}", f"@d{day.day}"}
    names = [name for name, month in dates.MONTHS.items() if month == day.month]
    months = (names[0], names[1], names[-1])  # "abril" is of two languages
    texts = [
        day.isoformat(),
        f"{day.day} {months[0]} {day.year}",
        f"{months[0].title()} {day.day} {day.year}",
        f"{day.day} de {months[1]} de {day.year}",
        f"{day.day} de {months[2]} del {day.year}",
    ]
    for text in texts:
        assert {name for names in named(text).values() for name in names} == expected
    slashed = joint.join(map(str, (day.day, day.month, day.year)))
    assert set(named(slashed, day_first=True)[slashed]) == expected


def test_every_name_of_the_calendar_is_bare_and_of_one_thing():
    for table in (dates.MONTHS, dates.SHORT_MONTHS, dates.WEEKDAYS, dates.SHORT_WEEKDAYS):
        assert all(name == bare(name.casefold()) for name in table)
    assert set(dates.MONTHS.values()) == set(dates.SHORT_MONTHS.values()) == set(range(1, 13))
    assert set(dates.WEEKDAYS.values()) == set(range(7))


@thorough(200)
@given(st.lists(st.text(max_size=5) | st.sampled_from(["may", "de", "of", "5", "2023", "out", "quarta"]), max_size=12))
def test_any_words_name_something_or_nothing(told):
    found = dates.named(told, [True] * len(told), day_first=True)
    assert len(found) == len(told)
    assert all(name[:2] in ("@y", "@m", "@d", "@w") and name[2:].isdecimal() for names in found for name in names)

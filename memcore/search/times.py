"""What time does a question ask about? The spans that it names, and how near to them each event is.

Dates ("8 May 2023", "em maio", "2023-05-08", "on Friday"), and spans told from the moment of asking ("yesterday", "na
semana passada", "hace tres días", "in the last two weeks", "since March"), in English, Portuguese and
Spanish. Days, weeks from Monday, months and years are those of UTC. A date without a year is the last such date that
has begun. An event within a span is near by 1, and by half as much for each length of the span that it lies outside.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memcore.clock import HOUR
from memcore.store import dates, words
from memcore.text import bare, normal

DAY = 24 * HOUR
_UNITS = {
    "hour hours hora horas": "hour", "day days dia dias": "day", "week weeks semana semanas": "week",
    "weekend weekends": "weekend", "month months mes meses": "month", "year years ano anos": "year",
}  # fmt: skip
_UNIT = {name: unit for names, unit in _UNITS.items() for name in names.split()}
_DAYS_AGO = {
    name: ago
    for names, ago in (
        ("today tonight hoje hoy", 0),
        ("yesterday ontem ayer", 1),
        ("anteontem anteayer", 2),
        ("tomorrow amanha", -1),
    )
    for name in names.split()
}
_NAMES_OF_NUMBERS = (
    "a an one um uma un una", "two dois duas dos couple", "three tres", "four quatro cuatro", "five cinco", "six seis",
    "seven sete siete", "eight oito ocho", "nine nove nueve", "ten dez diez",
)  # fmt: skip
_NUMBER = {name: n for n, names in enumerate(_NAMES_OF_NUMBERS, 1) for name in names.split()}
_LAST = frozenset(("last", "past", "previous", "ultimo", "ultima", "ultimos", "ultimas", "passado", "passada"))
_GONE = frozenset(("passado", "passada", "passados", "passadas", "pasado", "pasada"))  # behind what they tell of
_THIS = frozenset(("this", "este", "esta", "neste", "nesta", "esse", "essa", "nesse", "nessa"))
_NEXT = frozenset(("next", "proximo", "proxima"))
_AGO = frozenset(("ago", "atras"))
_AGO_BEFORE = frozenset(("ha", "faz", "hace"))
_SINCE = frozenset(("since", "desde"))
_PHRASES = {
    "day before yesterday": "anteontem", "antes de ontem": "anteontem", "antes de ayer": "anteayer",
    "fim de semana": "weekend", "fin de semana": "weekend",
    "a couple of": "two", "couple of": "two", "um par de": "two", "un par de": "two",
}  # fmt: skip
_PHRASE = re.compile(rf"(?<!\S)(?:{'|'.join(_PHRASES)})(?!\S)")
_TOKENS = re.compile(r"[^\W_]+(?:[-/.][^\W_]+)*")

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class Span(NamedTuple):
    """From `start` up to `end`, int64 us UTC."""

    start: int
    end: int


def spans(query: str, now: int) -> list[Span]:
    """The spans that a question names when it is asked at `now`, us; none, as a rule."""
    text = normal(query)
    tokens = _TOKENS.findall(text)
    told = [bare(token.casefold()) for token in tokens]
    try:
        today = datetime.date(1970, 1, 1) + datetime.timedelta(days=now // DAY)
        found = list(_dates(told, [token[0].isupper() for token in tokens], words.language(text), today))
        single = _PHRASE.sub(lambda phrase: _PHRASES[phrase[0]], " ".join(told)).split()
        found += _relative(single, now, today)
    except (OverflowError, ValueError):  # of years that the calendar has not
        return []
    if any(word in _SINCE for word in told):
        found = [Span(span.start, max(span.end, now)) for span in found]
    return list(dict.fromkeys(found))


def nearness(event_time: I64, named: Sequence[Span]) -> F64:
    """How near each event is to the nearest span: 0 to 1, float64 `(n,)`."""
    near = np.zeros(len(event_time))
    for start, end in named:
        away = np.maximum(np.maximum(start - event_time, event_time - end + 1), 0)
        near = np.maximum(near, np.exp2(-away / (end - start)))
    return near


def _span(first: datetime.date, last: datetime.date) -> Span:
    """From the beginning of one day to that of another."""
    epoch = datetime.date(1970, 1, 1)
    return Span((first - epoch).days * DAY, (last - epoch).days * DAY)


def _days(first: datetime.date, count: int) -> Span:
    return _span(first, first + datetime.timedelta(days=count))


def _month(year: int, month: int, count: int = 1) -> Span:
    """`count` months; a month may lie outside 1 to 12, and counts on into other years."""
    at = 12 * year + month - 1
    first, last = (datetime.date(m // 12, m % 12 + 1, 1) for m in (at, at + count))
    return _span(first, last)


def _dates(told: Sequence[str], capital: Sequence[bool], code: int, today: datetime.date) -> Iterator[Span]:
    """The dates of the calendar that are named."""
    named = dates.named(told, capital, day_first=code != 0)
    used: set[int] = set()
    for i, names in enumerate(named):
        parts = {name[:2]: int(name[2:]) for name in names}
        if "@m" not in parts:
            continue
        used.add(i)
        for step in (-1, 1):  # its day and year may stand around it
            j = i + step
            while 0 <= j < len(told) and (told[j] in dates.BETWEEN or (len(named[j]) == 1 and named[j][0][1] in "dy")):
                if named[j]:
                    key = named[j][0][:2]
                    if key in parts or j in used:  # of the date before, as in "8 May 2023, 9 June 2022"
                        break
                    parts[key] = int(named[j][0][2:])
                    used.add(j)
                    if key == "@y":
                        break
                j += step
        year, month, day = parts.get("@y"), parts["@m"], parts.get("@d")
        if not 1 <= month <= 12 or (year is not None and not 1 <= year < datetime.MAXYEAR):
            continue
        if year is None:
            begun = (month, day or 1) <= (today.month, today.day)
            year = today.year if begun else today.year - 1
            beside = {*told[max(i - 1, 0) : i], *told[i + 1 : i + 2]}
            if beside & _NEXT:
                year += 1
            elif month == today.month and day is None and beside & (_LAST | _GONE):
                year -= 1
        if day is None:
            yield _month(year, month)
            continue
        try:
            yield _days(datetime.date(year, month, day), 1)
        except ValueError:  # 31 June
            yield _month(year, month)
    for i, names in enumerate(named):
        if i in used or len(names) != 1:
            continue
        if names[0].startswith("@y"):
            yield _month(int(names[0][2:]), 1, 12)
        elif names[0].startswith("@w"):
            beside = {*told[max(i - 1, 0) : i], *told[i + 1 : i + 2]}
            back = (today.weekday() - int(names[0][2:])) % 7
            if beside & _NEXT:
                back -= 7
            elif not back and beside & (_LAST | _GONE):
                back = 7
            yield _days(today - datetime.timedelta(days=back), 1)


def _relative(told: Sequence[str], now: int, today: datetime.date) -> Iterator[Span]:
    """The spans that are told from the moment of asking."""
    for i, word in enumerate(told):
        before, behind = told[i - 1] if i else "", told[i + 1] if i + 1 < len(told) else ""
        if word in _DAYS_AGO:
            yield _days(today - datetime.timedelta(days=_DAYS_AGO[word]), 1)
        if word not in _UNIT:
            continue
        unit, count = _UNIT[word], _number(before)
        earlier = told[i - 2] if i > 1 else ""
        if count is not None and (behind in _AGO or earlier in _AGO_BEFORE):
            yield _ago(unit, count, now, today)
        elif count is not None and (earlier in _LAST or (behind in _GONE and count > 1)):  # "a semana passada" is one
            yield Span(_ago(unit, count, now, today).start, now + 1)
        elif before in _LAST or behind in _GONE:
            yield _whole(unit, -1, now, today)
        elif before in _THIS:
            yield _whole(unit, 0, now, today)
        elif before in _NEXT:
            yield _whole(unit, 1, now, today)


def _number(word: str) -> int | None:
    return int(word) if word.isdecimal() and len(word) < 5 else _NUMBER.get(word)


def _whole(unit: str, away: int, now: int, today: datetime.date) -> Span:
    """The week, month … that is so many away from this one."""
    monday = today - datetime.timedelta(days=today.weekday())
    if unit == "hour":
        return Span(now // HOUR * HOUR + away * HOUR, now // HOUR * HOUR + (away + 1) * HOUR)
    if unit == "day":
        return _days(today + datetime.timedelta(days=away), 1)
    if unit == "week":
        return _days(monday + datetime.timedelta(weeks=away), 7)
    if unit == "weekend":  # "last weekend" on a Monday is that of two days ago
        return _days(monday + datetime.timedelta(days=5, weeks=away), 2)
    return _month(today.year, today.month + away) if unit == "month" else _month(today.year + away, 1, 12)


def _ago(unit: str, count: int, now: int, today: datetime.date) -> Span:
    """What was so many hours, days … ago: one of them long, around that moment."""
    if unit == "hour":
        return Span(now - count * HOUR - HOUR // 2, now - count * HOUR + HOUR // 2)
    if unit == "day":
        return _days(today - datetime.timedelta(days=count), 1)
    if unit in ("week", "weekend"):
        return _days(today - datetime.timedelta(weeks=count, days=3), 7)
    return _whole(unit, -count, now, today)

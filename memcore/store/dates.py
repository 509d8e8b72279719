"""Which words say when something happened? The calendar of an event as terms, and dates that are named in a question.

An event's day, month, year and day of the week (UTC) are terms like its words, so that "8 May 2023", "em maio" or
"last Friday's outage" find it, whatever language the text is in. Month and weekday names are read in English,
Portuguese and Spanish; those that are other words too ("may", "march", "quarta") count where something around them
says that a date is meant.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence

_MONTHS = (
    "january janeiro enero", "february fevereiro febrero", "march marco marzo", "april abril", "may maio mayo",
    "june junho junio", "july julho julio", "august agosto", "september setembro septiembre setiembre",
    "october outubro octubre", "november novembro noviembre", "december dezembro diciembre",
)  # fmt: skip
_SHORT_MONTHS = (
    "jan ene", "feb fev", "mar", "apr abr", "may mai", "jun", "jul", "aug ago", "sep sept set", "oct out", "nov",
    "dec dez dic",
)  # fmt: skip
_WEEKDAYS = (
    "monday mondays segunda-feira lunes", "tuesday tuesdays terca-feira martes",
    "wednesday wednesdays quarta-feira miercoles", "thursday thursdays quinta-feira jueves",
    "friday fridays sexta-feira viernes", "saturday saturdays sabado sabados",
    "sunday sundays domingo domingos",
)  # fmt: skip
_SHORT_WEEKDAYS = ("segunda", "terca", "quarta", "quinta", "sexta")  # which are ordinals too
MONTHS = {name: month for month, names in enumerate(_MONTHS, 1) for name in names.split()}
SHORT_MONTHS = {name: month for month, names in enumerate(_SHORT_MONTHS, 1) for name in names.split()}
WEEKDAYS = {name: day for day, names in enumerate(_WEEKDAYS) for name in names.split()}
SHORT_WEEKDAYS = {name: day for day, name in enumerate(_SHORT_WEEKDAYS)}
_OTHER_WORDS = {"may", "march", "marco"}  # besides months
_OTHER_SHORT_WORDS = {"set", "out", "ago"}  # "2 out of 3" is no date, "2 de out" and "out 2023" are
_LEADING = (
    "in since until till by during last next this early late mid em desde ate durante ultimo proximo este en hasta",
    "na nesta desta ultima proxima toda passada essa nessa",
)
_BEFORE_MONTHS, _BEFORE_WEEKDAYS = (frozenset(leading.split()) for leading in _LEADING)
BETWEEN = frozenset(("of", "the", "de", "do", "del"))
_ISO = re.compile(r"(\d{4})-(\d{1,2})(?:-(\d{1,2})(?:t\d.*)?)?|(\d{4})/(\d{1,2})/(\d{1,2})")
_SLASHED = re.compile(r"(\d{1,2})[-/.](\d{1,2})[-/.](\d{4})")
_DAY = re.compile(r"(\d{1,2})(?:st|nd|rd|th|\.?[oa])?")
_YEAR = re.compile(r"(?:19|20)\d\d")
_EPOCH = datetime.date(1970, 1, 1)
US_OF_DAY = 86_400_000_000


def of(event_time: int) -> tuple[str, str, str, str]:
    """The names of the terms of a moment, int64 us UTC: its year, month, day and weekday."""
    days = event_time // US_OF_DAY
    weekday = f"@w{(days + 3) % 7}"  # 1970-01-01 was a Thursday
    try:
        date = _EPOCH + datetime.timedelta(days=days)
    except OverflowError:  # of which no calendar knows
        return f"@y{event_time}", "@m", "@d", weekday
    return f"@y{date.year}", f"@m{date.month}", f"@d{date.day}", weekday


def named(words: Sequence[str], capital: Sequence[bool], *, day_first: bool) -> list[tuple[str, ...]]:
    """What each word of a question names, as terms of `of`; nothing for most. `words` are case-folded and bare of
    accents, `capital` tells which were written with one; `day_first` reads 3/4/2023 as the third of April.
    """
    found: list[tuple[str, ...]] = [()] * len(words)
    for i, word in enumerate(words):
        if parts := _ISO.fullmatch(word):
            year, month, day = parts.groups()[3:] if parts[4] else parts.groups()[:3]
            found[i] = (f"@y{int(year)}", f"@m{int(month)}", *((f"@d{int(day)}",) if day else ()))
        elif parts := _SLASHED.fullmatch(word):
            one, two, year = map(int, parts.groups())
            day, month = (one, two) if (day_first and two <= 12) or one > 12 else (two, one)
            found[i] = (f"@y{year}", f"@m{month}", f"@d{day}")
        elif _YEAR.fullmatch(word):
            found[i] = (f"@y{int(word)}",)
        elif month := month_of(words, capital, i):
            found[i] = (f"@m{month}",)
        elif (weekday := _weekday_of(words, i)) is not None:
            found[i] = (f"@w{weekday}",)
        elif day := day_of(words, capital, i):
            found[i] = (f"@d{day}",)
    return found


def month_of(words: Sequence[str], capital: Sequence[bool], i: int) -> int | None:
    """The month that a word names, 1 to 12."""
    word = words[i]
    if word not in MONTHS and word not in SHORT_MONTHS:
        return None
    if word in _OTHER_SHORT_WORDS:
        beside = {*words[max(i - 1, 0) : i], *words[i + 1 : i + 2]}
        return SHORT_MONTHS[word] if "de" in beside or any(map(_YEAR.fullmatch, beside)) else None
    if _number_beside(words, i):
        return MONTHS.get(word) or SHORT_MONTHS[word]
    if word not in MONTHS:
        return None
    told = word not in _OTHER_WORDS or (i > 0 and (capital[i] or words[i - 1] in _BEFORE_MONTHS))
    return MONTHS[word] if told else None


def _weekday_of(words: Sequence[str], i: int) -> int | None:
    """The weekday that a word names, from Monday, 0."""
    if words[i] in WEEKDAYS:
        return WEEKDAYS[words[i]]
    told = (i > 0 and words[i - 1] in _BEFORE_WEEKDAYS) or words[i + 1 : i + 2] in (["feira"], ["passada"])
    return SHORT_WEEKDAYS.get(words[i]) if told else None


def day_of(words: Sequence[str], capital: Sequence[bool], i: int) -> int | None:
    """The day of a month that a number is: where a month stands beside it."""
    found = _DAY.fullmatch(words[i])
    if found is None or not 1 <= int(found[1]) <= 31:
        return None
    beside = (_beside(words, i, 1), _beside(words, i, -1))
    return int(found[1]) if any(j is not None and month_of(words, capital, j) for j in beside) else None


def _number_beside(words: Sequence[str], i: int) -> bool:
    beside = (_beside(words, i, 1), _beside(words, i, -1))
    return any(j is not None and (_DAY.fullmatch(words[j]) or _YEAR.fullmatch(words[j])) for j in beside)


def _beside(words: Sequence[str], i: int, step: int) -> int | None:
    """The place of the next word that is not an "of"."""
    i += step
    while 0 <= i < len(words) and words[i] in BETWEEN:
        i += step
    return i if 0 <= i < len(words) else None

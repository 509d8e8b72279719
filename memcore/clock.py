"""What time is it, and what does a caller's time mean? Inside memcore a time is int64 microseconds since the epoch.

A public time is a timezone-aware `datetime`, or a number of seconds since the epoch, within the years 1 to 9999 in UTC.
A naive datetime is refused rather than read as local or as UTC: the same script would otherwise give other answers on a
host in another zone. So is a date, which has no hour, and a text: only the command line and files have those (`parse`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from numbers import Integral, Real

from memcore import gate
from memcore.errors import InvalidInput

MICROS = 1_000_000
HOUR = 3600 * MICROS
DAY = 24 * HOUR
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = -62_135_596_800 * MICROS  # 0001-01-01T00:00:00Z
_LAST = 253_402_300_800 * MICROS - 1  # 9999-12-31T23:59:59.999999Z

Instant = datetime | float | int
Clock = Callable[[], Instant]


def system() -> float:
    """Seconds since the epoch by the machine's clock. The only place where memcore reads it."""
    return time.time()


def to_micros(value: object, what: str) -> int:
    """A caller's time as int64 microseconds since the epoch, UTC. Fractions of a microsecond are rounded."""
    if isinstance(value, datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            raise InvalidInput(
                f"{what} is a naive datetime ({value.isoformat()}); times need a zone: pass "
                "datetime(…, tzinfo=timezone.utc), value.astimezone() for local time, or seconds since the epoch"
            )
        delta = value - _EPOCH
        return in_years((delta.days * 86_400 + delta.seconds) * MICROS + delta.microseconds, value, what)
    micros = _seconds(value, what) * MICROS
    if micros > _LAST:
        raise InvalidInput(
            f"{what} is {gate.brief(value)} seconds, later than the year 9999; times are in seconds, not milliseconds: "
            "divide milliseconds by 1000"
        )
    if micros < _FIRST:
        raise InvalidInput(
            f"{what} is {gate.brief(value)} seconds, earlier than the year 1; pass seconds since 1970-01-01T00:00Z"
        )
    return round(micros)


def _seconds(value: object, what: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, (float, int, Real)):  # Real alone takes a microsecond to ask
        raise InvalidInput(
            f"{what} is {gate.shown(value)}; a time is a timezone-aware datetime or a number of seconds since the "
            "epoch: for a text use datetime.fromisoformat(text), for a date "
            "datetime.combine(date, time(0), tzinfo=timezone.utc)"
        )
    if isinstance(value, (int, Integral)):
        return int(value)
    seconds = gate.real(value)
    if not math.isfinite(seconds):
        raise InvalidInput(f"{what} is {seconds}; a time in seconds is finite: leave it out for now")
    return seconds


def in_years(micros: int, got: object, what: str) -> int:
    """µs since the epoch that a datetime can hold, so that what is stored can be read. `got` is told in the error."""
    if _FIRST <= micros <= _LAST:
        return micros
    told = got.isoformat() if isinstance(got, datetime) else got
    raise InvalidInput(
        f"{what} is {told}, which is outside the years 1 to 9999 in UTC; pass a time within them, or leave it out"
    )


def to_datetime(micros: int) -> datetime:
    """int64 microseconds since the epoch as a UTC datetime, exact."""
    return _EPOCH + timedelta(microseconds=micros)


def to_text(micros: int) -> str:
    """ISO 8601 with a zone and as many digits as the time has, such as 2026-03-01T09:30:00Z."""
    return to_datetime(micros).isoformat().replace("+00:00", "Z")


def parse(text: str, what: str) -> int:
    """The times of the command line and of files: ISO 8601 with an offset or Z, or seconds since the epoch.

    Digits alone are seconds, not a year or a date without dashes.
    """
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        return to_micros(seconds, what)
    try:
        value = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput(
            f"{what} is {gate.brief(text)}; give ISO 8601 with a zone such as 2026-03-01T09:30:00Z, or seconds since "
            "the epoch"
        ) from None
    if value.tzinfo is None:
        raise InvalidInput(
            f"{what} is {gate.brief(text)}, which has no zone; add Z for UTC or an offset such as -03:00"
        )
    return to_micros(value, what)

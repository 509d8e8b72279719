"""What time is it, and what does a caller's time mean? Inside memcore every time is int64 microseconds since the epoch, UTC.

A public time is a timezone-aware `datetime`, or a number of seconds since the epoch. A naive datetime is refused rather
than read as local or as UTC: the same script would otherwise give other answers on a host in another zone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from numbers import Integral, Real

from memcore.errors import InvalidInput

MICROS = 1_000_000
HOUR = 3600 * MICROS
DAY = 24 * HOUR
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = -62_135_596_800  # 0001-01-01T00:00:00Z in seconds
_LAST = 253_402_300_799  # 9999-12-31T23:59:59Z in seconds

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
        return (delta.days * 86_400 + delta.seconds) * MICROS + delta.microseconds
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidInput(
            f"{what} is {_shown(value)}; a time is a timezone-aware datetime or a number of seconds since the epoch: "
            "for a text use datetime.fromisoformat(text)"
        )
    seconds: int | float = int(value) if isinstance(value, Integral) else float(value)
    if not math.isfinite(seconds):
        raise InvalidInput(f"{what} is {seconds}; a time in seconds is finite: leave it out for now")
    if seconds > _LAST:
        raise InvalidInput(
            f"{what} is {value} seconds, later than the year 9999; times are in seconds, not milliseconds: "
            "divide milliseconds by 1000"
        )
    if seconds < _FIRST:
        raise InvalidInput(f"{what} is {value} seconds, earlier than the year 1; pass seconds since 1970-01-01T00:00Z")
    return seconds * MICROS if isinstance(seconds, int) else round(seconds * MICROS)


def to_datetime(micros: int) -> datetime:
    """int64 microseconds since the epoch as a UTC datetime, exact."""
    return _EPOCH + timedelta(microseconds=micros)


def to_text(micros: int) -> str:
    """ISO 8601 with a zone and as many digits as the time has, such as 2026-03-01T09:30:00Z."""
    return to_datetime(micros).isoformat().replace("+00:00", "Z")


def parse(text: str, what: str) -> int:
    """The times of the command line and of files: ISO 8601 with an offset or Z, or seconds since the epoch."""
    try:
        return to_micros(float(text), what)
    except InvalidInput:
        raise
    except ValueError:
        pass
    try:
        value = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidInput(
            f"{what} is {text!r}; give ISO 8601 with a zone such as 2026-03-01T09:30:00Z, or seconds since the epoch"
        ) from None
    if value.tzinfo is None:
        raise InvalidInput(f"{what} is {text!r}, which has no zone; add Z for UTC or an offset such as -03:00")
    return to_micros(value, what)


def _shown(value: object) -> str:
    return f"{value!r} ({type(value).__name__})"[:120]

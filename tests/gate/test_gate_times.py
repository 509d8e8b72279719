"""Times from outside: aware datetimes and seconds, kept to the microsecond; all else is refused with what to pass."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from fractions import Fraction
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import memcore
from memcore import clock
from memcore.errors import InvalidInput

NAIVE = (
    "{} is a naive datetime ({}); times need a zone: pass datetime(…, tzinfo=timezone.utc), value.astimezone() for "
    "local time, or seconds since the epoch"
)
KIND = (
    "{} is {}; a time is a timezone-aware datetime or a number of seconds since the epoch: for a text use "
    "datetime.fromisoformat(text), for a date datetime.combine(date, time(0), tzinfo=timezone.utc)"
)
LATE = "{} is {} seconds, later than the year 9999; times are in seconds, not milliseconds: divide milliseconds by 1000"
ISO = "give ISO 8601 with a zone such as 2026-03-01T09:30:00Z, or seconds since the epoch"
EARLY = "{} is {} seconds, earlier than the year 1; pass seconds since 1970-01-01T00:00Z"
FINITE = "{} is {}; a time in seconds is finite: leave it out for now"
YEARS = "{} is {}, which is outside the years 1 to 9999 in UTC; pass a time within them, or leave it out"

WALL = datetime(2026, 5, 1, 12, tzinfo=UTC).replace(tzinfo=None)  # a time without a zone
BAD = [
    (WALL, NAIVE, "2026-05-01T12:00:00"),
    (date(2026, 5, 1), KIND, "datetime.date(2026, 5, 1) (date)"),
    ("2026-05-01T12:00:00Z", KIND, "'2026-05-01T12:00:00Z' (str)"),
    ("1777636800", KIND, "'1777636800' (str)"),
    (np.datetime64("2026-05-01"), KIND, "np.datetime64('2026-05-01') (datetime64)"),
    (timedelta(1), KIND, "datetime.timedelta(days=1) (timedelta)"),
    (True, KIND, "True (bool)"),
    ([1], KIND, "[1] (list)"),
    (1_777_636_800_123, LATE, "1777636800123"),
    (1_777_636_800_123.0, LATE, "1777636800123.0"),
    (253_402_300_800, LATE, "253402300800"),
    (1e308, LATE, "1e+308"),
    (10**5000, LATE, "<unprintable>"),
    (-1_777_636_800_123, EARLY, "-1777636800123"),
    (-62_135_596_801, EARLY, "-62135596801"),
    (math.nan, FINITE, "nan"),
    (math.inf, FINITE, "inf"),
    (-math.inf, FINITE, "-inf"),
    (np.float32("nan"), FINITE, "nan"),
    (Fraction(10**400), FINITE, "inf"),
    (datetime.max.replace(tzinfo=timezone(timedelta(hours=-3))), YEARS, "9999-12-31T23:59:59.999999-03:00"),
    (datetime.min.replace(tzinfo=timezone(timedelta(hours=9))), YEARS, "0001-01-01T00:00:00+09:00"),
]
DOORS = [
    ("event_time", lambda ops, time: ops.remember("x", event_time=time)),
    ("expires_at", lambda ops, time: ops.remember("x", expires_at=time)),
    ("now", lambda ops, time: ops.remember("x", now=time)),
    ("now", lambda ops, time: ops.remember_many(["x"], now=time)),
    ("event_time", lambda ops, time: ops.update(ops.list()[0].id, event_time=time)),
    ("expires_at", lambda ops, time: ops.update(ops.list()[0].id, expires_at=time)),
    ("now", lambda ops, time: ops.update(ops.list()[0].id, content="y", now=time)),
    ("now", lambda ops, time: ops.recall(vector=[1, 0], now=time)),
    ("as_of", lambda ops, time: ops.recall(vector=[1, 0], as_of=time)),
    ("as_of", lambda ops, time: ops.get(key="invoices", as_of=time)),
    ("now", lambda ops, time: ops.list(now=time)),
    ("now", lambda ops, time: ops.forget(everything=True, now=time)),
    ("where['event_time']", lambda ops, time: ops.list(where={"event_time": time})),
]


@pytest.mark.parametrize(("value", "message", "told"), BAD, ids=range(len(BAD)))
@pytest.mark.parametrize(("what", "call"), DOORS, ids=[f"{i}-{door[0]}" for i, door in enumerate(DOORS)])
def test_what_is_no_time_is_refused_at_every_door(refused, what, call, value, message, told):
    refused(lambda ops: call(ops, value), message.format(what, told))


def test_the_clock_is_an_outside_value_too():
    mem = memcore.open(embedder=None, clock=lambda: WALL)
    with pytest.raises(InvalidInput) as error:
        mem.remember("x")
    assert str(error.value) == NAIVE.format("the clock's time", "2026-05-01T12:00:00")
    assert len(mem.list(now=0)) == 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (-1, datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (1_777_636_800, datetime(2026, 5, 1, 12, tzinfo=UTC)),
        (1_777_636_800.123456, datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)),
        (np.int64(1_777_636_800), datetime(2026, 5, 1, 12, tzinfo=UTC)),
        (np.float64(0.5), datetime(1970, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)),
        (Fraction(1, 3), datetime(1970, 1, 1, 0, 0, 0, 333_333, tzinfo=UTC)),
        (-62_135_596_800, datetime.min.replace(tzinfo=UTC)),
        (253_402_300_799, datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)),
        (datetime(2026, 5, 1, 9, tzinfo=timezone(timedelta(hours=-3))), datetime(2026, 5, 1, 12, tzinfo=UTC)),
        # The hour that comes twice: 01:30 EDT and, with fold, 01:30 EST.
        (datetime(2026, 11, 1, 1, 30, tzinfo=ZoneInfo("America/New_York")), datetime(2026, 11, 1, 5, 30, tzinfo=UTC)),
        (
            datetime(2026, 11, 1, 1, 30, fold=1, tzinfo=ZoneInfo("America/New_York")),
            datetime(2026, 11, 1, 6, 30, tzinfo=UTC),
        ),
        # The hour that never was: read by the offset before it, as datetime itself does.
        (datetime(2026, 3, 8, 2, 30, tzinfo=ZoneInfo("America/New_York")), datetime(2026, 3, 8, 7, 30, tzinfo=UTC)),
    ],
    ids=range(14),
)
def test_a_time_is_an_instant(ops, value, expected):
    made = ops.remember("x", event_time=value)
    for record in (made, ops.get(made.id), ops.list()[-1]):
        assert record.event_time == expected
        assert record.event_time.utcoffset() == timedelta(0)


def test_the_epoch_itself_expires_at_once(ops):
    """0 stands for never inside, so the instant is stored a microsecond earlier."""
    ops.remember("gone", expires_at=0, now=-10)
    assert "gone" in [record.content for record in ops.list(now=-5)]
    assert "gone" not in [record.content for record in ops.list(now=0)]
    ops.update(ops.list()[0].id, expires_at=0)
    assert len(ops.list()) == 2


ZONES = ["UTC", "Asia/Tokyo", "America/New_York", "America/Sao_Paulo", "Asia/Kathmandu", "Australia/Lord_Howe"]


@settings(deadline=None)
@given(
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),  # noqa: DTZ001
    st.sampled_from(ZONES).map(ZoneInfo)
    | st.integers(-86_399_999_999, 86_399_999_999).map(lambda us: timezone(timedelta(microseconds=us))),
    st.integers(0, 1),
)
@example(datetime(2026, 11, 1, 1, 30), ZoneInfo("America/New_York"), 1)  # noqa: DTZ001
@example(datetime(1883, 11, 18, 12, 3, 57, 999_999), ZoneInfo("America/New_York"), 0)  # noqa: DTZ001 - local mean time
def test_an_aware_datetime_comes_back_to_the_microsecond(wall, zone, fold):
    value = wall.replace(tzinfo=zone, fold=fold)
    mem = memcore.open(embedder=None, clock=lambda: 1e9)
    record = mem.remember("x", event_time=value, expires_at=datetime.max.replace(tzinfo=UTC), now=value)
    expected = value.astimezone(UTC)
    for found in (record, mem.list(now=value)[0]):
        assert found.event_time == found.ingested_at == expected
        assert found.event_time.replace(tzinfo=None) == expected.replace(tzinfo=None)
    table = mem.list(now=value).to_arrow()
    assert table.column("event_time").type.tz == "UTC"
    assert clock.to_datetime(table.column("event_time")[0].value) == expected
    assert clock.parse(clock.to_text(clock.to_micros(value, "t")), "t") == clock.to_micros(value, "t")


@given(st.integers(-62_135_596_800, 253_402_300_799))
def test_whole_seconds_are_exact(seconds):
    assert clock.to_micros(seconds, "t") == seconds * 1_000_000
    assert clock.to_micros(float(seconds), "t") == seconds * 1_000_000
    assert clock.to_datetime(seconds * 1_000_000).timestamp() == seconds


@given(st.datetimes(datetime(1850, 1, 1), datetime(2090, 1, 1)))  # noqa: DTZ001
def test_a_timestamp_means_the_microsecond_it_was_taken_from(wall):
    value = wall.replace(tzinfo=UTC)
    assert clock.to_micros(value.timestamp(), "t") == clock.to_micros(value, "t")


def test_text_times():
    assert clock.parse("2026-03-01T09:30:00Z", "since") == clock.parse(" 2026-03-01T06:30:00-03:00\n", "since")
    assert clock.parse("1777636800.5", "since") == 1_777_636_800_500_000
    assert clock.to_text(1_777_636_800_500_000) == "2026-05-01T12:00:00.500000Z"
    for text, told in (
        (
            "2026-03-01T09:30",
            "since is '2026-03-01T09:30', which has no zone; add Z for UTC or an offset such as -03:00",
        ),
        ("2026-03-01", "since is '2026-03-01', which has no zone; add Z for UTC or an offset such as -03:00"),
        ("soon \ud800", f"since is 'soon \\ud800'; {ISO}"),
        ("nan", FINITE.format("since", "nan")),
        ("1e400", FINITE.format("since", "inf")),
        ("1777636800123", LATE.format("since", "1777636800123.0")),
        ("9999-12-31T23:59:59-01:00", YEARS.format("since", "9999-12-31T23:59:59-01:00")),
    ):
        with pytest.raises(InvalidInput) as error:
            clock.parse(text, "since")
        assert str(error.value) == told


def test_case_D1_a_future_event_has_age_zero():
    now = datetime(2030, 1, 1, tzinfo=UTC)
    mem = memcore.open(embedder=None, clock=lambda: now)
    mem.remember("F", event_time=datetime(2040, 1, 1, tzinfo=UTC), vector=[0.9, 0.1])
    mem.remember("A", vector=[1, 0])
    for hits in (mem.recall(vector=[1, 0], decay_rate=0.01), mem.recall_many(vectors=[[1, 0], [0, 1]])[0]):
        assert [hit.content for hit in hits] == ["A", "F"]
        assert [hit.age_hours for hit in hits] == [0.0, 0.0]
        assert [hit.recency_component for hit in hits] == [1.0, 1.0]
        assert all(math.isfinite(hit.total_score) and hit.total_score <= 1 for hit in hits)


def test_case_D3_an_expiry_is_the_same_instant_wherever_the_host_is(python):
    code = """
        from datetime import datetime, timedelta, timezone
        import memcore
        tokyo = timezone(timedelta(hours=9))
        end = datetime(2031, 5, 11, tzinfo=tokyo)
        mem = memcore.open(embedder=None, clock=lambda: datetime(2031, 5, 1, tzinfo=timezone.utc))
        for faulty in (datetime(2031, 5, 10), "2031-05-10", datetime(2031, 5, 10).date()):
            try:
                mem.remember("voucher", expires_at=faulty)
            except memcore.InvalidInput as error:
                print(error)
        mem.remember("voucher", expires_at=end)
        for now in (datetime(2031, 5, 10, 23, 30, tzinfo=tokyo), end - timedelta(microseconds=1), end):
            print(len(mem.list(now=now)), len(mem.recall(now=now)))
        print(mem.list()[0].expires_at.isoformat())
    """
    answers = {python(code, TZ=zone) for zone in ("UTC", "Asia/Tokyo", "America/Los_Angeles")}
    assert answers == {
        "\n".join(
            [
                NAIVE.format("expires_at", "2031-05-10T00:00:00"),
                KIND.format("expires_at", "'2031-05-10' (str)"),
                KIND.format("expires_at", "datetime.date(2031, 5, 10) (date)"),
                "1 1",
                "1 1",
                "0 0",
                "2031-05-10T15:00:00+00:00",
            ]
        )
    }


def test_case_D5_an_export_keeps_the_instant_its_fraction_and_a_zone(tmp_path):
    made = datetime(2030, 6, 1, 0, 0, 0, 123_000, tzinfo=UTC)
    mem = memcore.open(embedder=None, clock=lambda: made)
    record = mem.remember("x", event_time=made, expires_at=made + timedelta(days=1, microseconds=7))
    for name in ("all.jsonl", "all.json", "all.parquet"):
        mem.export(tmp_path / name)
        other = memcore.open(embedder=None, clock=lambda: made)
        other.import_(tmp_path / name)
        (twin,) = other.list()
        assert (twin.event_time, twin.ingested_at, twin.expires_at) == (made, made, record.expires_at)
    row = json.loads((tmp_path / "all.jsonl").read_text(encoding="utf-8").splitlines()[1])
    assert row["event_time"] == row["ingested_at"] == "2030-06-01T00:00:00.123000Z"
    assert row["expires_at"] == "2030-06-02T00:00:00.123007Z"
    assert datetime.fromisoformat(row["event_time"]) == made

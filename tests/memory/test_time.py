"""What was known when: as_of, history, expiry, clocks that stand still or go backwards, and how often a memory was
read.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore.store.writes import prepare_of


@pytest.fixture
def mem() -> memcore.Memory:
    return memcore.open(embedder=None, clock=lambda: 1000)


def contents(records: Any) -> list[str]:
    return [record.content for record in records]


# As of


def test_as_of_answers_as_the_memory_stood(mem):
    fact = mem.remember("Tuesday", kind="semantic", key="window", vector=[1.0, 0.0], now=10)
    mem.remember("an event", event_time=5, vector=[0.0, 1.0], now=20)
    mem.update(fact.id, content="Thursday", now=30)
    mem.remember("Friday", kind="semantic", key="window", now=40)
    stood = {9: [], 10: ["Tuesday"], 19: ["Tuesday"], 20: ["Tuesday", "an event"], 30: ["Thursday", "an event"],
             39: ["Thursday", "an event"], 40: ["Friday", "an event"], 10**6: ["Friday", "an event"]}  # fmt: skip
    for moment, expected in stood.items():
        assert sorted(contents(mem.list(as_of=moment))) == sorted(expected)
        assert sorted(contents(mem.recall(k=10, as_of=moment))) == sorted(expected)
        assert sorted(contents(mem.recall_many(vectors=[[1.0, 0.0]], k=10, as_of=moment)[0])) == sorted(expected)
        got = mem.get(key="window", as_of=moment)
        assert (got.content if got else None) == next((c for c in expected if c.endswith("day")), None)


def test_as_of_counts_ages_to_that_moment(mem):
    mem.remember("x", event_time=0, now=0)
    (hit,) = mem.recall(k=1, as_of=7200)
    assert hit.age_hours == 2
    (hit,) = mem.recall(k=1, as_of=7200, now=10800)
    assert hit.age_hours == 3


def test_what_is_forgotten_is_in_no_past(mem):
    first = mem.remember("x", now=1)
    mem.forget(first.id, now=5)
    assert len(mem.list(as_of=2)) == 0
    assert mem.get(first.id, as_of=2) is None
    assert len(mem.history(id=first.id)) == 0


def test_what_expired_since_stood_then(mem):
    first = mem.remember("x", expires_at=10, now=1)
    assert mem.get(first.id, now=20) is None
    assert mem.get(first.id, as_of=9).content == "x"
    assert mem.get(first.id, as_of=10) is None


def test_versions_of_one_moment_leave_the_last(mem):
    first = mem.remember("A", now=10)
    mem.update(first.id, content="B", now=10)
    mem.update(first.id, content="C", now=10)
    assert contents(mem.list(as_of=10)) == ["C"]
    assert contents(mem.list(as_of=9)) == []
    assert contents(mem.history(id=first.id)) == ["A", "B", "C"]


def test_a_clock_that_goes_backwards_leaves_one_version_at_any_moment(mem):
    first = mem.remember("A", kind="semantic", key="k", now=100)
    mem.update(first.id, content="B", now=200)
    mem.update(first.id, content="C", now=50)
    mem.remember("D", kind="semantic", key="k", now=60)
    mem.remember("E", kind="semantic", key="k", now=300)
    for moment, expected in ((50, []), (60, []), (100, ["A"]), (150, ["A"]), (200, ["D"]), (299, ["D"]), (300, ["E"])):
        assert contents(mem.list(as_of=moment)) == expected
    assert [r.ingested_at.timestamp() for r in mem.history("k")] == [100, 200, 200, 200, 300]


def test_a_clock_that_goes_backwards_leaves_a_message_that_fell_out_before_in_one_version(mem):
    mem = memcore.open(embedder=None, working_capacity=2)
    ops = mem.scope(session_id="s")
    for place, now in enumerate((0, 1, 10)):
        ops.working().add("user", f"message {place}", now=now)
    assert len(ops.end_session(now=5)) == 3
    assert contents(ops.list(as_of=7)) == ["message 0", "message 1"]
    assert [(r.version, r.ingested_at.timestamp()) for r in ops.history(id=ops.list()[0])] == [(1, 0), (2, 10)]
    old = ops.remember("before the epoch", now=-50)
    assert ops.update(old, content="later", now=-40).ingested_at.timestamp() == -40
    assert mem.verify().ok


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12))
@settings(max_examples=80, deadline=None)
def test_at_any_moment_one_version_stands(times):
    mem = memcore.open(embedder=None)
    for place, now in enumerate(times):
        mem.remember(str(place), kind="semantic", key="k", now=now)
    for moment in range(8):
        stood = mem.list(as_of=moment)
        assert len(stood) == (times[0] <= moment)
        if stood:
            assert int(stood[0].content) == max(i for i in range(len(times)) if max(times[: i + 1]) <= moment)


def at_once(scope, calls):
    """Does calls of `remember`, each with a time of its own, as one commit: as when many threads write."""
    remember = prepare_of(type(scope).remember)
    writes = [remember(scope, **call) for call in calls]
    scope._engine.commits.run_all([write.ticket for write in writes])
    for write in writes:
        assert write.ticket.fault is None
        write.then(write.ticket.result)


def test_two_calls_for_one_key_in_one_commit_keep_their_times(mem):
    at_once(mem, [{"content": f"day {n}", "kind": "semantic", "key": "k", "now": n * 86_400} for n in (1, 5)])
    assert contents(mem.list(as_of=3 * 86_400)) == ["day 1"]
    assert [r.ingested_at.timestamp() for r in mem.history("k")] == [86_400, 5 * 86_400]
    assert mem.history("k")[0].superseded_at.timestamp() == 5 * 86_400


@given(
    calls=st.lists(
        st.tuples(st.sampled_from(("working", "system", "semantic", "other")), st.integers(0, 6), st.integers(0, 9)),
        min_size=1,
        max_size=12,
    ),
    tokens=st.sampled_from((None, 12)),
)
@settings(max_examples=150, deadline=None)
def test_many_calls_in_one_commit_are_as_one_by_one(calls, tokens):
    def told(together: bool) -> Any:
        mem = memcore.open(embedder=None, working_capacity=3, working_tokens=tokens, count_tokens=len)
        scope = mem.scope(session_id="s")
        fields = [
            {
                "content": f"{place} {'x' * size}",
                "kind": "working" if what == "system" else "semantic" if what == "other" else what,
                "key": None if what in ("working", "system") else what,
                "metadata": {"role": "system"} if what == "system" else None,
                "now": now,
            }
            for place, (what, now, size) in enumerate(calls)
        ]
        if together:
            at_once(scope, fields)
        for call in () if together else fields:
            scope.remember(**call)
        versions = [scope.history(id=row) for row in scope.list(kinds=memcore.KINDS)]
        then = [sorted(contents(scope.list(as_of=moment))) for moment in range(8)]
        scope.end_session(now=7)
        versions += [scope.history(id=row) for row in scope.list(kinds="episodic")]
        assert mem.verify().problems == []
        return then, [
            [(r.content, r.version, r.kind, r.ingested_at, r.superseded_at) for r in rows] for rows in versions
        ]

    assert told(True) == told(False)


# History


def test_history_tells_all_versions_and_when_each_was_replaced(mem):
    first = mem.remember("A", kind="semantic", key="k", now=10)
    mem.update(first.id, content="B", now=20)
    mem.remember("C", kind="semantic", key="k", now=30)
    told = [(r.version, r.content, r.superseded_at and r.superseded_at.timestamp()) for r in mem.history("k")]
    assert told == [(1, "A", 20), (2, "B", 30), (3, "C", None)]
    assert [r.id for r in mem.history(id=first.id)] == [first.id] * 3


def test_history_takes_a_key_or_an_id(mem):
    for call in (
        lambda: mem.history(),
        lambda: mem.history("k", id="x"),
        lambda: mem.get(),
        lambda: mem.get("x", key="k"),
    ):
        with pytest.raises(memcore.InvalidInput, match=r"takes an? (key|id) or an? (key|id); pass one of them"):
            call()
    assert len(mem.history("never")) == 0


def test_get_history_and_update_take_a_record_for_its_id(mem):
    first = mem.remember("A", kind="semantic", key="k")
    second = mem.update(first, content="B")
    assert (second.id, second.version) == (first.id, 2)
    assert mem.get(first).content == "B"
    assert [record.content for record in mem.history(id=second)] == ["A", "B"]
    mem.forget(first)
    assert mem.get(first) is None
    with pytest.raises(memcore.NotFound, match=f"no memory {first.id} in tenant 'default'"):
        mem.update(first, content="C")
    with pytest.raises(memcore.InvalidInput, match=r"id is <object object at \w+> \(object\); an id is a UUID"):
        mem.get(object())


def test_a_record_is_no_key(mem):
    record = mem.remember("x", key="k")
    for verb in (mem.history, lambda key: mem.get(key=key)):
        with pytest.raises(memcore.InvalidInput) as raised:
            verb(record)
        assert str(raised.value).endswith("a key is a text: for a record or a hit pass id=")


def test_history_shows_what_has_expired(mem):
    mem.remember("A", kind="semantic", key="k", expires_at=5, now=1)
    assert contents(mem.history("k")) == ["A"]


# Expiry


def test_expiry_is_exact_to_the_microsecond(mem):
    over = datetime(2031, 5, 10, 12, 0, 0, 7, tzinfo=UTC)
    ops = mem.scope("t")
    first = ops.remember(
        "x", kind="semantic", key="k", expires_at=over, vector=[1.0, 0.0], now=over - timedelta(days=1)
    )
    before = over - timedelta(microseconds=1)
    reads = {
        "get": lambda now: ops.get(first.id, now=now) is not None,
        "get by key": lambda now: ops.get(key="k", now=now) is not None,
        "list": lambda now: len(ops.list(now=now)),
        "recall": lambda now: len(ops.recall(vector=[1.0, 0.0], now=now)),
        "recall_many": lambda now: len(ops.recall_many(vectors=[[1.0, 0.0]], now=now)[0]),
        "filter": lambda now: len(ops.list(where={"key": "k"}, now=now)),
    }
    for name, read in reads.items():
        assert read(before) == 1, name
        assert read(over) == 0, name
        assert read(over + timedelta(days=1)) == 0, name


def test_case_D7_a_read_never_revives_what_has_expired(mem):
    record = mem.remember("x", kind="semantic", key="k", expires_at=60, vector=[1.0, 0.0], now=0)
    for now in (61, 62):
        assert mem.get(key="k", now=now) is None
        assert mem.get(record.id, now=now) is None
        assert len(mem.recall(vector=[1.0, 0.0], now=now)) == 0
    (after,) = mem.history("k")
    assert (after.access_count, after.last_access, after.expires_at.timestamp()) == (0, None, 60)


def test_an_expiry_that_is_past_when_remembered(mem):
    record = mem.remember("x", expires_at=5, now=10)
    assert mem.get(record.id, now=10) is None
    assert mem.get(record.id, now=4) is not None


def test_the_epoch_is_a_time_like_any_other(mem):
    record = mem.remember("x", event_time=0, expires_at=0, now=-5)
    assert record.expires_at is not None
    assert mem.get(record.id, now=0) is None
    assert mem.get(record.id, now=-5).last_access.timestamp() == -5


def test_case_D3_the_host_zone_makes_no_difference():
    script = (
        "import memcore, datetime as d\n"
        "tokyo = d.timezone(d.timedelta(hours=9))\n"
        "mem = memcore.open(embedder=None)\n"
        "mem.remember('x', expires_at=d.datetime(2031, 5, 11, tzinfo=tokyo), now=0)\n"
        "print([len(mem.list(now=d.datetime(2031, 5, day, hour, 30, tzinfo=tokyo))) for day, hour in ((10, 23), (11, "
        "0))])\ntry:\n    mem.remember('y', expires_at=d.datetime(2031, 5, 10))\n"
        "except memcore.InvalidInput as fault:\n    print('naive datetime' in str(fault))\n"
    )
    shown = {
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "TZ": zone}, capture_output=True, text=True, check=True
        ).stdout
        for zone in ("UTC", "Asia/Tokyo", "America/Los_Angeles")
    }
    assert shown == {"[1, 0]\nTrue\n"}


def test_case_D1_an_event_of_the_future_has_age_zero(mem):
    now = datetime(2030, 1, 1, tzinfo=UTC)
    mem.remember("F", event_time=datetime(2040, 1, 1, tzinfo=UTC), vector=[0.0, 1.0], now=now)
    mem.remember("A", vector=[1.0, 0.0], now=now)
    first, second = mem.recall(vector=[1.0, 0.1], now=now)
    assert (first.content, second.content) == ("A", "F")
    assert (second.age_hours, second.recency_component) == (0, 1.0)


# Which clock


def test_now_decides_and_the_clock_is_read_once_a_call():
    reads = []

    def clock() -> float:
        reads.append(time.monotonic())
        return 1000 + len(reads)

    mem = memcore.open(embedder=None, clock=clock)
    ops = mem.scope("t")
    record = ops.remember("x", vector=[1.0, 0.0])
    assert len(reads) == 1
    assert (record.event_time, record.ingested_at) == (record.ingested_at, record.event_time)
    calls = {
        "remember_many": lambda **now: ops.remember_many(["y", "z"], **now),
        "update": lambda **now: ops.update(record.id, importance=0.1, **now),
        "recall": lambda **now: ops.recall(vector=[1.0, 0.0], **now),
        "recall_many": lambda **now: ops.recall_many(vectors=[[1.0, 0.0]], **now),
        "get": lambda **now: ops.get(record.id, **now),
        "list": lambda **now: ops.list(**now),
        "forget": lambda **now: ops.forget(older_than_days=1, **now),
        "end_session": lambda **now: ops.end_session(**now),
        "working": lambda **now: ops.working().entries(**now),
    }
    for name, call in calls.items():
        before = len(reads)
        call()
        assert len(reads) == before + 1, name
        call(now=5000)
        assert len(reads) == before + 1, name


def test_a_clock_may_give_datetimes_and_must_give_times():
    zone = timezone(timedelta(hours=-3))
    mem = memcore.open(embedder=None, clock=lambda: datetime(2026, 1, 1, tzinfo=zone))
    assert mem.remember("x").ingested_at == datetime(2026, 1, 1, 3, tzinfo=UTC)
    broken = memcore.open(embedder=None, clock=lambda: "now")
    with pytest.raises(memcore.InvalidInput, match="the clock's time is 'now'"):
        broken.remember("x")


# How often a memory was read


def test_recall_and_get_count_and_list_and_history_do_not(mem):
    one = mem.remember("one", kind="semantic", key="k", vector=[1.0, 0.0], now=1)
    mem.remember("two", vector=[0.0, 1.0], now=1)

    def counts() -> list[tuple[int, float | None]]:
        return [(r.access_count, r.last_access and r.last_access.timestamp()) for r in mem.list()]

    mem.list(), mem.history("k"), mem.stats(), mem.forget(kinds="episodic", dry_run=True)
    mem.get(one.id, as_of=5), mem.recall(k=5, as_of=5)
    assert counts() == [(0, None), (0, None)]
    mem.recall(vector=[1.0, 0.0], k=1, now=10)
    assert counts() == [(1, 10), (0, None)]
    mem.recall(k=5, now=20)
    mem.recall(k=0, now=30)
    assert counts() == [(2, 20), (1, 20)]
    mem.get(one.id, now=40), mem.get(key="k", now=15)  # the last access is the latest
    assert counts() == [(4, 40), (1, 20)]
    mem.recall_many(vectors=[[1.0, 0.0], [1.0, 0.1]], k=1, now=50)
    assert counts() == [(6, 50), (1, 20)]
    mem.get(one.id, kind="episodic"), mem.recall(k=5, where={"key": "none"}), mem.recall(k=5, min_score=0.9999)
    assert counts() == [(6, 50), (1, 20)]


def test_counts_go_on_through_versions(mem):
    record = mem.remember("one", now=1)
    mem.get(record.id, now=2)
    assert mem.update(record.id, content="two", now=3).access_count == 1
    mem.get(record.id, now=4)
    assert [r.access_count for r in mem.history(id=record.id)] == [1, 2]

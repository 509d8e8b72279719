"""prune: which memories it lets go, by a comparison of whole numbers; what it tells; retention; and what undoes it."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcore
import naive
from drawn import thorough
from memcore import engine as engines
from memcore.lifecycle import prune as pruning

DAY = 86_400
NOW = 1_800_000_000
MICROS = 1_000_000


@pytest.fixture(params=["in RAM", "in a directory"])
def mem(request, tmp_path):
    path = None if request.param == "in RAM" else tmp_path / "m"
    with memcore.open(path, embedder=None, clock=lambda: NOW) as opened:
        yield opened


def contents(records: Any) -> list[str]:
    return [record.content for record in records]


def filled(ops: memcore.Scope) -> None:
    """Events of four ages, each with a low and a high importance."""
    for days in (1, 10, 40, 100):
        for importance in (0.1, 0.9):
            ops.remember(f"{days} {importance}", importance=importance, event_time=NOW - days * DAY)


# Which

RATES = ("0.01", "0.1", "1", "0.000001", "1e-9", "0.25")
TAUS = (0.05, 0.5, 0.999999, 1e-9, 1.0, 0.0, 5e-324)


@thorough(300)
@given(
    rate=st.sampled_from(RATES),
    tau=st.sampled_from(TAUS) | st.floats(0, 1),
    off=st.integers(-3, 3) | st.integers(-(10**15), 10**15),
    importance=st.sampled_from((0.3, 0.7, 0.29999998, 0.1, 1.0)) | st.floats(0, 1, width=32),
    below=st.sampled_from((0.3, 0.7, 0.0, 1.0)) | st.floats(0, 1),
)
def test_what_has_faded_is_what_the_formula_says(rate, tau, off, importance, below):
    now = NOW * MICROS
    border = int(-Decimal(repr(tau)).ln() / Decimal(rate) * 3_600_000_000) if tau else 0
    time = max(now - border, -(2**62)) + off
    chosen = pruning.faded(
        np.array([time]), np.array([importance], np.float32), now, below, pruning.fading_age(tau, float(rate))
    )
    assert chosen.tolist() == [naive.faded(time, importance, now, below, tau, rate)]


def test_the_border_is_between_two_microseconds():
    now, age = NOW * MICROS, pruning.fading_age(0.05, 0.01)
    exact = -Decimal("0.05").ln() / Decimal("0.01") * 3_600_000_000
    assert age == int(exact)
    times = now - np.array([age - 1, age, age + 1])
    assert pruning.faded(times, np.zeros(3, np.float32), now, 0.3, age).tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("tau", "rate", "ages"), [(0.05, 0.0, []), (0.0, 0.01, []), (1.0, 0.01, [1, 10**15]), (0.5, 1e-300, [])]
)
def test_borders_that_no_memory_or_every_one_has_passed(tau, rate, ages):
    now = NOW * MICROS
    every = np.array([-(10**15), 0, 1, 10**15])
    chosen = pruning.faded(now - every, np.zeros(4, np.float32), now, 0.3, pruning.fading_age(tau, rate))
    assert every[chosen].tolist() == ages


def test_case_D1_an_event_that_is_still_to_come_has_not_faded(mem):
    mem.remember("in ten years", importance=0.0, event_time=NOW + 3650 * DAY)
    assert mem.prune(recency_below=1.0).count == 0
    assert mem.prune(recency_below=1.0, now=NOW + 3651 * DAY).count == 1


@thorough(100)
@given(days=st.integers(1, 4000), off=st.integers(-2, 2), now=st.integers(0, 2 * 10**15))
def test_what_is_overdue_is_older_than_the_days(days, off, now):
    time = now - days * DAY * MICROS + off
    rule = memcore.Retention(days=days)
    assert rule.overdue(np.array([time]), now).tolist() == [naive.overdue(time, now, days)]


def test_both_must_be_low(mem):
    ops = mem.scope("t", "p")
    filled(ops)
    report = ops.prune()
    assert contents(ops.list(tiers="cold")) == ["40 0.1", "100 0.1"]
    assert contents(ops.list()) == ["1 0.1", "1 0.9", "10 0.1", "10 0.9", "40 0.9", "100 0.9"]
    assert (report.count, len(report), int(report), report.examined) == (2, 2, 2, 8)
    assert ops.prune().count == 0


def test_the_bounds_can_be_chosen(mem):
    ops = mem.scope("t", "p")
    filled(ops)
    assert ops.prune(importance_below=0.1, dry_run=True).count == 0
    assert ops.prune(importance_below=1, dry_run=True).count == 4
    assert ops.prune(recency_below=0.1, dry_run=True).count == 3
    assert ops.prune(decay_rate=0.1, dry_run=True).count == 3
    assert ops.prune(decay_rate="focused", dry_run=True).count == 3
    assert ops.prune(decay_rate=0, dry_run=True).count == 0
    assert ops.prune(now=NOW + 30 * DAY, dry_run=True).count == 4


def test_the_decay_is_that_of_the_store():
    with memcore.open(embedder=None, clock=lambda: NOW, decay_rate=0.1) as mem:
        filled(mem)
        assert mem.prune(dry_run=True).count == 3


def test_only_what_happened_fades(mem):
    for kind in memcore.KINDS:
        mem.remember(kind, kind=kind, importance=0.0, event_time=0)
    mem.remember("expired", importance=0.0, event_time=0, expires_at=NOW - 1)
    assert mem.prune().count == 2
    assert contents(mem.list()) == ["working", "semantic", "procedural"]


def test_a_memory_goes_by_its_last_version(mem):
    first = mem.remember("was low", importance=0.1, event_time=0)
    second = mem.remember("was high", importance=0.9, event_time=0)
    mem.update(first.id, importance=0.9)
    mem.update(second.id, importance=0.1)
    assert mem.prune().ids == [second.id]
    assert [r.importance for r in mem.history(id=second.id, tiers="cold")] == [0.9, 0.1]
    assert len(mem.history(id=second.id)) == 0


# What it tells


def test_it_tells_why(mem):
    ops = mem.scope("t", "p")
    id = ops.remember("old", importance=0.1, event_time=NOW - 40 * DAY).id
    (one,) = ops.prune(dry_run=True).moved
    assert one == memcore.Pruned(
        id, "t", "p", 0.1, math.exp(-9.6), 960.0, "importance 0.1 is below 0.3, and recency 6.8e-05 is below 0.05"
    )
    (erased,) = ops.prune(dry_run=True, retention=memcore.Retention(days=30, kind="episodic")).erased
    why = "it is 40.0 days old, and Retention(days=30, kind='episodic') keeps it for 30"
    assert erased.why == why
    would = ops.prune(dry_run=True, retention=memcore.Retention(days=30, kind="episodic"))
    assert would.explain() == f"{id} would be erased: {why}"
    assert ops.prune(retention=[]).explain() == f"{id} to the cold tier: {one.why}"
    assert ops.prune(retention=memcore.Retention(days=30, kind="episodic")).explain() == f"{id} erased: {why}"


def test_a_dry_run_tells_what_the_next_run_does_and_does_nothing(mem):
    ops = mem.scope("t", "p")
    filled(ops)
    rules = [memcore.Retention(days=60)]
    before = list(ops.list())
    told = ops.prune(dry_run=True, retention=rules)
    assert told.dry_run
    assert list(ops.list()) == before
    assert mem.stats()["cold"]["files"] == 0
    done = ops.prune(retention=rules)
    assert (done.moved, done.erased, done.examined) == (told.moved, told.erased, 6)
    assert not done.dry_run


def test_what_somebody_changes_meanwhile_stays(mem, monkeypatch):
    ops = mem.scope("t", "p")
    ids = [ops.remember(text, importance=0.1, event_time=0).id for text in ("updated", "forgotten", "erased", "left")]

    def meanwhile(name: str) -> None:
        if name == "before a cold file is named":
            ops.update(ids[0], content="updated just now")
            ops.forget(ids[1])
            ops.forget(ids[2], erase=True)

    monkeypatch.setattr(engines, "step", meanwhile)
    report = ops.prune()
    assert (report.ids, report.changed) == ([ids[3]], ids[:3])
    assert contents(ops.list()) == ["updated just now"]
    assert contents(ops.list(tiers="cold")) == ["left"]
    assert mem.stats()["cold"]["memories"] == 1
    assert contents(ops.forgotten()) == ["forgotten"]
    assert ops.restore(ids[:3]).ids == [ids[1]]
    assert contents(ops.list(tiers=("hot", "cold"))) == ["forgotten", "left", "updated just now"]


def test_nothing_is_named_if_everything_was_changed_meanwhile(mem, monkeypatch):
    id = mem.remember("one", importance=0.1, event_time=0).id
    monkeypatch.setattr(engines, "step", lambda name: name.startswith("before") and mem.forget(id))
    assert mem.prune().changed == [id]
    assert mem.stats()["cold"] == {"memories": 0, "files": 0, "bytes": 0}
    assert mem._engine.catalog.place.names() == []


# Where


def test_a_scope_prunes_its_own(mem):
    for tenant in ("a", "b"):
        for session in ("s1", "s2"):
            mem.scope(tenant, "p", session).remember(f"{tenant} {session}", importance=0, event_time=0)
    assert mem.scope("a", "p", "s1").prune().count == 1
    assert contents(mem.scope("a", "p").list(tiers="cold")) == ["a s1"]
    assert contents(mem.scope("a", "p", "s2").list(tiers="cold")) == []
    assert contents(mem.scope("b", "p").list()) == ["b s1", "b s2"]
    assert mem.scope("a", "q").prune().count == 0


def test_the_whole_store_is_pruned_and_brought_back(mem):
    scopes = [mem.scope("a", "p"), mem.scope("b", "p"), mem]
    for ops in scopes:
        filled(ops)
    report = mem.prune()
    assert (report.count, report.examined) == (6, 24)
    assert {(one.tenant_id, one.project_id) for one in report.moved} == {("a", "p"), ("b", "p"), ("default", "default")}
    assert mem.stats()["cold"]["memories"] == 6
    assert scopes[0].stats()["cold"]["memories"] == 2
    back = mem.restore(report)
    assert (sorted(back.ids), back.missing, back.in_use) == (sorted(report.ids), [], [])
    assert [len(ops.list()) for ops in scopes] == [8, 8, 8]


def test_restore_undoes_it(mem):
    ops = mem.scope("t", "p")
    filled(ops)
    ops.update(ops.list()[4].id, content="40 0.1, again")
    before = {r.id: list(ops.history(id=r.id)) for r in ops.list()}
    report = ops.prune()
    assert sorted(ops.restore(report).ids) == sorted(report.ids)
    for id, versions in before.items():
        after = list(ops.history(id=id))
        assert [plain(r) for r in after] == [plain(r) for r in versions]
    assert len(ops.list(tiers="cold")) == 0
    assert ops.restore(report).missing == report.ids


def plain(record: memcore.Record) -> dict[str, Any]:
    """A record without the place in the store that it has got."""
    return {name: getattr(record, name) for name in memcore.record_schema(None).names if name != "seq"}


# Retention


def test_what_is_older_than_its_days_is_erased_in_both_tiers(mem):
    ops = mem.scope("t", "p")
    filled(ops)
    ops.prune()
    report = ops.prune(retention=memcore.Retention(days=30))
    assert report.moved == []
    assert contents(ops.list(tiers=("hot", "cold"))) == ["1 0.1", "1 0.9", "10 0.1", "10 0.9"]
    assert len(report.erased) == 4
    assert len(ops.forgotten()) == 0
    assert ops.restore([one.id for one in report.erased]).ids == []


def test_days_are_counted_to_the_microsecond(mem):
    for age in (10 * DAY - 1e-6, 10 * DAY, 10 * DAY + 1e-6):
        mem.remember(str(age), event_time=NOW - age, importance=1)
    assert len(mem.prune(retention=memcore.Retention(days=10)).erased) == 1
    assert len(mem.prune(retention=memcore.Retention(days=9.9999)).erased) == 2


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        (memcore.Retention(days=1), []),
        (memcore.Retention(days=1, kind="semantic"), ["a p s1 episodic", "a p s2 episodic", "b p s1 episodic"]),
        (memcore.Retention(days=1, scope=("a", "p")), ["b p s1 episodic", "b p s1 semantic"]),
        (
            memcore.Retention(days=1, scope=("a", "p", "s2"), kind="episodic"),
            ["a p s1 episodic", "a p s1 semantic", "a p s2 semantic", "b p s1 episodic", "b p s1 semantic"],
        ),
        (memcore.Retention(days=1, scope=("a", "q")), None),
        (memcore.Retention(days=1, scope=("a", "p", "s")), None),
    ],
    ids=str,
)
def test_a_policy_is_for_its_kind_and_scope(mem, rule, left):
    places = [("a", "p", "s1"), ("a", "p", "s2"), ("b", "p", "s1")]
    every = [f"{' '.join(place)} {kind}" for place in places for kind in ("episodic", "semantic")]
    for text in every:
        *place, kind = text.split()
        mem.scope(*place).remember(text, kind=kind, importance=1, event_time=0)
    report = mem.prune(retention=rule)
    there = sorted(r.content for name in (("a", "p"), ("b", "p")) for r in mem.scope(*name).list())
    assert there == sorted(every if left is None else left)
    assert len(report.erased) == len(every) - len(there)


def test_a_session_s_scope_erases_nothing_of_another_session(mem):
    for session in ("s1", "s2"):
        mem.scope("t", "p", session).remember(session, importance=1, event_time=0)
    one = mem.scope("t", "p", "s1")
    assert one.prune(retention=memcore.Retention(days=1, scope=("t", "p", "s2"))).count == 0
    assert one.prune(retention=memcore.Retention(days=1, scope=("t", "p"))).count == 1
    assert contents(mem.scope("t", "p").list()) == ["s2"]


def test_policies_of_the_store_are_applied_unless_others_are_given(tmp_path):
    rules = [memcore.Retention(days=50), memcore.Retention(days=5, kind="semantic")]
    with memcore.open(tmp_path / "m", embedder=None, clock=lambda: NOW, retention=rules) as mem:
        filled(mem)
        mem.remember("fact", kind="semantic", importance=1, event_time=NOW - 6 * DAY)
        assert len(mem.prune(retention=[], dry_run=True).erased) == 0
        assert len(mem.prune(dry_run=True).erased) == 3
        assert len(mem.prune().erased) == 3


def test_two_policies_erase_a_memory_once(mem):
    mem.remember("old", importance=1, event_time=0)
    report = mem.prune(retention=[memcore.Retention(days=9), memcore.Retention(days=8)])
    assert [one.why.partition(", and ")[2] for one in report.erased] == ["Retention(days=9) keeps it for 9"]


def test_working_memory_that_fell_out_is_erased_too():
    with memcore.open(embedder=None, clock=lambda: NOW, working_capacity=2) as mem:
        for i in range(4):
            mem.remember(f"message {i}", kind="working", event_time=i)
        assert len(mem.prune(retention=memcore.Retention(days=1)).erased) == 4
        assert mem.end_session() == []


# What is refused


REFUSED = {
    "Retention.days is 0; it must be above 0: use forget to keep none": lambda: memcore.Retention(days=0),
    "Retention.days is True (bool); it must be a number: convert it, or leave it out": lambda: memcore.Retention(
        days=True
    ),
    "Retention.scope is 'acme' (str); pass (tenant, project) or (tenant, project, session), or None for every "
    "scope": lambda: memcore.Retention(days=1, scope="acme"),
    "Retention.scope's project is None; a scope is never guessed: pass a text, or leave the argument out for "
    "'default'": lambda: memcore.Retention(days=1, scope=("acme", None)),
    "retention is 90 (int); pass a list of memcore.Retention, such as "
    "[memcore.Retention(kind='episodic', days=90)]": lambda: memcore.open(embedder=None, retention=90),
    "retention is [{'days': 1}] (list); pass a list of memcore.Retention, such as "
    "[memcore.Retention(kind='episodic', days=90)]": lambda: empty().prune(retention=[{"days": 1}]),
    "tiers is 'warm' (str); pass one or both of hot, cold": lambda: empty().recall(tiers="warm"),
    "tiers is () (tuple); pass one or both of hot, cold": lambda: empty().list(tiers=()),
    "tiers is ['hot', 3] (list); pass one or both of hot, cold": lambda: empty().history("k", tiers=["hot", 3]),
}


def empty() -> memcore.Memory:
    return memcore.open(embedder=None)


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message):
    with pytest.raises(memcore.InvalidInput) as caught:
        REFUSED[message]()
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["importance_below", "recency_below"])
def test_bounds_are_between_0_and_1(mem, name):
    with pytest.raises(memcore.InvalidInput, match=f"^{name} is 1.5; "):
        mem.prune(**{name: 1.5})


def test_a_policy_can_be_compared_and_shown():
    rule = memcore.Retention(days=90, kind="episodic", scope=["acme", "billing"])
    assert rule == memcore.Retention(days=90, kind="episodic", scope=("acme", "billing"))
    assert str(rule) == "Retention(days=90, kind='episodic', scope=('acme', 'billing'))"

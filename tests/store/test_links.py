"""Links between memories: what a call makes and ends, what is seen when, and what goes with what is forgotten."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import memcore
from memcore.store.snapshot import link_table

NEVER = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture(params=["ram", "directory"])
def mem(request, tmp_path):
    path = None if request.param == "ram" else tmp_path / "a store é 🦉"
    with memcore.open(path, embedder=None, clock=lambda: 100) as opened:
        yield opened


def told(links: memcore.Links) -> list[tuple[str, str, str]]:
    return [(link.src_id, link.relation, link.dst_id) for link in links]


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


# What a call makes


def test_a_link_is_a_row_of_its_own(mem):
    a, b = mem.remember("a"), mem.remember("b")
    link = mem.link(a, "caused_by", b.id, attributes={"weight": 0.5, "é": [1]}, valid_from=50, valid_to=at(200))
    assert link == memcore.Link(a.id, "caused_by", b.id, {"weight": 0.5, "é": [1]}, at(100), at(50), at(200))
    other = mem.link(b, "any other name", a, now=120)
    assert (other.attributes, other.created_at, other.valid_from, other.valid_to) == ({}, at(120), None, None)
    links = mem.links(now=150)
    assert list(links) == [link, other]
    assert (len(links), links[0], links[-1], list(links[1:])) == (2, link, other, [other])
    assert repr(links) == "<Links: 2 rows>"
    table = links.to_arrow()
    times = pa.timestamp("us", tz="UTC")
    assert table.schema == pa.schema(
        [
            pa.field("src_id", pa.string(), nullable=False),
            pa.field("relation", pa.string(), nullable=False),
            pa.field("dst_id", pa.string(), nullable=False),
            pa.field("attributes", pa.string()),
            pa.field("created_at", times, nullable=False),
            pa.field("valid_from", times),
            pa.field("valid_to", times),
        ]
    )
    assert table.column("attributes").to_pylist() == ['{"weight":0.5,"é":[1]}', None]


def test_links_of_a_memory_by_direction_and_relation(mem):
    a, b, c = (mem.remember(text).id for text in "abc")
    for link in ((a, "x", b), (b, "x", c), (c, "y", a)):
        mem.link(*link)
    assert told(mem.links()) == [(a, "x", b), (b, "x", c), (c, "y", a)]
    assert told(mem.links(a)) == [(a, "x", b), (c, "y", a)]
    assert told(mem.links(a, direction="out")) == [(a, "x", b)]
    assert told(mem.links(mem.get(a), direction="in")) == [(c, "y", a)]
    assert told(mem.links(relation="x")) == [(a, "x", b), (b, "x", c)]
    assert told(mem.links(b, relation="x", direction="in")) == [(a, "x", b)]
    assert told(mem.links(relation="unheard of")) == told(mem.links(NEVER)) == []
    mem.link(a, "itself", a)
    assert told(mem.links(a, relation="itself")) == [(a, "itself", a)]


def test_the_same_call_again_does_nothing_while_the_link_holds(mem):
    a, b = mem.remember("a"), mem.remember("b")
    first = mem.link(a, "x", b, attributes={"n": 1}, valid_to=300)
    assert mem.link(a, "x", b, attributes={"n": 1}, valid_to=300, now=150) == first
    assert mem.link(a, "x", b, now=150) == first
    assert list(mem.links(now=150)) == [first]
    # other attributes or times end it, and make the next, which holds from now on
    second = mem.link(a, "x", b, attributes={"n": 2}, now=150)
    assert list(mem.links(now=150)) == [second]
    third = mem.link(a, "x", b, valid_to=400, now=160)
    assert list(mem.links(now=160)) == [third]
    assert next(iter(mem.links(as_of=149))).attributes == {"n": 1}
    assert [link.attributes for link in mem.links(as_of=155)] == [{"n": 2}]
    # when it holds no more, it is made anew
    fourth = mem.link(a, "x", b, now=400)
    assert fourth.created_at == at(400)
    assert list(mem.links(now=400)) == [fourth]


def test_when_a_link_is_seen(mem):
    a, b = mem.remember("a"), mem.remember("b")
    mem.link(a, "x", b, valid_from=200, valid_to=300)
    assert [len(mem.links(now=t)) for t in (199.999999, 200, 299.999999, 300)] == [0, 1, 1, 0]
    mem.link(b, "known at once", a)
    # as of a time it must have been known then, too
    assert [told(mem.links(as_of=t)) for t in (99, 100)] == [[], [(b.id, "known at once", a.id)]]
    assert len(mem.links(as_of=250)) == 2


def test_an_ended_link_is_seen_as_of_before(mem):
    a, b, c = (mem.remember(text).id for text in "abc")
    for link in ((a, "x", b), (a, "y", b), (a, "x", c), (b, "x", a)):
        mem.link(*link)
    assert mem.unlink(a, "x", b, now=110) == 1
    assert mem.unlink(a, "x", b, now=110) == 0
    assert told(mem.links(now=110)) == [(a, "y", b), (a, "x", c), (b, "x", a)]
    assert len(mem.links(as_of=109)) == 4
    assert mem.unlink(a, "y", now=120) == 1
    assert mem.unlink(a, now=130) == 1
    assert told(mem.links(now=130)) == [(b, "x", a)]
    assert mem.unlink(b, dst=c) == 0
    # a clock that went back ends no link before it began
    assert mem.unlink(b, now=50) == 1
    assert told(mem.links(b, direction="out", as_of=100)) == []


def values(mem: memcore.Memory, *moments: float) -> list[list[Any]]:
    """What the links say that hold at some moments."""
    return [[link.attributes.get("v") for link in mem.links(now=moment)] for moment in moments]


def test_from_now_on_no_two_links_of_the_same_three_hold(mem):
    """A plan that is still to come gives way to a later word about the same time."""
    a, b = mem.remember("a").id, mem.remember("b").id
    mem.link(a, "x", b, valid_from=200, valid_to=300)
    mem.link(a, "x", b, valid_from=300, valid_to=400)  # another time: both stay
    mem.link(a, "x", b, valid_from=0, valid_to=50)  # over before now: it happened, and ends nothing
    held = [t for t in (0, 150, 200, 250, 300, 350, 400) if len(mem.links(now=t)) == 1]
    assert held == [0, 200, 250, 300, 350]
    mem.link(a, "x", b)
    assert [len(mem.links(now=t)) for t in (0, 50, 99, 100, 150, 250, 350, 500)] == [1, 0, 0, 1, 1, 1, 1, 1]
    again = mem.link(a, "x", b, valid_from=600, attributes={"v": 1})
    assert values(mem, 150, 599, 600, 650) == [[None], [None], [1], [1]]
    assert mem.link(a, "x", b, valid_from=600) == again
    assert mem.unlink(a) == 2  # what is still to come can be called off, and so can what ends later
    assert values(mem, 99, 100, 150, 650) == [[], [], [], []]
    assert mem.unlink(a) == 0


def test_at_no_moment_do_two_hold_with_a_clock_that_went_back(mem):
    a, b = mem.remember("a").id, mem.remember("b").id
    mem.link(a, "x", b, attributes={"v": 1}, now=16)
    later = mem.link(a, "x", b, attributes={"v": 2}, now=10)
    assert (later.created_at, later.valid_from) == (at(10), at(16))  # as the versions of a record
    assert values(mem, 9, 10, 15, 16, 20) == [[1], [1], [1], [2], [2]]


def test_a_past_window_that_is_told_twice_is_one_link(mem):
    a, b = mem.remember("a").id, mem.remember("b").id
    first = mem.link(a, "x", b, attributes={"v": 1}, valid_from=10, valid_to=20)
    seq = mem._engine.catalog.seq
    assert mem.link(a, "x", b, attributes={"v": 1}, valid_from=10, valid_to=20, now=200) == first
    assert mem.link(a, "x", b, valid_from=10, valid_to=20) == first
    assert mem._engine.catalog.seq == seq  # nothing was written
    # what is past stays as it was told
    other = mem.link(a, "x", b, attributes={"v": 2}, valid_from=10, valid_to=20)
    assert values(mem, 15) == [[1, 2]]
    assert mem.link(a, "x", b, valid_from=10, valid_to=20) == other  # the later word
    # without its end it is not that one, but one which holds
    assert mem.link(a, "x", b, attributes={"v": 3}, valid_from=10).valid_to is None
    assert values(mem, 15, 100) == [[1, 2, 3], [3]]


def test_a_link_holds_until_the_next_one_begins(mem):
    a, b = mem.remember("a").id, mem.remember("b").id
    mem.link(a, "x", b, attributes={"v": 1}, now=1)
    mem.link(a, "x", b, attributes={"v": 2}, valid_from=20, now=5)
    assert values(mem, 4, 5, 10, 19, 20, 30) == [[1], [1], [1], [1], [2], [2]]
    assert mem.links(now=5)[0].valid_to == at(20)
    # what ends later can be cut again, earlier
    mem.link(a, "x", b, attributes={"v": 3}, valid_from=12, now=6)
    assert values(mem, 6, 11, 12, 19, 20, 30) == [[1], [1], [3], [3], [3], [3]]
    assert mem.unlink(a, now=8) == 2
    assert values(mem, 7, 8, 11, 12, 30) == [[1], [], [], [], []]


def test_windows_that_overlap_leave_no_gap(mem):
    a, b = mem.remember("a").id, mem.remember("b").id
    mem.link(a, "x", b, attributes={"v": 1}, valid_from=1, valid_to=15, now=1)
    mem.link(a, "x", b, attributes={"v": 2}, valid_from=10, valid_to=20, now=2)
    assert values(mem, 0, 1, 9, 10, 14, 15, 19, 20) == [[], [1], [1], [2], [2], [2], [2], []]


def test_a_link_from_the_past_on_cuts_from_now_on_alone(mem):
    a, b = mem.remember("a").id, mem.remember("b").id
    mem.link(a, "x", b, attributes={"v": 1}, valid_from=10)
    mem.link(a, "x", b, attributes={"v": 2}, valid_from=50)
    assert values(mem, 20, 60, 99, 100, 200) == [[1], [1, 2], [1, 2], [2], [2]]


def test_attributes_are_the_same_in_any_order(mem):
    a, b = mem.remember("a").id, mem.remember("b").id
    first = mem.link(a, "x", b, attributes={"n": 1, "m": {"x": 2, "y": 3}})
    assert mem.link(a, "x", b, attributes={"m": {"y": 3, "x": 2}, "n": 1}) == first
    assert mem.link(a, "x", b) == first
    assert mem.link(a, "x", b, attributes={"n": True, "m": {"x": 2, "y": 3}}) != first
    assert mem.link(a, "x", b, attributes={}).attributes == {}  # given, and so another


def test_a_snapshot_does_not_change(mem):
    a, b = mem.remember("a"), mem.remember("b")
    mem.link(a, "x", b)
    snapshot = mem._engine.catalog.snapshot(("default", "default"))
    mem.unlink(a)
    mem.link(b, "x", a)
    mem.forget(b)
    valid = snapshot.links.valid(snapshot.seq, 100_000_000)
    assert valid.tolist() == [True]


def test_a_snapshot_keeps_an_end_that_is_told_anew(mem):
    a, b = mem.remember("a"), mem.remember("b")
    mem.link(a, "x", b)
    mem.link(a, "x", b, valid_from=200, attributes={"v": 2})
    snapshot = mem._engine.catalog.snapshot(("default", "default"))
    mem.unlink(a, now=150)
    for seconds, expected in ((150, [True, False]), (199, [True, False]), (200, [False, True])):
        assert snapshot.links.valid(snapshot.seq, seconds * 1_000_000).tolist() == expected
    assert values(mem, 149, 150, 200) == [[None], [], []]


# What is refused


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda mem, a, b: mem.link("x", "r", b), "src is 'x' (str); an id is a UUID"),
        (lambda mem, a, b: mem.link(a, "r", None), "dst is None"),
        (lambda mem, a, b: mem.link(a, " ", b), "relation is blank (' ')"),
        (lambda mem, a, b: mem.link(a, "r", b, attributes=[1]), "attributes is [1] (list); it must be a JSON object"),
        (
            lambda mem, a, b: mem.link(a, "r", b, valid_from=200, valid_to=200),
            "valid_to is 1970-01-01T00:03:20Z and valid_from 1970-01-01T00:03:20Z; a link ends after it begins: swap",
        ),
        (lambda mem, a, b: mem.link(a, "r", b, valid_to=datetime(2030, 1, 1)), "valid_to is a naive datetime"),  # noqa: DTZ001
        (lambda mem, a, b: mem.links(direction="up", id=a), "direction is 'up'"),
        (
            lambda mem, a, b: mem.links(direction="out"),
            "links got direction='out' and no id; say of which memory, or leave it out",
        ),
        (lambda mem, a, b: mem.unlink("x"), "src is 'x' (str); an id is a UUID"),
    ],
)
def test_what_makes_no_sense_is_refused(mem, call, message):
    a, b = mem.remember("a"), mem.remember("b")
    with pytest.raises(memcore.InvalidInput) as raised:
        call(mem, a, b)
    assert str(raised.value).startswith(message)
    assert len(mem.links()) == 0


def test_both_ends_must_be_in_the_scope(mem):
    here = mem.remember("here")
    there = mem.scope("another").remember("there")
    gone = mem.remember("gone")
    mem.forget(gone)
    for other in (there.id, gone.id, NEVER):
        for ends in ((here.id, other), (other, here.id)):
            with pytest.raises(memcore.NotFound) as raised:
                mem.link(ends[0], "x", ends[1])
            assert str(raised.value) == (
                f"no memory {other} in tenant 'default', project 'default' to link; it was never there or was "
                "forgotten: list() shows what is there"
            )
    assert len(mem.links()) == 0
    seq = mem._engine.catalog.seq
    assert seq == mem.remember("next").seq - 1  # nothing was half-written


def test_a_scope_sees_the_links_between_what_it_sees(mem):
    mine, yours = mem.scope(session_id="mine"), mem.scope(session_id="yours")
    a, b, c = mine.remember("a"), mine.remember("b"), yours.remember("c")
    mine.link(a, "x", b)
    mem.link(a, "x", c)
    assert (len(mem.links()), len(mine.links()), len(yours.links()), len(mine.links(a))) == (2, 1, 0, 1)
    with pytest.raises(memcore.NotFound):
        mine.link(a, "x", c)
    assert yours.unlink(a) == 0
    assert mine.unlink(a) == 1
    assert told(mem.links()) == [(a.id, "x", c.id)]
    assert len(mem.scope("another").links()) == 0


def test_links_stay_with_a_memory_through_its_versions(mem):
    a, b = mem.remember("likes tea", kind="semantic", key="k"), mem.remember("b")
    mem.link(a, "x", b)
    mem.update(a.id, content="likes coffee")
    mem.remember("likes water", kind="semantic", key="k")
    assert told(mem.links(a)) == [(a.id, "x", b.id)]


# What is forgotten


def test_a_forgotten_memory_takes_its_links_along_and_brings_them_back(mem):
    a, b, c = (mem.remember(text).id for text in "abc")
    for link in ((a, "x", b), (b, "x", c), (c, "x", a)):
        mem.link(*link)
    mem.unlink(b)
    mem.forget(a)
    assert told(mem.links()) == []
    assert told(mem.links(as_of=100)) == []  # in no past either
    mem.forget(b)
    mem.restore(a)
    assert told(mem.links()) == [(c, "x", a)]  # b is still forgotten
    mem.restore(b)
    assert told(mem.links()) == [(a, "x", b), (c, "x", a)]
    report = mem.forget([a, b, c])
    mem.restore(report)
    assert told(mem.links()) == [(a, "x", b), (c, "x", a)]


def test_what_another_commit_has_hidden_is_not_brought_back(mem):
    """The links of the memory that had the id before are none of the one that has it now."""
    a, b, c = (mem.remember(text).id for text in "abc")
    mem.link(a, "x", b, attributes={"of": "the first"})
    mem.link(c, "x", b, attributes={"of": "an erased one"})
    mem.forget(c, erase=True)
    mem.forget(a)
    for id in (a, c):
        mem.remember("another", id=id)
        assert list(mem.links()) == []
    mem.link(a, "x", b, attributes={"of": "the second"})
    mem.forget([a, c])
    assert mem.restore([a, c]).ids == [a, c]
    assert [link.attributes for link in mem.links()] == [{"of": "the second"}]
    mem.forget(b)
    mem.restore(b)
    assert [link.attributes for link in mem.links()] == [{"of": "the second"}]
    mem.compact()
    assert [link.attributes for link in mem.links()] == [{"of": "the second"}]


def test_a_link_is_that_of_the_memory_that_had_the_id_when_it_was_made(mem):
    """Also if its other end was forgotten first, and comes back later."""
    a, b = (mem.remember(text).id for text in "ab")
    mem.link(a, "x", b)
    mem.forget(b)
    mem.forget(a)
    mem.remember("another", id=a)
    mem.restore(b)
    assert told(mem.links()) == []
    mem.link(a, "y", b)
    mem.forget(a)
    mem.restore(a)
    assert told(mem.links()) == [(a, "y", b)]


def test_what_an_import_has_brought_back_is_there_once(mem, tmp_path):
    a, b = (mem.remember(text).id for text in "ab")
    mem.link(a, "x", b)
    mem.export(tmp_path / "x.jsonl")
    mem.forget(a)
    report = mem.import_(tmp_path / "x.jsonl")
    assert (report.new, report.links) == (1, 1)
    mem.forget(a)
    mem.restore(a)
    assert told(mem.links()) == [(a, "x", b)]


def test_links_stay_with_what_is_moved_to_the_cold_tier(mem):
    a = mem.remember("old", event_time=0, importance=0, now=0).id
    b = mem.remember("kept", importance=1).id
    mem.link(a, "x", b)
    moved = mem.prune(now=10**9)
    assert ([gone.id for gone in moved.moved], told(mem.links())) == ([a], [(a, "x", b)])
    mem.forget(a)
    assert told(mem.links()) == []
    assert mem.restore(a).ids == [a]
    assert told(mem.links()) == [(a, "x", b)]


@pytest.mark.parametrize("cold", ["neither", "a", "b"])
def test_a_link_waits_for_the_end_that_was_forgotten_last(mem, monkeypatch, cold):
    """One end is restored, and what the first forgetting has forgotten is dropped for good: the link is not."""
    day = 86_400
    a, b = (mem.remember(text, importance=float(text != cold), event_time=0).id for text in "ab")
    mem.link(a, "x", b)
    assert mem.prune(now=10**9).count == (cold != "neither")
    mem.forget(a, now=100)
    mem.forget(b, now=6 * day)
    mem.restore(a)
    engine = mem._engine
    if engine.directory is not None:
        from memcore.store import maintenance

        monkeypatch.setattr(maintenance, "SEAL_ROWS", 1)
        engine.directory.maintenance.work((7 * day + 200) * 1_000_000)
    else:
        mem.forget(mem.remember("other").id, now=7 * day + 200)  # whose commit sweeps
    assert mem.restore(b).count == 1
    assert told(mem.links()) == [(a, "x", b)]


def test_erasing_cascades_to_summaries_and_what_they_were_summarised_into(mem):
    raw, other = mem.remember("raw"), mem.remember("b")
    summary = mem.scope(session_id="another").remember("about raw and b", kind="semantic", level=1)
    outline = mem.remember("about the summary", kind="semantic", level=2)
    note = mem.remember("a raw note that says it summarises", level=0)
    effect = mem.remember("effect", kind="semantic", level=1)
    for src, relation, dst in (
        (summary, "summarizes", raw),
        (summary, "summarizes", other),
        (outline, "summarizes", summary),
        (note, "summarizes", raw),
        (effect, "caused_by", raw),
    ):
        mem.link(src, relation, dst)
    mem.unlink(summary, "summarizes", raw)  # it may quote it all the same
    told_before = mem.forget(raw, erase=True, dry_run=True)
    assert (told_before.ids, set(told_before.cascaded)) == ([raw.id], {summary.id, outline.id})
    assert len(mem.list()) == 6
    report = mem.forget(raw, erase=True)
    assert (report.ids, set(report.cascaded), report.count) == ([raw.id], {summary.id, outline.id}, 1)
    assert {record.content for record in mem.list()} == {"b", "effect", "a raw note that says it summarises"}
    assert told(mem.links()) == []
    assert mem.restore([raw.id, *report.cascaded]).ids == []
    assert mem.forget(raw, erase=True).missing == [raw.id]
    # a plain forget takes no summary
    mem.link(effect, "summarizes", other)
    assert mem.forget(other).cascaded == []
    assert len(mem.list()) == 2


def test_erasing_reaches_what_was_forgotten_before(mem):
    raw = mem.remember("raw")
    summary = mem.remember("quotes raw", kind="semantic", level=1)
    mem.link(summary, "summarizes", raw)
    mem.forget(summary)
    mem.forget(raw)
    report = mem.forget(raw, erase=True)
    assert (report.ids, report.cascaded, report.missing) == ([raw.id], [summary.id], [])
    assert mem.restore([raw.id, summary.id]).missing == [raw.id, summary.id]
    assert len(mem.forgotten()) == 0


def test_summaries_that_summarise_each_other_are_erased_once(mem):
    a, b = (mem.remember(text, kind="semantic", level=1) for text in "ab")
    mem.link(a, "summarizes", b)
    mem.link(b, "summarizes", a)
    report = mem.forget(a, erase=True)
    assert (report.ids, report.cascaded) == ([a.id], [b.id])


def test_no_byte_of_an_erased_link_is_left(tmp_path):
    path = tmp_path / "store"
    with memcore.open(path, embedder=None) as mem:
        a, b = mem.remember("a secret memory"), mem.remember("b stays")
        mem.link(b, "x", a, attributes={"why": "the secret reason"})
        mem.link(b, "y", b, attributes={"why": "the plain reason"})
        mem.forget(a, erase=True)
        mem.compact()
        found = [file.read_bytes() for file in path.rglob("*") if file.is_file()]
        assert not [data for data in found if b"secret" in data]
        assert [data for data in found if b"the plain reason" in data]
        assert told(mem.links()) == [(b.id, "y", b.id)]
        (partition,) = mem._engine.catalog.partitions.values()
        assert partition.links.n == 1  # RAM lets it go as well


# On disk


def test_links_are_there_when_the_store_is_opened_again(tmp_path):
    path = tmp_path / "store"
    with memcore.open(path, embedder=None, clock=lambda: 100) as mem:
        a, b, c = (mem.remember(text).id for text in "abc")
        mem.link(a, "x", b, attributes={"n": 1}, valid_from=0)
        mem.link(b, "x", c)
        mem.link(c, "x", a)
        mem.unlink(b)
        mem.forget(c)
        before = mem.links().to_arrow(), mem.links(as_of=100).to_arrow()
    with memcore.open(path, embedder=None, clock=lambda: 100) as mem:
        assert (mem.links().to_arrow(), mem.links(as_of=100).to_arrow()) == before
        mem.restore(c)
        assert told(mem.links()) == [(a, "x", b), (c, "x", a)]


def test_another_process_sees_links_and_what_became_of_them(tmp_path):
    """Two catalogs on one directory are what two processes have."""
    from memcore.store import directory

    path = tmp_path / "store"
    ours = memcore.open(path, embedder=None, clock=lambda: 100)
    (opened,) = [held for held in directory._open.values() if held.path == path.resolve()]
    directory._open.pop(path.resolve())
    theirs = memcore.open(path, embedder=None, clock=lambda: 100)
    a, b = ours.remember("a").id, ours.remember("b").id
    ours.link(a, "x", b)
    assert told(theirs.links()) == [(a, "x", b)]
    ours.link(a, "x", b, valid_from=200)
    assert len(theirs.links(now=300)) == 1
    snapshot = theirs._engine.catalog.snapshot(("default", "default"))
    ours.unlink(a, now=150)
    assert (len(theirs.links(now=149)), len(theirs.links(now=150)), len(theirs.links(now=250))) == (1, 0, 0)
    assert snapshot.links.valid(snapshot.seq, 250_000_000).tolist() == [False, True]  # as it was
    theirs.link(b, "y", a)
    theirs.unlink(a)
    assert told(ours.links()) == [(b, "y", a)]
    ours.forget(a)
    assert told(theirs.links()) == []
    theirs.restore(a)
    assert told(ours.links()) == [(b, "y", a)]
    theirs.forget(a, erase=True)
    ours.compact()
    theirs.remember("c")
    assert told(theirs.links()) == told(ours.links()) == []
    theirs.close()
    directory._open[path.resolve()] = opened
    ours.close()


def test_a_failed_commit_takes_links_back(tmp_path, monkeypatch):
    with memcore.open(tmp_path / "store", embedder=None) as mem:
        a, b = mem.remember("a"), mem.remember("b")
        mem.link(a, "x", b)
        journal = mem._engine.catalog.journal

        def full() -> None:
            raise memcore.StoreFull("no room")

        monkeypatch.setattr(journal, "commit", full)
        for call in (
            lambda: mem.link(b, "y", a),
            lambda: mem.unlink(a),
            lambda: mem.forget(a),
            lambda: mem.link(a, "x", b, attributes={"n": 1}),
        ):
            with pytest.raises(memcore.StoreFull):
                call()
            assert told(mem.links()) == [(a.id, "x", b.id)]
        monkeypatch.undo()
        mem.link(b, "z", a)
        assert told(mem.links()) == [(a.id, "x", b.id), (b.id, "z", a.id)]


def test_commits_without_rows_are_no_work_for_ever(tmp_path, monkeypatch):
    """Each takes a seq, and by the seqs the background tells whether there is something to seal."""
    from memcore.store import maintenance

    with memcore.open(tmp_path / "store", embedder=None) as mem:
        a, b = mem.remember("a"), mem.remember("b")
        for i in range(30):
            mem.link(a, f"relation {i}", b)
        monkeypatch.setattr(maintenance, "SEAL_ROWS", 20)
        mem._engine.directory.maintenance.work(0)
        assert mem._engine.catalog.unsealed() == 0
        mem.remember("c")
        mem.compact()
        assert [r.content for r in mem.list()] == ["a", "b", "c"]
        assert (len(mem.links()), mem.verify().ok) == (30, True)


# Any calls in any order


WINDOWS = (
    (None, None), (None, None), (None, None), (None, 20), (None, 6), (None, -2), (-10, None), (5, None), (5, 20),
    (12, 20), (-10, -2), (-10, 8), (-3, 5), (20, 30),
)  # fmt: skip


def shown(link: memcore.Link) -> tuple[Any, ...]:
    return tuple(getattr(link, name) for name in memcore.Link.__slots__)


def every_link(mem: memcore.Memory) -> list[memcore.Link]:
    """Those that are over and that were ended, too."""
    snapshot = mem._engine.catalog.snapshot(("default", "default"))
    rows = np.flatnonzero(snapshot.links.seen(snapshot.seq))
    return list(memcore.Links(link_table(snapshot.links, rows, names=snapshot.names, seq=snapshot.seq)))


def told_of(link: dict[str, Any]) -> tuple[Any, ...]:
    """A link of the model as the store shows it."""
    times = (None if link[name] is None else at(link[name]) for name in ("made", "from", "to"))
    return link["src"], link["relation"], link["dst"], link["attributes"] or {}, *times


class Linked(RuleBasedStateMachine):
    """Against a plain model: memories that are here, forgotten or gone, and a list of links. An id may be used again,
    and then the links of who had it before are past.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "store" if self.on_disk else None
        self.now = self.latest = 1000.0
        self.mem = self.opened()
        self.other = memcore.open(embedder=None)
        self.levels: dict[str, int] = {}
        self.state: dict[str, str] = {}
        self.cold: set[str] = set()
        self.links: list[dict[str, Any]] = []

    on_disk = False

    def opened(self) -> memcore.Memory:
        return memcore.open(self.path, embedder=None, clock=lambda: self.now, durability="relaxed")

    def teardown(self) -> None:
        self.mem.close()
        self.other.close()
        self.folder.cleanup()

    def pick(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(list(self.state)))

    def here(self, link: dict[str, Any]) -> bool:
        return not link["past"] and self.state[link["src"]] == self.state[link["dst"]] == "here"

    def holds(self, link: dict[str, Any], moment: float) -> bool:
        return (
            self.here(link)
            and (link["from"] is None or link["from"] <= moment)
            and (link["to"] is None or link["to"] > moment)
        )

    def end_of(self, link: dict[str, Any], moment: float) -> float | None:
        """When it ends if it is ended at a moment; None if it has ended by then."""
        ends = max(moment, link["made"], moment if link["from"] is None else link["from"])
        return ends if self.here(link) and (link["to"] is None or link["to"] > ends) else None

    @precondition(lambda self: len(self.state) < 4)  # few, so that much happens to each
    @rule(level=st.sampled_from((0, 0, 0, 1, 2)))
    def remember(self, level: int) -> None:
        id = self.mem.remember("x", **self.old(level)).id
        self.levels[id], self.state[id] = level, "here"

    def old(self, level: int) -> dict[str, Any]:
        """What a memory is: of level 0 one that has faded."""
        return {"kind": "semantic", "level": level} if level else {"event_time": self.now - 10**9, "importance": 0}

    def free(self) -> list[str]:
        return [id for id, state in self.state.items() if state != "here" and not self.levels[id]]

    @precondition(lambda self: self.free())
    @rule(data=st.data())
    def remember_again(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(self.free()))
        self.mem.remember("y", id=id, **self.old(0))
        self.state[id] = "here"
        self.cold.discard(id)
        for link in self.links:
            link["past"] |= id in (link["src"], link["dst"])
        self.other.close()
        self.other = memcore.open(embedder=None)  # in which the id is another memory's

    @rule()
    def prune(self) -> None:
        faded = {id for id, state in self.state.items() if state == "here" and not self.levels[id]} - self.cold
        assert set(self.mem.prune().ids) == faded
        self.cold |= faded

    @precondition(lambda self: self.state)
    @rule(
        data=st.data(),
        relation=st.sampled_from(("summarizes", "summarizes", "caused_by")),
        attributes=st.sampled_from((None, None, {"n": 1}, {"n": 2})),
        window=st.sampled_from(WINDOWS),
    )
    def link(self, data: st.DataObject, relation: str, attributes: Any, window: tuple[Any, Any]) -> None:
        src, dst = self.pick(data), self.pick(data)
        base = self.now // 10 * 10  # so that the same times are told again
        since, until = (None if offset is None else base + offset for offset in window)

        def call() -> memcore.Link:
            return self.mem.link(src, relation, dst, attributes=attributes, valid_from=since, valid_to=until)

        if not self.state[src] == self.state[dst] == "here":
            with pytest.raises(memcore.NotFound):
                call()
            return
        made = shown(call())
        others = [link for link in self.links if (link["src"], link["relation"], link["dst"]) == (src, relation, dst)]
        same = [
            link
            for link in others
            if not link["ended"]
            and attributes in (None, link["attributes"])
            and until in (None, link["to"])
            and (
                self.holds(link, self.now)
                if since is None
                else link["from"] == since and (until is not None or link["to"] is None or link["to"] > self.now)
            )
        ]
        if same:
            assert made == told_of(same[-1])
            return
        begins = self.now if since is None else max(self.now, since)
        cut = []
        for link in others if until is None or until > begins else ():
            ends = self.end_of(link, begins)
            if ends is not None and (until is None or link["from"] is None or link["from"] < until):
                link.update(to=ends, ended=True)
                cut.append(link)
        if since is None and cut:
            since = max(self.now, *(link["made"] for link in cut))
        self.links.append(
            {
                "src": src, "relation": relation, "dst": dst, "attributes": attributes, "made": self.now,
                "from": since, "to": until, "ended": False, "past": False,
            }
        )  # fmt: skip
        assert made == told_of(self.links[-1])

    @precondition(lambda self: self.state)
    @rule(data=st.data(), relation=st.sampled_from((None, "summarizes")), named=st.booleans())
    def unlink(self, data: st.DataObject, relation: str | None, named: bool) -> None:
        src, dst = self.pick(data), self.pick(data) if named else None
        ended = [
            link
            for link in self.links
            if link["src"] == src
            and relation in (None, link["relation"])
            and dst in (None, link["dst"])
            and self.end_of(link, self.now) is not None
        ]
        assert self.mem.unlink(src, relation, dst) == len(ended)
        for link in ended:
            link.update(to=self.end_of(link, self.now), ended=True)

    @precondition(lambda self: self.state)
    @rule(data=st.data(), erase=st.booleans())
    def forget(self, data: st.DataObject, erase: bool) -> None:
        asked = [self.pick(data), self.pick(data)]
        there = ("here", "forgotten") if erase else ("here",)
        names = {id for id in asked if self.state[id] in there}
        cascaded: set[str] = set()
        while erase:
            more = {
                link["src"]
                for link in self.links
                if link["relation"] == "summarizes" and link["dst"] in names | cascaded and self.levels[link["src"]]
            }
            more = {id for id in more - names - cascaded if self.state[id] != "gone"}
            if not more:
                break
            cascaded |= more
        report = self.mem.forget(asked, erase=erase)
        assert (set(report.ids), set(report.cascaded)) == (names, cascaded)
        assert set(report.missing) == set(asked) - names
        for id in names | cascaded:
            self.state[id] = "gone" if erase else "forgotten"

    @precondition(lambda self: self.state)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        asked = sorted({self.pick(data), self.pick(data)})
        back = [id for id in asked if self.state[id] == "forgotten" or (self.state[id] == "here" and id in self.cold)]
        assert self.mem.restore(asked).ids == back
        for id in back:
            self.state[id] = "here"
        self.cold -= set(back)

    @rule()
    def compact(self) -> None:
        self.mem.compact()
        for id, state in self.state.items():
            if state == "forgotten":
                self.state[id] = "gone"
        self.links = [link for link in self.links if self.here(link)]

    @rule(later=st.sampled_from((-500.0, 0.0, 500.0)))
    def export_and_import(self, later: float) -> None:
        """Another store has all of it, whatever time it is there; also when it has what was exported before."""
        path = Path(self.folder.name) / "x.jsonl"
        self.mem.export(path)
        for _ in range(2):
            self.other.import_(path, now=self.now + later)
            expected = sorted(filter(self.here, self.links), key=lambda link: link["src"])
            found = sorted(every_link(self.other), key=lambda link: link.src_id)
            known = {id for id, state in self.state.items() if state == "here"}
            mine = [link for link in found if {link.src_id, link.dst_id} <= known]
            assert [shown(link) for link in mine] == [told_of(link) for link in expected]

    @rule(step=st.sampled_from((1.0, 6.0, 6.0, -4.0)))
    def wait(self, step: float) -> None:
        """The clock may go back."""
        self.now += step
        self.latest = max(self.latest, self.now)

    @precondition(lambda self: self.path)
    @rule()
    def reopen(self) -> None:
        self.mem.close()
        self.mem = self.opened()

    @invariant()
    def agree(self) -> None:
        for moment in (self.now - 7, self.now, self.now + 3, self.now + 14):
            expected = [told_of(link) for link in self.links if self.holds(link, moment)]
            assert [shown(link) for link in self.mem.links(now=moment)] == expected
        then = self.now - 3
        expected = [told_of(link) for link in self.links if self.holds(link, then) and link["made"] <= then]
        assert [shown(link) for link in self.mem.links(as_of=then)] == expected

    @invariant()
    def from_now_on_no_two_hold(self) -> None:
        for moment in (self.latest + wait for wait in (0, 2, 5, 9, 12, 20, 30)):
            names = told(self.mem.links(now=moment))
            assert len(names) == len(set(names))


class LinkedOnDisk(Linked):
    on_disk = True


calm = [HealthCheck.too_slow, HealthCheck.data_too_large]
TestLinks = Linked.TestCase
TestLinks.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=calm)
TestLinksOnDisk = LinkedOnDisk.TestCase
TestLinksOnDisk.settings = settings(max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=calm)

"""Two catalogs of one directory in one process: what two processes have, with the moments chosen.

What is counted of accesses adds up in RAM and on disk whoever writes or reads when; no write waits for itself; and what
another process has dropped is gone here too. More random calls: `MEMCORE_SEEDS=300 python -m pytest … -k any_calls`.
"""

from __future__ import annotations

import os
import random
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import memcore
from memcore.store import commits, directory, maintenance
from running import run

SEEDS = int(os.environ.get("MEMCORE_SEEDS", "5"))
SCOPES = (("t", "p", None, None), ("t", "p", "s1", None), ("t", "p", "s2", "r"), ("t", "q", None, None))
TOLD = tuple(name for name in memcore.Record.__slots__ if name not in ("seq", "vector"))
WRITES = {
    "remember": 6, "working": 3, "update": 4, "forget": 2, "erase": 1, "restore": 3, "compact": 1, "prune": 1,
    "link": 2, "unlink": 1, "end": 1,
}  # fmt: skip
CALLS = {**WRITES, "get": 8, "recall": 3, "flush": 2, "seal": 3}


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Callable[..., memcore.Memory]]:
    """Opens the same store each time with a catalog of its own."""
    opened = []

    def make(**more: Any) -> memcore.Memory:
        mem = memcore.open(tmp_path / "agent.mem", embedder=None, **more)
        directory._open.pop((tmp_path / "agent.mem").resolve())
        opened.append(mem)
        return mem

    yield make
    for mem in opened:
        mem.close()


def flush(mem: memcore.Memory) -> None:
    mem._engine.commits.flush_counts()


def counts(mem: memcore.Memory) -> list[int]:
    return [record.access_count for record in mem.list()]


def at_step(monkeypatch: pytest.MonkeyPatch, place: str, act: Callable[[], object]) -> None:
    """Has `act` called once, where commits call `step` with this name."""
    waiting = [act]

    def step(name: str) -> None:
        if name == place and waiting:
            waiting.pop()()

    monkeypatch.setattr(commits, "step", step)


def statements(mem: memcore.Memory, call: Callable[[], object]) -> list[str]:
    """What a call reads of the counters, as SQLite was asked."""
    asked: list[str] = []
    reader = mem._engine.catalog.journal._reader  # type: ignore[union-attr]
    reader.set_trace_callback(asked.append)
    call()
    reader.set_trace_callback(None)
    return [statement.partition("AND ")[2] for statement in asked if "FROM counters" in statement]


# A write and its own transaction


@pytest.mark.parametrize(
    "last",
    [
        "mem.link(a.id, 'a new relation', b.id)",
        "mem.scope(session_id='a new session').end_session()",
        "mem.scope(session_id='a new session').forget(a.id)",
        "mem.scope(session_id='a new session', agent_role='r').restore(a.id)",
        "mem.restore(mem.prune(importance_below=1, recency_below=1, now=9e9))",
        "mem.import_(sys.argv[2])",
        "mem.unlink(a.id, 'another relation')",
    ],
)
def test_no_write_waits_for_itself(tmp_path, last):
    """The last version takes the count of the one before along, so its commit counts too."""
    with memcore.open(tmp_path / "other.mem", embedder=None) as other:
        other.scope("default", "default", "another session").remember("c", kind="working")
        other.export(tmp_path / "file.jsonl")
    script = (
        "import sys, memcore\nwith memcore.open(sys.argv[1], embedder=None) as mem:\n"
        "    a, b = mem.remember('a'), mem.remember('b')\n    mem.get(a.id)\n    mem.update(a.id, content='a2')\n"
        f"    {last}\n    print(sorted(record.content for record in mem.list()))"
    )
    told = run(script, tmp_path / "store.mem", tmp_path / "file.jsonl").stdout.splitlines()
    assert told == [str(["a2", "b", "c"] if "import_" in last else ["a2", "b"])]


def test_waiting_for_itself_is_refused(apart):
    mem = apart()
    with pytest.raises(AssertionError):
        mem._engine.write(lambda catalog: catalog._wait())
    mem.remember("x")
    assert counts(mem) == [0]


def test_a_name_that_is_new_is_found_in_a_write_that_another_process_has_come_before(apart):
    """Nothing is looked for on disk inside of a transaction: it has looked when it began."""
    ours, theirs = apart(), apart()
    a, b = ours.remember("a"), ours.remember("b")
    theirs.get(a.id)
    flush(theirs)
    theirs.link(a.id, "theirs", b.id)
    assert ours.unlink(a.id, "theirs") == 1
    assert len(theirs.links()) == 0


def test_what_a_commit_counts_is_its_own(apart):
    """No partition is read again for it, also not while it is not shown yet."""
    mem = apart()
    records = [mem.remember(str(n)) for n in range(3)]
    for record in records:
        mem.get(record.id)
    assert statements(mem, lambda: [mem.update(record.id, content="new") for record in records]) == []
    assert statements(mem, lambda: counts(mem)) == []
    assert counts(mem) == [1, 1, 1]


def test_what_a_commit_counts_is_its_own_before_it_is_shown(apart, monkeypatch):
    mem = apart()
    record = mem.remember("x")
    mem.get(record.id)
    seen: list[Any] = []

    def read() -> None:
        seen.append(statements(mem, lambda: seen.append(counts(mem))))

    def look() -> None:
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(10)  # it waits for nobody

    at_step(monkeypatch, "after a commit", look)
    mem.update(record.id, content="y")
    assert seen == [[1], []]
    assert statements(mem, lambda: counts(mem)) == []


# Counts


def test_what_was_flushed_here_is_not_read_again(apart):
    """Also when another process has counted since: only what that has."""
    ours, theirs = apart(), apart()
    records = [ours.remember(str(n)) for n in range(50)]
    assert len(theirs.list()) == 50
    for _ in range(3):
        for record in records:
            ours.get(record.id)
        flush(ours)
        assert statements(ours, lambda: counts(ours)) == []
    theirs.get(records[0].id)
    flush(theirs)
    assert statements(ours, lambda: counts(ours)) == ["changed > 3 ORDER BY seq"]
    assert counts(ours) == counts(theirs) == [4] + [3] * 49


def count_there(theirs: memcore.Memory, id: str) -> None:
    theirs.get(id)
    flush(theirs)


@pytest.mark.parametrize("place", ["before counts are committed", "after counts are committed"])
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("meanwhile", ["it is read", "it is counted", "it is read and counted", "another counts"])
def test_counts_that_are_being_written_are_neither_lost_nor_doubled(apart, monkeypatch, place, behind, meanwhile):
    """`behind`: another process has counted before, which is yet to be read."""
    ours, theirs = apart(), apart()
    record = ours.remember("x")
    for _ in range(3):
        ours.get(record.id)
    assert len(theirs.list()) == 1
    expected = 3
    if behind:
        count_there(theirs, record.id)
        expected += 1
    seen: list[list[int]] = []

    def act() -> None:
        nonlocal expected
        if "another" in meanwhile:
            if place.startswith("after"):  # or it would wait for ours
                count_there(theirs, record.id)
                expected += 1
            seen.append(counts(ours))
        if "counted" in meanwhile:
            ours.get(record.id)
            expected += 1
        if "read" in meanwhile:
            seen.append(counts(ours))

    at_step(monkeypatch, place, act)
    flush(ours)
    assert seen in ([], [[expected]])
    assert counts(ours) == [expected]
    flush(ours)
    assert counts(ours) == counts(theirs) == counts(apart()) == [expected]
    theirs.remember("y")
    ours.get(record.id)
    assert counts(ours) == [expected + 1, 0]


@pytest.mark.parametrize("place", ["before counts are committed", "after counts are committed"])
def test_an_interrupt_beside_the_commit_of_counts(apart, monkeypatch, place):
    ours, theirs = apart(), apart()
    record = ours.remember("x")
    for _ in range(3):
        ours.get(record.id)

    def interrupt() -> None:
        raise KeyboardInterrupt

    at_step(monkeypatch, place, interrupt)
    with pytest.raises(KeyboardInterrupt):
        flush(ours)
    assert counts(ours) == [3]
    count_there(theirs, record.id)
    assert counts(ours) == [4]
    flush(ours)
    assert counts(ours) == counts(theirs) == counts(apart()) == [4]


def test_a_commit_of_counts_that_sqlite_gives_up_by_itself(apart, monkeypatch):
    """Then another process may make the flush that it would have been, before this one knows."""
    ours, theirs = apart(), apart()
    record = ours.remember("x")
    assert len(theirs.list()) == 1
    for _ in range(3):
        ours.get(record.id)

    def fail() -> None:
        ours._engine.catalog.journal.roll_back()  # type: ignore[union-attr]
        count_there(theirs, record.id)
        theirs.remember("y")
        ours.list()
        raise memcore.StoreFull("no room")

    at_step(monkeypatch, "before counts are committed", fail)
    with pytest.raises(memcore.StoreFull):
        flush(ours)
    assert counts(ours) == [4, 0]
    flush(ours)
    assert counts(ours) == counts(theirs) == counts(apart()) == [4, 0]


def test_counts_add_up_while_two_processes_read_write_and_flush(apart):
    mems = [apart(), apart()]
    ids = [mems[0].remember(str(n), kind="semantic").id for n in range(3)]
    done = threading.Event()

    def read(mem: memcore.Memory) -> None:
        for n in range(600):
            mem.get(ids[n % 3])

    def write(mem: memcore.Memory) -> None:
        while not done.is_set():
            mem.remember("x")
            flush(mem)

    readers = [threading.Thread(target=read, args=(mem,)) for mem in mems for _ in range(2)]
    writers = [threading.Thread(target=write, args=(mem,)) for mem in mems]
    for thread in (*readers, *writers):
        thread.start()
    for thread in readers:
        thread.join()
    done.set()
    for thread in writers:
        thread.join()
    for mem in mems:
        flush(mem)
    for mem in (*mems, apart()):
        assert [record.access_count for record in mem.list(kinds="semantic")] == [800] * 3


# What another process has dropped


@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("kind", ["held", "fallen"])
def test_the_last_message_that_another_process_forgets_and_drops(apart, erase, sealed, kind):
    ours, theirs = apart(), apart()
    ours.remember("fact")
    message = ours.remember("gone", kind="working")
    if kind == "fallen":
        messages = ours.remember_many([{"content": str(n), "kind": "working"} for n in range(20)])
    if sealed:
        ours._engine.directory.maintenance.seal_all()
        assert len(ours.list()) == len(theirs.list())
    theirs.forget(message.id, erase=erase)
    if kind == "fallen":
        theirs.forget(messages)
    theirs.compact()
    assert ours.working().entries() == []
    for n in range(30):  # more than it holds
        ours.remember(str(n), kind="working")
    assert len(ours.end_session()) == 30
    theirs.compact()
    assert ours.end_session() == []
    assert ours.verify().problems == []


# Any calls


def drawn(draw: random.Random, name: str, ids: list[str], ram: memcore.Memory, text: str) -> Callable[[Any], Any]:
    """A call by its name, the same for each store, that tells what became of it."""
    fresh, where = str(uuid.UUID(int=draw.getrandbits(128))), draw.choice(SCOPES)
    one, two = (draw.choice(ids[-6:] or [fresh]) for _ in range(2))
    if name in ("remember", "working"):
        kind = "working" if name == "working" else draw.choice(("episodic", "semantic"))
        key = draw.choice((None, "k1", "k2")) if kind == "semantic" else None
        standing = None if key is None else ram.scope(*where[:2]).list(where={"key": key, "kind": kind})
        fields = {
            "kind": kind, "key": key, "id": standing[0].id if standing else fresh,
            "importance": draw.choice((0.1, 0.9)), "event_time": draw.choice((None, 0)),
            "idempotency_key": draw.choice((None, None, "i1", "i2")),
        }  # fmt: skip
        ids.append(fields["id"])
        return lambda mem: mem.scope(*where).remember(text, **fields).content

    def told(report: Any) -> Any:
        return sorted(report.ids), [
            getattr(report, name) for name in ("missing", "elsewhere", "in_use") if hasattr(report, name)
        ]

    calls: dict[str, Callable[[Any], Any]] = {
        "update": lambda mem: mem.scope(*where).update(one, content=text).version,
        "forget": lambda mem: told(mem.scope(*where).forget([one, two])),
        "erase": lambda mem: told(mem.scope(*where).forget([one, two], erase=True)),
        "restore": lambda mem: told(mem.scope(*where).restore([one, two])),
        "prune": lambda mem: sorted(mem.prune().ids),
        "link": lambda mem: mem.scope(*where).link(one, text, two).valid_from,
        "unlink": lambda mem: mem.scope(*where).unlink(one),
        "end": lambda mem: sorted(mem.scope(*where).end_session()),
        "get": lambda mem: [record.version for record in [mem.scope(*where).get(one)] if record],
        "recall": lambda mem: [hit.id for hit in mem.scope(*where).recall(k=3)],
        "compact": lambda mem: mem.compact() is None,
    }
    return calls[name]


def became(call: Callable[[Any], Any], mem: memcore.Memory) -> Any:
    try:
        return call(mem)
    except memcore.MemcoreError as fault:
        return type(fault)


def everything(mem: memcore.Memory, ids: list[str], moments: list[float]) -> dict[str, Any]:
    """All that can be seen, but for seqs."""

    def rows(records: Any) -> list[str]:
        return sorted(str([getattr(record, name) for name in TOLD]) for record in records)

    seen: dict[str, Any] = {}
    for where in SCOPES:
        ops = mem.scope(*where)
        for tiers in ("hot", ("hot", "cold")):
            seen[f"list {where} {tiers}"] = rows(ops.list(tiers=tiers))
            seen[f"history {where} {tiers}"] = [rows(ops.history(id=id, tiers=tiers)) for id in ids]
            seen[f"then {where} {tiers}"] = [rows(ops.list(as_of=moment, tiers=tiers)) for moment in moments]
        seen[f"forgotten {where}"] = rows(ops.forgotten())
        seen[f"working {where}"] = [entry.content for entry in ops.working().entries()]
        seen[f"links {where}"] = [(link.src_id, link.relation, link.dst_id) for link in ops.links()]
    return seen


@pytest.mark.parametrize("seed", range(SEEDS))
def test_any_calls_on_two_catalogs_leave_what_a_store_in_ram_holds(apart, monkeypatch, seed):
    monkeypatch.setattr(maintenance, "SEAL_ROWS", 4)
    monkeypatch.setattr(maintenance, "MERGED_FILES", 2)
    monkeypatch.setattr(maintenance.Maintenance, "nudge", lambda _: None)  # all in an order that can be had again
    draw, now = random.Random(seed), [1e9]
    options = {"clock": lambda: now[0], "working_capacity": 3}
    mems = [apart(**options, durability="relaxed") for _ in range(2)]
    ids: list[str] = []
    moments: list[float] = []
    with memcore.open(embedder=None, **options) as ram:
        for step in range(60):
            now[0] += draw.choice((0, 1, 5))
            (name,), mem = draw.choices(list(CALLS), list(CALLS.values())), draw.choice(mems)
            if name in WRITES:  # a new version takes along what its own process knows of the count
                for each in mems:
                    flush(each)
            if name == "flush":
                flush(mem)
            elif name == "seal":
                mem._engine.directory.maintenance.seal_all()
            else:
                call = drawn(draw, name, ids, ram, f"{name} {step}")
                assert became(call, mem) == became(call, ram), (step, name)
            if step % 10 == 9:
                moments.append(now[0])
                for each in mems:
                    flush(each)
                expected = everything(ram, ids, moments)
                assert [everything(each, ids, moments) for each in (*mems, apart(**options))] == [expected] * 3
        assert mems[0].verify().problems == []

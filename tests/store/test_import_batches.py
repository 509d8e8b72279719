"""A large import: in batches of commits, cut off anywhere and gone on with, beside what others do meanwhile."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import memcore
from memcore.store import maintenance, portable, segment, spool
from memcore.store.portable import ImportReport
from memcore.store.snapshot import Selection, link_table
from modelled import columns

FORMATS = ("json", "jsonl", "parquet")
EVERY_ROW = Selection(frozenset(range(4)), now=0, expired=True, superseded=True)
COMMIT = 7


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Everything has many batches."""
    monkeypatch.setattr(portable, "COMMIT_ROWS", COMMIT)
    monkeypatch.setattr(portable, "_BATCH", 5)
    monkeypatch.setattr(segment, "ROWS", 16)


@pytest.fixture(params=["ram", "directory"])
def stores(request, tmp_path) -> Iterator[Any]:
    """Makes stores; opens them again, as another process would."""
    opened: dict[int, memcore.Memory] = {}

    def store(number: int = 0, **more: Any) -> memcore.Memory:
        if request.param == "ram":
            return opened.setdefault(number, memcore.open(embedder=None, clock=lambda: 100, working_capacity=3, **more))
        if number in opened:
            opened[number].close()
        path = tmp_path / f"store {number}"
        opened[number] = memcore.open(path, embedder=None, clock=lambda: 100, working_capacity=3, **more)
        return opened[number]

    yield store
    for mem in opened.values():
        mem.close()


def every(mem: memcore.Memory) -> Any:
    """All versions of all memories with their seqs, and all links, in all scopes."""
    rows = []
    for name in mem.scopes():
        snapshot = mem._engine.catalog.snapshot(name)
        for position in snapshot.positions(snapshot.masks(EVERY_ROW)).tolist():
            record = snapshot.record(position)
            rows.append({**columns(record), "seq": record.seq})
        rows.append(mem.scope(*name).links().to_arrow().to_pylist())
        rows.append([entry.content for entry in mem.scope(*name, "s", "r").working().entries()])
    return rows


def filled(mem: memcore.Memory) -> memcore.Memory:
    """Two scopes whose seqs interleave, versions far apart, a conversation that fell out, links."""
    ids: list[str] = []
    for i in range(40):
        ops = mem.scope("ab"[i % 2], "p", "s", "r")
        ids.append(ops.remember(f"fact {i}", kind="semantic", key=f"k{i % 11}", vector=[1.0, i], now=i).id)
        if i % 8 == 0:
            ops.working().add("user", f"message {i}", now=i)
        if i % 9 == 0 and i:
            mem.scope("a", "p").update(ids[0], importance=i / 100, now=i)
    for tenant in "ab":
        ops = mem.scope(tenant, "p")
        there = [record.id for record in ops.list()]
        for one, other in itertools.pairwise(there):
            ops.link(one, "x", other, attributes={"from": one})
        ops.unlink(there[0])
    return mem


@pytest.fixture
def source() -> memcore.Memory:
    return filled(memcore.open(embedder=None, clock=lambda: 100, working_capacity=3))


class Cut(Exception):
    """What ends an import in its middle."""


def import_cut(mem: memcore.Memory, path: Path, after: int, monkeypatch, fault: BaseException | None = None) -> bool:
    """Imports, and has the commit behind the first `after` fail; whether there was one."""
    real, done = portable.add, 0

    def add(*asked: Any) -> Any:
        nonlocal done
        done += 1
        if done > after:
            raise fault or Cut
        return real(*asked)

    with monkeypatch.context() as patched:
        patched.setattr(portable, "add", add)
        try:
            mem.import_(path)
        except type(fault or Cut()):
            return True
    return False


# Cut off, and gone on with


@pytest.mark.parametrize("format", FORMATS)
def test_an_import_that_is_cut_off_goes_on_to_the_same_result(stores, source, tmp_path, monkeypatch, format):
    path = tmp_path / f"x.{format}"
    rows = source.export(path)
    expected = every(source)
    for after in range(100):
        cut = import_cut(stores(after), path, after, monkeypatch)
        mem = stores(after)
        if cut:
            versions = mem.stats()["versions"]
            assert versions == min(after * COMMIT, rows)  # whole batches
            report = mem.import_(path)
            assert (report.new, report.present) == (rows, 0)
        assert every(mem) == expected
        assert mem.import_(path) == ImportReport(0, rows)
        assert every(mem) == expected
        again = tmp_path / "again"
        mem.export(again, format)
        assert again.read_bytes() == path.read_bytes()
        if not cut:
            break
    assert after > 10


def test_an_import_can_be_cut_off_again_and_again(stores, source, tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    source.export(path)
    for _ in range(100):
        if not import_cut(stores(), path, 1, monkeypatch):
            break
    assert every(stores()) == every(source)


def test_the_error_tells_how_far_it_came(stores, source, tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    source.export(path)
    real, done = portable.add, 0

    def add(*asked: Any) -> Any:
        nonlocal done
        done += 1
        if done > 2:
            raise memcore.StoreFull("no room is left")
        return real(*asked)

    monkeypatch.setattr(portable, "add", add)
    mem = stores()
    with pytest.raises(memcore.StoreFull) as raised:
        mem.import_(path)
    total = len(path.read_text().splitlines()) - 1 + sum(len(mem.links()) for mem in map(source.scope, "ab", "pp")) + 2
    assert str(raised.value) == (
        f"no room is left. The import of {path} was cut off: 14 of its {total} rows and links are in; import the same "
        "file again to go on from there"
    )
    done = 0
    monkeypatch.setattr(portable, "add", lambda *asked: (_ for _ in ()).throw(memcore.StoreFull("no room is left")))
    with pytest.raises(memcore.StoreFull) as raised:
        stores(1).import_(path)
    assert str(raised.value) == "no room is left"  # nothing was in


def test_new_rows_go_in_once(stores, tmp_path, monkeypatch):
    """They have no ids by which they could be told."""
    path = tmp_path / "x.jsonl"
    rows = [{"content": f"row {i}", "metadata": {"n": i}, "kind": "semantic", "key": f"k{i % 30}"} for i in range(50)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for after in (1, 2):
        assert import_cut(stores(after), path, after, monkeypatch)
        mem = stores(after)
        assert mem.stats()["versions"] == COMMIT * after
        assert mem.import_(path, now=10**9) == ImportReport(50, 0)
        assert [record.metadata["n"] for record in mem.list()] == list(range(20, 50))
        assert {record.ingested_at.timestamp() for record in mem.list()} == {100}  # as of when it was begun
        # done: the same file again is another import
        assert mem.import_(path).new == 50


def test_another_file_is_another_import(stores, source, tmp_path, monkeypatch):
    one, other = tmp_path / "x.jsonl", tmp_path / "y.jsonl"
    source.export(one)
    other.write_text("".join(f'{{"content": "row {i}"}}\n' for i in range(20)))
    assert import_cut(stores(), one, 2, monkeypatch)
    assert import_cut(stores(), other, 1, monkeypatch)
    mem = stores()
    assert mem.import_(other) == ImportReport(20, 0)
    mem.import_(one)
    assert mem.stats()["versions"] == source.stats()["versions"] + 20


def test_an_import_of_one_commit_leaves_no_trace(stores, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"content": "row"}\n' * COMMIT)
    mem = stores()
    for _ in range(2):
        assert mem.import_(path).new == COMMIT
    assert mem._engine.write(lambda catalog: catalog.imports_told()) == {}


def test_a_faulty_row_behind_many_changes_nothing(stores, tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"content": "row"}\n' * 60 + '{"content": ""}\n')
    mem = stores()
    with pytest.raises(memcore.InvalidInput, match="line 61: content is blank"):
        mem.import_(path)
    assert mem.stats()["versions"] == 0
    assert mem._engine.catalog.seq == 0


KILLED = """
import os, signal, sys
import memcore
from memcore.store import portable

portable.COMMIT_ROWS = 100
real, done = portable.add, 0

def add(*asked):
    global done
    done += 1
    if done == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*asked)

portable.add = add
with memcore.open(sys.argv[1], embedder=None) as mem:
    mem.import_(sys.argv[2])
"""


def test_case_M9_a_killed_import_leaves_whole_batches_and_does_not_double(tmp_path):
    path, store = tmp_path / "x.jsonl", tmp_path / "store"
    path.write_text("".join(f'{{"content": "line {i}"}}\n' for i in range(1000)))
    killed = subprocess.run([sys.executable, "-c", KILLED, str(store), str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    with memcore.open(store, embedder=None) as mem:
        assert mem.stats()["versions"] == 300
        assert mem.import_(path) == ImportReport(1000, 0)
        assert [record.content for record in mem.list()] == [f"line {i}" for i in range(1000)]


LIMITED = """
import resource, sys
import memcore

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from memcore.store import portable
portable.COMMIT_ROWS = 500
with memcore.open(sys.argv[1], embedder=None) as mem:
    try:
        mem.import_(sys.argv[2])
    except memcore.StoreFull as fault:
        print(fault)
"""


def test_a_full_disk_in_the_middle(tmp_path):
    """The system lets no file of the store grow beyond a size."""
    path, store = tmp_path / "x.jsonl", tmp_path / "store"
    text = "x" * 500
    path.write_text("".join(f'{{"content": "line {i} {text}"}}\n' for i in range(4000)))
    told = subprocess.run(
        [sys.executable, "-c", LIMITED, str(store), str(path), str(1_500_000)],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert f"The import of {path} was cut off: " in told
    with memcore.open(store, embedder=None) as mem:
        there = mem.stats()["versions"]
        assert 0 < there < 4000
        assert f"cut off: {there:,} of its 4,000 rows" in told
        assert mem.import_(path) == ImportReport(4000, 0)
        assert [record.content for record in mem.list()] == [f"line {i} {text}" for i in range(4000)]


def test_no_room_for_the_rows_that_wait(tmp_path, monkeypatch):
    import sqlite3

    path = tmp_path / "x.jsonl"
    path.write_text('{"content": "row"}\n')

    class Full:
        def __getattr__(self, name: str) -> Any:
            fault = sqlite3.OperationalError("database or disk is full")
            fault.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise fault

    monkeypatch.setattr(spool.sqlite3, "connect", lambda *asked, **more: Full())
    with memcore.open(embedder=None) as mem, pytest.raises(memcore.StoreFull) as raised:
        mem.import_(path)
    assert str(raised.value) == (
        "no room is left for the rows of the file, which wait in a temporary one (database or disk is full); free "
        "space, or set SQLITE_TMPDIR to a folder that has it, and import it again"
    )


# Beside others


def between(mem: memcore.Memory, path: Path, act: Any, monkeypatch, when: int = 2) -> ImportReport:
    """Imports, and does something before the `when`-th commit."""
    real, done = spool.Spool.batch, 0

    def batch(self: Any, *asked: Any) -> Any:
        nonlocal done
        done += 1
        if done == when:
            act()
        return real(self, *asked)

    with monkeypatch.context() as patched:
        patched.setattr(spool.Spool, "batch", batch)
        return mem.import_(path)


def versions_of_one(tmp_path: Path, n: int = 20) -> tuple[Path, str]:
    """A file in which the versions of one memory are many batches apart, others between them."""
    mem = memcore.open(embedder=None, clock=lambda: 100)
    first = mem.remember("version 1", kind="semantic", key="k", now=1)
    for i in range(n):
        mem.remember(f"other {i}", now=i)
        if i % 5 == 4:
            mem.remember(f"version {i}", kind="semantic", key="k", now=i)
    path = tmp_path / "x.jsonl"
    mem.export(path)
    return path, first.id


def test_what_is_forgotten_meanwhile_gets_no_further_versions(stores, tmp_path, monkeypatch):
    path, id = versions_of_one(tmp_path)
    mem = stores()

    def forget() -> None:
        assert mem.get(id) is None  # its last version is not in yet
        assert mem.forget(id).count == 1

    between(mem, path, forget, monkeypatch)
    assert mem.get(id) is None
    assert len(mem.history(id=id)) == 0
    assert mem.get(key="k") is None
    assert len(mem.list()) == 20


def test_what_is_cut_off_can_be_forgotten_and_stays_so(stores, tmp_path, monkeypatch):
    path, id = versions_of_one(tmp_path)
    assert import_cut(stores(), path, 2, monkeypatch)
    mem = stores()
    assert mem.forget(id).count == 1
    mem.import_(path)
    assert len(mem.history(id=id)) == 0
    assert len(mem.list()) == 20


def test_a_key_that_is_taken_meanwhile_goes_to_the_one_ingested_later(stores, tmp_path, monkeypatch):
    for now, winner in ((1_000, "ours"), (2, "version 19")):
        path, _ = versions_of_one(tmp_path)
        mem = stores(now)
        between(
            mem, path, lambda mem=mem, now=now: mem.remember("ours", kind="semantic", key="k", now=now), monkeypatch
        )
        assert mem.get(key="k").content == winner
        assert [r.content for r in mem.list(kinds="semantic")] == [winner]
        assert mem.stats()["versions"] == 26


def test_an_id_that_comes_in_meanwhile_is_left_alone(stores, tmp_path, monkeypatch):
    path, _ = versions_of_one(tmp_path)
    last = json.loads(path.read_text().splitlines()[-2])
    mem = stores()
    report = between(mem, path, lambda: mem.remember("ours", id=last["id"]), monkeypatch)
    assert mem.get(last["id"]).content == "ours"
    assert report.present == 1


def test_seqs_follow_on_where_others_have_written_meanwhile(stores, source, tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    source.export(path)
    mem = stores()
    between(mem, path, lambda: mem.remember_many([f"ours {i}" for i in range(100)]), monkeypatch)
    seqs = sorted(record.seq for name in mem.scopes() for record in mem.scope(*name).list(kinds=memcore.KINDS))
    assert len(set(seqs)) == len(seqs)

    def shown(of: memcore.Memory) -> Any:
        return [[{**row, "seq": 0} if isinstance(row, dict) else row for row in every(of)]]

    mem.forget(everything=True)
    assert shown(mem) == shown(source)


def test_the_same_import_twice_at_once_puts_nothing_in_twice(tmp_path, monkeypatch):
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"content": "row {i}"}}\n' for i in range(50)))
    mem = memcore.open(embedder=None)
    assert import_cut(mem, path, 1, monkeypatch)
    told: list[str] = []

    def import_too() -> None:
        mem.import_(path)

    with pytest.raises(memcore.StoreLocked) as raised:
        between(mem, path, import_too, monkeypatch, when=2)
    told.append(str(raised.value))
    assert told[0].startswith(
        f"{path} is being imported by another process or thread too; nothing went in twice: wait until that is done, "
        "and import it again"
    )
    assert sorted(record.content for record in mem.list()) == sorted(f"row {i}" for i in range(50))


# Order over the whole file


def test_versions_and_rivals_far_apart_in_a_shuffled_file(stores, source, tmp_path):
    path = tmp_path / "x.jsonl"
    source.export(path)
    header, *lines = path.read_text().splitlines()
    np.random.default_rng(1).shuffle(lines)
    path.write_text("\n".join([header, *lines]) + "\n")
    mem = stores()
    mem.import_(path)

    def shown(of: memcore.Memory) -> Any:  # links were made at one moment, and so are in the file's order
        rows = every(of)
        return [sorted(row, key=str) if isinstance(row, list) else row for row in rows]

    assert shown(mem) == shown(source)


def test_rivals_for_a_key_many_batches_apart(stores, tmp_path):
    rows: list[str] = []
    for name, now in (("A", 30), ("B", 20), ("C", 30), ("D", 10)):
        mem = memcore.open(embedder=None)
        mem.remember(name, kind="semantic", key="k", now=now)
        mem.remember_many([f"{name} {i}" for i in range(15)], now=now)
        mem.export(tmp_path / "x.jsonl")
        rows += (tmp_path / "x.jsonl").read_text().splitlines()[1:]
    (tmp_path / "x.jsonl").write_text("\n".join(rows))
    mem = stores()
    mem.import_(tmp_path / "x.jsonl")
    assert [record.content for record in mem.list(kinds="semantic")] == ["C"]
    assert mem.forget(everything=True).count == 64


def test_the_conversation_keeps_its_limits_when_all_is_in(stores, tmp_path):
    mem = memcore.open(embedder=None, working_capacity=40)
    for i in range(30):
        mem.working().add("user", str(i))
    mem.export(tmp_path / "x.jsonl")
    other = stores()
    other.import_(tmp_path / "x.jsonl")
    assert [message["content"] for message in other.working().messages()] == ["27", "28", "29"]
    assert len(other.end_session()) == 30


# Links


@pytest.mark.parametrize("format", FORMATS)
def test_case_M11_links_levels_and_tombstones(stores, tmp_path, format):
    mem = memcore.open(embedder=None, clock=lambda: 100)
    ids = mem.remember_many([{"content": str(i), "level": i % 2, "kind": "semantic"} for i in range(20)])
    for one, other in itertools.pairwise(ids):
        mem.link(one, "summarizes", other, attributes={"é": [one]}, valid_from=5)
    mem.unlink(ids[3])
    mem.forget(ids[7])
    path = tmp_path / f"x.{format}"
    assert mem.export(path) == 19
    assert ids[7].encode() not in path.read_bytes()
    assert mem.import_(path) == ImportReport(0, 19, 0)
    other = stores()
    assert other.import_(path) == ImportReport(19, 0, 17)
    for as_of in (None, 100, 99):
        assert other.links(as_of=as_of).to_arrow() == mem.links(as_of=as_of).to_arrow()
    other.export(tmp_path / "again", format)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_links_that_are_here_stay_as_they_are(stores, tmp_path):
    mem = stores()
    a, b = mem.remember("a").id, mem.remember("b").id
    mem.link(a, "x", b)
    mem.link(a, "y", b)
    mem.export(tmp_path / "x.jsonl")
    mem.unlink(a, "x", now=200)
    mem.link(a, "y", b, attributes={"n": 2}, now=200)
    before = mem.links(now=300).to_arrow(), mem.links(as_of=150).to_arrow()
    assert mem.import_(tmp_path / "x.jsonl", now=300) == ImportReport(0, 2, 0)
    assert (mem.links(now=300).to_arrow(), mem.links(as_of=150).to_arrow()) == before
    # one that holds stays, where the file tells another of the same three
    other = memcore.open(embedder=None)
    other.remember_many([{"content": "a", "id": a}, {"content": "b", "id": b}])
    other.link(a, "y", b, attributes={"n": 3}, now=50)
    other.import_(tmp_path / "x.jsonl", now=300)
    assert [(link.relation, link.attributes) for link in other.links(now=300)] == [("y", {"n": 3}), ("x", {})]


def every_link(mem: memcore.Memory) -> list[tuple[Any, ...]]:
    """All links of the default scope, over ones and ended ones too, in the order they were made; times in seconds."""
    snapshot = mem._engine.catalog.snapshot(("default", "default"))
    view = snapshot.links
    rows = np.flatnonzero(view.seen(snapshot.seq))
    table = link_table(view, rows, names=snapshot.names, seq=snapshot.seq).drop_columns(["src_id", "dst_id"])
    return [
        tuple(None if v is None else int(v.timestamp()) if isinstance(v, datetime) else v for v in row.values())
        for row in table.to_pylist()
    ]


def link(mem: memcore.Memory, n: int | None, since: float | None = None, until: float | None = None, **more: Any):
    """One more link between the first two memories."""
    a, b = (record.id for record in mem.list()[:2])
    return mem.link(a, "x", b, attributes=None if n is None else {"n": n}, valid_from=since, valid_to=until, **more)


def unlink(mem: memcore.Memory, **more: Any) -> int:
    return mem.unlink(mem.list()[0], **more)


# What was told of one memory, relation and memory at one time or another, and what comes of it.
TOLD = {
    "two under one now": (
        lambda mem: (link(mem, 1), link(mem, 2)),
        [("x", '{"n":1}', 100, None, 100), ("x", '{"n":2}', 100, 100, None)],
    ),
    "one ended and told again under one now": (
        lambda mem: (link(mem, 1), unlink(mem), link(mem, 1), unlink(mem), link(mem, 1)),
        [("x", '{"n":1}', 100, None, 100)] * 2 + [("x", '{"n":1}', 100, None, None)],
    ),
    "two windows under one now": (
        lambda mem: (link(mem, None, 200, 300), link(mem, None, 400, 500), link(mem, None, 10, 20)),
        [("x", None, 100, 200, 300), ("x", None, 100, 400, 500), ("x", None, 100, 10, 20)],
    ),
    "windows that differ in their end alone": (
        lambda mem: (link(mem, 1, 10, 20), link(mem, 1, 10, 30)),
        [("x", '{"n":1}', 100, 10, 20), ("x", '{"n":1}', 100, 10, 30)],
    ),
    "one that ends later": (
        lambda mem: (link(mem, 1), link(mem, 2, 200), link(mem, 3, 150)),
        [("x", '{"n":1}', 100, None, 150), ("x", '{"n":2}', 100, 200, 200), ("x", '{"n":3}', 100, 150, None)],
    ),
    "a clock that went back": (
        lambda mem: (link(mem, 1), link(mem, 2, now=10), link(mem, 3, now=5)),
        [("x", '{"n":1}', 100, None, 100), ("x", '{"n":2}', 10, 100, 100), ("x", '{"n":3}', 5, 10, None)],
    ),
    "what overlaps in the past": (
        lambda mem: (link(mem, 1, 10), link(mem, 2, 20), link(mem, 3, 15, 40)),
        [("x", '{"n":1}', 100, 10, 100), ("x", '{"n":2}', 100, 20, None), ("x", '{"n":3}', 100, 15, 40)],
    ),
}


def two(mem: memcore.Memory) -> memcore.Memory:
    mem.remember_many([{"content": "a", "id": ID}, {"content": "b", "id": OTHER}])
    return mem


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("story", TOLD)
def test_all_that_was_told_of_links_is_exported_and_imported(stores, tmp_path, story, format):
    tell, expected = TOLD[story]
    mem, path = two(stores()), tmp_path / f"x.{format}"
    tell(mem)
    assert every_link(mem) == expected
    mem.export(path)
    for now in (1, 100, 1000):  # the clock of the other store may be any
        other = stores(now)
        assert other.import_(path, now=now) == ImportReport(2, 0, len(expected))
        assert every_link(other) == expected
        assert other.import_(path, now=now) == ImportReport(0, 2, 0)
        assert every_link(other) == expected
        other.export(tmp_path / "again", format)
        assert (tmp_path / "again").read_bytes() == path.read_bytes()
    assert mem.import_(path) == ImportReport(0, 2, 0)
    assert every_link(stores()) == expected  # as another process reads it


@pytest.mark.parametrize("format", FORMATS)
def test_a_newer_export_ends_what_was_ended_and_an_older_one_reopens_nothing(stores, tmp_path, format):
    mem, paths = two(stores()), []
    for number, tell in enumerate(
        (
            lambda: link(mem, 1),
            lambda: link(mem, 2, 300, now=110),
            lambda: link(mem, 3, 200, now=120),
            lambda: unlink(mem, now=150),
            lambda: (link(mem, 1), unlink(mem), link(mem, 1)),
            lambda: link(mem, 4, now=50),  # with a clock that went back
            lambda: unlink(mem, now=160),
            lambda: link(mem, 5, 165, now=170),
            lambda: link(mem, 6, 166, now=170),  # both held, as it is told
        )
    ):
        tell()
        paths.append((tmp_path / f"{number}.{format}", every_link(mem)))
        mem.export(paths[-1][0])
    newer = stores(1)
    for path, expected in paths:
        newer.import_(path, now=1)
        assert every_link(newer) == expected
    older = stores(2)
    for path, _ in reversed(paths):
        older.import_(path, now=1)
        assert every_link(older) == paths[-1][1]


def test_a_link_that_the_file_does_not_know_keeps_out_what_would_hold_beside_it(stores, tmp_path):
    mem, path = two(stores()), tmp_path / "x.jsonl"
    link(mem, 1, 200, 300)
    link(mem, 2, 400)
    link(mem, 2, 400, 450, now=1000)  # which is past, and so is kept beside it
    mem.export(path)
    other = two(stores(1))
    link(other, 3, 420, 430)
    for now, added in ((100, 1), (100, 0), (425, 0)):
        assert other.import_(path, now=now).links == added
        assert [told[1] for told in every_link(other)] == ['{"n":3}', '{"n":1}']
    # the next of the same stays out with it, or each import would add it anew
    third, path_of_two = two(stores(2)), tmp_path / "y.jsonl"
    mem = two(stores(3))
    link(mem, 1, 50)
    link(mem, 1, 50, 60)
    mem.export(path_of_two)
    link(third, 3, 200, 300)
    assert [third.import_(path_of_two).links for _ in range(3)] == [0, 0, 0]
    # from then on it is over, and keeps out nothing
    assert other.import_(path, now=430).links == 2
    assert [told[1] for told in every_link(other)] == ['{"n":3}', '{"n":1}', '{"n":2}', '{"n":2}']


def test_a_file_of_two_exports_tells_each_link_once(stores, tmp_path):
    mem, path = two(stores()), tmp_path / "x.jsonl"
    link(mem, 1)
    mem.export(path)
    older = path.read_text().splitlines()
    unlink(mem, now=150)
    link(mem, 1)
    mem.export(path)
    header, *newer = path.read_text().splitlines()
    for rows in ([*older[1:], *newer], [*newer, *older[1:]]):
        path.write_text("\n".join([header, *rows]))
        number = len(rows) + (rows[0] == newer[0])
        other = stores(number)
        assert other.import_(path) == ImportReport(2, 2, 2)
        assert every_link(other) == every_link(mem)


def test_an_import_of_links_that_is_cut_off_goes_on_to_the_same_result(stores, tmp_path, monkeypatch):
    """Links that are the same but for their end, in many batches."""
    mem, path = two(stores()), tmp_path / "x.jsonl"
    for i in range(12):
        link(mem, i % 2)
        unlink(mem)
        link(mem, 1, 10 * (i % 5), 10 * (i % 5) + 10 + i)
    link(mem, 7, now=3)
    mem.export(path)
    expected = every_link(mem)
    for after in range(1, 20):
        cut = import_cut(stores(after), path, after, monkeypatch)
        other = stores(after)
        assert len(every_link(other)) == min(after * COMMIT - 2, len(expected))
        if cut:
            assert other.import_(path) == ImportReport(2, 0, len(expected))
        assert every_link(other) == expected
        if not cut:
            break
    assert after > 3


def test_a_narrowed_export_has_the_links_within_it(tmp_path):
    mem = memcore.open(embedder=None)
    mine, yours = mem.scope(session_id="mine"), mem.scope(session_id="yours")
    a, b, c = mine.remember("a").id, mine.remember("b").id, yours.remember("c").id
    for link in ((a, "x", b), (a, "x", c), (c, "x", a)):
        mem.link(*link)
    mine.export(tmp_path / "x.jsonl")
    other = memcore.open(embedder=None)
    assert other.import_(tmp_path / "x.jsonl") == ImportReport(2, 0, 1)
    assert [(link.src_id, link.dst_id) for link in other.links()] == [(a, b)]


ID, OTHER = "01890a5d-ac96-774b-bcce-b302099a8057", "01890a5d-ac96-774b-bcce-b302099a8058"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"links": [{"relation": "x", "dst_id": ID}]}, "it has links and no id; give it one"),
        ({"id": ID, "links": {}}, "links is {} (dict); it must be a list of objects, as export writes it"),
        ({"id": ID, "links": ["x"]}, "a link is 'x' (str); it must be an object with relation, dst_id, attributes"),
        ({"id": ID, "links": [{"relation": "x", "dst_id": ID, "color": 1}]}, "a link is {'relation': 'x'"),
        ({"id": ID, "links": [{"relation": "x"}]}, "dst_id is None"),
        ({"id": ID, "links": [{"dst_id": ID}]}, "relation is None"),
        ({"id": ID, "links": [{"relation": "x", "dst_id": ID, "attributes": 1}]}, "attributes is 1 (int)"),
        ({"id": ID, "links": [{"relation": "x", "dst_id": ID, "valid_to": "soon"}]}, "valid_to is 'soon'"),
    ],
    ids=str,
)
def test_a_faulty_link_is_named_by_its_row(stores, tmp_path, row, message):
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"content": "x", **more}) + "\n" for more in ({}, row)))
    mem = stores()
    with pytest.raises(memcore.InvalidInput) as raised:
        mem.import_(path)
    assert str(raised.value).startswith(f"{path}, line 2: {message}")
    assert mem.stats()["versions"] == 0


def test_a_link_to_what_is_nowhere_is_refused(stores, tmp_path):
    path = tmp_path / "x.jsonl"
    rows = [{"content": "x"}, {"content": "y", "id": ID, "links": [{"relation": "x", "dst_id": OTHER}]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    mem = stores()
    with pytest.raises(memcore.InvalidInput) as raised:
        mem.import_(path)
    assert str(raised.value) == (
        f"{path}: row 2 links to {OTHER}, which is neither in the file nor in this store. Nothing was imported; take "
        "the link out, or import that memory first"
    )
    assert mem.stats()["versions"] == 0
    mem.remember("the other", id=OTHER)
    assert mem.import_(path) == ImportReport(2, 0, 1)
    assert [(link.src_id, link.dst_id, link.created_at.timestamp()) for link in mem.links()] == [(ID, OTHER, 100)]


def test_a_parquet_column_of_links_must_be_one(tmp_path):
    import pyarrow as pa

    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"content": ["x"], "id": [ID], "links": [7]}), path)
    with memcore.open(embedder=None) as mem, pytest.raises(memcore.InvalidInput) as raised:
        mem.import_(path)
    assert str(raised.value).startswith(f"{path}: the column 'links' has the type int64 (")


# Bounds


def test_what_has_come_in_is_sealed_as_it_comes(tmp_path, monkeypatch):
    monkeypatch.setattr(maintenance, "SEAL_ROWS", 20)
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f'{{"content": "row {i}"}}\n' for i in range(300)))
    with memcore.open(tmp_path / "store", embedder=None) as mem:
        most = 0

        def look(done: int, total: int, what: str) -> None:
            nonlocal most
            most = max(most, mem._engine.catalog.unsealed())

        mem.import_(path, progress=look)
        assert most < 3 * 20
        assert list((tmp_path / "store" / "segments").glob("*.arrow"))
        assert len(mem.list()) == 300


def test_parquet_has_row_groups_of_a_batch(source, tmp_path):
    source.export(tmp_path / "x.parquet")
    groups = pq.ParquetFile(tmp_path / "x.parquet").metadata
    assert max(groups.row_group(i).num_rows for i in range(groups.num_row_groups)) <= 5


def test_progress_is_told(source, tmp_path):
    told: list[tuple[int, int, str]] = []
    rows = source.export(tmp_path / "x.jsonl", progress=lambda *far: told.append(far))
    assert told[-1] == (rows, rows, "export")
    assert [far[0] for far in told] == sorted({far[0] for far in told})
    told.clear()
    mem = memcore.open(embedder=None)
    report = mem.import_(tmp_path / "x.jsonl", progress=lambda *far: told.append(far))
    read = [far for far in told if far[2] == "read"]
    stored = [far for far in told if far[2] == "import"]
    assert told == read + stored
    assert read[-1] == (rows, rows, "read")
    assert stored[-1] == (rows + report.links, rows + report.links, "import")
    assert [far[0] for far in stored[:3]] == [7, 14, 21]


LARGE = """
import sys
import memcore
from memcore.store import maintenance, portable, spool

maintenance.SEAL_ROWS, portable.COMMIT_ROWS, portable._BATCH, spool._CACHE = 2048, 1024, 1024, 1024
store, path, doing = sys.argv[1:4]
with memcore.open(store, embedder=None, durability="relaxed") as mem:
    def own():
        return next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("RssAnon"))
    before, most = own(), 0
    def look(*far):
        global most
        most = max(most, own())
    (mem.export if doing == "export" else mem.import_)(path, progress=look)
print(most - before)
"""


def grown(doing: str, store: Path, path: Path) -> int:
    """What a process's own memory has grown by at most while it did this, in kB."""
    run = [sys.executable, "-c", LARGE, str(store), str(path), doing]
    return int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)


@pytest.fixture(scope="module")
def sizes(tmp_path_factory) -> dict[int, Path]:
    """A store of few and one of many rows. The few are more than what waits to be sealed: 10,000 take 12 MB, 25,000 to
    200,000 take 22 to 26."""
    made = {}
    for rows in (25_000, 100_000):
        folder = tmp_path_factory.mktemp("store")
        with (folder / "x.jsonl").open("w") as file:
            file.writelines(f'{{"content": "row {i} of them"}}\n' for i in range(rows))
        grown("import", folder / "store", folder / "x.jsonl")
        made[rows] = folder / "store"
    return made


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
def test_memory_does_not_grow_with_the_file(tmp_path, sizes, format):
    """Four times the rows take less than twice the memory, in and out."""
    few, many = (
        [grown("export", store, out), grown("import", tmp_path / f"copy {rows}", out)]
        for rows, store in sizes.items()
        for out in [tmp_path / f"{rows}.out.{format}"]
    )
    for of_few, of_many in zip(few, many, strict=True):
        assert of_many < 2 * of_few


@pytest.mark.parametrize("embedder", ["hashed", None])
@pytest.mark.parametrize("format", FORMATS)
def test_rows_of_texts_alone_are_embedded_on_the_way_in(tmp_path, format, embedder):
    path = tmp_path / f"x.{format}"
    if format == "parquet":
        pq.write_table(pa.table({"content": ["olá é", "two"]}), path)
    elif format == "jsonl":
        path.write_text('{"content": "olá é"}\n{"content": "two"}\n')
    else:
        path.write_text('{"records": [{"content": "olá é"}, {"content": "two"}]}')
    with memcore.open(embedder=embedder) as mem:
        assert mem.import_(path).new == 2
        assert [record.content for record in mem.list()] == ["olá é", "two"]
        assert [record.vector is not None for record in mem.list()] == [embedder is not None] * 2

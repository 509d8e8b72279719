"""What goes wrong around a store: no room, no permission, damaged and missing files, killed processes, held locks.

Each fault is a typed error that names the file and the next step. What was acknowledged stays, what is whole can be
read, and once the fault is gone the open store goes on.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import signal
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import memcore
from catalogs import whole
from memcore.store import directory, files, load
from running import held, run

CATALOG = "catalog.sqlite"
NEXT = "run memcore verify on it, or restore it from an export"
CLI = "import sys; from memcore.cli import main; main(sys.argv[1:])"


def opened(path: Any, **more: Any) -> memcore.Memory:
    return memcore.open(path, **{"embedder": None, **more})


def contents(mem: memcore.Scope) -> list[str]:
    return [record.content for record in mem.list()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.mem"


@pytest.fixture(autouse=True)
def nothing_stays_open():
    yield
    gc.collect()
    assert directory._open == {}


@pytest.fixture
def sealed(path: Path) -> Path:
    """A store whose scope "a" lies in one segment file, and scope "b" in another; closed."""
    with opened(path) as mem:
        for tenant in ("a", "b"):
            mem.scope(tenant).remember_many([{"content": f"{tenant} {i}", "vector": [1.0, i]} for i in range(50)])
            mem.compact()
    assert len(segments(path)) == 2
    return path


def segments(path: Path) -> list[Path]:
    """Segment files, the oldest first."""
    with closing(sqlite3.connect(path / CATALOG)) as catalog:
        return [path / "segments" / name for (name,) in catalog.execute("SELECT file FROM segments ORDER BY id")]


# No room: case E7


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 4 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", place], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("mounting is not allowed here")
    yield place
    gc.collect()
    subprocess.run(["umount", "-l", place], check=True)


def fill(mem: memcore.Memory, acknowledged: list[str], compact_each: int = 5000) -> None:
    for i in range(4000):
        acknowledged.append(mem.remember(f"{i:04} " + "x" * 2048).id)
        if i % compact_each == compact_each - 1:
            mem.compact()


def test_case_E7_a_full_disk(small_disk):
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    path = small_disk / "agent.mem"
    mem = opened(path)
    mem.remember("the key", kind="semantic", key="k")
    acknowledged = []
    with pytest.raises(memcore.StoreFull) as raised:
        fill(mem, acknowledged)
    assert str(raised.value).startswith(f"cannot write into the store {path}: no room is left (")
    assert str(raised.value).endswith(
        "); nothing was written and all that was acknowledged is safe: free space there, and go on"
    )
    assert len(acknowledged) > 100
    for _ in range(2):  # nothing of it is half there, and each verb says the same
        for write in (
            lambda: mem.remember("y" * 100_000),
            lambda: mem.remember_many(["y" * 2048] * 50),
            lambda: mem.update(acknowledged[0], content="y" * 100_000),
        ):
            with pytest.raises(memcore.StoreFull):
                write()
        assert [r.id for r in mem.list(kinds="episodic")] == acknowledged
        assert mem.get(acknowledged[-1]).content.startswith(f"{len(acknowledged) - 1:04} ")
        assert len(mem.recall(k=5)) == 5
        with pytest.raises(memcore.StoreFull):
            mem.compact()  # it needs room for a while
        assert list((path / "segments").glob(".*.part")) == []
    ballast.unlink()
    acknowledged += [mem.remember(f"after {i}").id for i in range(20)]
    mem.update(acknowledged[0], content="changed")
    assert mem.remember("the key again", kind="semantic", key="k").version == 2
    mem.forget(acknowledged[100:])
    mem.compact()
    assert len(mem.list(kinds="episodic")) == 100
    mem.close()
    assert whole(path)
    with opened(path) as mem:
        assert sorted(r.id for r in mem.list(kinds="episodic")) == sorted(acknowledged[:100])
        assert mem.get(acknowledged[0]).content == "changed"


def test_case_E7_remember_and_compact_until_the_disk_is_full(small_disk):
    """Segments take the room too, and a compaction that fails leaves all as it was."""
    path = small_disk / "agent.mem"
    with opened(path) as mem:
        acknowledged = []
        with pytest.raises(memcore.StoreFull) as raised:
            fill(mem, acknowledged, compact_each=100)
        assert str(path) in str(raised.value)
        assert [r.id for r in mem.list()] == acknowledged
        mem.forget(acknowledged[:1])
        assert len(mem.list()) == len(acknowledged) - 1
    assert whole(path)
    with opened(path) as mem:
        assert [r.id for r in mem.list()] == acknowledged[1:]


LIMITED = """
import json, resource, sys, memcore
mem = memcore.open(sys.argv[1], embedder=None)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
acknowledged, told = [], []
def write():
    for i in range(1000):
        acknowledged.append(mem.remember(f"{len(acknowledged)} " + "x" * 2048).id)
try:
    write()
except memcore.StoreFull as fault:
    told.append(str(fault))
assert [r.id for r in mem.list()] == acknowledged
try:
    mem.remember_many(["y" * 2048] * 500)
except memcore.StoreFull as fault:
    told.append(str(fault))
try:
    mem.compact()
except memcore.StoreFull as fault:
    told.append(str(fault))
assert [r.id for r in mem.list()] == acknowledged
full = len(acknowledged)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
for i in range(10):
    acknowledged.append(mem.remember("after").id)
mem.compact()
assert [r.id for r in mem.list()] == acknowledged
mem.close()
print(json.dumps([full, acknowledged, told]))
"""


def test_case_E7_a_limit_of_file_size(path):
    full, acknowledged, told = json.loads(run(LIMITED, path).stdout)
    assert full > 20
    assert len(told) == 3
    for line in told[:2]:
        assert line.startswith(f"cannot write into the store {path}: no room is left (SQLITE_")
        assert "all that was acknowledged is safe: free space there, and go on" in line
    assert str(path) in told[2]
    assert "what was acknowledged is safe: free space there" in told[2] or "free space there, and go on" in told[2]
    assert whole(path)
    with opened(path) as mem:
        assert [r.id for r in mem.list()] == acknowledged


NEW_SCOPE = """
import resource, subprocess, sys, memcore
mem = memcore.open(sys.argv[1], embedder=None)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
try:
    while True:
        mem.remember("x" * 2048)
except memcore.StoreFull:
    pass
mine = mem.scope("mine", "p", "s", "r")
try:
    mine.remember_many(["x" * 2048] * 20)
except memcore.StoreFull:
    print("full")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
other = "import sys, memcore; memcore.open(sys.argv[1], embedder=None).scope('other', 'p', 't', 'q').remember('theirs')"
subprocess.run([sys.executable, "-c", other, sys.argv[1]], check=True)
mine.remember("mine")
print([r.content for r in mine.list()], [r.content for r in mem.scope("other", "p", "t", "q").list()])
mem.close()
"""


def test_a_scope_that_was_new_to_a_write_that_failed_is_nobody_elses(path):
    """The number that it would have had goes to the next scope, of another process."""
    assert run(NEW_SCOPE, path).stdout.splitlines() == ["full", "['mine'] ['theirs']"]
    with opened(path) as mem:
        assert contents(mem.scope("mine", "p", "s", "r")) == ["mine"]
        assert contents(mem.scope("other", "p", "t", "q")) == ["theirs"]
    assert whole(path)


# No permission


READ_ONLY = """
import sys, memcore
mem = memcore.open(sys.argv[1], embedder=None)
print([r.content for r in mem.list()])
print(len(mem.recall(k=10)), len(mem.history("k")), mem.stats()["memories"])
for write in (
    lambda: mem.remember("no"),
    lambda: mem.forget(everything=True),
    lambda: mem.remember_many(["no"]),
    mem.compact,
):
    try:
        write()
    except memcore.StoreReadOnly as fault:
        print(fault)
input()
print([r.content for r in mem.list()])
mem.close()  # it has counted accesses, and cannot write them
"""


@pytest.fixture
def read_only(path: Path):
    """A store in folders and files that may only be read."""
    with opened(path) as mem:
        mem.remember("sealed")
        mem.compact()
        mem.remember("x", kind="semantic", key="k")

    def close() -> None:
        for place in (path / CATALOG, *(path / "segments").iterdir(), path / "segments", path):
            place.chmod(0o555 if place.is_dir() else 0o444)

    close()
    yield path
    for place in (path, path / "segments", *path.rglob("*")):
        place.chmod(0o755)


@pytest.mark.parametrize("left", ["closed", "killed"])
def test_a_directory_that_may_only_be_read(read_only, left):
    """Also what a killed process has left: the journal's last commits lie beside the catalog."""
    path = read_only
    if left == "killed":
        path.chmod(0o755)
        (path / CATALOG).chmod(0o644)
        script = (
            "import os, sys, memcore\nmem = memcore.open(sys.argv[1], embedder=None)\nmem.remember('last')\n"
            "os.kill(os.getpid(), 9)"
        )
        run(script, path, check=False)
        assert (path / f"{CATALOG}-wal").stat().st_size
        path.chmod(0o555)
        (path / CATALOG).chmod(0o444)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file() and not p.name.endswith("-shm")}
    rows = ["sealed", "x"] + (["last"] if left == "killed" else [])
    with held(READ_ONLY, path, anybody=True) as reader:
        assert reader.line() == str(rows)
        assert reader.line() == f"{len(rows)} 1 {len(rows)}"
        for _ in range(4):
            assert reader.line() == (
                f"cannot write into the store {path}: attempt to write a readonly database (SQLITE_READONLY); check "
                "that "
                f"{path / CATALOG} and its folder can be written"
            )
        assert {p: p.read_bytes() for p in before} == before
        path.chmod(0o755)
        (path / CATALOG).chmod(0o644)
        with opened(path) as mem:  # somebody may write after all
            mem.remember("news")
            path.chmod(0o555)
            reader.go_on()
            assert reader.line() == str([*rows, "news"])
            path.chmod(0o755)
        assert reader.end() == 0


def test_case_E9_the_errors_tell_the_path_and_the_reason(tmp_path):
    (tmp_path / "file").write_text("mine")
    closed = tmp_path / "closed"
    opened(closed / "store").close()
    opened(tmp_path / "shut").close()
    for place in (closed, tmp_path / "shut"):
        place.chmod(0)
    script = (
        "import sys, memcore\nfor place in sys.argv[1:]:\n    try:\n        memcore.open(place, embedder=None)\n"
        "    except memcore.StoreError as fault:\n        print(type(fault).__name__, fault)"
    )
    places = ["/proc/nope/store", tmp_path / "file", tmp_path / "file" / "store", closed / "store", closed / "new",
              tmp_path / "shut"]  # fmt: skip
    told = run(script, *places, anybody=True).stdout.splitlines()
    for place in (closed, tmp_path / "shut"):
        place.chmod(0o755)
    read_only = "StoreReadOnly cannot make the store {}: {}; pass a path that can be written"
    assert told == [
        read_only.format("/proc/nope/store", "No such file or directory"),
        f"StoreError {tmp_path / 'file'} is a file (Not a directory); a store is a directory: pass another path",
        read_only.format(tmp_path / "file" / "store", "Not a directory"),
        read_only.format(closed / "store", "Permission denied"),
        read_only.format(closed / "new", "Permission denied"),
        read_only.format(tmp_path / "shut", "Permission denied"),
    ]
    assert (tmp_path / "file").read_text() == "mine"
    missing = (
        "/proc/nope/store is no store: No such file or directory; check the path, or remember something there first"
    )
    for place, line in (("/proc/nope/store", missing), (tmp_path / "file", told[1].split(" ", 1)[1])):
        done = run(CLI, "--store", place, "stats", check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"memcore: {line}\n"


# Segment files


def zero_bytes(file: Path) -> None:
    file.write_bytes(b"")


def truncated(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def cut_by_one(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def zeros(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def text(file: Path) -> None:
    file.write_text("not a segment")


def of_another(file: Path) -> None:
    """The file of another store, whole."""
    others = sorted(file.parent.glob("*.arrow"))
    shutil.copy(next(other for other in others if other != file), file)


def foreign(file: Path) -> None:
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, pa.schema([("seq", pa.int64())])) as writer:
        writer.write_batch(pa.record_batch({"seq": pa.array(range(50), pa.int64())}))


def no_batch(file: Path) -> None:
    with pa.ipc.open_file(str(file)) as reader:
        schema = reader.schema
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, schema):
        pass


DAMAGES = [zero_bytes, truncated, cut_by_one, zeros, text, of_another, foreign, no_batch]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_segment(sealed, damage):
    file, other = segments(sealed)
    kept = file.read_bytes()
    damage(file)
    damaged = file.read_bytes()
    with opened(sealed) as mem:
        a, b = mem.scope("a"), mem.scope("b")
        for call in (a.list, a.recall, lambda: a.remember("x"), lambda: a.get(key="k"), mem.scopes, mem.stats):
            with pytest.raises(memcore.StoreCorrupt) as raised:
                call()
            assert str(raised.value).startswith(f"{file} is not a whole segment file (")
            assert str(raised.value).endswith(
                "); run memcore verify --repair to go on without it, or restore the store from an export"
            )
        assert contents(b) == [f"b {i}" for i in range(50)]  # the rest is whole
        b.remember("b 50", vector=[1.0, 0.0])
        assert len(b.recall(vector=[1.0, 0.0], k=100)) == 51
        assert file.read_bytes() == damaged
        file.write_bytes(kept)  # from a backup, under the open store
        assert contents(a) == [f"a {i}" for i in range(50)]
        a.remember("a 50")
        mem.compact()
    with opened(sealed) as mem:
        assert [len(mem.scope(name).list()) for name in "ab"] == [51, 51]
    assert not other.exists() or other in segments(sealed)


def test_scopes_share_an_open_file_until_it_is_cut(tmp_path, monkeypatch):
    """Each by itself takes 200 KB a scope. To read on in a mapped file that was cut meanwhile would end the process."""
    path = tmp_path / "store"
    with opened(path) as mem:
        for i in range(20):
            mem.scope(f"tenant {i}").remember(f"text {i}", vector=[1.0, 0.0])
        mem.compact()
    opens = []
    real = files.SegmentFile.__init__
    monkeypatch.setattr(files.SegmentFile, "__init__", lambda self, path: (opens.append(path), real(self, path))[1])
    (file,) = segments(path)
    kept = file.read_bytes()
    with opened(path) as mem:
        for i in range(10):
            assert contents(mem.scope(f"tenant {i}")) == [f"text {i}"]
        assert opens == [file]
        truncated(file)
        for i in range(10, 20):
            with pytest.raises(memcore.StoreCorrupt) as raised:
                mem.scope(f"tenant {i}").list()
            assert str(raised.value).startswith(f"{file} is not a whole segment file (")
        file.write_bytes(kept)
        for i in range(20):
            assert contents(mem.scope(f"tenant {i}")) == [f"text {i}"]


def test_a_missing_segment(sealed):
    file, _ = segments(sealed)
    kept = file.read_bytes()
    file.unlink()
    with opened(sealed) as mem:
        for call in (mem.scope("a").list, lambda: mem.scope("a").remember("x"), mem.stats):
            with pytest.raises(memcore.StoreCorrupt) as raised:
                call()
            assert str(raised.value) == (
                f"{file} is missing, and the catalog of the store names it; put it back, run memcore verify --repair "
                "to "
                "go on without its rows, or restore the store from an export"
            )
        assert len(mem.scope("b").list()) == 50
        file.write_bytes(kept)
        assert len(mem.scope("a").list()) == 50


def test_a_segment_that_may_not_be_read(sealed):
    file, _ = segments(sealed)
    file.chmod(0)
    script = (
        "import sys, memcore\nmem = memcore.open(sys.argv[1], embedder=None)\nprint(len(mem.scope('b').list()))\n"
        "try:\n    mem.scope('a').list()\nexcept memcore.StoreError as fault:\n    print(type(fault).__name__, fault)"
    )
    assert run(script, sealed, anybody=True).stdout.splitlines() == [
        "50",
        f"StoreError cannot read {file}: Permission denied; check its permissions",
    ]


@pytest.mark.parametrize("name", ["", CATALOG, f"{CATALOG}-wal", "segments", "segments/*.arrow", "cold/*/*/*.parquet"])
def test_what_may_not_be_read_is_not_damaged(path, name):
    """So it is neither told as damage nor repaired."""
    mem = opened(path, clock=lambda: 1e9)
    mem.remember("sealed")
    mem.remember("old", importance=0.1, event_time=0)
    mem.prune()
    mem.compact()
    mem.remember("in the WAL")
    copy = path.with_name("copy.mem")
    shutil.copytree(path, copy)
    mem.close()
    (place,) = copy.glob(name) if name else (copy,)
    before = {p: p.read_bytes() for pattern in ("*.arrow", "*.parquet") for p in copy.rglob(pattern)}
    place.chmod(0)
    script = (
        "import sys, memcore\nfor repair in (False, True):\n    try:\n"
        "        print(memcore.verify(sys.argv[1], repair=repair))\n"
        "    except memcore.StoreError as fault:\n        print(type(fault).__name__, fault)\n"
        "try:\n    memcore.open(sys.argv[1], embedder=None).list(tiers=('hot', 'cold'))\n"
        "except memcore.StoreError as fault:\n    print(type(fault).__name__)"
    )
    told = run(script, copy, anybody=True).stdout.splitlines()
    place.chmod(0o755)
    assert told == [
        *[f"StoreError cannot read {place}: Permission denied; check its permissions"] * 2,
        "StoreReadOnly" if name in ("", CATALOG) else "StoreError",
    ]
    assert {p: p.read_bytes() for p in before} == before
    assert memcore.verify(copy).ok


@pytest.mark.parametrize("create", [True, False])
def test_links_that_lead_to_no_directory(tmp_path, create):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere")
    gone = (
        "is a link to nowhere, which is not there; make that directory, or pass another path"
        if create
        else "is no store: No such file or directory; check the path, or remember something there first"
    )
    for name, why in (
        ("loop", "leads from link to link in a circle; a store is a directory: pass another path"),
        ("gone", gone),
    ):
        with pytest.raises(memcore.StoreError) as raised:
            opened(tmp_path / name, create=create)
        assert str(raised.value) == f"{tmp_path / name} {why}"
    (tmp_path / "nowhere").mkdir()
    opened(tmp_path / "gone").close()
    assert memcore.verify(tmp_path / "gone").ok


def test_a_segment_that_is_gone_because_another_process_has_rewritten_it(path, monkeypatch):
    """Between the reading of the list and the opening of the file: what is read is the next state."""
    with opened(path) as mem:
        mem.scope("a").remember_many([{"content": str(i)} for i in range(50)])
        mem.scope("a").forget(mem.scope("a").list()[:10])
        mem.scope("b").remember_many([{"content": str(i)} for i in range(50)])
    compacting = (
        "import sys, memcore\ntry:\n    memcore.open(sys.argv[1], embedder=None, lock_timeout=0.01).compact()\n"
        "except memcore.StoreLocked:\n    pass  # the reader below hinders the last step"
    )
    forgetting = (
        "import sys, memcore; mem = memcore.open(sys.argv[1], embedder=None); a = mem.scope('a')\n"
        "a.restore(a.forgotten()); mem.compact(); a.forget(a.list()[:10])"
    )
    run(forgetting, path)
    (before,) = segments(path)
    opening = load.open_file
    overtaken = []

    def late(journal: Any, file: str) -> Any:
        if not overtaken:
            overtaken.append(file)
            run(compacting, path)
        return opening(journal, file)

    monkeypatch.setattr(load, "open_file", late)
    with opened(path) as mem:
        assert len(mem.scope("a").list()) == 40
        assert overtaken == [before.name]
        assert not before.exists()
        assert len(mem.scope("b").list()) == 50


# The catalog


def test_a_catalog_that_was_cut_to_nothing(sealed):
    (sealed / CATALOG).write_bytes(b"")
    for _ in range(2):
        with pytest.raises(memcore.StoreCorrupt) as raised:
            opened(sealed)
        assert str(raised.value) == (
            f"{sealed / CATALOG} is empty: it was cut off, since no store is made so; nothing was changed. Run memcore "
            "verify --repair to go on with what the segments hold, or restore the store from an export"
        )
        assert (sealed / CATALOG).read_bytes() == b""


@pytest.mark.parametrize("left", ["segments", "wal", "cold"])
def test_a_missing_catalog_is_no_new_store(path, left):
    with opened(path) as mem:
        mem.remember("x")
        if left == "segments":
            mem.compact()
    if left == "wal":
        script = (
            "import os, sys, memcore\nmem = memcore.open(sys.argv[1], embedder=None)\nmem.remember('last')\n"
            "os.kill(os.getpid(), 9)"
        )
        run(script, path, check=False)
    if left == "cold":
        (path / "cold" / "acme").mkdir(parents=True)
        (path / "cold" / "acme" / "2026-11.parquet").write_bytes(b"")
    rows = (path / CATALOG).read_bytes()
    (path / CATALOG).unlink()
    tells = {
        "segments": next((path / "segments").iterdir(), None),
        "wal": path / f"{CATALOG}-wal",
        "cold": path / "cold" / "acme" / "2026-11.parquet",
    }[left]
    for _ in range(2):
        with pytest.raises(memcore.StoreCorrupt) as raised:
            opened(path)
        assert str(raised.value) == (
            f"{path / CATALOG} is missing, and {tells} tells that it was there: put it back, run memcore verify "
            "--repair "
            "to go on with what the segments hold, or restore the store from an export"
        )
        assert not (path / CATALOG).exists()
    (path / CATALOG).write_bytes(rows)
    with opened(path) as mem:
        assert contents(mem) == (["x", "last"] if left == "wal" else ["x"])


@pytest.mark.parametrize("damage", ["text", "header", "foreign", "folder", "cut"])
def test_case_E11_an_unreadable_catalog_is_not_an_absent_one(sealed, damage):
    catalog = sealed / CATALOG
    there = catalog.read_bytes()
    if damage == "folder":
        catalog.unlink()
        catalog.mkdir()
    elif damage == "foreign":
        catalog.unlink()
        with closing(sqlite3.connect(catalog)) as other, other:
            other.execute("CREATE TABLE mine (a)")
    else:
        catalog.write_bytes({"text": b"not a store", "header": bytes(100) + there[100:], "cut": there[:5000]}[damage])
    before = catalog.read_bytes() if catalog.is_file() else None
    for _ in range(2):
        with pytest.raises(memcore.StoreCorrupt) as raised, opened(sealed) as mem:
            mem.scope("a").remember("x")
        assert str(raised.value).startswith(f"{catalog} is ")
        assert "restore" in str(raised.value)
        assert not [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink() and sealed in fd.readlink().parents]
    if damage == "header":
        done = run(CLI, "--store", sealed, "--tenant", "a", "--embedder", "hashed", "remember", "x", check=False)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"memcore: {raised.value}\n")
    assert before is None or catalog.read_bytes() == before


def test_a_damaged_page_of_the_catalog(sealed):
    """One page of the rows that the journal still has, of one scope: the others can be read and written."""
    with opened(sealed) as mem:
        mem.scope("c").remember_many([f"marker {i} " + "x" * 1500 for i in range(40)])
        mem.scope("d").remember_many([f"other {i} " + "y" * 1500 for i in range(40)])
    catalog = sealed / CATALOG
    data = bytearray(catalog.read_bytes())
    page = data.index(b"marker 20 ") // 4096 * 4096
    data[page : page + 4096] = bytes(4096)
    catalog.write_bytes(data)
    with opened(sealed) as mem:
        for call in (mem.scope("c").list, mem.scope("c").recall, lambda: mem.scope("c").remember("x"), mem.compact):
            with pytest.raises(memcore.StoreCorrupt) as raised:
                call()
            assert str(raised.value) == (
                f"{catalog} is damaged: database disk image is malformed (SQLITE_CORRUPT); {NEXT}"
            )
        assert len(mem.scope("a").list()) == len(mem.scope("b").list()) == 50
        assert len(mem.scope("d").list()) == 40
        mem.scope("d").remember("still")
        mem.scope("a").remember("still")
    with opened(sealed) as mem:
        assert [len(mem.scope(name).list()) for name in "abd"] == [51, 50, 41]


# Killed


KILLED = """
import os, sys, memcore
mem = memcore.open(sys.argv[1], embedder=None)
mem.remember("acknowledged")
print("ready")
journal = mem._engine.directory.journal
journal.begin()  # in the middle of a write, and of the work on the files
with mem._engine.directory.maintenance._alone(0) as alone:
    assert alone
    print("holds the locks")
    sys.stdin.read()
"""


def test_a_killed_process_leaves_no_lock_and_what_was_acknowledged(path):
    with held(KILLED, path) as child:
        assert [child.line(), child.line()] == ["ready", "holds the locks"]
        with opened(path, lock_timeout=0.05) as mem:
            assert contents(mem) == ["acknowledged"]  # a reader waits for nobody
            with pytest.raises(memcore.StoreLocked):
                mem.remember("x")
            with pytest.raises(memcore.StoreLocked) as raised:
                mem.compact()
            assert str(raised.value) == (
                f"another process has maintained the store {path} for more than 0.05 s; nothing was changed: try again "
                "when it is done"
            )
            child.child.send_signal(signal.SIGKILL)
            child.child.wait()
            mem.remember("after")
            mem.compact()
            assert contents(mem) == ["acknowledged", "after"]
    assert whole(path)


# Locked: case F5


def test_case_F5_a_lock_that_another_program_holds(path):
    with opened(path) as mem:
        mem.remember("x")
    holding = (
        "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1], isolation_level=None)\nc.execute('BEGIN IMMEDIATE')\n"
        "print('holds it')\ninput()\nc.execute('ROLLBACK')\nprint('let go')\nsys.stdin.read()"
    )
    cli = (
        "import functools, sys, memcore\n"
        "memcore.open = functools.partial(memcore.open, lock_timeout=float(sys.argv[1]))\n"
        "from memcore.cli import main\nmain(sys.argv[2:])"
    )
    verb = ("--store", path, "--embedder", "hashed", "remember", "y")
    with held(holding, path / CATALOG) as holder, opened(path, lock_timeout=0.05) as mem:
        assert holder.line() == "holds it"
        told = (
            f"the store {path} has been locked by process {holder.child.pid} for more than 0.05 s; nothing was "
            "written: try "
            "again, or end that process"
        )
        for write in (lambda: mem.remember("y"), lambda: mem.forget(everything=True), mem.end_session):
            with pytest.raises(memcore.StoreLocked) as raised:
                write()
            assert str(raised.value) == told
        assert contents(mem) == ["x"]
        assert len(mem.recall(k=3)) == 1
        done = run(cli, 0.05, *verb, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"memcore: {told}\n")
        done = run(cli, 0.05, "--store", path, "--embedder", "hashed", "recall", "--json")
        assert len(json.loads(done.stdout)) == 1  # a read that cannot write its count is still one
        with held(cli, 60, *verb) as patient:
            holder.go_on()
            assert holder.line() == "let go"
            assert patient.line().startswith("remembered ")
            assert patient.end() == 0
        mem.remember("z")
        assert contents(mem) == ["x", "y", "z"]


def test_a_reader_of_another_program_hinders_nobody(path):
    with opened(path) as mem:
        mem.remember("x")
        with closing(sqlite3.connect(path / CATALOG, isolation_level=None)) as other:
            other.execute("BEGIN")
            assert other.execute("SELECT count(*) FROM rows").fetchone() == (1,)
            for i in range(50):
                mem.remember(str(i))
            assert other.execute("SELECT count(*) FROM rows").fetchone() == (1,)
        assert len(mem.list()) == 51


# Clocks


def test_a_clock_that_goes_backwards(path):
    times = iter([1000, 900, 800, 700, 2000, 10])
    with opened(path, clock=lambda: next(times)) as mem:
        first = mem.remember("a", kind="semantic", key="k")
        second = mem.update(first.id, content="b")
        third = mem.remember("c", kind="semantic", key="k")
        mem.remember("event")
    with opened(path, clock=lambda: 10) as mem:
        versions = mem.history("k")
        assert [(r.version, r.content) for r in versions] == [(1, "a"), (2, "b"), (3, "c")]
        assert [r.ingested_at.timestamp() for r in versions] == [1000, 1000, 1000]
        assert [r.seq for r in versions] == [first.seq, second.seq, third.seq]
        assert mem.get(key="k").content == "c"
        ids = [mem.remember(f"more {i}").id for i in range(20)]
        assert len(set(ids)) == 20
        assert mem.forget(first.id).count == 1
        assert mem.restore(first.id).count == 1
        mem.compact()
    with opened(path, clock=lambda: 5) as mem:
        assert [r.content for r in mem.history("k")] == ["a", "b", "c"]
        assert len(mem.list()) == 22
        assert [r.content for r in mem.list(as_of=800) if r.kind == "episodic" and r.content == "event"] == ["event"]
        assert np.isfinite([hit.total_score for hit in mem.recall(k=50)]).all()
    assert whole(path)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(errno.EACCES, memcore.StoreReadOnly), (errno.EROFS, memcore.StoreReadOnly), (errno.ENOSPC, memcore.StoreFull),
     (errno.EIO, memcore.StoreError)],
)  # fmt: skip
def test_what_could_not_be_written_says_of_which_kind_it_is(code, kind):
    fault = files.write_fault(Path("x.lock"), OSError(code, os.strerror(code)))
    assert type(fault) is kind
    assert str(fault).startswith(f"cannot write x.lock: {os.strerror(code)}; ")


def test_what_cannot_be_read_for_want_of_memory_is_not_told_as_damage():
    for fault in (
        OSError("Memory mapping file failed: Cannot allocate memory"),
        pa.ArrowMemoryError("malloc of size 9"),
    ):
        told = files.corrupt(Path("x.arrow"), fault)
        assert type(told) is memcore.StoreError
        assert str(told) == f"cannot read x.arrow: {fault}; the file is not at fault: free memory, and try again"
    assert type(files.corrupt(Path("x.arrow"), OSError("Invalid flatbuffers message."))) is memcore.StoreCorrupt

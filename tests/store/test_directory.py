"""A store in a directory: opened, shared, closed, forked, taken over from an older memcore."""

from __future__ import annotations

import fcntl
import gc
import inspect
import os
import shutil
import signal
import sqlite3
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import memcore
from catalogs import whole
from memcore.embed import CallableEmbedder, HashedEmbedder
from memcore.store import directory
from running import held, run

CATALOG = "catalog.sqlite"
FORMATS = Path(__file__).with_name("formats")
NOWHERE = "/proc/nope/store"


def opened(path: Any, **more: Any) -> memcore.Memory:
    return memcore.open(path, **{"embedder": None, **more})


def contents(mem: memcore.Scope) -> list[str]:
    return [record.content for record in mem.list()]


def files(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


def handles(path: Path) -> list[str]:
    """The files of a store that this process has open."""
    found = [str(fd.readlink()) for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    return [name for name in found if name.startswith(str(path))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.mem"


@pytest.fixture
def five(path: Path) -> Path:
    """A store with five memories, closed."""
    with opened(path, embedder="hashed") as mem:
        mem.remember_many([{"content": f"row {i}"} for i in range(5)])
    return path


@pytest.fixture(autouse=True)
def nothing_stays_open():
    yield
    gc.collect()
    assert directory._open == {}


# It comes back


@pytest.mark.parametrize("sealed", [False, True], ids=["journal", "segment"])
def test_a_store_comes_back_as_it_was(path, sealed):
    with opened(path) as mem:
        first = mem.remember(
            "A", kind="semantic", key="k", vector=[3.0, 4.0], metadata={"é": 1}, idempotency_key="i", now=5
        )
        mem.update(first.id, content="B", vector=[1.0, 0.0])
        mem.get(first.id)
        mem.forget(mem.remember("gone").id)
        mem.scope("t", "p", "s").working().add("user", "hello")
        if sealed:
            mem.compact()
        listed, history = mem.list()[0], list(mem.history("k"))
        assert listed.access_count == 1
        seq = mem.remember("last").seq
    with opened(path) as mem:
        assert mem.list()[0] == listed
        assert list(mem.history("k")) == history
        assert mem.scope("t", "p", "s").working().messages() == [{"role": "user", "content": "hello"}]
        assert mem.remember("A", kind="semantic", key="k", idempotency_key="i").version == 1
        assert mem.remember("next").seq == seq + 1
        assert mem.stats()["path"] == str(path)


@pytest.mark.parametrize(
    "name",
    ["with spaces", "acentuação", "🦉 memory", "a'b%20c?d#e&f=g", "[a-z]*", "agent.mem/deep/er", "new\nline", "file:x"],
)
def test_any_name_of_a_directory(tmp_path, name):
    for kind in (str, Path):
        with opened(kind(tmp_path / name)) as mem:
            mem.remember("x")
            mem.compact()
    with opened(tmp_path / name) as mem:
        assert contents(mem) == ["x", "x"]
        assert mem.stats()["path"] == str(tmp_path / name)
    assert CATALOG in files(tmp_path / name)
    assert [p for p in files(tmp_path) if not p.startswith(name)] == []


def test_a_relative_path_is_that_of_when_it_was_opened(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    mem = opened("agent.mem")
    mem.remember("before")
    monkeypatch.chdir(tmp_path / "elsewhere")
    mem.remember("after")
    mem.compact()
    with opened("../agent.mem") as again:
        assert contents(again) == ["before", "after"]
    mem.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    with opened(tmp_path / "agent.mem") as mem:
        assert contents(mem) == ["before", "after"]


def test_what_is_acknowledged_is_there_however_the_store_is_left(path):
    opened(path).remember("garbage")
    gc.collect()
    mem = opened(path)
    mem.remember("closed")
    mem.close()
    mem.close()  # closing twice is no error
    with suppress(ZeroDivisionError), opened(path) as mem:
        mem.remember("with, although it raised")
        raise ZeroDivisionError
    run("import sys, memcore; mem = memcore.open(sys.argv[1], embedder=None); mem.remember('the end')", path)
    killed = (
        "import os, sys, memcore; memcore.open(sys.argv[1], embedder=None).remember('killed'); os.kill(os.getpid(), 9)"
    )
    assert run(killed, path, check=False).returncode == -signal.SIGKILL
    with opened(path) as mem:
        assert contents(mem) == ["garbage", "closed", "with, although it raised", "the end", "killed"]


def test_a_closed_store_leaves_one_file_and_no_handle(path):
    with opened(path) as mem:
        mem.remember("x")
        mem.list()
    assert files(path) == [CATALOG]
    assert not handles(path)


def test_a_scope_keeps_its_store_open(path):
    ops = opened(path).scope("t")
    chat = opened(None).scope("t").working()
    gc.collect()
    ops.remember("x")
    chat.add("user", "hello")
    del ops
    gc.collect()
    assert directory._open == {}
    with opened(path) as mem:
        assert len(mem.scope("t").list()) == 1


def test_a_store_that_was_only_looked_at_is_not_written(five):
    before = (five / CATALOG).read_bytes()
    with opened(five, embedder="hashed") as mem:
        mem.list(), mem.history("k"), mem.stats(), mem.scopes(), mem.forget(kinds="semantic", dry_run=True)
    assert (five / CATALOG).read_bytes() == before
    with opened(five, embedder="hashed") as mem:
        mem.recall("row 1", k=1)  # counts
    assert (five / CATALOG).read_bytes() != before
    with opened(five, embedder="hashed") as mem:
        assert sum(r.access_count for r in mem.list()) == 1


def test_what_is_acknowledged_before_the_store_is_closed_is_saved(path):
    mem = opened(path)
    acknowledged: list[list[int]] = [[] for _ in range(4)]
    started, closed = threading.Barrier(5), threading.Event()
    enough = threading.Semaphore(0)

    def write(mine: list[int]) -> None:
        started.wait()
        while not closed.is_set():
            with suppress(memcore.StoreClosed):
                mem.remember("x", metadata={"n": len(mine)})
                mine.append(len(mine))
                enough.release()

    threads = [threading.Thread(target=write, args=(mine,)) for mine in acknowledged]
    for thread in threads:
        thread.start()
    started.wait()
    for _ in range(80):
        enough.acquire()
    mem.close()
    closed.set()
    for thread in threads:
        thread.join()
    assert not handles(path)  # late writers have opened nothing
    with opened(path) as mem:
        assert sorted(r.metadata["n"] for r in mem.list()) == sorted(n for mine in acknowledged for n in mine)


def test_a_write_is_acknowledged_though_no_thread_can_be_had(path, monkeypatch):
    """As when the interpreter ends: the work on the files is left to who opens the store next."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with opened(path) as mem:
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refused)
            mem.remember("x")
        mem.remember("y")
    with opened(path) as mem:
        assert contents(mem) == ["x", "y"]


def test_a_read_that_was_interrupted_does_not_stop_the_next(path):
    """A signal's handler may raise between the beginning of a read and the guard that ends it."""
    with opened(path) as mem:
        mem.remember("x")
    with opened(path) as mem:
        mem._engine.directory.journal._reader.execute("BEGIN")
        assert contents(mem) == ["x"]


# Closed


def verbs() -> list[str]:
    public = {name for name in dir(memcore.Memory) if not name.startswith("_")} - {"close"}
    return [*sorted(name for name in public if callable(getattr(memcore.Memory, name))), "__enter__"]


def called(holder: memcore.Scope, verb: str) -> None:
    """Calls a verb with something for each argument that it must have."""
    method = getattr(holder, verb)
    needed = [p for p in inspect.signature(method).parameters.values() if p.default is p.empty]
    method(*["x.json" for p in needed if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)])


@pytest.mark.parametrize("verb", verbs())
@pytest.mark.parametrize("kept", [True, False], ids=["directory", "RAM"])
def test_a_closed_store_says_so(path, verb, kept):
    mem = opened(path if kept else None)
    scope = mem.scope("t")
    mem.close()
    for holder in [mem, scope] if hasattr(memcore.Scope, verb) else [mem]:
        with pytest.raises(memcore.StoreClosed) as raised:
            called(holder, verb)
        assert str(raised.value) == "the store is closed; open it again with memcore.open"


def test_a_conversation_of_a_closed_store_says_so(path):
    mem = opened(path)
    chat = mem.working()
    mem.close()
    for call in (lambda: chat.add("user", "x"), chat.messages, chat.end, lambda: chat.tokens):
        with pytest.raises(memcore.StoreClosed):
            call()


# Opened twice in one process


def test_a_second_open_shares_the_copy_in_ram(path):
    one = opened(path, clock=lambda: 1000)
    link = path.with_name("link")
    link.symlink_to(path)
    two = opened(link, clock=lambda: 2000, weights=(0, 1, 0))
    assert one._engine.catalog is two._engine.catalog
    assert [mem.remember("x").ingested_at.timestamp() for mem in (one, two)] == [1000, 2000]
    assert [list(mem.stats()["weights"]) for mem in (one, two)] == [[0.5, 0.3, 0.2], [0, 1, 0]]
    assert len(one.list()) == len(two.list()) == 2
    one.close()
    with pytest.raises(memcore.StoreClosed):
        one.list()
    two.remember("y")
    assert len(two.list()) == 3
    two.close()
    with opened(path) as mem:
        assert len(mem.list()) == 3


def test_what_is_shared_must_be_asked_for_alike(path):
    with opened(path, durability="relaxed", lock_timeout=3):
        with pytest.raises(memcore.InvalidInput) as raised:
            opened(path, lock_timeout=3)
        assert str(raised.value) == (
            f"the store {path} is open in this process with durability='relaxed', and now asked for with 'full'; open "
            "it "
            "with the same, or close it first"
        )
        with pytest.raises(memcore.InvalidInput) as raised:
            opened(path, durability="relaxed", lock_timeout=0.5)
        assert str(raised.value) == (
            f"the store {path} is open in this process with lock_timeout=3.0, and now asked for with 0.5; open it "
            "with the "
            "same, or close it first"
        )
    opened(path).close()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"durability": "none"}, "durability is 'none' (str); allowed: full, relaxed"),
        ({"lock_timeout": -1}, "lock_timeout is -1 seconds; it must be at least 0"),
        ({"lock_timeout": "1"}, "lock_timeout is '1' (str); "),
        ({"weights": (1, 1, 1)}, "weights "),
        ({"decay_rate": -1}, "decay_rate "),
        ({"working_capacity": 0}, "working_capacity "),
    ],
)
def test_an_open_that_is_refused_leaves_nothing_open(path, option, message):
    with pytest.raises(memcore.InvalidInput) as raised:
        opened(path, **option)
    assert str(raised.value).startswith(message)
    assert directory._open == {}
    with opened(path, embedder="hashed") as mem:
        mem.remember("x")
        with pytest.raises(memcore.EmbedderMismatch):
            opened(path, embedder=HashedEmbedder(8))
        with pytest.raises(memcore.InvalidInput):
            opened(path, **option)
    assert directory._open == {}


def test_durability_is_what_sqlite_is_told(path):
    for durability, told in (("full", 2), ("relaxed", 1)):
        with opened(path, durability=durability) as mem:
            mem.remember(durability)
            assert mem._engine.directory.journal.run("PRAGMA synchronous").fetchone() == (told,)
    script = (
        "import os, sys, memcore\nmem = memcore.open(sys.argv[1], embedder=None, durability='relaxed')\n"
        "mem.remember('killed')\nos.kill(os.getpid(), 9)"
    )
    assert run(script, path, check=False).returncode == -signal.SIGKILL
    with opened(path) as mem:  # the end of a process loses nothing
        assert contents(mem) == ["full", "relaxed", "killed"]


# Moved away


@pytest.mark.parametrize("how", ["moved", "deleted", "replaced"])
def test_a_store_whose_files_are_gone_acknowledges_nothing(path, how):
    mem = opened(path)
    mem.remember("x")
    other = path.with_name("other.mem")
    if how == "deleted":
        shutil.rmtree(path)
    else:
        path.rename(other)
    if how == "replaced":
        shutil.copytree(other, path)
    told = (
        f"the store {path} was moved, deleted or replaced while it was open; nothing was written: put it back, or "
        "close it "
        "and open it again"
    )
    for call in (lambda: mem.remember("y"), lambda: mem.forget(everything=True)):
        with pytest.raises(memcore.StoreError) as raised:
            call()
        assert str(raised.value) == told
    assert contents(mem) == ["x"]  # what is in RAM is as it was
    if how == "replaced":
        with pytest.raises(memcore.StoreError) as raised:
            opened(path)
        assert str(raised.value) == (
            f"the store {path} is open in this process, and its files have been replaced meanwhile; close it first"
        )
    if how == "moved":
        other.rename(path)
        mem.remember("y")
        assert contents(mem) == ["x", "y"]
    mem.close()
    if how != "deleted":
        with opened(path) as mem:
            assert contents(mem) == (["x"] if how == "replaced" else ["x", "y"])


def test_a_deleted_store_is_made_anew_and_not_by_who_had_it_open(path):
    with opened(path) as mem:
        mem.remember("old")
        shutil.rmtree(path)
        path.mkdir()
        with pytest.raises(memcore.StoreError):
            mem.remember("lost")
        assert files(path) == []
    with opened(path) as mem:
        assert contents(mem) == []


# Forks

FORK = """
import os, sys, memcore
mem = memcore.open(sys.argv[1], embedder=None)
mem.remember("r0")
pid = os.fork()
if not pid:
    mem.remember("c0")
    with memcore.open(sys.argv[1], embedder=None) as again:
        assert [r.content for r in again.list()] == ["r0", "c0"]
    mem.scope("t").working().add("user", "hello")
    mem.compact()
    sys.exit()  # an ordinary exit, with all that runs at one
assert os.waitpid(pid, 0)[1] == 0
mem.remember("r1")
assert [r.content for r in mem.list()] == ["r0", "c0", "r1"]
pid = os.fork()
if not pid:
    mem.close()
    sys.exit()
assert os.waitpid(pid, 0)[1] == 0
mem.remember("r2")
mem.close()
"""


def test_case_F7_a_forked_child_has_connections_of_its_own(path):
    run(FORK, path)
    assert whole(path)
    with opened(path) as mem:
        assert contents(mem) == ["r0", "c0", "r1", "r2"]
        assert len(mem.scope("t").working().messages()) == 1


GOING_ON = """
import os, sys, memcore
mem = memcore.open(sys.argv[1], embedder=None)
mem.remember("r0")
told, tell = os.pipe()
heard, hear = os.pipe()
pid = os.fork()
if not pid:
    os.write(tell, b"x")
    os.read(heard, 1)
    mem.remember("c0")
    sys.exit()
os.read(told, 1)
for i in range(20):  # the child has the store open
    mem.remember("r")
os.write(hear, b"x")
for i in range(200):  # and ends somewhere here
    mem.remember("r")
assert os.waitpid(pid, 0)[1] == 0
mem.remember("last")
assert len(mem.list()) == 223
"""


def test_a_child_that_ends_takes_nothing_from_its_parent(path):
    run(GOING_ON, path)
    assert whole(path)
    with opened(path) as mem:
        assert sorted(set(contents(mem))) == ["c0", "last", "r", "r0"]
        assert len(mem.list()) == 223


ORPHAN = """
import os, sys, memcore
mem = memcore.open(sys.argv[1], embedder=None)
mem.remember("r0")
if os.fork():
    os._exit(0)  # the parent is gone without closing
sys.stdin.read()
mem.remember("c0")
"""


def test_a_child_outlives_its_parent(path):
    with held(ORPHAN, path) as parent:
        assert parent.child.wait(60) == 0
        with opened(path) as mem:  # the child still waits
            mem.remember("meanwhile")
            parent.child.stdin.close()
            assert parent.child.stdout.read() == ""  # until the child has ended
            assert contents(mem) == ["r0", "meanwhile", "c0"]


BUSY = """
import os, sys, threading, memcore
sys.setswitchinterval(1e-5)
path = sys.argv[1]
mem = memcore.open(path, embedder=None)
mem.remember_many([{"content": str(i), "kind": "semantic", "key": str(i)} for i in range(10)])
done = threading.Event()
faults = []
written = [0, 0]

def write(number):
    while not done.is_set():
        mem.remember_many([{"content": str(i), "kind": "semantic", "key": str(i)} for i in range(10)])
        written[number] += 1

def read():
    while not done.is_set():
        assert len(mem.list(kinds="semantic")) == 10
        mem.get(key="3")

def reopen():
    while not done.is_set():
        with memcore.open(path, embedder=None) as again:
            again.list(limit=1)
        with memcore.open(path + "2", embedder=None) as other:
            other.remember("x")

def guarded(job, *args):
    try:
        job(*args)
    except BaseException as fault:
        faults.append(fault)

mem.list(), mem.get(key="3")  # which import what they need: to fork while another thread imports is a trap of Python's
jobs = [(write, 0), (write, 1), (read,), (reopen,)]
threads = [threading.Thread(target=guarded, args=job, daemon=True) for job in jobs]
for thread in threads:
    thread.start()
for i in range(25):
    pid = os.fork()
    if not pid:
        try:
            fine = len(mem.list(kinds="semantic")) == 10
            mem.remember(f"child {i}")
            with memcore.open(path + "2", embedder=None) as other:
                other.remember("y")
            mem.close()
        except BaseException as fault:
            print(fault, file=sys.stderr)
            os._exit(1)
        os._exit(0 if fine else 2)
    assert os.waitpid(pid, 0)[1] == 0, i
done.set()
for thread in threads:
    thread.join()
assert not faults, faults
assert sorted(r.content for r in mem.list(kinds="episodic")) == sorted(f"child {i}" for i in range(25))
assert sum(written) >= 1
assert len(mem.history("3")) == 1 + sum(written)
"""


def test_a_fork_beside_writers_readers_and_openers_has_a_whole_store(path):
    run(BUSY, path)
    assert whole(path)


PROCESSES = """
import multiprocessing, sys, memcore

def write(mem, names):
    for name in names:
        mem.remember(name)

def open_and_write(path, names):
    with memcore.open(path, embedder=None) as mem:
        write(mem, names)

if __name__ == "__main__":
    path, method = sys.argv[1:]
    context = multiprocessing.get_context(method)
    mem = memcore.open(path, embedder=None)
    mem.remember("parent")
    target, first = (write, mem) if method == "fork" else (open_and_write, path)
    children = [context.Process(target=target, args=(first, [f"{n} {i}" for i in range(10)])) for n in range(2)]
    for child in children:
        child.start()
    mem.remember("parent too")
    for child in children:
        child.join()
        assert child.exitcode == 0
    assert len(mem.list()) == 22
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_case_F7_processes_of_multiprocessing(path, method, tmp_path):
    (tmp_path / "processes.py").write_text(PROCESSES)
    run("import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')",
        tmp_path / "processes.py", path, method)  # fmt: skip
    assert whole(path)
    with opened(path) as mem:
        found = contents(mem)
        assert len(found) == 22
        for number in range(2):
            assert [c for c in found if c.startswith(f"{number} ")] == [f"{number} {i}" for i in range(10)]


def test_a_child_writes_no_counts_of_its_parent(path):
    """Both would add them: 1 recall would count twice."""
    script = (
        "import os, sys, memcore\nmem = memcore.open(sys.argv[1], embedder=None)\nmem.remember('x')\n"
        "mem.recall()\npid = os.fork()\nif not pid:\n    mem.recall()\n    mem.close()\n    os._exit(0)\n"
        "os.waitpid(pid, 0)\nmem.close()"
    )
    run(script, path)
    with opened(path) as mem:
        assert mem.list()[0].access_count == 2


# Places that cannot hold a store


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("", "path is blank (''); it needs at least one visible character"),
        (" ", "path is blank (' ')"),
        ("a\0b", "path holds a NUL character"),
        (
            b"agent.mem",
            "path is b'agent.mem' (bytes); pass a directory as a text or a Path, or None to keep all in RAM",
        ),
        (7, "path is 7 (int); pass a directory"),
        (os.fsdecode(b"caf\xe9"), "path holds a lone surrogate (U+DCE9 at index 3)"),
    ],
)
def test_what_is_no_path(bad, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(memcore.InvalidInput) as raised:
        opened(bad)
    assert str(raised.value).startswith(message)
    assert list(tmp_path.iterdir()) == []


# Opening what is there


def test_case_E3_no_option_empties_a_store(five):
    options: list[dict[str, Any]] = [
        {},
        {"weights": (1, 0, 0)},
        {"decay_rate": "lasting"},
        {"half_life": 5},
        {"working_capacity": 1},
        {"working_tokens": 1},
        {"count_tokens": len},
        {"clock": lambda: 0},
        {"embedder": None},
        {"durability": "relaxed"},
        {"lock_timeout": 0},
    ]
    for option in options:
        with opened(five, **{"embedder": "hashed", **option}) as mem:
            assert len(mem.list()) == 5, option
    for embedder in ("static", HashedEmbedder(64), lambda texts: np.ones((len(texts), 256))):
        with pytest.raises(memcore.EmbedderMismatch, match="hashed/256"):
            opened(five, embedder=embedder)
    with opened(five, embedder="hashed") as mem:
        assert contents(mem) == [f"row {i}" for i in range(5)]


def test_the_errors_of_another_embedder(five, path):
    with pytest.raises(memcore.EmbedderMismatch) as raised:
        opened(five, embedder=HashedEmbedder(64))
    assert str(raised.value) == (
        f"the store {five} holds vectors of the embedder 'hashed/256/1' and is opened with 'hashed/64/1'; vectors of "
        'two embedders cannot be compared: open it with embedder="hashed" (--embedder hashed), or with embedder=None '
        "and embed all texts anew with reembed"
    )
    assert (raised.value.stored, raised.value.given) == ("hashed/256/1", "hashed/64/1")
    opened(five, embedder="hashed").close()  # the remedy can be followed
    given = path.with_name("given.mem")
    with opened(given) as mem:
        mem.remember("x", vector=np.eye(256)[0])
    with pytest.raises(memcore.EmbedderMismatch) as raised:
        opened(given, embedder="hashed")
    assert str(raised.value) == (
        f"the store {given} holds vectors of 256 dimensions that its writers passed, of no known embedder, and is "
        "opened with 'hashed' ('hashed/256/1', 256 dimensions); they cannot be compared: open it with embedder=None "
        "(--embedder none) and pass vectors, or embed all texts anew with reembed, in place of the vectors that were "
        "passed"
    )
    assert (raised.value.stored, raised.value.given) == (None, "hashed/256/1")


@pytest.mark.parametrize(
    ("embedder", "remedy", "name"),
    [
        (HashedEmbedder(64), "with embedder=memcore.embed.HashedEmbedder(64)", "hashed"),
        ("static", 'with embedder="static" (--embedder static)', "static"),
        (
            CallableEmbedder(lambda texts: [[1.0]] * len(texts), name="of mine/2"),
            "with the embedder of which the fingerprint is 'callable/of mine/2/1'",
            "of mine/2",
        ),
        (
            CallableEmbedder(lambda texts: [[1.0]] * len(texts), name="mine", fingerprint="m1"),
            "with the embedder of which the fingerprint is 'm1'",
            None,
        ),
    ],
    ids=["hashed of another width", "static", "callable", "own fingerprint"],
)
def test_how_to_open_a_store_with_its_own_embedder(path, embedder, remedy, name):
    with opened(path, embedder=embedder) as mem:
        mem.remember("x")
        fingerprint = mem.stats()["embedder"]["fingerprint"]
    with pytest.raises(memcore.EmbedderMismatch) as raised:
        opened(path, embedder="hashed")
    assert f"cannot be compared: open it {remedy}, or with embedder=None and" in str(raised.value)
    assert (raised.value.stored, raised.value.given) == (fingerprint, "hashed/256/1")
    with opened(path, embedder=None) as mem:
        assert mem.stats()["embedder"] == {"name": name, "fingerprint": fingerprint}


def test_the_embedder_of_a_store_stays_known_when_it_is_opened_without(five):
    with opened(five) as mem:
        mem.remember("one more", vector=np.eye(256)[0])
    with pytest.raises(memcore.EmbedderMismatch):
        opened(five, embedder=lambda texts: np.ones((len(texts), 256)))
    with opened(five, embedder="hashed") as mem:
        assert len(mem.list()) == 6


def test_another_process_settles_the_embedder_of_an_empty_store(path):
    with opened(path, embedder="hashed") as mem:
        run("import sys, memcore; memcore.open(sys.argv[1], embedder=lambda t: [[1.0]] * len(t)).remember('x')", path)
        with pytest.raises(memcore.EmbedderMismatch):
            mem.remember("y")
        assert contents(mem) == ["x"]


def test_the_first_embedder_of_a_store_of_texts_is_its_own(path):
    with opened(path) as mem:
        mem.remember("no vector")
        run("import sys, memcore; memcore.open(sys.argv[1], embedder='hashed').remember('x')", path)
        assert mem.stats()["dim"] == 256
    with pytest.raises(memcore.EmbedderMismatch, match="vectors of the embedder 'hashed/256/1'"):
        opened(path, embedder=HashedEmbedder(64))
    with opened(path, embedder="hashed") as mem:
        assert [r.vector is None for r in mem.list()] == [True, False]


def test_an_empty_store_that_two_have_open_takes_the_embedder_of_who_writes_first(path):
    with opened(path, embedder="hashed") as mem:
        run("import sys, memcore; memcore.open(sys.argv[1], embedder=None).remember('no vector')", path)
        mem.remember("x")
        assert [r.vector is None for r in mem.list()] == [True, False]
    with opened(path, embedder="hashed") as mem:
        assert len(mem.list()) == 2


def test_a_write_that_changes_nothing_leaves_nothing_in_ram(path):
    """The codes of names go on where the disk's end: a code that only RAM has would shift those of others."""
    with opened(path) as mem:
        mem.remember("x", idempotency_key="i")
        assert mem.remember("x", idempotency_key="i", source="a retry's").source == "observation"
        mem.remember("y", source="second")
        script = "import sys, memcore; memcore.open(sys.argv[1], embedder=None).remember('z', source='third')"
        run(script, path)
        mem.remember("w", source="fourth")
        sources = [(r.content, r.source) for r in mem.list()]
    assert sources == [("x", "observation"), ("y", "second"), ("z", "third"), ("w", "fourth")]
    with opened(path) as mem:
        assert [(r.content, r.source) for r in mem.list()] == sources


def test_case_E11_opening_twice_makes_nothing_new(five):
    (five / "notes.txt").write_text("not memcore's")
    (five / "segments" / "notes.txt").write_text("nor this")
    before = {name: (five / name).read_bytes() for name in files(five)}
    for _ in range(2):
        opened(five, embedder="hashed").close()
    assert {name: (five / name).read_bytes() for name in files(five)} == before
    with opened(five, embedder="hashed") as mem:
        mem.compact()
        assert len(mem.list()) == 5
    assert (five / "notes.txt").read_text() == "not memcore's"
    assert (five / "segments" / "notes.txt").read_text() == "nor this"


def test_case_E11_the_command_line_adds_to_a_store_that_is_there(five):
    script = "import sys; from memcore.cli import main; main(sys.argv[1:])"
    for verb in (["remember", "one more"], ["remember", "and another"]):
        run(script, "--store", five, "--embedder", "hashed", *verb)
    with opened(five, embedder="hashed") as mem:
        assert contents(mem) == [*(f"row {i}" for i in range(5)), "one more", "and another"]


def test_a_store_of_a_newer_memcore(five):
    with closing(sqlite3.connect(five / CATALOG)) as catalog, catalog:
        catalog.execute("UPDATE state SET format = 7")
    before = (five / CATALOG).read_bytes()
    for _ in range(2):
        with pytest.raises(memcore.FormatTooNew) as raised:
            opened(five, embedder="hashed")
        assert str(raised.value) == (
            f"{five / CATALOG} is in format 7 and this memcore reads up to format 2; upgrade memcore-engine"
        )
    assert (five / CATALOG).read_bytes() == before


def test_a_making_that_was_killed_leaves_nothing_behind(path):
    script = (
        "import os, sys, memcore\nos.link = lambda *_: os.kill(os.getpid(), 9)\n"
        "memcore.open(sys.argv[1], embedder=None)"
    )
    assert run(script, path, check=False).returncode == -signal.SIGKILL
    assert len(files(path)) == 1
    with opened(path) as mem:
        mem.remember("x")
    opened(path).close()
    assert files(path) == [CATALOG]


# A store of format 1, as the first memcore wrote it


@pytest.fixture
def first(path: Path) -> Path:
    shutil.copytree(FORMATS / "1", path)
    (path / "lock").write_text("12345")
    return path


def check_first(mem: memcore.Memory) -> None:
    """All that the fixture holds."""
    assert mem.scopes() == [("acme", "billing"), ("globex", "default")]
    acme = mem.scope("acme", "billing", "s1", "triage")
    http, limit, note, hello = acme.list(now=1_790_000_800)
    assert (http.content, http.kind, http.seq, http.version) == ("HTTP 504 on /billing", "episodic", 1, 1)
    assert http.id == "01a0c450-6c00-7000-968c-113a86d9cead"
    assert http.metadata == {"host": "web01"}
    assert http.importance == pytest.approx(0.9)
    assert (http.session_id, http.agent_role) == ("s1", "triage")
    assert (http.event_time.timestamp(), http.ingested_at.timestamp()) == (1_789_996_400, 1_790_000_000)
    assert (http.access_count, http.last_access.timestamp()) == (1, 1_790_000_200)
    assert (limit.key, limit.content, limit.version, limit.access_count) == ("gateway timeout", "limit is 5 s", 2, 1)
    assert (note.content, note.source, note.confidence) == ("o gateway cai às sextas", "told_by_user", 0.5)
    assert note.untrusted
    assert hello.kind == "working"
    old, new = acme.history("gateway timeout")
    assert (old.content, old.version, old.superseded_at.timestamp()) == ("limit is 3 s", 1, 1_790_000_060)
    assert new == limit
    assert acme.get(key="gateway timeout", as_of=1_790_000_030).content == "limit is 3 s"
    assert acme.working().messages() == [{"role": "user", "content": "hello"}]
    assert [record.vector is None for record in acme.list(now=1_790_000_800)] == [
        value is None
        for value in pq.read_table(FORMATS / "1" / "state.parquet")["vector"].take([0, 2, 3, 4]).to_pylist()
    ]
    globex = mem.scope("globex")
    assert [r.content for r in globex.list(now=1_790_000_800)] == ["nothing to see"]
    assert len(globex.list(now=1_790_100_000)) == 0  # it expires


def test_a_store_of_format_1_is_taken_over_whole_and_once(first):
    with opened(first) as mem:
        assert files(first) == [CATALOG, f"{CATALOG}-shm", f"{CATALOG}-wal"]
        check_first(mem)
    for _ in range(2):
        with opened(first) as mem:
            check_first(mem)
            assert mem.stats()["versions"] == 6
    with opened(first) as mem:
        acme = mem.scope("acme", "billing", "s1", "triage")
        assert acme.remember("other", idempotency_key="i1").content == "o gateway cai às sextas"
        assert acme.remember("limit is 9 s", kind="semantic", key="gateway timeout").version == 3
        assert acme.remember("new").seq == 8
        mem.scope("globex").forget(everything=True)
    with opened(first) as mem:
        assert mem.scopes() == [("acme", "billing")]
        assert mem.stats()["versions"] == 7
    assert files(first) == [CATALOG]


def test_a_take_over_that_was_killed_is_finished_by_the_next(first):
    """The rows are in the catalog, and the old file is still there."""
    script = (
        "import os, pathlib, sys, memcore\nunlink = pathlib.Path.unlink\n"
        "def killed(path, **more):\n"
        "    if path.name == 'state.parquet':\n        os.kill(os.getpid(), 9)\n    unlink(path, **more)\n"
        "pathlib.Path.unlink = killed\nmemcore.open(sys.argv[1], embedder=None)"
    )
    assert run(script, first, check=False).returncode == -signal.SIGKILL
    assert (first / "state.parquet").exists()
    with opened(first) as mem:
        check_first(mem)
        assert mem.stats()["versions"] == 6
    assert files(first) == [CATALOG]


def test_processes_that_take_over_at_once(first):
    script = (
        "import sys, memcore\nprint('ready')\ninput()\nwith memcore.open(sys.argv[1], embedder=None) as mem:\n"
        "    mem.remember('mine')\n    print(mem.stats()['versions'] >= 7)"
    )
    with held(script, first) as one, held(script, first) as two, held(script, first) as three:
        children = (one, two, three)
        assert [child.line() for child in children] == ["ready"] * 3
        for child in children:
            child.go_on()
        assert [child.line() for child in children] == ["True"] * 3
        assert [child.end() for child in children] == [0, 0, 0]
    with opened(first) as mem:
        assert mem.stats()["versions"] == 9
        mem.forget(everything=True)
        check_first_scopes = [name for name in mem.scopes() if name != ("default", "default")]
        assert check_first_scopes == [("acme", "billing"), ("globex", "default")]
    assert files(first) == [CATALOG]


def test_a_store_that_an_older_memcore_has_open_is_left_to_it(first):
    before = (first / "state.parquet").read_bytes()
    with (first / "lock").open() as old:
        fcntl.flock(old, fcntl.LOCK_EX)
        with pytest.raises(memcore.StoreLocked) as raised:
            opened(first, lock_timeout=0)
        assert str(raised.value) == (
            f"{first / 'lock'} is locked: the store is open in an older memcore, or being taken over by another "
            "process; "
            "nothing was changed: close it there, and try again"
        )
    assert (first / "state.parquet").read_bytes() == before
    with opened(first) as mem:
        check_first(mem)


def test_a_smaller_working_memory_makes_room_when_an_old_store_is_taken_over(path):
    path.mkdir()
    with opened(None) as mem:
        for i in range(6):
            mem.scope("t").working().add("user", str(i))
        mem.export(path / "state.parquet")
    with opened(path, working_capacity=2) as mem:
        assert [m["content"] for m in mem.scope("t").working().messages()] == ["4", "5"]
        assert len(mem.scope("t").end_session()) == 6


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "header", "foreign", "folder", "dangling"])
def test_case_E11_an_unreadable_store_of_format_1_is_not_an_absent_one(first, damage):
    state = first / "state.parquet"
    there = state.read_bytes()
    if damage in ("empty", "text", "cut", "header"):
        state.write_bytes(
            {
                "empty": b"",
                "text": b"not a store",
                "cut": there[: len(there) // 2],
                "header": bytes(100) + there[100:],
            }[damage]
        )
    elif damage == "foreign":
        pq.write_table(pa.table({"a": [1]}), state)
    elif damage == "folder":
        state.unlink()
        state.mkdir()
    else:
        state.rename(first / "moved")
        state.symlink_to(first / "gone")
    before = state.read_bytes() if state.is_file() else None
    for _ in range(2):
        with pytest.raises(memcore.StoreError) as raised:
            opened(first)
        assert str(state) in str(raised.value)
        assert isinstance(raised.value, memcore.StoreCorrupt) == (before is not None)
    assert before is None or state.read_bytes() == before
    assert os.path.lexists(state)


def test_a_store_of_format_1_of_a_newer_memcore(first):
    state = first / "state.parquet"
    table = pq.read_table(state)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"memcore_format": b"7"}), state)
    with pytest.raises(memcore.FormatTooNew) as raised:
        opened(first)
    assert str(raised.value).startswith(f"{state} is in format 7 and this memcore reads up to format 1; ")


def test_a_store_of_format_1_and_another_embedder(first):
    with pytest.raises(memcore.EmbedderMismatch) as raised:
        opened(first, embedder="hashed")
    assert str(first / "state.parquet") in str(raised.value)
    with opened(first) as mem:
        check_first(mem)


if sys.version_info >= (3, 12):
    pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

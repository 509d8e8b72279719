"""A store in a directory: opened, locked, saved, closed; what a crash, a fork, a bad path or a damaged file does."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import memcore
from memcore.embed import HashedEmbedder
from memcore.store import portable

STATE = "state.parquet"
NOWHERE = "/proc/nope/store"


def opened(path: Any, **more: Any) -> memcore.Memory:
    return memcore.open(path, **{"embedder": None, **more})


def contents(mem: memcore.Memory) -> list[str]:
    return [record.content for record in mem.list()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.mem"


@pytest.fixture
def five(path: Path) -> Path:
    """A store with five memories, closed."""
    with opened(path, embedder="hashed") as mem:
        mem.remember_many([{"content": f"row {i}"} for i in range(5)])
    return path


def run(script: str, *args: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, args)], capture_output=True, text=True, check=check, timeout=120
    )


# It comes back


def test_a_store_comes_back_as_it_was(path):
    with opened(path) as mem:
        first = mem.remember(
            "A", kind="semantic", key="k", vector=[3.0, 4.0], metadata={"é": 1}, idempotency_key="i", now=5
        )
        mem.update(first.id, content="B", vector=[1.0, 0.0])
        mem.get(first.id)
        mem.forget(mem.remember("gone").id)
        mem.scope("t", "p", "s").working().add("user", "hello")
        listed, history = mem.list()[0], list(mem.history("k"))
        seq = mem.remember("last").seq
    with opened(path) as mem:
        assert mem.list()[0] == listed
        assert list(mem.history("k")) == history
        assert mem.scope("t", "p", "s").working().messages() == [{"role": "user", "content": "hello"}]
        assert mem.remember("A", kind="semantic", key="k", idempotency_key="i").version == 1
        assert mem.remember("next").seq == seq + 1
        assert mem.stats()["path"] == str(path)
    assert b"gone" not in (path / STATE).read_bytes()


@pytest.mark.parametrize("name", ["with spaces", "acentuação", "🦉 memory", "a'b%20c", "[a-z]*", "agent.mem/deep/er"])
def test_any_name_of_a_directory(tmp_path, name):
    for kind in (str, Path):
        with opened(kind(tmp_path / name)) as mem:
            mem.remember("x")
    with opened(tmp_path / name) as mem:
        assert contents(mem) == ["x", "x"]
    assert sorted(p.name for p in (tmp_path / name).iterdir()) == ["lock", STATE]


def test_closing_saves_and_so_do_with_garbage_and_the_end(path):
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
    with opened(path) as mem:
        assert contents(mem) == ["garbage", "closed", "with, although it raised", "the end"]


def test_save_writes_without_closing(path):
    mem = opened(path)
    mem.remember("saved")
    mem.save()
    saved = (path / STATE).read_bytes()
    mem.remember("not yet")
    assert (path / STATE).read_bytes() == saved
    mem.close()
    with opened(path) as mem:
        assert contents(mem) == ["saved", "not yet"]
    opened(None).save()  # in RAM: nothing to do


def test_a_scope_keeps_its_store_open(path):
    ops = opened(path).scope("t")
    chat = opened(None).scope("t").working()
    gc.collect()
    ops.remember("x")
    chat.add("user", "hello")
    del ops
    gc.collect()
    with opened(path) as mem:
        assert len(mem.scope("t").list()) == 1


def test_a_store_that_was_only_looked_at_is_not_written(five):
    before = (five / STATE).stat()
    with opened(five, embedder="hashed") as mem:
        mem.list(), mem.history("k"), mem.stats(), mem.scopes(), mem.forget(kinds="semantic", dry_run=True)
    assert (five / STATE).stat() == before
    with opened(five, embedder="hashed") as mem:
        mem.recall("row 1", k=1)  # counts
    assert (five / STATE).stat() != before
    with opened(five, embedder="hashed") as mem:
        assert sum(r.access_count for r in mem.list()) == 1


def test_what_is_acknowledged_before_the_store_is_closed_is_saved(path):
    mem = opened(path)
    acknowledged: list[list[int]] = [[] for _ in range(4)]
    started, closed = threading.Barrier(5), threading.Event()

    def write(mine: list[int]) -> None:
        started.wait()
        while not closed.is_set():
            with suppress(memcore.StoreClosed):
                mem.remember("x", metadata={"n": len(mine)})
                mine.append(len(mine))

    threads = [threading.Thread(target=write, args=(mine,)) for mine in acknowledged]
    for thread in threads:
        thread.start()
    started.wait()
    while min(map(len, acknowledged)) < 20:
        mem.save()
    mem.close()
    closed.set()
    for thread in threads:
        thread.join()
    with opened(path) as mem:
        assert sorted(r.metadata["n"] for r in mem.list()) == sorted(n for mine in acknowledged for n in mine)


def test_threads_that_save_at_once_leave_the_newest_state(path, monkeypatch):
    """The first is held up when it has taken its snapshot: what the second saved must not be overwritten by it."""
    mem = opened(path)
    mem.remember("first")
    entered, go_on = threading.Event(), threading.Event()
    write = portable.write

    def slow(*args: Any, **more: Any) -> int:
        if not entered.is_set():
            entered.set()
            assert go_on.wait(60)
        return write(*args, **more)

    monkeypatch.setattr(portable, "write", slow)
    one = threading.Thread(target=mem.save)
    one.start()
    assert entered.wait(60)
    mem.remember("second")
    two = threading.Thread(target=mem.save)
    two.start()
    go_on.set()
    one.join()
    two.join()
    assert pq.read_table(path / STATE).column("content").to_pylist() == ["first", "second"]
    mem.close()


def test_a_store_that_cannot_be_saved_stays_open(path, monkeypatch):
    mem = opened(path)
    mem.remember("precious")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        for call in (mem.save, mem.close):
            with pytest.raises(memcore.StoreError, match=f"cannot write {path / STATE}: No space left on device"):
                call()
    assert [p.name for p in path.iterdir()] == ["lock"]
    mem.remember("and more")
    with pytest.raises(memcore.StoreLocked):
        opened(path)
    mem.close()
    with opened(path) as mem:
        assert contents(mem) == ["precious", "and more"]


# Closed

VERBS = {
    "remember": lambda m: m.remember("x"),
    "remember_many": lambda m: m.remember_many(["x"]),
    "remember_many nothing": lambda m: m.remember_many([]),
    "recall": lambda m: m.recall(k=1),
    "recall_many": lambda m: m.recall_many(vectors=[[1.0]]),
    "get": lambda m: m.get(key="k"),
    "list": lambda m: m.list(),
    "update": lambda m: m.update("01890a5d-ac96-774b-bcce-b302099a8057", content="x"),
    "history": lambda m: m.history("k"),
    "forget": lambda m: m.forget(everything=True),
    "working": lambda m: m.working(),
    "end_session": lambda m: m.end_session(),
    "export": lambda m: m.export("/tmp/never.json"),
    "stats": lambda m: m.stats(),
    "scope": lambda m: m.scope("t"),
    "scopes": lambda m: m.scopes(),
    "import_": lambda m: m.import_("/tmp/never.json"),
    "save": lambda m: m.save(),
    "with": lambda m: m.__enter__(),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("kept", [True, False], ids=["directory", "RAM"])
def test_a_closed_store_says_so(path, verb, kept):
    mem = opened(path if kept else None)
    scope, chat = mem.scope("t"), mem.working()
    mem.close()
    holders = [mem, scope] if hasattr(memcore.Scope, verb.split()[0]) else [mem]
    for holder in holders:
        with pytest.raises(memcore.StoreClosed) as raised:
            VERBS[verb](holder)
        assert str(raised.value) == "the store is closed; open it again with memcore.open"
    for call in (lambda: chat.add("user", "x"), chat.messages, chat.end, lambda: chat.tokens):
        with pytest.raises(memcore.StoreClosed):
            call()


def test_every_verb_is_among_those():
    public = {name for name in dir(memcore.Memory) if not name.startswith("_")} - {"close"}
    assert public == {verb.split()[0] for verb in VERBS} - {"with"}


# One at a time


def test_a_second_open_is_refused(path):
    with opened(path):
        with pytest.raises(memcore.StoreLocked) as raised:
            opened(path)
        assert str(raised.value) == (
            f"the store {path} is open in this process already; close it there first: a store is open once at a time"
        )
        script = (
            "import sys, memcore\ntry:\n    memcore.open(sys.argv[1], embedder=None)\n"
            "except memcore.StoreLocked as fault:\n    print(fault)"
        )
        assert run(script, path).stdout == (
            f"the store {path} is open in process {os.getpid()} already; close it there first: a store is open once at "
            "a time\n"
        )
    with opened(path):
        pass


def test_a_refused_open_holds_no_lock(five):
    with pytest.raises(memcore.EmbedderMismatch):
        opened(five, embedder=HashedEmbedder(8))
    with opened(five, embedder="hashed") as mem:
        assert len(mem.list()) == 5


HOLD = """
import sys, memcore
mem = memcore.open(sys.argv[1], embedder=None)
mem.remember("saved")
mem.save()
mem.remember("lost")
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_killed_process_leaves_no_lock_and_what_it_saved(path):
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout.readline() == "ready\n"
        with pytest.raises(memcore.StoreLocked, match=f"open in process {child.pid}"):
            opened(path)
        child.send_signal(signal.SIGKILL)
    (path / ".state.parquet.abc123.part").write_bytes(b"half a state")
    (path / "notes.txt").write_text("not memcore's")
    with opened(path) as mem:
        assert contents(mem) == ["saved"]
        mem.remember("more")
    assert sorted(p.name for p in path.iterdir()) == ["lock", "notes.txt", STATE]


def test_a_killed_save_leaves_the_old_state(path):
    with opened(path) as mem:
        mem.remember("old")
    script = (
        "import os, sys, memcore\nmem = memcore.open(sys.argv[1], embedder=None)\nmem.remember('new')\n"
        "os.fsync = lambda _: os.kill(os.getpid(), 9)\nmem.close()"
    )
    assert run(script, path, check=False).returncode == -9
    assert len(list(path.glob("*.part"))) == 1
    with opened(path) as mem:
        assert contents(mem) == ["old"]
    assert sorted(p.name for p in path.iterdir()) == ["lock", STATE]


# Forks

FORK = """
import os, sys, memcore
mem = memcore.open(sys.argv[1], embedder=None)
mem.remember("r0")
pid = os.fork()
if not pid:
    try:
        mem.remember("c0")
    except memcore.StoreClosed as fault:
        print(fault, flush=True)
    mem.close()
    sys.exit()  # an ordinary exit, with all that runs at one
assert os.waitpid(pid, 0)[1] == 0
mem.remember("r1")
try:
    memcore.open(sys.argv[1], embedder=None)
except memcore.StoreLocked:
    print("still locked", flush=True)
mem.close()
"""


def test_case_F7_a_forked_child_does_no_harm(path):
    first, second = run(FORK, path).stdout.splitlines()
    assert first.startswith(f"the store {path} was opened in process ")
    assert "and this is its forked child" in first
    assert first.endswith("one process has a store open at a time: close it there before you open it here")
    assert second == "still locked"
    with opened(path) as mem:
        assert contents(mem) == ["r0", "r1"]


ORPHAN = """
import os, sys, memcore
mem = memcore.open(sys.argv[1], embedder=None)
mem.remember("r0")
mem.save()
if os.fork():
    os._exit(0)  # the parent is gone without closing
sys.stdin.read()
"""


def test_a_child_does_not_keep_the_lock_of_a_parent_that_is_gone(path):
    child = subprocess.Popen([sys.executable, "-c", ORPHAN, str(path)], stdin=subprocess.PIPE)
    assert child.wait(60) == 0
    with opened(path) as mem:  # its child still waits
        assert contents(mem) == ["r0"]
    child.stdin.close()


BUSY = """
import os, threading, memcore
mem = memcore.open(embedder=None)
done = threading.Event()
def write():
    while not done.is_set():
        mem.remember_many([{"content": str(i), "kind": "semantic", "key": str(i)} for i in range(10)])
threads = [threading.Thread(target=write) for _ in range(2)]
for thread in threads:
    thread.start()
try:
    for _ in range(40):
        pid = os.fork()
        if not pid:
            fine = len(mem.list()) in (0, 10)
            mem.remember("mine")
            os._exit(0 if fine and len(mem.list(kinds="episodic")) == 1 else 1)
        assert os.waitpid(pid, 0)[1] == 0
finally:
    done.set()
assert len(mem.list()) == 10
print("fine")
"""


def test_a_fork_beside_writers_has_a_whole_store_of_its_own():
    assert run(BUSY).stdout == "fine\n"


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
    ],
)
def test_what_is_no_path(bad, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(memcore.InvalidInput) as raised:
        opened(bad)
    assert str(raised.value).startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_case_E9_the_errors_tell_the_path_and_the_reason(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "lock").mkdir()  # for root, who may write anywhere, in place of a folder without permission
    told = {}
    for place in (NOWHERE, tmp_path / "file", tmp_path / "file" / "store", tmp_path / "odd"):
        with pytest.raises(memcore.StoreError) as raised:
            opened(place)
        told[str(place)] = (type(raised.value), str(raised.value))
    assert told == {
        NOWHERE: (
            memcore.StoreReadOnly,
            f"cannot make the store {NOWHERE}: No such file or directory; pass a path that can be written",
        ),
        str(tmp_path / "file"): (
            memcore.StoreError,
            f"{tmp_path / 'file'} is a file (File exists); a store is a directory: pass another path",
        ),
        str(tmp_path / "file" / "store"): (
            memcore.StoreReadOnly,
            f"cannot make the store {tmp_path / 'file' / 'store'}: Not a directory; pass a path that can be written",
        ),
        str(tmp_path / "odd"): (
            memcore.StoreReadOnly,
            f"cannot write into the store {tmp_path / 'odd'}: Is a directory; check its permissions",
        ),
    }
    assert (tmp_path / "file").read_text() == "mine"


# Opening what is there


def test_case_E3_no_option_empties_a_store(five):
    before = (five / STATE).read_bytes()
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
    ]
    for option in options:
        with opened(five, **{"embedder": "hashed", **option}) as mem:
            assert len(mem.list()) == 5, option
    for embedder in ("static", HashedEmbedder(64), lambda texts: np.ones((len(texts), 256))):
        with pytest.raises(memcore.EmbedderMismatch, match="hashed/256"):
            opened(five, embedder=embedder)
    assert (five / STATE).read_bytes() == before


def test_the_embedder_of_a_store_stays_known_when_it_is_opened_without(five):
    with opened(five) as mem:
        mem.remember("one more", vector=np.eye(256)[0])
    with pytest.raises(memcore.EmbedderMismatch):
        opened(five, embedder=lambda texts: np.ones((len(texts), 256)))
    with opened(five, embedder="hashed") as mem:
        assert len(mem.list()) == 6


def test_vectors_of_callers_are_not_compared_with_an_embedders(path):
    with opened(path) as mem:
        mem.remember("x", vector=np.eye(256)[0])
    with pytest.raises(memcore.EmbedderMismatch) as raised:
        opened(path, embedder="hashed")
    assert str(raised.value) == (
        f"{path / STATE} holds vectors that its writer passed, of no known embedder, and this store uses "
        "'hashed/256/1'; they cannot be compared: open a store with embedder=None, or remember the texts anew"
    )


def test_a_smaller_working_memory_makes_room_when_opened(path):
    with opened(path) as mem:
        for i in range(6):
            mem.working().add("user", str(i))
    with opened(path, working_capacity=2) as mem:
        assert [m["content"] for m in mem.working().messages()] == ["4", "5"]
        assert len(mem.end_session()) == 6


DAMAGED = {
    "empty": b"",
    "text": b"not a store",
    "zeros": bytes(5000),
}


@pytest.mark.parametrize("damage", [*DAMAGED, "cut", "header", "foreign", "folder"])
def test_case_E11_an_unreadable_store_is_not_an_absent_one(five, damage):
    state = five / STATE
    whole = state.read_bytes()
    if damage in DAMAGED:
        state.write_bytes(DAMAGED[damage])
    elif damage == "cut":
        state.write_bytes(whole[: len(whole) // 2])
    elif damage == "header":
        state.write_bytes(bytes(100) + whole[100:])
    elif damage == "foreign":
        pq.write_table(pa.table({"a": [1]}), state)
    else:
        state.unlink()
        state.mkdir()
    before = None if damage == "folder" else state.read_bytes()
    for _ in range(2):
        with pytest.raises(memcore.StoreError) as raised:
            opened(five, embedder="hashed").remember("x")
        assert str(state) in str(raised.value)
        assert isinstance(raised.value, memcore.StoreCorrupt) == (damage != "folder")
    assert damage == "folder" or state.read_bytes() == before


def test_a_state_that_leads_nowhere_is_not_an_absent_one(five):
    (five / STATE).rename(five / "moved")
    (five / STATE).symlink_to(five / "gone")
    with pytest.raises(memcore.StoreError, match="cannot read"):
        opened(five, embedder="hashed")


def test_a_state_of_a_newer_memcore(five):
    table = pq.read_table(five / STATE)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"memcore_format": b"7"}), five / STATE)
    with pytest.raises(memcore.FormatTooNew) as raised:
        opened(five, embedder="hashed")
    assert str(raised.value) == (
        f"{five / STATE} is in format 7 and this memcore reads up to format 1; upgrade memcore-engine"
    )


def test_case_E11_opening_twice_makes_nothing_new(five):
    before = {p.name: p.read_bytes() for p in five.iterdir() if p.name != "lock"}
    for _ in range(2):
        opened(five, embedder="hashed").close()
    assert {p.name: p.read_bytes() for p in five.iterdir() if p.name != "lock"} == before


def test_case_C3_a_directory_does_not_grow(path):
    sizes = []
    for cycle in range(20):
        with opened(path) as mem:
            mem.remember_many([{"content": f"{cycle} {i}", "vector": np.eye(8)[i % 8]} for i in range(200)])
            mem.forget(everything=True)
        sizes.append(sum(p.stat().st_size for p in path.iterdir()))
        assert len(list(path.iterdir())) == 2
    assert max(sizes) <= sizes[1] + 100

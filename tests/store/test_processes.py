"""Many processes and threads on one store: nothing is lost, nothing is there twice, and no reader ever fails.

The full run of `memcore remember` commands, 8 processes × 50 of them, is
`MEMCORE_PROCESSES=8x50 python -m pytest tests/store/test_processes.py -k commands`; of counters, 4 processes × 2,000
writes each, `MEMCORE_COUNTS=4x2000 … -k counters`.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import memcore
from catalogs import whole
from memcore.store import directory
from running import Held, held, run

CATALOG = "catalog.sqlite"
CLI = "import sys; from memcore.cli import main; main(sys.argv[1:])"
COMMANDS = os.environ.get("MEMCORE_PROCESSES", "4x10")
COUNTS = os.environ.get("MEMCORE_COUNTS", "4x50")


def opened(path: Any, **more: Any) -> memcore.Memory:
    return memcore.open(path, **{"embedder": None, **more})


def times(text: str) -> tuple[int, int]:
    first, second = text.split("x")
    return int(first), int(second)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.mem"


@pytest.fixture(autouse=True)
def nothing_stays_open():
    yield
    gc.collect()
    assert directory._open == {}


def at_once(script: str, arguments: Sequence[Sequence[object]]) -> list[str]:
    """Runs a script in processes that begin together, once they have imported all; the last line of each."""
    with ExitStack() as stack:
        children: list[Held] = [stack.enter_context(held(script, *mine)) for mine in arguments]
        assert [child.line() for child in children] == ["ready"] * len(children)
        for child in children:
            child.go_on()
        lines = [child.line() for child in children]
        assert [child.end() for child in children] == [0] * len(children)
    return lines


BEGIN = (
    "import json, sys, memcore, memcore.memory, memcore.store.directory\nprint('ready')\ninput()\npath = sys.argv[1]\n"
)


# The command line


def test_case_F1_commands_of_many_processes(path):
    processes, each = times(COMMANDS)

    def commands(number: int) -> list[str]:
        acknowledged = []
        for i in range(each):
            done = subprocess.run(
                [sys.executable, "-c", CLI, "--store", path, "--embedder", "hashed", "remember",
                 f"{number} {i}", "--json"],
                capture_output=True, text=True, check=False, timeout=120,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            acknowledged.append(json.loads(done.stdout)["id"])
        return acknowledged

    with ThreadPoolExecutor(processes) as pool:
        acknowledged = [id for ids in pool.map(commands, range(processes)) for id in ids]
    assert len(set(acknowledged)) == processes * each
    assert whole(path)
    with opened(path) as mem:
        rows = mem.list()
        assert sorted(row.id for row in rows) == sorted(acknowledged)
        for number in range(processes):
            mine = [row.content for row in rows if row.content.startswith(f"{number} ")]
            assert mine == [f"{number} {i}" for i in range(each)]  # each process's own order
        assert [row.seq for row in rows] == list(range(1, processes * each + 1))


# Writers in processes


WRITE = (
    BEGIN
    + """
with memcore.open(path, embedder=None) as mem:
    ids = [mem.remember(f"{sys.argv[2]} {i}", metadata={"i": i}).id for i in range(25)]
    ids += mem.remember_many([f"{sys.argv[2]} {i}" for i in range(25, 35)])
    mine = [r.content for r in mem.list() if r.content.startswith(sys.argv[2] + " ")]
    assert mine == [f"{sys.argv[2]} {i}" for i in range(35)]
print(json.dumps(ids))
"""
)


@pytest.mark.parametrize("there", [True, False], ids=["there", "made by all at once"])
def test_case_F1_writers_in_processes(path, there):
    if there:
        opened(path).close()
    told = at_once(WRITE, [(path, number) for number in range(4)])
    acknowledged = [id for line in told for id in json.loads(line)]
    assert whole(path)
    with opened(path) as mem:
        assert len(set(acknowledged)) == 4 * 35
        assert sorted(r.id for r in mem.list()) == sorted(acknowledged)
        assert sorted(r.content for r in mem.list()) == sorted(f"{n} {i}" for n in range(4) for i in range(35))


COUNT = (
    BEGIN
    + """
conflicts = 0
with memcore.open(path, embedder=None) as mem:
    for i in range(int(sys.argv[2])):
        while True:
            record = mem.get(key="counter")
            try:
                mem.update(record.id, metadata={"n": record.metadata["n"] + 1}, if_version=record.version)
                break
            except memcore.VersionConflict as fault:
                assert fault.expected == record.version < fault.found
                conflicts += 1
print(conflicts)
"""
)


def test_counters_by_compare_and_swap_are_an_exact_sum(path):
    processes, each = times(COUNTS)
    with opened(path) as mem:
        mem.remember("count", kind="semantic", key="counter", metadata={"n": 0})
    conflicts = sum(map(int, at_once(COUNT, [(path, each)] * processes)))
    assert conflicts > 0  # they did get in each other's way
    with opened(path) as mem:
        record = mem.get(key="counter")
        assert (record.metadata["n"], record.version) == (processes * each, processes * each + 1)
        versions = [(r.version, r.metadata["n"]) for r in mem.history("counter")]
        assert versions == [(n + 1, n) for n in range(processes * each + 1)]


RETRY = (
    BEGIN
    + """
with memcore.open(path, embedder=None) as mem:
    ids = [mem.remember(f"{sys.argv[2]} {i}", idempotency_key=f"message {i}").id for i in range(40)]
    ids += mem.remember_many([{"content": "x", "idempotency_key": f"message {i}"} for i in range(35, 45)])
print(json.dumps(ids))
"""
)


def test_idempotency_keys_hold_across_processes(path):
    told = [json.loads(line) for line in at_once(RETRY, [(path, number) for number in range(4)])]
    assert told == [told[0]] * 4  # whoever was first, all got its id
    with opened(path) as mem:
        assert [r.id for r in mem.list()] == sorted(set(told[0]), key=[r.id for r in mem.list()].index)
        assert len(mem.list()) == 45
        assert {r.idempotency_key for r in mem.list()} == {f"message {i}" for i in range(45)}


KEYS = (
    BEGIN
    + """
with memcore.open(path, embedder=None) as mem:
    for i in range(15):
        mem.remember(f"{sys.argv[2]} {i}", kind="semantic", key=f"key {i % 3}", source=f"{sys.argv[2]} {i % 5}")
        mem.scope(f"tenant {i % 7}").remember("x", kind="procedural", key="k")
print("done")
"""
)


def test_upserts_names_and_scopes_of_many_processes(path):
    at_once(KEYS, [(path, number) for number in range(4)])
    with opened(path) as mem:
        assert len(mem.list()) == 3
        for key in range(3):
            versions = mem.history(f"key {key}")
            assert [r.version for r in versions] == list(range(1, 21))
            assert len({r.id for r in versions}) == 1
            for record in versions:
                number, i = record.content.split()
                assert record.source == f"{number} {int(i) % 5}"
        assert mem.scopes() == [("default", "default"), *((f"tenant {i}", "default") for i in range(7))]
        assert sum(len(mem.scope(f"tenant {i}").history("k")) for i in range(7)) == 60


# Readers beside them


READ = (
    BEGIN
    + """
import threading
done = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
calls = 0
mem = memcore.open(path, embedder=None)
while not done.is_set() or calls < 5:
    rows = mem.list(kinds="episodic")
    batches = {}
    for row in rows:
        batches[row.metadata["batch"]] = batches.get(row.metadata["batch"], 0) + 1
    assert set(batches.values()) <= {10}, batches  # a commit is seen whole or not at all
    facts = mem.list(kinds="semantic")
    assert len({row.content for row in facts}) <= 1, [row.content for row in facts]
    assert len(mem.recall(k=3)) <= 3
    for row in rows[-1:]:
        mem.get(row.id)
    with memcore.open(path + "/../agent.mem", embedder=None) as again:
        again.stats()
    calls += 1
mem.close()
print(calls)
"""
)

BATCHES = (
    BEGIN
    + """
with memcore.open(path, embedder=None) as mem:
    for i in range(10):
        batch = f"{sys.argv[2]} {i}"
        mem.remember_many([{"content": str(j), "metadata": {"batch": batch}} for j in range(10)])
        facts = [{"content": batch, "kind": "semantic", "key": str(j)} for j in range(5)]
        mem.remember_many(facts)
        if i % 5 == 4:
            gone = [r.id for r in mem.list(where={"metadata.batch": batch})]
            mem.forget(gone)
            mem.compact()
print("done")
"""
)


def test_readers_beside_writers_and_compaction_never_fail(path):
    """Each call sees whole commits, though others write, forget, seal and rewrite files, open and close."""
    opened(path).close()
    with ExitStack() as stack:
        readers = [stack.enter_context(held(READ, path)) for _ in range(2)]
        writers = [stack.enter_context(held(BATCHES, path, number)) for number in range(2)]
        for child in (*readers, *writers):
            assert child.line() == "ready"
        for child in (*readers, *writers):
            child.go_on()
        assert [child.line() for child in writers] == ["done", "done"]
        assert [child.end() for child in writers] == [0, 0]
        for reader in readers:
            reader.child.stdin.close()
            assert int(reader.line()) >= 5
            assert reader.child.wait(60) == 0
    assert whole(path)
    with opened(path) as mem:
        assert len(mem.list(kinds="episodic")) == 2 * 8 * 10


def test_what_another_process_has_done_is_seen_at_the_next_call(path):
    script = (
        "import json, sys, memcore\nmem = memcore.open(sys.argv[1], embedder=None)\nprint('ready')\n"
        "for line in sys.stdin:\n    exec(line)\n    print('done')"
    )
    with held(script, path) as other, opened(path) as mem:

        def does(text: str) -> None:
            other.child.stdin.write(text + "\n")
            other.child.stdin.flush()
            assert other.line() == "done"

        assert other.line() == "ready"
        assert len(mem.list()) == 0
        does("mem.remember('a', kind='semantic', key='k', vector=[1.0, 0.0])")
        assert [r.content for r in mem.list()] == ["a"]
        does("mem.update(mem.get(key='k').id, content='b', vector=[0.0, 1.0])")
        assert mem.get(key="k").content == "b"
        assert mem.recall(vector=[0.0, 1.0], k=1, weights=(1, 0, 0))[0].semantic_similarity == pytest.approx(1)
        does("mem.compact()")
        assert mem.get(key="k").content == "b"
        assert [r.content for r in mem.history("k")] == ["a", "b"]
        does("mem.forget(everything=True)")
        assert mem.get(key="k") is None
        assert len(mem.forgotten()) == 1
        does("mem.restore(mem.forgotten())")
        assert mem.get(key="k").content == "b"
        does("mem.scope('t', 'p', 's').working().add('user', 'hello')")
        assert mem.scope("t", "p", "s").working().messages() == [{"role": "user", "content": "hello"}]
        mem.scope("t", "p", "s").working().add("assistant", "hello, too")
        does("assert len(mem.scope('t', 'p', 's').working().messages()) == 2")
        does("mem.forget(everything=True), mem.compact()")
        assert len(mem.list()) == len(mem.forgotten()) == 0
        assert other.end() == 0


@pytest.mark.parametrize("first", ["scopes", "stats", "prune"])
def test_a_scope_in_which_only_another_process_has_rows_is_one_of_the_store_s(path, first):
    """Here it is in RAM, and all in it was forgotten."""
    script = (
        "import sys, memcore\nwith memcore.open(sys.argv[1], embedder=None) as mem:\n"
        "    for tenant in ('known', 'new'):\n        mem.scope(tenant).remember('old', event_time=0)"
    )
    rule = memcore.Retention(days=30)
    calls = {
        "scopes": lambda mem: mem.scopes() == [("known", "default"), ("new", "default")],
        "stats": lambda mem: (mem.stats()["scopes"], mem.stats()["memories"]) == (2, 2),
        "prune": lambda mem: len(mem.prune(retention=rule).erased) == 2,
    }
    with opened(path) as mem:
        known = mem.scope("known")
        known.forget(known.remember("x"))
        assert mem.scopes() == []
        run(script, path)
        assert calls[first](mem)


def test_a_scope_without_rows_keeps_up_with_what_others_write_elsewhere(path):
    """A write that came to nothing has made it in RAM; the next one waited for itself for ever."""
    script = (
        "import subprocess, sys, memcore\nmem = memcore.open(sys.argv[1], embedder=None)\nops = mem.scope('new')\n"
        "try:\n    ops.update('01890a5d-ac96-774b-bcce-b302099a8057', content='x')\n"
        "except memcore.NotFound:\n    pass\n"
        "other = 'import sys, memcore; memcore.open(sys.argv[1], embedder=None).remember(\"y\")'\n"
        "subprocess.run([sys.executable, '-c', other, sys.argv[1]], check=True)\n"
        "ops.remember('x', kind='working')\nprint([r.content for r in ops.list()])"
    )
    assert run(script, path).stdout == "['x']\n"


# Threads


@pytest.mark.parametrize("kept", [True, False], ids=["directory", "RAM"])
def test_case_F9_threads_write_read_and_forget(path, kept):
    mem = opened(path if kept else None)
    started = threading.Barrier(8)

    def work(number: int) -> list[str]:
        started.wait()
        ids = []
        for i in range(25):
            record = mem.remember(f"{number} {i}", vector=[1.0, float(i)], metadata={"n": number})
            ids.append(record.id)
            assert mem.get(record.id).content == f"{number} {i}"
            assert len(mem.recall(vector=[1.0, 0.0], k=5, where={"metadata.n": number})) == min(5, len(ids))
            if i % 5 == 4:
                assert mem.forget(ids.pop()).count == 1
        return ids

    with ThreadPoolExecutor(8) as pool:
        kept_ids = [id for ids in pool.map(work, range(8)) for id in ids]
    assert len(kept_ids) == 8 * 20
    assert sorted(r.id for r in mem.list()) == sorted(kept_ids)
    closer = threading.Thread(target=mem.close)
    closer.start()
    closer.join()
    with ThreadPoolExecutor(1) as pool, pytest.raises(memcore.StoreClosed) as raised:
        pool.submit(mem.remember, "x").result()
    assert str(raised.value) == "the store is closed; open it again with memcore.open"
    if kept:
        assert whole(path)
        with opened(path) as mem:
            assert sorted(r.id for r in mem.list()) == sorted(kept_ids)


def test_counters_of_threads_and_processes_together(path):
    with opened(path) as mem:
        mem.remember("count", kind="semantic", key="counter", metadata={"n": 0})

        def count(_: int) -> None:
            for _ in range(40):
                while True:
                    record = mem.get(key="counter")
                    try:
                        mem.update(record.id, metadata={"n": record.metadata["n"] + 1}, if_version=record.version)
                        break
                    except memcore.VersionConflict:
                        pass

        with held(COUNT, path, 40) as other, ThreadPoolExecutor(4) as pool:
            assert other.line() == "ready"
            other.go_on()
            list(pool.map(count, range(4)))
            assert int(other.line()) >= 0
            assert other.end() == 0
        assert mem.get(key="counter").metadata == {"n": 200}
        assert [r.metadata["n"] for r in mem.history("counter")] == list(range(201))


def test_one_writers_fault_is_not_that_of_those_who_share_its_commit(path):
    mem = opened(path)
    record = mem.remember("x", kind="semantic", key="k", vector=[1.0, 0.0])
    started = threading.Barrier(6)

    def write(number: int) -> str:
        started.wait()
        told = []
        for i in range(30):
            try:
                if number == 0:
                    mem.update(record.id, content="y", if_version=99)
                elif number == 1:
                    mem.remember("narrow", vector=[1.0])
                elif number == 2:
                    mem.remember("again", id=record.id)
                else:
                    mem.remember(f"{number} {i}", vector=[1.0, 0.0])
                told.append("ok")
            except memcore.MemcoreError as fault:
                told.append(type(fault).__name__)
        assert len(set(told)) == 1, told
        return told[0]

    with ThreadPoolExecutor(6) as pool:
        told = list(pool.map(write, range(6)))
    assert told == ["VersionConflict", "DimensionMismatch", "InvalidInput", "ok", "ok", "ok"]
    assert len(mem.list()) == 91
    mem.close()
    with opened(path) as mem:
        assert sorted(r.content for r in mem.list()) == sorted(
            ["x", *(f"{number} {i}" for number in (3, 4, 5) for i in range(30))]
        )


def test_the_counts_of_two_processes_add_up(path):
    with opened(path) as mem:
        mem.remember("x")
        for _ in range(3):
            mem.recall()
        script = (
            "import sys, memcore\nwith memcore.open(sys.argv[1], embedder=None) as mem:\n    mem.recall(), mem.recall()"
        )
        run(script, path)
        mem.recall()
    with opened(path) as mem:
        assert mem.list()[0].access_count == 6

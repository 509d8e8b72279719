"""Whoever is killed, and wherever: what was acknowledged is there, and what was forgotten is not. See `bench.crash`."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

import memcore
from bench import crash
from bench.crash_model import CAPACITY, WEIGHTS, Share, fields_of, vector_for
from bench.crash_writer import Writer


def test_twenty_loops_of_kills_lose_nothing(tmp_path):
    report = crash.run(20, 3, tmp_path, lines=200)
    assert report.faults == []
    assert report.loops == 20
    assert sum(report.killed.values()) >= 20
    assert sum(report.deeds.values()) > 500
    assert report.verified > report.loops
    assert report.ok


# The comparison itself: each thing that a crash must not do is told


def told(writer, deed, answer=None, at=1.0):
    lines = [{"told": "begin", "writer": writer, "deed": deed, "at": at}]
    return lines if answer is None else [*lines, {"told": "done", "writer": writer, "answer": answer, "at": at + 1}]


def remember(ops, content):
    vector = vector_for(content)
    return ops.remember(content, vector=vector, **fields_of(content))


def compared(path, mem, lines):
    store, report = crash.Store(path, None), crash.Report(0)
    store.compare(mem, store.note([(lines, 9.0)], report, 0), report, 0)
    return report


A = "<0.0.0.0> wörds "
B = "<0.0.0.1> wörds "
MANY = {"do": "remember_many", "contents": [A, B], "kind": "episodic", "key": None}
ONE = {"do": "remember", "contents": [A], "kind": "episodic", "key": None}


@pytest.fixture
def opened(tmp_path):
    with memcore.open(tmp_path / "agent.mem", embedder=None, working_capacity=CAPACITY) as mem:
        ops = mem.scope(**Share(0).scope)
        ops.remember("0", vector=[1.0] * 8)
        ops.forget(everything=True, erase=True)
        yield tmp_path / "agent.mem", mem, ops


def test_what_was_acknowledged_and_is_not_there_is_lost(opened):
    path, mem, ops = opened
    one = remember(ops, A)
    lines = told(0, ONE, {"ids": [one.id], "seq": one.seq, "version": 1})
    assert compared(path, mem, lines).ok
    ops.forget(one.id)
    assert dict(compared(path, mem, lines).wrong) == {"lost": 1}


def test_half_of_a_batch_is_torn(opened):
    path, mem, ops = opened
    assert compared(path, mem, told(0, MANY)).undone == 1
    remember(ops, A)
    assert compared(path, mem, told(0, MANY)).wrong["torn"] == 2  # half of it, and a row that nobody knows of
    remember(ops, B)
    report = compared(path, mem, told(0, MANY))
    assert (report.ok, report.finished) == (True, 1)


def test_a_row_with_a_field_of_another_is_torn(opened):
    path, mem, ops = opened
    one = ops.remember(A, vector=vector_for(A), **{**fields_of(A), "metadata": fields_of(B)["metadata"]})
    report = compared(path, mem, told(0, ONE, {"ids": [one.id], "seq": one.seq, "version": 1}))
    assert dict(report.wrong) == {"torn": 1}
    assert "['metadata']" in report.faults[0]


def test_what_was_forgotten_and_is_there_is_resurrected(opened):
    path, mem, ops = opened
    one = remember(ops, A)
    lines = told(0, ONE, {"ids": [one.id], "seq": one.seq, "version": 1})
    lines += told(0, {"do": "erase", "ids": [one.id]}, {"ids": [one.id]}, 3.0)
    assert dict(compared(path, mem, lines).wrong) == {"resurrected": 1}
    ops.forget(one.id)  # which could be restored, and was erased
    assert dict(compared(path, mem, lines).wrong) == {"resurrected": 1}


def test_what_was_forgotten_and_cannot_be_restored_is_lost(opened):
    path, mem, ops = opened
    one = remember(ops, A)
    lines = told(0, ONE, {"ids": [one.id], "seq": one.seq, "version": 1})
    lines += told(0, {"do": "forget", "ids": [one.id]}, {"ids": [one.id]}, 3.0)
    ops.forget(one.id)
    assert compared(path, mem, lines).ok
    mem.compact()
    assert dict(compared(path, mem, lines).wrong) == {"lost": 1}
    assert compared(path, mem, lines + told(1, {"do": "compact"}, {}, 5.0)).ok


def test_two_writers_that_made_the_same_version_have_lost_one(opened):
    path, mem, _ = opened
    shared = mem.scope("shared", "p")
    one = shared.remember("0", kind="semantic", key="count")
    shared.update(one.id, content="1")
    lines = told(0, {"do": "count"}, {"version": 2, "content": "1"})
    assert compared(path, mem, lines).ok
    assert compared(path, mem, lines + told(1, {"do": "count"}, {"version": 2, "content": "1"})).wrong["lost"] == 2


# Others that go on


def test_others_go_on_while_processes_are_killed(tmp_path):
    """Also with the write lock and the maintenance lock in their hands."""
    path, stop, lines = tmp_path / "agent.mem", threading.Event(), []
    places = [
        "before a commit",
        "before a segment is named",
        "while a file is written",
        "before a change of the files is committed",
        "before the WAL is cut",
        "after a commit",
    ]
    store, report = crash.Store(path, None), crash.Report(0)
    plan = {"loop": 0, "seed": 1, "weights": {**WEIGHTS, "seal": 9, "compact": 4}, "embedder": None}
    with memcore.open(path, embedder=None, working_capacity=CAPACITY) as mem:
        mine = [
            Writer(mem, Share(number), plan, stop, lambda **line: lines.append({**line, "at": time.monotonic()}))
            for number in (8, 9)
        ]
        for writer in mine:
            writer.start()
        ends = []
        for loop, place in enumerate(places):
            before = len(lines)
            process = crash.Process()
            shares = [store.share(loop).plain()]
            process.begin(
                **{**plan, "loop": loop, "shares": shares, "path": str(path), "place": place, "nth": 3},
                seal_rows=10, merged_files=2, segment_rows=100,
            )  # fmt: skip
            process.wait(2000)
            process.close()
            assert process.lines[-1].get("place") == place, process.lines[-1]
            assert process.died()
            ends.append((process.lines, process.ended))
            assert len(lines) > before
        stop.set()
        for writer in mine:
            writer.join()
        under_way = store.note([*ends, (lines, time.monotonic())], report, 0)
        store.compare(mem, under_way, report, 0)
        crash.verify(mem, report, 0)
    assert report.faults == []
    assert len(under_way) <= len(places)  # those of the dead alone
    with memcore.open(path, embedder=None, working_capacity=CAPACITY) as mem:
        store.compare(mem, (), report, 1)
    assert report.faults == []


# A given case

E1 = """
import sys
import memcore

print("open", flush=True)
sys.stdin.readline()
mem = memcore.open(sys.argv[1], embedder=None)
for i in range(200):
    row = mem.remember(f"new {i}", importance=i % 10 / 10, event_time=1_600_000_000 + i, metadata={"n": i})
    print(row.content, flush=True)
    if i % 30 == 7:
        mem.compact()
        print("compacted", flush=True)
    if i % 30 == 17:
        mem.prune(importance_below=0.3, recency_below=0.5)
        print("pruned", flush=True)
"""


def started(path):
    return subprocess.Popen(
        [sys.executable, "-c", E1, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def test_case_E1_a_kill_while_rows_are_rewritten_loses_none(tmp_path):
    """100 acknowledged rows; killed during 200 more writes, compactions and prunings; 30 times."""
    rng = random.Random(1)
    with memcore.open(tmp_path / "base", embedder=None) as mem:
        for i in range(100):
            mem.remember(f"old {i}", importance=i % 10 / 10, event_time=1_600_000_000 + i, metadata={"n": i})
    old = [f"old {i}" for i in range(100)]
    paths = [tmp_path / f"store {n}" for n in range(30)]
    waiting = [started(paths[0])]
    for n, path in enumerate(paths):
        shutil.copytree(tmp_path / "base", path)
        child = waiting.pop()
        waiting += [started(paths[n + 1])] if n + 1 < len(paths) else []  # it imports meanwhile
        assert child.stdout.readline() == "open\n"
        child.stdin.write("\n")
        lines = [child.stdout.readline().strip() for _ in range(rng.randrange(190))]
        child.kill()
        lines += [line.strip() for line in child.stdout if line.endswith("\n")]
        assert child.wait() in (-signal.SIGKILL, 0)
        child.stdin.close()
        child.stdout.close()
        acknowledged = [line for line in lines if line.startswith("new")]
        with memcore.open(path, embedder=None) as mem:
            rows = list(mem.list(tiers=("hot", "cold")))
            assert mem.verify().problems == []
        there = [row.content for row in rows]
        assert len(set(there)) == len({row.id for row in rows}) == len(rows)
        assert [content for content in old + acknowledged if content not in there] == []
        assert len(there) <= 100 + len(acknowledged) + 1  # the one that was under way
        assert [row for row in rows if row.metadata != {"n": int(row.content.split()[1])}] == []
        shutil.rmtree(path)

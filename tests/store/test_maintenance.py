"""Sealing, rewriting and compacting beside others who write, and stopped in the middle."""

from __future__ import annotations

import contextlib
import threading

import pytest

import memcore
from bench.crash_model import Embedder
from memcore.store import commits, directory, maintenance, staging
from running import held, run


def at_step(monkeypatch, place, act, module=maintenance):
    """Has `act` called once, where the store calls `step` with this name."""
    waiting = [act]

    def step(name):
        if name == place and waiting:
            waiting.pop()()

    monkeypatch.setattr(module, "step", step)


def contents(path):
    return [row.content for row in memcore.open(path, embedder=None).list()]


def filled(path, *, sealed):
    """A store of two memories, of which the first is forgotten."""
    mem = memcore.open(path, embedder=None)
    gone = mem.remember("gone")
    mem.remember("kept")
    if sealed:
        mem.compact()
    mem.forget(gone.id)
    return mem, gone.id


@pytest.mark.parametrize(
    ("sealed", "place"), [(False, "before a segment is named"), (True, "before a rewritten segment is named")]
)
def test_nothing_is_restored_while_it_is_dropped(tmp_path, monkeypatch, sealed, place):
    """It would be here for this process, and in no file."""
    mem, gone = filled(tmp_path, sealed=sealed)
    done = []
    at_step(monkeypatch, place, lambda: done.append(mem.restore(gone)))
    report = mem.compact()
    assert [one.missing for one in done] == [[gone]]
    assert report.dropped == 1
    assert [row.content for row in mem.list()] == ["kept"]
    mem.close()
    assert contents(tmp_path) == ["kept"]


@pytest.mark.parametrize("erase", [False, True])
def test_nothing_is_restored_that_another_process_has_dropped(tmp_path, erase):
    """This process has the row in RAM still."""
    mem = memcore.open(tmp_path, embedder=None)
    gone = mem.remember("gone")
    mem.remember("kept")
    mem.forget(gone.id, erase=erase)
    run("import sys, memcore\nwith memcore.open(sys.argv[1], embedder=None) as mem: mem.compact()", tmp_path)
    assert mem.restore(gone.id).missing == [gone.id]
    assert list(mem.forgotten()) == []
    assert mem.verify().problems == []
    mem.close()
    assert contents(tmp_path) == ["kept"]


OTHER = """
import sys, memcore
mem = memcore.open(sys.argv[1], embedder=None)
mem.scope(session_id="of another").remember("theirs", source="a source")
print("written")
input()
"""


def test_rows_that_another_process_has_just_written_are_sealed(tmp_path):
    """With names that this process has not read yet."""
    mem = memcore.open(tmp_path, embedder=None)
    mem.remember("ours")
    with held(OTHER, tmp_path) as other:
        assert other.line() == "written"
        mem.compact()
    assert [(row.content, row.session_id, row.source) for row in mem.list()] == [
        ("ours", "default", "observation"),
        ("theirs", "of another", "a source"),
    ]
    assert mem.verify().problems == []


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "place", ["before a change of the files is committed", "after a change of the files is committed"]
)
@pytest.mark.parametrize("sealed", [False, True])
def test_an_interrupt_beside_the_commit_of_a_file_loses_no_row(tmp_path, monkeypatch, place, sealed):
    """The file that was written stays exactly if the catalog names it."""
    mem, _ = filled(tmp_path, sealed=sealed)

    def armed():
        at_step(monkeypatch, place, interrupt)

    at_step(monkeypatch, "before a rewritten segment is named" if sealed else "before a segment is named", armed)
    with pytest.raises(KeyboardInterrupt):
        mem.compact()
    assert [row.content for row in mem.list()] == ["kept"]
    assert mem.verify().problems == []
    named = {row[0] for row in mem._engine.directory.journal.run("SELECT file FROM segments")}
    there = {path.name for path in (tmp_path / "segments").iterdir()}
    if place.startswith("before"):
        assert there == named
    else:  # that which was replaced is still there
        assert named <= there
    mem.compact()
    mem.close()
    assert contents(tmp_path) == ["kept"]


def test_counts_of_dropped_rows_are_dropped(tmp_path):
    mem = memcore.open(tmp_path, embedder=None)
    gone = mem.remember("gone")
    mem.get(gone.id)
    mem.forget(gone.id)
    mem.compact()
    assert mem._engine.directory.journal.run("SELECT count(*) FROM counters").fetchall() == [(0,)]


def test_two_processes_may_make_one_store_at_once(tmp_path, monkeypatch):
    """The WAL of the one does not tell the other that the catalog is missing."""
    script = (
        "import sys, memcore\nmem = memcore.open(sys.argv[1], embedder=None)\nmem.remember('theirs')\n"
        "print('made')\ninput()"
    )
    with contextlib.ExitStack() as stack:

        def meanwhile():
            assert stack.enter_context(held(script, tmp_path)).line() == "made"

        at_step(monkeypatch, "before a catalog is made", meanwhile, directory)
        mem = memcore.open(tmp_path, embedder=None)
        mem.remember("ours")
        assert [row.content for row in mem.list()] == ["theirs", "ours"]
        mem.close()


class Meddling(Embedder):
    """Another embedder, which has something done while it embeds."""

    act = None

    def embed(self, texts, kind="document"):
        if self.act is not None:
            act, self.act = self.act, None
            act()
        return super().embed(texts, kind)


def test_files_may_be_rewritten_while_their_texts_are_embedded_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(maintenance, "SEAL_ROWS", 2)
    mem = memcore.open(tmp_path, embedder=Embedder("crash a"))
    ops = mem.scope("tenant")
    for i in range(6):
        ops.remember(f"row {i}")
    faded = [ops.remember(f"faded {i}", importance=0.0, event_time=i * 40 * 86_400).id for i in range(3)]
    ops.prune(now=1_800_000_000)

    def meddle():
        monkeypatch.setattr(maintenance, "MERGED_FILES", 2)
        ops.forget([ops.list(limit=1)[0].id, *faded[1:]])
        mem.compact()

    new = Meddling("crash bc")
    new.act = meddle
    mem.reembed(new)
    rows = list(ops.list(tiers=("hot", "cold")))
    assert [row.content for row in rows if row.content.startswith("faded")] == ["faded 0"]
    assert [row.content for row in rows if row.content.startswith("row")] == [f"row {i}" for i in range(1, 6)]
    assert all((row.vector == new.embed([row.content])[0]).all() for row in rows)
    assert mem.verify().problems == []


def test_what_is_staged_goes_with_the_file_that_it_would_replace(tmp_path, monkeypatch):
    """Else the catalog would name it, while the next maintenance removes it."""
    monkeypatch.setattr(maintenance, "SEAL_ROWS", 2)
    mem = memcore.open(tmp_path, embedder=Embedder("crash a"))
    for i in range(6):
        mem.remember(f"row {i}")
    faded = [mem.remember(f"faded {i}", importance=0.0, event_time=i).id for i in range(2)]
    mem.prune(now=1_800_000_000)
    journal = mem._engine.directory.journal

    def staged():
        return {replaced for (replaced,) in journal.run("SELECT replaces FROM staged")}

    at_step(monkeypatch, "before new vectors are committed", interrupt, staging)
    with pytest.raises(KeyboardInterrupt):
        mem.reembed(Embedder("crash bc"))
    before = staged()
    assert {name.rpartition(".")[2] for name in before} == {"arrow", "parquet"}
    monkeypatch.setattr(maintenance, "MERGED_FILES", 2)
    mem.forget(faded[0], erase=True)
    for i in range(6, 10):
        mem.remember(f"row {i}")
    mem._engine.directory.maintenance.work(1_800_000_000_000_000)
    assert staged() < before
    assert mem.verify().problems == []
    mem.reembed(Embedder("crash bc"))
    left = sorted(row.content for row in mem.list(tiers=("hot", "cold")))
    assert left == ["faded 1", *(f"row {i}" for i in range(10))]
    assert mem.verify().problems == []


def test_a_write_without_effect_takes_back_no_file_that_has_gone(tmp_path, monkeypatch):
    """What is read meanwhile, of files that have taken the place of others, stays."""
    mem = memcore.open(tmp_path, embedder=None)
    ids = [mem.remember(f"cold {i}", importance=0.0, event_time=i).id for i in range(2)]
    mem.remember("hot")
    mem.prune(now=1_800_000_000)
    mem.forget(ids[0])
    found, readers = [], []

    def meanwhile():
        run("import sys, memcore\nwith memcore.open(sys.argv[1], embedder=None) as mem: mem.compact()", tmp_path)
        read = threading.Thread(target=lambda: found.append([row.content for row in mem.list(tiers=("hot", "cold"))]))
        readers.append(read)
        read.start()
        read.join(0.3)  # it waits until the write has ended

    at_step(monkeypatch, "after a transaction without effect", meanwhile, commits)
    assert mem.end_session() == []
    readers[0].join()
    assert found == [["cold 1", "hot"]]
    mem.remember("ours")
    assert [row.content for row in mem.list(tiers=("hot", "cold"))] == ["cold 1", "hot", "ours"]
    assert mem.verify().problems == []


def test_rows_that_move_to_other_files_keep_what_became_of_them(tmp_path):
    """Files hold the marks of their time, which the catalog then has no more; counters are the catalog's alone."""
    ours = memcore.open(tmp_path, embedder=None)
    opened = directory._open.pop(tmp_path.resolve())  # so that the next is another catalog, as in another process
    theirs = memcore.open(tmp_path, embedder=None)
    ours.remember("likes tea", kind="semantic", key="drink")
    gone = ours.remember("to be forgotten")
    kept = ours.remember("kept")
    for _ in range(3):
        assert theirs.get(kept.id) is not None
    assert len(theirs.list()) == 3
    ours.remember("likes coffee", kind="semantic", key="drink")
    ours.forget(gone.id)
    ours.compact()
    assert [record.content for record in theirs.list()] == ["kept", "likes coffee"]
    assert theirs.get(kept.id).access_count == 4
    ours.remember("more")
    ours.forget(ours.remember("again").id)
    ours.compact()
    assert theirs.get(kept.id).access_count == 5
    theirs._engine.commits.flush_counts()
    assert ours.get(kept.id).access_count == 6
    assert [record.content for record in theirs.history("drink")] == ["likes tea", "likes coffee"]
    theirs.close()
    directory._open[tmp_path.resolve()] = opened
    ours.close()


# Who maintains is alone

MAINTAINS = """
import sys, memcore
from memcore.store import maintenance
def step(name):
    if name == "before a rewritten segment is named":
        print(name)
        input()
maintenance.step = step
with memcore.open(sys.argv[1], embedder=None, lock_timeout=0) as mem:
    mem.compact()
"""


def test_without_patience_who_maintains_is_alone_all_the_same(tmp_path, monkeypatch):
    """What is not named yet would be removed, and what another has named."""
    mem, _ = filled(tmp_path, sealed=True)
    mem.remember("faded", importance=0, event_time=0)
    mem.close()
    calls = {
        "compact": lambda mem: mem.compact(),
        "prune": lambda mem: mem.prune(),
        "reembed": lambda mem: mem.reembed(Embedder("other")),
        "verify": lambda mem: mem.verify(),
        "repair": lambda mem: mem.verify(repair=True),
    }
    told = f"another process has maintained the store {tmp_path} for more than 0 s; nothing was changed: try again "
    with held(MAINTAINS, tmp_path) as other:
        assert other.line() == "before a rewritten segment is named"
        there = sorted(path.name for path in (tmp_path / "segments").iterdir())
        with memcore.open(tmp_path, embedder=None, lock_timeout=0) as mem:
            for name, call in calls.items():
                with pytest.raises(memcore.StoreLocked) as raised:
                    call(mem)
                assert (name, str(raised.value)) == (name, f"{told}when it is done")
            monkeypatch.setattr(maintenance, "SEAL_ROWS", 1)
            mem._engine.directory.maintenance.work(0)  # in the background nobody waits, nor is anything told
        with pytest.raises(memcore.StoreLocked) as raised:
            memcore.verify(tmp_path, repair=True, lock_timeout=0)
        assert str(raised.value) == f"{told}when it is done"
        assert sorted(path.name for path in (tmp_path / "segments").iterdir()) == there
        other.go_on()
        assert other.end() == 0
    with memcore.open(tmp_path, embedder=None, lock_timeout=0) as mem:
        assert [row.content for row in mem.list()] == ["kept", "faded"]
        assert mem.prune().count == 1
        assert mem.verify().problems == []


HOLDS = """
import sys
from pathlib import Path
from memcore.store.maintenance import alone
with alone(Path(sys.argv[1]), None) as mine:
    print(mine)
    input()
"""

FORKS = """
import os, sys, threading
import memcore
from memcore.store import maintenance
mem = memcore.open(sys.argv[1], embedder=None, lock_timeout=30)
mem.remember("a")
waits, outcome = threading.Event(), []
maintenance.step = lambda name: waits.set() if name == "while another process maintains a store" else None
def compact():
    try:
        outcome.append(mem.compact())
    except memcore.StoreLocked as fault:
        outcome.append(fault)
thread = threading.Thread(target=compact)
thread.start()
assert waits.wait(30)
child = os.fork()
if not child:
    mem.remember("b")
    os._exit(0)
assert outcome == [], outcome
assert os.waitpid(child, 0)[1] == 0
print("forked")
thread.join()
assert isinstance(outcome[0], memcore.memory.CompactReport), outcome
print([row.content for row in mem.list()])
mem.close()
"""


def test_a_fork_does_not_wait_for_a_thread_that_waits_for_another_process(tmp_path):
    memcore.open(tmp_path, embedder=None).close()
    with held(HOLDS, tmp_path) as other:
        assert other.line() == "True"  # before the child can ask for what it holds
        with held(FORKS, tmp_path) as child:
            assert child.line() == "forked"
            other.go_on()
            assert other.end() == 0
            assert child.line() == "['a', 'b']"
            assert child.end() == 0


# Others write without a pause


def writing(monkeypatch, mem, places):
    """Has a row written whenever maintenance comes to one of these places: a writer that is always quicker."""
    written = []

    def step(name):
        if name in places and len(written) < 20:
            written.append(mem.remember(f"meanwhile {len(written)}"))

    monkeypatch.setattr(maintenance, "step", step)
    return written


def test_compacting_ends_while_others_write(tmp_path, monkeypatch):
    """What is written meanwhile stays in the journal, and is not lost there."""
    mem, _ = filled(tmp_path, sealed=False)
    written = writing(monkeypatch, mem, {"before a segment is named", "after a segment is named"})
    report = mem.compact()
    assert len(written) == 2
    assert (report.dropped, report.written) == (1, 1)
    texts = ["kept", "meanwhile 0", "meanwhile 1"]
    assert [row.content for row in mem.list()] == texts
    mem.close()
    assert contents(tmp_path) == texts
    assert memcore.verify(tmp_path).problems == []


def test_sealing_everything_ends_while_others_write(tmp_path, monkeypatch):
    """As it does before all is embedded anew, which then has less left to do than there was."""
    mem = memcore.open(tmp_path, embedder=None)
    mem.remember("kept")
    written = writing(monkeypatch, mem, {"after a segment is named"})
    mem.reembed(Embedder("new"))
    assert len(written) == 1
    assert [row.vector is not None for row in mem.list()] == [True, True]


@pytest.mark.parametrize("behind", [1, 5])
def test_commits_without_rows_are_passed_over_up_to_where_sealing_goes(tmp_path, monkeypatch, behind):
    """Rows that are written behind them must not be taken for sealed ones."""
    monkeypatch.setattr(maintenance, "SEAL_ROWS", 4)
    mem = memcore.open(tmp_path, embedder=None)
    mem._engine.commits.on_commit = lambda: None  # nothing is done in the background
    a, b = mem.remember("a"), mem.remember("b")
    mem.compact()
    for _ in range(3):
        mem.link(a, "x", b)
        mem.unlink(a)
    waiting = [f"behind {i}" for i in range(behind)]
    committed = maintenance.Maintenance._committed

    def then_written(self):
        upto = committed(self)
        for text in waiting:
            mem.remember(text)
        return upto

    monkeypatch.setattr(maintenance.Maintenance, "_committed", then_written)
    mem.compact()
    told = mem._engine.directory.journal.run("SELECT sealed_upto FROM state").fetchone()
    assert told == (mem.list()[1].seq + 6,)
    mem.close()
    assert contents(tmp_path) == ["a", "b", *waiting]


# By which clock


def test_seven_days_are_counted_by_the_clocks_of_those_who_have_the_store_open(tmp_path, monkeypatch):
    """The machine's is another one: in a simulation all was forgotten years ago, or is still to come."""
    monkeypatch.setattr(maintenance, "SEAL_ROWS", 1)
    day = 86_400
    times = {"slow": 100.0, "fast": 100.0 + 30 * day}

    def opened(name):
        mem = memcore.open(tmp_path, embedder=None, clock=lambda: times[name])
        mem._engine.commits.on_commit = lambda: None  # nothing is done in the background
        return mem

    def left_after_sealing(mem):
        mem.remember("what seals it")
        mem._engine.directory.maintenance.work()
        return [row.content for row in mem.forgotten()]

    slow, fast = opened("slow"), opened("fast")
    slow.forget(slow.remember("by the slow"))
    fast.forget(fast.remember("by the fast"))
    assert left_after_sealing(fast) == ["by the slow", "by the fast"]
    times["slow"] += 7 * day
    assert left_after_sealing(fast) == ["by the slow", "by the fast"]
    times["slow"] += 1
    assert left_after_sealing(fast) == ["by the fast"]
    slow.close()
    times["fast"] += 7 * day
    assert left_after_sealing(fast) == ["by the fast"]
    times["fast"] += 1
    assert left_after_sealing(fast) == []
    fast.close()

"""An exception in the middle of a commit, wherever it comes, leaves what was there before or what is there after it.

A trace function raises KeyboardInterrupt at the n-th line that a verb runs in the store and the verbs, for every n in
turn: what a signal's handler may do to the main thread.
"""

import sys
import uuid

import pytest

import memcore
from memcore.store import segment

IDS = [str(uuid.UUID(int=n << 64 | n)) for n in range(1, 6)]
PLACES = ("memcore/store/", "memcore/memory.py", "memcore/engine.py", "memcore/agent/")


def interrupted(verb, at):
    """Runs `verb` and raises at its `at`-th line; whether there were so many."""
    lines = 0

    def local(frame, event, arg):
        nonlocal lines
        if event == "line":
            lines += 1
            if lines == at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return local

    def trace(frame, event, arg):
        name = frame.f_code.co_filename
        return local if any(place in name for place in PLACES) and frame.f_code.co_name != "roll_back" else None

    sys.settrace(trace)
    try:
        verb()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def filled():
    mem = memcore.open(embedder=None, working_capacity=3, clock=lambda: 1_800_000_000)
    ops = mem.scope("t", "p")
    ops.remember_many([{"content": f"row {i}", "metadata": {"n": i}, "id": id} for i, id in enumerate(IDS)])
    ops.link(IDS[0], "x", IDS[1])
    ops.link(IDS[1], "x", IDS[2])
    ops.remember("first value", kind="semantic", key="k")
    ops.remember("second value", kind="semantic", key="k")
    for i in range(4):
        ops.remember(f"message {i}", kind="working", metadata={"role": "user"})
    ops.remember("cold", event_time=0, importance=0, metadata={"n": 8})
    ops.prune()
    return mem, ops


def state(mem, ops):
    """All that can be seen, but for what differs by chance from run to run."""
    rows = [
        (r.kind, r.key, r.content, r.version, r.metadata, r.superseded_at, r.vector is None)
        for r in ops.list(as_of=1_900_000_000)
    ]
    history = [(r.content, r.version, r.superseded_at) for r in ops.history("k")]
    working = [r.content for r in ops.working().entries()]
    counts = {name: mem.stats()[name] for name in ("memories", "versions", "by_kind")}
    cold = [(r.content, r.version) for r in ops.list(tiers="cold")], mem.stats()["cold"]["memories"]
    said = {r.id: r.content for r in ops.list(tiers=("hot", "cold"))}
    links = [
        (said[link.src_id], link.relation, said[link.dst_id], link.attributes)
        for as_of in (None, 1_900_000_000)
        for link in ops.links(as_of=as_of)
    ]
    return rows, history, working, counts, cold, links


def consistent(mem, ops):
    rows = list(ops.list())
    assert len({r.id for r in rows}) == len(rows)
    assert len({r.seq for r in rows}) == len(rows)
    assert all(r.metadata == {"n": int(r.content[4:])} for r in rows if r.content.startswith("row "))
    assert [ops.get(r.id).content for r in rows] == [r.content for r in rows]
    assert mem.stats()["memories"] == len(rows)


VERBS = {
    "remember": lambda ops: ops.remember("row 9", metadata={"n": 9}, vector=[1.0, 0.0]),
    "upsert": lambda ops: ops.remember("third value", kind="semantic", key="k"),
    "many": lambda ops: ops.remember_many([{"content": f"row {i}", "metadata": {"n": i}} for i in (7, 8, 9)]),
    "update": lambda ops: ops.update(ops.list(kinds="episodic")[0].id, content="row 6", metadata={"n": 6}),
    "working": lambda ops: ops.remember("message 9", kind="working"),
    "forget": lambda ops: ops.forget(ops.list(kinds="episodic")[:2]),
    "end": lambda ops: ops.end_session(),
    "link": lambda ops: ops.link(IDS[0], "y", IDS[2]),
    "link anew": lambda ops: ops.link(IDS[0], "x", IDS[1], attributes={"n": 1}),
    "unlink": lambda ops: ops.unlink(IDS[1]),
    "erase": lambda ops: ops.forget(IDS[1], erase=True),
    "prune": lambda ops: ops.prune(importance_below=1, recency_below=1, now=1_900_000_000),
    "restore": lambda ops: ops.restore(ops.list(tiers="cold")),
}


@pytest.mark.parametrize("name", VERBS)
def test_an_interrupted_verb_is_done_or_not_done(name, monkeypatch):
    monkeypatch.setattr(segment, "ROWS", 6)  # so that the commit also seals a segment and begins another
    verb = VERBS[name]
    mem, ops = filled()
    before = state(mem, ops)
    verb(ops)
    after = state(mem, ops)
    assert before != after
    at = 1
    while True:
        at += 7  # every line takes 100 s, and each run tells the same lines
        mem, ops = filled()
        if not interrupted(lambda ops=ops: verb(ops), at):
            break
        found = state(mem, ops)
        assert found in (before, after), at
        consistent(mem, ops)
        ops.remember("row 11", metadata={"n": 11})
        consistent(mem, ops)
        assert state(mem, ops)[3]["memories"] == found[3]["memories"] + 1
    assert at > 30

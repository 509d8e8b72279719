"""Cases of forgetting and of slow work beside other writes, as far as the verbs are there; rows of damaged files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memcore
from memcore import engine as engines
from memcore.embed import CallableEmbedder

NOW = 1_900_000_000


@pytest.fixture(params=["ram", "directory"])
def mem(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    path = None if request.param == "ram" else tmp_path / "m"
    with memcore.open(path, embedder="hashed", clock=lambda: NOW) as opened:
        yield opened


def test_case_C9_what_was_erased_comes_back_from_no_summary(mem):
    """Erasing the events takes the fact that was drawn from them along, and what was drawn from that."""
    desk = mem.remember_many([{"content": f"the desk is in room 12, note {i}"} for i in range(3)])
    fact = mem.remember("the desk is in room 12", kind="semantic", key="desk", level=1)
    story = mem.remember("what is known of the office: desk, room 12", kind="semantic", level=2)
    for child in desk:
        mem.link(fact, "summarizes", child)
    mem.link(story, "summarizes", fact)
    mem.remember("lunch is at noon")
    report = mem.forget(desk, erase=True)
    assert set(report.cascaded) == {fact.id, story.id}
    assert not any("room 12" in hit.content for hit in mem.recall("room 12", k=10))
    mem.compact()
    assert mem.restore([*desk, fact.id, story.id]).count == 0
    assert [r.content for r in mem.list()] == ["lunch is at noon"]


def test_case_C11_a_late_write_does_not_change_what_was_forgotten_and_a_new_session_works(mem):
    """The embedder holds an update up while its memory and its session are forgotten."""
    ops = mem.scope("t", "p", "s1")
    record = ops.remember("the first session's")
    embedder = mem._engine.embedder
    real = embedder.embed

    def held_up(texts: Any, kind: str = "document") -> Any:
        embedder.embed = real
        ops.forget(everything=True, erase=True)
        return real(texts, kind)

    embedder.embed = held_up
    try:
        with pytest.raises(memcore.NotFound):
            ops.update(record.id, content="a late result")
    finally:
        embedder.embed = real
    assert len(ops.list()) == 0
    ops.remember("of the new session named s1")
    assert [hit.content for hit in ops.recall("new session", k=3)] == ["of the new session named s1"]


def test_case_F3_slow_work_on_a_snapshot_erases_nothing_that_came_meanwhile(mem):
    """Re-embedding reads all rows, and takes its time, while five come, one changes and one goes."""
    ops = mem.scope("t", "p")
    ids = ops.remember_many([f"row {i}" for i in range(10)])
    done: list[str] = []

    def slow(texts: Any) -> Any:
        if not done:
            done.extend(ops.remember_many([f"new {i}" for i in range(5)]))
            ops.update(ids[3], importance=0.9)
            ops.forget(ids[4])
        return np.ones((len(texts), 4))

    mem.reembed(CallableEmbedder(slow, name="slow", dim=4))
    contents = [r.content for r in ops.list()]
    assert sorted(contents) == sorted([f"row {i}" for i in range(10) if i != 4] + [f"new {i}" for i in range(5)])
    assert ops.get(ids[3]).importance == 0.9
    assert all(r.vector.size == 4 for r in ops.list())


@pytest.mark.parametrize("meanwhile", ["forget", "update"])
def test_case_F3_what_changes_while_prune_works_stays_and_can_be_moved_later(mem, meanwhile, monkeypatch):
    """Its rows must not be in the files that this prune writes: the next one would not find them any more."""
    ops = mem.scope("t", "p")
    ids = ops.remember_many([{"content": f"r{i}", "importance": 0.1, "event_time": 1_000_000_000} for i in range(5)])
    real, calls = engines.Engine.move_out, []

    def move_out(self: Any, *args: Any) -> Any:
        if not calls:
            calls.append(1)
            ops.forget(ids[2]) if meanwhile == "forget" else ops.update(ids[2], content="v2")
        return real(self, *args)

    monkeypatch.setattr(engines.Engine, "move_out", move_out)
    report = ops.prune()
    assert ([one.id for one in report.moved], report.changed) == ([*ids[:2], *ids[3:]], [ids[2]])
    assert len(ops.list(tiers=("hot", "cold"))) == (4 if meanwhile == "forget" else 5)
    if meanwhile == "forget":
        assert ops.restore(ids[2]).count == 1
    assert [one.id for one in ops.prune().moved] == [ids[2]]
    versions = [1] if meanwhile == "forget" else [1, 2]
    assert [r.version for r in ops.history(id=ids[2], tiers=("hot", "cold"))] == versions
    assert len(ops.list(tiers=("hot", "cold"))) == 5
    assert mem.verify().ok
    assert ops.restore(ids).count == 5


# Rows of damaged files


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, Path]:
    """A store whose one file has another text than was written."""
    with memcore.open(tmp_path / "m", embedder="hashed", clock=lambda: NOW) as mem:
        mem.remember_many([{"content": f"row {i} KIWI-{100 + i}", "importance": 0.1} for i in range(50)])
        mem.compact()
    (segment,) = (tmp_path / "m" / "segments").iterdir()
    held = segment.read_bytes()
    assert held.count(b"KIWI-107") == 1
    segment.write_bytes(held.replace(b"KIWI-107", b"KIWI-999"))
    return tmp_path / "m", segment


VERBS = {
    "reembed": lambda mem, path: mem.reembed("static"),
    "prune": lambda mem, path: mem.prune(recency_below=1, now=NOW + 10**6),
    "export": lambda mem, path: mem.export(path / "e.jsonl"),
    "export a scope": lambda mem, path: mem.scope().export(path / "e.json"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_what_writes_rows_anew_refuses_a_damaged_file(damaged, tmp_path, verb):
    """With new checksums the damage could never be seen again."""
    path, segment = damaged
    with memcore.open(path, embedder="hashed", clock=lambda: NOW) as mem:
        with pytest.raises(memcore.StoreCorrupt) as raised:
            VERBS[verb](mem, tmp_path)
        assert str(raised.value) == (
            f"{segment} is damaged: its checksum is another than when it was written; nothing was changed: run memcore "
            "verify --repair, which keeps the rows that are whole, or restore the store from an export"
        )
        assert len(mem.list()) == 50
    assert not (tmp_path / "e.jsonl").exists()
    assert not memcore.verify(path).ok


def test_damaged_bytes_are_a_typed_error_or_another_value_and_never_a_crash(tmp_path):
    """Each in a process of its own, which would die of a text that lies outside its file."""
    with memcore.open(tmp_path / "m", embedder=None, clock=lambda: NOW) as mem:
        mem.remember_many([{"content": f"row {i} ção", "key": f"k{i}", "metadata": {"n": i}} for i in range(200)])
        mem.compact()
    (segment,) = (tmp_path / "m" / "segments").iterdir()
    code = (
        "import random, sys, memcore\n"
        "path, whole = sys.argv[1], open(sys.argv[1], 'rb').read()\n"
        "rng, typed = random.Random(int(sys.argv[3])), 0\n"
        "for _ in range(60):\n"
        "    at = rng.randrange(len(whole) - 8)\n"
        "    open(path, 'r+b').write(whole[:at] + rng.randbytes(8) + whole[at + 8:])\n"
        "    with memcore.open(sys.argv[2], embedder=None, clock=lambda: 1_900_000_000) as mem:\n"
        "        for verb in (lambda: list(mem.list()), lambda: list(mem.recall(k=50)), lambda: mem.get(key='k7')):\n"
        "            try:\n"
        "                verb()\n"
        "            except memcore.StoreCorrupt:\n"
        "                typed += 1\n"
        "print('typed', typed > 0)\n"
    )
    arguments = [str(segment), str(tmp_path / "m")]
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments, seed], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr[-2000:], done.stdout) == (0, "", "typed True\n")


def test_a_damaged_name_in_the_catalog_is_told_as_damage(tmp_path):
    """SQLite quotes what it cannot read, and that need not be UTF-8."""
    with memcore.open(tmp_path / "m", embedder=None) as mem:
        mem.remember_many(["a"] * 300)
    catalog = tmp_path / "m" / "catalog.sqlite"
    held = bytearray(catalog.read_bytes())
    held[held.rfind(b"CREATE TABLE scopes") + 2] ^= 0xFF
    catalog.write_bytes(held)
    with pytest.raises(memcore.StoreCorrupt, match="is damaged"):
        memcore.open(tmp_path / "m", embedder=None)


def test_a_store_that_is_not_there_is_made_only_where_that_is_meant(tmp_path):
    with pytest.raises(memcore.StoreError) as raised:
        memcore.open(tmp_path / "typo", embedder=None, create=False)
    assert str(raised.value) == (
        f"{tmp_path / 'typo'} is no store: No such file or directory; check the path, or remember something there first"
    )
    (tmp_path / "empty").mkdir()
    with pytest.raises(memcore.StoreError, match="is no store: there is no catalog"):
        memcore.open(tmp_path / "empty", embedder=None, create=False)
    assert not (tmp_path / "typo").exists()
    memcore.open(tmp_path / "m", embedder=None).close()
    memcore.open(tmp_path / "m", embedder=None, create=False).close()
    binary = str(Path(sys.executable).parent / "memcore")
    for verb in (["recall", "x"], ["list"], ["stats"], ["get", "--key", "k"], ["export", "x.jsonl"], ["compact"]):
        done = subprocess.run(
            [binary, "--store", str(tmp_path / "typo"), *verb], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), verb
        assert "is no store" in done.stderr
        assert not (tmp_path / "typo").exists()


def test_commands_that_embed_nothing_need_no_embedder(tmp_path):
    with memcore.open(tmp_path / "m", embedder="hashed") as mem:
        mem.remember("a thing", kind="semantic", key="k")
        fingerprint = mem.stats()["embedder"]["fingerprint"]
    with memcore.open(tmp_path / "m", embedder=None) as mem:
        assert mem.stats()["embedder"] == {"name": "hashed", "fingerprint": fingerprint}
    binary = str(Path(sys.executable).parent / "memcore")
    for verb in (["list"], ["stats"], ["get", "--key", "k"], ["history", "k"], ["forgotten"], ["prune", "--dry-run"]):
        subprocess.run([binary, "--store", str(tmp_path / "m"), *verb], check=True, capture_output=True)

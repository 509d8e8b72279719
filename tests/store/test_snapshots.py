"""Readers in threads beside a writer: what one call sees is one moment of the store, whatever the writer does
meanwhile.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import memcore
from memcore.search import filter as filters
from memcore.store import segment
from memcore.store.segment import Segment
from memcore.store.snapshot import Part, Selection, Snapshot

FAR = datetime(2999, 1, 1, tzinfo=UTC)
KEYS = [f"key {i}" for i in range(12)]


@pytest.fixture(autouse=True)
def tiny_segments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Segments grow, are sealed and rewritten all the time, and threads take turns as often as can be."""
    monkeypatch.setattr(segment, "ROWS", 16)
    monkeypatch.setattr(segment, "_FIRST_ROWS", 2)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Crew:
    """Runs readers over and over, in a thread each, until the writer is done; then raises what any of them raised."""

    def __init__(self, *readers: Callable[[], None]) -> None:
        self.done = threading.Event()
        self.faults: list[BaseException] = []
        self.begun = [threading.Event() for _ in readers]
        self.threads = [threading.Thread(target=self._run, args=a) for a in zip(readers, self.begun, strict=True)]

    def _run(self, reader: Callable[[], None], begun: threading.Event) -> None:
        try:
            while not self.done.is_set():
                reader()
                begun.set()
        except BaseException as fault:
            self.faults.append(fault)
        finally:
            begun.set()

    def __enter__(self) -> Crew:
        """Each reader has been once around when the writer begins."""
        for thread in self.threads:
            thread.start()
        for begun in self.begun:
            begun.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        for thread in self.threads:
            thread.join()
        if self.faults:
            raise self.faults[0]


def vector(i: int) -> np.ndarray:
    return np.eye(4, dtype=np.float32)[i % 4]


def batch(i: int, size: int = 10) -> list[dict[str, Any]]:
    return [{"content": f"{i} {j}", "vector": vector(j), "metadata": {"batch": i, "j": j}} for j in range(size)]


def test_a_batch_is_seen_whole_or_not_at_all(tmp_path):
    mem = memcore.open(embedder=None)
    ops = mem.scope("t", "p")

    def whole(batches: Any) -> None:
        assert set(Counter(batches).values()) <= {10}

    def listed() -> None:
        whole(record.metadata["batch"] for record in ops.list())

    def filtered() -> None:
        whole(record.metadata["batch"] for record in ops.list(where={"key": None, "metadata.j": 3}) for _ in range(10))
        whole(hit.metadata["batch"] for hit in ops.recall(vector=vector(0), k=10_000, where={"source": "observation"}))

    def recalled() -> None:
        for hits in ops.recall_many(vectors=[vector(0), vector(1)], k=10_000):
            whole(hit.metadata["batch"] for hit in hits)
        whole(hit.metadata["batch"] for hit in ops.recall(k=10_000, as_of=FAR))

    def exported() -> None:
        path = tmp_path / f"{threading.get_ident()}.jsonl"
        rows = mem.export(path)
        lines = path.read_text(encoding="utf-8").splitlines()
        assert rows == len(lines) - 1
        assert rows % 10 == 0

    with Crew(listed, filtered, recalled, exported):
        for i in range(150):
            ops.remember_many(batch(i))
            if i % 3 == 2:
                ops.forget(where={"metadata.batch": i - 1})
            if i % 40 == 39:
                ops.forget(everything=True)
    assert len(ops.list()) == 200  # 120 to 149 but for every third of them


def test_a_key_is_seen_exactly_once_at_any_moment():
    mem = memcore.open(embedder=None)
    ops = mem.scope("t", "p")

    def written(round: int) -> None:
        ops.remember_many(
            [{"content": f"{key} {round}", "kind": "semantic", "key": key, "vector": vector(round)} for key in KEYS]
        )

    def once(found: Any) -> None:
        assert Counter(found) == Counter(KEYS)

    def listed() -> None:
        once(record.key for record in ops.list(kinds="semantic"))
        once(record.key for record in ops.list(kinds="semantic", as_of=FAR))

    def recalled() -> None:
        once(hit.key for hit in ops.recall(vector=vector(0), k=100, kinds="semantic"))
        once(hit.key for hit in ops.recall(vector=vector(0), k=100, kinds="semantic", as_of=FAR))

    def got() -> None:
        for key in KEYS:
            record = ops.get(key=key)
            assert record is not None
            assert record.content.startswith(key)
            assert record.superseded_at is None
            versions = [r.version for r in ops.history(key)]
            assert versions == list(range(1, len(versions) + 1))
            assert [r.superseded_at is None for r in ops.history(key)].count(True) == 1

    written(0)
    ids = [record.id for record in ops.list()]
    with Crew(listed, recalled, got):
        for i in range(1, 120):
            written(i)
            ops.update(ids[i % len(ids)], importance=(i % 10) / 10)
            ops.remember_many(batch(i, 3), now=0)
            ops.forget(kinds="episodic")


def test_a_forgotten_memory_is_gone_from_every_later_call():
    mem = memcore.open(embedder=None)
    ops = mem.scope("t", "p")
    gone: list[str] = []

    def absent() -> None:
        before = set(gone)
        assert not before & {record.id for record in ops.list()}
        assert not before & {record.id for record in ops.list(as_of=FAR)}
        for id in list(before)[-3:]:
            assert ops.get(id) is None
            assert len(ops.history(id=id)) == 0

    with Crew(absent, absent):
        for i in range(200):
            ids = ops.remember_many(batch(i, 5))
            ops.forget(ids[:4])
            gone.extend(ids[:4])
    assert len(ops.list()) == 200


def test_the_working_memory_is_seen_within_its_limits():
    mem = memcore.open(embedder=None, working_capacity=4)
    chat = mem.scope("t", "p", "s").working()

    def held() -> None:
        contents = [int(message["content"]) for message in chat.messages()]
        assert len(contents) <= 4
        assert contents == list(range(contents[0], contents[0] + len(contents))) if contents else True

    with Crew(held, held):
        for i in range(300):
            chat.add("user", str(i))
            if i % 50 == 49:
                assert len(chat.end()) == 50


def test_the_first_vector_may_come_while_readers_run():
    for _ in range(20):
        mem = memcore.open(embedder=None)
        ops = mem.scope("t", "p")
        ops.remember_many([{"content": str(i)} for i in range(40)])

        def read(ops: memcore.Scope = ops) -> None:
            found = ops.recall(vector=[0.0, 1.0, 0.0], k=100)
            assert len(found) in (40, 41)
            assert {hit.semantic_similarity for hit in found} <= {0.0, 1.0}
            assert len(ops.list().to_arrow()) in (40, 41)

        with Crew(read, read):
            ops.remember("first", vector=[0.0, 1.0, 0.0])
        (best,) = ops.recall(vector=[0.0, 1.0, 0.0], k=1, weights=(1, 0, 0))
        assert best.content == "first"


def test_new_names_and_scopes_while_readers_run():
    mem = memcore.open(embedder=None)

    def read() -> None:
        for tenant, project in mem.scopes():
            for record in mem.scope(tenant, project).list():
                assert record.session_id == f"session {record.content}"
        mem.stats()

    with Crew(read, read):
        for i in range(150):
            mem.scope(f"tenant {i % 7}", "p", f"session {i}").remember(str(i))
            if i % 20 == 19:
                mem.scope(f"tenant {i % 7}", "p").forget(everything=True)


def test_counts_of_many_threads_add_up():
    mem = memcore.open(embedder=None)
    ops = mem.scope("t", "p")
    id = ops.remember("x", vector=vector(0)).id

    def hit() -> None:
        for _ in range(25):
            ops.recall(vector=vector(0), k=1)
            ops.get(id)

    threads = [threading.Thread(target=hit) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ops.list()[0].access_count == 8 * 25 * 2


# A snapshot that is held while things change, step by step


def taken(mem: memcore.Memory, name: tuple[str, str] = ("t", "p")) -> Snapshot:
    return mem._engine.catalog.snapshot(name)


def contents(snapshot: Snapshot, **selection: Any) -> list[str]:
    chosen = Selection(frozenset(range(4)), now=0, **selection)
    return snapshot.table(snapshot.positions(snapshot.masks(chosen))).column("content").to_pylist()


@pytest.fixture
def mem() -> memcore.Memory:
    return memcore.open(embedder=None)


def test_a_held_snapshot_does_not_see_what_is_appended_sealed_updated_or_forgotten(mem):
    ops = mem.scope("t", "p")
    ops.forget(ops.remember("gone before", now=0).id)
    gone = ops.remember("gone before, and still in its segment", now=0).id
    ids = ops.remember_many([{"content": str(i), "kind": "semantic", "key": str(i)} for i in range(10)], now=1)
    ops.forget(gone)
    snapshot, names = taken(mem), [str(i) for i in range(10)]
    ops.remember("3 again", kind="semantic", key="3", now=2)
    ops.update(ids[4], content="4 again", now=3)
    assert contents(snapshot) == names
    assert contents(snapshot, as_of=10_000_000) == names
    ops.remember_many([str(i) for i in range(100, 130)], now=4)  # grows, is sealed
    assert contents(snapshot) == names
    ops.forget(ids[:8], now=5)  # among them rows that were superseded since: they must not come back
    assert contents(snapshot) == names
    assert contents(snapshot, as_of=10_000_000) == names
    assert contents(taken(mem)) == ["8", "9", *(str(i) for i in range(100, 130))]
    ops.forget(everything=True, now=6)
    assert contents(snapshot) == names
    assert contents(taken(mem)) == []


def test_a_superseded_row_that_is_forgotten_does_not_come_back_in_an_earlier_snapshot(mem):
    ops = mem.scope("t", "p")
    id = ops.remember("old", kind="semantic", key="k", now=1).id
    ops.remember_many([str(i) for i in range(8)], now=1)
    ops.update(id, content="new", now=2)
    snapshot = taken(mem)
    ops.forget(id, now=3)
    for as_of in (None, 5_000_000):
        seen = contents(snapshot, as_of=as_of)
        assert "new" in seen
        assert "old" not in seen
    assert "old" in contents(snapshot, as_of=1_500_000)


def test_texts_of_a_held_snapshot_are_read_from_what_it_holds(mem):
    """A tail's texts are a list until it is sealed: who reads must not mix that up with what came after."""
    ops = mem.scope("t", "p")
    ops.remember_many([str(i) for i in range(15)])
    snapshot = taken(mem)
    part: Part = snapshot.parts[0]
    tail: Segment = part.segment
    ops.remember("last")
    assert tail.sealed
    assert part.view.text("content", 3) == "3"
    assert part.view.text("key", 3) is None
    assert part.view.texts_at("content", range(2)).to_pylist() == ["0", "1"]
    assert snapshot.record(4).content == "4"
    assert part.n == 15


def test_a_row_is_found_by_key_and_id_in_a_held_snapshot(mem):
    ops = mem.scope("t", "p")
    first = ops.remember("1", kind="semantic", key="k")
    snapshot = taken(mem)
    ops.remember("2", kind="semantic", key="k")
    assert snapshot.positions_under("k").tolist() == [0]
    assert [snapshot.record(p).content for p in snapshot.positions_with({snapshot.name(0)}).tolist()] == ["1"]
    ops.forget(first.id)
    assert contents(snapshot) == ["1"]


def test_metadata_that_was_parsed_for_a_filter_serves_older_and_newer_snapshots(mem, monkeypatch):
    ops = mem.scope("t", "p")
    parsed: list[str] = []
    loads = filters.json.loads
    monkeypatch.setattr(filters.json, "loads", lambda text: parsed.append(text) or loads(text))
    condition = filters.compile_where({"metadata.n": 1})
    ops.remember_many([{"content": "x", "metadata": {"n": i % 2}} for i in range(10)])
    older = taken(mem)
    ops.remember_many([{"content": "x", "metadata": {"n": i % 2}} for i in range(4)])
    newer = taken(mem)
    assert [m.tolist() for m in condition.masks(newer)] == [[0, 1] * 7]
    assert [m.tolist() for m in condition.masks(older)] == [[0, 1] * 5]
    assert len(parsed) == 14
    ops.remember_many([{"content": "x", "metadata": {"n": 1}} for _ in range(4)])  # seals, and begins a tail
    assert [m.tolist() for m in condition.masks(taken(mem))] == [[0, 1] * 7 + [1, 1], [1, 1]]
    assert len(parsed) == 18
    assert [m.tolist() for m in condition.masks(older)] == [[0, 1] * 5]
    assert len(parsed) == 18
    ops.forget(where={"metadata.n": 0})
    mem.compact()  # the first is rewritten: parsed anew, once
    for _ in range(2):
        assert sum(m.sum() for m in condition.masks(taken(mem))) == 11
    assert len(parsed) == 27


def test_masks_have_one_form():
    """A read-only mask would be another type to Numba, and compile every kernel again at the first filtered recall."""
    mem = memcore.open(embedder=None)
    ops = mem.scope("t", "p", "s")
    ops.remember_many(batch(0))
    mem.scope("t", "p").remember("x", kind="semantic")
    snapshot = taken(mem)
    conditions = (None, {"metadata.j": 1}, {"kind": "episodic"}, {"tenant_id": "t"})
    for condition in conditions:
        for session in (None, 0, 99):
            masks = snapshot.masks(Selection(frozenset((1,)), now=0, session=session))
            if condition is not None:
                masks += filters.compile_where(condition).masks(snapshot)
            for mask in (*masks, *snapshot.masks(Selection(frozenset(range(4)), now=0))):
                assert (mask.dtype, mask.ndim, mask.flags.c_contiguous, mask.flags.writeable) == (
                    np.uint8,
                    1,
                    True,
                    True,
                )


def test_columns_that_kernels_read_have_one_form():
    mem = memcore.open(embedder=None)
    ops = mem.scope("t", "p")
    ops.remember_many(pa.table({"content": ["x"] * 40, "importance": [0.5] * 40}), now=0)  # the same in every row
    for part in taken(mem).parts:
        for name in ("vector", "event_time", "importance", "id_hi", "id_lo"):
            assert part.columns[name].flags.c_contiguous
            assert not part.columns[name].flags.writeable

"""remember and remember_many: what is stored, what a key and a retry do, ids of the caller's own, all or nothing."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import memcore

T = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
ID = "01890a5d-ac96-774b-bcce-b302099a8057"
OTHER = "01890a5d-ac96-774b-bcce-b302099a8058"


@pytest.fixture
def mem() -> memcore.Memory:
    return memcore.open(embedder=None, clock=lambda: T)


@pytest.fixture
def ops(mem) -> memcore.Scope:
    return mem.scope("acme", "billing", "s1", "triage")


def contents(records: Any) -> list[str]:
    return [record.content for record in records]


def test_remember_returns_what_get_and_list_return(ops):
    record = ops.remember(
        "HTTP 504 on /billing",
        kind="semantic",
        key="k",
        importance=0.9,
        event_time=T.timestamp() - 60,
        expires_at=T.timestamp() + 60,
        metadata={"host": "web01"},
        source="told_by_user",
        confidence=0.7,
        untrusted=True,
        level=1,
        vector=[3.0, 4.0],
        id=ID,
        idempotency_key="call 1",
    )
    (listed,) = ops.list()
    assert listed == record
    assert record.vector.tolist() == np.array([0.6, 0.8], np.float32).tolist()
    assert (record.id, record.version, record.seq, record.session_id, record.agent_role) == (ID, 1, 1, "s1", "triage")
    assert (record.importance, record.confidence, record.untrusted, record.level) == (0.9, 0.7, True, 1)
    assert (record.ingested_at, record.event_time.timestamp(), record.expires_at.timestamp()) == (
        T,
        T.timestamp() - 60,
        T.timestamp() + 60,
    )
    got = ops.get(ID)
    assert got.access_count == 1
    assert got.last_access == T


def test_the_returned_record_is_the_callers_own(ops):
    record = ops.remember("x", vector=[1.0, 0.0], metadata={"a": [1]})
    record.vector[0] = 7
    record.metadata["a"].append(2)
    assert ops.get(record.id).vector.tolist() == [1.0, 0.0]
    assert ops.get(record.id).metadata == {"a": [1]}


@pytest.mark.parametrize(
    "rows",
    [
        ["a", "b"],
        ("a", "b"),
        [{"content": "a"}, "b"],
        pa.table({"content": ["a", "b"]}),
        pa.RecordBatch.from_pydict({"content": ["a", "b"]}),
        pa.table({"content": pa.chunked_array([["a"], ["b"]])}),
    ],
    ids=["list", "tuple", "mixed", "table", "batch", "chunks"],
)
def test_remember_many_takes_texts_dicts_and_arrow(ops, rows):
    ids = ops.remember_many(rows)
    assert [ops.get(id).content for id in ids] == ["a", "b"]
    assert contents(ops.list()) == ["a", "b"]
    assert ids.faults == {}
    assert ids.ids is ids


@pytest.mark.parametrize(
    "rows", [[], (), pa.table({"content": pa.array([], pa.string())})], ids=["list", "tuple", "table"]
)
def test_remember_many_of_nothing_is_nothing(mem, ops, rows):
    assert ops.remember_many(rows) == []
    assert mem.scopes() == []


def test_seqs_follow_the_order_of_commits_over_all_scopes(mem):
    seqs = [mem.scope(tenant).remember("x").seq for tenant in ("a", "b", "a", "b")]
    ids = mem.scope("a").remember_many(["y", "z"])
    seqs += [mem.scope("a").get(id).seq for id in ids]
    assert seqs == [1, 2, 3, 4, 5, 6]


# All or nothing


def test_a_refused_row_leaves_nothing_behind(mem, ops):
    rows = [{"content": "fine", "vector": [1.0, 0.0]}, {"content": "odd", "importance": 7}, {"content": "fine too"}]
    with pytest.raises(memcore.InvalidInput, match=r"^row 1: importance is 7; .* Nothing was stored"):
        ops.remember_many(rows)
    assert mem.scopes() == []
    assert mem.stats()["dim"] is None
    stored = ops.remember_many(rows, on_invalid="skip")
    assert contents(ops.list()) == ["fine", "fine too"]
    assert list(stored.faults) == [1]


@pytest.mark.parametrize(
    "call",
    [
        lambda ops: ops.remember("x", id=ID, vector=[1.0, 2.0, 3.0]),
        lambda ops: ops.remember_many([{"content": "y", "vector": [1.0, 2.0, 3.0]}, {"content": "x", "id": ID}]),
        lambda ops: ops.remember("x", id=OTHER, key="k", kind="semantic", vector=[1.0, 2.0, 3.0]),
        lambda ops: ops.update(OTHER, vector=[1.0, 2.0, 3.0]),
        lambda ops: ops.update(ID, vector=[1.0, 2.0, 3.0], if_version=9),
    ],
    ids=["id in use", "id in use within many", "id against key", "update of none", "update of another version"],
)
def test_a_refused_write_does_not_settle_the_width_of_vectors(mem, ops, call):
    ops.remember("first", id=ID, kind="semantic", key="k")
    before = ops.list().to_arrow()
    with pytest.raises(memcore.MemcoreError):
        call(ops)
    assert mem.stats()["dim"] is None
    assert ops.list().to_arrow().equals(before)
    assert ops.remember("second", vector=[1.0, 0.0]).seq == 2  # and no seq is lost


def test_an_embedder_that_fails_leaves_nothing_behind():
    def broken(texts: list[str]) -> Any:
        if "boom" in texts:
            raise RuntimeError("the model is down")
        return [[1.0, 0.0] for _ in texts]

    mem = memcore.open(embedder=broken)
    mem.remember("fine", kind="semantic", key="k")
    for call in (
        lambda: mem.remember("boom", kind="semantic", key="k"),
        lambda: mem.remember_many(["fine", "boom"]),
        lambda: mem.update(mem.list()[0].id, content="boom"),
        lambda: mem.recall("boom"),
        lambda: mem.recall("boom", relevance="cosine"),
    ):
        with pytest.raises(RuntimeError, match="the model is down"):
            call()
    assert [(r.content, r.version) for r in mem.list()] == [("fine", 1)]


def test_no_lock_is_held_while_an_embedder_runs():
    entered, leave = threading.Event(), threading.Event()

    def slow(texts: list[str]) -> Any:
        if texts == ["slow"]:
            entered.set()
            assert leave.wait(60)
        return [[1.0, 0.0] for _ in texts]

    mem = memcore.open(embedder=slow)
    thread = threading.Thread(target=mem.remember, args=("slow",))
    thread.start()
    assert entered.wait(60)
    mem.remember("meanwhile")
    assert contents(mem.recall("meanwhile")) == ["meanwhile"]
    leave.set()
    thread.join()
    assert contents(mem.list()) == ["meanwhile", "slow"]


def test_only_rows_without_a_vector_are_embedded():
    asked: list[list[str]] = []

    def embed(texts: list[str]) -> Any:
        asked.append(texts)
        return [[1.0, 0.0] for _ in texts]

    mem = memcore.open(embedder=embed)
    asked.clear()
    mem.remember_many([{"content": "a"}, {"content": "b", "vector": [0.0, 1.0]}, {"content": "c"}])
    mem.remember("d", vector=[0.0, 1.0])
    assert asked == [["a", "c"]]
    assert [record.vector.tolist() for record in mem.list()] == [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]


# Keys


@pytest.mark.parametrize("kind", ["semantic", "procedural"])
def test_the_same_key_makes_the_next_version(ops, kind):
    first = ops.remember("A", kind=kind, key="queue", metadata={"a": 1}, importance=0.9)
    second = ops.remember("B", kind=kind, key="queue")
    assert (second.id, second.version, second.content) == (first.id, 2, "B")
    assert (second.metadata, second.importance) == ({}, 0.5)  # a new value, not a change of the old one
    assert contents(ops.list()) == ["B"]
    assert [(r.content, r.superseded_at) for r in ops.history("queue")] == [("A", T), ("B", None)]


@pytest.mark.parametrize("kind", ["episodic", "working"])
def test_an_event_never_replaces_another(ops, kind):
    first, second = ops.remember("A", kind=kind, key="k"), ops.remember("B", kind=kind, key="k")
    assert first.id != second.id
    assert contents(ops.list()) == ["A", "B"]
    assert ops.get(key="k").content == "B"
    assert contents(ops.history("k")) == ["B"]


def test_kinds_have_keys_of_their_own(ops):
    fact, skill = ops.remember("fact", kind="semantic", key="k"), ops.remember("skill", kind="procedural", key="k")
    assert fact.id != skill.id
    event = ops.remember("event", kind="episodic", key="k")
    assert ops.get(key="k").id == event.id  # the one written last, of any kind
    assert ops.get(key="k", kind="semantic").id == fact.id
    assert ops.get(key="k", kind="procedural").id == skill.id
    assert contents(ops.history("k", kind="semantic")) == ["fact"]
    assert ops.get(fact.id, kind="procedural") is None
    assert len(ops.history(id=fact.id, kind="procedural")) == 0


def test_a_key_given_twice_in_one_batch(ops):
    ids = ops.remember_many([{"content": c, "kind": "semantic", "key": "k"} for c in ("A", "B", "C")])
    assert len(set(ids)) == 1
    assert [(r.version, r.content, r.superseded_at) for r in ops.history("k")] == [
        (1, "A", T),
        (2, "B", T),
        (3, "C", None),
    ]
    ops.remember_many([{"content": c, "kind": "semantic", "key": "k"} for c in ("D", "E")])
    assert [r.version for r in ops.history("k")] == [1, 2, 3, 4, 5]
    assert contents(ops.list()) == ["E"]


def test_keys_are_compared_code_point_by_code_point(ops):
    keys = ("k", "K", " k", "k ", "%", "_", "k'", "caf\u00e9", "cafe\u0301")
    ids = ops.remember_many([{"content": key, "kind": "semantic", "key": key} for key in keys])
    assert len(set(ids)) == len(keys)
    for key in keys:
        assert ops.get(key=key).content == key


def test_a_forgotten_key_starts_again(ops):
    first = ops.remember("A", kind="semantic", key="k")
    ops.remember("B", kind="semantic", key="k")
    ops.forget(first.id)
    again = ops.remember("C", kind="semantic", key="k")
    assert (again.version, again.id != first.id) == (1, True)
    assert contents(ops.history("k")) == ["C"]


def test_an_expired_key_is_not_seen_and_its_next_value_is_the_next_version(ops):
    first = ops.remember("A", kind="semantic", key="k", expires_at=10, now=1)
    assert ops.get(key="k", now=10) is None
    again = ops.remember("B", kind="semantic", key="k", now=11)
    assert (again.id, again.version, again.expires_at) == (first.id, 2, None)


# Retries


def test_a_retry_returns_the_first_record_and_stores_nothing(ops):
    first = ops.remember("A", idempotency_key="call 1")
    again = ops.remember("A, said otherwise", idempotency_key="call 1", importance=1.0)
    assert again == first
    assert contents(ops.list()) == ["A"]


def test_a_retry_returns_the_first_record_as_it_was_made_also_after_changes(ops):
    first = ops.remember("A", kind="semantic", key="k", idempotency_key="call 1")
    ops.update(first.id, content="B")
    again = ops.remember("A", kind="semantic", key="k", idempotency_key="call 1")
    assert (again.id, again.version, again.content, again.superseded_at) == (first.id, 1, "A", T)
    assert [r.idempotency_key for r in ops.history("k")] == ["call 1", None]
    assert contents(ops.list()) == ["B"]


def test_a_retry_of_an_explicit_id_is_a_retry(ops):
    first = ops.remember("A", id=ID, idempotency_key="call 1")
    assert ops.remember("A", id=ID, idempotency_key="call 1") == first
    assert ops.remember_many([{"content": "A", "id": ID, "idempotency_key": "call 1"}]) == [ID]


def test_a_retry_within_one_batch(ops):
    ids = ops.remember_many(
        [
            {"content": "A", "idempotency_key": "1"},
            {"content": "B", "idempotency_key": "2"},
            {"content": "A", "idempotency_key": "1"},
            {"content": "C"},
        ]
    )
    assert ids[0] == ids[2]
    assert len(set(ids)) == 3
    assert contents(ops.list()) == ["A", "B", "C"]
    again = ops.remember_many([{"content": "new"}, {"content": "B", "idempotency_key": "2"}])
    assert again[1] == ids[1]
    assert contents(ops.list()) == ["A", "B", "C", "new"]


def test_a_retry_after_the_memory_was_forgotten_is_a_new_memory(ops):
    ops.remember("another, that keeps the scope in being")
    first = ops.remember("A", idempotency_key="call 1")
    ops.forget(first.id)
    again = ops.remember("A", idempotency_key="call 1")
    assert again.id != first.id
    assert ops.remember("A", idempotency_key="call 1").id == again.id


@pytest.mark.parametrize("format", ["json", "jsonl", "parquet"])
def test_a_retry_after_the_store_was_moved_is_a_retry(ops, mem, tmp_path, format):
    first = ops.remember("A", idempotency_key="call 1")
    ops.update(first.id, content="B")
    mem.export(tmp_path / "x", format)
    other = memcore.open(embedder=None)
    other.import_(tmp_path / "x", format)
    again = other.scope("acme", "billing", "s1", "triage").remember("A", idempotency_key="call 1")
    assert (again.id, again.version, again.content) == (first.id, 1, "A")


# Ids of the caller's own


def test_an_explicit_id_is_used_once(ops):
    ops.remember("A", id=ID)
    with pytest.raises(memcore.InvalidInput) as raised:
        ops.remember("B", id=ID)
    assert str(raised.value) == (f"id {ID} is in use here; ids are unique: update it, or leave id out for a new memory")
    with pytest.raises(memcore.InvalidInput, match="is in use here"):
        ops.remember_many([{"content": "B", "id": OTHER}, {"content": "C", "id": OTHER}])
    assert contents(ops.list()) == ["A"]


def test_an_id_counts_within_its_scope(mem):
    """Else an error would tell one tenant what another one has."""
    mem.scope("a").remember("A", id=ID)
    mem.scope("b").remember("B", id=ID)
    assert mem.scope("a").get(ID).content == "A"
    assert mem.scope("b").get(ID).content == "B"
    mem.scope("a").forget(ID)
    assert mem.scope("b").get(ID).content == "B"


def test_an_explicit_id_and_a_key_must_mean_the_same_memory(ops):
    first = ops.remember("A", kind="semantic", key="k", id=ID)
    assert ops.remember("B", kind="semantic", key="k", id=ID).version == 2
    with pytest.raises(memcore.InvalidInput) as raised:
        ops.remember("C", kind="semantic", key="k", id=OTHER)
    assert str(raised.value) == (
        f"id is {OTHER} and the key 'k' names the memory {ID}; a key names one memory: leave id out to make its next "
        "version, or use another key"
    )
    assert [(r.id, r.content) for r in ops.list()] == [(first.id, "B")]


def test_case_C5_a_forgotten_id_can_be_used_again(tmp_path):
    path = tmp_path / "store"
    with memcore.open(path, embedder=None) as mem:
        mem.remember("old plan", id=ID, vector=[1.0, 0.0])
        mem.forget(ID)
        assert mem.get(ID) is None
        assert mem.remember("new plan", id=ID, vector=[0.0, 1.0]).version == 1
        assert [(h.id, h.content) for h in mem.recall(vector=[0.0, 1.0])] == [(ID, "new plan")]
    with memcore.open(path, embedder=None) as mem:
        assert [(h.id, h.content) for h in mem.recall(vector=[0.0, 1.0])] == [(ID, "new plan")]
        assert contents(mem.history(id=ID)) == ["new plan"]


# Threads


def test_case_F9_any_thread_may_call(tmp_path):
    """Opened in one thread, used in eight, closed in another."""
    path = tmp_path / "store"
    mem = memcore.open(path, embedder="hashed")
    forgotten: list[str] = []

    def work(worker: int) -> None:
        ops = mem.scope("t", "p", f"s{worker}")
        for i in range(20):
            ops.remember(f"worker {worker} row {i}")
            assert ops.recall(f"worker {worker}", k=1)
            ops.forget(ops.remember("soon gone").id)
        forgotten.append(f"s{worker}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(forgotten) == 8
    closer = threading.Thread(target=mem.close)
    closer.start()
    closer.join()
    with pytest.raises(memcore.StoreClosed):
        mem.remember("x")
    with memcore.open(path, embedder="hashed") as mem:
        assert Counter(r.session_id for r in mem.scope("t", "p").list()) == {f"s{w}": 20 for w in range(8)}
        assert [r.seq for r in mem.scope("t", "p").list()] == sorted({r.seq for r in mem.scope("t", "p").list()})


def test_threads_that_upsert_one_key_make_one_memory():
    mem = memcore.open(embedder=None)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            ids = list(pool.map(lambda i: mem.remember(str(i), kind="semantic", key="k").id, range(200)))
            retried = list(pool.map(lambda i: mem.remember(str(i), idempotency_key="once").id, range(100)))
    finally:
        sys.setswitchinterval(interval)
    assert len(set(ids)) == 1
    assert [r.version for r in mem.history("k")] == list(range(1, 201))
    assert len(set(retried)) == 1
    assert len(mem.list()) == 2

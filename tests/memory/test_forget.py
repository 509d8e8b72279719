"""forget: by ids or by conditions that must all hold; what it reports; and that it frees the space."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import memcore

DAY = 86_400
NEVER = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture
def mem() -> memcore.Memory:
    return memcore.open(embedder=None, clock=lambda: 100 * DAY)


def contents(records: Any) -> list[str]:
    return [record.content for record in records]


def test_an_id_a_record_a_hit_or_many_of_them(mem):
    records = [mem.remember(str(i), vector=[1.0, i]) for i in range(8)]
    hit = next(h for h in mem.recall(k=8) if h.content == "3")
    assert mem.forget(records[0].id).ids == [records[0].id]
    assert mem.forget(records[1]).ids == [records[1].id]
    assert mem.forget(hit).ids == [records[3].id]
    assert mem.forget([records[2].id, records[4]]).count == 2
    assert mem.forget(r for r in records[5:7]).count == 2
    assert mem.forget([]).ids == []
    assert contents(mem.list()) == ["7"]


def test_missing_ids_are_told_and_the_others_forgotten(mem):
    one, two = mem.remember("1"), mem.remember("2")
    report = mem.forget([two.id, NEVER, one.id, NEVER, two.id])
    assert (report.ids, report.missing, report.dry_run) == ([one.id, two.id], [NEVER], False)
    assert len(report) == int(report) == report.count == 2
    assert mem.forget(one.id).missing == [one.id]


def test_all_versions_go(mem):
    first = mem.remember("A", kind="semantic", key="k")
    mem.remember("B", kind="semantic", key="k")
    mem.forget(first.id)
    assert len(mem.history(id=first.id)) == len(mem.history("k")) == 0
    assert mem.stats()["versions"] == 0
    assert mem.get(key="k") is None


def test_conditions_must_all_hold(mem):
    for i in range(12):
        mem.remember(
            str(i), kind=("episodic", "semantic")[i % 2], event_time=(100 - i) * DAY, metadata={"host": f"web{i % 3}"}
        )
    mem.recall(k=2, where={"metadata.host": "web0"}, kinds="episodic")  # 0 and 6
    asked = {"kinds": "episodic", "where": pc.field("metadata.host") == "web0", "older_than_days": 1, "max_access": 0}
    assert contents(mem.list(where={"metadata.host": "web0"}, kinds="episodic")) == ["0", "6"]
    assert mem.forget(**asked).ids == []
    asked["max_access"] = 1
    gone = mem.forget(**asked, dry_run=True)
    assert gone.dry_run
    assert [mem.get(id).content for id in gone.ids] == ["6"]
    assert len(mem.list()) == 12
    assert mem.forget(**{**asked, "max_access": None}).ids == gone.ids
    assert len(mem.list()) == 11


def test_older_than_days_is_about_the_event_and_exact(mem):
    for age in (10 * DAY - 1e-6, 10 * DAY, 10 * DAY + 1e-6):
        mem.remember(str(age), event_time=100 * DAY - age, now=100 * DAY)
    assert mem.forget(older_than_days=10).count == 1
    assert len(mem.list()) == 2
    assert mem.forget(older_than_days=9.9999).count == 2
    mem.remember("now", event_time=100 * DAY)
    assert mem.forget(older_than_days=0).count == 0  # not older than now
    assert mem.forget(older_than_days=1e300).count == 0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"older_than_days": -1}, "older_than_days is -1; it must be at least 0"),
        ({"older_than_days": float("nan")}, "older_than_days is nan"),
        ({"max_access": -1}, "max_access is -1; it must be at least 0"),
        ({"max_access": 1.0}, "max_access is 1.0"),
        ({"kinds": "fact"}, "kind is 'fact'"),
        (
            {"ids": NEVER, "where": {"kind": "episodic"}},
            "forget got ids and where; pass ids alone, or conditions alone",
        ),
        ({"ids": NEVER, "everything": True}, "forget got ids and everything; pass ids alone, or conditions alone"),
        ({"ids": "the one about lunch"}, "id is 'the one about lunch'"),
        ({"ids": [NEVER, None]}, "id is None"),
        (
            {"where": {"metadata.user": None}},
            "where is {'metadata.user': None} (dict); None matches every memory that lacks the value, which may be all",
        ),
        (
            {"where": {"metadata.user": None, "key": None}, "kinds": "episodic"},
            "where is {'metadata.user': None, 'key': None} (dict); None matches every memory that lacks the value",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(mem, asked, message):
    mem.remember("x")
    with pytest.raises(memcore.InvalidInput) as raised:
        mem.forget(**asked)
    assert str(raised.value).startswith(message)
    assert len(mem.list()) == 1


def test_everything_with_a_condition_is_the_condition(mem):
    mem.remember_many([{"content": "a", "kind": "semantic"}, {"content": "b"}])
    assert mem.forget(everything=True, kinds="semantic").count == 1
    assert contents(mem.list()) == ["b"]


def test_none_never_means_all_unless_it_is_said(mem):
    mem.remember_many([{"content": "a"}, {"content": "b", "metadata": {"user": "u"}}, {"content": "c"}])
    assert mem.forget(where={"metadata.user": None, "kind": "episodic"}, dry_run=True).count == 2
    assert mem.forget(where=pc.field("metadata.user").is_null(), dry_run=True).count == 2
    with pytest.raises(
        memcore.InvalidInput, match=r"all: pass everything=True with it if that is meant, or name a value$"
    ):
        mem.forget(where={"metadata.user": None})
    assert mem.forget(where={"metadata.user": None}, everything=True).count == 2
    assert contents(mem.list()) == ["b"]


# Whose memory it is


@pytest.fixture(params=["ram", "directory"])
def either(request, tmp_path):
    path = None if request.param == "ram" else tmp_path / "agent.mem"
    with memcore.open(path, embedder=None, clock=lambda: 100 * DAY) as mem:
        yield mem


@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("narrow", ["session_id", "agent_role"])
def test_a_memory_that_another_session_has_rewritten_stays_and_is_told(either, erase, narrow):
    """A session must not forget what another one knows; nor think that it has."""
    first, second = (either.scope(**{narrow: name}) for name in ("first", "second"))
    shared = first.remember("A", kind="semantic", key="k")
    second.remember("B", kind="semantic", key="k")
    theirs, own = second.remember("theirs"), first.remember("own")
    assert contents(first.history(id=shared)) == ["A"]
    for dry_run in (True, False):
        report = first.forget([shared, theirs, own, NEVER], erase=erase, dry_run=dry_run)
        assert report.ids == [own.id]
        assert (report.missing, report.elsewhere) == ([theirs.id, NEVER], [shared.id])
    assert contents(either.history("k")) == ["A", "B"]
    assert first.forget(everything=True).ids == first.forget(kinds="semantic").ids == []
    report = second.forget(shared, erase=erase)
    assert (report.ids, report.missing, report.elsewhere) == ([shared.id], [], [])
    assert contents(first.history(id=shared)) == []
    report = first.forget(shared)
    assert (report.missing, report.elsewhere) == ([shared.id], [])


def test_a_memory_in_the_cold_tier_that_another_session_has_rewritten(either):
    first, second = either.scope(session_id="first"), either.scope(session_id="second")
    id = first.remember("A", importance=0.1, event_time=0).id
    either.scope(session_id="second").remember("other", kind="semantic")
    either.update(id, content="B")
    either.prune()
    assert second.forget(id).missing == [id]
    assert first.forget(id).ids == [id]


@pytest.mark.parametrize("cold", [False, True])
def test_a_memory_is_restored_with_all_versions_by_the_session_of_the_last(either, cold):
    first, second = either.scope(session_id="first"), either.scope(session_id="second")
    kind = "episodic" if cold else "semantic"
    id = first.remember("A", kind=kind, key="k", importance=0.1, event_time=0).id
    if cold:
        either.update(id, content="B")
        either.prune()
        first, second = second, first
    else:
        second.remember("B", kind=kind, key="k", importance=0.1)
    either.forget(id)
    report = first.restore(id)
    assert (report.ids, report.missing) == ([], [id])
    assert contents(either.history(id=id)) == []
    assert contents(either.forgotten()) == contents(second.forgotten()) == ["B"]
    assert second.restore(id).ids == [id]
    assert contents(either.history(id=id)) == ["A", "B"]
    assert contents(either.list()) == ["B"]
    assert either.verify().problems == []


# A key that is free again


def test_an_idempotency_key_is_free_once_its_memory_is_forgotten(either):
    first = either.remember("A", idempotency_key="call 1")
    either.forget(first)
    second = either.remember("B", idempotency_key="call 1")
    assert second.id != first.id
    assert either.remember("C", idempotency_key="call 1") == second
    assert either.remember("other", idempotency_key="call 2").content == "other"


@pytest.mark.parametrize("rival", ["hot", "cold"])
@pytest.mark.parametrize("gone", ["hot", "cold"])
def test_one_idempotency_key_never_answers_with_two_memories(either, gone, rival):
    def remembered(text: str, tier: str) -> str:
        id = either.remember(text, idempotency_key="call 1", importance=0.1, event_time=0).id
        if tier == "cold":
            assert either.prune().ids == [id]
        return id

    first = remembered("A", gone)
    either.forget(first)
    second = remembered("B", rival)
    report = either.restore(first)
    assert (report.ids, report.missing, report.in_use) == ([], [], [first])
    either.forget(second)
    report = either.restore([first, second])  # the first that comes back has it
    assert len(report.ids) == len(report.in_use) == 1
    assert {*report.ids, *report.in_use} == {first, second}
    assert either.remember("C", idempotency_key="call 1").id == report.ids[0]
    assert len(either.list(tiers=("hot", "cold"))) == 1


def test_an_idempotency_key_counts_within_a_session_and_role_when_it_is_restored(either):
    one, two = either.scope(session_id="1"), either.scope(session_id="2")
    first = one.remember("A", idempotency_key="call 1")
    either.forget(first)
    two.remember("B", idempotency_key="call 1")
    assert either.restore(first).ids == [first.id]


def test_a_pruned_memory_with_an_idempotency_key_comes_back(either):
    id = either.remember("A", idempotency_key="call 1", importance=0.1, event_time=0).id
    assert either.restore(either.prune()).ids == [id]
    assert either.remember("A", idempotency_key="call 1").id == id


def test_what_has_expired_can_be_forgotten(mem):
    record = mem.remember("secret", expires_at=1, now=0)
    assert len(mem.list()) == 0
    assert mem.forget(record.id).ids == [record.id]
    assert mem.stats()["versions"] == 0


def test_what_fell_out_of_the_working_memory_can_be_forgotten(mem):
    mem = memcore.open(embedder=None, working_capacity=2)
    chat = mem.working()
    records = [chat.add("user", f"secret {i}") for i in range(5)]
    assert mem.forget(records[0].id).ids == [records[0].id]
    (partition,) = mem._engine.catalog.partitions.values()
    assert sum(map(len, partition.fallen.values())) == 2
    assert mem.forget(everything=True).count == 4
    assert chat.end() == []
    assert mem.stats()["versions"] == 0


def test_a_condition_that_reads_metadata_sees_what_was_written_meanwhile(mem, monkeypatch):
    """It is evaluated before the lock is taken, and again under it if something was committed in between."""
    written = memcore.store.catalog.Catalog.as_written
    mem.remember("1", metadata={"host": "web01"})
    real = memcore.store.catalog.Catalog.whole
    calls: list[int] = []

    def whole(self: Any, scope: Any) -> Any:
        found = real(self, scope)
        calls.append(found.seq)
        if len(calls) == 1:
            mem.remember("2", metadata={"host": "web01"})
        return found

    def as_written(self: Any, scope: Any, partition: Any) -> Any:
        found = written(self, scope, partition)
        calls.append(found.seq)
        return found

    monkeypatch.setattr(memcore.store.catalog.Catalog, "whole", whole)
    monkeypatch.setattr(memcore.store.catalog.Catalog, "as_written", as_written)
    assert mem.forget(where={"metadata.host": "web01"}).count == 2
    assert calls == [1, 2]


# Space


def test_case_C3_adding_and_forgetting_stays_within_bounds(mem):
    """Each cycle adds and forgets 200 rows; whole and, but for a few, in pieces."""
    sizes, segments = [], []
    for cycle in range(20):
        ids = mem.remember_many([{"content": f"{cycle} {i}", "vector": np.eye(64)[i % 64]} for i in range(200)])
        if cycle % 2:
            mem.forget(everything=True)
        else:
            for i in range(0, 198, 3):
                mem.forget(ids[i : i + 3])
        mem.compact()
        sizes.append(mem.stats()["bytes_in_memory"])
        segments.append(sum(len(p.segments) for p in mem._engine.catalog.partitions.values()))
    assert max(sizes) < 5_000
    assert max(segments) <= 1


def test_a_hundred_thousand_rows_that_come_and_go():
    """Ten thousand at a time, of which one in a hundred stays."""
    mem = memcore.open(embedder=None)
    table = pa.table(
        {
            "content": [f"row {i}" for i in range(10_000)],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.ones(160_000, np.float32)), 16),
            "key": [f"key {i}" if i % 100 == 0 else None for i in range(10_000)],
        }
    )
    for cycle in range(10):
        mem.remember_many(table)
        assert mem.forget(where=pc.field("key").is_null()).count == 9_900
        assert mem.compact().dropped == 9_900
        stats = mem.stats()
        assert stats["memories"] == 100 * (cycle + 1)
        assert stats["bytes_in_memory"] < 600 * stats["memories"]
        assert sum(len(p.segments) for p in mem._engine.catalog.partitions.values()) <= 2
    assert mem.forget(everything=True).count == 1000
    assert mem.compact().bytes_after < 1000
    (partition,) = mem._engine.catalog.partitions.values()
    assert (partition.segments, partition.held, partition.fallen) == ((), {}, {})


def test_many_ids_are_forgotten_in_one_pass(mem):
    ids = mem.remember_many([str(i) for i in range(70_000)])
    assert mem.forget(ids[::2]).count == 35_000
    assert contents(mem.list()) == [str(i) for i in range(1, 70_000, 2)]
    assert mem.forget(ids).missing == ids[::2]


# Cases


def test_case_B9_k_rows_come_back_whenever_k_match(mem):
    rng = np.random.default_rng(0)
    far = -np.eye(8)[0]
    big = [
        {"content": "big", "vector": np.eye(8)[0] + rng.normal(0, 0.01, 8), "metadata": {"of": "big"}}
        for _ in range(2000)
    ]
    tiny = [
        {"content": f"tiny {i}", "vector": far + rng.normal(0, 0.01, 8), "metadata": {"of": "tiny"}} for i in range(10)
    ]
    mem.remember_many(big[:1000] + tiny + big[1000:])
    mem.scope("big").remember_many(big)
    mem.scope("tiny").remember_many(tiny)
    alone = [hit.content for hit in mem.scope("tiny").recall(vector=np.eye(8)[0], k=5)]
    assert len(alone) == 5
    for condition in ({"metadata.of": "tiny"}, pc.field("content") != "big"):
        hits = mem.recall(vector=np.eye(8)[0], k=5, where=condition)
        assert [hit.content for hit in hits] == alone
        assert len(mem.recall(vector=np.eye(8)[0], k=50, where=condition)) == 10


def test_case_B11_no_row_is_made_up(mem):
    assert len(mem.recall(vector=[1.0, 0.0], k=5)) == 0
    ids = mem.remember_many([{"content": str(i), "vector": [1.0, i]} for i in range(3)])
    hits = mem.recall(vector=[1.0, 0.0], k=10)
    assert sorted(hits.ids) == sorted(ids)
    assert all(abs(hit.total_score) <= 1 for hit in hits)
    assert [sorted(h.ids) for h in mem.recall_many(vectors=[[1.0, 0.0], [0.0, 1.0]], k=10)] == [sorted(ids)] * 2
    mem.forget(everything=True)
    assert len(mem.recall(vector=[1.0, 0.0], k=5)) == 0


@pytest.mark.parametrize("k", [-1, None, True, 2.0, "3"], ids=repr)
def test_case_B15_a_limit_is_a_whole_number_from_zero(mem, k):
    mem.remember_many(["1", "2", "3", "4"])
    calls = [lambda: mem.recall(k=k), lambda: mem.recall_many(vectors=[[1.0]], k=k), lambda: mem.list(offset=k)]
    if k is not None:  # no limit
        calls.append(lambda: mem.list(limit=k))
    for call in calls:
        with pytest.raises(memcore.InvalidInput, match=r"^(k|limit|offset) is"):
            call()


def test_case_B15_zero_one_and_more_than_there_are(mem):
    mem.remember_many(["1", "2", "3", "4"])
    for limit, expected in ((0, 0), (1, 1), (10**9, 4)):
        assert len(mem.recall(k=limit)) == len(mem.list(limit=limit)) == expected
    assert contents(mem.list(limit=2, offset=1)) == ["2", "3"]
    assert contents(mem.list(offset=9)) == []

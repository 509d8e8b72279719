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

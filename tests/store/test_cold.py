"""The cold tier: what moves there is found there, whole and exactly; how its files are written, swept and read."""

from __future__ import annotations

import signal
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcore
import naive
from drawn import thorough
from memcore.store import cold, segment
from memcore.store.catalog import Catalog
from memcore.store.cold import Folder, folder_of, tenant_of
from running import held, run

DAY = 86_400
NOW = 1_800_000_000  # 2027-01-15
BOTH = ("hot", "cold")


@pytest.fixture(params=["in RAM", "in a directory"])
def mem(request, tmp_path):
    path = None if request.param == "in RAM" else tmp_path / "m"
    with memcore.open(path, embedder=None, clock=lambda: NOW) as opened:
        yield opened


@pytest.fixture
def store(tmp_path):
    return tmp_path / "m"


def opened(path: Path | None) -> memcore.Memory:
    return memcore.open(path, embedder=None, clock=lambda: NOW)


def vector(rng: np.random.Generator) -> np.ndarray:
    return naive.unit(rng.standard_normal(8))


def fill(ops: memcore.Scope, n: int = 60, start: int = 0) -> list[str]:
    """Events of 200 days, four in ten of low importance; every seventh has a second version, every ninth no vector."""
    rng = np.random.default_rng(n + start)
    rows = [
        {
            "content": f"event {i}",
            "importance": (i % 10) / 10 if i % 10 > 5 else 0.1 * (i % 5),
            "event_time": NOW - int(rng.integers(0, 200 * DAY)),
            "vector": None if i % 9 == 0 else vector(rng),
            "metadata": {"n": i, "host": f"web{i % 3}"},
        }
        for i in range(start, start + n)
    ]
    ids = ops.remember_many(rows)
    for id in ids[::7]:
        record = ops.get(id)
        ops.update(id, metadata={**record.metadata, "again": True}, event_time=record.event_time.timestamp() - 40 * DAY)
    return list(ids)


def contents(records: Any) -> list[str]:
    return [record.content for record in records]


def by_id(records: Any) -> dict[str, Any]:
    return {record.id: record for record in records}


def without_seq(record: memcore.Record) -> dict[str, Any]:
    row = {name: getattr(record, name) for name in memcore.record_schema(None).names if name not in ("seq", "vector")}
    return {**row, "vector": None if record.vector is None else record.vector.tobytes()}


def everything(ops: memcore.Scope) -> list[dict[str, Any]]:
    """Every version of every memory, wherever it lies, but for the seqs."""
    rows = [r for record in ops.list(tiers=BOTH) for r in ops.history(id=record.id, tiers=BOTH)]
    return sorted(map(without_seq, rows), key=lambda row: (row["id"], row["version"]))


# What is where


def test_what_moved_is_in_the_cold_tier_and_nowhere_else(mem):
    ops = mem.scope("acme", "billing", "s", "triage")
    fill(ops)
    before, whole = by_id(ops.list()), everything(ops)
    report = ops.prune()
    assert 5 < report.count < 55
    hot, moved = by_id(ops.list()), by_id(ops.list(tiers="cold"))
    assert set(moved) == set(report.ids)
    assert {**hot, **moved} == before
    assert not set(hot) & set(moved)
    assert ops.list(tiers=BOTH).to_arrow() == pa.concat_tables(
        [ops.list().to_arrow(), ops.list(tiers="cold").to_arrow()]
    ).sort_by("seq")
    assert everything(ops) == whole
    for id in report.ids:
        assert ops.get(id) is None
        assert len(ops.history(id=id)) == 0
        assert ops.get(id, tiers=BOTH) == ops.get(id, tiers="cold") == before[id]
        assert not {hit.id for hit in ops.recall(k=100)} & set(report.ids)
    assert ops.get(next(iter(hot)), tiers="cold") is None
    assert mem.stats()["memories"] == len(hot)
    assert mem.scopes() == [("acme", "billing")]


def test_a_page_of_both_tiers_is_in_the_order_of_writing(mem):
    fill(mem)
    mem.prune()
    every = contents(mem.list(tiers=BOTH))
    assert contents(mem.list(tiers=BOTH, limit=7, offset=20)) == every[20:27]
    assert (
        contents(mem.list(tiers=BOTH, where={"metadata.host": "web1"}, limit=3))
        == [r.content for r in mem.list(tiers=BOTH) if r.metadata["host"] == "web1"][:3]
    )


@pytest.mark.parametrize("weights", [(0.5, 0.3, 0.2), (1, 0, 0), (0, 1, 0), (0.2, 0.2, 0.6)])
def test_recall_over_both_tiers_is_the_exact_one(mem, weights):
    ops = mem.scope("t", "p")
    fill(ops, 300)
    every = list(ops.list())
    ops.prune()
    assert 50 < mem.stats()["cold"]["memories"] < 250
    rng = np.random.default_rng(1)
    for tiers, records in ((BOTH, every), ("cold", list(ops.list(tiers="cold"))), ("hot", list(ops.list()))):
        queries = np.array([vector(rng) for _ in range(8)])
        asked = {"k": 12, "weights": weights, "tiers": tiers, "now": NOW}
        for query, many in zip(queries, ops.recall_many(vectors=queries, **asked), strict=True):
            wanted = naive.recall(records, query, k=12, now=NOW * 10**6, weights=weights)
            found = ops.recall(vector=query, **asked)
            assert found.ids == many.ids == [answer.id for answer in wanted]
            assert [hit.total_score for hit in found] == pytest.approx([answer.total_score for answer in wanted])
        wanted = naive.recall(
            records, None, k=5, now=NOW * 10**6, weights=weights, where=lambda r: r.metadata["host"] == "web2"
        )
        found = ops.recall(k=5, weights=weights, tiers=tiers, where={"metadata.host": "web2"})
        assert found.ids == [answer.id for answer in wanted]


def test_the_past_is_answered_from_both_tiers(mem):
    id = mem.remember("first", importance=0.1, event_time=0, now=100).id
    mem.update(id, content="second", now=200)
    mem.prune()
    assert mem.get(id, as_of=150, tiers=BOTH).content == "first"
    assert contents(mem.list(as_of=150, tiers=BOTH)) == ["first"]
    assert contents(mem.list(as_of=50, tiers=BOTH)) == []
    assert [hit.content for hit in mem.recall(as_of=250, tiers=BOTH)] == ["second"]
    mem.restore(id)
    assert mem.get(id, as_of=150).content == "first"
    assert contents(mem.list(as_of=150)) == ["first"]


def test_a_key_finds_its_history_over_several_months(mem):
    for i in range(6):
        mem.remember(f"{i}", key="k", importance=0.1, event_time=i * 40 * DAY)
    mem.prune()
    assert mem.get(key="k") is None
    assert mem.get(key="k", tiers=BOTH).content == "5"
    id = mem.get(key="k", tiers="cold").id
    for i in range(3):
        mem.restore(id)
        mem.update(id, event_time=(9 - i) * 40 * DAY)
        mem.prune()
    assert [r.version for r in mem.history("k", tiers=BOTH)] == [1, 2, 3, 4]


def test_the_hot_tier_is_recalled_without_the_cold_one(mem, monkeypatch):
    fill(mem)
    mem.prune()

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the cold tier was read")

    monkeypatch.setattr(Catalog, "whole", refused)
    monkeypatch.setattr(cold.Shelf, "segments", refused)
    mem.recall(k=3), mem.recall_many(vectors=np.eye(8, dtype=np.float32)), mem.list(), mem.get(key="k"), mem.stats()
    mem.remember("another")


def test_a_cold_hit_is_not_counted_as_accessed_and_a_hot_one_is(mem):
    mem.remember("cold", importance=0.0, event_time=0)
    mem.remember("hot")
    mem.prune()
    for _ in range(2):
        assert len(mem.recall(tiers=BOTH)) == 2
        mem.get(mem.list(tiers="cold")[0].id, tiers=BOTH)
    assert [r.access_count for r in mem.list(tiers=BOTH)] == [0, 2]


def test_access_counts_move_along(mem):
    id = mem.remember("one", importance=0.1, event_time=0).id
    for _ in range(3):
        mem.get(id)
    mem.prune()
    assert mem.get(id, tiers=BOTH).access_count == 3
    mem.restore(id)
    assert mem.list()[0].access_count == 3


def test_an_empty_cold_tier_is_searched(mem):
    mem.remember("one")
    assert contents(mem.list(tiers="cold")) == []
    assert contents(mem.recall(tiers="cold")) == []
    assert contents(mem.recall(tiers=BOTH)) == ["one"]
    assert contents(mem.scope("nobody", "here").list(tiers=BOTH)) == []


# Writing beside it


def test_a_retried_call_finds_what_it_wrote_in_the_cold_tier(mem):
    first = mem.remember("one", importance=0.1, event_time=0, idempotency_key="call-1")
    mem.prune()
    mem.compact()
    again = mem.remember("one", importance=0.1, event_time=0, idempotency_key="call-1")
    assert (again.id, again.content, again.version) == (first.id, "one", 1)
    assert len(mem.list(tiers=BOTH)) == 1
    assert mem.remember("other", idempotency_key="call-2").id != first.id


def test_an_id_in_the_cold_tier_is_in_use(mem):
    id = mem.remember("one", importance=0.1, event_time=0).id
    mem.prune()
    with pytest.raises(memcore.InvalidInput) as caught:
        mem.remember("two", id=id)
    assert str(caught.value) == (f"id {id} is in use here; ids are unique: update it, or leave id out for a new memory")


def test_an_export_has_both_tiers_and_comes_back_hot(mem, tmp_path):
    ops = mem.scope("t", "p")
    fill(ops)
    ops.prune()
    whole = everything(ops)
    assert mem.export(tmp_path / "all.jsonl") == ops.export(tmp_path / "one.parquet") == len(whole)
    for name in ("all.jsonl", "one.parquet"):
        with opened(None) as other:
            assert other.import_(tmp_path / name).new == len(whole)
            assert len(other.scope("t", "p").list()) == 60
            assert other.stats()["cold"] == {"memories": 0, "files": 0, "bytes": 0}
            assert everything(other.scope("t", "p")) == whole
    assert mem.import_(tmp_path / "all.jsonl").new == 0
    assert everything(ops) == whole


# Coming back, and going


def test_restore_brings_it_back_as_it_was(mem):
    ops = mem.scope("t", "p")
    fill(ops)
    whole, hot = everything(ops), len(ops.list())
    report = ops.prune()
    mem.compact()
    back = ops.restore(report.ids[:3])
    assert (back.ids, back.missing, back.in_use) == (report.ids[:3], [], [])
    assert {r.id for r in ops.list()[-3:]} == set(report.ids[:3])
    assert everything(ops) == whole
    mem.compact()
    assert ops.restore(report).missing == report.ids[:3]
    assert everything(ops) == whole
    assert len(ops.list()) == hot
    mem.compact()
    assert mem.stats()["cold"] == {"memories": 0, "files": 0, "bytes": 0}
    assert everything(ops) == whole
    assert ops.prune().ids == sorted(report.ids, key=[r.id for r in ops.list(tiers=BOTH)].index)


def test_a_scope_restores_only_what_it_sees(mem):
    id = mem.scope("t", "p", "s1").remember("one", importance=0.1, event_time=0).id
    mem.scope("t", "p").prune()
    assert mem.scope("t", "p", "s2").restore(id).missing == [id]
    assert mem.scope("t", "q").restore(id).missing == [id]
    assert mem.scope("t", "p", "s1").restore(id).ids == [id]


def test_a_cold_memory_is_forgotten_and_restored_to_the_hot_tier(mem):
    ops = mem.scope("t", "p")
    ids = fill(ops)
    moved = ops.prune().ids
    whole = everything(ops)
    assert ops.forget([*moved[:2], ids[6]]).count == 3
    assert len(ops.list(tiers=BOTH)) == 57
    assert ops.get(moved[0], tiers=BOTH) is None
    assert len(ops.history(id=moved[0], tiers=BOTH)) == 0
    assert mem.stats()["cold"]["memories"] == len(moved) - 2
    assert {r.id for r in ops.forgotten()} == {*moved[:2], ids[6]}
    assert set(ops.restore([*moved[:2], ids[6]]).ids) == {*moved[:2], ids[6]}
    assert everything(ops) == whole
    assert {r.id for r in ops.list(tiers="cold")} == set(moved[2:])
    assert len(ops.forgotten()) == 0


def test_forget_by_conditions_reaches_both_tiers(mem):
    ops = mem.scope("t", "p")
    fill(ops)
    ops.prune()
    wanted = [r.id for r in ops.list(tiers=BOTH) if r.metadata["host"] == "web0"]
    assert sorted(ops.forget(where={"metadata.host": "web0"}, dry_run=True).ids) == sorted(wanted)
    assert sorted(ops.forget(where={"metadata.host": "web0"}).ids) == sorted(wanted)
    assert not {r.id for r in ops.list(tiers=BOTH)} & set(wanted)
    ops.forget(everything=True)
    assert len(ops.list(tiers=BOTH)) == 0
    assert mem.scopes() == []


def test_what_is_erased_in_the_cold_tier_is_not_restored(mem):
    ids = [mem.remember(text, importance=0.1, event_time=0).id for text in ("plain", "erased", "both")]
    mem.prune()
    mem.forget([ids[0], ids[2]])
    assert mem.forget(ids[1:], erase=True).count == 2
    assert contents(mem.forgotten()) == ["plain"]
    assert mem.restore(ids).ids == [ids[0]]
    assert contents(mem.list(tiers=BOTH)) == ["plain"]


def test_compact_ends_what_was_forgotten(mem):
    ids = [mem.remember(text, importance=0.1, event_time=0).id for text in ("one", "two")]
    mem.prune()
    mem.forget(ids[0])
    mem.compact()
    assert mem.restore(ids[0]).missing == [ids[0]]
    assert contents(mem.list(tiers=BOTH)) == ["two"]
    assert mem.stats()["cold"]["memories"] == 1
    assert mem.stats()["cold"]["files"] == 1


def test_an_id_that_is_in_use_again_is_not_brought_back(mem, tmp_path):
    id = mem.remember("old", importance=0.1, event_time=0).id
    mem.prune()
    mem.forget(id)
    mem.remember("new", id=id)
    assert mem.restore(id).in_use == [id]
    assert contents(mem.list(tiers=BOTH)) == ["new"]


@pytest.mark.parametrize("left", ["with its copy", "alone"])
@pytest.mark.parametrize("forgotten", [False, True])
def test_of_the_memories_that_an_id_has_had_the_last_comes_back_from_the_cold_tier(mem, forgotten, left):
    """The first one was forgotten, and still lies in the hot tier, with or without what the last one has left there."""
    id = mem.remember("first", key="a", kind="semantic").id
    mem.forget(id)
    mem.remember("last", id=id, importance=0.1, event_time=0)
    moved = mem.prune()
    assert moved.ids == [id]
    if forgotten:
        mem.forget(id)
    if left == "alone":
        mem.scope("other").remember("later")  # whose commit sweeps a store in RAM
        if mem._engine.directory is not None:
            work = mem._engine.directory.maintenance
            work.seal_all()
            with work.alone():
                work._drop(work._given_up(0))
    report = mem.restore(id if forgotten else moved)
    assert (report.ids, report.in_use, report.missing) == ([id], [], [])
    assert contents(mem.list()) == ["last"]
    assert contents(mem.list(tiers="cold")) == []


def test_a_store_in_RAM_frees_what_has_left_the_cold_tier():
    with opened(None) as mem:
        for i in range(8):
            mem.remember(f"{i}", importance=0.1, event_time=0)
        ids = mem.prune().ids
        place = mem._engine.catalog.place
        (first,) = place.names()
        mem.restore(ids[0])
        assert place.names() == [first]  # one of eight rows is no quarter
        mem.restore(ids[1])
        (second,) = place.names()
        assert second != first
        assert place.read(second).num_rows == 6
        mem.restore(ids)
        assert place.names() == []
        assert len(mem.list()) == 8


def test_a_sweep_looks_only_when_more_may_go(monkeypatch):
    """A write in RAM doesn't read every row's mark because something was erased before."""
    with opened(None) as mem:
        ids = fill(mem)
        mem.forget(ids[0], erase=True)
        looked = []
        from memcore.store.partition import Partition

        sweep = Partition.sweep
        monkeypatch.setattr(Partition, "sweep", lambda *a: looked.append(1) or sweep(*a))
        mem.remember("another")
        assert looked == []
        mem.forget(ids[1], erase=True)
        assert looked == [1]


# Any calls


@pytest.mark.parametrize("seed", range(3))
def test_any_calls_leave_what_a_store_without_a_cold_tier_holds(mem, monkeypatch, seed):
    """The same calls on two stores, of which one moves memories out and back in between."""
    monkeypatch.setattr(segment, "ROWS", 32)
    rng = np.random.default_rng(seed)
    maker = uuid.UUID(int=(0x7000 << 64) | (1 << 127) | (0b10 << 62))
    with opened(None) as plain_store:
        tiered, plain = mem.scope("t", "p"), plain_store.scope("t", "p")
        ids: list[str] = []
        moves = 0
        for turn in range(150):
            chosen = [ids[i] for i in rng.integers(0, len(ids), 3)] if ids else []
            match rng.integers(0, 11):
                case 0 | 1 | 2 | 3:
                    ids.append(str(uuid.UUID(int=maker.int + turn)))
                    row = {
                        "id": ids[-1],
                        "importance": float(rng.integers(0, 10)) / 10,
                        "event_time": NOW - int(rng.integers(0, 90 * DAY)),
                        "vector": vector(rng),
                        "now": NOW + turn,
                    }
                    for ops in (tiered, plain):
                        ops.remember(f"event {turn}", **row)
                case 4 if chosen:
                    tiered.restore(chosen[0])  # it may lie there
                    plain.restore(chosen[0])
                    if plain.get(chosen[0]) is not None:
                        for ops in (tiered, plain):
                            ops.update(chosen[0], content=f"update {turn}", now=NOW + turn)
                case 5:
                    assert sorted(tiered.forget(chosen).ids) == sorted(plain.forget(chosen).ids)
                case 6:
                    back = set(plain.restore(chosen).ids)
                    assert back <= set(tiered.restore(chosen).ids)
                case 7:
                    moves += tiered.prune(importance_below=0.6, recency_below=0.5).count
                case 8:
                    tiered.restore(chosen)
                    plain.restore(chosen)
                case 10 if chosen and plain.get(chosen[0]) is None:
                    row = {"id": chosen[0], "importance": 0.1, "event_time": NOW - 80 * DAY, "vector": vector(rng)}
                    for ops in (tiered, plain):
                        ops.remember(f"again {turn}", **row)
                case 9 if turn % 3 == 0:
                    for store in (mem, plain_store):
                        store.compact()
            if turn % 25 == 24:
                assert uncounted(tiered) == uncounted(plain)
                query = vector(rng)
                found = [hit.id for hit in tiered.recall(vector=query, k=9, tiers=BOTH, now=NOW)]
                assert found == plain.recall(vector=query, k=9, now=NOW).ids
                assert sorted(r.id for r in tiered.forgotten()) == sorted(r.id for r in plain.forgotten())
        assert moves > 20


def uncounted(ops: memcore.Scope) -> list[dict[str, Any]]:
    return [{n: v for n, v in row.items() if n not in ("access_count", "last_access")} for row in everything(ops)]


# Files


def test_files_lie_by_tenant_and_month_and_any_reader_of_parquet_reads_them(store):
    with opened(store) as mem:
        for tenant in ("acme", "a/b ü"):
            ops = mem.scope(tenant, "p", "s")
            for month in range(1, 4):
                for day in (1, 28):
                    ops.remember(f"{month}-{day}", importance=0, event_time=(month * 31 + day) * DAY, vector=[1, 0])
            ops.prune()
        found = sorted(path.parent.relative_to(store / "cold").as_posix() for path in store.glob("cold/**/*.parquet"))
        months = ("1970-02", "1970-03", "1970-04", "1970-05")
        assert found == sorted(f"tenant={t}/month={m}" for t in ("acme", "a%2Fb%20%C3%BC") for m in months)
        schema = memcore.record_schema(2)
        for path in store.glob("cold/**/*.parquet"):
            table = pq.ParquetFile(path).read()
            assert table.select(schema.names).schema.equals(schema)
            assert {tenant_of(path.relative_to(store / "cold").as_posix())} == set(table["tenant_id"].to_pylist())
        every = ds.dataset(store / "cold", partitioning="hive").to_table(filter=ds.field("tenant") == "acme")
        assert sorted(every["content"].to_pylist()) == sorted(contents(mem.scope("acme", "p").list(tiers="cold")))
        total = sum(path.stat().st_size for path in store.glob("cold/**/*.parquet"))
        assert mem.stats()["cold"] == {"memories": 12, "files": len(found), "bytes": total}


@thorough(300)
@given(tenant=st.text(min_size=1, max_size=512), month=st.dates())
def test_a_tenant_s_folder_tells_the_tenant(tenant, month):
    folder = folder_of(tenant, f"{month:%Y-%m}")
    assert tenant_of(f"{folder}/0123456789abcdef.parquet") == tenant_of(folder) == tenant
    assert folder.isascii()
    for piece in folder.split("/"):
        assert 0 < len(piece) <= 255
        assert piece not in (".", "..")
        assert "\0" not in piece
    assert len(folder) < 3000


@pytest.mark.parametrize("tenant", [".", "..", "~", "~x", "a=b", "month=2026-01", "x" * 512, "\U0001f600" * 512])
def test_odd_tenants(tenant, tmp_path):
    assert tenant_of(folder_of(tenant, "2026-01")) == tenant
    folder = tmp_path / folder_of(tenant, "2026-01")
    folder.mkdir(parents=True)
    assert tmp_path in folder.resolve().parents
    assert len(folder.resolve().relative_to(tmp_path).parts) == len(folder.relative_to(tmp_path).parts)


def test_a_month_of_many_rows_lies_in_several_files(mem, monkeypatch):
    monkeypatch.setattr(segment, "ROWS", 16)
    ops = mem.scope("t", "p")
    ops.remember_many([{"content": f"{i}", "importance": 0, "event_time": i} for i in range(40)])
    ops.prune()
    assert mem.stats()["cold"]["files"] == 3
    assert contents(ops.list(tiers="cold")) == [f"{i}" for i in range(40)]


def test_long_texts_are_cut_into_files_by_their_bytes(mem, monkeypatch):
    monkeypatch.setattr(segment, "TEXT_BYTES", 1000)
    ops = mem.scope("t", "p")
    ops.remember_many([{"content": f"{i} " + "ü" * 200, "importance": 0, "event_time": i} for i in range(7)])
    ops.remember("x" * 5000, importance=0, event_time=8)
    ops.prune()
    assert mem.stats()["cold"]["files"] == 5
    assert len(ops.list(tiers="cold")) == 8


def test_rows_that_had_no_vectors_then(mem):
    mem.remember("before", importance=0, event_time=0)
    mem.prune()
    mem.remember("after", vector=[1, 0, 0])
    assert [(h.content, h.semantic_similarity) for h in mem.recall(vector=[1, 0, 0], tiers=BOTH)] == [
        ("after", 1.0),
        ("before", 0.0),
    ]
    mem.restore(mem.list(tiers="cold")[0].id)
    assert [r.vector is None for r in mem.list()] == [False, True]


def test_vectors_of_another_embedder_are_left_out(mem):
    mem.remember("one", importance=0, event_time=0, vector=[1, 0, 0])
    mem.prune()
    catalog = mem._engine.catalog
    tier, shelf = catalog.partitions["default", "default"].cold, catalog._shelf
    for dim, fingerprint, has in ((3, None, True), (3, "another", False), (4, None, False), (3, None, True)):
        (made,) = shelf.segments(tier, dim, fingerprint, catalog._codes)
        columns = made.view().columns
        assert columns["has_vector"].tolist() == [has]
        assert columns["vector"].shape == (1, dim)
        assert columns["vector"].any() == has


def test_what_was_read_stays_in_ram_up_to_a_bound(store, monkeypatch):
    with opened(store) as mem:
        ops = mem.scope("t", "p")
        fill(ops, 200)
        ops.prune()
    read = []
    whole = Folder.read
    monkeypatch.setattr(Folder, "read", lambda self, *a: read.append(a[0]) or whole(self, *a))
    with opened(store) as mem:
        ops, files = mem.scope("t", "p"), mem.stats()["cold"]["files"]
        assert files > 3
        assert read == []
        first = ops.recall(tiers=BOTH, k=50).ids
        assert len(read) == files
        assert ops.recall(tiers=BOTH, k=50).ids == first
        moved = [r.id for r in ops.list(tiers="cold")]
        ops.forget(moved[:20])
        ops.restore(moved[:10])
        assert len(read) == files
        monkeypatch.setattr(cold, "HELD_BYTES", 1)
        assert sorted(r.id for r in ops.list(tiers="cold")) == sorted(moved[20:])
        ops.forget(moved[20])
        assert sorted(r.id for r in ops.list(tiers="cold")) == sorted(moved[21:])
        assert len(read) > files


# On disk


def test_it_is_there_after_reopening(store):
    with opened(store) as mem:
        ops = mem.scope("t", "p")
        fill(ops)
        moved = ops.prune().ids
        ops.forget(moved[0])
        ops.restore(moved[1])
        whole, stats = everything(ops), mem.stats()["cold"]
    with opened(store) as mem:
        ops = mem.scope("t", "p")
        assert everything(ops) == whole
        assert mem.stats()["cold"] == stats
        assert [r.id for r in ops.list(tiers="cold")] == [
            r for r in [r.id for r in ops.list(tiers=BOTH)] if r in moved[2:]
        ]
        assert ops.restore(moved[0]).ids == [moved[0]]


def test_sealing_and_compaction_drop_the_hot_copies(store):
    with opened(store) as mem:
        ops = mem.scope("t", "p")
        fill(ops)
        mem.compact()
        fill(ops, 30, start=100)
        whole = everything(ops)
        moved = ops.prune().count
        assert everything(ops) == whole
        versions = len(whole) - mem.stats()["versions"]
        assert versions > moved
        assert mem.compact().dropped == versions
        assert everything(ops) == whole
        assert mem.compact().dropped == 0
    with opened(store) as mem:
        assert everything(mem.scope("t", "p")) == whole


SCRIPT = """
import sys, memcore
mem = memcore.open(sys.argv[1], embedder=None, clock=lambda: 1_800_000_000)
ops = mem.scope("t", "p")
for line in sys.stdin:
    exec(line)
    print("done")
"""


def test_two_processes_see_each_other_s_moves(store):
    with opened(store) as mem:
        fill(mem.scope("t", "p"))  # and has all accesses on disk
    with opened(store) as mem:
        ops = mem.scope("t", "p")
        whole = everything(ops)
        assert len(ops.list(tiers="cold")) == 0
        with held(SCRIPT, store) as other:

            def there(line: str) -> None:
                other.child.stdin.write(line + "\n")
                other.child.stdin.flush()
                assert other.line() == "done"

            there("moved = ops.prune().ids")
            moved = contents(ops.list(tiers="cold"))
            assert len(moved) > 5
            assert everything(ops) == whole
            there("mem.compact()")
            assert everything(ops) == whole
            there("ops.restore(moved[:2])")
            assert contents(ops.list(tiers="cold")) == moved[2:]
            assert everything(ops) == whole
            last = ops.list(tiers="cold")[-1]
            ops.forget(last.id)
            there(f"assert ops.get({last.id!r}, tiers='cold') is None")
            there(f"assert ops.restore({last.id!r}).count == 1")
            assert ops.get(last.id).content == last.content
            there("ops.forget(moved[3], erase=True); mem.compact()")
            assert contents(ops.list(tiers="cold")) == [moved[2], *moved[4:-1]]
            assert mem.stats()["cold"]["memories"] == len(moved) - 4
            ops.prune(), mem.compact()
            there("assert ops.prune().count == 0")
            assert len(everything(ops)) < len(whole)


def test_files_that_another_process_swept_meanwhile_are_looked_for_again(store, monkeypatch):
    """The list of files is older than the files, between the two."""
    with opened(store) as mem:
        ops = mem.scope("t", "p")
        fill(ops)
        moved = ops.prune().ids
        ops.forget(moved[:3])
    with opened(store) as mem:
        ops = mem.scope("t", "p")
        whole = cold.Shelf.segments

        def late(*args: Any) -> Any:
            monkeypatch.setattr(cold.Shelf, "segments", whole)
            run(SCRIPT.replace("sys.stdin", "['mem.compact()']"), store)
            return whole(*args)

        monkeypatch.setattr(cold.Shelf, "segments", late)
        assert {r.id for r in ops.list(tiers="cold")} == set(moved[3:])
        assert cold.Shelf.segments is whole


def test_a_missing_or_damaged_cold_file_is_told_and_the_hot_tier_goes_on(store):
    with opened(store) as mem:
        mem.remember("cold", importance=0, event_time=0)
        mem.remember("hot")
        mem.prune()
    (path,) = store.glob("cold/**/*.parquet")
    held_bytes = path.read_bytes()
    for damage in (held_bytes[:-20], b"", bytes(len(held_bytes)), None):
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
        with opened(store) as mem:
            assert contents(mem.recall(kinds="episodic")) == ["hot"]
            assert contents(mem.list(kinds="episodic")) == ["hot"]
            with pytest.raises(memcore.StoreCorrupt) as caught:
                mem.recall(tiers=BOTH)
            told = str(caught.value)
            assert told.startswith(f"{path} is ")
            assert told.endswith("restore the store from an export. The hot memories are not touched by it")
            mem.remember("goes on", kind="semantic", key="k")
            with pytest.raises(memcore.StoreCorrupt):
                mem.forget(everything=True)
            with pytest.raises(memcore.StoreCorrupt):
                mem.forget(mem.get(key="k").id, erase=True)
            assert mem.forget(mem.get(key="k").id).count == 1
            mem.remember("goes on", kind="semantic", key="k")
            mem.update(mem.get(key="k").id, content="goes on further")
        path.write_bytes(held_bytes)
    flipped = bytearray(held_bytes)
    flipped[len(held_bytes) // 3] ^= 1
    path.write_bytes(flipped)
    with opened(store) as mem, pytest.raises(memcore.StoreCorrupt, match="is not a whole cold file"):
        mem.list(tiers="cold")
    path.write_bytes(held_bytes)
    with opened(store) as mem:
        assert contents(mem.list(tiers="cold")) == ["cold"]


def texts_in(store: Path) -> str:
    """All that is in the files of a store: their bytes, and what the compressed ones hold."""
    raw = b"".join(path.read_bytes() for path in store.rglob("*") if path.is_file())
    tables = [str(pq.ParquetFile(path).read().to_pylist()) for path in store.glob("cold/**/*.parquet")]
    return "".join([raw.decode("latin-1"), *tables])


@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("when", ["before it moves", "after", "alone in its file"])
def test_case_C1_no_byte_of_a_forgotten_cold_memory_is_left(store, erase, when):
    with opened(store) as mem:
        ops = mem.scope("t", "p")
        fill(ops)
        id = ops.remember("pin code is ZEBRA-77", importance=0, event_time=0 if "alone" in when else NOW - 60 * DAY).id
        ops.update(id, content="pin code was ZEBRA-77", metadata={"pin": "ZEBRA-77"})
        if when == "before it moves":
            ops.forget(id, erase=erase)
            ops.prune()
        else:
            ops.prune()
            assert "ZEBRA-77" in texts_in(store)
            ops.forget(id, erase=erase)
        whole = everything(ops)
        mem.compact()
        assert "ZEBRA-77" not in texts_in(store)
        assert everything(ops) == whole
    assert "ZEBRA-77" not in texts_in(store)
    if "alone" in when:
        assert not list(store.glob("cold/*/month=1970-01"))


# Crashes

KILLED = """
import os, signal, sys, memcore
from memcore import engine
from memcore.store import cold, commits, maintenance
point, place = sys.argv[2], int(sys.argv[3])
mem = memcore.open(sys.argv[1], embedder=None, clock=lambda: 1_800_000_000)
ops = mem.scope("t", "p")
ids = [r.id for r in ops.list(tiers="cold")]
count = 0
def step(name):
    global count
    count += name == point
    if name == point and count > place:
        os.kill(os.getpid(), signal.SIGKILL)
for module in (engine, cold, commits, maintenance):
    module.step = step
if point.startswith("restore:"):
    point = point[8:]
    ops.restore(ids[:5])
elif "swept" in point:
    ops.forget(ids[:9])
    mem.compact()
else:
    ops.prune()
"""
POINTS = [
    ("before a cold file is written", 0),
    ("before a cold file is written", 2),
    ("before a cold file is named", 0),
    ("before a commit", 0),
    ("after a commit", 0),
    ("after a cold file is named", 0),
    ("restore:before a commit", 0),
    ("restore:after a commit", 0),
    ("before a swept cold file is named", 0),
    ("before a swept cold file is named", 1),
    ("after a swept cold file is named", 0),
    ("after a swept cold file is removed", 0),
]


@pytest.mark.parametrize(("point", "place"), POINTS, ids=lambda value: str(value))
def test_case_E1_a_killed_process_leaves_every_memory_in_one_tier(store, point, place):
    with opened(store) as mem:
        ops = mem.scope("t", "p")
        fill(ops, 100)
        faded = set(ops.prune(dry_run=True).ids)
        if "swept" in point or "restore" in point:
            ops.prune()
        whole = everything(ops)
        moved = [r.id for r in ops.list(tiers="cold")]
    assert run(KILLED, store, point, place, check=False).returncode == -signal.SIGKILL
    with opened(store) as mem:
        ops = mem.scope("t", "p")
        gone = set(moved[:9]) if "swept" in point else set()
        assert everything(ops) == [row for row in whole if row["id"] not in gone]
        there = {r.id for r in ops.list(tiers="cold")}
        if "swept" in point:
            assert there == set(moved[9:])
        elif "restore" in point:
            assert there == set(moved if "before" in point else moved[5:])
        else:
            assert there == (faded if point.startswith("after") else set())
        before = everything(ops)
        ops.prune()
        mem.compact()
        assert everything(ops) == before
        named = {file.file for file in mem._engine.catalog.partitions["t", "p"].cold.files}
        assert set(mem._engine.catalog.place.names()) == named
        assert {r.id for r in ops.list(tiers="cold")} == faded - gone | there


def test_a_write_that_fails_leaves_no_file(mem, monkeypatch):
    id = mem.remember("one", importance=0, event_time=0).id

    def fails(*_: object) -> None:
        raise memcore.StoreFull("no room")

    monkeypatch.setattr("memcore.store.moving.move_out", fails)
    with pytest.raises(memcore.StoreFull):
        mem.prune()
    assert mem._engine.catalog.place.names() == []
    assert mem.list()[0].id == id

"""Graphs: what they rank by, over which rows they are made and when, and what becomes of them with their rows."""

from __future__ import annotations

import json
import threading
import zlib
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import drawn
import memcore
import naive
from memcore.store import directory, graphs, hnsw, segment
from running import run

DIM, ROWS = 12, 100
RNG = np.random.default_rng(7)
VECTORS = RNG.standard_normal((1200, DIM))
LIBRARIES = ("faiss", "hnswlib")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Segments of a few rows have graphs."""
    monkeypatch.setattr(segment, "ROWS", ROWS)
    monkeypatch.setattr(graphs, "LEAST_ROWS", ROWS)


def library(name: str) -> str:
    pytest.importorskip(name, reason="the extra hnsw is not installed")
    return name


def rows(first: int, last: int) -> list[dict[str, Any]]:
    return [
        {
            "content": f"row {i}", "vector": VECTORS[i], "event_time": 1.7e9 + 60 * i, "importance": i % 10 / 10,
            "metadata": {"n": i},
        }
        for i in range(first, last)
    ]  # fmt: skip


def filled(path: Any = None, n: int = 3 * ROWS, index: str = "faiss", **more: Any) -> memcore.Memory:
    mem = memcore.open(path, embedder=None, clock=lambda: 1.8e9, index=index, **more)
    mem.remember_many(rows(0, n))
    return mem


def plan(mem: memcore.Memory, **more: Any) -> str:
    told: str = mem.recall(vector=VECTORS[0], **more).explain()["plan"]
    return told


def made(mem: memcore.Memory) -> list[int]:
    """How many rows the graphs are over, the largest first."""
    kept = mem._engine.catalog.graphs
    kept.look()
    return sorted((graph.rows for graph in kept.runs), reverse=True)


def kept(path: Path) -> list[Path]:
    return sorted(file for file in (path / "derived").glob("*.faiss"))


# What they rank by


@given(
    chunk=drawn.chunks(st.integers(1, 40), st.integers(1, 20)), shares=drawn.weights(),
    rate=st.sampled_from(drawn.RATES), later=st.integers(0, 10**14), data=st.data(),
)  # fmt: skip
def test_an_inner_product_is_the_score_and_all_rows_are_of_one_length(chunk, shares, rate, later, data):
    query = naive.unit(data.draw(drawn.queries(chunk.vectors)))
    newest = int(chunk.event_time.max())
    now = newest + later
    with np.errstate(over="ignore"):
        table = graphs.lengthened(
            chunk.vectors, chunk.event_time, chunk.importance, rate, newest, np.random.default_rng(0)
        ).astype(float)
    (asked,) = graphs.asked(query[None], shares, rate, now, newest).astype(float)
    for r, row in enumerate(table):
        cosine = naive.dot64(chunk.vectors[r], query)
        score = naive.score(cosine, int(chunk.event_time[r]), chunk.importance[r], now, rate, shares)
        assert abs(row @ asked - score) < 1e-5
        assert abs(row @ row - table[0] @ table[0]) < 1e-4


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_graph_finds_the_highest_inner_products(name, tmp_path):
    table = RNG.standard_normal((500, 20)).astype(np.float32)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    queries = table[:30] + np.float32(0.01)
    graph = hnsw.BACKENDS[library(name)](20, table.min(axis=0), table.max(axis=0))
    for first in range(0, 500, 130):
        graph.add(table[first : first + 130], threads=2)
    exact = np.argsort(-(queries @ table.T), axis=1)[:, :10]
    for asked in (queries, queries[:1]):
        found = graph.search(asked, 30, 200)
        assert (found.shape, found.dtype) == ((len(asked), 30), np.int64)
        assert all(set(best) <= set(row) for best, row in zip(exact.tolist(), found.tolist(), strict=False))
    assert (graph.search(queries, 510, 510)[:, 500:] == -1).all()
    graph.save(tmp_path / "graph")
    again = hnsw.BACKENDS[name].load(tmp_path / "graph", 20, 500)
    assert again.search(queries, 30, 200).tolist() == graph.search(queries, 30, 200).tolist()
    assert again.nbytes() >= 500 * (20 + 4 * 2 * hnsw.NEIGHBOURS)
    with pytest.raises(ValueError, match="not a graph of so many rows"):
        hnsw.BACKENDS[name].load(tmp_path / "graph", 20, 499)
    (tmp_path / "graph").write_bytes(b"no graph")
    with pytest.raises(ValueError, match=r"\S"):
        hnsw.BACKENDS[name].load(tmp_path / "graph", 20, 500)


def test_the_callers_number_of_threads_stays_as_it_was():
    before = faiss.omp_get_max_threads()
    try:
        faiss.omp_set_num_threads(3)
        with filled() as mem:
            mem.compact()
            assert plan(mem) == "faiss HNSW, 1 graph"
            mem.recall_many(vectors=VECTORS[:20])
        assert faiss.omp_get_max_threads() == 3
    finally:
        faiss.omp_set_num_threads(before)


FORKED = """
import os, sys
import numpy as np, memcore
from memcore.store import graphs, segment
segment.ROWS = graphs.LEAST_ROWS = 500
index = sys.argv[1]
vectors = np.random.default_rng(0).standard_normal((1500, 8))
mem = memcore.open(embedder=None, index=index)
mem.remember_many([{"content": str(i), "vector": v} for i, v in enumerate(vectors)])
mem.compact()
before = [hits.seqs for hits in mem.recall_many(vectors=vectors[:50])]
child = os.fork()
if not child:
    same = [hits.seqs for hits in mem.recall_many(vectors=vectors[:50])] == before
    with memcore.open(embedder=None, index=index) as other:
        other.remember_many([{"content": str(i), "vector": v} for i, v in enumerate(vectors)])
        built = other.compact().indexed == 1500
    os._exit(0 if same and built else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), mem.recall(vector=vectors[0]).explain()["plan"])
"""


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_forked_child_can_make_and_ask_graphs(name):
    assert run(FORKED, library(name)).stdout.split(maxsplit=1) == ["0", f"{name} HNSW, 1 graph\n"]


# When they are made


def test_another_graph_is_made_when_an_eighth_of_the_rows_has_none():
    with filled(n=8 * ROWS) as mem:
        assert mem.compact().indexed == 8 * ROWS
        mem.remember_many(rows(8 * ROWS, 9 * ROWS))
        assert (mem.compact().indexed, made(mem)) == (0, [8 * ROWS])  # a ninth
        mem.remember_many(rows(9 * ROWS, 10 * ROWS + 50))
        assert (mem.compact().indexed, made(mem)) == (2 * ROWS, [8 * ROWS, 2 * ROWS])
        found = mem.recall(vector=VECTORS[0]).explain()
        assert found["plan"] == "faiss HNSW, 2 graphs and exact scan of the rest"
        assert found["passed_filter"] == 10 * ROWS + 50
        mem.remember_many(rows(10 * ROWS + 50, 12 * ROWS))
        assert (mem.compact().indexed, made(mem)) == (4 * ROWS, [8 * ROWS, 4 * ROWS])  # the smaller one is taken in
    assert mem._engine.catalog.partitions == {}


def test_compact_keeps_up_the_graphs_of_other_users_of_the_store(tmp_path):
    with filled(tmp_path) as mem:
        mem.compact()
    with memcore.open(tmp_path, embedder=None, index="exact") as nightly:
        nightly.forget(nightly.list(limit=1))
        assert nightly.compact().indexed == 3 * ROWS - 1
        assert nightly._engine.catalog.graphs.wanted == set()  # it asks for none itself
        nightly.remember_many(rows(3 * ROWS, 4 * ROWS))
    with memcore.open(tmp_path, embedder=None, index="faiss") as mem:
        assert made(mem) == [3 * ROWS - 1]
        assert plan(mem) == "faiss HNSW, 1 graph and exact scan of the rest"


def test_fewer_rows_have_none():
    with filled(n=ROWS - 1) as mem:
        assert (mem.compact().indexed, made(mem), plan(mem)) == (0, [], "exact scan, 1 thread")


def test_a_store_says_what_graphs_it_has(tmp_path):
    with filled(tmp_path, decay_rate=0.05) as mem:
        assert mem.stats()["graphs"] == []
        mem.compact()
        (told,) = mem.stats()["graphs"]
        assert told["bytes"] > 3 * ROWS * DIM
        assert told == {
            "backend": "faiss",
            "decay_rate": 0.05,
            "rows": 3 * ROWS,
            "efforts": [250, 250, 250],
            "bytes": told["bytes"],
        }


def test_progress_is_told():
    told: list[tuple[int, int, str]] = []
    with filled() as mem:
        mem.compact(progress=lambda *how: told.append(how))
    assert told == [(100, 300, "index"), (200, 300, "index"), (300, 300, "index")]


def test_they_are_made_in_the_background(tmp_path):
    with filled(tmp_path) as mem:
        maintenance = mem._engine.directory.maintenance
        maintenance.seal_all()
        maintenance.work(1_800_000_000_000_000)
        maintenance._grapher.join()
        assert (made(mem), maintenance.fault) == ([3 * ROWS], None)
        assert plan(mem) == "faiss HNSW, 1 graph"


def test_closing_ends_what_the_background_makes(tmp_path, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def add(self: Any, table: Any, *, threads: int) -> None:
        begun.set()
        go_on.wait(60)

    monkeypatch.setattr(hnsw.Faiss, "add", add)
    mem = filled(tmp_path)
    maintenance = mem._engine.directory.maintenance
    maintenance.seal_all()
    maintenance.work(1_800_000_000_000_000)
    assert begun.wait(60)
    closing = threading.Thread(target=mem.close)
    closing.start()
    while not maintenance._stopping:
        pass
    go_on.set()
    closing.join(60)
    assert not closing.is_alive()
    assert kept(tmp_path) == []


def test_compact_takes_over_what_the_background_makes(tmp_path, monkeypatch):
    begun = threading.Event()
    add = hnsw.Faiss.add

    def slowly(self: Any, table: Any, *, threads: int) -> None:
        add(self, table, threads=threads)
        begun.set()
        while threads == 1 and not maintenance._takers:
            pass

    monkeypatch.setattr(hnsw.Faiss, "add", slowly)
    with filled(tmp_path) as mem:
        maintenance = mem._engine.directory.maintenance
        maintenance.seal_all()
        maintenance.work(1_800_000_000_000_000)
        assert begun.wait(60)
        monkeypatch.setattr("memcore.store.maintenance.THREADS", 2)
        assert mem.compact().indexed == 3 * ROWS
        assert made(mem) == [3 * ROWS]


def test_compact_makes_them_also_where_the_background_begins_meanwhile(tmp_path, monkeypatch):
    """It used to begin anew between the wait for it and the making, and compact then made none."""
    building, go_on = threading.Event(), threading.Event()
    build = graphs.build

    def built(*how: Any, threads: int, **more: Any) -> Any:
        if threads == 1:
            building.set()
            go_on.wait(60)
        return build(*how, threads=threads, **more)

    with filled(tmp_path) as mem:
        maintenance = mem._engine.directory.maintenance
        making = maintenance._make_graphs

        def beside(threads: int, *how: Any) -> int:
            if threads == 1:
                return making(threads, *how)
            maintenance._make_graphs_apart()
            while maintenance._grapher.is_alive() and not building.is_set():
                pass
            try:
                return making(threads, *how)
            finally:
                go_on.set()

        monkeypatch.setattr(graphs, "build", built)
        monkeypatch.setattr(maintenance, "_make_graphs", beside)
        assert mem.compact().indexed == 3 * ROWS
        assert made(mem) == [3 * ROWS]


def test_only_one_process_makes_them(tmp_path):
    with filled(tmp_path) as mem:
        (tmp_path / "derived").mkdir()
        with directory.alone(tmp_path, 0, "derived/graphs.lock"):
            assert mem.compact().indexed == 0
        assert mem.compact().indexed == 3 * ROWS


def test_one_that_finds_too_little_is_not_used_and_not_made_again(monkeypatch):
    monkeypatch.setattr(graphs, "_ENOUGH", 1.1)
    with filled() as mem:
        assert mem.compact().indexed == 3 * ROWS
        assert mem.stats()["graphs"][0]["efforts"] == [0, 0, 0]
        assert plan(mem) == "exact scan, 1 thread"
        assert mem.compact().indexed == 0


def test_the_effort_is_the_least_that_finds_enough_for_each_kind_of_weights(monkeypatch):
    needed = {(0.8, 0.1, 0.1): 300, (1.0, 0.0, 0.0): 600, (0.5, 0.3, 0.2): 200, (0.5, 0.0, 0.5): 0}
    monkeypatch.setattr(graphs, "_least", lambda *how: needed.get(how[-1], 400))
    with filled() as mem:
        mem.compact()
        assert mem.stats()["graphs"][0]["efforts"] == [600, 0, 400]
        assert plan(mem, weights=(0.8, 0.1, 0.1)) == "faiss HNSW, 1 graph"
        newest = 1.7e9 + 60 * 3 * ROWS
        assert plan(mem, weights=(0.34, 0.33, 0.33), now=newest) == "faiss HNSW, 1 graph"
        assert plan(mem, weights=(0.34, 0.22, 0.44), now=newest) == "exact scan, 1 thread"
        assert plan(mem, weights=(0.34, 0.33, 0.33)) == "exact scan, 1 thread"  # by now recency adds nothing


# In a directory


@pytest.mark.parametrize("name", LIBRARIES)
def test_the_next_process_finds_them(tmp_path, name):
    with filled(tmp_path, index=library(name)) as mem:
        mem.compact()
        expected = [mem.recall(vector=vector).ids for vector in VECTORS[:20]]
    with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9, index=name) as mem:
        assert plan(mem) == f"{name} HNSW, 1 graph"
        assert [mem.recall(vector=vector).ids for vector in VECTORS[:20]] == expected
        assert mem.verify().ok


def test_one_made_by_another_process_is_noticed(tmp_path):
    script = """
import sys, memcore
from memcore.store import graphs, segment
segment.ROWS = graphs.LEAST_ROWS = 100
with memcore.open(sys.argv[1], embedder=None, index="faiss") as mem:
    print(mem.compact().indexed)
"""
    with filled(tmp_path) as mem:
        assert plan(mem).startswith("exact scan")
        assert run(script, tmp_path).stdout == "300\n"
        mem._engine.directory.maintenance._refresh()  # what the background does every few seconds
        assert plan(mem) == "faiss HNSW, 1 graph"


def test_deleting_one_costs_time_and_never_data(tmp_path):
    with filled(tmp_path) as mem:
        mem.compact()
        (graph,) = kept(tmp_path)
    graph.unlink()
    with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9, index="faiss") as mem:
        assert (plan(mem), len(mem.list())) == ("exact scan, 1 thread", 3 * ROWS)
        assert mem.verify().ok
        assert mem.compact().indexed == 3 * ROWS
        assert plan(mem) == "faiss HNSW, 1 graph"
        assert len(kept(tmp_path)) == len(list((tmp_path / "derived").glob("*.json"))) == 1


@pytest.mark.parametrize("what", ["graph", "about"])
def test_a_damaged_one_is_not_used_and_repaired(tmp_path, what):
    with filled(tmp_path) as mem:
        mem.compact()
        (graph,) = kept(tmp_path)
    file = graph if what == "graph" else Path(f"{graph}.json")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9, index="faiss") as mem:
        assert plan(mem) == "exact scan, 1 thread"
        (problem,) = mem.verify().problems
        assert (problem.file, problem.what, problem.remedy) == (
            f"derived/{graph.name}", "is not as it was written", "a repair puts it aside, and it is made anew",
        )  # fmt: skip
        assert mem.verify(repair=True).ok
        assert mem.verify().ok
        mem.compact()
        assert plan(mem) == "faiss HNSW, 1 graph"


def test_a_damaged_one_is_looked_at_once_and_made_anew(tmp_path, monkeypatch):
    with filled(tmp_path) as mem:
        mem.compact()
        (graph,) = kept(tmp_path)
    graph.write_bytes(graph.read_bytes()[:-1])
    looked = []
    crc_of_file = graphs.crc_of_file
    monkeypatch.setattr(graphs, "crc_of_file", lambda path: looked.append(path) or crc_of_file(path))
    with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9, index="faiss") as mem:
        for n in range(3):
            mem.remember(f"new {n}", vector=VECTORS[n])
            assert plan(mem) == "exact scan, 1 thread"
        assert looked == [graph]
        assert mem.compact().indexed == 3 * ROWS + 3
        assert plan(mem) == "faiss HNSW, 1 graph"
        assert not graph.exists()


def test_what_is_told_about_one_that_makes_no_sense_counts_as_not_there(tmp_path):
    with filled(tmp_path) as mem:
        mem.compact()
    (graph,) = kept(tmp_path)
    about = Path(f"{graph}.json")
    told = json.loads(about.read_text())
    told = told["about"]
    for nonsense in (
        [],
        {},
        {**told, "format": 1},
        {**told, "efforts": [250]},
        {**told, "segments": [1]},
        {**told, "dim": DIM + 1},
    ):
        about.write_text(json.dumps({"about": nonsense, "crc": graphs._crc(nonsense)}))
        with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9, index="faiss") as mem:
            assert plan(mem) == "exact scan, 1 thread"


def test_what_was_forgotten_is_in_none_after_compact(tmp_path):
    with filled(tmp_path) as mem:
        mem.compact()
        before = kept(tmp_path)
        (row,) = mem.list(where={"metadata.n": 5})
        mem.forget(row, erase=True)
        assert plan(mem) == "faiss HNSW, 1 graph"  # and the row is in it until then
        assert mem.compact().indexed == 3 * ROWS - 1
        assert not set(before) & set(kept(tmp_path))
        assert (made(mem), plan(mem)) == ([3 * ROWS - 1], "faiss HNSW, 1 graph")


def test_what_was_forgotten_is_in_none_after_compact_in_ram():
    with filled() as mem:
        mem.compact()
        (row,) = mem.list(where={"metadata.n": 5})
        mem.forget(row)
        mem.compact()
        assert made(mem) == [3 * ROWS - 1]


def test_one_over_rows_that_go_while_it_is_made_is_not_kept(tmp_path, monkeypatch):
    with filled(tmp_path) as mem:
        mem._engine.directory.maintenance.seal_all()
        build = graphs.build

        def meanwhile(*how: Any, **more: Any) -> Any:
            made = build(*how, **more)
            monkeypatch.setattr(graphs, "build", build)
            mem.forget(where={"metadata.n": 5}, erase=True)
            mem.compact()
            return made

        monkeypatch.setattr(graphs, "build", meanwhile)
        mem._engine.directory.maintenance._make_graphs(1, lambda: False, lambda *_: None)
        assert made(mem) in ([], [3 * ROWS - 1])


def test_new_vectors_have_new_ones(tmp_path):
    for path in (None, tmp_path):
        with memcore.open(path, embedder="hashed", index="faiss") as mem:
            mem.remember_many([{"content": f"row {i}"} for i in range(2 * ROWS)])
            mem.compact()
            assert plan_of(mem) == "faiss HNSW, 1 graph"
            mem.reembed(memcore.embed.CallableEmbedder(scattered, name="scattered"))
            assert plan_of(mem) == "exact scan, 1 thread"
            assert mem.compact().indexed == 2 * ROWS
            assert plan_of(mem) == "faiss HNSW, 1 graph"


def scattered(texts: list[str]) -> list[Any]:
    return [np.random.default_rng(zlib.crc32(text.encode())).standard_normal(16) for text in texts]


def plan_of(mem: memcore.Memory) -> str:
    told: str = mem.recall("row 7", relevance="cosine").explain()["plan"]
    return told

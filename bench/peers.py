"""How does memcore do beside others on the same task? `python -m bench.peers [--rows N] [--only NAME ...]`

The task: the best 10 of 200,000 real texts (`bench.corpus`, embedded with the default embedder) by
.5 * cosine + .3 * e^(-.01 * age in hours) + .2 * importance, of 90 days. Who can't score so gets the usual: the 100
nearest by cosine, ranked by the whole score afterwards. Each is measured in two processes of its own:

    recall     of the exact top 10 (float64, by NumPy), over 500 queries
    p50 …      of one query after another, ms
    batch      queries a second, 1,000 at once (one after another where there is no such call)
    ingest     rows a second, with the making of the index
    RAM, disk  bytes a row: what is resident once a fresh process has opened the files and asked 20 queries, more than
               before, mapped files included; and what lies in files

Queries are texts that are not among the rows, and rows with noise. All rows of a run are kept in
bench/results/peers.jsonl, from which `--table` prints the table of the last run for the README. Run it with
OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE unset.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import psutil

from bench import corpus

RESULTS = corpus.RESULTS
ROWS, K, QUERIES, BATCH, FETCH = 200_000, 10, 500, 1_000, 100
WEIGHTS, DECAY_RATE = (0.5, 0.3, 0.2), 0.01
NEIGHBOURS, BUILT_WITH, EFFORT = 16, 200, 400  # of all HNSW indexes but memcore's, which has its own
SLOW = 10.0  # seconds of a batch, after which it is not repeated
HELD_OUT = 25
HEADS = ("", "version", "recall@10", "p50 ms", "p95 ms", "p99 ms", "batch/s", "ingest/s", "RAM B", "disk B")

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


class Data:
    def __init__(self, rows: int) -> None:
        every = corpus.vectors(rows + HELD_OUT)
        self.vectors = every[:rows]
        self.queries = corpus.queries(self.vectors, every[rows:], QUERIES)
        self.times, self.importance = corpus.life(rows)
        age = (corpus.NOW - self.times) / 3600
        self.known = (WEIGHTS[1] * np.exp(-DECAY_RATE * age) + WEIGHTS[2] * self.importance).astype(np.float32)

    def ranked(self, query: F32, rows: I64) -> I64:
        """The best of some rows by the whole score."""
        scores = WEIGHTS[0] * (self.vectors[rows] @ query) + self.known[rows]
        best: I64 = rows[np.argsort(-scores)[:K]]
        return best

    def exact(self) -> list[set[int]]:
        """The exact top 10 of each query, in float64."""
        known = WEIGHTS[1] * np.exp(-DECAY_RATE * (corpus.NOW - self.times) / 3600) + WEIGHTS[2] * self.importance
        found = []
        for query in self.queries.astype(np.float64):
            scores = known.copy()
            for first in range(0, len(scores), 50_000):
                scores[first : first + 50_000] += WEIGHTS[0] * (self.vectors[first : first + 50_000] @ query)
            found.append(set(np.argpartition(-scores, K)[:K].tolist()))
        return found


class Peer(Protocol):
    """Made with the folder that it keeps its files in."""

    package: str

    def ingest(self, data: Data) -> None:
        """Takes all rows, and leaves them in files."""
        ...

    def open(self, data: Data) -> None:
        """Gets ready to be asked, in another process."""
        ...

    def one(self, query: F32) -> I64: ...

    def many(self, queries: F32) -> Sequence[I64]: ...


class NumPy:
    package = "numpy"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "vectors.npy"

    def ingest(self, data: Data) -> None:
        np.save(self.path, data.vectors)

    def open(self, data: Data) -> None:
        self.vectors, self.known = np.load(self.path), data.known

    def one(self, query: F32) -> I64:
        scores = np.float32(WEIGHTS[0]) * (self.vectors @ query) + self.known
        best = np.argpartition(-scores, K)[:K]
        return best[np.argsort(-scores[best])]

    def many(self, queries: F32) -> list[I64]:
        found: list[I64] = []
        for first in range(0, len(queries), 50):
            scores = np.float32(WEIGHTS[0]) * (queries[first : first + 50] @ self.vectors.T) + self.known
            found += list(np.argpartition(-scores, K, axis=1)[:, :K])
        return found


class Fetching(ABC):
    """Finds the 100 nearest; the score is worked out afterwards."""

    data: Data

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = str(folder / "index")

    @abstractmethod
    def fetch(self, queries: F32) -> I64:
        """The rows of the 100 nearest of each query."""

    def one(self, query: F32) -> I64:
        return self.data.ranked(query, self.fetch(query[None])[0])

    def many(self, queries: F32) -> list[I64]:
        return [self.data.ranked(query, rows) for query, rows in zip(queries, self.fetch(queries), strict=True)]


class FaissFlat(Fetching):
    package = "faiss-cpu"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import faiss

        self.faiss: Any = faiss

    def ingest(self, data: Data) -> None:
        index = self.made(data.vectors.shape[1])
        index.add(np.ascontiguousarray(data.vectors))
        self.faiss.write_index(index, self.path)

    def made(self, dim: int) -> Any:
        return self.faiss.IndexFlatIP(dim)

    def open(self, data: Data) -> None:
        self.data, self.index = data, self.faiss.read_index(self.path)

    def fetch(self, queries: F32) -> I64:
        rows: I64 = self.index.search(queries, FETCH)[1]
        return rows


class FaissHNSW(FaissFlat):
    def made(self, dim: int) -> Any:
        index = self.faiss.IndexHNSWFlat(dim, NEIGHBOURS, self.faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction, index.hnsw.efSearch = BUILT_WITH, EFFORT
        return index


class Hnswlib(Fetching):
    package = "hnswlib"

    def made(self, data: Data) -> Any:
        import hnswlib

        return hnswlib.Index(space="ip", dim=data.vectors.shape[1])

    def ingest(self, data: Data) -> None:
        index = self.made(data)
        index.init_index(max_elements=len(data.vectors), ef_construction=BUILT_WITH, M=NEIGHBOURS)
        index.add_items(data.vectors)
        index.save_index(self.path)

    def open(self, data: Data) -> None:
        self.data, self.index = data, self.made(data)
        self.index.load_index(self.path)
        self.index.set_ef(EFFORT)

    def fetch(self, queries: F32) -> I64:
        rows: I64 = self.index.knn_query(queries, FETCH)[0].astype(np.int64)
        return rows


class USearch(Fetching):
    package = "usearch"

    def made(self, data: Data) -> Any:
        from usearch.index import Index

        how = {"connectivity": NEIGHBOURS, "expansion_add": BUILT_WITH, "expansion_search": EFFORT}
        return Index(ndim=data.vectors.shape[1], metric="ip", **how)

    def ingest(self, data: Data) -> None:
        index = self.made(data)
        index.add(np.arange(len(data.vectors)), np.ascontiguousarray(data.vectors))
        index.save(self.path)

    def open(self, data: Data) -> None:
        self.data, self.index = data, self.made(data)
        self.index.load(self.path)

    def fetch(self, queries: F32) -> I64:
        rows: I64 = np.atleast_2d(self.index.search(queries, FETCH).keys).astype(np.int64)
        return rows


class Chroma(Fetching):
    package = "chromadb"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import chromadb
        from chromadb.config import Settings

        self.client: Any = chromadb.PersistentClient(str(folder), Settings(anonymized_telemetry=False))

    def ingest(self, data: Data) -> None:
        how = {"space": "ip", "max_neighbors": NEIGHBOURS, "ef_construction": BUILT_WITH, "ef_search": EFFORT}
        rows = self.client.create_collection("rows", configuration={"hnsw": how}, embedding_function=None)
        most = self.client.get_max_batch_size()
        for first in range(0, len(data.vectors), most):
            last = min(first + most, len(data.vectors))
            rows.add(
                ids=[str(i) for i in range(first, last)],
                embeddings=data.vectors[first:last],
                documents=[f"row {i}" for i in range(first, last)],
            )

    def open(self, data: Data) -> None:
        self.data, self.rows = data, self.client.get_collection("rows", embedding_function=None)

    def fetch(self, queries: F32) -> I64:
        return np.array(self.rows.query(query_embeddings=queries, n_results=FETCH, include=[])["ids"]).astype(np.int64)


class LanceDB(Fetching):
    """Without an index: it scans."""

    package = "lancedb"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        import lancedb

        self.db: Any = lancedb.connect(str(folder))

    def ingest(self, data: Data) -> None:
        import pyarrow as pa

        n, dim = data.vectors.shape
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(data.vectors.reshape(-1)), dim)
        rows = pa.table({"id": np.arange(n), "content": [f"row {i}" for i in range(n)], "vector": vectors})
        self.db.create_table("rows", rows)

    def open(self, data: Data) -> None:
        self.data, self.rows = data, self.db.open_table("rows")

    def fetch(self, queries: F32) -> I64:
        found = [
            self.rows.search(query).distance_type("dot").select(["id"]).limit(FETCH).to_arrow()["id"].to_numpy()
            for query in queries
        ]
        return np.stack(found)


class Memcore:
    """In a directory: texts, vectors, times and importances, durable, with all that a record has."""

    package = "memcore-engine"
    index = "exact"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        import memcore

        memcore.warmup(None)  # which loads the kernels, as the others have theirs

    def opened(self) -> Any:
        import memcore

        return memcore.open(self.folder, embedder=None, index=self.index, decay_rate=DECAY_RATE, weights=WEIGHTS)

    def ingest(self, data: Data) -> None:
        import pyarrow as pa

        n, dim = data.vectors.shape
        rows = pa.table(
            {
                "content": [f"row {i}" for i in range(n)],
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(data.vectors.reshape(-1)), dim),
                "importance": data.importance,
                "event_time": pa.array((data.times * 1e6).astype(np.int64)).cast(pa.timestamp("us", "UTC")),
            }
        )
        with self.opened() as mem:
            mem.remember_many(rows, now=corpus.NOW)
            mem.compact()

    def open(self, data: Data) -> None:
        self.mem = self.opened()

    def one(self, query: F32) -> I64:
        return self.rows(self.mem.recall(vector=query, k=K, now=corpus.NOW))

    def many(self, queries: F32) -> list[I64]:
        return [self.rows(hits) for hits in self.mem.recall_many(vectors=queries, k=K, now=corpus.NOW)]

    def rows(self, hits: Any) -> I64:
        return np.array([int(hit.content[4:]) for hit in hits])


class MemcoreGraph(Memcore):
    index = "faiss"


PEERS: dict[str, type[Any]] = {
    "memcore, exact": Memcore,
    "memcore, graph": MemcoreGraph,
    "NumPy, exact": NumPy,
    "FAISS flat": FaissFlat,
    "FAISS HNSW": FaissHNSW,
    "hnswlib": Hnswlib,
    "usearch": USearch,
    "chromadb": Chroma,
    "lancedb": LanceDB,
}


def ingested(name: str, rows: int, folder: Path) -> dict[str, Any]:
    data = Data(rows)
    peer: Peer = PEERS[name](folder)
    begun = time.perf_counter()
    peer.ingest(data)
    return {"ingest": rows / (time.perf_counter() - begun), "version": version(peer.package)}


def asked(name: str, rows: int, folder: Path) -> dict[str, Any]:
    data = Data(rows)
    expected = data.exact()
    peer: Peer = PEERS[name](folder)
    before = psutil.Process().memory_info().rss
    peer.open(data)
    for query in data.queries[:20]:
        peer.one(query)
    memory = psutil.Process().memory_info().rss - before
    found, took = [], []
    for query in data.queries:
        begun = time.perf_counter()
        best = peer.one(query)
        took.append(1e3 * (time.perf_counter() - begun))
        found.append(best)
    many = np.tile(data.queries, (BATCH // len(data.queries), 1))
    times = []
    for _ in range(3):
        time.sleep(0.3)
        begun = time.perf_counter()
        batch = peer.many(many)
        times.append(time.perf_counter() - begun)
        if times[-1] > SLOW:
            break
    assert len(batch) == BATCH
    files = [path for path in folder.rglob("*") if path.is_file()]
    hits = [len(set(best.tolist()) & wanted) for best, wanted in zip(found, expected, strict=True)]
    return {
        "recall": float(np.mean(hits) / K),
        **{f"p{share}": float(np.percentile(took, share)) for share in (50, 95, 99)},
        "batch": BATCH / statistics.median(times),
        "memory": memory / rows,
        "disk": sum(path.stat().st_size for path in files) / rows,
        "took_ms": took,
        "batches_s": times,
    }


STAGES = {"ingest": ingested, "ask": asked}


def table(found: Sequence[dict[str, Any]]) -> str:
    """In Markdown."""
    lines = [f"| {' | '.join(HEADS)} |", f"|{'---|' * len(HEADS)}"]
    for row in found:
        if "fault" in row:
            lines.append(f"| {row['name']} | {row['fault']} |{' |' * (len(HEADS) - 2)}")
            continue
        cells = (
            row["name"], row["version"], f"{row['recall']:.3f}", f"{row['p50']:.2f}", f"{row['p95']:.2f}",
            f"{row['p99']:.2f}", f"{row['batch']:,.0f}", f"{row['ingest']:,.0f}", f"{row['memory']:,.0f}",
            f"{row['disk']:,.0f}",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def kept() -> list[dict[str, Any]]:
    """The rows of the last run."""
    rows = [json.loads(line) for line in (RESULTS / "peers.jsonl").read_text().splitlines()]
    return [row for row in rows if row["run"] == rows[-1]["run"]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.peers")
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--only", nargs="*", choices=list(PEERS), default=list(PEERS))
    parser.add_argument("--table", action="store_true", help="of the last run, without running anything")
    parser.add_argument("--inside", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.table:
        print(table(kept()))
        return 0
    if given.inside:
        stage, name, folder = given.inside
        print(json.dumps(STAGES[stage](name, given.rows, Path(folder))))
        return 0
    set_here = [name for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE") if name in os.environ]
    print(f"{given.rows:,} rows; OpenBLAS variables set: {', '.join(set_here) or 'none'}", file=sys.stderr)
    corpus.vectors(given.rows + HELD_OUT)  # made once
    run, found = time.time(), []
    for name in given.only:
        folder = Path(tempfile.mkdtemp(dir=RESULTS, prefix=".peer-"))  # on the file system of the checkout
        row: dict[str, Any] = {"run": run, "name": name, "rows": given.rows}
        try:
            for stage in STAGES:
                inside = ["--inside", stage, name, str(folder)]
                command = [sys.executable, "-m", "bench.peers", "--rows", str(given.rows), *inside]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    row["fault"] = (done.stderr.strip().splitlines() or ["no reason"])[-1][:120]
                    break
                row.update(json.loads(done.stdout.splitlines()[-1]))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        found.append(row)
        with (RESULTS / "peers.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(table([row]).splitlines()[-1], file=sys.stderr, flush=True)
    print(table(found))
    return 1 if any("fault" in row for row in found) else 0


if __name__ == "__main__":
    sys.exit(main())

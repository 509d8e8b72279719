"""What does it cost that a write lasts? `python -m bench.durable [PART ...]`, each part beside its peer in one run.

    one      one-row `remember` with a given 256-d vector, against plain SQLite: one table, WAL, synchronous=FULL, the
             vector as a blob, a commit a row
    batch    batches of 1,000 such rows, against the same SQLite with a commit a batch
    writers  64 threads that remember one row at a time, against one
    readers  `recall` over 100,000 rows while the store is written to and compacted, by a thread of this process and by
             another process, against the same `recall` while it is not
    open     a store of a million rows in a fresh process: the time until the first exact recall can start, the memory
             that is resident then, and the time of that recall

All parts by default. Each repeats in turn with its peer and tells medians; raw rows go to bench/results/durable.jsonl.
Exit 1 if a limit is missed. Run with OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE unset.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import memcore

DIM = 256
RESULTS = Path(__file__).parent / "results"
TEXT = "event {}: the gateway answered 504 after a while, and the checkout went on"
VECTORS = np.random.default_rng(0).standard_normal((10_000, DIM), dtype=np.float32)


def told(part: str, what: str, value: float, unit: str, limit: float | None = None, least: bool = True) -> bool:
    """Prints a figure and keeps it; whether it is within its limit."""
    met = limit is None or (value >= limit if least else value <= limit)
    wanted = (
        "" if limit is None else f"  {'at least' if least else 'at most'} {limit:,g}: {'met' if met else 'NOT MET'}"
    )
    print(f"{part:8} {what:58} {value:12,.2f} {unit}{wanted}", flush=True)
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "durable.jsonl").open("a") as file:
        row = {"at": time.time(), "part": part, "what": what, "value": value, "unit": unit, "limit": limit, "met": met}
        file.write(json.dumps(row) + "\n")
    return met


@contextmanager
def folder() -> Iterator[Path]:
    """On the file system of the checkout: /tmp may be in RAM."""
    path = Path(tempfile.mkdtemp(dir=RESULTS.parent, prefix=".durable-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def plain(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE memory (id INTEGER PRIMARY KEY, content TEXT, metadata TEXT, at INTEGER, vector BLOB)")
    return db


INSERT = "INSERT INTO memory (content, metadata, at, vector) VALUES (?, ?, ?, ?)"


def rate(work: Callable[[int], object], n: int) -> float:
    begun = time.perf_counter()
    for i in range(n):
        work(i)
    return n / (time.perf_counter() - begun)


def one() -> bool:
    ours, theirs = [], []
    with folder() as place, memcore.open(place / "m", embedder=None) as mem:
        db = plain(place / "plain.sqlite")
        for round in range(7):
            mine = rate(lambda i: mem.remember(TEXT.format(i), vector=VECTORS[i]), 1_000)
            peer = rate(lambda i: db.execute(INSERT, (TEXT.format(i), "{}", i, VECTORS[i].tobytes())), 1_000)
            if round:  # the first is a warm-up
                ours.append(mine)
                theirs.append(peer)
        db.close()
    told("one", "SQLite, commits", statistics.median(theirs), "/s")
    met = told("one", "memcore, remember", statistics.median(ours), "/s", 1_500)
    ratio = statistics.median(mine / peer for mine, peer in zip(ours, theirs, strict=True))
    return told("one", "of SQLite's rate", ratio, "", 0.4) and met


def table(start: int, n: int) -> pa.Table:
    return pa.table(
        {
            "content": [TEXT.format(i) for i in range(start, start + n)],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(VECTORS[:n].reshape(-1)), DIM),
        }
    )


def commit(db: sqlite3.Connection, values: list[tuple[object, ...]], _: int) -> None:
    db.execute("BEGIN IMMEDIATE")
    db.executemany(INSERT, values)
    db.execute("COMMIT")


def batch() -> bool:
    ours, theirs = [], []
    rows = table(0, 1_000)
    values: list[tuple[object, ...]] = [(TEXT.format(i), "{}", i, VECTORS[i].tobytes()) for i in range(1_000)]
    with folder() as place:
        for round in range(6):
            with memcore.open(place / f"m{round}", embedder=None) as mem:
                mine = 1_000 * rate(lambda i: mem.remember_many(rows), 30)
            db = plain(place / f"plain{round}.sqlite")
            peer = 1_000 * rate(partial(commit, db, values), 30)
            db.close()
            if round:
                ours.append(mine)
                theirs.append(peer)
    told("batch", "SQLite, batches of 1,000", statistics.median(theirs), "rows/s")
    return told("batch", "memcore, remember_many of 1,000 (Arrow)", statistics.median(ours), "rows/s", 50_000)


def threads(n: int, rows: int, place: Path) -> float:
    with memcore.open(place, embedder=None) as mem:
        mem.remember("warm", vector=VECTORS[0])

        def work(mine: int) -> None:
            for i in range(rows // n):
                mem.remember(TEXT.format(i), vector=VECTORS[(mine + i) % len(VECTORS)])

        workers = [threading.Thread(target=work, args=(mine,)) for mine in range(n)]
        begun = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return rows / (time.perf_counter() - begun)


def writers() -> bool:
    alone, many = [], []
    with folder() as place:
        for round in range(5):
            alone.append(threads(1, 1_500, place / f"a{round}"))
            many.append(threads(64, 6_400, place / f"b{round}"))
    told("writers", "one thread", statistics.median(alone), "rows/s")
    told("writers", "64 threads", statistics.median(many), "rows/s")
    ratio = statistics.median(m / a for m, a in zip(many, alone, strict=True))
    return told("writers", "64 threads, times the rate of one", ratio, "x", 5)


_WRITER = """
import sys
from pathlib import Path
import memcore
from bench import durable
with memcore.open(Path(sys.argv[1]), embedder=None) as mem:
    durable.keep_writing(mem, lambda: False)
"""


def keep_writing(mem: memcore.Memory, stopped: Callable[[], bool]) -> None:
    """Rows one at a time and in batches, forgetting, and compaction, without a pause."""
    ops = mem.scope("writer")
    round = 0
    while not stopped():
        ids = ops.remember_many(table(0, 1_000))
        for i in range(100):
            ops.remember(TEXT.format(i), vector=VECTORS[i])
        ops.forget(ids[::3])
        round += 1
        if round % 20 == 0:
            mem.compact()


def quantiles(mem: memcore.Memory, seconds: float) -> tuple[float, float, int]:
    """Median and 99th percentile of one recall in ms, and how many there were."""
    took = []
    until = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < until:
        mem.recall(vector=VECTORS[len(took) % len(VECTORS)], k=10)
        took.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(took), float(np.quantile(took, 0.99)), len(took)


def readers() -> bool:
    met = True
    with folder() as place, memcore.open(place / "m", embedder=None) as mem:
        for start in range(0, 100_000, 10_000):
            mem.remember_many(table(start, 10_000))
        mem.compact()
        quantiles(mem, 2)
        idle = []
        for where in ("idle", "another process", "a thread of this process", "idle again"):
            stop = threading.Event()
            process = thread = None
            if where == "another process":
                process = subprocess.Popen([sys.executable, "-c", _WRITER, str(place / "m")])
            elif where.startswith("a thread"):
                thread = threading.Thread(target=keep_writing, args=(mem, stop.is_set))
                thread.start()
            if process or thread:
                time.sleep(2)
            median, p99, n = quantiles(mem, 8)
            stop.set()
            if process:
                process.kill()
                process.wait()
            if thread:
                thread.join()
            told("readers", f"{where}: median of {n:,} recalls", median, "ms")
            told("readers", f"{where}: p99", p99, "ms")
            if where.startswith("idle"):
                idle.append(p99)
            else:
                ratio = p99 / idle[0]
                met = (
                    told("readers", f"writing by {where}: p99, times the idle p99", ratio, "x", 3, least=False) and met
                )
    return met


_OPENER = """
import json, sys, time
import numpy as np, pyarrow
import memcore
from bench.durable import resident
query = np.random.default_rng(1).standard_normal(256)
begun = time.perf_counter()
mem = memcore.open(sys.argv[1], embedder=None)
rows = mem._engine.catalog.snapshot(("default", "default")).rows()
opened, held = time.perf_counter() - begun, resident()
begun = time.perf_counter()
assert len(mem.recall(vector=query, k=10)) == 10
first = time.perf_counter() - begun
begun = time.perf_counter()
mem.recall(vector=query, k=10)
print(json.dumps([rows, opened, held, first, time.perf_counter() - begun, resident()]))
"""


def resident() -> int:
    """Bytes of this process in memory, those of mapped files included."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_million() -> bool:
    rng = np.random.default_rng(2)
    with folder() as place:
        with memcore.open(place / "m", embedder=None, durability="relaxed") as mem:
            for start in range(0, 1_000_000, 10_000):
                vectors = rng.standard_normal((10_000, DIM), dtype=np.float32)
                mem.remember_many(
                    table(start, 10_000).set_column(
                        1, "vector", pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), DIM)
                    )
                )
            mem.compact()
        runs = []
        for _ in range(5):
            out = subprocess.run(
                [sys.executable, "-c", _OPENER, str(place / "m")], check=True, capture_output=True, text=True
            )
            runs.append(json.loads(out.stdout))
    rows, opened, held, first, second, after = (statistics.median(column) for column in zip(*runs, strict=True))
    told("open", "rows", rows, "")
    met = told("open", "until the first exact recall can start", opened, "s", 0.5, least=False)
    met = told("open", "resident then", held / 1e6, "MB", 400, least=False) and met
    told("open", "the first recall, which makes int8 codes", first, "s")
    told("open", "the second", second, "s")
    told("open", "resident then, mapped vectors included", after / 1e6, "MB")
    return met


PARTS: dict[str, Callable[[], bool]] = {
    "one": one,
    "batch": batch,
    "writers": writers,
    "readers": readers,
    "open": open_million,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise SystemExit(f"unknown part {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    set_here = [name for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE") if name in os.environ]
    print(f"OpenBLAS variables set: {', '.join(set_here) or 'none'}")
    met = [PARTS[name]() for name in names or PARTS]
    return 0 if all(met) else 1


if __name__ == "__main__":
    arguments: Any = sys.argv[1:]
    sys.exit(main(arguments))

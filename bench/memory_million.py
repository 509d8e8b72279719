"""How much memory do a million memories take? `python -m bench.memory_million [ROWS] [--mapped]`

Rows with 256-d vectors and a short text each are remembered in Arrow batches of 50,000, then recalled once, which makes
the int8 codes that a scan reads. Told is the growth of the process's resident memory over that of an empty store after
a warm-up, in all and for each row, beside what `stats()` counts. The limit is 1.5 GB at a million rows.

With --mapped the rows lie in a directory, written by another process. Told is how much more is resident after 1, 20 and
100 recalls, beside what a scan reads of each row: its codes with their scales and bounds, and its time, importance and
id. The limit is 1.15 times that.
"""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

import memcore

DIM, BATCH = 256, 50_000
LIMIT = 1_500  # bytes a row
SCANNED = DIM + 8 * 2 + 8 + 4 + 16  # codes, 3 scales, 3 and 2 norms of 2 bytes; time, importance, id


def batches(rows: int) -> Iterator[pa.Table]:
    rng = np.random.default_rng(0)
    for start in range(0, rows, BATCH):
        n = min(BATCH, rows - start)
        vectors = rng.standard_normal((n, DIM), dtype=np.float32)
        yield pa.table(
            {
                "content": [
                    f"event {i}: web{i % 97:02} answered {i % 5}xx after {i % 3000} ms" for i in range(start, start + n)
                ],
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), DIM),
                "importance": rng.random(n, dtype=np.float32),
                "event_time": pa.array(
                    1_700_000_000_000_000 + 1_000_000 * np.arange(start, start + n), pa.timestamp("us", "UTC")
                ),
            }
        )


def resident() -> int:
    """Bytes of this process in memory, with what Arrow and malloc hold back given up first."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    return int(psutil.Process().memory_info().rss)


def told(what: str, grown: int, counted: int, rows: int) -> None:
    print(f"{what:<18} {grown / 1e6:8.0f} MB  {grown / rows:7.1f} B a row   stats() {counted / rows:7.1f} B a row")


def main(rows: int) -> int:
    query = np.random.default_rng(1).standard_normal(DIM)
    with memcore.open(embedder=None) as warm:
        for table in batches(10_000):
            warm.remember_many(table)
        warm.recall(vector=query)
    mem = memcore.open(embedder=None)
    before = resident()
    begun = time.perf_counter()
    for table in batches(rows):
        mem.remember_many(table)
    del table
    took = time.perf_counter() - begun
    print(f"{rows:,} rows of {DIM} dimensions in {took:.1f} s, making them included")
    told("remembered", resident() - before, mem.stats()["bytes_in_memory"], rows)
    assert len(mem.recall(vector=query)) == 5
    grown = resident() - before
    told("and recalled once", grown, mem.stats()["bytes_in_memory"], rows)
    fits = grown <= LIMIT * rows
    print(f"the limit is {LIMIT} B a row: {'kept' if fits else 'EXCEEDED'}")
    return 0 if fits else 1


def make(rows: int, path: str) -> int:
    with memcore.open(path, embedder=None, index="exact") as mem:
        for table in batches(rows):
            mem.remember_many(table)
        mem.compact()
    return 0


def mapped(rows: int) -> int:
    path = Path(tempfile.mkdtemp(dir=Path(__file__).parent, prefix=".mapped-"))  # on the disk of the checkout
    queries = np.random.default_rng(1).standard_normal((100, DIM))
    try:
        subprocess.run([sys.executable, "-m", "bench.memory_million", str(rows), "--make", path], check=True)
        memcore.warmup(None)
        before = resident()
        with memcore.open(path, embedder=None, index="exact") as mem:
            fits, asked = True, 0
            for many in (1, 20, 100):
                for query in queries[asked:many]:
                    begun = time.perf_counter()
                    mem.recall(vector=query)
                    took = time.perf_counter() - begun
                asked, grown = many, resident() - before
                fits &= grown <= 1.15 * SCANNED * rows
                print(
                    f"{many:>3} recalls {grown / 1e6:8.0f} MB  {grown / rows:7.1f} B a row   "
                    f"the last in {1e3 * took:.1f} ms"
                )
    finally:
        shutil.rmtree(path, ignore_errors=True)
    print(f"the limit is 1.15 x {SCANNED} B a row: {'kept' if fits else 'EXCEEDED'}")
    return 0 if fits else 1


if __name__ == "__main__":
    count = int(sys.argv[1].replace("_", "")) if sys.argv[1:] and sys.argv[1][0] != "-" else 1_000_000
    if "--make" in sys.argv:
        sys.exit(make(count, sys.argv[-1]))
    sys.exit(mapped(count) if "--mapped" in sys.argv else main(count))

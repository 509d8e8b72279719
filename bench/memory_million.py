"""How much memory do a million memories take? `python -m bench.memory_million [ROWS]`, in a process of its own.

Rows with 256-d vectors and a short text each are remembered in Arrow batches of 50,000, then recalled once, which makes
the int8 codes that a scan reads. Told is the growth of the process's resident memory over that of an empty store after
a warm-up, in all and for each row, beside what `stats()` counts. The limit is 1.5 GB at a million rows.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator

import numpy as np
import psutil
import pyarrow as pa

import memcore

DIM, BATCH = 256, 50_000
LIMIT = 1_500  # bytes a row


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


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1].replace("_", "")) if len(sys.argv) > 1 else 1_000_000))

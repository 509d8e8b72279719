"""How much memory do export and import take? `python -m bench.memory_portable [ROWS]`, a process for each.

A store in a directory is filled with rows of 64-d vectors and a short text each, every tenth the next version of a
memory, every tenth linked to the one before. It is exported in each format, and each file imported into a new store in
a directory. Told of each process: its peak resident memory as the system counts it, which holds the pages of mapped
segment files (the system takes them back when it needs room); the highest anonymous memory seen between two batches,
which is what the process itself asks for; the seconds, and the rows a second. `empty` is a process that opens a store
and does nothing: what any process takes.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import memcore

DIM, BATCH, ROWS = 64, 10_000, 1_000_000
FORMATS = ("jsonl", "parquet", "json")


def fill(store: Path, rows: int) -> None:
    rng = np.random.default_rng(0)
    with memcore.open(store, embedder=None, durability="relaxed") as mem:
        for start in range(0, rows, BATCH):
            n = min(BATCH, rows - start)
            vectors = rng.standard_normal((n, DIM), dtype=np.float32)
            at = range(start, start + n)
            ids = mem.remember_many(
                pa.table(
                    {
                        "content": [f"event {i}: web{i % 97:02} answered {i % 5}xx after {i % 3000} ms" for i in at],
                        "kind": ["semantic" if i % 10 == 0 else "episodic" for i in at],
                        "key": [f"fact {i % 100_000 // 2}" if i % 10 == 0 else None for i in at],
                        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), DIM),
                        "importance": rng.random(n, dtype=np.float32),
                        "metadata": [json.dumps({"host": f"web{i % 97:02}", "n": i}) for i in at],
                        "event_time": pa.array(
                            1_700_000_000_000_000 + 1_000_000 * np.array(at), pa.timestamp("us", "UTC")
                        ),
                    }
                )
            )
            mem.link(ids[-1], "caused_by", ids[0])


def anonymous() -> int:
    """Bytes of this process that no file stands behind."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def measured(act: Callable[[Callable[[int, int, str], None]], object]) -> dict[str, Any]:
    highest = 0

    def progress(done: int, total: int, what: str) -> None:
        nonlocal highest
        highest = max(highest, anonymous())

    begun = time.perf_counter()
    act(progress)
    took = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak": peak, "anonymous": max(highest, anonymous()), "seconds": took}


def one(doing: str, store: str, path: str) -> dict[str, Any]:
    """What a process of its own does."""
    with memcore.open(store, embedder=None, durability="relaxed") as mem:
        if doing == "export":
            return measured(lambda progress: mem.export(path, progress=progress))
        if doing == "import":
            return measured(lambda progress: mem.import_(path, progress=progress))
        return measured(lambda progress: None)


def run(doing: str, store: Path, path: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.memory_portable", doing, str(store), str(path)]
    told: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return told


def main(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        fill(place / "store", rows)
        print(f"{rows:,} rows of {DIM} dimensions")
        print(f"{'':16} {'peak MB':>9} {'own MB':>9} {'seconds':>9} {'rows/s':>10} {'file MB':>9}")
        for doing, format in [("empty", "jsonl"), *((d, f) for f in FORMATS for d in ("export", "import"))]:
            path = place / f"x.{format}"
            store = place / ("store" if doing != "import" else f"from {format}")
            told = run(doing, store, path)
            size = path.stat().st_size / 1e6 if path.exists() else 0.0
            rate = rows / told["seconds"] if doing != "empty" else 0.0
            print(
                f"{doing + ' ' * (doing != 'empty') + format * (doing != 'empty'):16} {told['peak'] / 1e6:9.0f} "
                f"{told['anonymous'] / 1e6:9.0f} {told['seconds']:9.1f} {rate:10,.0f} {size:9.0f}",
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) == 4:
        print(json.dumps(one(*sys.argv[1:])))
    else:
        main(int(sys.argv[1].replace("_", "")) if len(sys.argv) > 1 else ROWS)

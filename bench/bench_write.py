"""How many rows a second are remembered: texts through the default embedder, rows with vectors, one at a time?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import memcore
from bench import corpus


def rate(benchmark: Any, rows: int) -> None:
    benchmark.extra_info["rows_per_second"] = rows / benchmark.stats.stats.median


@pytest.mark.benchmark(group="remember_many")
def bench_texts(benchmark: Any) -> None:
    lines = corpus.texts(20_000)
    memcore.open().remember_many(lines[:100])  # loads the embedder

    def fresh() -> tuple[tuple[Any], dict[str, Any]]:
        return (memcore.open(),), {}

    benchmark.pedantic(lambda mem: mem.remember_many(lines), setup=fresh, rounds=5)
    rate(benchmark, len(lines))


@pytest.mark.benchmark(group="remember_many")
@pytest.mark.parametrize("form", ["arrow", "dicts"])
def bench_vectors(benchmark: Any, form: str) -> None:
    n = 100_000
    vectors = np.random.default_rng(0).normal(size=(n, 256)).astype(np.float32)
    contents = [f"row {i}" for i in range(n)]
    rows: Any = [{"content": c, "vector": v} for c, v in zip(contents, vectors, strict=True)]
    if form == "arrow":
        flat = pa.array(vectors.reshape(-1))
        rows = pa.table({"content": contents, "vector": pa.FixedSizeListArray.from_arrays(flat, 256)})

    def fresh() -> tuple[tuple[Any], dict[str, Any]]:
        return (memcore.open(embedder=None),), {}

    benchmark.pedantic(lambda mem: mem.remember_many(rows), setup=fresh, rounds=3)
    rate(benchmark, n)


@pytest.mark.benchmark(group="remember")
@pytest.mark.parametrize("given", ["text", "vector"])
def bench_one(benchmark: Any, given: str) -> None:
    mem = memcore.open()
    lines = iter(corpus.texts(5_000))
    vector = np.ones(256, dtype=np.float32)
    mem.remember("load the embedder")
    if given == "text":
        benchmark.pedantic(lambda: mem.remember(next(lines)), rounds=3_000)
    else:
        benchmark.pedantic(lambda: mem.remember(next(lines), vector=vector), rounds=3_000)
    rate(benchmark, 1)

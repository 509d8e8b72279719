"""How fast is exact hybrid recall of one query over 200,000 x 256, beside NumPy's product, score and argpartition?

The pairs are measured in one run, each method in blocks of its own, since BLAS threads spin for a while after a call
and would slow the other. All is float32. `ratio` in the extra info is the median, block by block, of NumPy's time over
memcore's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import memcore
from bench import corpus

N, DIM, K, QUERIES = 200_000, 256, 10, 25
WEIGHTS = [(0.5, 0.3, 0.2), (0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.34, 0.33, 0.33), (0.2, 0.7, 0.1)]


class Data:
    def __init__(self) -> None:
        rows = corpus.vectors(N + QUERIES)
        self.vectors, self.queries = rows[:N].copy(), rows[N:].copy()
        self.times, self.importance = corpus.life(N)
        self.age_hours = ((corpus.NOW - self.times) / 3600).astype(np.float32)
        self.mem = memcore.open(embedder=None)
        micros = pa.array((self.times * 1e6).astype(np.int64)).cast(pa.timestamp("us", "UTC"))
        flat = pa.array(self.vectors.reshape(-1))
        self.mem.remember_many(
            pa.table(
                {
                    "content": [f"row {i}" for i in range(N)],
                    "vector": pa.FixedSizeListArray.from_arrays(flat, DIM),
                    "importance": self.importance,
                    "event_time": micros,
                }
            ),
            now=corpus.NOW,
        )

    def numpy(self, query: Any, weights: tuple[float, float, float]) -> Any:
        a, b, g = (np.float32(w) for w in weights)
        score = a * (self.vectors @ query) + b * np.exp(np.float32(-0.01) * self.age_hours) + g * self.importance
        best = np.argpartition(-score, K)[:K]
        return best[np.argsort(-score[best])]

    def memcore(self, query: Any, weights: tuple[float, float, float]) -> Any:
        return self.mem.recall(vector=query, k=K, weights=weights, now=corpus.NOW)


@pytest.fixture(scope="module")
def data() -> Data:
    return Data()


def block(method: Callable[..., Any], data: Data, weights: Any) -> float:
    method(data.queries[0], weights)
    took = []
    for query in data.queries:
        begun = time.perf_counter()
        method(query, weights)
        took.append(time.perf_counter() - begun)
    return statistics.median(took)


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@pytest.mark.benchmark(group="exact recall, one query, warm")
def bench_beside_numpy(benchmark: Any, data: Data, weights: tuple[float, float, float]) -> None:
    pairs = [(block(data.numpy, data, weights), block(data.memcore, data, weights)) for _ in range(5)]
    found = data.memcore(data.queries[0], weights)
    assert [int(hit.content[4:]) for hit in found] == data.numpy(data.queries[0], weights).tolist()
    queries = iter(np.tile(data.queries, (1000, 1)))
    benchmark.pedantic(lambda: data.memcore(next(queries), weights), rounds=50, warmup_rounds=2)
    benchmark.extra_info.update(
        numpy_ms=statistics.median(n for n, _ in pairs) * 1e3,
        memcore_ms=statistics.median(m for _, m in pairs) * 1e3,
        ratio=statistics.median(n / m for n, m in pairs),
        blocks=[(n * 1e3, m * 1e3) for n, m in pairs],
        vectors_read=found.explain()["vectors_read"],
    )


@pytest.mark.benchmark(group="exact recall, 1,000 queries at once")
def bench_batch(benchmark: Any, data: Data) -> None:
    queries = np.tile(data.queries, (40, 1))
    begun = time.perf_counter()
    for start in range(0, N, 16_384):
        queries @ data.vectors[start : start + 16_384].T
    product = time.perf_counter() - begun
    data.mem.recall_many(vectors=queries[:2], k=K, now=corpus.NOW)
    benchmark.pedantic(lambda: data.mem.recall_many(vectors=queries, k=K, now=corpus.NOW), rounds=2, iterations=1)
    benchmark.extra_info.update(bare_product_s=product, ratio=benchmark.stats.stats.median / product)


@pytest.mark.benchmark(group="recall of one text query, warm")
@pytest.mark.parametrize("rows", [100, 1_000, 50_000])
def bench_text_query(benchmark: Any, rows: int) -> None:
    mem = memcore.open()
    lines = corpus.texts(rows + 50)
    mem.remember_many([{"content": line, "importance": 0.5} for line in lines[:rows]], now=corpus.NOW)
    queries = iter(lines[rows:] * 1000)
    benchmark.pedantic(lambda: mem.recall(next(queries), now=corpus.NOW), rounds=200, warmup_rounds=5)

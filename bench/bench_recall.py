"""How fast is exact hybrid recall of one query over 200,000 x 256, beside NumPy's product, score and argpartition?

The pairs are measured in one run, each method in blocks of its own with a pause before it, since BLAS's threads spin
for some 20 ms after a call and would slow the other: without the pause memcore took twice the time. All is float32.
`ratio` in the extra info is the median, block by block, of NumPy's time over memcore's.

Also a batch of 1,000 queries beside the bare product of the same shapes; a filter that one row in a hundred passes,
beside the same recall without; and recall of a given vector over 100 and 50,000 rows.
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
PAUSE = 0.3  # seconds
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
                    "metadata": [f'{{"shard":{i % 100}}}' for i in range(N)],
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
    time.sleep(PAUSE)
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
    data.mem.recall_many(vectors=queries[:20], k=K, now=corpus.NOW)
    pairs = []
    for _ in range(5):
        begun = time.perf_counter()
        for start in range(0, N, 16_384):
            queries @ data.vectors[start : start + 16_384].T
        product = time.perf_counter() - begun
        begun = time.perf_counter()
        data.mem.recall_many(vectors=queries, k=K, now=corpus.NOW)
        pairs.append((product, time.perf_counter() - begun))
    benchmark.pedantic(lambda: data.mem.recall_many(vectors=queries, k=K, now=corpus.NOW), rounds=2, iterations=1)
    benchmark.extra_info.update(
        bare_product_s=statistics.median(product for product, _ in pairs),
        ratio=statistics.median(took / product for product, took in pairs),
        pairs=pairs,
    )


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
@pytest.mark.benchmark(group="exact recall, one query, of one row in a hundred")
def bench_filter(benchmark: Any, data: Data, weights: tuple[float, float, float]) -> None:
    def filtered(query: Any) -> Any:
        return data.mem.recall(vector=query, k=K, weights=weights, now=corpus.NOW, where={"metadata.shard": 7})

    def searched(method: Callable[[Any], Any]) -> float:
        time.sleep(PAUSE)
        method(data.queries[0])
        return statistics.median(method(query).explain()["ms"]["search"] for query in data.queries)

    found = filtered(data.queries[0])
    assert (len(found), found.explain()["passed_filter"]) == (K, N // 100)
    pairs = [(searched(lambda query: data.memcore(query, weights)), searched(filtered)) for _ in range(5)]
    queries = iter(np.tile(data.queries, (1000, 1)))
    benchmark.pedantic(lambda: filtered(next(queries)), rounds=50, warmup_rounds=2)
    benchmark.extra_info.update(
        search_ms=statistics.median(some for _, some in pairs),
        search_unfiltered_ms=statistics.median(every for every, _ in pairs),
        ratio=statistics.median(every / some for every, some in pairs),
        blocks=pairs,
    )


@pytest.mark.benchmark(group="recall of one given vector, k = 5, warm")
@pytest.mark.parametrize("rows", [100, 50_000])
def bench_vector_query(benchmark: Any, rows: int) -> None:
    mem = memcore.open(embedder=None)
    vectors = corpus.vectors(N + QUERIES)
    mem.remember_many([{"content": f"row {i}", "vector": vectors[i]} for i in range(rows)], now=corpus.NOW)
    queries = iter(np.tile(vectors[N:], (1000, 1)))
    time.sleep(PAUSE)
    benchmark.pedantic(
        lambda: mem.recall(vector=next(queries), k=5, now=corpus.NOW), rounds=500, warmup_rounds=20, iterations=10
    )


@pytest.mark.benchmark(group="recall of one text query, warm")
@pytest.mark.parametrize("relevance", ["cosine", "hybrid"])
@pytest.mark.parametrize("rows", [100, 1_000, 50_000])
def bench_text_query(benchmark: Any, rows: int, relevance: str) -> None:
    mem = memcore.open()
    lines = corpus.texts(rows + 50)
    mem.remember_many([{"content": line, "importance": 0.5} for line in lines[:rows]], now=corpus.NOW)
    queries = iter(lines[rows:] * 1000)
    benchmark.pedantic(
        lambda: mem.recall(next(queries), now=corpus.NOW, relevance=relevance), rounds=200, warmup_rounds=5
    )

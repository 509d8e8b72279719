"""What do graphs find, and what does recall cost as a scope grows? `python -m bench.graphs [recall] [growth]`

    recall   200,000 real texts of 90 days, for each lambda of .005, .01 and .05 per hour: how much of the exact top 10
             a graph finds for five sets of weights, and what a query takes, one by one and of a batch of 1,000
    growth   25,000 to 1,600,000 texts: what a query takes by the exact scan and by a graph, and the bytes that each
             reads. Where there are not so many lines, two are joined

Both by default; growth makes graphs over 2.1 million rows, for about 10 minutes, and 4 GB of files. Stores lie on the
disk of the checkout, and are opened anew before they are asked. Raw rows go to bench/results/graphs.jsonl, and the plot
of growth to bench/results/growth.svg, where matplotlib is installed. Run it with OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE
unset.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import memcore
from bench import corpus
from memcore.search.planner import EXACT, Planner
from memcore_kernels.codes import cuts

RESULTS = corpus.RESULTS
ROWS, QUERIES, BATCH, K = 200_000, 500, 1_000, 10
HELD_OUT = 25
RATES = (0.005, 0.01, 0.05)
WEIGHTS = [(0.5, 0.3, 0.2), (0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.34, 0.33, 0.33), (0.2, 0.7, 0.1)]
SIZES = (25_000, 100_000, 400_000, 1_600_000)
PAUSE = 0.3  # seconds, until BLAS's threads have stopped spinning
GRAPH = Planner("faiss", 0, 0.0)

F32 = npt.NDArray[np.float32]


def kept(part: str, **row: Any) -> None:
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "graphs.jsonl").open("a") as file:
        file.write(json.dumps({"at": time.time(), "part": part, **row}) + "\n")


@contextmanager
def opened(vectors: F32, decay_rate: float) -> Iterator[tuple[memcore.Memory, float]]:
    """A store of rows, with a graph, opened anew; and what its making took, in seconds."""
    path = Path(tempfile.mkdtemp(dir=RESULTS, prefix=".graphs-"))
    n, dim = vectors.shape
    times, importance = corpus.life(n)
    try:
        with memcore.open(path, embedder=None, index="faiss", decay_rate=decay_rate) as mem:
            for first in range(0, n, 100_000):
                some = slice(first, first + 100_000)
                flat = pa.array(vectors[some].reshape(-1))
                micros = pa.array((times[some] * 1e6).astype(np.int64)).cast(pa.timestamp("us", "UTC"))
                mem.remember_many(
                    pa.table(
                        {
                            "content": [f"row {i}" for i in range(first, min(first + 100_000, n))],
                            "vector": pa.FixedSizeListArray.from_arrays(flat, dim),
                            "importance": importance[some],
                            "event_time": micros,
                        }
                    ),
                    now=corpus.NOW,
                )
            begun = time.perf_counter()
            mem.compact()
            took = time.perf_counter() - begun
        with memcore.open(path, embedder=None, index="faiss", decay_rate=decay_rate) as mem:
            yield mem, took
    finally:
        shutil.rmtree(path, ignore_errors=True)


def ask(mem: memcore.Memory, planner: Planner, queries: F32, weights: Any) -> tuple[list[memcore.Recall], float, float]:
    """The results of a plan; what a query takes by itself and in a batch, in ms."""
    mem._engine.planner = planner
    found, took = [], []
    for query in queries[:20]:
        mem.recall(vector=query, k=K, weights=weights, now=corpus.NOW)
    for query in queries:
        begun = time.perf_counter()
        found.append(mem.recall(vector=query, k=K, weights=weights, now=corpus.NOW))
        took.append(time.perf_counter() - begun)
    many = np.tile(queries, (-(-BATCH // len(queries)), 1))
    batches = []
    for _ in range(3):
        time.sleep(PAUSE)
        begun = time.perf_counter()
        mem.recall_many(vectors=many, k=K, weights=weights, now=corpus.NOW)
        batches.append(time.perf_counter() - begun)
    time.sleep(PAUSE)
    return found, 1e3 * statistics.median(took), 1e3 * statistics.median(batches) / len(many)


def share(found: Sequence[memcore.Recall], exact: Sequence[memcore.Recall]) -> float:
    hits = [len(set(hits.seqs) & set(best.seqs)) for hits, best in zip(found, exact, strict=True)]
    return float(np.mean(hits) / K)


def recall() -> bool:
    rows = corpus.vectors(ROWS + HELD_OUT)
    vectors, queries = rows[:ROWS], corpus.queries(rows[:ROWS], rows[ROWS:], QUERIES)
    heads = ("recall@10", "one ms", "batch ms", "exact one", "exact batch")
    print(f"{'lambda':>7} {'weights':<16}" + "".join(f"{head:>12}" for head in heads))
    met = True
    for rate in RATES:
        with opened(vectors, rate) as (mem, took):
            for weights in WEIGHTS:
                exact, exact_one, exact_batch = ask(mem, EXACT, queries, weights)
                found, one, batch = ask(mem, GRAPH, queries, weights)
                plan = found[0].explain()["plan"]
                got = share(found, exact)
                met &= got >= 0.99 and batch <= 0.25 and plan.startswith("faiss")
                print(
                    f"{rate:>7g} {weights!s:<16}{got:>12.4f}{one:>12.3f}{batch:>12.3f}{exact_one:>12.3f}"
                    f"{exact_batch:>12.3f}  {plan}",
                    flush=True,
                )
                kept(
                    "recall", rate=rate, weights=weights, recall=got, one_ms=one, batch_ms=batch, exact_ms=exact_one,
                    exact_batch_ms=exact_batch, made_s=took, plan=plan,
                )  # fmt: skip
            print(f"        made in {took:.0f} s: {mem.stats()['graphs']}")
    print(f".99 of the top 10, and at most 0.25 ms a query in batches: {'met' if met else 'NOT MET'}")
    return met


def scanned(found: Sequence[memcore.Recall], dim: int) -> float:
    """Bytes that the exact scan reads of codes and vectors for a query, on average."""
    widths = np.diff([0, *cuts(dim)])
    told = [hits.explain() for hits in found]
    return float(np.mean([np.dot(t["codes_read"], widths) + 4 * dim * t["vectors_read"] for t in told]))


def growth() -> bool:
    most = max(SIZES)
    every = corpus.vectors(most + HELD_OUT)
    points = []
    print(f"{'rows':>10} {'exact ms':>9} {'MB read':>8} {'graph ms':>9} {'batch ms':>9} {'recall@10':>9} {'made s':>7}")
    for rows in SIZES:
        queries = corpus.queries(every[:rows], every[most:], QUERIES)[:200]
        with opened(every[:rows], 0.01) as (mem, took):
            exact, exact_ms, _ = ask(mem, EXACT, queries, WEIGHTS[0])
            found, graph_ms, batch_ms = ask(mem, GRAPH, queries, WEIGHTS[0])
            read = scanned(exact, every.shape[1])
            told = mem.stats()["graphs"]
        got = share(found, exact)
        points.append((rows, exact_ms, graph_ms, batch_ms, read))
        print(
            f"{rows:>10,} {exact_ms:>9.3f} {read / 1e6:>8.1f} {graph_ms:>9.3f} {batch_ms:>9.3f} {got:>9.4f} "
            f"{took:>7.0f}  {found[0].explain()['plan']}",
            flush=True,
        )
        kept(
            "growth", rows=rows, exact_ms=exact_ms, graph_ms=graph_ms, graph_batch_ms=batch_ms, bytes_read=read,
            recall=got, made_s=took, plan=found[0].explain()["plan"], graphs=told,
        )  # fmt: skip
    plot(points)
    return True


def plot(points: Sequence[tuple[int, float, float, float, float]]) -> None:
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    matplotlib.use("svg")
    from matplotlib import pyplot

    rows = [point[0] for point in points]
    figure, axes = pyplot.subplots(figsize=(6, 4))
    for place, label in ((1, "exact scan, one query"), (2, "graph, one query"), (3, "graph, of a batch of 1,000")):
        axes.loglog(rows, [point[place] for point in points], marker="o", label=label)
    axes.set(xlabel="rows of a scope", ylabel="ms a query", title="recall of the top 10, weights (.5, .3, .2)")
    axes.legend()
    axes.grid(visible=True, which="both", alpha=0.3)
    figure.tight_layout()
    figure.savefig(RESULTS / "growth.svg")
    print("bench/results/growth.svg")


PARTS = {"recall": recall, "growth": growth}


def main(parts: Sequence[str]) -> int:
    met = [PARTS[part]() for part in parts or PARTS]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

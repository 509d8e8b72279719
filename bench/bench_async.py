"""How many rows a second do the tasks of an event loop get on disk, when each awaits the one row that it remembers?

Each row has a 256-d vector, and is on disk when its task goes on. One task, many tasks, and what a program would do
without `open_async`: 64 tasks that send the sync verb through the loop's own executor, with a thread for each. All in
one run and in turns, since the disk's speed changes from minute to minute; `ratio` is the median, turn by turn, of each
rate to that of one task.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memcore
from bench import corpus

DIM, TURNS = 256, 7
ROWS = {1: 500, 8: 2_000, 64: 6_400}  # a turn, by the number of tasks
Remember = Callable[[str, Any], Awaitable[Any]]


async def rate(remember: Remember, tasks: int) -> float:
    """Rows a second."""
    vectors = np.random.default_rng(0).standard_normal((256, DIM), dtype=np.float32)
    each = ROWS[tasks] // tasks

    async def work(task: int) -> None:
        for row in range(each):
            await remember(f"row {row} of task {task}", vectors[row % 256])

    begun = time.perf_counter()
    await asyncio.gather(*map(work, range(tasks)))
    return each * tasks / (time.perf_counter() - begun)


@pytest.mark.benchmark(group="remember one row a task, on disk")
def bench_tasks(benchmark: Any, tmp_path: Path) -> None:
    rates: dict[str, list[float]] = {}

    async def turn(mem: memcore.AsyncMemory, plain: memcore.Memory, threads: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()

        def through_threads(text: str, vector: Any) -> Awaitable[Any]:
            return loop.run_in_executor(threads, lambda: plain.remember(text, vector=vector))

        for tasks in ROWS:
            rates.setdefault(f"tasks_{tasks}", []).append(await rate(lambda t, v: mem.remember(t, vector=v), tasks))
        rates.setdefault("threads_64", []).append(await rate(through_threads, 64))

    async def measure() -> None:
        path = tmp_path / "bench.mem"
        async with memcore.open_async(path, embedder=None) as mem:
            with memcore.open(path, embedder=None) as plain, ThreadPoolExecutor(64) as threads:
                await turn(mem, plain, threads)
                rates.clear()
                for _ in range(TURNS):
                    await turn(mem, plain, threads)

    benchmark.pedantic(lambda: asyncio.run(measure()), rounds=1)
    for name, found in rates.items():
        benchmark.extra_info[f"{name}_rows_per_second"] = statistics.median(found)
        benchmark.extra_info[f"{name}_ratio"] = statistics.median(
            ours / one for ours, one in zip(found, rates["tasks_1"], strict=True)
        )
    benchmark.extra_info["turns"] = [rates]


@pytest.mark.benchmark(group="remember one text a task, on disk")
@pytest.mark.parametrize("tasks", [1, 64])
def bench_texts(benchmark: Any, tmp_path: Path, tasks: int) -> None:
    """Texts, through the default embedder."""
    lines = iter(corpus.texts(50_000))

    async def measure() -> float:
        async with memcore.open_async(tmp_path / "bench.mem") as mem:
            await mem.remember("load the embedder")
            return await rate(lambda _text, _vector: mem.remember(next(lines)), tasks)

    found = benchmark.pedantic(lambda: asyncio.run(measure()), rounds=1)
    benchmark.extra_info["rows_per_second"] = found


@pytest.mark.benchmark(group="what a call through asyncio costs, in RAM")
@pytest.mark.parametrize("how", ["sync", "async"])
def bench_one_call(benchmark: Any, how: str) -> None:
    """`get` by id, which itself takes some microseconds: the rest is the way to a thread and back."""
    loop = asyncio.new_event_loop()
    mem = loop.run_until_complete(_opened())
    first = loop.run_until_complete(mem.remember("row"))
    plain = memcore.open(embedder=None)
    same = plain.remember("row")

    async def some() -> None:
        for _ in range(100):
            await mem.get(first.id)

    def others() -> None:
        for _ in range(100):
            plain.get(same.id)

    benchmark.pedantic(others if how == "sync" else lambda: loop.run_until_complete(some()), rounds=30, warmup_rounds=2)
    benchmark.extra_info["microseconds_a_call"] = benchmark.stats.stats.median / 100 * 1e6
    loop.run_until_complete(mem.close())
    loop.close()


async def _opened() -> memcore.AsyncMemory:
    return await memcore.open_async(embedder=None)

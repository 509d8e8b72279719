"""Threads, forks and the interpreter's end, each in a process of its own."""

import os
import subprocess
import sys

import pytest

import drawn

STORE = f"""
import os, sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import memcore
from memcore.search import exact
from memcore.store import segment
ROWS, DIM, REPEATS = {(120, 8, 2) if drawn.PLAIN else (5000, 64, 50)}
segment.ROWS = ROWS // 4 + 1  # sealed segments, so that there are int8 codes, and a tail
rng = np.random.default_rng(0)
mem = memcore.open(embedder=None)
mem.remember_many([
    {{"content": str(i), "vector": v, "event_time": 1.7e9 + i, "importance": 0.5}}
    for i, v in enumerate(rng.standard_normal((ROWS, DIM)))
], now=1.8e9)
QUERIES = rng.standard_normal((REPEATS, DIM))
def answer(query):
    return [(hit.id, hit.total_score) for hit in mem.recall(vector=query, k=10, now=1.8e9)]
def parallel():
    exact.THREADS, exact.PARALLEL_ROWS, segment.LEAST_CODED = 2, 1, 1
"""


def run(program, **environment):
    done = subprocess.run(
        [sys.executable, "-c", STORE + program],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1:] == ["done"], done.stdout + done.stderr


@pytest.mark.parametrize("layer", ["workqueue", "omp"])
def test_case_F6_parallel_kernels_from_threads(layer):
    run(
        """
serial = [answer(query) for query in QUERIES]
with ThreadPoolExecutor(8) as pool:
    for setting in (lambda: None, parallel):
        setting()
        for answers in pool.map(lambda _: [answer(query) for query in QUERIES], range(8)):
            assert answers == serial
assert mem.recall(vector=QUERIES[0], now=1.8e9).explain()["plan"] == "exact scan, 2 threads"
print("done")
""",
        NUMBA_THREADING_LAYER=layer,
    )


def test_first_calls_from_many_threads_at_once():
    """All find the kernels not yet compiled, and the codes of the segments not yet made."""
    run(
        """
parallel()
with ThreadPoolExecutor(8) as pool:
    answers = list(pool.map(answer, [QUERIES[0]] * 8))
assert answers == [answer(QUERIES[0])] * 8
print("done")
"""
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_recalls_too():
    run(
        """
parallel()
before = answer(QUERIES[0])
assert exact._calls is not None
child = os.fork()
if child == 0:
    same = answer(QUERIES[0]) == before and answer(QUERIES[1]) != before
    helped = "memcore-scan-1" in [thread.name for thread in __import__("threading").enumerate()]
    os._exit(0 if same and helped else 1)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert answer(QUERIES[0]) == before
print("done")
"""
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_child_forked_amid_recalls_searches_and_ends_as_usual():
    run(
        """
import multiprocessing, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # that forking beside threads may deadlock: here it must not
parallel()
asked, best = [], exact.best
exact.best = lambda *arguments: asked.append(arguments) or best(*arguments)
answer(QUERIES[0])
exact.best = best
busy = True
def work():
    while busy:
        answer(QUERIES[1])
workers = [threading.Thread(target=work, daemon=True) for _ in range(2)]
for worker in workers:
    worker.start()
def child(queue):  # not mem.recall: another thread may have held the store's lock at the fork
    queue.put(best(*asked[0]).positions.tolist())
expected = best(*asked[0]).positions.tolist()
context = multiprocessing.get_context("fork")
for _ in range(5):
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    assert queue.get() == expected
    process.join(60)
    assert process.exitcode == 0, process.exitcode
busy = False
for worker in workers:
    worker.join()
print("done")
"""
    )


def test_recall_at_the_end_of_the_interpreter():
    """By atexit, and in a thread that outlives the main one."""
    run(
        """
import atexit, threading
parallel()
before = answer(QUERIES[0])
main, seen = threading.current_thread(), []
def outlive():
    while main.is_alive():
        answer(QUERIES[1])
    seen.append(answer(QUERIES[0]) == before)
threading.Thread(target=outlive).start()
def last():
    assert answer(QUERIES[0]) == before
    assert seen == [True]
    print("done")
atexit.register(last)
"""
    )


def test_a_helper_that_fails_or_never_comes_changes_nothing():
    """What it has not done, who asks does by itself."""
    run(
        """
import threading
expected = [answer(query) for query in QUERIES[:5]]
parallel()
scan, here, failed = exact.scan.scan, threading.get_ident(), threading.Event()
def faulty(*arguments):
    if threading.get_ident() != here:
        arguments[2][0] += 1  # it takes a unit
        failed.set()
        raise ValueError("in a helper")
    failed.wait(60)
    scan(*arguments)
exact.scan.scan = faulty
for query, best in zip(QUERIES, expected):
    failed.clear()
    assert answer(query) == best
exact.scan.scan = scan
exact.help_with = lambda run: None
assert [answer(query) for query in QUERIES[:5]] == expected
print("done")
"""
    )

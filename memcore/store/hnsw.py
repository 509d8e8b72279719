"""Which library walks a graph of vectors? FAISS, or hnswlib where the caller chose it: HNSW behind one protocol.

Both rank by inner product, over rows of one length (`graphs` sees to that), and answer with row numbers alone: scores
are computed anew from the vectors, exactly. Neither is asked to filter. FAISS walks the same nodes whether it is given
a selector or not, so a selector can't tell whether rows that are out have taken the places of others; the list without
one does: it holds the best so many of all rows, and those of them that are allowed are the best of the allowed ones.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from memcore.errors import MissingExtra

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
R = TypeVar("R")

# Links a row, twice that many in the lowest layer, and the candidates looked at for them. Of the top 10 by similarity
# alone, at 200,000 x 256 real texts, a walk with 300 rows in view found .991 with 32 and 128, .993 with 16 and 256, and
# .994 with 20 and 256, which takes no longer than with 16.
NEIGHBOURS = 20
BUILT_WITH = 256
THREADS = min(os.cpu_count() or 1, 8)
_ALIGNED = 32  # FAISS has vector instructions for 8-bit codes of such widths alone: 259 took 5 times as long as 272
_forked = False  # GNU OpenMP has no threads in a forked child, and would wait for them


class Graph(Protocol):
    """Rows float32 `(n, dim)`, numbered as they are added."""

    def add(self, rows: F32, *, threads: int) -> None: ...

    def search(self, queries: F32, many: int, effort: int) -> I64:
        """The rows of about the highest inner products for each of `queries` `(q, dim)`: int64 `(q, many)`, best
        first, -1 where none was found. `effort`, at least `many`, is how many rows the walk keeps in view.
        """
        ...

    def save(self, path: Path) -> None: ...

    def nbytes(self) -> int: ...


class Faiss:
    """Rows as 8-bit numbers, a quarter of what they are: that loses .002 of the top 10, which are scored exactly."""

    def __init__(self, dim: int, lowest: F32, highest: F32) -> None:
        faiss = _faiss()
        self.dim = dim
        width = -(-dim // _ALIGNED) * _ALIGNED
        kind = faiss.ScalarQuantizer.QT_8bit
        self._index = faiss.IndexHNSWSQ(width, kind, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        self._index.hnsw.efConstruction = BUILT_WITH
        _apart(1, [partial(self._index.train, self._wide(np.stack([lowest, highest])))])

    @classmethod
    def load(cls, path: Path, dim: int, rows: int) -> Faiss:
        """ValueError if it holds something else."""
        faiss = _faiss()
        made = cls.__new__(cls)
        made.dim = dim
        try:
            made._index = faiss.read_index(os.fspath(path), faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as fault:
            raise ValueError(str(fault)) from fault
        if made._index.ntotal != rows or made._index.d != -(-dim // _ALIGNED) * _ALIGNED:
            raise ValueError("not a graph of so many rows")
        return made

    def _wide(self, rows: F32) -> F32:
        wide = np.zeros((len(rows), self._index.d), np.float32)
        wide[:, : self.dim] = rows
        return wide

    def add(self, rows: F32, *, threads: int) -> None:
        _apart(1 if _forked else threads, [partial(self._index.add, self._wide(rows))])

    def search(self, queries: F32, many: int, effort: int) -> I64:
        asked, how = self._wide(queries), _faiss().SearchParametersHNSW(efSearch=effort)

        def walk(rows: F32) -> I64:
            labels: I64 = self._index.search(rows, many, params=how)[1]
            return labels

        if len(queries) == 1:  # for which FAISS starts no threads
            return walk(asked)
        shares = np.array_split(asked, min(THREADS, len(queries)))
        return np.concatenate(_apart(1, [partial(walk, share) for share in shares]))

    def save(self, path: Path) -> None:
        try:
            _faiss().write_index(self._index, os.fspath(path))
        except RuntimeError as fault:
            raise OSError(str(fault)) from fault

    def nbytes(self) -> int:
        index = self._index
        return int(index.ntotal * (index.d + 4 * (2 * NEIGHBOURS + NEIGHBOURS // 16)))


class Hnswlib:
    """Rows as float32."""

    def __init__(self, dim: int, lowest: F32, highest: F32) -> None:
        self.dim = dim
        self._busy = _lock_of(self)  # how far a search looks is told to the index, not to the call
        self._index = _hnswlib().Index(space="ip", dim=dim)
        self._index.init_index(max_elements=1, ef_construction=BUILT_WITH, M=NEIGHBOURS, random_seed=1)

    @classmethod
    def load(cls, path: Path, dim: int, rows: int) -> Hnswlib:
        """ValueError if it holds something else."""
        made = cls.__new__(cls)
        made.dim, made._busy = dim, _lock_of(made)
        made._index = _hnswlib().Index(space="ip", dim=dim)
        try:
            made._index.load_index(os.fspath(path))
        except RuntimeError as fault:
            raise ValueError(str(fault)) from fault
        if made._index.element_count != rows:
            raise ValueError("not a graph of so many rows")
        return made

    def add(self, rows: F32, *, threads: int) -> None:
        index = self._index
        if index.element_count + len(rows) > index.max_elements:
            index.resize_index(max(2 * index.max_elements, index.element_count + len(rows)))
        first = index.element_count
        index.add_items(rows, np.arange(first, first + len(rows)), num_threads=threads)

    def search(self, queries: F32, many: int, effort: int) -> I64:
        with self._busy:
            self._index.set_ef(effort)
            count = min(many, self._index.element_count)
            labels, _ = self._index.knn_query(queries, count, num_threads=min(THREADS, len(queries)))
        found = np.full((len(queries), many), -1, np.int64)
        found[:, :count] = labels
        return found

    def save(self, path: Path) -> None:
        try:
            self._index.save_index(os.fspath(path))
        except RuntimeError as fault:
            raise OSError(str(fault)) from fault

    def nbytes(self) -> int:
        return int(self._index.max_elements * 4 * (self.dim + 2 * NEIGHBOURS + 4))


BACKENDS: dict[str, type[Faiss] | type[Hnswlib]] = {"faiss": Faiss, "hnswlib": Hnswlib}


def _faiss() -> Any:  # whose stubs lack half of it
    import faiss

    return faiss


def _hnswlib() -> Any:
    try:
        import hnswlib
    except ImportError as fault:
        raise MissingExtra(
            "index='hnswlib' needs the package hnswlib, which is not installed: pip install 'memcore-engine[hnsw]', or "
            "leave index out"
        ) from fault
    return hnswlib


def unavailable(name: str) -> bool:
    """Whether a backend's library is not installed."""
    try:
        check_backend(name)
    except MissingExtra:
        return True
    return False


def check_backend(name: str) -> None:
    """MissingExtra if a backend's library is not installed."""
    if name == "hnswlib":
        _hnswlib()


def _apart(threads: int, calls: Sequence[Callable[[], R]]) -> list[R]:
    """What calls that may use OpenMP return, each made in a thread of its own, which may have so many more: so that the
    caller's number of threads stays as it was. With one, OpenMP starts none: its threads spin for a while after a call.
    """
    faiss = _faiss()
    results: list[Any] = [None] * len(calls)
    faults: list[BaseException] = []

    def work(place: int) -> None:
        try:
            faiss.omp_set_num_threads(threads)
            results[place] = calls[place]()
        except BaseException as fault:
            faults.append(fault)

    workers = [threading.Thread(target=work, args=(i,), name="memcore-graph") for i in range(len(calls))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if faults:
        raise faults[0]
    return results


_locked: weakref.WeakSet[Hnswlib] = weakref.WeakSet()


def _lock_of(graph: Hnswlib) -> threading.Lock:
    _locked.add(graph)
    return threading.Lock()


def _before_fork() -> None:
    """hnswlib has locks of its own, which a child would find held by a thread that it has not."""
    _held[:] = [(graph, graph._busy) for graph in list(_locked)]
    for _, busy in _held:
        busy.acquire()


def _in_parent() -> None:
    for _, busy in _held:
        busy.release()
    _held.clear()


def _in_child() -> None:
    global _forked
    _forked = True
    for graph, _ in _held:
        graph._busy = threading.Lock()
    _held.clear()


_held: list[tuple[Hnswlib, threading.Lock]] = []
os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)

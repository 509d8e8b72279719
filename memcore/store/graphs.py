"""Over which rows is there a graph, so that a recall need not look at all of them? Derived data, as the codes are.

The score is linear in a row's vector, its recency at a fixed moment and its importance: recency at `now` is that
moment's times e^(-lambda * (now - moment)). So a graph over rows [vector, recency, importance] finds the best rows by
the whole score, whatever the weights; one graph serves one lambda, and moments from its newest row on.

Rows get more numbers, which a query has zeros for. One makes them all equally long: over rows of several lengths a walk
by inner product misses some. The others are random: rows that are the same, as what an agent logs again and again, else
have links to each other alone, and few ways lead there. Where four fifths of 60,000 rows were 20 rows, .94 of the top
10 were as good as the exact ones without them, and .999 with them.

A graph is tried on queries near its own rows before it is used, against the exact result: how far a walk must look for
.99 of it depends on the rows. Where no effort is enough, as among thousands of rows that are nearly the same, the graph
is kept as one that is not to be used, so that it isn't made again.

A graph stands over sealed segments of one scope, and may outlive some of them. Rows that no graph covers are scanned.
Another graph is made when these are an eighth of the scope's rows, and takes in those that are not much larger than
it, so that a scope has few, and each row is put into a new one some log(n) times.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import threading
import time
import zlib
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memcore.clock import HOUR
from memcore.store.files import Source, appearing, crc_of_file, on_disk
from memcore.store.hnsw import BACKENDS, Graph, unavailable
from memcore.store.segment import Segment, View

LEAST_ROWS = 16_384  # of a scope: fewer are scanned in 0.2 ms
FREE = 8  # another graph is made when one in so many rows has none
ALIVE = 0.75  # of a graph's rows, below which it is made anew
MADE_AT_ONCE = 2048  # rows added between two looks at whether to stop: less than a second on one core
_APART = 5  # random numbers of a row
_SPREAD = 0.1  # their standard deviation
_FAR = 3.0  # beyond so many of these they are cut
_MORE = 3 + _APART  # numbers of a row that its vector has not
MOSTLY_SIMILAR = 0.6  # the share of similarity from which a walk must look further, and so has an effort of its own
MUCH_IMPORTANCE = 0.35  # the share of importance from which the same holds
EFFORTS = (250, 300, 350, 400, 500, 600, 900, 1400)  # how many rows a walk keeps in view: those that are tried
SCORED = 64  # rows of a walk that are scored exactly, at least: its own scores are off by some .002
_TRIED = 200  # queries
_TRIED_K = 10
_ENOUGH = 0.993  # of their exact top 10: .99 with what 2,000 hits are off by
# By kind of weights (`kind_of`). With (.5, 0, .5) no effort found enough among 1.6 million rows, of which many are as
# good as another: that should not bar the graph from the other weights.
_TRIED_WITH = (
    ((0.8, 0.1, 0.1), (1.0, 0.0, 0.0)),
    ((0.5, 0.1, 0.4), (0.5, 0.0, 0.5)),
    ((0.5, 0.3, 0.2), (0.34, 0.33, 0.33), (0.2, 0.7, 0.1), (0.5, 0.16, 0.34)),
)
_LENGTH = 3.0 + _APART * (_FAR * _SPREAD) ** 2  # of all rows, squared: a vector, a recency, an importance of 1 at most
_FORMAT = 2
_SETTLED = 50_000_000  # ns: a folder changed less than this ago may change again within its clock's tick

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
Progress = Callable[[int, int, str], None]  # done, of how many, with what
Key = tuple[str, int] | int  # of a segment: its place in a file, or which array holds its vectors


class Wanted(NamedTuple):
    """What graphs a user of the store asks for: of scopes that have so many rows."""

    backend: str
    decay_rate: float
    least_rows: int


class Run:
    """A graph, and the rows that it covers: segment after segment, `starts` int64 `(s + 1,)`."""

    def __init__(
        self, backend: str, decay_rate: float, newest: int, dim: int, keys: Sequence[Key], sizes: Sequence[int],
        graph: Graph | None = None, path: Path | None = None, told: tuple[int, int] = (0, 0),
        efforts: Sequence[int] = (0, 0, 0),
    ) -> None:  # fmt: skip
        self.backend = backend
        self.decay_rate = decay_rate
        self.newest = newest  # event time in us, at which recency is 1
        self.dim = dim
        self.keys = tuple(keys)
        self.starts: I64 = np.concatenate([[0], np.cumsum(np.asarray(sizes, np.int64))])
        self.path = path
        self.efforts = tuple(efforts)  # by kind of weights; 0: no effort is enough
        self.alive: Any = None  # what must live as long as this does, for the keys to stay what they are
        self.unfit = False  # its file is gone or is not as it was written
        self._told = told
        self._graph = graph

    @property
    def rows(self) -> int:
        return int(self.starts[-1])

    def graph(self) -> Graph | None:
        """Loads it if need be; None if it is unfit."""
        if self._graph is None and self.path is not None and not self.unfit:
            with _loading:
                if self._graph is None:
                    with suppress(OSError, ValueError):
                        if crc_of_file(self.path) == self._told:  # a damaged one could end the process
                            self._graph = BACKENDS[self.backend].load(self.path, self.dim + _MORE, self.rows)
                    self.unfit = self._graph is None
        return self._graph

    def nbytes(self) -> int:
        """Of what is in RAM of it: 0 until it is first asked."""
        return 0 if self._graph is None else self._graph.nbytes()


_loading = threading.Lock()


def kind_of(alpha: float, beta: float, gamma: float) -> int:
    """Which of a graph's efforts is for these weights: 0 where similarity counts most, 1 where importance counts much,
    2 for the rest.
    """
    left = alpha + beta + gamma
    if alpha >= MOSTLY_SIMILAR * left:
        return 0
    return 1 if gamma >= MUCH_IMPORTANCE * left else 2


def key_of(segment: Segment) -> Key:
    source = segment.source
    return (source.file, source.start) if isinstance(source, Source) else id(segment.view().made_of["vector"])


def lengthened(
    vectors: F32, event_time: I64, importance: F32, decay_rate: float, newest: int, rng: np.random.Generator
) -> F32:
    """Rows as a graph takes them, float32 `(n, d + 8)`: all of one length."""
    n, dim = vectors.shape
    rows = np.empty((n, dim + _MORE), np.float32)
    rows[:, :dim] = vectors
    with np.errstate(over="ignore"):  # a rate may be as large as floats go
        rows[:, dim] = np.exp(-decay_rate / HOUR * (newest - event_time))
    rows[:, dim + 1] = importance
    rows[:, dim + 2 : -1] = _SPREAD * np.clip(rng.standard_normal((n, _APART)), -_FAR, _FAR)
    rows[:, -1] = np.sqrt(np.maximum(_LENGTH - np.einsum("ij,ij->i", rows[:, :-1], rows[:, :-1]), 0))
    return rows


def asked(queries: F32, weights: Sequence[float], decay_rate: float, now: int, newest: int) -> F32:
    """Queries as a graph takes them: their inner product with a row is its score."""
    alpha, beta, gamma = weights
    dim = queries.shape[1]
    made = np.zeros((len(queries), dim + _MORE), np.float32)
    made[:, :dim] = alpha * queries
    made[:, dim] = beta * math.exp(-decay_rate * (now - newest) / HOUR)
    made[:, dim + 1] = gamma
    return made


def build(
    segments: Sequence[Segment], wanted: Wanted, *, threads: int, stopping: Callable[[], bool],
    progress: Progress,
) -> Run | None:  # fmt: skip
    """A graph over all rows of sealed segments; None if it was stopped. Takes 0.2 ms a row on two cores, no lock."""
    views = [segment.view() for segment in segments]
    dim, total = segments[0].dim, sum(view.n for view in views)
    newest = max(int(view.columns["event_time"].max()) for view in views)
    lowest, highest = np.zeros(dim + _MORE, np.float32), np.ones(dim + _MORE, np.float32)
    lowest[dim + 2 : -1], highest[dim + 2 : -1], highest[-1] = -_FAR * _SPREAD, _FAR * _SPREAD, math.sqrt(_LENGTH)
    lowest[:dim] = np.min([view.columns["vector"].min(axis=0) for view in views], axis=0)
    highest[:dim] = np.max([view.columns["vector"].max(axis=0) for view in views], axis=0)
    graph = BACKENDS[wanted.backend](dim + _MORE, lowest, highest)
    rng = np.random.default_rng(0)
    done = 0
    for view in views:
        c = view.columns
        for first in range(0, view.n, MADE_AT_ONCE):
            if stopping():
                return None
            some = slice(first, first + MADE_AT_ONCE)
            vectors, times, importance = (c[name][some] for name in ("vector", "event_time", "importance"))
            graph.add(lengthened(vectors, times, importance, wanted.decay_rate, newest, rng), threads=threads)
            done += len(vectors)
            progress(done, total, "index")
    run = Run(
        wanted.backend, wanted.decay_rate, newest, dim, [key_of(segment) for segment in segments],
        [view.n for view in views], graph,
    )  # fmt: skip
    run.alive = views
    run.efforts = _efforts(run, graph, views)
    return run


def _efforts(run: Run, graph: Graph, views: Sequence[View]) -> tuple[int, ...]:
    """The least effort that finds enough, for weights of each kind."""
    rng = np.random.default_rng(1)
    chosen = np.sort(rng.integers(0, run.rows, 8 * _TRIED))
    near = np.concatenate(
        [view.columns["vector"][chosen[(chosen >= a) & (chosen < b)] - a] for view, a, b in _placed(run, views)]
    )
    near = rng.permutation(np.unique(near, axis=0))[:_TRIED]  # what is there often would else be all that is asked
    queries = near + 0.8 / math.sqrt(run.dim) * rng.standard_normal(near.shape).astype(np.float32)
    queries /= np.maximum(np.linalg.norm(queries, axis=1, keepdims=True), 1e-9)
    found = []
    for several in _TRIED_WITH:
        least = [_least(graph, run, views, queries, weights) for weights in several]
        found.append(0 if 0 in least else max(least))
    return tuple(found)


def _least(graph: Graph, run: Run, views: Sequence[View], queries: F32, weights: tuple[float, float, float]) -> int:
    k = min(_TRIED_K, run.rows)
    best = np.empty((len(queries), 0), np.float32)
    for view in views:
        scores = _scores(view, slice(None), queries @ view.columns["vector"].T, weights, run)
        best = _highest(np.concatenate([best, scores], axis=1), k)
    enough = best.min(axis=1, keepdims=True) - 1e-5  # a hit that is as good as the last one will do
    made = asked(queries, weights, run.decay_rate, run.newest, run.newest)
    for effort in EFFORTS:
        rows = graph.search(made, SCORED, effort)
        scores = np.full(rows.shape, -np.inf, np.float32)
        for view, first, last in _placed(run, views):
            query, place = np.nonzero((rows >= first) & (rows < last))
            at = rows[query, place] - first
            dots = np.einsum("ij,ij->i", queries[query], view.columns["vector"][at])
            scores[query, place] = _scores(view, at, dots, weights, run)
        if (_highest(scores, k) >= enough).mean() >= _ENOUGH:
            return effort
    return 0


def _highest(scores: F32, k: int) -> F32:
    """The k highest of each row, in any order; fewer, if there are no more."""
    many = min(k, scores.shape[1])
    highest: F32 = -np.partition(-scores, many - 1, axis=1)[:, :many]
    return highest


def _scores(view: View, rows: Any, dots: F32, weights: tuple[float, float, float], run: Run) -> F32:
    """Of some rows, as of the newest one of all."""
    alpha, beta, gamma = weights
    c = view.columns
    with np.errstate(over="ignore"):
        recency = np.exp(-run.decay_rate / HOUR * (run.newest - c["event_time"][rows]))
    scores: F32 = alpha * dots + (beta * recency + gamma * c["importance"][rows]).astype(np.float32)
    return scores


def _placed(run: Run, views: Sequence[View]) -> Iterator[tuple[View, int, int]]:
    """Views with the numbers of their first row in the graph, and of the one behind their last."""
    yield from zip(views, run.starts[:-1].tolist(), run.starts[1:].tolist(), strict=True)


class Graphs:
    """The graphs of a store. `folder` is where a store in a directory keeps what is derived."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.wanted: set[Wanted] = set()
        self.runs: tuple[Run, ...] = ()
        self._seen = -1  # when the folder changed last
        self._lock = threading.Lock()

    def look(self) -> None:
        """Notices what graphs other processes have made or removed."""
        if self.folder is None:
            return
        try:
            changed = self.folder.stat().st_mtime_ns
        except OSError:
            changed = 0
        if changed == self._seen:
            return
        with self._lock:
            known = {run.path: run for run in self.runs}
            found = [known.get(run.path, run) for run in _kept(self.folder, known)]
            if [run.path for run in found] != [run.path for run in self.runs]:
                self.runs = tuple(found)
            self._seen = changed if time.time_ns() - changed > _SETTLED else -1

    def forked(self) -> None:
        """Of a child that was forked while a thread that it has not was at this."""
        self._lock = threading.Lock()

    def due(self, segments: Sequence[Segment], wanted: Wanted) -> list[Segment]:
        """The segments of a scope over which a graph is to be made; none if there are graphs enough."""
        sealed = {key_of(s): s for s in segments if s.sealed and s.dim and (s.source is None) == (self.folder is None)}
        total = sum(segment.n for segment in sealed.values())
        if total < max(wanted.least_rows, LEAST_ROWS):
            return []
        free, covered = dict(sealed), []
        for run in self.of(wanted.backend, wanted.decay_rate):
            mine = [key for key in run.keys if key in free]
            rows = sum(free[key].n for key in mine)
            if rows >= ALIVE * run.rows and not run.unfit:
                covered.append((rows, mine))
                for key in mine:
                    del free[key]
        size = sum(segment.n for segment in free.values())
        if size * FREE < total or not size:
            return []
        for rows, mine in sorted(covered):
            if rows < 2 * size:
                free.update((key, sealed[key]) for key in mine)
                size += rows
        return [segment for key, segment in sealed.items() if key in free]

    def of(self, backend: str, decay_rate: float) -> list[Run]:
        """The graphs of a backend that are for a lambda, the largest first."""
        found = [run for run in self.runs if (run.backend, run.decay_rate) == (backend, decay_rate)]
        return sorted(found, key=lambda run: -run.rows)

    def take(self, run: Run, segments: Sequence[Segment]) -> bool:
        """Keeps a new graph of a scope that has these segments by now, and lets go of those that it replaces. Not one
        over segments that have gone meanwhile, since it may hold what was forgotten. Of a store in a directory: while
        nobody else maintains it.
        """
        here = {key_of(segment) for segment in segments}
        if not here.issuperset(run.keys):
            return False
        if self.folder is not None:
            write(self.folder, run)
        mine = set(run.keys)
        gone = [
            old
            for old in self.of(run.backend, run.decay_rate)
            if old is not run and mine & set(old.keys) and here & set(old.keys) <= mine
        ]
        for old in gone:
            _remove(old.path)
        with self._lock:
            kept = [old for old in self.runs if old not in gone and (run.path is None or old.path != run.path)]
            self.runs = (*kept, run)
        return True

    def drop(self, here: Container[Key]) -> None:
        """Removes the graphs that have rows of segments that are no more: they may hold what was forgotten. Of a store
        in a directory: while nobody else maintains it.
        """
        self.look()
        gone = [run for run in self.runs if any(key not in here for key in run.keys)]
        for run in gone:
            _remove(run.path)
        with self._lock:
            self.runs = tuple(run for run in self.runs if run not in gone)

    @contextmanager
    def kept_up(self) -> Iterator[None]:
        """While this process makes graphs like those that there are now, also where another asked for them: who opens a
        store without graphs and compacts it drops those of its other users.
        """
        self.look()
        there = {(run.backend, run.decay_rate) for run in self.runs if not unavailable(run.backend)}
        more = {Wanted(*kind, LEAST_ROWS) for kind in there - {wanted[:2] for wanted in self.wanted}}
        self.wanted |= more
        try:
            yield
        finally:
            self.wanted -= more

    def told(self) -> list[dict[str, Any]]:
        """What there is, for who asks: the largest first."""
        self.look()
        found = sorted(self.runs, key=lambda run: -run.rows)
        return [
            {
                "backend": run.backend,
                "decay_rate": run.decay_rate,
                "rows": run.rows,
                "efforts": list(run.efforts),
                "bytes": run.nbytes(),
            }
            for run in found
        ]


def write(folder: Path, run: Run) -> None:
    """Keeps a graph: first its file, then what tells about it, without which it counts as not there."""
    folder.mkdir(exist_ok=True)
    graph = run.graph()
    assert graph is not None
    run.path = folder / f"{secrets.token_hex(8)}.{run.backend}"
    with appearing(run.path) as part:
        graph.save(part)
        run._told = on_disk(part)
        part.replace(run.path)
    about = {
        "format": _FORMAT,
        "decay_rate": run.decay_rate,
        "newest": run.newest,
        "dim": run.dim,
        "efforts": list(run.efforts),
        "segments": [[*key, n] for key, n in zip(run.keys, np.diff(run.starts).tolist(), strict=True)],  # type: ignore[misc]
        "bytes": run._told[0],
        "crc": run._told[1],
    }
    path = _about(run.path)
    with appearing(path) as part:
        part.write_text(json.dumps({"about": about, "crc": _crc(about)}), encoding="utf-8")
        on_disk(part)
        part.replace(path)


def _crc(about: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(about, sort_keys=True).encode())


def _about(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _remove(path: Path | None) -> None:
    if path is not None:
        _about(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)


def _kept(folder: Path, known: dict[Path | None, Run]) -> Iterator[Run]:
    """The graphs that a folder keeps, by name. What cannot be read counts as not there."""
    paths = sorted(folder.glob("*.json")) if folder.is_dir() else ()
    for path in paths:
        run = known.get(path.with_suffix("")) or read(path.with_suffix(""))
        if run is not None:
            yield run


def read(path: Path) -> Run | None:
    """What is told about a kept graph; None if nothing that makes sense is."""
    with suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        told = json.loads(_about(path).read_text(encoding="utf-8"))
        about = told["about"]
        if told["crc"] != _crc(about) or about["format"] != _FORMAT or path.suffix[1:] not in BACKENDS:
            return None
        keys = [(str(file), int(start)) for file, start, _ in about["segments"]]
        sizes = [int(n) for *_, n in about["segments"]]
        efforts = [int(effort) for effort in about["efforts"]]
        if len(efforts) != len(_TRIED_WITH):
            return None
        return Run(
            path.suffix[1:], float(about["decay_rate"]), int(about["newest"]), int(about["dim"]), keys, sizes,
            path=path, told=(int(about["bytes"]), int(about["crc"])), efforts=efforts,
        )  # fmt: skip
    return None


def damaged_in(folder: Path) -> list[Path]:
    """The graphs of a folder that are not as what is told about them says."""
    found = []
    for path in sorted(path for backend in BACKENDS for path in folder.glob(f"*.{backend}")):
        run = read(path)
        try:
            whole = run is not None and crc_of_file(path) == run._told
        except OSError:
            whole = False
        if not whole:
            found.append(path)
    return found


def tidy(folder: Path, named: set[str]) -> None:
    """Removes graphs of which no segment file is there any more, and files that nothing tells about. While nobody else
    maintains the store.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix == ".json" and path.with_suffix("").suffix[1:] in BACKENDS:
            run = read(path.with_suffix(""))
            if run is None or not path.with_suffix("").exists() or not {key[0] for key in _files(run)} & named:
                _remove(path.with_suffix(""))
        elif path.suffix[1:] in BACKENDS and not _about(path).exists():
            path.unlink(missing_ok=True)


def _in_child() -> None:
    global _loading
    _loading = threading.Lock()


os.register_at_fork(after_in_child=_in_child)


def _files(run: Run) -> Iterator[tuple[str, int]]:
    yield from (key for key in run.keys if isinstance(key, tuple))

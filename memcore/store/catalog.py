"""What is in the store, over all scopes? Partitions, names, the commit order, and the one lock that writers take.

This is the store as one process has it in RAM. A store in a directory has a `Journal` beside it, which is the truth for
all processes: a partition is read from it when it is first asked for, and again when another process has written. A
store without a directory is the same without the journal.

A write is a function that changes partitions under the lock: a few appends and marks, all of it or none. Nothing slow
runs under the lock, and readers don't take it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from memcore import ids
from memcore.clock import DAY
from memcore.config import UNDO_DAYS
from memcore.errors import DimensionMismatch, InvalidInput, StoreClosed, StoreCorrupt
from memcore.store.codes import DERIVED, Coder
from memcore.store.cold import COLD, Cold, Folder, Place, Shelf, Tables, rewritten, seqs_of
from memcore.store.graphs import Graphs, Wanted
from memcore.store.partition import SWEEP_SHARE, UPSERTED, Partition, Ref, Save, Shown
from memcore.store.segment import FIXED, MARKS, TEXTS, Columns, Segment, alike, own, zeros
from memcore.store.snapshot import Snapshot

if TYPE_CHECKING:  # a store in RAM does without SQLite
    from memcore.store.journal import Journal, State

T = TypeVar("T")
Name = tuple[str, str]  # of a scope: tenant, project
Counts = dict[Name, dict[int, list[int]]]  # scope -> seq of a row -> accesses, the last
CLOSED = "the store is closed; open it again with memcore.open"
_MOST_WAITING = 64  # calls of which the accesses wait to be counted
CODED = ("session", "role", "source")


_FIRST = alike("version", 1)
_ONE: Columns = {name: zeros(name, 1) for name in FIXED}


def columns_of(n: int) -> Columns:
    """Columns for `n` new rows, all zero and without texts, to be replaced where there is more and given to
    `Catalog.commit`. They are read-only: what most rows don't set costs nothing.
    """
    columns: Columns = dict(_ONE) if n == 1 else {name: zeros(name, n) for name in FIXED}
    for name in TEXTS:
        columns[name] = [None] * n
    columns["vector"] = None
    return columns


def taken(columns: Columns, rows: Sequence[int] | npt.NDArray[np.int64]) -> Columns:
    """Some rows of some columns, in the order given."""
    at = np.asarray(rows, dtype=np.int64)
    return {
        name: None
        if values is None
        else values[at]
        if isinstance(values, np.ndarray)
        else [values[i] for i in at.tolist()]
        for name, values in columns.items()
    }


@dataclass(slots=True)
class Commit:
    """What became of the rows given, in order: their seqs and ids, those of the first row where one was a retry.

    `stored` are the columns of the rows that are new, in the order of `fresh`, their places among the rows given.
    """

    seqs: list[int]
    id_hi: ids.U64
    id_lo: ids.U64
    stored: Columns
    fresh: list[int]


class Forgetting(NamedTuple):
    """A commit that has forgotten something, at a time; `erased`: so that it cannot be restored."""

    seq: int
    scope: Name
    at: int
    erased: bool


class Catalog:
    def __init__(self, journal: Journal | None = None) -> None:
        self.lock = threading.RLock()
        self.shown = threading.Condition(self.lock)  # a transaction has ended
        self.journal = journal
        self.dim = 0  # of the vectors; 0 until the first
        # of the embedder that made the vectors; None if callers pass them, or none is there
        self.fingerprint: str | None = None
        self.seq = 0  # of the last commit, or of the last write of a transaction that is under way
        self.closed = False
        self.partitions: dict[Name, Partition] = {}
        self.names: list[str] = []
        self.foreign = 0  # the last commit by another process
        self.touched = self.counted = 0  # the last flush of counters, and the last by another process
        self._ours = 0, 0  # as these two were before that: between them lie flushes of this process alone
        self.generation = 0  # of the list of segment files
        self.sealed_upto = 0  # rows up to this seq lie in segment files
        self.forgettings: list[Forgetting] = []  # of a store in a directory only those under way
        self._swept = 0  # how many of them allowed rows to go at the last sweep
        self.coder = self._new_coder()
        self.graphs = Graphs(None if journal is None else journal.directory / DERIVED)
        self.imports: dict[str, str] = {}  # how far imports are that aren't done, by their file; of a store in RAM
        self.imported: list[tuple[str, str | None]] = []  # what the transaction changes of that
        self.on_fork: list[Callable[[], None]] = [self.graphs.forked]
        self.quiet: list[threading.RLock] = []  # what a fork waits for, beside the catalog's own lock
        self.place: Place = Tables() if journal is None else Folder(journal.directory / COLD)
        self._shelf = Shelf(self.place)
        self._codes: dict[str, int] = {}
        self._ids = ids.IdMaker()
        self._others: object = None  # `Journal.changes_by_others` when a transaction began last
        self._asked: object = None  # `Journal.changes` when the state was last read
        self._accesses: deque[tuple[Name, Sequence[int], int]] = deque()  # not yet counted
        self._counts: Counts = {}  # counted in RAM, and not yet on disk
        self._taken: Counts = {}  # what of that is being written
        self._flush = 0  # the flush of counters that is being committed
        self._begun: _Point | None = None  # what the transaction under way would take back
        self._thread = 0  # that has begun it
        self._body: _Point | None = None  # what the write under way would take back
        with _forking:
            _catalogs.add(self)

    def _new_coder(self) -> Coder:
        return Coder(None if self.journal is None else self.journal.directory / DERIVED)

    def code(self, name: str) -> int:
        """The code of a session, role or source, made at its first use. Under the lock."""
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self.names)
            self.names.append(name)
        return code

    def encode(self, columns: Columns, names: Mapping[str, Sequence[str]]) -> None:
        """Fills the columns of codes from the rows' session, role and source names. Under the lock."""
        for column in CODED:
            columns[column] = np.array([self.code(name) for name in names[column]], FIXED[column])

    def known_code(self, name: str) -> int:
        """The code of a name, or -1, which no row has."""
        code = self._codes.get(name)
        if code is None:
            self.look()  # another process may have made it
            code = self._codes.get(name, -1)
        return code

    # Reading

    def snapshot(self, scope: Name, *, counted: bool = True) -> Snapshot:
        """What readers see of a scope now. Waits for no writer. With all accesses counted that are no writer's to count
        at the moment, unless that is of no account.
        """
        if counted:
            self._count_if_free()
        if self.closed:  # since the verb began: an empty answer would be a wrong one
            raise StoreClosed(CLOSED)
        self.look()
        partition = self.partitions.get(scope)
        if self.journal is not None and not self._current(partition):
            with self.lock:
                partition = self.loaded(scope)
        if partition is None:
            return self._snapshot(scope, _NOTHING)
        shown, seen = partition.shown, partition.seen
        if seen is None or seen[0] is not shown or not seen[1].current(self.dim, self.coder):
            seen = partition.seen = shown, self._snapshot(scope, shown)
        snapshot: Snapshot = seen[1]
        return snapshot

    def _snapshot(self, scope: Name, shown: Shown, cold: Sequence[Segment] = ()) -> Snapshot:
        return Snapshot(
            shown, tenant_id=scope[0], project_id=scope[1], dim=self.dim, names=self.names, coder=self.coder,
            graphs=self.graphs, cold=cold,
        )  # fmt: skip

    def whole(self, scope: Name, *, hot: bool = True) -> Snapshot:
        """What readers see of a scope with its cold tier, or of that alone. Its files are read without the lock."""
        (made,) = self._whole(lambda: [scope])
        return made if hot else self._snapshot(scope, Shown(made.seq, (), ()), made.cold)

    def as_written(self, scope: Name, partition: Partition, *, cold: bool = True) -> Snapshot:
        """A scope, by default with its cold tier, with all that the transaction has done so far. Under the lock."""
        sizes = tuple(segment.n for segment in partition.segments)
        shown = Shown(self.seq, partition.segments, sizes, links=partition.links.view())
        return self._snapshot(scope, shown, partition.cold_segments() if cold else ())

    def snapshots(self) -> list[Snapshot]:
        """All scopes that have rows, with their cold tiers, at one moment."""
        return self._whole(self.scopes)

    def _whole(self, scopes: Callable[[], Sequence[Name]]) -> list[Snapshot]:
        """Scopes with their cold tiers. If files have gone meanwhile, since they were swept, of the next state."""
        tried: object = None
        while True:
            with self.lock:
                if self.closed:
                    raise StoreClosed(CLOSED)
                self.count_accesses()
                self.look()
                shown = {scope: self._shown_whole(scope) for scope in scopes()}
            try:
                return [self._snapshot(scope, s, self._cold_of(s.cold)) for scope, s in shown.items()]
            except FileNotFoundError as fault:
                named = {scope: s.cold.files for scope, s in shown.items()}
                if named == tried:
                    raise _missing(fault) from fault
                tried = named

    def _shown_whole(self, scope: Name) -> Shown:
        """What is shown of a scope, with the cold files that are there now. Under the lock."""
        partition = self.loaded(scope)
        while partition is not None and partition.cold.files and partition.generation != self.generation:
            if not self._in_hand(scope):
                self.renew(scope)
                partition = self.partitions.get(scope)
                break
            self._wait()  # it is being written
            partition = self.loaded(scope)
        return partition.shown if partition else _NOTHING

    def _cold_of(self, cold: Cold) -> list[Segment]:
        return self._shelf.segments(cold, self.dim, self.fingerprint, self._codes)

    def _cold_under_lock(self, cold: Cold) -> list[Segment]:
        """No other process can have swept the files, since this one writes."""
        try:
            return self._cold_of(cold)
        except FileNotFoundError as fault:
            raise _missing(fault) from fault

    def scopes(self) -> list[Name]:
        """Those that have rows which are not forgotten, all of them read into RAM. Under the lock."""
        self.look()
        names = set(self.partitions)
        if self.journal is not None:
            journal = self.journal

            def read(state: State) -> None:
                names.update((tenant, project) for tenant, project in journal.select(_SCOPES))
                for scope in names:
                    if not self._current(self.partitions.get(scope)) and not self._in_hand(scope):
                        self._read(scope, state)

            self._reading(read)
        return sorted(scope for scope in names if scope in self.partitions and self.partitions[scope].live())

    def graphs_due(self) -> Iterator[tuple[Wanted, Partition, list[Segment]]]:
        """The graphs that are to be made, of the scopes that are in RAM, and over which segments."""
        self.graphs.look()
        for wanted in sorted(self.graphs.wanted):
            for partition in list(self.partitions.values()):
                if due := self.graphs.due(partition.shown.segments, wanted):
                    yield wanted, partition, due

    # What other processes have written

    def look(self) -> None:
        """Notices what others have committed since: partitions that are behind are read when they are asked for."""
        if self.journal is None or self._inside():
            return  # what others had written was noticed when the transaction began, and since then they wait
        asked = self.journal.changes()
        if asked == self._asked:
            return
        state = self.journal.state()
        known = state.seq <= self.seq and (state.generation, state.touched) == (self.generation, self.touched)
        if known and self._asked is not None:
            self._asked = asked  # what has changed is this process's own
            return
        with self.lock:
            asked = self.journal.changes()
            state = self.journal.state()
            while self._begun is not None and state.seq > self.seq:  # the commit under way, and then another's
                self._wait()
            self.notice(state)
            if self._begun is None and state.touched <= self.touched:  # else what it leaves out is still to be noticed
                self._asked = asked

    def notice(self, state: State) -> None:
        """Takes note of how far the store is. Under the lock."""
        assert self.journal is not None
        if state.generation != self.generation:
            self.journal.files.clear()
        self.generation, self.sealed_upto = state.generation, state.sealed_upto
        if state.seq > self.seq:
            self.seq = self.foreign = state.seq
        ours = self._flush == self.touched + 1 == state.touched  # not yet said to be written
        if state.touched > self.touched and not ours:
            self._ours = self.counted, self.touched
            self.touched = self.counted = state.touched
        if self._begun is None:
            if state.seq:  # until then they are as whoever opened the store would make them
                if (state.dim, state.fingerprint) != (
                    self.dim,
                    self.fingerprint,
                ):  # all was embedded anew, or the first
                    self.count_accesses()  # of the rows that are in RAM
                    self.partitions, self.coder = {}, self._new_coder() if self.dim else self.coder
                self.dim, self.fingerprint = state.dim, state.fingerprint
            for name in self.journal.names_from(len(self.names)):
                self._codes[name] = len(self.names)
                self.names.append(name)

    def _current(self, partition: Partition | None) -> bool:
        """Whether a partition has all that was committed. One whose rows have moved to other files has."""
        return partition is not None and (
            self.journal is None or (partition.applied >= self.foreign and partition.touched >= self.counted)
        )

    def loaded(self, scope: Name) -> Partition | None:
        """A partition as it is on disk, read as far as it isn't in RAM. Under the lock."""
        partition = self.partitions.get(scope)
        while self.journal is not None and not self._current(partition):
            if not self._in_hand(scope):
                return self._reading(lambda state: self._read(scope, state))
            self._wait()  # ours is being written, and another process has written after it
            partition = self.partitions.get(scope)
        return partition

    def _inside(self) -> bool:
        """Whether this thread does the transaction under way."""
        return self._begun is not None and self._thread == threading.get_ident()

    def _wait(self) -> None:
        """Waits for another thread's transaction to end. Under the lock. From inside of one it would be for ever, with
        the disk's write lock.
        """
        assert not self._inside()
        self.shown.wait()

    def _in_hand(self, scope: Name) -> bool:
        """Whether the transaction under way has a partition, which it may yet take back to what it was: so nothing else
        may change it, even if the transaction has not. Under the lock.
        """
        return self._begun is not None and scope in self._begun.saves

    def renew(self, scope: Name) -> None:
        """Has a partition in RAM use the files that now hold its rows. Under the lock."""
        partition = self.partitions.get(scope)
        if (
            self.journal is not None
            and partition is not None
            and partition.generation != self.generation
            and not self._in_hand(scope)  # later
        ):
            self._reading(lambda state: self._read(scope, state))

    def _reading(self, read: Callable[[State], T]) -> T:
        """Reads of one state; of the next one if files have gone meanwhile, since another process has rewritten them.
        Under the lock.
        """
        assert self.journal is not None
        while True:
            generation = -1
            try:
                with self.journal.reading() as state:
                    generation = state.generation
                    if self._begun is None or state.seq <= self.seq:
                        return read(state)
            except StoreCorrupt:
                if self.journal.state().generation == generation:
                    raise
            else:
                self._wait()  # ours is on disk and not yet shown, and another process has written after it

    def unsealed(self) -> int:
        """About how many rows the journal has that no file has."""
        return self.seq - self.sealed_upto

    def _read(self, scope: Name, state: State) -> Partition | None:
        """Reads what is new in a scope. Under the lock, inside `Journal.reading`."""
        from memcore.store import load

        assert self.journal is not None
        if self._begun is None:
            self.notice(state)
        before = self.partitions.pop(scope, None)  # and not put back if it cannot be read
        if before is not None:
            before.touched = max(before.touched, self._has_counts(before.touched))
        written = bool(self._flush) and state.touched >= self._flush
        counts = [told.get(scope, {}) for told in (self._counts, *(() if written else (self._taken,)))]
        partition = load.catch_up(before, self.journal, scope, state, self.dim, counts)
        if partition is not None:
            self.partitions[scope] = partition
        return partition

    def _has_counts(self, touched: int) -> int:
        """How far a partition has the counts that has those up to the flush `touched`: flushes of this process were
        counted in RAM before.
        """
        if touched >= self.counted:
            return self.touched
        counted, ours = self._ours
        return ours if touched >= counted else touched

    # Writing: a transaction is one or several writes, each done or taken back

    def transact(self, body: Callable[[], T]) -> T:
        """One write of the transaction under way: all of it, or nothing. Under the lock."""
        self._body = _Point(self)
        try:
            return body()
        except BaseException:
            self._take_back(self._body)
            raise
        finally:
            self._body = None

    def begin(self) -> None:
        """Begins a transaction. The disk's write lock is taken, so no other process changes anything until it ends.
        Under the lock.
        """
        if self._begun is not None:  # a signal's handler raised just where a transaction ends
            self._abandon()
        if self.journal is not None:
            others = self.journal.changes_by_others()
            if others != self._others:
                self.look()
                self._others = others
        self.count_accesses()
        self._begun, self._thread = _Point(self), threading.get_ident()

    def changed(self) -> dict[Name, Partition]:
        """The partitions that the transaction has changed. Under the lock."""
        assert self._begun is not None
        return {scope: p for scope, (p, _) in self._begun.saves.items() if p.pending}

    def settled(self) -> bool:
        """Whether the transaction has settled the width of the vectors or their embedder. Under the lock."""
        assert self._begun is not None
        # who opened an empty store has settled both in RAM alone
        return not self._begun.seq or (self.dim, self.fingerprint) != (self._begun.dim, self._begun.fingerprint)

    def new_names(self) -> tuple[int, list[str]]:
        """The first code that the transaction has made, and the names from there on."""
        assert self._begun is not None
        return self._begun.names, self.names[self._begun.names :]

    def new_forgettings(self) -> list[Forgetting]:
        """What the transaction has forgotten. Under the lock."""
        assert self._begun is not None
        return [told for told in self.forgettings if told.seq > self._begun.seq]

    def erased(self, seqs: set[int]) -> set[int]:
        """Which of these commits have forgotten for good: they erased, or what they have forgotten is being dropped or
        has been. Under the lock.
        """
        kept = {told.seq for told in self.forgettings if not told.erased}
        if self.journal is not None:
            with self.journal.reading():
                kept |= {seq for (seq,) in self.journal.select("SELECT seq FROM forgettings WHERE NOT erased")}
        return seqs - kept

    def nbytes(self) -> int:
        """Bytes of all rows that are in RAM. Under the lock."""
        return sum(partition.nbytes() for partition in self.partitions.values())

    def sweep(self, *, all: bool = False) -> int:
        """Frees rows in RAM that were forgotten too long ago to be restored, or `all`; how many. Under the lock."""
        if self.journal is not None or not self.forgettings:
            return 0
        before = self.forgettings[-1].at - UNDO_DAYS * DAY
        gone = {told.seq for told in self.forgettings if all or told.erased or told.at < before}
        if not gone or (len(gone) == self._swept and not all):
            return 0  # those that may go have been looked at: a sweep reads every row's mark
        self._swept = 0 if all else len(gone)
        dropped = 0
        held = sum(segment.n for partition in self.partitions.values() for segment in partition.segments)
        for partition in self.partitions.values():
            partition.sweep(gone, 0 if all else SWEEP_SHARE)
            dropped += self._sweep_cold(partition, gone, 0 if all else SWEEP_SHARE)
            partition.show(self.seq)
        if all:
            self.forgettings = []
        left = sum(segment.n for partition in self.partitions.values() for segment in partition.segments)
        return dropped + held - left

    def _sweep_cold(self, partition: Partition, commits: set[int], share: int) -> int:
        """As `Partition.sweep`, of the tables of a store in RAM's cold tier; the rows dropped."""
        dropped = 0
        lost = partition.cold.seqs[np.isin(partition.cold.commits, np.fromiter(commits, np.int64, len(commits)))]
        for file in partition.cold.files if len(lost) else ():
            seqs = seqs_of(self.place, file)
            mine = seqs[np.isin(seqs, lost)]
            if len(mine) and len(mine) * (share or file.rows) >= file.rows:
                partition.cold = partition.cold.swept(file, rewritten(self.place, file, mine), mine)
                self.place.remove(file.file)
                dropped += len(mine)
        return dropped

    def show(self) -> None:
        """Lets readers see what the transaction has done. Under the lock."""
        for file, told in self.imported if self.journal is None else ():
            self.imports.pop(file, None)
            if told is not None:
                self.imports[file] = told
        if self._begun is not None:
            for partition, _ in self._begun.saves.values():
                partition.show(self.seq)
                partition.applied = max(partition.applied, self.seq)
        self.counts_written()
        self._end()
        if self.journal is not None:
            self.forgettings.clear()

    def _abandon(self) -> None:
        """Ends a transaction of which it is not known whether it is on disk: all is read again."""
        if self.journal is None:
            self.take_back()
            return
        self.read_anew()

    def read_anew(self) -> None:
        """Forgets what is in RAM of the disk. Under the lock."""
        self._end()
        self.partitions, self.names, self._codes = {}, [], {}
        self.seq = self.foreign = self.dim = self.touched = self.counted = 0
        self._ours = 0, 0
        self._asked = self._others = None

    def take_back(self) -> None:
        """All as it was before the transaction. Under the lock."""
        if self._begun is not None:
            self._take_back(self._begun)
        self._end()

    def _end(self) -> None:
        self._begun = None
        self._flush = 0
        self.imported = []
        self.shown.notify_all()

    def _take_back(self, point: _Point) -> None:
        for partition, save in point.saves.values():
            partition.take_back(save)
        if len(self.names) > point.names or len(self._codes) > point.names:
            del self.names[point.names :]
            self._codes = {name: code for name, code in self._codes.items() if code < point.names}
        self.seq, self.dim, self.fingerprint = point.seq, point.dim, point.fingerprint
        del self.imported[point.imported :]
        while self.forgettings and self.forgettings[-1].seq > point.seq:
            self.forgettings.pop()

    def partition(self, scope: Name) -> Partition:
        """The partition of a scope, to be changed by the write under way. Under the lock."""
        partition = self.loaded(scope)
        if partition is None:
            partition = self.partitions.setdefault(scope, Partition(self.dim))
            partition.applied, partition.generation, partition.touched = self.seq, self.generation, self.touched
        if partition.cold.files and partition.generation != self.generation:
            self.renew(scope)
        partition.read_cold = self._cold_under_lock
        save = None
        for point in (self._begun, self._body):
            if point is not None and scope not in point.saves:
                save = save or partition.save()
                point.saves[scope] = partition, save
        return partition

    def check_dim(self, dim: int) -> None:
        if self.dim and dim != self.dim:
            raise DimensionMismatch(
                f"vector has {dim} dimensions and the store has {self.dim}; one store holds one width: pass vectors of "
                f"width {self.dim}, or open another store for this embedder"
            )

    def settle_dim(self, dim: int) -> None:
        """The first vector sets the width of a store that was opened without one. Under the lock."""
        self.check_dim(dim)
        if not self.dim:
            for scope in list(self.partitions):
                self.partition(scope)  # so that it can be taken back
            self.widen(dim)

    def widen(self, dim: int) -> None:
        """Gives all rows zero vectors of a width; none of them has a vector. Under the lock."""
        self.dim = dim
        for partition in self.partitions.values():
            partition.dim = dim
            for segment in partition.segments:
                if segment.dim != dim:
                    segment.widen(dim)

    def commit(
        self,
        scope: Name,
        columns: Columns,
        names: Mapping[str, Sequence[str]],
        *,
        now: int,
        explicit: npt.NDArray[np.bool_] | None = None,
    ) -> Commit:
        """Appends new rows: gives them ids (but for the `explicit` ones) and seqs; upserts by key; honours retries.

        `columns` as from `columns_of`, with all but `id_hi`, `id_lo`, `seq`, `version` and the codes of `names` filled
        in. An explicit id that is in use, or that isn't the one its key names, is `InvalidInput`. Under the lock.
        """
        self.encode(columns, names)
        partition = self.partition(scope)
        retries = _retries(partition, columns)
        total = len(columns["content"])
        fresh = [row for row in range(total) if row not in retries]
        if retries:
            columns = taken(columns, fresh)
            explicit = None if explicit is None else explicit[fresh]
        n, first = len(fresh), self.seq + 1
        if n:
            columns["seq"] = np.arange(first, first + n, dtype=np.int64)
            columns["version"] = _FIRST[:n]
            hi, lo = self._ids.take(n, now)
            for name, made in (("id_hi", hi), ("id_lo", lo)):
                columns[name] = made if explicit is None else np.where(explicit, columns[name], made)
            replaced = _upserts(partition, columns, explicit)
            if columns["vector"] is None:
                columns["vector"] = np.zeros((n, self.dim), dtype=np.float32)
            else:
                self.settle_dim(columns["vector"].shape[1])
            self.seq += n
            partition.append(columns, n)
            for old, by, at in replaced:
                partition.supersede(old, by, at)
        return _committed(partition, columns, fresh, retries, total)

    def replace(self, partition: Partition, seq: int, changes: Mapping[str, Any], *, now: int) -> Columns:
        """A new version of a row with some columns changed; the old one is superseded. Under the lock.

        A memory's time never runs backwards: if the clock does, the new version starts when the old one did, or when
        that lapsed.
        """
        ref = partition.ref(seq)
        columns = ref.columns()
        columns["idempotency_key"] = [None]  # the first version keeps it: a retry returns the record as it was made
        for name in MARKS:
            columns[name] = zeros(name, 1)
        lapsed = bool(ref.get("lapsed"))
        for name, value in changes.items():
            columns[name] = [value] if name in TEXTS else np.array([value], dtype=columns[name].dtype)
        self.seq += 1
        start = max(now, ref.get("ingested_at"), ref.get("superseded_at") if lapsed else now)
        for name, value in (("seq", self.seq), ("version", ref.get("version") + 1), ("ingested_at", start)):
            columns[name] = np.array([value], dtype=FIXED[name])
        partition.append(columns, 1)
        if lapsed:
            partition.revive(seq)
        else:
            partition.supersede(seq, self.seq, start)
        return columns

    def evict(self, partition: Partition, seqs: Sequence[int], now: int) -> None:
        """Rows stop standing without a next version, until one is made by `replace`. Under the lock."""
        self.seq += 1
        for seq in seqs:
            partition.supersede(seq, self.seq, max(now, partition.ref(seq).get("ingested_at")))
            partition.lapse(seq)

    def forget(self, scope: Name, names: set[tuple[int, int]], now: int, *, erased: bool) -> int:
        """Forgets all versions of these ids (high half, low half), which are there or in the cold tier, and the links
        that touch them; the seq of that. Under the lock.

        What is `erased` cannot be restored, also what of it was forgotten before.
        """
        partition = self.partition(scope)
        self.seq += 1
        self.forgettings.append(Forgetting(self.seq, scope, now, erased))
        # A memory lies in one tier. Only what was forgotten before may do so in both.
        cold = names if erased or not partition.cold.files else names - partition.known(names, cold=False)
        partition.forget(names, self.seq, again=erased)
        if partition.cold.files and cold:
            partition.cold = partition.cold.without(*_cold_rows(partition, cold, again=erased), self.seq)
        if partition.links.n:
            partition.links.forget(names, self.seq, again=erased)
        return self.seq

    def link_again(self, scope: Name, undone: Mapping[tuple[int, int], int]) -> None:
        """Brings back the links of memories that are here again, by their ids: those that the commit has hidden which
        has forgotten each and is undone. What another commit has hidden, such as one that erased it, or forgot a memory
        that had the same id before, stays as it is. Under the lock.
        """
        partition = self.partition(scope)
        hidden = partition.links.hidden(undone) if undone and partition.links.n else []
        if not hidden:
            return
        ends = {end for _, _, *both in hidden for end in both}
        here, gone = partition.known(ends), self._forgotten_last(partition, ends)
        for row, seq, *both in hidden:
            # An end that was forgotten since, also if its id is in use again: the link waits until that is undone.
            later = max((commit for end in both if (commit := gone.get(end, 0)) > seq), default=0)
            if later or here.issuperset(both):
                partition.links.put(row, "forgotten_seq", later)

    def _forgotten_last(self, partition: Partition, names: set[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Of those of the ids that have versions in either tier which are forgotten and could be restored, the last
        commit that has forgotten some.
        """
        found: set[tuple[tuple[int, int], int]] = set()
        for segment in (*partition.segments, *partition.cold_segments()):
            for row in segment.view().rows_with(names).tolist():
                ref = Ref(segment, row)
                if commit := ref.get("forgotten_seq"):
                    found.add((ref.name, commit))
        erased = self.erased({commit for _, commit in found})
        last: dict[tuple[int, int], int] = {}
        for name, commit in found:
            if commit not in erased:
                last[name] = max(commit, last.get(name, 0))
        return last

    def link(self, scope: Name, columns: Columns, relations: Sequence[str], attributes: Sequence[str | None]) -> None:
        """Appends links: `columns` as of `links.FIXED`, but for seqs, the codes of `relations` and marks. Under the
        lock.
        """
        table, n = self.partition(scope).links, len(relations)
        columns["relation"] = np.array([self.code(name) for name in relations], dtype=np.int32)
        columns["seq"] = np.arange(self.seq + 1, self.seq + 1 + n)
        self.seq += n
        table.append(columns, attributes)

    def end_links(self, scope: Name, ends: Mapping[int, int]) -> None:
        """Ends links: by their rows, each up to when it holds. Under the lock."""
        table = self.partition(scope).links
        self.seq += 1
        table.end(ends, self.seq)

    # How far imports are, of which not all commits are done

    def imports_told(self) -> dict[str, str]:
        """What was told of the imports that aren't done, by their file. In a write."""
        if self.journal is None:
            told = dict(self.imports)
        else:
            told = dict(self.journal.run("SELECT file, told FROM imports").fetchall())
        for file, how_far in self.imported:
            told.pop(file, None)
            if how_far is not None:
                told[file] = how_far
        return told

    def tell_import(self, file: str, told: str | None) -> None:
        """Tells how far an import is; None: it is done. In a write."""
        self.imported.append((file, told))

    # Counting accesses, which is no write: it waits for nobody, and is on disk a while later

    def touch(self, scope: Name, seqs: Sequence[int], now: int, *, at_once: bool) -> None:
        """Notes an access to each of these rows. If not `at_once`, it is counted when somebody asks, or when many have
        come together: one by one they took a fifth of a small recall.
        """
        self._accesses.append((scope, seqs, now))
        if at_once or len(self._accesses) >= _MOST_WAITING:
            self._count_if_free()

    def _count_if_free(self) -> None:
        if self._accesses and self.lock.acquire(blocking=False):
            try:
                self.count_accesses()
            finally:
                self.lock.release()

    def count_accesses(self) -> None:
        """Counts what `touch` was told, of rows that are still there. Under the lock."""
        told: dict[Name, list[tuple[Sequence[int], int]]] = {}
        while self._accesses:
            scope, seqs, now = self._accesses.popleft()
            told.setdefault(scope, []).append((seqs, now or 1))
        for scope, accesses in told.items():
            partition = self.partitions.get(scope)
            if partition is None:
                continue
            totals: dict[int, list[int]] = {}
            for seqs, now in accesses:
                for seq in seqs:
                    total = totals.setdefault(seq, [0, now])
                    total[0], total[1] = total[0] + 1, max(total[1], now)
            for seq in partition.count(totals):
                if self.journal is not None:
                    self._add_count(scope, seq, *totals[seq])

    def counts_taken(self) -> Counts:
        """What has been counted since it was last on disk, to be written now. Until `counts_written` or `counts_kept`
        who reads a partition adds it to what the disk tells, unless that has it. Under the lock.
        """
        self._taken, self._counts = self._counts, {}
        return self._taken

    def counts_go(self, flush: int) -> None:
        """Tells as which flush counts are about to be committed: no other process can make that one."""
        self._flush = flush

    def counts_written(self) -> None:
        """Takes note that the counts are on disk, if there were any. Under the lock."""
        if self._flush == self.touched + 1:  # else another process has counted meanwhile, and that is yet to be read
            self.touched = self._flush
        self._taken, self._flush = {}, 0

    def counts_kept(self) -> None:
        """Takes back what could not be written. Under the lock."""
        for scope, counted in self._taken.items():
            for seq, (count, last) in counted.items():
                self._add_count(scope, seq, count, last)
            partition = self.partitions.get(scope)
            if (
                partition is not None and self._flush
            ):  # another process may have made that flush since, and it been read
                partition.touched = -1
        self._taken, self._flush = {}, 0

    def _add_count(self, scope: Name, seq: int, count: int, last: int) -> None:
        held = self._counts.setdefault(scope, {}).setdefault(seq, [0, last])
        held[0], held[1] = held[0] + count, max(held[1], last)

    def forked(self) -> None:
        """Tells those who keep something beside the catalog that this is a forked child."""
        for tell in self.on_fork:
            tell()


class _Point:
    """A state of the catalog that can be gone back to."""

    __slots__ = ("dim", "fingerprint", "imported", "names", "saves", "seq")

    def __init__(self, catalog: Catalog) -> None:
        self.seq = catalog.seq
        self.dim = catalog.dim
        self.fingerprint = catalog.fingerprint
        self.names = len(catalog.names)
        self.imported = len(catalog.imported)
        self.saves: dict[Name, tuple[Partition, Save]] = {}


_NOTHING = Shown(0, (), ())


def _missing(fault: FileNotFoundError) -> StoreCorrupt:
    return StoreCorrupt(
        f"{fault.filename} is missing, and the catalog of the store names it; put it back, or restore the store from "
        "an export. The hot memories are not touched by it"
    )


def _cold_rows(
    partition: Partition, names: set[tuple[int, int]], *, again: bool
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The rows of these ids that lie in the cold tier: their seqs, and whether each is the last version. `again` those
    too that are gone.
    """
    seqs, lasts = [np.empty(0, np.int64)], [np.empty(0, np.bool_)]
    for segment in partition.cold_segments():
        c = segment.view().columns
        rows = segment.view().rows_with(names)
        rows = rows if again else rows[c["forgotten_seq"][rows] == 0]
        seqs.append(c["seq"][rows])
        lasts.append((c["superseded_seq"][rows] == 0) | c["lapsed"][rows])
    return np.concatenate(seqs), np.concatenate(lasts)


_SCOPES = "SELECT tenant, project FROM scopes"


def _retries(partition: Partition, columns: Columns) -> dict[int, tuple[int, int]]:
    """The rows whose idempotency key was used before: the seq of the first row, or 0 and its place in this commit.

    A key counts within a session and role: "message-1" of another conversation is another message.
    """
    retries: dict[int, tuple[int, int]] = {}
    here: dict[tuple[int, int, str], int] = {}
    for row, key in enumerate(columns["idempotency_key"]):
        if key is None:
            continue
        named = (int(columns["session"][row]), int(columns["role"][row]), key)
        if named in here:
            retries[row] = (0, here[named])
            continue
        seq = partition.retry(*named)
        if seq is not None:
            retries[row] = (seq, 0)
        else:
            here[named] = row
    return retries


def _upserts(
    partition: Partition, columns: Columns, explicit: npt.NDArray[np.bool_] | None
) -> list[tuple[int, int, int]]:
    """Lets rows of a kind that is upserted by key take over the id of the standing one, in the columns alone.

    Returns the rows in the partition that they replace: (its seq, the seq of its next version, the time of that).
    Refuses explicit ids that are in use or that contradict the key.
    """
    given = _given(columns, explicit)
    if not given and not any(columns["key"]):
        return []
    used = partition.known(set(given.values()))
    replaced = []
    within: dict[tuple[int, str], int] = {}  # the last row of this commit under a key
    for row, (kind, key) in enumerate(zip(columns["kind"].tolist(), columns["key"], strict=True)):
        named = (kind, key) if key is not None and kind in UPSERTED else None
        old: Ref | int | None = None
        if named is not None:
            old = within[named] if named in within else partition.by_key(*named)
            within[named] = row
        name = _name_of(columns, old)
        if row in given:
            _check_given(given[row], name, used, key)
            used.add(given[row])
        if name is None:
            continue
        columns["id_hi"][row], columns["id_lo"][row] = name
        seq = int(columns["seq"][row])
        if isinstance(old, Ref):
            own(columns, "version")[row] = old.get("version") + 1
            own(columns, "ingested_at")[row] = max(int(columns["ingested_at"][row]), old.get("ingested_at"))
            replaced.append((old.get("seq"), seq, int(columns["ingested_at"][row])))
        elif old is not None:
            own(columns, "version")[row] = columns["version"][old] + 1
            own(columns, "ingested_at")[row] = max(columns["ingested_at"][row], columns["ingested_at"][old])
            for column, value in (("superseded_seq", seq), ("superseded_at", columns["ingested_at"][row])):
                own(columns, column)[old] = value
    return replaced


def _given(columns: Columns, explicit: npt.NDArray[np.bool_] | None) -> dict[int, tuple[int, int]]:
    """The ids that callers gave, by row."""
    rows = [] if explicit is None else np.flatnonzero(explicit).tolist()
    return {row: (int(columns["id_hi"][row]), int(columns["id_lo"][row])) for row in rows}


def _name_of(columns: Columns, old: Ref | int | None) -> tuple[int, int] | None:
    if old is None:
        return None
    return old.name if isinstance(old, Ref) else (int(columns["id_hi"][old]), int(columns["id_lo"][old]))


def _check_given(
    given: tuple[int, int], named: tuple[int, int] | None, used: set[tuple[int, int]], key: str | None
) -> None:
    if named is not None and given != named:
        raise InvalidInput(
            f"id is {ids.to_text(*given)} and the key {key!r} names the memory {ids.to_text(*named)}; a key names one "
            "memory: leave id out to make its next version, or use another key"
        )
    if named is None and given in used:
        raise InvalidInput(
            f"id {ids.to_text(*given)} is in use here; ids are unique: update it, or leave id out for a new memory"
        )


def _committed(
    partition: Partition, columns: Columns, fresh: list[int], retries: Mapping[int, tuple[int, int]], total: int
) -> Commit:
    if not retries:
        return Commit(columns["seq"].tolist(), columns["id_hi"], columns["id_lo"], columns, fresh)
    seqs = np.zeros(total, dtype=np.int64)
    hi, lo = np.zeros(total, dtype=np.uint64), np.zeros(total, dtype=np.uint64)
    seqs[fresh], hi[fresh], lo[fresh] = columns["seq"], columns["id_hi"], columns["id_lo"]
    for row, (seq, earlier) in retries.items():
        if seq:
            seqs[row] = seq
            hi[row], lo[row] = partition.ref(seq).name
        else:
            seqs[row], hi[row], lo[row] = seqs[earlier], hi[earlier], lo[earlier]
    return Commit(seqs.tolist(), hi, lo, columns, fresh)


# A process may fork while another of its threads writes. The child then has a copy of the store that must be whole, and
# locks that must be free, so forking waits for the writers; and SQLite must not have anything open then.

_catalogs: weakref.WeakSet[Catalog] = weakref.WeakSet()
_forking = threading.RLock()
_waited_for: list[Catalog] = []


def _before_fork() -> None:
    _forking.acquire()
    _waited_for.extend(_catalogs)
    for catalog in _waited_for:
        for lock in catalog.quiet:
            lock.acquire()
        if catalog.journal is not None:
            catalog.journal.busy.acquire()
        catalog.lock.acquire()
        if catalog.journal is not None:
            catalog.journal.hold()


def _after_fork() -> None:
    for catalog in _waited_for:
        if catalog.journal is not None:
            catalog.journal.let_go()
        catalog.lock.release()
        if catalog.journal is not None:
            catalog.journal.busy.release()
        for lock in catalog.quiet:
            lock.release()
    _waited_for.clear()
    _forking.release()


def _after_fork_in_child() -> None:
    for catalog in _waited_for:
        catalog.count_accesses()
        catalog.counts_taken()  # they are the parent's to write
        catalog.counts_written()
        catalog.forked()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)

"""What is done for a store beside reading and writing it? Rows are sealed into files, small files are joined, what was
forgotten is dropped, accesses are counted on disk, and the WAL is kept short.

One process at a time does it, by a lock of the operating system's on `maintenance.lock`. Everything is prepared without
any lock that readers or writers want: a file is written from rows that no longer change, and then one short transaction
puts it into the catalog's list. A crash before that leaves a file that nothing names, which the next maintenance
removes; a crash after it leaves rows in the journal that the state row says to pass over.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from memcore.clock import DAY, Clock, system, to_micros
from memcore.config import UNDO_DAYS
from memcore.errors import MemcoreError, StoreError, StoreLocked
from memcore.store import cold, derived, files, graphs, postings
from memcore.store import segment as segments
from memcore.store.catalog import Catalog, Name
from memcore.store.codes import DERIVED
from memcore.store.cold import ColdFile
from memcore.store.commits import Commits, CompactReport
from memcore.store.files import SEGMENTS, Share, Source, bytes_in, crcs_of
from memcore.store.graphs import Progress
from memcore.store.hnsw import THREADS
from memcore.store.journal import Reader
from memcore.store.load import open_file
from memcore.store.partition import Partition
from memcore.store.restore import LAST
from memcore.store.salvage import unknown_in
from memcore.store.segment import FIXED, MARKS, Columns
from memcore.store.steps import step

SEAL_ROWS = 32_768  # rows that the journal holds before they are sealed: 40 MB, read in 0.2 s by who opens it
SEAL_BYTES = 128 << 20  # or this much of what they hold
MERGED_ROWS = 262_144  # of a file that several were joined into
MERGED_FILES = 8
_DELETED = 1000  # rows of the journal a transaction: 2 ms
_EVERY = 5.0  # seconds between two looks
_KEPT_WITHIN = 60.0  # seconds to wait for who maintains the store, with a graph that took minutes
LOCK = "maintenance.lock"
GRAPHS_LOCK = "graphs.lock"


class Maintenance:
    def __init__(self, catalog: Catalog, commits: Commits) -> None:
        assert catalog.journal is not None
        self._catalog = catalog
        self._commits = commits
        self._journal = catalog.journal
        self._folder = catalog.journal.directory / SEGMENTS
        self._lock = threading.RLock()  # one thread at a time; a fork waits for it
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._grapher: threading.Thread | None = None
        self._stopping = False
        self._graphing = threading.Lock()  # one thread at a time makes graphs
        self._takers: set[object] = set()  # who makes them instead of the background, while it compacts
        self.clocks: list[Clock] = []  # of those who have the store open in this process
        self.fault: BaseException | None = None  # why the last round in the background failed
        catalog.quiet.append(self._lock)
        catalog.on_fork.append(self._forked)
        commits.on_commit = self.nudge

    # In the background

    def nudge(self) -> None:
        """Has the work done in the background, if there is any. Called after each commit."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="memcore-maintenance", daemon=True)
            with contextlib.suppress(RuntimeError):  # none can be had, and the commit is done: the next one tries again
                thread.start()
                self._thread = thread
        if self._catalog.unsealed() >= SEAL_ROWS or self._commits.bytes_written >= SEAL_BYTES:
            self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait(_EVERY)
            self._wake.clear()
            if self._stopping:
                return
            try:
                self.work()
                self.fault = None
            except Exception as fault:  # told by stats(); the next round tries again
                self.fault = fault

    def _forked(self) -> None:
        self._thread, self._grapher, self._wake = None, None, threading.Event()
        self._graphing, self._takers = threading.Lock(), set()

    def stop(self) -> None:
        """Ends the thread, and writes the counters. Sealing is left to who opens the store next, unless it is due."""
        self._stopping = True
        self._wake.set()
        for thread in (self._thread, self._grapher):
            if thread is not None and thread is not threading.current_thread():
                thread.join()
        self._commits.flush_counts()
        segments = [s for p in list(self._catalog.partitions.values()) for s in p.shown.segments]
        made = [s for s in segments if postings.whole(s) is not None and derived.lacks(self._catalog.coder, s)]
        if made:  # a process that lives for one recall would else make them each time
            with contextlib.suppress(OSError, StoreError), self._alone(None) as alone:
                if alone:
                    derived.keep(self._catalog.coder, made, lambda: False)

    def work(self, now: int | None = None) -> None:
        """All that is due at a time, by default now, unless another process is at it."""
        self._commits.flush_counts()
        due = self._catalog.unsealed() >= SEAL_ROWS or self._commits.bytes_written >= SEAL_BYTES
        if due:
            with self._alone(None) as alone:
                if alone:
                    self._tidy()
                    while self._seal(frozenset()) and self._catalog.unsealed() >= SEAL_ROWS:
                        if self._stopping:  # who closes the store shall not wait for all of it
                            return
                    dropped = self._drop(self._given_up((self._now() if now is None else now) - UNDO_DAYS * DAY))
                    self._join_small()
                    if dropped.dropped:
                        self._tidy()  # what was derived of it goes with it
                        self._drop_graphs()
                    self._journal.checkpoint()
        self._refresh()
        coder = self._catalog.coder
        if any(derived.lacks(coder, s) for p in list(self._catalog.partitions.values()) for s in p.shown.segments):
            with self._alone(None) as alone:
                if alone:
                    self._derive()
        self._make_graphs_apart()

    def _now(self) -> int:
        """The earliest time of all clocks: what one of them has seen forgotten a moment ago is not old by another."""
        clocks = tuple(self.clocks) or (system,)
        return min(to_micros(clock(), "the clock's time") for clock in clocks)

    def _derive(self, *, all_words: bool = False) -> None:
        """Has the codes of segment files made and kept, of the scopes that are in RAM; and postings, if they have been
        made or `all_words` are to be.
        """
        for partition in list(self._catalog.partitions.values()):
            segments = partition.shown.segments
            derived.keep(self._catalog.coder, segments, lambda: self._stopping, all_words=all_words)

    # Graphs, which take minutes to make, and meanwhile no lock that writers or maintenance need

    def _make_graphs_apart(self) -> None:
        """Has graphs that are due made in a thread of their own, on one core."""
        thread = self._grapher
        if (thread is None or not thread.is_alive()) and next(self._catalog.graphs_due(), None) is not None:
            self._grapher = threading.Thread(target=self._run_graphs, name="memcore-graphs", daemon=True)
            self._grapher.start()

    def _run_graphs(self) -> None:
        if not self._graphing.acquire(blocking=False):
            return
        try:
            self._make_graphs(1, lambda: self._stopping or bool(self._takers), lambda *_: None)
        except Exception as fault:  # told by stats(); the next round tries again
            self.fault = fault
        finally:
            self._graphing.release()

    def _make_graphs(self, threads: int, stopping: Callable[[], bool], progress: Progress) -> int:
        """Makes the graphs that are due, unless another process is at it; the rows that they cover."""
        made = 0
        if next(self._catalog.graphs_due(), None) is None:
            return made
        (self.directory / DERIVED).mkdir(exist_ok=True)
        with alone(self.directory, None, f"{DERIVED}/{GRAPHS_LOCK}") as mine:
            while mine and (due := next(self._catalog.graphs_due(), None)) is not None:
                wanted, partition, segments = due
                run = graphs.build(segments, wanted, threads=threads, stopping=stopping, progress=progress)
                if run is None:
                    break
                with self._alone(max(self._journal.lock_timeout, _KEPT_WITHIN)):
                    self._refresh()
                    step("before a graph is kept")
                    taken = self._catalog.graphs.take(run, partition.shown.segments)
                    step("after a graph is kept")
                if not taken:
                    break
                made += run.rows
        return made

    def keep_up(self, now: int) -> None:
        """Has the work done here and now if it is far behind: for who writes faster than the background seals."""
        if self._catalog.unsealed() >= 2 * SEAL_ROWS or self._commits.bytes_written >= 2 * SEAL_BYTES:
            self.work(now)

    def _refresh(self) -> None:
        """Has partitions in RAM use the files that now hold their rows."""
        catalog = self._catalog
        catalog.look()
        for scope in list(catalog.partitions):
            with catalog.lock:
                if not catalog.closed:
                    catalog.renew(scope)

    # When it is asked for

    @property
    def directory(self) -> Path:
        return self._journal.directory

    def seal_all(self) -> None:
        """Has all rows lie in files, but for those that are written meanwhile."""
        with self._alone(self._journal.lock_timeout):
            upto = self._committed()
            while self._seal(frozenset(), upto):
                pass

    def _committed(self) -> int:
        """The seq of the last commit: sealing up to there ends, however fast others write."""
        with self._journal.maintaining() as reader:
            return reader.state().seq

    def compact(self, progress: Progress) -> CompactReport:
        """Seals all rows but those that are written meanwhile, drops all that was forgotten, joins small files, and
        leaves no byte of it anywhere. Makes the graphs that are due, also those that other users of the store have: it
        drops them with the files that they are over.
        """
        with self._catalog.graphs.kept_up():
            with self._alone(self._journal.lock_timeout):
                before, all_words = self._size(), self._asked_for_words()
                dropped, written, removed = self._compact_files()
                self._drop_graphs()
                self._load_large()
                self._derive(all_words=all_words)
            taker = object()
            self._takers.add(taker)  # else what the background is making would come at one core's speed, and untold
            try:
                with self._graphing:
                    made = self._make_graphs(THREADS, lambda: self._stopping, progress)
            finally:
                self._takers.discard(taker)
        return CompactReport(dropped, written, removed, before, self._size(), made)

    def _compact_files(self) -> tuple[int, int, int]:
        """Of the catalog and the segment files: row versions dropped, files written and removed."""
        self._commits.flush_counts()
        self.commit(lambda: self._journal.run("DELETE FROM staged"))  # it may hold what was forgotten since
        self._tidy()
        dropped = written = removed = 0
        droppable = self._given_up(None)
        upto = self._committed()
        while sealed := self._seal(droppable, upto):
            dropped, written = dropped + sealed.dropped, written + sealed.written
        done = self._drop(droppable)
        dropped, written, removed = dropped + done.dropped, written + done.written, done.removed
        removed += self._join_small()
        self._delete_sealed()
        with self._journal.busy, self._catalog.lock:
            step("before the catalog is rewritten")
            self._journal.vacuum()
            step("before the WAL is cut")
            self._journal.checkpoint(whole=True)
            step("after the WAL is cut")
        self._tidy()
        self._refresh()
        return dropped, written, removed

    def _asked_for_words(self) -> bool:
        """Whether anyone has asked for what texts say: postings that nobody needs would take 20 us a row to make."""
        return any((self.directory / DERIVED).glob("*.words.arrow")) or any(
            segment.worded for p in list(self._catalog.partitions.values()) for segment in p.shown.segments
        )

    def _drop_graphs(self) -> None:
        """Removes the graphs that may hold what was forgotten."""
        with self._journal.maintaining() as reader:
            parts = reader.select("SELECT file, start FROM parts p JOIN segments s ON s.id = p.segment")
        self._catalog.graphs.drop({(file, start) for file, start in parts})

    def _load_large(self) -> None:
        """Has the scopes in RAM that are large enough for a graph."""
        least = min((wanted.least_rows for wanted in self._catalog.graphs.wanted), default=None)
        if least is None:
            return
        with self._journal.maintaining() as reader:
            large = reader.select(
                "SELECT tenant, project FROM parts p JOIN scopes c ON c.id = p.scope "
                "GROUP BY scope HAVING sum(rows) >= ?",
                max(least, graphs.LEAST_ROWS),
            )
        for tenant, project in large:
            with self._catalog.lock:
                self._catalog.loaded((tenant, project))

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While no other process or thread maintains the store: no file that nothing names yet is removed."""
        with self._alone(self._journal.lock_timeout):
            yield

    @contextlib.contextmanager
    def reading(self) -> Iterator[Reader]:
        """One consistent state of the catalog, while no other thread of this process maintains the store."""
        with self._lock, self._journal.maintaining() as reader:
            yield reader

    @contextlib.contextmanager
    def _alone(self, patience: float | None) -> Iterator[bool]:
        """While no other process or thread maintains the store; `patience` as of `alone`, for the other processes."""
        with alone(self._journal.directory, patience, within=self._lock) as mine:
            yield mine

    def _size(self) -> int:
        return bytes_in(self._journal.directory)

    # Sealing

    @dataclass(frozen=True, slots=True)
    class _Done:
        dropped: int
        written: int
        removed: int = 0

    def _seal(self, droppable: frozenset[int], last: int = LAST) -> _Done | None:
        """Writes the oldest rows that only the journal has, up to the seq `last`, into a file, but for those forgotten
        by the commits `droppable`; None if there are none.
        """
        catalog, journal = self._catalog, self._journal
        with journal.maintaining() as reader:
            state = reader.state()
            rows = reader.select(
                "SELECT seq, scope, crc, length(content) FROM rows WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?",
                state.sealed_upto,
                last,
                SEAL_ROWS,
            )
            if not rows:
                last = min(last, state.seq)
                if last - state.sealed_upto >= SEAL_ROWS:  # commits without rows: links, forgetting
                    self.commit(
                        lambda: self._journal.run("UPDATE state SET sealed_upto = ?, generation = generation + 1", last)
                    )
                    catalog.look()
                return None
            cells = np.array(rows, dtype=np.int64).T
            n = max(1, int(np.searchsorted(np.cumsum(cells[3]), segments.TEXT_BYTES)))
            seqs, owners, crcs = cells[0][:n], cells[1][:n], cells[2][:n].astype(np.uint32)
            upto = int(seqs[-1])
            scopes = _scopes(reader, np.unique(owners).tolist())
            marks = {
                scope: _columns_of_marks(
                    reader.select(
                        f"SELECT seq, {', '.join(MARKS)} FROM marks WHERE scope = ? AND seq > ? AND seq <= ? "
                        "ORDER BY seq",
                        number,
                        state.sealed_upto,
                        upto,
                    )
                )
                for scope, number in scopes.items()
            }
        names, dim = self.names()
        shares: list[Share] = []
        gone: list[npt.NDArray[np.int64]] = []
        for scope, number in sorted(scopes.items()):
            mine = owners == number
            partition = self._loaded(scope)
            for share in _shares(scope, partition, seqs[mine], crcs[mine]):
                marked = _marked(share, marks[scope], droppable)
                held = share.segment.view().columns["seq"]
                gone.append(np.setdiff1d(held[share.rows], held[marked.rows], assume_unique=True))
                if len(marked.rows):
                    shares.append(marked)
        dropped = np.concatenate(gone)
        written = None
        if shares:
            path = files.fresh_name(journal.directory)
            step("before a segment is written")
            written = path.name, files.write(path, shares, names, dim)
        step("before a segment is named")

        def name() -> None:
            if written is not None:
                self._add_file(*written, scopes)
            journal.run(
                "DELETE FROM marks WHERE seq > ? AND seq <= ? AND changed <= ?", state.sealed_upto, upto, state.seq
            )
            journal.run_many("DELETE FROM counters WHERE seq = ?", ((seq,) for seq in dropped.tolist()))
            journal.run("UPDATE state SET sealed_upto = ?, generation = generation + 1", upto)

        self._name(name)
        catalog.look()
        self._commits.bytes_written = 0
        step("after a segment is named")
        self._delete_sealed()
        step("after the journal is cut")
        return self._Done(len(dropped), int(written is not None))

    def names(self) -> tuple[list[str], int]:
        """All names, and the width of the vectors, that committed rows can have."""
        catalog = self._catalog
        with self._journal.busy, catalog.lock:
            catalog.look()  # another process may have committed rows with new names
            return list(catalog.names), catalog.dim

    def _loaded(self, scope: Name) -> Partition:
        with self._catalog.lock:
            partition = self._catalog.loaded(scope)
        assert partition is not None
        return partition

    def commit(self, change: Callable[[], object]) -> None:
        """One short transaction on the catalog."""
        journal = self._journal
        with journal.busy:
            journal.begin()
            try:
                with journal.telling("write into"):
                    change()
                step("before a change of the files is committed")
                journal.commit()
                step("after a change of the files is committed")
            except BaseException:
                journal.roll_back()
                raise

    def _name(self, change: Callable[[], None]) -> None:
        """The transaction that puts a new file into the catalog's list; the file goes if it is not in the list then."""
        try:
            self.commit(change)
        except BaseException:
            with contextlib.suppress(MemcoreError, OSError):
                self._tidy()  # which asks the catalog: a signal's handler may have raised after the commit
            raise

    def _add_file(self, name: str, written: tuple[list[files.Written], int, int], scopes: dict[Name, int]) -> None:
        parts, size, crc = written
        rows = sum(part.rows for part in parts)
        (number,) = self._journal.run(
            "INSERT INTO segments (file, rows, bytes, crc) VALUES (?, ?, ?, ?) RETURNING id", name, rows, size, crc
        ).fetchone()
        self._journal.run_many(
            "INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                (number, part.start, scopes[part.scope], part.rows, part.first_seq, part.last_seq, part.about)
                for part in parts
            ),
        )

    def _delete_sealed(self) -> None:
        """Deletes the rows of the journal that lie in files, few at a time."""
        while True:
            deleted = 0

            def cut() -> None:
                nonlocal deleted
                deleted = self._journal.run(
                    "DELETE FROM rows WHERE seq IN (SELECT seq FROM rows WHERE seq <= (SELECT sealed_upto FROM state) "
                    "ORDER BY seq LIMIT ?)",
                    _DELETED,
                ).rowcount

            self.commit(cut)
            if deleted < _DELETED:
                return

    # Rewriting

    def _drop(self, droppable: frozenset[int]) -> _Done:
        """Rewrites the files that hold rows which the commits `droppable` have forgotten, without them."""
        dropped = written = removed = 0
        for names in self._with_forgotten(droppable):
            done = self._rewrite(names, droppable)
            dropped, written, removed = dropped + done.dropped, written + done.written, removed + len(names)
        done = self._drop_cold(droppable)
        dropped, written, removed = dropped + done.dropped, written + done.written, removed + done.removed
        if droppable:

            def drop() -> None:
                gone = [(seq,) for seq in droppable]
                self._journal.run_many("DELETE FROM links WHERE forgotten_seq = ? AND forgotten_seq > 0", gone)
                self._journal.run_many("DELETE FROM forgettings WHERE seq = ?", gone)

            self.commit(drop)
        return self._Done(dropped, written, removed)

    def _given_up(self, before: int | None) -> frozenset[int]:
        """The commits whose forgotten rows need not be kept: all, or those that erased or were before a time, of which
        all rows lie in files. From here on none of them can be restored, so that no row comes back while it is dropped,
        also not in a process that still has it in RAM.
        """
        droppable: list[int] = []

        def give_up() -> None:
            found = self._journal.run("SELECT f.seq, at, erased, sealed_upto FROM forgettings f, state").fetchall()
            droppable.extend(
                seq for seq, at, erased, upto in found if before is None or (seq <= upto and (at < before or erased))
            )
            self._journal.run_many("UPDATE forgettings SET erased = 1 WHERE seq = ?", ((seq,) for seq in droppable))

        self.commit(give_up)
        return frozenset(droppable)

    def _with_forgotten(self, droppable: frozenset[int]) -> list[list[str]]:
        """The files that hold rows which may be dropped."""
        if not droppable:
            return []
        with self._journal.maintaining() as reader:
            marked = {
                row[0]
                for row in reader.select(
                    "SELECT DISTINCT s.file FROM marks m JOIN parts p ON p.scope = m.scope "
                    "AND m.seq BETWEEN p.first_seq AND p.last_seq JOIN segments s ON s.id = p.segment "
                    "WHERE m.forgotten_seq > 0"
                )
            }
            for file, about in reader.select("SELECT file, about FROM parts p JOIN segments s ON s.id = p.segment"):
                if file not in marked and json.loads(about).get("forgotten"):
                    marked.add(file)
        return [[file] for file in sorted(marked)]

    def _join_small(self) -> int:
        """Joins neighbouring files of which the parts are small; how many are gone."""
        removed = 0
        while run := self._small_run():
            self._rewrite(run, frozenset())
            removed += len(run)
        return removed

    def _small_run(self) -> list[str]:
        """Neighbours in commit order that are worth joining."""
        with self._journal.maintaining() as reader:
            found = reader.select(
                "SELECT file, s.rows, count(*), min(first_seq) FROM segments s JOIN parts p ON p.segment = s.id "
                "GROUP BY s.id ORDER BY min(first_seq)"
            )
        run: list[str] = []
        rows = 0
        for file, n, parts, _ in found:
            small = n < MERGED_ROWS // 2 and n < segments.ROWS // 2 * parts
            if not small or rows + n > MERGED_ROWS:
                if len(run) >= MERGED_FILES:
                    return run
                run, rows = [], 0
            if small:
                run.append(file)
                rows += n
        return run if len(run) >= MERGED_FILES else []

    def _rewrite(self, names: Sequence[str], droppable: frozenset[int]) -> _Done:
        """Writes the rows of neighbouring files into one, with their marks, but for those forgotten by `droppable`."""
        journal = self._journal
        with journal.maintaining() as reader:
            state = reader.state()
            parts = reader.select(
                "SELECT s.file, p.start, p.rows, p.about, c.tenant, c.project, p.scope FROM parts p "
                "JOIN segments s ON s.id = p.segment JOIN scopes c ON c.id = p.scope "
                f"WHERE s.file IN ({', '.join('?' * len(names))}) ORDER BY c.tenant, c.project, p.first_seq",
                *names,
            )
            marks: dict[Name, Columns] = {}
            for *_, tenant, project, number in parts:
                if (tenant, project) not in marks:
                    marks[tenant, project] = _columns_of_marks(
                        reader.select(f"SELECT seq, {', '.join(MARKS)} FROM marks WHERE scope = ? ORDER BY seq", number)
                    )
        known, dim = self.names()
        opened = {name: open_file(journal, name) for name in names}
        shares: list[Share] = []
        scopes: dict[Name, int] = {}
        gone: list[npt.NDArray[np.int64]] = []
        baked: list[npt.NDArray[np.int64]] = []
        for file, start, rows, about, tenant, project, number in parts:
            scopes[tenant, project] = number
            told = json.loads(about)
            segment = opened[file].segment(Source(file, start), rows, told, dim)
            crcs = crcs_of(opened[file].batch(told["batch"]), told["row"], rows)
            share = Share((tenant, project), segment, np.arange(rows), crcs)
            marked = _marked(share, marks[tenant, project], droppable)
            seqs = segment.view().columns["seq"]
            baked.append(seqs)
            gone.append(np.setdiff1d(seqs, seqs[marked.rows], assume_unique=True))
            if len(marked.rows):
                shares.append(marked)
        dropped = np.concatenate(gone)
        written = None
        if shares:
            path = files.fresh_name(journal.directory)
            step("before a segment is rewritten")
            written = path.name, files.write(path, shares, known, dim)
        step("before a rewritten segment is named")

        def name() -> None:
            journal.run(f"DELETE FROM segments WHERE file IN ({', '.join('?' * len(names))})", *names)
            journal.run(f"DELETE FROM staged WHERE replaces IN ({', '.join('?' * len(names))})", *names)
            if written is not None:
                self._add_file(*written, scopes)
            journal.run_many(
                "DELETE FROM marks WHERE seq = ? AND changed <= ?",
                ((seq, state.seq) for seqs in baked for seq in seqs.tolist()),
            )
            journal.run_many("DELETE FROM counters WHERE seq = ?", ((seq,) for seq in dropped.tolist()))
            journal.run("UPDATE state SET generation = generation + 1")

        self._name(name)
        step("after a rewritten segment is named")
        for file in names:
            (self._folder / file).unlink(missing_ok=True)
            step("after a file is removed")
        return self._Done(len(dropped), int(written is not None))

    def _drop_cold(self, droppable: frozenset[int]) -> _Done:
        """Rewrites the cold files that hold rows which the commits `droppable` have taken away, without them."""
        catalog, journal, done = self._catalog, self._journal, self._Done(0, 0)
        with journal.maintaining() as reader:
            marks = dict(reader.select("SELECT seq, gone_seq FROM cold_marks"))
            marks = {seq: gone for seq, gone in marks.items() if gone in droppable}
            scopes = reader.select("SELECT DISTINCT scope, tenant, project FROM cold JOIN scopes s ON s.id = scope")
            found = [(scope, name, file) for scope, *name in scopes for file in reader.cold_files(scope)]
        lost = np.fromiter(marks, np.int64, len(marks))
        for scope, name, file in found if marks else ():
            seqs = cold.seqs_of(catalog.place, file)
            mine = seqs[np.isin(seqs, lost)].tolist()
            if not mine:
                continue
            new = cold.rewritten(catalog.place, file, np.array(mine))
            step("before a swept cold file is named")

            def swap(
                scope: int = scope, file: ColdFile = file, new: ColdFile | None = new, mine: list[int] = mine
            ) -> None:
                journal.swap_cold(scope, file, new, mine)

            self._name(swap)
            step("after a swept cold file is named")
            catalog.look()
            with catalog.lock:
                if not catalog.closed:
                    catalog.renew((name[0], name[1]))  # before the file goes: no write of this process reads it then
            catalog.place.remove(file.file)
            step("after a swept cold file is removed")
            done = self._Done(done.dropped + len(mine), done.written + (new is not None), done.removed + 1)
        return done

    def _tidy(self) -> None:
        """Removes files that nothing names: what a crash has left. Not what others have put there, nor what holds rows
        that the catalog cannot know: then it is an older one that was put back, and they are nowhere else.
        """
        with self._journal.maintaining() as reader:
            seq = reader.state().seq
            staged = "SELECT file FROM staged WHERE replaces IN (SELECT file FROM"
            named = {file for (file,) in reader.select(f"SELECT file FROM segments UNION {staged} segments)")}
            kept = {file for (file,) in reader.select(f"SELECT file FROM cold UNION {staged} cold)")}
        for name in self._catalog.place.names():
            if name not in kept and not unknown_in(self.directory / cold.COLD / name, seq, self._known):
                self._catalog.place.remove(name)
        for path in self._folder.iterdir():
            if path.name not in named and files.is_own(path.name) and not unknown_in(path, seq, self._known):
                path.unlink(missing_ok=True)
        derived.tidy(self.directory / DERIVED, named)
        graphs.tidy(self.directory / DERIVED, named)

    def _known(self, scope: Name, seqs: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
        """The low halves of the ids that a scope has under some seqs, and whether it has one."""
        low, found = np.zeros(len(seqs), dtype=np.uint64), np.zeros(len(seqs), dtype=np.bool_)
        with self._catalog.lock:
            partition = self._catalog.loaded(scope)
        for segment in () if partition is None else partition.segments:
            c = segment.view().columns
            _, rows, places = np.intersect1d(c["seq"], seqs, return_indices=True)
            low[places], found[places] = c["id_lo"][rows], True
        return low, found


@contextlib.contextmanager
def alone(
    directory: Path,
    patience: float | None,
    lock: str = LOCK,
    *,
    within: contextlib.AbstractContextManager[object] = contextlib.nullcontext(),  # noqa: B008  # it has no state
) -> Iterator[bool]:
    """While no other process maintains a store. If one does for `patience` seconds, it is `StoreLocked`; with None
    there is no waiting, and it is False at once.

    `within` is held too, but not between two tries: a fork that waits for it does not wait for other processes.
    """
    deadline = None
    while True:
        with within:
            handle = _locked(directory / lock)
            if handle is not None:
                try:
                    yield True
                finally:
                    fcntl.flock(handle, fcntl.LOCK_UN)  # a child that was forked meanwhile may have the handle too
                    os.close(handle)
                return
        if patience is None:
            yield False
            return
        deadline = deadline or time.monotonic() + patience  # from here on: `within` may have been waited for
        if time.monotonic() > deadline:
            raise StoreLocked(
                f"another process has maintained the store {directory} for more than {patience:g} s; nothing was "
                "changed: try again when it is done"
            )
        step("while another process maintains a store")
        time.sleep(0.005)


def _locked(path: Path) -> int | None:
    """The handle of a file that this process has locked; None if another one has."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as fault:
        raise files.write_fault(path, fault) from fault
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as fault:
        os.close(handle)
        if isinstance(fault, BlockingIOError):
            return None
        raise
    return handle


def _scopes(reader: Reader, numbers: Sequence[int]) -> dict[Name, int]:
    found = reader.select("SELECT tenant, project, id FROM scopes")
    wanted = set(numbers)
    return {(tenant, project): number for tenant, project, number in found if number in wanted}


def _columns_of_marks(rows: Sequence[Sequence[int]]) -> Columns:
    cells = np.array(rows, dtype=np.int64).reshape(len(rows), 1 + len(MARKS)).T
    return dict(zip(("seq", *MARKS), cells, strict=True))


def _shares(
    scope: Name, partition: Partition, seqs: npt.NDArray[np.int64], crcs: npt.NDArray[np.uint32]
) -> list[Share]:
    """Where the rows with these rising seqs lie in RAM."""
    found = []
    for segment, n in zip(partition.shown.segments, partition.shown.sizes, strict=True):
        held = segment.view(n).columns["seq"]
        rows = np.searchsorted(held, seqs)
        there = held[np.minimum(rows, n - 1)] == seqs
        if there.any():
            found.append(Share(scope, segment, rows[there], crcs[there]))
    if sum(len(share.rows) for share in found) != len(seqs):
        raise StoreError(f"rows of scope {scope} are not in RAM as the journal has them; run memcore verify")
    return found


def _marked(share: Share, marks: Columns, droppable: frozenset[int]) -> Share:
    """A share with the marks that the catalog tells, over those that its rows have; without what may be dropped."""
    columns = share.segment.view().columns
    seqs = columns["seq"][share.rows]
    own = {name: np.array(columns[name][share.rows]) for name in MARKS}
    if share.segment.source is None:  # the journal's rows: RAM may be ahead of what is committed
        own = {name: np.zeros(len(seqs), dtype=FIXED[name]) for name in MARKS}
    at = np.atleast_1d(np.searchsorted(seqs, marks["seq"]))
    there = np.flatnonzero(seqs[np.minimum(at, len(seqs) - 1)] == marks["seq"])
    for name in MARKS:
        own[name][at[there]] = marks[name][there].astype(FIXED[name])
    if droppable:
        kept = ~np.isin(own["forgotten_seq"], np.fromiter(droppable, np.int64, len(droppable)))
        own = {name: values[kept] for name, values in own.items()}
        return Share(share.scope, share.segment, share.rows[kept], share.crcs[kept], own)
    return replace(share, marks=own)

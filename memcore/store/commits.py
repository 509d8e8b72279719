"""How does a write become one that lasts? Writes that come at the same time share a transaction.

The first thread that wants to write leads: it takes the write lock of the disk, reads what other processes have
committed, does the writes that wait (its own and other threads'), commits them together, and lets readers see them. The
others wait meanwhile, and the first of those that come too late leads next. So many writers pay for one commit.

Under the catalog's lock only memory changes. Nobody holds it while the disk is waited for, and readers never ask for it
on account of a writer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from memcore.errors import MemcoreError, StoreClosed
from memcore.store.catalog import CLOSED, Catalog, Name
from memcore.store.segment import MARKS

T = TypeVar("T")
_MOST = 512  # writes a transaction


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What `compact` did: row versions dropped, since they were forgotten; files written and removed; bytes before and
    after, of a store in RAM those of its rows.
    """

    dropped: int
    written: int
    removed: int
    bytes_before: int
    bytes_after: int


class _Ticket:
    """A write that waits: a function, and what became of it. `woken` is free when there is something to know."""

    __slots__ = ("body", "done", "fault", "result", "woken")

    def __init__(self, body: Callable[[], Any]) -> None:
        self.body = body
        self.done = False
        self.result: Any = None
        self.fault: BaseException | None = None
        self.woken = threading.Lock()
        self.woken.acquire()


class Commits:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._queue: list[_Ticket] = []
        self._leading = False
        self._lock = threading.Lock()  # of the two above
        self.on_commit: Callable[[], None] = lambda: None
        self.bytes_written = 0  # into the journal, since rows were sealed last
        catalog.on_fork.append(self._forget_waiting)

    def _forget_waiting(self) -> None:
        """In a forked child: those who waited are the parent's threads."""
        self._queue, self._leading, self._lock = [], False, threading.Lock()

    def run(self, body: Callable[[], T]) -> T:
        """Does a write, all of it or, if it raises, nothing; returns when it is on disk, if the store has one."""
        if self._catalog.journal is None:
            return self._in_ram(body)
        ticket = _Ticket(body)
        with self._lock:
            self._queue.append(ticket)
            leads = not self._leading
            self._leading = True
        if not leads:
            ticket.woken.acquire()  # done, or to lead
        if not ticket.done:
            self._lead(ticket)
        if ticket.fault is not None:
            raise ticket.fault
        result: T = ticket.result
        return result

    def sweep(self) -> CompactReport:
        """Frees all that was forgotten in a store in RAM."""
        catalog = self._catalog
        with catalog.lock:
            before = catalog.nbytes()
            dropped = catalog.sweep(all=True)
            return CompactReport(dropped, 0, 0, before, catalog.nbytes())

    def flush_counts(self) -> None:
        """Has what was counted of accesses on disk."""
        catalog, journal = self._catalog, self._catalog.journal
        if journal is None:
            return
        with journal.busy:
            with catalog.lock:
                catalog.count_accesses()
                counts = catalog.counts_taken()
            if not counts:
                return
            try:
                journal.begin()
                with journal.telling("write into"):
                    numbers = {scope: journal.scope_made(scope) for scope, _ in counts}
                    journal.count((seq, numbers[scope], *counted) for (scope, seq), counted in counts.items())
                journal.commit()
            except BaseException:
                journal.roll_back()
                with catalog.lock:
                    catalog.counts_kept(counts)
                raise

    def _in_ram(self, body: Callable[[], T]) -> T:
        catalog = self._catalog
        with catalog.lock:
            if catalog.closed:
                raise StoreClosed(CLOSED)
            try:
                catalog.begin()
                result = catalog.transact(body)
            except BaseException:
                catalog.take_back()
                raise
            try:
                catalog.show()
            except BaseException:  # a signal's handler: it is done, and will be seen
                catalog.show()
                raise
            catalog.sweep()
            catalog.count_accesses()
        return result

    def _lead(self, mine: _Ticket) -> None:
        with self._lock:
            tickets, self._queue = self._queue[:_MOST], self._queue[_MOST:]
        try:
            assert self._catalog.journal is not None
            with self._catalog.journal.busy:
                self._transaction(tickets)
        finally:
            with self._lock:
                following = self._queue[0] if self._queue else None
                self._leading = following is not None
            for ticket in tickets:
                if ticket is not mine:
                    ticket.woken.release()
            if following is not None:
                following.woken.release()

    def _transaction(self, tickets: list[_Ticket]) -> None:
        """Does the writes and commits those that succeed. A fault of the disk is every write's."""
        catalog, journal = self._catalog, self._catalog.journal
        assert journal is not None
        wrote = False
        try:
            journal.begin()
            with catalog.lock:
                if catalog.closed:
                    raise StoreClosed(CLOSED)
                catalog.begin()
                for ticket in tickets:
                    try:
                        ticket.result = catalog.transact(ticket.body)
                    except Exception as fault:
                        ticket.fault = fault
                catalog.count_accesses()
            wrote = self._write()
            if wrote:
                journal.commit()
        except BaseException as fault:
            committed = wrote and not isinstance(fault, MemcoreError) and not journal.in_transaction
            with catalog.lock:
                if committed:  # a signal's handler raised after the commit
                    catalog.show()
                else:
                    catalog.take_back()
            journal.roll_back()
            for ticket in tickets:
                if ticket.fault is None and not committed:
                    ticket.fault = fault if isinstance(fault, MemcoreError) else _interrupted(fault)
                ticket.done = True
            if not isinstance(fault, MemcoreError):
                raise
        else:
            if not wrote:
                journal.roll_back()
            with catalog.lock:
                catalog.show()
            for ticket in tickets:
                ticket.done = True
            if wrote:
                self.on_commit()

    def _write(self) -> bool:
        """Writes what the transaction has changed into the journal; whether there was anything."""
        catalog, journal = self._catalog, self._catalog.journal
        assert journal is not None
        changed = catalog.changed()
        if not changed:
            return False
        with journal.telling("write into"):
            first, names = catalog.new_names()
            if names:
                journal.add_names(names, first)
            made: dict[Name, int] = {}
            for scope, partition in changed.items():
                number = made[scope] = journal.scope_made(scope)
                marks: dict[int, tuple[int, ...]] = {}
                for columns in partition.added:
                    self.bytes_written += columns["vector"].nbytes + sum(map(len, columns["content"]))
                    journal.add_rows(number, columns)
                    marks.update(_own_marks(number, columns, catalog.seq))
                    counts = _own_counts(number, columns)
                    if counts:
                        journal.count(counts)
                for mark in partition.marks:
                    seq = mark.segment.get("seq", mark.row)
                    values = (mark.segment.get(name, mark.row) for name in MARKS)
                    marks[seq] = (seq, number, *values, catalog.seq)
                if marks:
                    journal.put_marks(marks.values())
            for told in catalog.new_forgettings():
                journal.run(
                    "INSERT INTO forgettings VALUES (?, ?, ?, ?)", told.seq, made[told.scope], told.at, told.erased
                )
            journal.set_state(seq=catalog.seq, dim=catalog.dim, fingerprint=catalog.fingerprint)
            journal.keep_scopes(made)
        return True


def _own_marks(scope: int, columns: dict[str, Any], changed: int) -> dict[int, tuple[int, ...]]:
    """The marks with which rows were appended."""
    return {
        int(columns["seq"][row]): (
            int(columns["seq"][row]),
            scope,
            *(int(columns[name][row]) for name in MARKS),
            changed,
        )
        for row in columns["superseded_seq"].nonzero()[0].tolist()
    }


def _own_counts(scope: int, columns: dict[str, Any]) -> list[tuple[int, ...]]:
    """The counts with which rows were appended."""
    return [
        (int(columns["seq"][row]), scope, int(columns["access_count"][row]), int(columns["last_access"][row]))
        for row in columns["access_count"].nonzero()[0].tolist()
    ]


def _interrupted(fault: BaseException) -> BaseException:
    """What other writers of a transaction hear that its leader was interrupted in."""
    told = MemcoreError(f"the write was interrupted by {type(fault).__name__} in another thread; nothing was written")
    told.__cause__ = fault
    return told

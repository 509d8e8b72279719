"""How does a write become one that lasts? Writes that come at the same time share a transaction.

The first thread that wants to write leads: it takes the write lock of the disk, reads what other processes have
committed, does the writes that wait (its own and other threads'), commits them together, and lets readers see them. The
others wait meanwhile, and the first of those that come too late leads next. So many writers pay for one commit. Rows
that several threads remember in one scope are checked and appended as one batch, which takes a third of the time.

Under the catalog's lock only memory changes. Nobody holds it while the disk is waited for, and readers never ask for it
on account of a writer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from memcore.errors import MemcoreError, StoreClosed
from memcore.store import graphs
from memcore.store.catalog import CLOSED, Catalog, Name
from memcore.store.hnsw import THREADS
from memcore.store.segment import MARKS
from memcore.store.steps import step

T = TypeVar("T")
Item = TypeVar("Item", contravariant=True)  # of a batch: an item
Result = TypeVar("Result", covariant=True)  # and its result
_MOST = 512  # writes a transaction


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What `compact` did: row versions dropped, since they were forgotten; files written and removed; bytes before and
    after, of a store in RAM those of its rows; rows that were put into graphs, for approximate recall.
    """

    dropped: int
    written: int
    removed: int
    bytes_before: int
    bytes_after: int
    indexed: int = 0


class Batch(Protocol[Item, Result]):
    """Writes of one kind that can be done as one. Those with equal keys are."""

    @property
    def key(self) -> Hashable: ...

    def prepare(self, items: Sequence[Item]) -> tuple[Any, dict[int, Exception]]:
        """Checks items; what `store` needs of those that are sound, and the faults of the others by place. Not under
        the lock.
        """

    def store(self, prepared: Any) -> Sequence[Result]:
        """Writes the sound ones, all or none; a result for each. Under the lock."""


class CalledOff(Exception):
    """The fault of a write that nobody wanted any more when its turn came."""


class Ticket:
    """A write that waits, and what became of it. `woken` is free when there is something to know; `wanted` is asked
    once it can be done, and the answer counts.
    """

    __slots__ = ("batch", "body", "done", "fault", "item", "result", "wanted", "woken")

    def __init__(self, body: Callable[[], Any] | None, batch: Batch[Any, Any] | None = None, item: Any = None) -> None:
        self.body = body
        self.batch = batch
        self.item = item
        self.done = False
        self.result: Any = None
        self.fault: BaseException | None = None
        self.wanted: Callable[[], bool] | None = None
        self.woken = threading.Lock()
        self.woken.acquire()


class Commits:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()  # of the four below
        self._queue: list[Ticket] = []
        self._taken: list[Ticket] = []  # by the leader
        self._leader: Ticket | None = None
        self._thread = 0  # the leader's
        self.on_commit: Callable[[], None] = lambda: None
        self.bytes_written = 0  # into the journal, since rows were sealed last
        catalog.on_fork.append(self._forget_waiting)

    def _forget_waiting(self) -> None:
        """In a forked child: those who waited are the parent's threads."""
        self._lock, self._queue, self._taken, self._leader = threading.Lock(), [], [], None

    def run(self, body: Callable[[], T]) -> T:
        """Does a write, all of it or, if it raises, nothing; returns when it is on disk, if the store has one."""
        result: T = self.done(Ticket(body))
        return result

    def run_all(self, tickets: Sequence[Ticket]) -> None:
        """Does several writes, each wholly or not at all, in as few commits as may be. The tickets tell what became."""
        try:
            if self._catalog.journal is None:
                self._in_ram(tickets)
            elif tickets:
                self._wait(tickets)
        except BaseException as fault:
            for ticket in tickets:
                if not ticket.done:
                    ticket.fault = ticket.fault or fault

    def done(self, ticket: Ticket) -> Any:
        """Does a write in the same way; one of a batch together with those of its batch that wait at the same time."""
        if self._catalog.journal is None:
            self._in_ram([ticket])
        elif self._thread == threading.get_ident():  # a caller's object writes while its row is checked
            self._transaction([ticket])
        else:
            self._wait([ticket])
        if ticket.fault is not None:
            raise ticket.fault
        return ticket.result

    def _wait(self, tickets: Sequence[Ticket]) -> None:
        """Has tickets done, by this thread or another."""
        try:
            with self._lock:
                self._queue += tickets
                if self._leader is None:
                    self._leader = tickets[0]
            for ticket in tickets:
                if not ticket.done and self._leader is not ticket:
                    ticket.woken.acquire()  # done, or to lead
                if not ticket.done:
                    self._lead(ticket)
        except BaseException:  # a signal's handler; whoever waits behind must not wait for ever
            for ticket in tickets:
                self._hand_over(ticket)
            raise

    def _lead(self, mine: Ticket) -> None:
        assert self._catalog.journal is not None
        try:
            with self._catalog.journal.busy:
                with self._lock:
                    self._taken = self._queue[:_MOST]
                    del self._queue[: len(self._taken)]
                self._thread = threading.get_ident()
                self._transaction(self._taken)
        finally:
            self._thread = 0
            self._hand_over(mine)

    def _hand_over(self, mine: Ticket) -> None:
        """Wakes those whose writes the leader had taken, and the one who leads next."""
        with self._lock:
            leads = self._leader is mine
            for ticket in [mine, *(self._taken if leads else ())]:
                if not ticket.done:
                    ticket.fault = ticket.fault or _interrupted()
                    ticket.done = True
                if ticket in self._queue:
                    self._queue.remove(ticket)
                if ticket is not mine and ticket.woken.locked():  # again, after a signal's handler raised in here
                    ticket.woken.release()
            if leads:
                following = self._queue[0] if self._queue else None
                if following is not None and following.woken.locked():
                    following.woken.release()
                # Last of all, and together: whoever comes here again still finds whom to wake.
                self._taken, self._leader = [], following

    def sweep(self, progress: graphs.Progress) -> CompactReport:
        """Frees all that was forgotten in a store in RAM, and makes the graphs that are due."""
        catalog = self._catalog
        with catalog.lock:
            before = catalog.nbytes()
            dropped = catalog.sweep(all=True)
            after = catalog.nbytes()
            every = [segment for p in catalog.partitions.values() for segment in p.shown.segments]
        catalog.graphs.drop({graphs.key_of(segment) for segment in every})
        made = 0
        while (due := next(catalog.graphs_due(), None)) is not None:
            wanted, partition, segments = due
            run = graphs.build(segments, wanted, threads=THREADS, stopping=lambda: catalog.closed, progress=progress)
            if run is None or not catalog.graphs.take(run, partition.shown.segments):
                break
            made += run.rows
        return CompactReport(dropped, 0, 0, before, after, made)

    def flush_counts(self) -> None:
        """Has what was counted of accesses on disk."""
        catalog, journal = self._catalog, self._catalog.journal
        if journal is None:
            return
        with journal.busy:
            committing = False
            try:
                with catalog.lock:
                    catalog.count_accesses()
                    counts = catalog.counts_taken()
                if not counts:
                    return
                journal.begin()
                with journal.telling("write into"):
                    catalog.counts_go(
                        journal.count(
                            (seq, number, *counted)
                            for scope, mine in counts.items()
                            for number in [journal.scope_made(scope)]
                            for seq, counted in mine.items()
                        )
                    )
                step("before counts are committed")
                committing = True
                journal.commit()
                step("after counts are committed")
                with catalog.lock:
                    catalog.counts_written()
            except BaseException as fault:
                # else a signal's handler raised after the commit
                kept = not committing or isinstance(fault, MemcoreError) or journal.in_transaction
                with catalog.lock:
                    (catalog.counts_kept if kept else catalog.counts_written)()
                journal.roll_back()
                raise

    def _in_ram(self, tickets: Sequence[Ticket]) -> None:
        catalog = self._catalog
        writes = self._writes(tickets)
        with catalog.lock:
            if catalog.closed:
                raise StoreClosed(CLOSED)
            try:
                catalog.begin()
                self._perform(writes)
            except BaseException:
                catalog.take_back()
                raise
            try:
                catalog.show()
            except BaseException:  # a signal's handler: it is done, and will be seen
                catalog.show()
                raise
            catalog.sweep()

    def _writes(self, tickets: Sequence[Ticket]) -> list[_Write]:
        """What to do for these tickets: a write each, one for those of a batch that are sound. Not under the lock."""
        writes: list[_Write] = []
        batches: dict[Hashable, list[Ticket]] = {}
        for ticket in tickets:
            if ticket.batch is not None:
                batches.setdefault(ticket.batch.key, []).append(ticket)
            elif ticket.body is not None:
                writes.append(_Write([ticket], ticket.body))
        for mine in batches.values():
            writes += self._prepared(mine)
        return writes

    def _prepared(self, tickets: list[Ticket]) -> list[_Write]:
        batch = tickets[0].batch
        assert batch is not None
        try:
            prepared, faults = batch.prepare([ticket.item for ticket in tickets])
        except Exception as raised:
            if len(tickets) > 1:
                return [write for ticket in tickets for write in self._prepared([ticket])]
            prepared, faults = None, {0: raised}
        for place, fault in faults.items():
            tickets[place].fault = fault
        sound = [ticket for ticket in tickets if ticket.fault is None]
        return [_Write(sound, lambda: batch.store(prepared), True)] if sound else []

    def _perform(self, writes: Sequence[_Write]) -> None:
        """Does writes, each wholly or not at all. Under the lock."""
        for write in writes:
            try:
                wanted = [ticket.wanted is None or ticket.wanted() for ticket in write.tickets]
                if not all(wanted):
                    raise CalledOff
                result = self._catalog.transact(write.body)
            except Exception as fault:
                if len(write.tickets) == 1:
                    write.tickets[0].fault = fault
                else:  # one of them cannot be stored: which?
                    self._perform([alone for ticket in write.tickets for alone in self._prepared([ticket])])
                continue
            for ticket, its in zip(write.tickets, result if write.batched else [result], strict=True):
                ticket.result = its

    def _transaction(self, tickets: list[Ticket]) -> None:
        """Does the writes and commits those that succeed. A fault of the disk is every write's."""
        catalog, journal = self._catalog, self._catalog.journal
        assert journal is not None
        wrote = False
        try:
            writes = self._writes(tickets)
            self._thread = 0  # what the caller has a hand in is over
            journal.begin()
            with catalog.lock:
                if catalog.closed:
                    raise StoreClosed(CLOSED)
                catalog.begin()
                self._perform(writes)
            wrote = self._write()
            if wrote:
                step("before a commit")
                journal.commit()
                step("after a commit")
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
                step("after a transaction without effect")
            with catalog.lock:
                if wrote:
                    catalog.show()
                else:
                    catalog.take_back()  # or RAM would keep what the disk has not, such as a name's code
            for ticket in tickets:
                ticket.done = True
            if wrote:
                self.on_commit()

    def _write(self) -> bool:
        """Writes what the transaction has changed into the journal; whether there was anything."""
        catalog, journal = self._catalog, self._catalog.journal
        assert journal is not None
        changed = catalog.changed()
        if not changed and not catalog.imported:
            return False
        with journal.telling("write into"):
            first, names = catalog.new_names()
            if names:
                journal.add_names(names, first)
            made: dict[Name, int] = {}
            counts: list[tuple[int, ...]] = []
            last = 0  # the seq of the last row: if the transaction's last, it need not be told beside
            for scope, partition in changed.items():
                number = made[scope] = journal.scope_made(scope)
                marks: dict[int, tuple[int, ...]] = {}
                for columns in partition.added:
                    self.bytes_written += columns["vector"].nbytes + sum(map(len, columns["content"]))
                    journal.add_rows(scope, number, columns)
                    last = max(last, int(columns["seq"][-1]))
                    marks.update(_own_marks(number, columns, catalog.seq))
                    counts += _own_counts(number, columns)
                step("between the rows and the marks of a commit")
                for mark in partition.marks:
                    seq = mark.segment.get("seq", mark.row)
                    values = (mark.segment.get(name, mark.row) for name in MARKS)
                    marks[seq] = (seq, number, *values, catalog.seq)
                if marks:
                    journal.put_marks(marks.values())
                if partition.cold is not partition.shown.cold:
                    journal.put_cold(number, partition.shown.cold, partition.cold)
                if partition.links.dirty:
                    table = partition.links
                    journal.put_links(number, map(table.cells, table.changed()), catalog.seq)
            if counts:
                catalog.counts_go(journal.count(counts))
            for told in catalog.new_forgettings():
                journal.run(
                    "INSERT INTO forgettings VALUES (?, ?, ?, ?)", told.seq, made[told.scope], told.at, told.erased
                )
            for file, how_far in catalog.imported:
                journal.run("DELETE FROM imports WHERE file = ?", file)
                if how_far is not None:
                    journal.run("INSERT INTO imports VALUES (?, ?)", file, how_far)
            if catalog.seq != last or catalog.settled():
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


@dataclass(slots=True)
class _Write:
    """One write of a transaction, and the tickets that it is done for; `batched`: a result for each."""

    tickets: list[Ticket]
    body: Callable[[], Any]
    batched: bool = False


def _interrupted(fault: BaseException | None = None) -> MemcoreError:
    """What other writers of a transaction hear that its leader was interrupted in."""
    by = "" if fault is None else f" by {type(fault).__name__}"
    told = MemcoreError(f"the write was interrupted{by} in another thread; nothing was written: try again")
    told.__cause__ = fault
    return told

"""What does one scope hold? All rows of one (tenant, project), in commit order, apart from every other scope's.

Scopes are separate objects rather than a filter over shared rows: a scan of one cannot see another's rows, whatever the
filter says. A row version is named by its seq, which stays when its segment is rewritten. Writers change a partition
under the catalog's lock, and every change can be taken back until it is shown; readers see what was shown last.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from memcore.gate import KINDS
from memcore.store import links
from memcore.store import segment as segments
from memcore.store.cold import NO_COLD, Cold
from memcore.store.files import reading
from memcore.store.links import LinkTable
from memcore.store.segment import Columns, Segment

WORKING = KINDS.index("working")
UPSERTED = (KINDS.index("semantic"), KINDS.index("procedural"))  # the kinds whose key names one record
MOST_ACCESSES = 2**31 - 1  # what the column holds
SWEEP_SHARE = 4  # a segment is rewritten once a quarter of its rows may go: at most 4 rows copied for each one

Conversation = tuple[int, int]  # the codes of a session and a role


class Ref(NamedTuple):
    """Where a row version lies now."""

    segment: Segment
    row: int

    def get(self, column: str) -> int:
        return self.segment.get(column, self.row)

    def text(self, column: str) -> str | None:
        return self.segment.text(column, self.row)

    def columns(self) -> Columns:
        """The row as columns of length one."""
        return self.segment.batch(np.array([self.row]))

    @property
    def name(self) -> tuple[int, int]:
        """The id, in two halves."""
        return self.get("id_hi"), self.get("id_lo")

    @property
    def conversation(self) -> Conversation:
        return self.get("session"), self.get("role")


class Shown(NamedTuple):
    """The rows that readers see: so many of each segment, as they stood at the commit `seq`; and what lay in the cold
    tier then. Never changed.
    """

    seq: int
    segments: tuple[Segment, ...]
    sizes: tuple[int, ...]
    cold: Cold = NO_COLD
    links: links.View = links.NO_LINKS


class Mark(NamedTuple):
    """A change of one of the `MARKS`, and what was there before."""

    segment: Segment
    row: int
    name: str
    before: int


class Save(NamedTuple):
    """A point to which changes can be taken back."""

    segments: tuple[Segment, ...]
    sizes: tuple[int, ...]
    added: int
    marks: int
    dim: int
    cold: Cold
    links: tuple[int, int]


class Partition:
    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.segments: tuple[Segment, ...] = ()  # replaced, never changed
        self.shown = Shown(0, (), ())
        self.seen: Any = None  # the snapshot that readers have of what is shown
        self.cold = NO_COLD  # replaced, never changed
        self.read_cold: Callable[[Cold], Sequence[Segment]] = _nothing_cold
        self.links = LinkTable()
        # What has been done since it was last shown: rows, as the columns they came in, and marks.
        self.added: list[Columns] = []
        self.marks: list[Mark] = []
        # The working memory of each conversation, oldest first: what it holds, and what has fallen out (and so lapsed).
        self.held: dict[Conversation, dict[int, None]] = {}
        self.fallen: dict[Conversation, dict[int, None]] = {}
        # How far it is as the disk is: the commit, the list of segments, the flush of the counters.
        self.applied = 0
        self.generation = 0
        self.touched = 0

    # Reading

    def at(self, seq: int) -> Ref | None:
        for segment in reversed(self.segments):
            if segment.get("seq", 0) <= seq:
                row = segment.row_of(seq)
                return None if row is None else Ref(segment, row)
        return None

    def ref(self, seq: int) -> Ref:
        """Where a row lies that is known to be here, or in the cold tier."""
        found = self.at(seq)
        if found is None:
            found = next(Ref(s, row) for s in self.cold_segments() if (row := s.row_of(seq)) is not None)
        return found

    def cold_segments(self) -> Sequence[Segment]:
        """The rows in the cold tier. Under the lock: what was read before is in RAM as a rule."""
        return self.read_cold(self.cold) if self.cold.files else ()

    def standing(self, hi: int, lo: int) -> Ref | None:
        """The version of an id that stands: neither superseded nor forgotten."""
        for segment in reversed(self.segments):
            for row in segment.view().rows_of(hi, lo)[::-1]:
                if not segment.get("superseded_seq", row) and not segment.get("forgotten_seq", row):
                    return Ref(segment, int(row))
        return None

    def known(self, names: set[tuple[int, int]], *, cold: bool = True) -> set[tuple[int, int]]:
        """Those of the ids (high half, low half) that have a version here, superseded or not; if `cold`, also in the
        cold tier.
        """
        found: set[tuple[int, int]] = set()
        if not names:
            return found
        for segment in (*self.segments, *(self.cold_segments() if cold else ())):
            found.update(Ref(segment, row).name for row in _unforgotten(segment, names))
        return found

    def by_key(self, kind: int, key: str) -> Ref | None:
        """The standing row that a key of an upserted kind names."""
        for segment in reversed(self.segments):
            with reading(segment.source):
                rows = segment.rows_under(key)
            for row in reversed(rows):
                ref = Ref(segment, row)
                if ref.get("kind") == kind and not ref.get("superseded_seq") and not ref.get("forgotten_seq"):
                    return ref
        return None

    def retry(self, session: int, role: int, key: str) -> int | None:
        """The seq of the first row that was written with this idempotency key in a session and role."""
        for segment in (*self.segments, *self.cold_segments()):
            with reading(segment.source):
                row = segment.retry_of(session, role, key)
            if row is not None:
                return segment.get("seq", row)
        return None

    def live(self) -> int:
        """The row versions that are not forgotten, those in the cold tier too."""
        return sum(segment.n - segment.forgotten for segment in self.segments) + self.cold.rows

    @property
    def pending(self) -> bool:
        """Whether something has been done that is not shown yet."""
        return bool(self.added or self.marks or self.links.dirty) or self.cold is not self.shown.cold

    def nbytes(self) -> int:
        """Bytes of the rows and of what finds them."""
        found = sum(sys.getsizeof(index) for index in (self.held, self.fallen))
        return sum(segment.nbytes() for segment in self.segments) + self.links.nbytes() + found

    # Writing

    def append(self, columns: Columns, n: int) -> None:
        """Appends rows with rising seqs."""
        self.added.append(columns)
        row = 0
        while row < n:
            if not self.segments or self.segments[-1].sealed:
                self.segments += (Segment(self.dim),)
            tail = self.segments[-1]
            row = tail.append(columns, row, n)
            if tail.full:
                tail.seal()
        if WORKING not in columns["kind"]:
            return
        seqs = columns["seq"]
        standing = (columns["superseded_seq"] == 0) & (columns["forgotten_seq"] == 0)
        for row in np.flatnonzero((columns["kind"] == WORKING) & standing).tolist():
            self.held.setdefault((int(columns["session"][row]), int(columns["role"][row])), {})[int(seqs[row])] = None

    def count(self, totals: Mapping[int, Sequence[int]]) -> list[int]:
        """Adds accesses, and notes the last, to rows by their seqs; those that are here."""
        seqs = np.fromiter(totals, np.int64, len(totals))
        found: list[int] = []
        for segment in self.segments:
            held = segment.view().columns["seq"]
            at = np.searchsorted(held, seqs)
            there = np.flatnonzero(held[np.minimum(at, len(held) - 1)] == seqs) if len(held) else ()
            for place in there:
                row, seq = int(at[place]), int(seqs[place])
                count, last = totals[seq]
                segment.set("access_count", row, min(segment.get("access_count", row) + count, MOST_ACCESSES))
                before = segment.get("last_access", row)
                segment.set("last_access", row, max(last, before) if before else last)
                found.append(seq)
        return found

    def put(self, ref: Ref, name: str, value: int) -> None:
        """Sets one of the `MARKS` of a row."""
        self.marks.append(Mark(ref.segment, ref.row, name, ref.get(name)))
        ref.segment.set(name, ref.row, value)

    def supersede(self, seq: int, by: int, at: int) -> None:
        """Marks a row as replaced by the commit `by` at the time `at`. A working memory keeps its place."""
        ref = self.ref(seq)
        self.put(ref, "superseded_at", at)
        self.put(ref, "superseded_seq", by)
        conversation = ref.conversation
        held = self.held.get(conversation, {})
        if seq in held and by in held:
            self.held[conversation] = {by if other == seq else other: None for other in held if other != by}
        _drop(self.held, conversation, seq)

    def lapse(self, seq: int) -> None:
        """Tells that a superseded row has no later version."""
        ref = self.ref(seq)
        self.put(ref, "lapsed", 1)
        if ref.get("kind") == WORKING:
            self.fallen.setdefault(ref.conversation, {})[seq] = None

    def revive(self, seq: int) -> None:
        """Tells that a lapsed row gets a later version after all."""
        ref = self.ref(seq)
        self.put(ref, "lapsed", 0)
        _drop(self.fallen, ref.conversation, seq)

    def forget(self, names: set[tuple[int, int]], seq: int, *, again: bool = False) -> None:
        """Marks all versions of these ids as never to be seen again, as of any moment; `again` those too that were
        forgotten before.
        """
        for segment in self.segments:
            rows = segment.view().rows_with(names).tolist() if again else _unforgotten(segment, names)
            for row in rows:
                ref = Ref(segment, row)
                self.put(ref, "forgotten_seq", seq)
                _drop(self.held, ref.conversation, ref.get("seq"))
                _drop(self.fallen, ref.conversation, ref.get("seq"))
            if rows:
                segment.count_forgotten()

    def forgotten(self, names: set[tuple[int, int]]) -> list[Ref]:
        """The versions of these ids that were forgotten last, as long as they lie here, oldest first."""
        found: dict[tuple[int, int], list[Ref]] = {}
        for segment in self.segments:
            for row in segment.view().rows_with(names).tolist():
                ref = Ref(segment, row)
                if ref.get("forgotten_seq"):
                    mine = found.setdefault(ref.name, [])
                    if mine and mine[0].get("forgotten_seq") < ref.get("forgotten_seq"):
                        mine.clear()
                    if not mine or mine[0].get("forgotten_seq") == ref.get("forgotten_seq"):
                        mine.append(ref)
        return sorted((ref for refs in found.values() for ref in refs), key=lambda ref: ref.get("seq"))

    def remember_again(self, refs: Iterable[Ref]) -> None:
        """Takes back that these rows were forgotten. `Catalog.link_again` does so with their links."""
        for ref in refs:
            self.put(ref, "forgotten_seq", 0)
            ref.segment.count_forgotten()
        self.find_conversations()

    # Showing, and taking back

    def show(self, seq: int) -> None:
        """Lets readers see all that has been done, as of the commit `seq`."""
        self.links.show()
        sizes = tuple(segment.n for segment in self.segments)
        self.shown = Shown(seq, self.segments, sizes, self.cold, self.links.view())
        self.seen = None
        self.added, self.marks = [], []

    def save(self) -> Save:
        sizes = tuple(segment.n for segment in self.segments)
        return Save(self.segments, sizes, len(self.added), len(self.marks), self.dim, self.cold, self.links.save())

    def take_back(self, save: Save) -> None:
        """All as it was at the save.

        Needs no step since then to have been finished: rows count only when they are whole, and a mark is noted before
        it is set. A segment that got rows is copied without them, since a reader may hold it.
        """
        self.cold = save.cold
        self.links.take_back(save.links)
        noted = (len(self.added), len(self.marks), self.dim) == (save.added, save.marks, save.dim)
        if noted and self.segments is save.segments:
            return  # every change begins by being noted there
        for mark in reversed(self.marks[save.marks :]):
            mark.segment.set(mark.name, mark.row, mark.before)
        del self.added[save.added :], self.marks[save.marks :]
        kept = []
        for segment, n in zip(save.segments, save.sizes, strict=True):
            if segment.n != n:
                segment = rewritten([segment], np.arange(n), sealed=False)
            if segment.dim != save.dim:
                segment.widen(save.dim)
            segment.count_forgotten()
            kept.append(segment)
        self.segments, self.dim = tuple(kept), save.dim
        self.find_conversations()

    def find_conversations(self) -> None:
        """Finds what each working memory holds and what has fallen out of it, from the rows.

        An update keeps a message's place, so what it holds is in the order of the first versions.
        """
        self.held, self.fallen = {}, {}
        first: dict[tuple[int, int], int] = {}
        held: list[tuple[int, Conversation, int]] = []
        fallen: list[tuple[int, int, Conversation, int]] = []
        for segment in self.segments:
            if WORKING not in segment.kinds:
                continue
            c = segment.view().columns
            for row in np.flatnonzero((c["kind"] == WORKING) & (c["forgotten_seq"] == 0)).tolist():
                ref = Ref(segment, row)
                seq = ref.get("seq")
                place = first.setdefault(ref.name, seq)
                if not ref.get("superseded_seq"):
                    held.append((place, ref.conversation, seq))
                elif ref.get("lapsed"):
                    fallen.append((ref.get("superseded_seq"), place, ref.conversation, seq))
        for _, conversation, seq in sorted(held):
            self.held.setdefault(conversation, {})[seq] = None
        for _, _, conversation, seq in sorted(fallen):
            self.fallen.setdefault(conversation, {})[seq] = None

    # Freeing

    def sweep(self, commits: set[int], share: int) -> None:
        """Drops rows that these commits have forgotten, from segments of which they are at least one in `share`, and
        joins small segments: bytes and segments stay bounded. Of a store in RAM; files are for `Maintenance`.
        """
        self.links.sweep(commits)
        kept: list[Segment] = []
        wanted = np.fromiter(commits, np.int64, len(commits))
        for segment in self.segments:
            may_go = np.isin(segment.view().columns["forgotten_seq"], wanted)
            count = int(np.count_nonzero(may_go))
            if count == segment.n:
                continue
            if count * (share or segment.n) >= segment.n:
                segment = rewritten([segment], np.flatnonzero(~may_go), sealed=segment.sealed)
            if kept and segment.sealed and _small(kept[-1], segment):
                segment = rewritten([kept.pop(), segment], None, sealed=True)
            kept.append(segment)
        self.segments = tuple(kept)


def _unforgotten(segment: Segment, names: set[tuple[int, int]]) -> list[int]:
    view = segment.view()
    rows = view.rows_with(names)
    left: list[int] = rows[view.columns["forgotten_seq"][rows] == 0].tolist()
    return left


def _nothing_cold(cold: Cold) -> Sequence[Segment]:
    return ()


def _small(*parts: Segment) -> bool:
    """Whether segments together are well below the size of one."""
    rows, text_bytes = sum(part.n for part in parts), sum(part.text_bytes for part in parts)
    return rows <= segments.ROWS // 2 and text_bytes <= segments.TEXT_BYTES // 2


def rewritten(old: Iterable[Segment], rows: np.ndarray[tuple[int], np.dtype[np.int64]] | None, sealed: bool) -> Segment:
    """Rows of some segments, all by default, in a new one."""
    old = list(old)
    new = Segment(old[0].dim)
    for segment in old:
        at = np.arange(segment.n) if rows is None else rows
        new.append(segment.batch(at), 0, len(at))
    new.count_forgotten()
    if sealed and new.n:
        new.seal()
    return new


def _drop(conversations: dict[Conversation, dict[int, None]], conversation: Conversation, seq: int) -> None:
    seqs = conversations.get(conversation)
    if seqs is not None and seq in seqs:
        del seqs[seq]
        if not seqs:
            del conversations[conversation]

"""What does one scope hold? All rows of one (tenant, project), in commit order, apart from every other scope's.

Scopes are separate objects rather than a filter over shared rows: a scan of one cannot see another's rows, whatever the
filter says. A row version is named by its seq, which stays when its segment is rewritten. Nothing here takes a lock;
the catalog does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sized
from typing import NamedTuple

import numpy as np

from memcore.gate import KINDS
from memcore.store import segment as segments
from memcore.store.segment import Columns, Segment

WORKING = KINDS.index("working")
UPSERTED = (KINDS.index("semantic"), KINDS.index("procedural"))  # the kinds whose key names one record
_SWEEP_SHARE = (
    4  # a segment is rewritten once a quarter of its rows is forgotten: at most 4 rows copied a forgotten row
)

_ENTRY_BYTES = 160  # of a key's text and its list of seqs, about, beside the index itself

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


class Partition:
    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.segments: tuple[Segment, ...] = ()  # replaced, never changed
        self.keys: dict[str, list[int]] = {}  # the seqs of the rows written under a key, rising; none that is forgotten
        self.retries: dict[tuple[int, int, str], int] = {}  # (session, role, idempotency key) -> seq of its first row
        self.lapsed: set[int] = set()  # the seqs of the last versions of memories of which none stands
        # The working memory of each conversation, oldest first: what it holds, and what has fallen out (and so lapsed).
        self.held: dict[Conversation, dict[int, None]] = {}
        self.fallen: dict[Conversation, dict[int, None]] = {}

    # Reading

    def at(self, seq: int) -> Ref | None:
        for segment in reversed(self.segments):
            if segment.get("seq", 0) <= seq:
                row = segment.row_of(seq)
                return None if row is None else Ref(segment, row)
        return None

    def ref(self, seq: int) -> Ref:
        """Where a row lies that is known to be here."""
        found = self.at(seq)
        assert found is not None
        return found

    def standing(self, hi: int, lo: int) -> Ref | None:
        """The version of an id that stands: neither superseded nor forgotten."""
        for segment in reversed(self.segments):
            for row in segment.view().rows_of(hi, lo)[::-1]:
                if not segment.get("superseded_seq", row) and not segment.get("forgotten_seq", row):
                    return Ref(segment, int(row))
        return None

    def known(self, names: set[tuple[int, int]]) -> set[tuple[int, int]]:
        """Those of the ids (high half, low half) that have a version here, superseded or not."""
        found: set[tuple[int, int]] = set()
        for segment in self.segments:
            found.update(Ref(segment, row).name for row in _unforgotten(segment, names))
        return found

    def by_key(self, kind: int, key: str) -> Ref | None:
        """The standing row that a key of an upserted kind names."""
        for seq in reversed(self.keys.get(key, ())):
            ref = self.ref(seq)
            if ref.get("kind") == kind and not ref.get("superseded_seq"):
                return ref
        return None

    def live(self) -> int:
        """The row versions that are not forgotten."""
        return sum(segment.n - segment.forgotten for segment in self.segments)

    def nbytes(self) -> int:
        """Bytes of the rows and of what finds them by key."""
        indexes: tuple[Sized, ...] = (self.keys, self.retries, self.lapsed, self.held, self.fallen)
        found = sum(sys.getsizeof(index) for index in indexes) + _ENTRY_BYTES * (len(self.keys) + len(self.retries))
        return sum(segment.nbytes() for segment in self.segments) + found

    # Taking back

    def began_by(self, seq: int) -> bool:
        """Whether any row is of the commit `seq` or earlier."""
        return any(segment.n and segment.get("seq", 0) <= seq for segment in self.segments)

    def stands_at(self, seq: int) -> bool:
        """Whether nothing here is later than the commit `seq`."""
        columns = [segment.view().columns for segment in self.segments]
        return not any((c[name] > seq).any() for c in columns for name in ("seq", "superseded_seq", "forgotten_seq"))

    def as_of(self, seq: int, dim: int) -> Partition:
        """All anew, from the rows up to the commit `seq` and what had become of them by then.

        Of a segment only the first `n` rows are read, which are whole: `append` counts a row when all its columns are
        there.
        """
        new = Partition(dim)
        for segment in self.segments:
            c = segment.view().columns
            forgotten = (c["forgotten_seq"] != 0) & (c["forgotten_seq"] <= seq)
            columns = segment.batch(np.flatnonzero((c["seq"] <= seq) & ~forgotten))
            n = len(columns["seq"])
            later = columns["superseded_seq"] > seq
            for name in ("superseded_seq", "superseded_at"):
                columns[name] = np.where(later, 0, columns[name])
            columns["forgotten_seq"] = segments.zeros("forgotten_seq", n)
            if columns["vector"].shape[1] != dim:
                columns["vector"] = np.zeros((n, dim), dtype=np.float32)
            new.append(columns, n)
        first: dict[tuple[int, int], int] = {}
        last: dict[tuple[int, int], Ref] = {}
        for segment in new.segments:
            for row in range(segment.n):
                ref = Ref(segment, row)
                first.setdefault(ref.name, ref.get("seq"))
                last[ref.name] = ref
        for ref in last.values():
            if ref.get("superseded_seq"):
                new.lapse(ref.get("seq"))
        for conversations in (new.held, new.fallen):  # an update keeps a message's place
            for conversation, seqs in conversations.items():
                conversations[conversation] = dict.fromkeys(sorted(seqs, key=lambda s: first[new.ref(s).name]))
        return new

    # Writing

    def append(self, columns: Columns, n: int) -> None:
        """Appends rows with rising seqs, and finds them by their keys from now on."""
        row = 0
        while row < n:
            if not self.segments or self.segments[-1].sealed:
                self.segments += (Segment(self.dim),)
            tail = self.segments[-1]
            row = tail.append(columns, row, n)
            if tail.full:
                tail.seal()
        seqs = columns["seq"]
        for row, key in enumerate(columns["key"]):
            if key is not None:
                self.keys.setdefault(key, []).append(int(seqs[row]))
        for row, key in enumerate(columns["idempotency_key"]):
            if key is not None:
                self.retries.setdefault((*_conversation(columns, row), key), int(seqs[row]))
        for row in np.flatnonzero((columns["kind"] == WORKING) & (columns["superseded_seq"] == 0)).tolist():
            self.held.setdefault(_conversation(columns, row), {})[int(seqs[row])] = None

    def supersede(self, seq: int, by: int, at: int) -> None:
        """Marks a row as replaced by the commit `by` at the time `at`. A working memory keeps its place."""
        ref = self.ref(seq)
        ref.segment.set("superseded_at", ref.row, at)
        ref.segment.set("superseded_seq", ref.row, by)
        conversation = (ref.get("session"), ref.get("role"))
        held = self.held.get(conversation, {})
        if seq in held and by in held:
            self.held[conversation] = {by if other == seq else other: None for other in held if other != by}
        _drop(self.held, conversation, seq)

    def lapse(self, seq: int) -> None:
        """Tells that a superseded row has no later version."""
        self.lapsed.add(seq)
        ref = self.ref(seq)
        if ref.get("kind") == WORKING:
            self.fallen.setdefault((ref.get("session"), ref.get("role")), {})[seq] = None

    def settle_order(self) -> None:
        """Puts working memories where they were first said, after rows came in by their last versions."""
        for conversation, seqs in self.held.items():
            self.held[conversation] = dict.fromkeys(sorted(seqs, key=self._first))

    def _first(self, seq: int) -> int:
        """The seq of the first version of a row's memory."""
        hi, lo = self.ref(seq).name
        return min(segment.get("seq", int(row)) for segment in self.segments for row in segment.view().rows_of(hi, lo))

    def revive(self, seq: int) -> None:
        """Tells that a lapsed row gets a later version after all."""
        ref = self.ref(seq)
        self.lapsed.discard(seq)
        _drop(self.fallen, (ref.get("session"), ref.get("role")), seq)

    def forget(self, names: set[tuple[int, int]], seq: int) -> None:
        """Marks all versions of these ids as never to be seen again, as of any moment; the space is freed by and by."""
        gone: set[int] = set()
        keys: set[str] = set()
        for segment in self.segments:
            rows = _unforgotten(segment, names)
            for row in rows:
                segment.set("forgotten_seq", row, seq)
                ref = Ref(segment, row)
                gone.add(ref.get("seq"))
                self._unlink(ref, keys)
            segment.forgotten += len(rows)
        for key in keys:  # a new list: a reader may hold the old one
            left = [other for other in self.keys.pop(key) if other not in gone]
            if left:
                self.keys[key] = left
        self.lapsed -= gone
        self._sweep()

    def _unlink(self, ref: Ref, keys: set[str]) -> None:
        """Takes a row out of what finds it, but for its key, which is added to `keys`."""
        seq, conversation = ref.get("seq"), (ref.get("session"), ref.get("role"))
        key, retry = ref.text("key"), ref.text("idempotency_key")
        if key is not None:
            keys.add(key)
        if retry is not None and self.retries.get((*conversation, retry)) == seq:
            del self.retries[*conversation, retry]
        _drop(self.held, conversation, seq)
        _drop(self.fallen, conversation, seq)

    def _sweep(self) -> None:
        """Rewrites segments of which a quarter is forgotten, and joins small ones: bytes and segments stay bounded."""
        kept: list[Segment] = []
        for segment in self.segments:
            if segment.forgotten == segment.n:
                continue
            if segment.forgotten * _SWEEP_SHARE >= segment.n:
                segment = _rewritten([segment], self.dim)
            if kept and segment.sealed and _small(kept[-1], segment):
                segment = _rewritten([kept.pop(), segment], self.dim)
            kept.append(segment)
        self.segments = tuple(kept)


def _unforgotten(segment: Segment, names: set[tuple[int, int]]) -> list[int]:
    view = segment.view()
    rows = view.rows_with(names)
    left: list[int] = rows[view.columns["forgotten_seq"][rows] == 0].tolist()
    return left


def _small(*parts: Segment) -> bool:
    """Whether segments together are well below the size of one."""
    rows, text_bytes = sum(part.n for part in parts), sum(part.text_bytes for part in parts)
    return rows <= segments.ROWS // 2 and text_bytes <= segments.TEXT_BYTES // 2


def _rewritten(old: Iterable[Segment], dim: int) -> Segment:
    """What is not forgotten of some segments, in one; sealed if they are."""
    new = Segment(dim)
    sealed = True
    for segment in old:
        sealed = segment.sealed
        rows = np.flatnonzero(segment.view().columns["forgotten_seq"] == 0)
        new.append(segment.batch(rows), 0, len(rows))
    if sealed:
        new.seal()
    return new


def _conversation(columns: Columns, row: int) -> Conversation:
    return int(columns["session"][row]), int(columns["role"][row])


def _drop(conversations: dict[Conversation, dict[int, None]], conversation: Conversation, seq: int) -> None:
    seqs = conversations.get(conversation)
    if seqs is not None and seq in seqs:
        del seqs[seq]
        if not seqs:
            del conversations[conversation]

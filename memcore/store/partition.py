"""What does one scope hold? All rows of one (tenant, project), in commit order, apart from every other scope's.

Scopes are separate objects rather than a filter over shared rows: a scan of one cannot see another's rows, whatever the
filter says. Nothing here takes a lock; the catalog does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from memcore.store.segment import FORGOTTEN, ROWS, Columns, Segment

UPSERTED = (2, 3)  # codes of the kinds whose key names one record: semantic, procedural
_SWEEP_SHARE = 4  # a segment is rewritten once a quarter of its rows is forgotten: O(1) rewritten rows a forgotten row


class Ref(NamedTuple):
    """Where a row version lies now."""

    segment: Segment
    row: int


class Partition:
    def __init__(self, tenant_id: str, project_id: str, dim: int) -> None:
        self.tenant_id = tenant_id
        self.project_id = project_id
        self.dim = dim
        self.segments: tuple[Segment, ...] = ()  # replaced, never changed, so that a snapshot can hold it
        self.keys: dict[tuple[int, str], int] = {}  # (kind code, key) -> seq of the row that was written last
        self.idempotency: dict[str, int] = {}  # key -> seq of the first row written under it

    def append(self, columns: Columns, n: int) -> None:
        """Appends rows in order, and makes each keyed row the one that its key finds."""
        row = 0
        while row < n:
            if not self.segments or self.segments[-1].sealed:
                self.segments += (Segment(self.dim),)
            tail = self.segments[-1]
            row = tail.append(columns, row, n)
            if tail.full:
                tail.seal()
                self._sweep(tail)
        for i, key in enumerate(columns["key"]):
            if key is not None and not columns["retired_seq"][i]:
                self.keys[int(columns["kind"][i]), key] = int(columns["seq"][i])
        for i, key in enumerate(columns["idempotency_key"]):
            if key is not None:
                self.idempotency.setdefault(key, int(columns["seq"][i]))

    def at(self, seq: int) -> Ref | None:
        for segment in reversed(self.segments):
            if segment.n and segment.seq_at(0) <= seq:
                row = segment.row_of(seq)
                return None if row is None else Ref(segment, row)
        return None

    def versions(self, hi: int, lo: int) -> list[Ref]:
        """All versions of an id that are not forgotten, oldest first."""
        return [
            Ref(segment, int(row))
            for segment in self.segments
            for row in segment.rows_of(hi, lo)
            if segment.column("retired_at")[row] != FORGOTTEN
        ]

    def standing(self, hi: int, lo: int) -> Ref | None:
        """The version of an id that stands: neither superseded nor forgotten."""
        for segment in reversed(self.segments):
            for row in segment.rows_of(hi, lo)[::-1]:
                if not segment.column("retired_seq")[row]:
                    return Ref(segment, int(row))
        return None

    def by_key(self, kind: int, key: str) -> Ref | None:
        seq = self.keys.get((kind, key))
        return None if seq is None else self.at(seq)

    def supersede(self, ref: Ref, seq: int, at: int) -> None:
        ref.segment.set("retired_at", ref.row, at)
        ref.segment.set("retired_seq", ref.row, seq)

    def forget(self, refs: list[Ref], seq: int) -> None:
        """Marks row versions as never recallable again, as of any moment; their space is freed by and by."""
        swept: dict[int, Segment] = {}
        for segment, row in refs:
            segment.set("retired_at", row, FORGOTTEN)
            segment.set("retired_seq", row, seq)
            segment.forgotten += 1
            swept[id(segment)] = segment
            self._unlink(segment, row)
        for segment in swept.values():
            self._sweep(segment)

    def _unlink(self, segment: Segment, row: int) -> None:
        seq = segment.seq_at(row)
        key = segment.text("key", row)
        named = (int(segment.column("kind")[row]), key or "")
        if key is not None and self.keys.get(named) == seq:
            del self.keys[named]
        retry = segment.text("idempotency_key", row)
        if retry is not None and self.idempotency.get(retry) == seq:
            del self.idempotency[retry]

    def _sweep(self, segment: Segment) -> None:
        if not segment.sealed or not segment.forgotten or segment.forgotten * _SWEEP_SHARE < segment.n:
            return
        rows = np.flatnonzero(segment.column("retired_at") != FORGOTTEN)
        kept = (segment.kept(rows),) if len(rows) else ()
        at = self.segments.index(segment)
        self.segments = self.segments[:at] + kept + self.segments[at + 1 :]

    def sweep_tail(self) -> None:
        """Seals a tail most of which is forgotten, so that endless adding and forgetting stays within bounds."""
        tail = self.segments[-1]
        if not tail.sealed and tail.forgotten * 2 > max(tail.n, ROWS // 8):
            tail.seal()
            self._sweep(tail)

    def rows(self) -> int:
        return sum(segment.n for segment in self.segments)

    def standing_by_kind(self) -> npt.NDArray[np.int64]:
        counts = np.zeros(4, dtype=np.int64)
        for segment in self.segments:
            views = segment.views()
            counts += np.bincount(views["kind"][views["retired_seq"] == 0], minlength=4)
        return counts

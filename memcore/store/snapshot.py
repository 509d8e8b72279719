"""What does a reader see? One scope as it stood at one commit, for as long as the reader holds it.

A row version is seen if it was committed and not yet retired at the snapshot's seq; with `as_of`, if it had been ingested
and not yet superseded at that time. Writers append and set marks that carry their own, later seq, so a reader never waits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore import ids
from memcore.clock import to_datetime
from memcore.gate import KINDS
from memcore.schema import TIMESTAMP, Record, decimal, record_schema
from memcore.store.segment import FORGOTTEN, Columns, Segment

Mask = npt.NDArray[np.uint8]
EVERY: Mask = np.empty(0, dtype=np.uint8)  # the mask of a part in which every row is allowed
EVERY.flags.writeable = False
CODED = {"session_id": "session", "agent_role": "role", "source": "source"}  # record column -> column of codes


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows a call may see, whatever it looks for: the scope's narrowing, the kinds, the moment."""

    kinds: frozenset[int]
    now: int
    session: int | None = None
    role: int | None = None
    as_of: int | None = None
    expired: bool = False  # also rows whose time is over


class Part:
    """One segment's rows in a snapshot. `base` is the position of its first row in the snapshot."""

    __slots__ = ("base", "columns", "n", "segment")

    def __init__(self, segment: Segment, base: int) -> None:
        self.segment = segment
        self.columns: Columns = segment.views()
        self.n = len(self.columns["seq"])
        self.base = base

    def mask(self, selection: Selection, seq: int) -> Mask:
        """uint8 `(n,)`, 1 for the rows that the selection sees, or `EVERY`. Conditions that hold throughout cost nothing."""
        columns, touched = self.columns, self.segment.touched
        mask: npt.NDArray[np.bool_] | None = None

        def narrow(condition: npt.NDArray[np.bool_]) -> None:
            nonlocal mask
            if mask is None:
                mask = condition
            else:
                mask &= condition

        if not self.segment.kinds <= selection.kinds:
            allowed = np.zeros(len(KINDS), dtype=np.bool_)
            allowed[list(selection.kinds)] = True
            narrow(allowed[columns["kind"]])
        if selection.session is not None:
            narrow(columns["session"] == selection.session)
        if selection.role is not None:
            narrow(columns["role"] == selection.role)
        if touched("expires_at") and not selection.expired:
            narrow((columns["expires_at"] == 0) | (columns["expires_at"] > selection.now))
        if selection.as_of is not None:
            narrow(columns["ingested_at"] <= selection.as_of)
            if touched("retired_seq"):  # FORGOTTEN is before any moment: what is forgotten by now is in no past either
                narrow((columns["retired_seq"] == 0) | (columns["retired_at"] > selection.as_of))
        elif touched("retired_seq"):
            narrow((columns["retired_seq"] == 0) | (columns["retired_seq"] > seq))
        if mask is None or mask.all():
            return EVERY
        return mask.view(np.uint8)


    def sees(self, row: int, selection: Selection, seq: int) -> bool:
        """Whether the selection sees one row: what `mask` says of it."""
        c = self.columns
        retired, expires = int(c["retired_seq"][row]), int(c["expires_at"][row])
        if selection.as_of is not None:
            ingested = int(c["ingested_at"][row]) <= selection.as_of
            standing = ingested and (not retired or int(c["retired_at"][row]) > selection.as_of)
        else:
            standing = not 0 < retired <= seq
        return (
            standing
            and int(c["kind"][row]) in selection.kinds
            and selection.session in (None, int(c["session"][row]))
            and selection.role in (None, int(c["role"][row]))
            and (selection.expired or not expires or expires > selection.now)
        )


class Snapshot:
    """`parts` in commit order; a position counts rows through all of them. `names` decodes sessions, roles and sources."""

    __slots__ = ("dim", "names", "parts", "project_id", "seq", "tenant_id")

    def __init__(
        self, segments: Sequence[Segment], *, seq: int, names: Sequence[str], tenant_id: str, project_id: str, dim: int
    ) -> None:
        self.seq = seq
        self.names = names
        self.tenant_id = tenant_id
        self.project_id = project_id
        self.dim = dim
        self.parts: list[Part] = []
        base = 0
        for segment in segments:
            part = Part(segment, base)
            self.parts.append(part)
            base += part.n

    def rows(self) -> int:
        return self.parts[-1].base + self.parts[-1].n if self.parts else 0

    def part_of(self, position: int) -> tuple[Part, int]:
        """The part that holds a position, and the row in it."""
        at = 0
        while at + 1 < len(self.parts) and self.parts[at + 1].base <= position:
            at += 1
        return self.parts[at], position - self.parts[at].base

    def positions_of(self, seqs: Sequence[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The positions of the rows with these rising seqs; those that aren't here are left out."""
        wanted = np.asarray(seqs, dtype=np.int64)
        found = []
        for part in self.parts:
            held = part.columns["seq"]
            mine = wanted[np.searchsorted(wanted, held[0]) : np.searchsorted(wanted, held[-1], side="right")]
            rows = np.searchsorted(held, mine)
            found.append(part.base + rows[held[rows] == mine])
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def versions(self, hi: int, lo: int) -> npt.NDArray[np.int64]:
        """The positions of all versions of an id that are not forgotten, oldest first."""
        found = []
        for part in self.parts:
            rows = part.segment.rows_of(hi, lo)
            rows = rows[rows < part.n]
            found.append(part.base + rows[part.columns["retired_at"][rows] != FORGOTTEN])
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def with_key(self, key: str, kind: int | None) -> npt.NDArray[np.int64]:
        """The positions of all rows written under a key, oldest first."""
        found = []
        for part in self.parts:
            rows = part.segment.rows_with_key(key)
            rows = rows[rows < part.n]
            if kind is not None:
                rows = rows[part.columns["kind"][rows] == kind]
            found.append(part.base + rows)
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def cell(self, position: int, name: str) -> int:
        """One value of a fixed-width column of whole numbers."""
        part, row = self.part_of(position)
        return int(part.columns[name][row])

    def halves(self, positions: npt.NDArray[np.int64]) -> tuple[ids.U64, ids.U64]:
        """The ids at rising positions, in two uint64 halves."""
        parts = list(self._cut(positions))
        if not parts:
            return np.empty(0, np.uint64), np.empty(0, np.uint64)
        hi, lo = (np.concatenate([part.columns[name][rows] for part, rows in parts]) for name in ("id_hi", "id_lo"))
        return hi, lo

    def record(self, position: int) -> Record:
        """The record at a position."""
        part, row = self.part_of(position)
        segment, c = part.segment, part.columns
        retired = int(c["retired_seq"][row])
        superseded = 0 < retired <= self.seq
        metadata = segment.text("metadata", row)
        return Record(
            id=ids.to_text(int(c["id_hi"][row]), int(c["id_lo"][row])),
            seq=int(c["seq"][row]),
            version=int(c["version"][row]),
            tenant_id=self.tenant_id,
            project_id=self.project_id,
            session_id=self.names[c["session"][row]],
            agent_role=self.names[c["role"][row]],
            kind=KINDS[c["kind"][row]],
            level=int(c["level"][row]),
            key=segment.text("key", row),
            content=segment.text("content", row) or "",
            vector=c["vector"][row].copy() if c["has_vector"][row] else None,
            importance=decimal(c["importance"][row]),
            event_time=to_datetime(int(c["event_time"][row])),
            ingested_at=to_datetime(int(c["ingested_at"][row])),
            expires_at=to_datetime(int(c["expires_at"][row])) if c["expires_at"][row] else None,
            source=self.names[c["source"][row]],
            confidence=decimal(c["confidence"][row]),
            untrusted=bool(c["untrusted"][row]),
            metadata=json.loads(metadata) if metadata else {},
            access_count=int(c["access_count"][row]),
            last_access=to_datetime(int(c["last_access"][row])) if c["last_access"][row] else None,
            superseded_at=to_datetime(int(c["retired_at"][row])) if superseded else None,
            idempotency_key=segment.text("idempotency_key", row),
        )

    def _cut(self, positions: npt.NDArray[np.int64]) -> Iterator[tuple[Part, npt.NDArray[np.int64]]]:
        """Rising positions as rows of each part that has some."""
        for part in self.parts:
            first, last = np.searchsorted(positions, (part.base, part.base + part.n))
            if first < last:
                yield part, positions[first:last] - part.base

    def positions(self, masks: Sequence[Mask]) -> npt.NDArray[np.int64]:
        """The positions at which masks, one a part, are 1, in commit order."""
        found = [
            part.base + (np.arange(part.n) if mask is EVERY else np.flatnonzero(mask))
            for part, mask in zip(self.parts, masks, strict=True)
        ]
        return np.concatenate(found).astype(np.int64) if found else np.empty(0, dtype=np.int64)

    def table(self, positions: npt.NDArray[np.int64], columns: Sequence[str] | None = None) -> pa.Table:
        """The record table (or some of its columns) of the rows at rising positions, in that order."""
        schema = record_schema(self.dim or None)
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns], metadata=schema.metadata)
        batches = [
            pa.RecordBatch.from_arrays([self.column(part, name, rows) for name in schema.names], schema=schema)
            for part, rows in self._cut(positions)
        ]
        return pa.Table.from_batches(batches, schema=schema)

    def column(self, part: Part, name: str, rows: npt.NDArray[np.int64] | None = None) -> pa.Array:
        """One column of the record at these rows of a part, all of them by default."""
        columns = part.columns
        if rows is None:
            rows = np.arange(part.n)
        if name == "id":
            return pa.array(ids.to_texts(columns["id_hi"][rows], columns["id_lo"][rows]), pa.string())
        if name == "tenant_id" or name == "project_id":
            return pa.array([getattr(self, name)] * len(rows), pa.string())
        if name == "kind":
            return _named(columns["kind"][rows], KINDS)
        if name in CODED:
            return _named(columns[CODED[name]][rows], self.names)
        if name == "vector":
            return self._vectors(columns, rows)
        if name == "superseded_at":
            retired = columns["retired_seq"][rows]
            return _times(columns["retired_at"][rows], (retired == 0) | (retired > self.seq))
        if name in ("expires_at", "last_access"):
            return _times(columns[name][rows], columns[name][rows] == 0)
        if name in ("event_time", "ingested_at"):
            return _times(columns[name][rows], None)
        if name in columns and isinstance(columns[name], np.ndarray):
            return pa.array(columns[name][rows])
        return part.segment.texts(name, rows)

    def _vectors(self, columns: Columns, rows: npt.NDArray[np.int64]) -> pa.Array:
        if not self.dim:
            return pa.nulls(len(rows))
        flat = pa.array(columns["vector"][rows].reshape(-1))
        present = columns["has_vector"][rows]
        mask = None if present.all() else pa.array(~present)
        return pa.FixedSizeListArray.from_arrays(flat, self.dim, mask=mask)


def _named(codes: npt.NDArray[Any], names: Sequence[str]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(names, pa.string())).dictionary_decode()


def _times(micros: npt.NDArray[np.int64], missing: npt.NDArray[np.bool_] | None) -> pa.Array:
    return pa.array(micros, pa.int64(), mask=missing).cast(TIMESTAMP)


"""What does a reader see? One scope as it stood at one commit, for as long as the reader holds it.

A row version is seen if it was committed and neither superseded nor forgotten by the snapshot's seq; with `as_of`, if
it had been ingested and not yet superseded at that time. Writers append behind what a snapshot holds and set marks that
carry their own, later seq, so a reader never waits and what it sees never changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memcore import ids
from memcore.clock import in_years, to_datetime
from memcore.gate import KINDS
from memcore.schema import LINK_SCHEMA, TIMESTAMP, Record, decimal, record_schema
from memcore.store.codes import Coder
from memcore.store.files import reading
from memcore.store.graphs import Graphs
from memcore.store.links import NEVER, SUMMARIZES, View
from memcore.store.partition import Shown
from memcore.store.segment import FIXED, TEXTS, Columns, Segment

Mask = npt.NDArray[np.uint8]
EVERY: Mask = np.empty(0, dtype=np.uint8)  # the mask of a part in which every row is allowed; writable like all masks,
# since Numba compiles a kernel anew for a read-only one
FIRST, LAST = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)
MAPPED = 512 << 20  # bytes
_MOST_KEPT = 16  # selections and filters of which a snapshot keeps the masks: a byte a row each
CODED = {"session_id": "session", "agent_role": "role", "source": "source"}  # record column -> column of codes


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows a call may see, whatever it looks for: the scope's narrowing, the kinds, the moment. Two are equal if
    they differ in the moment alone.
    """

    kinds: frozenset[int]
    now: int = field(compare=False)
    session: int | None = None
    role: int | None = None
    as_of: int | None = None
    expired: bool = False  # also rows whose time is over
    lapsed: bool = False  # also the last versions of memories of which none stands
    superseded: bool = False  # also what was replaced: all that is not forgotten
    forgotten: bool = False  # what is forgotten, instead of what isn't


class Masks(list[Mask]):
    """Masks, one a part; from when and up to when they hold; and how `search` scans what they let through."""

    __slots__ = ("covered", "kept", "scanned", "since", "until")

    def __init__(self, masks: Sequence[Mask]) -> None:
        super().__init__(masks)
        self.since, self.until = FIRST, LAST
        self.scanned: Any = None
        self.covered: Any = None  # what graphs cover of it
        self.kept: dict[str, Any] = {}  # what else is made of what they let through


class Part:
    """A segment's first rows in a snapshot. `base` is the position of the first of them in the snapshot."""

    __slots__ = ("base", "columns", "n", "segment", "view")

    def __init__(self, segment: Segment, n: int, base: int, dim: int) -> None:
        self.segment = segment
        self.view = segment.view(n)
        self.columns: Columns = self.view.columns
        if self.columns["vector"].shape[1] != dim:  # the store's first vector is being written, none of these
            self.columns = {**self.columns, "vector": np.zeros((n, dim), dtype=np.float32)}
        self.n = self.view.n
        self.base = base

    def vector(self, row: int) -> npt.NDArray[np.float32]:
        """One row's, which is read from its file where it lies in one: see `Segment.vector`."""
        if self.columns["vector"] is self.view.columns["vector"]:
            return self.segment.vector(row)
        vector: npt.NDArray[np.float32] = self.columns["vector"][row]
        return vector


class Snapshot:
    """`parts` in commit order; a position counts rows through all of them. `names` decodes sessions, roles and sources:
    it is the writer's own, and grows. Parts of the cold tier, where it is asked for, come before the others.
    """

    __slots__ = (
        "_masks",
        "coder",
        "cold",
        "dim",
        "graphs",
        "links",
        "names",
        "parts",
        "project_id",
        "row_by_row",
        "seq",
        "tenant_id",
    )

    def __init__(
        self,
        shown: Shown,
        *,
        tenant_id: str,
        project_id: str,
        dim: int,
        names: Sequence[str],
        coder: Coder,
        graphs: Graphs,
        cold: Sequence[Segment] = (),
    ) -> None:
        self.seq = shown.seq
        self.links = shown.links
        self.tenant_id = tenant_id
        self.project_id = project_id
        self.dim = dim
        self.names = names
        self.coder = coder
        self.graphs = graphs
        self._masks: dict[tuple[Selection, Hashable], Masks] = {}
        self.parts: list[Part] = []
        base = 0
        self.cold = cold
        segments, sizes = shown.segments, shown.sizes
        if cold:
            segments, sizes = (*cold, *segments), (*(segment.n for segment in cold), *sizes)
        for segment, n in zip(segments, sizes, strict=True):
            part = Part(segment, n, base, dim)
            self.parts.append(part)
            base += n
        mapped = sum(part.n for part in self.parts if part.segment.mapped_from is not None)
        # whether vectors that are scored are read one by one: see `memcore_kernels.memory.float_row`
        self.row_by_row = 4 * dim * mapped >= MAPPED

    def current(self, dim: int, coder: Coder) -> bool:
        """Whether a new one of the same rows would be the same: of that width, and with all columns of its segments,
        of which counters and marks may be added.
        """
        return self.dim == dim and self.coder is coder and all(part.segment.is_whole(part.view) for part in self.parts)

    def let_go(self, positions: Sequence[int] | None = None) -> None:
        """Has what was read of mapped vectors and texts be resident no more, where they are many: of the parts that
        hold these positions, or of all.
        """
        if self.row_by_row:
            read = self.parts if positions is None else {self.part_of(position)[0] for position in positions}
            for part in read:
                part.segment.let_go()

    # Which rows

    def rows(self) -> int:
        return self.parts[-1].base + self.parts[-1].n if self.parts else 0

    def masks(self, selection: Selection) -> Masks:
        """What the selection sees of each part: uint8 `(n,)`, 1 for a row that it sees, or `EVERY`. To be left alone,
        since it is kept for the next call, which asks the same as a rule.
        """
        return self.kept(selection, (), lambda: [self.mask(part, selection) for part in self.parts])

    def kept(self, selection: Selection, also: Hashable, make: Callable[[], Sequence[Mask]]) -> Masks:
        """The masks of a selection and of what else narrows them, made if they are not there."""
        kept = self._masks.get((selection, also))
        if kept is not None and kept.since <= selection.now < kept.until:
            return kept
        made = Masks(make())
        made.since, made.until = self._the_same(selection)
        if len(self._masks) >= _MOST_KEPT:
            self._masks = {}
        self._masks[selection, also] = made
        return made

    def _the_same(self, selection: Selection) -> tuple[int, int]:
        """From when and up to when a selection sees the same rows, as it does until one expires."""
        since, until = FIRST, LAST
        for part in self.parts if not selection.expired else ():
            if not part.view.zero("expires_at"):
                times = part.columns["expires_at"]
                times = times[times != 0]
                over = times <= selection.now
                since = max(since, int(times[over].max(initial=FIRST)))
                until = min(until, int(times[~over].min(initial=LAST)))
        return since, until

    def mask(self, part: Part, selection: Selection) -> Mask:
        """A condition that holds throughout, or that a column of one value decides, costs nothing."""
        columns = part.columns
        mask: npt.NDArray[np.bool_] | None = None

        def narrow(condition: npt.NDArray[np.bool_]) -> None:
            nonlocal mask
            if mask is not None:
                mask &= condition
            elif condition.strides != (0,):
                mask = condition
            elif not condition[:1].all():
                mask = condition.copy()

        if not part.view.kinds <= selection.kinds:
            allowed = np.zeros(len(KINDS), dtype=np.bool_)
            allowed[list(selection.kinds)] = True
            narrow(allowed[columns["kind"]])
        if selection.session is not None:
            narrow(_equal(columns["session"], selection.session))
        if selection.role is not None:
            narrow(_equal(columns["role"], selection.role))
        if not part.view.zero("expires_at") and not selection.expired:
            narrow((columns["expires_at"] == 0) | (columns["expires_at"] > selection.now))
        if not part.view.zero("forgotten_seq"):  # by now, then in no past either
            narrow(self._later(columns["forgotten_seq"]) != selection.forgotten)
        elif selection.forgotten:
            return np.zeros(part.n, dtype=np.uint8)
        if selection.as_of is not None:
            narrow(columns["ingested_at"] <= selection.as_of)
        if not part.view.zero("superseded_seq") and not selection.superseded:
            stands = self._later(columns["superseded_seq"])
            if selection.as_of is not None:
                stands |= columns["superseded_at"] > selection.as_of
            if selection.lapsed:
                stands |= columns["lapsed"]
            narrow(stands)
        if mask is None or mask.all():
            return EVERY
        return mask.view(np.uint8)

    def _later(self, marked: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Where a mark is not set, or was set after this snapshot."""
        later: npt.NDArray[np.bool_] = (marked == 0) | (marked > self.seq)
        return later

    def sees(self, position: int, selection: Selection) -> bool:
        """Whether the selection sees one row: what `masks` says of it."""
        part, row = self.part_of(position)
        c = part.columns
        superseded, forgotten = int(c["superseded_seq"][row]), int(c["forgotten_seq"][row])
        stands = not 0 < superseded <= self.seq or selection.superseded
        if selection.as_of is not None:
            stands = stands or int(c["superseded_at"][row]) > selection.as_of
            stands = stands and int(c["ingested_at"][row]) <= selection.as_of
        if selection.lapsed:
            stands = stands or bool(c["lapsed"][row])
        expires = int(c["expires_at"][row])
        return (
            stands
            and (0 < forgotten <= self.seq) == selection.forgotten
            and int(c["kind"][row]) in selection.kinds
            and selection.session in (None, int(c["session"][row]))
            and selection.role in (None, int(c["role"][row]))
            and (selection.expired or not expires or expires > selection.now)
        )

    def positions(self, masks: Sequence[Mask]) -> npt.NDArray[np.int64]:
        """The positions at which masks, one a part, are 1, in commit order."""
        return _joined(
            [
                part.base + (np.arange(part.n) if mask is EVERY else np.flatnonzero(mask))
                for part, mask in zip(self.parts, masks, strict=True)
            ]
        )

    def positions_with(self, names: set[tuple[int, int]]) -> npt.NDArray[np.int64]:
        """The positions of all versions of these ids (high half, low half), oldest first."""
        return _joined([part.base + part.view.rows_with(names) for part in self.parts])

    def positions_under(self, key: str) -> npt.NDArray[np.int64]:
        """The positions of all rows written under a key, forgotten ones too, oldest first."""
        found: list[int] = []
        for part in self.parts:
            with reading(part.segment.source):
                found += (part.base + row for row in part.segment.rows_under(key) if row < part.n)
        return np.array(found, dtype=np.int64)

    # What they hold

    def part_of(self, position: int) -> tuple[Part, int]:
        """The part that holds a position, and the row in it."""
        at = 0
        while at + 1 < len(self.parts) and self.parts[at + 1].base <= position:
            at += 1
        return self.parts[at], position - self.parts[at].base

    def name(self, position: int) -> tuple[int, int]:
        """The id at a position, in two halves."""
        part, row = self.part_of(position)
        return int(part.columns["id_hi"][row]), int(part.columns["id_lo"][row])

    def cell(self, position: int, name: str) -> int:
        """One value of a fixed-width column of whole numbers."""
        part, row = self.part_of(position)
        return int(part.columns[name][row])

    def halves(self, positions: npt.NDArray[np.int64]) -> tuple[ids.U64, ids.U64]:
        """The ids at rising positions, in two uint64 halves."""
        return self.values(positions, "id_hi"), self.values(positions, "id_lo")

    def values(self, positions: npt.NDArray[np.int64], name: str) -> npt.NDArray[Any]:
        """A fixed-width column at rising positions."""
        found = [part.columns[name][rows] for part, rows in self._cut(positions)]
        return np.concatenate(found) if found else np.empty(0, FIXED[name])

    def texts(self, positions: npt.NDArray[np.int64], name: str) -> pa.ChunkedArray:
        """A column of texts at rising positions."""
        return pa.chunked_array([part.view.texts_at(name, rows) for part, rows in self._cut(positions)], pa.string())

    def record(self, position: int) -> Record:
        """The record at a position, with its access counted up to now."""
        part, row = self.part_of(position)
        texts = {name: _Cells(part.view.text, name) for name in part.view.texts}
        counters = {name: _Cells(part.segment.get, name) for name in ("access_count", "last_access")}
        columns = {**part.columns, **texts, **counters}
        with reading(part.segment.source):
            return record(
                columns, row, names=self.names, tenant_id=self.tenant_id, project_id=self.project_id, seq=self.seq
            )

    def table(self, positions: npt.NDArray[np.int64]) -> pa.Table:
        """The record table of the rows at rising positions, in that order."""
        schema = record_schema(self.dim or None)
        batches = [
            pa.RecordBatch.from_arrays([self.column(part, name, rows) for name in schema.names], schema=schema)
            for part, rows in self._cut(positions)
        ]
        return pa.Table.from_batches(batches, schema=schema)

    def summaries(self, names: set[tuple[int, int]]) -> list[tuple[int, int]]:
        """The memories of level 1 and up that summarise any of these, by links of any time, or summarise one that does,
        and so on; also such as are forgotten and could be restored. They may quote them.
        """
        view, found = self.links, dict.fromkeys(names)
        code = next((code for code, name in enumerate(self.names) if name == SUMMARIZES), -1)
        about = view.columns["relation"] == code
        new = set(names)
        while new and about.any():
            sources = set(view.names("src", np.flatnonzero(about & view.at("dst", new)))) - found.keys()
            levels: dict[tuple[int, int], int] = {}
            for position in self.positions_with(sources).tolist() if sources else ():
                name = self.name(position)
                levels[name] = max(levels.get(name, 0), self.cell(position, "level"))
            new = {name for name, level in levels.items() if level >= 1}
            found.update(dict.fromkeys(sorted(new)))
        return [name for name in found if name not in names]

    def _cut(self, positions: npt.NDArray[np.int64]) -> Iterator[tuple[Part, npt.NDArray[np.int64]]]:
        """Rising positions as rows of each part that has some."""
        for part in self.parts:
            first, last = np.searchsorted(positions, (part.base, part.base + part.n))
            if first < last:
                yield part, positions[first:last] - part.base

    def column(self, part: Part, name: str, rows: npt.NDArray[np.int64] | None = None) -> pa.Array:
        """One column of the record at these rows of a part, all of them by default."""
        with reading(part.segment.source):
            made = self._column(part, name, rows)
            if part.segment.source is not None:  # who reads the table later would not know the file
                if name in TEXTS:
                    made.validate(full=True)  # its UTF-8
                elif made.type == TIMESTAMP:
                    for micros in pc.min_max(made.view(pa.int64())).values():
                        if micros.is_valid:
                            in_years(micros.as_py(), micros.as_py(), name)
        return made

    def _column(self, part: Part, name: str, rows: npt.NDArray[np.int64] | None) -> pa.Array:
        at = slice(None) if rows is None else rows
        n = part.n if rows is None else len(rows)

        def values(name: str) -> npt.NDArray[Any]:
            return np.ascontiguousarray(part.columns[name][at])

        if name == "id":
            return pa.array(ids.to_texts(values("id_hi"), values("id_lo")), pa.string())
        if name == "tenant_id" or name == "project_id":
            return pa.repeat(pa.scalar(getattr(self, name), pa.string()), n)
        if name == "kind":
            return _named(values("kind"), KINDS)
        if name in CODED:
            return _named(values(CODED[name]), self.names)
        if name == "vector":
            return self._vectors(values("vector"), values("has_vector"))
        if name == "superseded_at":
            return _times(values(name), self._later(values("superseded_seq")))
        if name in ("expires_at", "last_access"):
            return _times(values(name), values(name) == 0)
        if name in ("event_time", "ingested_at"):
            return _times(values(name), None)
        if name in part.view.texts:
            return part.view.texts_at(name, range(n) if rows is None else rows)
        return pa.array(values(name))

    def _vectors(self, vectors: npt.NDArray[np.float32], present: npt.NDArray[np.bool_]) -> pa.Array:
        if not self.dim:
            return pa.nulls(len(vectors))
        mask = None if present.all() else pa.array(~present)
        return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), self.dim, mask=mask)


class _Cells:
    """A column that is read cell by cell."""

    def __init__(self, read: Callable[[str, int], Any], name: str) -> None:
        self._read, self._name = read, name

    def __getitem__(self, row: int) -> Any:
        return self._read(self._name, row)


def record(
    columns: Mapping[str, Any], row: int, *, names: Sequence[str], tenant_id: str, project_id: str, seq: int
) -> Record:
    """One row of a store's columns as a record, as it stood at the commit `seq`."""
    c = columns
    expires, accessed, superseded = int(c["expires_at"][row]), int(c["last_access"][row]), int(c["superseded_seq"][row])
    metadata = c["metadata"][row]
    return Record(
        id=ids.to_text(int(c["id_hi"][row]), int(c["id_lo"][row])),
        seq=int(c["seq"][row]),
        version=int(c["version"][row]),
        tenant_id=tenant_id,
        project_id=project_id,
        session_id=names[c["session"][row]],
        agent_role=names[c["role"][row]],
        kind=KINDS[c["kind"][row]],
        level=int(c["level"][row]),
        key=c["key"][row],
        content=c["content"][row],
        vector=c["vector"][row].copy() if c["has_vector"][row] else None,
        importance=decimal(c["importance"][row]),
        event_time=to_datetime(int(c["event_time"][row])),
        ingested_at=to_datetime(int(c["ingested_at"][row])),
        expires_at=to_datetime(expires) if expires else None,
        source=names[c["source"][row]],
        confidence=decimal(c["confidence"][row]),
        untrusted=bool(c["untrusted"][row]),
        metadata=json.loads(metadata) if metadata else {},
        access_count=int(c["access_count"][row]),
        last_access=to_datetime(accessed) if accessed else None,
        superseded_at=to_datetime(int(c["superseded_at"][row])) if 0 < superseded <= seq else None,
        idempotency_key=c["idempotency_key"][row],
    )


def link_table(view: View, rows: npt.NDArray[np.int64], *, names: Sequence[str], seq: int) -> pa.Table:
    """The table of these links, by `LINK_SCHEMA`, as they stood at the commit `seq`."""
    c = {name: array[rows] for name, array in view.columns.items()}
    until = view.valid_to(seq)[rows]
    arrays = (
        pa.array(ids.to_texts(c["src_hi"], c["src_lo"]), pa.string()),
        _named(c["relation"], names),
        pa.array(ids.to_texts(c["dst_hi"], c["dst_lo"]), pa.string()),
        pa.array([view.attributes[row] for row in rows.tolist()], pa.string()),
        _times(c["created_at"], None),
        _times(c["valid_from"], c["valid_from"] == NEVER),
        _times(until, until == NEVER),
    )
    return pa.Table.from_arrays(list(arrays), schema=LINK_SCHEMA)


def _equal(column: npt.NDArray[Any], value: int) -> npt.NDArray[np.bool_]:
    """Where a column has a value; one comparison if it has one value throughout."""
    if column.strides == (0,):
        return np.broadcast_to(np.bool_(column[0] == value), len(column))
    equal: npt.NDArray[np.bool_] = column == value
    return equal


def _joined(positions: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    return np.concatenate(positions) if positions else np.empty(0, dtype=np.int64)


def _named(codes: npt.NDArray[Any], names: Sequence[str]) -> pa.Array:
    used, places = np.unique(codes, return_inverse=True)
    values = pa.array([names[code] for code in used.tolist()], pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32)), values).dictionary_decode()


def _times(micros: npt.NDArray[np.int64], missing: npt.NDArray[np.bool_] | None) -> pa.Array:
    return pa.array(micros, pa.int64(), mask=missing).cast(TIMESTAMP)

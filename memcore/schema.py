"""What is a memory record? The one Arrow schema, in the order of its columns, and its form as a Python object."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore import gate
from memcore.clock import to_datetime

KINDS = gate.KINDS
SOURCES = ("observation", "api_query", "agent_inference", "told_by_user")  # the usual ones; any other text is allowed
TIMESTAMP = pa.timestamp("us", tz="UTC")
FORMAT_VERSION = 1
_BATCH = 1024  # records made at once: column by column is six times as fast as cell by cell

_BEFORE_VECTOR = (
    pa.field("id", pa.string(), nullable=False),
    pa.field("seq", pa.int64(), nullable=False),
    pa.field("version", pa.int32(), nullable=False),
    pa.field("tenant_id", pa.string(), nullable=False),
    pa.field("project_id", pa.string(), nullable=False),
    pa.field("session_id", pa.string(), nullable=False),
    pa.field("agent_role", pa.string(), nullable=False),
    pa.field("kind", pa.string(), nullable=False),
    pa.field("level", pa.int16(), nullable=False),
    pa.field("key", pa.string()),
    pa.field("content", pa.string(), nullable=False),
)
_AFTER_VECTOR = (
    pa.field("importance", pa.float32(), nullable=False),
    pa.field("event_time", TIMESTAMP, nullable=False),
    pa.field("ingested_at", TIMESTAMP, nullable=False),
    pa.field("expires_at", TIMESTAMP),
    pa.field("source", pa.string(), nullable=False),
    pa.field("confidence", pa.float32(), nullable=False),
    pa.field("untrusted", pa.bool_(), nullable=False),
    pa.field("metadata", pa.string()),
    # what changes beside the immutable columns
    pa.field("access_count", pa.int32(), nullable=False),
    pa.field("last_access", TIMESTAMP),
    pa.field("superseded_at", TIMESTAMP),
    pa.field("idempotency_key", pa.string()),
)
COLUMNS = tuple(field.name for field in (*_BEFORE_VECTOR, pa.field("vector", pa.null()), *_AFTER_VECTOR))


LINK_SCHEMA = pa.schema(
    [
        pa.field("src_id", pa.string(), nullable=False),
        pa.field("relation", pa.string(), nullable=False),
        pa.field("dst_id", pa.string(), nullable=False),
        pa.field("attributes", pa.string()),
        pa.field("created_at", TIMESTAMP, nullable=False),
        pa.field("valid_from", TIMESTAMP),
        pa.field("valid_to", TIMESTAMP),
    ]
)
RELATIONS = ("summarizes", "caused_by", "supersedes", "contradicts", "lesson_of")  # the library's; any other is allowed


def record_schema(dim: int | None) -> pa.Schema:
    """The one schema at every boundary: tables, segment files, exports. Columns in this order (? may be null):

    - `id` text: a UUIDv7; all versions of a memory share it
    - `seq` int64: the store's total order of commits
    - `version` int32: from 1 for each id, for compare-and-swap
    - `tenant_id`, `project_id` text: the hard partition
    - `session_id`, `agent_role` text: what narrows it; "default" if not given
    - `kind` text: working, episodic, semantic or procedural
    - `level` int16: 0 is raw, 1 and up are consolidated
    - `key` text?: the caller's name for the memory
    - `content` text: as it was given
    - `vector` fixed-size list? of `dim` float32, L2-normalised or all zero; of type null where no width is set yet
    - `importance` float32 in [0, 1]
    - `event_time` timestamp, µs UTC as all times: when it happened
    - `ingested_at` timestamp: when this version was written
    - `expires_at` timestamp?: from when on it is not seen
    - `source` text: observation, api_query, agent_inference, told_by_user, or any other
    - `confidence` float32 in [0, 1]
    - `untrusted` bool: it came from where instructions must not be followed
    - `metadata` text?: a JSON object
    - `access_count` int32: how often this version was recalled or got
    - `last_access` timestamp?: when it was last
    - `superseded_at` timestamp?: when the next version took its place; null for the one that stands
    - `idempotency_key` text?: of the call that first wrote it

    The schema's own metadata has the version of the format under `memcore_format`.
    """
    vector = pa.field("vector", pa.list_(pa.float32(), dim) if dim else pa.null())
    return pa.schema([*_BEFORE_VECTOR, vector, *_AFTER_VECTOR], metadata={"memcore_format": str(FORMAT_VERSION)})


@dataclass(frozen=True, slots=True, repr=False)
class Record:
    """One version of one memory: the columns of `record_schema`, in their order.

    Times are UTC datetimes, `metadata` is a dict (empty for null), `vector` is float32 `(dim,)`, L2-normalised, or
    None.
    """

    id: str
    seq: int
    version: int
    tenant_id: str
    project_id: str
    session_id: str
    agent_role: str
    kind: str
    level: int
    key: str | None
    content: str
    vector: npt.NDArray[np.float32] | None
    importance: float
    event_time: datetime
    ingested_at: datetime
    expires_at: datetime | None
    source: str
    confidence: float
    untrusted: bool
    metadata: dict[str, Any]
    access_count: int
    last_access: datetime | None
    superseded_at: datetime | None
    idempotency_key: str | None

    def __eq__(self, other: object) -> bool:  # the generated one would compare arrays and fail
        return isinstance(other, Record) and all(
            np.array_equal(a, b) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else a == b
            for a, b in zip(map(self._get, COLUMNS), map(other._get, COLUMNS), strict=True)
        )

    def __hash__(self) -> int:
        return hash((self.id, self.version))

    def __repr__(self) -> str:
        """All fields, a vector by its width and a long content by its beginning."""
        return f"Record({', '.join(f'{name}={_brief(self._get(name))}' for name in COLUMNS)})"

    def _get(self, name: str) -> Any:
        return getattr(self, name)


def _brief(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"<{value.size} {value.dtype}>"
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, str) and len(value) > 200:
        return f"{value[:200]!r}…"
    return repr(value)


def decimal(value: float) -> float:
    """A float32 as the shortest decimal that means it: what was remembered as 0.9 reads 0.9, not 0.8999999761581421."""
    return _shortest(float(value))


@functools.lru_cache(4096)  # there are few: 0.5, 0.9, 1.0 …; each takes 2 µs to work out
def _shortest(value: float) -> float:
    return float(str(np.float32(value)))


def _cells(column: pa.Array, name: str) -> list[Any]:
    """The values of one column of a record table as `Record` has them."""
    if name == "vector":
        return [np.asarray(row.values, dtype=np.float32) if row.is_valid else None for row in column]
    if name == "metadata":
        return [{} if text is None else json.loads(text) for text in column.to_pylist()]
    if column.type == pa.float32():
        return [decimal(value) for value in column.to_pylist()]
    if column.type == TIMESTAMP:  # to_pylist would need the zone database of the host
        return [None if micros is None else to_datetime(micros) for micros in column.view(pa.int64()).to_pylist()]
    values: list[Any] = column.to_pylist()
    return values


@dataclass(frozen=True, slots=True)
class Link:
    """One link from a memory to another: the columns of `LINK_SCHEMA`. Times are UTC datetimes, None where not given:
    valid from ever, or for ever. `attributes` is a dict, empty for null.
    """

    src_id: str
    relation: str
    dst_id: str
    attributes: dict[str, Any]
    created_at: datetime
    valid_from: datetime | None
    valid_to: datetime | None


class Links(Sequence[Link]):
    """Links in the order they were made, as one Arrow table (`.to_arrow()`); each is made when it is asked for."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def to_arrow(self) -> pa.Table:
        """All of them as one table: `src_id`, `relation`, `dst_id`, `attributes` (JSON text, or null), `created_at`,
        `valid_from` and `valid_to` (timestamps in µs UTC; null: from ever, for ever).
        """
        return self._table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[Link]:
        names = self._table.column_names
        for batch in self._table.to_batches(_BATCH):
            columns = [_cells(batch.column(name), "metadata" if name == "attributes" else name) for name in names]
            for cells in zip(*columns, strict=True):
                yield Link(*cells)

    @overload
    def __getitem__(self, index: int) -> Link: ...
    @overload
    def __getitem__(self, index: slice) -> Links: ...
    def __getitem__(self, index: int | slice) -> Link | Links:
        if isinstance(index, slice):
            return Links(self._table.take(pa.array(range(len(self))[index], pa.int64())))
        at = range(len(self))[operator.index(index)]
        return next(iter(Links(self._table.slice(at, 1))))

    def __repr__(self) -> str:
        return f"<Links: {len(self)} rows>"


class Records(Sequence[Record]):
    """Records in the store's order, as one Arrow table (`.to_arrow()`); each is made when it is asked for.

    A slice is again Records.
    """

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def to_arrow(self) -> pa.Table:
        """All of them as one table, by `record_schema`."""
        return self._table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[Record]:
        for batch in self._table.to_batches(_BATCH):
            for cells in zip(*(_cells(batch.column(name), name) for name in COLUMNS), strict=True):
                yield Record(*cells)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Records: ...
    def __getitem__(self, index: int | slice) -> Record | Records:
        if isinstance(index, slice):
            rows = range(len(self))[index]
            if rows.step == 1:
                return Records(self._table.slice(rows.start, len(rows)))
            return Records(self._table.take(pa.array(rows, pa.int64())))
        at = operator.index(index)
        if not -len(self) <= at < len(self):
            raise IndexError(f"row {at} of {len(self)} records")
        return next(iter(Records(self._table.slice(at % len(self), 1))))

    def __repr__(self) -> str:
        return f"<Records: {len(self)} rows>"

"""What is a memory record? The one Arrow schema, in the order of its columns, and its form as a Python object."""

from __future__ import annotations

import json
import operator
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore import gate
from memcore.clock import to_datetime

KINDS = gate.KINDS
SOURCES = ("observation", "api_query", "agent_inference", "told_by_user")  # the usual ones; any other text is allowed
TIMESTAMP = pa.timestamp("us", tz="UTC")
FORMAT_VERSION = 1

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


def record_schema(dim: int | None) -> pa.Schema:
    """The schema at every boundary. `vector` is a fixed-size list of `dim` float32, or of null where no width is set yet.

    `id` is a UUID as text, `seq` the store's total order, `version` counts from 1 for one id, times are µs UTC.
    `metadata` is JSON text. `superseded_at` is null for the version that stands. The format's version is in the schema's
    metadata under `memcore_format`.
    """
    vector = pa.field("vector", pa.list_(pa.float32(), dim) if dim else pa.null())
    return pa.schema([*_BEFORE_VECTOR, vector, *_AFTER_VECTOR], metadata={"memcore_format": str(FORMAT_VERSION)})


@dataclass(frozen=True, slots=True)
class Record:
    """One version of one memory. Times are UTC datetimes; `vector` is float32 `(dim,)`, L2-normalised, or None."""

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
            np.array_equal(a, b) if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) else a == b
            for a, b in zip(map(self._get, COLUMNS), map(other._get, COLUMNS), strict=True)
        )

    def __hash__(self) -> int:
        return hash((self.id, self.version))

    def _get(self, name: str) -> Any:
        return getattr(self, name)


def cell(table: pa.Table, name: str, row: int) -> Any:
    """One value of a record table in the form that `Record` gives it."""
    value = table.column(name)[row]
    if name == "vector":
        return np.asarray(value.values, dtype=np.float32) if value.is_valid else None
    if name == "metadata":
        return json.loads(value.as_py()) if value.is_valid else {}
    if value.type == pa.float32():
        return decimal(value.as_py())
    if value.type == TIMESTAMP:  # as_py would need the zone database of the host
        return to_datetime(value.value) if value.is_valid else None
    return value.as_py()


def decimal(value: float) -> float:
    """A float32 as the shortest decimal that means it: what was remembered as 0.9 reads 0.9, not 0.8999999761581421."""
    return float(str(np.float32(value)))


def record_at(table: pa.Table, row: int) -> Record:
    return Record(*(cell(table, name, row) for name in COLUMNS))


Row = TypeVar("Row")


class Columnar(Sequence[Row]):
    """A sequence of rows over one Arrow table: made into Python objects one by one, when they are asked for."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def to_arrow(self) -> pa.Table:
        """All rows as one Arrow table."""
        return self._table

    @abstractmethod
    def _row(self, index: int) -> Row: ...

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __iter__(self) -> Iterator[Row]:
        return map(self._row, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return [self._row(i) for i in range(*index.indices(len(self)))]
        at = operator.index(index)
        if not -len(self) <= at < len(self):
            raise IndexError(f"row {at} of {len(self)}")
        return self._row(at % len(self))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self)} rows>"


class Records(Columnar[Record]):
    """Records in the store's order, `.to_arrow()` for all of them as a table."""

    def _row(self, index: int) -> Record:
        return record_at(self._table, index)

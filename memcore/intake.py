"""What does a caller want remembered? Texts, dicts or an Arrow table, checked by the gate and brought into columns.

Rows are checked column by column and all faults are gathered by row, so that the caller is told of the first and of how
many there are, and may have the good rows stored without the bad ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore import gate, ids
from memcore.clock import to_micros
from memcore.errors import InvalidInput, MemcoreError, ScopeError
from memcore.schema import COLUMNS, SOURCES, TIMESTAMP
from memcore.store.catalog import columns_of
from memcore.store.segment import Columns

FIELDS = (
    "content", "kind", "key", "importance", "event_time", "expires_at", "metadata", "source", "confidence", "untrusted",
    "vector", "level", "session_id", "agent_role", "tenant_id", "project_id", "id", "idempotency_key",
)  # fmt: skip
DEFAULT_KIND, DEFAULT_IMPORTANCE = "episodic", 0.5
_OWN = frozenset(COLUMNS) - frozenset(FIELDS)


@dataclass(slots=True)
class Intake:
    """Checked rows. `columns` lacks only what a commit gives: seqs, versions, ids where `explicit` is False, and the codes
    of `names`. `vectors` holds the rows that came with a vector (`has_vector`); the others wait to be embedded."""

    columns: Columns
    names: dict[str, list[str]]  # session, role, source, tenant, project: a name a row
    explicit: npt.NDArray[np.bool_]
    vectors: npt.NDArray[np.float32] | None
    faults: dict[int, MemcoreError]  # by row of what was given
    rows: list[int]  # the place of each row in what was given


@dataclass(frozen=True, slots=True)
class Bounds:
    """The scope that rows are written in, None where a row may say. A narrowed scope's session holds for every row."""

    tenant_id: str | None
    project_id: str | None
    session_id: str | None
    agent_role: str | None


def read(data: object, bounds: Bounds, *, now: int, dim: int | None) -> Intake:
    """Rows from a list of texts, a list of dicts, or an Arrow table or record batch."""
    n, fields = _fields(data)
    return check(fields, n, bounds, now=now, dim=dim)


def check(fields: Mapping[str, Any], n: int, bounds: Bounds, *, now: int, dim: int | None) -> Intake:
    """Columns by the names of `FIELDS`, each a sequence of `n` values (None: not given), checked value by value."""
    faults: dict[int, MemcoreError] = {}

    def each(name: str, check_one: Callable[[Any], Any], default: Any, required: bool = False) -> list[Any]:
        values = fields.get(name)
        if values is None and not required:
            return [default] * n
        checked = []
        for row, value in enumerate(values if values is not None else [None] * n):
            if value is None and not required:
                checked.append(default)
                continue
            try:
                checked.append(check_one(value))
            except MemcoreError as fault:
                faults.setdefault(row, fault)
                checked.append(default)
        return checked

    columns = columns_of(n)
    columns["content"] = each("content", lambda v: gate.text(v, "content"), "", required=True)
    columns["key"] = each("key", lambda v: gate.text(v, "key"), None)
    columns["metadata"] = each("metadata", gate.metadata, None)
    columns["idempotency_key"] = each("idempotency_key", lambda v: gate.text(v, "idempotency_key"), None)
    columns["kind"][:] = [gate.KINDS.index(kind) for kind in each("kind", gate.kind, DEFAULT_KIND)]
    columns["importance"][:] = each("importance", lambda v: gate.unit(v, "importance"), DEFAULT_IMPORTANCE)
    columns["confidence"][:] = each("confidence", lambda v: gate.unit(v, "confidence"), 1.0)
    columns["untrusted"][:] = each("untrusted", lambda v: gate.flag(v, "untrusted"), False)
    columns["level"][:] = each("level", level, 0)
    columns["event_time"][:] = each("event_time", _time("event_time"), now)
    columns["expires_at"][:] = each("expires_at", expiry, 0)  # 0: never
    columns["ingested_at"][:] = now
    given = each("id", gate.record_id, None)
    explicit = np.array([value is not None for value in given], dtype=np.bool_)
    for row in np.flatnonzero(explicit):
        columns["id_hi"][row], columns["id_lo"][row] = ids.halves(given[row])
    names = {
        "session": each("session_id", lambda v: _within("session_id", v, bounds.session_id), bounds.session_id or "default"),
        "role": each("agent_role", lambda v: _within("agent_role", v, bounds.agent_role), bounds.agent_role or "default"),
        "source": each("source", lambda v: gate.text(v, "source"), SOURCES[0]),
        "tenant": each("tenant_id", lambda v: _within("tenant_id", v, bounds.tenant_id), bounds.tenant_id or "default"),
        "project": each("project_id", lambda v: _within("project_id", v, bounds.project_id), bounds.project_id or "default"),
    }
    vectors = _vectors(fields.get("vector"), n, dim, columns["has_vector"], faults)
    return _without(Intake(columns, names, explicit, vectors, faults, list(range(n))), faults)


def refusal(faults: Mapping[int, MemcoreError], n: int) -> MemcoreError:
    """One error for a refused batch: the first faulty row's own, and how many there are."""
    row = min(faults)
    more = f"{len(faults)} of {n} rows are refused" if len(faults) > 1 else f"the other {n - 1} are fine"
    return type(faults[row])(f"row {row}: {faults[row]}. Nothing was stored: {more}; on_invalid='skip' stores the good rows")


def level(value: object) -> int:
    got = gate.count(value, "level")
    if got > 32_767:
        raise InvalidInput(f"level is {got}; it must be at most 32767: 0 is raw, 1 and up are consolidated")
    return got


def expiry(value: object) -> int:
    """A time of expiry in µs; the epoch itself, which stands for never inside, becomes the microsecond before."""
    return _time("expires_at")(value) or -1


def moment(value: object, what: str) -> int:
    """A caller's time in µs."""
    return int(value) if isinstance(value, Micros) else to_micros(value, what)


def _time(what: str) -> Callable[[Any], int]:
    return lambda value: moment(value, what)


def _within(what: str, value: object, bound: str | None) -> str:
    got = gate.scope_id(value, what)
    if bound is not None and got != bound:
        raise ScopeError(
            f"{what} of the row is {got!r} and the scope's is {bound!r}; a scope writes only inside itself: leave {what} "
            "out, or write through the scope it belongs to"
        )
    return got


def _fields(data: object) -> tuple[int, dict[str, Any]]:
    if isinstance(data, pa.RecordBatch):
        data = pa.Table.from_batches([data])
    if isinstance(data, pa.Table):
        _known_fields(data.column_names)
        return data.num_rows, {name: arrow_values(name, data.column(name)) for name in data.column_names}
    if isinstance(data, (str, bytes, Mapping)) or not isinstance(data, Sequence):
        raise InvalidInput(
            f"remember_many got {gate.shown(data)}; pass a list of texts, a list of dicts or a pyarrow Table: for a single "
            "text use remember"
        )
    if all(isinstance(row, str) for row in data):
        return len(data), {"content": data}
    for place, row in enumerate(data):
        if not isinstance(row, (str, Mapping)):
            raise InvalidInput(f"row {place} is {gate.shown(row)}; a row is a text or a dict with 'content'")
    rows = [{"content": row} if isinstance(row, str) else row for row in data]
    names = list(dict.fromkeys(name for row in rows for name in row))
    _known_fields(names)
    return len(rows), {name: [row.get(name) for row in rows] for name in names}


def _known_fields(names: Sequence[object]) -> None:
    for name in names:
        if name in _OWN:
            raise InvalidInput(
                f"field {name!r} is kept by the store itself; leave it out, or move records whole with export and import_"
            )
        if name not in FIELDS:
            raise InvalidInput(
                f"unknown field {gate.shown(name)}; a row has {', '.join(FIELDS)}: put what is your own into 'metadata'"
            )
    if "content" not in names and len(names):
        raise InvalidInput(f"rows have {', '.join(map(str, names))} but no 'content'; every memory has a text")


def arrow_values(name: str, column: pa.ChunkedArray) -> Any:
    kind = column.type
    if name == "vector" and (pa.types.is_fixed_size_list(kind) or pa.types.is_list(kind)) and column.null_count == 0:
        flat = pa.concat_arrays([chunk.flatten() for chunk in column.chunks]) if column.num_chunks else pa.array([])
        if len(column) and len(flat) % len(column) == 0 and flat.null_count == 0 and pa.types.is_fixed_size_list(kind):
            return flat.to_numpy(zero_copy_only=False).reshape(len(column), -1)
        return [row.values.to_numpy(zero_copy_only=False) for row in column]
    if pa.types.is_timestamp(kind) and kind.tz is not None:  # as seconds would round; as datetimes would cost 1 µs each
        return [None if v is None else Micros(v) for v in column.cast(TIMESTAMP, safe=False).cast(pa.int64()).to_pylist()]
    return column.to_pylist()


class Micros(int):
    """Microseconds that are known to be right: from an Arrow timestamp column with a zone."""


def _vectors(
    values: Any, n: int, dim: int | None, has_vector: npt.NDArray[np.bool_], faults: dict[int, MemcoreError]
) -> npt.NDArray[np.float32] | None:
    """The rows' vectors, those of rows without one zero; sets `has_vector`. None if no row came with one."""
    if values is None or not n:
        return None
    if isinstance(values, np.ndarray) and values.ndim == 2:
        present: Sequence[int] = range(n)
        given: Any = values
    else:
        present = [row for row in range(n) if values[row] is not None]
        given = [values[row] for row in present]
    if not len(present):
        return None
    try:
        rows = gate.vectors(given, rows=len(present), dim=dim, what="vector")
    except MemcoreError:
        rows, present = _one_by_one(given, present, dim, faults)
        if not present:
            return None
    has_vector[list(present)] = True
    if len(present) == n:
        return rows
    vectors = np.zeros((n, rows.shape[1]), dtype=np.float32)
    vectors[list(present)] = rows
    return vectors


def _one_by_one(
    given: Any, present: Sequence[int], dim: int | None, faults: dict[int, MemcoreError]
) -> tuple[npt.NDArray[np.float32], list[int]]:
    """Some row is at fault: find which. The first good row sets the width if nothing else does."""
    good: list[npt.NDArray[np.float32]] = []
    places = []
    for value, row in zip(given, present, strict=True):
        try:
            vector = gate.vector(value, dim=dim)
        except MemcoreError as fault:
            faults.setdefault(row, fault)
            continue
        dim = dim or vector.size
        good.append(vector)
        places.append(row)
    return (np.stack(good) if good else np.empty((0, 0), np.float32)), places


def _without(intake: Intake, faults: Mapping[int, MemcoreError]) -> Intake:
    """Without the rows at fault."""
    if not faults:
        return intake
    kept = [row for row in intake.rows if row not in faults]
    at = np.asarray(kept, dtype=np.int64)

    def take(values: Any) -> Any:
        return None if values is None else values[at] if isinstance(values, np.ndarray) else [values[i] for i in kept]

    return Intake(
        {name: take(values) for name, values in intake.columns.items()},
        {name: take(values) for name, values in intake.names.items()},
        intake.explicit[at],
        take(intake.vectors),
        dict(faults),
        kept,
    )


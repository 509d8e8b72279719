"""What does a caller want remembered? Texts, dicts or an Arrow table, checked by the gate and brought into columns.

- Rows come as a list (or another sequence) of texts and dicts, as an iterator of them, which is read to its end before
  anything is checked, or as an Arrow table, record batch or reader, or another library's data frame that gives itself
  to Arrow (`__arrow_c_stream__`). Fields are the arguments of `remember`; None and null are fields that are not given.
- Faults are gathered by row, so that the caller is told of the first and of how many there are, and may have the good
  rows stored without the bad ones. A table with an unknown column, or with a column whose type cannot be meant (times
  without a zone), is refused whole.
- Of Arrow's types: texts may be of any string type, also dictionary-encoded; times are timestamps with a zone, of any
  unit (ns are rounded to µs), or seconds; a vector is a list of any kind and number type; metadata is a struct, a map,
  or JSON text, which is how `to_arrow` gives it.
- The store's own columns (`seq`, `version`, …) are refused: records are moved whole with export and import.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore import gate, ids
from memcore.clock import in_years, to_micros
from memcore.errors import InvalidInput, MemcoreError, ScopeError
from memcore.schema import COLUMNS, SOURCES
from memcore.store.catalog import columns_of
from memcore.store.segment import FIXED, Columns, alike, own

FIELDS = (
    "content", "kind", "key", "importance", "event_time", "expires_at", "metadata", "source", "confidence", "untrusted",
    "vector", "level", "session_id", "agent_role", "tenant_id", "project_id", "id", "idempotency_key",
)  # fmt: skip
DEFAULT_KIND, DEFAULT_IMPORTANCE = "episodic", 0.5
_OWN = frozenset(COLUMNS) - frozenset(FIELDS)
_KNOWN = frozenset(FIELDS)
_TICKS = {"s": (1_000_000, 1), "ms": (1000, 1), "us": (1, 1), "ns": (1, 1000)}  # a unit of time in µs, as a fraction
_NO_CONTENT = "content is missing; every memory has a text: leave the row out if there is nothing to say"
_WHAT = "pass a list of texts, a list of dicts or a pyarrow Table: for a single text use remember"


@dataclass(slots=True)
class Intake:
    """Checked rows. `columns` lacks only what a commit gives: seqs, versions, ids where `explicit` is False, and the
    codes of `names`. `vectors` holds the rows that came with a vector (`has_vector`); the others wait to be
    embedded."""

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
    """Rows from whatever the caller passed; see the module."""
    n, fields, faults = _fields(data)
    return check(fields, n, bounds, now=now, dim=dim, faults=faults)


def check(
    fields: Mapping[str, Any],
    n: int,
    bounds: Bounds,
    *,
    now: int,
    dim: int | None,
    faults: dict[int, MemcoreError] | None = None,
) -> Intake:
    """Columns by the names of `FIELDS`, each a sequence of `n` values (None: not given), checked value by value.

    `faults` of rows that were found wanting before are kept.
    """
    found: dict[int, MemcoreError] = {} if faults is None else faults

    def each(name: str, check_one: Callable[[Any, str], Any], default: Any) -> list[Any]:
        checked = []
        for row, value in enumerate(fields[name]):
            if row & 0xFF == 0xFF:
                time.sleep(0)  # lets a thread that recalls have the interpreter, which it else waits 5 ms for
            if value is None:
                checked.append(default)
                continue
            try:
                checked.append(check_one(value, name))
            except MemcoreError as fault:
                found.setdefault(row, fault)
                checked.append(default)
        return checked

    given = {name for name, values in fields.items() if values is not None}
    columns = columns_of(n)
    if "content" in given:
        columns["content"] = each("content", gate.text, None)
    if None in columns["content"]:
        for row, content in enumerate(columns["content"]):
            if content is None:
                found.setdefault(row, InvalidInput(_NO_CONTENT))
    for name, check_text in _TEXTS:
        if name in given:
            columns[name] = each(name, check_text, None)
    for name, check_one, default in _NUMBERS:
        if name in given:
            columns[name] = np.array(each(name, check_one, default), FIXED[name])
        elif default:
            columns[name] = _ALIKE[name][:n]
    columns["ingested_at"] = np.full(n, now)
    columns["event_time"] = (
        np.array(each("event_time", moment, now), np.int64) if "event_time" in given else columns["ingested_at"].copy()
    )
    explicit = columns["has_vector"]
    if "id" in given:
        explicit = explicit.copy()
        for row, id in enumerate(each("id", gate.record_id, None)):
            if id is not None:
                explicit[row] = True
                own(columns, "id_hi")[row], own(columns, "id_lo")[row] = ids.halves(id)
    names = {"source": each("source", gate.name, SOURCES[0]) if "source" in given else [SOURCES[0]] * n}
    for short, name, bound in (
        ("session", "session_id", bounds.session_id),
        ("role", "agent_role", bounds.agent_role),
        ("tenant", "tenant_id", bounds.tenant_id),
        ("project", "project_id", bounds.project_id),
    ):
        default = bound or "default"
        names[short] = each(name, _within(bound), default) if name in given else [default] * n
    vectors = _vectors(fields.get("vector"), n, dim, columns, found)
    return _without(Intake(columns, names, explicit, vectors, found, list(range(n))), found)


def refusal(faults: Mapping[int, MemcoreError], n: int) -> MemcoreError:
    """One error for a refused batch: the first faulty row's own, and how many there are."""
    row = min(faults)
    count = f"{len(faults)} of {n} rows {'is' if len(faults) == 1 else 'are'} refused"
    others = "; on_invalid='skip' stores the good rows" if len(faults) < n else ""
    return type(faults[row])(f"row {row}: {faults[row]}. Nothing was stored: {count}{others}")


def level(value: object, what: str) -> int:
    got = gate.count(value, what)
    if got > 32_767:
        raise InvalidInput(
            f"{what} is {gate.brief(got)}; it must be at most 32767: 0 is raw, 1 and up are consolidated"
        )
    return got


def expiry(value: object, what: str = "expires_at") -> int:
    """A time of expiry in µs; the epoch itself, which stands for never inside, becomes the microsecond before."""
    return moment(value, what) or -1


class Micros(int):
    """Microseconds since the epoch: what an Arrow timestamp or a text stood for."""

    def __str__(self) -> str:
        return f"{int(self)} µs"


def moment(value: object, what: str) -> int:
    """A caller's time in µs."""
    return in_years(int(value), value, what) if isinstance(value, Micros) else to_micros(value, what)


class JsonText(str):
    """A JSON document: a value of a text column of metadata."""


def _metadata(value: object, what: str) -> str | None:
    if isinstance(value, JsonText):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as fault:
            raise InvalidInput(
                f"{what} is {gate.brief(str(value))}, which is not JSON ({gate.first_line(fault)}); a text column of "
                "it holds a JSON object a row"
            ) from None
    return gate.metadata(value, what)


def _kind(value: object, what: str) -> int:
    return gate.KINDS.index(gate.kind(value, what))


# A field, the check of one value, and the default of rows that don't give it.
_TEXTS: tuple[tuple[str, Callable[[Any, str], str | None]], ...] = (
    ("key", gate.name),
    ("metadata", _metadata),
    ("idempotency_key", gate.name),
)
_NUMBERS: tuple[tuple[str, Callable[[Any, str], Any], Any], ...] = (
    ("kind", _kind, gate.KINDS.index(DEFAULT_KIND)),
    ("importance", gate.unit, DEFAULT_IMPORTANCE),
    ("confidence", gate.unit, 1.0),
    ("untrusted", gate.flag, False),
    ("level", level, 0),
    ("expires_at", expiry, 0),  # 0: never
)
_ALIKE = {name: alike(name, default) for name, _, default in _NUMBERS} | {"has_vector": alike("has_vector", True)}


def _within(bound: str | None) -> Callable[[object, str], str]:
    """The check of a scope id in a row: where the scope has one, the row's is the same."""

    def check_one(value: object, what: str) -> str:
        if bound is not None and value == bound:
            return bound
        got = gate.scope_id(value, what)
        if bound is None:
            return got
        raise ScopeError(
            f"{what} of the row is {gate.brief(got)} and the scope's is {gate.brief(bound)}; a scope writes only "
            f"inside itself: leave {what} out, or write through the scope it belongs to"
        )

    return check_one


def _fields(data: Any) -> tuple[int, dict[str, Any], dict[int, MemcoreError]]:
    """The number of rows, the fields as columns, and the faults of rows that are no rows."""
    if hasattr(data, "__arrow_c_stream__"):
        return _arrow_fields(data)
    if isinstance(data, Iterator):
        data = list(data)
    if isinstance(data, (str, bytes, bytearray, memoryview)) or not isinstance(data, Sequence):
        raise InvalidInput(f"remember_many got {gate.shown(data)}; {_WHAT}")
    if all(isinstance(row, str) for row in data):
        return len(data), {"content": data}, {}
    faults: dict[int, MemcoreError] = {}
    rows: list[Mapping[Any, Any]] = []
    for place, row in enumerate(data):
        if isinstance(row, str):
            row = {"content": row}
        elif not isinstance(row, Mapping):
            faults[place] = InvalidInput(f"the row is {gate.shown(row)}; a row is a text or a dict with 'content'")
            row = {}
        rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    if not names.keys() <= _KNOWN:
        for place, row in enumerate(rows):
            if strange := _strange(row):
                faults.setdefault(place, InvalidInput(strange))
    return len(rows), {name: [row.get(name) for row in rows] for name in FIELDS if name in names}, faults


def _arrow_fields(data: Any) -> tuple[int, dict[str, Any], dict[int, MemcoreError]]:
    try:
        table = data if isinstance(data, pa.Table) else pa.table(data)
    except (pa.ArrowException, TypeError, ValueError) as fault:
        raise InvalidInput(
            f"remember_many got {gate.shown(data)}, which Arrow does not read as a table ({gate.first_line(fault)}); "
            f"{_WHAT}"
        ) from fault
    names = table.column_names
    if strange := _strange(names):
        raise InvalidInput(strange)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(
            f"the table has {names.count(twice)} columns named {twice!r}; each name stands once: drop the others"
        )
    if "content" not in names and names:
        raise InvalidInput(
            f"the table has {_listed(names)} but no 'content'; every memory has a text: name its column so"
        )
    return table.num_rows, {name: arrow_values(name, table.column(name)) for name in names}, {}


def _strange(names: Iterable[object]) -> str | None:
    """What to say of names that are not fields, if there are any."""
    strange = [name for name in names if name not in _KNOWN]
    if own := [name for name in strange if name in _OWN]:
        return (
            f"field {_listed(own)} is kept by the store itself; leave it out, or move records whole with export and "
            "import_"
        )
    if strange:
        return f"unknown field {_listed(strange)}; a row has {', '.join(FIELDS)}: put what is your own into 'metadata'"
    return None


def _listed(names: Iterable[object]) -> str:
    return ", ".join(map(gate.brief, names))


def arrow_values(name: str, column: pa.ChunkedArray) -> Any:
    """An Arrow column as values for `check`; vectors as one array `(n, d)` where each row has one of that width."""
    kind = column.type
    try:
        if pa.types.is_dictionary(kind):
            column = column.cast(kind.value_type)
        elif name in ("metadata", "vector") and isinstance(kind, pa.BaseExtensionType):
            column = column.cast(kind.storage_type)
        kind = column.type
        if name == "vector":
            return _arrow_vectors(column)
        if pa.types.is_timestamp(kind):
            if kind.tz is None:
                raise InvalidInput(
                    f"column {name!r} has the type {kind}, without a zone; times need one: pass "
                    f"column.cast(pa.timestamp({kind.unit!r}, 'UTC')), or use pyarrow.compute.assume_timezone for "
                    "local times"
                )
            up, down = _TICKS[kind.unit]
            ticks = column.cast(pa.int64()).to_pylist()
            return [None if t is None else Micros((t * up + down // 2) // down) for t in ticks]
        if name == "metadata":
            if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
                return [None if text is None else JsonText(text) for text in column.to_pylist()]
            return column.to_pylist(maps_as_pydicts="strict")
        return column.to_pylist()
    except MemcoreError:
        raise
    except (pa.ArrowException, KeyError, ValueError, OverflowError) as fault:
        raise InvalidInput(
            f"column {name!r} of type {kind} cannot be read ({gate.first_line(fault)}); cast it to a type that Python "
            "has"
        ) from fault


def _arrow_vectors(column: pa.ChunkedArray) -> Any:
    lists = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if not isinstance(lists, (pa.FixedSizeListArray, pa.ListArray, pa.LargeListArray)):
        return column.to_pylist()
    rows = gate.arrow_rows(lists.drop_null())
    if rows is None:
        return [row.values if row.is_valid else None for row in lists]
    if not lists.null_count:
        return rows
    each = iter(rows)
    return [next(each) if there else None for there in lists.is_valid().to_pylist()]


def _vectors(
    values: Any, n: int, dim: int | None, columns: Columns, faults: dict[int, MemcoreError]
) -> npt.NDArray[np.float32] | None:
    """The rows' vectors, those of rows without one zero; sets `has_vector`. None if no row came with one."""
    if values is None or not n:
        return None
    if isinstance(values, np.ndarray) and values.ndim == 2:
        present: Sequence[int] = range(n)
        given: Any = values
    else:
        present = [row for row in range(n) if values[row] is not None and row not in faults]
        given = [values[row] for row in present]
    if not len(present):
        return None
    try:
        rows = gate.vectors(given, rows=len(present), dim=dim, what="vector")
    except MemcoreError:
        rows, present = _one_by_one(given, present, dim, faults)
        if not present:
            return None
    if len(present) == n:
        columns["has_vector"] = _ALIKE["has_vector"][:n]
        return rows
    own(columns, "has_vector")[present] = True
    vectors = np.zeros((n, rows.shape[1]), dtype=np.float32)
    vectors[present] = rows
    return vectors


def _one_by_one(
    given: Any, present: Sequence[int], dim: int | None, faults: dict[int, MemcoreError]
) -> tuple[npt.NDArray[np.float32], list[int]]:
    """Some row is at fault: find which. The first good row sets the width if the store has none."""
    good: list[npt.NDArray[np.float32]] = []
    places = []
    holder = "the store"
    for value, row in zip(given, present, strict=True):
        try:
            vector = gate.vector(value, dim=dim, holder=holder)
        except MemcoreError as fault:
            faults.setdefault(row, fault)
            continue
        if dim is None:
            dim, holder = vector.size, f"row {row}"
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

"""Which rows does `where` let through? A pyarrow expression or a dict of equalities, as one mask a segment.

Columns are those of the record (all but `vector`), and `metadata.<key>` for the scalar values of metadata. The answers
to what is not plain:
- A key that a row's metadata lacks is null there, as is a list or an object: no comparison with it is true; `is_null()` is.
- Mixed types under one key: rows whose value has another type than the expression compares with are null.
- A dict's None matches null. Its values match by type too: 1 does not match true or "1"; 1 matches 1.0.
- `importance` and `confidence` are compared as the decimals they were given (seven digits), not as the float32 that is
  stored, so that `>= 0.9` finds what was remembered with 0.9.
- Times are compared with timezone-aware datetimes or, in a dict, with seconds too.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc

from memcore import gate
from memcore.clock import to_datetime, to_micros
from memcore.errors import InvalidInput
from memcore.schema import COLUMNS, TIMESTAMP, record_schema
from memcore.store.snapshot import Mask, Part, Snapshot

FILTERED = tuple(name for name in COLUMNS if name not in ("vector", "metadata"))
_ALLOWED = f"{', '.join(FILTERED)} and metadata.<key>"
_NO_FIELD = re.compile(r"No match for FieldRef\.(Name|Nested|FieldPath)\((.*)\) in ", re.DOTALL)
_METADATA_TYPES = (pa.string(), pa.float64(), pa.int64(), pa.bool_())
_DECIMALS = {"importance", "confidence"}


class Where:
    """A checked filter. `masks` answers for each part of a snapshot."""

    def __init__(self, expression: pc.Expression, names: tuple[str, ...]) -> None:
        self._expression = expression
        self._names = names

    def masks(self, snapshot: Snapshot) -> list[Mask]:
        """uint8 `(n,)` a part: 1 where the expression is true; false and null are 0."""
        types = _bind(self._expression, self._names, _types_present(snapshot, self._names))
        return [
            _evaluate(self._expression, _inputs(snapshot, part, types)).view(np.uint8) for part in snapshot.parts
        ]


def compile_where(value: object) -> Where:
    """The gate for `where`. Refuses unknown columns, types that cannot be compared, and what is not a filter."""
    if isinstance(value, Mapping):
        if not value:
            raise InvalidInput("where is {}; an empty filter would match everything: leave it out if that is meant")
        value = reduce(and_, (_equality(name, wanted) for name, wanted in value.items()))
    if not isinstance(value, pc.Expression):
        raise InvalidInput(
            f"where is {gate.shown(value)}; pass a pyarrow.compute expression such as pc.field('importance') > 0.5, or a "
            "dict of equalities such as {'kind': 'episodic', 'metadata.host': 'web01'}"
        )
    names = _names(value)
    _bind(value, names, {name: _METADATA_TYPES for name in names if name.startswith("metadata.")})
    return Where(value, names)


def _equality(name: object, wanted: object) -> pc.Expression:
    if not isinstance(name, str) or (name not in FILTERED and not name.startswith("metadata.")):
        raise InvalidInput(f"where names {gate.shown(name)}; the columns are {_ALLOWED}")
    field = pc.field(name)
    if wanted is None:
        return field.is_null()
    if name.startswith("metadata."):
        if isinstance(wanted, (bool, np.bool_)):
            return field == bool(wanted)
        return field == (wanted if isinstance(wanted, str) else gate.number(wanted, f"where[{name!r}]"))
    kind = _type(name)
    if kind == TIMESTAMP:
        return field == to_datetime(to_micros(wanted, f"where[{name!r}]"))
    if pa.types.is_string(kind):
        return field == gate.text(wanted, f"where[{name!r}]")
    if pa.types.is_boolean(kind):
        return field == gate.flag(wanted, f"where[{name!r}]")
    return field == gate.number(wanted, f"where[{name!r}]")


def _type(name: str) -> pa.DataType:
    return pa.float64() if name in _DECIMALS else record_schema(None).field(name).type


def _names(expression: pc.Expression) -> tuple[str, ...]:
    """The columns an expression reads. Arrow has no call for that: bind it to a schema, and add what it says it lacks."""
    schema: dict[str, pa.DataType] = {}
    while True:
        try:
            _evaluate(expression, _empty(schema))
        except InvalidInput as fault:
            match = _NO_FIELD.match(str(fault.__cause__))
            if match is None:
                return tuple(schema)  # all columns are there; what is wrong with the types is for `_bind` to say
            name = match[2]
            if match[1] == "Nested" or match[1] == "FieldPath":
                raise InvalidInput(
                    f"where refers to a column by {match[1]} ({name}); name columns plainly, as pc.field('kind') or "
                    "pc.field('metadata.host')"
                ) from None
            if name in schema or not (name in FILTERED or name.startswith("metadata.")):
                raise InvalidInput(f"where names the unknown column {name!r}; the columns are {_ALLOWED}") from None
            schema[name] = pa.null() if name.startswith("metadata.") else _type(name)
        else:
            return tuple(schema)


def _bind(
    expression: pc.Expression, names: Sequence[str], candidates: Mapping[str, Sequence[pa.DataType]]
) -> dict[str, pa.DataType]:
    """The type to give each column so that the expression can be evaluated, trying a metadata key's types in turn."""
    fault: InvalidInput | None = None
    for types in itertools.product(*(candidates.get(name) or (_type(name),) for name in names)):
        schema = dict(zip(names, types, strict=True))
        try:
            _evaluate(expression, _empty(schema))
        except InvalidInput as raised:
            fault = fault or raised
        else:
            return schema
    if fault is None:  # no column at all, such as pc.scalar(True)
        raise InvalidInput(f"where ({expression}) names no column; the columns are {_ALLOWED}")
    raise fault


def _types_present(snapshot: Snapshot, names: Sequence[str]) -> dict[str, tuple[pa.DataType, ...]]:
    """The types of the values under each metadata key, the usual ones last, for an expression that fits no value."""
    present: dict[str, tuple[pa.DataType, ...]] = {}
    for name in names:
        if not name.startswith("metadata."):
            continue
        kinds = {type(v) for part in snapshot.parts for v in _metadata_values(part, name[9:])}
        found: list[pa.DataType] = []
        if float in kinds or int in kinds:
            found.append(pa.float64() if float in kinds else pa.int64())
        found += [arrow for python, arrow in ((str, pa.string()), (bool, pa.bool_())) if python in kinds]
        present[name] = tuple(dict.fromkeys((*found, *_METADATA_TYPES)))
    return present


def _metadata_values(part: Part, key: str) -> list[Any]:
    """One metadata key's scalar value in each row of a part (None if it lacks it), parsed once a row and kept."""
    values = part.segment.parsed.get(key, [])
    if len(values) < part.n:
        values = list(values)  # another thread may be reading or extending the one that is kept
        for text in part.segment.texts("metadata", range(len(values), part.n)).to_pylist():
            value = json.loads(text).get(key) if text is not None else None
            values.append(value if isinstance(value, (str, int, float, bool)) else None)
        part.segment.parsed[key] = values
    return values[: part.n]


def _inputs(snapshot: Snapshot, part: Part, types: Mapping[str, pa.DataType]) -> pa.Table:
    arrays = {}
    for name, kind in types.items():
        if name.startswith("metadata."):
            arrays[name] = _typed(_metadata_values(part, name[9:]), kind)
        elif name in _DECIMALS:
            arrays[name] = pa.array(np.round(part.columns[name].astype(np.float64), 7))
        else:
            arrays[name] = snapshot.column(part, name)
    return pa.table(arrays)


def _typed(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(kind):
        return pa.array([v if isinstance(v, bool) else None for v in values], kind)
    if pa.types.is_string(kind):
        return pa.array([v if isinstance(v, str) else None for v in values], kind)
    least, most = (-(2**63), 2**63 - 1) if pa.types.is_integer(kind) else (float("-inf"), float("inf"))
    return pa.array(
        [v if isinstance(v, (int, float)) and not isinstance(v, bool) and least <= v <= most else None for v in values],
        kind,
    )


def _empty(schema: Mapping[str, pa.DataType]) -> pa.Table:
    return pa.table({name: pa.nulls(0, kind) for name, kind in schema.items()})


def _evaluate(expression: pc.Expression, table: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
    try:
        plan = acero.Declaration.from_sequence(
            [
                acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
                acero.Declaration("project", acero.ProjectNodeOptions([expression], ["where"])),
            ]
        )
        result = plan.to_table(use_threads=False).column(0)
    except (pa.ArrowException, TypeError) as fault:
        raise InvalidInput(
            f"where ({expression}) cannot be evaluated: {str(fault).splitlines()[0]}; compare each column with a value of "
            "its type"
        ) from fault
    if not pa.types.is_boolean(result.type):
        raise InvalidInput(f"where ({expression}) gives {result.type}, not true or false; compare it with something")
    return np.asarray(pc.fill_null(result, False).combine_chunks().to_numpy(zero_copy_only=False), dtype=np.bool_)

"""Which rows does `where` let through? A pyarrow expression or a dict of equalities, as one mask a segment.

Columns are those of the record (all but `vector`), and `metadata.<key>` for the scalar values of metadata. The answers
to what is not plain:
- A key that a row's metadata lacks is null there, as is a list or an object: no comparison with it is true, also not
  under `~`; `is_null()` is.
- Values of several types under one key: each row is compared by the type it has. Where the expression cannot compare
  that type (a number with "a"), the row's value counts as null.
- A dict's None matches null. Its values match by type too: 1 does not match true or "1"; 1 matches 1.0.
- Whole numbers are exact up to 64 bits, and compared as floats beyond.
- `importance` and `confidence` are compared as the decimals they were given (seven digits), not as the float32 that is
  stored, so that `>= 0.9` finds what was remembered with 0.9.
- Times are compared with timezone-aware datetimes or, in a dict, with seconds too.
"""

from __future__ import annotations

import itertools
import json
import math
import pickle
import re
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from numbers import Integral
from operator import and_
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.acero as acero
import pyarrow.compute as pc

from memcore import gate
from memcore.clock import to_datetime, to_micros
from memcore.errors import InvalidInput
from memcore.schema import COLUMNS, TIMESTAMP, record_schema
from memcore.store.snapshot import EVERY, Mask, Masks, Part, Selection, Snapshot

FILTERED = tuple(name for name in COLUMNS if name not in ("vector", "metadata"))
_ALLOWED = f"{', '.join(FILTERED)} and metadata.<key>"
_METADATA = "metadata."
_NO_FIELD = re.compile(r"No match for FieldRef\.(Name|Nested|FieldPath)\((.*)\) in ", re.DOTALL)
_DECIMALS = {"importance", "confidence"}
MOST_KEYS = 6  # metadata keys of one expression: six take 0.1 s to compile, and each more four times as long
_CHANGING = {"access_count", "last_access", "superseded_at"}  # columns of which a row's value does not stay
_MOST_KEPT = 8  # filters of which a segment keeps the masks: 33 kB each
_COMPILED = 256  # filters remembered: compiling one takes 0.1 to 1 ms, as long as a small recall

Bools = npt.NDArray[np.bool_]

# The types that a metadata value can have. What a key is compared with decides which of them an expression can take.
_ABSENT, _TEXT, _FLAG, _WHOLE, _FLOAT = range(5)
_TYPES = {_TEXT: pa.string(), _FLAG: pa.bool_(), _WHOLE: pa.int64(), _FLOAT: pa.float64()}
# A key that is only asked about being null is of no type. That shows in a type with which nothing can be compared.
_PRESENCE, _INCOMPARABLE = 5, pa.list_(pa.int8())
# is_in converts its values to the column's type, so it can take types that it should not: "1" for the number 1.
_IS_IN = {"string": _TEXT, "bool": _FLAG}


class Where:
    """A checked filter. `masks` answers for each part of a snapshot."""

    def __init__(self, expression: pc.Expression, columns: Sequence[str], keys: Sequence[str]) -> None:
        self._expression = expression
        self._columns = columns
        self._keys = keys
        self._readings = _readings(expression, columns, keys)
        self._lasting = not _CHANGING & set(columns)

    @property
    def kept(self) -> Hashable:
        """What the masks of a snapshot can be kept by, or None if they change without it."""
        return (self,) if self._lasting else None

    def masks(self, snapshot: Snapshot) -> list[Mask]:
        """uint8 `(n,)` a part: 1 where the expression is true; false and null are 0. To be left as they are."""
        return [self._kept(snapshot, part) for part in snapshot.parts]

    def _kept(self, snapshot: Snapshot, part: Part) -> Mask:
        """The mask of a part; kept with its segment, whose rows change no more once it is sealed."""
        masks = part.segment.filtered
        mask: Mask | None = masks.get(self)
        if mask is None:
            mask = self._mask(snapshot, part).view(np.uint8)
            if self._lasting and part.view.sealed and part.n == part.segment.n:
                if len(masks) >= _MOST_KEPT:
                    masks.clear()
                masks[self] = mask
        return mask[: part.n]

    def _mask(self, snapshot: Snapshot, part: Part) -> Bools:
        arrays = {name: _column(snapshot, part, name) for name in self._columns}
        values = [_values_of(part, key) for key in self._keys]
        passed = np.zeros(part.n, dtype=np.bool_)
        for reading, rows in _shared_out(self._readings, values, part.n):
            typed = {
                _METADATA + key: v.typed(kind, part.n) for key, v, kind in zip(self._keys, values, reading, strict=True)
            }
            passed |= _evaluated(self._expression, pa.table({**arrays, **typed})) & rows
        return passed


def passing(snapshot: Snapshot, selection: Selection, condition: Where | All | None) -> Masks:
    """What a selection sees of each part and a filter lets through. To be left as it is."""
    masks = snapshot.masks(selection)
    if condition is None:
        return masks

    def make() -> list[Mask]:
        return [f if m is EVERY else m & f for m, f in zip(masks, condition.masks(snapshot), strict=True)]

    name = condition.kept
    return Masks(make()) if name is None else snapshot.kept(selection, name, make)


def compile_where(value: object) -> Where | All:
    """The gate for `where`. Refuses unknown columns, types that cannot be compared, and what is not a filter."""
    if isinstance(value, Mapping):
        if not value:
            raise InvalidInput("where is {}; an empty filter would match everything: leave it out if that is meant")
        return All([_remembered(_equality(name, wanted)) for name, wanted in value.items()])
    if not isinstance(value, pc.Expression):
        raise InvalidInput(
            f"where is {gate.shown(value)}; pass a pyarrow.compute expression such as pc.field('importance') > 0.5, or "
            "a dict of equalities such as {'kind': 'episodic', 'metadata.host': 'web01'}"
        )
    return _remembered(value)


class All:
    """Conditions that must all hold, each with columns of its own, so that types are found one by one."""

    def __init__(self, conditions: Sequence[Where]) -> None:
        self._conditions = conditions

    @property
    def kept(self) -> Hashable:
        """As `Where.kept`."""
        names = tuple(condition.kept for condition in self._conditions)
        return None if None in names else names

    def masks(self, snapshot: Snapshot) -> list[Mask]:
        """As `Where.masks`."""
        several = [condition.masks(snapshot) for condition in self._conditions]
        return [reduce(and_, masks) for masks in zip(*several, strict=True)]


_held: dict[bytes, Where] = {}  # what was compiled, by the expression's serialised form


def _remembered(expression: pc.Expression) -> Where:
    try:
        name = pickle.dumps(expression)
    except pa.ArrowNotImplementedError:  # a reference that is no name: for `_names` to refuse
        return _compiled(expression)
    where = _held.get(name)
    if where is None:
        if len(_held) >= _COMPILED:
            _held.clear()
        where = _held[name] = _compiled(expression)
    return where


def _compiled(expression: pc.Expression) -> Where:
    names = _names(expression)
    if not names:  # such as pc.scalar(True)
        raise InvalidInput(f"where ({expression}) names no column; the columns are {_ALLOWED}")
    keys = [name.removeprefix(_METADATA) for name in names if name.startswith(_METADATA)]
    return Where(expression, [name for name in names if not name.startswith(_METADATA)], keys)


def _equality(name: object, wanted: object) -> pc.Expression:
    if not isinstance(name, str) or (name not in FILTERED and not name.startswith(_METADATA)):
        raise InvalidInput(f"where names {gate.shown(name)}; the columns are {_ALLOWED}")
    gate.text(name, "a name in where")
    field, what = pc.field(name), f"where[{name!r}]"
    if wanted is None:
        return field.is_null()
    kind = None if name.startswith(_METADATA) else _type(name)
    if kind == TIMESTAMP:
        return field == to_datetime(to_micros(wanted, what))
    if name == "kind":
        return field == gate.kind(wanted, what)
    if kind == pa.string():
        return field == gate.text(wanted, what)
    if kind == pa.bool_():
        return field == gate.flag(wanted, what)
    if kind is not None:
        return field == _number(wanted, what)
    if isinstance(wanted, (bool, np.bool_)):
        return field == bool(wanted)
    if isinstance(wanted, str):
        return field == (gate.text(wanted, what) if wanted.strip() else wanted)  # a blank value may be asked for
    if isinstance(wanted, (Mapping, Sequence)):
        raise InvalidInput(
            f"{what} is {gate.shown(wanted)}; metadata is compared with a text, a number, True, False or None: for one "
            f"of several values use pc.field({name!r}).isin([…])"
        )
    return field == _number(wanted, what)


def _number(wanted: object, what: str) -> int | float:
    """Whole numbers stay whole: as floats, those from 2^53 up would match their neighbours."""
    got = gate.number(wanted, what)
    whole = int(wanted) if isinstance(wanted, Integral) else None
    return got if whole is None or not -(2**63) <= whole < 2**63 else whole


def _type(name: str) -> pa.DataType:
    return pa.float64() if name in _DECIMALS else record_schema(None).field(name).type


def _names(expression: pc.Expression) -> tuple[str, ...]:
    """The columns an expression reads. Arrow has no call for that: bind it, and add what it says it lacks."""
    names: tuple[str, ...] = ()
    while True:
        name = _lacking(expression, names)
        if name is None:
            return names  # what is wrong with their types is for `_readings` to say
        names = (*names, name)
        if sum(map(_is_metadata, names)) > MOST_KEYS:
            raise InvalidInput(
                f"where reads more than {MOST_KEYS} metadata keys in one expression, whose types are tried together: "
                "pass a dict of equalities, or filter in two steps"
            )


def _is_metadata(name: str) -> bool:
    return name.startswith(_METADATA)


def _lacking(expression: pc.Expression, names: tuple[str, ...]) -> str | None:
    """A column that an expression reads beside these. It shows once the types of those before it are right."""
    kinds = [tuple(_TYPES.values()) if name.startswith(_METADATA) else (_type(name),) for name in names]
    for types in itertools.product(*kinds):
        fault = _fault(expression, dict(zip(names, types, strict=True)))
        match = _NO_FIELD.match(str(fault.__cause__)) if fault else None
        if match is None:
            continue
        name = match[2]
        if match[1] != "Name":
            raise InvalidInput(
                f"where refers to a column by {match[1]} ({name}); name columns plainly, as pc.field('kind') or "
                "pc.field('metadata.host')"
            )
        if name not in FILTERED and not name.startswith(_METADATA):
            raise InvalidInput(f"where names the unknown column {name!r}; the columns are {_ALLOWED}")
        return name
    return None


def _readings(expression: pc.Expression, columns: Sequence[str], keys: Sequence[str]) -> list[tuple[int, ...]]:
    """The types of value, one a metadata key, that the expression can be evaluated with."""
    schema = {name: _type(name) for name in columns}

    def fault(types: Sequence[pa.DataType]) -> InvalidInput | None:
        return _fault(expression, {**schema, **{_METADATA + key: t for key, t in zip(keys, types, strict=True)}})

    def fits(reading: Sequence[int]) -> bool:
        return fault([_TYPES.get(kind, _INCOMPARABLE) for kind in reading]) is None

    choices = [_choices(expression, key) for key in keys]
    found = [reading for reading in itertools.product(*choices) if fits(reading)]
    if not found:
        raised = fault([_TYPES[kinds[0]] for kinds in choices])
        assert raised is not None
        raise raised
    for i in range(len(keys)):
        asked = [(*reading[:i], _PRESENCE, *reading[i + 1 :]) for reading in found]
        if fits(asked[0]):
            found = list(dict.fromkeys(asked))
    for i in range(len(keys)):
        floats = [(*r[:i], _FLOAT, *r[i + 1 :]) for r in found if r[i] == _WHOLE]
        found += [reading for reading in floats if fits(reading)]
    return found


def _choices(expression: pc.Expression, key: str) -> tuple[int, ...]:
    asked = re.findall(rf"is_in\({re.escape(_METADATA + key)}, {{value_set=(\w+):", str(expression))
    if not asked:
        return (_TEXT, _FLAG, _WHOLE)
    kinds = {_IS_IN.get(name, _WHOLE) for name in asked}
    if len(kinds) > 1:
        raise InvalidInput(
            f"where ({expression}) cannot be evaluated: it compares metadata.{key} with values of several types; "
            "compare each column with a value of its type"
        )
    return tuple(kinds)


class _Values:
    """The scalar values of one metadata key in the first `n` rows of a segment: their types, and an array a type."""

    __slots__ = ("_arrays", "kinds", "n")

    def __init__(self, scalars: Sequence[Any], before: _Values | None = None) -> None:
        """Of some rows, and of those before them, which are not looked at again."""
        kinds = np.fromiter(map(_kind_of, scalars), np.int8, len(scalars))
        self._arrays: dict[int, pa.Array] = {
            kind: pa.array(
                [_as(kind, v) if k == kind else None for v, k in zip(scalars, kinds.tolist(), strict=True)], t
            )
            for kind, t in _TYPES.items()
            if (before is not None and kind in before._arrays) or (kinds == kind).any()
        }
        if before is not None:
            kinds = np.concatenate([before.kinds, kinds])
            for kind, array in self._arrays.items():
                self._arrays[kind] = pa.concat_arrays([before.typed(kind, before.n), array])
        self.kinds: npt.NDArray[np.int8] = kinds
        self.n: int = len(kinds)

    @property
    def nbytes(self) -> int:
        return self.kinds.nbytes + sum(int(array.nbytes) for array in self._arrays.values())

    def typed(self, kind: int, n: int) -> pa.Array:
        """The values of one type in the first `n` rows, null where it is another; or which rows have one."""
        if kind == _PRESENCE:
            present = self.kinds[:n] != _ABSENT
            return pa.array(present, pa.bool_(), mask=~present)
        array = self._arrays.get(kind)
        return pa.nulls(n, _TYPES[kind]) if array is None else array[:n]


def _kind_of(value: object) -> int:
    if isinstance(value, str):
        return _TEXT
    if isinstance(value, bool):
        return _FLAG
    if isinstance(value, int):
        return _WHOLE if -(2**63) <= value < 2**63 else _FLOAT
    return _FLOAT if isinstance(value, float) else _ABSENT


def _as(kind: int, value: Any) -> Any:
    if kind != _FLOAT or isinstance(value, float):
        return value
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _values_of(part: Part, key: str) -> _Values:
    """Parsed once a row and kept with the segment; two threads that ask at once both parse, and one result stays."""
    held: _Values | None = part.segment.derived.get(key)
    if held is None or held.n < part.n:
        texts = part.view.texts_at("metadata", range(held.n if held else 0, part.n)).to_pylist()
        scalars = [None if text is None else json.loads(text).get(key) for text in texts]
        held = part.segment.derived[key] = _Values(scalars, held)
    return held


def _shared_out(
    readings: Sequence[tuple[int, ...]], values: Sequence[_Values], n: int
) -> list[tuple[tuple[int, ...], Bools]]:
    """Which rows to evaluate by which reading: the first that takes the types they have, or else most of them."""
    taken = np.zeros((len(readings), n), dtype=np.int8)  # how many values of each row
    for reading, many in zip(readings, taken, strict=True):
        for v, kind in zip(values, reading, strict=True):
            many += True if kind == _PRESENCE else (v.kinds[:n] == kind) | (v.kinds[:n] == _ABSENT)
    best = taken.argmax(axis=0)
    shares = ((reading, best == place) for place, reading in enumerate(readings))
    return [(reading, rows) for reading, rows in shares if rows.any()]


def _column(snapshot: Snapshot, part: Part, name: str) -> pa.Array:
    if name in _DECIMALS:
        return pa.array(np.round(part.columns[name].astype(np.float64), 7))
    return snapshot.column(part, name)


def _fault(expression: pc.Expression, schema: Mapping[str, pa.DataType]) -> InvalidInput | None:
    """What is wrong with evaluating an expression over columns of these types."""
    try:
        _evaluate(expression, pa.table({name: pa.nulls(1, kind) for name, kind in schema.items()}))
    except InvalidInput as fault:
        return fault
    return None


def _evaluated(expression: pc.Expression, table: pa.Table) -> Bools:
    """An expression over rows; once more with floats for whole numbers if those cannot be compared as they are.

    Arrow compares whole numbers with 0.5 as float32, and refuses to where one is above 2^24.
    """
    try:
        return _evaluate(expression, table)
    except InvalidInput as fault:
        types = [pa.float64() if pa.types.is_integer(kind) else kind for kind in table.schema.types]
        if types == table.schema.types:
            raise
        with suppress(InvalidInput):
            wider = pa.schema(list(zip(table.column_names, types, strict=True)))
            return _evaluate(expression, table.cast(wider, safe=False))
        raise fault


def _evaluate(expression: pc.Expression, table: pa.Table) -> Bools:
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
            f"where ({expression}) cannot be evaluated: {str(fault).splitlines()[0]}; compare each column with a value "
            "of its type"
        ) from fault
    if not pa.types.is_boolean(result.type):
        raise InvalidInput(f"where ({expression}) gives {result.type}, not true or false; compare it with something")
    return np.asarray(pc.fill_null(result, False).combine_chunks().to_numpy(zero_copy_only=False), dtype=np.bool_)

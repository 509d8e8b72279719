"""Is this value from outside acceptable, and what is it in memcore's own form? The one gate: inside, nothing checks.

The rules, one a function:
- text: a str that UTF-8 can encode (no lone surrogates), without NUL, with something visible in it, of at most 100
  million characters. Stored as given: never stripped, cut or normalised. A `str` Enum counts by its value.
- ids of a scope: the same, at most 512 characters, compared code point by code point: two Unicode forms of one word
  are two scopes, so that a scope can never see another one's rows. Keys, sources and idempotency keys: at most 4,096.
- numbers: Python's or NumPy's, finite; never a bool, never a text. A float is no count, not even 2.0.
- vectors: anything NumPy or Arrow reads as real numbers, integers included, in any memory layout; brought to C-ordered
  float32 and L2-normalised in a copy. All-zero is allowed (similarity 0 to everything); NaN, infinity, null, bool,
  complex and object are not, nor are bytes, which could be numbers of any width.
- metadata: a JSON object of at most 100 levels; NumPy scalars become Python's, tuples lists; NaN, whole numbers beyond
  64 bits, other types and keys that aren't text are refused.
- times: see `clock`. Weights and rates of decay: see `config`. Rows: see `intake`.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from memcore.errors import DimensionMismatch, InvalidInput, MemcoreError, ScopeError, printable

KINDS = ("working", "episodic", "semantic", "procedural")
TIERS = ("hot", "cold")
MAX_SCOPE_LENGTH = 512
MAX_NAME_LENGTH = 4096
# Arrow's 32-bit offsets reach 2 GB a column of a segment: 256 million characters and one such text stay below, whatever
# the script.
MAX_TEXT_LENGTH = 100_000_000
MAX_DEPTH = 100  # of metadata: far below what makes a JSON reader give up, so that what is written can be read
_LINES = re.compile(r"\s*\n\s*")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Visible: anything but white space, control characters and what Unicode calls default ignorable (zero-width characters,
# fillers, variation selectors, the byte order mark).
_VISIBLE = re.compile(
    "[^\\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_NORM_BLOCK = 2048  # rows normalised at once in float64: 4 MB at d = 256, stays in the caches
_UNIT_SLACK = 5e-7  # a row that was normalised before is kept to the bit, so that a round trip loses nothing
_REAL = frozenset("fiu")  # kinds of NumPy's dtypes: floats, whole numbers
_HIGHEST = 1.00001  # a score of float64 vectors that are 1 within 1e-6
_LEAST_NORM = 1e-100  # below, float64 loses digits of the squares


def brief(value: object) -> str:
    """A value for an error message: its repr, cut, on one line, and safe to print whatever it holds."""
    try:
        text = _LINES.sub(" ", printable(repr(value)))
    except Exception:  # a broken __repr__ must not hide the error being told
        text = "<unprintable>"
    return text if len(text) <= 60 else text[:57] + "…"


def shown(value: object) -> str:
    """`brief`, with the value's type."""
    return f"{brief(value)} ({type(value).__name__})"


def first_line(fault: Exception) -> str:
    """What another library's exception says, for a message of one line."""
    return next(iter(str(fault).splitlines()), type(fault).__name__)


def text(value: object, what: str, error: type[MemcoreError] = InvalidInput, longest: int = MAX_TEXT_LENGTH) -> str:
    """A text that can be stored and seen, as a plain `str`."""
    if isinstance(value, str):
        if type(value) is not str:
            value = str.__str__(value)
        if _storable(value) and _VISIBLE.search(value) and len(value) <= longest:
            return value
    raise error(_text_fault(value, what, longest))


def _storable(value: str) -> bool:
    if "\0" in value:
        return False
    if value.isascii():
        return True
    try:
        value.encode()  # 0.06 µs for a line of Portuguese, where a search for surrogates takes 0.28 µs
    except UnicodeEncodeError:
        return False
    return True


def _text_fault(value: object, what: str, longest: int = MAX_TEXT_LENGTH) -> str:
    if value is None:
        return f"{what} is None; it must be a text (str) with something visible in it: skip it if there is none"
    if not isinstance(value, str):
        hint = ": decode it first" if isinstance(value, (bytes, bytearray)) else ": pass str(value) if that is meant"
        return f"{what} is {shown(value)}; it must be a text (str){hint}"
    if match := _SURROGATE.search(value):
        return (
            f"{what} holds a lone surrogate (U+{ord(match[0]):04X} at index {match.start()}), which UTF-8 cannot "
            "store; decode the text with errors='replace', or remove it"
        )
    if "\0" in value:
        return (
            f"{what} holds a NUL character at index {value.index(chr(0))}; texts are stored whole or not at all: "
            "remove it"
        )
    if not _VISIBLE.search(value):
        seen = ascii(value[:20])
        return f"{what} is blank ({seen}); it needs at least one visible character: skip it, or say what it means"
    return f"{what} has {len(value)} characters; at most {longest} are allowed: shorten it"


def name(value: object, what: str) -> str:
    """A key, a source, an idempotency key: a text that an index is made of, so not a long one."""
    return text(value, what, longest=MAX_NAME_LENGTH)


def query(value: object) -> str:
    """A question: a text like any other, but it may be blank, since it then is like nothing."""
    if isinstance(value, str) and not _VISIBLE.search(value):
        return ""
    return text(value, "query")


def scope_id(value: object, what: str) -> str:
    """One part of a scope. None is refused, so that a missing variable never means the default scope."""
    if value is None:
        raise ScopeError(
            f"{what} is None; a scope is never guessed: pass a text, or leave the argument out for 'default'"
        )
    return text(value, what, ScopeError, MAX_SCOPE_LENGTH)


def number(value: object, what: str) -> float:
    """A finite number, Python's or NumPy's, as float64."""
    # `Real` alone would do; asking an abstract class takes longer than all the rest.
    if isinstance(value, bool) or not isinstance(value, (float, int, Real)):
        raise InvalidInput(f"{what} is {shown(value)}; it must be a number: convert it, or leave it out")
    got = real(value)
    if not math.isfinite(got):
        raise InvalidInput(f"{what} is {brief(value)}; it must be a finite number: leave it out, or mend it")
    return got


def real(value: Real | float) -> float:
    """A number as float64; infinite where it is beyond that."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def digits(value: float) -> str:
    """All the digits of a number, for a message: 7, 1.0000001."""
    return repr(value).removesuffix(".0")


def unit(value: object, what: str) -> float:
    """A share: a number in [0, 1]."""
    got = number(value, what)
    if not 0.0 <= got <= 1.0:
        raise InvalidInput(f"{what} is {digits(got)}; it must be in [0, 1]: divide a rating of 1 to 10 by 10")
    return got


def least_score(value: object, what: str) -> float:
    """A lower bound of similarities or scores, none of which is above 1, but for rounding: one that is lets none by."""
    got = number(value, what)
    if got > _HIGHEST:
        raise InvalidInput(f"{what} is {digits(got)}; no similarity or score is above 1: divide percent by 100")
    return got


def count(value: object, what: str, least: int = 0) -> int:
    """A whole number such as k or a limit. 0 means none; a bool, a float and a text are refused, not coerced."""
    if isinstance(value, bool) or not isinstance(value, (int, Integral)):
        raise InvalidInput(f"{what} is {shown(value)}; it must be a whole number of at least {least}")
    got = int(value)
    if got < least:
        raise InvalidInput(f"{what} is {brief(got)}; it must be at least {least}")
    return got


def flag(value: object, what: str) -> bool:
    """True or False, Python's or NumPy's; a number is none."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise InvalidInput(f"{what} is {shown(value)}; it must be True or False")


def kind(value: object, what: str = "kind") -> str:
    if isinstance(value, str) and value in KINDS:
        return str.__str__(value)  # of a `str` Enum the value, where str() would give the member's name
    raise InvalidInput(f"{what} is {shown(value)}; the kinds are {', '.join(KINDS)}")


def kinds(value: object) -> tuple[str, ...]:
    """One kind or several, without repeats. An empty selection is refused: it would always answer nothing."""
    if isinstance(value, str):
        return (kind(value),)
    if not isinstance(value, Collection) or isinstance(value, Mapping) or not len(value):
        raise InvalidInput(f"kinds is {shown(value)}; pass one or several of {', '.join(KINDS)}")
    return tuple(dict.fromkeys(kind(item) for item in value))


def tiers(value: object) -> tuple[str, ...]:
    """One tier or both, without repeats."""
    several = (value,) if isinstance(value, str) else value
    if isinstance(several, Collection) and not isinstance(several, Mapping):
        known = [item for item in several if isinstance(item, str) and item in TIERS]
        if known and len(known) == len(several):
            return tuple(dict.fromkeys(known))
    raise InvalidInput(f"tiers is {shown(value)}; pass one or both of {', '.join(TIERS)}")


def record_id(value: object, what: str = "id") -> uuid.UUID:
    """An id of a record: a UUID, or its text with dashes, in either case."""
    if isinstance(value, uuid.UUID):
        return value
    if isinstance(value, str):
        try:
            got = uuid.UUID(value)
        except ValueError:
            pass
        else:
            if str(got) == value.lower():
                return got
    raise InvalidInput(
        f"{what} is {shown(value)}; an id is a UUID such as '01890a5d-ac96-774b-bcce-b302099a8057', as remember "
        "returns it: for a name of your own use key="
    )


def choice(value: object, what: str, allowed: Sequence[str]) -> str:
    """One of a few words."""
    if isinstance(value, str) and value in allowed:
        return str.__str__(value)
    raise InvalidInput(f"{what} is {shown(value)}; allowed: {', '.join(allowed)}")


_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_sorted = json.JSONEncoder(sort_keys=True).encode
_JSON_TYPES = frozenset((str, int, float, bool, type(None), dict, list))


def metadata(value: object, what: str = "metadata") -> str | None:
    """A JSON object as compact JSON text, keys in the caller's order; None and {} are None."""
    if value is None:
        return None
    if not isinstance(value, (dict, Mapping)):
        raise InvalidInput(f"{what} is {shown(value)}; it must be a JSON object (dict with text keys)")
    if not value:
        return None
    written = _json(_plain(value, (what,)))
    if len(written) > MAX_TEXT_LENGTH:
        raise InvalidInput(
            f"{what} has {len(written)} characters as JSON; at most {MAX_TEXT_LENGTH} are allowed: shorten it"
        )
    return written


def same_object(one: str | None, other: str | None) -> bool:
    """Whether two texts of `metadata` say the same, in whatever order of keys. 1, 1.0 and true are not the same."""
    if one is None or other is None or one == other:
        return one == other
    return bool(_sorted(json.loads(one)) == _sorted(json.loads(other)))


def _plain(value: Any, path: tuple[Any, ...]) -> Any:
    """A value in JSON's own types, exact Python ones. `path` leads to it from the outside."""
    if type(value) not in _JSON_TYPES:
        value = _python(value, path)
    form = type(value)
    if form is str:
        if not _storable(value):
            raise InvalidInput(_text_fault(value, _at(path)))
    elif form is float:
        if not math.isfinite(value):
            raise InvalidInput(f"{_at(path)} is {value}; it must be a finite number: leave it out, or pass None")
    elif form is int:
        if not -(1 << 63) <= value < 1 << 64:
            raise InvalidInput(f"{_at(path)} is {brief(value)}; a whole number has at most 64 bits: pass it as a text")
    elif form is list or form is dict:
        if len(path) > MAX_DEPTH:
            raise InvalidInput(f"{path[0]} is nested more than {MAX_DEPTH} levels deep, or holds itself; flatten it")
        if form is list:
            return [_plain(item, (*path, place)) for place, item in enumerate(value)]
        return {_key(key, path): _plain(item, (*path, key)) for key, item in value.items()}
    return value


def _python(value: object, path: tuple[Any, ...]) -> Any:
    """NumPy scalars, subclasses and other mappings as what they stand for."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return real(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return list(value)
    raise InvalidInput(
        f"{_at(path)} is {shown(value)}, which JSON cannot hold; allowed are texts, finite numbers, true, false, null, "
        "lists and objects of them: convert it, for example with .isoformat() or .tolist()"
    )


def _key(key: object, path: tuple[Any, ...]) -> str:
    if not isinstance(key, str):
        raise InvalidInput(f"{_at(path)} has the key {shown(key)}; keys must be texts: pass str(key)")
    plain = str.__str__(key)
    if not _storable(plain):
        raise InvalidInput(_text_fault(plain, f"a key of {_at(path)}"))
    return plain


def _at(path: tuple[Any, ...]) -> str:
    """A place in metadata, for a message: metadata.hosts[3]['a b']."""
    steps = (f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{brief(step)}]" for step in path[1:])
    return f"{path[0]}{''.join(steps)}"[:120]


def vector(
    value: object, *, dim: int | None, what: str = "vector", holder: str = "the store"
) -> npt.NDArray[np.float32]:
    """One vector as float32 `(dim,)`, L2-normalised, or all zero. `holder` is what has the width `dim`."""
    array = _numbers(value, what)
    if array.ndim != 1:
        raise DimensionMismatch(f"{what} has shape {array.shape}; it must be one row of {dim or 'd'} numbers")
    return _normalised(array[None, :], dim, what, holder, single=True).reshape(-1)


def vectors(value: object, *, rows: int | None, dim: int | None, what: str) -> npt.NDArray[np.float32]:
    """Rows of numbers as a new C-ordered float32 `(n, d)` array, each row L2-normalised or all zero.

    The norm is taken in float64, after scaling where squares would over- or underflow. A row whose norm is 1 within
    5e-7 is not divided by it, so that a float32 row that was normalised before is kept to the bit. What becomes of a
    row does not depend on the other rows or on the memory layout. The caller's array is never written to. `[]` is no
    rows, of any width.
    """
    array = _numbers(value, what, by_row=True)
    if array.shape in ((0,), (0, 0)):
        array = array.reshape(0, dim or 1)
    if array.ndim != 2:
        raise DimensionMismatch(f"{what} has shape {array.shape}; it must have two dimensions, (rows, {dim or 'd'})")
    if rows is not None and len(array) != rows:
        raise DimensionMismatch(f"{what} has {len(array)} rows for {rows} texts; it must have one row each")
    return _normalised(array, dim, what, "the store", single=False)


def _normalised(
    array: npt.NDArray[Any], dim: int | None, what: str, holder: str, *, single: bool
) -> npt.NDArray[np.float32]:
    n, d = array.shape
    if d == 0 or (dim is not None and d != dim):
        raise DimensionMismatch(
            f"{what} has {d} dimensions and {holder} has {dim or 'at least 1'}; one store holds one width: pass "
            f"vectors of width {dim or 'd'}, or open another store for this embedder"
        )
    out = np.empty((n, d), dtype=np.float32)
    with np.errstate(all="ignore"):  # whatever the caller has set: numbers too small for float32 become 0 here
        for start in range(0, n, _NORM_BLOCK):
            # In C order, so that the sums run in one order whatever the layout was.
            wide = array[start : start + _NORM_BLOCK].astype(np.float64, order="C")
            norms = np.sqrt(np.vecdot(wide, wide))
            low, high = (norms[0],) * 2 if n == 1 else (norms.min(), norms.max())
            if not (low > _LEAST_NORM and high < np.inf):  # NaN fails both
                fault = _rescale(wide, norms)
                if fault is not None:
                    row, column = fault
                    where = f"at index {column}" if single else f"in row {start + row}"
                    out_of = "the vector" if single else "that row"
                    raise InvalidInput(
                        f"{what} has NaN or infinity {where}; every number must be finite: leave {out_of} out"
                    )
            if n > 1:
                norms[np.abs(norms - 1) <= _UNIT_SLACK] = 1
            elif abs(norms[0] - 1) <= _UNIT_SLACK:
                norms[0] = 1
            np.divide(wide, norms[:, None], out=out[start : start + _NORM_BLOCK], casting="same_kind")
    return out


def _rescale(wide: npt.NDArray[np.float64], norms: npt.NDArray[np.float64]) -> tuple[int, int] | None:
    """Scales rows whose squares leave float64's range, as those of 1e200 do, to a highest number of 1, in place.

    Returns the place of the first number that isn't finite, if there is one. An all-zero row gets the norm 1.
    """
    odd = np.flatnonzero(~((norms > _LEAST_NORM) & (norms < np.inf)))
    rows = wide[odd]
    for row, column in np.argwhere(~np.isfinite(rows)):
        return int(odd[row]), int(column)
    peaks = np.abs(rows).max(axis=1, keepdims=True)
    peaks[peaks == 0] = 1
    rows /= peaks
    wide[odd] = rows
    norms[odd] = np.sqrt(np.vecdot(rows, rows))
    norms[norms == 0] = 1
    return None


def _numbers(value: object, what: str, *, by_row: bool = False) -> npt.NDArray[Any]:
    """The array that NumPy makes of a value, copied only if need be.

    Of a list `by_row`, each row by itself: NumPy would bring all rows to one type first, and so take booleans, bytes
    and masked numbers among others for numbers.
    """
    if isinstance(value, (bytes, bytearray)) or (isinstance(value, memoryview) and value.format in ("b", "B", "c")):
        raise InvalidInput(_BYTES.format(what=what, got=shown(value)))
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InvalidInput(f"{what} has masked numbers; every number must be there: fill them, or leave that row out")
    read: Any = value
    if type(value).__module__ == "pyarrow.lib":
        read = _from_arrow(value, what)
    elif by_row and isinstance(value, (list, tuple)):
        read = [row if type(row) is np.ndarray and row.dtype.kind in _REAL else _numbers(row, what) for row in value]
    try:
        array = np.asarray(read)
    except Exception as fault:  # ragged lists raise ValueError, foreign array types whatever they like
        raise InvalidInput(
            f"{what} is {shown(value)}, which is not an array of numbers ({first_line(fault)}); pass a NumPy array"
        ) from fault
    if array.dtype.kind in _REAL:
        return array
    for item in array.flat if array.dtype.kind == "O" else ():
        if not isinstance(item, Real):
            verb = "holds" if array.ndim else "is"
            raise InvalidInput(
                f"{what} {verb} {shown(item)}; it must hold real numbers (float or integer): leave out what has none"
            )
    raise InvalidInput(
        f"{what} has dtype {array.dtype}; it must hold real numbers (float or integer): convert it with "
        "np.asarray(rows, dtype=np.float32)"
    )


_BYTES = "{what} is {got}, bytes that may be numbers of any width; pass np.frombuffer(value, dtype=np.float32)"


def _from_arrow(value: Any, what: str) -> Any:
    """What Arrow holds as what NumPy reads. Null is refused here, since NumPy would read NaN."""
    import pyarrow as pa  # here, since embedders by themselves load NumPy and nothing heavier

    if isinstance(value, pa.Buffer):
        raise InvalidInput(_BYTES.format(what=what, got=shown(value)))
    if isinstance(value, pa.ChunkedArray):
        value = value.chunk(0) if value.num_chunks == 1 else value.combine_chunks()
    if isinstance(value, pa.ExtensionScalar):  # a row of tensors, and below all of them
        value = value.value
    if isinstance(value, pa.ListScalar):
        value = value.values
    if isinstance(value, pa.ExtensionArray):
        value = value.storage
    if not isinstance(value, pa.Array):
        return value
    if value.null_count:
        place = value.is_null().index(True).as_py()
        raise InvalidInput(f"{what} has null at index {place}; every number must be there: leave that row out")
    if isinstance(value, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        if not pa.types.is_primitive(value.type.value_type):
            return value.to_pylist()
        rows = arrow_rows(value)
        if rows is None:
            raise InvalidInput(
                f"{what} has rows of several lengths, or nulls in them; every row must have the same number of "
                "numbers: leave the others out"
            )
        return rows
    return value.to_numpy(zero_copy_only=False)


def arrow_rows(lists: Any) -> npt.NDArray[Any] | None:
    """An Arrow list array without null rows as `(n, d)`, copied only if need be.

    None if a number is null, the rows differ in length or hold no plain values.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    flat = lists.flatten()
    lengths = pc.min_max(lists.value_lengths()).as_py()
    if flat.null_count or lengths["min"] != lengths["max"] or not pa.types.is_primitive(flat.type):
        return None
    rows: npt.NDArray[Any] = flat.to_numpy(zero_copy_only=False).reshape(len(lists), lengths["max"] or 0)
    return rows

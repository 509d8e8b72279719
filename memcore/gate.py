"""Is this value from outside acceptable, and what is it in memcore's own form? The one gate; inside, nothing checks again.

The rules, one a function:
- text: a str that UTF-8 can encode (no lone surrogates), without NUL, with something visible in it. Stored as given:
  never stripped, cut or normalised.
- ids of a scope: the same, at most 512 characters, compared code point by code point: two Unicode forms of one word
  are two scopes, so that a scope can never see another one's rows.
- numbers: Python's or NumPy's, finite; never a bool, never a text.
- vectors: anything NumPy reads as numbers, integers included, in any memory layout; brought to C-ordered float32 and
  L2-normalised in a copy. All-zero is allowed (similarity 0 to everything); NaN and infinity are not.
- metadata: a JSON object; NumPy scalars become Python's; NaN, other types and keys that aren't text are refused.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from memcore.errors import DimensionMismatch, InvalidInput, MemcoreError, ScopeError

KINDS = ("working", "episodic", "semantic", "procedural")
MAX_SCOPE_LENGTH = 512
_SURROGATE = re.compile("[\ud800-\udfff]")
# Visible: anything but white space, control and zero-width characters, and the byte order mark.
_VISIBLE = re.compile("[^\\s\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")
_NORM_BLOCK = 2048  # rows normalised at once in float64: 4 MB at d = 256, stays in the caches
_UNIT_SLACK = 1e-6  # a float32 row that was normalised before is kept to the bit, so that a round trip loses nothing


def shown(value: object) -> str:
    """A value for an error message: its repr, cut, with its type, safe to print whatever it holds."""
    try:
        text = repr(value)
    except Exception:  # a broken __repr__ must not hide the error being told
        text = "<unprintable>"
    text = text if len(text) <= 60 else text[:57] + "…"
    return f"{text} ({type(value).__name__})"


def text(value: object, what: str, error: type[MemcoreError] = InvalidInput) -> str:
    if isinstance(value, str):
        if type(value) is not str:
            value = str.__str__(value)
        if value.isascii():
            if value and "\0" not in value and not value.isspace() and _VISIBLE.search(value):
                return value
        elif "\0" not in value and _VISIBLE.search(value) and not _SURROGATE.search(value):
            return value
    raise error(_text_fault(value, what))


def _text_fault(value: object, what: str) -> str:
    if not isinstance(value, str):
        hint = ": decode it first" if isinstance(value, (bytes, bytearray)) else ": pass str(value) if that is meant"
        return f"{what} is {shown(value)}; it must be a text (str){hint}"
    if match := _SURROGATE.search(value):
        return (
            f"{what} holds a lone surrogate (U+{ord(match[0]):04X} at index {match.start()}), which UTF-8 cannot store; "
            "decode the text with errors='replace', or remove it"
        )
    if "\0" in value:
        return f"{what} holds a NUL character at index {value.index(chr(0))}; texts are stored whole or not at all: remove it"
    return f"{what} is blank ({value[:20]!r}); it needs at least one visible character: skip it, or say what it means"


def query(value: object) -> str:
    """A question: a text like any other, but it may be blank, since it then is like nothing."""
    if isinstance(value, str) and (not value or not _VISIBLE.search(value)):
        return ""
    return text(value, "query")


def optional_text(value: object, what: str) -> str | None:
    return None if value is None else text(value, what)


def scope_id(value: object, what: str) -> str:
    if value is None:
        raise ScopeError(
            f"{what} is None; a scope is never guessed: pass a text, or leave the argument out for 'default'"
        )
    got = text(value, what, ScopeError)
    if len(got) > MAX_SCOPE_LENGTH:
        raise ScopeError(f"{what} has {len(got)} characters; at most {MAX_SCOPE_LENGTH} are allowed: use a shorter id")
    return got


def number(value: object, what: str) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise InvalidInput(f"{what} is {shown(value)}; it must be a number")
    got = float(value)
    if not math.isfinite(got):
        raise InvalidInput(f"{what} is {got}; it must be a finite number")
    return got


def unit(value: object, what: str) -> float:
    got = number(value, what)
    if not 0.0 <= got <= 1.0:
        raise InvalidInput(f"{what} is {got:g}; it must be in [0, 1]: divide a rating of 1 to 10 by 10")
    return got


def count(value: object, what: str, least: int = 0) -> int:
    """A whole number such as k or a limit. 0 means none; a bool, a float and a text are refused, not coerced."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
        raise InvalidInput(f"{what} is {shown(value)}; it must be a whole number of at least {least}")
    got = int(value)
    if got < least:
        raise InvalidInput(f"{what} is {got}; it must be at least {least}")
    return got


def flag(value: object, what: str) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise InvalidInput(f"{what} is {shown(value)}; it must be True or False")


def kind(value: object) -> str:
    if isinstance(value, str) and value in KINDS:
        return str(value)
    raise InvalidInput(f"kind is {shown(value)}; the kinds are {', '.join(KINDS)}")


def kinds(value: object) -> tuple[str, ...]:
    """One kind or several, without repeats. An empty selection is refused: it would always answer nothing."""
    if isinstance(value, str):
        return (kind(value),)
    if not isinstance(value, Sequence) or not value:
        raise InvalidInput(f"kinds is {shown(value)}; pass one or several of {', '.join(KINDS)}")
    return tuple(dict.fromkeys(kind(item) for item in value))


def record_id(value: object, what: str = "id") -> uuid.UUID:
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
        f"{what} is {shown(value)}; an id is a UUID such as '01890a5d-ac96-774b-bcce-b302099a8057', as remember returns "
        "it: for a name of your own use key="
    )


def choice(value: object, what: str, allowed: Sequence[str]) -> str:
    if isinstance(value, str) and value in allowed:
        return str(value)
    raise InvalidInput(f"{what} is {shown(value)}; allowed: {', '.join(allowed)}")


def metadata(value: object, what: str = "metadata") -> str | None:
    """A JSON object as compact JSON text, keys in the caller's order; None and {} are None."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{what} is {shown(value)}; it must be a JSON object (dict with text keys)")
    if not value:
        return None
    try:
        plain = _plain(value, what)
    except RecursionError:
        raise InvalidInput(f"{what} is nested too deeply or refers to itself; flatten it") from None
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _plain(value: object, what: str) -> Any:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        plain = str.__str__(value)
        if _SURROGATE.search(plain) or "\0" in plain:
            raise InvalidInput(_text_fault(plain, what))
        return plain
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return number(value, what)
    if isinstance(value, Mapping):
        plain_object = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidInput(f"{what} has the key {shown(key)}; keys must be texts: pass str(key)")
            plain_object[_plain(key, f"a key of {what}")] = _plain(item, f"{what}.{key}"[:120])
        return plain_object
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{what}[{i}]"[:120]) for i, item in enumerate(value)]
    raise InvalidInput(
        f"{what} is {shown(value)}, which JSON cannot hold; allowed are texts, finite numbers, true, false, null, lists "
        "and objects of them: convert it, for example with .isoformat() or .tolist()"
    )


def vector(value: object, *, dim: int | None, what: str = "vector") -> npt.NDArray[np.float32]:
    """One vector as float32 `(dim,)`, L2-normalised, or all zero."""
    array = _numbers(value, what)
    if array.ndim != 1:
        raise DimensionMismatch(f"{what} has shape {array.shape}; it must be one row of {dim or 'd'} numbers")
    return vectors(array[None, :], rows=1, dim=dim, what=what)[0]


def vectors(value: object, *, rows: int | None, dim: int | None, what: str) -> npt.NDArray[np.float32]:
    """Rows of numbers as a new C-ordered float32 `(n, d)` array, each row L2-normalised or all zero.

    The norm is taken in float64, after scaling where squares would over- or underflow. A float32 row whose norm is
    already 1 within 1e-6 is kept to the bit. The caller's array is never written to.
    """
    array = _numbers(value, what)
    if array.ndim != 2:
        raise DimensionMismatch(f"{what} has shape {array.shape}; it must have two dimensions, (rows, {dim or 'd'})")
    n, d = array.shape
    if rows is not None and n != rows:
        raise DimensionMismatch(f"{what} has {n} rows for {rows} texts; it must have one row each")
    if d == 0 or (dim is not None and d != dim):
        raise DimensionMismatch(
            f"{what} has {d} dimensions and the store has {dim or 'at least 1'}; one store holds one width: pass vectors of "
            f"width {dim or 'd'}, or open another store for this embedder"
        )
    out = np.empty((n, d), dtype=np.float32)
    keep_unit = array.dtype == np.float32
    for start in range(0, n, _NORM_BLOCK):
        block = array[start : start + _NORM_BLOCK]
        wide = block.astype(np.float64)
        norms = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        if not np.isfinite(norms).all() or not (norms > 1e-100).all():
            finite = np.isfinite(wide).all(axis=1)
            if not finite.all():
                bad = start + int(np.flatnonzero(~finite)[0])
                raise InvalidInput(
                    f"{what} has NaN or infinity in row {bad}; every number must be finite: leave that row out"
                )
            peak = np.abs(wide).max(axis=1, keepdims=True)
            wide /= np.where(peak == 0, 1, peak)  # squares of 1e-200 or 1e200 leave float64's range
            norms = np.sqrt(np.einsum("ij,ij->i", wide, wide))
            norms[norms == 0] = 1
        if keep_unit:
            norms[np.abs(norms - 1) <= _UNIT_SLACK] = 1
        np.divide(wide, norms[:, None], out=out[start : start + _NORM_BLOCK], casting="same_kind")
    return out


def _numbers(value: object, what: str) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
    except Exception as fault:  # ragged lists raise ValueError, foreign array types whatever they like
        raise InvalidInput(f"{what} is {shown(value)}, which is not an array of numbers ({fault}); pass a NumPy array") from fault
    if array.dtype.kind not in "fiu":
        raise InvalidInput(
            f"{what} has dtype {array.dtype}; it must hold real numbers (float or integer): convert it with "
            "np.asarray(rows, dtype=np.float32)"
        )
    return array

"""Metadata is a JSON object: kept as it was given, NumPy's scalars as Python's, or refused with the place named."""

from __future__ import annotations

import enum
import json
import math
from collections import ChainMap, OrderedDict
from datetime import UTC, datetime
from decimal import Decimal
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore

CANNOT = (
    "which JSON cannot hold; allowed are texts, finite numbers, true, false, null, lists and objects of them: convert "
    "it, for example with .isoformat() or .tolist()"
)
OBJECT = "it must be a JSON object (dict with text keys)"
FINITE = "it must be a finite number: leave it out, or pass None"
DEEP = "metadata is nested more than 100 levels deep, or holds itself; flatten it"
NUL = "{} holds a NUL character at index 1; texts are stored whole or not at all: remove it"
SURROGATE = (
    "{} holds a lone surrogate (U+D800 at index 0), which UTF-8 cannot store; decode the text with errors='replace', "
    "or remove it"
)
BITS = "a whole number has at most 64 bits: pass it as a text"


def nested(levels: int) -> dict:
    value: dict = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


CIRCLE: dict = {}
CIRCLE["self"] = [CIRCLE]


class Odd:
    def __repr__(self) -> str:
        return "odd \ud800"


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{}", f"metadata is '{{}}' (str); {OBJECT}"),
        ([1], f"metadata is [1] (list); {OBJECT}"),
        (5, f"metadata is 5 (int); {OBJECT}"),
        ({"hosts": {1}}, f"metadata.hosts is {{1}} (set), {CANNOT}"),
        (
            {"at": datetime(2026, 1, 2, tzinfo=UTC)},
            f"metadata.at is datetime.datetime(2026, 1, 2, 0, 0, tzinfo=datetime.timez… (datetime), {CANNOT}",
        ),
        ({"a": b"x"}, f"metadata.a is b'x' (bytes), {CANNOT}"),
        ({"a": 1j}, f"metadata.a is 1j (complex), {CANNOT}"),
        ({"a": Decimal(1)}, f"metadata.a is Decimal('1') (Decimal), {CANNOT}"),
        ({"a": np.arange(2)}, f"metadata.a is array([0, 1]) (ndarray), {CANNOT}"),
        ({"a": object}, f"metadata.a is <class 'object'> (type), {CANNOT}"),
        ({"a": Odd()}, f"metadata.a is odd \\ud800 (Odd), {CANNOT}"),
        ({"a": Broken()}, f"metadata.a is <unprintable> (Broken), {CANNOT}"),
        ({"a": math.nan}, f"metadata.a is nan; {FINITE}"),
        ({"a": {"b": [1, -math.inf]}}, f"metadata.a.b[1] is -inf; {FINITE}"),
        ({"a": np.float32("nan")}, f"metadata.a is nan; {FINITE}"),
        ({1: 2}, "metadata has the key 1 (int); keys must be texts: pass str(key)"),
        ({None: 2}, "metadata has the key None (NoneType); keys must be texts: pass str(key)"),
        ({"a": {("b",): 2}}, "metadata.a has the key ('b',) (tuple); keys must be texts: pass str(key)"),
        ({"a": 1 << 64}, f"metadata.a is 18446744073709551616; {BITS}"),
        ({"a": -(1 << 63) - 1}, f"metadata.a is -9223372036854775809; {BITS}"),
        ({"a": 10**5000}, f"metadata.a is <unprintable>; {BITS}"),
        (nested(101), DEEP),
        (CIRCLE, DEEP),
        ({"two words": {"k\n": [0, "a\0"]}}, NUL.format(r"metadata['two words']['k\n'][1]")),
        ({"a\0": 1}, NUL.format("a key of metadata")),
        ({"a": {"\ud800": math.nan}}, SURROGATE.format("a key of metadata.a")),  # the key before what is under it
        ({"a": "\ud800"}, SURROGATE.format("metadata.a")),
    ],
    ids=range(27),
)
def test_what_json_cannot_hold_is_refused(refused, value, message):
    refused(lambda ops: ops.remember("x", metadata=value), message)
    refused(lambda ops: ops.update(ops.list()[0].id, metadata=value), message)


def test_a_hundred_levels_are_kept(ops):
    assert ops.get(ops.remember("x", metadata=nested(100)).id).metadata == nested(100)


class Color(str, enum.Enum):  # noqa: UP042 - whose str() is the member's name
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


def test_numpy_scalars_and_kin_become_python_s(ops):
    given = {
        "f32": np.float32(0.5), "f64": np.float64(0.1), "int": np.int64(-3), "u64": np.uint64(2**64 - 1),
        "bool": np.True_, "text": np.str_("a"), "enum": Color.RED, "level": Level.HIGH, "tuple": (1, (2, None)),
        "ordered": OrderedDict(b=1, a=2), "proxy": MappingProxyType({"x": 1}), "chain": ChainMap({"y": True}),
        "least": -(2**63), "none": None, "": "an empty key", "tiny": 5e-324, "minus": -0.0,
    }  # fmt: skip
    expected = {
        "f32": 0.5, "f64": 0.1, "int": -3, "u64": 2**64 - 1, "bool": True, "text": "a", "enum": "red", "level": 3,
        "tuple": [1, [2, None]], "ordered": {"b": 1, "a": 2}, "proxy": {"x": 1}, "chain": {"y": True},
        "least": -(2**63), "none": None, "": "an empty key", "tiny": 5e-324, "minus": 0.0,
    }  # fmt: skip
    for record in (ops.remember("x", metadata=given), ops.list()[-1]):
        assert record.metadata == expected
        assert list(record.metadata) == list(expected)  # in the caller's order
        assert list(record.metadata["ordered"]) == ["b", "a"]
        assert type(record.metadata["enum"]) is str
    assert ops.get(ops.remember("y", metadata={}).id).metadata == ops.remember("z").metadata == {}


def test_the_caller_s_object_is_copied(ops):
    given = {"tags": ["a"]}
    record = ops.remember("x", metadata=given)
    given["tags"].append("b")
    assert ops.get(record.id).metadata == {"tags": ["a"]}
    assert given == {"tags": ["a", "b"]}


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)
@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_any_json_object_comes_back(value):
    mem = memcore.open(embedder=None, clock=lambda: 1e9)
    record = mem.remember("x", metadata=value)
    assert record.metadata == value
    stored = mem.list().to_arrow().column("metadata")[0].as_py()
    assert json.loads(stored or "{}") == value

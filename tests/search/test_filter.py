"""where: pyarrow expressions and dicts over every column and over metadata, against a slow filter in plain Python."""

from __future__ import annotations

import operator
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import and_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore.search import filter as filters
from memcore.store import segment

T = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
METADATA = ("host", "n", "mixed", "nested")


@pytest.fixture(autouse=True)
def tiny_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "ROWS", 8)


@pytest.fixture
def mem() -> memcore.Memory:
    return memcore.open(embedder=None, clock=lambda: T)


def stored(mem: memcore.Memory, *values: Any, key: str = "x") -> None:
    """A row for each value of a metadata key, with the value's repr as its content; Ellipsis: the row lacks the key."""
    mem.remember_many(
        [{"content": repr(v), "metadata": {"other": 1} if v is ... else {key: v}, "vector": [1.0, 0.0]} for v in values]
    )


def matched(mem: memcore.Memory, where: Any) -> list[str]:
    return [record.content for record in mem.list(where=where)]


# The oracle


class Condition:
    """An expression, and what it says of a row: True, False or None (null)."""

    def __init__(
        self, expression: pc.Expression, says: Callable[[Any, dict[str, str]], bool | None], classes: Any
    ) -> None:
        self.expression = expression
        self.says = says
        self.classes: dict[str, set[str]] = classes  # metadata key -> the classes of value it is compared with

    def lets_through(self, record: Any) -> bool:
        return self.says(record, {key: next(iter(c)) for key, c in self.classes.items() if c}) is True


def class_of(value: Any) -> str | None:
    if isinstance(value, bool):
        return "flag"
    if isinstance(value, (int, float)):
        return "number"
    return "text" if isinstance(value, str) else None


def value_of(record: Any, name: str, classes: dict[str, str]) -> Any:
    if not name.startswith("metadata."):
        return getattr(record, name)
    value = record.metadata.get(name[9:])
    got = class_of(value)
    return value if got is not None and classes.get(name, got) == got else None


OPERATORS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
LITERALS: dict[str, list[Any]] = {
    "kind": ["episodic", "semantic", "none such"],
    "session_id": ["s1", "s2"],
    "agent_role": ["r"],
    "tenant_id": ["t", "u"],
    "key": ["k1", "k2"],
    "content": ["aaa", "abc", "ä"],
    "source": ["observation", "told_by_user"],
    "idempotency_key": ["i3"],
    "level": [0, 1, 1.5],
    "version": [1, 2],
    "access_count": [0, 1],
    "importance": [0.9, 0.1, 0.3, 1],
    "confidence": [0.7, 1.0],
    "event_time": [T, T + timedelta(microseconds=1), T - timedelta(days=30)],
    "ingested_at": [T],
    "expires_at": [T + timedelta(days=1)],
    "untrusted": [True, False],
}
SCALARS = {"text": ["web01", "web02", "42", ""], "number": [1, 2, 2.5, -1, 0], "flag": [True, False]}


@st.composite
def leaves(draw: st.DrawFn) -> Condition:
    if draw(st.booleans()):
        name = draw(st.sampled_from(sorted(LITERALS)))
        literals, kind = LITERALS[name], "column"
    else:
        name = "metadata." + draw(st.sampled_from(METADATA))
        kind = draw(st.sampled_from(sorted(SCALARS)))
        literals = SCALARS[kind]
    field = pc.field(name)
    classes = {name: {kind}} if name.startswith("metadata.") else {}
    form = draw(st.sampled_from(("compare", "compare", "isin", "null", "valid", "text")))
    ordered = class_of(literals[0]) != "flag"  # Arrow does not order booleans
    if form == "null" or form == "valid":
        empty = {name: set()} if classes else {}
        if form == "null":
            return Condition(field.is_null(), lambda r, c: value_of(r, name, c) is None, empty)
        return Condition(field.is_valid(), lambda r, c: value_of(r, name, c) is not None, empty)
    if form == "text" and isinstance(literals[0], str):
        part = draw(st.sampled_from(("web", "a", "0")))
        return Condition(
            pc.starts_with(field, part),
            lambda r, c: None if value_of(r, name, c) is None else value_of(r, name, c).startswith(part),
            classes,
        )
    if form == "isin":
        chosen = draw(st.lists(st.sampled_from(literals), min_size=1, unique=True))
        return Condition(field.isin(chosen), lambda r, c: value_of(r, name, c) in chosen, classes)
    literal = draw(st.sampled_from(literals))
    symbol = draw(st.sampled_from(sorted(OPERATORS) if ordered else ["==", "!="]))
    compare = OPERATORS[symbol]
    return Condition(
        compare(field, literal),
        lambda r, c: None if value_of(r, name, c) is None else compare(value_of(r, name, c), literal),
        classes,
    )


def merged(a: Condition, b: Condition) -> dict[str, set[str]]:
    return {key: a.classes.get(key, set()) | b.classes.get(key, set()) for key in {*a.classes, *b.classes}}


def both(a: Condition, b: Condition) -> Condition:
    def says(r: Any, c: Any) -> bool | None:
        told = a.says(r, c), b.says(r, c)
        return False if False in told else None if None in told else True

    return Condition(a.expression & b.expression, says, merged(a, b))


def either(a: Condition, b: Condition) -> Condition:
    def says(r: Any, c: Any) -> bool | None:
        told = a.says(r, c), b.says(r, c)
        return True if True in told else None if None in told else False

    return Condition(a.expression | b.expression, says, merged(a, b))


def inverted(a: Condition) -> Condition:
    def says(r: Any, c: Any) -> bool | None:
        told = a.says(r, c)
        return None if told is None else not told

    return Condition(~a.expression, says, a.classes)


conditions = st.recursive(
    leaves(),
    lambda inner: st.builds(both, inner, inner) | st.builds(either, inner, inner) | st.builds(inverted, inner),
    max_leaves=4,
)
scalars = st.sampled_from([v for values in SCALARS.values() for v in values])
metadata = st.fixed_dictionaries(
    {},
    optional={
        "host": st.sampled_from(SCALARS["text"]),
        "n": st.sampled_from(SCALARS["number"]),
        "mixed": scalars | st.none() | st.just([1]) | st.just({"a": 1}),
        "nested": st.sampled_from(([], {}, [1, 2], None, "web01")),
    },
)
rows = st.fixed_dictionaries(
    {"content": st.sampled_from(LITERALS["content"]), "metadata": metadata},
    optional={
        name: st.sampled_from(values)
        for name, values in {
            "kind": ["episodic", "semantic"],
            "session_id": ["s1", "s2"],
            "agent_role": ["r"],
            "key": ["k1", "k2"],
            "source": ["told_by_user"],
            "level": [1, 2],
            "importance": [0.9, 0.1, 0.3],
            "confidence": [0.7],
            "event_time": [T + timedelta(microseconds=1), T - timedelta(days=30)],
            "expires_at": [T + timedelta(days=1), T + timedelta(days=2)],
            "untrusted": [True],
        }.items()
    },
)


@given(
    written=st.lists(rows, max_size=20),
    asked=st.lists(conditions, min_size=1, max_size=4),
    k=st.sampled_from((1, 3, 50)),
)
@settings(max_examples=150, deadline=None)
def test_a_filter_lets_through_what_the_slow_one_does(written, asked, k):
    mem = memcore.open(embedder=None, clock=lambda: T)
    ops = mem.scope("t", "p")
    if written:
        ops.remember_many([{**row, "idempotency_key": f"i{i}"} for i, row in enumerate(written)])
        ops.recall(k=3)
    for condition in asked:
        every = list(ops.list())
        if any(len(classes) > 1 for classes in condition.classes.values()):
            with pytest.raises(memcore.InvalidInput, match="cannot be evaluated"):
                ops.list(where=condition.expression)
            continue
        expected = [record.id for record in every if condition.lets_through(record)]
        assert [record.id for record in ops.list(where=condition.expression)] == expected
        assert ops.forget(where=condition.expression, dry_run=True).ids == expected
        hits = ops.recall(k=k, where=condition.expression, as_of=T)
        assert len(hits) == min(k, len(expected))
        assert set(hits.ids) <= set(expected)


@given(st.lists(scalars | st.none() | st.just([1]), max_size=20), scalars | st.none())
@settings(max_examples=150, deadline=None)
def test_a_dict_matches_by_value_and_type(values, wanted):
    mem = memcore.open(embedder=None, clock=lambda: T)
    if values:
        stored(mem, *values)
    same = [repr(v) for v in values if (class_of(v), v if class_of(v) else None) == (class_of(wanted), wanted)]
    assert matched(mem, {"metadata.x": wanted}) == same


# Metadata


def test_a_key_that_a_row_lacks_is_null(mem):
    stored(mem, 1, 2, ..., None, [1], {"a": 1})
    absent = ["Ellipsis", "None", "[1]", "{'a': 1}"]
    x = pc.field("metadata.x")
    assert matched(mem, {"metadata.x": None}) == matched(mem, x.is_null()) == absent
    assert matched(mem, x.is_valid()) == ["1", "2"]
    assert matched(mem, x != 1) == ["2"]
    assert matched(mem, ~(x == 1)) == ["2"]
    assert matched(mem, (x == 1) | x.is_null()) == ["1", *absent]
    assert matched(mem, pc.field("metadata.never") == "x") == []
    assert len(matched(mem, pc.field("metadata.never").is_null())) == 6


def test_a_row_is_compared_by_the_type_its_value_has(mem):
    values = ("1", 1, 1.0, True, "a", 2, 2.5, False)
    stored(mem, *values)
    x = pc.field("metadata.x")
    assert matched(mem, x == 1) == matched(mem, {"metadata.x": 1}) == matched(mem, {"metadata.x": 1.0}) == ["1", "1.0"]
    assert matched(mem, {"metadata.x": True}) == matched(mem, x == pa.scalar(True)) == ["True"]
    assert matched(mem, x == "1") == matched(mem, {"metadata.x": "1"}) == ["'1'"]
    assert matched(mem, x > 1) == ["2", "2.5"]
    assert matched(mem, x.isin(["1"])) == ["'1'"]  # which Arrow alone would make a number for a column of numbers
    assert matched(mem, x.isin([1, 2])) == ["1", "1.0", "2"]
    assert matched(mem, x.isin([True])) == ["True"]
    assert matched(mem, x.is_null()) == []
    assert len(matched(mem, x.is_valid())) == 8
    # a value that the expression cannot compare counts as null in it
    assert matched(mem, ~(x == "1")) == ["'a'"]
    assert matched(mem, (x == "1") | x.is_null()) == [repr(v) for v in values if v not in ("a",)]


@pytest.mark.parametrize("where", [lambda x: (x == 1) | (x == "a"), lambda x: (x > 1) & pc.starts_with(x, "a")])
def test_a_key_compared_as_two_types_is_an_error(mem, where):
    with pytest.raises(memcore.InvalidInput, match="cannot be evaluated"):
        mem.list(where=where(pc.field("metadata.x")))


def test_two_keys_are_compared_row_by_row(mem):
    pairs = [(1, 2), (2, 1), ("a", "b"), (1, "b"), (1.5, 1), (None, 1), (True, False)]
    mem.remember_many([{"content": repr(p), "metadata": {"x": p[0], "y": p[1]}} for p in pairs])
    x, y = pc.field("metadata.x"), pc.field("metadata.y")
    assert matched(mem, x > y) == ["(2, 1)", "(1.5, 1)", "(True, False)"]
    assert matched(mem, x == y) == []
    assert matched(mem, (x != y) & (pc.field("importance") == 0.5)) == [
        "(1, 2)", "(2, 1)", "('a', 'b')", "(1.5, 1)", "(True, False)",
    ]  # fmt: skip


def test_whole_numbers_are_exact(mem):
    big = 2**53
    stored(mem, big, big + 1, float(big), -(2**63), 2**63 - 1, 2**63, 2**64 - 1)
    x = pc.field("metadata.x")
    assert matched(mem, {"metadata.x": big + 1}) == [repr(big + 1)]
    assert matched(mem, {"metadata.x": big}) == [repr(big), repr(float(big))]
    assert matched(mem, x == big + 1) == [repr(big + 1)]
    assert matched(mem, x > big) == [repr(big + 1), repr(2**63 - 1), repr(2**63), repr(2**64 - 1)]
    assert matched(mem, x < 0) == [repr(-(2**63))]
    assert matched(mem, {"metadata.x": 2**63}) == [repr(2**63 - 1), repr(2**63)]  # as floats
    assert matched(mem, x >= float(2**63)) == [repr(2**63 - 1), repr(2**63), repr(2**64 - 1)]


def test_whole_numbers_are_compared_with_fractions(mem):
    """Which Arrow alone does in float32, and refuses where a number is above 2^24."""
    stored(mem, 2**24, 2**24 + 1, 2**53, -(2**40), 3)
    x = pc.field("metadata.x")
    assert matched(mem, x > 0.5) == [repr(2**24), repr(2**24 + 1), repr(2**53), "3"]
    assert matched(mem, (x >= 2.0**24) & (x < 1e9)) == [repr(2**24), repr(2**24 + 1)]
    assert matched(mem, {"metadata.x": float(2**24 + 1)}) == [repr(2**24 + 1)]
    assert len(matched(mem, pc.field("seq") > 0.5)) == len(matched(mem, x < 1e30)) == 5


@pytest.mark.parametrize(
    "key", ["a b", "a.b", "", "é", "a'b", '"', "metadata.x", ")", "is_in(x", "x, {value_set=bool:"]
)
def test_any_key_can_be_filtered(mem, key):
    stored(mem, 1, "1", ..., key=key)
    assert matched(mem, {f"metadata.{key}": 1}) == ["1"]
    assert matched(mem, pc.field(f"metadata.{key}").isin(["1"])) == ["'1'"]
    assert matched(mem, pc.field(f"metadata.{key}").is_null()) == ["Ellipsis"]


def test_texts_can_be_searched(mem):
    stored(mem, "web01", "WEB02", "db\u00e9", 3)
    x = pc.field("metadata.x")
    assert matched(mem, pc.starts_with(x, "web")) == ["'web01'"]
    assert matched(mem, pc.match_substring(x, "web", ignore_case=True)) == ["'web01'", "'WEB02'"]
    assert matched(mem, pc.match_substring_regex(x, r"\d$")) == ["'web01'", "'WEB02'"]
    assert matched(mem, pc.utf8_lower(x) == "web02") == ["'WEB02'"]
    assert matched(mem, pc.utf8_length(x) == 3) == ["'dbé'"]
    assert matched(mem, pc.field("content").isin(["'web01'", "3"])) == ["'web01'", "3"]


def test_a_flag_can_stand_alone(mem):
    stored(mem, True, False, "true", 1)
    mem.remember("untrusted", untrusted=True)
    assert matched(mem, pc.field("metadata.x")) == ["True"]
    assert matched(mem, ~pc.field("metadata.x")) == ["False"]
    assert matched(mem, pc.field("untrusted")) == ["untrusted"]


def test_arithmetic(mem):
    stored(mem, 1, 2, 2.5, "a")
    assert matched(mem, pc.field("metadata.x") * 2 >= 4) == ["2", "2.5"]
    with pytest.raises(memcore.InvalidInput, match="divide by zero"):
        mem.list(where=pc.field("metadata.x") / pc.scalar(0) > 1)


# Columns


def test_every_column_can_be_filtered(mem):
    ops = mem.scope("t", "p", "s", "r")
    first = ops.remember(
        "x", kind="semantic", key="k", importance=0.9, event_time=5, expires_at=T + timedelta(days=1),
        source="told_by_user",
        confidence=0.7, untrusted=True, level=3, idempotency_key="i", metadata={"host": "web01"},
    )  # fmt: skip
    ops.get(first.id)
    record = ops.update(first.id, metadata={"host": "web01", "n": 1})
    ops.remember("another")
    for name in filters.FILTERED:
        value = getattr(ops.get(first.id, as_of=T), name)
        if name in ("superseded_at", "idempotency_key"):
            assert value is None
            assert len(ops.list(where=pc.field(name).is_null())) == 2
            continue
        for where in ({name: value}, pc.field(name) == value):
            assert record.id in [r.id for r in ops.list(where=where)], name
        same = name in ("tenant_id", "project_id", "session_id", "agent_role", "ingested_at")
        assert len(ops.list(where={name: value})) == 1 + same, name
    assert len(ops.list(where=dict.fromkeys(("superseded_at", "idempotency_key")))) == 2


@pytest.mark.parametrize("name", ["importance", "confidence"])
def test_decimals_compare_as_they_were_given(mem, name):
    values = (0.9, 0.1, 0.3, 1 / 3, 0.7, 1.0, 0.0)
    for value in values:
        mem.remember(repr(value), **{name: value})
    for value in values:
        given = float(np.float32(value)) if value == 1 / 3 else value
        rounded = round(given, 7)
        assert repr(value) in matched(mem, pc.field(name) >= rounded)
        assert repr(value) in matched(mem, pc.field(name) <= rounded)
        assert matched(mem, {name: rounded})[:1] == [repr(value)]
    assert matched(mem, pc.field("importance") > 0.9)[:1] != ["0.9"]


def test_times_compare_to_the_microsecond(mem):
    for micros in range(3):
        mem.remember(str(micros), event_time=T + timedelta(microseconds=micros))
    later = T + timedelta(microseconds=1)
    assert matched(mem, pc.field("event_time") > later) == ["2"]
    assert matched(mem, {"event_time": later}) == ["1"]
    assert matched(mem, {"event_time": T.timestamp()}) == ["0"]
    assert matched(mem, pc.field("event_time").isin([T, later])) == ["0", "1"]
    tokyo = datetime.fromisoformat("2026-03-01T18:30:00+09:00")
    assert matched(mem, pc.field("event_time") == pa.scalar(tokyo)) == ["0"]


def test_counters_are_those_of_the_moment(mem):
    record = mem.remember("x")
    assert matched(mem, pc.field("access_count") > 0) == []
    mem.get(record.id)
    assert matched(mem, pc.field("access_count") > 0) == ["x"]
    assert matched(mem, {"last_access": T}) == ["x"]


def test_a_filter_narrows_what_a_scope_and_kinds_let_through(mem):
    for session in ("s1", "s2"):
        for kind in ("episodic", "semantic", "procedural"):
            mem.scope("t", "p", session).remember(f"{session} {kind}", kind=kind, key=kind + session)
    ops = mem.scope("t", "p", "s1")
    assert [h.content for h in ops.recall(where={"session_id": "s2"})] == []
    assert {h.content for h in ops.recall(where=pc.field("kind") != "episodic")} == {"s1 semantic"}
    assert {r.content for r in ops.list(where=pc.field("kind") != "episodic")} == {"s1 semantic", "s1 procedural"}


def test_where_with_as_of_sees_the_past(mem):
    record = mem.remember("x", metadata={"state": "open"}, now=1)
    mem.update(record.id, metadata={"state": "closed"}, now=5)
    assert len(mem.list(where={"metadata.state": "open"})) == 0
    assert len(mem.list(where={"metadata.state": "open"}, as_of=4)) == 1
    assert len(mem.recall(k=3, where={"metadata.state": "closed"}, as_of=4)) == 0


# Refusals

ALLOWED = (
    "id, seq, version, tenant_id, project_id, session_id, agent_role, kind, level, key, content, importance, "
    "event_time, ingested_at, expires_at, source, confidence, untrusted, access_count, last_access, superseded_at, "
    "idempotency_key and metadata.<key>"
)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"hosts": "x"}, f"where names 'hosts' (str); the columns are {ALLOWED}"),
        ({"kind": "fact"}, "where['kind'] is 'fact' (str); the kinds are working, episodic, semantic, procedural"),
        (pc.field("hosts") == "x", f"where names the unknown column 'hosts'; the columns are {ALLOWED}"),
        (pc.field("vector").is_null(), f"where names the unknown column 'vector'; the columns are {ALLOWED}"),
        (pc.field("metadata") == "x", f"where names the unknown column 'metadata'; the columns are {ALLOWED}"),
        ({"metadata": {"host": "x"}}, f"where names 'metadata' (str); the columns are {ALLOWED}"),
        ({3: "x"}, f"where names 3 (int); the columns are {ALLOWED}"),
        ({}, "where is {}; an empty filter would match everything: leave it out if that is meant"),
        (pc.scalar(True), f"where (true) names no column; the columns are {ALLOWED}"),
        (
            pc.field("metadata", "host") == "x",
            ("where refers to a column by Nested (FieldRef.Name(metadata) FieldRef.Name(host)); name columns plainly, "
            "as pc.field('kind') or pc.field('metadata.host')"),
        ),
        (
            pc.field(0) == "x",
            ("where refers to a column by FieldPath (0); name columns plainly, as pc.field('kind') or "
            "pc.field('metadata.host')"),
        ),
        (pc.field("level"), "where (level) gives int16, not true or false; compare it with something"),
        (
            {"metadata.x": [1, 2]},
            ("where['metadata.x'] is [1, 2] (list); metadata is compared with a text, a number, True, False or None: "
            "for one of several values use pc.field('metadata.x').isin([…])"),
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_a_filter_is_told(mem, where, message):
    mem.remember("x", metadata={"host": "x"})
    for call in (mem.list, mem.recall, mem.forget):
        with pytest.raises(memcore.InvalidInput) as raised:
            call(where=where)
        assert str(raised.value) == message
    assert len(mem.list()) == 1


@pytest.mark.parametrize(
    "where",
    [
        pc.field("importance") > "high",
        pc.field("content") == 5,
        pc.field("event_time") > 5,
        pc.field("event_time") > datetime(2026, 1, 1),  # noqa: DTZ001
        pc.field("untrusted") == "yes",
        pc.starts_with(pc.field("level"), "1"),
        pc.field("metadata.x") == T,
    ],
)
def test_a_wrong_type_is_told(mem, where):
    with pytest.raises(memcore.InvalidInput) as raised:
        mem.list(where=where)
    assert str(raised.value).startswith(f"where ({where}) cannot be evaluated: ")
    assert str(raised.value).endswith("; compare each column with a value of its type")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"importance": "high"}, "where['importance'] is 'high' (str); it must be a number"),
        ({"importance": True}, "where['importance'] is True (bool); it must be a number"),
        ({"content": 5}, "where['content'] is 5 (int); it must be a text"),
        ({"event_time": datetime(2026, 1, 1)}, "where['event_time'] is a naive datetime"),  # noqa: DTZ001
        ({"event_time": "yesterday"}, "where['event_time'] is 'yesterday' (str)"),
        ({"untrusted": "yes"}, "where['untrusted'] is 'yes' (str); it must be True or False"),
        ({"metadata.x": float("nan")}, "where['metadata.x'] is nan"),
        ({"metadata.x": T}, "where['metadata.x'] is datetime"),
        ({"id": uuid.UUID(int=1)}, "where['id'] is UUID"),
    ],
)
def test_a_wrong_value_in_a_dict_is_told(mem, where, message):
    with pytest.raises(memcore.InvalidInput) as raised:
        mem.list(where=where)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    "where",
    ["host = 'x'", 5, True, [("host", "x")], lambda record: True, pa.scalar(True)],
    ids=["text", "number", "flag", "list", "function", "scalar"],
)
def test_what_is_no_filter_at_all_is_told(mem, where):
    with pytest.raises(memcore.InvalidInput) as raised:
        mem.list(where=where)
    assert "pass a pyarrow.compute expression such as pc.field('importance') > 0.5, or a dict" in str(raised.value)


def test_a_refused_filter_is_refused_before_anything_is_embedded():
    asked: list[list[str]] = []
    mem = memcore.open(embedder=lambda texts: asked.append(texts) or [[1.0] for _ in texts])
    asked.clear()
    with pytest.raises(memcore.InvalidInput):
        mem.recall("x", where={"nope": 1})
    assert asked == []


# What it costs


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The times an expression was evaluated, cold."""
    filters._held.clear()
    evaluated: list[Any] = []
    real = filters._evaluate
    monkeypatch.setattr(filters, "_evaluate", lambda e, t: evaluated.append(t.num_rows) or real(e, t))
    yield evaluated
    filters._held.clear()


def test_a_filter_is_compiled_once(mem, compiled):
    stored(mem, *range(20))
    for _ in range(3):
        assert matched(mem, {"metadata.x": 3, "kind": "episodic"}) == ["3"]
    assert sum(rows > 1 for rows in compiled) == 6  # three segments and two conditions, once: their masks are kept
    assert sum(rows == 1 for rows in compiled) < 20
    before = len(compiled)
    assert matched(mem, {"metadata.x": 4, "kind": "episodic"}) == ["4"]  # another value is another filter
    assert sum(rows == 1 for rows in compiled[before:]) > 0


def test_conditions_of_a_dict_are_typed_one_by_one_and_an_expression_has_a_limit(mem):
    """Types of all metadata keys of an expression are tried together: nine keys took 34 seconds."""
    mem.remember("x", metadata={f"k{i}": i for i in range(40)})
    mem.remember("y", metadata={f"k{i}": str(i) for i in range(40)})
    assert [r.content for r in mem.list(where={f"metadata.k{i}": i for i in range(40)})] == ["x"]
    assert [r.content for r in mem.list(where={f"metadata.k{i}": str(i) for i in range(40)})] == ["y"]
    expression = reduce(and_, (pc.field(f"metadata.k{i}") == i for i in range(7)))
    with pytest.raises(memcore.InvalidInput) as raised:
        mem.list(where=expression)
    assert str(raised.value) == (
        "where reads more than 6 metadata keys in one expression, whose types are tried together: pass a dict of "
        "equalities, or filter in two steps"
    )


@pytest.mark.parametrize("where", [{"metadata.x": "\ud800"}, {"metadata.\ud800": 1}])
def test_a_filter_that_utf8_cannot_hold_is_refused(mem, where):
    with pytest.raises(memcore.InvalidInput, match="lone surrogate"):
        mem.list(where=where)


def test_what_is_only_asked_about_being_null_is_evaluated_once(mem, compiled):
    """Whatever the types of its values: of three keys there would else be 27 ways to read a row."""
    values = ("a", 1, 2.5, True, ..., "b", 2, False)
    mem.remember_many([{"content": repr(v), "metadata": {} if v is ... else dict.fromkeys("xyz", v)} for v in values])
    x, y, z = (pc.field(f"metadata.{key}") for key in "xyz")
    assert matched(mem, x.is_null() & y.is_null() & z.is_null()) == ["Ellipsis"]
    assert len(matched(mem, x.is_valid() | (y == 1))) == 7
    assert sum(rows > 1 for rows in compiled) == 1 + 2


def test_metadata_is_parsed_once(monkeypatch):
    monkeypatch.setattr(segment, "ROWS", 32_768)
    mem = memcore.open(embedder=None)
    mem.remember_many([{"content": "x", "metadata": {"n": i, "host": f"web{i % 10}"}} for i in range(40_000)])
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        assert len(mem.recall(k=3, where=pc.field("metadata.n") >= 39_999)) == 1
        took.append(time.perf_counter() - begun)
    assert min(took[1:]) < took[0] / 4
    held = mem.stats()["bytes_in_memory"]
    mem.list(where={"metadata.host": "web1"}, limit=1)
    assert held < mem.stats()["bytes_in_memory"] < held + 40_000 * 80


def test_a_row_of_which_one_value_cannot_be_compared_is_judged_by_the_others(mem):
    for n, (score, tag) in enumerate([(1.5, 3), (2, 3), (0.5, 3), (0.5, "a"), ("x", "a"), (1.5, None), (None, 3)]):
        mem.remember(f"row {n}", metadata={"score": score, "tag": tag})
    either = (pc.field("metadata.score") >= 1) | (pc.field("metadata.tag") == "a")
    found = {record.content for record in mem.list(where=either)}
    assert found == {"row 0", "row 1", "row 3", "row 4", "row 5"}

"""remember_many over lists: all or nothing, or the good rows with the faults told by row; never outside the scope."""

from __future__ import annotations

import threading
from collections import ChainMap, UserDict, deque
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore import DimensionMismatch, InvalidInput, ScopeError, gate
from memcore.intake import FIELDS

HOW = "pass a list of texts, a list of dicts or a pyarrow Table: for a single text use remember"
SKIP = "on_invalid='skip' stores the good rows"
MISSING = "content is missing; every memory has a text: leave the row out if there is nothing to say"
BLANK = "content is blank (' '); it needs at least one visible character: skip it, or say what it means"


def contents(scope: Any) -> list[str]:
    return [record.content for record in scope.list()]


@pytest.mark.parametrize(
    "rows",
    [
        ["a", "b"],
        ("a", "b"),
        deque(["a", "b"]),
        [np.str_("a"), {"content": "b"}],
        [{"content": "a"}, MappingProxyType({"content": "b", "key": None})],
        [UserDict(content="a"), ChainMap({"content": "b"}, {"importance": 0.1})],
    ],
    ids=range(6),
)
def test_rows_are_texts_and_mappings_in_any_sequence(mem, rows):
    ids = mem.remember_many(rows)
    assert [mem.get(id).content for id in ids] == contents(mem) == ["a", "b"]
    assert ids.faults == {}


def test_an_iterator_is_read_to_its_end_before_anything_is_stored(mem):
    def rows():
        for text in ("a", "b"):
            assert contents(mem) == []
            yield {"content": text}

    assert len(mem.remember_many(rows())) == 2
    assert len(mem.remember_many(iter(["c"]))) == 1
    assert len(mem.remember_many(map(str, range(3)))) == 3
    assert contents(mem) == ["a", "b", "c", "0", "1", "2"]


def test_an_iterator_that_fails_stores_nothing(mem):
    def rows():
        yield "a"
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="went away"):
        mem.remember_many(rows())
    assert contents(mem) == []


@pytest.mark.parametrize("rows", [[], (), iter([])])
def test_no_rows_are_no_error(mem, rows):
    ids = mem.remember_many(rows)
    assert (list(ids), ids.faults, contents(mem)) == ([], {}, [])


@pytest.mark.parametrize(
    "rows",
    [
        "one text",
        b"bytes",
        bytearray(b"x"),
        memoryview(b"x"),
        {"content": "one dict"},
        {"a", "b"},
        5,
        None,
        np.array(["a"]),
    ],
)
def test_what_is_no_batch_is_refused(refused, rows):
    for mode in ("raise", "skip"):
        refused(
            lambda ops, mode=mode: ops.remember_many(rows, on_invalid=mode),
            f"remember_many got {gate.shown(rows)}; {HOW}",
        )


def test_on_invalid_is_raise_or_skip(refused):
    refused(
        lambda ops: ops.remember_many(["x"], on_invalid="ignore"),
        "on_invalid is 'ignore' (str); allowed: raise, skip",
    )
    refused(
        lambda ops: ops.remember_many(["x"], on_invalid=None), "on_invalid is None (NoneType); allowed: raise, skip"
    )


UNKNOWN = f"unknown field {{}}; a row has {', '.join(FIELDS)}: put what is your own into 'metadata'"
OWN = "field {} is kept by the store itself; leave it out, or move records whole with export and import_"
NO_ROW = "the row is {}; a row is a text or a dict with 'content'"
OUTSIDE = (
    "{0} of the row is {1!r} and the scope's is {2!r}; a scope writes only inside itself: leave {0} out, or write "
    "through the scope it belongs to"
)
# One fault each, as (row, what is said of it, the error's type). None: what remember says when it is called so.
FAULTY = [
    (" ", BLANK, InvalidInput),
    ({"content": " "}, BLANK, InvalidInput),
    ({}, MISSING, InvalidInput),
    ({"content": None}, MISSING, InvalidInput),
    ({"importance": 0.5}, MISSING, InvalidInput),
    (5, NO_ROW.format("5 (int)"), InvalidInput),
    (None, NO_ROW.format("None (NoneType)"), InvalidInput),
    (["content", "x"], NO_ROW.format("['content', 'x'] (list)"), InvalidInput),
    ({"content": "x", "contnet": "y", "host": 1}, UNKNOWN.format("'contnet', 'host'"), InvalidInput),
    ({"content": "x", "\ud800": 1}, UNKNOWN.format(r"'\ud800'"), InvalidInput),
    ({"content": "x", 5: 1}, UNKNOWN.format("5"), InvalidInput),
    ({"content": "x", "seq": 1}, OWN.format("'seq'"), InvalidInput),
    ({"content": "x", "host": 1, "seq": 1, "version": 2}, OWN.format("'seq', 'version'"), InvalidInput),
    ({"content": "x", "kind": "fact"}, None, InvalidInput),
    ({"content": "x", "importance": 7}, None, InvalidInput),
    ({"content": "x", "confidence": "high"}, None, InvalidInput),
    ({"content": "x", "untrusted": 1}, None, InvalidInput),
    ({"content": "x", "level": -1}, None, InvalidInput),
    ({"content": "x", "event_time": 1e12}, None, InvalidInput),
    ({"content": "x", "expires_at": float("nan")}, None, InvalidInput),
    ({"content": "x", "metadata": {"a": {1}}}, None, InvalidInput),
    ({"content": "x", "key": ""}, None, InvalidInput),
    ({"content": "x", "source": "\0"}, None, InvalidInput),
    ({"content": "x", "idempotency_key": 5}, None, InvalidInput),
    ({"content": "x", "id": "web01"}, None, InvalidInput),
    ({"content": "x", "vector": [1, 2, 3]}, None, DimensionMismatch),
    ({"content": "x", "vector": [1, float("nan")]}, None, InvalidInput),
    ({"content": "x", "vector": [True, False]}, None, InvalidInput),
    ({"content": "x", "vector": "12"}, None, InvalidInput),
    ({"content": "x", "vector": bytearray(2)}, None, InvalidInput),
    ({"content": "x", "tenant_id": "rival"}, OUTSIDE.format("tenant_id", "rival", "acme"), ScopeError),
    ({"content": "x", "project_id": "default"}, OUTSIDE.format("project_id", "default", "billing"), ScopeError),
    ({"content": "x", "session_id": "s2"}, OUTSIDE.format("session_id", "s2", "s1"), ScopeError),
    ({"content": "x", "session_id": " "}, BLANK.replace("content", "session_id"), ScopeError),
]


def told(ops: Any, row: Any, message: str | None) -> str:
    if message is not None:
        return message
    with pytest.raises(InvalidInput) as error:
        ops.remember(**row)
    return str(error.value)


@pytest.mark.parametrize(("row", "message", "error"), FAULTY, ids=range(len(FAULTY)))
def test_one_faulty_row_refuses_the_batch_and_is_told(refused, ops, row, message, error):
    message = told(ops, row, message)
    good = [{"content": "first", "vector": [1, 0], "key": "k", "kind": "semantic"}, {"content": "last"}]
    for rows in ([row, *good], [good[0], row, good[1]], [*good, row]):
        place = rows.index(row)
        refused(
            lambda ops, rows=rows: ops.remember_many(rows),
            f"row {place}: {message}. Nothing was stored: 1 of 3 rows is refused; {SKIP}",
            error,
        )
    refused(
        lambda ops: ops.remember_many([row]), f"row 0: {message}. Nothing was stored: 1 of 1 rows is refused", error
    )


@pytest.mark.parametrize(("row", "message", "error"), FAULTY, ids=range(len(FAULTY)))
def test_the_good_rows_are_stored_if_asked(ops, row, message, error):
    message = told(ops, row, message)
    ids = ops.remember_many(["first", row, {"content": "last", "vector": [3, 4]}], on_invalid="skip")
    assert ids.faults == {1: message}
    assert [ops.get(id).content for id in ids] == contents(ops)[3:] == ["first", "last"]
    assert ops.get(ids[1]).vector.tolist() == [np.float32(0.6), np.float32(0.8)]
    assert ops.get(ids[0]).vector is None


def test_the_first_faulty_row_and_its_first_fault_are_told_with_the_count(refused):
    refused(
        lambda ops: ops.remember_many(
            [
                "good",
                {"content": "x", "importance": 7, "vector": [1]},
                {"content": " ", "tenant_id": "rival"},
                "good too",
                8,
            ]
        ),
        "row 1: importance is 7; it must be in [0, 1]: divide a rating of 1 to 10 by 10. Nothing was stored: 3 of 5 "
        f"rows are refused; {SKIP}",
    )
    refused(lambda ops: ops.remember_many([" ", None]), f"row 0: {BLANK}. Nothing was stored: 2 of 2 rows are refused")


def test_of_several_faults_of_a_row_the_first_is_told(ops):
    rows = [
        {"content": " ", "kind": "fact", "importance": 7, "tenant_id": "rival", "vector": [1]},
        {"content": "x", "importance": 7, "tenant_id": "rival", "vector": [1]},
        {"content": "x", "tenant_id": "rival", "vector": [1]},
        {"kind": "fact", "vector": [1]},
        {"host": 1, "kind": "fact"},
    ]
    assert ops.remember_many(rows, on_invalid="skip").faults == {
        0: BLANK,
        1: "importance is 7; it must be in [0, 1]: divide a rating of 1 to 10 by 10",
        2: OUTSIDE.format("tenant_id", "rival", "acme"),
        3: MISSING,
        4: UNKNOWN.format("'host'"),
    }


def test_a_skipped_row_leaves_no_trace(mem):
    """Not its width, its key, its id, its retry key, nor its session."""
    faulty = {
        "content": " ", "vector": [1, 2, 3], "key": "k", "kind": "semantic", "idempotency_key": "call",
        "session_id": "s", "id": "00000000-0000-0000-0000-000000000007",
    }  # fmt: skip
    ids = mem.remember_many([faulty, {"content": "a", "vector": [3, 4]}], on_invalid="skip")
    assert ids.faults == {0: BLANK}
    assert mem.stats()["versions"] == len(ids) == 1
    assert mem.get(key="k") is None
    assert mem.get(faulty["id"]) is None
    assert mem.get(mem.remember("b", idempotency_key="call").id).content == "b"
    assert len(mem.scope(session_id="s").list()) == 0


def test_every_field_of_a_row_is_stored(mem):
    row = {
        "content": "x", "kind": "procedural", "key": "k", "importance": 0.25, "event_time": 5.5, "expires_at": 2e9,
        "metadata": {"a": 1}, "source": "told_by_user", "confidence": 0.75, "untrusted": True, "vector": [0, 2],
        "level": 3, "session_id": "s", "agent_role": "r", "tenant_id": "default", "project_id": "default",
        "id": "00000000-0000-0000-0000-000000000007", "idempotency_key": "call",
    }  # fmt: skip
    assert set(row) == set(FIELDS)
    ids = mem.remember_many([row, "plain"])
    record, plain = mem.list(now=0)
    for name in set(FIELDS) - {"event_time", "expires_at", "vector"}:
        assert getattr(record, name) == row[name], name
    assert (record.event_time.timestamp(), record.expires_at.timestamp()) == (5.5, 2e9)
    assert record.vector.tolist() == [0, 1]
    assert ids[0] == row["id"]
    assert (plain.kind, plain.importance, plain.confidence, plain.level) == ("episodic", 0.5, 1.0, 0)
    assert (plain.source, plain.untrusted, plain.metadata) == ("observation", False, {})
    assert (plain.key, plain.expires_at, plain.vector, plain.idempotency_key) == (None, None, None, None)
    assert (plain.session_id, plain.agent_role) == ("default", "default")


def test_none_is_not_given(mem):
    record = mem.get(mem.remember_many([{"content": "x", **dict.fromkeys(set(FIELDS) - {"content"})}])[0])
    plain = mem.get(mem.remember_many(["x"])[0])
    for name in FIELDS:
        if name not in ("id", "content"):
            assert getattr(record, name) == getattr(plain, name), name


def test_a_row_may_name_the_scope_it_is_in(mem):
    scope = mem.scope("acme", "billing", "s1", "triage")
    own = {"tenant_id": "acme", "project_id": "billing", "session_id": "s1", "agent_role": "triage"}
    record = scope.get(scope.remember_many([{"content": "x", **own}])[0])
    assert {name: getattr(record, name) for name in own} == own


def test_rows_of_a_scope_without_a_session_choose_their_own(mem):
    scope = mem.scope("acme", "billing")
    scope.remember_many([{"content": f"{s}/{r}", "session_id": s, "agent_role": r} for s in "ab" for r in "xy"])
    assert contents(mem.scope("acme", "billing", "a")) == ["a/x", "a/y"]
    assert contents(mem.scope("acme", "billing", agent_role="y")) == ["a/y", "b/y"]
    assert contents(mem.scope("acme", "billing", "default")) == []


def test_one_commit_upserts_within_itself_and_honours_retries(mem):
    rows = [
        {"content": "queue is A", "kind": "semantic", "key": "queue"},
        {"content": "queue is B", "kind": "semantic", "key": "queue"},
        {"content": "once", "idempotency_key": "call"},
        {"content": "twice", "idempotency_key": "call"},
    ]
    ids = mem.remember_many(rows)
    assert ids[0] == ids[1]
    assert ids[2] == ids[3]
    assert contents(mem) == ["queue is B", "once"]
    assert [record.content for record in mem.history("queue")] == ["queue is A", "queue is B"]


def test_readers_see_all_of_a_batch_or_nothing_of_it(mem):
    counts, done = set(), threading.Event()

    def watch():
        while not done.is_set():
            counts.add(len(mem.list()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(20):
        mem.remember_many([f"row {i}" for i in range(50)])
        with pytest.raises(InvalidInput):
            mem.remember_many([*(f"row {i}" for i in range(50)), " "])
    done.set()
    watcher.join()
    assert {count % 50 for count in counts} == {0}
    assert len(mem.list()) == 1000


@settings(deadline=None)
@given(st.lists(st.sampled_from(["good", " ", 5, "vector", "nan", "wide", "own"]), max_size=9))
def test_skip_stores_exactly_what_remember_would_take_one_by_one(picks):
    forms: dict[str, Any] = {
        "good": "good", " ": " ", 5: {"content": 5}, "vector": {"content": "v", "vector": [3, 4]},
        "nan": {"content": "v", "vector": [1, float("nan")]}, "wide": {"content": "v", "vector": [1, 2, 3]},
        "own": {"content": "v", "seq": 1},
    }  # fmt: skip
    rows = [forms[pick] for pick in picks]
    mem, one = (memcore.open(embedder=None, clock=lambda: 1e9) for _ in range(2))
    mem.remember("x", vector=[1, 0])
    one.remember("x", vector=[1, 0])
    faults = {}
    for place, row in enumerate(rows):
        try:
            if isinstance(row, str):
                one.remember(row)
            else:
                one.remember(**row)
        except InvalidInput as fault:
            faults[place] = str(fault)
        except TypeError:  # remember() has no parameter of that name
            faults[place] = OWN.format("'seq'")
    assert mem.remember_many(rows, on_invalid="skip").faults == faults
    assert contents(mem) == contents(one)
    assert [record.vector is None for record in mem.list()] == [record.vector is None for record in one.list()]

"""Texts from outside: what is stored is what was given, to the code point, or the call is refused whole."""

from __future__ import annotations

import enum
import json

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import memcore
from memcore import ScopeError, gate

SURROGATE = (
    "{} holds a lone surrogate (U+{} at index {}), which UTF-8 cannot store; decode the text with errors='replace', or "
    "remove it"
)
NUL = "{} holds a NUL character at index {}; texts are stored whole or not at all: remove it"
BLANK = "{} is blank ({}); it needs at least one visible character: skip it, or say what it means"
TYPE = "{} is {}; it must be a text (str): {}"

# Every public way in for a text, as (what the message calls it, the call).
DOORS = [
    ("content", lambda ops, text: ops.remember(text)),
    ("content", lambda ops, text: ops.update(ops.list()[0].id, content=text)),
    ("key", lambda ops, text: ops.remember("x", key=text)),
    ("source", lambda ops, text: ops.remember("x", source=text)),
    ("source", lambda ops, text: ops.update(ops.list()[0].id, source=text)),
    ("idempotency_key", lambda ops, text: ops.remember("x", idempotency_key=text)),
    ("key", lambda ops, text: ops.get(key=text)),
    ("key", lambda ops, text: ops.history(text)),
    ("where['source']", lambda ops, text: ops.forget(where={"source": text})),
]
SCOPE_DOORS = [
    ("tenant_id", lambda mem, text: mem.scope(tenant_id=text)),
    ("project_id", lambda mem, text: mem.scope(project_id=text)),
    ("session_id", lambda mem, text: mem.scope(session_id=text)),
    ("agent_role", lambda mem, text: mem.scope(agent_role=text)),
]
FAULTS = [
    ("note \ud83d end", SURROGATE, ("D83D", 5)),
    ("\udcff", SURROGATE, ("DCFF", 0)),
    ("abc\0def", NUL, (3,)),
    ("\0", NUL, (0,)),
    ("", BLANK, ("''",)),
    ("   ", BLANK, ("'   '",)),
    ("\n\n", BLANK, (r"'\n\n'",)),
    ("\u00a0", BLANK, (r"'\xa0'",)),
    ("\u200b\ufeff", BLANK, (r"'\u200b\ufeff'",)),
    ("\u3164\u2060\ufe0f", BLANK, (r"'\u3164\u2060\ufe0f'",)),  # a filler that is a letter by its category
    ("\x07\x1b", BLANK, (r"'\x07\x1b'",)),
    (" " * 1000, BLANK, (repr(" " * 20),)),
    (b"bytes", TYPE, ("b'bytes' (bytes)", "decode it first")),
    (504, TYPE, ("504 (int)", "pass str(value) if that is meant")),
    (True, TYPE, ("True (bool)", "pass str(value) if that is meant")),
    (["a"], TYPE, ("['a'] (list)", "pass str(value) if that is meant")),
]


@pytest.mark.parametrize(("value", "message", "parts"), FAULTS, ids=[ascii(fault[0])[:20] for fault in FAULTS])
@pytest.mark.parametrize(("what", "call"), DOORS, ids=[f"{i}-{door[0]}" for i, door in enumerate(DOORS)])
def test_a_bad_text_is_refused_at_every_door(refused, what, call, value, message, parts):
    refused(lambda ops: call(ops, value), message.format(what, *parts))


@pytest.mark.parametrize(("value", "message", "parts"), FAULTS, ids=[ascii(fault[0])[:20] for fault in FAULTS])
@pytest.mark.parametrize(("what", "call"), SCOPE_DOORS, ids=[door[0] for door in SCOPE_DOORS])
def test_a_bad_scope_id_is_refused(refused, mem, what, call, value, message, parts):
    refused(lambda _: call(mem, value), message.format(what, *parts), ScopeError)


@pytest.mark.parametrize("what", ["tenant_id", "project_id"])
def test_a_scope_is_never_guessed(refused, mem, what):
    refused(
        lambda _: mem.scope(**{what: None}),
        f"{what} is None; a scope is never guessed: pass a text, or leave the argument out for 'default'",
        ScopeError,
    )


def test_sessions_and_roles_may_be_left_out(mem):
    scope = mem.scope("acme", session_id=None, agent_role=None)
    assert (scope.session_id, scope.agent_role) == (None, None)
    assert scope.remember("x").session_id == "default"


@pytest.mark.parametrize(
    ("what", "most", "call"),
    [
        ("content", 100_000_000, lambda ops, text: ops.remember(text)),
        ("key", 4096, lambda ops, text: ops.remember("x", key=text)),
        ("source", 4096, lambda ops, text: ops.remember("x", source=text)),
        ("idempotency_key", 4096, lambda ops, text: ops.remember("x", idempotency_key=text)),
    ],
)
def test_a_longer_text_than_can_be_stored_is_refused(refused, what, most, call):
    refused(
        lambda ops: call(ops, "x" * (most + 1)),
        f"{what} has {most + 1} characters; at most {most} are allowed: shorten it",
    )


@pytest.mark.parametrize(("what", "call"), SCOPE_DOORS, ids=[door[0] for door in SCOPE_DOORS])
def test_a_scope_id_has_at_most_512_characters(refused, mem, what, call):
    assert getattr(call(mem, "é" * 512), what) == "é" * 512
    refused(
        lambda _: call(mem, "x" * 513),
        f"{what} has 513 characters; at most 512 are allowed: shorten it",
        ScopeError,
    )


def test_names_as_long_as_allowed_are_kept(ops):
    name = "ç" * 4096
    record = ops.remember("x", key=name, source=name, idempotency_key=name)
    assert (record.key, record.source, record.idempotency_key) == (name, name, name)
    assert ops.get(key=name).id == ops.remember("another", idempotency_key=name).id == record.id


def test_missing_content_says_so(refused):
    missing = "content is missing; every memory has a text: leave the row out if there is nothing to say"
    refused(lambda ops: ops.remember(None), missing)
    refused(
        lambda ops: ops.update(ops.list()[0].id, content=None),
        "content is None; it must be a text (str) with something visible in it: skip it if there is none",
    )


class Kind(str, enum.Enum):  # noqa: UP042 - whose str() is the member's name
    FACT = "semantic"


def test_a_str_enum_and_a_numpy_text_count_by_their_value(mem):
    scope = mem.scope(Kind.FACT, np.str_("billing"))
    record = scope.remember(
        Kind.FACT, kind=Kind.FACT, key=Kind.FACT, source=np.str_("told_by_user"), metadata={Kind.FACT: Kind.FACT}
    )
    assert (record.tenant_id, record.project_id) == ("semantic", "billing")
    assert (record.content, record.kind, record.key, record.source) == (
        "semantic",
        "semantic",
        "semantic",
        "told_by_user",
    )
    assert record.metadata == {"semantic": "semantic"}
    assert {type(text) for text in (record.content, record.key, record.source)} == {str}
    assert [r.id for r in scope.list(kinds=[Kind.FACT])] == [record.id]


STORABLE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
VISIBLE = st.characters(exclude_categories=["Cs", "Cc", "Cf", "Z"]).filter(lambda c: gate.query(c) != "")


@settings(deadline=None)
@given(before=STORABLE, visible=VISIBLE, after=STORABLE)
@example(before=" \r\n", visible="é", after="\u2028\u200b ")
@example(before="e\u0301", visible="\U0010ffff", after="\ufeff")
def test_a_text_comes_back_as_it_was_given(before, visible, after):
    given = before + visible + after
    mem = memcore.open(embedder=None, clock=lambda: 1e9)
    scope = mem.scope(session_id=given)
    made = scope.remember(given, key=given, source=given, metadata={given: given}, idempotency_key=given)
    found = scope.get(made.id)
    for record in (made, found, scope.get(key=given), scope.list()[0]):
        assert record.content == record.key == record.source == record.idempotency_key == record.session_id == given
        assert record.content.encode() == given.encode()
        assert record.metadata == {given: given}
    assert scope.list().to_arrow().column("content").to_pylist() == [given]


@settings(deadline=None)
@given(st.text(st.characters(), max_size=30))
def test_any_text_is_stored_whole_or_refused(text):
    scope = memcore.open(embedder=None, clock=lambda: 1e9)
    surrogate = any(0xD800 <= ord(c) < 0xE000 for c in text)
    if surrogate or "\0" in text or gate.query(text) == "":
        with pytest.raises(memcore.InvalidInput) as error:
            scope.remember(text)
        assert str(error.value).encode()
        assert len(scope.list()) == 0
    else:
        assert scope.remember(text).content == text


def test_case_G1_a_lone_surrogate_is_refused_at_the_door_and_loses_no_other_row(ops, tmp_path):
    bad = "note \ud83d end"
    ids = ops.remember_many(
        [
            {"content": "good one"},
            {"content": bad},
            {"content": "tags", "metadata": {"tags": ["a", bad]}},
            {"content": "key", "metadata": {bad: 1}},
            {"content": "session", "session_id": bad},
            {"content": "good two"},
        ],
        on_invalid="skip",
    )
    assert [ops.get(id).content for id in ids] == ["good one", "good two"]
    assert ids.faults == {
        1: SURROGATE.format("content", "D83D", 5),
        2: SURROGATE.format("metadata.tags[1]", "D83D", 5),
        3: SURROGATE.format("a key of metadata", "D83D", 5),
        4: SURROGATE.format("session_id", "D83D", 5),
    }
    assert ops.export(tmp_path / "all.jsonl") == len(ops.list())
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"content": "fine"}\n{"content": "note \\ud83d end"}\n')
    mem = memcore.open(embedder=None)
    with pytest.raises(memcore.InvalidInput) as error:
        mem.import_(lines)
    assert SURROGATE.format("content", "D83D", 5) in str(error.value)
    assert len(mem.list()) == 0


def test_case_G7_a_nul_never_cuts_a_text_off(mem, tmp_path):
    mem.scope("t1").remember("mine", vector=[1, 0])
    with pytest.raises(ScopeError, match="tenant_id holds a NUL character at index 2"):
        mem.scope("t1\0evil")
    with pytest.raises(memcore.InvalidInput, match="content holds a NUL character at index 3"):
        mem.scope("t1").remember("abc\0def")
    lines = tmp_path / "lines.jsonl"
    lines.write_text(json.dumps({"content": "abc\0def"}) + "\n")
    with pytest.raises(memcore.InvalidInput, match="content holds a NUL character at index 3"):
        mem.import_(lines)
    assert mem.scopes() == [("t1", "default")]
    assert [record.content for record in mem.scope("t1").list()] == ["mine"]


def test_case_G9_two_unicode_forms_of_a_scope_id_are_two_scopes(mem):
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    mem.scope(composed).remember("espresso")
    assert len(mem.scope(decomposed).list()) == 0
    mem.scope(decomposed).remember("lungo")
    assert [record.content for record in mem.scope(composed).list()] == ["espresso"]
    assert [record.content for record in mem.scope(decomposed).list()] == ["lungo"]
    text = "cafe\u0301 Z\u00fcrich \uff21\uff22\uff23"
    assert mem.scope("x").remember(text).content == text


@pytest.mark.parametrize("blank", ["", "   ", "\n\n", "\u200b\ufeff", "\u00a0"])
def test_case_G11_a_blank_text_is_told_and_the_good_rows_are_stored(blank):
    scope = memcore.open(embedder="hashed", clock=lambda: 1e9)
    with pytest.raises(memcore.InvalidInput) as error:
        scope.remember(blank)
    told = BLANK.format("content", ascii(blank))
    assert str(error.value) == told
    for rows in (["tea at five", blank, "milk is out"], [{"content": text} for text in ("tea at five", blank, "milk")]):
        with pytest.raises(memcore.InvalidInput) as error:
            scope.remember_many(rows)
        assert str(error.value) == (
            f"row 1: {told}. Nothing was stored: 1 of 3 rows is refused; on_invalid='skip' stores the good rows"
        )
        assert len(scope.list()) == 0
    ids = scope.remember_many(["tea at five", blank, "milk is out"], on_invalid="skip")
    assert ids.faults == {1: told}
    assert [scope.get(id).content for id in ids] == ["tea at five", "milk is out"]
    assert all(record.vector.any() for record in scope.list())


def test_a_blank_question_is_like_nothing_and_a_bad_one_is_refused():
    scope = memcore.open(embedder="hashed", clock=lambda: 1e9)
    scope.remember("tea at five")
    for blank in ("", " \n", "\u200b", "\0"):
        assert [hit.semantic_similarity for hit in scope.recall(blank)] == [0.0]
    for bad, told in (
        ("a\0b", NUL.format("query", 1)),
        ("\ud83d", SURROGATE.format("query", "D83D", 0)),
        (7, TYPE.format("query", "7 (int)", "pass str(value) if that is meant")),
    ):
        for call in (scope.recall, lambda text: scope.recall_many(["tea", text])):
            with pytest.raises(memcore.InvalidInput) as error:
                call(bad)
            assert str(error.value) == told

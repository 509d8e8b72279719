"""Working memory: capacity and token budget, what always stays, and what becomes of a conversation when it ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcore
from memcore.agent.working import estimate_tokens, evicted


def opened(**more: Any) -> memcore.Memory:
    return memcore.open(**{"embedder": None, "clock": lambda: 1000, **more})


def said(chat: Any) -> list[str]:
    return [message["content"] for message in chat.messages()]


def contents(records: Any) -> list[str]:
    return [record.content for record in records]


# Which entries leave


@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=12),
    st.integers(1, 12),
    st.none() | st.integers(1, 30),
)
def test_the_oldest_leave_until_the_limits_hold(entries, capacity, budget):
    sizes, system = [size for size, _ in entries], [is_system for _, is_system in entries]
    gone = evicted(sizes, system, capacity, budget)
    kept = [i for i in range(len(entries)) if i not in gone]
    first_system = next((i for i, is_system in enumerate(system) if is_system), None)
    assert gone == sorted(set(gone))
    assert kept[-1] == len(entries) - 1
    assert first_system is None or first_system in kept
    assert evicted([sizes[i] for i in kept], [system[i] for i in kept], capacity, budget) == []

    def fits(places: list[int]) -> bool:
        return len(places) <= capacity and (budget is None or sum(sizes[i] for i in places) <= budget)

    always = {len(entries) - 1, first_system}
    assert fits(kept) or set(kept) <= always
    if gone:  # first in, first out, and not one more than is needed
        assert not fits([*kept, gone[-1]])
        assert all(i in gone for i in range(gone[-1]) if i not in always)


def test_a_message_that_is_alone_too_big_stays():
    assert evicted([100], [False], 20, 10) == []
    assert evicted([100, 100], [True, False], 1, 10) == []


# Messages


def test_messages_in_the_form_that_chat_models_take():
    chat = opened().scope("t", "p", "s", "r").working()
    chat.add("system", "You are on call.")
    record = chat.add("user", "the checkout is down", metadata={"channel": "#ops"}, importance=0.9)
    assert chat.messages() == [
        {"role": "system", "content": "You are on call."},
        {"role": "user", "content": "the checkout is down"},
    ]
    assert (record.kind, record.metadata, record.importance) == ("working", {"channel": "#ops", "role": "user"}, 0.9)
    assert chat.entries()[1] == record
    with pytest.raises(memcore.InvalidInput) as raised:
        chat.add("robot", "beep")
    assert str(raised.value) == "role is 'robot' (str); allowed: system, user, assistant, tool"
    with pytest.raises(memcore.InvalidInput, match="metadata is 5"):
        chat.add("user", "x", metadata=5)
    assert len(chat.messages()) == 2


def test_remember_and_list_see_the_same_entries():
    ops = opened().scope("t", "p", "s")
    ops.remember("plain", kind="working")
    ops.working().add("assistant", "hello")
    assert ops.working().messages() == [
        {"role": "user", "content": "plain"},
        {"role": "assistant", "content": "hello"},
    ]
    assert contents(ops.list(kinds="working")) == ["plain", "hello"]


def test_working_memory_is_not_recalled_unless_asked_for():
    ops = opened().scope("t", "p", "s")
    ops.working().add("user", "hello")
    assert len(ops.recall(k=5)) == 0
    assert len(ops.recall(k=5, kinds="working")) == 1


def test_each_session_and_role_has_a_conversation_of_its_own():
    mem = opened(working_capacity=2)
    scopes = [mem.scope("t", "p", s, r) for s in (None, "a", "b") for r in (None, "x")]
    for i, scope in enumerate(scopes):
        for j in range(3):
            scope.working().add("user", f"{i} {j}")
    for i, scope in enumerate(scopes):
        assert said(scope.working()) == [f"{i} 1", f"{i} 2"]
    mem.scope("t", "p", "a", "x").end_session()
    assert [len(scope.working().messages()) for scope in scopes] == [2, 2, 2, 0, 2, 2]


# Limits


def test_capacity_is_first_in_first_out():
    chat = opened().working()
    for i in range(25):
        chat.add("user", str(i))
        assert said(chat) == [str(j) for j in range(max(0, i - 19), i + 1)]


def test_the_first_system_message_stays():
    chat = opened(working_capacity=3).working()
    chat.add("user", "before")
    chat.add("system", "first rule")
    chat.add("system", "second rule")
    for i in range(4):
        chat.add("user", str(i))
    assert said(chat) == ["first rule", "2", "3"]


def test_a_metadata_that_only_mentions_a_system_message_does_not_make_one():
    mem = opened(working_capacity=2)
    chat = mem.working()
    chat.add("user", "quoting", metadata={"quoted": {"role": "system"}, "text": '"role":"system"'})
    chat.add("user", "1")
    chat.add("user", "2")
    assert said(chat) == ["1", "2"]


def test_many_at_once_are_cut_to_the_capacity_too():
    ops = opened(working_capacity=3).scope("t", "p", "s")
    ops.remember_many([{"content": str(i), "kind": "working"} for i in range(8)])
    assert said(ops.working()) == ["5", "6", "7"]


def test_a_budget_of_tokens():
    chat = opened(working_capacity=100, working_tokens=10, count_tokens=len).working()
    chat.add("system", "rule")
    for text in ("aaa", "bbb"):
        chat.add("user", text)
    assert (said(chat), chat.tokens) == (["rule", "aaa", "bbb"], 10)
    chat.add("user", "c")
    assert (said(chat), chat.tokens) == (["rule", "bbb", "c"], 8)
    chat.add("user", "much too long")
    assert said(chat) == ["rule", "much too long"]
    chat.add("user", "d")
    assert said(chat) == ["rule", "d"]


def test_a_budget_counts_what_was_imported_and_what_was_changed(tmp_path):
    mem = opened(working_tokens=6, count_tokens=len)
    chat = mem.working()
    first, _, third = (chat.add("user", text) for text in ("aa", "bb", "cc"))
    mem.update(third.id, importance=1.0)
    mem.export(tmp_path / "x.jsonl")
    other = opened(working_tokens=6, count_tokens=len)
    other.import_(tmp_path / "x.jsonl")
    for store in (mem, other):
        assert said(store.working()) == ["aa", "bb", "cc"]
        store.update(first.id, content="aaaa")
        assert said(store.working()) == ["bb", "cc"]
        store.working().add("user", "d")
        assert said(store.working()) == ["bb", "cc", "d"]
    smaller = opened(working_tokens=2, count_tokens=len)
    smaller.import_(tmp_path / "x.jsonl")
    assert said(smaller.working()) == ["cc"]


def test_tokens_are_counted_before_anything_is_stored():
    def broken(text: str) -> Any:
        if text == "boom":
            raise RuntimeError("no tokenizer")
        return -1 if text == "odd" else len(text)

    mem = opened(working_tokens=10, count_tokens=broken)
    chat = mem.working()
    record = chat.add("user", "fine")
    with pytest.raises(RuntimeError, match="no tokenizer"):
        chat.add("user", "boom")
    with pytest.raises(memcore.InvalidInput, match="the result of count_tokens is -1; it must be at least 0"):
        chat.add("user", "odd")
    with pytest.raises(RuntimeError, match="no tokenizer"):
        mem.update(record.id, content="boom")
    assert said(chat) == ["fine"]
    mem.remember("boom")  # no working memory: nothing to count


def test_tokens_are_counted_once_and_not_under_the_lock():
    mem: memcore.Memory
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        assert mem._engine.catalog.lock.acquire(blocking=False)
        mem._engine.catalog.lock.release()
        return len(text)

    mem = opened(working_tokens=100, count_tokens=count)
    for i in range(5):
        mem.working().add("user", str(i))
    assert counted == ["0", "1", "2", "3", "4"]


def test_an_update_that_is_too_long_makes_room():
    mem = opened(working_tokens=6, count_tokens=len)
    chat = mem.working()
    chat.add("user", "aa")
    second = chat.add("user", "bb")
    mem.update(second.id, content="bbbbbb")
    assert said(chat) == ["bbbbbb"]


def test_a_message_under_an_id_that_was_forgotten_comes_last():
    mem = opened()
    first = mem.remember("A", kind="working")
    mem.remember("B", kind="working")
    mem.forget(first)
    mem.remember("C", kind="working", id=first.id)
    mem.update(first.id, content="D")
    assert contents(mem.working().entries()) == ["B", "D"]


def test_a_message_that_is_changed_keeps_its_place():
    mem = opened(working_capacity=3)
    chat = mem.working()
    records = [chat.add("user", str(i)) for i in range(3)]
    mem.update(records[0].id, content="zero")
    assert said(chat) == ["zero", "1", "2"]
    chat.add("user", "3")
    assert said(chat) == ["1", "2", "3"]


def test_a_message_that_expired_is_not_shown():
    mem = opened()
    chat = mem.working()
    chat.add("user", "short-lived", expires_at=2000)
    chat.add("user", "lasting")
    assert said(chat) == ["short-lived", "lasting"]
    assert [m["content"] for m in chat.messages(now=2000)] == ["lasting"]
    assert contents(chat.entries(now=2000)) == ["lasting"]


@pytest.mark.parametrize("bad", [0, -1, True, 2.5, "20"])
def test_limits_are_whole_numbers_from_one(bad):
    for name in ("working_capacity", "working_tokens"):
        with pytest.raises(memcore.InvalidInput, match=f"^{name} is"):
            opened(**{name: bad})


@pytest.mark.parametrize(("text", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("ééé", 2), ("🦉", 1)])
def test_the_estimate_is_a_quarter_of_the_bytes(text, tokens):
    assert estimate_tokens(text) == tokens


# The end


def test_the_end_makes_all_of_it_episodic_also_what_fell_out():
    ops = opened(working_capacity=3).scope("t", "p", "s", "r")
    chat = ops.working()
    records = [chat.add("user", str(i), event_time=i, importance=0.1 * i) for i in range(6)]
    assert len(ops.list(kinds="episodic")) == 0
    assert [ops.get(record.id) is None for record in records] == [True] * 3 + [False] * 3
    assert chat.end(now=2000) == [record.id for record in records]
    assert chat.messages() == []
    episodic = ops.list(kinds="episodic")
    assert contents(episodic) == ["0", "1", "2", "3", "4", "5"]
    assert [r.event_time.timestamp() for r in episodic] == [0, 1, 2, 3, 4, 5]
    assert {(r.version, r.session_id, r.agent_role) for r in episodic} == {(2, "s", "r")}
    assert [r.importance for r in episodic] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert len(ops.recall(k=10)) == 6
    assert chat.end() == []
    chat.add("user", "a new session of that name")
    assert said(chat) == ["a new session of that name"]
    assert len(chat.end()) == 1


def test_the_past_of_a_conversation():
    mem = opened(working_capacity=1)
    chat = mem.working()
    chat.add("user", "0", now=10)
    chat.add("user", "1", now=20)
    chat.end(now=30)
    assert contents(mem.list(kinds="working", as_of=15)) == ["0"]
    assert contents(mem.list(kinds="working", as_of=25)) == ["1"]
    assert contents(mem.list(as_of=35)) == ["0", "1"]
    assert contents(mem.history(id=mem.list()[0].id)) == ["0", "0"]


def test_what_was_forgotten_does_not_come_back_at_the_end():
    """C11: a late end of the session."""
    ops = opened(working_capacity=2).scope("t", "p", "s1")
    chat = ops.working()
    for i in range(4):
        chat.add("user", f"secret {i}")
    assert ops.forget(everything=True).count == 4
    assert chat.end() == []
    assert len(ops.list()) == 0
    chat.add("user", "a new session named s1")
    assert chat.end() == [ops.list()[0].id]
    assert contents(ops.list()) == ["a new session named s1"]


def test_a_conversation_without_messages_ends_without_a_trace():
    mem = opened()
    assert mem.scope("t").end_session() == []
    assert mem.scopes() == []

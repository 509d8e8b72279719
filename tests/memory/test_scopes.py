"""No verb, id, key, filter or file shows or touches another tenant's rows, and narrowed scopes see only their own."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore

AWKWARD = (
    "acme", "acme-corp", "acm", "ACME", "a_b", "a-b", "a%b", "%", "_", "*", "[a-z]", "\\", "D'Arcy", "Darcy", '"',
    "' OR 1=1 --", "caf\u00e9", "cafe\u0301", " acme", "acme ", "acme\t", "acme\u200b", "None", "null", "0", "..",
    "a/b", "a\nb", "ﬁ", "fi", "İ", "i", "ß", "ss", "🦉", "x" * 512,
)  # fmt: skip

ids = st.sampled_from(AWKWARD) | st.text(min_size=1, max_size=8).filter(lambda t: storable(t))


def storable(text: str) -> bool:
    try:
        memcore.open(embedder=None).scope(text)
    except memcore.ScopeError:
        return False
    return True


def filled(mem: memcore.Memory, tenant: str, project: str, secret: str) -> list[str]:
    ops = mem.scope(tenant, project)
    ops.remember_many(
        [
            {"content": f"{secret} {i}", "kind": kind, "key": "k", "vector": [1.0, i], "metadata": {"host": secret},
             "idempotency_key": f"{kind} {i}"}
            for i, kind in enumerate(("working", "episodic", "episodic", "semantic", "semantic", "procedural"))
        ]
    )  # fmt: skip
    return [record.id for record in ops.list()]


def everything(scope: memcore.Scope) -> str:
    """All that any verb shows of a scope, as text."""
    shown: list[Any] = [
        scope.list().to_arrow().to_pylist(),
        scope.list(as_of=10**9).to_arrow().to_pylist(),
        scope.history("k").to_arrow().to_pylist(),
        scope.get(key="k", as_of=10**9),
        [hit.content for hit in scope.recall(vector=[1.0, 0.0], k=100, kinds=memcore.KINDS, as_of=10**9)],
        [hit.content for hit in scope.recall(k=100, where=pc.field("content").is_valid(), as_of=10**9)],
        [hits.ids for hits in scope.recall_many(vectors=[[1.0, 0.0], [0.0, 1.0]], k=100, as_of=10**9)],
        scope.working().messages(),
        {name: value for name, value in scope.stats().items() if name != "bytes_in_memory"},
    ]
    return repr(shown)


@given(names=st.lists(st.tuples(ids, ids), min_size=2, max_size=2, unique=True))
@settings(max_examples=100, deadline=None)
def test_two_scopes_that_differ_at_all_share_nothing(names, tmp_path_factory):
    mem = memcore.open(embedder=None)
    mine, theirs = names
    ours = filled(mem, *mine, "OURS")
    others = filled(mem, *theirs, "THEIRS")
    other = mem.scope(*theirs)
    before = everything(other)
    scope = mem.scope(*mine)
    assert len(scope.list()) == len(ours)
    assert "THEIRS" not in everything(scope)
    # by id, key, filter and retry
    for id in others:
        assert scope.get(id) is None
        assert len(scope.history(id=id)) == 0
        with pytest.raises(memcore.NotFound) as raised:
            scope.update(id, content="taken over")
        assert str(raised.value).startswith(
            f"no memory {id} in tenant {mine[0]!r}, project {mine[1]!r}; it was never there"
        )
    assert scope.forget(others).ids == []
    assert scope.forget(others).missing == others
    for condition in ({"metadata.host": "THEIRS"}, {"tenant_id": theirs[0], "project_id": theirs[1]}):
        assert len(scope.list(where=condition)) == 0
        assert scope.forget(where=condition).ids == []
        assert len(scope.recall(vector=[1.0, 0.0], where=condition, k=100)) == 0
    again = scope.remember("other words", kind="episodic", key="k", idempotency_key="episodic 1", vector=[0.0, 1.0])
    assert again.id in ours
    assert scope.remember("new", kind="semantic", key="k", vector=[0.0, 1.0]).id in ours
    scope.end_session()
    # files
    path = tmp_path_factory.mktemp("scopes") / "export.jsonl"
    scope.export(path)
    text = path.read_text(encoding="utf-8")
    assert "THEIRS" not in text
    rows = [json.loads(line) for line in text.split("\n")[1:] if line]
    assert {(row["tenant_id"], row["project_id"]) for row in rows} == {mine}
    mem.import_(path)
    # letting go
    for call in ({"older_than_days": 0.0}, {"max_access": 10}, {"kinds": "semantic"}, {"everything": True}):
        scope.forget(**call, now=10**9)
    assert len(scope.list()) == 0
    assert everything(other) == before
    assert mem.scopes() == [theirs]


def test_every_awkward_id_is_a_scope_of_its_own():
    mem = memcore.open(embedder=None)
    for name in AWKWARD:
        mem.scope(name, name).remember(name)
    for name in AWKWARD:
        assert [record.content for record in mem.scope(name, name).list()] == [name]
    assert mem.scopes() == sorted((name, name) for name in AWKWARD)


@given(
    st.lists(
        st.tuples(st.sampled_from((None, "s", "s2", "S", "%")), st.sampled_from((None, "r", "R", "_"))),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from((None, "s", "s2", "never")),
    st.sampled_from((None, "r", "never")),
)
@settings(max_examples=60, deadline=None)
def test_a_narrowed_scope_sees_and_touches_only_its_rows(written, session, role):
    mem = memcore.open(embedder=None)
    all_ids = {}
    for place, (s, r) in enumerate(written):
        scope = mem.scope("t", "p", s, r)
        for kind in ("episodic", "semantic"):
            record = scope.remember(f"{place}", kind=kind, key=f"{kind} {place}", vector=[1.0, 0.0])
            assert (record.session_id, record.agent_role) == (s or "default", r or "default")
            all_ids[record.id] = (s or "default", r or "default")
    scope = mem.scope("t", "p", session, role)
    mine = {id for id, (s, r) in all_ids.items() if session in (None, s) and role in (None, r)}
    assert {record.id for record in scope.list()} == mine
    assert set(scope.recall(vector=[1.0, 0.0], k=100).ids) == mine
    assert scope.stats()["memories"] == scope.stats()["versions"] == len(mine)
    for id in all_ids:
        assert (scope.get(id) is not None) == (id in mine)
        assert (len(scope.history(id=id)) == 1) == (id in mine)
        if id not in mine:
            with pytest.raises(memcore.NotFound):
                scope.update(id, content="taken over")
            assert scope.forget(id).missing == [id]
    assert set(scope.forget(everything=True).ids) == mine
    assert {record.id for record in mem.scope("t", "p").list()} == set(all_ids) - mine


def test_a_narrowed_scope_exports_only_its_rows(tmp_path):
    mem = memcore.open(embedder=None)
    for session in ("s1", "s2"):
        mem.scope("t", "p", session).remember(f"in {session}")
    assert mem.scope("t", "p", "s1").export(tmp_path / "one.jsonl") == 1
    assert "in s2" not in (tmp_path / "one.jsonl").read_text()
    assert mem.scope("t", "p").export(tmp_path / "all.jsonl") == 2
    assert mem.export(tmp_path / "whole.json") == 2


def test_a_retry_in_another_session_is_another_message():
    mem = memcore.open(embedder=None)
    one, two = mem.scope("t", "p", "s1"), mem.scope("t", "p", "s2")
    first = one.remember("hello", idempotency_key="message 1")
    second = two.remember("hi", idempotency_key="message 1")
    assert second.id != first.id
    assert second.content == "hi"
    assert one.remember("hello", idempotency_key="message 1").id == first.id
    assert mem.scope("t", "p", "s1", "critic").remember("hm", idempotency_key="message 1").id not in (
        first.id,
        second.id,
    )


def test_a_key_names_one_record_in_the_whole_project():
    """Whichever session wrote it: a fact that one session learned is updated, not doubled, by another."""
    mem = memcore.open(embedder=None)
    one, two = mem.scope("t", "p", "s1"), mem.scope("t", "p", "s2")
    first = one.remember("blue", kind="semantic", key="colour")
    second = two.remember("red", kind="semantic", key="colour")
    assert (second.id, second.version, second.session_id) == (first.id, 2, "s2")
    assert one.get(key="colour") is None
    assert two.get(key="colour").content == "red"
    assert [r.content for r in mem.scope("t", "p").history("colour")] == ["blue", "red"]
    assert [r.content for r in one.history("colour")] == ["blue"]
    assert [r.content for r in two.history("colour")] == ["red"]


def test_a_row_cannot_say_that_it_belongs_elsewhere():
    mem = memcore.open(embedder=None)
    scope = mem.scope("t", "p", "s")
    for name, value in (("tenant_id", "u"), ("project_id", "q"), ("session_id", "s2")):
        with pytest.raises(memcore.ScopeError, match=f"{name} of the row is '{value}' and the scope's is"):
            scope.remember_many([{"content": "x", name: value}])
    scope.remember_many([{"content": "x", "tenant_id": "t", "project_id": "p", "session_id": "s", "agent_role": "r"}])
    mem.scope("t", "p").remember_many([{"content": "y", "session_id": "any"}])
    assert mem.scopes() == [("t", "p")]
    assert [(r.session_id, r.agent_role) for r in mem.scope("t", "p").list()] == [("s", "r"), ("any", "default")]


BAD = (None, "", " ", "\u200b", b"t", 7, True, ["t"], ("t", "p"), "a\0b", "\ud800", "x" * 513, np.str_(""))


@pytest.mark.parametrize("bad", BAD, ids=repr)
def test_a_scope_fails_closed(bad):
    mem = memcore.open(embedder=None)
    for name in ("tenant_id", "project_id", "session_id", "agent_role"):
        if bad is None and name in ("session_id", "agent_role"):
            continue  # these may be left out
        with pytest.raises(memcore.ScopeError, match=name):
            mem.scope(**{name: bad})
        with pytest.raises(memcore.ScopeError, match=name):
            mem.scope("t", "p").remember_many(
                [{"content": "x", name: bad}] if bad is not None else [{"content": "x", name: " "}]
            )
    assert mem.scopes() == []


def test_a_missing_tenant_is_told():
    with pytest.raises(memcore.ScopeError) as raised:
        memcore.open(embedder=None).scope(tenant_id=None)
    assert str(raised.value) == (
        "tenant_id is None; a scope is never guessed: pass a text, or leave the argument out for 'default'"
    )


def test_the_default_scope_is_a_scope_like_any_other():
    mem = memcore.open(embedder=None)
    record = mem.remember("x")
    assert (record.tenant_id, record.project_id, record.session_id, record.agent_role) == ("default",) * 4
    assert len(mem.scope().list()) == len(mem.scope("default", "default").list()) == 1
    assert len(mem.scope("other").list()) == 0
    assert repr(mem.scope("t", "p", "s")) == "<Scope tenant_id='t' project_id='p' session_id='s' agent_role=None>"


def test_reading_makes_no_scope():
    mem = memcore.open(embedder=None)
    scope = mem.scope("t", "p", "s")
    scope.list(), scope.recall(k=3), scope.get(key="k"), scope.forget(everything=True), scope.end_session()
    scope.remember_many([])
    assert scope.working().messages() == []
    assert mem.scopes() == []
    assert sum(partition.live() for partition in mem._engine.catalog.partitions.values()) == 0


def test_a_scope_that_was_emptied_is_gone():
    mem = memcore.open(embedder=None)
    scope = mem.scope("t", "p")
    scope.remember("x")
    scope.forget(everything=True)
    assert mem.scopes() == []
    scope.remember("y")
    assert mem.scopes() == [("t", "p")]


# Cases


def test_case_B1_a_scope_given_at_query_time_holds():
    mem = memcore.open(embedder="hashed")
    for tenant, text in (("u1", "lives in Norway"), ("u2", "lives in Chile")):
        mem.scope(tenant).remember(text)
    assert [hit.content for hit in mem.scope("u1").recall("where lives", k=5)] == ["lives in Norway"]
    assert len(mem.scope("u3").recall("where lives", k=5)) == 0


def test_case_B2_forgetting_one_tenant_leaves_the_other(tmp_path):
    with memcore.open(tmp_path / "store", embedder=None) as mem:
        mem.scope("A").remember_many(["1", "2", "3"])
        mem.scope("B").remember_many(["1", "2", "3", "4"])
        assert mem.scope("A").forget(everything=True).count == 3
        assert (len(mem.scope("A").list()), len(mem.scope("B").list())) == (0, 4)
    with memcore.open(tmp_path / "store", embedder=None) as mem:
        assert (len(mem.scope("A").list()), len(mem.scope("B").list())) == (0, 4)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda mem: mem.scope("t").forget(), memcore.InvalidInput),
        (lambda mem: mem.scope(tenant_id=None).forget(everything=True), memcore.ScopeError),
        (lambda mem: mem.scope("t").forget(where={}), memcore.InvalidInput),
        (lambda mem: mem.scope(tenant_id="").forget(everything=True), memcore.ScopeError),
        (lambda mem: mem.scope("t").forget(None, where=None, kinds=None, older_than_days=None), memcore.InvalidInput),
        (lambda mem: mem.scope("t").forget(""), memcore.InvalidInput),
        (lambda mem: mem.scope("t").forget(kinds=[]), memcore.InvalidInput),
        (lambda mem: mem.scope("t").forget(everything=1), memcore.InvalidInput),
        (lambda mem: mem.scope("t").forget(dry_run=True), memcore.InvalidInput),
    ],
    ids=[
        "nothing",
        "tenant None",
        "empty filter",
        "blank tenant",
        "all None",
        "blank id",
        "no kinds",
        "everything=1",
        "dry",
    ],
)
def test_case_B3_a_bulk_delete_without_a_condition_is_refused(call, error):
    mem = memcore.open(embedder=None)
    mem.scope("t").remember_many(["1", "2", "3", "4", "5"])
    with pytest.raises(error):
        call(mem)
    assert len(mem.scope("t").list()) == 5


def test_case_B3_the_error_says_how_to_empty_a_scope():
    with pytest.raises(memcore.InvalidInput) as raised:
        memcore.open(embedder=None).forget()
    assert str(raised.value) == (
        "forget got nothing to go by; pass ids, where=, kinds=, older_than_days= or max_access=, or everything=True to "
        "empty this scope"
    )


def test_case_B7_an_apostrophe_is_a_letter():
    mem = memcore.open(embedder=None)
    for tenant in ("D'Arcy", "Darcy"):
        mem.scope(tenant, session_id=tenant).remember(tenant, kind="semantic", key="D'Arcy")
    assert mem.scope("D'Arcy").forget(where={"session_id": "D'Arcy", "key": "D'Arcy"}).count == 1
    assert (len(mem.scope("D'Arcy").list()), len(mem.scope("Darcy").list())) == (0, 1)


def test_case_B17_a_scoped_delete_takes_all():
    scope = memcore.open(embedder=None).scope("t1")
    scope.remember_many([str(i) for i in range(35)])
    assert int(scope.forget(everything=True)) == 35
    assert len(scope.list()) == 0
    assert int(scope.forget(everything=True)) == 0

"""update: the next version with some fields changed, and compare-and-swap."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

import memcore
from memcore.schema import COLUMNS

T = datetime(2026, 3, 1, 9, 30, tzinfo=UTC)
LATER = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)


@pytest.fixture
def mem() -> memcore.Memory:
    return memcore.open(embedder=None, clock=lambda: T)


def changed(before: memcore.Record, after: memcore.Record) -> set[str]:
    return {name for name in COLUMNS if not np.array_equal(getattr(before, name), getattr(after, name))}


FIELDS: dict[str, tuple[Any, Any]] = {
    "content": ("new", "new"),
    "importance": (0.25, 0.25),
    "event_time": (LATER, LATER),
    "expires_at": (LATER, LATER),
    "metadata": ({"b": 2}, {"b": 2}),
    "source": ("told_by_user", "told_by_user"),
    "confidence": (0.5, 0.5),
    "untrusted": (True, True),
    "vector": ([0.0, 2.0], [0.0, 1.0]),
}


@pytest.mark.parametrize("field", FIELDS)
def test_one_field_changes_and_the_others_stay(field):
    mem = memcore.open(embedder=lambda texts: [[1.0, 0.0] for _ in texts], clock=lambda: T)
    ops = mem.scope("t", "p", "s", "r")
    first = ops.remember("old", kind="semantic", key="k", metadata={"a": 1}, importance=0.9, level=2)
    given, stored = FIELDS[field]
    second = ops.update(first.id, **{field: given}, now=LATER)
    value = getattr(second, field)
    assert (value.tolist() if field == "vector" else value) == stored
    assert changed(first, second) == {field, "seq", "version", "ingested_at"}
    assert (second.version, second.ingested_at) == (2, LATER)
    assert ops.list()[0] == second


def test_case_C7_new_content_leaves_the_rest(mem):
    def embed(texts: list[str]) -> Any:
        return [[1.0, len(text)] for text in texts]

    mem = memcore.open(embedder=embed, clock=lambda: T)
    ops = mem.scope("t1", "p")
    first = ops.remember("likes tea", importance=0.8, metadata={"tags": ["food"], "prio": 2}, event_time=5)
    ops.get(first.id)
    second = ops.update(first.id, content="likes coffee", now=LATER)
    assert changed(first, second) == {
        "content",
        "vector",
        "seq",
        "version",
        "ingested_at",
        "access_count",
        "last_access",
    }
    assert (second.access_count, second.metadata) == (1, {"tags": ["food"], "prio": 2})
    assert np.allclose(second.vector, np.array([1.0, 12.0]) / np.hypot(1, 12))


def test_none_empties_metadata_and_takes_away_an_expiry(mem):
    first = mem.remember("x", metadata={"a": 1}, expires_at=LATER)
    second = mem.update(first.id, metadata=None, expires_at=None)
    assert (second.metadata, second.expires_at) == ({}, None)


@pytest.mark.parametrize(
    "field", ["content", "importance", "event_time", "source", "confidence", "untrusted", "vector"]
)
def test_none_is_no_value_for_the_others(mem, field):
    first = mem.remember("x")
    with pytest.raises(memcore.InvalidInput, match=f"^{field} is None"):
        mem.update(first.id, **{field: None})
    assert mem.list()[0].version == 1


def test_new_content_without_an_embedder_has_no_vector(mem):
    first = mem.remember("x", vector=[1.0, 0.0])
    assert mem.update(first.id, content="y").vector is None
    assert mem.update(first.id, content="z", vector=[0.0, 1.0]).vector.tolist() == [0.0, 1.0]
    assert mem.update(first.id, importance=1).vector.tolist() == [0.0, 1.0]


def test_a_vector_of_another_width_is_refused(mem):
    first = mem.remember("x", vector=[1.0, 0.0])
    with pytest.raises(memcore.DimensionMismatch, match="vector has 3 dimensions and the store has 2"):
        mem.update(first.id, vector=[1.0, 0.0, 0.0])


def test_nothing_to_change_is_an_error(mem):
    first = mem.remember("x")
    with pytest.raises(memcore.InvalidInput) as raised:
        mem.update(first.id, if_version=1)
    assert str(raised.value) == "update got nothing to change; pass content, importance, metadata or another field"


@pytest.mark.parametrize("gone", ["never there", "forgotten", "expired", "in another session"])
def test_what_is_not_there_cannot_be_updated(mem, gone):
    ops = mem.scope("t", "p", "s")
    id = ops.remember("x", expires_at=LATER if gone == "expired" else None).id
    if gone == "forgotten":
        ops.forget(id)
    if gone == "never there":
        id = "01890a5d-ac96-774b-bcce-b302099a8057"
    if gone == "in another session":
        ops = mem.scope("t", "p", "s2")
    with pytest.raises(memcore.NotFound) as raised:
        ops.update(id, importance=1.0, now=LATER)
    assert str(raised.value) == (
        f"no memory {id} in tenant 't', project 'p'; it was never there, was forgotten, has expired (a new "
        "expires_at renews it) or lies in the cold tier (restore it first): list() shows what is there"
    )
    assert isinstance(raised.value, KeyError)


def test_an_update_can_prolong_what_has_not_expired(mem):
    first = mem.remember("x", expires_at=100, now=1)
    mem.update(first.id, expires_at=200, now=99)
    assert mem.get(first.id, now=150) is not None


@pytest.mark.parametrize("until", [500, None])
def test_a_new_time_of_expiry_renews_what_has_expired(mem, until):
    first = mem.remember("x", kind="semantic", key="k", expires_at=100, now=1)
    with pytest.raises(memcore.NotFound):
        mem.update(first.id, importance=1.0, now=200)
    renewed = mem.update(first.id, expires_at=until, importance=1.0, now=200)
    assert (renewed.version, renewed.importance) == (2, 1.0)
    assert mem.get(first.id, now=300) is not None
    assert mem.get(first.id, now=300, as_of=150) is None  # between the two it was not true
    assert mem.get(first.id, as_of=50) is not None
    assert len(mem.history("k")) == 2


def test_an_updated_event_keeps_its_key_and_place_in_history(mem):
    first = mem.remember("A", key="k")
    mem.update(first.id, content="B")
    assert [(r.version, r.content) for r in mem.history("k")] == [(1, "A"), (2, "B")]
    assert [r.content for r in mem.history(id=first.id)] == ["A", "B"]
    assert mem.get(key="k").content == "B"


def test_an_updated_fact_is_still_the_one_that_its_key_names(mem):
    first = mem.remember("A", kind="semantic", key="k")
    mem.update(first.id, content="B")
    assert mem.remember("C", kind="semantic", key="k").version == 3
    assert len(mem.list()) == 1


# Compare and swap


def test_if_version_must_match(mem):
    first = mem.remember("x")
    assert mem.update(first.id, content="y", if_version=1).version == 2
    with pytest.raises(memcore.VersionConflict) as raised:
        mem.update(first.id, content="z", if_version=1)
    assert (raised.value.expected, raised.value.found) == (1, 2)
    assert str(raised.value) == (
        f"memory {first.id} is at version 2, not 1; someone else changed it first: get it again, and "
        "update with if_version=2"
    )
    assert mem.get(first.id).content == "y"


@pytest.mark.parametrize("bad", [0, -1, True, 1.0, "1"])
def test_if_version_is_a_whole_number_from_one(mem, bad):
    first = mem.remember("x")
    with pytest.raises(memcore.InvalidInput, match=r"^if_version is"):
        mem.update(first.id, content="y", if_version=bad)


def test_increments_of_eight_threads_add_up(mem):
    id = mem.remember("counter", metadata={"n": 0}).id
    conflicts = []

    def increment(_: int) -> None:
        for _ in range(25):
            while True:
                record = mem.get(id)
                try:
                    mem.update(id, metadata={"n": record.metadata["n"] + 1}, if_version=record.version)
                    break
                except memcore.VersionConflict as conflict:
                    conflicts.append(conflict.found - conflict.expected)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(increment, range(8)))
    finally:
        sys.setswitchinterval(interval)
    record = mem.get(id)
    assert (record.metadata, record.version) == ({"n": 200}, 201)
    assert all(behind > 0 for behind in conflicts)
    assert [r.version for r in mem.history(id=id)] == list(range(1, 202))

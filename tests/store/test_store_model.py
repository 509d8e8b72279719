"""Any calls in any order, over tiny segments, against a plain model of the store."""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

import memcore
import naive
from memcore.store import segment
from modelled import KINDS, Conflict, Model, Row, Where, at, bits, columns

CAPACITY = 3
START = 1_790_000_000_000_000
HOUR = 3_600_000_000
TENANTS = ("a", "ab", "a%", "_", "D'Arcy", "caf\u00e9", "cafe\u0301", "A")
SCOPES = (
    *(Where(tenant, "p") for tenant in TENANTS),
    Where("a", "p%"),
    Where("a", "p", "s"),
    Where("a", "p", "s2", "r"),
    Where("a", "p", None, "r"),
    Where("ab", "p", "%"),
)
VECTORS = [naive.unit(row) for row in np.random.default_rng(7).standard_normal((5, 3))]
QUERIES = [naive.unit(row) for row in np.random.default_rng(8).standard_normal((3, 3))]
IDS = [str(uuid.UUID(int=n << 64 | n * 977)) for n in range(1, 6)]  # ids of the caller's own

# mostly one project, so that its sessions meet, its segments fill and its keys are used again
scopes = st.sampled_from(("project", "project", "project", "any")).flatmap(
    lambda which: st.sampled_from([w for w in SCOPES if which == "any" or w.partition == ("a", "p")])
)
keys = st.sampled_from(("k", "k", "K%"))
contents = st.sampled_from(("one", "two", "três\u2028linhas", "\u00e9\r\n", "🦉"))
importances = st.sampled_from((0.0, 0.25, 0.9, 1.0))
metadata = st.sampled_from(
    ({}, {"host": "web01"}, {"host": "web02", "n": 1}, {"role": "system"}, {"n": 2.5, "ok": True})
)
vectors = st.none() | st.sampled_from(VECTORS)
# now and then the clock goes back, and expiry is at a moment that calls hit exactly
steps = st.sampled_from((0, 1, HOUR, HOUR, 30 * HOUR, -HOUR))
rows = st.fixed_dictionaries(
    {"content": contents},
    optional={
        "kind": st.sampled_from(KINDS),
        "key": keys,
        "importance": importances,
        "event_time": st.sampled_from((0, -HOUR, -400 * HOUR, 5 * HOUR)),  # from now
        "expires_at": st.sampled_from((HOUR, 2 * HOUR)),  # from now
        "metadata": metadata,
        "source": st.sampled_from(("observation", "told_by_user", "a hunch")),
        "confidence": importances,
        "untrusted": st.booleans(),
        "level": st.integers(0, 2),
        "vector": vectors,
        "idempotency_key": st.sampled_from(("i1", "i2", "i3")),
        "id": st.sampled_from(IDS),
    },
)


class Store(RuleBasedStateMachine):
    memories = Bundle("memories")

    def __init__(self) -> None:
        super().__init__()
        self._rows = segment.ROWS, segment._FIRST_ROWS
        segment.ROWS, segment._FIRST_ROWS = 8, 2
        self.now = START
        self.folder = tempfile.TemporaryDirectory()
        self.model = Model(CAPACITY)
        self.mem = self.opened()

    def teardown(self) -> None:
        try:
            for where in SCOPES:
                self.compare(where)
        finally:
            segment.ROWS, segment._FIRST_ROWS = self._rows
            self.mem.close()
            self.folder.cleanup()

    def opened(self) -> memcore.Memory:
        return memcore.open(embedder=None, clock=lambda: at(self.now), working_capacity=CAPACITY)

    def scope(self, where: Where) -> memcore.Scope:
        return self.mem.scope(**vars(where))

    def row(self, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The arguments for the store, and the same for the model."""
        modelled = dict(given)
        for name in ("event_time", "expires_at"):
            if name in given:
                modelled[name] = self.now + given[name]
        asked = {name: at(v) if name in ("event_time", "expires_at") else v for name, v in modelled.items()}
        return asked, modelled

    # Writing

    @rule(target=memories, where=scopes, given=rows)
    def remember(self, where: Where, given: dict[str, Any]) -> tuple[Where, str]:
        asked, modelled = self.row(given)
        made: list[Any] = []

        def remembered() -> list[str]:
            made.append(self.scope(where).remember(**asked))
            return [made[0].id]

        try:
            (row,) = self.model.commit(where, [modelled], self.now, remembered)
        except Conflict:
            with pytest.raises(memcore.InvalidInput, match=r"in use here|a key names one memory"):
                self.scope(where).remember(**asked)
            return where, given["id"]
        assert columns(made[0]) == row.columns(where)
        return where, row.id

    @rule(where=scopes, given=st.lists(rows, max_size=12))
    def remember_many(self, where: Where, given: list[dict[str, Any]]) -> None:
        pairs = [self.row(row) for row in given]
        asked, modelled = [a for a, _ in pairs], [m for _, m in pairs]
        try:
            self.model.commit(where, modelled, self.now, lambda: list(self.scope(where).remember_many(asked)))
        except Conflict:
            with pytest.raises(memcore.InvalidInput, match=r"in use here|a key names one memory"):
                self.scope(where).remember_many(asked)

    @rule(
        memory=memories,
        changes=st.fixed_dictionaries(
            {"importance": importances},
            optional={
                "content": contents,
                "metadata": metadata,
                "vector": st.sampled_from(VECTORS),
                "untrusted": st.just(True),
            },
        ),
        guess=st.sampled_from((None, 0, 1)),
    )
    def update(self, memory: tuple[Where, str], changes: dict[str, Any], guess: int | None) -> None:
        where, id = memory
        standing = [row for row in self.model.seen(where, self.now) if row.id == id]
        call = self.scope(where).update
        if not standing:
            with pytest.raises(memcore.NotFound):
                call(id, **changes)
            return
        version = standing[0].version
        if guess:
            with pytest.raises(memcore.VersionConflict) as raised:
                call(id, **changes, if_version=version + guess)
            assert (raised.value.expected, raised.value.found) == (version + guess, version)
            return
        record = call(id, **changes, if_version=None if guess is None else version)
        if "content" in changes:
            changes = {"vector": None, **changes}  # there is no embedder
        assert columns(record) == self.model.replace(where, standing[0], changes, self.now).columns(where)

    @rule(where=scopes, memory=memories, other=memories, dry_run=st.booleans())
    def forget_ids(self, where: Where, memory: tuple[Where, str], other: tuple[Where, str], dry_run: bool) -> None:
        asked = [memory[1], other[1], memory[1]]
        here = [row.id for row in self.model.last_versions(where) if row.id in asked]
        report = self.scope(where).forget(asked, dry_run=dry_run)
        assert (report.ids, report.missing) == (here, [id for id in dict.fromkeys(asked) if id not in here])
        if not dry_run:
            self.model.forget(where, set(here))

    @rule(
        where=scopes,
        asked=st.fixed_dictionaries(
            {},
            optional={
                "kinds": st.sampled_from((("working",), ("episodic", "semantic"), ("procedural",))),
                "where": st.sampled_from(
                    ({"metadata.host": "web01"}, {"key": "k"}, {"importance": 0.9}, {"untrusted": True})
                ),
                "older_than_days": st.sampled_from((0.0, 1.0, 10)),
                "max_access": st.sampled_from((0, 1)),
            },
        ).filter(bool),
        dry_run=st.booleans(),
    )
    def forget_where(self, where: Where, asked: dict[str, Any], dry_run: bool) -> None:
        def chosen(row: Row) -> bool:
            older = self.now - asked.get("older_than_days", -1e6) * 24 * HOUR
            wanted = asked.get("where", {})
            return (
                row.kind in asked.get("kinds", KINDS)
                and row.event_time < older
                and row.access_count <= asked.get("max_access", 10**6)
                and all(
                    (row.metadata.get(name[9:]) if name.startswith("metadata.") else getattr(row, name)) == value
                    for name, value in wanted.items()
                )
            )

        here = [row.id for row in self.model.last_versions(where) if chosen(row)]
        assert self.scope(where).forget(**asked, dry_run=dry_run).ids == here
        if not dry_run:
            self.model.forget(where, set(here))

    @rule(where=scopes)
    def forget_everything(self, where: Where) -> None:
        here = [row.id for row in self.model.last_versions(where)]
        assert self.scope(where).forget(everything=True).ids == here
        self.model.forget(where, set(here))
        assert self.scope(where).forget(everything=True).ids == []

    @rule(where=scopes)
    def end_session(self, where: Where) -> None:
        ended = self.scope(where).end_session()
        assert ended == [row.id for row in self.model.end_session(where, self.now)]

    # Reading

    @rule(
        where=scopes,
        query=st.none() | st.sampled_from(QUERIES),
        k=st.sampled_from((0, 1, 3, 50)),
        kinds=st.sampled_from((("episodic", "semantic"), KINDS, ("working",))),
        host=st.none() | st.sampled_from(("web01", "web02")),
        weights=st.sampled_from(((0.5, 0.3, 0.2), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0))),
        as_of=st.none() | st.sampled_from((0, -HOUR, -31 * HOUR, HOUR)),
    )
    def recall(self, where: Where, query: Any, k: int, kinds: Any, host: Any, weights: Any, as_of: int | None) -> None:
        then = None if as_of is None else self.now + as_of
        moment = self.now if then is None else then
        seen = self.model.seen(where, moment, kinds, then)
        records = [
            SimpleNamespace(
                id=row.id,
                kind=row.kind,
                vector=row.vector,
                event_time=at(row.event_time),
                importance=row.importance,
                row=row,
            )
            for row in seen
            if host is None or row.metadata.get("host") == host
        ]
        expected = naive.recall(records, query, k=k, now=moment, weights=weights, kinds=kinds)
        hits = self.scope(where).recall(
            vector=query,
            k=k,
            kinds=kinds,
            weights=weights,
            where=None if host is None else {"metadata.host": host},
            as_of=None if then is None else at(then),
        )
        assert [hit.id for hit in hits] == [answer.id for answer in expected]
        for hit, answer in zip(hits, expected, strict=True):
            assert hit.total_score == pytest.approx(answer.total_score, abs=1e-12)
        if then is None:
            ids = {answer.id for answer in expected}
            self.model.touch((row for row in seen if row.id in ids), self.now)

    @rule(where=scopes, memory=memories)
    def get(self, where: Where, memory: tuple[Where, str]) -> None:
        found = self.scope(where).get(memory[1])
        row = self.model.get(where, self.now, id=memory[1])
        assert (found and columns(found)) == (row and row.columns(where))

    @rule(where=scopes, key=keys)
    def get_by_key(self, where: Where, key: str) -> None:
        found = self.scope(where).get(key=key)
        row = self.model.get(where, self.now, key=key)
        assert (found and columns(found)) == (row and row.columns(where))

    @rule(where=scopes, key=keys, memory=memories)
    def history(self, where: Where, key: str, memory: tuple[Where, str]) -> None:
        scope = self.scope(where)
        assert shown(scope.history(key)) == expected(where, self.model.history(where, key=key))
        assert shown(scope.history(id=memory[1])) == expected(where, self.model.history(where, id=memory[1]))

    @rule(
        where=scopes,
        back=st.sampled_from((0, 1, HOUR, 31 * HOUR, -HOUR)),
        kinds=st.sampled_from((KINDS, ("semantic",))),
    )
    def list_as_of(self, where: Where, back: int, kinds: tuple[str, ...]) -> None:
        then = self.now - back
        listed = self.scope(where).list(kinds=kinds, as_of=at(then))
        assert shown(listed) == expected(where, self.model.seen(where, then, kinds, then))

    # The rest

    @rule(step=steps)
    def wait(self, step: int) -> None:
        self.now += step

    @rule(format=st.sampled_from(("json", "jsonl", "parquet")))
    def move(self, format: str) -> None:
        """Goes on in a store that imported what this one exported."""
        path = Path(self.folder.name) / f"état de l'art {format}"
        total = sum(len(rows) for rows in self.model.rows.values())
        seqs = [record.seq for where in SCOPES for record in self.scope(where).list(now=at(0))]
        assert self.mem.export(path, format) == total
        self.mem = self.opened()
        report = self.mem.import_(path, format)
        assert (report.new, report.present) == (total, 0)
        assert [record.seq for where in SCOPES for record in self.scope(where).list(now=at(0))] == seqs
        report = self.mem.import_(path, format)
        assert (report.new, report.present) == (0, total)

    @invariant()
    def counts(self) -> None:
        stats = self.mem.stats()
        rows = [row for rows in self.model.rows.values() for row in rows]
        assert stats["versions"] == len(rows)
        assert stats["memories"] == sum(row.superseded_at is None for row in rows)
        assert self.mem.scopes() == sorted(self.model.rows)

    @invariant()
    def segments_are_bounded(self) -> None:
        for partition in self.mem._engine.catalog.partitions.values():
            for part in partition.segments:
                assert part.n <= 8
                assert part.sealed == (part is not partition.segments[-1] or part.n == 8 or part.sealed)

    @rule(where=scopes)
    def compare(self, where: Where) -> None:
        scope = self.scope(where)
        assert shown(scope.list()) == expected(where, self.model.seen(where, self.now))
        stats = scope.stats()
        mine = [row for row in self.model.all(where) if where.sees(row)]
        assert stats["versions"] == len(mine)
        for kind in KINDS:
            assert stats["by_kind"][kind] == sum(row.kind == kind and row.superseded_at is None for row in mine)
        alive = Where(*where.partition, *where.conversation)
        order = [row.id for row in self.model.all(where)]
        held = sorted(self.model.seen(alive, self.now, ("working",)), key=lambda row: order.index(row.id))
        assert [entry.id for entry in scope.working().entries()] == [row.id for row in held]

    @precondition(lambda self: self.model.rows)
    @rule(data=st.data())
    def seqs_rise(self, data: st.DataObject) -> None:
        where = Where(*data.draw(st.sampled_from(sorted(self.model.rows))))
        seqs = [record.seq for record in self.scope(where).list()]
        assert seqs == sorted(set(seqs))


def shown(records: Any) -> list[dict[str, Any]]:
    return [columns(record) for record in records]


def expected(where: Where, rows: list[Row]) -> list[dict[str, Any]]:
    return [row.columns(where) for row in rows]


TestStore = Store.TestCase
TestStore.settings = settings(
    max_examples=80, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_the_model_compares_vectors_by_their_bits() -> None:
    assert bits(np.zeros(2, np.float32)) != bits(np.full(2, -0.0, np.float32))

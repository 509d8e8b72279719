"""What must a store hold after any calls? A plain model: one list of row versions a scope, searched from end to end.

It knows nothing of segments, indexes or snapshots. Ids are those that the store under test has given; times are int µs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

KINDS = ("working", "episodic", "semantic", "procedural")
UPSERTED = ("semantic", "procedural")


def at(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


@dataclass(frozen=True)
class Where:
    """A scope: a session or role of None sees all of them, and writes into "default"."""

    tenant_id: str = "default"
    project_id: str = "default"
    session_id: str | None = None
    agent_role: str | None = None

    @property
    def partition(self) -> tuple[str, str]:
        return self.tenant_id, self.project_id

    @property
    def conversation(self) -> tuple[str, str]:
        return self.session_id or "default", self.agent_role or "default"

    def sees(self, row: Row) -> bool:
        return self.session_id in (None, row.session_id) and self.agent_role in (None, row.agent_role)


@dataclass
class Row:
    """One version of one memory, with the columns of a record; times in µs."""

    id: str
    content: str
    session_id: str
    agent_role: str
    event_time: int
    ingested_at: int
    kind: str = "episodic"
    key: str | None = None
    importance: float = 0.5
    expires_at: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    source: str = "observation"
    confidence: float = 1.0
    untrusted: bool = False
    level: int = 0
    vector: np.ndarray | None = None
    idempotency_key: str | None = None
    version: int = 1
    access_count: int = 0
    last_access: int | None = None
    superseded_at: int | None = None
    fell: int | None = None  # its place among what fell out of the working memory

    def columns(self, where: Where) -> dict[str, Any]:
        """What a record of this row must show, but for its seq."""
        shown = {name: getattr(self, name) for name in SHOWN}
        for name in ("event_time", "ingested_at", "expires_at", "last_access", "superseded_at"):
            shown[name] = None if shown[name] is None else at(shown[name])
        return {**shown, "tenant_id": where.tenant_id, "project_id": where.project_id, "vector": bits(self.vector)}


def bits(vector: np.ndarray | None) -> bytes | None:
    return None if vector is None else vector.tobytes()


def columns(record: Any) -> dict[str, Any]:
    """A record of the store in the form of `Row.columns`."""
    names = ("tenant_id", "project_id", *SHOWN)
    return {**{name: getattr(record, name) for name in names}, "vector": bits(record.vector)}


SHOWN = tuple(name for name in Row.__dataclass_fields__ if name not in ("vector", "fell"))


class Conflict(Exception):
    """The call must be refused, and change nothing."""


class Model:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.rows: dict[tuple[str, str], list[Row]] = {}
        self.fallen = 0

    # Reading

    def all(self, where: Where) -> list[Row]:
        return self.rows.get(where.partition, [])

    def seen(self, where: Where, now: int, kinds: Sequence[str] = KINDS, as_of: int | None = None) -> list[Row]:
        """What stands, in the order in which it was last written."""
        return [
            row
            for row in self.all(where)
            if where.sees(row)
            and row.kind in kinds
            and (row.expires_at is None or row.expires_at > now)
            and (as_of is None or row.ingested_at <= as_of)
            and (row.superseded_at is None or (as_of is not None and row.superseded_at > as_of))
        ]

    def versions(self, where: Where, id: str) -> list[Row]:
        return [row for row in self.all(where) if row.id == id and where.sees(row)]

    def under(self, where: Where, key: str) -> list[Row]:
        return [row for row in self.all(where) if row.key == key and where.sees(row)]

    def get(self, where: Where, now: int, id: str | None = None, key: str | None = None) -> Row | None:
        found = [row for row in self.seen(where, now) if (row.key == key if id is None else row.id == id)]
        if not found:
            return None
        self.touch(found[-1:], now)
        return found[-1]

    def touch(self, rows: Iterable[Row], now: int) -> None:
        for row in rows:
            row.access_count += 1
            row.last_access = max(now, row.last_access or now)

    def history(self, where: Where, id: str | None = None, key: str | None = None) -> list[Row]:
        if id is None:
            known = self.under(where, key or "")
            id = known[-1].id if known else ""
        return self.versions(where, id)

    # Writing

    def commit(self, where: Where, rows: list[dict[str, Any]], now: int, made: Callable[[], list[str]]) -> list[Row]:
        """The rows that the calls return. `made` gives the ids that the store under test returned, a row each."""
        held = self.all(where)
        planned: list[Row] = []  # what is added
        answers: list[Row] = []
        replaced: list[tuple[Row, int]] = []
        for given in rows:
            row = self._row(where, given, now)
            first = self._first_use(held + planned, row)
            if first is not None:
                answers.append(first)
                continue
            old = self._upserted([r for r in held + planned if all(r is not gone for gone, _ in replaced)], row)
            asked = given.get("id")
            if asked is not None:
                if old is not None and old.id != asked:
                    raise Conflict
                if old is None and any(r.id == asked for r in held + planned):
                    raise Conflict
                row.id = asked
            if old is not None:
                row.id, row.version = old.id, old.version + 1
                row.ingested_at = max(row.ingested_at, old.ingested_at)
                replaced.append((old, row.ingested_at))
            planned.append(row)
            answers.append(row)
        for row, id in zip(answers, made(), strict=True):
            assert row.id in ("", id), "an id that was settled already"
            row.id = id
        for old, time in replaced:
            old.superseded_at = time
        if planned:
            self.rows.setdefault(where.partition, []).extend(planned)
        for conversation in {(r.session_id, r.agent_role) for r in planned if r.kind == "working"}:
            self._make_room(where, conversation, now)
        return answers

    def _row(self, where: Where, given: dict[str, Any], now: int) -> Row:
        session, role = where.conversation
        fields = {name: value for name, value in given.items() if value is not None and name != "id"}
        return Row(
            **{
                "id": "",
                "session_id": session,
                "agent_role": role,
                "event_time": now,
                "ingested_at": now,
                **copy.deepcopy(fields),
            }
        )

    def _first_use(self, rows: list[Row], row: Row) -> Row | None:
        if row.idempotency_key is None:
            return None
        same = ("idempotency_key", "session_id", "agent_role")
        return next((r for r in rows if all(getattr(r, name) == getattr(row, name) for name in same)), None)

    def _upserted(self, rows: list[Row], row: Row) -> Row | None:
        if row.key is None or row.kind not in UPSERTED:
            return None
        return next((r for r in rows if (r.kind, r.key, r.superseded_at) == (row.kind, row.key, None)), None)

    def _make_room(self, where: Where, conversation: tuple[str, str], now: int) -> None:
        mine = [
            row
            for row in self.all(where)
            if row.kind == "working" and row.superseded_at is None and (row.session_id, row.agent_role) == conversation
        ]
        order = [row.id for row in self.all(where)]
        mine.sort(key=lambda row: order.index(row.id))  # one that was changed keeps its place
        system = [row for row in mine if row.metadata.get("role") == "system"][:1]
        leaving = [row for row in mine[:-1] if row not in system]
        for row in leaving[: max(0, len(mine) - self.capacity)]:
            row.superseded_at = max(now, row.ingested_at)
            row.fell = self.fallen = self.fallen + 1

    def replace(self, where: Where, row: Row, changes: dict[str, Any], now: int) -> Row:
        new = copy.copy(row)
        new.metadata = copy.deepcopy(row.metadata)
        for name, value in changes.items():
            setattr(new, name, copy.deepcopy(value))
        new.version, new.idempotency_key, new.superseded_at, new.fell = row.version + 1, None, None, None
        new.ingested_at = max(now, row.ingested_at)
        if row.superseded_at is None:
            row.superseded_at = new.ingested_at
        self.all(where).append(new)
        if new.kind == "working":
            self._make_room(where, (new.session_id, new.agent_role), now)
        return new

    def last_versions(self, where: Where) -> list[Row]:
        """The last version of each memory, whether it stands or has fallen out of the working memory."""
        last = {row.id: row for row in self.all(where)}
        return [row for row in self.all(where) if last[row.id] is row and where.sees(row)]

    def forget(self, where: Where, ids: set[str]) -> None:
        left = [row for row in self.all(where) if row.id not in ids]
        if left:
            self.rows[where.partition] = left
        else:
            self.rows.pop(where.partition, None)

    def end_session(self, where: Where, now: int) -> list[Row]:
        order = [row.id for row in self.all(where)]
        ended = [
            row
            for row in self.last_versions(Where(*where.partition))
            if row.kind == "working" and (row.session_id, row.agent_role) == where.conversation
        ]
        ended.sort(key=lambda row: (row.fell is None, row.fell or order.index(row.id)))
        return [self.replace(where, row, {"kind": "episodic"}, now) for row in ended]

"""The verbs: what an agent does with its memory. Each checks at the gate, calls one room, and returns records or reports."""

from __future__ import annotations

import builtins
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore import clock, config, gate, intake
from memcore import ids as _ids
from memcore.agent.working import CountTokens, Working, estimate_tokens, evicted
from memcore.errors import InvalidInput, NotFound, StoreClosed, VersionConflict
from memcore.gate import KINDS
from memcore.schema import Record, Records
from memcore.search import exact, result
from memcore.search.filter import Where, compile_where
from memcore.store import portable, saved
from memcore.store.catalog import Catalog
from memcore.store.partition import Partition, Ref
from memcore.store.segment import FORGOTTEN
from memcore.store.snapshot import EVERY, Mask, Selection, Snapshot

if TYPE_CHECKING:
    from memcore.embed.protocol import Embedder, EmbedderSpec

WORKING = KINDS.index("working")
EPISODIC = KINDS.index("episodic")
RECALLED = ("episodic", "semantic")
EMBED_BATCH = 4096
F32 = npt.NDArray[np.float32]


class _Keep:
    def __repr__(self) -> str:
        return "KEEP"


KEEP: Final = _Keep()
"""Leaves a field as it is: the default of every field of `update`, since None has a meaning of its own there."""


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """`ids` of the memories that were forgotten (or would be, if `dry_run`), `missing` the ids asked for but not there."""

    ids: builtins.list[str]
    missing: builtins.list[str] = field(default_factory=list)
    dry_run: bool = False

    @property
    def count(self) -> int:
        return len(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __int__(self) -> int:
        return len(self.ids)


class WriteResult(builtins.list[str]):
    """The ids that `remember_many` stored, in order. With on_invalid="skip", `faults` tells why rows are missing, by row."""

    def __init__(self, stored: Iterable[str], faults: Mapping[int, Exception]) -> None:
        super().__init__(stored)
        self.faults = {row: str(fault) for row, fault in faults.items()}


@dataclass(slots=True)
class Engine:
    """What all scopes of one open store share."""

    catalog: Catalog
    embedder: Embedder | None
    clock: clock.Clock
    weights: config.Weights
    decay_rate: float
    working: config.WorkingLimits
    count_tokens: CountTokens
    saved: saved.SavedStore | None = None
    changes: int = 0  # commits, marks and counts since the store was loaded or saved
    closed: bool = False

    def now(self, given: object) -> int:
        return clock.to_micros(self.clock(), "the clock's time") if given is None else clock.to_micros(given, "now")

    def check_open(self) -> None:
        if self.closed:
            raise StoreClosed("the store is closed; open it again with memcore.open")

    def embed(self, texts: Sequence[str], kind: Literal["document", "query"]) -> F32 | None:
        """float32 `(n, dim)`, or None where the store has no embedder. Never called under the lock."""
        if self.embedder is None or not texts:
            return None
        parts = [self.embedder.embed(texts[i : i + EMBED_BATCH], kind) for i in range(0, len(texts), EMBED_BATCH)]
        made = parts[0] if len(parts) == 1 else np.concatenate(parts)
        self.catalog.settle_dim(made.shape[1])
        return made


class Scope:
    """One (tenant, project), perhaps narrowed to a session and an agent role. All verbs stay inside it.

    Reads of a scope without a session see all sessions; what it writes goes into session "default". Likewise for roles.
    A key names one record in the whole (tenant, project), whichever session wrote it.
    """

    def __init__(self, engine: Engine, tenant_id: str, project_id: str, session_id: str | None, agent_role: str | None) -> None:
        self._engine = engine
        self.tenant_id = tenant_id
        self.project_id = project_id
        self.session_id = session_id
        self.agent_role = agent_role

    def __repr__(self) -> str:
        parts = (f"{name}={getattr(self, name)!r}" for name in ("tenant_id", "project_id", "session_id", "agent_role"))
        return f"<{type(self).__name__} {' '.join(parts)}>"

    # Writing

    def remember(
        self,
        content: str,
        *,
        kind: str = intake.DEFAULT_KIND,
        key: str | None = None,
        importance: float = intake.DEFAULT_IMPORTANCE,
        event_time: clock.Instant | None = None,
        expires_at: clock.Instant | None = None,
        metadata: Mapping[str, Any] | None = None,
        source: str = "observation",
        confidence: float = 1.0,
        untrusted: bool = False,
        level: int = 0,
        vector: Any = None,
        id: Any = None,
        idempotency_key: str | None = None,
        now: clock.Instant | None = None,
    ) -> Record:
        """Stores one memory and returns its record.

        A semantic or procedural memory with a `key` that is in use becomes the next version of that record; an episodic one
        never replaces another. `event_time` (default `now`) is when it happened. A second call with the same
        `idempotency_key` stores nothing and returns the first record. `vector` stands in for embedding the text.
        """
        engine = self._engine
        engine.check_open()
        moment = engine.now(now)
        one = {
            "content": [content], "kind": [kind], "key": [key], "importance": [importance], "event_time": [event_time],
            "expires_at": [expires_at], "metadata": [metadata], "source": [source], "confidence": [confidence],
            "untrusted": [untrusted], "level": [level], "vector": [vector], "id": [id], "idempotency_key": [idempotency_key],
        }  # fmt: skip
        taken = intake.check(one, 1, self._bounds(), now=moment, dim=engine.catalog.dim or None)
        if taken.faults:
            raise taken.faults[0]
        (seq,) = self._commit(taken, moment)
        return self._record(seq)

    def remember_many(
        self, rows: Any, *, on_invalid: str = "raise", now: clock.Instant | None = None
    ) -> WriteResult:
        """Stores many memories in one commit, all or nothing, and returns their ids in order.

        `rows` is a list of texts, a list of dicts with the arguments of `remember`, or a pyarrow Table or RecordBatch with
        columns of these names (`vector` a fixed-size list). With `on_invalid="skip"` rows that the gate refuses are left
        out and told in the result's `faults`.
        """
        engine = self._engine
        engine.check_open()
        gate.choice(on_invalid, "on_invalid", ("raise", "skip"))
        moment = engine.now(now)
        taken = intake.read(rows, self._bounds(), now=moment, dim=engine.catalog.dim or None)
        if taken.faults and on_invalid == "raise":
            raise intake.refusal(taken.faults, len(taken.rows) + len(taken.faults))
        seqs = np.array(self._commit(taken, moment), dtype=np.int64)
        snapshot = engine.catalog.snapshot(self.tenant_id, self.project_id)
        rising, places = np.unique(seqs, return_inverse=True)
        texts = _ids.to_texts(*snapshot.halves(snapshot.positions_of(rising)))
        return WriteResult([texts[place] for place in places], taken.faults)

    def update(
        self,
        id: Any,
        *,
        content: Any = KEEP,
        importance: Any = KEEP,
        event_time: Any = KEEP,
        expires_at: Any = KEEP,
        metadata: Any = KEEP,
        source: Any = KEEP,
        confidence: Any = KEEP,
        untrusted: Any = KEEP,
        vector: Any = KEEP,
        if_version: int | None = None,
        now: clock.Instant | None = None,
    ) -> Record:
        """Makes the next version of a memory with the given fields changed; the others stay. Returns the new record.

        `metadata` replaces the whole object; None empties it, and takes away an expiry. New content is embedded anew unless
        a vector comes with it. With `if_version` the update happens only if that version stands: else `VersionConflict`.
        """
        engine = self._engine
        engine.check_open()
        moment = engine.now(now)
        hi, lo = _ids.halves(gate.record_id(id))
        expected = None if if_version is None else gate.count(if_version, "if_version", 1)
        changes: dict[str, Any] = {}
        for name, value, check in (
            ("content", content, lambda v: gate.text(v, "content")),
            ("importance", importance, lambda v: gate.unit(v, "importance")),
            ("event_time", event_time, lambda v: clock.to_micros(v, "event_time")),
            ("expires_at", expires_at, lambda v: 0 if v is None else intake.expiry(v)),
            ("metadata", metadata, gate.metadata),
            ("source", source, lambda v: gate.text(v, "source")),
            ("confidence", confidence, lambda v: gate.unit(v, "confidence")),
            ("untrusted", untrusted, lambda v: gate.flag(v, "untrusted")),
            ("vector", vector, lambda v: gate.vector(v, dim=engine.catalog.dim or None)),
        ):
            if value is not KEEP:
                changes[name] = check(value)
        if not changes:
            raise InvalidInput("update got nothing to change; pass content, importance, metadata or another field")
        if "content" in changes and "vector" not in changes:
            made = engine.embed([changes["content"]], "document")
            changes["vector"] = made[0] if made is not None else None
        if "vector" in changes:
            given = changes["vector"]
            changes["has_vector"] = given is not None
            if given is None:
                changes["vector"] = 0.0
            else:
                engine.catalog.settle_dim(given.size)
        with engine.catalog.lock:
            partition, ref = self._standing(hi, lo)
            if ref is None or partition is None or self._over(ref, moment):
                raise NotFound(
                    f"no memory {id} in tenant {self.tenant_id!r}, project {self.project_id!r}; it was never there, was "
                    "forgotten or has expired: list() shows what is there"
                )
            found = int(ref.segment.column("version")[ref.row])
            if expected is not None and expected != found:
                raise VersionConflict(
                    f"memory {id} is at version {found}, not {expected}; someone else changed it first: get it again, and "
                    f"update with if_version={found}",
                    expected=expected,
                    found=found,
                )
            if "source" in changes:
                changes["source"] = engine.catalog.code(changes["source"])
            seq = engine.catalog.replace(partition, ref, changes, now=moment)
            engine.changes += 1
        return self._record(seq)

    # Reading

    def recall(
        self,
        query: str | None = None,
        *,
        vector: Any = None,
        k: int = 5,
        kinds: str | Sequence[str] = RECALLED,
        where: Any = None,
        now: clock.Instant | None = None,
        as_of: clock.Instant | None = None,
        weights: Any = None,
        decay_rate: float | str | None = None,
        half_life: Any = None,
        relevance: str = "cosine",
        min_similarity: float | None = None,
        min_score: float | None = None,
    ) -> result.Recall:
        """The k best memories by alpha * relevance + beta * exp(-lambda * age) + gamma * importance, exactly, best first.

        `query` is embedded, or `vector` given in its place; with neither, recency and importance rank alone. `where`
        filters inside the scan. `decay_rate` is lambda per hour or a preset's name; `half_life` hours or a timedelta.
        `min_similarity` and `min_score` leave out what is below. `now` is the moment that ages are counted to; `as_of`
        answers as the memory stood at that moment (and counts ages to it). Ties: newer event time, then lower id.
        """
        engine = self._engine
        engine.check_open()
        if query is not None and vector is not None:
            raise InvalidInput("recall got both a query and a vector; pass one of them")
        ask, selection, condition = self._asked(
            k, kinds, where, now, as_of, weights, decay_rate, half_life, relevance, min_similarity, min_score
        )
        if vector is not None:
            asked: F32 | None = gate.vector(vector, dim=engine.catalog.dim or None)
        else:
            asked = None if query is None else self._embed_queries([query])[0]
        snapshot, masks = self._masks(selection, condition)
        if asked is not None and not snapshot.dim:
            asked = None  # no row has a vector yet
        found = exact.best(snapshot, masks, asked, ask)
        hits = result.hits(snapshot, found, asked, ask)
        self._count_access(hits, selection)
        return hits

    def recall_many(
        self,
        queries: Sequence[str] | None = None,
        *,
        vectors: Any = None,
        k: int = 5,
        kinds: str | Sequence[str] = RECALLED,
        where: Any = None,
        now: clock.Instant | None = None,
        as_of: clock.Instant | None = None,
        weights: Any = None,
        decay_rate: float | str | None = None,
        half_life: Any = None,
        relevance: str = "cosine",
        min_similarity: float | None = None,
        min_score: float | None = None,
    ) -> builtins.list[result.Recall]:
        """`recall` for many queries in one pass over the memory; one result a query, in order. Same order of hits."""
        engine = self._engine
        engine.check_open()
        if (queries is None) == (vectors is None):
            raise InvalidInput("recall_many takes queries or vectors; pass one of them")
        ask, selection, condition = self._asked(
            k, kinds, where, now, as_of, weights, decay_rate, half_life, relevance, min_similarity, min_score
        )
        if queries is None:
            rows = gate.vectors(vectors, rows=None, dim=engine.catalog.dim or None, what="vectors")
        else:
            if isinstance(queries, str):
                raise InvalidInput("recall_many got one text; pass a list of queries, or use recall")
            rows = self._embed_queries(queries)
        snapshot, masks = self._masks(selection, condition)
        if not snapshot.dim:
            rows = np.zeros((len(rows), 0), dtype=np.float32)
        found = exact.best_many(snapshot, masks, rows, ask)
        many = [result.hits(snapshot, f, row, ask) for f, row in zip(found, rows, strict=True)]
        for hits in many:
            self._count_access(hits, selection)
        return many

    def get(
        self,
        id: Any = None,
        *,
        key: str | None = None,
        kind: str | None = None,
        now: clock.Instant | None = None,
        as_of: clock.Instant | None = None,
    ) -> Record | None:
        """The memory with this id or key, or None if it isn't here, is forgotten or expired.

        A key that several kinds use finds the one written last, unless `kind` says which. `as_of`: as it stood then.
        """
        engine = self._engine
        engine.check_open()
        moment, then = self._moments(now, as_of)
        if (id is None) == (key is None):
            raise InvalidInput("get takes an id or a key; pass one of them")
        positions, snapshot = self._find(id, key, kind)
        selection = self._selection(KINDS, moment, then)
        for position in positions[::-1]:
            part, row = snapshot.part_of(int(position))
            if part.sees(row, selection, snapshot.seq):
                if then is None:
                    self._touch([int(part.columns["seq"][row])], moment)
                return snapshot.record(int(position))
        return None

    def list(
        self,
        *,
        kinds: str | Sequence[str] = KINDS,
        where: Any = None,
        limit: int | None = None,
        offset: int = 0,
        now: clock.Instant | None = None,
        as_of: clock.Instant | None = None,
    ) -> Records:
        """The memories of the scope in the order they were last written, all kinds unless told otherwise."""
        self._engine.check_open()
        first = gate.count(offset, "offset")
        most = None if limit is None else gate.count(limit, "limit")
        condition = None if where is None else compile_where(where)
        moment, then = self._moments(now, as_of)
        snapshot, masks = self._masks(self._selection(gate.kinds(kinds), moment, then), condition)
        positions = snapshot.positions(masks)
        return Records(snapshot.table(positions[first : None if most is None else first + most]))

    def history(self, key: str | None = None, *, id: Any = None, kind: str | None = None) -> Records:
        """All versions of one memory, oldest first; each but the last tells in `superseded_at` when it was replaced."""
        self._engine.check_open()
        if (key is None) == (id is None):
            raise InvalidInput("history takes a key or an id; pass one of them")
        positions, snapshot = self._find(id, key, kind)
        known = [int(p) for p in positions if snapshot.cell(int(p), "retired_at") != FORGOTTEN]
        if key is not None and known:  # the memory that was written last under this key, also what it was before
            known = snapshot.versions(snapshot.cell(known[-1], "id_hi"), snapshot.cell(known[-1], "id_lo")).tolist()
        mine = [position for position in known if self._mine_at(snapshot, position)]
        return Records(snapshot.table(np.array(mine, dtype=np.int64)))

    # Letting go

    def forget(
        self,
        ids: Any = None,
        *,
        where: Any = None,
        kinds: str | Sequence[str] | None = None,
        older_than_days: float | None = None,
        max_access: int | None = None,
        everything: bool = False,
        dry_run: bool = False,
        now: clock.Instant | None = None,
    ) -> ForgetReport:
        """Forgets memories, all their versions, by id or by conditions that must all hold.

        `older_than_days`: the event is older than that; `max_access`: recalled at most so often. A call that names nothing
        is refused: to empty the scope say `everything=True`. `dry_run` tells what would go, and does nothing.
        """
        engine = self._engine
        engine.check_open()
        conditions = {"where": where, "kinds": kinds, "older_than_days": older_than_days, "max_access": max_access}
        named = [name for name, value in conditions.items() if value is not None]
        gate.flag(everything, "everything")
        gate.flag(dry_run, "dry_run")
        if ids is not None and (named or everything):
            raise InvalidInput(f"forget got ids and {', '.join(named) or 'everything'}; pass ids alone, or conditions alone")
        if ids is None and not named and not everything:
            raise InvalidInput(
                "forget got nothing to go by; pass ids, where=, kinds=, older_than_days= or max_access=, or everything=True "
                "to empty this scope"
            )
        moment = engine.now(now)
        age = None if older_than_days is None else gate.number(older_than_days, "older_than_days")
        if age is not None and age < 0:
            raise InvalidInput(f"older_than_days is {age:g}; it must be at least 0")
        most = None if max_access is None else gate.count(max_access, "max_access")
        condition = None if where is None else compile_where(where)
        wanted = KINDS if kinds is None else gate.kinds(kinds)
        asked = None if ids is None else self._asked_ids(ids)
        with engine.catalog.lock:
            snapshot, masks = self._masks(self._selection(wanted, moment, None, expired=True), condition)
            if asked is not None:
                found, missing = self._located(snapshot, masks, asked)
            else:
                found, missing = self._conditioned(snapshot, masks, moment, age, most), []
            hi, lo = snapshot.halves(found)
            if not dry_run and len(found):
                partition = engine.catalog.partition(self.tenant_id, self.project_id)
                engine.catalog.forget(partition, list(zip(hi.tolist(), lo.tolist(), strict=True)))
                engine.changes += 1
        return ForgetReport(_ids.to_texts(hi, lo), missing, dry_run)

    # The live conversation

    def working(self) -> Working:
        """The live conversation of this scope's session and role."""
        return Working(self, self._engine.count_tokens)

    def end_session(self, *, now: clock.Instant | None = None) -> builtins.list[str]:
        """Ends the session of this scope: every working memory, the evicted ones too, becomes episodic. Their ids."""
        engine = self._engine
        engine.check_open()
        moment = engine.now(now)
        session, role = self.session_id or "default", self.agent_role or "default"
        with engine.catalog.lock:
            snapshot = engine.catalog.snapshot(self.tenant_id, self.project_id)
            codes = (engine.catalog.known_code(session), engine.catalog.known_code(role))
            ended: dict[tuple[int, int], Ref] = {}
            for part in snapshot.parts:
                c = part.columns
                held = (c["kind"] == WORKING) & (c["session"] == codes[0]) & (c["role"] == codes[1])
                for row in np.flatnonzero(held & (c["retired_at"] != FORGOTTEN)):
                    ended[int(c["id_hi"][row]), int(c["id_lo"][row])] = Ref(part.segment, int(row))
            if not ended:
                return []
            partition = engine.catalog.partition(self.tenant_id, self.project_id)
            live = {name: ref for name, ref in ended.items() if self._last_is_working(partition, name)}
            for ref in live.values():
                engine.catalog.replace(partition, ref, {"kind": EPISODIC}, now=moment)
            engine.changes += 1
        return [_ids.to_text(hi, lo) for hi, lo in live]

    # The scope as a whole

    def export(self, path: str | os.PathLike[str], format: str | None = None) -> int:
        """Writes all records of this scope with their versions and counters to a file; the number of rows written.

        The format is by the name's ending unless given: .json (one state document), .jsonl or .parquet.
        """
        self._engine.check_open()
        with self._engine.catalog.lock:
            snapshot = self._engine.catalog.snapshot(self.tenant_id, self.project_id)
        return portable.write(path, [snapshot], self._engine.embedder, format)

    def stats(self) -> dict[str, Any]:
        """Counts and bytes of this scope."""
        self._engine.check_open()
        with self._engine.catalog.lock:
            partition = self._engine.catalog.partitions.get((self.tenant_id, self.project_id))
            return _counts([partition] if partition else [])

    # Inside

    def _bounds(self) -> intake.Bounds:
        return intake.Bounds(self.tenant_id, self.project_id, self.session_id, self.agent_role)

    def _commit(self, taken: intake.Intake, now: int) -> builtins.list[int]:
        engine, columns = self._engine, taken.columns
        vectors, has = taken.vectors, columns["has_vector"]
        waiting = np.flatnonzero(~has)
        made = engine.embed([columns["content"][row] for row in waiting], "document")
        if made is not None:
            if vectors is None:
                vectors = made
            else:
                vectors[waiting] = made
            has[:] = True
        if vectors is not None:
            engine.catalog.settle_dim(vectors.shape[1])
        columns["vector"] = vectors
        with engine.catalog.lock:
            engine.catalog.encode(columns, taken.names)
            partition = engine.catalog.partition(self.tenant_id, self.project_id)
            explicit = self._check_explicit(partition, taken)
            seqs = engine.catalog.commit(partition, columns, now=now, explicit=explicit)
            for session, role in self._conversations(taken):
                self._evict(partition, session, role, now)
            engine.changes += 1
        return seqs

    def _check_explicit(self, partition: Partition, taken: intake.Intake) -> npt.NDArray[np.bool_] | None:
        if not taken.explicit.any():
            return None
        seen: set[tuple[int, int]] = set()
        for row in np.flatnonzero(taken.explicit):
            name = int(taken.columns["id_hi"][row]), int(taken.columns["id_lo"][row])
            if name in seen or partition.versions(*name):
                raise InvalidInput(
                    f"id {_ids.to_text(*name)} is in use here; ids are unique: update it, or leave id out for a new memory"
                )
            seen.add(name)
        return taken.explicit

    def _conversations(self, taken: intake.Intake) -> set[tuple[int, int]]:
        """The (session, role) codes into which working memories were written."""
        columns = taken.columns
        return {
            (int(columns["session"][row]), int(columns["role"][row])) for row in np.flatnonzero(columns["kind"] == WORKING)
        }

    def _evict(self, partition: Partition, session: int, role: int, now: int) -> None:
        engine = self._engine
        held: builtins.list[Ref] = []
        for segment in partition.segments:
            c = segment.views()
            rows = (c["kind"] == WORKING) & (c["session"] == session) & (c["role"] == role) & (c["retired_seq"] == 0)
            held += [Ref(segment, int(row)) for row in np.flatnonzero(rows)]
        limits = engine.working
        sizes = [0] * len(held)
        if limits.tokens is not None:
            sizes = [engine.count_tokens(ref.segment.text("content", ref.row) or "") for ref in held]
        system = ['"role":"system"' in (ref.segment.text("metadata", ref.row) or "") for ref in held]
        gone = evicted(sizes, system, limits.capacity, limits.tokens)
        if gone:
            engine.catalog.seq += 1
            for place in gone:
                partition.supersede(held[place], engine.catalog.seq, now)

    def _last_is_working(self, partition: Partition, name: tuple[int, int]) -> bool:
        last = partition.versions(*name)[-1]
        return int(last.segment.column("kind")[last.row]) == WORKING

    def _record(self, seq: int) -> Record:
        snapshot = self._engine.catalog.snapshot(self.tenant_id, self.project_id)
        return snapshot.record(int(snapshot.positions_of([seq])[0]))

    def _standing(self, hi: int, lo: int) -> tuple[Partition | None, Ref | None]:
        partition = self._engine.catalog.partitions.get((self.tenant_id, self.project_id))
        ref = partition.standing(hi, lo) if partition else None
        if ref is None or not self._mine(ref):
            return partition, None
        return partition, ref

    def _mine(self, ref: Ref) -> bool:
        codes = self._codes()
        return all(code is None or ref.segment.column(name)[ref.row] == code for name, code in codes.items())

    def _codes(self) -> dict[str, int | None]:
        catalog = self._engine.catalog
        return {
            "session": None if self.session_id is None else catalog.known_code(self.session_id),
            "role": None if self.agent_role is None else catalog.known_code(self.agent_role),
        }

    @staticmethod
    def _over(ref: Ref, now: int) -> bool:
        expires = int(ref.segment.column("expires_at")[ref.row])
        return expires != 0 and expires <= now

    def _moments(self, now: object, as_of: object) -> tuple[int, int | None]:
        then = None if as_of is None else clock.to_micros(as_of, "as_of")
        return (then if then is not None and now is None else self._engine.now(now)), then

    def _selection(self, kinds: Sequence[str], now: int, as_of: int | None, *, expired: bool = False) -> Selection:
        codes = self._codes()
        return Selection(
            frozenset(KINDS.index(kind) for kind in kinds), now, codes["session"], codes["role"], as_of, expired
        )

    def _masks(self, selection: Selection, condition: Where | None) -> tuple[Snapshot, builtins.list[Mask]]:
        snapshot = self._engine.catalog.snapshot(self.tenant_id, self.project_id)
        masks = [part.mask(selection, snapshot.seq) for part in snapshot.parts]
        if condition is not None:
            filtered = condition.masks(snapshot)
            masks = [f if m is EVERY else m & f for m, f in zip(masks, filtered, strict=True)]
        return snapshot, masks

    def _asked(
        self,
        k: object,
        kinds: object,
        where: object,
        now: object,
        as_of: object,
        weights: object,
        decay_rate: object,
        half_life: object,
        relevance: object,
        min_similarity: object,
        min_score: object,
    ) -> tuple[exact.Ask, Selection, Where | None]:
        engine = self._engine
        gate.choice(relevance, "relevance", ("cosine",))
        moment, then = self._moments(now, as_of)
        ask = exact.Ask(
            k=gate.count(k, "k"),
            weights=engine.weights if weights is None else config.weights(weights),
            decay_rate=config.decay(decay_rate, half_life, engine.decay_rate),
            now=moment,
            min_similarity=-np.inf if min_similarity is None else gate.number(min_similarity, "min_similarity"),
            min_score=-np.inf if min_score is None else gate.number(min_score, "min_score"),
        )
        selection = self._selection(gate.kinds(kinds), moment, then)
        return ask, selection, None if where is None else compile_where(where)

    def _embed_queries(self, queries: Sequence[object]) -> F32:
        engine = self._engine
        texts = [gate.query(query) for query in queries]
        if engine.embedder is None:
            raise InvalidInput(
                "this store has no embedder, so a text cannot be compared; pass vector=, or open the store with an embedder"
            )
        made = engine.embed(texts, "query")
        return np.zeros((0, engine.catalog.dim), np.float32) if made is None else made

    def _count_access(self, hits: result.Recall, selection: Selection) -> None:
        if len(hits) and selection.as_of is None:
            self._touch([hit.seq for hit in hits], selection.now)

    def _touch(self, seqs: Sequence[int], now: int) -> None:
        engine = self._engine
        with engine.catalog.lock:
            engine.catalog.touch(engine.catalog.partition(self.tenant_id, self.project_id), seqs, now)
            engine.changes += 1

    def _find(self, id: object, key: object, kind: object) -> tuple[npt.NDArray[np.int64], Snapshot]:
        """The positions of all versions of an id, or of all rows under a key, oldest first."""
        only = None if kind is None else KINDS.index(gate.kind(kind))
        halves = None if id is None else _ids.halves(gate.record_id(id))
        text = None if key is None else gate.text(key, "key")
        snapshot = self._engine.catalog.snapshot(self.tenant_id, self.project_id)
        if halves is not None:
            return snapshot.versions(*halves), snapshot
        return snapshot.with_key(text or "", only), snapshot

    def _mine_at(self, snapshot: Snapshot, position: int) -> bool:
        return all(code is None or snapshot.cell(position, name) == code for name, code in self._codes().items())

    @staticmethod
    def _asked_ids(given: object) -> builtins.list[tuple[int, int]]:
        items: Iterable[object]
        if isinstance(given, Iterable) and not isinstance(given, (str, bytes)):
            items = given
        else:
            items = [given]
        return [_ids.halves(gate.record_id(getattr(item, "id", item))) for item in items]

    @staticmethod
    def _located(
        snapshot: Snapshot, masks: Sequence[Mask], asked: Sequence[tuple[int, int]]
    ) -> tuple[npt.NDArray[np.int64], builtins.list[str]]:
        """The positions of the standing versions of these ids, and the ids that have none here."""
        found, missing = [], []
        for hi, lo in dict.fromkeys(asked):
            for part, mask in zip(reversed(snapshot.parts), reversed(masks), strict=True):
                rows = part.segment.rows_of(hi, lo)
                rows = rows[rows < part.n]
                rows = rows if mask is EVERY else rows[mask[rows] != 0]
                if len(rows):
                    found.append(part.base + int(rows[-1]))
                    break
            else:
                missing.append(_ids.to_text(hi, lo))
        return np.array(sorted(found), dtype=np.int64), missing

    @staticmethod
    def _conditioned(
        snapshot: Snapshot, masks: Sequence[Mask], now: int, days: float | None, max_access: int | None
    ) -> npt.NDArray[np.int64]:
        kept: builtins.list[Mask] = []
        for part, mask in zip(snapshot.parts, masks, strict=True):
            passed = np.ones(part.n, dtype=np.bool_) if mask is EVERY else mask != 0
            if days is not None:
                passed &= part.columns["event_time"] < now - days * clock.DAY
            if max_access is not None:
                passed &= part.columns["access_count"] <= max_access
            kept.append(passed.view(np.uint8))
        return snapshot.positions(kept)


class Memory(Scope):
    """An open store: the default scope's verbs, and those that concern the whole store. Made by `memcore.open`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, "default", "default", None, None)
        self._finalizer = weakref.finalize(self, _close, engine)  # also at the interpreter's exit

    def scope(
        self,
        tenant_id: str = "default",
        project_id: str = "default",
        session_id: str | None = None,
        agent_role: str | None = None,
    ) -> Scope:
        """The memory of one tenant's project, perhaps narrowed to a session and an agent role.

        Ids are compared whole, code point by code point. A blank, missing (None) or non-text tenant or project is a
        `ScopeError`. Sessions and roles may be left out: reads then see all of them, and writes go into "default".
        """
        self._engine.check_open()
        return Scope(
            self._engine,
            gate.scope_id(tenant_id, "tenant_id"),
            gate.scope_id(project_id, "project_id"),
            None if session_id is None else gate.scope_id(session_id, "session_id"),
            None if agent_role is None else gate.scope_id(agent_role, "agent_role"),
        )

    def scopes(self) -> builtins.list[tuple[str, str]]:
        """The (tenant, project) pairs that have rows."""
        self._engine.check_open()
        with self._engine.catalog.lock:
            return sorted(name for name, partition in self._engine.catalog.partitions.items() if partition.rows())

    def export(self, path: str | os.PathLike[str], format: str | None = None) -> int:
        """Writes the whole store, all scopes with all versions and counters, to a file; the number of rows written."""
        self._engine.check_open()
        return portable.write(path, self._snapshots(), self._engine.embedder, format)

    def import_(
        self, path: str | os.PathLike[str], format: str | None = None, *, now: clock.Instant | None = None
    ) -> portable.ImportReport:
        """Adds what `export` wrote, or a JSONL file of rows as `remember_many` takes them; all or nothing.

        Ids, versions, times, counters and scopes are kept. A memory whose id is here already is left as it is, so that a
        second import adds nothing. Rows without ids are new memories of the default scope, unless they name their own.
        """
        engine = self._engine
        engine.check_open()
        report = portable.read_into(
            path, format, engine.catalog, engine.embedder, lambda texts: engine.embed(texts, "document"), engine.now(now)
        )
        engine.changes += 1
        return report

    def stats(self) -> dict[str, Any]:
        """Counts and bytes of the whole store, and its embedder."""
        engine = self._engine
        engine.check_open()
        with engine.catalog.lock:
            counts = _counts(builtins.list(engine.catalog.partitions.values()))
        embedder = engine.embedder
        return {
            "scopes": len(self.scopes()),
            **counts,
            "dim": engine.catalog.dim or None,
            "embedder": None if embedder is None else {"name": embedder.name, "fingerprint": embedder.fingerprint},
            "weights": builtins.list(engine.weights),
            "decay_rate": engine.decay_rate,
            "path": None if engine.saved is None else str(engine.saved.path),
        }

    def save(self) -> None:
        """Writes the store to its directory now, rather than when it is closed. Nothing to do for a store in RAM."""
        self._engine.check_open()
        _save(self._engine)

    def close(self) -> None:
        """Saves a store that has a directory, and frees it. Closing twice is no error."""
        self._finalizer()

    def __enter__(self) -> Memory:
        self._engine.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _snapshots(self) -> builtins.list[Snapshot]:
        catalog = self._engine.catalog
        with catalog.lock:
            return [catalog.snapshot(*name) for name in sorted(catalog.partitions)]


def open(
    path: str | os.PathLike[str] | None = None,
    *,
    embedder: EmbedderSpec | None = "static",
    clock: clock.Clock = clock.system,
    weights: Any = None,
    decay_rate: float | str | None = None,
    half_life: Any = None,
    working_capacity: int = 20,
    working_tokens: int | None = None,
    count_tokens: CountTokens = estimate_tokens,
) -> Memory:
    """Opens a memory: in RAM, or from a directory, which is made if it isn't there.

    `embedder` is "static", "hashed", an embedder object, a callable from texts to rows, or None (pass vectors yourself).
    It is loaded when it is first needed. `clock` returns the time for calls that don't pass `now=`. `weights` and
    `decay_rate` (or `half_life`) are the defaults of `recall`. A directory is read when it is opened and written whole when
    the store is closed or saved; one process has it open at a time.
    """
    from memcore import embed

    chosen = None if embedder is None else embed.resolve(embedder)
    engine = Engine(
        catalog=Catalog(None if chosen is None else chosen.dim),
        embedder=chosen,
        clock=clock,
        weights=config.weights(weights),
        decay_rate=config.decay(decay_rate, half_life),
        working=config.WorkingLimits(
            gate.count(working_capacity, "working_capacity", 1),
            None if working_tokens is None else gate.count(working_tokens, "working_tokens", 1),
        ),
        count_tokens=count_tokens,
    )
    if path is not None:
        engine.saved = saved.SavedStore.open(path, engine.catalog, chosen)
    return Memory(engine)


def warmup(embedder: EmbedderSpec | None = "static") -> None:
    """Compiles every kernel that a first call needs and loads the embedder, so that the first recall is a fast one.

    Kernels are cached on disk by Numba, in `NUMBA_CACHE_DIR` where that is set: a second process loads them in a moment.
    """
    with open(embedder=embedder) as mem:
        if embedder is None:
            mem.remember_many([{"content": "warm", "vector": [1.0, 0.0]}, {"content": "up", "vector": [0.0, 1.0]}])
            mem.recall(vector=[1.0, 0.0])
            mem.recall_many(vectors=[[1.0, 0.0], [0.0, 1.0]])
        else:
            mem.remember_many(["warm", "up"])
            mem.recall("warm", kinds="episodic")
            mem.recall_many(["warm", "up"])


def _counts(partitions: Sequence[Partition]) -> dict[str, Any]:
    standing = sum((p.standing_by_kind() for p in partitions), np.zeros(len(KINDS), dtype=np.int64))
    rows = sum(p.rows() for p in partitions)
    return {
        "memories": int(standing.sum()),
        "by_kind": {kind: int(n) for kind, n in zip(KINDS, standing, strict=True)},
        "versions": rows - sum(s.forgotten for p in partitions for s in p.segments),
        "bytes_in_memory": sum(s.nbytes() for p in partitions for s in p.segments),
    }


def _save(engine: Engine) -> None:
    if engine.saved is None or not engine.changes:
        return
    with engine.catalog.lock:
        snapshots = [engine.catalog.snapshot(*name) for name in sorted(engine.catalog.partitions)]
        changes = engine.changes
    engine.saved.save(snapshots, engine.embedder)
    engine.changes -= changes


def _close(engine: Engine) -> None:
    if engine.closed:
        return
    try:
        _save(engine)
    finally:
        engine.closed = True
        if engine.saved is not None:
            engine.saved.release()

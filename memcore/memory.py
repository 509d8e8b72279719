"""The verbs: what an agent does with its memory. Each checks at the gate, calls one room, and returns what it found."""

from __future__ import annotations

import builtins
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from memcore import clock, config, gate, intake
from memcore import ids as _ids
from memcore.agent.working import CountTokens, Working, estimate_tokens, make_room
from memcore.engine import Engine
from memcore.errors import InvalidInput, NotFound, VersionConflict
from memcore.gate import KINDS
from memcore.lifecycle import prune as pruning
from memcore.lifecycle.prune import PruneReport
from memcore.schema import Link, Links, Record, Records
from memcore.search.ask import Ask
from memcore.search.filter import All, Where, compile_where, passing
from memcore.search.planner import planner
from memcore.store import files, moving, portable
from memcore.store.catalog import Catalog, Commit
from memcore.store.commits import Commits, CompactReport
from memcore.store.links import NEVER, View
from memcore.store.partition import UPSERTED, WORKING, Conversation, Partition, Ref
from memcore.store.segment import own
from memcore.store.snapshot import EVERY, Mask, Selection, Snapshot, link_table, record
from memcore.store.writes import Write, prepare_of, writes

if TYPE_CHECKING:  # `search.exact` loads Numba, half a second that a first recall should pay and no other call
    from memcore.embed.protocol import Embedder, EmbedderSpec
    from memcore.lifecycle.reembed import ReembedReport
    from memcore.search.result import Recall
    from memcore.store.verify import VerifyReport

EPISODIC = KINDS.index("episodic")
RECALLED = ("episodic", "semantic")
RELEVANCES = ("cosine", "lexical", "hybrid")
# How many hits a token budget is filled from: as many as fit if they are short, and some for what says the same.
_SHORT_HIT, _LEAST_HITS, _MOST_HITS = 8, 64, 1024
_RECALLED = frozenset(map(KINDS.index, RECALLED))
HOT = ("hot",)
F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


class _Keep:
    def __repr__(self) -> str:
        return "KEEP"


KEEP: Final = _Keep()
"""Leaves a field as it is: the default of every field of `update`, since None has a meaning of its own there."""


@dataclass(frozen=True, slots=True)
class ForgetReport:
    """`ids` of what was forgotten (or would be, if `dry_run`); `missing`: ids that were asked for and are not there;
    `cascaded`: ids of summaries that had to go with what was erased; `elsewhere`: ids of which this scope has earlier
    versions alone, and another session or role the last one: they stay, all versions.
    """

    ids: builtins.list[str]
    missing: builtins.list[str] = field(default_factory=list)
    dry_run: bool = False
    cascaded: builtins.list[str] = field(default_factory=list)
    elsewhere: builtins.list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __int__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """`ids` of what is here again; `missing`: ids of which nothing forgotten is left; `in_use`: ids that, or whose key
    or idempotency key, another memory has by now.
    """

    ids: builtins.list[str]
    missing: builtins.list[str] = field(default_factory=list)
    in_use: builtins.list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.ids)

    def __len__(self) -> int:
        return len(self.ids)


class _Going(NamedTuple):
    """What `forget` has found: the ids of what goes, in halves, of what must be erased with it, and of what another
    session or role has rewritten.
    """

    hi: _ids.U64
    lo: _ids.U64
    cascaded: builtins.list[tuple[int, int]]
    elsewhere: set[tuple[int, int]]


class WriteResult(builtins.list[str]):
    """The ids that `remember_many` stored, in order. With on_invalid="skip", `faults` says why rows are missing."""

    def __init__(self, stored: Iterable[str], faults: Mapping[int, Exception]) -> None:
        super().__init__(stored)
        self.faults = {row: str(fault) for row, fault in faults.items()}

    @property
    def ids(self) -> builtins.list[str]:
        """The list itself, by the name that other reports have for it."""
        return self


class Scope:
    """One (tenant, project), perhaps narrowed to a session and an agent role. All verbs stay inside it.

    Reads of a scope without a session see all sessions; what it writes goes into session "default". Likewise for roles.
    A key names one record in the whole (tenant, project), whichever session wrote it. A memory belongs to the session
    and role of its last version: there it is updated, forgotten and restored, all versions together. The sessions that
    wrote earlier ones go on to see those, in `history`, `as_of` and an export.
    """

    def __init__(
        self,
        engine: Engine,
        tenant_id: str,
        project_id: str,
        session_id: str | None,
        agent_role: str | None,
        memory: Memory | None = None,
    ) -> None:
        self._engine = engine
        self._memory = memory  # keeps it alive: the store is closed when its `Memory` is gone
        self.tenant_id = tenant_id
        self.project_id = project_id
        self.session_id = session_id
        self.agent_role = agent_role

    def __repr__(self) -> str:
        parts = (f"{name}={getattr(self, name)!r}" for name in ("tenant_id", "project_id", "session_id", "agent_role"))
        return f"<{type(self).__name__} {' '.join(parts)}>"

    # Writing

    @writes
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
    ) -> Write[Record]:
        """Stores one memory and returns its record.

        A semantic or procedural memory with a `key` that is in use becomes the next version of that record; an episodic
        one never replaces another. `event_time` (default `now`) is when it happened. A second call with the same
        `idempotency_key`, in the same session and role, stores nothing and returns the first record, unless that was
        forgotten: then the key is free, and the call stores anew. `vector` stands in for embedding the text.
        """
        engine = self._engine
        engine.check_open()
        fields = {
            "content": content, "kind": kind, "key": key, "importance": importance, "event_time": event_time,
            "expires_at": expires_at, "metadata": metadata, "source": source, "confidence": confidence,
            "untrusted": untrusted, "level": level, "vector": vector, "id": id, "idempotency_key": idempotency_key,
        }  # fmt: skip
        moment = engine.now(now)
        embeds = vector is None and engine.embedder is not None
        counts = kind == "working" and engine.working.tokens is not None
        made, tokens, embedder = None, 0, engine.embedder
        if embeds or counts:
            checked = intake.check({name: [v] for name, v in fields.items()}, 1, self._bounds(), now=moment, dim=None)
            if checked.faults:
                raise checked.faults[0]
            made = engine.embed(checked.columns["content"], "document") if embeds else None
            tokens = engine.tokens(checked.columns["content"])[0] if counts else 0
        row = _Row(fields, moment, made, tokens, embedder)
        return engine.to_batch(self._rows, row, lambda done: self._record(*done))

    @writes
    def remember_many(
        self, rows: Any, *, on_invalid: str = "raise", now: clock.Instant | None = None
    ) -> Write[WriteResult]:
        """Stores many memories in one commit, all or nothing, and returns their ids in order.

        `rows` is a list of texts, a list of dicts with the arguments of `remember`, or a pyarrow Table or RecordBatch
        with columns of these names (`vector` a fixed-size list). With `on_invalid="skip"` rows that the gate refuses
        are left out and told in the result's `faults`.
        """
        engine = self._engine
        engine.check_open()
        gate.choice(on_invalid, "on_invalid", ("raise", "skip"))
        moment = engine.now(now)
        taken = intake.read(rows, self._bounds(), now=moment, dim=engine.catalog.dim or None)
        if taken.faults and on_invalid == "raise":
            raise intake.refusal(taken.faults, len(taken.rows) + len(taken.faults))
        embedder = engine.embedder
        with_vectors = self._completed(taken)

        def store(catalog: Catalog) -> Commit:
            engine.check_made_by(embedder)
            return self._commit(catalog, with_vectors, moment)

        return engine.to_write(
            store,
            lambda done: WriteResult(_ids.to_texts(done.id_hi, done.id_lo), taken.faults),
        )

    @writes
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
    ) -> Write[Record]:
        """Makes the next version of a memory, by id or record, with the given fields changed; the others stay. Returns
        the new record.

        `metadata` replaces the whole object; None empties it, and takes away an expiry. What has expired stands again
        when it gets a new `expires_at`; without one it is not there. New content is embedded anew unless a vector comes
        with it; in a store without an embedder it is left without a vector, since the old one was that of another text.
        With `if_version` the update happens only if that version stands: else `VersionConflict`.
        """
        engine = self._engine
        engine.check_open()
        moment = engine.now(now)
        hi, lo = _ids.halves(gate.record_id(getattr(id, "id", id)))
        named = _ids.to_text(hi, lo)
        expected = None if if_version is None else gate.count(if_version, "if_version", 1)
        changes: dict[str, Any] = {}
        for name, value, check in (
            ("content", content, lambda v: gate.text(v, "content")),
            ("importance", importance, lambda v: gate.unit(v, "importance")),
            ("event_time", event_time, lambda v: clock.to_micros(v, "event_time")),
            ("expires_at", expires_at, lambda v: 0 if v is None else intake.expiry(v)),
            ("metadata", metadata, gate.metadata),
            ("source", source, lambda v: gate.name(v, "source")),
            ("confidence", confidence, lambda v: gate.unit(v, "confidence")),
            ("untrusted", untrusted, lambda v: gate.flag(v, "untrusted")),
            ("vector", vector, lambda v: gate.vector(v, dim=engine.catalog.dim or None)),
        ):
            if value is not KEEP:
                changes[name] = check(value)
        if not changes:
            raise InvalidInput("update got nothing to change; pass content, importance, metadata or another field")
        tokens = engine.tokens([changes["content"]])[0] if "content" in changes else 0
        embedder = engine.embedder
        if "content" in changes and "vector" not in changes:
            made = engine.embed([changes["content"]], "document")
            changes["vector"] = None if made is None else made[0]

        def change(catalog: Catalog) -> tuple[Mapping[str, Any], int, int]:
            ref = self._standing(catalog, hi, lo)
            expires = 0 if ref is None else ref.get("expires_at")
            if ref is None or (0 < expires <= moment and "expires_at" not in changes):
                raise NotFound(
                    f"no memory {named} in tenant {self.tenant_id!r}, project {self.project_id!r}; it was never there, "
                    "was forgotten, has expired (a new expires_at renews it) or lies in the cold tier (restore it "
                    "first): list() shows what is there"
                )
            found = ref.get("version")
            if expected is not None and expected != found:
                raise VersionConflict(
                    f"memory {named} is at version {found}, not {expected}; someone else changed it first: get it "
                    f"again, and update with if_version={found}",
                    expected=expected,
                    found=found,
                )
            new = dict(changes)
            if "vector" in new:
                engine.check_made_by(embedder)
                given = new["vector"]
                if given is not None:
                    catalog.settle_dim(given.size)
                new["has_vector"] = given is not None
                new["vector"] = np.zeros(catalog.dim, dtype=np.float32) if given is None else given
            if "source" in new:
                new["source"] = catalog.code(new["source"])
            if ref.get("kind") == WORKING and "content" in new:
                new["tokens"] = tokens
            partition = catalog.partition(self._name)
            columns = catalog.replace(partition, ref.get("seq"), new, now=moment)
            for conversation in _conversations(columns):
                make_room(catalog, partition, conversation, engine.working, moment)
            return columns, 0, int(columns["seq"][0])

        return engine.to_write(change, lambda done: self._record(*done))

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
        relevance: str = "hybrid",
        min_similarity: float | None = None,
        min_score: float | None = None,
        budget_tokens: int | None = None,
        tiers: str | Sequence[str] = HOT,
    ) -> Recall:
        """The k best memories by alpha * relevance + beta * exp(-lambda * age) + gamma * importance: exact, best first.

        `query` is embedded, or `vector` given in its place; with neither, recency and importance rank alone. `where`
        filters inside the scan. `decay_rate` is lambda per hour or a preset's name; `half_life` hours or a timedelta.
        `min_similarity` and `min_score` leave out what is below. `now` is the moment that ages are counted to; `as_of`
        answers as the memory stood at that moment (and counts ages to it). Ties: newer event time, then lower id.
        Without `kinds` it looks among what happened and what is known, not among procedures and the live conversation.

        `relevance` is "hybrid": the cosine, about what all rows have in common, the query's words, the time that it
        names and what a turn's neighbours in its session add, in [0, 1] (`memcore.search.relevance` has the formula).
        "lexical" is the words alone: BM25 over the most that any row could have, in [0, 1]. "cosine" is the plain
        cosine of query and row. Words are found in another case, without their accents, by their stem (English,
        Portuguese, Spanish), and inside identifiers; scripts without spaces by characters; events by the names of their
        dates. In a store without an embedder, hybrid goes without the cosine; of a `vector`, which has no words, it is
        the cosine.

        With `budget_tokens`, `k` is not looked at: it gives as many of the best as `.to_prompt()` has room for in so
        many tokens, by the store's `count_tokens`. What says the same as a better one is left out, and counted by that
        one's `count`.

        `tiers=("hot", "cold")` searches what `prune` moved out too, by the same score, exactly; its files are read for
        that, and it is not counted as accessed.
        """
        engine = self._engine
        engine.check_open()
        tiers = tiers if tiers is HOT else gate.tiers(tiers)
        if query is not None and vector is not None:
            raise InvalidInput("recall got both a query and a vector; pass one of them")
        ask, selection, condition = self._asked(
            k, kinds, where, now, as_of, weights, decay_rate, half_life, relevance, min_similarity, min_score,
            budget_tokens,
        )  # fmt: skip
        from memcore.search import plan, result

        if relevance == "lexical" or (relevance == "hybrid" and query is not None):
            (hits,) = self._by_texts(_texts_of([query], vector), relevance, tiers, selection, condition, ask)
            return hits
        if query is None:
            asked, snapshot = None, self._snapshot(tiers, counted=condition is not None)
        else:
            embedded, snapshot = self._embed_queries([query], tiers, counted=condition is not None)
            asked = embedded[0]
        if vector is not None:
            asked = gate.vector(vector, dim=snapshot.dim or None)
        if not snapshot.dim:
            asked = None  # no row has a vector yet
        begun = perf_counter()
        masks = passing(snapshot, selection, condition)
        filtered = perf_counter()
        found = plan.best(snapshot, masks, asked, ask, engine.planner)
        scanned = perf_counter()
        hits = result.hits(snapshot, found, asked, ask)
        hits.took = (filtered - begun, scanned - filtered, perf_counter() - scanned)
        (hits,) = self._fitting([hits], ask)
        self._count_access([hits], selection, snapshot)
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
        relevance: str = "hybrid",
        min_similarity: float | None = None,
        min_score: float | None = None,
        budget_tokens: int | None = None,
        tiers: str | Sequence[str] = HOT,
        scopes: Sequence[Scope] | None = None,
    ) -> builtins.list[Recall]:
        """`recall` for many queries in one pass over the memory; one result a query, in order. Same order of hits.
        Equal queries are embedded once.

        With `scopes`, one a query, each is asked in a scope of its own (of this store, as from `scope`) instead of this
        one: all are embedded together, and those of one scope searched together.
        """
        engine = self._engine
        engine.check_open()
        tiers = tiers if tiers is HOT else gate.tiers(tiers)
        if (queries is None) == (vectors is None):
            raise InvalidInput("recall_many takes queries or vectors; pass one of them")
        ask, selection, condition = self._asked(
            k, kinds, where, now, as_of, weights, decay_rate, half_life, relevance, min_similarity, min_score,
            budget_tokens,
        )  # fmt: skip
        if isinstance(queries, str):
            raise InvalidInput("recall_many got one text; pass a list of queries, or use recall")
        if relevance == "lexical" or (relevance == "hybrid" and queries is not None):
            return self._by_texts(_texts_of(queries, vectors), relevance, tiers, selection, condition, ask, scopes)
        while True:
            if queries is not None:
                embedded, snapshot = self._embed_queries(queries, tiers, counted=condition is not None)
            else:
                snapshot = self._snapshot(tiers, counted=condition is not None)
                embedded = gate.vectors(vectors, rows=None, dim=snapshot.dim or None, what="vectors")
            if scopes is None:
                return self._recall_many(snapshot, selection, condition, embedded, ask)
            shares = self._shared_out(scopes, len(embedded))
            snapshots = [scope._snapshot(tiers, counted=condition is not None) for scope in shares]
            if all(there.dim == snapshot.dim and there.coder is snapshot.coder for there in snapshots):
                break  # or `reembed`, or the first vector, has come in between
        many: builtins.list[Recall] = [None] * len(embedded)  # type: ignore[list-item]
        for (scope, places), there in zip(shares.items(), snapshots, strict=True):
            found = scope._recall_many(there, scope._narrowed(selection), condition, embedded[places], ask)
            for place, hits in zip(places, found, strict=True):
                many[place] = hits
        return many

    def _recall_many(
        self, snapshot: Snapshot, selection: Selection, condition: Where | All | None, queries: F32, ask: Ask
    ) -> builtins.list[Recall]:
        from memcore.search import plan, result

        if not snapshot.dim:
            queries = np.zeros((len(queries), 0), dtype=np.float32)
        begun = perf_counter()
        masks = passing(snapshot, selection, condition)
        filtered = perf_counter()
        found = plan.best_many(snapshot, masks, queries, ask, self._engine.planner)
        scanned = perf_counter()
        many = result.hits_of_many(snapshot, found, queries, ask)
        took = filtered - begun, scanned - filtered, perf_counter() - scanned
        for hits in many:
            hits.took = took
        many = self._fitting(many, ask)
        self._count_access(many, selection, snapshot)
        return many

    def _by_texts(
        self, queries: builtins.list[str], relevance: str, tiers: str | Sequence[str], selection: Selection,
        condition: Where | All | None, ask: Ask, scopes: Sequence[Scope] | None = None,
    ) -> builtins.list[Recall]:  # fmt: skip
        """Recall that goes by what texts say and not by vectors alone, one after the other; embedded together."""
        counted = condition is not None
        shares = {self: range(len(queries))} if scopes is None else self._shared_out(scopes, len(queries))
        vectors: Any = [None] * len(queries)
        while True:
            if relevance == "hybrid" and self._engine.embedder is not None:
                vectors, snapshot = self._embed_queries(queries, tiers, counted=counted)
            else:
                snapshot = self._snapshot(tiers, counted=counted)
            snapshots = [snapshot] if scopes is None else [scope._snapshot(tiers, counted=counted) for scope in shares]
            if all(there.dim == snapshot.dim and there.coder is snapshot.coder for there in snapshots):
                break  # or `reembed`, or the first vector, has come in between
        many: builtins.list[Recall] = [None] * len(queries)  # type: ignore[list-item]
        for (scope, places), there in zip(shares.items(), snapshots, strict=True):
            mine = scope._narrowed(selection)
            for place in places:
                found = _by_text(there, mine, condition, relevance, queries[place], vectors[place], ask)
                (many[place],) = self._fitting([found], ask)
            scope._count_access([many[place] for place in places], mine, there)
        return many

    def _fitting(self, many: builtins.list[Recall], ask: Ask) -> builtins.list[Recall]:
        """What of the hits a token budget has room for."""
        if ask.budget is None:
            return many
        return [hits.within(ask.budget, self._engine.counted_tokens) for hits in many]

    def _shared_out(self, scopes: Any, n: int) -> dict[Scope, builtins.list[int]]:
        """Which of `n` queries each of the scopes is asked."""
        several = isinstance(scopes, Sequence) and not isinstance(scopes, str)
        if not several or len(scopes) != n:
            got = len(scopes) if several else gate.shown(scopes)
            raise InvalidInput(f"scopes is {got} for {n} queries; pass one scope for each query")
        shares: dict[tuple[Any, ...], tuple[Scope, builtins.list[int]]] = {}
        for place, given in enumerate(scopes):
            scope = getattr(given, "_sync", given)  # of an `AsyncScope`
            if not isinstance(scope, Scope) or scope._engine is not self._engine:
                raise InvalidInput(
                    f"scopes[{place}] is {gate.shown(given)}; it must be a scope of this store, as scope() returns it"
                )
            name = (*scope._name, scope.session_id, scope.agent_role)
            shares.setdefault(name, (scope, []))[1].append(place)
        return dict(shares.values())

    def get(
        self,
        id: Any = None,
        *,
        key: str | None = None,
        kind: str | None = None,
        now: clock.Instant | None = None,
        as_of: clock.Instant | None = None,
        tiers: str | Sequence[str] = HOT,
    ) -> Record | None:
        """The memory with this id (or of this record) or key, or None if it isn't here, is forgotten or expired.

        A key that several kinds use finds the one written last, unless `kind` says which. `as_of`: as it stood then.
        What lies in the cold tier is found with `tiers=("hot", "cold")`.
        """
        engine = self._engine
        engine.check_open()
        tiers = tiers if tiers is HOT else gate.tiers(tiers)
        moment, then = self._moments(now, as_of)
        if (id is None) == (key is None):
            raise InvalidInput("get takes an id or a key; pass one of them")
        selection = self._selection(KINDS if kind is None else (gate.kind(kind),), moment, then)
        snapshot, positions = self._find(id, key, tiers)
        for position in positions[::-1].tolist():
            if snapshot.sees(position, selection):
                if then is None and snapshot.part_of(position)[0].segment not in snapshot.cold:
                    self._touch([snapshot.cell(position, "seq")], moment, at_once=True)
                return snapshot.record(position)
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
        tiers: str | Sequence[str] = HOT,
    ) -> Records:
        """The memories of the scope in the order they were last written, all kinds unless told otherwise; with
        `tiers=("hot", "cold")` those in the cold tier too.
        """
        self._engine.check_open()
        tiers = tiers if tiers is HOT else gate.tiers(tiers)
        first = gate.count(offset, "offset")
        most = None if limit is None else gate.count(limit, "limit")
        condition = None if where is None else compile_where(where)
        moment, then = self._moments(now, as_of)
        selection = self._selection(gate.kinds(kinds), moment, then)
        snapshot = self._snapshot(tiers)
        positions = snapshot.positions(passing(snapshot, selection, condition))
        return _in_order(snapshot, positions, first, None if most is None else first + most)

    def history(
        self,
        key: str | None = None,
        *,
        id: Any = None,
        kind: str | None = None,
        tiers: str | Sequence[str] = HOT,
    ) -> Records:
        """All versions of one memory, by key, id or record, oldest first; each but the last tells in `superseded_at`
        when it was replaced.

        A key that several memories have had stands for the one written last. What lies in the cold tier is found with
        `tiers=("hot", "cold")`.
        """
        self._engine.check_open()
        tiers = tiers if tiers is HOT else gate.tiers(tiers)
        if (key is None) == (id is None):
            raise InvalidInput("history takes a key or an id; pass one of them")
        selection = self._selection(
            KINDS if kind is None else (gate.kind(kind),), 0, None, expired=True, superseded=True
        )
        snapshot, positions = self._find(id, key, tiers)
        mine = [position for position in positions.tolist() if snapshot.sees(position, selection)]
        if key is not None and mine:  # also what the memory was before it had this key
            last = max(mine, key=lambda position: snapshot.cell(position, "seq"))
            versions = snapshot.positions_with({snapshot.name(last)})
            mine = [position for position in versions.tolist() if snapshot.sees(position, selection)]
        return _in_order(snapshot, np.array(mine, dtype=np.int64))

    # Links

    def link(
        self,
        src: Any,
        relation: str,
        dst: Any,
        *,
        attributes: Mapping[str, Any] | None = None,
        valid_from: clock.Instant | None = None,
        valid_to: clock.Instant | None = None,
        now: clock.Instant | None = None,
    ) -> Link:
        """Links one memory to another, by ids or records, and returns the link. Both must be in this scope.

        `relation` is one of the library's ("summarizes", "caused_by", "supersedes", "contradicts", "lesson_of") or any
        other name; `attributes` a JSON object. The link holds from `valid_from` up to `valid_to`, by default ever and
        for ever.

        What is told of the same memories and relation is one timeline: from now on at no moment do two links hold, and
        what is past stays as it was told. So a new link ends those that would hold beside it, each from then on for
        good, and one still to come altogether; without `valid_from` it then holds from now on. (Where the clock went
        back, now is when the last of them was made.)

        The same call again writes nothing and returns the link, as does one that leaves out what that has: without
        `valid_from` it means the link that holds now, without `valid_to` none that is over. A link that was ended is
        not meant by any call: it is made anew.
        """
        engine = self._engine
        engine.check_open()
        moment = engine.now(now)
        named = (("src", src), ("dst", dst))
        ends = [_ids.halves(gate.record_id(getattr(end, "id", end), what)) for what, end in named]
        name, told = gate.name(relation, "relation"), gate.metadata(attributes, "attributes")
        times = {
            what: NEVER if value is None else clock.to_micros(value, what)
            for what, value in (("valid_from", valid_from), ("valid_to", valid_to))
        }
        if valid_to is not None and times["valid_to"] <= times["valid_from"]:
            since, until = (clock.to_text(times[what]) for what in ("valid_from", "valid_to"))
            raise InvalidInput(
                f"valid_to is {until} and valid_from {since}; a link ends after it begins: swap them, or leave one out"
            )

        def make(catalog: Catalog) -> tuple[View, int, int]:
            partition = catalog.partition(self._name)
            here = partition.known(set(ends))
            if here and self._narrowing() != (None, None):
                here &= self._mine(catalog.as_written(self._name, partition), here)
            for end in ends:
                if end not in here:
                    raise NotFound(
                        f"no memory {_ids.to_text(*end)} in tenant {self.tenant_id!r}, project {self.project_id!r} to "
                        "link; it was never there or was forgotten: list() shows what is there"
                    )
            view, (since, until) = partition.links.view(), times.values()
            mine = view.between(ends[0], catalog.known_code(name), ends[1])
            for row in np.flatnonzero(mine & view.again(catalog.seq, moment, since, until))[::-1].tolist():
                if attributes is None or gate.same_object(told, view.attributes[row]):
                    return view, row, catalog.seq
            begins = max(moment, since)
            cut = np.flatnonzero(mine & view.cut(catalog.seq, begins, until))
            if len(cut):
                catalog.end_links(self._name, dict(zip(cut.tolist(), view.ends(begins)[cut].tolist(), strict=True)))
                if since == NEVER:
                    since = max(moment, int(view.columns["created_at"][cut].max()))
            columns: dict[str, Any] = {"valid_from": since, "valid_to": until, "created_at": moment}
            for end_name, (hi, lo) in zip(("src", "dst"), ends, strict=True):
                columns[f"{end_name}_hi"], columns[f"{end_name}_lo"] = np.uint64(hi), np.uint64(lo)
            catalog.link(self._name, columns, [name], [told])
            return partition.links.view(), partition.links.n - 1, catalog.seq

        view, row, seq = engine.write(make)
        return Links(link_table(view, np.array([row]), names=engine.catalog.names, seq=seq))[0]

    def links(
        self,
        id: Any = None,
        *,
        relation: str | None = None,
        direction: str = "both",
        now: clock.Instant | None = None,
        as_of: clock.Instant | None = None,
    ) -> Links:
        """The links that hold, in the order they were made: all of the scope, or those of one memory.

        `direction` is "out" (from it), "in" (to it) or "both". `as_of`: those that were made by then, and held then by
        what is known now; `valid_to` is up to when they hold, as it is known now.
        """
        self._engine.check_open()
        moment, then = self._moments(now, as_of)
        gate.choice(direction, "direction", ("both", "out", "in"))
        kind = None if relation is None else gate.name(relation, "relation")
        name = None if id is None else _ids.halves(gate.record_id(getattr(id, "id", id)))
        catalog = self._engine.catalog
        snapshot = catalog.snapshot(self._name)
        view = snapshot.links
        found = view.valid(snapshot.seq, moment if then is None else then)
        if then is not None:
            found &= view.columns["created_at"] <= then
        if kind is not None:
            found &= view.columns["relation"] == catalog.known_code(kind)
        if name is not None:
            sides = [view.at(end, {name}) for end, way in (("src", "in"), ("dst", "out")) if direction != way]
            found &= np.logical_or.reduce(sides)
        elif direction != "both":
            raise InvalidInput(f"links got direction={direction!r} and no id; say of which memory, or leave it out")
        rows = np.flatnonzero(found)
        if len(rows) and self._narrowing() != (None, None):
            rows = rows[self._sees_ends(catalog.whole(self._name), view, rows)]
        return Links(link_table(view, rows, names=snapshot.names, seq=snapshot.seq))

    def unlink(
        self, src: Any, relation: str | None = None, dst: Any = None, *, now: clock.Instant | None = None
    ) -> int:
        """Ends the links from one memory, by a relation (default: any), to another (default: any), which hold or are
        still to come, from now on; how many.

        What they were stays: `links(as_of=…)` shows it, and an export has it.
        """
        engine = self._engine
        engine.check_open()
        moment = engine.now(now)
        ends = [
            None if end is None else _ids.halves(gate.record_id(getattr(end, "id", end)))
            for end in (gate.record_id(getattr(src, "id", src), "src"), dst)
        ]
        name = None if relation is None else gate.name(relation, "relation")

        def end(catalog: Catalog) -> int:
            partition = catalog.partition(self._name)
            view = partition.links.view()
            relation = None if name is None else catalog.known_code(name)
            rows = np.flatnonzero(view.between(ends[0], relation, ends[1]) & view.lasting(catalog.seq, moment))
            if len(rows) and self._narrowing() != (None, None):
                rows = rows[self._sees_ends(catalog.as_written(self._name, partition), view, rows)]
            if len(rows):
                catalog.end_links(self._name, dict(zip(rows.tolist(), view.ends(moment)[rows].tolist(), strict=True)))
            return len(rows)

        return engine.write(end)

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
        erase: bool = False,
        dry_run: bool = False,
        now: clock.Instant | None = None,
    ) -> ForgetReport:
        """Forgets memories, all their versions, by id or by conditions that must all hold.

        `older_than_days`: the event is older than that; `max_access`: recalled at most so often. A call that names
        nothing is refused: to empty the scope say `everything=True`, as with a `where` of which all values are None,
        since it matches every memory that lacks them. `dry_run` tells what would go, and does nothing.

        A memory is forgotten where its last version was written. An id of which this scope has earlier versions alone
        stays, and is told in the report's `elsewhere`: a scope without a session and role forgets it.

        What is forgotten is seen no more, as of no moment. `restore` brings it back until its bytes are gone: with
        `compact()`, or, once it is seven days old, in a directory when 32,768 new rows are sealed, in RAM with a later
        `forget`. A forgotten memory's links are hidden, and come back with it. What lies in the cold tier is forgotten
        as well, and its files are rewritten without it by `compact()`.

        `erase=True` is for good: it cannot be restored, also what of the ids asked for was forgotten before. With a
        memory go all its versions, the links that touch it, and, in whatever session, the memories of level 1 and up
        that summarise it (relation "summarizes"), since they may quote it, and those that summarise these; the report
        names them in `cascaded`. Their bytes are gone after `compact()`.
        """
        engine = self._engine
        engine.check_open()
        conditions = {"where": where, "kinds": kinds, "older_than_days": older_than_days, "max_access": max_access}
        named = [name for name, value in conditions.items() if value is not None]
        gate.flag(everything, "everything")
        gate.flag(erase, "erase")
        gate.flag(dry_run, "dry_run")
        if ids is not None and (named or everything):
            raise InvalidInput(
                f"forget got ids and {', '.join(named) or 'everything'}; pass ids alone, or conditions alone"
            )
        if ids is None and not named and not everything:
            raise InvalidInput(
                "forget got nothing to go by; pass ids, where=, kinds=, older_than_days= or max_access=, or "
                "everything=True to empty this scope"
            )
        moment = engine.now(now)
        age = None if older_than_days is None else gate.number(older_than_days, "older_than_days")
        if age is not None and age < 0:
            raise InvalidInput(f"older_than_days is {age:g}; it must be at least 0")
        most = None if max_access is None else gate.count(max_access, "max_access")
        condition = None if where is None else compile_where(where)
        if isinstance(where, Mapping) and all(value is None for value in where.values()) and not everything:
            raise InvalidInput(
                f"where is {gate.shown(where)}; None matches every memory that lacks the value, which may be all: pass "
                "everything=True with it if that is meant, or name a value"
            )
        asked = None if ids is None else _asked_ids(ids)
        selection = self._selection(
            KINDS if kinds is None else gate.kinds(kinds), moment, None, expired=True, lapsed=True
        )

        gone = replace(selection, forgotten=True)

        def chosen(snapshot: Snapshot) -> I64:
            if asked is not None:
                positions = snapshot.positions_with(set(asked)).tolist()
                seen = [p for p in positions if snapshot.sees(p, selection)]
                if erase:  # also what was forgotten before, and could be restored
                    here = {snapshot.name(position) for position in seen}
                    left = self._restorable(snapshot, [p for p in positions if snapshot.sees(p, gone)])
                    last = {snapshot.name(position): position for position in left}
                    seen = sorted([*seen, *(p for name, p in last.items() if name not in here)])
                return np.array(seen, dtype=np.int64)
            return snapshot.positions(_aged(snapshot, passing(snapshot, selection, condition), moment, age, most))

        def named_in(snapshot: Snapshot) -> _Going:
            hi, lo = snapshot.halves(chosen(snapshot))
            names = set(zip(hi.tolist(), lo.tolist(), strict=True))
            left = set(asked or ()) - names
            elsewhere = self._mine(snapshot, left) if left and self._narrowing() != (None, None) else set()
            if not erase or not snapshot.links.n:
                return _Going(hi, lo, [], elsewhere)
            about = snapshot.summaries(names)
            kept = self._restorable(snapshot, snapshot.positions_with(set(about)).tolist()) if about else []
            there = {snapshot.name(position) for position in kept}
            return _Going(hi, lo, [name for name in about if name in there], elsewhere)

        def settled(hot: Callable[[], Snapshot], whole: Callable[[], Snapshot]) -> tuple[int, _Going]:
            """What is named, as of a commit. The cold tier is read only if the hot one may not have all of it."""
            if asked is not None and not erase:
                snapshot = hot()
                found = named_in(snapshot)
                if len(found.hi) == len(set(asked)):
                    return snapshot.seq, found
            snapshot = whole()
            return snapshot.seq, named_in(snapshot)

        # Not under the lock: a filter that reads all metadata takes its time.
        seq, found = settled(lambda: engine.catalog.snapshot(self._name), lambda: engine.catalog.whole(self._name))

        def let_go(catalog: Catalog) -> _Going:
            partition = catalog.partition(self._name)
            now_there = found
            if partition.shown.seq != seq or partition.pending:
                _, now_there = settled(
                    lambda: catalog.as_written(self._name, partition, cold=False),
                    lambda: catalog.as_written(self._name, partition),
                )
            names = {*zip(now_there.hi.tolist(), now_there.lo.tolist(), strict=True), *now_there.cascaded}
            if names:
                catalog.forget(self._name, names, moment, erased=erase)
            return now_there

        hi, lo, cascaded, elsewhere = found if dry_run else engine.write(let_go)
        names = set(zip(hi.tolist(), lo.tolist(), strict=True))
        left = [name for name in dict.fromkeys(asked or ()) if name not in names]
        missing = [_ids.to_text(*name) for name in left if name not in elsewhere]
        theirs = [_ids.to_text(*name) for name in left if name in elsewhere]
        return ForgetReport(_ids.to_texts(hi, lo), missing, dry_run, [_ids.to_text(*name) for name in cascaded], theirs)

    def restore(self, ids: Any) -> RestoreReport:
        """Brings back what was forgotten, all versions as they were, by id, record or the report of `forget`. Of an id
        that was used again, the memory that had it last.

        What lies in the cold tier becomes hot again, also what was forgotten there; so the report of `prune` undoes
        what it moved. It then counts as written last, since its rows get new seqs.
        """
        engine = self._engine
        engine.check_open()
        asked = dict.fromkeys(_asked_ids(ids.ids if isinstance(ids, (ForgetReport, PruneReport)) else ids))
        moment = engine.now(None)
        engine.catalog.whole(self._name)  # so that cold files are not read under the lock

        def bring_back(catalog: Catalog) -> RestoreReport:
            partition = catalog.partition(self._name)
            refs = partition.forgotten(set(asked))
            erased = catalog.erased({ref.get("forgotten_seq") for ref in refs})
            hot: dict[tuple[int, int], builtins.list[Ref]] = {}
            for ref in refs:
                if ref.get("forgotten_seq") not in erased:
                    hot.setdefault(ref.name, []).append(ref)
            cold = moving.cold_versions(catalog, partition, set(asked))
            for name in hot.keys() & cold.keys():  # an id that was used again: the memory that had it last
                at, forgotten = (versions[name][0].get("forgotten_seq") for versions in (cold, hot))
                del (cold if 0 < at < forgotten else hot)[name]
            both = {**hot, **cold}
            mine = {name: both[name] for name in asked if name in both and self._owns(both[name][-1])}
            used = partition.known(set(mine), cold=False)
            back, in_use, from_cold = [], [], []
            retried: set[tuple[int, int, str]] = set()
            undone: dict[tuple[int, int], int] = {}
            for name, versions in mine.items():
                key, kind = versions[-1].text("key"), versions[-1].get("kind")
                rival = key is not None and kind in UPSERTED and partition.by_key(kind, key)
                first = {
                    (ref.get("session"), ref.get("role"), told)
                    for ref in versions
                    if (told := ref.text("idempotency_key")) is not None
                }
                if name in used or rival or first & retried or _answers_for(partition, first) - {name}:
                    in_use.append(name)
                    continue
                back.append(name)
                retried |= first
                undone[name] = versions[0].get("forgotten_seq")
                if name in cold:
                    from_cold.extend(versions)
                else:
                    partition.remember_again(versions)
            if back:
                catalog.seq += 1
            if from_cold:
                moving.bring_back(catalog, self._name, from_cold, moment)
            catalog.link_again(self._name, {name: commit for name, commit in undone.items() if commit})
            missing = [name for name in asked if name not in mine]
            return RestoreReport(*([_ids.to_text(*name) for name in names] for names in (back, missing, in_use)))

        return engine.write(bring_back)

    def forgotten(self, *, kinds: str | Sequence[str] = KINDS, where: Any = None) -> Records:
        """What was forgotten and can still be restored, in the order it was last written."""
        self._engine.check_open()
        condition = None if where is None else compile_where(where)
        selection = self._selection(gate.kinds(kinds), 0, None, expired=True, lapsed=True, forgotten=True)
        snapshot = self._engine.catalog.whole(self._name)
        positions = snapshot.positions(passing(snapshot, selection, condition))
        return _in_order(snapshot, np.array(self._restorable(snapshot, positions.tolist()), dtype=np.int64))

    def prune(
        self,
        *,
        importance_below: float = 0.3,
        recency_below: float = 0.05,
        decay_rate: float | str | None = None,
        retention: Any = None,
        now: clock.Instant | None = None,
        dry_run: bool = False,
    ) -> PruneReport:
        """Moves faded memories to the cold tier, and erases what policies say is kept too long; tells which, and why.

        An episodic memory has faded when its importance is below `importance_below` and its recency,
        exp(-lambda * age in hours), below `recency_below`; `decay_rate` is lambda, by default that of the store. It
        goes with all its versions, is found with `tiers=("hot", "cold")`, and `restore(report)` brings it back.

        `retention` is one `Retention` or several, by default those that the store was opened with: memories of any
        kind and tier whose event is older than a policy's days are erased, as by `forget(erase=True)`. Each of the two
        is one commit. `dry_run` tells what would go, and does nothing.
        """
        engine = self._engine
        engine.check_open()
        bounds = pruning.Bounds(
            gate.unit(importance_below, "importance_below"),
            gate.unit(recency_below, "recency_below"),
            config.decay(decay_rate, None, engine.decay_rate),
        )
        rules = engine.retention if retention is None else pruning.policies(retention)
        return self._prune(bounds, rules, engine.now(now), gate.flag(dry_run, "dry_run"))

    # The live conversation

    def working(self) -> Working:
        """The live conversation of this scope's session and role."""
        self._engine.check_open()
        return Working(self, self._engine.count_tokens)

    def end_session(self, *, now: clock.Instant | None = None) -> builtins.list[str]:
        """Ends the session of this scope: every working memory, the evicted ones too, becomes episodic. Their ids."""
        engine = self._engine
        engine.check_open()
        moment = engine.now(now)

        def end(catalog: Catalog) -> builtins.list[Mapping[str, Any]]:
            partition, conversation = catalog.partition(self._name), self._conversation()
            left = {**partition.fallen.get(conversation, {}), **partition.held.get(conversation, {})}
            return [catalog.replace(partition, seq, {"kind": EPISODIC}, now=moment) for seq in left]

        ended = engine.write(end)
        return [_ids.to_text(int(row["id_hi"][0]), int(row["id_lo"][0])) for row in ended]

    # The scope as a whole

    def export(
        self, path: str | os.PathLike[str], format: str | None = None, *, progress: portable.Progressing | None = None
    ) -> int:
        """Writes all records of this scope with their versions, counters and links to a file; the number of rows
        written.

        The format is by the name's ending unless given: .json (one state document), .jsonl or .parquet. What lies in
        the cold tier is written too, and is hot where it is imported. `progress` is called with the rows done, the
        rows in all, and what is being done.
        """
        catalog = self._engine.catalog
        self._engine.check_open()
        self._engine.check_files([catalog.snapshot(self._name)])
        return portable.write(
            path, [catalog.whole(self._name)], catalog.fingerprint, format, self._every(superseded=True), progress
        )

    def stats(self) -> dict[str, Any]:
        """Counts of this scope, and the bytes and the cold tier of its tenant's project."""
        self._engine.check_open()
        return self._counts([self._name])

    # Inside

    @property
    def _name(self) -> tuple[str, str]:
        return self.tenant_id, self.project_id

    def _bounds(self) -> intake.Bounds:
        return intake.Bounds(self.tenant_id, self.project_id, self.session_id, self.agent_role)

    def _conversation(self) -> Conversation:
        """The codes of the session and role that this scope writes in."""
        catalog = self._engine.catalog
        return catalog.known_code(self.session_id or "default"), catalog.known_code(self.agent_role or "default")

    def _held(self, *, now: clock.Instant | None = None) -> builtins.list[Record]:
        """What the working memory of this scope's session and role holds, in the order it was first written."""
        engine = self._engine
        engine.check_open()
        moment = engine.now(now)
        session, role = self._conversation()
        snapshot = engine.catalog.snapshot(self._name)
        selection = Selection(frozenset((WORKING,)), moment, session, role)
        positions = snapshot.positions(snapshot.masks(selection)).tolist()
        every = self._every(superseded=True)  # that is not forgotten: an id may have been used before

        def first_said(position: int) -> int:
            """An update keeps a message's place."""
            if snapshot.cell(position, "version") == 1:
                return position
            versions: builtins.list[int] = snapshot.positions_with({snapshot.name(position)}).tolist()
            return next(version for version in versions if snapshot.sees(version, every))

        return [snapshot.record(position) for position in sorted(positions, key=first_said)]

    @property
    def _rows(self) -> _Rows:
        return _Rows(self)

    def _completed(self, taken: intake.Intake) -> intake.Intake:
        """The rows with the vectors that were not given, and the tokens of working memories. Not under the lock."""
        engine, columns = self._engine, taken.columns
        vectors, has = taken.vectors, columns["has_vector"]
        waiting = np.flatnonzero(~has)
        made = engine.embed([columns["content"][row] for row in waiting], "document")
        if made is not None:
            if vectors is None:
                vectors = made
            else:
                vectors[waiting] = made
            columns["has_vector"] = np.ones(len(has), np.bool_)
        columns["vector"] = vectors
        working = np.flatnonzero(columns["kind"] == WORKING)
        if len(working):
            columns["tokens"] = np.zeros(len(has), dtype=columns["tokens"].dtype)
            columns["tokens"][working] = engine.tokens([columns["content"][row] for row in working])
        return taken

    def _commit(self, catalog: Catalog, taken: intake.Intake, now: int) -> Commit:
        explicit = taken.explicit if taken.explicit.any() else None
        done = catalog.commit(self._name, taken.columns, taken.names, now=now, explicit=explicit)
        for conversation, written in _said(done.stored).items():
            for at, seq in written:
                make_room(catalog, catalog.partition(self._name), conversation, self._engine.working, at, seq)
        return done

    def _record(self, columns: Mapping[str, Any], row: int, seq: int) -> Record:
        """A row of some columns, just written by the commit `seq`."""
        names = self._engine.catalog.names
        return record(columns, row, names=names, tenant_id=self.tenant_id, project_id=self.project_id, seq=seq)

    def _standing(self, catalog: Catalog, hi: int, lo: int) -> Ref | None:
        """The version of an id that stands, if this scope sees it."""
        ref = catalog.partition(self._name).standing(hi, lo)
        return ref if ref is not None and self._owns(ref) else None

    def _owns(self, last: Ref) -> bool:
        """Whether the memory with this last version belongs to this scope's session and role."""
        session, role = self._narrowing()
        return session in (None, last.get("session")) and role in (None, last.get("role"))

    def _sees_ends(self, snapshot: Snapshot, view: View, rows: I64) -> npt.NDArray[np.bool_]:
        """Of which links both ends are of this scope's session and role."""
        ends = [view.names(end, rows) for end in ("src", "dst")]
        mine = self._mine(snapshot, {name for names in ends for name in names})
        return np.array([src in mine and dst in mine for src, dst in zip(*ends, strict=True)])

    def _restorable(self, snapshot: Snapshot, positions: builtins.list[int]) -> builtins.list[int]:
        """Those of some rows that aren't erased: they are here, or forgotten and could be restored."""
        catalog = self._engine.catalog
        marks = {position: snapshot.cell(position, "forgotten_seq") for position in positions}
        with catalog.lock:
            erased = catalog.erased({seq for seq in marks.values() if seq})
        return [position for position, seq in marks.items() if seq not in erased]

    def _mine(self, snapshot: Snapshot, names: set[tuple[int, int]]) -> set[tuple[int, int]]:
        """Which memories are of this scope's session and role, and are not forgotten."""
        every = self._every(superseded=True)
        positions = snapshot.positions_with(names).tolist()
        return {snapshot.name(position) for position in positions if snapshot.sees(position, every)}

    def _narrowing(self) -> tuple[int | None, int | None]:
        """The codes of the session and role that this scope is narrowed to."""
        catalog = self._engine.catalog
        return (
            None if self.session_id is None else catalog.known_code(self.session_id),
            None if self.agent_role is None else catalog.known_code(self.agent_role),
        )

    def _narrowed(self, selection: Selection) -> Selection:
        """What another scope of the store selects, as far as it is of this one's session and role."""
        session, role = self._narrowing()
        return replace(selection, session=session, role=role)

    def _moments(self, now: object, as_of: object) -> tuple[int, int | None]:
        then = None if as_of is None else clock.to_micros(as_of, "as_of")
        return (then if then is not None and now is None else self._engine.now(now)), then

    def _selection(self, kinds: Sequence[str], now: int, as_of: int | None, **more: bool) -> Selection:
        session, role = self._narrowing()
        codes = _RECALLED if kinds is RECALLED else frozenset(KINDS.index(kind) for kind in kinds)
        return Selection(codes, now, session, role, as_of, **more)

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
        budget_tokens: object,
    ) -> tuple[Ask, Selection, Where | All | None]:
        engine = self._engine
        gate.choice(relevance, "relevance", RELEVANCES)
        if relevance == "lexical" and min_similarity is not None:
            raise InvalidInput(
                "min_similarity bounds the cosine, which relevance='lexical' does not look at; leave it out, or bound "
                "the total with min_score"
            )
        moment, then = self._moments(now, as_of)
        budget = None if budget_tokens is None else gate.count(budget_tokens, "budget_tokens")
        ask = Ask(
            k=gate.count(k, "k") if budget is None else min(max(budget // _SHORT_HIT, _LEAST_HITS), _MOST_HITS),
            weights=engine.weights if weights is None else config.weights(weights),
            decay_rate=config.decay(decay_rate, half_life, engine.decay_rate),
            now=moment,
            min_similarity=-np.inf if min_similarity is None else gate.least_score(min_similarity, "min_similarity"),
            min_score=-np.inf if min_score is None else gate.least_score(min_score, "min_score"),
            budget=budget,
        )
        selection = self._selection(RECALLED if kinds is RECALLED else gate.kinds(kinds), moment, then)
        return ask, selection, None if where is None else compile_where(where)

    def _embed_queries(self, queries: Sequence[object], tiers: Sequence[str], *, counted: bool) -> tuple[F32, Snapshot]:
        """Queries as vectors, and a snapshot whose vectors the same embedder has made."""
        engine = self._engine
        texts = [gate.query(query) for query in queries]
        places = {text: place for place, text in enumerate(dict.fromkeys(texts))}  # equal queries are embedded once
        while True:
            embedder = engine.embedder
            if embedder is None:
                raise InvalidInput(
                    "this store has no embedder, so a text cannot be compared; pass vector=, or open the store with an "
                    "embedder"
                )
            made = engine.embed(builtins.list(places), "query")
            snapshot = self._snapshot(tiers, counted=counted)
            wide = made is None or snapshot.dim == made.shape[1]
            if snapshot.dim and not (wide and engine.catalog.fingerprint == embedder.fingerprint):
                engine.check_embedder()
            elif engine.embedder is embedder:  # or `reembed` has come in between
                if made is None:
                    return np.zeros((0, snapshot.dim), np.float32), snapshot
                return made if len(places) == len(texts) else made[[places[text] for text in texts]], snapshot

    def _snapshot(self, tiers: str | Sequence[str], *, counted: bool = True) -> Snapshot:
        """What readers see of some tiers, which the gate has passed; `counted` as of `Catalog.snapshot`."""
        catalog = self._engine.catalog
        if "cold" not in tiers:
            return catalog.snapshot(self._name, counted=counted)
        return catalog.whole(self._name, hot="hot" in tiers)

    def _prune(
        self, bounds: pruning.Bounds, rules: Sequence[pruning.Retention], now: int, dry_run: bool
    ) -> PruneReport:
        engine = self._engine
        erased = self._overdue(rules, bounds, now)
        if erased and not dry_run:
            done = set(self.forget([one.id for one in erased], erase=True, now=clock.to_datetime(now)).ids)
            erased = [one for one in erased if one.id in done]
        snapshot = engine.catalog.snapshot(self._name)
        masks = snapshot.masks(self._selection(("episodic",), now, None, expired=True))
        chosen, moved = pruning.fading(snapshot, masks, bounds, now)
        if dry_run:
            gone = {one.id for one in erased}
            moved = [one for one in moved if one.id not in gone]
        changed: builtins.list[str] = []
        if moved and not dry_run:
            went = engine.move_out(self._name, snapshot, pruning.versions(snapshot, chosen), now)
            there = {_ids.to_text(*name) for name in went}
            changed = [one.id for one in moved if one.id not in there]
            moved = [one for one in moved if one.id in there]
        return PruneReport(moved, erased, changed, pruning.passed(snapshot, masks), dry_run)

    def _overdue(
        self, rules: Sequence[pruning.Retention], bounds: pruning.Bounds, now: int
    ) -> builtins.list[pruning.Pruned]:
        """What policies say is kept too long in this scope, each memory once."""
        found: dict[str, pruning.Pruned] = {}
        for rule in rules:
            if not rule.concerns(*self._name) or (self.session_id and rule.session not in (None, self.session_id)):
                continue
            snapshot = self._engine.catalog.whole(self._name)
            kinds = KINDS if rule.kind is None else (rule.kind,)
            selection = self._selection(kinds, now, None, expired=True, lapsed=True)
            if rule.session is not None:
                selection = replace(selection, session=self._engine.catalog.known_code(rule.session))
            for one in pruning.overdue(snapshot, snapshot.masks(selection), rule, now, bounds.decay_rate):
                found.setdefault(one.id, one)
        return builtins.list(found.values())

    def _count_access(self, many: Iterable[Recall], selection: Selection, snapshot: Snapshot) -> None:
        seqs = [seq for hits in many for seq in hits.seqs]
        if snapshot.cold:
            seqs = [seq for seq in seqs if all(segment.row_of(seq) is None for segment in snapshot.cold)]
        if seqs and selection.as_of is None:
            self._touch(seqs, selection.now, at_once=False)

    def _touch(self, seqs: Sequence[int], now: int, *, at_once: bool) -> None:
        self._engine.catalog.touch(self._name, seqs, now, at_once=at_once)

    def _find(self, id: object, key: object, tiers: str | Sequence[str]) -> tuple[Snapshot, I64]:
        """The positions of all versions of an id, or of all rows under a key, oldest first."""
        name = None if id is None else _ids.halves(gate.record_id(getattr(id, "id", id)))
        if key is not None and hasattr(key, "id"):
            raise InvalidInput(f"key is {gate.shown(key)}; a key is a text: for a record or a hit pass id=")
        text = "" if key is None else gate.text(key, "key")
        snapshot = self._snapshot(tiers)
        return snapshot, snapshot.positions_under(text) if name is None else snapshot.positions_with({name})

    def _counts(self, names: Sequence[tuple[str, str]]) -> dict[str, Any]:
        catalog, standing, versions = self._engine.catalog, np.zeros(len(KINDS), dtype=np.int64), 0
        snapshots = [catalog.snapshot(name) for name in names]
        with catalog.lock:
            partitions = [catalog.partitions[name] for name in names if name in catalog.partitions]
            held = sum(partition.nbytes() for partition in partitions)
            tiers = [partition.shown.cold for partition in partitions]
        for snapshot in snapshots:
            versions += len(snapshot.positions(snapshot.masks(self._every(superseded=True))))
            for part, mask in zip(snapshot.parts, snapshot.masks(self._every()), strict=True):
                kinds = part.columns["kind"] if mask is EVERY else part.columns["kind"][mask != 0]
                standing += np.bincount(kinds, minlength=len(KINDS))
        return {
            "memories": int(standing.sum()),
            "by_kind": dict(zip(KINDS, standing.tolist(), strict=True)),
            "versions": versions,
            "bytes_in_memory": held,
            "cold": {
                "memories": sum(cold.memories for cold in tiers),
                "files": sum(len(cold.files) for cold in tiers),
                "bytes": sum(cold.bytes for cold in tiers),
            },
        }

    def _every(self, *, superseded: bool = False) -> Selection:
        """All that stands in this scope, or all that isn't forgotten; expired or not."""
        return self._selection(KINDS, 0, None, expired=True, superseded=superseded)


@dataclass(frozen=True, slots=True)
class _Row:
    """What one call of `remember` stores: its arguments, the time, and what was made of its text."""

    fields: dict[str, Any]
    moment: int
    vector: F32 | None
    tokens: int
    embedder: Embedder | None  # that made the vector


_DEFAULTS = prepare_of(Scope.remember).__kwdefaults__ or {}


_Prepared = tuple[intake.Intake, int, "builtins.list[Embedder | None]"]


class _Rows:
    """Rows that are remembered in one scope, by any threads: a `Batch` of `Commits`."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.key = (scope._engine, scope.tenant_id, scope.project_id, scope.session_id, scope.agent_role)

    def prepare(self, rows: Sequence[_Row]) -> tuple[_Prepared, dict[int, Exception]]:
        """The rows as columns, each with the time and the vector of its own call."""
        scope, n = self._scope, len(rows)
        given = {name for row in rows for name, value in row.fields.items() if value is not _DEFAULTS.get(name)}
        fields = {name: [row.fields[name] for row in rows] for name in given}  # one left at its default costs nothing
        if n > 1 or "event_time" in fields:
            fields["event_time"] = [
                intake.Micros(row.moment) if (told := row.fields["event_time"]) is None else told for row in rows
            ]
        taken = intake.check(fields, n, scope._bounds(), now=rows[0].moment, dim=scope._engine.catalog.dim or None)
        columns = taken.columns
        columns["vector"] = taken.vectors
        for place, row in enumerate(taken.rows):
            one = rows[row]
            if n > 1:
                own(columns, "ingested_at")[place] = one.moment
            if one.tokens:
                own(columns, "tokens")[place] = one.tokens
            if one.vector is not None:
                if columns["vector"] is None:
                    columns["vector"] = np.zeros((len(taken.rows), one.vector.shape[1]), dtype=np.float32)
                columns["vector"][place], own(columns, "has_vector")[place] = one.vector[0], True
        embedders = [rows[row].embedder for row in taken.rows if rows[row].vector is not None]
        return (taken, max(row.moment for row in rows), embedders), dict(taken.faults)

    def store(self, prepared: _Prepared) -> builtins.list[tuple[Mapping[str, Any], int, int]]:
        """Of each row: the columns it lies in, its place there, and the commit."""
        scope, (taken, now, embedders) = self._scope, prepared
        engine = scope._engine
        engine.check_writable()
        for embedder in embedders:
            engine.check_made_by(embedder)
        done = scope._commit(engine.catalog, taken, now)
        places = {row: place for place, row in enumerate(done.fresh)}
        partition = engine.catalog.partition(scope._name)
        return [
            (done.stored, places[row], seq) if row in places else (partition.ref(seq).columns(), 0, engine.catalog.seq)
            for row, seq in enumerate(done.seqs)
        ]


def _by_text(
    snapshot: Snapshot, selection: Selection, condition: Where | All | None, relevance: str, query: str,
    vector: F32 | None, ask: Ask,
) -> Recall:  # fmt: skip
    """Recall of one text that goes by its words, and with "hybrid" by its vector too, if there is one."""
    from memcore.search import relevance as relevances
    from memcore.search import result

    begun = perf_counter()
    masks = passing(snapshot, selection, condition)
    filtered = perf_counter()
    if relevance == "lexical":
        found = relevances.best_by_words(snapshot, masks, selection, query, ask)
    else:
        found = relevances.best_hybrid(snapshot, masks, selection, query, vector, ask)
    scanned = perf_counter()
    hits = result.hits(snapshot, found, vector if snapshot.dim else None, ask)
    hits.took = (filtered - begun, scanned - filtered, perf_counter() - scanned)
    return hits


def _texts_of(queries: Any, vectors: object) -> builtins.list[str]:
    """The gate for what is asked by its words."""
    given = [None] if queries is None or vectors is not None else builtins.list(queries)
    if any(query is None for query in given):
        raise InvalidInput("this relevance goes by the words of a text; pass a query, and no vector")
    return [gate.query(query) for query in given]


def _answers_for(partition: Partition, retries: set[tuple[int, int, str]]) -> set[tuple[int, int]]:
    """The ids of the memories that answer retries: a session, a role and an idempotency key each."""
    seqs = (partition.retry(*retry) for retry in retries)
    return {partition.ref(seq).name for seq in seqs if seq is not None}


def _conversations(columns: Mapping[str, Any]) -> set[Conversation]:
    """The conversations into which these rows were written as working memory."""
    working = np.flatnonzero(columns["kind"] == WORKING) if WORKING in columns["kind"].tolist() else ()
    return {(int(columns["session"][row]), int(columns["role"][row])) for row in working}


def _said(columns: Mapping[str, Any]) -> dict[Conversation, builtins.list[tuple[int, int]]]:
    """The conversations into which these rows were written as working memory: of each run at one time that, and the seq
    of its last row. So one call's messages make room at its own time, also in a commit that many calls share.
    """
    said: dict[Conversation, builtins.list[tuple[int, int]]] = {}
    working = np.flatnonzero(columns["kind"] == WORKING) if WORKING in columns["kind"].tolist() else np.empty(0, int)
    cells = (columns[name][working].tolist() for name in ("session", "role", "ingested_at", "seq"))
    for session, role, at, seq in zip(*cells, strict=True):
        runs = said.setdefault((session, role), [])
        if runs and runs[-1][0] == at:
            runs.pop()
        runs.append((at, seq))
    return said


def _in_order(snapshot: Snapshot, positions: I64, first: int = 0, last: int | None = None) -> Records:
    """Some of the records at rising positions, in the order they were last written."""
    if not snapshot.cold:
        return Records(snapshot.table(positions[first:last]))
    order = np.argsort(snapshot.values(positions, "seq"), kind="stable")
    return Records(snapshot.table(np.sort(positions[order[first:last]])).sort_by("seq"))


def _aged(
    snapshot: Snapshot, masks: Sequence[Mask], now: int, days: float | None, max_access: int | None
) -> builtins.list[Mask]:
    """Of what the masks let through, the events older than so many days that were recalled at most so often."""
    kept = []
    for part, mask in zip(snapshot.parts, masks, strict=True):
        passed = np.ones(part.n, dtype=np.bool_) if mask is EVERY else mask != 0
        if days is not None:
            passed &= part.columns["event_time"] < now - days * clock.DAY
        if max_access is not None:
            passed &= part.columns["access_count"] <= max_access
        kept.append(passed.view(np.uint8))
    return kept


def _asked_ids(given: object) -> builtins.list[tuple[int, int]]:
    """The ids, in halves, of one id or record or of several."""
    several = isinstance(given, Iterable) and not isinstance(given, (str, bytes))
    items: Iterable[object] = given if several and isinstance(given, Iterable) else [given]
    return [_ids.halves(gate.record_id(getattr(item, "id", item))) for item in items]


class Memory(Scope):
    """An open store: the default scope's verbs, and those that concern the whole store. Made by `memcore.open`."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, "default", "default", None, None)
        self._finalizer = weakref.finalize(self, engine.close)  # also at the interpreter's exit

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
            self,
        )

    def scopes(self) -> builtins.list[tuple[str, str]]:
        """The (tenant, project) pairs that have rows."""
        self._engine.check_open()
        with self._engine.catalog.lock:
            return self._engine.catalog.scopes()

    def export(
        self, path: str | os.PathLike[str], format: str | None = None, *, progress: portable.Progressing | None = None
    ) -> int:
        """Writes the whole store, all scopes with all versions, counters and links, to a file; the number of rows
        written.

        What lies in the cold tier is written too, and is hot where it is imported. `progress` is called with the rows
        done, the rows in all, and what is being done.
        """
        self._engine.check_open()
        catalog = self._engine.catalog
        snapshots = catalog.snapshots()
        self._engine.check_files(snapshots)
        return portable.write(path, snapshots, catalog.fingerprint, format, progress=progress)

    def import_(
        self,
        path: str | os.PathLike[str],
        format: str | None = None,
        *,
        now: clock.Instant | None = None,
        progress: portable.Progressing | None = None,
    ) -> portable.ImportReport:
        """Adds what `export` wrote, or a JSONL file of rows as `remember_many` takes them.

        Ids, versions, times, counters, links and scopes are kept. A memory whose id is here already is left as it is,
        so that a second import adds nothing, and a newer export no versions. A key in use by another memory goes to the
        one ingested later, and the other becomes history. A link that is here gets an end that the file knows of.
        Rows without ids are new memories of the default scope, unless they name their own.

        All rows are checked before the first goes in: a faulty file changes nothing. Then they go in with a commit for
        each 8,192. If that is cut off, the rows that are in stay, and the same import goes on from there: to the same
        result, and nothing doubled. `progress` is called with the rows done, the rows in all, and what is being done.
        """
        self._engine.check_open()
        return self._engine.read(path, format, self._engine.now(now), progress)

    def prune(
        self,
        *,
        importance_below: float = 0.3,
        recency_below: float = 0.05,
        decay_rate: float | str | None = None,
        retention: Any = None,
        now: clock.Instant | None = None,
        dry_run: bool = False,
    ) -> PruneReport:
        """`Scope.prune` for all scopes of the store, one by one; `restore(report)` brings back what was moved."""
        moment = clock.to_datetime(self._engine.now(now))
        reports = [
            self.scope(*name).prune(
                importance_below=importance_below,
                recency_below=recency_below,
                decay_rate=decay_rate,
                retention=retention,
                now=moment,
                dry_run=dry_run,
            )
            for name in sorted({*self.scopes(), self._name})
        ]
        return pruning.joined(reports, dry_run)

    def restore(self, ids: Any) -> RestoreReport:
        """`Scope.restore` in the default scope; the report of `prune`, in the scopes that it tells of."""
        if not isinstance(ids, PruneReport):
            return super().restore(ids)
        by_scope: dict[tuple[str, str], builtins.list[str]] = {}
        for one in ids.moved:
            by_scope.setdefault((one.tenant_id, one.project_id), []).append(one.id)
        done = [self.scope(*name).restore(mine) for name, mine in by_scope.items()]
        return RestoreReport(
            [id for one in done for id in one.ids],
            [id for one in done for id in one.missing],
            [id for one in done for id in one.in_use],
        )

    def stats(self) -> dict[str, Any]:
        """Counts and bytes of the whole store, in memory and on disk, its embedder and its defaults. `graphs` are all
        that there are, whether this store's `index` uses them or not: the library, the rate of decay and the rows that
        each is for, how many rows a walk keeps in view (with much weight on similarity, and else; 0: it found too
        little and is not used), and its bytes in RAM, 0 until it is first asked.
        """
        engine = self._engine
        engine.check_open()
        scopes, embedder = self.scopes(), engine.embedder
        return {
            "scopes": len(scopes),
            **self._counts(scopes),
            "dim": engine.catalog.dim or None,
            "embedder": _told_embedder(embedder, engine.catalog.fingerprint),
            "weights": builtins.list(engine.weights),
            "decay_rate": engine.decay_rate,
            "graphs": engine.catalog.graphs.told(),
            "path": None if engine.directory is None else str(engine.directory.path),
            "bytes_on_disk": 0 if engine.directory is None else files.bytes_in(engine.directory.path),
        }

    def reembed(self, embedder: EmbedderSpec, *, progress: portable.Progressing | None = None) -> ReembedReport:
        """Embeds all texts anew, of all scopes and versions and of the cold tier, and makes the embedder the store's.

        Recall goes on with the old vectors until every row has its new one; then all change at once. Vectors that were
        passed by hand are replaced too. In a directory an interrupted call can be repeated, and goes on where it was.
        Other processes that have the store open with the old embedder get `EmbedderMismatch` from then on.
        `progress` is called with the rows done, the rows in all, and what is being done.
        """
        from memcore import embed

        self._engine.check_open()
        return self._engine.reembed(embed.resolve(embedder), progress)

    def compact(self, *, progress: portable.Progressing | None = None) -> CompactReport:
        """Frees what was forgotten for good: after it, no file of the store has a byte of it, those of the cold tier
        neither, and no `restore` of it works.

        Also joins small files, and makes the graphs that `index` asks for: 0.2 ms a row. Readers and writers go on
        meanwhile. `progress` is called with the rows done of a graph, those of it in all, and "index".
        """
        engine = self._engine
        engine.check_open()
        told = progress or (lambda *_: None)
        if engine.directory is not None:
            return engine.directory.maintenance.compact(told)
        return engine.commits.sweep(told)

    def verify(self, *, repair: bool = False) -> VerifyReport:
        """Checks every checksum, reference and count of the store, and that the versions of each memory make sense.

        The report's `.ok` tells whether all is as it was written, `.problems` what is not: in which file, what is
        wrong, and what it can be repaired from; `.checked["forgotten"]` how many rows are forgotten and still there.
        `repair` keeps every row that is whole, builds anew what follows from them, and puts the rest aside without
        deleting it; nobody else may have the store open then. One that cannot be opened: `memcore.verify(path)`.
        """
        engine = self._engine
        engine.check_open()
        gate.flag(repair, "repair")
        if engine.directory is not None:
            return engine.directory.verify(repair=repair)
        from memcore.store.verify import check_ram

        return check_ram(engine.catalog)

    def close(self) -> None:
        """Lets go of the store; all that was acknowledged is on disk already. Closing twice is no error."""
        self._engine.close()
        self._finalizer.detach()

    def __enter__(self) -> Memory:
        self._engine.check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _told_embedder(embedder: Embedder | None, fingerprint: str | None) -> dict[str, str | None] | None:
    """The embedder of a store; as its fingerprint tells it, if it was opened without one."""
    if embedder is not None:
        return {"name": embedder.name, "fingerprint": embedder.fingerprint}
    if fingerprint is None:
        return None
    from memcore import embed

    return {"name": embed.name_of(fingerprint), "fingerprint": fingerprint}


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
    durability: str = "full",
    lock_timeout: float = 10.0,
    retention: Any = (),
    index: str = "auto",
    create: bool = True,
) -> Memory:
    """Opens a memory: in RAM, or in a directory, which is made if it isn't there and `create` allows it.

    `embedder` is "static", "hashed", an embedder object, a callable from texts to rows, or None (pass vectors
    yourself). A callable is known again by its module and name: where several have the same, name each with
    `memcore.embed.CallableEmbedder(fn, name=…)`. It is loaded when it is first needed. `clock` returns the time for
    calls that don't pass `now=`. In a directory it also tells, from another thread, when what was forgotten has had its
    seven days: where several have it open in this process, by the earliest of their clocks.
    `weights` and `decay_rate` (or `half_life`) are the defaults of `recall`.

    A write to a directory is acknowledged when it is on disk. Any number of processes and threads may have the same
    directory open; a write waits for those of others at most `lock_timeout` seconds, and then is `StoreLocked`. Who
    opens it twice in one process gets the same copy in RAM, with the same `durability` and `lock_timeout`. A directory
    that may only be read can be read: writes are `StoreReadOnly`, and accesses are not counted.
    `durability="relaxed"` leaves it to the system when to write to the disk: a crash of the machine (not of the
    process) may then lose the last writes, and the store stays whole.

    `retention` is a list of `Retention`: how long memories may be kept, which `prune` sees to.

    `index` tells what may answer `recall`. By default that is the exact scan, and in a scope of a million rows or more
    (or of what `memcore bench --calibrate` has measured here) an HNSW graph over the whole score, which finds about
    .99 of the same hits; `explain()["plan"]` tells which it was. "exact" forbids graphs; "faiss" and "hnswlib" use one
    of that library wherever there is one: from 16,384 rows of a scope on, in RAM from 32,768, where full segments alone
    have one. Graphs are made by `compact`, and in a directory in the background too, after a write; they serve the
    `decay_rate` that the store was opened with, and another one is answered exactly.
    """
    from memcore import embed

    chosen = None if embedder is None else embed.resolve(embedder)
    default_weights, default_decay = config.weights(weights), config.decay(decay_rate, half_life)
    rules = pruning.policies(retention)
    chosen_planner = planner(index)
    limits = config.WorkingLimits(
        gate.count(working_capacity, "working_capacity", 1),
        None if working_tokens is None else gate.count(working_tokens, "working_tokens", 1),
    )
    directory = None
    if path is not None:  # the last that may fail before there is somebody to close it
        from memcore.store.directory import open_directory

        makes = gate.flag(create, "create")
        directory = open_directory(path, durability=durability, lock_timeout=lock_timeout, create=makes)
    catalog = Catalog() if directory is None else directory.catalog
    engine = Engine(
        catalog=catalog,
        commits=Commits(catalog) if directory is None else directory.commits,
        directory=directory,
        embedder=chosen,
        clock=clock,
        weights=default_weights,
        decay_rate=default_decay,
        working=limits,
        count_tokens=count_tokens,
        retention=rules,
        planner=chosen_planner,
    )
    try:
        engine.begin()
    except BaseException:
        engine.close()
        raise
    return Memory(engine)


def verify(
    path: str | os.PathLike[str],
    *,
    repair: bool = False,
    lock_timeout: float = 10.0,
    progress: Callable[[int, int, str], None] | None = None,
) -> VerifyReport:
    """`Memory.verify` of the store in a directory, also if it is damaged so that it cannot be opened.

    `progress` is told how far it is: (done, of how many, with what).
    """
    from memcore.store import directory

    return directory.verify(
        path, repair=gate.flag(repair, "repair"), lock_timeout=lock_timeout, progress=progress or (lambda *_: None)
    )


def _alike(texts: Sequence[str]) -> F32:
    return np.ones((len(texts), 2), np.float32)


def warmup(embedder: EmbedderSpec | None = "static") -> None:
    """Compiles every kernel that a first call needs and loads the embedder, so that the first recall is a fast one.

    Numba caches kernels on disk, in `NUMBA_CACHE_DIR` where that is set: a second process loads them in a moment.
    """
    from memcore import embed
    from memcore.search.exact import FEW
    from memcore.store.codes import BLOCK, Codes
    from memcore_kernels.codes import code_query, turned

    if embedder is not None:
        embed.resolve(embedder).embed(["warm up"])
    rows = np.eye(2, dtype=np.float32)
    with open(embedder=None) as mem:
        mem.remember_many([{"content": "warm up", "vector": row} for row in rows])
        mem.recall(vector=rows[0])
        mem.recall_many(vectors=np.tile(rows, (FEW, 1)))  # enough for the kernels that serve many at once
    with open(embedder=_alike) as mem:
        ids = mem.remember_many(["warm up"] * (BLOCK + 1))  # enough for codes
        mem.forget(ids[0])  # what is forgotten is taken off the sum of vectors by a kernel of its own
        mem.recall("warm up")
    columns = {"vector": rows, "event_time": np.zeros(2, np.int64), "importance": np.zeros(2, np.float32)}
    Codes(2, 2, None).extend(columns, 2)  # what a recall over more rows asks for first
    turned(rows[0], np.eye(2), np.empty(2))
    code_query(np.ones(2), np.full(3, 2), np.empty(2, np.int16), np.empty((3, 4)))

"""What does recall give back? Hits in rank order, each with the parts of its score, and the plan that found them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore import ids
from memcore.clock import HOUR, to_datetime
from memcore.gate import KINDS
from memcore.schema import TIMESTAMP, decimal
from memcore.search import prompt
from memcore.search.ask import Ask, Found
from memcore.store.files import DAMAGE, damaged
from memcore.store.snapshot import Snapshot

F32 = npt.NDArray[np.float32]


@dataclass(slots=True)  # not frozen, since then each of the fields is set by `object.__setattr__`, which is slower
class Hit:
    """One recalled memory. The components are before weighting, in [0, 1] (the similarity [-1, 1]); ages in hours.

    `relevance_component` is what alpha was multiplied with: with relevance="hybrid" what `likeness` (the similarity
    about the mean of all that stands in the scope), `lexical` (how well the words match), `temporal` (how near the
    event is to a time that the question names) and `activation` (what neighbouring turns add) make; with "lexical" that
    alone, with "cosine" the similarity. Each is in [0, 1], and 0.0 where it was not looked at. `count` is of how many
    hits that say the same this is the best, where a token budget has left the others out.
    """

    id: str
    content: str
    kind: str
    total_score: float
    semantic_similarity: float
    recency_component: float
    importance_component: float
    age_hours: float
    metadata: dict[str, Any]
    key: str | None
    event_time: datetime
    session_id: str
    agent_role: str
    source: str
    confidence: float
    untrusted: bool
    version: int
    level: int
    seq: int
    relevance_component: float
    likeness: float = 0.0
    lexical: float = 0.0
    temporal: float = 0.0
    activation: float = 0.0
    count: int = 1

    @property
    def cosine(self) -> float:
        """The similarity, by the name that it has among the parts of a hybrid relevance."""
        return self.semantic_similarity


_ARROW = {
    "str": pa.string(), "float": pa.float64(), "int": pa.int64(), "bool": pa.bool_(), "datetime": TIMESTAMP,
    "str | None": pa.string(), "dict[str, Any]": pa.string(),
}  # fmt: skip
HIT_SCHEMA = pa.schema([(field.name, _ARROW[str(field.type)]) for field in fields(Hit)])


_json = json.JSONDecoder().decode  # half the time of json.loads


class Recall(Sequence[Hit]):
    """The hits of one query, best first: a sequence, a table by `.to_arrow()`, and an account by `.explain()`."""

    def __init__(
        self, hits: Sequence[Hit] | Callable[[], Sequence[Hit]], seqs: Sequence[int], found: Found, ask: Ask
    ) -> None:
        self._made = hits  # or what makes them when the first is asked for
        self.seqs = seqs
        self.took = (0.0, 0.0, 0.0)  # seconds for the filter, the search and reading the rows: of all queries of a call
        self._found = found
        self._ask = ask

    @property
    def _hits(self) -> Sequence[Hit]:
        if callable(self._made):
            self._made = self._made()
        return self._made

    def __len__(self) -> int:
        return len(self._found.scores)

    def __getitem__(self, index: Any) -> Any:
        return self._hits[index]

    def __repr__(self) -> str:
        return f"<Recall: {len(self)} hits, {self._found.plan}>"

    @property
    def ids(self) -> list[str]:
        return [hit.id for hit in self._hits]

    def within(self, budget: int, count: Callable[[str], int]) -> Recall:
        """The best of these hits whose prompt takes at most `budget` tokens; see `memcore.search.prompt`."""
        chosen = prompt.within(self._hits, budget, count)
        places, seqs = [place for place, _ in chosen], self.seqs
        found = self._found._replace(
            scores=self._found.scores[places],
            positions=self._found.positions[places],
            parts=None if self._found.parts is None else tuple(part[places] for part in self._found.parts),
        )
        made = Recall([hit for _, hit in chosen], [seqs[place] for place in places], found, self._ask)
        made.took = self.took
        return made

    def to_prompt(self) -> str:
        """The hits as a text for a language model: one line each, with its age, kind and key. What looks like a tag is
        escaped, and what is marked as untrusted is wrapped and said to be data.
        """
        return prompt.prompt(self._hits)

    def to_arrow(self) -> pa.Table:
        """One row a hit, in rank order: the fields of `Hit`, metadata as JSON text."""
        return pa.table(
            {
                field.name: pa.array([_arrow_value(getattr(hit, field.name)) for hit in self._hits], field.type)
                for field in HIT_SCHEMA
            },
            schema=HIT_SCHEMA,
        )

    def explain(self) -> dict[str, Any]:
        """How it was found: the plan, the rows of the scope, those that passed the filter, the rows of which each slab
        of int8 codes was read, float32 vectors read, rows scored in float64; and what the filter, the search and
        reading the rows took, in ms (of a batch, for all its queries).
        """
        _, *slabs, read, scored = map(int, self._found.counted)
        return {
            "plan": self._found.plan,
            "rows": self._found.rows,
            "passed_filter": self._found.passed,
            "codes_read": slabs,
            "vectors_read": read,
            "scored_exactly": scored,
            "ms": {
                stage: round(1e3 * took, 3) for stage, took in zip(("filter", "search", "read"), self.took, strict=True)
            },
            "weights": dict(zip(("alpha", "beta", "gamma"), self._ask.weights, strict=True)),
            "decay_rate": self._ask.decay_rate,
        }


def _arrow_value(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if isinstance(value, dict) else value


def hits(snapshot: Snapshot, found: Found, query: F32 | None, ask: Ask) -> Recall:
    """Reads the rows found and tells their scores part by part."""
    from memcore_kernels.dots import dot64  # here, so that `memcore.Hit` can be had without loading Numba

    made: list[Hit] = []
    names = snapshot.names
    source: object = None
    try:  # once for all of them, and not `reading` for each
        told = None if found.parts is None else list(zip(*(part.tolist() for part in found.parts), strict=True))
        for place, (score, position) in enumerate(zip(found.scores.tolist(), found.positions.tolist(), strict=True)):
            part, row = snapshot.part_of(position)
            columns, text, source = part.columns, part.view.text, part.segment.source
            event_time, metadata = columns["event_time"].item(row), text("metadata", row)
            age = max(ask.now - event_time, 0) / HOUR
            similarity = 0.0 if query is None else dot64(part.vector(row), query)
            made.append(
                Hit(
                    ids.to_text(columns["id_hi"].item(row), columns["id_lo"].item(row)),
                    text("content", row) or "",
                    KINDS[columns["kind"].item(row)],
                    score,
                    similarity,
                    math.exp(-ask.decay_rate * age),
                    decimal(columns["importance"].item(row)),
                    age,
                    _json(metadata) if metadata else {},
                    text("key", row),
                    to_datetime(event_time),
                    names[columns["session"].item(row)],
                    names[columns["role"].item(row)],
                    names[columns["source"].item(row)],
                    decimal(columns["confidence"].item(row)),
                    columns["untrusted"].item(row),
                    columns["version"].item(row),
                    columns["level"].item(row),
                    columns["seq"].item(row),
                    *((similarity,) if told is None else told[place]),
                )
            )
    except DAMAGE as fault:
        damage = damaged(source, fault)
        if damage is fault:
            raise
        raise damage from fault
    snapshot.let_go(found.positions.tolist())
    return Recall(made, [hit.seq for hit in made], found, ask)


def hits_of_many(snapshot: Snapshot, many: Sequence[Found], queries: F32, ask: Ask) -> list[Recall]:
    """The same for many queries, float32 `(q, d)`: their rows are read together, and become hits when they are asked
    for, since to make 10,000 of them takes as long as a fifth of finding them.
    """
    try:
        read = _Read(snapshot, many, queries, ask)
        snapshot.let_go()
    except DAMAGE:
        return [hits(snapshot, found, query, ask) for found, query in zip(many, queries, strict=True)]  # which tells
    recalls, first = [], 0
    for found in many:
        last = first + len(found.scores)
        recalls.append(Recall(partial(read.hits, first, last), read.seqs(first, last), found, ask))
        first = last
    return recalls


class _Read:
    """The rows of many results, each read once: all that hits tell, and nothing that would keep a snapshot alive."""

    def __init__(self, snapshot: Snapshot, many: Sequence[Found], queries: F32, ask: Ask) -> None:
        from memcore_kernels.dots import cosines

        self.ask, names = ask, snapshot.names
        positions, rows = np.unique(np.concatenate([found.positions for found in many]), return_inverse=True)
        similarity = np.zeros(len(rows))
        if snapshot.dim and len(rows):
            asked = np.repeat(np.arange(len(many)), [len(found.scores) for found in many])
            cosines(snapshot.values(positions, "vector"), rows, queries, asked, similarity)
        self.rows: list[int] = rows.tolist()
        self.similarities: list[float] = similarity.tolist()
        self.scores = [score for found in many for score in found.scores.tolist()]

        def column(name: str) -> Any:
            return snapshot.values(positions, name).tolist()

        def texts(name: str) -> Any:
            return snapshot.texts(positions, name).to_pylist()

        self.cells = list(
            zip(
                ids.to_texts(*snapshot.halves(positions)), texts("content"), column("kind"), column("importance"),
                column("event_time"), texts("metadata"), texts("key"),
                *([names[code] for code in column(name)] for name in ("session", "role", "source")),
                *(column(name) for name in ("confidence", "untrusted", "version", "level", "seq")),
                strict=True,
            )
        )  # fmt: skip

    def seqs(self, first: int, last: int) -> list[int]:
        return [self.cells[row][-1] for row in self.rows[first:last]]

    def hits(self, first: int, last: int) -> list[Hit]:
        made = []
        for place in range(first, last):
            id, content, kind, importance, event_time, metadata, key, *more, seq = self.cells[self.rows[place]]
            session, role, source, confidence, untrusted, version, level = more
            age = max(self.ask.now - event_time, 0) / HOUR
            made.append(
                Hit(
                    id,
                    content or "",
                    KINDS[kind],
                    self.scores[place],
                    self.similarities[place],
                    math.exp(-self.ask.decay_rate * age),
                    decimal(importance),
                    age,
                    _json(metadata) if metadata else {},
                    key,
                    to_datetime(event_time),
                    session,
                    role,
                    source,
                    decimal(confidence),
                    untrusted,
                    version,
                    level,
                    seq,
                    self.similarities[place],
                )
            )
        return made

"""What does recall give back? Hits in rank order, each with the parts of its score, and the plan that found them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from memcore import ids
from memcore.clock import HOUR, to_datetime
from memcore.gate import KINDS
from memcore.schema import TIMESTAMP, decimal
from memcore.store.files import reading
from memcore.store.snapshot import Snapshot

if TYPE_CHECKING:
    from memcore.search.exact import Ask, Found


@dataclass(frozen=True, slots=True)
class Hit:
    """One recalled memory. The components are before weighting, in [0, 1] (the similarity [-1, 1]); ages in hours."""

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


_ARROW = {
    "str": pa.string(), "float": pa.float64(), "int": pa.int64(), "bool": pa.bool_(), "datetime": TIMESTAMP,
    "str | None": pa.string(), "dict[str, Any]": pa.string(),
}  # fmt: skip
HIT_SCHEMA = pa.schema([(field.name, _ARROW[str(field.type)]) for field in fields(Hit)])


class Recall(Sequence[Hit]):
    """The hits of one query, best first: a sequence, a table by `.to_arrow()`, and an account by `.explain()`."""

    def __init__(self, hits: Sequence[Hit], found: Found, ask: Ask) -> None:
        self._hits = list(hits)
        self._found = found
        self._ask = ask

    def __len__(self) -> int:
        return len(self._hits)

    def __getitem__(self, index: Any) -> Any:
        return self._hits[index]

    def __repr__(self) -> str:
        return f"<Recall: {len(self)} hits, {self._found.plan}>"

    @property
    def ids(self) -> list[str]:
        return [hit.id for hit in self._hits]

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
        """How it was found: the plan, the rows of the scope, those that passed the filter, int8 codes
        and float32 vectors read, rows scored in float64."""
        return {
            "plan": self._found.plan,
            "rows": self._found.rows,
            "passed_filter": self._found.passed,
            "codes_read": self._found.coded,
            "vectors_read": self._found.read,
            "scored_exactly": self._found.scored,
            "weights": dict(zip(("alpha", "beta", "gamma"), self._ask.weights, strict=True)),
            "decay_rate": self._ask.decay_rate,
        }


def _arrow_value(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if isinstance(value, dict) else value


def hits(snapshot: Snapshot, found: Found, query: np.ndarray[Any, np.dtype[np.float32]] | None, ask: Ask) -> Recall:
    """Reads the rows found and tells their scores part by part."""
    from memcore_kernels.decay import recency  # here, so that `memcore.Hit` can be had without loading Numba
    from memcore_kernels.dots import dot64

    made = []
    for score, position in zip(found.scores.tolist(), found.positions.tolist(), strict=True):
        part, row = snapshot.part_of(position)
        columns = part.columns
        event_time = int(columns["event_time"][row])
        with reading(part.segment.source):
            metadata = part.view.text("metadata", row)
            made.append(
                Hit(
                    id=ids.to_text(int(columns["id_hi"][row]), int(columns["id_lo"][row])),
                    content=part.view.text("content", row) or "",
                    kind=KINDS[columns["kind"][row]],
                    total_score=score,
                    semantic_similarity=0.0 if query is None else float(dot64(columns["vector"][row], query)),
                    recency_component=float(recency(event_time, ask.now, ask.decay_rate)),
                    importance_component=decimal(columns["importance"][row]),
                    age_hours=max(ask.now - event_time, 0) / HOUR,
                    metadata=json.loads(metadata) if metadata else {},
                    key=part.view.text("key", row),
                    event_time=to_datetime(event_time),
                    session_id=snapshot.names[columns["session"][row]],
                    agent_role=snapshot.names[columns["role"][row]],
                    source=snapshot.names[columns["source"][row]],
                    confidence=decimal(columns["confidence"][row]),
                    untrusted=bool(columns["untrusted"][row]),
                    version=int(columns["version"][row]),
                    level=int(columns["level"][row]),
                    seq=int(columns["seq"][row]),
                )
            )
    return Recall(made, found, ask)

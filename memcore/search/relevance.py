"""How relevant is each row to a text, beyond the cosine? By its words, or by vector, words and neighbours together.

    base = (max(cosine, 0) + WORDS * lexical) / (1 + WORDS)
    x = (base + gained) / (1 + the most that can be gained)
    hybrid = x^2 / (x^2 + HALF^2)

All are in [0, 1], and the result rises with each part. It is made of every row that the call may see, whatever `where`
lets through, and does not depend on k. Turns have neighbours: episodic memories that were written into a session, in
the order they were stored. Cosines are summed in float32, the rest in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from memcore.gate import KINDS
from memcore.search import lexical
from memcore.search.ask import Ask, Found
from memcore.store.snapshot import EVERY, Masks, Selection, Snapshot
from memcore_kernels import activation, scan, topk

# Recall@10 of LoCoMo's evidence: .697, .737, .745 and .755 with 1, 2, 3 and 4.
WORDS = 3.0
# There x is 0.13 to 0.22 for what questions ask for and 0.06 to 0.10 for the rest: so the one becomes 0.43 to 0.68, the
# other 0.14 to 0.31, which recency and importance can be weighed against.
HALF = 0.15
_EPISODIC = KINDS.index("episodic")

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


def best_by_words(snapshot: Snapshot, masks: Masks, selection: Selection, query: str, ask: Ask) -> Found:
    """The exact top k by the total score, with how well the words match in place of the cosine."""
    matches = lexical.matches(snapshot, query, selection.as_of)
    return _ranked(snapshot, masks, matches, matches, np.zeros(len(matches)), "lexical index", ask)


def best_hybrid(
    snapshot: Snapshot, masks: Masks, selection: Selection, query: str, vector: F32 | None, ask: Ask
) -> Found:
    """The same with the hybrid relevance. `vector` float32 `(d,)`, the query's, or None: cosines are 0."""
    words, cosines = lexical.matches(snapshot, query, selection.as_of), np.zeros(snapshot.rows(), np.float32)
    if vector is not None and snapshot.dim:
        for part in snapshot.parts:
            here = cosines[part.base : part.base + part.n]
            activation.similarities(part.columns["vector"], vector, here)
        snapshot.let_go()
    if not snapshot.parts:
        return _ranked(snapshot, masks, words, words, words, "nothing to rank", ask)
    base = (np.maximum(cosines, 0).astype(np.float64) + WORDS * words) / (1 + WORDS)
    gained = np.zeros(len(base))
    columns = [_column(snapshot, name) for name in ("kind", "session")]
    seen = np.concatenate(
        [_whole(mask, part.n) for mask, part in zip(snapshot.masks(selection), snapshot.parts, strict=True)]
    )
    taking = (seen != 0) & (columns[0] == _EPISODIC) & ~_without(snapshot.names, columns[1])
    activation.activate(base, columns[1], taking.view(np.uint8), len(snapshot.names), gained)
    squared = ((base + gained) / (1 + activation.MOST)) ** 2
    relevance = squared / (squared + HALF**2)
    if ask.min_similarity > -np.inf:
        near = cosines >= ask.min_similarity
        masks = Masks(
            [_whole(m, p.n) & near[p.base : p.base + p.n] for m, p in zip(masks, snapshot.parts, strict=True)]
        )
    return _ranked(snapshot, masks, relevance, words, gained / activation.MOST, "hybrid, all rows", ask)


def _column(snapshot: Snapshot, name: str) -> Any:
    """A column of all rows, contiguous."""
    return np.concatenate([part.columns[name] for part in snapshot.parts])


def _whole(mask: npt.NDArray[np.uint8], n: int) -> npt.NDArray[np.uint8]:
    return np.ones(n, np.uint8) if mask is EVERY else mask


def _without(names: Sequence[str], session: Any) -> Any:
    """Which rows are in no session but the one that all are in who name none."""
    return session == names.index("default") if "default" in names else np.zeros(len(session), np.bool_)


def _ranked(snapshot: Snapshot, masks: Masks, relevance: F64, words: F64, gained: F64, plan: str, ask: Ask) -> Found:
    """The top k of rows whose relevance is known. Each is looked at: one without any may be recent and important."""
    passed = sum(int(np.count_nonzero(_whole(m, p.n))) for m, p in zip(masks, snapshot.parts, strict=True))
    k, size = min(ask.k, passed), 0
    halves = np.empty((2, k), np.uint64)
    heap: tuple[Any, Any, Any, Any, Any] = (np.empty(k), np.empty(k, np.int64), *halves, np.empty(k, np.int64))
    for part, mask in zip(snapshot.parts, masks, strict=True) if k else ():
        c = part.columns
        size = scan.rank(
            relevance[part.base : part.base + part.n], mask, c["event_time"], c["importance"], c["id_hi"], c["id_lo"],
            part.base, ask.now, ask.decay_rate, *ask.weights, ask.min_score, *heap, size,
        )  # fmt: skip
    found: Any = [column[:size] for column in heap]
    scores, positions = topk.ranked(k, *found)
    parts = relevance[positions], words[positions], gained[positions]
    return Found(scores, positions, plan, snapshot.rows(), passed, (0, 0, 0, 0, 0, passed), parts)

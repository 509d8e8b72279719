"""How relevant is each row to a text, beyond the cosine? By its words, or by vector, words and neighbours together.

    base = (likeness + WORDS * lexical + TIME * temporal) / (1 + WORDS + TIME)
    x = (base + gained) / (1 + the most that can be gained)
    hybrid = x^3 / (x^3 + HALF^3)

All are in [0, 1], and the result rises with each part. Likeness is the cosine about the mean of all that stands in the
scope (`memcore_kernels.centre`), lexical how well the words match, temporal how near the event is to a time that the
question names, and gained what neighbouring turns add: episodic memories that were written into a session, in the order
they were stored. It is made of every row that the call may see, whatever `where` lets through, and does not depend on
k. Cosines are summed in float32, the rest in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memcore.gate import KINDS
from memcore.search import lexical, times
from memcore.search.ask import Ask, Found
from memcore.store.snapshot import EVERY, Masks, Part, Selection, Snapshot
from memcore_kernels import activation, centre, scan, topk

# Recall@10 of LoCoMo's evidence is .794, .799 and .803 with 3, 4 and 5, recall@25 .876, .874 and .872.
WORDS = 4.0
# .800 with .25, .796 with .5 and .788 with 1, where questions name a time that others than the evidence are of; on the
# shipped trace .645, .640 and .615, and .624 without.
TIME = 0.25
# Half of what LoCoMo's questions ask for has x above 0.16, and nine tenths of the rest below 0.1: so recency and
# importance can be weighed against the one and not the other. With weights (.5, .3, .2) recall@10 is .655 there and
# .600 on the shipped trace; with squares of 0.15 .383 and .472.
HALF = 0.085
# The mean is drawn to 0 as if so many rows of zeros stood in the scope: about that of one or two, nothing is like them.
FEW = 4
_EPISODIC = KINDS.index("episodic")

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class Parts(NamedTuple):
    """What each row's relevance is made of, float64 `(n,)`, as hits tell it."""

    relevance: F64
    likeness: F64
    lexical: F64
    temporal: F64
    activation: F64


def best_by_words(snapshot: Snapshot, masks: Masks, selection: Selection, query: str, ask: Ask) -> Found:
    """The exact top k by the total score, with how well the words match in place of the cosine."""
    matches = lexical.matches(snapshot, query, selection.as_of)
    none = np.zeros(len(matches))
    return _ranked(snapshot, masks, Parts(matches, none, matches, none, none), "lexical index", ask)


def best_hybrid(
    snapshot: Snapshot, masks: Masks, selection: Selection, query: str, vector: F32 | None, ask: Ask
) -> Found:
    """The same with the hybrid relevance. `vector` float32 `(d,)`, the query's, or None: nothing is alike."""
    words = lexical.matches(snapshot, query, selection.as_of)
    alike = np.zeros(len(words), np.float32)
    if vector is not None and vector.any():
        about = _about(snapshot, lexical.standing(snapshot, selection.as_of), vector)
        for part in snapshot.parts:
            centre.likeness(part.columns["vector"], *about, alike[part.base : part.base + part.n])
        snapshot.let_go()
    likeness = alike.astype(np.float64)
    if not snapshot.parts:
        return _ranked(snapshot, masks, Parts(words, words, words, words, words), "nothing to rank", ask)
    base, temporal = likeness + WORDS * words, np.zeros(len(words))
    if named := times.spans(query, ask.now):
        temporal = times.nearness(_column(snapshot, "event_time"), named)
        base += TIME * temporal
    base /= 1 + WORDS + TIME
    gained = np.zeros(len(base))
    columns = [_column(snapshot, name) for name in ("kind", "session")]
    seen = np.concatenate(
        [_whole(mask, part.n) for mask, part in zip(snapshot.masks(selection), snapshot.parts, strict=True)]
    )
    taking = (seen != 0) & (columns[0] == _EPISODIC) & ~_without(snapshot.names, columns[1])
    activation.activate(base, columns[1], taking.view(np.uint8), len(snapshot.names), gained)
    cubed = ((base + gained) / (1 + activation.MOST)) ** 3
    relevance = cubed / (cubed + HALF**3)
    if ask.min_similarity > -np.inf:
        masks = _near(snapshot, masks, vector, ask.min_similarity)
    parts = Parts(relevance, likeness, words, temporal, gained / activation.MOST)
    return _ranked(snapshot, masks, parts, "hybrid, all rows", ask)


def _about(snapshot: Snapshot, standing: Masks, query: F32) -> tuple[F32, float, float]:
    """A query about the centre of what stands, as `centre.likeness` takes it."""
    if standing.centre is None:
        total = np.zeros(snapshot.dim, np.int64)
        for part, mask in zip(snapshot.parts, standing, strict=True):
            _add(part, mask, total)
        standing.centre = total / centre.ONE / (_passed(snapshot, standing) + FEW)
    mean: F64 = standing.centre
    apart = query.astype(np.float64) - mean
    length = math.sqrt(apart @ apart)
    if length == 0:
        return np.zeros(len(mean), np.float32), 0.0, 0.0
    turned = (apart / length).astype(np.float32)
    return turned, float(turned.astype(np.float64) @ mean), 1 / math.sqrt(max(1 - float(mean @ mean), 1e-6))


def _add(part: Part, mask: npt.NDArray[np.uint8], total: I64) -> None:
    """Adds the vectors of a part that its mask lets through."""
    vectors, segment = part.columns["vector"], part.segment
    if vectors.shape[1] != segment.dim or (mask is not EVERY and 2 * int(np.count_nonzero(mask)) < part.n):
        centre.add_marked(vectors, _whole(mask, part.n), 1, 1, total)
        return
    done, known = segment.summed or (0, np.zeros(len(total), np.int64))
    if done > part.n:  # it has grown behind what this snapshot shows
        centre.add_rows(vectors, 0, part.n, total)
    else:
        if done < part.n:
            known = known.copy()
            centre.add_rows(vectors, done, part.n, known)
            segment.summed = (part.n, known)
        total += known
    if mask is not EVERY:
        centre.add_marked(vectors, mask, 0, -1, total)


def _near(snapshot: Snapshot, masks: Masks, vector: F32 | None, least: float) -> Masks:
    """Masks that let through only what has at least this cosine."""
    narrowed = []
    for mask, part in zip(masks, snapshot.parts, strict=True):
        cosines = part.columns["vector"] @ vector if vector is not None and snapshot.dim else np.zeros(part.n)
        narrowed.append((_whole(mask, part.n) != 0) & (cosines >= least))
    snapshot.let_go()
    return Masks([mask.view(np.uint8) for mask in narrowed])


def _passed(snapshot: Snapshot, masks: Masks) -> int:
    """How many rows masks let through."""
    return sum(
        part.n if mask is EVERY else int(np.count_nonzero(mask))
        for part, mask in zip(snapshot.parts, masks, strict=True)
    )


def _column(snapshot: Snapshot, name: str) -> Any:
    """A column of all rows, contiguous."""
    return np.concatenate([part.columns[name] for part in snapshot.parts])


def _whole(mask: npt.NDArray[np.uint8], n: int) -> npt.NDArray[np.uint8]:
    return np.ones(n, np.uint8) if mask is EVERY else mask


def _without(names: Sequence[str], session: Any) -> Any:
    """Which rows are in no session but the one that all are in who name none."""
    return session == names.index("default") if "default" in names else np.zeros(len(session), np.bool_)


def _ranked(snapshot: Snapshot, masks: Masks, parts: Parts, plan: str, ask: Ask) -> Found:
    """The top k of rows whose relevance is known. Each is looked at: one without any may be recent and important."""
    passed = _passed(snapshot, masks)
    k, size = min(ask.k, passed), 0
    halves = np.empty((2, k), np.uint64)
    heap: tuple[Any, Any, Any, Any, Any] = (np.empty(k), np.empty(k, np.int64), *halves, np.empty(k, np.int64))
    for part, mask in zip(snapshot.parts, masks, strict=True) if k else ():
        c = part.columns
        size = scan.rank(
            parts.relevance[part.base : part.base + part.n], mask, c["event_time"], c["importance"], c["id_hi"],
            c["id_lo"], part.base, ask.now, ask.decay_rate, *ask.weights, ask.min_score, *heap, size,
        )  # fmt: skip
    found: Any = [column[:size] for column in heap]
    scores, positions = topk.ranked(k, *found)
    told = tuple(column[positions] for column in parts)
    return Found(scores, positions, plan, snapshot.rows(), passed, (0, 0, 0, 0, 0, passed), told)

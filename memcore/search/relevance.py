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

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memcore.gate import KINDS
from memcore.search import exact, lexical, times
from memcore.search.ask import Ask, Found
from memcore.store.codes import Codes
from memcore.store.snapshot import EVERY, Masks, Part, Selection, Snapshot
from memcore_kernels import activation, centre, relevance, scan, topk
from memcore_kernels.codes import BOUND_ERROR, estimate
from memcore_kernels.decay import BLOCK, KNOWN_ERROR, known_terms

# LoCoMo's recall@10 with 2, 3 and 4: .797 and .800 of the static embedder with the last two, .822, .821 and .818 of e5.
WORDS = 3.0
# With 4 times the words, .800 with .25, .796 with .5 and .788 with 1, where questions name a time that others than the
# evidence are of; on the shipped trace .645, .640 and .615, and .624 without.
TIME = 0.25
# Half of what LoCoMo's questions ask for has x above 0.16, and nine tenths of the rest below 0.1: so recency and
# importance can be weighed against the one and not the other. With weights (.5, .3, .2) recall@10 is .655 there and
# .600 on the shipped trace; with squares of 0.15 .383 and .472.
HALF = 0.085
# The mean is drawn to 0 as if so many rows of zeros stood in the scope: about its own mean, one row is like nothing.
FEW = 1
_PIECE = 4 * BLOCK  # coded rows that a thread takes at a time
_EPISODIC = KINDS.index("episodic")

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class Parts(NamedTuple):
    """What each row's relevance is made of, `(n,)`, float64 but for the likeness, as hits tell it."""

    relevance: F64
    likeness: F32 | F64
    lexical: F64
    temporal: F64
    activation: F64


def best_by_words(snapshot: Snapshot, masks: Masks, selection: Selection, query: str, ask: Ask) -> Found:
    """The exact top k by the total score, with how well the words match in place of the cosine."""
    matches = lexical.matches(snapshot, query, selection.as_of)
    none = np.zeros(len(matches))
    parts = Parts(matches, none, matches, none, none)
    return _ranked(snapshot, _known(snapshot, masks, ask), _passed(snapshot, masks), parts, "lexical index", ask)


def best_hybrid(
    snapshot: Snapshot, masks: Masks, selection: Selection, query: str, vector: F32 | None, ask: Ask
) -> Found:
    """The same with the hybrid relevance. `vector` float32 `(d,)`, the query's, or None: nothing is alike.

    Where rows have int8 codes, these bound every row's relevance, and only what can be among the best, with what its
    activation depends on, is made of the vectors: the result is the same.
    """
    words = lexical.matches(snapshot, query, selection.as_of)
    n = len(words)
    if not n:
        return _ranked(snapshot, words.astype(np.float32), 0, Parts(*[words] * 5), "nothing to rank", ask)
    base, gained, made = np.empty(n), np.empty(n), np.zeros(n)
    named = times.spans(query, ask.now)
    temporal = times.nearness(_column(snapshot, "event_time"), named) if named else np.zeros(0)
    alike = np.zeros(n, np.float32)
    error = 0.0
    about = None
    if vector is not None and snapshot.dim and vector.any():
        about = _about(snapshot, lexical.standing(snapshot, selection.as_of), vector)
        error = _alike(snapshot, *about, alike)
    if ask.min_similarity > -np.inf:
        masks = _near(snapshot, masks, vector, ask.min_similarity)
    turns, passed, known = _turns(snapshot, selection), _passed(snapshot, masks), _known(snapshot, masks, ask)
    plan = "hybrid, all rows"
    relevance.bases(alike, words, temporal, WORDS, TIME, base)
    activation.activate(base, *turns, gained)
    if about is not None and error:
        plan = "hybrid, int8 codes"
        off, k = error / (1 + WORDS + TIME), min(ask.k, passed)
        chosen, wanted = np.zeros(n, np.uint8), np.empty(n, np.uint8)
        if k:
            lower, upper = np.empty(n, np.float32), np.empty(n, np.float32)
            relevance.candidates(
                base, gained, known, activation.MOST, HALF, off, ask.weights.alpha, 2 * KNOWN_ERROR, k, lower, upper,
                chosen,
            )  # fmt: skip
        session, taking, names = turns
        beside = np.empty(n, np.uint8)
        relevance.needed(base, session, taking, names, off, chosen, beside, wanted)
        _alike_exactly(snapshot, *about, np.flatnonzero(wanted), alike)
        relevance.bases(alike, words, temporal, WORDS, TIME, base)
        activation.activate(base, session, beside, names, gained)
        few = np.flatnonzero(chosen)
        among, known = known[few], np.full(n, -np.inf, np.float32)
        known[few] = among
        relevance.relevances(base[few], gained[few], activation.MOST, HALF, told := np.empty(len(few)))
        made[few] = told
    else:
        relevance.relevances(base, gained, activation.MOST, HALF, made)
    snapshot.let_go()
    gained /= activation.MOST
    parts = Parts(made, alike, words, temporal if named else np.zeros(n), gained)
    return _ranked(snapshot, known, passed, parts, plan, ask)


def _alike(snapshot: Snapshot, query: F32, shift: float, scale: float, out: F32) -> float:
    """Each row's likeness, from its codes where it has any; how far it can be off. Two threads take pieces of the codes
    in turns, and neither waits for the other: what the helper has not done, this thread does too.
    """
    pieces: list[tuple[int, Codes, int, int]] = []
    asked: dict[Any, Any] = {}
    for part in snapshot.parts:
        here = out[part.base : part.base + part.n]
        codes = snapshot.coder.codes(part.segment, part.n) if part.segment.dim == snapshot.dim else None
        coded = 0
        if codes is not None:
            coded = min(codes.rows, part.n)
            if codes.rotation not in asked:
                asked[codes.rotation] = exact.coded(query, codes.rotation)
            pieces += ((part.base, codes, i, min(i + _PIECE, coded)) for i in range(0, coded, _PIECE))
        centre.likeness(part.columns["vector"][coded : part.n], query, shift, scale, here[coded:])
    done: list[tuple[float, F32] | None] = [None] * len(pieces)
    taken = itertools.count()

    def estimated(piece: tuple[int, Codes, int, int]) -> tuple[float, F32]:
        _, codes, first, last = piece
        products, totals = np.empty(last - first, np.float32), np.empty(last - first, np.int32)
        one, two, three = (_lent(slab[first:last]) for slab in codes.slabs)
        numbers, told = asked[codes.rotation]
        scale, missed = _lent(codes.scale[:]), _lent(codes.missed[:])
        off = estimate(one, two, three, scale, missed, first, numbers, told, totals, products)
        return off, products

    def run() -> None:
        while (j := next(taken)) < len(pieces):
            done[j] = estimated(pieces[j])

    if len(out) >= exact.PARALLEL_ROWS and exact.THREADS > 1:
        exact.help_with(run)
    run()
    error = 0.0
    for piece, made in zip(pieces, done, strict=True):
        off, products = made or estimated(piece)
        base, _, first, last = piece
        centre.likely(products, shift, scale, out[base + first : base + last])
        error = max(error, (off + BOUND_ERROR + scan.dot_error(snapshot.dim)) * scale)
    return error


def _lent(view: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A view, read-only as codes that are mapped are: Numba compiles a kernel anew for an array that can be written."""
    view.flags.writeable = False
    return view


def _alike_exactly(snapshot: Snapshot, query: F32, shift: float, scale: float, positions: I64, out: F32) -> None:
    """The likeness of some rows, at rising positions, from their vectors."""
    ends = np.searchsorted(positions, [part.base + part.n for part in snapshot.parts])
    for part, first, last in zip(snapshot.parts, [0, *ends.tolist()], ends.tolist(), strict=False):
        if last > first:
            here = out[part.base : part.base + part.n]
            centre.likeness_of(part.columns["vector"], positions[first:last] - part.base, query, shift, scale, here)


def _turns(snapshot: Snapshot, selection: Selection) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], int]:
    """Every row's session, whether it is a turn that the call may see, and how many sessions there can be."""
    masks = snapshot.masks(selection)
    if "turns" not in masks.kept:
        kind, session = (_column(snapshot, name) for name in ("kind", "session"))
        seen = np.concatenate([_whole(mask, part.n) for mask, part in zip(masks, snapshot.parts, strict=True)])
        taking = (seen != 0) & (kind == _EPISODIC) & ~_without(snapshot.names, session)
        masks.kept["turns"] = session, taking.view(np.uint8), int(session.max(initial=-1)) + 1
    turns: tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8], int] = masks.kept["turns"]
    return turns


def _about(snapshot: Snapshot, standing: Masks, query: F32) -> tuple[F32, float, float]:
    """A query about the centre of what stands, as `centre.likeness` takes it."""
    if "centre" not in standing.kept:
        total = np.zeros(snapshot.dim, np.int64)
        for part, mask in zip(snapshot.parts, standing, strict=True):
            _add(part, mask, total)
        standing.kept["centre"] = total / centre.ONE / (_passed(snapshot, standing) + FEW)
    mean: F64 = standing.kept["centre"]
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


def _known(snapshot: Snapshot, masks: Masks, ask: Ask) -> F32:
    """What each row's score is beside its relevance, float32 `(n,)` by position; minus infinity where it is barred."""
    known = np.empty(snapshot.rows(), np.float32)
    _, beta, gamma = ask.weights
    for part, mask in zip(snapshot.parts, masks, strict=True):
        event_time, importance = part.columns["event_time"], part.columns["importance"]
        known_terms(
            event_time, importance, mask, ask.now, ask.decay_rate, beta, gamma, known[part.base : part.base + part.n],
            np.empty(-(-part.n // BLOCK), np.float32),
        )  # fmt: skip
    return known


def _ranked(snapshot: Snapshot, known: F32, passed: int, parts: Parts, plan: str, ask: Ask) -> Found:
    """The top k of rows whose relevance is known: of all that are not barred, also those without any relevance, since
    they may be recent and important. The masks let `passed` through.
    """
    k, size = min(ask.k, passed), 0
    halves = np.empty((2, k), np.uint64)
    heap: tuple[Any, Any, Any, Any, Any] = (np.empty(k), np.empty(k, np.int64), *halves, np.empty(k, np.int64))
    for part in snapshot.parts if k else ():
        c, here = part.columns, slice(part.base, part.base + part.n)
        size = scan.rank(
            parts.relevance[here], known[here], c["event_time"], c["importance"], c["id_hi"], c["id_lo"], part.base,
            ask.now, ask.decay_rate, *ask.weights, ask.min_score, *heap, size,
        )  # fmt: skip
    found: Any = [column[:size] for column in heap]
    scores, positions = topk.ranked(k, *found)
    told = tuple(column[positions].astype(np.float64) for column in parts)
    return Found(scores, positions, plan, snapshot.rows(), passed, (0, 0, 0, 0, 0, passed), told)

"""Which rows match the words of a query best? BM25 over all that stands in a scope, whatever the filter.

How rare a word is and how long a row is on average are told by the whole scope, (tenant, project): a memory has one
score, whichever session, kind or filter it is asked through. Of these the relevance is made: the score over the most
that any row could have for the query, so it is in [0, 1], and 1 would be a row that says all of it without end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from memcore.gate import KINDS
from memcore.store import postings, words
from memcore.store.snapshot import EVERY, Masks, Selection, Snapshot
from memcore_kernels import lexical

K1, B = 0.9, 0.4  # Lucene's and Anserini's for passages; longer rows are told apart less by their length

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


def standing(snapshot: Snapshot, as_of: int | None) -> Masks:
    """All that stands in the scope, whatever is asked for: what tells how common something is."""
    return snapshot.masks(Selection(frozenset(range(len(KINDS))), 0, as_of=as_of, expired=True))


def matches(snapshot: Snapshot, query: str, as_of: int | None) -> F64:
    """How well every row matches a query's words, float64 `(n,)` by position; 0 of what does not stand."""
    masks = standing(snapshot, as_of)
    parts, n, total = masks.kept.get("words") or _counted(snapshot, masks)
    scores = np.zeros(snapshot.rows())
    languages = sorted(set().union(*(chunk.languages for _, chunks, _ in parts for chunk in chunks)))
    groups = words.asked(query, languages)
    if not groups or not n:
        return scores
    terms = np.array([term for group in groups for term in group.terms], np.uint64)
    heads = np.cumsum([0, *(len(group.terms) for group in groups)])
    most = [np.zeros(len(allowed), np.int32) for _, _, allowed in parts]
    lists = [[_found(chunk, terms) for chunk in chunks] for _, chunks, _ in parts]
    found = np.zeros(len(groups), np.int64)
    for (_, chunks, allowed), mine, room in zip(parts, lists, most, strict=True):
        for chunk, (begins, ends) in zip(chunks, mine, strict=True):
            lexical.count_rows(chunk.rows, begins, ends, heads, allowed, room, found)
    idf = np.log1p((n - found + 0.5) / (found + 0.5)) * np.array([group.weight for group in groups])
    for (part, chunks, allowed), mine, room in zip(parts, lists, most, strict=True):
        for chunk, (begins, ends) in zip(chunks, mine, strict=True):
            lexical.add_scores(
                chunk.rows, chunk.counts, begins, ends, heads, allowed, room, idf, chunk.lengths, chunk.first,
                max(total / n, 1.0), K1, B, scores[part.base : part.base + part.n],
            )  # fmt: skip
    scores /= idf.sum() * (K1 + 1)
    return scores


def _counted(snapshot: Snapshot, masks: Masks) -> tuple[list[Any], int, int]:
    """The parts with their postings and what stands of them, how many rows that is, and how many terms they have."""
    parts, n, total = [], 0, 0
    for part, mask in zip(snapshot.parts, masks, strict=True):
        allowed = np.ones(part.n, np.uint8) if mask is EVERY else mask
        chunks = postings.of(part.segment, part.n, snapshot.coder.folder)
        n += int(np.count_nonzero(allowed))
        for chunk in chunks:
            here = allowed[chunk.first : chunk.first + chunk.n]
            total += int(chunk.lengths[: len(here)] @ here.astype(np.int64))
        parts.append((part, chunks, allowed))
    masks.kept["words"] = made = (parts, n, total)
    return made


def _found(chunk: postings.Chunk, terms: npt.NDArray[np.uint64]) -> tuple[I64, I64]:
    """Where in a chunk each term's postings begin and end; both 0 of one that is not there."""
    if not len(chunk.terms):
        return np.zeros(len(terms), np.int64), np.zeros(len(terms), np.int64)
    at = np.minimum(np.searchsorted(chunk.terms, terms), len(chunk.terms) - 1)
    there = chunk.terms[at] == terms
    return np.where(there, chunk.starts[at], 0), np.where(there, chunk.starts[at + 1], 0)

"""Which rows of a segment have a word, and how often? Derived data: what the texts say, to be found by their terms.

Rows are taken in as they come, some at a time: each time makes a chunk, and a chunk joins the one before it while that
is not much larger, so that a segment has some log(n) of them, and one when it is sealed. Chunks never change, and may
have rows that came after a snapshot, which its masks end before.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from memcore.store import words
from memcore.store.files import reading

if TYPE_CHECKING:
    from memcore.store.segment import Segment

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


class Chunk(NamedTuple):
    """Of `n` rows from `first` on: the terms, rising; of each the postings from `starts[i]` to `starts[i + 1]`, by
    rising rows; and of each row how many terms its text has.
    """

    first: int
    n: int
    terms: U64
    starts: I64
    rows: I32
    counts: I32
    lengths: I32
    languages: frozenset[int]

    def nbytes(self) -> int:
        return sum(int(array.nbytes) for array in (self.terms, self.starts, self.rows, self.counts, self.lengths))


def made(first: int, texts: Sequence[str], times: Sequence[int]) -> Chunk:
    """The chunk of rows with these texts and event times. Their dates don't make rows longer."""
    found: list[int] = []
    lengths = np.empty(len(texts), np.int32)
    languages, more = set(), 0
    for place, (text, time) in enumerate(zip(texts, times, strict=True)):
        terms, code = words.terms(text)
        found += terms
        calendar = words.of_date(time)
        found += calendar
        lengths[place], more = len(terms), len(calendar)
        languages.add(code)
    rows = np.repeat(np.arange(first, first + len(texts), dtype=np.int32), lengths + more)
    return _sorted(first, np.array(found, np.uint64), rows, np.ones(len(rows), np.int32), lengths, frozenset(languages))


def _sorted(first: int, terms: U64, rows: I32, counts: I32, lengths: I32, languages: frozenset[int]) -> Chunk:
    """A chunk of postings in any order, if those of a term are by rising rows."""
    order = np.argsort(terms, kind="stable")
    terms, rows, counts = terms[order], rows[order], counts[order]
    new = np.ones(len(terms), np.bool_)
    new[1:] = (terms[1:] != terms[:-1]) | (rows[1:] != rows[:-1])
    heads = np.flatnonzero(new)
    counts = np.add.reduceat(counts, heads).astype(np.int32) if len(heads) else counts
    terms, rows = terms[heads], rows[heads]
    kinds = np.ones(len(terms), np.bool_)
    kinds[1:] = terms[1:] != terms[:-1]
    starts = np.append(np.flatnonzero(kinds), len(terms)).astype(np.int64)
    arrays = (terms[kinds], starts, rows, counts, lengths)
    for array in arrays:
        array.flags.writeable = False  # as those are that were kept, and are mapped: see `relevance._lent`
    return Chunk(first, len(lengths), *arrays, languages)


def _joined(one: Chunk, two: Chunk) -> Chunk:
    """Two chunks of neighbouring rows as one."""
    terms = np.concatenate([np.repeat(chunk.terms, np.diff(chunk.starts)) for chunk in (one, two)])
    rows, counts, lengths = (np.concatenate(pair) for pair in zip(one[4:7], two[4:7], strict=True))
    return _sorted(one.first, terms, rows, counts, lengths, one.languages | two.languages)


def reached(chunks: tuple[Chunk, ...], segment: Segment, upto: int) -> tuple[Chunk, ...]:
    """The chunks of a segment's first rows, up to `upto`: those that there are, and more."""
    done = _rows(chunks)
    if done >= upto:
        return chunks
    view = segment.view()
    texts = view.texts_at("content", np.arange(done, upto)).to_pylist()
    grown = [*chunks, made(done, texts, view.columns["event_time"][done:upto].tolist())]
    while len(grown) > 1 and grown[-2].n <= 2 * grown[-1].n:
        grown[-2:] = [_joined(*grown[-2:])]
    return tuple(grown)


def of(segment: Segment, n: int, folder: Path | None) -> tuple[Chunk, ...]:
    """The chunks of at least a segment's first `n` rows, made or read from the folder of what is derived when they are
    first asked for. Not under the lock.
    """
    chunks: tuple[Chunk, ...] = segment.worded
    if _rows(chunks) < n:
        with _making, reading(segment.source):  # of two threads that make them at once, one would do it in vain
            if folder is not None and segment.source is not None and not segment.worded:
                from memcore.store import derived

                segment.worded = derived.words_of(folder, segment)
            segment.worded = chunks = reached(segment.worded, segment, segment.n if segment.sealed else n)
    return chunks


def whole(segment: Segment) -> Chunk | None:
    """The one chunk of all rows of a sealed segment, if it has been made."""
    chunks: tuple[Chunk, ...] = segment.worded
    return chunks[0] if len(chunks) == 1 and chunks[0].n == segment.n else None


def _rows(chunks: tuple[Chunk, ...]) -> int:
    return chunks[-1].first + chunks[-1].n if chunks else 0


_making = threading.Lock()


def _in_child() -> None:
    global _making
    _making = threading.Lock()  # a thread that is not there may have held it


os.register_at_fork(after_in_child=_in_child)

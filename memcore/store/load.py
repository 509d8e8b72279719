"""How does a scope come from disk into RAM? Its parts of segment files, mapped, and the rows and marks since then.

What is in RAM already is kept: a part that was mapped before with its codes and indexes, rows that were appended, and
only what is new is read. Nothing of the store's size is read to open it, but for columns of marks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from memcore.errors import StoreCorrupt
from memcore.store.files import SEGMENTS, SegmentFile, Source, corrupt
from memcore.store.journal import Journal, State
from memcore.store.links import LinkTable
from memcore.store.partition import Partition, rewritten
from memcore.store.segment import COUNTERS, FIXED, MARKS, Segment

Counts = Mapping[int, Sequence[int]]  # seq -> accesses in RAM that are not on disk yet, and the last


def catch_up(
    partition: Partition | None,
    journal: Journal,
    scope: tuple[str, str],
    state: State,
    dim: int,
    counts: Sequence[Counts],
) -> Partition | None:
    """The partition as the disk has it, shown; None if the scope has never had a row. Inside `Journal.reading`.

    `counts` are added to what the disk tells of accesses.
    """
    number = journal.scope_of(scope)
    if number is None:
        if partition is not None:  # made by a write that came to nothing: it is as the disk is, empty
            partition.applied, partition.generation, partition.touched = state.seq, state.generation, state.touched
        return partition
    anew = partition is None or partition.generation != state.generation
    if partition is None:
        partition = Partition(dim)
        partition.touched = -1
    uncounted = partition.touched < 0
    fresh: set[Segment] = set()
    if anew:
        held = partition.segments
        fresh = _map_parts(partition, journal, number, state, dim)
        uncounted |= not _carried_over(fresh, held, partition.applied)
        partition.cold = journal.cold_of(number)
    columns = journal.rows_after(number, max(partition.applied, state.sealed_upto), dim)
    if columns is not None:
        partition.append(columns, len(columns["seq"]))
    marked = _mark(partition.segments, journal.marks_after(number, partition.applied))
    if fresh and partition.applied:
        marked |= _mark(fresh, journal.marks_after(number, 0))
    _read_links(partition, journal, number, anew=anew)
    totals = {
        seq: [count, last]
        for seq, count, last in journal.counters_after(number, -1 if uncounted else partition.touched)
    }
    for more in counts:
        for seq in more if uncounted else totals.keys() & more.keys():
            count, last = more[seq]
            total = totals.setdefault(seq, [0, last])
            total[0], total[1] = total[0] + count, max(total[1], last)
    _set(partition.segments, COUNTERS, [(seq, *total) for seq, total in sorted(totals.items())])
    if marked or anew:  # rows that were held may be gone, with all others
        partition.find_conversations()
    partition.applied, partition.generation, partition.touched = state.seq, state.generation, state.touched
    partition.show(state.seq)
    return partition


def _carried_over(fresh: set[Segment], held: Sequence[Segment], applied: int) -> bool:
    """Gives rows that have moved to other files the counters that they have in RAM; whether they were all there, but
    for those later than the commit `applied`, of which the disk tells anyway. To read those of a whole scope for each
    file that was joined took 150 ms where 70,000 rows had been counted. Marks are read anew, since the files may hold
    later ones, which the catalog then has no more.
    """
    for segment in fresh:
        seqs = segment.view().columns["seq"]
        found = 0
        for old in held:
            theirs = old.view().columns["seq"]
            first, last = np.searchsorted(seqs, (theirs[0], theirs[-1] + 1))
            at = np.minimum(np.searchsorted(theirs, seqs[first:last]), len(theirs) - 1)
            there = theirs[at] == seqs[first:last]
            rows = np.flatnonzero(there) + first
            if len(rows):
                columns = old.view().columns
                segment.mark({name: columns[name][at[there]] for name in COUNTERS}, rows)
                found += len(rows)
        if found < np.searchsorted(seqs, applied, side="right"):
            return False
    return bool(held)


def _read_links(partition: Partition, journal: Journal, scope: int, *, anew: bool) -> None:
    """Gives a partition the links that are new, and the marks that they have got; all of them anew if some are gone
    from the disk, which only `Maintenance` does.
    """
    if anew and partition.links.n:
        ((there,),) = journal.select(
            "SELECT count(*) FROM links WHERE scope = ? AND changed <= ?", scope, partition.applied
        )
        if there < partition.links.n:
            partition.links = LinkTable()
    partition.links.take_in(journal.links_after(scope, partition.applied if partition.links.n else 0))


def _map_parts(partition: Partition, journal: Journal, scope: int, state: State, dim: int) -> set[Segment]:
    """Gives a partition the segments that the catalog lists now, and the rows behind them that are in RAM; those
    segments that it didn't have.
    """
    known = {segment.source: segment for segment in partition.segments if segment.source is not None}
    mapped: list[Segment] = []
    fresh: set[Segment] = set()
    for part in journal.parts_of(scope):
        source = Source(part.file, part.start)
        segment = known.get(source)
        if segment is None:
            file = journal.files.get(part.file)
            if file is None or not file.as_opened():
                file = journal.files[part.file] = open_file(journal, part.file)
            segment = file.segment(source, part.rows, json.loads(part.about), dim)
            if (segment.get("seq", 0), segment.get("seq", segment.n - 1)) != (part.first_seq, part.last_seq):
                raise corrupt(file.path, ValueError("it holds other rows than the catalog tells"))
            fresh.add(segment)
        mapped.append(segment)
    tail: list[Segment] = []
    for segment in partition.segments:
        if segment.source is None and segment.get("seq", segment.n - 1) > state.sealed_upto:
            seqs = segment.view().columns["seq"]
            first = int(np.searchsorted(seqs, state.sealed_upto, side="right"))
            if first:
                segment = rewritten([segment], np.arange(first, segment.n), sealed=segment.sealed)
            tail.append(segment)
    partition.segments = (*mapped, *tail)
    return fresh


def open_file(journal: Journal, file: str) -> SegmentFile:
    path = journal.directory / SEGMENTS / file
    try:
        return SegmentFile(path)
    except FileNotFoundError as fault:
        raise StoreCorrupt(
            f"{path} is missing, and the catalog of the store names it; put it back, run memcore verify --repair to go "
            "on without its rows, or restore the store from an export"
        ) from fault


def _mark(segments: Iterable[Segment], marks: Sequence[Sequence[int]]) -> bool:
    _set(segments, MARKS, marks)
    return bool(marks)


def _set(segments: Iterable[Segment], names: Sequence[str], rows: Sequence[Sequence[int]]) -> None:
    """Sets columns from (seq, values …) in the order of the seqs, where the segments have those rows."""
    if not rows:
        return
    cells = np.array(rows, dtype=np.int64).T
    for segment in segments:
        held = segment.view().columns["seq"]
        first, last = np.searchsorted(cells[0], (held[0], held[-1] + 1))
        wanted = cells[:, first:last]
        at = np.searchsorted(held, wanted[0])
        there = held[np.minimum(at, len(held) - 1)] == wanted[0]
        if there.any():
            columns: dict[str, Any] = {
                name: values[there].astype(FIXED[name]) for name, values in zip(names, wanted[1:], strict=True)
            }
            segment.mark(columns, at[there])

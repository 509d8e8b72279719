"""How does a memory go to the cold tier, and come back? With all its versions, in one commit.

Its rows are written into files first, without any lock. The commit that names them forgets the hot rows for good, as
`erase` does: readers, sealing and compaction know what to do with those. Coming back, the rows are appended again, as
an import appends rows, and the cold ones are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from memcore.store.catalog import Catalog, Forgetting, Name, taken
from memcore.store.cold import ColdFile
from memcore.store.partition import WORKING, Partition, Ref
from memcore.store.segment import TEXTS, Columns, Segment
from memcore.store.snapshot import Snapshot

I64 = npt.NDArray[np.int64]
Id = tuple[int, int]  # in two halves
_TOLD = ("id_hi", "id_lo", "seq", "superseded_seq", "lapsed")


def move_out(
    catalog: Catalog, scope: Name, written: Snapshot, positions: I64, files: Sequence[ColdFile], now: int
) -> set[Id]:
    """Names the files into which rows of a snapshot were written, and forgets the hot ones. Under the lock.

    Or does nothing, and returns the ids of the memories that somebody has changed or forgotten meanwhile: the files
    must not hold them, since the same rows may come to the cold tier later, in another file.
    """
    partition = catalog.partition(scope)
    c = {name: written.values(positions, name) for name in _TOLD}
    names = _ids(c["id_hi"], c["id_lo"])
    changed = _changed(partition, c, names)
    if not changed:
        catalog.seq += 1
        catalog.forgettings.append(Forgetting(catalog.seq, scope, now, True))
        partition.forget(set(names), catalog.seq)
        partition.cold = partition.cold.with_files([file._replace(moved_seq=catalog.seq) for file in files])
    return changed


def _changed(partition: Partition, written: Columns, names: Sequence[Id]) -> set[Id]:
    """The memories of which other versions are here than were written."""
    here: dict[Id, list[tuple[int, int]]] = {}
    wanted = set(names)
    for segment in partition.segments:
        view = segment.view()
        rows = view.rows_with(wanted)
        rows = rows[view.columns["forgotten_seq"][rows] == 0]
        c = {name: view.columns[name][rows] for name in _TOLD}
        _gather(here, _ids(c["id_hi"], c["id_lo"]), c)
    told: dict[Id, list[tuple[int, int]]] = {}
    _gather(told, names, written)
    return {name for name, versions in told.items() if here.get(name) != versions}


def _gather(found: dict[Id, list[tuple[int, int]]], names: Iterable[Id], c: Columns) -> None:
    for name, seq, superseded in zip(names, c["seq"].tolist(), c["superseded_seq"].tolist(), strict=True):
        found.setdefault(name, []).append((seq, superseded))


def _ids(hi: npt.NDArray[np.uint64], lo: npt.NDArray[np.uint64]) -> list[Id]:
    return list(zip(hi.tolist(), lo.tolist(), strict=True))


def cold_versions(catalog: Catalog, partition: Partition, names: set[Id]) -> dict[Id, list[Ref]]:
    """The versions of these ids in the cold tier, oldest first: what is there, or else what was forgotten last there
    and not erased. Under the lock.
    """
    there: dict[Id, list[Ref]] = {}
    gone: dict[Id, list[Ref]] = {}
    for segment in partition.cold_segments():
        for row in segment.view().rows_with(names).tolist():
            ref = Ref(segment, row)
            (gone if ref.get("forgotten_seq") else there).setdefault(ref.name, []).append(ref)
    erased = catalog.erased({ref.get("forgotten_seq") for refs in gone.values() for ref in refs})
    for name, refs in gone.items():
        last = max((f for ref in refs if (f := ref.get("forgotten_seq")) not in erased), default=None)
        if last is not None and name not in there:
            there[name] = [ref for ref in refs if ref.get("forgotten_seq") == last]
    return {name: sorted(refs, key=lambda ref: ref.get("seq")) for name, refs in there.items()}


def bring_back(catalog: Catalog, scope: Name, refs: Iterable[Ref], now: int) -> None:
    """Appends rows of the cold tier to the hot one, with new seqs in their order; all else as it was. Under the
    lock.
    """
    partition = catalog.partition(scope)
    rows: dict[Segment, list[int]] = {}
    for ref in refs:
        rows.setdefault(ref.segment, []).append(ref.row)
    parts = [segment.batch(np.array(mine, dtype=np.int64)) for segment, mine in rows.items()]
    columns: Columns = {
        name: [text for part in parts for text in part[name]]
        if name in TEXTS
        else np.concatenate([part[name] for part in parts])
        for name in parts[0]
    }
    columns = taken(columns, np.argsort(columns["seq"]))
    old, n = columns["seq"], len(columns["seq"])
    lasts = (columns["superseded_seq"] == 0) | columns["lapsed"]
    columns["seq"] = np.arange(catalog.seq + 1, catalog.seq + 1 + n, dtype=np.int64)
    # No snapshot that holds an old version sees it stand: what replaced it comes with it.
    columns["superseded_seq"] = np.where(columns["superseded_seq"] != 0, columns["seq"], 0)
    columns["forgotten_seq"] = np.zeros(n, dtype=np.int64)
    partition.append(columns, n)
    catalog.seq += n + 1
    catalog.forgettings.append(Forgetting(catalog.seq, scope, now, True))
    partition.cold = partition.cold.without(old, lasts, catalog.seq)
    if WORKING in columns["kind"]:
        partition.find_conversations()

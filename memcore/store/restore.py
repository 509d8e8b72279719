"""How do rows that an export kept whole come into a store? With their ids, versions, times and counters as they were.

What is here already stays: a memory whose id is here is left alone, and a key that another memory uses goes to the one
that was ingested later (to the one that is here, if at the same time); the other becomes history. Rows are put into the
order of their seqs over the whole file, since versions of one memory may lie far apart in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memcore.store.catalog import Catalog, Name, taken
from memcore.store.partition import UPSERTED, WORKING, Partition
from memcore.store.segment import ROWS, Columns

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
LAST = int(np.iinfo(np.int64).max)  # the seq of a row whose file tells none: after all others
_CHUNK = 8192


class Vectors:
    """float32 rows, gathered in blocks and then taken once each; a block is let go with the last row that is expected.

    So a large import holds its vectors about once. At 256 dimensions a block is so large that malloc gives it back to
    the system by itself; in the pieces that a file is read in, 2 KB a row stayed with the process after the import.
    """

    def __init__(self) -> None:
        self.dim = 0
        self._rows = 0
        self._blocks: list[F32 | None] = []  # of ROWS rows, the last one partly filled; None where no row has a vector
        self._left: I64 = np.empty(0, dtype=np.int64)

    def add(self, n: int, vectors: F32 | None) -> None:
        """`n` more rows; None: all without a vector."""
        if vectors is not None:
            self.dim = vectors.shape[1]
        for start in range(self._rows // ROWS * ROWS, self._rows + n, ROWS):
            if start // ROWS == len(self._blocks):
                self._blocks.append(None)
            first, last = max(start, self._rows), min(start + ROWS, self._rows + n)
            if vectors is not None and first < last:
                block = self._blocks[start // ROWS]
                if block is None:
                    block = self._blocks[start // ROWS] = np.zeros((ROWS, self.dim), dtype=np.float32)
                block[first - start : last - start] = vectors[first - self._rows : last - self._rows]
        self._rows += n

    def expect(self, places: I64) -> None:
        """The rows that will be taken; others are not."""
        self._left = np.bincount(places // ROWS, minlength=len(self._blocks))

    def take(self, places: I64, dim: int) -> F32:
        out = np.zeros((len(places), dim), dtype=np.float32)
        for i in np.unique(places // ROWS).tolist():
            mine, block = places // ROWS == i, self._blocks[i]
            if block is not None:
                out[mine] = block[places[mine] % ROWS]
            self._left[i] -= np.count_nonzero(mine)
            if not self._left[i]:
                self._blocks[i] = None
        return out


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows to restore, in the file's order.

    `columns` lacks the vectors and the codes of `names` (session, role, source, tenant and project: a name a row);
    `superseded_seq` is 1 where `superseded_at` counts.
    """

    columns: Columns
    names: Mapping[str, Sequence[str]]
    vectors: Vectors


def restore(catalog: Catalog, rows: Rows) -> int:
    """Adds the rows that are new, all or none; how many that was. Under the lock.

    Seqs are kept if the store is empty and they are whole, and else follow on in their order.
    """
    c = rows.columns
    new: dict[Name, I64] = {}
    for scope, places in _by_scope(rows.names):
        ordered = places[np.argsort(c["seq"][places], kind="stable")]
        unknown = _unknown(catalog.partition(scope), c, ordered)
        if len(unknown):
            new[scope] = unknown
    if not new:
        return 0
    every = np.concatenate(list(new.values()))
    every = every[np.lexsort((every, c["seq"][every]))]
    seqs = c["seq"][every]
    if catalog.seq or seqs[0] < 1 or seqs[-1] == LAST or not (np.diff(seqs) > 0).all():
        c["seq"][every] = np.arange(catalog.seq + 1, catalog.seq + 1 + len(every))
    if rows.vectors.dim:
        catalog.settle_dim(rows.vectors.dim)
    catalog.encode(c, rows.names)
    rows.vectors.expect(every)
    for scope, places in new.items():
        _add(catalog.partition(scope), rows.columns, places, rows.vectors)
    catalog.seq = int(c["seq"][every[-1]])
    return len(every)


def _by_scope(names: Mapping[str, Sequence[str]]) -> Iterator[tuple[Name, I64]]:
    """The places of the rows of each scope."""
    codes: dict[Name, int] = {}
    coded = np.array(
        [codes.setdefault(scope, len(codes)) for scope in zip(names["tenant"], names["project"], strict=True)]
    )
    for scope, code in codes.items():
        yield scope, np.flatnonzero(coded == code)


def _names(columns: Columns, places: I64) -> list[tuple[int, int]]:
    """The ids of rows, in two halves."""
    return list(zip(columns["id_hi"][places].tolist(), columns["id_lo"][places].tolist(), strict=True))


def _unknown(partition: Partition, columns: Columns, places: I64) -> I64:
    """Those of the rows that are new: of a memory that isn't here, and a version that the file didn't tell before."""
    names = _names(columns, places)
    here = partition.known(set(names))
    told: set[tuple[tuple[int, int], int]] = set()
    unknown = []
    for place, name, version in zip(places.tolist(), names, columns["version"][places].tolist(), strict=True):
        if name not in here and (name, version) not in told:
            told.add((name, version))
            unknown.append(place)
    return np.array(unknown, dtype=np.int64)


def _add(partition: Partition, c: Columns, places: I64, vectors: Vectors) -> None:
    last = _settle_versions(c, places)
    replaced = _settle_keys(partition, c, places)
    for start in range(0, len(places), _CHUNK):
        chunk = places[start : start + _CHUNK]
        partition.append({**taken(c, chunk), "vector": vectors.take(chunk, partition.dim)}, len(chunk))
    for old, by, at in replaced:
        partition.supersede(old, by, at)
        partition.lapse(old)
    for place in last:
        if c["superseded_seq"][place]:
            partition.lapse(int(c["seq"][place]))
    if ((c["kind"][places] == WORKING) & (c["version"][places] > 1)).any():
        partition.find_conversations()


def _retire(columns: Columns, place: int, at: int) -> None:
    columns["superseded_seq"][place], columns["superseded_at"][place] = 1, at


def _settle_versions(columns: Columns, places: I64) -> list[int]:
    """Lets no version of a memory stand but the last; the places of the last ones.

    `superseded_seq` becomes the row's own seq where it is set: no snapshot that holds the row sees it stand.
    """
    columns["superseded_seq"][places] = np.where(columns["superseded_seq"][places] != 0, columns["seq"][places], 0)
    last: dict[tuple[int, int], int] = {}
    for place, name in zip(places.tolist(), _names(columns, places), strict=True):
        earlier = last.get(name)
        if earlier is not None and not columns["superseded_seq"][earlier]:
            _retire(columns, earlier, int(columns["ingested_at"][place]))
        last[name] = place
    return list(last.values())


def _settle_keys(partition: Partition, columns: Columns, places: I64) -> list[tuple[int, int, int]]:
    """Leaves one standing row a key among the new rows and those that are here.

    Returns the rows here that give way: (its seq, the seq of the row that takes the key, the time of that).
    """
    winners: dict[tuple[int, str], int] = {}
    for place in places.tolist():
        key, kind = columns["key"][place], int(columns["kind"][place])
        if key is None or kind not in UPSERTED or columns["superseded_seq"][place]:
            continue
        rival = winners.setdefault((kind, key), place)
        if rival != place:
            times = [int(columns["ingested_at"][p]) for p in (rival, place)]
            winners[kind, key] = place if times[1] >= times[0] else rival
            _retire(columns, rival if winners[kind, key] == place else place, max(times))
    replaced = []
    for named, place in winners.items():
        old, ingested = partition.by_key(*named), int(columns["ingested_at"][place])
        if old is None:
            continue
        if old.get("ingested_at") >= ingested:
            _retire(columns, place, old.get("ingested_at"))
        else:
            replaced.append((old.get("seq"), int(columns["seq"][place]), ingested))
    return replaced

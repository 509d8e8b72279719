"""What is in the store, over all scopes? Partitions, names, the commit order, and the one lock that writers take.

Everything that can fail (checks, embedding) happens before the first row is written, and nothing slow happens under the
lock. A commit is a few appends and marks: all of it, or none.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from memcore import ids
from memcore.errors import DimensionMismatch, InvalidInput, StoreClosed
from memcore.store.partition import UPSERTED, Partition, Ref
from memcore.store.segment import FIXED, MUTABLE, TEXTS, Columns, zeros
from memcore.store.snapshot import Snapshot

Name = tuple[str, str]  # of a scope: tenant, project
CLOSED = "the store is closed; open it again with memcore.open"
MOST_ACCESSES = 2**31 - 1  # what the column holds
CODED = ("session", "role", "source")


def columns_of(n: int) -> Columns:
    """Columns for `n` new rows, all zero and without texts, to be filled in and given to `Catalog.commit`.

    Those that a new row never sets are read-only, so as not to cost anything.
    """
    columns: Columns = {
        name: zeros(name, n) if name in MUTABLE or name == "tokens" else np.zeros(n, dtype=dtype)
        for name, dtype in FIXED.items()
    }
    columns.update((name, [None] * n) for name in TEXTS)
    columns["vector"] = None
    return columns


def taken(columns: Columns, rows: Sequence[int] | npt.NDArray[np.int64]) -> Columns:
    """Some rows of some columns, in the order given."""
    at = np.asarray(rows, dtype=np.int64)
    return {
        name: None
        if values is None
        else values[at]
        if isinstance(values, np.ndarray)
        else [values[i] for i in at.tolist()]
        for name, values in columns.items()
    }


@dataclass(frozen=True, slots=True)
class Commit:
    """What became of the rows given, in order: their seqs and ids, those of the first row where one was a retry.

    `stored` are the columns of the rows that are new, in the order of `fresh`, their places among the rows given.
    """

    seqs: list[int]
    id_hi: ids.U64
    id_lo: ids.U64
    stored: Columns
    fresh: list[int]


class Catalog:
    def __init__(self, dim: int | None, fingerprint: str | None) -> None:
        self.lock = threading.RLock()
        self.dim = dim or 0
        self.fingerprint = (
            fingerprint  # of the embedder that made the vectors; None if callers pass them, or none is there
        )
        self.seq = 0
        self.closed = False
        self.changes = 0  # commits, and the marks and counts that take no seq
        self.partitions: dict[Name, Partition] = {}
        self.names: list[str] = []
        self._codes: dict[str, int] = {}
        self._ids = ids.IdMaker()
        with _forking:
            _catalogs.add(self)

    def code(self, name: str) -> int:
        """The code of a session, role or source, made at its first use. Under the lock."""
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self.names)
            self.names.append(name)
        return code

    def encode(self, columns: Columns, names: Mapping[str, Sequence[str]]) -> None:
        """Fills the columns of codes from the rows' session, role and source names. Under the lock."""
        for column in CODED:
            columns[column][:] = [self.code(name) for name in names[column]]

    def known_code(self, name: str) -> int:
        """The code of a name, or -1, which no row has."""
        return self._codes.get(name, -1)

    def snapshot(self, scope: Name) -> Snapshot:
        with self.lock:
            if self.closed:  # since the verb began: an empty answer would be a wrong one
                raise StoreClosed(CLOSED)
            partition = self.partitions.get(scope)
            return Snapshot(
                partition.segments if partition else (),
                seq=self.seq,
                tenant_id=scope[0],
                project_id=scope[1],
                dim=self.dim,
                names=self.names,
                keys=partition.keys if partition else {},
                lapsed=partition.lapsed if partition else frozenset(),
            )

    def snapshots(self) -> list[Snapshot]:
        """All scopes at one moment."""
        with self.lock:
            return [self.snapshot(scope) for scope in sorted(self.partitions)]

    def partition(self, scope: Name) -> Partition:
        """The partition of a scope, made at its first write. Under the lock."""
        if scope not in self.partitions:
            self.partitions[scope] = Partition(self.dim)
        return self.partitions[scope]

    def check_dim(self, dim: int) -> None:
        if self.dim and dim != self.dim:
            raise DimensionMismatch(
                f"vector has {dim} dimensions and the store has {self.dim}; one store holds one width: pass vectors of "
                f"width {self.dim}, or open another store for this embedder"
            )

    def settle_dim(self, dim: int) -> None:
        """The first vector sets the width of a store that was opened without one. Under the lock."""
        self.check_dim(dim)
        if not self.dim:
            self.dim = dim
            for partition in self.partitions.values():
                partition.dim = dim
                for segment in partition.segments:
                    segment.widen(dim)

    def commit(
        self,
        scope: Name,
        columns: Columns,
        names: Mapping[str, Sequence[str]],
        *,
        now: int,
        explicit: npt.NDArray[np.bool_] | None = None,
    ) -> Commit:
        """Appends new rows: gives them ids (but for the `explicit` ones) and seqs; upserts by key; honours retries.

        `columns` as from `columns_of`, with all but `id_hi`, `id_lo`, `seq`, `version` and the codes of `names` filled
        in. An explicit id that is in use, or that isn't the one its key names, is `InvalidInput`. Under the lock.
        """
        self.encode(columns, names)
        partition = self.partitions.get(scope) or Partition(self.dim)
        retries = _retries(partition, columns)
        total = len(columns["content"])
        fresh = [row for row in range(total) if row not in retries]
        if retries:
            columns = taken(columns, fresh)
            explicit = None if explicit is None else explicit[fresh]
        n, first = len(fresh), self.seq + 1
        if n:
            columns["seq"] = np.arange(first, first + n, dtype=np.int64)
            columns["version"][:] = 1
            hi, lo = self._ids.take(n, now)
            for name, made in (("id_hi", hi), ("id_lo", lo)):
                columns[name] = made if explicit is None else np.where(explicit, columns[name], made)
            replaced = _upserts(partition, columns, explicit)
            if columns["vector"] is None:
                columns["vector"] = np.zeros((n, self.dim), dtype=np.float32)
            else:
                self.settle_dim(columns["vector"].shape[1])
            partition.dim = self.dim
            partition.append(columns, n)
            for old, by, at in replaced:
                partition.supersede(old, by, at)
            self.partitions[scope] = partition
            self.seq += n
            self.changes += 1
        return _committed(partition, columns, fresh, retries, total)

    def replace(self, partition: Partition, seq: int, changes: Mapping[str, Any], *, now: int) -> Columns:
        """A new version of a row with some columns changed; the old one is superseded. Under the lock.

        A memory's time never runs backwards: if the clock does, the new version starts when the old one did.
        """
        ref = partition.ref(seq)
        columns = ref.columns()
        columns["idempotency_key"] = [None]  # the first version keeps it: a retry returns the record as it was made
        for name in ("superseded_seq", "superseded_at"):
            columns[name] = zeros(name, 1)
        for name, value in changes.items():
            columns[name] = [value] if name in TEXTS else np.array([value], dtype=columns[name].dtype)
        self.seq += 1
        self.changes += 1
        start = max(now, ref.get("ingested_at"))
        for name, value in (("seq", self.seq), ("version", ref.get("version") + 1), ("ingested_at", start)):
            columns[name] = np.array([value], dtype=FIXED[name])
        partition.append(columns, 1)
        if seq in partition.lapsed:
            partition.revive(seq)
        else:
            partition.supersede(seq, self.seq, start)
        return columns

    def evict(self, partition: Partition, seqs: Sequence[int], now: int) -> None:
        """Rows stop standing without a next version, until one is made by `replace`. Under the lock."""
        self.seq += 1
        self.changes += 1
        for seq in seqs:
            partition.supersede(seq, self.seq, max(now, partition.ref(seq).get("ingested_at")))
            partition.lapse(seq)

    def forget(self, scope: Name, names: set[tuple[int, int]]) -> None:
        """Forgets all versions of these ids (high half, low half), which are there. Under the lock."""
        partition = self.partitions[scope]
        self.seq += 1
        self.changes += 1
        partition.forget(names, self.seq)
        if not partition.live():
            del self.partitions[scope]

    def touch(self, scope: Name, seqs: Iterable[int], now: int) -> None:
        """Counts an access to each row that is still there. Under the lock."""
        partition = self.partitions.get(scope)
        if partition is None:
            return
        self.changes += 1
        for seq in seqs:
            ref = partition.at(seq)
            if ref is not None:
                last = ref.get("last_access")
                ref.segment.set("access_count", ref.row, min(ref.get("access_count") + 1, MOST_ACCESSES))
                ref.segment.set("last_access", ref.row, max(now, last) if last else now or 1)

    def roll_back(self, seq: int, dim: int) -> None:
        """Takes back what was done since the commit `seq`, when the width was `dim`. Under the lock.

        What lies behind `seq` is dropped and marks that are later are taken off, by making the partitions anew from
        their rows: slow, but it needs no step of a commit to have been finished.
        """
        self.dim = dim
        self.partitions = {
            scope: partition if partition.stands_at(seq) and partition.dim == dim else partition.as_of(seq, dim)
            for scope, partition in self.partitions.items()
            if partition.began_by(seq)
        }
        self.seq = seq


def _retries(partition: Partition, columns: Columns) -> dict[int, tuple[int, int]]:
    """The rows whose idempotency key was used before: the seq of the first row, or 0 and its place in this commit.

    A key counts within a session and role: "message-1" of another conversation is another message.
    """
    retries: dict[int, tuple[int, int]] = {}
    here: dict[tuple[int, int, str], int] = {}
    for row, key in enumerate(columns["idempotency_key"]):
        if key is None:
            continue
        named = (int(columns["session"][row]), int(columns["role"][row]), key)
        if named in partition.retries:
            retries[row] = (partition.retries[named], 0)
        elif named in here:
            retries[row] = (0, here[named])
        else:
            here[named] = row
    return retries


def _upserts(
    partition: Partition, columns: Columns, explicit: npt.NDArray[np.bool_] | None
) -> list[tuple[int, int, int]]:
    """Lets rows of a kind that is upserted by key take over the id of the standing one, in the columns alone.

    Returns the rows in the partition that they replace: (its seq, the seq of its next version, the time of that).
    Refuses explicit ids that are in use or that contradict the key.
    """
    given = _given(columns, explicit)
    if not given and not any(columns["key"]):
        return []
    used = partition.known(set(given.values()))
    replaced = []
    within: dict[tuple[int, str], int] = {}  # the last row of this commit under a key
    for row, (kind, key) in enumerate(zip(columns["kind"].tolist(), columns["key"], strict=True)):
        named = (kind, key) if key is not None and kind in UPSERTED else None
        old: Ref | int | None = None
        if named is not None:
            old = within[named] if named in within else partition.by_key(*named)
            within[named] = row
        name = _name_of(columns, old)
        if row in given:
            _check_given(given[row], name, used, key)
            used.add(given[row])
        if name is None:
            continue
        columns["id_hi"][row], columns["id_lo"][row] = name
        seq = int(columns["seq"][row])
        if isinstance(old, Ref):
            columns["version"][row] = old.get("version") + 1
            columns["ingested_at"][row] = max(int(columns["ingested_at"][row]), old.get("ingested_at"))
            replaced.append((old.get("seq"), seq, int(columns["ingested_at"][row])))
        elif old is not None:
            columns["version"][row] = columns["version"][old] + 1
            columns["ingested_at"][row] = columns["ingested_at"][old]
            for column, value in (("superseded_seq", seq), ("superseded_at", columns["ingested_at"][row])):
                if not columns[column].flags.writeable:
                    columns[column] = columns[column].copy()
                columns[column][old] = value
    return replaced


def _given(columns: Columns, explicit: npt.NDArray[np.bool_] | None) -> dict[int, tuple[int, int]]:
    """The ids that callers gave, by row."""
    rows = [] if explicit is None else np.flatnonzero(explicit).tolist()
    return {row: (int(columns["id_hi"][row]), int(columns["id_lo"][row])) for row in rows}


def _name_of(columns: Columns, old: Ref | int | None) -> tuple[int, int] | None:
    if old is None:
        return None
    return old.name if isinstance(old, Ref) else (int(columns["id_hi"][old]), int(columns["id_lo"][old]))


def _check_given(
    given: tuple[int, int], named: tuple[int, int] | None, used: set[tuple[int, int]], key: str | None
) -> None:
    if named is not None and given != named:
        raise InvalidInput(
            f"id is {ids.to_text(*given)} and the key {key!r} names the memory {ids.to_text(*named)}; a key names one "
            "memory: leave id out to make its next version, or use another key"
        )
    if named is None and given in used:
        raise InvalidInput(
            f"id {ids.to_text(*given)} is in use here; ids are unique: update it, or leave id out for a new memory"
        )


def _committed(
    partition: Partition, columns: Columns, fresh: list[int], retries: Mapping[int, tuple[int, int]], total: int
) -> Commit:
    if not retries:
        return Commit(columns["seq"].tolist(), columns["id_hi"], columns["id_lo"], columns, fresh)
    seqs = np.zeros(total, dtype=np.int64)
    hi, lo = np.zeros(total, dtype=np.uint64), np.zeros(total, dtype=np.uint64)
    seqs[fresh], hi[fresh], lo[fresh] = columns["seq"], columns["id_hi"], columns["id_lo"]
    for row, (seq, earlier) in retries.items():
        if seq:
            seqs[row] = seq
            hi[row], lo[row] = partition.ref(seq).name
        else:
            seqs[row], hi[row], lo[row] = seqs[earlier], hi[earlier], lo[earlier]
    return Commit(seqs.tolist(), hi, lo, columns, fresh)


# A process may fork while another of its threads writes. The child then has a copy of the store that must be whole, and
# locks that must be free, so forking waits for the writers.

_catalogs: weakref.WeakSet[Catalog] = weakref.WeakSet()
_forking = threading.RLock()
_waited_for: list[Catalog] = []


def _before_fork() -> None:
    _forking.acquire()
    _waited_for.extend(_catalogs)
    for catalog in _waited_for:
        catalog.lock.acquire()


def _after_fork() -> None:
    for catalog in _waited_for:
        catalog.lock.release()
    _waited_for.clear()
    _forking.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)

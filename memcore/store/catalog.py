"""What is in the store, over all scopes? Partitions, names, the commit order, and the one lock that writers take.

Everything that can fail (checks, embedding) happens before the lock is taken, and nothing slow happens under it. Inside,
a commit is a few appends and marks that cannot fail half-way: all of it, or none.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from memcore import ids
from memcore.errors import DimensionMismatch
from memcore.store.partition import UPSERTED, Partition, Ref
from memcore.store.segment import FIXED, TEXTS, Columns
from memcore.store.snapshot import Snapshot


def columns_of(n: int) -> Columns:
    """Columns for `n` new rows, all zero and without texts, to be filled in and given to `Catalog.commit`."""
    columns: Columns = {name: np.zeros(n, dtype=dtype) for name, dtype in FIXED.items()}
    columns.update((name, [None] * n) for name in TEXTS)
    columns["vector"] = None
    return columns


class Catalog:
    def __init__(self, dim: int | None) -> None:
        self.lock = threading.RLock()
        self.dim = dim or 0
        self.seq = 0
        self.partitions: dict[tuple[str, str], Partition] = {}
        self.names: list[str] = []
        self._codes: dict[str, int] = {}
        self._ids = ids.IdMaker()

    def code(self, name: str) -> int:
        """The code of a session, role or source, made at its first use. Under the lock."""
        code = self._codes.get(name)
        if code is None:
            code = self._codes[name] = len(self.names)
            self.names.append(name)
        return code

    def encode(self, columns: Columns, names: Mapping[str, Sequence[str]]) -> None:
        """Fills the columns of codes from the rows' session, role and source names. Under the lock."""
        for column in ("session", "role", "source"):
            columns[column][:] = [self.code(name) for name in names[column]]

    def known_code(self, name: str) -> int:
        """The code of a name, or -1, which no row has."""
        return self._codes.get(name, -1)

    def settle_dim(self, dim: int) -> None:
        """The first vector sets the width of a store that was opened without one."""
        with self.lock:
            if self.dim == dim:
                return
            if self.dim:
                raise DimensionMismatch(
                    f"vector has {dim} dimensions and the store has {self.dim}; one store holds one width: pass vectors of "
                    f"width {self.dim}, or open another store for this embedder"
                )
            self.dim = dim
            for partition in self.partitions.values():
                partition.dim = dim
                for segment in partition.segments:
                    segment.widen(dim)

    def snapshot(self, tenant_id: str, project_id: str) -> Snapshot:
        with self.lock:
            partition = self.partitions.get((tenant_id, project_id))
            return Snapshot(
                partition.segments if partition else (),
                seq=self.seq,
                names=self.names,
                tenant_id=tenant_id,
                project_id=project_id,
                dim=self.dim,
            )

    def partition(self, tenant_id: str, project_id: str) -> Partition:
        """The partition of a scope, made at its first write. Under the lock."""
        key = (tenant_id, project_id)
        if key not in self.partitions:
            self.partitions[key] = Partition(tenant_id, project_id, self.dim)
        return self.partitions[key]

    def commit(
        self, partition: Partition, columns: Columns, *, now: int, explicit: npt.NDArray[np.bool_] | None = None
    ) -> list[int]:
        """Appends new rows: gives them ids (but for the `explicit` ones), seqs and versions; upserts by key; honours retries.

        `columns` as from `columns_of`, with all but `id_hi`, `id_lo`, `seq` and `version` filled in. Returns the seq of each
        row given, in order: that of the first row for one whose idempotency key was used before. Under the lock.
        """
        retries = self._retries(partition, columns["idempotency_key"])
        total = len(columns["content"])
        fresh = [row for row in range(total) if row not in retries]
        if retries:
            columns = _take(columns, fresh)
            explicit = None if explicit is None else explicit[fresh]
        n, first = len(fresh), self.seq + 1
        if n:
            columns["seq"][:] = np.arange(first, first + n)
            columns["version"][:] = 1
            hi, lo = self._ids.take(n, now)
            for name, made in (("id_hi", hi), ("id_lo", lo)):
                columns[name] = made if explicit is None else np.where(explicit, columns[name], made)
            self._upsert(partition, columns, n, now)
            if columns["vector"] is None:
                columns["vector"] = np.zeros((n, self.dim), dtype=np.float32)
            partition.append(columns, n)
            self.seq += n
        seqs = dict(zip(fresh, range(first, first + n), strict=True))
        for row, (seq, earlier) in retries.items():
            seqs[row] = seq or seqs[earlier]
        return [seqs[row] for row in range(total)]

    def _retries(self, partition: Partition, keys: Sequence[str | None]) -> dict[int, tuple[int, int]]:
        """The rows whose idempotency key was used before: the seq of the first row, or 0 and its place in this commit."""
        retries: dict[int, tuple[int, int]] = {}
        here: dict[str, int] = {}
        for row, key in enumerate(keys):
            if key is None:
                continue
            if key in partition.idempotency:
                retries[row] = (partition.idempotency[key], 0)
            elif key in here:
                retries[row] = (0, here[key])
            else:
                here[key] = row
        return retries

    def _upsert(self, partition: Partition, columns: Columns, n: int, now: int) -> None:
        """Rows of a kind that is upserted by key take over the id of the standing one, which is superseded."""
        keys, kinds = columns["key"], columns["kind"]
        within: dict[tuple[int, str], int] = {}  # the last row of this commit under a key
        for row in range(n):
            if keys[row] is None or kinds[row] not in UPSERTED:
                continue
            named = (int(kinds[row]), keys[row])
            if named in within:
                earlier = within[named]
                columns["retired_seq"][earlier] = columns["seq"][row]
                columns["retired_at"][earlier] = now
                for name in ("id_hi", "id_lo"):
                    columns[name][row] = columns[name][earlier]
                columns["version"][row] = columns["version"][earlier] + 1
            elif old := partition.by_key(*named):
                for name in ("id_hi", "id_lo"):
                    columns[name][row] = old.segment.column(name)[old.row]
                columns["version"][row] = old.segment.column("version")[old.row] + 1
                partition.supersede(old, int(columns["seq"][row]), now)
            within[named] = row

    def restore(self, columns: Columns, names: Mapping[str, Sequence[str]], superseded: Sequence[int | None]) -> int:
        """Adds rows that an export kept whole: ids, versions, times and counters as they were. How many were new.

        A memory whose id is here already is left as it is. Seqs are kept if the store is empty, and else follow on in the
        file's order. `superseded` is the time in µs at which each row was replaced, or None. Where a key is in use by another
        memory, the one ingested later stands and the other becomes history. Under the lock.
        """
        self.encode(columns, names)
        scopes = list(zip(names["tenant"], names["project"], strict=True))
        order = np.argsort(columns["seq"], kind="stable")
        if self.seq or len(set(columns["seq"].tolist())) < len(order) or (len(order) and columns["seq"].min() < 1):
            columns["seq"][order] = np.arange(self.seq + 1, self.seq + 1 + len(order))
        new = 0
        for scope in dict.fromkeys(scopes[row] for row in order):
            partition = self.partition(*scope)
            here: dict[tuple[int, int], bool] = {}
            mine = []
            for row in order:
                if scopes[row] != scope:
                    continue
                name = int(columns["id_hi"][row]), int(columns["id_lo"][row])
                if name not in here:
                    here[name] = bool(partition.versions(*name))
                if not here[name]:
                    mine.append(int(row))
            if not mine:
                continue
            for row in mine:
                if superseded[row] is not None:
                    columns["retired_seq"][row], columns["retired_at"][row] = columns["seq"][row], superseded[row]
            part = _take(columns, mine)
            self._settle_keys(partition, part)
            partition.append(part, len(mine))
            new += len(mine)
        if len(order):
            self.seq = max(self.seq, int(columns["seq"].max()))
        return new

    def _settle_keys(self, partition: Partition, columns: Columns) -> None:
        """Leaves one standing row a key among the rows to be restored and those that are here."""
        standing: dict[tuple[int, str], int] = {}

        def retire(row: int, at: int) -> None:
            columns["retired_seq"][row], columns["retired_at"][row] = columns["seq"][row], at

        for row, key in enumerate(columns["key"]):
            if key is None or columns["kind"][row] not in UPSERTED or columns["retired_seq"][row]:
                continue
            named, ingested = (int(columns["kind"][row]), key), int(columns["ingested_at"][row])
            rival = standing.get(named)
            if rival is not None:
                later = ingested >= columns["ingested_at"][rival]
                retire(*((rival, ingested) if later else (row, int(columns["ingested_at"][rival]))))
                if not later:
                    continue
            elif old := partition.by_key(*named):
                theirs = int(old.segment.column("ingested_at")[old.row])
                if theirs > ingested:
                    retire(row, theirs)
                    continue
                partition.supersede(old, int(columns["seq"][row]), ingested)
            standing[named] = row

    def replace(self, partition: Partition, ref: Ref, changes: dict[str, Any], *, now: int) -> int:
        """A new version of a row with some columns changed; the old one is superseded. Its seq. Under the lock."""
        held = ref.segment.views()
        columns: Columns = {name: held[name][ref.row : ref.row + 1].copy() for name in (*FIXED, "vector")}
        columns.update((name, [ref.segment.text(name, ref.row)]) for name in TEXTS)
        columns["idempotency_key"] = [None]  # the first version keeps it: a retry returns the record as it was made
        for name, value in changes.items():
            if name in TEXTS:
                columns[name] = [value]
            else:
                columns[name][0] = value
        self.seq += 1
        columns["seq"][0] = self.seq
        columns["version"][0] += 1
        columns["ingested_at"][0] = now
        columns["retired_seq"][0] = columns["retired_at"][0] = 0
        partition.supersede(ref, self.seq, now)
        partition.append(columns, 1)
        return self.seq

    def forget(self, partition: Partition, record_ids: Iterable[tuple[int, int]]) -> None:
        """Forgets all versions of these ids. Under the lock."""
        self.seq += 1
        refs = [ref for hi, lo in record_ids for ref in partition.versions(hi, lo)]
        if refs:
            partition.forget(refs, self.seq)
            partition.sweep_tail()

    def touch(self, partition: Partition, seqs: Iterable[int], now: int) -> None:
        """Counts an access to each row. Under the lock."""
        for seq in seqs:
            ref = partition.at(seq)
            if ref is not None:
                segment, row = ref
                segment.set("access_count", row, int(segment.column("access_count")[row]) + 1)
                segment.set("last_access", row, max(now, int(segment.column("last_access")[row])))


def _take(columns: Columns, rows: Sequence[int]) -> Columns:
    at = np.asarray(rows, dtype=np.int64)
    return {
        name: None if values is None else values[at] if isinstance(values, np.ndarray) else [values[i] for i in rows]
        for name, values in columns.items()
    }

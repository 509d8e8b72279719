"""How does a store outlive its process? A directory with the whole state as one Parquet file, and a lock.

The state is read when the store is opened and written whole when it is closed or saved: beside the old one, and renamed
over it when it is on disk, so that a crash leaves the one or the other. One process has the directory open at a time; the
lock is the operating system's (flock), which a killed process cannot leave behind.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pyarrow as pa

from memcore.errors import StoreCorrupt, StoreError, StoreLocked, StoreReadOnly
from memcore.store import portable
from memcore.store.catalog import Catalog
from memcore.store.snapshot import Snapshot

if TYPE_CHECKING:
    from memcore.embed.protocol import Embedder

STATE, LOCK = "state.parquet", "lock"


class SavedStore:
    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self._lock = lock
        self._pid = os.getpid()

    @classmethod
    def open(cls, path: str | os.PathLike[str], catalog: Catalog, embedder: Embedder | None) -> SavedStore:
        """Makes the directory if it isn't there, takes its lock, and reads its state into the catalog."""
        directory = Path(path)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise StoreError(f"{directory} is a file; a store is a directory: pass another path") from None
        except OSError as fault:
            raise StoreReadOnly(f"cannot make the store {directory}: {fault.strerror}; pass a path that can be written") from fault
        try:
            lock = (directory / LOCK).open("a+", encoding="utf-8")
        except OSError as fault:
            raise StoreReadOnly(f"cannot write into the store {directory}: {fault.strerror}; check its permissions") from fault
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise StoreLocked(
                f"the store {directory} is open in process {holder}; close it there first: one process has a store open at a time"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        store = cls(directory, lock)
        try:
            store._load(catalog, embedder)
        except BaseException:
            store.release()
            raise
        return store

    def _load(self, catalog: Catalog, embedder: Embedder | None) -> None:
        state = self.path / STATE
        if not state.exists():
            return
        try:
            portable.read_into(state, "parquet", catalog, embedder, lambda _: None, 0)
        except pa.ArrowException as fault:
            raise StoreCorrupt(f"{state} cannot be read ({str(fault).splitlines()[0]}); restore it from an export") from fault

    def save(self, snapshots: Sequence[Snapshot], embedder: Embedder | None) -> None:
        if os.getpid() != self._pid:
            return  # a forked child: the parent owns the directory, and the child's changes stay its own
        portable.write(self.path / STATE, snapshots, embedder, "parquet")
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)  # so that the new name is on disk too
        finally:
            os.close(folder)

    def release(self) -> None:
        if os.getpid() == self._pid:
            self._lock.close()  # gives the lock back

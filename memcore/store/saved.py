"""How does a store outlive its process? A directory with the whole state as one Parquet file, and a lock.

The state is read when the store is opened and written whole when it is closed or saved: beside the old one, and renamed
over it when it is on disk, so that a crash leaves the one or the other. One process has the directory open at a time;
the lock is the operating system's (flock), which a killed process cannot leave behind. A forked child is another
process: it lets go of what it inherited.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from memcore import gate
from memcore.errors import InvalidInput, StoreClosed, StoreCorrupt, StoreError, StoreLocked, StoreReadOnly
from memcore.store import portable
from memcore.store.catalog import Catalog
from memcore.store.snapshot import Snapshot

STATE, LOCK = "state.parquet", "lock"


class SavedStore:
    def __init__(self, path: Path, lock: IO[str]) -> None:
        self.path = path
        self._lock = lock
        self._pid = os.getpid()
        _open_stores.add(self)

    @classmethod
    def open(cls, path: object, catalog: Catalog, tokens: portable.Tokens) -> SavedStore:
        """Makes the directory if it isn't there, takes its lock, and reads its state into the catalog."""
        directory = directory_of(path)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except FileExistsError as fault:
            raise StoreError(
                f"{directory} is a file ({fault.strerror}); a store is a directory: pass another path"
            ) from fault
        except OSError as fault:
            raise StoreReadOnly(
                f"cannot make the store {directory}: {fault.strerror}; pass a path that can be written"
            ) from fault
        store = cls(directory, _locked(directory))
        try:
            store._load(catalog, tokens)
        except BaseException:
            store.release()
            raise
        return store

    def owned(self) -> bool:
        """False in a forked child of the process that opened the store."""
        return os.getpid() == self._pid

    def check_owner(self) -> None:
        if not self.owned():
            raise StoreClosed(
                f"the store {self.path} was opened in process {self._pid}, and this is its forked child {os.getpid()}; "
                "one process has a store open at a time: close it there before you open it here"
            )

    def save(self, snapshots: Sequence[Snapshot], fingerprint: str | None) -> None:
        """Writes the state, and returns when it is on disk under its name.

        Not into another store: one that was put in this one's place, or whose lock was taken away, has a lock of its
        own.
        """
        if not self._same_place():
            raise StoreError(
                f"the store {self.path} is no longer the directory that was opened; nothing was written: put it back, "
                "or export the memory to another place"
            )
        portable.write(self.path / STATE, snapshots, fingerprint, "parquet")
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _same_place(self) -> bool:
        try:
            there, mine = (self.path / LOCK).stat(), os.fstat(self._lock.fileno())
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (mine.st_dev, mine.st_ino)

    def release(self) -> None:
        """Gives the lock back."""
        self._lock.close()

    def _load(self, catalog: Catalog, tokens: portable.Tokens) -> None:
        for part in self.path.glob(portable.parts_of(STATE)):  # a killed process left it half-written
            part.unlink(missing_ok=True)
        state = self.path / STATE
        if not os.path.lexists(state):
            return
        try:
            portable.add(portable.read(state, "parquet", catalog, now=0, tokens=tokens), catalog, now=0)
        except InvalidInput as fault:
            raise StoreCorrupt(f"{fault}; restore the store from an export") from fault


def directory_of(path: object) -> Path:
    """The gate for a store's path."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(text, str):
        raise InvalidInput(
            f"path is {gate.shown(path)}; pass a directory as a text or a Path, or None to keep all in RAM"
        )
    return Path(gate.text(text, "path")).absolute()  # the process may change its folder before it saves


def _locked(directory: Path) -> IO[str]:
    try:
        lock = (directory / LOCK).open("a+", encoding="utf-8")
    except OSError as fault:
        raise StoreReadOnly(
            f"cannot write into the store {directory}: {fault.strerror}; check its permissions"
        ) from fault
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        where = "this process" if holder == str(os.getpid()) else f"process {holder}"
        raise StoreLocked(
            f"the store {directory} is open in {where} already; close it there first: a store is open once at a time"
        ) from None
    except OSError as fault:
        lock.close()
        raise StoreError(
            f"cannot lock the store {directory}: {fault.strerror}; put it on a file system that has locks"
        ) from fault
    try:
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
    except OSError as fault:
        with contextlib.suppress(OSError):
            lock.close()
        raise StoreError(f"cannot write into the store {directory}: {fault.strerror}; free space there") from fault
    return lock


_open_stores: weakref.WeakSet[SavedStore] = weakref.WeakSet()


def _let_go() -> None:
    """The lock belongs to the open file that parent and child share: the child's copy would keep it after the parent's
    end.
    """
    for store in list(_open_stores):
        store.release()


os.register_at_fork(after_in_child=_let_go)

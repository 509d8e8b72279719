"""Which directory is a store, and who in this process has it open? All who open it share one copy in RAM."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

from memcore import gate
from memcore.errors import EmbedderMismatch, InvalidInput, StoreCorrupt, StoreError, StoreReadOnly
from memcore.store import journal
from memcore.store.catalog import Catalog
from memcore.store.commits import Commits
from memcore.store.files import SEGMENTS, write_fault
from memcore.store.journal import CATALOG, Journal
from memcore.store.maintenance import Maintenance

OLD_STATE = "state.parquet"  # what a store of format 1 is
DURABILITY = ("full", "relaxed")


class Directory:
    """An open store in a directory: its catalog, how writes reach it, and what looks after its files."""

    def __init__(self, path: Path, catalog: Catalog) -> None:
        assert catalog.journal is not None
        self.path = path
        self.catalog = catalog
        self.journal = catalog.journal
        self.commits = Commits(catalog)
        self.maintenance = Maintenance(catalog, self.commits)
        self.users = 0

    def take_over(self, read: Callable[[Path], object]) -> None:
        """Takes over what a memcore of format 1 has left, once: the rows are in the catalog before the file goes."""
        with _lock:
            state = self.path / OLD_STATE
            if state.exists():
                try:
                    read(state)
                except InvalidInput as fault:
                    raise StoreCorrupt(f"{fault}; restore the store from an export") from fault
                state.unlink()
                (self.path / "lock").unlink(missing_ok=True)

    def close(self) -> None:
        """One user less; the last one writes the counters and closes the files."""
        with _lock:
            self.users -= 1
            if self.users:
                return
            _open.pop(self.path, None)
            self.maintenance.stop()
            with self.journal.busy, self.catalog.lock:
                self.catalog.closed = True
                self.catalog.partitions = {}
                self.journal.suspend()


_lock = threading.RLock()  # of opening and closing
_open: dict[Path, Directory] = {}


def open_directory(path: object, *, durability: object, lock_timeout: object) -> Directory:
    """Opens a store, and makes it if there is none; what an older memcore has left is still to be taken over."""
    place = directory_of(path)
    chosen = gate.choice(durability, "durability", DURABILITY)
    patience = gate.number(lock_timeout, "lock_timeout")
    if patience < 0:
        raise InvalidInput(f"lock_timeout is {patience:g} seconds; it must be at least 0")
    with _lock:
        _make_folder(place)
        real = place.resolve()
        opened = _open.get(real)
        if opened is not None and not opened.journal.same_file():
            raise StoreError(
                f"the store {place} is open in this process, and its files have been replaced meanwhile; close it first"
            )
        if opened is None:
            _make_catalog(place)
            opened = Directory(real, Catalog(Journal(real, durability=chosen, lock_timeout=patience)))
            with opened.catalog.lock:
                opened.catalog.look()
            _open[real] = opened
        elif opened.journal.durability != chosen:
            raise InvalidInput(
                f"the store {place} is open in this process with durability={opened.journal.durability!r}, and now "
                f"asked for with {chosen!r}; open it with the same, or close it first"
            )
        opened.users += 1
    return opened


def check_embedder(catalog: Catalog, directory: Path | None, name: str, fingerprint: str, dim: int) -> None:
    """Refuses an embedder that is not the one that made the store's vectors."""
    ours = catalog.fingerprint
    if fingerprint == ours or not (ours or catalog.dim):
        return
    where = "the store" if directory is None else f"the store {directory}"
    if ours is None:
        raise EmbedderMismatch(
            f"{where} holds vectors of {catalog.dim} dimensions that its writers passed, of no known embedder, and is "
            f"opened with {name!r} ({fingerprint!r}, {dim} dimensions); they cannot be compared: open it with "
            "embedder=None, or embed all texts anew with reembed"
        )
    raise EmbedderMismatch(
        f"{where} holds vectors of the embedder {ours!r} and is opened with {fingerprint!r}; vectors of two embedders "
        f"cannot be compared: open it with the embedder {ours!r}, or with embedder=None and embed all texts anew with "
        "reembed"
    )


def directory_of(path: object) -> Path:
    """The gate for a store's path."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(text, str):
        raise InvalidInput(
            f"path is {gate.shown(path)}; pass a directory as a text or a Path, or None to keep all in RAM"
        )
    return Path(gate.text(text, "path")).absolute()  # the process may change its folder


def _make_folder(directory: Path) -> None:
    try:
        (directory / SEGMENTS).mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as fault:
        raise StoreError(
            f"{directory} is a file ({fault.strerror}); a store is a directory: pass another path"
        ) from fault
    except OSError as fault:
        raise StoreReadOnly(
            f"cannot make the store {directory}: {fault.strerror}; pass a path that can be written"
        ) from fault


def _make_catalog(directory: Path) -> None:
    """Makes the catalog if this is no store yet."""
    path = directory / CATALOG
    if path.exists():
        if not path.stat().st_size:
            raise StoreCorrupt(
                f"{path} is empty: it was cut off, since no store is made so; nothing was changed. Run memcore verify "
                "--repair to go on with what the segments hold, or restore the store from an export"
            )
        return
    if any((directory / SEGMENTS).glob("*.arrow")):
        raise StoreCorrupt(
            f"{path} is missing and {directory / SEGMENTS} holds segments: put it back, run memcore verify --repair to "
            "go on with what the segments hold, or restore the store from an export"
        )
    try:
        journal.create(path)
    except OSError as fault:
        raise write_fault(path, fault) from fault
    except sqlite3.Error as fault:
        raise StoreReadOnly(
            f"cannot make {path}: {fault} ({fault.sqlite_errorname}); check that its folder can be written and has room"
        ) from fault

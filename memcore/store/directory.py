"""Which directory is a store, and who in this process has it open? All who open it share one copy in RAM."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from memcore import gate
from memcore.errors import (
    EmbedderMismatch,
    InvalidInput,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
)
from memcore.store import journal
from memcore.store import repair as repairing
from memcore.store.catalog import Catalog
from memcore.store.cold import COLD
from memcore.store.commits import Commits
from memcore.store.files import SEGMENTS, Source, check_file, sync_folder, unreadable, write_fault
from memcore.store.journal import CATALOG, Journal
from memcore.store.maintenance import Maintenance, alone
from memcore.store.snapshot import Snapshot
from memcore.store.steps import step
from memcore.store.verify import ASIDE, Progress, VerifyReport, check, check_readable, quiet, wal_of

OLD_STATE, OLD_LOCK = "state.parquet", "lock"  # what a store of format 1 is
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
        self.users = 1

    def take_over(self, read: Callable[[Path], object]) -> None:
        """Takes over what a memcore of format 1 has left, once: the rows are in the catalog before the file goes."""
        state = self.path / OLD_STATE
        if not os.path.lexists(state):
            return
        with self._alone_with_old():
            if not os.path.lexists(state):  # another process was quicker
                return
            try:
                read(state)
            except InvalidInput as fault:
                raise StoreCorrupt(f"{fault}; restore the store from an export") from fault
            state.unlink()
            (self.path / OLD_LOCK).unlink(missing_ok=True)
            sync_folder(self.path)  # if it came back after a crash, so would what is forgotten until then

    @contextlib.contextmanager
    def _alone_with_old(self) -> Iterator[None]:
        """With the lock that a memcore of format 1 holds while it has the store open."""
        path = self.path / OLD_LOCK
        deadline = time.monotonic() + self.journal.lock_timeout
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as fault:
            raise write_fault(path, fault) from fault
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise StoreLocked(
                            f"{path} is locked: the store is open in an older memcore, or being taken over by another "
                            "process; nothing was changed: close it there, and try again"
                        ) from None
                time.sleep(0.005)
            yield
        finally:
            os.close(handle)

    def verify(self, *, repair: bool = False, progress: Progress = quiet) -> VerifyReport:
        """Checks all that is on disk, and mends it if asked to; readers and writers wait for the latter alone."""
        writable = os.access(self.path, os.W_OK)
        check_readable(self.path)
        with self.maintenance.alone() if writable else contextlib.nullcontext():
            found = check(self.path, wal_of(self.path, ours=True), progress)
            if found.ok or not repair:
                return found
            if not writable:
                raise _not_to_be_repaired(self.path)
            with self.journal.busy, self.catalog.lock:
                self.journal.hold()
                try:
                    return repairing.repair(self.path, found, progress)
                finally:
                    self.journal.replaced()
                    self.journal.let_go()
                    self.catalog.read_anew()

    def check_files(self, snapshots: Sequence[Snapshot]) -> None:
        """Refuses to read on where a segment file of some snapshots is not as it was written: before its rows are
        written anew, with checksums of their own.
        """
        sources = (part.segment.source for snapshot in snapshots for part in snapshot.parts)
        named = {source.file for source in sources if isinstance(source, Source)}
        with self.maintenance.reading() as reader:
            told = {file: (size, crc) for file, size, crc in reader.select("SELECT file, bytes, crc FROM segments")}
        for file in sorted(named & told.keys()):
            check_file(self.path / SEGMENTS / file, *told[file])

    def close(self) -> None:
        """One user less; the last one writes the counters and closes the files."""
        with _lock:
            self.users -= 1
            if self.users:
                return
            if _open.get(self.path) is self:
                del _open[self.path]
        # Not under the lock: whoever opens the store meanwhile does so as another process would.
        try:
            with contextlib.suppress(StoreLocked, StoreFull, StoreReadOnly):  # no read fails for want of its count
                self.maintenance.stop()
        finally:
            with contextlib.ExitStack() as held:
                for lock in (*self.catalog.quiet, self.journal.busy, self.catalog.lock):
                    held.enter_context(lock)
                self.catalog.closed = True
                self.catalog.partitions = {}
                self.journal.close()


_lock = threading.RLock()  # of the dict
_open: dict[Path, Directory] = {}
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def open_directory(path: object, *, durability: object, lock_timeout: object, create: bool) -> Directory:
    """Opens a store, and makes it if there is none and it may; what an older memcore has left is still to be taken
    over.
    """
    place = directory_of(path)
    chosen = gate.choice(durability, "durability", DURABILITY)
    patience = gate.number(lock_timeout, "lock_timeout")
    if patience < 0:
        raise InvalidInput(f"lock_timeout is {patience:g} seconds; it must be at least 0")
    with _lock:
        if not create:
            _check_is_store(place)
        _make_folder(place)
        real = place.resolve()
        opened = _open.get(real)
        if opened is not None:
            opened.users += 1  # first of all: its last `Memory` may be garbage, and be collected at any moment
        else:
            _make_catalog(real)
            _check_wal(real)
            opened = Directory(real, Catalog(Journal(real, durability=chosen, lock_timeout=patience)))
        try:
            if real in _open:
                _check_same(opened, chosen, patience)
            else:
                opened.catalog.look()
                _open[real] = opened
        except BaseException:
            opened.close()
            raise
    return opened


def _check_is_store(place: Path) -> None:
    """Refuses a place where nothing of a store is, whole or not. What else is wrong with it, opening it tells."""
    why = f"there is no {CATALOG} in it"
    try:
        if {path.name for path in place.iterdir()} & {CATALOG, f"{CATALOG}-wal", OLD_STATE, SEGMENTS, COLD}:
            return
    except FileNotFoundError as fault:
        why = fault.strerror or why
    except OSError:
        return
    raise StoreError(f"{place} is no store: {why}; check the path, or remember something there first")


def verify(
    path: object, *, repair: bool = False, lock_timeout: object = 10.0, progress: Progress = quiet
) -> VerifyReport:
    """Checks a store by its path, also one that cannot be opened, and mends it if asked to."""
    place = directory_of(path)
    patience = gate.number(lock_timeout, "lock_timeout")
    try:
        real = place.resolve()
    except (OSError, RuntimeError) as fault:  # a circle of links is either, by the version of Python
        raise _no_directory(place, fault) from fault
    with _lock:
        opened = _open.get(real)
        if opened is not None:
            opened.users += 1
    if opened is not None:
        try:
            return opened.verify(repair=repair, progress=progress)
        finally:
            opened.close()
    try:
        there = set(os.listdir(real))  # noqa: PTH208  # names
    except PermissionError as fault:
        raise unreadable(real) from fault
    except OSError as fault:
        raise StoreError(f"{place} is no store: {fault.strerror}; pass the directory of one") from fault
    if not there & {CATALOG, SEGMENTS, COLD, f"{CATALOG}-wal", ASIDE}:
        old = "a store of format 1, which memcore.open takes over: open it, and verify it then"
        new = f"no store: there is no {CATALOG} in it; pass the directory of one"
        raise StoreError(f"{place} is {old if OLD_STATE in there else new}")
    check_readable(real)
    writable = os.access(real, os.W_OK)
    with alone(real, patience) if writable else contextlib.nullcontext():
        with _lock:
            wal = wal_of(real, ours=real in _open)
        found = check(real, wal, progress)
        if found.ok or not repair:
            return found
        if not writable:
            raise _not_to_be_repaired(place)
        with _lock:
            if real in _open:
                raise StoreLocked(f"the store {place} was opened by this process meanwhile; repair it again")
            return repairing.repair(real, found, progress)


def _not_to_be_repaired(place: Path) -> StoreReadOnly:
    return StoreReadOnly(f"cannot repair the store {place}: its folder cannot be written; repair a copy of it")


def _check_same(opened: Directory, durability: str, patience: float) -> None:
    """Refuses a second open in this process of other files, or with what is shared and cannot be both."""
    if not opened.journal.same_file():
        raise StoreError(
            f"the store {opened.path} is open in this process, and its files have been replaced meanwhile; close it "
            "first"
        )
    for name, held, asked in (
        ("durability", opened.journal.durability, durability),
        ("lock_timeout", opened.journal.lock_timeout, patience),
    ):
        if held != asked:
            raise InvalidInput(
                f"the store {opened.path} is open in this process with {name}={held!r}, and now asked for with "
                f"{asked!r}; open it with the same, or close it first"
            )


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
            "embedder=None (--embedder none) and pass vectors, or embed all texts anew with reembed, in place of the "
            "vectors that were passed",
            given=fingerprint,
        )
    from memcore import embed

    raise EmbedderMismatch(
        f"{where} holds vectors of the embedder {ours!r} and is opened with {fingerprint!r}; vectors of two embedders "
        f"cannot be compared: open it {embed.opening(ours)}, or with embedder=None and embed all texts anew with "
        "reembed",
        stored=ours,
        given=fingerprint,
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
    except OSError as fault:
        if os.path.lexists(directory) and not os.path.isdir(directory):  # noqa: PTH112  # Path.is_dir may raise
            raise _no_directory(directory, fault) from fault
        raise StoreReadOnly(
            f"cannot make the store {directory}: {fault.strerror}; pass a path that can be written"
        ) from fault


def _no_directory(place: Path, fault: OSError | RuntimeError) -> StoreError:
    """What to say of a path where something lies that is no directory."""
    what, do = f"is a file ({getattr(fault, 'strerror', fault)})", "a store is a directory: pass another path"
    try:
        place.stat()
    except FileNotFoundError:
        what, do = f"is a link to {place.readlink()}, which is not there", "make that directory, or pass another path"
    except (OSError, RuntimeError):
        what = "leads from link to link in a circle"
    return StoreError(f"{place} {what}; {do}")


def _check_wal(directory: Path) -> None:
    """Refuses a store of which SQLite would pass over commits, and then write over them. 4 MB take 12 ms."""
    try:
        wal = wal_of(directory, ours=True)
    except PermissionError as fault:
        raise unreadable(directory / f"{CATALOG}-wal") from fault
    if wal.fault is not None:
        raise StoreCorrupt(
            f"{directory / CATALOG}-wal is damaged: {wal.fault}; nothing was changed. Run memcore verify --repair to "
            "go on with what is whole, or restore the store from an export"
        )


_OF_A_STORE = ("segments/*.arrow", "cold/**/*.parquet", f"{CATALOG}-wal")


def _make_catalog(directory: Path) -> None:
    """Makes the catalog if this is no store yet."""
    path = directory / CATALOG
    if os.path.lexists(path):
        if not path.is_file():
            raise StoreCorrupt(f"{path} is no file; put it back, or restore the store from an export")
        if not path.stat().st_size:
            raise StoreCorrupt(
                f"{path} is empty: it was cut off, since no store is made so; nothing was changed. Run memcore verify "
                "--repair to go on with what the segments hold, or restore the store from an export"
            )
        journal.tidy(path)
        return
    step("before a catalog is made")
    left = next((p for pattern in _OF_A_STORE for p in sorted(directory.glob(pattern))), None)
    if left is not None and os.path.lexists(path):
        return  # another process has made the store since the first look
    if left is not None:
        raise StoreCorrupt(
            f"{path} is missing, and {left} tells that it was there: put it back, run memcore verify --repair to go on "
            "with what the segments hold, or restore the store from an export"
        )
    try:
        journal.create(path)
    except OSError as fault:
        raise write_fault(path, fault) from fault
    except sqlite3.Error as fault:
        if path.is_file():  # another process was quicker, and has removed what it took for a killed one's
            return
        raise StoreReadOnly(
            f"cannot make {path}: {fault} ({fault.sqlite_errorname}); check that its folder can be written and has room"
        ) from fault

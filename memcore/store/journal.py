"""What is on disk, and who may change it? The catalog of a store's directory: one SQLite database in WAL mode.

It holds the rows that no segment file has yet, the marks and counters of all rows, the names, the list of segment
files, and the number of the last commit. It is the truth for all processes: each has its own copy of what it uses in
RAM, made from here. A commit is acknowledged when SQLite has it on disk.

Four connections: one that writes, one that reads partitions, one that only asks whether anything has changed, and one
that maintenance reads with.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import resource
import sqlite3
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memcore.errors import (
    FormatTooNew,
    MemcoreError,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
)
from memcore.store import links
from memcore.store.catalog import CLOSED
from memcore.store.cold import Cold, ColdFile
from memcore.store.files import SegmentFile, sync_folder
from memcore.store.segment import COUNTERS, FIXED, MARKS, TEXTS, Columns, zeros
from memcore.store.steps import step

CATALOG = "catalog.sqlite"
FORMAT = 2  # 1 was one Parquet file, written whole
_APPLICATION = 0x6D656D63  # "memc": what `file` and SQLite's tools tell the catalog by
_SYNCHRONOUS = {"full": "FULL", "relaxed": "NORMAL"}
_CACHE_PAGES = 2000
# Pages of the WAL before it is moved into the database and begun anew: writing over what is there is faster than making
# the file longer. One-row commits took 130 µs with 1,000 pages and 200 µs with 8,192.
_CHECKPOINT_PAGES = 1000


def _sum(*names: str) -> str:
    """A generated column that no flip of a bit leaves right: 2 to any power is no multiple of the prime. No two tables
    of as many columns have the same.
    """
    terms = " + ".join(f"{weight} * ({name} % 2147483647)" for weight, name in enumerate(names, 1))
    return f"sum INTEGER NOT NULL GENERATED ALWAYS AS ({terms}) STORED"


# SQLite knows no checksums. What has no other witness (an index, a row's CRC, a file) keeps a sum or a copy beside it,
# made by SQLite itself whenever the row changes, so that `verify` sees a bit that has flipped.
_VALID = ("coalesce(valid_from, 0)", "coalesce(valid_to, 0)")
_COPY = "format || ' ' || seq || ' ' || generation || ' ' || touched || ' ' || sealed_upto || ' ' || dim || ' ' ||"
_SCHEMA = f"""
CREATE TABLE state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    format INTEGER NOT NULL,
    seq INTEGER NOT NULL,            -- of the last commit, unless a row has a later one
    generation INTEGER NOT NULL,     -- counts the changes of the list of segments
    touched INTEGER NOT NULL,        -- counts the flushes of the counters
    sealed_upto INTEGER NOT NULL,    -- rows up to this seq lie in segments
    dim INTEGER NOT NULL,            -- of the vectors; 0 until the first
    fingerprint TEXT,                -- of the embedder
    copy TEXT NOT NULL GENERATED ALWAYS AS ({_COPY} coalesce(fingerprint, '')) STORED
) STRICT;
CREATE TABLE scopes (
    id INTEGER PRIMARY KEY, tenant TEXT NOT NULL, project TEXT NOT NULL, UNIQUE (tenant, project)
) STRICT;
CREATE TABLE names (code INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE rows (
    seq INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL REFERENCES scopes,
    id BLOB NOT NULL,
    version INTEGER NOT NULL,
    session INTEGER NOT NULL REFERENCES names,
    role INTEGER NOT NULL REFERENCES names,
    kind INTEGER NOT NULL,
    level INTEGER NOT NULL,
    importance REAL NOT NULL,
    event_time INTEGER NOT NULL,
    ingested_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    source INTEGER NOT NULL REFERENCES names,
    confidence REAL NOT NULL,
    untrusted INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    key TEXT,
    content TEXT NOT NULL,
    metadata TEXT,
    idempotency_key TEXT,
    vector BLOB,
    crc INTEGER NOT NULL
) STRICT;
CREATE INDEX rows_of_scope ON rows (scope, seq);
CREATE TABLE marks (
    seq INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL REFERENCES scopes,
    superseded_seq INTEGER NOT NULL,
    superseded_at INTEGER NOT NULL,
    forgotten_seq INTEGER NOT NULL,
    lapsed INTEGER NOT NULL,
    changed INTEGER NOT NULL,
    {_sum("seq", "scope", *MARKS, "changed")}
) STRICT;
CREATE INDEX marks_of_scope ON marks (scope, changed);
CREATE TABLE counters (
    seq INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL REFERENCES scopes,
    access_count INTEGER NOT NULL,
    last_access INTEGER NOT NULL,
    changed INTEGER NOT NULL,
    {_sum("seq", "scope", *COUNTERS, "changed")}
) STRICT;
CREATE INDEX counters_of_scope ON counters (scope, changed);
CREATE TABLE forgettings (
    seq INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL REFERENCES scopes,
    at INTEGER NOT NULL,
    erased INTEGER NOT NULL,         -- not to be restored
    {_sum("seq", "scope", "at", "erased")}
) STRICT;
CREATE TABLE segments (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    file TEXT NOT NULL UNIQUE,
    rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    crc INTEGER NOT NULL
) STRICT;
CREATE TABLE parts (
    segment INTEGER NOT NULL REFERENCES segments ON DELETE CASCADE,
    start INTEGER NOT NULL,
    scope INTEGER NOT NULL REFERENCES scopes,
    rows INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    about TEXT NOT NULL,
    PRIMARY KEY (segment, start)
) STRICT, WITHOUT ROWID;
CREATE INDEX parts_of_scope ON parts (scope, first_seq);
CREATE TABLE cold (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    file TEXT NOT NULL UNIQUE,       -- below cold/
    scope INTEGER NOT NULL REFERENCES scopes,
    rows INTEGER NOT NULL,
    memories INTEGER NOT NULL,       -- rows that are the last version of theirs
    bytes INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    first_time INTEGER NOT NULL,     -- of an event
    last_time INTEGER NOT NULL,
    moved_seq INTEGER NOT NULL,
    {_sum("id", "scope", "rows", "memories", "bytes", "crc", "first_time", "last_time", "moved_seq")}
) STRICT;
CREATE INDEX cold_of_scope ON cold (scope);
CREATE TABLE cold_marks (
    seq INTEGER PRIMARY KEY,         -- of a row in a cold file
    scope INTEGER NOT NULL REFERENCES scopes,
    gone_seq INTEGER NOT NULL,       -- the commit that forgot it or brought it back
    last INTEGER NOT NULL,           -- whether it was the last version of its memory
    {_sum("seq", "scope", "last", "gone_seq")}
) STRICT;
CREATE INDEX cold_marks_of_scope ON cold_marks (scope);
CREATE TABLE links (
    seq INTEGER PRIMARY KEY,
    scope INTEGER NOT NULL REFERENCES scopes,
    src BLOB NOT NULL,
    relation INTEGER NOT NULL REFERENCES names,
    dst BLOB NOT NULL,
    attributes TEXT,
    created_at INTEGER NOT NULL,
    valid_from INTEGER,
    valid_to INTEGER,
    ended_seq INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    forgotten_seq INTEGER NOT NULL,
    changed INTEGER NOT NULL,
    crc INTEGER NOT NULL,            -- of the ends and the attributes
    {_sum("seq", "scope", "relation", "created_at", *_VALID, *links.MARKS, "changed")}
) STRICT;
CREATE INDEX links_of_scope ON links (scope, changed);
CREATE INDEX links_forgotten ON links (forgotten_seq) WHERE forgotten_seq > 0;
CREATE TABLE staged (
    replaces TEXT PRIMARY KEY,       -- a file of segments or of the cold tier
    file TEXT NOT NULL UNIQUE,       -- the same rows with other vectors
    fingerprint TEXT NOT NULL,       -- of the embedder that made them
    rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    crc INTEGER NOT NULL,
    parts TEXT NOT NULL              -- rows of the table parts (JSON)
) STRICT, WITHOUT ROWID;
CREATE TABLE imports (
    file TEXT PRIMARY KEY,           -- a digest of it
    told TEXT NOT NULL               -- how far its import is
) STRICT, WITHOUT ROWID;
"""


def statements() -> list[str]:
    """The SQL that makes an empty catalog's tables and indexes."""
    return [statement for statement in _SCHEMA.split(";\n") if statement.strip()]


@functools.cache
def columns_of_tables() -> dict[str, list[str]]:
    """The columns of each table that has row numbers, in their order; the first one of each is the row number."""
    with contextlib.closing(sqlite3.connect(":memory:")) as made:
        for statement in statements():
            made.execute(statement)
        listed = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND NOT wr AND name NOT LIKE 'sqlite_%'"
        return {
            name: [column for (column,) in made.execute("SELECT name FROM pragma_table_xinfo(?)", (name,))]
            for (name,) in made.execute(listed).fetchall()
        }


# Of each table that keeps a sum or a copy of its columns: what it is made of.
_SUM = re.compile(r"TABLE (\w+).* (sum|copy) \w+ NOT NULL GENERATED ALWAYS AS \((.*)\) STORED", re.DOTALL)
SUMS = {told[1]: (told[2], told[3]) for statement in statements() if (told := _SUM.search(statement))}

# The columns of a row in the order of the table, each with the column of the store that it comes from.
_PLAIN = (
    "version", "session", "role", "kind", "level", "importance", "event_time", "ingested_at", "expires_at", "source",
    "confidence", "untrusted", "tokens",
)  # fmt: skip
ROW = ("seq", "scope", "id", *_PLAIN, *TEXTS, "vector", "crc")
_INSERT_ROW = f"INSERT INTO rows ({', '.join(ROW)}) VALUES ({', '.join('?' * len(ROW))})"
_SELECT_ROWS = f"SELECT {', '.join(ROW)} FROM rows WHERE scope = ? AND seq > ? ORDER BY seq"
STATE = (
    "SELECT max(seq, sealed_upto, ifnull((SELECT max(seq) FROM rows), 0)), generation, touched, sealed_upto, dim, "
    "fingerprint FROM state"
)
_LINK = (
    "seq", "src", "relation", "dst", "attributes", "created_at", "valid_from", "valid_to", *links.MARKS,
)  # fmt: skip
_PUT_LINK = (
    f"INSERT OR REPLACE INTO links ({', '.join(_LINK)}, scope, changed, crc) VALUES ({', '.join('?' * len(_LINK))}"
    ", ?, ?, ?)"
)
_PUT_MARK = "INSERT OR REPLACE INTO marks VALUES (?, ?, ?, ?, ?, ?, ?)"
_COLD = ", ".join(ColdFile._fields)
_ADD_COLD = f"INSERT INTO cold (scope, {_COLD}) VALUES (?, {', '.join('?' * len(ColdFile._fields))})"
_COLD_FILES = f"SELECT {_COLD} FROM cold WHERE scope = ? ORDER BY id"
_COUNT = """
INSERT INTO counters VALUES (?, ?, ?, ?, ?) ON CONFLICT (seq) DO UPDATE SET
    access_count = min(access_count + excluded.access_count, 2147483647),
    last_access = max(last_access, excluded.last_access), changed = excluded.changed
"""


class State(NamedTuple):
    """The one row that tells how far the store is."""

    seq: int
    generation: int
    touched: int
    sealed_upto: int
    dim: int
    fingerprint: str | None


class PartRow(NamedTuple):
    """Where some rows of a scope lie: `rows` of them from row `start` of a segment file on, in the order of their
    seqs. `about` tells what need not be read from the file (JSON).
    """

    file: str
    start: int
    rows: int
    first_seq: int
    last_seq: int
    about: str


class Reader:
    """A read transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def select(self, sql: str, *values: object) -> list[Any]:
        return self._connection.execute(sql, values).fetchall()

    def state(self) -> State:
        return State(*self._connection.execute(STATE).fetchone())

    def cold_files(self, scope: int) -> list[ColdFile]:
        """The files of a scope's cold tier, the oldest first."""
        return [ColdFile(*row) for row in self.select(_COLD_FILES, scope)]


class Journal:
    """One process's connections to a catalog, opened when they are needed. None is open while the process forks: SQLite
    must not meet in the child what the parent had open.
    """

    def __init__(self, directory: Path, *, durability: str, lock_timeout: float) -> None:
        self.directory = directory
        self.path = directory / CATALOG
        self._name = os.fspath(self.path)
        # Open segment files, which many scopes share: 10,000 that each open their own take 1.5 GB.
        self.files: dict[str, SegmentFile] = {}
        self.durability = durability
        self.lock_timeout = lock_timeout
        self.busy = threading.RLock()  # who writes or maintains; a fork waits for it
        self._scopes: dict[tuple[str, str], int] = {}
        self._probing = threading.RLock()
        self._opened = 0  # how often
        self._closed = False
        self._file: tuple[int, int] | None = None
        self._frozen: object = None  # `_look_of_files` when they were opened, if they cannot be written
        self._connections: tuple[sqlite3.Connection, ...] = ()
        self._resume()

    def _resume(self) -> None:
        """Opens the connections, unless they are."""
        if self._connections:
            return
        with self._probing:
            if self._connections:
                return
            if self._closed:
                raise StoreClosed(CLOSED)
            if not self.same_file():
                raise self._moved()
            made: list[sqlite3.Connection] = []
            with self.telling("open"):
                try:
                    self._frozen = self._look_of_files() if self._unwritable() else None
                    # Also who reads may have to wait: for others that mend the WAL, or put it away when they close.
                    made += (connect(self.path, self.durability, self._mode(), self.lock_timeout) for _ in range(4))
                    self._check_format(made[0])
                    made[0].execute("PRAGMA busy_timeout = 0")  # it waits in `_patiently`
                except BaseException:
                    for connection in made:
                        connection.close()
                    raise
            self._writer, self._reader, self._probe, self._maintainer = made
            self._opened += 1
            there = self.path.stat()
            self._file = (there.st_dev, there.st_ino)
            self._connections = tuple(made)

    def same_file(self) -> bool:
        """Whether the catalog is still the file that was opened."""
        if self._file is None:
            return True
        try:
            there = os.stat(self._name)  # noqa: PTH116  # in each commit: Path.stat takes 4 µs more
        except OSError:
            return False
        return self._file == (there.st_dev, there.st_ino)

    def _moved(self) -> StoreError:
        return StoreError(
            f"the store {self.directory} was moved, deleted or replaced while it was open; nothing was written: put it "
            "back, or close it and open it again"
        )

    # SQLite reads a database in WAL mode only where it can make two files beside it, unless they are there. In a place
    # that cannot be written and where nobody has the store open, the database is all there is, and is read as it lies.

    def _unwritable(self) -> bool:
        wal = self.directory / f"{CATALOG}-wal"
        return not os.access(self.directory, os.W_OK) and not (wal.exists() and wal.stat().st_size)

    def _mode(self) -> str:
        return "mode=rw" if self._frozen is None else "mode=ro&immutable=1"

    def _look_of_files(self) -> object:
        there = self.path.stat()
        return there.st_ino, there.st_mtime_ns, there.st_size, self._unwritable()

    def _thaw(self) -> None:
        """Opens files anew that were read as they lay, once somebody has written. Nothing may be under way."""
        if self._frozen is not None and self._frozen != self._look_of_files():
            self.suspend()

    def suspend(self) -> None:
        """Closes the connections; the next call opens others. Nothing may be under way."""
        with self._probing:
            for connection in self._connections:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()
            self._connections = ()

    def close(self) -> None:
        """Closes the connections for good. Nothing may be under way."""
        with self._probing:
            self.suspend()
            self._closed = True
            self.files.clear()

    def hold(self) -> None:
        """Closes the connections, and no thread opens others until `let_go`. Nothing may be under way."""
        self._probing.acquire()
        self.suspend()

    def replaced(self) -> None:
        """The catalog is another file by now, with numbers of its own. Between `hold` and `let_go`."""
        self._file = None
        self._scopes.clear()
        self.files.clear()

    def let_go(self) -> None:
        self._probing.release()

    def _check_format(self, connection: sqlite3.Connection) -> None:
        try:
            found = connection.execute("SELECT format FROM state").fetchone()
        except sqlite3.OperationalError as fault:
            if "no such table" not in str(fault):
                raise
            found = None
        if found is None:
            raise StoreCorrupt(f"{self.path} is not the catalog of a memcore store; {_NEXT}")
        if found[0] > FORMAT:
            raise FormatTooNew(
                f"{self.path} is in format {found[0]} and this memcore reads up to format {FORMAT}; upgrade "
                "memcore-engine"
            )

    # What goes wrong

    @contextlib.contextmanager
    def telling(self, doing: str) -> Iterator[None]:
        """Turns SQLite's errors into memcore's, with the path and what to do."""
        try:
            yield
        except sqlite3.Error as fault:
            raise self._fault(fault, doing) from fault
        except UnicodeDecodeError as fault:  # SQLite quotes what it cannot read
            raise StoreCorrupt(f"{self.path} is damaged: a text of it is no UTF-8 ({fault}); {_NEXT}") from fault

    def _fault(self, fault: sqlite3.Error, doing: str) -> MemcoreError:
        code = getattr(fault, "sqlite_errorcode", 0)
        name = getattr(fault, "sqlite_errorname", type(fault).__name__)
        told = f"cannot {doing} the store {self.directory}"
        primary = code & 0xFF
        if primary in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreLocked(
                f"the store {self.directory} has been locked by {self._holder()} for more than "
                f"{self.lock_timeout:g} s; nothing was written: try again, or end that process"
            )
        if primary == sqlite3.SQLITE_FULL or (primary == sqlite3.SQLITE_IOERR and self._no_room()):
            return StoreFull(
                f"{told}: no room is left ({name}); nothing was written and all that was acknowledged is safe: free "
                "space there, and go on"
            )
        if primary in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN):
            return StoreReadOnly(f"{told}: {fault} ({name}); check that {self.path} and its folder can be written")
        if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return StoreCorrupt(f"{self.path} is damaged: {fault} ({name}); {_NEXT}")
        return StoreError(f"{told}: {fault} ({name}); {_NEXT}")

    def _no_room(self) -> bool:
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        sizes = [p.stat().st_size for p in self.directory.glob(CATALOG + "*")]
        if limit != resource.RLIM_INFINITY and sizes and max(sizes) + (1 << 20) > limit:
            return True
        disk = os.statvfs(self.directory)
        return disk.f_bavail * disk.f_frsize < 1 << 20

    def _holder(self) -> str:
        """Who holds the write lock: byte 120 of the WAL index, as Linux lists it."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            inode = (self.directory / f"{CATALOG}-shm").stat().st_ino
            for line in Path("/proc/locks").read_text().splitlines():
                words = line.split()
                if words[3] == "WRITE" and int(words[5].split(":")[2]) == inode and words[6] == "120":
                    return f"process {words[4]}"
        return "another process"

    def _patiently(self, act: Callable[[], object]) -> None:
        """Tries until the lock is free, at most `lock_timeout` seconds. SQLite's own waiting sleeps far longer."""
        deadline, pause = time.monotonic() + self.lock_timeout, 0.0001
        while True:
            try:
                act()
                return
            except sqlite3.OperationalError as fault:
                if fault.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
            time.sleep(pause)
            pause = min(pause * 1.5, 0.002)

    # Reading

    def changes(self) -> tuple[int, object]:
        """What is another one when any other connection has committed since."""
        with self._probing:
            self._resume()
            try:
                if self._frozen is not None:
                    return self._opened, self._look_of_files()
                return self._opened, self._probe.execute("PRAGMA data_version").fetchone()[0]
            except sqlite3.Error as fault:  # no `telling`, which takes as long as the question
                raise self._fault(fault, "read") from fault

    def changes_by_others(self) -> tuple[int, int]:
        """What is another one when another process has committed since. Inside a transaction."""
        return self._opened, self._writer.execute("PRAGMA data_version").fetchone()[0]

    def state(self) -> State:
        """As committed last."""
        with self.telling("read"), self._probing:
            self._thaw()
            self._resume()
            return State(*self._probe.execute(STATE).fetchone())

    @contextlib.contextmanager
    def reading(self) -> Iterator[State]:
        """One consistent state for all that is read inside."""
        with self.telling("read"):
            self._thaw()
            self._resume()
            if self._reader.in_transaction:  # a signal's handler raised before the `try` below
                self._reader.execute("ROLLBACK")
            self._reader.execute("BEGIN")
            try:
                yield State(*self._reader.execute(STATE).fetchone())
            finally:
                with contextlib.suppress(sqlite3.Error):
                    self._reader.execute("ROLLBACK")

    def select(self, sql: str, *values: object) -> list[Any]:
        """Inside `reading`."""
        return self._reader.execute(sql, values).fetchall()

    def names_from(self, code: int) -> list[str]:
        with self.telling("read"), self._probing:
            self._resume()
            found = self._probe.execute("SELECT name FROM names WHERE code >= ? ORDER BY code", (code,))
            return [name for (name,) in found]

    def scope_of(self, scope: tuple[str, str]) -> int | None:
        """The number of a scope that has rows. Inside `reading`."""
        found = self._scopes.get(scope)
        if found is None:
            rows = self.select("SELECT id FROM scopes WHERE tenant = ? AND project = ?", *scope)
            found = rows[0][0] if rows else None
            if found is not None:
                self._scopes[scope] = found
        return found

    def rows_after(self, scope: int, seq: int, dim: int) -> Columns | None:
        """The rows of a scope that no segment has, later than `seq`. Inside `reading`."""
        rows = self.select(_SELECT_ROWS, scope, seq)
        return columns_of_rows(rows, dim) if rows else None

    def marks_after(self, scope: int, seq: int) -> list[tuple[int, ...]]:
        """(seq, marks …) of the rows of a scope that were marked after the commit `seq`. Inside `reading`."""
        return self.select(
            f"SELECT seq, {', '.join(MARKS)} FROM marks WHERE scope = ? AND changed > ? ORDER BY seq", scope, seq
        )

    def links_after(self, scope: int, seq: int) -> list[tuple[Any, ...]]:
        """The links of a scope that were made or marked after the commit `seq`. Inside `reading`."""
        return self.select(
            f"SELECT {', '.join(_LINK)} FROM links WHERE scope = ? AND changed > ? ORDER BY seq", scope, seq
        )

    def counters_after(self, scope: int, touched: int) -> list[tuple[int, ...]]:
        """(seq, counters …) of the rows of a scope that were counted after a flush. Inside `reading`."""
        return self.select(
            f"SELECT seq, {', '.join(COUNTERS)} FROM counters WHERE scope = ? AND changed > ? ORDER BY seq",
            scope,
            touched,
        )

    def parts_of(self, scope: int) -> list[PartRow]:
        """Where the rows of a scope lie in segment files, in commit order. Inside `reading`."""
        rows = self.select(
            "SELECT file, start, p.rows, first_seq, last_seq, about FROM parts p JOIN segments s ON s.id = p.segment "
            "WHERE scope = ? ORDER BY first_seq",
            scope,
        )
        return [PartRow(*row) for row in rows]

    def cold_of(self, scope: int) -> Cold:
        """What a scope has in the cold tier. Inside `reading`."""
        files = self.select(_COLD_FILES, scope)
        marks = self.select("SELECT seq, gone_seq, last FROM cold_marks WHERE scope = ? ORDER BY seq", scope)
        seqs, commits, lasts = np.array(marks, dtype=np.int64).reshape(len(marks), 3).T
        return Cold(tuple(ColdFile(*file) for file in files), seqs.copy(), commits.copy(), lasts != 0)

    @contextlib.contextmanager
    def maintaining(self) -> Iterator[Reader]:
        """One consistent state on a connection of its own: for maintenance, which is one thread at a time."""
        with self.telling("read"):
            self._resume()
            connection = self._maintainer
            connection.execute("BEGIN")
            try:
                yield Reader(connection)
            finally:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")

    # Writing

    def begin(self) -> None:
        """Takes the write lock, which no other process or connection then has."""
        try:  # and no `telling`, which takes 2 µs
            self._resume()
            if not self.same_file():  # SQLite would go on writing into files that have no name any more
                raise self._moved()
            try:
                self._writer.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as fault:
                if fault.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                self._patiently(lambda: self._writer.execute("BEGIN IMMEDIATE"))
        except sqlite3.Error as fault:
            raise self._fault(fault, "write into") from fault

    def commit(self) -> None:
        try:
            self._writer.execute("COMMIT")
        except sqlite3.Error as fault:
            raise self._fault(fault, "write into") from fault

    @property
    def in_transaction(self) -> bool:
        return self._writer.in_transaction

    def roll_back(self) -> None:
        self._scopes.clear()  # of those that were new another process may get the numbers
        with contextlib.suppress(sqlite3.Error):
            if self._connections and self._writer.in_transaction:
                self._writer.execute("ROLLBACK")

    def run(self, sql: str, *values: object) -> sqlite3.Cursor:
        """A statement of the transaction."""
        return self._writer.execute(sql, values)

    def run_many(self, sql: str, values: Iterable[Sequence[object]]) -> None:
        self._writer.executemany(sql, values)

    def add_names(self, names: Sequence[str], first: int) -> None:
        self.run_many("INSERT INTO names VALUES (?, ?)", enumerate(names, first))

    def scope_made(self, scope: tuple[str, str]) -> int:
        """The number of a scope, made if it is new; `keep_scopes` keeps it in mind until a write is rolled back."""
        found = self._scopes.get(scope)
        if found is not None:
            return found
        row = self.run("SELECT id FROM scopes WHERE tenant = ? AND project = ?", *scope).fetchone()
        if row is not None:
            return int(row[0])
        return int(self.run("INSERT INTO scopes (tenant, project) VALUES (?, ?) RETURNING id", *scope).fetchone()[0])

    def keep_scopes(self, scopes: Mapping[tuple[str, str], int]) -> None:
        self._scopes.update(scopes)

    def add_rows(self, name: tuple[str, str], scope: int, columns: Columns) -> None:
        """Rows of a scope, by its name and its number."""
        rows = rows_of_columns(name, scope, columns)
        if len(columns["content"]) == 1:
            self._writer.execute(_INSERT_ROW, next(rows))
        else:
            self._writer.executemany(_INSERT_ROW, rows)

    def put_marks(self, marks: Iterable[Sequence[int]]) -> None:
        """Rows of the table `marks`."""
        self.run_many(_PUT_MARK, marks)

    def put_links(self, scope: int, links: Iterable[tuple[Any, ...]], changed: int) -> None:
        """Links as of `LinkTable.cells`, changed by a commit."""
        self.run_many(_PUT_LINK, ((*link, scope, changed, crc_of_link(*link[1:5])) for link in links))

    def put_cold(self, scope: int, before: Cold, after: Cold) -> None:
        """What a write has changed of a scope's cold tier: files that are new, and rows that are gone or back."""
        self.run_many(_ADD_COLD, ((scope, *file) for file in after.files if file not in before.files))
        back = np.setdiff1d(before.seqs, after.seqs, assume_unique=True)
        self.run_many("DELETE FROM cold_marks WHERE seq = ?", ((seq,) for seq in back.tolist()))
        gone = np.flatnonzero(after.commits != before.gone(after.seqs))
        cells = (after.seqs[gone], after.commits[gone], after.lasts[gone].astype(np.int64))
        self.run_many(
            "INSERT OR REPLACE INTO cold_marks VALUES (?, ?, ?, ?)",
            ((seq, scope, commit, last) for seq, commit, last in zip(*(c.tolist() for c in cells), strict=True)),
        )
        self.run("UPDATE state SET generation = generation + 1")

    def swap_cold(self, scope: int, old: ColdFile, new: ColdFile | None, dropped: Sequence[int]) -> None:
        """A cold file was written anew without some rows, or has none left."""
        self.run("DELETE FROM cold WHERE file = ?", old.file)
        self.run("DELETE FROM staged WHERE replaces = ?", old.file)
        if new is not None:
            self.run(_ADD_COLD, scope, *new)
        self.run_many("DELETE FROM cold_marks WHERE seq = ?", ((seq,) for seq in dropped))
        self.run("UPDATE state SET generation = generation + 1")

    def count(self, counts: Iterable[Sequence[int]]) -> int:
        """Adds (seq, scope, accesses, last access) to the counters; the number of this flush."""
        (flush,) = self.run("UPDATE state SET touched = touched + 1 RETURNING touched").fetchone()
        self.run_many(_COUNT, ((*counted, flush) for counted in counts))
        return int(flush)

    def set_state(self, **values: object) -> None:
        names = ", ".join(f"{name} = ?" for name in values)
        self._writer.execute(f"UPDATE state SET {names}", tuple(values.values()))

    def checkpoint(self, *, whole: bool = False) -> None:
        """Moves what is in the WAL into the database; `whole` waits for readers and cuts the WAL to nothing."""
        with self.telling("write into"), self.busy:
            self._resume()
            if not whole:
                self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                return
            deadline = time.monotonic() + self.lock_timeout
            while self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                if time.monotonic() > deadline:
                    raise StoreLocked(
                        f"another process has read the store {self.directory} for more than {self.lock_timeout:g} s, "
                        "so the journal's old bytes are still in its WAL; nothing is lost: compact again"
                    )
                time.sleep(0.002)

    def vacuum(self) -> None:
        """Rewrites the database without its free pages."""
        with self.telling("write into"), self.busy:
            self._resume()
            self._patiently(lambda: self._writer.execute("VACUUM"))


def connect(path: Path, durability: str, mode: str, patience: float = 0.0) -> sqlite3.Connection:
    """`mode` as of SQLite's URIs; `patience` in seconds."""
    made = sqlite3.connect(
        f"{path.as_uri()}?{mode}",
        timeout=patience,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=64,
        uri=True,
    )
    try:
        made.execute("PRAGMA foreign_keys = ON")
        made.execute("PRAGMA secure_delete = OFF")  # `compact` rewrites the file without its free pages
        made.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")
        made.execute(f"PRAGMA cache_size = {_CACHE_PAGES}")
        made.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")
    except BaseException:
        made.close()
        raise
    return made


def create(path: Path) -> None:
    """Makes an empty catalog, whole and on disk before it has its name, unless another process was quicker.

    So an empty or cut file of that name is always damage, and never a store that is still to be filled.
    """
    part = path.with_name(f".{path.name}.{os.urandom(8).hex()}.part")  # two containers may have the same process ids
    try:
        made = connect(part, "full", "mode=rwc")
        try:
            made.execute("PRAGMA journal_mode = WAL")
            made.execute("BEGIN IMMEDIATE")
            for statement in statements():
                made.execute(statement)
            made.execute("INSERT INTO state VALUES (1, ?, 0, 0, 0, 0, 0, NULL)", (FORMAT,))
            made.execute(f"PRAGMA application_id = {_APPLICATION}")
            made.execute(f"PRAGMA user_version = {FORMAT}")
            made.execute("COMMIT")
        finally:
            made.close()  # which moves the WAL into the file
        step("before the catalog has its name")
        try:
            os.link(part, path)
        except OSError:
            if not path.exists():
                raise
        step("after the catalog has its name")
        sync_folder(path.parent)
    finally:
        for left in (part, *(part.with_name(part.name + suffix) for suffix in ("-wal", "-shm", "-journal"))):
            left.unlink(missing_ok=True)


def tidy(path: Path) -> None:
    """Removes what processes that were killed in `create` have left beside a catalog that is there."""
    for left in path.parent.glob(f".{path.name}.*.part*"):
        left.unlink(missing_ok=True)


_NEXT = "run memcore verify on it, or restore it from an export"


_OWN = struct.Struct("<q16siiibhfqqqif?i")  # a row's seq, id and `_PLAIN`


def crc_of_scope(scope: tuple[str, str]) -> int:
    """With what the CRC of a scope's rows begins: a row that is found by itself tells whose it is not."""
    return zlib.crc32("\0".join(scope).encode())


def crc_of(start: int, own: Sequence[Any], vector: bytes | None, texts: Iterable[str | None]) -> int:
    """CRC-32 of all that a row was written with: `start` as of `crc_of_scope`, its `_OWN` cells, its vector's bytes,
    and each text's UTF-8 behind a 0 or a 1. What happens to the row later (marks and counters) is not in it.
    """
    crc = zlib.crc32(_OWN.pack(*own), start)
    crc = zlib.crc32(vector, crc) if vector else crc
    return zlib.crc32(b"".join(b"\0" if text is None else b"\1" + text.encode() for text in texts), crc)


def crc_of_link(src: bytes, _: int, dst: bytes, attributes: str | None) -> int:
    """CRC-32 of the two ids of a link and its attributes' UTF-8."""
    return zlib.crc32(src + dst + (attributes or "").encode())


def rows_of_columns(name: tuple[str, str], scope: int, columns: Columns) -> Iterator[tuple[object, ...]]:
    """Rows of the table from columns of the store: of a scope, by its name and its number. One after the other, since
    SQLite lets other threads run between two, and they would wait for all.
    """
    n, start = len(columns["content"]), crc_of_scope(name)
    has, vectors = columns["has_vector"], columns["vector"]
    texts = [columns[name] for name in TEXTS]
    seqs, *plain = (columns[name].tolist() for name in ("seq", *_PLAIN))
    halves = zip(columns["id_hi"].tolist(), columns["id_lo"].tolist(), strict=True)
    ids = [(hi << 64 | lo).to_bytes(16, "big") for hi, lo in halves]
    blobs = [vectors[row].tobytes() if has[row] else None for row in range(n)]
    if n == 1:  # half the time of what is below
        (seq,), (id,), (blob,) = seqs, ids, blobs
        own, said = [value for (value,) in plain], [text for (text,) in texts]
        return iter([(seq, scope, id, *own, *said, blob, crc_of(start, (seq, id, *own), blob, said))])
    every = zip(seqs, ids, *plain, strict=True)
    crcs = map(crc_of, itertools.repeat(start, n), every, blobs, zip(*texts, strict=True))
    return zip(seqs, itertools.repeat(scope, n), ids, *plain, *texts, blobs, crcs, strict=True)


def columns_of_rows(rows: Sequence[tuple[Any, ...]], dim: int) -> Columns:
    """Columns of the store from rows of the table, with no marks and no counts."""
    cells = dict(zip(ROW, zip(*rows, strict=True), strict=True))
    n = len(rows)
    halves = np.frombuffer(b"".join(cells["id"]), dtype=">u8").astype(np.uint64).reshape(n, 2)
    columns: Columns = {name: zeros(name, n) for name in FIXED}
    columns.update((name, np.array(cells[name], dtype=FIXED[name])) for name in ("seq", *_PLAIN))
    columns["id_hi"], columns["id_lo"] = np.ascontiguousarray(halves[:, 0]), np.ascontiguousarray(halves[:, 1])
    columns.update((name, list(cells[name])) for name in TEXTS)
    blobs = cells["vector"]
    columns["has_vector"] = np.array([blob is not None for blob in blobs], dtype=np.bool_)
    nothing = bytes(4 * dim)
    columns["vector"] = np.frombuffer(
        b"".join(nothing if blob is None else blob for blob in blobs), dtype=np.float32
    ).reshape(n, dim)
    return columns

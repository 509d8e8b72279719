"""Is everything in the store as it was written? Checksums, references, counts and versions, of every row there is.

The catalog is read in one transaction, and no file is written: others may read and write meanwhile. What is found is
told with what it can be repaired from; `repair` does that. What a crash may leave (a file that nothing names, rows of
the journal that lie in a file by now) harms nothing and is told apart, as a note.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sqlite3
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore import ids
from memcore.errors import FormatTooNew, StoreCorrupt
from memcore.gate import first_line
from memcore.store import journal
from memcore.store.catalog import Catalog
from memcore.store.codes import DERIVED
from memcore.store.derived import damaged_in
from memcore.store.files import (
    SEGMENTS,
    SegmentFile,
    about_of,
    crc_of_file,
    crcs_of,
    file_schema,
    is_own,
    unreadable,
)
from memcore.store.journal import CATALOG, FORMAT, crc_of, crc_of_scope
from memcore.store.pages import Wal, read_wal
from memcore.store.partition import UPSERTED, WORKING
from memcore.store.salvage import columns_of_batch, disagreeing, runs_of, sound_in, sound_rows, unknown_in, width_of
from memcore.store.segment import FIXED, MARKS, TEXTS, Columns

ASIDE = "aside"  # the folder of what repairs have put aside
REPORT = "report.json"  # in each of them, once the repair is done
LOCK = "maintenance.lock"
COLD = "cold"
_SHOWN = 3  # examples that a message names
_CHUNK = 4096
_LINES = 20  # of SQLite's own check
_PATIENCE = 10.0  # seconds, while another process opens or closes the WAL

Progress = Callable[[int, int, str], None]
I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]


def quiet(done: int, total: int, label: str) -> None:
    """No progress is shown."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was written: in which file, what is wrong, and what it can be repaired from."""

    file: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}; {self.remedy}"


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair did. `kept` and `rebuilt` count what is in the store now, `lost` what is known to be missing;
    `moved` names what was put aside, below `aside`; `notes` say what cannot be known. `at_risk` are the ids of memories
    that may be here although they were forgotten or replaced, `fell_back` those of which an earlier version stands,
    `unknown` the tables of the catalog that have lost rows, of which it cannot be known how many.
    """

    aside: str
    kept: dict[str, int] = field(default_factory=dict)
    rebuilt: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    lost_ids: list[str] = field(default_factory=list)
    at_risk: list[str] = field(default_factory=list)
    fell_back: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def lossless(self) -> bool:
        """Whether all that was there still is."""
        return not (self.lost or self.lost_ids or self.at_risk or self.fell_back or self.unknown)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """`checked` counts what was looked at; `problems` tells what is wrong; `notes` what is unusual and harms nothing.
    With a repair, `found` are the problems it was made for, and `problems` those that are left.
    """

    path: str | None
    problems: list[Problem] = field(default_factory=list)
    checked: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    found: list[Problem] = field(default_factory=list)
    repair: RepairReport | None = None

    @property
    def ok(self) -> bool:
        return not self.problems


# Rows, wherever they lie


_LEDGER: dict[str, npt.DTypeLike] = {
    "scope": np.int64,
    "place": np.int64,  # where they lie: a number that its user gives
    **{
        name: FIXED[name]
        for name in ("seq", "id_hi", "id_lo", "version", "session", "role", "source", "kind", "ingested_at", *MARKS)
    },
}


class Ledger:
    """What must be consistent over all row versions, as columns: about 90 bytes a row."""

    def __init__(self) -> None:
        self._parts: list[Columns] = []
        self.keys: dict[int, str] = {}  # by seq, of rows that their key names
        self.columns: Columns = {name: np.empty(0, dtype=dtype) for name, dtype in _LEDGER.items()}

    def __len__(self) -> int:
        return len(self.columns["seq"])

    def add(self, scope: int, place: int, columns: Mapping[str, Any], keys: Sequence[str | None]) -> None:
        n = len(columns["seq"])
        held = {"scope": np.full(n, scope), "place": np.full(n, place)}
        self._parts.append({name: np.array(held.get(name, columns.get(name)), dtype=_LEDGER[name]) for name in _LEDGER})
        for seq, kind, key in zip(columns["seq"].tolist(), columns["kind"].tolist(), keys, strict=True):
            if key is not None and kind in UPSERTED:
                self.keys[seq] = key

    def close(self) -> None:
        """All rows are in: they are put into the order of their seqs."""
        if self._parts:
            joined = {name: np.concatenate([part[name] for part in self._parts]) for name in _LEDGER}
            order = np.argsort(joined["seq"], kind="stable")
            self.columns = {name: values[order] for name, values in joined.items()}
        self._parts = []

    def mark(self, marks: I64) -> BOOL:
        """Sets marks, rows of (seq, `MARKS` …), on the rows that are here; which of them are."""
        at, there = self.find(marks[:, 0])
        for name, values in zip(MARKS, marks[:, 1:].T, strict=True):
            self.columns[name][at[there]] = values[there].astype(FIXED[name])
        return there

    def find(self, seqs: I64) -> tuple[I64, BOOL]:
        """Where the rows with these seqs are, and whether they are."""
        held = self.columns["seq"]
        at = np.searchsorted(held, seqs)
        if not len(held):
            return np.zeros(len(seqs), np.int64), np.zeros(len(seqs), np.bool_)
        at = np.minimum(at, len(held) - 1)
        return at, held[at] == seqs

    def known(self, _: tuple[str, str], seqs: I64) -> tuple[npt.NDArray[np.uint64], BOOL]:
        """The low halves of the ids under these seqs, and whether there is one."""
        at, there = self.find(seqs)
        return self.columns["id_lo"][at] if len(self) else np.zeros(len(seqs), np.uint64), there

    def name(self, row: int) -> str:
        return ids.to_text(int(self.columns["id_hi"][row]), int(self.columns["id_lo"][row]))

    def names(self, rows: I64) -> list[str]:
        return list(dict.fromkeys(self.name(int(row)) for row in rows))

    def chains(self) -> tuple[I64, BOOL]:
        """The rows that are not forgotten, by memory and then by seq; whether each has a next version."""
        c = self.columns
        alive = np.flatnonzero(c["forgotten_seq"] == 0)
        order = alive[np.lexsort((c["seq"][alive], c["id_lo"][alive], c["id_hi"][alive], c["scope"][alive]))]
        same = np.ones(max(len(order) - 1, 0), dtype=np.bool_)
        for name in ("scope", "id_hi", "id_lo"):
            same &= c[name][order[1:]] == c[name][order[:-1]]
        return order, np.append(same, False)[: len(order)]

    def rivals(self) -> list[tuple[int, int]]:
        """Rows that stand under a key which a later one has too, each with that one."""
        c = self.columns
        found: list[tuple[int, int]] = []
        last: dict[tuple[int, int, str], int] = {}
        stands = np.flatnonzero((c["superseded_seq"] == 0) & (c["forgotten_seq"] == 0))
        for row in stands.tolist() if self.keys else []:
            key = self.keys.get(int(c["seq"][row]))
            if key is not None:
                named = (int(c["scope"][row]), int(c["kind"][row]), key)
                if named in last:
                    found.append((last[named], row))
                last[named] = row
        return found

    def faults(self) -> Iterator[tuple[str, I64]]:
        """What contradicts itself, and at which rows."""
        c = self.columns
        again = np.flatnonzero(np.diff(c["seq"]) == 0)
        yield "rows have the seq of another row", again
        order, more = self.chains()
        following = np.append(order[1:], order[:1])
        version, replaced, lapsed = c["version"], c["superseded_seq"] != 0, c["lapsed"]
        rising = version[following] > version[order]
        yield "rows have no higher version than the one before them", following[more & ~rising]
        yield "rows stand although their memory has a later version", order[more & ~replaced[order]]
        yield "rows are said to have no later version, and have one", order[more & lapsed[order]]
        beside = replaced[order] & (c["superseded_at"][order] > c["ingested_at"][following])
        yield "rows are said to have stood beside their next version", order[more & beside]
        gone = ~more & replaced[order] & ~lapsed[order]
        yield "rows were replaced by a version that is not here", order[gone]
        yield "rows stand and are said to have lapsed", np.flatnonzero(lapsed & ~replaced)
        yield "rows stand under the key of another one", np.array([row for row, _ in self.rivals()], dtype=np.int64)


_LEDGER_REMEDY = {
    "rows have the seq of another row": "a repair keeps the row of the newest file",
    "rows have no higher version than the one before them": "a repair leaves it: update the memory, or forget it",
    "rows were replaced by a version that is not here": "a repair lets the last version that is here stand again",
}
_FROM_VERSIONS = "a repair derives it from the versions of the same memory"


def _some(texts: Sequence[object]) -> str:
    """A few examples of many."""
    more = f" and {len(texts) - _SHOWN:,} more" if len(texts) > _SHOWN else ""
    return ", ".join(map(str, texts[:_SHOWN])) + more


def _plural(n: int, one: str, many: str) -> str:
    return f"{n:,} {one if n == 1 else many}"


# The check of a directory


class _Check:
    def __init__(self, directory: Path, progress: Progress) -> None:
        self.directory = directory
        self.progress = progress
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.checked: dict[str, int] = {}
        self.names: list[str] = []
        self.scopes: dict[int, tuple[str, str]] = {}
        self.state: Any = None
        self.ledger = Ledger()
        self.places: list[str] = [CATALOG]
        self.done = self.total = 0

    def problem(self, file: str, what: str, remedy: str) -> None:
        self.problems.append(Problem(file, what, remedy))

    def count(self, name: str, n: int) -> None:
        self.checked[name] = self.checked.get(name, 0) + n

    def step(self, label: str) -> None:
        self.done += 1
        self.progress(min(self.done, self.total), self.total, label)

    def run(self, wal: Wal) -> None:
        path = self.directory / CATALOG
        found = sorted((self.directory / SEGMENTS).glob("*.arrow"))
        cold = sorted((self.directory / COLD).rglob("*.parquet"))
        self.total = len(found) + 3
        if wal.fault is not None:
            self.problem(
                f"{CATALOG}-wal",
                f"{wal.fault}: SQLite passes over it and all that was committed after it",
                "a repair takes the pages that are whole",
            )
        readable = wal.fault is None and self.catalog(path)
        if not readable:
            for file in found:
                self.step(file.name)
                self.alone(file)
        self.strays([*found, *cold], readable)
        for file in damaged_in(self.directory / DERIVED):
            self.problem(
                f"{DERIVED}/{file.name}", "is not as it was written", "a repair puts it aside, and it is made anew"
            )
        self.progress(self.total, self.total, "verified")

    # The catalog

    def catalog(self, path: Path) -> bool:
        """Checks the catalog and what it names; False if it cannot be read as a whole."""
        if not path.is_file() or not path.stat().st_size:
            gone = "is empty" if path.is_file() else "is missing"
            self.problem(
                CATALOG, gone, "a repair builds it anew from what the segments hold; put a copy back, if there is one"
            )
            return False
        mode = "mode=ro" if os.access(self.directory, os.W_OK) or _live_wal(path) else "mode=ro&immutable=1"
        try:
            with contextlib.closing(connect(path, mode)) as connection:
                connection.execute("BEGIN")
                before = len(self.problems)
                self.integrity(connection)
                if len(self.problems) > before:
                    return False
                self.read(connection)
        except (sqlite3.Error, OverflowError, UnicodeDecodeError) as fault:
            self.problem(CATALOG, f"cannot be read: {first_line(fault)}", "a repair takes from its pages what is whole")
            return False
        return True

    def integrity(self, connection: sqlite3.Connection) -> None:
        self.step("catalog")
        try:
            found = connection.execute("SELECT format FROM state").fetchone()
        except sqlite3.OperationalError as fault:
            if "no such" not in str(fault):
                raise
            found = None
        if found is not None and isinstance(found[0], int) and FORMAT < found[0] < 1000:
            raise FormatTooNew(
                f"{self.directory / CATALOG} is in format {found[0]} and this memcore reads up to format {FORMAT}; "
                "upgrade memcore-engine"
            )
        lines = [line for (line,) in connection.execute(f"PRAGMA integrity_check({_LINES})").fetchall()]
        if lines != ["ok"]:
            self.problem(CATALOG, f"is damaged: {_some(lines)}", "a repair takes from its pages what is whole")
            return
        told = sqlite3.connect(":memory:")
        with contextlib.closing(told):
            for statement in journal.statements():
                told.execute(statement)
            wanted, here = (
                dict(on.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL").fetchall())
                for on in (told, connection)
            )
        other = sorted(name for name, sql in wanted.items() if here.get(name) != sql)
        if other:
            self.problem(
                CATALOG, f"its schema is not that of a store: {_some(other)}", "a repair builds it anew from its rows"
            )
            return
        lost = connection.execute("PRAGMA foreign_key_check").fetchall()
        if lost:
            tables = sorted({f"{table} to {parent}" for table, _, parent, _ in lost})
            self.problem(
                CATALOG, f"{_plural(len(lost), 'row refers', 'rows refer')} to what is not there: {_some(tables)}",
                "a repair builds it anew from the rows that are whole",
            )  # fmt: skip
        self.count("free_pages", connection.execute("PRAGMA freelist_count").fetchone()[0])

    def read(self, connection: sqlite3.Connection) -> None:
        self.sums(connection)
        select = connection.execute
        self.state = journal.State(*select(journal.STATE).fetchone())
        codes = select("SELECT code, name FROM names ORDER BY code").fetchall()
        self.names = [name for _, name in codes]
        if [code for code, _ in codes] != list(range(len(codes))):
            self.problem(
                CATALOG, "the codes of names are not 0 and up", "a repair takes them from the segments' own columns"
            )
        self.scopes = {number: (tenant, project) for number, tenant, project in select("SELECT * FROM scopes")}
        self.count("scopes", len(self.scopes))
        self.journal_rows(connection)
        self.files(connection)
        self.other_files(connection)
        self.links(connection)
        self.ledger.close()
        self.marks(connection)
        self.versions()

    def sums(self, connection: sqlite3.Connection) -> None:
        """What SQLite has kept beside the columns that have no other witness."""
        for table, (column, made) in journal.SUMS.items():
            bad = connection.execute(f"SELECT count(*) FROM {table} WHERE {column} <> {made}").fetchone()[0]
            if bad:
                self.problem(
                    CATALOG, f"{_plural(bad, 'row', 'rows')} of {table} are not as they were written",
                    "a repair goes on without them, and derives what it can from the rows",
                )  # fmt: skip

    def journal_rows(self, connection: sqlite3.Connection) -> None:
        """Rows that no file has: each by its CRC."""
        self.step("journal")
        bad: list[int] = []
        left = 0
        cursor = connection.execute(f"SELECT {', '.join(journal.ROW)} FROM rows ORDER BY seq")
        while rows := cursor.fetchmany(_CHUNK):
            left += sum(row[0] <= self.state.sealed_upto for row in rows)
            good = [row for row in rows if self.sound(row)]
            mine = {row[0] for row in good}
            bad += [row[0] for row in rows if row[0] not in mine]
            wanted = [row for row in good if row[0] > self.state.sealed_upto]
            for number in {row[1] for row in wanted}:
                self.enter([row for row in wanted if row[1] == number], number)
            self.count("journal_rows", len(rows))
        if bad:
            self.problem(
                CATALOG, f"{_plural(len(bad), 'row', 'rows')} of the journal are not as they were written: seq "
                f"{_some(bad)}", "a repair goes on without them",
            )  # fmt: skip
        if left:
            self.notes.append(
                f"{_plural(left, 'row', 'rows')} of the journal lie in files by now; the next maintenance removes them"
            )

    def sound(self, row: tuple[Any, ...]) -> bool:
        """Whether a row of the journal is as it was written."""
        return row[1] in self.scopes and crc_of_row(row, self.scopes[row[1]]) == row[-1]

    def enter(self, rows: list[tuple[Any, ...]], number: int) -> None:
        width = self.state.dim
        fitting = [row for row in rows if row[_VECTOR] is None or len(row[_VECTOR]) == 4 * width]
        if len(fitting) < len(rows):
            seqs = [row[0] for row in rows if row not in fitting]
            self.problem(
                CATALOG, f"{_plural(len(seqs), 'vector has', 'vectors have')} not the store's {width} dimensions: seq "
                f"{_some(seqs)}", "a repair keeps the texts",
            )  # fmt: skip
        if fitting:
            columns = journal.columns_of_rows(fitting, width)
            self.ledger.add(number, 0, columns, columns["key"])

    # Files

    def files(self, connection: sqlite3.Connection) -> None:
        listed = connection.execute("SELECT id, file, rows, bytes, crc FROM segments ORDER BY id").fetchall()
        parts: dict[int, list[tuple[Any, ...]]] = {}
        for segment, *part in connection.execute(
            "SELECT segment, start, scope, rows, first_seq, last_seq, about FROM parts ORDER BY segment, start"
        ):
            parts.setdefault(segment, []).append(tuple(part))
        self.total = len(listed) + 3
        ends: dict[int, list[tuple[int, int]]] = {}
        for number, file, rows, size, crc in listed:
            self.step(file)
            mine = parts.get(number, [])
            self.file(file, rows, size, crc, mine)
            for _, scope, _, first, last, _ in mine:
                ends.setdefault(scope, []).append((first, last))
            if any(part[4] > self.state.sealed_upto for part in mine):
                self.problem(
                    CATALOG, f"{SEGMENTS}/{file} holds rows behind seq {self.state.sealed_upto}, up to which rows are "
                    "said to lie in files", "a repair takes it from the files",
                )  # fmt: skip
        for scope, ranges in ends.items():
            ranges.sort()
            if any(a[1] >= b[0] for a, b in itertools.pairwise(ranges)):
                self.problem(
                    CATALOG,
                    f"parts of scope {self.scopes.get(scope, scope)} overlap",
                    "a repair keeps the newest file's",
                )

    def other_files(self, connection: sqlite3.Connection) -> None:
        """Files of the cold tier, and those that are staged: by their size and CRC, which cover all that they hold."""
        told = "SELECT file, rows, bytes, crc FROM"
        cold = {file for (file,) in connection.execute("SELECT file FROM cold")}
        for table, name, remedy in (
            ("cold", "cold_files", "put a copy back; a repair puts it aside and goes on without it"),
            ("staged", "staged_files", "a repair gives up what is staged; call reembed again"),
        ):
            replaced = dict(connection.execute("SELECT file, replaces FROM staged")) if table == "staged" else {}
            for file, rows, size, crc in connection.execute(f"{told} {table} ORDER BY file"):
                folder = COLD if table == "cold" or replaced[file] in cold else SEGMENTS
                shown = f"{folder}/{file}"
                self.places.append(shown)
                self.count(name, 1)
                if table == "cold":
                    self.count("cold_rows", rows)
                try:
                    found = crc_of_file(self.directory / folder / file)
                except OSError as fault:
                    self.problem(shown, f"cannot be read ({fault.strerror}), and the catalog names it", remedy)
                    continue
                if found != (size, crc):
                    self.problem(shown, "is not as it was written, by its size and CRC-32", remedy)

    def links(self, connection: sqlite3.Connection) -> None:
        bad = []
        for seq, *link, crc in connection.execute("SELECT seq, src, relation, dst, attributes, crc FROM links"):
            self.count("links", 1)
            try:
                sound = journal.crc_of_link(*link) == crc
            except UnicodeEncodeError:
                sound = False
            if not sound:
                bad.append(seq)
        if bad:
            self.problem(
                CATALOG, f"{_plural(len(bad), 'link is', 'links are')} not as they were written: seq {_some(bad)}",
                "a repair goes on without them",
            )  # fmt: skip

    def file(self, name: str, rows: int, size: int, crc: int, parts: list[tuple[Any, ...]]) -> None:
        """One file, by what the catalog tells of it."""
        path, shown = self.directory / SEGMENTS / name, f"{SEGMENTS}/{name}"
        salvage = "a repair takes the rows that are whole into a new file"
        place = len(self.places)
        self.places.append(shown)
        self.count("files", 1)
        try:
            found = crc_of_file(path)
        except OSError as fault:
            self.problem(
                shown, f"cannot be read ({fault.strerror}), and the catalog names {_plural(rows, 'row', 'rows')} in it",
                "put it back; a repair goes on without it",
            )  # fmt: skip
            return
        if found != (size, crc):
            what = f"has {found[0]:,} bytes, not {size:,}" if found[0] != size else "its CRC-32 is not the catalog's"
            sound, total = sound_in(path)
            self.problem(shown, f"{what}; {sound:,} of {rows:,} rows are whole", salvage)
            self.count("file_rows", total)
            return
        try:
            file = SegmentFile(path)
            self.parts(file, shown, place, rows, parts)
        except (StoreCorrupt, pa.ArrowException, ValueError, KeyError, TypeError, IndexError) as fault:
            self.problem(shown, f"cannot be read as a segment: {first_line(fault)}", salvage)

    def parts(self, file: SegmentFile, shown: str, place: int, rows: int, parts: list[tuple[Any, ...]]) -> None:
        again = "a repair takes it from the file"
        width = width_of(file.schema)
        if width not in (0, self.state.dim) or not file.schema.equals(file_schema(width), check_metadata=True):
            self.problem(shown, "its columns are not those of a segment", "a repair takes the rows that are whole")
            return
        known = {part[0]: part for part in parts}
        start = 0
        for number, batch in enumerate(file.batches()):
            batch.validate(full=True)
            for scope, first, n in runs_of(batch):
                columns = columns_of_batch(file, number, first, n)
                part = known.pop(start, None)
                if part is None:
                    self.problem(CATALOG, f"does not tell of {n:,} rows of {shown} from row {start}", again)
                else:
                    self.part(shown, part, (scope, start, n), columns, about_of(columns, 0, number, first))
                sound = sound_rows(scope, columns, crcs_of(batch, first, n))
                if not sound.all():
                    seqs = columns["seq"][~sound].tolist()
                    self.problem(
                        shown, f"{_plural(len(seqs), 'row', 'rows')} are not as they were written: seq {_some(seqs)}",
                        "a repair goes on without them",
                    )  # fmt: skip
                wrong = disagreeing(batch, self.names, columns, first, n)
                if wrong:
                    self.problem(
                        shown, f"the columns {', '.join(wrong)} say something else than those memcore computes with",
                        "a repair writes them anew",
                    )  # fmt: skip
                if part is not None:
                    self.ledger.add(part[1], place, columns, columns["key"])
                start += n
                self.count("file_rows", n)
        if start != rows:
            self.problem(CATALOG, f"tells of {rows:,} rows of {shown}, which has {start:,}", again)
        if known:
            self.problem(CATALOG, f"tells of parts of {shown} that it doesn't have", again)

    def part(
        self, shown: str, part: tuple[Any, ...], found: tuple[tuple[str, str], int, int], c: Columns, about: str
    ) -> None:
        scope, start, n = found
        _, number, rows, first_seq, last_seq, told = part
        seqs = c["seq"]
        self.count("parts", 1)
        wrong = []
        if self.scopes.get(number) != scope:
            wrong.append("whose rows they are")
        if rows != n:
            wrong.append("how many rows they are")
        if (first_seq, last_seq) != (int(seqs[0]), int(seqs[-1])):
            wrong.append("their seqs")
        if _without_size(told) != _without_size(about):
            wrong.append("what need not be read")
        if (np.diff(seqs) <= 0).any():
            self.problem(shown, f"its rows from {start} are not in the order of their seqs", "a repair writes it anew")
        if wrong:
            self.problem(
                CATALOG,
                f"tells wrongly of {shown}, rows from {start}: {', '.join(wrong)}",
                "a repair takes it from the file",
            )

    def alone(self, path: Path) -> None:
        """A file without a catalog: what its rows tell of themselves."""
        shown = f"{SEGMENTS}/{path.name}"
        self.count("files", 1)
        sound, total = sound_in(path)
        self.count("file_rows", total)
        if sound < total or not total:
            self.problem(
                shown, f"{sound:,} of {total:,} rows that can be found are whole",
                "a repair takes the rows that are whole into a new file",
            )  # fmt: skip

    # Marks and versions

    def marks(self, connection: sqlite3.Connection) -> None:
        stray, odd, ahead = 0, 0, 0
        cursor = connection.execute(f"SELECT seq, {', '.join(MARKS)}, changed, scope FROM marks ORDER BY seq")
        while rows := cursor.fetchmany(1 << 16):
            cells = np.array(rows, dtype=np.int64)
            there = self.ledger.mark(cells[:, : 1 + len(MARKS)])
            at, _ = self.ledger.find(cells[:, 0])
            stray += int((~there).sum())
            if len(self.ledger):
                odd += int((there & (self.ledger.columns["scope"][at] != cells[:, -1])).sum())
            latest = cells[:, [1, 3]].max(axis=1)
            ahead += int(((latest > cells[:, -2]) | (cells[:, -2] > self.state.seq)).sum())
            self.count("marks", len(rows))
        if odd:
            self.problem(
                CATALOG, f"{_plural(odd, 'mark names', 'marks name')} another scope than the row's",
                "a repair takes it from the rows",
            )  # fmt: skip
        if ahead:
            self.problem(
                CATALOG, f"{_plural(ahead, 'mark is', 'marks are')} of a later commit than their own, or than the last",
                "a repair counts on from the latest",
            )  # fmt: skip
        _, held = self.ledger.find(self.seqs_of(connection, "counters", "counters"))
        lost = int((~held).sum())
        if stray or lost:
            self.notes.append(
                f"{_plural(stray, 'mark', 'marks')}, {_plural(lost, 'counter', 'counters')} are of rows that are gone"
            )
        told = self.seqs_of(connection, "forgettings", "forgettings")
        c = self.ledger.columns
        untold = (c["forgotten_seq"] != 0) & ~np.isin(c["forgotten_seq"], told)
        if untold.any():
            self.problem(
                CATALOG, f"{_plural(int(untold.sum()), 'row is', 'rows are')} forgotten by a commit that is not told",
                "a repair tells of it, as of a commit of now",
            )  # fmt: skip
        self.count("forgotten", int((c["forgotten_seq"] != 0).sum()))
        last = max(
            (int(c[name].max()) for name in ("seq", "superseded_seq", "forgotten_seq") if len(c["seq"])), default=0
        )
        last = max(last, int(told.max()) if len(told) else 0)
        if last > self.state.seq:
            self.problem(
                CATALOG, f"rows or marks are of commit {last}, and the last one is said to be {self.state.seq}",
                "a repair counts on from the latest",
            )  # fmt: skip

    def seqs_of(self, connection: sqlite3.Connection, table: str, name: str) -> I64:
        found = connection.execute(f"SELECT seq FROM {table}").fetchall()
        self.count(name, len(found))
        return np.array(found, dtype=np.int64).reshape(-1)

    def versions(self) -> None:
        c = self.ledger.columns
        self.checked["rows"] = len(self.ledger)
        for what, rows in self.ledger.faults():
            if not len(rows):
                continue
            for place in np.unique(c["place"][rows]).tolist():
                mine = rows[c["place"][rows] == place]
                self.problem(
                    self.places[place], f"{len(mine):,} {what}, of {_some(self.ledger.names(mine))}",
                    _LEDGER_REMEDY.get(what, _FROM_VERSIONS),
                )  # fmt: skip
        for name in ("session", "role", "source"):
            bad = np.flatnonzero((c[name] < 0) | (c[name] >= len(self.names)))
            if len(bad):
                self.problem(
                    CATALOG, f"{_plural(len(bad), 'row has', 'rows have')} a {name} that has no name",
                    "a repair takes the names from the segments' own columns",
                )  # fmt: skip

    # What else lies there

    def strays(self, found: Sequence[Path], readable: bool) -> None:
        """What the catalog does not name; `found` are the files that were there before it was read."""
        named = set(self.places)
        for path in found:
            name = path.relative_to(self.directory).as_posix()
            # whether the catalog names it cannot be known, or it is told here
            if not readable or (name not in named and is_own(path.name) and self.unknown(name)):
                named.add(name)
        named |= {f"{CATALOG}-wal", f"{CATALOG}-shm", LOCK, CATALOG}
        left, others = [], []
        for path in sorted(self.directory.rglob("*")):
            name = path.relative_to(self.directory).as_posix()
            top = name.partition("/")[0]
            if path.is_dir() or name in named or top in (ASIDE, DERIVED):
                continue
            if (top in (SEGMENTS, COLD) and is_own(path.name)) or name.startswith(f".{CATALOG}."):
                left.append(name)
            else:
                others.append(name)
        if left:
            self.notes.append(
                f"nothing names {_some(left)}: a crash has left them, and the next maintenance removes them"
            )
        if others:
            self.notes.append(f"not memcore's: {_some(others)}")
        for aside in sorted((self.directory / ASIDE).glob("*")):
            if not (aside / REPORT).exists():
                self.problem(
                    f"{ASIDE}/{aside.name}", "a repair was interrupted, and files of the store lie there",
                    "a repair puts them back, and begins anew",
                )  # fmt: skip
            else:
                self.notes.append(
                    f"{ASIDE}/{aside.name} holds what a repair put aside, forgotten texts perhaps: delete it when it "
                    "is not needed any more"
                )

    def unknown(self, name: str) -> bool:
        """Whether a file that the catalog does not name has rows that it cannot know."""
        rows = unknown_in(self.directory / name, self.state.seq, self.ledger.known)
        if rows:
            self.problem(
                name, f"holds {_plural(rows, 'row', 'rows')} later than the catalog: an older catalog was put back?",
                "put the one back that was written with it; a repair puts it aside, and goes on without these rows",
            )  # fmt: skip
        return bool(rows)


def connect(path: Path, mode: str = "mode=ro") -> sqlite3.Connection:
    """A connection that reads, texts too that are not UTF-8 any more."""
    made = journal.connect(path, "full", mode, _PATIENCE)
    made.text_factory = lambda text: text.decode(errors="surrogateescape")
    return made


def _live_wal(path: Path) -> bool:
    wal = path.with_name(f"{path.name}-wal")
    return wal.exists() and wal.stat().st_size > 0


_VECTOR = journal.ROW.index("vector")


def crc_of_row(row: Sequence[Any], scope: tuple[str, str]) -> int | None:
    """The CRC that a row of the journal should have; None if it cannot be one."""
    n = _VECTOR - len(TEXTS)
    try:
        return crc_of(crc_of_scope(scope), (row[0], *row[2:n]), row[_VECTOR], row[n:_VECTOR])
    except (struct.error, TypeError, AttributeError, OverflowError, ValueError):
        return None


def _without_size(about: str) -> Any:
    """What the catalog tells of a part but for `text_bytes`, which is of the segments that it was written from."""
    told = json.loads(about)
    size = told.pop("text_bytes", None)
    return told if isinstance(size, int) and size >= 0 else None


def check_readable(directory: Path) -> None:
    """Refuses a store of which something may not be read: that is no damage, and not to be repaired.

    Nothing is opened, since closing the catalog would let go of SQLite's locks.
    """
    folders = (directory, directory / SEGMENTS, directory / COLD)
    for place in (*folders, directory / CATALOG, directory / f"{CATALOG}-wal"):
        _check_readable(place)
    for folder in folders[1:]:
        for place in folder.rglob("*"):
            _check_readable(place)


def _check_readable(place: Path) -> None:
    needed = os.R_OK | os.X_OK if os.path.isdir(place) else os.R_OK  # noqa: PTH112  # Path.is_dir may raise
    if not os.access(place, needed) and os.path.exists(place):  # noqa: PTH110
        raise unreadable(place)


def wal_of(directory: Path, *, ours: bool) -> Wal:
    """The WAL of a store; `ours`: this process has it open, and would let go of SQLite's locks by reading more."""
    return read_wal(directory / f"{CATALOG}-wal", None if ours else directory / f"{CATALOG}-shm")


def check(directory: Path, wal: Wal, progress: Progress = quiet) -> VerifyReport:
    """Checks a store's directory, of which `wal` is the WAL. With the maintenance lock, if it can be had."""
    made = _Check(directory, progress)
    made.run(wal)
    return VerifyReport(str(directory), made.problems, made.checked, made.notes)


# A store in RAM


def check_ram(catalog: Catalog) -> VerifyReport:
    """The same of a store in RAM, as far as it can be: ids, keys, versions, marks and the order of rows."""
    problems: list[Problem] = []
    ledger, checked = Ledger(), {"rows": 0, "scopes": 0, "forgotten": 0}
    held: list[tuple[str, set[int]]] = []

    def tell(scope: tuple[str, str], what: str) -> None:
        problems.append(Problem(f"scope {scope}", what, "export what is here, and import it into another store"))

    with catalog.lock:
        names, last = len(catalog.names), catalog.seq
        scopes = sorted(catalog.partitions)
        for number, scope in enumerate(scopes):
            partition = catalog.partitions[scope]
            checked["scopes"] += 1
            before = 0
            for segment in partition.segments:
                columns = segment.batch(np.arange(segment.n))
                seqs = columns["seq"]
                if not len(seqs):
                    continue
                if seqs[0] <= before or (np.diff(seqs) <= 0).any() or seqs[-1] > last:
                    tell(scope, f"rows up to seq {int(seqs[-1])} are not in the order of their seqs")
                before = int(seqs[-1])
                if segment.forgotten != np.count_nonzero(columns["forgotten_seq"]):
                    tell(scope, f"{segment.forgotten} rows are counted as forgotten, and others are")
                ledger.add(number, number, columns, columns["key"])
            working = {seq for seqs in partition.held.values() for seq in seqs}
            held.append((str(scope), working))
    ledger.close()
    c = ledger.columns
    checked["rows"], checked["forgotten"] = len(ledger), int((c["forgotten_seq"] != 0).sum())
    for what, rows in ledger.faults():
        for number in np.unique(c["scope"][rows]).tolist():
            mine = rows[c["scope"][rows] == number]
            tell(scopes[number], f"{len(mine):,} {what}, of {_some(ledger.names(mine))}")
    for name in ("session", "role", "source"):
        bad = np.flatnonzero((c[name] < 0) | (c[name] >= names))
        for number in np.unique(c["scope"][bad]).tolist():
            tell(scopes[number], f"rows have a {name} that has no name")
    stands = (c["kind"] == WORKING) & (c["superseded_seq"] == 0) & (c["forgotten_seq"] == 0)
    for number, (_, working) in enumerate(held):
        if working != set(c["seq"][stands & (c["scope"] == number)].tolist()):
            tell(scopes[number], "the working memories are not the rows that stand")
    return VerifyReport(None, problems, checked)

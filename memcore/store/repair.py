"""What of a damaged store can go on? Every row that is as it was written, in a catalog that is built anew around them.

Rows tell by their CRC that they are whole, and whose they are; so the rows in segment files and on the pages of the
catalog are enough to build a store from. What cannot be kept is put aside and nothing is deleted: `aside/<name>/` has
the damaged files as they were, and what was found missing is told. Until the new catalog takes the old one's name the
store is as it was, and a repair that is interrupted before begins anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import sqlite3
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from memcore import ids
from memcore.clock import system, to_micros
from memcore.errors import StoreCorrupt, StoreLocked
from memcore.store import cold, files, journal
from memcore.store.codes import DERIVED
from memcore.store.derived import damaged_in
from memcore.store.files import SEGMENTS, SegmentFile, Share, about_of, crc_of_file, file_schema, is_own, sync_folder
from memcore.store.journal import CATALOG, FORMAT
from memcore.store.pages import Found, Row, indexed, read_wal, tables
from memcore.store.salvage import FAULTS, Rows, columns_of_batch, disagreeing, rows_in, runs_of, unknown_in, width_of
from memcore.store.segment import MARKS, TEXTS, Segment
from memcore.store.verify import (
    ASIDE,
    REPORT,
    Ledger,
    Progress,
    RepairReport,
    VerifyReport,
    check,
    connect,
    crc_of_row,
    quiet,
    wal_of,
)

_NEW = "new"  # the folder in which the new catalog is made
_SHARED = (0x40000002, 510)  # the bytes of a database that every SQLite connection to it holds locked for reading
Name = tuple[str, str]
I64 = npt.NDArray[np.int64]


def repair(directory: Path, found: VerifyReport, progress: Progress = quiet) -> VerifyReport:
    """Mends a store's directory, in which `found` has problems. Nobody has it open; the maintenance lock is held."""
    for aside in sorted((directory / ASIDE).glob("*")):
        if not (aside / REPORT).exists():
            _finish(directory, aside)
    before = _looks(directory)
    made = _Repair(directory, progress)
    made.read()
    with closed_elsewhere(directory):
        if _looks(directory) != before:
            raise StoreLocked(
                f"the store {directory} was written into while it was read for the repair; nothing was changed: close "
                "it in the other process, and try again"
            )
        told = made.write()
    after = check(directory, wal_of(directory, ours=False), progress)
    return dataclasses.replace(after, found=found.problems, repair=told)


def _looks(directory: Path) -> list[tuple[int, int]]:
    files_ = [directory / f"{CATALOG}{suffix}" for suffix in ("", "-wal")]
    return [(s.st_size, s.st_mtime_ns) if (s := _stat(path)) and s.st_size else (0, 0) for path in files_]


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def closed_elsewhere(directory: Path) -> Iterator[None]:
    """While no process has the catalog open, and none can open it; by a lock that every connection conflicts with."""
    path = directory / CATALOG
    if not path.is_file():
        yield
        return
    handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        start, length = _SHARED
        wanted = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
        try:
            fcntl.fcntl(handle, fcntl.F_OFD_SETLK, wanted)
        except (BlockingIOError, PermissionError):
            raise StoreLocked(
                f"the store {directory} is open in another process, or was opened by this one; nothing was changed: "
                "close it there, and repair it again"
            ) from None
        yield
    finally:
        os.close(handle)


def _finish(directory: Path, aside: Path) -> None:
    """Ends an interrupted repair: unless its catalog has taken its place already, all is put back."""
    if (aside / _NEW).exists():
        for path in sorted(aside.rglob("*")):
            place = path.relative_to(aside)
            if path.is_file() and place.parts[0] != _NEW:
                path.replace(directory / place)
        shutil.rmtree(aside)  # what it was about to write, and no more
    else:
        _write_report(aside, {"notes": ["it was interrupted after the new catalog had taken its place"]})


# The repair


@dataclass(slots=True)
class _File:
    """A file that the new catalog names."""

    path: Path
    rows: int
    bytes: int
    crc: int
    parts: list[tuple[Any, ...]]  # (start, scope's number, rows, first seq, last seq, about)


class _Repair:
    def __init__(self, directory: Path, progress: Progress) -> None:
        self.directory = directory
        self.progress = progress
        self.aside = directory / ASIDE / os.urandom(8).hex()
        self.kept: Counter[str] = Counter()
        self.rebuilt: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.lost_ids: dict[str, None] = {}
        self.notes: list[str] = []
        self.bad: list[Path] = []  # files that are put aside
        self.unnamed: list[Path] = []  # files that the catalog does not name, though it is whole
        self.numbers: dict[Name, int] = {}
        self.words: dict[int, Counter[str]] = {}
        self.names: list[str] = []
        self.named: list[_File] = []
        self.salvaged: list[list[Rows]] = []  # of each damaged file
        self.ledger = Ledger()
        self.dim = 0
        self.state: Row | None = None
        self.catalog: dict[str, Found] = {}
        self.others: dict[str, list[Row]] = {}
        self.indexed: dict[str, set[int] | None] = {}
        self.journal: list[Row] = []
        self.fell_back: list[str] = []
        self.at_risk: list[str] = []
        self.marks: dict[int, tuple[int, ...]] = {}

    # Reading

    def read(self) -> None:
        path = self.directory / CATALOG
        self.sound = self._sound(path)
        first = self._found({name: self._fits(name) for name in ("state", "scopes", "segments")})
        states = first["state"].rows
        self.state = max(states, key=lambda row: (row[2], row[3], row[4]), default=None)
        for number, tenant, project in first["scopes"].rows:
            self.numbers.setdefault((tenant, project), number)
        self._files(first["segments"])
        names = [*_KNOWN, *(name for name in journal.columns_of_tables() if name not in _KNOWN)]
        self.catalog = self._found({name: self._fits(name) for name in names})
        if self.sound:
            self._read_others()
        self.indexed = indexed(self.directory / CATALOG, ("rows_of_scope", "marks_of_scope"))
        self._names()
        self._rows()
        self.ledger.close()
        self._marks()
        self._unknown_rows()
        self._derive()
        self.bad += damaged_in(self.directory / DERIVED)
        if not len(self.ledger) and self._had_rows() and not any(map(_is_cold_file, self._cold_files())):
            raise StoreCorrupt(
                f"no row of the store {self.directory} is whole, in no file of it; nothing was changed: restore it "
                "from an export, or put back files that were lost"
            )

    def _sound(self, path: Path) -> bool:
        """Whether SQLite can read the catalog as a whole."""
        if not path.is_file() or not path.stat().st_size or read_wal(path.with_name(f"{CATALOG}-wal")).fault:
            return False
        broken = (sqlite3.Error, UnicodeDecodeError)  # a message of SQLite's with a damaged name in it is not UTF-8
        with contextlib.suppress(*broken), contextlib.closing(connect(path)) as connection:
            here = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
            lines: list[tuple[str]] = connection.execute("PRAGMA integrity_check(1)").fetchall()
            return lines == [("ok",)] and here >= set(journal.columns_of_tables())
        return False

    def _found(self, fits: Mapping[str, Callable[[Row], bool]]) -> dict[str, Found]:
        """The rows of some tables of the catalog that are whole, from SQLite or from the pages."""
        path = self.directory / CATALOG
        if not self.sound:
            # a row number is stored beside its record, in which its column is empty
            found = tables(path, {name: _paged(fit) for name, fit in fits.items()})
            for table in found.values():
                table.rows, table.bad = ([(row[0], *row[2:]) for row in rows] for rows in (table.rows, table.bad))
            return found
        made: dict[str, Found] = {}
        with contextlib.closing(connect(path)) as connection:
            for name, fit in fits.items():
                table = made[name] = Found(known=True)
                columns = ", ".join(journal.columns_of_tables()[name])
                for row in connection.execute(f"SELECT {columns} FROM {name}"):
                    (table.rows if fit(row) else table.bad).append(row)
        return made

    def _read_others(self) -> None:
        """Tables without row numbers, which pages alone would not tell: as SQLite reads them. Parts are told by the
        files, and what is staged is given up.
        """
        listed = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND wr AND name NOT IN ('parts', 'staged')"
        with contextlib.closing(connect(self.directory / CATALOG)) as connection:
            for (name,) in connection.execute(listed).fetchall():
                rows = connection.execute(f"SELECT * FROM {name}").fetchall()
                if rows:
                    self.others[name] = rows

    def _fits(self, name: str) -> Callable[[Row], bool]:
        """Tells whether a row is one of a table, as it was written."""
        width = len(journal.columns_of_tables()[name])
        own = _OWN_FITS.get(name)
        if name == "rows":
            own = self._is_row
        summed = _summed(name) if name in journal.SUMS else None

        def fit(row: Row) -> bool:
            if len(row) != width or (own is not None and not own(row)):
                return False
            return summed is None or summed(row)

        return fit

    def _is_row(self, row: Row) -> bool:
        return self._scope_of(row) is not None

    def _scope_of(self, row: Row) -> Name | None:
        """Whose a row of the journal is: the scope that its number names, or another that its CRC tells."""
        likely = sorted(self.numbers, key=lambda name: self.numbers[name] != row[1])
        return next((name for name in likely if crc_of_row(row, name) == row[-1]), None)

    # Files

    def _files(self, listed: Found) -> None:
        """Which files are whole, and what is left of the others. If not all files are known to be named, the newest
        come first: what is in an older one that has rows of theirs was dropped on purpose when they were written.
        """
        told = {row[1]: row for row in listed.rows}
        folder = self.directory / SEGMENTS
        here = sorted(folder.glob("*.arrow"), key=lambda path: (-path.stat().st_mtime_ns, path.name))
        for file in told:
            if not (folder / file).is_file():
                self.lost["files"] += 1
                self.lost["rows"] += told[file][2]
                self.notes.append(f"{SEGMENTS}/{file} is missing, with {told[file][2]:,} rows whose ids are not known")
        self.total, seen = len(here) + 3, np.empty(0, dtype=np.int64)
        for done, path in enumerate(here):
            self.progress(done, self.total, path.name)
            if listed.complete and path.name not in told:
                if is_own(path.name):  # what a crash has left, as a rule
                    self.unnamed.append(path)
                    self.bad.append(path)
                continue
            found, whole = self._file(path, told.get(path.name))
            if not found and not is_own(path.name):
                continue  # somebody else's
            seqs = np.concatenate([np.empty(0, np.int64), *(rows.columns["seq"] for rows in found)])
            again = np.isin(seqs, seen)
            if again.any():
                whole = False
                if not listed.complete:
                    self.notes.append(
                        f"{SEGMENTS}/{path.name} has {int(again.sum()):,} rows that a newer file has too; its other "
                        f"{int((~again).sum()):,} were forgotten and dropped when that was written, and are left out"
                    )
                    found = []
                else:
                    found = [_without(rows, seen) for rows in found]
            seen = np.union1d(seen, seqs)
            self._take(path, found, whole, told.get(path.name))

    def _file(self, path: Path, told: Row | None) -> tuple[list[Rows], bool]:
        """What is in a file, and whether it can stay as it is."""
        found = list(rows_in(path))
        size, crc = crc_of_file(path)
        whole = bool(found) and (told is None or (size, crc) == (told[3], told[4]))
        for rows in found:
            whole &= len(rows.crcs) == rows.total
            for code, text in rows.words:
                self.words.setdefault(code, Counter())[text] += len(rows.crcs)
            if rows.columns["vector"].shape[1]:
                self.dim = max(self.dim, rows.columns["vector"].shape[1])
        return found, whole and self._consistent(path)

    def _consistent(self, path: Path) -> bool:
        """Whether a file reads as Arrow, and its columns for readers say what those of memcore do."""
        try:
            file = SegmentFile(path)
            if not file.schema.equals(file_schema(width_of(file.schema)), check_metadata=True):
                return False
            words = {code: found.most_common(1)[0][0] for code, found in self.words.items()}
            names = [words.get(code, "") for code in range(max(words, default=-1) + 1)]
            for number, batch in enumerate(file.batches()):
                batch.validate(full=True)
                for _, first, n in runs_of(batch):
                    columns = columns_of_batch(file, number, first, n)
                    if disagreeing(batch, names, columns, first, n) or (np.diff(columns["seq"]) <= 0).any():
                        return False
        except FAULTS:
            return False
        return True

    def _take(self, path: Path, found: list[Rows], whole: bool, told: Row | None) -> None:
        """Enters a file's rows; those of a damaged one will be written into another."""
        rows = sum(len(part.crcs) for part in found)
        if whole:
            parts, start = [], 0
            file = SegmentFile(path)
            for number, batch in enumerate(file.batches()):
                for scope, first, n in runs_of(batch):
                    columns = columns_of_batch(file, number, first, n)
                    mine = self._number(scope)
                    seqs = columns["seq"]
                    about = about_of(columns, sum(_characters(columns[name]) for name in TEXTS), number, first)
                    parts.append((start, mine, n, int(seqs[0]), int(seqs[-1]), about))
                    self.ledger.add(mine, 0, columns, columns["key"])
                    start += n
            size, crc = crc_of_file(path)
            self.named.append(_File(path, start, size, crc, parts))
            self.kept["files"] += 1
            self.kept["rows"] += start
            return
        self.bad.append(path)
        expected = told[2] if told is not None else sum(part.total for part in found)
        if expected > rows:
            self.lost["rows"] += expected - rows
        for part in found:
            self.lost_ids.update(dict.fromkeys(part.lost))
        found = [part for part in found if len(part.crcs)]
        if found:
            found.sort(key=lambda part: (part.scope, int(part.columns["seq"][0])))
            self.salvaged.append(found)
            self.rebuilt["files"] += 1
            self.rebuilt["rows"] += rows
            for part in found:
                self.ledger.add(self._number(part.scope), 0, part.columns, part.columns["key"])
            self.notes.append(
                f"{rows:,} rows of {SEGMENTS}/{path.name} were written into a new file; whether they were replaced or "
                "forgotten is as it stands there, which no checksum covers"
            )

    def _number(self, scope: Name) -> int:
        return self.numbers.setdefault(scope, max(self.numbers.values(), default=0) + 1)

    # The catalog

    def _names(self) -> None:
        """What the codes of sessions, roles and sources mean: by the table, or else by the segments' own columns."""
        told: dict[int, str] = dict(reversed(self.catalog["names"].rows))
        used = {row[at] for row in self.catalog["rows"].rows for at in _CODES} | self.words.keys()
        made: dict[int, str] = {}
        taken: set[str] = set()
        for code in [*sorted(used), *(code for code in sorted(told) if code not in used)]:
            likely = [told[code]] if code in told else []
            likely += [text for text, _ in self.words.get(code, Counter()).most_common()]
            name = next((text for text in likely if text not in taken), None)
            if name is None and code not in used:
                continue
            if name is None:
                name = _free_name(f"unknown-{code}", taken)
                self.lost["names"] += 1
                self.notes.append(f"the name that was kept as {code} is lost: it is {name!r} now")
            self.kept["names"] += name == told.get(code)
            self.rebuilt["names"] += name != told.get(code)
            made[code] = name
            taken.add(name)
        for code in range(max(made, default=-1) + 1):
            self.names.append(made.get(code) or _free_name(f"unused-{code}", taken))
            taken.add(self.names[-1])

    def _rows(self) -> None:
        """The rows that no file has."""
        found = self.catalog["rows"]
        self.progress(self.total - 2, self.total, "journal")
        upto = 0 if self.state is None else self.state[5]
        upto = max([upto, *(part[4] for file in self.named for part in file.parts), *self._last_salvaged()])
        self.upto = upto
        rows = {row[0]: row for row in reversed(found.rows) if row[0] > upto}
        self.dim = self.dim or (self.state[6] if self.state is not None else 0)
        widths = Counter(len(row[_VECTOR]) // 4 for row in rows.values() if row[_VECTOR] is not None)
        self.dim = self.dim or (widths.most_common(1)[0][0] if widths else 0)
        by_scope: dict[Name, list[Row]] = {}
        for row in (rows[seq] for seq in sorted(rows)):
            vector = row[_VECTOR]
            if vector is not None and len(vector) != 4 * self.dim:
                self.lost["rows"] += 1
                self.lost_ids[ids.to_text(*_halves(row[2]))] = None
                continue
            scope = self._scope_of(row)
            assert scope is not None  # or it would not have fitted
            by_scope.setdefault(scope, []).append(row)
        for scope, mine in by_scope.items():
            number = self._number(scope)
            mine = [(row[0], number, *row[2:]) for row in mine]
            self.journal += mine
            columns = journal.columns_of_rows(mine, self.dim)
            self.ledger.add(number, 0, columns, columns["key"])
        self.kept["rows"] += len(self.journal)
        bad = {row[0]: row for row in found.bad if row[0] > upto and row[0] not in rows}
        for row in bad.values():
            if len(row) > 2 and isinstance(row[2], bytes) and len(row[2]) == 16:
                self.lost_ids[ids.to_text(*_halves(row[2]))] = None
        told = self.indexed["rows_of_scope"]
        if told is not None:
            self.lost["rows"] += len({seq for seq in told if seq > upto} - rows.keys())
            return
        self.lost["rows"] += len(bad)
        if found.gaps or not found.known:
            last = 0 if self.state is None else self.state[2]
            for name in ("marks", "counters"):  # what was done to a row tells that it was there
                last = max([last, *(row[0] for row in self.catalog[name].rows)])
            most = sum(_between(gap, upto, last) for gap in found.gaps)
            held = sum(any(after < seq <= to for after, to in found.gaps) for seq in {*rows, *bad} if seq <= last)
            if most > held:
                self.lost["rows_at_most"] = most - held
            about = f"nothing that is left tells of rows behind seq {upto}, up to which they lie in files"
            if last > upto:
                about = f"of seq {upto + 1} to {last} it is at most {most - held:,}, and there may have been later ones"
            self.notes.append(f"how many rows of the journal are lost is not known: {about}")

    def _last_salvaged(self) -> list[int]:
        return [int(part.columns["seq"][-1]) for found in self.salvaged for part in found]

    def _had_rows(self) -> bool:
        if self.state is None or self.lost["rows"] or self.lost["rows_at_most"]:
            return True
        return any(not found.complete for name, found in self.catalog.items() if name in ("rows", "segments"))

    def _marks(self) -> None:
        """What was replaced and what was forgotten: as the catalog tells, and as the versions of a memory tell."""
        found = self.catalog["marks"]
        latest: dict[int, Row] = {}
        for row in found.rows:
            if row[0] not in latest or row[6] > latest[row[0]][6]:
                latest[row[0]] = row
        seqs = np.array(sorted(latest), dtype=np.int64)
        if len(seqs):
            marks = np.array([(row[0], *row[2:6]) for row in (latest[seq] for seq in seqs.tolist())], dtype=np.int64)
            there = self.ledger.mark(marks)
            for seq in seqs[there].tolist():
                self.marks[seq] = latest[seq][2:7]
        self.kept["marks"] = len(self.marks)
        self._risk(found)
        c = self.ledger.columns
        last = [0 if self.state is None else self.state[2], *(row[6] for row in latest.values())]
        last += [int(c[name].max()) for name in ("seq", "superseded_seq", "forgotten_seq") if len(c["seq"])]
        for name, table in self.catalog.items():
            for at, column in enumerate(journal.columns_of_tables()[name]):
                if column in _SEQS and name not in ("state", "counters"):
                    last += [max((row[at] for row in table.rows), default=0)]
        self.seq = max(last)

    def _unknown_rows(self) -> None:
        """Puts files aside that the catalog does not name and that have rows which it cannot know."""
        if self.catalog["cold"].complete:
            named = {row[1] for row in self.catalog["cold"].rows}
            root = self.directory / cold.COLD
            self.unnamed += [path for path in self._cold_files() if path.relative_to(root).as_posix() not in named]
        for path in self.unnamed:
            rows = unknown_in(path, self.seq, self.ledger.known)
            if not rows:
                continue
            if path not in self.bad:
                self.bad.append(path)
            self.lost["later_rows"] += rows
            name = path.relative_to(self.directory).as_posix()
            self.notes.append(
                f"{name} holds {rows:,} rows later than the catalog: if an older catalog was put back, they are in no "
                f"other file than that in {ASIDE}/{self.aside.name}"
            )

    def _risk(self, found: Found) -> None:
        """Memories whose marks may have been on pages that are lost."""
        c = self.ledger.columns
        marked = np.isin(c["seq"], np.fromiter(self.marks, np.int64, len(self.marks)))
        risk = np.zeros(len(c["seq"]), dtype=np.bool_)
        told = self.indexed["marks_of_scope"]
        if told is not None:
            risk |= np.isin(c["seq"], np.fromiter(told, np.int64, len(told)))
        else:
            for after, upto in [*found.gaps, *((row[0] - 1, row[0]) for row in found.bad)]:
                risk |= (c["seq"] > after) & (c["seq"] <= upto)
        order, more = self.ledger.chains()
        last = np.zeros(len(risk), dtype=np.bool_)
        last[order[~more]] = True  # of the others it follows that they were replaced
        risk &= ~marked & last
        self.at_risk = self.ledger.names(np.flatnonzero(risk))
        if self.at_risk:
            self.notes.append(
                f"marks are lost: {len(self.at_risk):,} memories may be here although they were forgotten"
            )

    def _derive(self) -> None:
        """Marks that follow from the versions that are here."""
        c = self.ledger.columns
        changed: dict[int, tuple[int, int, int, int]] = {}

        def put(row: int, replaced: int, at: int, lapsed: int) -> None:
            for name, value in zip(MARKS, (replaced, at, int(c["forgotten_seq"][row]), lapsed), strict=True):
                c[name][row] = value
            changed[int(c["seq"][row])] = (replaced, at, int(c["forgotten_seq"][row]), lapsed)

        order, more = self.ledger.chains()
        back: list[int] = []
        for i, (row, has_next) in enumerate(zip(order.tolist(), more.tolist(), strict=True)):
            replaced, at, lapsed = (int(c[name][row]) for name in ("superseded_seq", "superseded_at", "lapsed"))
            following = order[i + 1] if has_next else row
            begins = int(c["ingested_at"][following])
            if has_next and (not replaced or lapsed or at > begins):
                put(row, replaced or int(c["seq"][following]), min(at, begins) if replaced else begins, 0)
            elif not has_next and replaced and not lapsed:
                back.append(row)
                put(row, 0, 0, 0)
            elif lapsed and not replaced:
                put(row, 0, 0, 0)
        for row, rival in self.ledger.rivals():
            put(row, int(c["seq"][rival]), int(c["ingested_at"][rival]), 1)
        self.fell_back = self.ledger.names(np.array(back, dtype=np.int64))
        if changed:
            self.seq += 1
            self.rebuilt["marks"] = len(changed)
            self.marks.update((seq, (*marks, self.seq)) for seq, marks in changed.items())
        if self.fell_back:
            self.notes.append(
                f"of {len(self.fell_back):,} memories a later version is lost, and an earlier one stands again"
            )

    # Writing

    def write(self) -> RepairReport:
        (self.aside / _NEW).mkdir(parents=True)
        for found in self.salvaged:
            self.named.append(self._rewritten(found))
        if self.state is None and len(self.ledger):
            self.notes.append(
                "the embedder's fingerprint is lost: open the store with embedder=None, or embed all texts anew with "
                "reembed"
            )
        new = self.aside / _NEW / CATALOG
        journal.create(new)
        with contextlib.closing(journal.connect(new, "full", "mode=rw")) as connection:
            connection.execute("BEGIN IMMEDIATE")
            self._fill(connection)
            connection.execute("COMMIT")
        self.progress(self.total - 1, self.total, "swapping")
        self._swap(new)
        report = RepairReport(
            f"{ASIDE}/{self.aside.name}",
            dict(+self.kept), dict(+self.rebuilt), dict(+self.lost), list(self.lost_ids), self.at_risk, self.fell_back,
            sorted(path.relative_to(self.aside).as_posix() for path in self.aside.rglob("*") if path.is_file()),
            self.notes, self._unknown(),
        )  # fmt: skip
        _write_report(self.aside, dataclasses.asdict(report))
        return report

    def _unknown(self) -> list[str]:
        """Tables that have lost rows, nobody knows how many. Not those that were built anew from what else there is,
        nor those whose lost rows are told by an index or by the files that they named.
        """
        told = {"scopes", "names", "segments", "cold", "state"}
        told |= {name for name in ("rows", "marks") if self.indexed[f"{name}_of_scope"] is not None}
        lost = [name for name, found in self.catalog.items() if name not in told and not found.complete]
        return [*lost, "state"] if self.state is None and len(self.ledger) else lost

    def _rewritten(self, found: list[Rows]) -> _File:
        """Writes the rows that a damaged file had into a new one."""
        shares: list[Share] = []
        for rows in found:
            columns = rows.columns
            n = len(rows.crcs)
            if columns["vector"].shape[1] != self.dim:
                columns = {**columns, "vector": np.zeros((n, self.dim), dtype=np.float32)}
            done = 0
            while done < n:
                segment = Segment(self.dim)
                stop = segment.append(columns, done, n)
                segment.seal()
                shares.append(Share(rows.scope, segment, np.arange(stop - done), rows.crcs[done:stop]))
                done = stop
        path = files.fresh_name(self.directory)
        parts, size, crc = files.write(path, shares, self.names, self.dim)
        told = [(p.start, self.numbers[p.scope], p.rows, p.first_seq, p.last_seq, p.about) for p in parts]
        return _File(path, sum(part.rows for part in parts), size, crc, told)

    def _fill(self, connection: sqlite3.Connection) -> None:
        """Writes all that was found into an empty catalog."""

        def put(table: str, rows: Sequence[Sequence[Any]]) -> int:
            """Inserts what fits; how many rows that was."""
            columns = [name for name in journal.columns_of_tables()[table] if name not in ("sum", "copy")]
            sql = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
            done = 0
            for row in rows:
                try:
                    done += connection.execute(sql, row[: len(columns)]).rowcount
                except sqlite3.IntegrityError:
                    self.lost[table] += 1
            return done

        put("scopes", [(number, *name) for name, number in self.numbers.items()])
        put("names", list(enumerate(self.names)))
        put("rows", self.journal)
        c = self.ledger.columns
        scope_of = dict(zip(c["seq"].tolist(), c["scope"].tolist(), strict=True))
        put("marks", [(seq, scope_of[seq], *marks) for seq, marks in sorted(self.marks.items())])
        counters: dict[int, Row] = {}
        for row in self.catalog["counters"].rows:
            if row[0] in scope_of and row[4] >= counters.get(row[0], row)[4]:
                counters[row[0]] = row
        self.kept["counters"] = put(
            "counters", [(seq, scope_of[seq], *row[2:5]) for seq, row in sorted(counters.items())]
        )
        self.kept["forgettings"] = put("forgettings", self.catalog["forgettings"].rows)
        self._forgettings(connection)
        for number, file in enumerate(self.named, 1):
            put("segments", [(number, file.path.name, file.rows, file.bytes, file.crc)])
            connection.executemany(
                "INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?, ?)", [(number, *part) for part in file.parts]
            )
        self._cold()
        for name, found in self.catalog.items():
            if name not in _KNOWN:
                done = put(name, found.rows)
                if done:
                    self.kept[name] = done
                if not found.complete:
                    self.notes.append(f"some rows of the table {name} are lost; how many is not known")
        for name, rows in self.others.items():
            connection.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)
        state = (self.state or (1, FORMAT, 0, 0, 0, 0, 0, None))[2:8]
        touched = max([state[2], *(row[4] for row in counters.values())])
        connection.execute(
            "UPDATE state SET seq = ?, generation = ?, touched = ?, sealed_upto = ?, dim = ?, fingerprint = ?",
            (self.seq, state[1] + 1, touched + 1, max(self.upto, state[3]), self.dim, state[5]),
        )

    def _forgettings(self, connection: sqlite3.Connection) -> None:
        """Tells of the commits that have forgotten rows which are still here, and that are not told."""
        c = self.ledger.columns
        told = {seq for (seq,) in connection.execute("SELECT seq FROM forgettings")}
        rows = np.flatnonzero(
            (c["forgotten_seq"] != 0) & ~np.isin(c["forgotten_seq"], np.array(sorted(told), np.int64))
        )
        made = {int(c["forgotten_seq"][row]): int(c["scope"][row]) for row in rows.tolist()}
        now = to_micros(system(), "now")
        connection.executemany(
            "INSERT INTO forgettings (seq, scope, at, erased) VALUES (?, ?, ?, 0)",
            [(seq, scope, now) for seq, scope in made.items()],
        )
        if made:
            self.rebuilt["forgettings"] = len(made)
            self.notes.append(
                f"{len(made):,} commits that have forgotten rows are told anew: when they did, and whether for good, "
                "is not known, so their rows can be restored until they are compacted"
            )

    def _cold_files(self) -> list[Path]:
        return sorted(path for path in (self.directory / cold.COLD).rglob("*.parquet") if is_own(path.name))

    def _cold(self) -> None:
        """Cold files that are not as they were are put aside."""
        kept = []
        root = self.directory / cold.COLD
        for row in self.catalog["cold"].rows:
            path = root / row[1]
            try:
                whole = crc_of_file(path) == (row[5], row[6])
            except OSError:
                whole = False
            if whole:
                kept.append(row)
                continue
            self.lost["cold_rows"] += row[3]
            there = path.is_file()
            self.notes.append(
                f"{cold.COLD}/{row[1]} is {'not as it was written' if there else 'missing'}, with {row[3]:,} rows"
            )
            if there:
                self.bad.append(path)
        self.catalog["cold"].rows = kept
        if not self.catalog["cold"].complete:
            named = {row[1] for row in kept}
            left = [path for path in self._cold_files() if path.relative_to(root).as_posix() not in named]
            left = [path for path in left if path not in self.bad]
            self.bad += left
            self.lost["cold_files"] = len(left)
            whole_files = [path for path in left if _is_cold_file(path)]
            if whole_files:
                self.notes.append(
                    f"{len(whole_files):,} whole files of the cold tier are named no more: import each of them with "
                    f"memcore import, from {ASIDE}/{self.aside.name}/{cold.COLD}, the latest month first: of a memory "
                    "with versions in several files those in the first one count. What was forgotten in them and not "
                    "compacted comes back with them"
                )
            if len(left) > len(whole_files):
                self.notes.append(
                    f"{len(left) - len(whole_files):,} files of the cold tier are named no more, and are not whole"
                )

    def _swap(self, new: Path) -> None:
        """Puts the new catalog in the old one's place. At no moment is there one with another's WAL, nor a directory
        that looks like no store.
        """
        old, wal = self.directory / CATALOG, self.directory / f"{CATALOG}-wal"
        for path in self.bad:
            place = self.aside / path.relative_to(self.directory)
            place.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".arrow":
                shutil.copy2(path, place)  # its name goes once the catalog doesn't need it
            else:
                path.replace(place)
        if wal.exists():
            shutil.copy2(wal, self.aside / wal.name)
        for path in self.aside.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            else:
                sync_folder(path)
        sync_folder(self.aside)
        if old.exists():
            old.replace(self.aside / CATALOG)
        with wal.open("wb"):  # empty: a new catalog has none, and an empty one tells that here is a store
            pass
        (self.directory / f"{CATALOG}-shm").unlink(missing_ok=True)  # SQLite's own, made from the WAL
        new.replace(old)
        (self.aside / _NEW).rmdir()
        sync_folder(self.aside)
        sync_folder(self.directory)
        for path in self.bad:
            path.unlink(missing_ok=True)


_KNOWN = ("state", "scopes", "names", "segments", "rows", "marks", "counters", "forgettings")
_SEQS = ("seq", "changed", "moved_seq", "gone_seq", "ended_seq", "forgotten_seq", "superseded_seq")  # of commits
_VECTOR = journal.ROW.index("vector")
_CODES = tuple(journal.ROW.index(name) for name in ("session", "role", "source"))
_OWN_FITS: dict[str, Callable[[Row], bool]] = {
    "links": lambda row: _is_link(row),
    "state": lambda row: row[0] == 1 and row[1] == FORMAT,
    "scopes": lambda row: row[0] > 0 and all(map(_is_text, row[1:])),
    "names": lambda row: row[0] >= 0 and _is_text(row[1]),
    "segments": lambda row: (
        isinstance(row[1], str) and row[1].endswith(".arrow") and all(isinstance(n, int) and n >= 0 for n in row[2:])
    ),
}


def _is_link(row: Row) -> bool:
    columns = journal.columns_of_tables()["links"]
    src, relation, dst, attributes, crc = (
        row[columns.index(name)] for name in ("src", "relation", "dst", "attributes", "crc")
    )
    if not (isinstance(src, bytes) and isinstance(dst, bytes) and (attributes is None or _is_text(attributes))):
        return False
    return bool(journal.crc_of_link(src, relation, dst, attributes) == crc)


def _is_cold_file(path: Path) -> bool:
    """Whether a file of the cold tier can be read to its end, by its own checksums, and has rows."""
    try:
        rows: int = cold.Folder(path.parent).read(path.name).num_rows
    except FAULTS:
        return False
    return rows > 0


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value) and not any("\ud800" <= c <= "\udfff" for c in value)


def _paged(fit: Callable[[Row], bool]) -> Callable[[Row], bool]:
    return lambda row: len(row) > 1 and row[1] is None and fit((row[0], *row[2:]))


def _summed(name: str) -> Callable[[Row], bool]:
    """Tells whether a row has the sum that its table keeps."""
    columns = journal.columns_of_tables()[name]
    column, made = journal.SUMS[name]
    at = columns.index(column)
    others = [other for other in columns if other != column]
    connection = sqlite3.connect(":memory:")
    sql = f"SELECT {made} FROM (SELECT {', '.join(f'? AS {other}' for other in others)})"

    def summed(row: Row) -> bool:
        try:
            (found,) = connection.execute(sql, [value for i, value in enumerate(row) if i != at]).fetchone()
        except (sqlite3.Error, OverflowError):
            return False
        return bool(found == row[at])

    return summed


def _without(rows: Rows, seen: I64) -> Rows:
    """Rows without those that are here already."""
    at = np.flatnonzero(~np.isin(rows.columns["seq"], seen))
    columns = {
        name: values[at] if isinstance(values, np.ndarray) else [values[i] for i in at.tolist()]
        for name, values in rows.columns.items()
    }
    return rows._replace(columns=columns, crcs=rows.crcs[at])


def _characters(texts: Sequence[str | None]) -> int:
    return sum(map(len, filter(None, texts)))


def _free_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "-"
    return name


def _halves(blob: bytes) -> tuple[int, int]:
    return int.from_bytes(blob[:8], "big"), int.from_bytes(blob[8:16], "big")


def _between(gap: tuple[int, int], after: int, upto: int) -> int:
    """How many numbers of a range (after, up to] lie in a gap."""
    return max(0, min(gap[1], upto) - max(gap[0], after))


def _write_report(aside: Path, told: Mapping[str, Any]) -> None:
    part = aside / f".{REPORT}.part"
    part.write_text(json.dumps(told, ensure_ascii=False, indent=1), encoding="utf-8")
    part.replace(aside / REPORT)
    sync_folder(aside)

"""Where do the rows of a file wait until all of them are checked? In a temporary database, in the order they go in.

It is SQLite's own temporary file (in `SQLITE_TMPDIR`, `TMPDIR` or /var/tmp), which has no name and is gone with the
process. RAM holds a few of its pages, whatever the number of rows. Rows that are to be kept as they are (with an id)
are put into the order of their seqs over the whole file, since versions of one memory, and rivals for one key, may lie
far apart in it; what becomes of each is settled before the first goes in.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memcore.errors import StoreError, StoreFull
from memcore.store.links import NEVER, Identity, Linked
from memcore.store.partition import UPSERTED, WORKING
from memcore.store.segment import FIXED, TEXTS, Columns, zeros

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
Scope = tuple[str, str]
Name = tuple[int, int]  # an id in two halves

_CACHE = 32 << 10  # KB of pages in RAM
_CHUNK = 8192  # ids asked for at once
_CODED = ("session", "role", "source")
_PLAIN = (
    "seq", "version", "kind", "level", "importance", "event_time", "ingested_at", "expires_at", "confidence",
    "untrusted", "tokens", "access_count", "last_access",
)  # fmt: skip
_ROW = ("scope", "id", "superseded_at", *_CODED, *_PLAIN, *TEXTS, "vector")
_TABLE = f"(place INTEGER PRIMARY KEY, {', '.join(_ROW)})"
_INSERT = f"({', '.join(_ROW)}) VALUES ({', '.join('?' * len(_ROW))})"
_HEAD = ("scope", "id", "seq", "version", "kind", "key", "ingested_at", "superseded_at")
_LINK = ("scope", "src", "relation", "dst", "attributes", "created_at", "valid_from", "valid_to", "place")
_SCHEMA = f"""
CREATE TABLE kept {_TABLE};
CREATE TABLE heads (place INTEGER PRIMARY KEY, {", ".join(_HEAD)});
CREATE TABLE fresh {_TABLE};
CREATE TABLE links (number INTEGER PRIMARY KEY, {", ".join(_LINK)});
CREATE TABLE linked (number INTEGER PRIMARY KEY, {", ".join(_LINK)}, nth);
CREATE TABLE ordered (rank INTEGER PRIMARY KEY, place, {", ".join(_HEAD)});
CREATE TABLE settled (rank INTEGER PRIMARY KEY, twin, previous, next, at);
CREATE TABLE here (scope, id, PRIMARY KEY (scope, id)) WITHOUT ROWID;
"""
_SELECT_KEPT = f"""
SELECT rank, previous, next, coalesce(at, o.superseded_at), {", ".join(f"k.{name}" for name in _ROW)}
FROM ordered o JOIN kept k ON k.place = o.place LEFT JOIN settled s USING (rank)
WHERE rank > ? AND coalesce(twin, 0) = 0 ORDER BY rank LIMIT ?
"""
_VERSIONS = """
SELECT scope, id, rank, version, ingested_at, superseded_at FROM ordered WHERE (scope, id) IN
    (SELECT scope, id FROM ordered GROUP BY scope, id HAVING count(*) > 1)
ORDER BY scope, id, rank
"""
_CLAIMS = f"""
SELECT o.scope, o.kind, o.key, o.rank, o.ingested_at FROM ordered o LEFT JOIN settled s USING (rank)
WHERE o.key IS NOT NULL AND o.kind IN {UPSERTED} AND coalesce(s.at, o.superseded_at) IS NULL
    AND coalesce(s.twin, 0) = 0 AND NOT EXISTS (SELECT 1 FROM here h WHERE (h.scope, h.id) = (o.scope, o.id))
ORDER BY o.scope, o.kind, o.key, o.rank
"""
_LOSE = "INSERT INTO settled VALUES (?, 0, NULL, NULL, ?) ON CONFLICT (rank) DO UPDATE SET at = excluded.at"
# A row tells the links of its memory in the order they were made: so they go in, whatever the clock said, since one may
# have been ended for the next. Of links that are the same but for their end it counts how many came before.
_ORDER_LINKS = f"""
INSERT INTO linked ({", ".join(_LINK)}, nth) SELECT {", ".join(_LINK)}, row_number() OVER (
    PARTITION BY scope, src, relation, dst, attributes, created_at, valid_from, place ORDER BY number
) FROM (SELECT *, max(created_at) OVER (PARTITION BY scope, src ORDER BY number) AS latest FROM links)
ORDER BY latest, number
"""
_LIKE = """
SELECT ifnull(max(nth), 0) FROM linked WHERE (scope, src, dst) = (?, ?, ?) AND relation = ? AND attributes IS ?
    AND created_at = ? AND valid_from IS ?
"""
_DANGLING = """
SELECT DISTINCT scope, dst, place FROM links l
WHERE NOT EXISTS (SELECT 1 FROM ordered o WHERE (o.scope, o.id) = (l.scope, l.dst))
"""


class Rows(NamedTuple):
    """Rows in the order they go in. `columns` lack the codes of `names` (session, role, source, tenant and project: a
    name a row); their vectors are None where no row of the file has one.
    """

    columns: Columns
    names: dict[str, list[str]]


class Kept(NamedTuple):
    """Rows with ids. `superseded_seq` is 1 where `superseded_at` counts. Int64, 0 for none: `ranks` is the place of
    each in the order of the file, `previous` and `next` those of the versions before and after it.
    """

    rows: Rows
    ranks: I64
    previous: I64
    next: I64


class Batch(NamedTuple):
    """What goes in with one commit; `done` counts all that has gone in with it and those before."""

    kept: Kept | None
    fresh: Rows | None
    links: list[Linked]
    done: int
    last: bool


class Spool:
    def __init__(self) -> None:
        self.dim = 0  # of the vectors, once a row has one
        self.rows = 0
        self.working: set[int] = set()  # the scopes that have rows of this kind
        self._names: dict[str, int] = {}
        self._scopes: dict[Scope, int] = {}
        self._texts: list[str] = []
        self._of: list[Scope] = []
        self._kept = self._fresh = self._links = 0
        with _telling():
            self._db = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            for pragma in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE}"):
                self._db.execute(f"PRAGMA {pragma}")
            self._db.executescript(_SCHEMA)
            self._db.execute("BEGIN")

    def close(self) -> None:
        self._db.close()

    @property
    def total(self) -> int:
        """All that goes in: rows and links."""
        return self._kept + self._fresh + self._links

    def conversations(self) -> list[Scope]:
        """The scopes that have working memories."""
        return [self._of[code] for code in sorted(self.working)]

    # Filling

    def add(self, columns: Columns, names: Mapping[str, Sequence[str]], kept: npt.NDArray[np.bool_]) -> None:
        """Takes rows in: those to be `kept` as they are, and new ones. `columns` as for `Rows`, in the file's order."""
        n = len(kept)
        vectors, has = columns["vector"], columns["has_vector"]
        if vectors is not None:
            self.dim = vectors.shape[1]
        pairs = np.empty((n, 2), dtype=">u8")
        pairs[:, 0], pairs[:, 1] = columns["id_hi"], columns["id_lo"]
        dump = pairs.tobytes()
        scopes = [self._scope(scope) for scope in zip(names["tenant"], names["project"], strict=True)]
        gone = columns["superseded_seq"].tolist()
        cells = {
            "scope": scopes,
            "id": [dump[i : i + 16] for i in range(0, 16 * n, 16)],
            "superseded_at": [
                at if was else None for at, was in zip(columns["superseded_at"].tolist(), gone, strict=True)
            ],
            **{name: [self._code(text) for text in names[name]] for name in _CODED},
            **{name: columns[name].tolist() for name in _PLAIN},
            **{name: columns[name] for name in TEXTS},
            "vector": [vectors[row].tobytes() if has[row] else None for row in range(n)],
        }
        rows = list(zip(*(cells[name] for name in _ROW), strict=True))
        mine = np.flatnonzero(kept).tolist()
        new = np.flatnonzero(~kept).tolist()
        self.working.update(scopes[row] for row in np.flatnonzero(columns["kind"] == WORKING).tolist())
        with _telling():
            self._db.executemany(f"INSERT INTO kept {_INSERT}", [rows[row] for row in mine])
            heads = zip(*(cells[name] for name in _HEAD), strict=True)
            placed = enumerate(
                (head for head, whole in zip(heads, kept.tolist(), strict=True) if whole), self._kept + 1
            )
            self._db.executemany(
                f"INSERT INTO heads VALUES (?{', ?' * len(_HEAD)})", ((place, *head) for place, head in placed)
            )
            self._db.executemany(f"INSERT INTO fresh {_INSERT}", [rows[row] for row in new])
        self._kept, self._fresh, self.rows = self._kept + len(mine), self._fresh + len(new), self.rows + n

    def add_links(self, links: Iterable[Linked]) -> None:
        """Takes links in, whose sources are rows that are kept."""
        made = [
            (self._scope(link.scope), _blob(link.src), link.relation, _blob(link.dst), *link[4:6],
             *(None if time == NEVER else time for time in link[6:8]), link.place)
            for link in links
        ]  # fmt: skip
        with _telling():
            self._db.executemany(f"INSERT INTO links ({', '.join(_LINK)}) VALUES (?{', ?' * 8})", made)
        self._links += len(made)

    def _code(self, text: str) -> int:
        code = self._names.setdefault(text, len(self._texts))
        if code == len(self._texts):
            self._texts.append(text)
        return code

    def _scope(self, scope: Scope) -> int:
        code = self._scopes.setdefault(scope, len(self._of))
        if code == len(self._of):
            self._of.append(scope)
        return code

    # Settling

    def settle(self, known: Callable[[Scope, set[Name]], set[Name]]) -> None:
        """Puts the rows with ids into their order, and settles which of them stand when all are in.

        `known` tells which memories of a scope are here already: those are left alone, and claim no key. No version of
        a memory stands but the last, and one row a key: the one ingested later. Links go in as they were made.
        """
        with _telling():
            run = self._db.execute
            run(f"INSERT INTO ordered SELECT NULL, place, {', '.join(_HEAD)} FROM heads ORDER BY seq, place")
            run("DROP TABLE heads")
            run("CREATE INDEX by_id ON ordered (scope, id)")
            for code, scope in enumerate(self._of):
                self._find_known(code, scope, known)
            settled = itertools.chain.from_iterable(
                _versions([row[2:] for row in group])
                for _, group in itertools.groupby(self._select(_VERSIONS), key=lambda row: row[:2])
            )
            self._db.executemany("INSERT INTO settled VALUES (?, ?, ?, ?, ?)", settled)
            self._db.executemany(_LOSE, list(self._losers()))
            run(_ORDER_LINKS)
            run("CREATE INDEX by_ends ON linked (scope, src, dst)")

    def _find_known(self, code: int, scope: Scope, known: Callable[[Scope, set[Name]], set[Name]]) -> None:
        ids = (row[0] for row in self._select("SELECT DISTINCT id FROM ordered WHERE scope = ? ORDER BY id", code))
        while chunk := list(itertools.islice(ids, _CHUNK)):
            found = known(scope, {_name(blob) for blob in chunk})
            self._db.executemany("INSERT INTO here VALUES (?, ?)", [(code, _blob(name)) for name in found])

    def _losers(self) -> Iterator[tuple[int, int]]:
        """The rows whose key goes to another of the file, and when it did: (rank, time)."""
        for _, group in itertools.groupby(self._select(_CLAIMS), key=lambda row: row[:3]):
            (best, latest), *rivals = ((row[3], row[4]) for row in group)
            for rank, time in rivals:
                if time >= latest:
                    yield best, time
                    best, latest = rank, time
                else:
                    yield rank, latest

    def dangling(self, known: Callable[[Scope, set[Name]], set[Name]]) -> tuple[int, Name] | None:
        """The place of a row that links to what is neither in the file nor `known`, and the id of that."""
        with _telling():
            found = self._select(_DANGLING)
            while chunk := list(itertools.islice(found, _CHUNK)):
                for code, rows in itertools.groupby(sorted(chunk), key=lambda row: row[0]):
                    ends = [(place, _name(blob)) for _, blob, place in rows]
                    here = known(self._of[code], {name for _, name in ends})
                    for place, name in ends:
                        if name not in here:
                            return place, name
        return None

    def _select(self, sql: str, *values: object) -> Iterator[tuple[Any, ...]]:
        return iter(self._db.execute(sql, values))

    # Emptying

    def seqs(self) -> tuple[int, int]:
        """The first and the last seq of the rows with ids; (0, 0) if there are none."""
        with _telling():
            first, last = next(self._select("SELECT min(seq), max(seq) FROM ordered"))
        return (0, 0) if first is None else (first, last)

    def batch(self, done: int, most: int) -> Batch:
        """What goes in after the first `done`, at most so much."""
        room = most
        kept = fresh = None
        links: list[Linked] = []
        with _telling():
            if done < self._kept:
                rows = self._db.execute(_SELECT_KEPT, (done, room)).fetchall()
                done = rows[-1][0] if len(rows) == room else self._kept
                room -= len(rows)
                if rows:
                    kept = self._kept_rows(rows)
            if room and self._kept <= done < self._kept + self._fresh:
                rows = self._db.execute(
                    f"SELECT {', '.join(_ROW)} FROM fresh WHERE place > ? ORDER BY place LIMIT ?",
                    (done - self._kept, room),
                ).fetchall()
                done, room, fresh = done + len(rows), room - len(rows), self._rows(rows)
            if room and done >= self._kept + self._fresh:
                rows = self._db.execute(
                    f"SELECT {', '.join(_LINK)}, nth FROM linked WHERE number > ? ORDER BY number LIMIT ?",
                    (done - self._kept - self._fresh, room),
                ).fetchall()
                done, links = done + len(rows), [self._linked(row) for row in rows]
        return Batch(kept, fresh, links, done, done == self.total)

    def _kept_rows(self, rows: list[tuple[Any, ...]]) -> Kept:
        ranks, previous, following = (
            np.array([value or 0 for value in column], dtype=np.int64)
            for column in itertools.islice(zip(*rows, strict=True), 3)
        )
        made = self._rows([row[4:] for row in rows])
        at = [row[3] for row in rows]
        made.columns["superseded_at"] = np.array([time or 0 for time in at], dtype=np.int64)
        made.columns["superseded_seq"] = np.array([time is not None for time in at], dtype=np.int64)
        return Kept(made, ranks, previous, following)

    def _rows(self, rows: list[tuple[Any, ...]]) -> Rows:
        n = len(rows)
        cells = dict(zip(_ROW, zip(*rows, strict=True), strict=True))
        columns: Columns = {name: zeros(name, n) for name in FIXED}
        columns.update((name, np.array(cells[name], dtype=FIXED[name])) for name in _PLAIN)
        columns.update((name, np.empty(n, dtype=FIXED[name])) for name in _CODED)
        halves = np.frombuffer(b"".join(cells["id"]), dtype=">u8").astype(np.uint64).reshape(n, 2)
        columns["id_hi"], columns["id_lo"] = np.ascontiguousarray(halves[:, 0]), np.ascontiguousarray(halves[:, 1])
        columns.update((name, list(cells[name])) for name in TEXTS)
        columns["has_vector"] = np.array([blob is not None for blob in cells["vector"]], dtype=np.bool_)
        columns["vector"] = None
        if self.dim:
            nothing = bytes(4 * self.dim)
            dump = b"".join(nothing if blob is None else blob for blob in cells["vector"])
            columns["vector"] = np.frombuffer(dump, dtype=np.float32).reshape(n, self.dim)
        names = {name: [self._texts[code] for code in cells[name]] for name in _CODED}
        for place, name in enumerate(("tenant", "project")):
            names[name] = [self._of[code][place] for code in cells["scope"]]
        return Rows(columns, names)

    def _linked(self, row: tuple[Any, ...]) -> Linked:
        code, src, relation, dst, attributes, created, *times, place, nth = row
        since, until = (NEVER if time is None else time for time in times)
        return Linked(
            self._of[code], _name(src), relation, _name(dst), attributes, created, since, until, place, nth
        )  # fmt: skip

    def like(self, scope: Scope, link: Identity) -> int:
        """How many links the file tells that are this one but for their end."""
        since = None if link.valid_from == NEVER else link.valid_from
        ends = self._scopes.get(scope), _blob(link.src), _blob(link.dst)
        with _telling():
            (found,) = next(self._select(_LIKE, *ends, link.relation, link.attributes, link.created_at, since))
        return int(found)


def _versions(rows: Sequence[tuple[int, int, int, int | None]]) -> Iterator[tuple[object, ...]]:
    """What is settled of a memory's rows, each (rank, version, time, superseded at): a version that was told before is
    a twin, and the others follow each other.
    """
    first: dict[int, int] = {}
    for place, (_, version, _, _) in enumerate(rows):
        first.setdefault(version, place)
    kept = sorted(first.values())
    for place in set(range(len(rows))) - set(kept):
        yield rows[place][0], 1, None, None, None
    for i, place in enumerate(kept):
        rank, _, _, at = rows[place]
        following = rows[kept[i + 1]] if i + 1 < len(kept) else None
        if following is not None:
            at = following[2] if at is None else min(at, following[2])
        yield rank, 0, rows[kept[i - 1]][0] if i else None, following and following[0], at


def _blob(name: Name) -> bytes:
    return name[0].to_bytes(8, "big") + name[1].to_bytes(8, "big")


def _name(blob: bytes) -> Name:
    return int.from_bytes(blob[:8], "big"), int.from_bytes(blob[8:], "big")


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """Tells of a temporary file that cannot be written."""
    try:
        yield
    except sqlite3.Error as fault:
        if fault.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            raise StoreFull(
                f"no room is left for the rows of the file, which wait in a temporary one ({fault}); free space, or "
                "set SQLITE_TMPDIR to a folder that has it, and import it again"
            ) from fault
        raise StoreError(
            f"the rows of the file cannot be kept in a temporary one ({fault}); import it again"
        ) from fault

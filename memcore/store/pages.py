"""What do the pages of a catalog hold that SQLite cannot read? Rows of its tables; and is its WAL whole?

SQLite opens a database whole or not at all, and stops at the first page of a table that it cannot follow. Here the
pages are read one by one: a table is walked from its root as far as its pages are sound, and rows on pages that no walk
has come to are told apart by their shape and their checksums. Nothing is written.

The forms are those of https://www.sqlite.org/fileformat2.html (sections 1.6, 2.1 and 4).
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

_PAGE = 4096  # bytes of a page, where the header doesn't say
_MAGIC = b"SQLite format 3\0"
_LEAF, _INTERIOR = 13, 5  # the first byte of a table's pages
_INDEX_LEAF, _INDEX_INTERIOR = 10, 2  # and of an index's
_WAL_HEADER, _FRAME_HEADER = 32, 24
_WAL_MAGIC = 0x377F0682
_FRAMES = 1024  # whose checksums are computed at once: 4 MB
_DEPTH = 20  # of a tree of pages, at most

Row = tuple[Any, ...]
U32 = npt.NDArray[np.uint32]


class BadPage(ValueError):
    """A page that does not hold what it should."""


# The WAL


@dataclass(frozen=True, slots=True)
class Wal:
    """`frames` are (page, its bytes, or None if it is not whole) in the order they were written, up to the last commit
    that can be told; the first `whole` are what SQLite reads. `fault` says why it would pass over commits behind them,
    None if it would not.
    """

    frames: list[tuple[int, bytes | None]] = field(default_factory=list)
    whole: int = 0
    fault: str | None = None


def read_wal(path: Path, index: Path | None = None) -> Wal:
    """What is in a WAL. SQLite takes the first frame that is not whole for the end; this looks at what is behind it.

    The last frames may be torn by a crash, which is no fault, as their commit was never acknowledged. `index`, a shared
    memory file that no connection of this process has open, tells how many frames were committed.
    """
    wal = _read_wal(path)
    for _ in range(3):  # another process may be writing into it
        if wal.fault is None:
            break
        again = _read_wal(path)
        if (again.fault, again.whole) == (wal.fault, wal.whole):
            break
        wal = again
    if wal.fault is None and index is not None:
        told = _committed(index, path)
        if told > wal.whole:
            fault = f"frame {wal.whole + 1} of {told} that were committed is not as it was written"
            return Wal(wal.frames, wal.whole, fault)
    return wal


def _read_wal(path: Path) -> Wal:
    try:
        dump = path.read_bytes()
    except FileNotFoundError:
        return Wal()
    if len(dump) < _WAL_HEADER:
        return Wal()
    magic, _, size, _, *salts, sum0, sum1 = struct.unpack(">8I", dump[:_WAL_HEADER])
    order = ">u4" if magic == _WAL_MAGIC + 1 else "<u4"
    first = np.frombuffer(dump[:24], order).astype(np.uint32)[None]
    sums = _sums(first, np.zeros((1, 2), np.uint32))[0]
    headed = magic in (_WAL_MAGIC, _WAL_MAGIC + 1) and tuple(sums.tolist()) == (sum0, sum1)
    length = _FRAME_HEADER + (size if headed else _PAGE)
    n = (len(dump) - _WAL_HEADER) // length
    if not n:
        return Wal()
    frames = np.frombuffer(dump, np.uint8, n * length, _WAL_HEADER).reshape(n, length)
    heads = np.ascontiguousarray(frames[:, :_FRAME_HEADER]).view(">u4").astype(np.uint32)
    pages, commits, stored = heads[:, 0], heads[:, 1] != 0, heads[:, 4:6]
    before = np.vstack([[[sum0, sum1]], stored[:-1]]).astype(np.uint32)
    ours = (heads[:, 2:4] == (np.array(salts, np.uint32) if headed else heads[0, 2:4])).all(axis=1)
    sound = ours.copy()
    for at in range(0, n, _FRAMES):
        mine = slice(at, at + _FRAMES)
        words = np.concatenate([frames[mine, :8], frames[mine, _FRAME_HEADER:]], axis=1)
        made = _sums(words.view(order).astype(np.uint32), before[mine])
        sound[mine] &= (made == stored[mine]).all(axis=1)
    bad = 0 if not headed else int(np.argmin(sound)) if not sound.all() else n
    ends = np.flatnonzero(commits[:bad])
    whole = int(ends[-1]) + 1 if len(ends) else 0
    known = np.flatnonzero(sound & commits)
    upto = int(known[-1]) + 1 if len(known) else 0
    kept: list[tuple[int, bytes | None]] = []
    for i in range(upto):
        # behind one that is not whole, a frame is told by the next one
        told_by_next = ours[i] and i + 1 < n and sound[i + 1] and (not sound[i - 1] if i else not headed)
        kept.append((int(pages[i]), frames[i, _FRAME_HEADER:].tobytes() if sound[i] or told_by_next else None))
    if not headed:
        return Wal(kept, 0, f"its header is not as it was written, before {upto} frames")
    # A transaction after the one of the bad frame: the bad one was on disk before it began.
    ended = np.flatnonzero((commits & ours)[bad:])
    later = bad < n and len(ended) > 0 and bool(sound[bad + int(ended[0]) + 1 :].any())
    return Wal(kept, whole, f"frame {bad + 1} of {upto} is not as it was written" if later else None)


def _powers(pairs: int) -> list[tuple[int, int, int, int]]:
    """The matrix [[1, 1], [1, 2]] to the powers 0 to `pairs`, mod 2³²: what one pair of words does to the sums."""
    a, b, c, d = 1, 0, 0, 1
    made = []
    for _ in range(pairs + 1):
        made.append((a, b, c, d))
        a, b, c, d = (a + c) & 0xFFFFFFFF, (b + d) & 0xFFFFFFFF, (a + 2 * c) & 0xFFFFFFFF, (b + 2 * d) & 0xFFFFFFFF
    return made


def _sums(words: U32, before: U32) -> U32:
    """SQLite's checksums (n, 2) of rows of words (n, 2 m), each going on from the sums `before` (n, 2).

    The sums go s0 += x0 + s1; s1 += x1 + s0 over pairs of words. That is linear, so a whole row is one product with
    fixed weights: 8 ms for 1,000 pages, where word by word takes 150.
    """
    m = words.shape[1] // 2
    powers = np.array(_powers(m), dtype=np.uint64)
    a, b, c, d = (powers[m - 1 :: -1, i].astype(np.uint32) if m else powers[:0, i] for i in range(4))
    even, odd = words[:, 0::2], words[:, 1::2]
    last = powers[m].astype(np.uint32)
    s0 = (even * (a + b) + odd * b).sum(axis=1, dtype=np.uint32) + before[:, 0] * last[0] + before[:, 1] * last[1]
    s1 = (even * (c + d) + odd * d).sum(axis=1, dtype=np.uint32) + before[:, 0] * last[2] + before[:, 1] * last[3]
    return np.stack([s0, s1], axis=1)


def _committed(index: Path, wal: Path) -> int:
    """How many frames the index of a WAL says are committed; 0 if it isn't whole, or another WAL's."""
    try:
        head, salts = index.read_bytes()[:96], wal.read_bytes()[16:24]
    except FileNotFoundError:
        return 0
    if len(head) < 96 or head[:48] != head[48:] or head[32:40] != salts:
        return 0
    return int(struct.unpack("=I", head[16:20])[0])


# The database


@dataclass(slots=True)
class Found:
    """What was found of a table: its rows, and whether they are all. `gaps` are the ranges (after, up to) of row
    numbers whose pages cannot be read; `bad` are rows that are not as they were written.
    """

    rows: list[Row] = field(default_factory=list)
    bad: list[Row] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    known: bool = False  # whether its root was found

    @property
    def complete(self) -> bool:
        return self.known and not self.gaps and not self.bad


FIRST, LAST = -(2**63), 2**63 - 1


class Image:
    """The pages of a catalog, with those of its WAL over them."""

    def __init__(self, path: Path) -> None:
        dump = path.read_bytes() if path.exists() else b""
        size = int.from_bytes(dump[16:18], "big") if dump.startswith(_MAGIC) else _PAGE
        self._size = size if size >= 512 and size & (size - 1) == 0 else _PAGE
        self._dump = dump
        # A page whose last frame is lost is bad, since an older state of it would pass for the last.
        self._over = dict(read_wal(path.with_name(f"{path.name}-wal")).frames)
        self.uncertain = None in self._over.values()
        # Those that are there: a frame that is not whole may call itself any page up to 2³².
        self._pages = sorted({*range(1, len(dump) // self._size + 1), *self._over})
        self.visited: set[int] = set()

    def page(self, number: int) -> bytes:
        if number in self._over:
            over = self._over[number]
            if over is None:
                raise BadPage(f"page {number}, in the WAL")
            return over
        found = self._dump[(number - 1) * self._size : number * self._size]
        if number < 1 or len(found) < self._size:
            raise BadPage(f"page {number}, which is not there")
        return found

    def schema(self, kind: str = "table") -> dict[str, int]:
        """The root pages of the tables, or of each "index", as far as page 1 can be read."""
        found = self.table(1)
        return {
            row[2]: row[4]
            for row in found.rows
            if len(row) == 6 and row[1] == kind and isinstance(row[2], str) and isinstance(row[4], int)
        }

    def table(self, root: int) -> Found:
        """The rows of the table with this root page: each its row number, then its columns as they are stored."""
        found = Found(known=True)
        self._walk(root, FIRST, LAST, found, 0)
        return found

    def entries(self, root: int) -> list[Row] | None:
        """The entries of the index with this root page, none of which is longer than a page; None if a page is bad."""
        found: list[Row] = []
        left = [root]
        try:
            while left:
                number = left.pop()
                if number in self.visited:
                    raise BadPage(f"page {number} twice")
                self.visited.add(number)
                page = self.page(number)
                if page[0] not in (_INDEX_LEAF, _INDEX_INTERIOR):
                    raise BadPage(f"page {number} is no page of an index")
                inner = page[0] == _INDEX_INTERIOR
                for at in self._pointers(page, 0, 12 if inner else 8):
                    if inner:
                        left.append(int.from_bytes(page[at : at + 4], "big"))
                    size, at = _varint(page, at + 4 if inner else at)
                    found.append(tuple(_record(page[at : at + size])))
                if inner:
                    left.append(int.from_bytes(page[8:12], "big"))
        except (BadPage, UnicodeDecodeError):
            return None
        return found

    def _walk(self, number: int, after: int, upto: int, found: Found, depth: int) -> None:
        if number in self.visited or depth > _DEPTH:
            found.gaps.append((after, upto))
            return
        try:
            page = self.page(number)
            start = 100 if number == 1 else 0
            if page[start] == _LEAF:
                rows = list(self._leaf(number))
                if any(not after < row[0] <= upto for row in rows):
                    raise BadPage(f"page {number} holds rows of elsewhere")
                self.visited.add(number)
                found.rows += rows
                return
            children = self._children(page, start, upto)
        except BadPage:
            found.gaps.append((after, upto))
            return
        self.visited.add(number)
        for child, key in children:
            self._walk(child, after, key, found, depth + 1)
            after = key

    def orphans(self) -> Iterator[Row]:
        """The rows on a table's pages that no walk has come to and that are not free."""
        free = self._free()
        for number in self._pages:
            if number < 2 or number in self.visited or number in free:
                continue
            try:
                if self.page(number)[0] == _LEAF:
                    yield from list(self._leaf(number, torn=True))
            except BadPage:
                continue

    def _free(self) -> set[int]:
        """The pages that the header's list calls free."""
        free: set[int] = set()
        try:
            head = self.page(1)
            trunk = int.from_bytes(head[32:36], "big") if head.startswith(_MAGIC) else 0
            while trunk and trunk not in free:
                free.add(trunk)
                page = self.page(trunk)
                count = min(int.from_bytes(page[4:8], "big"), self._size // 4 - 2)
                free.update(int.from_bytes(page[8 + 4 * i : 12 + 4 * i], "big") for i in range(count))
                trunk = int.from_bytes(page[:4], "big")
        except BadPage:
            pass
        return free

    def _pointers(self, page: bytes, start: int, head: int) -> list[int]:
        count = int.from_bytes(page[start + 3 : start + 5], "big")
        if start + head + 2 * count > self._size:
            raise BadPage("too many cells")
        at = start + head
        return [int.from_bytes(page[at + 2 * i : at + 2 * i + 2], "big") for i in range(count)]

    def _children(self, page: bytes, start: int, upto: int) -> list[tuple[int, int]]:
        """The children of an interior page, each with the highest row number below it."""
        if page[start] != _INTERIOR:
            raise BadPage("no page of a table")
        made = []
        for at in self._pointers(page, start, 12):
            if at + 5 > self._size:
                raise BadPage("a cell outside of its page")
            key, _ = _varint(page, at + 4)
            made.append((int.from_bytes(page[at : at + 4], "big"), _signed(key)))
        made.append((int.from_bytes(page[start + 8 : start + 12], "big"), upto))
        if any(a[1] >= b[1] for a, b in itertools.pairwise(made[:-1])):
            raise BadPage("children out of order")
        return made

    def _leaf(self, number: int, *, torn: bool = False) -> Iterator[Row]:
        """The rows of a leaf page. `torn`: cells that cannot be read are left out."""
        page, start = self.page(number), 100 if number == 1 else 0
        for at in self._pointers(page, start, 8):
            try:
                size, at = _varint(page, at)
                rowid, at = _varint(page, at)
                yield (_signed(rowid), *_record(self._payload(page, at, size)))
            except (BadPage, IndexError, UnicodeDecodeError) as fault:
                if not torn:
                    raise BadPage(f"page {number}: {fault}") from fault

    def _payload(self, page: bytes, at: int, size: int) -> bytes:
        """The bytes of a cell, the overflow pages' included."""
        usable = self._size
        if size <= usable - 35:
            if at + size > usable:
                raise BadPage("a cell outside of its page")
            return page[at : at + size]
        if size > len(self._dump) + len(self._over) * usable:
            raise BadPage("a cell that is longer than the file")
        least = (usable - 12) * 32 // 255 - 23
        local = least + (size - least) % (usable - 4)
        local = local if local <= usable - 35 else least
        if at + local + 4 > usable:
            raise BadPage("a cell outside of its page")
        parts, left = [page[at : at + local]], size - local
        following = int.from_bytes(page[at + local : at + local + 4], "big")
        while left > 0:
            over = self.page(following)
            parts.append(over[4 : 4 + left])
            left -= usable - 4
            following = int.from_bytes(over[:4], "big")
        return b"".join(parts)


def _varint(page: bytes, at: int) -> tuple[int, int]:
    value = 0
    for i in range(9):
        if at + i >= len(page):
            raise BadPage("a number outside of its page")
        byte = page[at + i]
        if i == 8:
            return value << 8 | byte, at + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + i + 1
    raise AssertionError


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_WIDTHS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


def _record(payload: bytes) -> Iterator[Any]:
    """The values of a record."""
    head, at = _varint(payload, 0)
    if head > len(payload):
        raise BadPage("a record that is shorter than its header")
    kinds = []
    while at < head:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    if at != head or len(kinds) > 100:
        raise BadPage("a header of another length than it says")
    for kind in kinds:
        if kind >= 12:
            width = (kind - 12) // 2
        elif kind in (10, 11):
            raise BadPage("a value of no type")
        else:
            width = 8 if kind == 7 else _WIDTHS.get(kind, 0)
        cell = payload[at : at + width]
        if len(cell) != width:
            raise BadPage("a value outside of its record")
        at += width
        if kind >= 12:
            yield cell.decode() if kind & 1 else cell
        elif kind == 7:
            yield struct.unpack(">d", cell)[0]
        elif kind in (8, 9):
            yield kind - 8
        else:
            yield int.from_bytes(cell, "big", signed=True) if kind else None
    if at != len(payload):
        raise BadPage("a record of another length than it says")


def tables(path: Path, fits: dict[str, Callable[[Row], bool]]) -> dict[str, Found]:
    """All that can be found of some tables: of each, `fits` says whether a row is one of it, and whole.

    Rows on pages that no walk has come to count only for tables of which something is missing, and come last; where a
    row is found several times, `tables` tells them all.
    """
    image = Image(path)
    roots = image.schema()
    made: dict[str, Found] = {}
    for name, fit in fits.items():
        found = image.table(roots[name]) if name in roots else Found(gaps=[(FIRST, LAST)])
        every, found.rows = found.rows, []
        for row in every:
            (found.rows if fit(row) else found.bad).append(row)
        found.known &= not image.uncertain
        made[name] = found
    for name, root in roots.items():  # so that their rows are not taken for those of a table that lacks some
        if name not in fits:
            image.table(root)
    wanted = [name for name, found in made.items() if not found.complete]
    if wanted:
        for row in image.orphans():
            for name in wanted:
                if fits[name](row):
                    made[name].rows.append(row)
                    break
    return made


def indexed(path: Path, names: Sequence[str]) -> dict[str, set[int] | None]:
    """The numbers of the rows that these indexes have an entry of; None where one cannot be read as a whole."""
    image = Image(path)
    roots = image.schema("index")
    made: dict[str, set[int] | None] = {}
    for name in names:
        entries = image.entries(roots[name]) if name in roots and not image.uncertain else None
        whole = entries is not None and all(entry and isinstance(entry[-1], int) for entry in entries)
        made[name] = {entry[-1] for entry in entries} if entries is not None and whole else None
    return made

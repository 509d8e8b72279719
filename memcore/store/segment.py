"""Where do rows lie? A segment: up to 32,768 record versions of one scope as columns, appended to until it is sealed.

Fixed-width columns are NumPy arrays, doubled when full, so that an append costs O(1) on average; texts are lists until
the segment is sealed into Arrow arrays. A segment that lies in a file is sealed, and its arrays are the file's own
bytes, memory-mapped. A row is never changed but for the marks and counters in `MUTABLE`, and is never moved inside a
segment, so that a reader may take a `View` of the first rows at any moment, without a lock, while the writer goes on:
what is behind them, and marks with a later seq, are none of its concern.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore.store.codes import BLOCK, Codes, Rotation

LEAST_CODED = 1024  # rows that codes are worth it for: fewer are as soon read as float32
ROWS = 32_768  # rows a segment: 33 MB of 256-d vectors. One query pays about 8 µs a segment, a rewrite is 20 ms
TEXT_BYTES = 256 << 20  # or this many characters, well below the 2 GB that Arrow's 32-bit offsets reach
_FIRST_ROWS = 16
_STR_BYTES = 57  # of a Python text beside its characters, with the list's pointer to it

FIXED: dict[str, npt.DTypeLike] = {
    "id_hi": np.uint64,
    "id_lo": np.uint64,
    "seq": np.int64,
    "version": np.int32,
    "session": np.int32,  # codes of the catalog's names, as are `role` and `source`
    "role": np.int32,
    "kind": np.int8,
    "level": np.int16,
    "importance": np.float32,
    "event_time": np.int64,
    "ingested_at": np.int64,
    "expires_at": np.int64,  # 0: never
    "source": np.int32,
    "confidence": np.float32,
    "untrusted": np.bool_,
    "has_vector": np.bool_,
    "tokens": np.int32,  # of the text of a working memory, where the store has a budget of tokens
    "access_count": np.int32,
    "last_access": np.int64,  # 0: never
    "superseded_seq": np.int64,  # 0: stands; else the seq of the commit that replaced the row
    "superseded_at": np.int64,  # the time of that commit
    "forgotten_seq": np.int64,  # 0: not forgotten; else the seq of the commit that forgot the row
    "lapsed": np.bool_,  # superseded, and no later version has come: none of the memory's versions stands
}
TEXTS = ("key", "content", "metadata", "idempotency_key")
MARKS = ("superseded_seq", "superseded_at", "forgotten_seq", "lapsed")
COUNTERS = ("access_count", "last_access")
MUTABLE = (*COUNTERS, *MARKS)
# All zero in most segments: such a column has no array until a row needs it (53 of about 120 bytes a row).
SPARSE = frozenset((*MUTABLE, "expires_at", "untrusted", "tokens"))
_SPARSE = tuple(name for name in FIXED if name in SPARSE)
_DENSE = (*(name for name in FIXED if name not in SPARSE), "vector")
# The columns that kernels read have one layout, contiguous, since Numba compiles by it. Of the others, one that holds
# the same value throughout a sealed segment is kept as that value.
SCANNED = frozenset(("id_hi", "id_lo", "event_time", "importance", "vector"))

Columns = dict[str, Any]  # by the names of FIXED and TEXTS, and "vector"
_ZEROS = {name: np.broadcast_to(np.zeros((), dtype), 1 << 40) for name, dtype in FIXED.items()}  # one value each


def zeros(name: str, n: int) -> npt.NDArray[Any]:
    """`n` read-only zeros of a column's type that take no memory."""
    return _ZEROS[name][:n]


def alike(name: str, value: Any) -> npt.NDArray[Any]:
    """A column's value as often as one likes, read-only and without memory: to be cut to the rows that there are."""
    return np.broadcast_to(np.array(value, FIXED[name]), 1 << 40)


def own(columns: Columns, name: str) -> npt.NDArray[Any]:
    """A column that can be written to, copied first if it is one of `alike` values."""
    array: npt.NDArray[Any] = columns[name]
    if not array.flags.writeable:
        array = columns[name] = array.copy()
    return array


class View:
    """The first `n` rows of a segment as they stood: a reader may keep it, whatever the writer does next.

    `columns` are read-only arrays `(n,)`, all zero where no row had another value. `texts` are the writer's own, which
    may run on behind `n`: lists, Arrow arrays once sealed, None for a column without texts.
    """

    __slots__ = ("_range", "columns", "kinds", "made_of", "n", "sealed", "texts")

    def __init__(
        self, n: int, arrays: Columns, texts: dict[str, Any], kinds: frozenset[int], id_range: tuple[int, int] | None
    ) -> None:
        self.n = n
        self.made_of = arrays
        self.columns: Columns = {}
        for name in (*FIXED, "vector"):
            array = arrays.get(name)
            self.columns[name] = array[:n] if array is not None else zeros(name, n)
            self.columns[name].flags.writeable = False
        self.texts = texts
        self.kinds = kinds
        self.sealed = id_range is not None
        self._range = id_range

    def zero(self, name: str) -> bool:
        """Whether a sparse column is zero in every row for certain."""
        return bool(self.columns[name].strides == (0,)) and not self.columns[name][:1].any()

    def text(self, name: str, row: int) -> str | None:
        texts = self.texts[name]
        if texts is None:
            return None
        value: str | None = texts[row].as_py() if isinstance(texts, pa.Array) else texts[row]
        return value

    def texts_at(self, name: str, rows: Sequence[int] | npt.NDArray[np.int64]) -> pa.Array:
        """A text column at these rows."""
        texts = self.texts[name]
        if texts is None:
            return pa.nulls(len(rows), pa.string())
        if isinstance(texts, pa.Array):
            return texts.take(pa.array(rows, pa.int64()))
        return pa.array([texts[row] for row in rows], pa.string())

    def rows_of(self, hi: int, lo: int) -> npt.NDArray[np.int64]:
        """The rows that hold versions of this id, forgotten ones too, oldest first."""
        if self._range is not None and not self._range[0] <= hi << 64 | lo <= self._range[1]:
            return np.empty(0, dtype=np.int64)  # ids rise with time: most segments fall out here
        found = np.flatnonzero(self.columns["id_lo"] == np.uint64(lo))
        rows: npt.NDArray[np.int64] = found[self.columns["id_hi"][found] == np.uint64(hi)]
        return rows

    def rows_with(self, names: set[tuple[int, int]]) -> npt.NDArray[np.int64]:
        """The rows that hold versions of any of these ids (high half, low half), forgotten ones too, oldest first."""
        if self._range is not None:
            names = {name for name in names if self._range[0] <= name[0] << 64 | name[1] <= self._range[1]}
        if len(names) < 4:
            return np.sort(np.concatenate([np.empty(0, np.int64), *(self.rows_of(*name) for name in names)]))
        hi, lo = self.columns["id_hi"], self.columns["id_lo"]
        maybe = np.flatnonzero(np.isin(lo, np.fromiter((name[1] for name in names), np.uint64, len(names))))
        known = [name in names for name in zip(hi[maybe].tolist(), lo[maybe].tolist(), strict=True)]
        return maybe[np.array(known, dtype=np.bool_)]


class Segment:
    """The writer's side. Under the catalog's lock, but for `view`, `rows_under`, `codes` and `derived`."""

    __slots__ = (
        "_arrays",
        "_index",
        "_range",
        "_room",
        "_texts",
        "_view",
        "coded",
        "derived",
        "filtered",
        "forgotten",
        "kinds",
        "mapped_from",
        "n",
        "scanned",
        "sealed",
        "source",
        "summed",
        "text_bytes",
        "worded",
    )

    def __init__(self, dim: int) -> None:
        self.source: object = None  # the part of a file in which it lies
        # the open file whose bytes its vectors are, and where in it they begin
        self.mapped_from: tuple[Any, int] | None = None
        self.n = 0
        self.sealed = False
        self.forgotten = 0  # rows that are forgotten and still lie here
        self.text_bytes = 0
        self.kinds: frozenset[int] = frozenset()  # codes of the kinds that its rows have
        self.scanned: Any = None  # how `search` finds its arrays
        self.derived: dict[str, Any] = {}  # what filters have read out of the rows, by metadata key
        self.filtered: dict[Any, npt.NDArray[np.uint8]] = {}  # what filters let through of it, once it is sealed
        self._room = 0
        self._arrays: Columns = {"vector": np.empty((0, dim), dtype=np.float32)}
        self._texts: dict[str, Any] = dict.fromkeys(TEXTS)
        self._range: tuple[int, int] | None = None  # the lowest and the highest id, once sealed
        self._view: View | None = None
        self.coded: Codes | None = None
        self.worded: Any = ()  # where which words stand: see `postings`
        # of so many rows, the sum of the vectors, forgotten ones too: see `memcore_kernels.centre`
        self.summed: tuple[int, npt.NDArray[np.int64]] | None = None
        self._index: dict[str, _Index] = {}  # by text column; made when it is first asked

    @classmethod
    def mapped(
        cls,
        source: object,
        n: int,
        arrays: Columns,
        texts: dict[str, Any],
        kinds: frozenset[int],
        id_range: tuple[int, int],
        text_bytes: int,
    ) -> Segment:
        """A sealed segment over arrays that lie elsewhere, such as in a file."""
        made = cls(0)
        made.source, made.n, made.sealed, made.kinds = source, n, True, kinds
        made._arrays, made._texts, made._range, made._room = arrays, texts, id_range, n
        made.text_bytes = text_bytes
        made.forgotten = int(np.count_nonzero(arrays["forgotten_seq"])) if "forgotten_seq" in arrays else 0
        return made

    def with_forgotten(self, commits: npt.NDArray[np.int64]) -> Segment:
        """The same sealed rows, forgotten by these commits (0: not); all else is shared."""
        made = Segment.mapped(
            self.source,
            self.n,
            {**self._arrays, "forgotten_seq": commits},
            self._texts,
            self.kinds,
            self._range or (0, 0),
            self.text_bytes,
        )
        made.coded, made._index, made.derived, made.filtered = self.coded, self._index, self.derived, self.filtered
        made.mapped_from, made.worded, made.summed = self.mapped_from, self.worded, self.summed
        return made

    def with_vectors(self, vectors: npt.NDArray[np.float32]) -> Segment:
        """The same rows with other vectors, float32 `(n, dim)`; all else is shared, so this one is not appended to any
        more.
        """
        made = Segment(vectors.shape[1])
        room = np.zeros((max(self._room, self.n), vectors.shape[1]), dtype=np.float32)
        room[: self.n] = vectors
        arrays = {**self._arrays, "has_vector": np.ones(len(room), dtype=np.bool_), "vector": room}
        made.source, made.n, made.sealed, made.kinds = self.source, self.n, self.sealed, self.kinds
        made._arrays, made._texts, made._range, made._room = arrays, self._texts, self._range, self._room
        made.text_bytes, made.forgotten = self.text_bytes, self.forgotten
        made._index, made.derived, made.worded = self._index, self.derived, self.worded
        return made

    @property
    def full(self) -> bool:
        return self.n >= ROWS or self.text_bytes >= TEXT_BYTES

    @property
    def dim(self) -> int:
        return int(self._arrays["vector"].shape[1])

    def append(self, columns: Columns, start: int, stop: int) -> int:
        """Appends rows `start` to `stop` of the columns, as many as there is room for; returns where it stopped."""
        stop = self._fitting(columns, start, min(stop, start + ROWS - self.n))
        begin, end = self.n, self.n + stop - start
        if end > self._room:
            self._grow(end)
        to, rows = slice(begin, end), slice(start, stop)
        for name in _SPARSE:
            values = columns[name]
            if name not in self._arrays:
                if (values.strides == (0,) and not values[0]) or not values[rows].any():
                    continue
                self._add_column(name)
            self._arrays[name][to] = values[rows]
        arrays = self._arrays
        if end - begin == 1:  # one value is set in a third of the time that a slice takes
            for name in _DENSE:
                arrays[name][begin] = columns[name][start]
        else:
            for name in _DENSE:
                arrays[name][to] = columns[name][rows]
        for name in TEXTS:
            texts = columns[name][rows]
            if self._texts[name] is None:
                if not any(texts):
                    continue
                self._texts[name] = [None] * begin
            self._texts[name][begin:] = texts  # over what an append that was interrupted has left there
        self.kinds |= set(columns["kind"][rows].tolist())
        self.n = end  # the last step: an exception before it leaves the segment as it was
        return stop

    def _fitting(self, columns: Columns, start: int, stop: int) -> int:
        """Counts the texts of the rows in, and stops after the one that reaches TEXT_BYTES."""
        if stop - start == 1:
            self.text_bytes += sum(len(columns[name][start] or "") for name in TEXTS)
            return stop
        texts = [columns[name][start:stop] for name in TEXTS]
        total = sum(sum(map(len, filter(None, column))) for column in texts)
        if self.text_bytes + total >= TEXT_BYTES:
            total = 0
            for row, cells in enumerate(zip(*texts, strict=True), start):
                total += sum(map(len, filter(None, cells)))
                if self.text_bytes + total >= TEXT_BYTES:
                    stop = row + 1
                    break
        self.text_bytes += total
        return stop

    def _grow(self, least: int) -> None:
        room = min(ROWS, max(2 * self._room, _FIRST_ROWS, 1 << (least - 1).bit_length()))
        arrays: Columns = {}
        for name in (*FIXED, "vector"):
            old = self._arrays.get(name)
            if name == "vector":
                arrays[name] = np.empty((room, self.dim), dtype=np.float32)
            elif name in SPARSE:
                if old is None:
                    continue
                arrays[name] = np.zeros(room, dtype=FIXED[name])
            else:
                arrays[name] = np.empty(room, dtype=FIXED[name])
            if old is not None:
                arrays[name][: self.n] = old[: self.n]
        self._arrays, self._room = arrays, room

    def seal(self) -> None:
        """No more appends: arrays are cut to size, texts become Arrow arrays."""
        self._arrays = {name: _cut(name, array, self.n) for name, array in self._arrays.items()}
        self._texts = {
            name: None if texts is None else pa.array(texts, pa.string()) for name, texts in self._texts.items()
        }
        hi, lo = self._arrays["id_hi"], self._arrays["id_lo"]
        low, high = int(hi.min()), int(hi.max())
        self._range = (low << 64 | int(lo[hi == low].min()), high << 64 | int(lo[hi == high].max()))
        self._index = {}
        if self.coded is not None and self.coded.rotation is None:
            self.coded = None  # by now there may be a rotation
        self._room, self._view, self.sealed = self.n, None, True

    def place(self) -> tuple[int, int]:
        """The descriptor of the file whose bytes its vectors are and where they begin in it; -1, 0: no file's."""
        if self.mapped_from is None:
            return -1, 0
        file, offset = self.mapped_from
        return file.handle(), offset

    def vector(self, row: int) -> npt.NDArray[np.float32]:
        """One row's, without making more of a file resident than that."""
        file, offset = self.place()
        if file >= 0:
            read = os.pread(file, 4 * self.dim, offset + 4 * self.dim * row)
            if len(read) == 4 * self.dim:
                return np.frombuffer(read, np.float32)
        vector: npt.NDArray[np.float32] = self._arrays["vector"][row]
        return vector

    def let_go(self) -> None:
        """Has the pages of its mapped vectors and texts be resident no more, until they are read again."""
        if self.mapped_from is None:
            return
        vectors = self._arrays["vector"]
        regions = [(vectors.__array_interface__["data"][0], vectors.nbytes)]
        for texts in self._texts.values():
            if isinstance(texts, pa.Array):
                regions += [(buffer.address, buffer.size) for buffer in texts.buffers() if buffer is not None]
        self.mapped_from[0].let_go(regions)

    def widen(self, dim: int) -> None:
        """Rows written before the store had a width get all-zero vectors (untouched pages, so no memory)."""
        self._arrays = {**self._arrays, "vector": np.zeros((self._room, dim), dtype=np.float32)}
        self._view = self.coded = None

    def view(self, n: int | None = None) -> View:
        """The first `n` rows, all by default."""
        n = self.n if n is None else n
        view, arrays, texts = self._view, self._arrays, self._texts
        if view is None or view.n != n or view.made_of is not arrays or view.texts is not texts:
            view = self._view = View(n, arrays, texts, self.kinds, self._range)
        return view

    def is_whole(self, view: View) -> bool:
        """Whether a view has all columns that there are by now."""
        return view.made_of is self._arrays

    def coded_upto(self, n: int) -> int:
        """Of how many rows there should be codes: all if it is sealed, else the whole blocks among the first `n`; 0 if
        that are too few.
        """
        upto = self.n if self.sealed else n // BLOCK * BLOCK
        return upto if upto >= LEAST_CODED and self.dim else 0

    def codes(self, n: int, rotation: Rotation | None) -> Codes | None:
        """The codes of its rows, as far as `coded_upto` says, or None. Made when they are first asked for; `Coder` sees
        to it that one thread does that.
        """
        upto = self.coded_upto(n)
        if not upto:
            return None
        codes = self.coded
        if codes is None or codes.rows < upto:
            if codes is None:
                codes = Codes(self.n if self.sealed else ROWS, self.dim, rotation)
            codes.extend(self._arrays, upto)
            self.coded = codes
        return codes

    def set(self, name: str, row: int, value: int) -> None:
        """Writes one of the `MUTABLE` columns."""
        if name not in self._arrays:
            if not value:
                return
            self._add_column(name)
        self._arrays[name][row] = value

    def _add_column(self, name: str) -> None:
        """In a new dict, so that a view of the old one is known to lack it."""
        self._arrays = {**self._arrays, name: np.zeros(self._room, dtype=FIXED[name])}

    def mark(self, columns: Mapping[str, npt.NDArray[Any]], rows: npt.NDArray[np.int64]) -> None:
        """Sets some of the `MUTABLE` columns at many rows."""
        for name, values in columns.items():
            if name in self._arrays or values.any():
                if name not in self._arrays:
                    self._add_column(name)
                self._arrays[name][rows] = values
        self.count_forgotten()

    def count_forgotten(self) -> None:
        gone = self._arrays.get("forgotten_seq")
        self.forgotten = 0 if gone is None else int(np.count_nonzero(gone[: self.n]))

    def get(self, name: str, row: int) -> int:
        """One value of a fixed-width column of whole numbers."""
        array = self._arrays.get(name)
        return 0 if array is None else int(array[row])

    def text(self, name: str, row: int) -> str | None:
        return self.view().text(name, row)

    def rows_under(self, key: str) -> list[int]:
        """The rows written under a key, forgotten ones too, oldest first. May be asked without the lock."""
        return self._indexed("key").rows(key)

    def retry_of(self, session: int, role: int, key: str) -> int | None:
        """The first row that was written with this idempotency key in a session and role, if it is not forgotten."""
        for row in self._indexed("idempotency_key").rows(key):
            mine = (self.get("session", row), self.get("role", row)) == (session, role)
            if mine and not self.get("forgotten_seq", row):
                return row
        return None

    def _indexed(self, name: str) -> _Index:
        index = self._index.get(name)
        if index is None or index.texts is not self._texts[name]:
            index = self._index[name] = _Index(self._texts[name])
        index.reach(self.n)
        return index

    def row_of(self, seq: int) -> int | None:
        row = int(np.searchsorted(self._arrays["seq"][: self.n], seq))
        return row if row < self.n and self._arrays["seq"][row] == seq else None

    def batch(self, rows: npt.NDArray[np.int64]) -> Columns:
        """These rows as columns that can be appended elsewhere."""
        view = self.view()
        columns: Columns = {
            name: zeros(name, len(rows)) if view.zero(name) else array[rows] for name, array in view.columns.items()
        }
        columns.update((name, view.texts_at(name, rows).to_pylist()) for name in TEXTS)
        return columns

    def nbytes(self) -> int:
        """Bytes of the rows held: vectors, columns and texts, int8 codes, indexes, and what filters have read out of
        them.
        """
        fixed: int = sum(
            self.n * a.itemsize * (self.dim if name == "vector" else 1) if a.strides != (0,) else a.itemsize
            for name, a in self._arrays.items()
        )
        held = [texts for texts in self._texts.values() if texts is not None]
        texts = sum(int(t.nbytes) for t in held) if self.sealed else self.text_bytes + _STR_BYTES * self.n * len(held)
        codes = self.coded.nbytes() if self.coded else 0
        codes += sum(index.nbytes() for index in tuple(self._index.values()))
        codes += sum(int(chunk.nbytes()) for chunk in self.worded)
        held_by_filters = (*self.derived.values(), *self.filtered.values())
        return fixed + texts + codes + sum(int(values.nbytes) for values in held_by_filters)


_INDEX_ENTRY = 160  # bytes of a key's text and its list of rows in a dict, about
_indexing = threading.Lock()
os.register_at_fork(before=_indexing.acquire, after_in_parent=_indexing.release, after_in_child=_indexing.release)


class _Index:
    """Finds the rows of a text column by their text: a dict while it grows, sorted hashes once the column is Arrow's.

    The hashes take 12 bytes a row that has a text, where the dict takes 160; a look-up is 3 µs in both.
    """

    __slots__ = ("_hashes", "_reached", "_rows", "_seen", "texts")

    def __init__(self, texts: Any) -> None:
        self.texts = texts
        self._reached = 0
        self._seen: dict[str, list[int]] = {}
        self._hashes: npt.NDArray[np.int64] | None = None
        self._rows = np.empty(0, dtype=np.int32)
        if isinstance(texts, pa.Array):
            present = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
            hashes = np.fromiter(map(hash, texts.drop_null().to_pylist()), np.int64, len(present))
            order = np.argsort(hashes, kind="stable")
            self._hashes, self._rows = hashes[order], present[order].astype(np.int32)

    def reach(self, n: int) -> None:
        """Takes in the rows up to `n`, if texts have been added."""
        if self._hashes is not None or self.texts is None or self._reached >= n:
            return
        with _indexing:
            for row in range(self._reached, n):
                if self.texts[row] is not None:
                    self._seen.setdefault(self.texts[row], []).append(row)
            self._reached = max(n, self._reached)

    def rows(self, text: str) -> list[int]:
        if self._hashes is None:
            return list(self._seen.get(text, ()))
        first, last = (int(np.searchsorted(self._hashes, hash(text), side)) for side in ("left", "right"))
        return [row for row in self._rows[first:last].tolist() if self.texts[row].as_py() == text]

    def nbytes(self) -> int:
        held = 0 if self._hashes is None else self._hashes.nbytes + self._rows.nbytes
        return held + _INDEX_ENTRY * len(self._seen)


def _cut(name: str, array: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
    """The first `n` values in an array of their own, or one value for all where they are the same."""
    values = array[:n]
    if name not in SCANNED and name not in MUTABLE and (values == values[0]).all():
        return np.broadcast_to(values[0].copy(), n)
    return array if len(array) == n else values.copy()

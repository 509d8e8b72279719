"""Where do rows lie? A segment: up to 32,768 record versions of one scope as columns, appended to until it is sealed.

Fixed-width columns are NumPy arrays, doubled when full, so that an append costs O(1) on average; texts are lists until the
segment is sealed into Arrow arrays. Rows are never changed in place but for the marks and counters in `MUTABLE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

ROWS = 32_768  # rows a segment: 33 MB of 256-d vectors. One query pays about 8 µs a segment, a rewrite is 20 ms
TEXT_BYTES = 256 << 20  # or this much text, well below the 2 GB that Arrow's 32-bit offsets reach
_FIRST_ROWS = 16

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
    "access_count": np.int32,
    "last_access": np.int64,  # 0: never
    "retired_seq": np.int64,  # 0: stands; else the seq of the commit that superseded or forgot the row
    "retired_at": np.int64,  # when it was superseded; FORGOTTEN if it was forgotten
}
TEXTS = ("key", "content", "metadata", "idempotency_key")
MUTABLE = ("access_count", "last_access", "retired_seq", "retired_at")
# Mostly zero: such a column is not copied while it is untouched, so that its pages stay the system's zero page and cost
# no memory (36 of about 105 bytes a row).
_SPARSE = (*MUTABLE, "expires_at", "untrusted")
FORGOTTEN = np.iinfo(np.int64).min

NO_CODES = (np.zeros((0, 0), np.int8), np.zeros(0, np.float32), np.zeros(0, np.float32))
for _array in NO_CODES:
    _array.flags.writeable = False

Columns = dict[str, Any]  # by the names of FIXED and TEXTS, and "vector"


class Segment:
    __slots__ = ("_arrays", "_codes", "_ids", "_texts", "_touched", "_views", "dim", "forgotten", "kinds", "n", "parsed", "sealed", "text_bytes")

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.n = 0
        self.sealed = False
        self.forgotten = 0  # rows that are forgotten and still lie here
        self.text_bytes = 0
        self.kinds: set[int] = set()  # codes of the kinds that its rows have
        self._ids = (0, 0)  # the lowest and the highest id once sealed
        self.parsed: dict[str, list[Any]] = {}  # values of metadata keys that a filter has asked for
        self._touched: set[str] = set()
        self._arrays: Columns = self._allocate(_FIRST_ROWS)
        self._texts: dict[str, Any] = {name: [] for name in TEXTS}
        self._views: Columns | None = None
        self._codes: tuple[npt.NDArray[np.int8], npt.NDArray[np.float32], npt.NDArray[np.float32]] | None = None

    def _allocate(self, rows: int) -> Columns:
        arrays: Columns = {name: np.zeros(rows, dtype=dtype) for name, dtype in FIXED.items()}
        arrays["vector"] = np.zeros((rows, self.dim), dtype=np.float32)
        return arrays

    @property
    def full(self) -> bool:
        return self.n >= ROWS or self.text_bytes >= TEXT_BYTES

    def append(self, columns: Columns, start: int, stop: int) -> int:
        """Appends rows `start` to `stop` of the columns, as many as there is room for; returns where it stopped."""
        stop = min(stop, start + ROWS - self.n)
        stop = self._fitting(columns, start, stop)
        begin, end = self.n, self.n + stop - start
        if end > len(self._arrays["seq"]):
            self._grow(end)
        for name, array in self._arrays.items():
            rows = columns[name][start:stop]
            if name in _SPARSE:
                if not rows.any():
                    continue
                self._touched.add(name)
            array[begin:end] = rows
        for name, texts in self._texts.items():
            texts.extend(columns[name][start:stop])
        self.kinds |= set(np.unique(columns["kind"][start:stop]).tolist())
        self.n = end
        return stop

    def _fitting(self, columns: Columns, start: int, stop: int) -> int:
        """Counts the texts of the rows in, and stops after the one that reaches TEXT_BYTES."""
        content, metadata = columns["content"], columns["metadata"]
        for row in range(start, stop):
            self.text_bytes += len(content[row]) + len(metadata[row] or "")
            if self.text_bytes >= TEXT_BYTES:
                return row + 1
        return stop

    def _grow(self, least: int) -> None:
        rows = min(ROWS, max(2 * len(self._arrays["seq"]), 1 << (least - 1).bit_length()))
        old, self._arrays = self._arrays, self._allocate(rows)
        for name, array in self._arrays.items():
            if name not in _SPARSE or name in self._touched:
                array[: self.n] = old[name][: self.n]

    def seal(self) -> None:
        """No more appends: arrays are cut to size, texts become Arrow arrays."""
        if len(self._arrays["seq"]) > self.n:
            self._arrays = {
                name: array[: self.n].copy() if name not in _SPARSE or name in self._touched else array[: self.n]
                for name, array in self._arrays.items()
            }
        self._texts = {name: pa.array(texts, pa.string()) for name, texts in self._texts.items()}
        self._sealed()

    def _sealed(self) -> None:
        hi, lo = self._arrays["id_hi"], self._arrays["id_lo"]
        low, high = int(hi.min()), int(hi.max())
        self._ids = (low << 64 | int(lo[hi == low].min()), high << 64 | int(lo[hi == high].max()))
        self._views = None
        self.sealed = True

    def widen(self, dim: int) -> None:
        """Rows written before the store had a width get all-zero vectors (untouched pages, so no memory)."""
        self.dim = dim
        self._arrays = {**self._arrays, "vector": np.zeros((len(self._arrays["seq"]), dim), dtype=np.float32)}
        self._views = self._codes = None

    def views(self) -> Columns:
        """The columns of all rows so far, read-only: the one form that kernels see, since Numba compiles by it."""
        if self._views is None or len(self._views["seq"]) != self.n or not self.sealed:
            views = {name: array[: self.n] for name, array in self._arrays.items()}
            for array in views.values():
                array.flags.writeable = False
            self._views = views
        return self._views

    def codes(self) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """The int8 codes of a sealed segment's vectors, their scales and what they miss, made when they are first asked for.

        A tail has none: its rows are read as float32. Two threads that ask at once both make them, and one pair stays.
        """
        if not self.sealed or not self.dim:
            return NO_CODES
        if self._codes is None:
            from memcore_kernels.codes import quantise

            codes = (np.empty((self.n, self.dim), np.int8), np.empty(self.n, np.float32), np.empty(self.n, np.float32))
            quantise(self.views()["vector"], *codes)
            for array in codes:
                array.flags.writeable = False
            self._codes = codes
        return self._codes

    def set(self, name: str, row: int, value: int) -> None:
        """Writes one of the `MUTABLE` columns."""
        self._touched.add(name)
        self._arrays[name][row] = value

    def touched(self, name: str) -> bool:
        return name in self._touched

    def column(self, name: str) -> npt.NDArray[Any]:
        """A fixed-width column, with room for rows to come behind the first `n`."""
        array: npt.NDArray[Any] = self._arrays[name]
        return array

    def seq_at(self, row: int) -> int:
        return int(self._arrays["seq"][row])

    def row_of(self, seq: int) -> int | None:
        row = int(np.searchsorted(self._arrays["seq"][: self.n], seq))
        return row if row < self.n and self._arrays["seq"][row] == seq else None

    def rows_of(self, hi: int, lo: int) -> npt.NDArray[np.int64]:
        """The rows that hold versions of this id, oldest first."""
        if self.sealed and not self._ids[0] <= hi << 64 | lo <= self._ids[1]:  # ids rise with time: most segments fall out
            return np.empty(0, dtype=np.int64)
        found = np.flatnonzero(self._arrays["id_lo"][: self.n] == np.uint64(lo))
        return found[self._arrays["id_hi"][found] == np.uint64(hi)]

    def rows_with_key(self, key: str) -> npt.NDArray[np.int64]:
        """The rows written under this key, oldest first."""
        keys = self._texts["key"]
        if isinstance(keys, pa.Array):
            return np.flatnonzero(pc.fill_null(pc.equal(keys, key), False).to_numpy(zero_copy_only=False))
        return np.array([row for row, held in enumerate(keys) if held == key], dtype=np.int64)

    def text(self, name: str, row: int) -> str | None:
        value = self._texts[name][row]
        return value.as_py() if self.sealed else value

    def texts(self, name: str, rows: Sequence[int] | npt.NDArray[np.int64]) -> pa.Array:
        """A text column at these rows."""
        texts = self._texts[name]
        if isinstance(texts, pa.Array):
            return texts.take(pa.array(rows, pa.int64()))
        return pa.array([texts[row] for row in rows], pa.string())

    def kept(self, rows: npt.NDArray[np.int64]) -> Segment:
        """A sealed copy with these rows only."""
        copy = Segment(self.dim)
        copy._touched = set(self._touched)
        copy._arrays = {name: array[rows] for name, array in self._arrays.items()}
        copy._texts = {name: self.texts(name, rows) for name in TEXTS}
        copy.n, copy.text_bytes = len(rows), self.text_bytes
        copy.kinds = set(np.unique(copy._arrays["kind"]).tolist())
        copy._sealed()
        return copy

    def nbytes(self) -> int:
        """Bytes of the rows held: vectors, columns and texts (lists of Python texts counted by their length)."""
        fixed = sum(a[: self.n].nbytes for name, a in self._arrays.items() if name not in _SPARSE or name in self._touched)
        texts = self.text_bytes if not self.sealed else sum(t.nbytes for t in self._texts.values())
        return fixed + texts + (sum(array.nbytes for array in self._codes) if self._codes else 0)

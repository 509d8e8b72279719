"""How do rows lie in a segment file? An Arrow IPC file of the record's columns, written once and memory-mapped.

Any Arrow reader sees records: the columns of `record_schema`, in its order, those of few values dictionary-encoded. The
columns behind them, whose names begin with "_", hold the same in the form that memcore computes with, so that opening a
file copies nothing. Each row has a CRC of what its caller gave. Rows are in the order of scope and seq; a part is the
rows of one scope, within one record batch. The catalog tells where the parts are, and what of them need not be read.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import json
import mmap
import os
import re
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore import ids
from memcore.errors import StoreCorrupt, StoreError, StoreFull, StoreReadOnly
from memcore.gate import KINDS, first_line
from memcore.schema import FORMAT_VERSION, TIMESTAMP, record_schema
from memcore.store import segment as segments
from memcore.store.segment import COUNTERS, FIXED, MARKS, SCANNED, SPARSE, TEXTS, Columns, Segment
from memcore.store.steps import step

SEGMENTS = "segments"
OF_SCOPE = ("tenant_id", "project_id")
CODED = {"kind": "kind", "session_id": "session", "agent_role": "role", "source": "source"}
# column of the store -> column of the file that holds it as it is
PHYSICAL = {
    "id_hi": "_id_hi", "id_lo": "_id_lo", "seq": "seq", "version": "version", "session": "_session", "role": "_role",
    "kind": "_kind", "level": "level", "importance": "importance", "event_time": "event_time",
    "ingested_at": "ingested_at", "expires_at": "expires_at", "source": "_source", "confidence": "confidence",
    "untrusted": "untrusted", "has_vector": "_has_vector", "tokens": "_tokens", "superseded_seq": "_superseded_seq",
    "superseded_at": "superseded_at", "forgotten_seq": "_forgotten_seq", "lapsed": "_lapsed",
}  # fmt: skip


def file_schema(dim: int) -> pa.Schema:
    """The schema of a segment file whose vectors have this width, 0 for none."""
    encoded = pa.dictionary(pa.int32(), pa.string())
    few = ("tenant_id", "project_id", "session_id", "agent_role", "kind", "source")
    fields = [field.with_type(encoded) if field.name in few else field for field in record_schema(dim or None)]
    for name, column in PHYSICAL.items():
        if column.startswith("_"):
            fields.append(pa.field(column, pa.from_numpy_dtype(np.dtype(FIXED[name])), nullable=False))
    fields.append(pa.field("_crc", pa.uint32(), nullable=False))
    return pa.schema(fields, metadata={"memcore_format": str(FORMAT_VERSION)})


@dataclass(frozen=True, slots=True)
class Share:
    """Rows of one scope that go into a file: some rows of a segment, their CRCs, and the marks that they get."""

    scope: tuple[str, str]
    segment: Segment
    rows: npt.NDArray[np.int64]
    crcs: npt.NDArray[np.uint32]
    marks: Columns = field(default_factory=dict)


class Written(NamedTuple):
    """A part of a file that was written: what the catalog tells of it."""

    scope: tuple[str, str]
    start: int
    rows: int
    first_seq: int
    last_seq: int
    about: str


class Source(NamedTuple):
    """Which part of which file a segment lies in."""

    file: str
    start: int


# Writing


def write(path: Path, shares: Sequence[Share], names: Sequence[str], dim: int) -> tuple[list[Written], int, int]:
    """Writes a file, whole and on disk before it has its name; its parts, bytes and CRC.

    `shares` in the order of scope and seq. Neighbours of one scope make one part, up to the size of a segment.
    """
    schema = file_schema(dim)
    words = _words(shares, names)
    parts: list[Written] = []
    start = 0
    with appearing(path) as part:
        with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for number, batch in enumerate(_batches(shares)):
                columns = [_columns(share) for share in batch]
                writer.write_batch(_batch(batch, columns, words, dim, schema))
                at = 0
                for scope, mine in itertools.groupby(range(len(batch)), key=lambda i: batch[i].scope):
                    places = list(mine)
                    held = {name: _joined([columns[i][name] for i in places]) for name in FIXED}
                    n = len(held["seq"])
                    text_bytes = sum(batch[i].segment.text_bytes for i in places)
                    about = about_of(held, text_bytes, number, at)
                    parts.append(Written(scope, start, n, int(held["seq"][0]), int(held["seq"][-1]), about))
                    at, start = at + n, start + n
                step("while a file is written")
        size, crc = on_disk(part)
        step("before a file has its name")
        part.replace(path)
        step("after a file has its name")
        sync_folder(path.parent)
    return parts, size, crc


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write under, and to rename when all is on disk; after an error nothing of it is left."""
    part = path.with_name(f".{path.name}.part")
    try:
        yield part
    except OSError as fault:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise write_fault(path, fault) from fault
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _batches(shares: Sequence[Share]) -> Iterator[list[Share]]:
    """Shares for one record batch each: as many rows and texts as a segment has at most."""
    batch: list[Share] = []
    rows = text_bytes = 0
    for share in shares:
        n, size = len(share.rows), share.segment.text_bytes
        if batch and (rows + n > segments.ROWS or text_bytes + size > segments.TEXT_BYTES):
            yield batch
            batch, rows, text_bytes = [], 0, 0
        batch.append(share)
        rows, text_bytes = rows + n, text_bytes + size
    yield batch


def _joined(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.ascontiguousarray(arrays[0]) if len(arrays) == 1 else np.concatenate(arrays)


def bytes_in(folder: Path) -> int:
    """Of all files below a folder; of those that are removed meanwhile, or not."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def write_fault(path: Path, fault: OSError) -> StoreError:
    """What to say of a file that could not be written."""
    if fault.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreFull(f"cannot write {path}: {fault.strerror}; what was acknowledged is safe: free space there")
    kind = StoreReadOnly if fault.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else StoreError
    return kind(f"cannot write {path}: {fault.strerror or fault}; check its folder")


def unreadable(path: Path) -> StoreError:
    """What to say of a file or folder that may not be read: whether it is damaged nobody knows."""
    return StoreError(f"cannot read {path}: {os.strerror(errno.EACCES)}; check its permissions")


def on_disk(path: Path) -> tuple[int, int]:
    """Has the system write a file to the disk; its size and CRC, as it reads back."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    return crc_of_file(path)


def crc_of_file(path: Path) -> tuple[int, int]:
    """Bytes and CRC-32 of a file."""
    size = crc = 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(1 << 20):
            crc, size = zlib.crc32(block, crc), size + len(block)
    return size, crc


def check_file(path: Path, size: int, crc: int) -> None:
    """Refuses a segment file that is not as it was written."""
    try:
        found = crc_of_file(path)
    except OSError:
        return  # compaction has put another in its place; who reads it will tell if it is not so
    if found != (size, crc):
        raise StoreCorrupt(
            f"{path} is damaged: its checksum is another than when it was written; nothing was changed: run memcore "
            "verify --repair, which keeps the rows that are whole, or restore the store from an export"
        )


def sync_folder(folder: Path) -> None:
    """Has the names in a folder on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _columns(share: Share) -> Columns:
    """The fixed columns of a share's rows, without a copy where they are all of a segment's."""
    view, rows = share.segment.view(), share.rows
    columns = view.columns
    if len(rows) != view.n and rows[-1] - rows[0] == len(rows) - 1:
        columns = {name: array[rows[0] : rows[-1] + 1] for name, array in columns.items()}
    elif len(rows) != view.n:
        columns = {name: array[rows] for name, array in columns.items()}
    return {**columns, **share.marks}


def about_of(c: Columns, text_bytes: int, batch: int, row: int) -> str:
    """What the catalog tells of a part, so that opening it reads nothing: columns of one value, the ids' range …"""
    same = {
        name: c[name][0].item()
        for name in FIXED
        if name not in SCANNED and name not in COUNTERS and (c[name] == c[name][0]).all()
    }
    hi, lo = c["id_hi"], c["id_lo"]
    low, high = int(hi.min()), int(hi.max())
    id_range = [str(low << 64 | int(lo[hi == low].min())), str(high << 64 | int(lo[hi == high].max()))]
    told = {
        "batch": batch, "row": row, "same": same, "ids": id_range, "kinds": np.unique(c["kind"]).tolist(),
        "text_bytes": text_bytes, "forgotten": int(np.count_nonzero(c["forgotten_seq"])),
    }  # fmt: skip
    return json.dumps(told, separators=(",", ":"))


def _batch(
    shares: Sequence[Share], columns: Sequence[Columns], words: Mapping[str, _Words], dim: int, schema: pa.Schema
) -> pa.RecordBatch:
    def joined(name: str) -> npt.NDArray[Any]:
        return _joined([c[name] for c in columns])

    sizes = [len(share.rows) for share in shares]
    crcs = np.concatenate([share.crcs for share in shares])
    made: dict[str, pa.Array] = {"_crc": pa.array(crcs, pa.uint32())}
    for name, column in PHYSICAL.items():
        field = schema.field(column)
        if field.type == TIMESTAMP:
            values = joined(name)
            missing = None
            if name == "superseded_at":
                missing = joined("superseded_seq") == 0
            elif name == "expires_at":
                missing = values == 0
            made[column] = pa.array(values, pa.int64(), mask=missing).view(TIMESTAMP)
        else:
            made[column] = pa.array(joined(name), field.type)
    n = sum(sizes)
    made["id"] = pa.array(ids.to_texts(joined("id_hi"), joined("id_lo")), pa.string())
    for place, column in enumerate(OF_SCOPE):
        codes = [words[column].texts.index(share.scope[place]) for share in shares]
        made[column] = _encoded(np.repeat(codes, sizes), words[column])
    for column, name in CODED.items():
        made[column] = _encoded(joined(name), words[column])
    for name in TEXTS:
        arrays = [share.segment.view().texts_at(name, share.rows) for share in shares]
        made[name] = pa.concat_arrays(arrays)
    if dim:
        has = joined("has_vector")
        vectors = pa.array(joined("vector").reshape(-1), pa.float32())
        made["vector"] = pa.FixedSizeListArray.from_arrays(vectors, dim, mask=None if has.all() else pa.array(~has))
    else:
        made["vector"] = pa.nulls(n)
    made["access_count"] = pa.array(np.zeros(n, np.int32))  # counters are the catalog's
    made["last_access"] = pa.nulls(n, TIMESTAMP)
    return pa.RecordBatch.from_arrays([made[field.name] for field in schema], schema=schema)


class _Words(NamedTuple):
    """The dictionary of a column for the whole file, since a file has one a column: rising codes, and their texts."""

    codes: npt.NDArray[np.int64]
    texts: list[str]


def _words(shares: Sequence[Share], names: Sequence[str]) -> dict[str, _Words]:
    made: dict[str, _Words] = {}
    for place, column in enumerate(OF_SCOPE):
        texts = sorted({share.scope[place] for share in shares})
        made[column] = _Words(np.arange(len(texts)), texts)
    for column, name in CODED.items():
        each = [np.unique(share.segment.view().columns[name][share.rows]) for share in shares]
        used = np.unique(np.concatenate(each))
        values = KINDS if column == "kind" else names
        made[column] = _Words(used.astype(np.int64), [values[code] for code in used.tolist()])
    return made


def _encoded(codes: npt.NDArray[Any], words: _Words) -> pa.DictionaryArray:
    places = np.searchsorted(words.codes, codes).astype(np.int32)
    return pa.DictionaryArray.from_arrays(pa.array(places), pa.array(words.texts, pa.string()))


# Reading


class SegmentFile:
    """An open segment file: its batches, mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._opened = _state(path)
            self._map = pa.memory_map(str(path), "rb")
            self._begin: int = self._map.read_buffer(1).address
            self._map.seek(0)
            self._handle: int | None = None
            self._reader = pa.ipc.open_file(self._map)
            self.schema: pa.Schema = self._reader.schema
            self._batches: dict[int, pa.RecordBatch] = {}
        except FileNotFoundError:
            raise
        except PermissionError as fault:
            raise unreadable(path) from fault
        except (pa.ArrowException, OSError) as fault:
            raise corrupt(path, fault) from fault

    def as_opened(self) -> bool:
        """Whether it still lies there as it was: to read more of a mapped file that was cut would end the process."""
        try:
            return _state(self.path) == self._opened
        except OSError:
            return False

    def handle(self) -> int:
        """A descriptor of the same file, or -1 where another one lies in its place. Closed with the last segment."""
        if self._handle is None:
            handle = -1
            with contextlib.suppress(OSError):
                handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                there = os.fstat(handle)
                if (there.st_dev, there.st_ino, there.st_size, there.st_mtime_ns) != self._opened:
                    os.close(handle)
                    handle = -1
            if handle >= 0:
                weakref.finalize(self, os.close, handle)
            self._handle = handle
        return self._handle

    def let_go(self, regions: Iterable[tuple[int, int]]) -> None:
        """Has the pages of these addresses and sizes be resident no more, as far as they are of this file's bytes: of
        other memory the system would forget what it holds.
        """
        last = self._begin + self._opened[2]
        for address, size in regions:
            first = -(-max(address, self._begin) // mmap.PAGESIZE) * mmap.PAGESIZE
            length = (min(address + size, last) - first) // mmap.PAGESIZE * mmap.PAGESIZE
            if length > 0:
                _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), mmap.MADV_DONTNEED)

    def batches(self) -> Iterator[pa.RecordBatch]:
        for number in range(self._reader.num_record_batches):
            yield self.batch(number)

    def batch(self, number: int) -> pa.RecordBatch:
        if number not in self._batches:
            try:
                self._batches[number] = self._reader.get_batch(number)
            except (pa.ArrowException, OSError, ValueError) as fault:
                raise corrupt(self.path, fault) from fault
        return self._batches[number]

    def segment(self, source: Source, rows: int, about: Mapping[str, Any], dim: int) -> Segment:
        """A part as a segment whose arrays are the file's bytes."""
        try:
            return self._segment(source, rows, about, dim)
        except (pa.ArrowException, LookupError, ValueError, TypeError, AttributeError) as fault:
            raise corrupt(self.path, fault) from fault

    def _segment(self, source: Source, rows: int, about: Mapping[str, Any], dim: int) -> Segment:
        batch = self.batch(about["batch"])
        first = about["row"]
        if first + rows > batch.num_rows:
            raise ValueError(f"rows {first} to {first + rows} of a batch of {batch.num_rows}")
        arrays: Columns = {}
        for name, column in PHYSICAL.items():
            if name in about["same"]:
                value = about["same"][name]
                if name in SPARSE and not value:
                    continue
                arrays[name] = np.broadcast_to(np.array(value, dtype=FIXED[name]), rows)
                if name in MARKS:
                    arrays[name] = arrays[name].copy()
            else:
                arrays[name] = _values(batch.column(column), name, first, rows)
        arrays["vector"] = _vectors(batch.column("vector"), first, rows)
        texts = {name: _texts(batch.column(name).slice(first, rows)) for name in TEXTS}
        low, high = (int(text) for text in about["ids"])
        made = Segment.mapped(source, rows, arrays, texts, frozenset(about["kinds"]), (low, high), about["text_bytes"])
        if made.dim != dim:
            made.widen(dim)
        elif dim:
            made.mapped_from = self, arrays["vector"].__array_interface__["data"][0] - self._begin
        return made


_libc = ctypes.CDLL(None)


def _state(path: Path) -> tuple[int, ...]:
    there = path.stat()
    return there.st_dev, there.st_ino, there.st_size, there.st_mtime_ns


def corrupt(path: Path, fault: Exception) -> StoreError:
    """What to say of a segment file that could not be read."""
    if isinstance(fault, MemoryError) or os.strerror(errno.ENOMEM) in str(fault):
        return StoreError(
            f"cannot read {path}: {first_line(fault)}; the file is not at fault: free memory, and try again"
        )
    return StoreCorrupt(
        f"{path} is not a whole segment file ({first_line(fault)}); run memcore verify --repair to go on without "
        "it, or restore the store from an export"
    )


def _values(column: pa.Array, name: str, first: int, rows: int) -> npt.NDArray[Any]:
    """A fixed-width column as the file has it; what can be marked is copied."""
    dtype = np.dtype(FIXED[name])
    if dtype == np.bool_:
        values: npt.NDArray[Any] = column.slice(first, rows).to_numpy(zero_copy_only=False)
        return values.astype(np.bool_)
    values = np.frombuffer(column.buffers()[1], dtype, count=rows, offset=(column.offset + first) * dtype.itemsize)
    return values.copy() if name in MARKS else values


def _vectors(column: pa.Array, first: int, rows: int) -> npt.NDArray[np.float32]:
    if pa.types.is_null(column.type):
        return np.zeros((rows, 0), dtype=np.float32)
    dim = column.type.list_size
    at = (column.offset + first) * dim + column.values.offset
    values = np.frombuffer(column.values.buffers()[1], np.float32, count=rows * dim, offset=at * 4)
    return values.reshape(rows, dim)


def _texts(column: pa.Array) -> pa.Array | None:
    """A text column as the file has it; where its texts lie is checked, since Arrow would read outside the file."""
    if column.null_count == len(column):
        return None
    _, offsets, data = column.buffers()
    at = np.frombuffer(offsets, np.int32, count=len(column) + 1, offset=4 * column.offset)
    size = 0 if data is None else data.size
    if at[0] < 0 or at[-1] > size or (np.diff(at) < 0).any():
        raise ValueError("a text lies outside it")
    return column


@contextlib.contextmanager
def reading(source: object) -> Iterator[None]:
    """Tells of a damaged file where reading rows of it raises: a byte that is no UTF-8, a code that names nothing."""
    try:
        yield
    except DAMAGE as fault:
        told = damaged(source, fault)
        if told is fault:
            raise
        raise told from fault


# What reading rows of a damaged file raises.
DAMAGE = (pa.ArrowException, LookupError, OverflowError, ValueError, SystemError)


def damaged(source: object, fault: Exception) -> Exception:
    """What is to be raised where reading rows of it did: that its file is damaged, if it lies in one."""
    if not isinstance(source, Source) or isinstance(fault, StoreError):
        return fault
    return corrupt(Path(source.file), fault)


def crcs_of(batch: pa.RecordBatch, first: int, rows: int) -> npt.NDArray[np.uint32]:
    return np.frombuffer(batch.column("_crc").buffers()[1], np.uint32, count=rows, offset=4 * first)


_OWN = re.compile(r"[0-9a-f]{16}\.(arrow|parquet)|\.[0-9a-f]{16}\.(arrow|parquet)\.part")


def is_own(name: str) -> bool:
    """Whether a file of segments or of the cold tier has a name such as memcore gives, or writes it under."""
    return _OWN.fullmatch(name) is not None


def fresh_name(directory: Path) -> Path:
    """A name that no segment file has had."""
    for number in itertools.count():
        path = directory / SEGMENTS / f"{os.urandom(8).hex()}.arrow"
        if number > 10 or not path.exists():
            return path
    raise AssertionError

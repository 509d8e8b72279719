"""Where do memories lie that are hardly asked for? In the cold tier: Parquet files by tenant and month, read on demand.

A file holds rows of one scope whose events were in one month, for any reader of Parquet: the columns of
`record_schema`, and behind them some that memcore needs, whose names begin with "_". It is written whole before the
catalog names it, and never changed: the catalog tells which of its rows are gone, and sweeping writes it anew without
them. All versions of a memory move in one commit, which names their files and forgets the hot rows for good. So the hot
tier needs to know nothing of the cold one, and no moment sees a memory in both or in none.

A store in RAM has the same, with tables in place of files.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from memcore.errors import StoreCorrupt
from memcore.gate import KINDS, first_line
from memcore.schema import TIMESTAMP
from memcore.store import segment as segments
from memcore.store.files import appearing, crc_of_file, is_own, sync_folder, unreadable
from memcore.store.segment import FIXED, SPARSE, TEXTS, Columns, Segment
from memcore.store.steps import step

if TYPE_CHECKING:
    from memcore.store.snapshot import Snapshot

COLD = "cold"
HELD_BYTES = 256 << 20  # of what was read of cold files, kept in RAM for the next reader
_LONGEST = 200  # characters of a folder's name: file systems take 255 bytes
_OWN = ("id_hi", "id_lo", "tokens", "superseded_seq", "lapsed")  # columns that the record lacks, in files with a "_"
_CODED = {"session_id": "session", "agent_role": "role", "source": "source"}

I64 = npt.NDArray[np.int64]
BOOL = npt.NDArray[np.bool_]


class ColdFile(NamedTuple):
    """A file as the catalog tells of it. `memories`: rows that are the last version of theirs; times in µs."""

    file: str
    rows: int
    memories: int
    bytes: int
    crc: int
    first_time: int
    last_time: int
    moved_seq: int  # the commit that named it


class Cold(NamedTuple):
    """What a scope has in the cold tier: its files, and which of their rows are gone. Never changed, but replaced.

    `seqs` of the rows that are gone, rising; `commits`: of each the commit that forgot it or brought it back; `lasts`:
    whether it was the last version of its memory.
    """

    files: tuple[ColdFile, ...]
    seqs: I64
    commits: I64
    lasts: BOOL

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files) - len(self.seqs)

    @property
    def memories(self) -> int:
        return sum(file.memories for file in self.files) - int(np.count_nonzero(self.lasts))

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def with_files(self, files: Sequence[ColdFile]) -> Cold:
        return self._replace(files=(*self.files, *files))

    def gone(self, seqs: I64) -> I64:
        """Of rows, by seq, the commit that took each away, or 0."""
        if not len(self.seqs):
            return np.zeros(len(seqs), dtype=np.int64)
        at = np.minimum(np.searchsorted(self.seqs, seqs), len(self.seqs) - 1)
        return np.where(self.seqs[at] == seqs, self.commits[at], 0)

    def without(self, seqs: I64, lasts: BOOL, commit: int) -> Cold:
        """Rows are gone, by a commit; also such as another commit has taken away before."""
        kept = self.back(seqs)
        every = np.concatenate([kept.seqs, seqs])
        order = np.argsort(every, kind="stable")
        commits = np.concatenate([kept.commits, np.full(len(seqs), commit, dtype=np.int64)])
        return Cold(self.files, every[order], commits[order], np.concatenate([kept.lasts, lasts])[order])

    def back(self, seqs: I64) -> Cold:
        """Rows are not gone, or not told of any more."""
        kept = ~np.isin(self.seqs, seqs)
        return Cold(self.files, self.seqs[kept], self.commits[kept], self.lasts[kept])

    def swept(self, old: ColdFile, new: ColdFile | None, seqs: I64) -> Cold:
        """A file was written anew without some rows."""
        files = tuple(new if file == old else file for file in self.files)
        return self.back(seqs)._replace(files=tuple(file for file in files if file is not None))


NO_COLD = Cold((), np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.bool_))


# Places


class Place(Protocol):
    """Where cold tables are kept, by name."""

    def write(self, name: str, table: pa.Table) -> tuple[int, int]:
        """Keeps a table for good; its bytes and CRC."""

    def read(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A table, or some of its columns. Raises FileNotFoundError."""

    def remove(self, name: str) -> None: ...

    def names(self) -> list[str]:
        """All of memcore's that is there, whether the catalog names it or not; also what a crash left half-written."""


class Tables:
    """The place of a store in RAM."""

    def __init__(self) -> None:
        self._tables: dict[str, pa.Table] = {}

    def write(self, name: str, table: pa.Table) -> tuple[int, int]:
        self._tables[name] = table
        return int(table.nbytes), 0

    def read(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        table = self._tables.get(name)
        if table is None:
            raise FileNotFoundError(name)
        return table if columns is None else table.select(columns)

    def remove(self, name: str) -> None:
        self._tables.pop(name, None)

    def names(self) -> list[str]:
        return list(self._tables)


class Folder:
    """The place of a store in a directory: Parquet files below `cold/`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, table: pa.Table) -> tuple[int, int]:
        """Writes a file, whole and on disk before it has its name."""
        import pyarrow.parquet as pq

        path = self.root / name
        with appearing(path) as part:
            self._make(path.parent)
            with part.open("wb") as file:
                pq.write_table(table, file, compression="zstd", write_page_checksum=True)
                file.flush()
                os.fsync(file.fileno())
            size, crc = crc_of_file(part)
            part.replace(path)
            sync_folder(path.parent)
        return size, crc

    def _make(self, folder: Path) -> None:
        """Makes a folder and those above it, their names on disk too."""
        if not folder.is_dir():
            if folder != self.root:
                self._make(folder.parent)
            folder.mkdir(exist_ok=True)
            sync_folder(folder.parent)

    def read(self, name: str, columns: Sequence[str] | None = None) -> pa.Table:
        import pyarrow.parquet as pq

        path = self.root / name
        try:
            with path.open("rb") as source:
                table = pq.ParquetFile(source, page_checksum_verification=True).read(columns)
        except FileNotFoundError:
            raise
        except PermissionError as fault:
            raise unreadable(path) from fault
        except (pa.ArrowException, OSError) as fault:
            raise StoreCorrupt(
                f"{path} is not a whole cold file ({first_line(fault)}); put a copy of it back, or restore the store "
                "from an export. The hot memories are not touched by it"
            ) from fault
        return table

    def remove(self, name: str) -> None:
        """Also the folders that are empty then."""
        path = self.root / name
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            while path.parent != self.root:
                path = path.parent
                path.rmdir()

    def names(self) -> list[str]:
        return [path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if is_own(path.name)]


def folder_of(tenant: str, month: str) -> str:
    """The folders of a tenant's month. A tenant's id may be any text, and is read back by `tenant_of`.

    Its UTF-8 is percent-encoded but for ASCII letters, digits and "-._"; a long one is base64 behind a "~", in pieces.
    """
    encoded = quote(tenant, safe="").replace("~", "%7E")
    if len(encoded) > _LONGEST:
        encoded = "~" + base64.urlsafe_b64encode(tenant.encode()).decode()
    pieces = [encoded[at : at + _LONGEST] for at in range(0, len(encoded), _LONGEST)]
    return f"tenant={'/'.join(pieces)}/month={month}"


def tenant_of(folder: str) -> str:
    """The tenant of the name of a file or folder in the cold tier."""
    encoded = folder.removeprefix("tenant=").partition("/month=")[0].replace("/", "")
    return base64.urlsafe_b64decode(encoded[1:]).decode() if encoded[:1] == "~" else unquote(encoded)


# Moving out


def write(place: Place, snapshot: Snapshot, positions: I64, fingerprint: str | None) -> list[ColdFile]:
    """Writes rows of a scope, at rising positions, into files by month; nothing names them yet."""
    times, sizes = snapshot.values(positions, "event_time"), _text_bytes(snapshot, positions)
    months = times.view("datetime64[us]").astype("datetime64[M]")
    made: list[ColdFile] = []
    try:
        for month in np.unique(months):
            mine = np.flatnonzero(months == month)
            for first, last in _runs(sizes[mine]):
                chosen = positions[mine[first:last]]
                table = _table(snapshot, chosen, fingerprint)
                name = f"{folder_of(snapshot.tenant_id, str(month))}/{os.urandom(8).hex()}.parquet"
                step("before a cold file is written")
                made.append(_kept(place, name, table, 0))
    except BaseException:
        remove(place, made)
        raise
    return made


def remove(place: Place, files: Sequence[ColdFile]) -> None:
    for file in files:
        place.remove(file.file)


def _text_bytes(snapshot: Snapshot, positions: I64) -> I64:
    """The UTF-8 bytes of each row's texts."""
    total = np.zeros(len(positions), dtype=np.int64)
    for name in TEXTS:
        lengths = pc.fill_null(pc.binary_length(snapshot.texts(positions, name)), 0)
        total += lengths.to_numpy(zero_copy_only=False)
    return total


def _runs(sizes: I64) -> Iterator[tuple[int, int]]:
    """Cuts rows into runs that a segment can hold, by their bytes of text."""
    first, before = 0, 0
    sums = np.cumsum(sizes)
    while first < len(sizes):
        last = max(first + 1, int(np.searchsorted(sums, before + segments.TEXT_BYTES, side="right")))
        last = min(last, first + segments.ROWS)
        yield first, last
        first, before = last, int(sums[last - 1])


def _table(snapshot: Snapshot, positions: I64, fingerprint: str | None) -> pa.Table:
    table = snapshot.table(positions)
    for name in _OWN:
        table = table.append_column(f"_{name}", pa.array(snapshot.values(positions, name), _type(name)))
    told = {**(table.schema.metadata or {}), b"embedder": (fingerprint or "").encode()}
    return table.combine_chunks().replace_schema_metadata(told)


def _type(name: str) -> pa.DataType:
    return pa.from_numpy_dtype(np.dtype(FIXED[name]))


def _kept(place: Place, name: str, table: pa.Table, moved_seq: int) -> ColdFile:
    size, crc = place.write(name, table)
    times = pc.min_max(table.column("event_time").cast(pa.int64())).as_py()
    memories = int(np.count_nonzero(_lasts(table)))
    return ColdFile(name, table.num_rows, memories, size, crc, times["min"], times["max"], moved_seq)


def _lasts(table: pa.Table) -> BOOL:
    """Which rows are the last version of their memory."""
    lasts: BOOL = pc.or_(pc.equal(table.column("_superseded_seq"), 0), table.column("_lapsed")).to_numpy()
    return lasts


# Sweeping


def seqs_of(place: Place, file: ColdFile) -> I64:
    seqs: I64 = place.read(file.file, ["seq"]).column("seq").to_numpy()
    return seqs


def rewritten(place: Place, file: ColdFile, lost: I64) -> ColdFile | None:
    """A new file without the rows of these seqs, which nothing names yet; None if no row is left."""
    table = place.read(file.file)
    kept = table.filter(pa.array(~np.isin(table.column("seq").to_numpy(), lost)))
    if not kept.num_rows:
        return None
    return _kept(place, f"{file.file.rpartition('/')[0]}/{os.urandom(8).hex()}.parquet", kept, file.moved_seq)


def with_vectors(
    place: Place, file: str, table: pa.Table, vectors: npt.NDArray[np.float32], fingerprint: str
) -> ColdFile:
    """A new file with the rows of one, which was read, and other vectors, float32 `(n, dim)`; nothing names it yet."""
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1), pa.float32()), vectors.shape[1])
    at = table.schema.get_field_index("vector")
    made = table.set_column(at, "vector", lists)
    made = made.replace_schema_metadata({**(table.schema.metadata or {}), b"embedder": fingerprint.encode()})
    return _kept(place, f"{file.rpartition('/')[0]}/{os.urandom(8).hex()}.parquet", made, 0)


# Reading


class _Entry(NamedTuple):
    """A file that was read, for a width of vectors and an embedder; and the same with its rows that are gone."""

    dim: int
    fingerprint: str | None
    segment: Segment
    gone: I64
    marked: Segment


class Shelf:
    """Cold files as segments. What was read last stays in RAM, up to `HELD_BYTES`.

    Any thread may ask, without a lock, which a signal's handler could leave locked: each step on the dict is one call.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self._held: OrderedDict[str, _Entry] = OrderedDict()  # what was used last at the end

    def segments(self, cold: Cold, dim: int, fingerprint: str | None, codes: Mapping[str, int]) -> list[Segment]:
        """The rows of a scope's cold tier, those that are gone too, a segment each file, in the order of their seqs.

        Vectors of another width or embedder than the store's cannot be compared, and are left out. Raises
        FileNotFoundError where a file is not there any more.
        """
        found = [self._segment(file, cold, dim, fingerprint, codes) for file in cold.files]
        return sorted(found, key=lambda segment: segment.get("seq", 0))

    def _segment(
        self, file: ColdFile, cold: Cold, dim: int, fingerprint: str | None, codes: Mapping[str, int]
    ) -> Segment:
        entry = self._held.get(file.file)
        if entry is not None:
            self._keep(file.file)
        if entry is None or (entry.dim, entry.fingerprint) != (dim, fingerprint):
            made = _read(self.place.read(file.file), file.file, dim, fingerprint, codes)
            entry = _Entry(dim, fingerprint, made, np.zeros(made.n, np.int64), made)
            self._hold(file.file, entry)
        gone = cold.gone(entry.segment.view().columns["seq"])
        if not np.array_equal(gone, entry.gone):
            marked = entry.segment.with_forgotten(gone) if gone.any() else entry.segment
            entry = entry._replace(gone=gone, marked=marked)
            self._hold(file.file, entry)
        return entry.marked

    def _keep(self, name: str) -> None:
        with contextlib.suppress(KeyError):  # another thread has let go of it
            self._held.move_to_end(name)

    def _hold(self, name: str, entry: _Entry) -> None:
        self._held[name] = entry
        self._keep(name)
        every = list(self._held.items())
        sizes = [held.segment.nbytes() for _, held in every]
        total = sum(sizes)
        for (old, _), size in zip(every[:-1], sizes[:-1], strict=True):
            if total <= HELD_BYTES:
                break
            self._held.pop(old, None)
            total -= size


def _read(table: pa.Table, name: str, dim: int, fingerprint: str | None, codes: Mapping[str, int]) -> Segment:
    """A table as a sealed segment."""
    n = table.num_rows
    arrays: Columns = {column: _values(table, column, codes, name) for column in FIXED if column != "has_vector"}
    embedder = (table.schema.metadata or {}).get(b"embedder", b"").decode() or None
    arrays["vector"], arrays["has_vector"] = _vectors(table, dim if embedder == fingerprint else 0, dim)
    for column in SPARSE:
        if not arrays[column].any():
            del arrays[column]
    texts = {column: _texts(table.column(column)) for column in TEXTS}
    hi, lo = arrays["id_hi"], arrays["id_lo"]
    low, high = int(hi.min()), int(hi.max())
    id_range = (low << 64 | int(lo[hi == low].min()), high << 64 | int(lo[hi == high].max()))
    kinds = frozenset(np.unique(arrays["kind"]).tolist())
    text_bytes = sum(int(column.nbytes) for column in texts.values() if column is not None)
    return Segment.mapped(name, n, arrays, texts, kinds, id_range, text_bytes)


def _values(table: pa.Table, column: str, codes: Mapping[str, int], name: str) -> npt.NDArray[Any]:
    dtype = np.dtype(FIXED[column])
    if column == "forgotten_seq":  # the catalog's to tell
        return segments.zeros(column, table.num_rows)
    if column == "kind":
        return _coded(table.column("kind"), {kind: code for code, kind in enumerate(KINDS)}, name).astype(dtype)
    for public, coded in _CODED.items():
        if column == coded:
            return _coded(table.column(public), codes, name).astype(dtype)
    values = table.column(f"_{column}" if column in _OWN else column)
    if values.type == TIMESTAMP:
        values = pc.fill_null(values.cast(pa.int64()), 0)
    return np.ascontiguousarray(values.to_numpy(), dtype)


def _coded(column: pa.ChunkedArray, codes: Mapping[str, int], name: str) -> I64:
    encoded = column.combine_chunks().dictionary_encode()
    named = encoded.dictionary.to_pylist()
    lacking = [text for text in named if text not in codes]
    if lacking:
        raise StoreCorrupt(
            f"the cold file {name} names {lacking[0]!r}, which the catalog does not know; run memcore verify on the "
            "store"
        )
    places = encoded.indices.to_numpy(zero_copy_only=False)
    found: I64 = np.array([codes[text] for text in named], dtype=np.int64)[places]
    return found


def _vectors(table: pa.Table, width: int, dim: int) -> tuple[npt.NDArray[np.float32], BOOL]:
    """The vectors of a width, all zero where there is none, and which rows have one; none of another width."""
    n, column = table.num_rows, table.column("vector")
    vectors = np.zeros((n, dim), dtype=np.float32)
    if pa.types.is_null(column.type) or not width or column.type.list_size != width:
        return vectors, np.zeros(n, dtype=np.bool_)
    has: BOOL = column.is_valid().to_numpy()
    flat = pa.concat_arrays([chunk.flatten() for chunk in column.chunks])
    vectors[has] = flat.to_numpy(zero_copy_only=False).reshape(-1, width)
    return vectors, has


def _texts(column: pa.ChunkedArray) -> pa.Array | None:
    if column.null_count == len(column):
        return None
    joined = column.combine_chunks()
    return pa.concat_arrays(joined.chunks) if isinstance(joined, pa.ChunkedArray) else joined

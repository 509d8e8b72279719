"""Which rows of a segment file are as they were written? Of a whole file, and of one that is damaged.

Each row has a CRC of what it was written with, its scope included, so a row that is found by itself tells that it is
whole. From a damaged file the buffers are read row by row, since Arrow trusts what they say of each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore import ids
from memcore.errors import StoreCorrupt
from memcore.gate import KINDS
from memcore.store import cold, files, journal
from memcore.store.files import SegmentFile, Source, file_schema
from memcore.store.segment import FIXED, TEXTS, Columns, zeros

Name = tuple[str, str]  # of a scope: tenant, project
BOOL = npt.NDArray[np.bool_]
# What a catalog has under some seqs of a scope: the low halves of the ids, and whether there is one.
Known = Callable[[Name, npt.NDArray[np.int64]], tuple[npt.NDArray[np.uint64], BOOL]]
FAULTS = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError, StoreCorrupt)


def width_of(schema: pa.Schema) -> int:
    vector = schema.field("vector").type
    return 0 if pa.types.is_null(vector) else int(vector.list_size)


def sound_rows(name: Name, columns: Columns, crcs: npt.NDArray[np.uint32]) -> BOOL:
    """Which rows of a scope have the CRC that they were written with."""
    made = [row[-1] for row in journal.rows_of_columns(name, 0, columns)]
    sound: BOOL = np.array(made, dtype=np.uint32) == crcs
    return sound


def columns_of_batch(file: SegmentFile, number: int, first: int, rows: int) -> Columns:
    """Rows of a batch as the file has them, whatever the catalog tells of them."""
    about = {"batch": number, "row": first, "same": {}, "kinds": [], "ids": ["0", "0"], "text_bytes": 0}
    field_ = file.schema.field("vector")
    dim = 0 if pa.types.is_null(field_.type) else field_.type.list_size
    return file.segment(Source(file.path.name, 0), rows, about, dim).batch(np.arange(rows))


def runs_of(batch: pa.RecordBatch) -> list[tuple[Name, int, int]]:
    """The scopes of a batch: (scope, its first row, its rows), in the order of the rows."""
    texts = [batch.column(name).dictionary_decode().to_pylist() for name in ("tenant_id", "project_id")]
    scopes = list(zip(*texts, strict=True))
    runs: list[tuple[Name, int, int]] = []
    first = 0
    for row in range(1, len(scopes) + 1):
        if row == len(scopes) or scopes[row] != scopes[first]:
            runs.append((scopes[first], first, row - first))
            first = row
    return runs


def disagreeing(batch: pa.RecordBatch, names: Sequence[str], c: Columns, first: int, rows: int) -> list[str]:
    """The columns for readers that say something else than those that memcore computes with."""
    part = batch.slice(first, rows)
    wrong = []
    if part.column("id").to_pylist() != ids.to_texts(c["id_hi"], c["id_lo"]):
        wrong.append("id")
    for column, name, values in (
        ("kind", "kind", KINDS), ("session_id", "session", names), ("agent_role", "role", names),
        ("source", "source", names),
    ):  # fmt: skip
        codes = c[name].tolist()
        told = part.column(column).dictionary_decode().to_pylist()
        if any(not 0 <= code < len(values) or values[code] != text for code, text in zip(codes, told, strict=True)):
            wrong.append(column)
    for column, missing in (
        ("superseded_at", c["superseded_seq"] == 0),
        ("expires_at", c["expires_at"] == 0),
        ("vector", ~c["has_vector"]),
    ):
        if (part.column(column).is_null().to_numpy(zero_copy_only=False) != missing).any():
            wrong.append(column)
    return wrong


# A file that may be damaged


class Rows(NamedTuple):
    """Neighbouring rows of a scope in a batch: the columns and CRCs of those that are whole, and how many there are.
    The ids of the others are read where they stand, and may be wrong.
    """

    scope: Name
    columns: Columns
    crcs: npt.NDArray[np.uint32]
    total: int
    lost: list[str]
    words: list[tuple[int, str]]  # codes of names, and what the file says that they mean


def rows_in(path: Path) -> Iterator[Rows]:
    """What can be found in a segment file, by whatever way it can be read."""
    for batch in _batches(path):
        with contextlib.suppress(*FAULTS):
            yield from list(_rows_of(batch))


def unknown_in(path: Path, seq: int, known: Known) -> int:
    """How many rows of a file of segments or of the cold tier, as far as they are whole, a catalog does not have; 0 if
    it may have dropped them. It has not if one is later than its last commit, or if it gave the seq of one to another.
    """
    lacking, told = 0, True
    for name, seqs, low in _names_in(path):
        ours, there = known(name, seqs)
        lacking += int(np.count_nonzero(~there | (ours != low)))
        told &= not ((seqs > seq) | (there & (ours != low))).any()
    return 0 if told else lacking


def _names_in(path: Path) -> Iterator[tuple[Name, npt.NDArray[np.int64], npt.NDArray[np.uint64]]]:
    """The scopes, the seqs and the low halves of the ids of what is whole in a file."""
    if path.suffix == ".arrow":
        for rows in rows_in(path):
            yield rows.scope, rows.columns["seq"], rows.columns["id_lo"]
    elif path.suffix == ".parquet":
        with contextlib.suppress(*FAULTS):
            table = cold.Folder(path.parent).read(path.name, ["tenant_id", "project_id", "seq", "_id_lo"])
            name = table.column("tenant_id")[0].as_py(), table.column("project_id")[0].as_py()
            yield name, table.column("seq").to_numpy(), table.column("_id_lo").to_numpy()


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The record batches that can be read: by the file's footer, or, if it has none, one after the other."""
    try:
        mapped = pa.memory_map(str(path), "rb")
    except (OSError, pa.ArrowException):
        return
    found = 0
    with contextlib.suppress(*FAULTS):
        reader = pa.ipc.open_file(mapped)
        for number in range(reader.num_record_batches):
            with contextlib.suppress(*FAULTS):
                batch = reader.get_batch(number)
                found += 1
                yield batch
    if not found:
        with contextlib.suppress(*FAULTS):
            mapped.seek(8)  # behind the mark of a file lies a stream
            yield from pa.ipc.open_stream(mapped)


def _rows_of(batch: pa.RecordBatch) -> Iterator[Rows]:
    """Reads the buffers themselves: Arrow trusts their offsets, and would read outside of them."""
    n = batch.num_rows
    width = width_of(batch.schema)
    if batch.schema.names != file_schema(width).names or not n:
        return
    columns: Columns = {name: zeros(name, n) for name in FIXED}
    for name, column in files.PHYSICAL.items():
        columns[name] = _plain(batch.column(column), np.dtype(FIXED[name]), n)
    columns["vector"] = np.zeros((n, width), dtype=np.float32)
    if width:
        buffer = batch.column("vector").buffers()[-1]
        columns["vector"] = np.frombuffer(buffer, np.float32, n * width).reshape(n, width)
    readable = np.ones(n, dtype=np.bool_)
    for name in TEXTS:
        columns[name] = _texts(batch.column(name), n, readable, needed=name == "content")
    crcs = _plain(batch.column("_crc"), np.dtype(np.uint32), n)
    of_scope = [_words(batch.column(name), n) for name in files.OF_SCOPE]
    named = {name: _words(batch.column(column), n) for column, name in files.CODED.items() if name != "kind"}
    scopes = list(zip(*of_scope, strict=True))
    first = 0
    for row in range(1, n + 1):
        if row < n and scopes[row] == scopes[first]:
            continue
        mine = slice(first, row)
        part = {name: values[mine] for name, values in columns.items()}
        scope = scopes[first]
        good = np.zeros(row - first, dtype=np.bool_)
        if scope[0] is not None and scope[1] is not None:
            good = sound_rows((scope[0], scope[1]), part, crcs[mine]) & readable[mine] & _sane(part)
        at, bad = np.flatnonzero(good), np.flatnonzero(~good)
        kept = {
            name: values[at] if isinstance(values, np.ndarray) else [values[i] for i in at.tolist()]
            for name, values in part.items()
        }
        words = {
            (int(code), text)
            for name, texts in named.items()
            for code, text in zip(part[name][at].tolist(), [texts[mine][i] for i in at.tolist()], strict=True)
            if text is not None
        }
        lost = ids.to_texts(part["id_hi"][bad], part["id_lo"][bad])
        yield Rows((scope[0] or "", scope[1] or ""), kept, crcs[mine][at], row - first, lost, sorted(words))
        first = row


def _sane(c: Columns) -> npt.NDArray[np.bool_]:
    """Whether the marks, which no CRC covers, can be marks."""
    sane: npt.NDArray[np.bool_] = (c["kind"] >= 0) & (c["kind"] < len(KINDS)) & (c["seq"] > 0)
    for name in ("superseded_seq", "forgotten_seq"):
        sane &= (c[name] == 0) | (c[name] >= c["seq"])
    return sane


def _plain(column: pa.Array, dtype: np.dtype[Any], n: int) -> npt.NDArray[Any]:
    buffer = column.buffers()[1]
    if dtype == np.bool_:
        bits = np.frombuffer(buffer, np.uint8, -(-n // 8))
        return np.unpackbits(bits, bitorder="little")[:n].astype(np.bool_)
    return np.frombuffer(buffer, dtype, n)


def _valid(column: pa.Array, n: int) -> npt.NDArray[np.bool_]:
    bits = column.buffers()[0]
    if bits is None:
        return np.ones(n, dtype=np.bool_)
    return np.unpackbits(np.frombuffer(bits, np.uint8, -(-n // 8)), bitorder="little")[:n].astype(np.bool_)


def _texts(column: pa.Array, n: int, readable: npt.NDArray[np.bool_], *, needed: bool) -> list[str | None]:
    """The texts of a column; `readable` is cleared where there should be one that is none."""
    valid = _valid(column, n)
    if not valid.any():
        return [None] * n
    ends: list[int] = np.frombuffer(column.buffers()[1], np.int32, n + 1).tolist()
    dump = column.buffers()[2]
    data = b"" if dump is None else memoryview(dump)
    made: list[str | None] = []
    for row in range(n):
        text: str | None = None
        if valid[row]:
            begin, end = ends[row], ends[row + 1]
            try:
                if not 0 <= begin <= end <= len(data):
                    raise ValueError
                text = bytes(data[begin:end]).decode()
            except ValueError:  # UnicodeDecodeError is one
                readable[row] = False
        if text is None and needed:
            readable[row], text = False, ""
        made.append(text)
    return made


def _words(column: pa.Array, n: int) -> list[str | None]:
    """The texts of a dictionary's column; None for what is in no dictionary."""
    words = column.dictionary
    words.validate(full=True)
    texts = words.to_pylist()
    return [texts[at] if 0 <= at < len(texts) else None for at in _plain(column, np.dtype(np.int32), n).tolist()]


def sound_in(path: Path) -> tuple[int, int]:
    """How many rows of a file, which may be damaged, are whole, and how many can be found at all."""
    sound = total = 0
    for rows in rows_in(path):
        sound, total = sound + len(rows.crcs), total + rows.total
    return sound, total

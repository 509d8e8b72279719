"""How do records leave a store and come back? As one JSON document, JSON lines or Parquet; nothing is lost on the way.

Each holds every version of every memory that isn't forgotten, by the record schema, and a header that names the format,
the embedder and the number of rows. In the JSON formats times are ISO 8601 in UTC, metadata is an object, and a vector
is the base64 of its little-endian float32, which is exact and a quarter the size of decimals. A file is written beside
its name and renamed when it is whole.

What is read may be of three kinds, row by row: whole, as an export writes it; with an id of its own, which is added
unless that id is here; and new, with the fields of `remember` alone.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore import clock, gate, intake
from memcore.errors import EmbedderMismatch, FormatTooNew, InvalidInput, MemcoreError, StoreCorrupt, StoreError
from memcore.schema import COLUMNS, FORMAT_VERSION, TIMESTAMP, decimal, record_schema
from memcore.store.catalog import Catalog, taken
from memcore.store.partition import WORKING
from memcore.store.restore import LAST, Rows, Vectors, restore
from memcore.store.segment import FIXED, TEXTS, Columns
from memcore.store.snapshot import Selection, Snapshot

FORMATS = ("json", "jsonl", "parquet")
_SUFFIXES = {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_BATCH = 8192
_TIMES = tuple(field.name for field in record_schema(None) if field.type == TIMESTAMP)
_DECIMALS = tuple(field.name for field in record_schema(None) if field.type == pa.float32())
# What a whole row has beyond the arguments of `remember`: all of the first, and perhaps the second.
_OWN = ("seq", "version", "ingested_at")
_COUNTERS = ("access_count", "last_access", "superseded_at")
_EVERY_ROW = Selection(frozenset(range(len(gate.KINDS))), now=0, expired=True, superseded=True)

F32 = npt.NDArray[np.float32]
Embed = Callable[[Sequence[str]], F32 | None]
Tokens = Callable[[Sequence[str]], Sequence[int]]  # what each text takes of the working memory's budget


@dataclass(frozen=True, slots=True)
class ImportReport:
    """`new` row versions were added; `present` belong to memories that were here already, and were left alone."""

    new: int
    present: int


@dataclass(frozen=True, slots=True)
class Header:
    version: int = FORMAT_VERSION
    embedder: str | None = None
    dim: int = 0
    rows: int = 0

    def texts(self) -> dict[str, str]:
        return {
            "memcore_format": str(self.version),
            "embedder": self.embedder or "",
            "dim": str(self.dim),
            "rows": str(self.rows),
        }


def format_of(path: Path, format: str | None) -> str:
    if format is not None:
        return gate.choice(format, "format", FORMATS)
    found = _SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise InvalidInput(
            f"the name {path.name!r} tells no format; end it in {', '.join(_SUFFIXES)}, or pass format= one of "
            f"{', '.join(FORMATS)}"
        )
    return found


# Writing


def write(
    path: str | os.PathLike[str],
    snapshots: Iterable[Snapshot],
    fingerprint: str | None,
    format: str | None = None,
    selection: Selection = _EVERY_ROW,
) -> int:
    """Writes the rows of the snapshots that the selection sees, all by default; the number of rows.

    The file appears whole or not at all.
    """
    target = Path(path)
    chosen = format_of(target, format)
    found = [(snapshot, snapshot.positions(snapshot.masks(selection))) for snapshot in snapshots]
    dim = max((snapshot.dim for snapshot, _ in found), default=0)
    rows = sum(len(positions) for _, positions in found)
    header = Header(FORMAT_VERSION, fingerprint, dim, rows)
    tables = (
        snapshot.table(positions[start : start + _BATCH])
        for snapshot, positions in found
        for start in range(0, len(positions), _BATCH)
    )
    with _whole_file(target) as file:
        if chosen == "parquet":
            _write_parquet(file, tables, header)
        else:
            _write_json(file, tables, header, lines=chosen == "jsonl")
    return rows


def _write_parquet(file: IO[bytes], tables: Iterable[pa.Table], header: Header) -> None:
    import pyarrow.parquet as pq

    schema = record_schema(header.dim or None).with_metadata(header.texts())
    with pq.ParquetWriter(file, schema, compression="zstd", write_page_checksum=True) as writer:
        for table in tables:
            writer.write_table(table.cast(schema))


def _write_json(file: IO[bytes], tables: Iterable[pa.Table], header: Header, *, lines: bool) -> None:
    told = _json({"memcore": header.texts()})
    file.write(told + b"\n" if lines else told[:-1] + b',"records":[')
    between = b"\n"
    for table in tables:
        for row in _json_rows(table):
            file.write(row + b"\n" if lines else between + row)
            between = b",\n"
    if not lines:
        file.write(b"\n]}\n")


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _json_rows(table: pa.Table) -> Iterator[bytes]:
    columns = {name: _json_values(name, table.column(name)) for name in table.column_names}
    for cells in zip(*columns.values(), strict=True):
        yield _json({name: cell for name, cell in zip(columns, cells, strict=True) if cell is not None})


def _json_values(name: str, column: pa.ChunkedArray) -> list[Any]:
    if name == "vector":
        return _encoded(column)
    if name in _TIMES:
        return [None if v is None else clock.to_text(v) for v in column.cast(pa.int64()).to_pylist()]
    values: list[Any] = column.to_pylist()
    if name in _DECIMALS:
        return [decimal(v) for v in values]
    if name == "metadata":
        return [None if v is None else json.loads(v) for v in values]
    return values


def _encoded(column: pa.ChunkedArray) -> list[str | None]:
    if pa.types.is_null(column.type):
        return [None] * len(column)
    return [
        base64.b64encode(np.asarray(row.values, dtype="<f4").tobytes()).decode() if row.is_valid else None
        for row in column
    ]


def parts_of(name: str) -> str:
    """A glob pattern for what a killed process may leave of a file that it was writing."""
    return f".{name}.*.part"


@contextmanager
def _whole_file(target: Path) -> Iterator[IO[bytes]]:
    """A file that takes the target's name when it is complete and on disk; after an error there is none of it."""
    before, after = parts_of(target.name).split("*")
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=before, suffix=after)
    except (OSError, ValueError) as fault:
        raise StoreError(
            f"cannot write {target}: {_reason(fault)}; check that its folder exists and is writable"
        ) from fault
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except OSError as fault:
        raise StoreError(
            f"cannot write {target}: {_reason(fault)}; free space there, or choose another place"
        ) from fault
    finally:
        part.unlink(missing_ok=True)


def _reason(fault: Exception) -> str:
    reason = fault.strerror if isinstance(fault, OSError) else None
    return reason or str(fault).partition("\n")[0]


# Reading


@dataclass(slots=True)
class _Batch:
    """Rows of a file, column by column; `place` names a row for an error."""

    fields: dict[str, Any]
    n: int
    place: Callable[[int], str]


@dataclass(slots=True)
class Import:
    """What was read of a file: rows to restore, and new ones, a batch each."""

    header: Header
    columns: list[Columns] = field(default_factory=list)
    names: list[dict[str, list[str]]] = field(default_factory=list)
    vectors: Vectors = field(default_factory=Vectors)
    new: deque[tuple[Columns, dict[str, list[str]]]] = field(default_factory=deque)
    shared: dict[str, str] = field(default_factory=dict)  # one object for each session, role … rather than one a row
    rows: int = 0
    dim: int = 0


def read(
    path: str | os.PathLike[str],
    format: str | None,
    catalog: Catalog,
    *,
    now: int,
    embed: Embed | None = None,
    tokens: Tokens | None = None,
) -> Import:
    """The rows of a file, every one checked, and embedded if need be, for `add`. Nothing is added yet.

    Whole rows stay without a vector if they have none.
    """
    source = Path(path)
    header, batches = _open_file(source, format_of(source, format))
    _check_header(source, header, catalog)
    told = Import(header, dim=catalog.dim or header.dim)
    for batch in batches:
        _take_in(told, source, batch, now, embed, tokens)
    if told.rows < header.rows:
        raise StoreCorrupt(
            f"{source} has {told.rows} rows and its header tells of {header.rows}: it was cut off. Nothing was "
            "imported; use another copy, or correct 'rows' in its header if rows were taken out on purpose"
        )
    return told


def add(told: Import, catalog: Catalog, *, now: int) -> ImportReport:
    """Adds what was read, all of it or, if it raises, nothing. Under the lock."""
    fingerprint = catalog.fingerprint or (None if catalog.seq else told.header.embedder)
    added = restore(catalog, _joined(told)) if told.columns else 0
    fresh = 0
    while told.new:  # let go one by one: the store has them now
        fresh += _add(catalog, *told.new.popleft(), now)
    catalog.fingerprint = fingerprint
    return ImportReport(added + fresh, told.rows - added - fresh)


def _joined(told: Import) -> Rows:
    columns: Columns = {name: np.concatenate([part[name] for part in told.columns]) for name in FIXED}
    columns.update((name, [text for part in told.columns for text in part[name]]) for name in TEXTS)
    names = {name: [text for part in told.names for text in part[name]] for name in told.names[0]}
    return Rows(columns, names, told.vectors)


def _add(catalog: Catalog, columns: Columns, names: Mapping[str, Sequence[str]], now: int) -> int:
    """New memories; how many of them are no retries."""
    scopes = list(zip(names["tenant"], names["project"], strict=True))
    added = 0
    for scope in dict.fromkeys(scopes):
        rows = [row for row, mine in enumerate(scopes) if mine == scope]
        named = {name: [texts[row] for row in rows] for name, texts in names.items()}
        added += len(catalog.commit(scope, taken(columns, rows), named, now=now).fresh)
    return added


def _take_in(told: Import, source: Path, batch: _Batch, now: int, embed: Embed | None, tokens: Tokens | None) -> None:
    """Checks a batch, embeds what needs it, and adds it to what was read."""
    fields = batch.fields
    unknown = [name for name in fields if name not in COLUMNS]
    if unknown:
        row = next((row for row in range(batch.n) if fields[unknown[0]][row] is not None), 0)
        raise InvalidInput(
            f"{source}, {batch.place(row)}: unknown field {gate.shown(unknown[0])}; a record has {', '.join(COLUMNS)}: "
            "put what is your own into 'metadata', or play a trace with memcore replay. Nothing was imported"
        )
    own = {name: fields.pop(name) for name in (*_OWN, *_COUNTERS) if name in fields}
    whole = _whole(source, batch, own)
    with _placed(source, batch):
        for name in ("event_time", "expires_at"):
            if name in fields:
                fields[name] = _each(fields[name], partial(_time, what=name))
        if "vector" in fields and not isinstance(fields["vector"], np.ndarray):
            fields["vector"] = _each(fields["vector"], _decoded)
        given = intake.check(fields, batch.n, intake.Bounds(None, None, None, None), now=now, dim=told.dim or None)
        if given.faults:
            row = min(given.faults)
            raise _AtRow(row) from given.faults[row]
        columns = given.columns
        _own_columns(columns, own, whole)
    columns["vector"] = vectors = _vectors(given, whole, embed)
    told.dim = told.dim or (0 if vectors is None else vectors.shape[1])
    if tokens is not None:
        working = np.flatnonzero(columns["kind"] == WORKING)
        columns["tokens"] = np.zeros(batch.n, dtype=FIXED["tokens"])
        columns["tokens"][working] = tokens([columns["content"][row] for row in working])
    names = {name: [told.shared.setdefault(text, text) for text in texts] for name, texts in given.names.items()}
    kept = np.flatnonzero(whole | given.explicit)
    new = np.flatnonzero(~(whole | given.explicit))
    told.rows += batch.n
    if len(kept):
        told.vectors.add(len(kept), vectors if vectors is None or not len(new) else vectors[kept])
        told.columns.append(taken({**columns, "vector": None}, kept))
        told.names.append({name: [texts[row] for row in kept] for name, texts in names.items()})
    if len(new):
        told.new.append((taken(columns, new), {name: [texts[row] for row in new] for name, texts in names.items()}))


class _AtRow(Exception):
    """Carries the row of a batch at which its cause was raised."""

    def __init__(self, row: int) -> None:
        self.row = row


@contextmanager
def _placed(source: Path, batch: _Batch) -> Iterator[None]:
    """Names the file and the place in what is raised inside."""
    try:
        yield
    except _AtRow as at:
        fault = at.__cause__
        assert isinstance(fault, MemcoreError)
        raise type(fault)(f"{source}, {batch.place(at.row)}: {fault}. Nothing was imported") from fault


def _each(values: Sequence[Any], check: Callable[[Any], Any]) -> list[Any]:
    """The values that are there, checked one by one."""
    checked = []
    for row, value in enumerate(values):
        try:
            checked.append(None if value is None else check(value))
        except MemcoreError as fault:
            raise _AtRow(row) from fault
    return checked


def _whole(source: Path, batch: _Batch, own: Mapping[str, Sequence[Any]]) -> npt.NDArray[np.bool_]:
    """Which rows are as export wrote them. A row that has only some of what the store itself keeps is refused."""
    whole = np.zeros(batch.n, dtype=np.bool_)
    needed = [batch.fields.get("id"), *(own.get(name) for name in _OWN)]
    for row in range(batch.n):
        whole[row] = all(values is not None and values[row] is not None for values in needed)
        some = [name for name, values in own.items() if values[row] is not None]
        if some and not whole[row]:
            raise InvalidInput(
                f"{source}, {batch.place(row)}: it has {', '.join(some)} but not all of id, {', '.join(_OWN)}; a "
                "record is either as export wrote it, or new and without these. Nothing was imported"
            )
    return whole


def _own_columns(columns: Columns, own: Mapping[str, Sequence[Any]], whole: npt.NDArray[np.bool_]) -> None:
    """Fills what only whole rows have; the others come after them, in their order, as first versions."""
    n = len(whole)
    columns["seq"] = np.full(n, LAST)
    columns["version"] = np.ones(n, dtype=FIXED["version"])
    for name, least, most in (("seq", 0, MOST_SEQ), ("version", 1, MOST_COUNT), ("access_count", 0, MOST_COUNT)):
        values = _each(own.get(name, [None] * n), partial(_counted, what=name, least=least, most=most))
        columns[name] = np.array(
            [columns[name][row] if v is None else v for row, v in enumerate(values)], dtype=FIXED[name]
        )
    for name in ("ingested_at", "last_access", "superseded_at"):
        values = _each(own.get(name, [None] * n), partial(_micros, what=name))
        columns[name] = np.array(
            [columns[name][row] if v is None else v for row, v in enumerate(values)], dtype=FIXED[name]
        )
    told = own.get("superseded_at", [None] * n)
    columns["superseded_seq"] = np.array([v is not None for v in told], dtype=FIXED["superseded_seq"])


MOST_SEQ, MOST_COUNT = 2**62, 2**30  # half of what the columns hold: an imported row leaves room to count on


def _counted(value: object, what: str, least: int, most: int) -> int:
    got = gate.count(value, what, least)
    if got > most:
        raise InvalidInput(f"{what} is {got}; it must be at most {most}")
    return got


def _vectors(given: intake.Intake, whole: npt.NDArray[np.bool_], embed: Embed | None) -> F32 | None:
    """The rows' vectors: as given, embedded where a row that isn't whole has none, else zero. None if all are."""
    has, vectors = given.columns["has_vector"], given.vectors
    waiting = np.flatnonzero(~(has | whole))
    made = None if embed is None else embed([given.columns["content"][row] for row in waiting])
    if made is not None:
        if vectors is None:
            vectors = np.zeros((len(has), made.shape[1]), dtype=np.float32)
        vectors[waiting] = made
        has[waiting] = True
    return vectors


def _check_header(source: Path, header: Header, catalog: Catalog) -> None:
    if header.version > FORMAT_VERSION:
        raise FormatTooNew(
            f"{source} is in format {header.version} and this memcore reads up to format {FORMAT_VERSION}; upgrade "
            "memcore-engine"
        )
    theirs, ours = header.embedder, catalog.fingerprint
    if theirs and ours and theirs != ours:
        raise EmbedderMismatch(
            f"{source} holds vectors of the embedder {theirs!r} and this store uses {ours!r}; vectors of two embedders "
            f"cannot be compared: open a store with the embedder {theirs!r}, or remember the texts anew"
        )
    if header.dim and ours and not theirs:
        raise EmbedderMismatch(
            f"{source} holds vectors that its writer passed, of no known embedder, and this store uses {ours!r}; they "
            "cannot be compared: open a store with embedder=None, or remember the texts anew"
        )
    if header.dim and catalog.dim and header.dim != catalog.dim:
        raise EmbedderMismatch(
            f"{source} holds vectors of {header.dim} dimensions and this store has {catalog.dim}; open a store with an "
            f"embedder of {header.dim} dimensions, or remember the texts anew"
        )


def _open_file(source: Path, format: str) -> tuple[Header, Iterator[_Batch]]:
    try:
        if format == "parquet":
            return _open_parquet(source)
        return _open_lines(source) if format == "jsonl" else _open_document(source)
    except OSError as fault:
        raise StoreError(f"cannot read {source}: {_reason(fault)}; check the path") from fault


def _header(source: Path, told: object) -> Header:
    """The header of a file that memcore wrote."""
    try:
        if not isinstance(told, dict):
            raise TypeError
        version, dim, rows = (int(told.get(name, 0)) for name in ("memcore_format", "dim", "rows"))
        embedder = told.get("embedder") or None
        if version < 1 or not 0 <= dim < 2**31 or rows < 0:
            raise ValueError
        if embedder is not None:
            embedder = gate.text(embedder, "embedder")
    except (TypeError, ValueError, OverflowError):  # InvalidInput is a ValueError
        raise StoreCorrupt(
            f"{source} has the header {gate.shown(told)}; it must name memcore_format, embedder, dim and rows as "
            "export writes them: use another copy"
        ) from None
    return Header(version, embedder, dim, rows)


def _open_parquet(source: Path) -> tuple[Header, Iterator[_Batch]]:
    import pyarrow.parquet as pq

    stream = pa.OSFile(str(source))
    try:
        file = pq.ParquetFile(stream, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as fault:
        raise StoreCorrupt(f"{source} is not a whole Parquet file ({_reason(fault)}); use another copy") from fault
    metadata = file.schema_arrow.metadata or {}
    told = None
    if b"memcore_format" in metadata:
        told = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in metadata.items()}

    def batches() -> Iterator[_Batch]:
        begun = 0
        try:
            for group in range(file.num_row_groups):  # asked for all of them, Arrow reads the whole file ahead
                for batch in file.iter_batches(_BATCH, row_groups=[group]):
                    yield _parquet_batch(source, pa.Table.from_batches([batch]), begun)
                    begun += batch.num_rows
        except (pa.ArrowException, OSError) as fault:
            raise StoreCorrupt(
                f"{source} cannot be read after row {begun} ({_reason(fault)}); nothing was imported: use another copy"
            ) from fault

    return Header() if told is None else _header(source, told), batches()


def _parquet_batch(source: Path, table: pa.Table, begun: int) -> _Batch:
    fields = {name: intake.arrow_values(name, table.column(name)) for name in table.column_names}
    batch = _Batch(fields, table.num_rows, lambda row: f"row {begun + row}")
    if "metadata" in fields:
        with _placed(source, batch):
            fields["metadata"] = _each(fields["metadata"], _object)
    return batch


def _object(text: object) -> Any:
    """Metadata as JSON text, as export writes it, or as another value for the gate."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise InvalidInput(f"metadata is not JSON ({fault}); mend it") from fault


_BLANK = b" \t\r\n\v\f\xef\xbb\xbf"  # what a line without anything in it may hold, a byte order mark included


def _open_lines(source: Path) -> tuple[Header, Iterator[_Batch]]:
    if source.exists() and not (source.is_file() or source.is_dir()):  # it is opened twice: a pipe would be empty then
        raise InvalidInput(f"{source} is not a regular file; write it to one first")
    with source.open("rb") as file:
        first = file.readline()
    told = _line(source, 1, first) if b'"memcore"' in first else {}
    headed = told.keys() == {"memcore"}

    def rows() -> Iterator[tuple[str, dict[str, Any]]]:
        with source.open("rb") as file:  # by b"\n" alone: U+2028 and the like are legal inside JSON texts
            for number, line in enumerate(file, 1):
                if line.strip(_BLANK) and not (number == 1 and headed):
                    yield f"line {number}", _line(source, number, line)

    return _header(source, told["memcore"]) if headed else Header(), _batched(rows())


def _line(source: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line.strip(), strict=False)  # which reads over a byte order mark, and raw control characters
    except (ValueError, RecursionError) as fault:  # of JSON, and of UTF-8
        raise InvalidInput(
            f"{source}, line {number} is not JSON ({fault}). Nothing was imported; mend or remove the line"
        ) from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{source}, line {number} is {gate.shown(value)}; each line must be a JSON object")
    return value


def _open_document(source: Path) -> tuple[Header, Iterator[_Batch]]:
    try:
        document = json.loads(source.read_bytes())
    except (ValueError, RecursionError) as fault:
        raise InvalidInput(
            f"{source} is not a JSON document ({fault}). Nothing was imported; use another copy"
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("records"), list):
        raise InvalidInput(f"{source} has no list of 'records'; pass a state document written by export, or use .jsonl")

    def rows() -> Iterator[tuple[str, dict[str, Any]]]:
        for place, row in enumerate(document["records"]):
            if not isinstance(row, dict):
                raise InvalidInput(
                    f"{source}, records[{place}] is {gate.shown(row)}; each record must be a JSON object"
                )
            yield f"records[{place}]", row

    return _header(source, document["memcore"]) if "memcore" in document else Header(), _batched(rows())


def _batched(rows: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[_Batch]:
    places: list[str] = []
    batch: list[dict[str, Any]] = []
    for place, row in rows:
        places.append(place)
        batch.append(row)
        if len(batch) == _BATCH:
            yield _transposed(batch, places)
            places, batch = [], []
    if batch:
        yield _transposed(batch, places)


def _transposed(rows: Sequence[Mapping[str, Any]], places: Sequence[str]) -> _Batch:
    names = dict.fromkeys(name for row in rows for name in row)
    return _Batch({name: [row.get(name) for row in rows] for name in names}, len(rows), places.__getitem__)


def _time(value: object, what: str) -> Any:
    return intake.Micros(clock.parse(value, what)) if isinstance(value, str) else value


def _micros(value: object, what: str) -> int:
    return intake.moment(_time(value, what), what)


def _decoded(value: object) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
    except ValueError:
        raise InvalidInput(
            "vector is neither a list of numbers nor the base64 of float32; export the file anew"
        ) from None

"""How do records leave a store and come back? One JSON state document, JSON lines, or Parquet; a round trip loses nothing.

Each holds every version of every memory that isn't forgotten, by the record schema, and names the format and the embedder.
In the JSON formats times are ISO 8601 in UTC, metadata is an object, and a vector is the base64 of its little-endian
float32, which is exact and a quarter the size of decimals. A file is written beside its name and renamed when it is whole.
"""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore import clock, gate, intake
from memcore.errors import EmbedderMismatch, FormatTooNew, InvalidInput, MemcoreError, StoreCorrupt, StoreError
from memcore.schema import COLUMNS, FORMAT_VERSION, TIMESTAMP, record_schema
from memcore.store.catalog import Catalog
from memcore.store.segment import FORGOTTEN, Columns
from memcore.store.snapshot import Snapshot

if TYPE_CHECKING:
    from memcore.embed.protocol import Embedder

FORMATS = ("json", "jsonl", "parquet")
_SUFFIXES = {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_BATCH = 8192
_TIMES = tuple(field.name for field in record_schema(None) if field.type == TIMESTAMP)
# what a row has beyond the arguments of `remember`; all of these, or none
_KEPT = ("seq", "version", "ingested_at")
_COUNTERS = ("access_count", "last_access", "superseded_at")
Embed = Callable[[Sequence[str]], npt.NDArray[np.float32] | None]


@dataclass(frozen=True, slots=True)
class ImportReport:
    """`new` row versions were added; `present` belong to memories that were here already, and were left alone."""

    new: int
    present: int


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


def write(
    path: str | os.PathLike[str], snapshots: Iterable[Snapshot], embedder: Embedder | None, format: str | None = None
) -> int:
    """Writes all rows of the snapshots; the number of rows. The file appears whole or not at all."""
    target = Path(path)
    chosen = format_of(target, format)
    snapshots = list(snapshots)
    dim = max((snapshot.dim for snapshot in snapshots), default=0)
    header = {
        "memcore_format": str(FORMAT_VERSION),
        "embedder": "" if embedder is None else embedder.fingerprint,
        "dim": str(dim),
    }
    tables = (table for snapshot in snapshots for table in _tables(snapshot))
    with _whole_file(target) as file:
        if chosen == "parquet":
            return _write_parquet(file, tables, record_schema(dim or None).with_metadata(header))
        return _write_json(file, tables, header, lines=chosen == "jsonl")


def _tables(snapshot: Snapshot) -> Iterator[pa.Table]:
    masks = [(part.columns["retired_at"] != FORGOTTEN).view(np.uint8) for part in snapshot.parts]
    positions = snapshot.positions(masks)
    for start in range(0, len(positions), _BATCH):
        yield snapshot.table(positions[start : start + _BATCH])


def _write_parquet(file: IO[bytes], tables: Iterable[pa.Table], schema: pa.Schema) -> int:
    import pyarrow.parquet as pq

    rows = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table.cast(schema))
            rows += table.num_rows
    return rows


def _write_json(file: IO[bytes], tables: Iterable[pa.Table], header: Mapping[str, str], *, lines: bool) -> int:
    rows = 0
    file.write(_json({"memcore": header}) + b"\n" if lines else b'{"memcore":' + _json(header) + b',"records":[')
    for table in tables:
        for row in _json_rows(table):
            file.write(row + b"\n" if lines else (b",\n" if rows else b"\n") + row)
            rows += 1
    if not lines:
        file.write(b"\n]}\n")
    return rows


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _json_rows(table: pa.Table) -> Iterator[bytes]:
    columns: dict[str, list[Any]] = {}
    for name in table.column_names:
        column = table.column(name)
        if name == "vector":
            columns[name] = _encoded(column)
        elif name in _TIMES:
            columns[name] = [None if v is None else clock.to_text(v) for v in column.cast(pa.int64()).to_pylist()]
        elif name == "metadata":
            columns[name] = [None if v is None else json.loads(v) for v in column.to_pylist()]
        else:
            columns[name] = column.to_pylist()
    for cells in zip(*columns.values(), strict=True):
        yield _json({name: cell for name, cell in zip(columns, cells, strict=True) if cell is not None})


def _encoded(column: pa.ChunkedArray) -> list[str | None]:
    if pa.types.is_null(column.type):
        return [None] * len(column)
    return [
        base64.b64encode(np.asarray(row.values, dtype="<f4").tobytes()).decode() if row.is_valid else None for row in column
    ]


@contextmanager
def _whole_file(target: Path) -> Iterator[IO[bytes]]:
    """A file that takes the target's name when it is complete and on disk; after an error there is none of it."""
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as fault:
        raise StoreError(f"cannot write {target}: {fault.strerror}; check that its folder exists and is writable") from fault
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except OSError as fault:
        raise StoreError(f"cannot write {target}: {fault.strerror or fault}; free space there, or choose another place") from fault
    finally:
        part.unlink(missing_ok=True)


def read_into(
    path: str | os.PathLike[str], format: str | None, catalog: Catalog, embedder: Embedder | None, embed: Embed, now: int
) -> ImportReport:
    """Adds the rows of a file to a catalog, all or nothing: every row is checked, and embedded if need be, before the first
    is added."""
    source = Path(path)
    chosen = format_of(source, format)
    header, batches = _open_file(source, chosen)
    _check_header(source, header, catalog, embedder)
    kept: list[tuple[intake.Intake, list[int | None]]] = []
    plain: list[intake.Intake] = []
    line = 0
    for fields, n in batches:
        taken, superseded = _checked(source, fields, n, catalog, now, line)
        line += n
        (kept if superseded is not None else plain).append((taken, superseded) if superseded is not None else taken)  # type: ignore[arg-type]
    for taken in (*(t for t, _ in kept), *plain):
        _fill_vectors(taken, catalog, embed)
    new = present = 0
    with catalog.lock:
        for taken, superseded in kept:
            added = catalog.restore(taken.columns, taken.names, superseded)
            new, present = new + added, present + len(taken.rows) - added
        for taken in plain:
            new += _add(catalog, taken, now)
    return ImportReport(new, present)


def _add(catalog: Catalog, taken: intake.Intake, now: int) -> int:
    """Rows without the store's own columns are new memories."""
    catalog.encode(taken.columns, taken.names)
    scopes = list(zip(taken.names["tenant"], taken.names["project"], strict=True))
    for scope in dict.fromkeys(scopes):
        rows = [row for row, mine in enumerate(scopes) if mine == scope]
        part = {
            name: values[rows] if isinstance(values, np.ndarray) else None if values is None else [values[i] for i in rows]
            for name, values in taken.columns.items()
        }
        catalog.commit(catalog.partition(*scope), part, now=now, explicit=taken.explicit[rows])
    return len(scopes)


def _fill_vectors(taken: intake.Intake, catalog: Catalog, embed: Embed) -> None:
    columns, has = taken.columns, taken.columns["has_vector"]
    vectors = taken.vectors
    waiting = np.flatnonzero(~has) if not taken.explicit.any() else np.empty(0, dtype=np.int64)
    made = embed([columns["content"][row] for row in waiting])
    if made is not None:
        if vectors is None:
            vectors = np.zeros((len(has), made.shape[1]), dtype=np.float32)
        vectors[waiting] = made
        has[waiting] = True
    if vectors is not None:
        catalog.settle_dim(vectors.shape[1])
    columns["vector"] = np.zeros((len(has), catalog.dim), dtype=np.float32) if vectors is None else vectors


def _check_header(source: Path, header: Mapping[str, Any], catalog: Catalog, embedder: Embedder | None) -> None:
    version = header.get("memcore_format")
    if version is not None and str(version) != str(FORMAT_VERSION):
        raise FormatTooNew(
            f"{source} is in format {version} and this memcore reads up to format {FORMAT_VERSION}; upgrade memcore-engine"
        )
    theirs = header.get("embedder") or None
    ours = None if embedder is None else embedder.fingerprint
    if theirs and ours and theirs != ours:
        raise EmbedderMismatch(
            f"{source} holds vectors of the embedder {theirs!r} and this store uses {ours!r}; vectors of two embedders cannot "
            f"be compared: open a store with the embedder {theirs!r}, or remember the texts anew"
        )
    width = int(header.get("dim") or 0)
    if width and catalog.dim and width != catalog.dim:
        raise EmbedderMismatch(
            f"{source} holds vectors of {width} dimensions and this store has {catalog.dim}; open a store with an embedder of "
            f"{width} dimensions, or remember the texts anew"
        )


Batch = tuple[dict[str, Any], int]


def _open_file(source: Path, format: str) -> tuple[Mapping[str, Any], Iterator[Batch]]:
    try:
        if format == "parquet":
            return _open_parquet(source)
        return _open_lines(source) if format == "jsonl" else _open_document(source)
    except OSError as fault:
        raise StoreError(f"cannot read {source}: {fault.strerror or fault}; check the path") from fault


def _open_parquet(source: Path) -> tuple[Mapping[str, Any], Iterator[Batch]]:
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(source)
    except pa.ArrowInvalid as fault:
        raise StoreCorrupt(f"{source} is not a whole Parquet file ({str(fault).splitlines()[0]}); use another copy") from fault
    metadata = file.schema_arrow.metadata or {}
    header = {name.decode(): value.decode() for name, value in metadata.items() if name != b"ARROW:schema"}

    def batches() -> Iterator[Batch]:
        try:
            for batch in file.iter_batches(_BATCH):
                table = pa.Table.from_batches([batch])
                fields = {name: intake.arrow_values(name, table.column(name)) for name in table.column_names}
                if "metadata" in fields:
                    fields["metadata"] = [v if v is None else _object(source, v) for v in fields["metadata"]]
                yield fields, table.num_rows
        except (pa.ArrowException, OSError) as fault:
            raise StoreCorrupt(f"{source} cannot be read to its end ({str(fault).splitlines()[0]}); use another copy") from fault

    return header, batches()


def _object(source: Path, text: object) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError as fault:
        raise StoreCorrupt(f"{source} has metadata that is not JSON ({fault}); use another copy") from fault


def _open_lines(source: Path) -> tuple[Mapping[str, Any], Iterator[Batch]]:
    with source.open("rb") as file:
        first = file.readline().strip().removeprefix(b"\xef\xbb\xbf")
    header: Mapping[str, Any] = {}
    if first.startswith(b'{"memcore":'):
        header = _line(source, 1, first)["memcore"]

    def rows() -> Iterator[dict[str, Any]]:
        with source.open("rb") as file:  # by b"\n" alone: U+2028 and the like are legal inside JSON texts
            for number, line in enumerate(file, 1):
                stripped = line.strip().removeprefix(b"\xef\xbb\xbf") if number == 1 else line.strip()
                if stripped and not (number == 1 and header):
                    yield _line(source, number, stripped)

    return header, _batched(rows())


def _line(source: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as fault:  # of JSON, and of UTF-8
        raise InvalidInput(f"{source} line {number} is not JSON ({fault}); nothing was imported: mend or remove the line") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{source} line {number} is {gate.shown(value)}; each line must be a JSON object")
    return value


def _open_document(source: Path) -> tuple[Mapping[str, Any], Iterator[Batch]]:
    try:
        document = json.loads(source.read_bytes())
    except ValueError as fault:
        raise InvalidInput(f"{source} is not a JSON document ({fault}); nothing was imported: use another copy") from None
    if not isinstance(document, dict) or not isinstance(document.get("records"), list):
        raise InvalidInput(f"{source} has no list of 'records'; pass a state document written by export, or use .jsonl")
    header = document.get("memcore")
    return header if isinstance(header, dict) else {}, _batched(iter(document["records"]))


def _batched(rows: Iterator[Any]) -> Iterator[Batch]:
    batch: list[dict[str, Any]] = []
    for place, row in enumerate(rows):
        if not isinstance(row, dict):
            raise InvalidInput(f"record {place} is {gate.shown(row)}; each record must be a JSON object")
        batch.append(row)
        if len(batch) == _BATCH:
            yield _transposed(batch), len(batch)
            batch = []
    if batch:
        yield _transposed(batch), len(batch)


def _transposed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _checked(
    source: Path, fields: dict[str, Any], n: int, catalog: Catalog, now: int, line: int
) -> tuple[intake.Intake, list[int | None] | None]:
    """One batch in columns, and for whole records the time each was superseded at."""
    unknown = [name for name in fields if name not in COLUMNS]
    if unknown:
        raise InvalidInput(
            f"{source} has the unknown field {unknown[0]!r}; a record has {', '.join(COLUMNS)}: put what is your own into "
            "'metadata', or play a trace with memcore replay"
        )
    whole = all(name in fields for name in ("id", *_KEPT)) and all(v is not None for name in _KEPT for v in fields[name])
    own = {name: fields.pop(name) for name in (*_KEPT, *_COUNTERS) if name in fields}
    if own and not whole:
        raise InvalidInput(
            f"{source} has {', '.join(own)} but not all of id, {', '.join(_KEPT)} in every record; a record is either as export "
            "wrote it, or new and without these"
        )
    for name in ("event_time", "expires_at"):
        if name in fields:
            fields[name] = [_time(v, name) for v in fields[name]]
    if "vector" in fields and not isinstance(fields["vector"], np.ndarray):
        fields["vector"] = [_decoded(v) for v in fields["vector"]]
    try:
        taken = intake.check(fields, n, intake.Bounds(None, None, None, None), now=now, dim=catalog.dim or None)
        if taken.faults:
            row = min(taken.faults)
            raise type(taken.faults[row])(f"record {row}: {taken.faults[row]}")
        if not whole:
            return taken, None
        return taken, _own_columns(own, taken.columns, n)
    except MemcoreError as fault:
        raise type(fault)(f"{source}, records from {line}: {fault}. Nothing was imported") from fault


def _own_columns(own: Mapping[str, Any], columns: Columns, n: int) -> list[int | None]:
    def numbers(name: str, least: int) -> list[int]:
        return [least if v is None else gate.count(v, name, least) for v in own.get(name) or [None] * n]

    def times(name: str) -> list[int | None]:
        return [None if v is None else intake.moment(_time(v, name), name) for v in own.get(name) or [None] * n]

    columns["seq"][:] = numbers("seq", 0)
    columns["version"][:] = numbers("version", 1)
    columns["access_count"][:] = numbers("access_count", 0)
    columns["ingested_at"][:] = times("ingested_at")
    columns["last_access"][:] = [v or 0 for v in times("last_access")]
    return times("superseded_at")


def _time(value: object, what: str) -> Any:
    return intake.Micros(clock.parse(value, what)) if isinstance(value, str) else value


def _decoded(value: object) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return np.frombuffer(base64.b64decode(value, validate=True), dtype="<f4")
    except ValueError:
        raise InvalidInput("a vector is neither a list of numbers nor the base64 of float32; export the file anew") from None

"""How do records leave a store and come back? As one JSON document, JSON lines or Parquet; nothing is lost on the way.

Each holds every version of every memory that isn't forgotten, by the record schema, and a header that names the format,
the embedder and the number of rows. In the JSON formats times are ISO 8601 in UTC, metadata is an object, and a vector
is the base64 of its little-endian float32, which is exact and a quarter the size of decimals. The last version of a
memory has its `links` to others, if there are any: a list of objects with the columns of `LINK_SCHEMA` but `src_id`. A
file is written beside its name and renamed when it is whole.

What is read may be of three kinds, row by row: whole, as an export writes it; with an id of its own, which is added
unless that id is here; and new, with the fields of `remember` alone. Files of the cold tier are whole rows too.

Neither reading nor writing holds more than some thousand rows in RAM. What is read waits in a `Spool` until all of it
is checked, so that a faulty file changes nothing; then it goes in, a commit for each `COMMIT_ROWS`. If that is cut off,
what is in stays, the store knows how far it was, and the same file imported again goes on from there.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore import clock, gate, ids, intake
from memcore.errors import (
    EmbedderMismatch,
    FormatTooNew,
    InvalidInput,
    MemcoreError,
    StoreCorrupt,
    StoreError,
    StoreLocked,
)
from memcore.schema import COLUMNS, FORMAT_VERSION, LINK_SCHEMA, TIMESTAMP, decimal, record_schema
from memcore.store.catalog import Catalog
from memcore.store.documents import JsonStream
from memcore.store.links import NEVER, Linked
from memcore.store.partition import WORKING
from memcore.store.restore import LAST, Progress, add_links, add_new, foreign, restore
from memcore.store.segment import FIXED, Columns
from memcore.store.snapshot import EVERY, Mask, Part, Selection, Snapshot, link_table

if TYPE_CHECKING:  # a store in RAM does without SQLite until it imports
    from memcore.store.spool import Batch, Name, Scope, Spool

FORMATS = ("json", "jsonl", "parquet")
_SUFFIXES = {".json": "json", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_BATCH = 8192
_TIMES = tuple(field.name for field in record_schema(None) if field.type == TIMESTAMP)
_DECIMALS = tuple(field.name for field in record_schema(None) if field.type == pa.float32())
# What a whole row has beyond the arguments of `remember`: all of the first, and perhaps the second.
_OWN = ("seq", "version", "ingested_at")
_COUNTERS = ("access_count", "last_access", "superseded_at")
_EVERY_ROW = Selection(frozenset(range(len(gate.KINDS))), now=0, expired=True, superseded=True)

# The column of links in a file, and what it is read as: times in µs.
_LINKS = pa.field("links", pa.list_(pa.struct([field for field in LINK_SCHEMA if field.name != "src_id"])))
_LINK_TIMES = tuple(field.name for field in LINK_SCHEMA if field.type == TIMESTAMP)
_PLAIN_LINKS = pa.list_(
    pa.struct(
        [
            pa.field(field.name, pa.int64() if field.name in _LINK_TIMES else pa.string())
            for field in LINK_SCHEMA
            if field.name != "src_id"
        ]
    )
)
COMMIT_ROWS = 8192  # that go in at once: 0.15 s, for which other writers wait

F32 = npt.NDArray[np.float32]
Progressing = Callable[[int, int, str], None]  # done, of how many, of what
Embed = Callable[[Sequence[str]], F32 | None]
Tokens = Callable[[Sequence[str]], Sequence[int]]  # what each text takes of the working memory's budget


def _silent(done: int, total: int, what: str) -> None:
    """Tells nobody how far it is."""


@dataclass(frozen=True, slots=True)
class ImportReport:
    """`new` row versions were added; `present` belong to memories that were here already, and were left alone; `links`
    were added.
    """

    new: int
    present: int
    links: int = 0


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
    progress: Progressing | None = None,
) -> int:
    """Writes the rows of the snapshots that the selection sees, all by default; the number of rows.

    The file appears whole or not at all.
    """
    target = Path(path)
    chosen = format_of(target, format)
    seen = list(snapshots)
    rows = sum(_count(snapshot, selection) for snapshot in seen)
    header = Header(FORMAT_VERSION, fingerprint, max((snapshot.dim for snapshot in seen), default=0), rows)
    links = [_links_of(snapshot, selection) for snapshot in seen]
    tables = _counted_off(_tables(seen, links, selection, with_links=any(links)), rows, progress or _silent)
    with _whole_file(target) as file:
        if chosen == "parquet":
            _write_parquet(file, tables, header, with_links=any(links))
        else:
            _write_json(file, tables, header, lines=chosen == "jsonl")
    return rows


def _counted_off(tables: Iterable[pa.Table], rows: int, progress: Progressing) -> Iterator[pa.Table]:
    done = 0
    for table in tables:
        yield table
        done += table.num_rows
        progress(done, rows, "export")


def _masks(snapshot: Snapshot, selection: Selection) -> Iterator[tuple[Part, Mask]]:
    """What the selection sees of each part, one at a time: of all together a mask is ten bytes a row."""
    for part in snapshot.parts:
        yield part, snapshot.mask(part, selection)


def _count(snapshot: Snapshot, selection: Selection) -> int:
    return sum(part.n if mask is EVERY else int(np.count_nonzero(mask)) for part, mask in _masks(snapshot, selection))


Linking = dict[int, list[int]]  # position of the last version of a memory -> the links from it


def _links_of(snapshot: Snapshot, selection: Selection) -> Linking:
    """The links of which the selection sees both ends."""
    rows = np.flatnonzero(snapshot.links.seen(snapshot.seq))
    if not len(rows):
        return {}
    ends = [snapshot.links.names(end, rows) for end in ("src", "dst")]
    positions = snapshot.positions_with({name for names in ends for name in names}).tolist()
    last = {snapshot.name(position): position for position in positions if snapshot.sees(position, selection)}
    found: Linking = {}
    for row, src, dst in zip(rows.tolist(), *ends, strict=True):
        if src in last and dst in last:
            found.setdefault(last[src], []).append(row)
    return found


def _tables(
    snapshots: Sequence[Snapshot], links: Sequence[Linking], selection: Selection, *, with_links: bool
) -> Iterator[pa.Table]:
    for snapshot, mine in zip(snapshots, links, strict=True):
        for chunk in _chunks(snapshot, selection):
            table = snapshot.table(chunk)
            yield table.append_column(_LINKS, _linked(snapshot, mine, chunk)) if with_links else table


def _chunks(snapshot: Snapshot, selection: Selection) -> Iterator[npt.NDArray[np.int64]]:
    """The positions that the selection sees, so many at once wherever the parts end: the same rows, the same file."""
    left = np.empty(0, dtype=np.int64)
    for part, mask in _masks(snapshot, selection):
        mine = part.base + (np.arange(part.n) if mask is EVERY else np.flatnonzero(mask))
        positions = np.concatenate([left, mine])
        whole = len(positions) // _BATCH * _BATCH
        yield from np.split(positions[:whole], whole // _BATCH) if whole else ()
        left = positions[whole:]
    if len(left):
        yield left


def _linked(snapshot: Snapshot, links: Linking, positions: npt.NDArray[np.int64]) -> pa.Array:
    """The column of links at these positions; null for a row without any."""
    lists = [links.get(position, []) for position in positions.tolist()] if links else [[]] * len(positions)
    rows = np.array([row for mine in lists for row in mine], dtype=np.int64)
    table = link_table(snapshot.links, rows, names=snapshot.names, seq=snapshot.seq).drop_columns("src_id")
    items = pa.StructArray.from_arrays([c.combine_chunks() for c in table.columns], fields=list(table.schema))
    ends = np.cumsum([0, *map(len, lists)]).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(ends), items, type=_LINKS.type, mask=pa.array([not mine for mine in lists], pa.bool_())
    )


def _write_parquet(file: IO[bytes], tables: Iterable[pa.Table], header: Header, *, with_links: bool) -> None:
    import pyarrow.parquet as pq

    schema = record_schema(header.dim or None)
    schema = (schema.append(_LINKS) if with_links else schema).with_metadata(header.texts())
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
    if name == _LINKS.name:
        return _json_links(column)
    if name in _TIMES:
        return [None if v is None else clock.to_text(v) for v in column.cast(pa.int64()).to_pylist()]
    values: list[Any] = column.to_pylist()
    if name in _DECIMALS:
        return [decimal(v) for v in values]
    if name == "metadata":
        return [None if v is None else json.loads(v) for v in values]
    return values


def _json_links(column: pa.ChunkedArray) -> list[list[dict[str, Any]] | None]:
    told = []
    for links in column.cast(_PLAIN_LINKS).to_pylist():
        for link in links or ():
            for name, value in tuple(link.items()):
                if value is None:
                    del link[name]
                elif name in _LINK_TIMES:
                    link[name] = clock.to_text(value)
                elif name == "attributes":
                    link[name] = json.loads(value)
        told.append(links)
    return told


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


Batches = Generator[_Batch, None, None]


@dataclass(slots=True)
class Import:
    """What was read of a file, all of it checked: it waits in the spool."""

    source: Path
    header: Header
    spool: Spool
    dim: int = 0


def digest(path: str | os.PathLike[str]) -> str:
    """What a file is known by: a digest of its bytes."""
    source = Path(path)
    try:
        with source.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()[:64]
    except OSError as fault:
        raise _unreadable(source, fault) from fault


@contextmanager
def read(
    path: str | os.PathLike[str],
    format: str | None,
    catalog: Catalog,
    *,
    now: int,
    embed: Embed | None = None,
    tokens: Tokens | None = None,
    progress: Progressing | None = None,
) -> Iterator[Import]:
    """The rows of a file, every one checked, and embedded if need be, for `add`. Nothing is added yet.

    Whole rows stay without a vector if they have none.
    """
    from memcore.store.spool import Spool

    source = Path(path)
    header, batches = _open_file(source, format_of(source, format))
    _check_header(source, header, catalog)
    with closing(batches), closing(Spool()) as spool:
        told = Import(source, header, spool, dim=catalog.dim or header.dim)
        for batch in batches:
            _take_in(told, source, batch, now, embed, tokens)
            (progress or _silent)(spool.rows, max(header.rows, spool.rows), "read")
        if spool.rows < header.rows:
            raise StoreCorrupt(
                f"{source} has {spool.rows} rows and its header tells of {header.rows}: it was cut off. Nothing was "
                "imported; use another copy, or correct 'rows' in its header if rows were taken out on purpose"
            )
        yield told


def settle(told: Import, catalog: Catalog, progress: Progress) -> None:
    """Settles what becomes of what was read, given what is here. Takes the lock for moments."""

    def known(scope: Scope, names: set[Name]) -> set[Name]:
        with catalog.lock:
            return foreign(catalog.loaded(scope), names, progress)

    told.spool.settle(known)
    dangling = told.spool.dangling(known)
    if dangling is not None:
        place, name = dangling
        raise InvalidInput(
            f"{told.source}: row {place} links to {ids.to_text(*name)}, which is neither in the file nor in this "
            "store. Nothing was imported; take the link out, or import that memory first"
        )


def add(told: Import, batch: Batch, catalog: Catalog, before: Progress) -> Progress:
    """Adds a batch, all of it or, if it raises, nothing; how far the import is with it. Under the lock."""
    progress = replace(before, spans=list(before.spans))
    if not before.done:
        first, last = told.spool.seqs()
        progress.whole = not catalog.seq and first > 0 and last < LAST
    fingerprint = catalog.fingerprint or (None if catalog.seq else told.header.embedder)
    if batch.kept is not None:
        progress.new += restore(catalog, batch.kept, progress)
    if batch.fresh is not None:
        progress.new += add_new(catalog, batch.fresh, now=before.now)
    if batch.links:
        progress.links += add_links(catalog, batch.links, before.now, told.spool.like)
    catalog.fingerprint = fingerprint
    progress.done = batch.done
    return progress


def check_alone(told: Import, catalog: Catalog, file: str | None, before: Progress) -> None:
    """Refuses to go on if another import of the same file has gone on meanwhile. In a write."""
    found = None if file is None else catalog.imports_told().get(file)
    if found != (before.text() if before.done else None):
        raise StoreLocked(
            f"{told.source} is being imported by another process or thread too; nothing went in twice: wait until that "
            "is done, and import it again"
        )


def cut_off(told: Import, fault: MemcoreError, done: int) -> MemcoreError:
    """What is told of a fault after some batches have gone in."""
    cut = copy.copy(fault)
    message = (
        f"{fault}. The import of {told.source} was cut off: {done:,} of its {told.spool.total:,} rows and links are "
        "in; import the same file again to go on from there"
    )
    cut.args = (message,)
    return cut


def _take_in(told: Import, source: Path, batch: _Batch, now: int, embed: Embed | None, tokens: Tokens | None) -> None:
    """Checks a batch, embeds what needs it, and adds it to what was read."""
    fields = batch.fields
    unknown = [name for name in fields if name not in COLUMNS and name != _LINKS.name]
    if unknown:
        row = next((row for row in range(batch.n) if fields[unknown[0]][row] is not None), 0)
        raise InvalidInput(
            f"{source}, {batch.place(row)}: unknown field {gate.shown(unknown[0])}; a record has {', '.join(COLUMNS)}: "
            "put what is your own into 'metadata', or play a trace with memcore replay. Nothing was imported"
        )
    links = fields.pop(_LINKS.name, None)
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
        linked = [] if links is None else _links(links, given, whole | given.explicit, now, told.spool.rows)
    columns["vector"] = vectors = _vectors(given, whole, embed)
    told.dim = told.dim or (0 if vectors is None else vectors.shape[1])
    if tokens is not None:
        working = np.flatnonzero(columns["kind"] == WORKING)
        columns["tokens"] = np.zeros(batch.n, dtype=FIXED["tokens"])
        columns["tokens"][working] = tokens([columns["content"][row] for row in working])
    told.spool.add(columns, given.names, whole | given.explicit)
    told.spool.add_links(linked)


def _links(
    told: Sequence[Any], given: intake.Intake, kept: npt.NDArray[np.bool_], now: int, begun: int
) -> list[Linked]:
    """The links of rows, checked; `begun` rows of the file came before."""
    found: list[Linked] = []
    for row, links in enumerate(told):
        if links is None:
            continue
        try:
            if not kept[row]:
                raise InvalidInput("it has links and no id; give it one, since links are between ids")
            if not isinstance(links, list):
                raise InvalidInput(f"links is {gate.shown(links)}; it must be a list of objects, as export writes it")
            scope = given.names["tenant"][row], given.names["project"][row]
            src = int(given.columns["id_hi"][row]), int(given.columns["id_lo"][row])
            found += [_link(link, scope, src, now, begun + row + 1) for link in links]
        except MemcoreError as fault:
            raise _AtRow(row) from fault
    return found


def _link(told: object, scope: Scope, src: Name, now: int, place: int) -> Linked:
    names = [field.name for field in _LINKS.type.value_type]
    if not isinstance(told, dict) or not told.keys() <= set(names):
        raise InvalidInput(f"a link is {gate.shown(told)}; it must be an object with {', '.join(names)}")
    times = {name: None if told.get(name) is None else _micros(told[name], name) for name in _LINK_TIMES}
    since, until, created = (times[name] for name in ("valid_from", "valid_to", "created_at"))
    return Linked(
        scope,
        src,
        gate.name(told.get("relation"), "relation"),
        ids.halves(gate.record_id(told.get("dst_id"), "dst_id")),
        gate.metadata(told.get("attributes"), "attributes"),
        now if created is None else created,
        NEVER if since is None else since,
        NEVER if until is None else until,
        place,
    )


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
        given.columns["has_vector"] = has | ~whole
    return vectors


def _check_header(source: Path, header: Header, catalog: Catalog) -> None:
    if header.version > FORMAT_VERSION:
        raise FormatTooNew(
            f"{source} is in format {header.version} and this memcore reads up to format {FORMAT_VERSION}; upgrade "
            "memcore-engine"
        )
    theirs, ours = header.embedder, catalog.fingerprint
    if theirs and ours and theirs != ours:
        from memcore import embed

        raise EmbedderMismatch(
            f"{source} holds vectors of the embedder {theirs!r} and this store uses {ours!r}; vectors of two embedders "
            f"cannot be compared: open a store {embed.opening(theirs)} (and reembed it then), or remember the texts "
            "anew",
            stored=ours,
            given=theirs,
        )
    if header.dim and ours and not theirs:
        raise EmbedderMismatch(
            f"{source} holds vectors that its writer passed, of no known embedder, and this store uses {ours!r}; they "
            "cannot be compared: open a store with embedder=None, or remember the texts anew",
            stored=ours,
        )
    if header.dim and catalog.dim and header.dim != catalog.dim:
        raise EmbedderMismatch(
            f"{source} holds vectors of {header.dim} dimensions and this store has {catalog.dim}; open a store with an "
            f"embedder of {header.dim} dimensions, or remember the texts anew",
            stored=ours,
            given=theirs,
        )


def _open_file(source: Path, format: str) -> tuple[Header, Batches]:
    try:
        if format == "parquet":
            return _open_parquet(source)
        return _open_lines(source) if format == "jsonl" else _open_document(source)
    except OSError as fault:
        raise _unreadable(source, fault) from fault


def _unreadable(source: Path, fault: OSError) -> StoreError:
    return StoreError(f"cannot read {source}: {_reason(fault)}; check the path")


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


def _open_parquet(source: Path) -> tuple[Header, Batches]:
    import pyarrow.parquet as pq

    stream = pa.OSFile(str(source))
    try:
        file = pq.ParquetFile(stream, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as fault:
        raise StoreCorrupt(f"{source} is not a whole Parquet file ({_reason(fault)}); use another copy") from fault
    metadata = file.schema_arrow.metadata or {}
    told = None
    own: list[str] = []  # columns that a store's own files have for itself: the record has all that they tell
    if b"memcore_format" in metadata:
        told = {name.decode(errors="replace"): value.decode(errors="replace") for name, value in metadata.items()}
        names = file.schema_arrow.names
        own = [name for name in names if name.startswith("_")]
        vector = file.schema_arrow.field("vector").type if names.count("vector") == 1 else None
        if "dim" not in told and vector is not None and pa.types.is_fixed_size_list(vector):
            told["dim"] = str(vector.list_size)  # a file of the cold tier has no more of a header than its embedder

    def batches() -> Batches:
        begun = 0
        try:
            for group in range(file.num_row_groups):  # asked for all of them, Arrow reads the whole file ahead
                for batch in file.iter_batches(_BATCH, row_groups=[group]):
                    yield _parquet_batch(source, pa.Table.from_batches([batch]).drop_columns(own), begun)
                    begun += batch.num_rows
        except (pa.ArrowException, OSError) as fault:
            raise StoreCorrupt(
                f"{source} cannot be read after row {begun} ({_reason(fault)}); nothing was imported: use another copy"
            ) from fault

    return Header() if told is None else _header(source, told), batches()


def _parquet_batch(source: Path, table: pa.Table, begun: int) -> _Batch:
    if _LINKS.name in table.column_names:
        at = table.column_names.index(_LINKS.name)
        try:
            table = table.set_column(at, _LINKS.name, table.column(at).cast(_PLAIN_LINKS))
        except (pa.ArrowException, ValueError) as fault:
            raise InvalidInput(
                f"{source}: the column 'links' has the type {table.column(at).type} ({_reason(fault)}); it must be as "
                "export writes it. Nothing was imported"
            ) from fault
    fields = {name: intake.arrow_values(name, table.column(name)) for name in table.column_names}
    batch = _Batch(fields, table.num_rows, lambda row: f"row {begun + row}")
    with _placed(source, batch):
        if "metadata" in fields:
            fields["metadata"] = _each(fields["metadata"], _object)
        for links in fields.get(_LINKS.name, ()):
            for link in links or ():
                link["attributes"] = _object(link["attributes"])
                link.update((name, None if link[name] is None else intake.Micros(link[name])) for name in _LINK_TIMES)
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


def _open_lines(source: Path) -> tuple[Header, Batches]:
    if source.exists() and not (source.is_file() or source.is_dir()):  # it is opened twice: a pipe would be empty then
        raise InvalidInput(f"{source} is not a regular file; write it to one first")
    with source.open("rb") as file:
        first = file.readline()
    told = _line(source, 1, first) if b'"memcore"' in first else {}
    headed = told.keys() == {"memcore"}

    def rows() -> Generator[tuple[str, dict[str, Any]], None, None]:
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


def _open_document(source: Path) -> tuple[Header, Batches]:
    with _decoding(source), source.open("rb") as file:
        stream = JsonStream(file)
        told: list[object] = []
        listed = False
        if stream.next() == "{":
            for name in stream.members():  # the header is the first of them, as export writes it
                if name == "memcore":
                    told.append(stream.value())
                    if not listed:
                        break
                elif name == "records" and stream.next() == "[":
                    listed = True
                    for _ in stream.items():
                        pass
                else:
                    stream.value()
        elif stream.next() != "[":
            stream.value()
        if not told and not listed:
            raise InvalidInput(
                f"{source} has no list of 'records'; pass a state document written by export, or use .jsonl"
            )
    return _header(source, told[-1]) if told else Header(), _batched(_records(source))


def _records(source: Path) -> Generator[tuple[str, dict[str, Any]], None, None]:
    place = 0
    listed = False
    with _decoding(source), source.open("rb") as file:
        stream = JsonStream(file)
        for name in stream.members():
            if name != "records" or stream.next() != "[":
                stream.value()
                continue
            listed = True
            for row in stream.items():
                if not isinstance(row, dict):
                    raise InvalidInput(
                        f"{source}, records[{place}] is {gate.shown(row)}; each record must be a JSON object"
                    )
                yield f"records[{place}]", row
                place += 1
        stream.end()
    if not listed:
        raise InvalidInput(f"{source} has no list of 'records'; pass a state document written by export, or use .jsonl")


@contextmanager
def _decoding(source: Path) -> Iterator[None]:
    """Tells of what is not JSON."""
    try:
        yield
    except MemcoreError:
        raise
    except (ValueError, RecursionError) as fault:
        raise InvalidInput(
            f"{source} is not a JSON document ({fault}). Nothing was imported; use another copy"
        ) from None


def _batched(rows: Generator[tuple[str, dict[str, Any]], None, None]) -> Batches:
    places: list[str] = []
    batch: list[dict[str, Any]] = []
    with closing(rows):  # or the file stays open as long as a fault's traceback is kept
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

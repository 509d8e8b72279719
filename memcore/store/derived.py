"""Where are the codes of segment files kept, and which words their rows have, so that the next process need not make
them? In `derived/`, as files.

A file holds the codes of one part of a segment file, and is named for it: the codes' arrays, mapped when they are read,
so that a store of a million rows can be searched without reading its vectors. It tells the rotation that the codes are
for, which lies in a file of its own, one for the store. Another file holds the part's postings, which take 13 to 37 us
a row to make: once a recall by words has made them. All of this can be deleted: it is made again, which costs time and
never data. A file that does not fit, or cannot be read, counts as not there.
"""

from __future__ import annotations

import json
import tokenize
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore.store import graphs, postings
from memcore.store.codes import Coder, Codes, Rotation
from memcore.store.files import Source, appearing, on_disk
from memcore.store.postings import Chunk
from memcore.store.segment import Segment

READING = 1  # of texts as words (`words`): another one makes other postings
LEAST_KEPT = 4096  # rows from which codes are kept: fewer are coded in a few milliseconds
_FORMAT = 3
_ROTATION = "rotation.npy"
_DTYPES: dict[str, npt.DTypeLike] = {
    "slab0": np.int8, "slab1": np.int8, "slab2": np.int8, "scale": np.uint16, "missed": np.uint16, "left": np.uint16,
    "newest": np.int64, "heaviest": np.float32,
}  # fmt: skip
_POSTINGS: dict[str, npt.DTypeLike] = {
    "terms": np.uint64, "starts": np.int64, "rows": np.int32, "counts": np.int32, "lengths": np.int32,
}  # fmt: skip


def name_of(source: Source) -> str:
    """The name of the file with the codes of a part of a segment file."""
    return f"{Path(source.file).stem}-{source.start}.arrow"


def segment_of(name: str) -> str:
    """The segment file that a file of codes is for."""
    return f"{name.partition('-')[0]}.arrow"


def words_name_of(source: Source) -> str:
    """The name of the file with the postings of a part of a segment file."""
    return f"{Path(source.file).stem}-{source.start}.words.arrow"


def _arrays(codes: Codes) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    yield from zip(_DTYPES, (*codes.slabs, codes.scale, codes.missed, codes.left), strict=False)
    yield "newest", codes.newest
    yield "heaviest", codes.heaviest


def write(folder: Path, source: Source, codes: Codes) -> None:
    """Keeps the codes of all rows of a part, which have room for no more."""
    about = {
        "format": _FORMAT,
        "of": name_of(source),
        "rows": codes.rows,
        "ends": codes.ends,
        "rotation": None if codes.rotation is None else codes.rotation.name,
    }
    _write(folder / name_of(source), about, dict(_arrays(codes)))


def write_words(folder: Path, source: Source, chunk: Chunk) -> None:
    """Keeps the postings of all rows of a part."""
    about = {
        "format": READING,
        "of": words_name_of(source),
        "rows": chunk.n,
        "languages": sorted(chunk.languages),
    }
    _write(folder / words_name_of(source), about, {name: getattr(chunk, name) for name in _POSTINGS})


def _write(path: Path, about: dict[str, Any], columns: dict[str, npt.NDArray[Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    arrays = {name: array.tobytes() for name, array in columns.items()}
    about = {**about, "crcs": {name: zlib.crc32(array) for name, array in arrays.items()}}
    # One cell a column: an array's bytes, which begin at a multiple of 64.
    schema = pa.schema([(name, pa.large_binary()) for name in arrays], {"memcore_codes": json.dumps(about)})
    cells = [pa.array([array], pa.large_binary()) for array in arrays.values()]
    with appearing(path) as part:
        with pa.OSFile(str(part), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(cells, schema=schema))
        on_disk(part)  # or a crash of the system could leave the name with other bytes
        part.replace(path)


def read(folder: Path, source: Source, rows: int, dim: int, rotation: Rotation | None) -> Codes | None:
    """The codes of a part, mapped; None if there are none that fit."""
    with suppress(OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        about, cells = _opened(folder / name_of(source))
        name = about["rotation"]
        if (
            about["format"] != _FORMAT
            or about["of"] != name_of(source)
            or about["rows"] != rows
            or (name and (rotation is None or rotation.name != name))
        ):
            return None
        return Codes.of(rows, dim, rotation if name else None, {n: cells[n].view(t) for n, t in _DTYPES.items()})
    return None


def read_words(folder: Path, source: Source, rows: int) -> Chunk | None:
    """The postings of a part, mapped; None if there are none that fit."""
    with suppress(OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        about, cells = _opened(folder / words_name_of(source))
        if (about["format"], about["of"], about["rows"]) != (READING, words_name_of(source), rows):
            return None
        terms, starts, places, counts, lengths = (cells[name].view(dtype) for name, dtype in _POSTINGS.items())
        fit = (len(starts), len(lengths)) == (len(terms) + 1, rows) and len(places) == len(counts) == starts[-1]
        if fit and starts[0] == 0 and not (starts[1:] < starts[:-1]).any():  # else a kernel would read elsewhere
            return Chunk(0, rows, terms, starts, places, counts, lengths, frozenset(about["languages"]))
    return None


def words_of(folder: Path, segment: Segment) -> tuple[Chunk, ...]:
    """The postings that are kept of a segment, if it lies in a segment file: one chunk, or none."""
    source = segment.source
    chunk = read_words(folder, source, segment.n) if isinstance(source, Source) else None
    return () if chunk is None else (chunk,)


def of(folder: Path, segment: Segment, rotation: Rotation | None) -> Codes | None:
    """The codes that are kept of a segment, if it lies in a segment file."""
    source = segment.source
    return read(folder, source, segment.n, segment.dim, rotation) if isinstance(source, Source) else None


def _opened(path: Path) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.uint8]]]:
    with pa.memory_map(str(path), "rb") as file:
        batch = pa.ipc.open_file(file).get_batch(0)
    cells = {}
    for name in batch.schema.names:
        _, offsets, data = batch.column(name).buffers()
        first, last = np.frombuffer(offsets, np.int64, 2)
        cells[name] = np.frombuffer(data, np.uint8, last - first, first) if last > first else np.empty(0, np.uint8)
    return json.loads(batch.schema.metadata[b"memcore_codes"]), cells


def damaged(path: Path) -> bool:
    """Whether a file of codes is not as it was written."""
    try:
        about, cells = _opened(path)
        return bool({name: zlib.crc32(cell.tobytes()) for name, cell in cells.items()} != about["crcs"])
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        return True


def damaged_in(folder: Path) -> list[Path]:
    """The files of a folder of derived data that are not as they were written."""
    found = [path for path in sorted(folder.glob("*.arrow")) if damaged(path)]
    rotation = folder / _ROTATION
    if rotation.exists() and _read_rotation(rotation) is None:
        found.append(rotation)
    return found + graphs.damaged_in(folder)


def read_rotation(folder: Path, dim: int) -> Rotation | None:
    """The store's rotation, if it has one of this width."""
    rotation = _read_rotation(folder / _ROTATION)
    return rotation if rotation is not None and len(rotation.matrix) == dim else None


def _read_rotation(path: Path) -> Rotation | None:
    with suppress(OSError, ValueError, EOFError, SyntaxError, tokenize.TokenError):  # all that a bent head can raise
        matrix = np.load(path)
        if matrix.shape == matrix.shape[::-1] and matrix.dtype == np.float64 and _orthonormal(matrix):
            return Rotation(np.ascontiguousarray(matrix))
    return None


def _orthonormal(matrix: npt.NDArray[np.float64]) -> bool:
    """A damaged one would make results wrong."""
    return bool(np.abs(matrix.T @ matrix - np.eye(len(matrix))).max() < 1e-9)


def write_rotation(folder: Path, rotation: Rotation) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / _ROTATION
    with appearing(path) as part:
        with part.open("wb") as file:
            np.save(file, rotation.matrix)
        on_disk(part)
        part.replace(path)


def lacks(coder: Coder, segment: Segment, *, all_words: bool = False) -> bool:
    """Whether a segment's codes, or postings that there are, are still to be kept, as far as this process knows; with
    `all_words` also postings that are still to be made.
    """
    source = segment.source
    if coder.folder is None or not isinstance(source, Source) or segment.n < LEAST_KEPT:
        return False
    names = [name_of(source)] if segment.dim else []
    if all_words or postings.whole(segment) is not None:
        names.append(words_name_of(source))
    return any(name not in coder.kept or not (coder.folder / name).exists() for name in names)


def keep(coder: Coder, segments: Iterable[Segment], stopping: Callable[[], bool], *, all_words: bool = False) -> None:
    """Makes the codes of segments that lie in files, and with `all_words` their postings, and keeps them and what else
    there is of postings, where they are not kept yet. Not under the lock.

    All processes take the rotation that is kept first; who has made codes with another one makes them anew.
    """
    for segment in segments:
        folder, source = coder.folder, segment.source
        if stopping():
            return
        if folder is None or not isinstance(source, Source) or not lacks(coder, segment, all_words=all_words):
            continue
        _keep_words(coder.kept, folder, source, segment, all_words=all_words)
        codes = coder.codes(segment, segment.n)
        if codes is not None and codes.rotation is not None:
            there = read_rotation(folder, segment.dim)
            if there is None:
                write_rotation(folder, codes.rotation)
            elif there.name != codes.rotation.name:
                coder.rotation, segment.coded = there, None
                codes = coder.codes(segment, segment.n)
        if codes is None:
            continue
        if read(folder, source, segment.n, segment.dim, codes.rotation) is None:
            write(folder, source, codes)
        segment.coded = read(folder, source, segment.n, segment.dim, codes.rotation) or codes
        coder.kept.add(name_of(source))


def _keep_words(kept: set[str], folder: Path, source: Source, segment: Segment, *, all_words: bool) -> None:
    if all_words:
        postings.of(segment, segment.n, folder)
    chunk = postings.whole(segment)
    if chunk is None:
        return
    there = read_words(folder, source, segment.n)
    if there is None:
        write_words(folder, source, chunk)
        there = read_words(folder, source, segment.n)
    segment.worded = (there or chunk,)
    kept.add(words_name_of(source))


def tidy(folder: Path, named: set[str]) -> None:
    """Removes what is derived of segment files that there are no more, and what a crash has left half written. While
    nobody else maintains the store.
    """
    for path in folder.iterdir() if folder.is_dir() else ():
        left = path.name.startswith(".") and path.name.endswith(".part")
        if left or (path.suffix == ".arrow" and segment_of(path.name) not in named):
            path.unlink(missing_ok=True)

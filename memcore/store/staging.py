"""How do all vectors of a store change at once, while the old ones serve? New files are staged beside those they will
replace, one by one, and one short transaction puts them in their place.

Staged files are listed in the catalog, so that an interrupted change goes on where it was. A file that maintenance has
replaced meanwhile is staged anew; `compact` gives up what is staged, since it holds what may have been forgotten since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from memcore.errors import StoreCorrupt
from memcore.store import cold, files
from memcore.store.catalog import Catalog, Name
from memcore.store.files import SEGMENTS, Share, Source
from memcore.store.journal import ROW, crc_of, crc_of_scope, rows_of_columns
from memcore.store.load import open_file
from memcore.store.maintenance import Maintenance
from memcore.store.segment import TEXTS
from memcore.store.steps import step

F32 = npt.NDArray[np.float32]
Embed = Callable[[Sequence[str]], F32]


class Target(NamedTuple):
    """Whose vectors are to come, and how wide they are."""

    fingerprint: str
    dim: int


class Unsealed(NamedTuple):
    """A row that only the journal has."""

    scope: Name
    cells: Sequence[Any]  # in the order of `ROW`

    @property
    def content(self) -> str:
        text: str = self.cells[ROW.index("content")]
        return text

    def crc_with(self, vector: bytes) -> int:
        """Its CRC with another vector."""
        at = ROW.index("vector")
        first = at - len(TEXTS)
        return crc_of(crc_of_scope(self.scope), (self.cells[0], *self.cells[2:first]), vector, self.cells[first:at])


class Staging:
    """The change of one store's vectors to those of one embedder."""

    def __init__(self, catalog: Catalog, maintenance: Maintenance, target: Target) -> None:
        assert catalog.journal is not None
        self._catalog = catalog
        self._journal = catalog.journal
        self._maintenance = maintenance
        self._target = target

    def counted(self) -> tuple[int, int]:
        """Rows of the whole store, and those of them whose new vectors are staged."""
        with self._maintenance.reading() as reader:
            ((rows,),) = reader.select(
                "SELECT (SELECT ifnull(sum(rows), 0) FROM segments) + (SELECT ifnull(sum(rows), 0) FROM cold) + "
                "(SELECT count(*) FROM rows WHERE seq > (SELECT sealed_upto FROM state))"
            )
            ((staged,),) = reader.select(
                "SELECT ifnull(sum(rows), 0) FROM staged WHERE fingerprint = ? AND replaces IN "
                "(SELECT file FROM segments UNION ALL SELECT file FROM cold)",
                self._target.fingerprint,
            )
        return rows, staged

    def missing(self) -> tuple[list[str], list[str]]:
        """The segment files and the cold files that have no new one yet."""
        with self._maintenance.reading() as reader:
            found = [
                [
                    file
                    for (file,) in reader.select(
                        f"SELECT file FROM {table} WHERE file NOT IN "
                        "(SELECT replaces FROM staged WHERE fingerprint = ?) ORDER BY id",
                        self._target.fingerprint,
                    )
                ]
                for table in ("segments", "cold")
            ]
        return found[0], found[1]

    def stage(self, file: str, embed: Embed) -> None:
        """Embeds the texts of a segment file and writes them into a new one. `embed` runs without any lock."""
        with self._maintenance.reading() as reader:
            parts = reader.select(
                "SELECT p.start, p.rows, p.about, c.tenant, c.project, p.scope FROM parts p "
                "JOIN segments s ON s.id = p.segment JOIN scopes c ON c.id = p.scope WHERE s.file = ? "
                "ORDER BY c.tenant, c.project, p.first_seq",
                file,
            )
            told = reader.select("SELECT bytes, crc FROM segments WHERE file = ?", file)
        for size, crc in told:  # what is damaged must not be written anew as if it were whole
            files.check_file(self._journal.directory / SEGMENTS / file, size, crc)
        try:
            opened = open_file(self._journal, file)
        except StoreCorrupt:
            if self._named("segments", file):
                raise
            return  # maintenance has put others in its place
        shares, numbers = [], {}
        for start, rows, about, tenant, project, number in parts:
            segment = opened.segment(Source(file, start), rows, json.loads(about), self._catalog.dim)
            columns = segment.batch(np.arange(rows))
            changed = {"vector": embed(columns["content"]), "has_vector": np.ones(rows, np.bool_)}
            cells = rows_of_columns((tenant, project), number, {**columns, **changed})
            crcs = np.array([row[ROW.index("crc")] for row in cells], np.uint32)
            shares.append(Share((tenant, project), segment, np.arange(rows), crcs, changed))
            numbers[tenant, project] = number
        with self._maintenance.alone():
            if not self._named("segments", file):
                return
            names, _ = self._maintenance.names()
            path = files.fresh_name(self._journal.directory)
            step("before a staged file is written")
            written, size, crc = files.write(path, shares, names, self._target.dim)
            step("before a staged file is named")
            self._name(file, path.name, sum(p.rows for p in written), size, crc, _told(written, numbers))
        step("after a staged file is named")

    def stage_cold(self, file: str, embed: Embed) -> None:
        """The same for a file of the cold tier."""
        place = self._catalog.place
        try:
            table = place.read(file)
        except FileNotFoundError:
            if self._named("cold", file):
                raise
            return
        vectors = embed(table.column("content").to_pylist())
        with self._maintenance.alone():
            if not self._named("cold", file):
                return
            made = cold.with_vectors(place, file, table, vectors, self._target.fingerprint)
            self._name(file, made.file, made.rows, made.bytes, made.crc, "")

    def _named(self, table: str, file: str) -> bool:
        """Whether the catalog names a file now."""
        with self._maintenance.reading() as reader:
            return bool(reader.select(f"SELECT 1 FROM {table} WHERE file = ?", file))

    def _name(self, replaces: str, file: str, rows: int, size: int, crc: int, parts: str) -> None:
        values = replaces, file, self._target.fingerprint, rows, size, crc, parts
        self._maintenance.commit(
            lambda: self._journal.run("INSERT OR REPLACE INTO staged VALUES (?, ?, ?, ?, ?, ?, ?)", *values)
        )

    def unsealed(self) -> dict[int, Unsealed]:
        """The rows that no file has, by seq."""
        with self._maintenance.reading() as reader:
            rows = reader.select(
                f"SELECT c.tenant, c.project, {', '.join(f'r.{name}' for name in ROW)} FROM rows r "
                "JOIN scopes c ON c.id = r.scope WHERE seq > (SELECT sealed_upto FROM state) ORDER BY seq"
            )
        return {row[0]: Unsealed((tenant, project), row) for tenant, project, *row in rows}

    def swap(self, unsealed: Mapping[int, Unsealed], vectors: F32, settle: Callable[[], None]) -> bool:
        """Puts all that is staged in its place, and new vectors into the rows that no file has; False, and nothing is
        changed, if there is a row or a file that has none yet. `settle` runs under the catalog's lock, when it is done.
        """
        journal, fingerprint = self._journal, self._target.fingerprint
        with self._maintenance.alone(), journal.busy:
            replaced: list[str] = []

            def change() -> None:
                staged = {
                    row[0]: row[1:] for row in journal.run("SELECT * FROM staged WHERE fingerprint = ?", fingerprint)
                }
                segments = [file for (file,) in journal.run("SELECT file FROM segments")]
                in_cold = [file for (file,) in journal.run("SELECT file FROM cold")]
                seqs = [
                    seq for (seq,) in journal.run("SELECT seq FROM rows WHERE seq > (SELECT sealed_upto FROM state)")
                ]
                if not staged.keys() >= {*segments, *in_cold} or set(seqs) != unsealed.keys():
                    raise _Behind
                for file in segments:
                    name, _, rows, size, crc, parts = staged[file]
                    journal.run("DELETE FROM segments WHERE file = ?", file)
                    (number,) = journal.run(
                        "INSERT INTO segments (file, rows, bytes, crc) VALUES (?, ?, ?, ?) RETURNING id",
                        name, rows, size, crc,
                    ).fetchone()  # fmt: skip
                    journal.run_many(
                        "INSERT INTO parts VALUES (?, ?, ?, ?, ?, ?, ?)", ((number, *p) for p in json.loads(parts))
                    )
                for file in in_cold:
                    name, _, _, size, crc, _ = staged[file]
                    journal.run("UPDATE cold SET file = ?, bytes = ?, crc = ? WHERE file = ?", name, size, crc, file)
                journal.run_many(
                    "UPDATE rows SET vector = ?, crc = ? WHERE seq = ?",
                    (
                        (blob, row.crc_with(blob), seq)
                        for (seq, row), blob in zip(unsealed.items(), (v.tobytes() for v in vectors), strict=True)
                    ),
                )
                journal.run("DELETE FROM staged")
                journal.run("UPDATE state SET generation = generation + 1")
                journal.set_state(dim=self._target.dim, fingerprint=fingerprint)
                replaced.extend((*segments, *in_cold))
                step("before new vectors are committed")

            try:
                self._maintenance.commit(change)
            except _Behind:
                return False
            with self._catalog.lock:
                settle()
                self._catalog.look()
            step("after new vectors are committed")
            for file in replaced:
                if file.endswith(".arrow"):
                    (journal.directory / SEGMENTS / file).unlink(missing_ok=True)
                else:
                    self._catalog.place.remove(file)
        return True


class _Behind(Exception):
    """A row or a file has come that has no new vectors yet."""


def _told(written: Sequence[files.Written], numbers: Mapping[Name, int]) -> str:
    """The rows of the table `parts`, but for the segment's number."""
    return json.dumps([(p.start, numbers[p.scope], p.rows, p.first_seq, p.last_seq, p.about) for p in written])

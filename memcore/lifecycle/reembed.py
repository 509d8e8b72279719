"""How does a store come to another embedder? All texts are embedded anew, while the old vectors go on serving.

What is embedded is put in place at once, when every row has its new vector: a reader sees the old ones or the new
ones. In a directory the work can be interrupted at any moment, and goes on where it was when it is called again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from memcore.embed.protocol import Embedder
from memcore.errors import StoreLocked
from memcore.store import cold
from memcore.store.catalog import Catalog
from memcore.store.codes import Coder
from memcore.store.cold import ColdFile
from memcore.store.commits import Commits
from memcore.store.maintenance import Maintenance
from memcore.store.portable import Progressing
from memcore.store.segment import Segment
from memcore.store.staging import Staging, Target

F32 = npt.NDArray[np.float32]
BATCH = 1024  # texts between two reports of progress
MOST_ROUNDS = 50  # each has the few rows to embed that were written during the one before


@dataclass(frozen=True, slots=True)
class ReembedReport:
    """`rows` versions were embedded by this call; `kept`: had been by an earlier one that was interrupted."""

    rows: int
    kept: int
    embedder: str
    dim: int


class _Counted:
    """An embedder that tells how far it is."""

    def __init__(self, embedder: Embedder, done: int, total: int, progress: Progressing | None) -> None:
        self._embedder = embedder
        self.done = done
        self.total = total
        self._progress = progress

    def __call__(self, texts: Sequence[str]) -> F32:
        made = [np.empty((0, self._embedder.dim), np.float32)]
        for start in range(0, len(texts), BATCH):
            made.append(self._embedder.embed(texts[start : start + BATCH], "document"))
            self.done += len(made[-1])
            if self._progress is not None:
                self._progress(self.done, max(self.total, self.done), "reembed")
        return np.concatenate(made)


def in_directory(
    catalog: Catalog,
    maintenance: Maintenance,
    embedder: Embedder,
    progress: Progressing | None,
    settle: Callable[[], None],
) -> ReembedReport:
    """Embeds all texts of a store in a directory. `settle` makes the embedder its user's, under the catalog's lock."""
    staging = Staging(catalog, maintenance, Target(embedder.fingerprint, embedder.dim))
    total, kept = staging.counted()
    embed = _Counted(embedder, kept, total, progress)
    known: dict[int, F32] = {}
    for _ in range(MOST_ROUNDS):
        maintenance.seal_all()
        hot, cold = staging.missing()
        for file in hot:
            staging.stage(file, embed)
        for file in cold:
            staging.stage_cold(file, embed)
        left = staging.unsealed()
        new = [seq for seq in left if seq not in known]
        known.update(zip(new, embed([left[seq].content for seq in new]), strict=True))
        vectors = np.array([known[seq] for seq in left], np.float32).reshape(len(left), embedder.dim)
        if staging.swap(left, vectors, settle):
            return ReembedReport(embed.done - kept, kept, embedder.fingerprint, embedder.dim)
    raise StoreLocked(
        f"the store {maintenance.directory} is written faster than {embedder.name!r} embeds; nothing was changed, and "
        "what was embedded is kept: call reembed again when there is less to do"
    )


def in_ram(
    catalog: Catalog, commits: Commits, embedder: Embedder, progress: Progressing | None, settle: Callable[[], None]
) -> ReembedReport:
    """The same for a store in RAM."""
    with catalog.lock:
        total = sum(
            sum(segment.n for segment in partition.segments) + sum(file.rows for file in partition.cold.files)
            for partition in catalog.partitions.values()
        )
    embed = _Counted(embedder, 0, total, progress)
    vectors: dict[Segment, F32] = {}
    cold_files: dict[ColdFile, ColdFile] = {}

    def cold_left() -> list[ColdFile]:
        files = (file for partition in catalog.partitions.values() for file in partition.cold.files)
        return [file for file in files if file not in cold_files]

    def left() -> list[tuple[Segment, list[str]]]:
        """The segments with rows that have no new vector yet, and their texts. Under the lock."""
        found = []
        for partition in catalog.partitions.values():
            for segment in partition.segments:
                done = len(vectors.get(segment, ()))
                if done < segment.n:
                    found.append((segment, segment.view().texts_at("content", range(done, segment.n)).to_pylist()))
        return found

    def swap() -> bool:
        if left() or cold_left():
            return False
        for scope in list(catalog.partitions):
            partition = catalog.partition(scope)
            partition.segments = tuple(segment.with_vectors(vectors[segment]) for segment in partition.segments)
            partition.cold = partition.cold._replace(files=tuple(cold_files[file] for file in partition.cold.files))
            partition.dim = embedder.dim
        catalog.dim, catalog.fingerprint, catalog.coder = embedder.dim, embedder.fingerprint, Coder()
        catalog.graphs.drop(())
        settle()
        return True

    for _ in range(MOST_ROUNDS):
        with catalog.lock:
            waiting, files = left(), cold_left()
        for file in files:
            table = catalog.place.read(file.file)
            new = embed(table.column("content").to_pylist())
            made = cold.with_vectors(catalog.place, file.file, table, new, embedder.fingerprint)
            cold_files[file] = made._replace(moved_seq=file.moved_seq)
        for segment, texts in waiting:
            before = vectors.get(segment, np.empty((0, embedder.dim), np.float32))
            vectors[segment] = np.concatenate([before, embed(texts)])
        if commits.run(swap):
            cold.remove(catalog.place, list(cold_files))
            return ReembedReport(embed.done, 0, embedder.fingerprint, embedder.dim)
    raise StoreLocked(
        f"the memory is written faster than {embedder.name!r} embeds; nothing was changed: call reembed again when "
        "there is less to do"
    )

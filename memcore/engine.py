"""What do all scopes of one open store share? Catalog, embedder, clock, defaults, and how it is written and closed."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore import clock, config, gate
from memcore.agent.working import CountTokens, make_room
from memcore.errors import EmbedderMismatch, InvalidInput, MemcoreError, StoreClosed
from memcore.search.planner import EXACT, Planner
from memcore.store import cold, moving, portable, restore
from memcore.store.catalog import CLOSED, Catalog
from memcore.store.commits import Batch, Commits, Ticket
from memcore.store.snapshot import Snapshot
from memcore.store.steps import step
from memcore.store.writes import Write

if TYPE_CHECKING:
    from memcore.embed.protocol import Embedder
    from memcore.lifecycle.prune import Retention
    from memcore.lifecycle.reembed import ReembedReport
    from memcore.store import spool
    from memcore.store.directory import Directory

EMBED_BATCH = 4096
MOST_TOKENS = 2**31 - 1  # what the store's column holds
F32 = npt.NDArray[np.float32]
Item = TypeVar("Item")
R = TypeVar("R")
T = TypeVar("T")


def _give_back() -> None:
    """Has malloc return to the system what reading a file took and freed: 600 bytes a row, where the C library can."""
    pa.default_memory_pool().release_unused()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@dataclass(slots=True, eq=False)
class Engine:
    """`directory` is None for a store in RAM."""

    catalog: Catalog
    commits: Commits
    embedder: Embedder | None
    clock: clock.Clock
    weights: config.Weights
    decay_rate: float
    working: config.WorkingLimits
    count_tokens: CountTokens
    directory: Directory | None = None
    retention: tuple[Retention, ...] = ()
    planner: Planner = EXACT
    closed: bool = False

    def now(self, given: object) -> int:
        return clock.to_micros(self.clock(), "the clock's time") if given is None else clock.to_micros(given, "now")

    def check_open(self) -> None:
        if self.closed or self.catalog.closed:
            raise StoreClosed(CLOSED)

    def check_embedder(self) -> None:
        """Refuses to go on with an embedder that is not the store's."""
        with self.catalog.lock:
            self._settle_embedder()

    def begin(self) -> None:
        """Makes the embedder the store's if it is empty, and else checks that it is. Takes over an older format."""
        if self.directory is not None:
            self.directory.maintenance.clocks.append(self.clock)
        self.check_embedder()
        self.planner.want(self.catalog.graphs, self.decay_rate)
        if self.directory is not None:
            self.directory.take_over(lambda old: self.read(old, "parquet", 0))

    def _settle_embedder(self) -> None:
        catalog, embedder = self.catalog, self.embedder
        if not catalog.seq:
            catalog.fingerprint = None if embedder is None else embedder.fingerprint
            if embedder is not None and catalog.dim != embedder.dim:
                catalog.widen(embedder.dim)
        elif embedder is not None and embedder.fingerprint != catalog.fingerprint:
            from memcore.store.directory import check_embedder

            path = None if self.directory is None else self.directory.path
            check_embedder(catalog, path, embedder.name, embedder.fingerprint, embedder.dim)
        elif embedder is not None and catalog.dim not in (0, embedder.dim):
            raise EmbedderMismatch(
                f"the store holds vectors of {catalog.dim} dimensions of the embedder {catalog.fingerprint!r}, and is "
                f"used with {embedder.name!r}, which has the same fingerprint and gives {embedder.dim}; give it a "
                "fingerprint of its own, open the store with embedder=None, and embed all texts anew with reembed",
                stored=catalog.fingerprint,
                given=embedder.fingerprint,
            )

    def write(self, body: Callable[[Catalog], T]) -> T:
        """Runs a function that changes the catalog, under its lock: all that it does, or nothing if it raises.

        Returns when it is on disk. Nothing slow or of the caller's making may run inside.
        """
        result: T = self.commits.done(self._ticket(body))
        return result

    def to_write(self, body: Callable[[Catalog], T], then: Callable[[T], R]) -> Write[R]:
        """The same for a verb in two parts: to be done, and then made the verb's result of."""
        return Write(self.commits, self._ticket(body), then)

    def to_batch(self, batch: Batch[Item, T], item: Item, then: Callable[[T], R]) -> Write[R]:
        """The same for an item of a batch, which checks by itself that the store can be written."""
        return Write(self.commits, Ticket(None, batch, item), then)

    def _ticket(self, body: Callable[[Catalog], Any]) -> Ticket:
        self.check_open()

        def checked() -> Any:
            self.check_writable()
            return body(self.catalog)

        return Ticket(checked)

    def move_out(
        self, scope: tuple[str, str], snapshot: Snapshot, positions: npt.NDArray[np.int64], now: int
    ) -> set[tuple[int, int]]:
        """Moves rows of a snapshot, all versions of some memories, to the cold tier; the ids of what was moved.

        Files are written before the catalog is locked. Meanwhile no other process maintains the store, since it would
        remove files that nothing names yet.
        """
        catalog = self.catalog
        self.check_files([snapshot])
        with nullcontext() if self.directory is None else self.directory.maintenance.alone():
            while len(positions):  # less in each round, by the memories that somebody changes meanwhile
                self.check_open()
                files = cold.write(catalog.place, snapshot, positions, catalog.fingerprint)
                step("before a cold file is named")
                try:
                    changed = self._name_cold(scope, snapshot, positions, files, now)
                except MemcoreError:
                    cold.remove(catalog.place, files)
                    raise
                step("after a cold file is named")
                names = list(zip(*(half.tolist() for half in snapshot.halves(positions)), strict=True))
                if not changed:
                    return set(names)
                cold.remove(catalog.place, files)
                positions = positions[np.array([name not in changed for name in names], dtype=np.bool_)]
        return set()

    def _name_cold(
        self,
        scope: tuple[str, str],
        snapshot: Snapshot,
        positions: npt.NDArray[np.int64],
        files: Sequence[cold.ColdFile],
        now: int,
    ) -> set[tuple[int, int]]:
        return self.write(lambda catalog: moving.move_out(catalog, scope, snapshot, positions, files, now))

    def check_files(self, snapshots: Sequence[Snapshot]) -> None:
        """Refuses to write anew, as if they were whole, the rows of a file that is damaged."""
        if self.directory is not None:
            self.directory.check_files(snapshots)

    def check_writable(self) -> None:
        """What every write begins with, under the lock."""
        self.check_open()  # again: another thread may have closed it since the verb began
        self._settle_embedder()
        catalog, embedder = self.catalog, self.embedder
        if embedder is not None and not catalog.dim:  # what was written until now had no vectors
            catalog.settle_dim(embedder.dim)
            catalog.fingerprint = embedder.fingerprint

    def check_made_by(self, embedder: Embedder | None) -> None:
        """Refuses vectors that another embedder has made than the store's by now. Under the lock."""
        if embedder is not self.embedder:
            raise EmbedderMismatch(
                "the store has come to another embedder (reembed) while this text was embedded; nothing was written: "
                "do it again",
                stored=self.catalog.fingerprint,
                given=None if embedder is None else embedder.fingerprint,
            )

    def reembed(self, embedder: Embedder, progress: portable.Progressing | None) -> ReembedReport:
        """Embeds all texts anew and makes the embedder the store's and this engine's."""
        from memcore.lifecycle import reembed  # with SQLite and Parquet, which a store in RAM does without

        self.check_open()
        if embedder.fingerprint == self.catalog.fingerprint:
            raise InvalidInput(
                f"the store's vectors are those of {embedder.fingerprint!r} already; reembed takes another embedder"
            )

        def settle() -> None:
            self.embedder = embedder

        if self.directory is None:
            return reembed.in_ram(self.catalog, self.commits, embedder, progress, settle)
        done = reembed.in_directory(self.catalog, self.directory.maintenance, embedder, progress, settle)
        self.check_embedder()  # of an empty store nothing in its files tells
        return done

    def embed(self, texts: Sequence[str], kind: Literal["document", "query"]) -> F32 | None:
        """float32 `(n, dim)`, or None where the store has no embedder. Never called under the lock."""
        if self.embedder is None or not texts:
            return None
        parts = [self.embedder.embed(texts[i : i + EMBED_BATCH], kind) for i in range(0, len(texts), EMBED_BATCH)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def counted_tokens(self, text: str) -> int:
        """What a text takes of a budget. Never called under the lock."""
        return min(gate.count(self.count_tokens(text), "the result of count_tokens"), MOST_TOKENS)

    def tokens(self, texts: Sequence[str]) -> list[int]:
        """What each text takes of the working memory's budget, 0 without one. Never called under the lock."""
        if self.working.tokens is None:
            return [0] * len(texts)
        return [self.counted_tokens(text) for text in texts]

    def read(
        self,
        path: str | os.PathLike[str],
        format: str | None,
        now: int,
        progress: portable.Progressing | None = None,
    ) -> portable.ImportReport:
        """Adds the rows of a file; goes on where an import of the same file was cut off."""
        try:
            return self._read(path, format, now, progress)
        finally:
            _give_back()

    def _read(
        self, path: str | os.PathLike[str], format: str | None, now: int, progress: portable.Progressing | None
    ) -> portable.ImportReport:
        unfinished = self.write(lambda catalog: catalog.imports_told())
        file = portable.digest(path) if unfinished else None
        told = unfinished.get(file) if file is not None else None
        state = restore.Progress(now) if told is None else restore.Progress.of(told)

        def embed(texts: Sequence[str]) -> F32 | None:
            return self.embed(texts, "document")

        with portable.read(
            path, format, self.catalog, now=state.now, embed=embed, tokens=self.tokens, progress=progress
        ) as rows:
            portable.settle(rows, self.catalog, state)
            total = rows.spool.total
            if told is None:
                file = portable.digest(path) if total > portable.COMMIT_ROWS else None
            while True:
                batch = rows.spool.batch(state.done, portable.COMMIT_ROWS)
                before = state

                def add(
                    catalog: Catalog, batch: spool.Batch = batch, before: restore.Progress = before
                ) -> restore.Progress:
                    portable.check_alone(rows, catalog, file, before)
                    after = portable.add(rows, batch, catalog, before)
                    if batch.last and after.new:
                        self._make_room(rows.spool.conversations(), before.now)
                    if file is not None:
                        catalog.tell_import(file, None if batch.last else after.text())
                    return after

                try:
                    state = self.write(add)
                except MemcoreError as fault:
                    if not state.done:
                        raise
                    raise portable.cut_off(rows, fault, state.done) from fault
                if progress is not None:
                    progress(state.done, total, "import")
                if batch.last:
                    return portable.ImportReport(state.new, rows.spool.rows - state.new, state.links)
                if self.directory is not None:
                    self.directory.maintenance.keep_up(now)

    def _make_room(self, scopes: Sequence[tuple[str, str]], now: int) -> None:
        """Keeps every conversation of these scopes within the limits, after rows came in otherwise than by `remember`.
        Under the lock.
        """
        for scope in scopes:
            partition = self.catalog.partition(scope)
            partition.find_conversations()
            for conversation in list(partition.held):
                make_room(self.catalog, partition, conversation, self.working, now)

    def close(self) -> None:
        """Lets go of the store. All that was acknowledged is on disk already."""
        with self.catalog.lock:  # which a forked child finds free
            if self.closed:
                return
            self.closed = True
            if self.directory is None:
                self.catalog.partitions = {}
                self.catalog.closed = True
        if self.directory is not None:
            self.directory.close()
            self.directory.maintenance.clocks.remove(self.clock)  # which the last round may have asked

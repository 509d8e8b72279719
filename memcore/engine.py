"""What do all scopes of one open store share? Catalog, embedder, clock, defaults, and how it is written and closed."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore import clock, config, gate
from memcore.agent.working import CountTokens, make_room
from memcore.errors import StoreClosed
from memcore.store import portable
from memcore.store.catalog import CLOSED, Catalog
from memcore.store.commits import Commits

if TYPE_CHECKING:
    from memcore.embed.protocol import Embedder
    from memcore.store.directory import Directory

EMBED_BATCH = 4096
MOST_TOKENS = 2**31 - 1  # what the store's column holds
F32 = npt.NDArray[np.float32]
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
    closed: bool = False

    def now(self, given: object) -> int:
        return clock.to_micros(self.clock(), "the clock's time") if given is None else clock.to_micros(given, "now")

    def check_open(self) -> None:
        if self.closed or self.catalog.closed:
            raise StoreClosed(CLOSED)

    def begin(self) -> None:
        """Makes the embedder the store's if it is empty, and else checks that it is. Takes over an older format."""
        with self.catalog.lock:
            self._settle_embedder()
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

    def write(self, body: Callable[[Catalog], T]) -> T:
        """Runs a function that changes the catalog, under its lock: all that it does, or nothing if it raises.

        Returns when it is on disk. Nothing slow or of the caller's making may run inside.
        """
        self.check_open()

        def checked() -> T:
            self.check_writable()
            return body(self.catalog)

        return self.commits.run(checked)

    def check_writable(self) -> None:
        """What every write begins with, under the lock."""
        self.check_open()  # again: another thread may have closed it since the verb began
        self._settle_embedder()

    def embed(self, texts: Sequence[str], kind: Literal["document", "query"]) -> F32 | None:
        """float32 `(n, dim)`, or None where the store has no embedder. Never called under the lock."""
        if self.embedder is None or not texts:
            return None
        parts = [self.embedder.embed(texts[i : i + EMBED_BATCH], kind) for i in range(0, len(texts), EMBED_BATCH)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def tokens(self, texts: Sequence[str]) -> list[int]:
        """What each text takes of the working memory's budget, 0 without one. Never called under the lock."""
        if self.working.tokens is None:
            return [0] * len(texts)
        return [min(gate.count(self.count_tokens(text), "the result of count_tokens"), MOST_TOKENS) for text in texts]

    def read(self, path: str | os.PathLike[str], format: str | None, now: int) -> portable.ImportReport:
        """Adds the rows of a file."""
        report = self._read(path, format, now)
        _give_back()
        return report

    def _read(self, path: str | os.PathLike[str], format: str | None, now: int) -> portable.ImportReport:
        rows = portable.read(
            path, format, self.catalog, now=now, embed=lambda texts: self.embed(texts, "document"), tokens=self.tokens
        )

        def add(catalog: Catalog) -> portable.ImportReport:
            report = portable.add(rows, catalog, now=now)
            self._make_room(now)
            return report

        return self.write(add)

    def _make_room(self, now: int) -> None:
        """Keeps every conversation within the limits, after rows came in otherwise than by `remember`."""
        for scope in self.catalog.changed():
            partition = self.catalog.partition(scope)
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

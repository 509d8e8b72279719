"""What do all scopes of one open store share? Catalog, embedder, clock, defaults, and how it is saved and closed."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from memcore import clock, config, gate
from memcore.agent.working import CountTokens, make_room
from memcore.errors import MemcoreError, StoreClosed
from memcore.store import portable, saved
from memcore.store.catalog import CLOSED, Catalog

if TYPE_CHECKING:
    from memcore.embed.protocol import Embedder

EMBED_BATCH = 4096
MOST_TOKENS = 2**31 - 1  # what the store's column holds
F32 = npt.NDArray[np.float32]


def _give_back() -> None:
    """Has malloc return to the system what reading a file took and freed: 600 bytes a row, where the C library can."""
    pa.default_memory_pool().release_unused()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


@dataclass(slots=True)
class Engine:
    catalog: Catalog
    embedder: Embedder | None
    clock: clock.Clock
    weights: config.Weights
    decay_rate: float
    working: config.WorkingLimits
    count_tokens: CountTokens
    saved: saved.SavedStore | None = None
    saved_changes: int = 0  # the catalog's, when the store was loaded or saved
    closed: bool = False
    saving: threading.Lock = field(default_factory=threading.Lock)

    def now(self, given: object) -> int:
        return clock.to_micros(self.clock(), "the clock's time") if given is None else clock.to_micros(given, "now")

    def check_open(self) -> None:
        if self.saved is not None:
            self.saved.check_owner()
        if self.closed:
            raise StoreClosed(CLOSED)

    @contextmanager
    def writing(self) -> Iterator[Catalog]:
        """The catalog under its lock, for one commit. Nothing slow or of the caller's making may run inside."""
        with self.catalog.lock:
            self.check_open()  # again: another thread may have closed it since the verb began
            seq, dim = self.catalog.seq, self.catalog.dim
            try:
                yield self.catalog
            except BaseException as fault:  # a signal's handler may raise between any two steps, or memory run out
                if self.catalog.seq != seq or not isinstance(fault, MemcoreError):
                    self.catalog.roll_back(seq, dim)
                raise

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

    def load(self, path: object) -> None:
        """Makes a directory's state this store's, and takes its lock."""
        self.saved = saved.SavedStore.open(path, self.catalog, self.tokens)
        self.saved_changes = self.catalog.changes
        _give_back()
        self.make_room(self.now(None))

    def read(self, path: str | os.PathLike[str], format: str | None, now: int) -> portable.ImportReport:
        """Adds the rows of a file."""
        rows = portable.read(
            path, format, self.catalog, now=now, embed=lambda texts: self.embed(texts, "document"), tokens=self.tokens
        )
        with self.writing() as catalog:
            report = portable.add(rows, catalog, now=now)
            self.make_room(now)
        del rows
        _give_back()
        return report

    def make_room(self, now: int) -> None:
        """Keeps every conversation within the limits, after rows came in otherwise than by `remember`."""
        with self.catalog.lock:
            for partition in self.catalog.partitions.values():
                for conversation in list(partition.held):
                    make_room(self.catalog, partition, conversation, self.working, now)

    def save(self) -> None:
        """Writes what has changed to the store's directory, if it has one. One thread at a time."""
        with self.saving:
            if self.saved is None:
                return
            with self.catalog.lock:
                snapshots, changes = self.catalog.snapshots(), self.catalog.changes
            if changes != self.saved_changes:
                self.saved.save(snapshots, self.catalog.fingerprint)
                self.saved_changes = changes

    def close(self) -> None:
        """Saves and lets go of the directory. A store that cannot be saved stays open, so that nothing is lost."""
        if self.saved is not None and not self.saved.owned():
            return  # a forked child: what it inherited is its parent's to save
        with self.catalog.lock:
            if self.closed:
                return
            self.closed = True  # before it is saved: what is acknowledged after that would be lost
        try:
            self.save()
        except BaseException:
            self.closed = False
            raise
        with self.catalog.lock:
            self.catalog.partitions = {}
            self.catalog.closed = True
        if self.saved is not None:
            self.saved.release()

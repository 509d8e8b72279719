"""Does the exact scan answer, or a graph? By what this machine was measured to do faster, and what the caller allows.

The exact scan takes time in proportion to the rows, a graph hardly. `memcore bench --calibrate` measures from how many
rows on, and down to which share of them that passes a filter, the graph is the faster; what it finds lies in the user's
cache folder. Until then graphs begin at a million rows.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from memcore import gate
from memcore.errors import InvalidInput
from memcore.store import graphs
from memcore.store.graphs import Graphs, Wanted
from memcore.store.hnsw import check_backend

INDEXES = ("auto", "exact", "faiss", "hnswlib")
UNMEASURED_ROWS = 1_000_000
UNMEASURED_SHARE = 0.25
_FILE = "planner.json"


class Planner(NamedTuple):
    """Which graphs may answer: of this backend (None: none), in scopes where at least so many rows pass, and at least
    this share of the rows with a graph.
    """

    backend: str | None
    least_rows: int
    least_share: float

    def want(self, kept: Graphs, decay_rate: float) -> None:
        """Has the graphs made that it can use."""
        if self.backend is not None:
            kept.wanted.add(Wanted(self.backend, decay_rate, self.least_rows))


EXACT = Planner(None, 0, 1.0)


class Measured(NamedTuple):
    """What `memcore bench --calibrate` found: see `Planner`."""

    least_rows: int
    least_share: float


def planner(index: object) -> Planner:
    """The gate for `index`."""
    if not isinstance(index, str) or index not in INDEXES:
        raise InvalidInput(
            f"index is {gate.shown(index)}; pass 'auto' (a graph where it is faster), 'exact' (never a graph), 'faiss' "
            "or 'hnswlib' (a graph of that library wherever there is one)"
        )
    if index == "exact":
        return EXACT
    found = measured() or Measured(UNMEASURED_ROWS, UNMEASURED_SHARE)
    if index == "auto":
        return Planner("faiss", *found)
    check_backend(index)
    return Planner(index, graphs.LEAST_ROWS, found.least_share)


def path() -> Path:
    """Where the measurement lies: one for all stores of a user, since it is about the machine."""
    folder = os.environ.get("XDG_CACHE_HOME")
    return (Path(folder) if folder else Path.home() / ".cache") / "memcore" / _FILE


def measured() -> Measured | None:
    """What was measured on this machine; None if nothing was, or it can't be read."""
    with suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RuntimeError):
        told = json.loads(path().read_text(encoding="utf-8"))
        found = Measured(int(told["least_rows"]), float(told["least_share"]))
        if found.least_rows >= 0 and 0 <= found.least_share <= 1:
            return found
    return None

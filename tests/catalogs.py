"""Is a store's catalog whole, by SQLite's own word and not by memcore's?"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from memcore.store.journal import CATALOG


def whole(path: Path) -> bool:
    """Whether SQLite finds nothing wrong in the catalog of the store at `path`."""
    with closing(sqlite3.connect(path / CATALOG)) as catalog:
        found = (
            catalog.execute("PRAGMA integrity_check").fetchall()
            + catalog.execute("PRAGMA foreign_key_check").fetchall()
        )
    return found == [("ok",)]

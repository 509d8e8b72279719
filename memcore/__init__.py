"""memcore: the memory of LLM agents, embedded, columnar and exact.

    import memcore
    mem = memcore.open()                          # everything in RAM; a directory keeps it
    ops = mem.scope(tenant_id="acme", project_id="billing")
    ops.remember("HTTP 504 on /billing", importance=0.9)
    for hit in ops.recall("payment timeouts", k=5):
        print(hit.total_score, hit.content)

Importing this module loads neither NumPy nor Arrow, compiles nothing and loads no embedder: each name below is
imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from memcore.config import DECAY_PRESETS, Weights, half_life_hours
    from memcore.errors import (
        DimensionMismatch,
        EmbedderMismatch,
        FormatTooNew,
        InvalidInput,
        MemcoreError,
        MissingExtra,
        NotFound,
        ScopeError,
        StoreClosed,
        StoreCorrupt,
        StoreError,
        StoreFull,
        StoreLocked,
        StoreReadOnly,
        VersionConflict,
    )
    from memcore.memory import Memory, Scope, open, warmup
    from memcore.schema import KINDS, Record, Records, record_schema
    from memcore.search.result import Hit, Recall


__all__ = [
    "DECAY_PRESETS",
    "KINDS",
    "DimensionMismatch",
    "EmbedderMismatch",
    "FormatTooNew",
    "Hit",
    "InvalidInput",
    "MemcoreError",
    "Memory",
    "MissingExtra",
    "NotFound",
    "Recall",
    "Record",
    "Records",
    "Scope",
    "ScopeError",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreReadOnly",
    "VersionConflict",
    "Weights",
    "__version__",
    "half_life_hours",
    "open",
    "record_schema",
    "warmup",
]

_HOMES = {
    **dict.fromkeys(("DECAY_PRESETS", "Weights", "half_life_hours"), "memcore.config"),
    **dict.fromkeys(("Memory", "Scope", "open", "warmup"), "memcore.memory"),
    **dict.fromkeys(("KINDS", "Record", "Records", "record_schema"), "memcore.schema"),
    **dict.fromkeys(("Hit", "Recall"), "memcore.search.result"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'memcore' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES.get(name, "memcore.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

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
    from memcore import embed as embed
    from memcore.asynchronous import AsyncMemory, AsyncScope, open_async
    from memcore.config import DECAY_PRESETS, Weights, half_life_hours
    from memcore.errors import (
        DimensionMismatch,
        EmbedderMismatch,
        FormatTooNew,
        InvalidInput,
        LLMError,
        LLMRefused,
        LLMUnavailable,
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
    from memcore.lifecycle.prune import Pruned, PruneReport, Retention
    from memcore.memory import Memory, Scope, open, verify, warmup
    from memcore.schema import KINDS, Link, Links, Record, Records, record_schema
    from memcore.search.result import Hit, Recall
    from memcore.store.verify import Problem, RepairReport, VerifyReport


__all__ = [
    "DECAY_PRESETS",
    "KINDS",
    "AsyncMemory",
    "AsyncScope",
    "DimensionMismatch",
    "EmbedderMismatch",
    "FormatTooNew",
    "Hit",
    "InvalidInput",
    "LLMError",
    "LLMRefused",
    "LLMUnavailable",
    "Link",
    "Links",
    "MemcoreError",
    "Memory",
    "MissingExtra",
    "NotFound",
    "Problem",
    "PruneReport",
    "Pruned",
    "Recall",
    "Record",
    "Records",
    "RepairReport",
    "Retention",
    "Scope",
    "ScopeError",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreReadOnly",
    "VerifyReport",
    "VersionConflict",
    "Weights",
    "__version__",
    "half_life_hours",
    "open",
    "open_async",
    "record_schema",
    "verify",
    "warmup",
]

_HOMES = {
    **dict.fromkeys(("AsyncMemory", "AsyncScope", "open_async"), "memcore.asynchronous"),
    **dict.fromkeys(("DECAY_PRESETS", "Weights", "half_life_hours"), "memcore.config"),
    **dict.fromkeys(("PruneReport", "Pruned", "Retention"), "memcore.lifecycle.prune"),
    **dict.fromkeys(("Memory", "Scope", "open", "verify", "warmup"), "memcore.memory"),
    **dict.fromkeys(("KINDS", "Link", "Links", "Record", "Records", "record_schema"), "memcore.schema"),
    **dict.fromkeys(("Hit", "Recall"), "memcore.search.result"),
    **dict.fromkeys(("Problem", "RepairReport", "VerifyReport"), "memcore.store.verify"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name == "embed":  # where more embedders are
        return import_module("memcore.embed")
    if name not in __all__:
        raise AttributeError(f"module 'memcore' has no attribute {name!r}")
    value = getattr(import_module(_HOMES.get(name, "memcore.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "embed"})

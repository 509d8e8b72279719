"""How are kernels compiled? The one place for Numba's options; a test holds every kernel to it.

`kernel` may reorder sums: for bounds and float32 screening, whose error a slack covers. `exact_kernel` may not: what it
returns decides the order of results, so it must be the same to the bit on every machine and beside any plan.

fastmath is the subset without `nnan` and `ninf`: NaN must stay NaN, and minus infinity marks a row that is out.
Every kernel releases the GIL. None uses `prange`: Numba's workqueue layer aborts the process when two threads enter
parallel kernels at once and GNU OpenMP's aborts a forked child, so parallelism is Python threads over these kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

FASTMATH = frozenset({"reassoc", "contract", "arcp", "afn", "nsz"})
F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile on first call, cached on disk, GIL released, sums free to be reordered."""
    return _compiled(function, fastmath=set(FASTMATH))


def exact_kernel(function: F) -> F:
    """Compile on first call, cached on disk, GIL released, IEEE arithmetic in the order written."""
    return _compiled(function, fastmath=False)


def _compiled(function: F, **options: Any) -> F:
    try:
        return cast(F, njit(nogil=True, cache=True, **options)(function))
    except RuntimeError:  # Numba found no folder for its cache that it may write to: a read-only install without a home
        return cast(F, njit(nogil=True, **options)(function))

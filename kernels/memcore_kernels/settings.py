"""How are kernels compiled, and where is the machine code kept? The one place for Numba's options.

`kernel` may reorder sums: for bounds and float32 screening, whose error a slack covers. `exact_kernel` may not: what it
returns decides the order of results, so it must be the same to the bit on every machine and beside any plan.

fastmath is the subset without `nnan` and `ninf`: NaN must stay NaN, and minus infinity marks a row that is out.
Every kernel releases the GIL. None uses `prange`: Numba's workqueue layer aborts the process when two threads enter
parallel kernels at once and GNU OpenMP's aborts a forked child, so parallelism is Python threads over these kernels.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from importlib import resources
from typing import Any, TypeVar, cast

from numba import njit
from numba.core.caching import FunctionCache, IndexDataCacheFile, NullCache

FASTMATH = frozenset({"reassoc", "contract", "arcp", "afn", "nsz"})
F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile on first call, cached on disk, GIL released, sums free to be reordered."""
    return _compiled(function, fastmath=set(FASTMATH))


def exact_kernel(function: F) -> F:
    """Compile on first call, cached on disk, GIL released, IEEE arithmetic in the order written."""
    return _compiled(function, fastmath=False)


def _compiled(function: F, **options: Any) -> F:
    made: Any = njit(nogil=True, **options)(function)
    if made is function:  # NUMBA_DISABLE_JIT=1
        return function
    try:
        made._cache = Cache(function)
    except RuntimeError:  # Numba found no folder that it may write to: a read-only install without a home
        made._cache = NoCache()
    return cast(F, made)


class Cache(FunctionCache):
    """Numba's cache on disk (what `cache=True` gives), with two differences.

    A fault of it never stops a kernel, which is then compiled anew. And it goes by the sources of all kernels: Numba's
    goes by the file that a kernel is in, and would keep the machine code after a helper in another file has changed.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        numba_cache: Any = super()
        numba_cache.__init__(function)
        file: Any = IndexDataCacheFile
        self._cache_file = file(self.cache_path, self._impl.filename_base, _SOURCES)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The machine code for a signature, or None. An entry that a crash or a full disk has cut off is dropped."""
        numba_cache: Any = super()
        try:
            return numba_cache.load_overload(sig, target_context)
        except Exception as fault:  # unpickling damaged bytes can raise anything
            _warn(f"an entry in {self.cache_path}, where compiled kernels are kept, cannot be read ({fault!r})")
        try:
            numba_cache.flush()
        except OSError:
            numba_cache.disable()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keeps the machine code for a signature, if that is possible."""
        numba_cache: Any = super()
        try:
            numba_cache.save_overload(sig, data)
        except Exception as fault:  # the folder is full, gone, or no longer ours to write to
            _warn(f"compiled kernels cannot be kept in {self.cache_path} ({fault!r})")
            numba_cache.disable()


class NoCache(NullCache):
    """In place of a cache where no folder can be written to."""

    def save_overload(self, sig: Any, data: Any) -> None:
        _warn("there is no folder to keep compiled kernels in")


_warned = False


def _warn(what: str) -> None:
    """Once a process: the first fault says enough."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            f"{what}; kernels are compiled anew, which takes seconds: set NUMBA_CACHE_DIR to a folder that can be "
            "written to, or empty the one it names",
            RuntimeWarning,
            stacklevel=2,
        )


_SOURCES = hashlib.sha256(
    b"".join(
        file.read_bytes()
        for file in sorted(resources.files(__package__).iterdir(), key=lambda file: file.name)
        if file.name.endswith(".py")
    )
).hexdigest()

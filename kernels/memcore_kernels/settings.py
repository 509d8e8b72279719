"""How are kernels compiled, and where is the machine code kept? The one place for Numba's options.

`kernel` may reorder sums: for bounds and float32 screening, whose error a slack covers. `exact_kernel` may not: what it
returns decides the order of results, so it must be the same to the bit on every machine and beside any plan.

fastmath is the subset without `nnan` and `ninf`: NaN must stay NaN, and minus infinity marks a row that is out.
Every kernel releases the GIL. None uses `prange`: Numba's workqueue layer aborts the process when two threads enter
parallel kernels at once and GNU OpenMP's aborts a forked child, so parallelism is Python threads over these kernels.
"""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib import resources
from typing import Any, TypeVar, cast

from numba import config, njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile

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
    made._cache = Cache(function)
    return cast(F, made)


_implementation: Any = CompileResultCacheImpl
# Where Numba keeps a cache, by its own names, which some of its releases begin with an underscore.
_LOCATORS: dict[str, Any] = {locator.__name__.strip("_"): locator for locator in _implementation._locator_classes}
_in_tree: Any = _LOCATORS["InTreeCacheLocator"]


class ReadOnly(_in_tree):  # type: ignore[misc]
    """Beside the sources, also where nobody may write."""

    def ensure_cache_path(self) -> None:
        """Numba's way to ask whether a folder can be used."""


class _Place(_implementation):  # type: ignore[misc]
    _locator_classes = (*_LOCATORS.values(), ReadOnly)


class Cache(FunctionCache):
    """Numba's cache on disk (what `cache=True` gives), with three differences.

    A fault of it never stops a kernel, which is then compiled anew. It goes by the sources of all kernels: Numba's goes
    by the file that a kernel is in, and would keep the machine code after a helper in another file has changed. And
    what lies in a folder that may only be read is found there: an image that was warmed up when it was built.
    """

    _impl_class = _Place

    def __init__(self, function: Callable[..., Any]) -> None:
        numba_cache: Any = super()
        numba_cache.__init__(function)
        file: Any = IndexDataCacheFile
        name = self._impl.filename_base
        self._cache_file = self._own = file(self.cache_path, name, _SOURCES)
        source = inspect.getfile(function)
        given = [_LOCATORS["UserProvidedCacheLocator"]] * bool(config.CACHE_DIR)  # type: ignore[attr-defined]
        folders = {locator(function, source).get_cache_path() for locator in (*given, ReadOnly)}
        self._others = [file(folder, name, _SOURCES) for folder in sorted(folders - {self.cache_path})]

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The machine code for a signature, or None. An entry that a crash or a full disk has cut off is dropped."""
        numba_cache: Any = super()
        try:
            found = numba_cache.load_overload(sig, target_context)
            if found is not None:
                return found
        except Exception as fault:  # unpickling damaged bytes can raise anything
            _warn(f"an entry in {self.cache_path}, where compiled kernels are kept, cannot be read ({fault!r})")
            try:
                numba_cache.flush()
            except OSError:
                numba_cache.disable()
            return None
        for other in self._others:
            self._cache_file = other
            with suppress(Exception):
                found = numba_cache.load_overload(sig, target_context)
            self._cache_file = self._own
            if found is not None:
                return found
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keeps the machine code for a signature, if that is possible."""
        numba_cache: Any = super()
        try:
            numba_cache.save_overload(sig, data)
        except Exception as fault:  # the folder is full, gone, or no longer ours to write to
            nowhere = isinstance(self._impl.locator, ReadOnly)
            told = f"compiled kernels cannot be kept in {self.cache_path} ({fault!r})"
            _warn("there is no folder to keep compiled kernels in" if nowhere else told)
            numba_cache.disable()


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

"""How does one kernel read arrays that are many, such as the parts of a store? By their addresses, in a table of int64.

A kernel is compiled for a number of arguments, and a call reads each of them for 0.2 µs, with the GIL held; a scan of
fifty parts, a call each, waits a hundred times for a GIL that another thread may hold for 5 ms. So what lies in parts
is told in a table, and a scan is one call. Whoever makes the table keeps the arrays: C-contiguous, of the types below.

Threads that scan together take turns and tell each other what is done by `add`, which is atomic.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray as numba_carray  # type: ignore[attr-defined]
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic

from memcore_kernels.settings import exact_kernel


def _pointer_code(typing: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), code


def _add_code(typing: Any, array: Any, at: Any, value: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        made = context.make_array(kind)(context, builder, arguments[0])
        places: Any = cgutils
        place = places.get_item_pointer(context, builder, kind, made, [arguments[1]], wraparound=False)
        return builder.atomic_rmw("add", place, arguments[2], "seq_cst")

    return types.int64(array, types.intp, types.int64), code


def _plain_carray(address: int, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if not size:
        return np.empty(shape, dtype)
    there: Any = (ctypes.c_char * size).from_address(int(address))
    return np.frombuffer(there, dtype).reshape(shape)


def _plain_add(array: Any, at: int, value: int) -> int:
    before = int(array[at])
    array[at] += value
    return before


def _plain_pread(file: int, room: Any, size: int, offset: int) -> int:
    got = os.pread(file, size, offset)
    ctypes.memmove(room.data, got, len(got))
    return len(got)


carray: Any = numba_carray
_pread: Any = types.ExternalFunction("pread", types.int64(types.int32, types.voidptr, types.uint64, types.int64))
_pointer: Any = intrinsic(_pointer_code)
_add: Any = intrinsic(_add_code)
if config.DISABLE_JIT:  # type: ignore[attr-defined]
    # the others are for compiled code alone
    carray, _pointer, _add, _pread = _plain_carray, int, _plain_add, _plain_pread


@exact_kernel
def floats(address: int, count: int) -> Any:
    """float32 `(count,)`."""
    return carray(_pointer(address), (count,), np.float32)


@exact_kernel
def longs(address: int, count: int) -> Any:
    """int64 `(count,)`."""
    return carray(_pointer(address), (count,), np.int64)


@exact_kernel
def ints(address: int, count: int) -> Any:
    """int32 `(count,)`."""
    return carray(_pointer(address), (count,), np.int32)


@exact_kernel
def halves(address: int, count: int) -> Any:
    """uint64 `(count,)`."""
    return carray(_pointer(address), (count,), np.uint64)


@exact_kernel
def shorts(address: int, count: int) -> Any:
    """uint16 `(count,)`."""
    return carray(_pointer(address), (count,), np.uint16)


@exact_kernel
def bytes_(address: int, count: int) -> Any:
    """uint8 `(count,)`."""
    return carray(_pointer(address), (count,), np.uint8)


@exact_kernel
def float_rows(address: int, count: int, width: int) -> Any:
    """float32 `(count, width)`."""
    return carray(_pointer(address), (count, width), np.float32)


@exact_kernel
def code_rows(address: int, count: int, width: int) -> Any:
    """int8 `(count, width)`."""
    return carray(_pointer(address), (count, width), np.int8)


@exact_kernel
def float_row(address: int, file: int, offset: int, row: int, width: int, room: Any) -> Any:
    """A row of a matrix, float32 `(width,)`: at its address, or, with `file` above 0, as descriptor `file` - 1 has it
    from `offset` on, read into `room`. To touch one page of a mapped file can make 2 MB of it resident (measured on
    Linux 6.18 with ext4); to read a row of 1 kB takes about a microsecond.
    """
    if file > 0 and _pread(file - 1, room.ctypes, 4 * width, offset + 4 * width * row) == 4 * width:
        return room[:width]
    return float_rows(address, row + 1, width)[row]


@exact_kernel
def add(array: Any, at: int, value: int) -> Any:
    """Adds to one int64 of an array, and returns what was there before, with no other thread in between."""
    return _add(array, at, value)

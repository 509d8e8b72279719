"""How does a kernel treat many numbers at once, where LLVM does not see by itself that it may? By vectors, said to it.

- Bytes times 16-bit numbers: of a plain loop LLVM makes one over vectors of 8, and each row's sum is gathered from its
  lanes by itself: 3.3, 4.8 and 8.1 ns for rows of 32, 64 and 128 numbers. Here, eight rows together, 1.5, 2.3 and 4.0.
- The highest of floats: a running maximum waits for itself at each, since NaN forbids vectors: a twentieth of a scan.
  Which of 64 floats reach a bar: one bit each, so that those that do not cost nothing more, else a tenth of it.
- An array as an argument of a call that is not inlined is counted up and down, atomically: a seventh of a scan, until
  arrays were `lent`.

Nothing is of one kind of processor: what has no vpmaddwd or vpdpwssd gets what it has. Arrays are C-contiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import config, types
from numba.core import cgutils as untyped_cgutils
from numba.extending import intrinsic

from memcore_kernels.settings import exact_kernel

F32 = npt.NDArray[np.float32]
cgutils: Any = untyped_cgutils
LANES = 16  # numbers that are multiplied at once
TOGETHER = LANES // 2  # rows whose sums are gathered at once
BITS = 64  # floats that are compared with a bar at once

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_FLOAT: Any = ir.FloatType()
_SUMS = ir.VectorType(_I32, TOGETHER)
_LANES_BITS: Any = ir.Constant(_I64, LANES.bit_length() - 1)
_EVEN, _ODD = range(0, LANES, 2), range(1, LANES, 2)


def _picked(builder: Any, one: Any, two: Any, places: Any) -> Any:
    wide: Any = ir.VectorType(_I32, len(places))
    return builder.shuffle_vector(one, two, ir.Constant(wide, list(places)))


def _loaded(builder: Any, start: Any, place: Any, of: Any) -> Any:
    """LANES numbers as 32 bits, from the `place`-th on."""
    vector = ir.VectorType(of, LANES)
    there = builder.bitcast(builder.gep(start, [place]), vector.as_pointer())
    return builder.sext(builder.load(there, align=of.width // 8), ir.VectorType(_I32, LANES))


def _products(builder: Any, row: Any, query: Any) -> Any:
    """The sums of the products of each two lanes: one vpmaddwd or vpdpwssd, where there is one."""
    products = builder.mul(row, query, flags=["nsw"])
    return builder.add(*(_picked(builder, products, products, places) for places in (_EVEN, _ODD)))


def _added_up(builder: Any, sums: list[Any]) -> Any:
    """Of as many vectors as they have lanes, the sum of each."""
    while len(sums) > 1:
        sums = [
            builder.add(*(_picked(builder, one, two, places) for places in (_EVEN, _ODD)))
            for one, two in zip(sums[::2], sums[1::2], strict=True)
        ]
    return sums[0]


def _dots(builder: Any, codes: Any, query: Any, width: Any, rows: int) -> list[Any]:
    """A vector for each of so many rows, whose lanes add up to its product with the query."""
    sums = [cgutils.alloca_once(builder, _SUMS) for _ in range(rows)]
    for one in sums:
        builder.store(ir.Constant(_SUMS, None), one)
    with cgutils.for_range(builder, builder.lshr(width, _LANES_BITS)) as loop:
        place = builder.mul(loop.index, ir.Constant(_I64, LANES))
        asked = _loaded(builder, query, place, _I16)
        for number, one in enumerate(sums):
            start = builder.add(place, builder.mul(width, ir.Constant(_I64, number)))
            made = _products(builder, _loaded(builder, codes, start, _I8), asked)
            builder.store(builder.add(builder.load(one), made), one)
    return [builder.load(one) for one in sums]


def _pointers(context: Any, builder: Any, signature: Any, arguments: Any, places: tuple[int, ...]) -> Iterator[Any]:
    for place in places:
        array: Any = context.make_array(signature.args[place])(context, builder, arguments[place])
        yield array.data


def _width(context: Any, builder: Any, signature: Any, arguments: Any, place: int) -> Any:
    array: Any = context.make_array(signature.args[place])(context, builder, arguments[place])
    return cgutils.unpack_tuple(builder, array.shape, 1)[0]


def _row_code(typing: Any, codes: Any, at: Any, query: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start, other = _pointers(context, builder, signature, arguments, (0, 2))
        width = _width(context, builder, signature, arguments, 2)
        (sums,) = _dots(builder, builder.gep(start, [builder.mul(arguments[1], width)]), other, width, 1)
        many = TOGETHER
        while many > 1:
            many //= 2
            low, high = (_picked(builder, sums, sums, range(begin, begin + many)) for begin in (0, many))
            sums = builder.add(low, high)
        return builder.extract_element(sums, ir.Constant(_I32, 0))

    return types.int32(codes, types.int64, query), code


def _rows_code(typing: Any, codes: Any, at: Any, query: Any, totals: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        start, other, out = _pointers(context, builder, signature, arguments, (0, 2, 3))
        width = _width(context, builder, signature, arguments, 2)
        start = builder.gep(start, [builder.mul(arguments[1], width)])
        made = _added_up(builder, _dots(builder, start, other, width, TOGETHER))
        there = builder.bitcast(builder.gep(out, [arguments[1]]), _SUMS.as_pointer())
        builder.store(made, there, align=4)
        return context.get_dummy_value()

    return types.void(codes, types.int64, query, totals), code


def _floats(builder: Any, start: Any, place: Any, many: int) -> Any:
    there = builder.bitcast(builder.gep(start, [place]), ir.VectorType(_FLOAT, many).as_pointer())
    return builder.load(there, align=4)


def _highest_code(typing: Any, values: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def higher(one: Any, two: Any) -> Any:
            return builder.select(builder.fcmp_ordered(">", one, two), one, two)

        (start,) = _pointers(context, builder, signature, arguments, (0,))
        vector: Any = ir.VectorType(_FLOAT, LANES)
        top = cgutils.alloca_once_value(builder, ir.Constant(vector, [float("-inf")] * LANES))
        pieces = builder.lshr(_width(context, builder, signature, arguments, 0), _LANES_BITS)
        with cgutils.for_range(builder, pieces) as loop:
            mine = _floats(builder, start, builder.mul(loop.index, ir.Constant(_I64, LANES)), LANES)
            builder.store(higher(mine, builder.load(top)), top)
        made, many = builder.load(top), LANES
        while many > 1:
            many //= 2
            made = higher(*(_picked(builder, made, made, range(begin, begin + many)) for begin in (0, many)))
        return builder.extract_element(made, ir.Constant(_I32, 0))

    return types.float32(values), code


def _bits_code(typing: Any, values: Any, at: Any, bar: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (start,) = _pointers(context, builder, signature, arguments, (0,))
        mine = _floats(builder, start, arguments[1], BITS)
        lane = builder.insert_element(ir.Constant(mine.type, ir.Undefined), arguments[2], ir.Constant(_I32, 0))
        every = builder.shuffle_vector(lane, lane, ir.Constant(ir.VectorType(_I32, BITS), None))
        return builder.bitcast(builder.fcmp_ordered(">=", mine, every), _I64)

    return types.int64(values, types.intp, types.float32), code


def _lowest_code(typing: Any, bits: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.int64), code


def _half_power_code(typing: Any, exponent: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = builder.shl(builder.sub(ir.Constant(_I32, 127), arguments[0]), ir.Constant(_I32, 23))
        return builder.bitcast(bits, _FLOAT)

    return types.float32(types.int32), code


def _fetch_code(typing: Any, array: Any, at: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (start,) = _pointers(context, builder, signature, arguments, (0,))
        there = builder.bitcast(builder.gep(start, [arguments[1]]), cgutils.voidptr_t)
        kind: Any = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, _I32, _I32, _I32])
        hint = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(hint, [there, *(ir.Constant(_I32, value) for value in (0, 3, 1))])  # to read, keep, data
        return context.get_dummy_value()

    return types.void(array, types.int64), code


def _lent_code(typing: Any, array: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        made: Any = context.make_array(signature.args[0])(context, builder, arguments[0])
        made.meminfo = ir.Constant(made.meminfo.type, None)
        made.parent = ir.Constant(made.parent.type, None)
        return made._getvalue()

    return array(array), code


def _plain_row(codes: Any, at: int, query: Any) -> Any:
    return np.int32(codes[at].astype(np.int64) @ query.astype(np.int64))


def _plain_rows(codes: Any, at: int, query: Any, totals: Any) -> None:
    totals[at : at + TOGETHER] = codes[at : at + TOGETHER].astype(np.int64) @ query.astype(np.int64)


def _plain_highest(values: Any) -> Any:
    return values[: values.size // LANES * LANES].max(initial=-np.inf)


def _plain_bits(values: Any, at: int, bar: Any) -> int:
    bits = np.packbits(values[at : at + BITS] >= np.float32(bar), bitorder="little")
    return int(bits.view(np.uint64)[0])  # without a sign: taking bits away ends


def _plain_lowest(bits: int) -> int:
    bits = int(bits)
    return (bits & -bits).bit_length() - 1 if bits else BITS


def _plain_half_power(exponent: int) -> Any:
    return np.float32(0.5**exponent)


def _plain_fetch(array: Any, at: int) -> None:
    pass


def _plain_lent(array: Any) -> Any:
    return array


# Intrinsics themselves: a function around one is not inlined where it is called in a loop, and takes as long again.

# row_dot(codes int8 (n, width), at, query int16 (width,)): codes[at] . query, exact within int32. `width` is a multiple
# of LANES.
row_dot: Any = intrinsic(_row_code)
# row_dots(codes, at, query, totals int32 (n,)): the same for TOGETHER rows from `at` on, into `totals`.
row_dots: Any = intrinsic(_rows_code)
# bits_reaching(values float32 (n,), at, bar float32): which of BITS values from `at` on are at least `bar`; bit i of an
# int64 is the i-th.
bits_reaching: Any = intrinsic(_bits_code)
# lowest(bits int64): the place of the lowest bit that is 1; BITS if none is.
lowest: Any = intrinsic(_lowest_code)
# half_power(exponent int32): 0.5 ** exponent as float32, exact for 0 ... 126.
half_power: Any = intrinsic(_half_power_code)
# fetch(array, at): a hint that the array's number at `at`, counted through all of it, will be read. It may lie outside.
fetch: Any = intrinsic(_fetch_code)
# lent(array): the same array, uncounted. Whoever calls keeps the one it came from for as long, and returns neither.
lent: Any = intrinsic(_lent_code)
_highest: Any = intrinsic(_highest_code)
if config.DISABLE_JIT:  # type: ignore[attr-defined]
    # the others are for compiled code alone
    row_dot, row_dots, bits_reaching, lowest = _plain_row, _plain_rows, _plain_bits, _plain_lowest
    half_power, fetch, lent, _highest = _plain_half_power, _plain_fetch, _plain_lent, _plain_highest


@exact_kernel
def highest(values: F32) -> Any:
    """The largest of float32 `(n,)`, none of them NaN; minus infinity of none."""
    top = _highest(values)
    for r in range(values.size // LANES * LANES, values.size):
        top = max(top, values[r])
    return top

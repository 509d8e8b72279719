"""How can a dot product be bounded from few bytes? Row-wise int8 codes in slabs of dimensions, and norms of the rest.

A row v, rotated if it has been, is kept in three slabs: v_j as v^_j = scale_j * codes_j, the norm of v_j - v^_j, and
the norm of what lies behind the slab. A query q is taken apart likewise, with whole numbers of 16 bits. Then for each

    q_j.v_j <= q^_j.v^_j + |q_j| |v_j - v^_j| + |q_j - q^_j| |v^_j|        (Cauchy-Schwarz)

where q^_j.v^_j is exact in integers: int8 x int16 products summed in int32, for which LLVM emits vpmaddwd; and what
lies behind slab j adds at most |q behind j| |v behind j|. So the first slab bounds the whole product, and each further
one tightens the bound. A scale a slab, not one a row, since a rotation puts the large numbers first: of a row of 256
real numbers the codes then miss 0.007.

A slab is a multiple of 64 wide where the rows are long enough: narrower ones take as long (1.9 ns a row for 32 as for
64), since a row's sum has to be gathered from the lanes all the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memcore_kernels.settings import exact_kernel, kernel

I8 = npt.NDArray[np.int8]
I16 = npt.NDArray[np.int16]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
SLABS = 3
STEP, MISSED, NORM, LEFT = 0, 1, 2, 3  # what `code_query` tells of a slab
UP = 1.000002  # norms of rows and queries are 1 within 1e-6, and every norm is rounded up, so that a bound stays one
BOUND_ERROR = 4e-6  # of a bound for float32 rounding: a dozen sums of terms that are at most 4 together
_LEAST = 1e-30  # numbers whose peak is no more have no codes, since their unit has no inverse in float32


def cuts(dim: int) -> tuple[int, int, int]:
    """Where the slabs of rows of `dim` numbers end. Short rows have one slab, and two empty ones."""
    if dim < 128:
        return dim, dim, dim
    first = max(dim // 256, 1) * 64
    return first, 2 * first, dim


@exact_kernel
def quantise(
    rows: F64, ends: I64, at: int, first: I8, second: I8, third: I8, scale: F32, missed: F32, left: F32
) -> None:
    """Rows float64 `(m, d)` into the rows from `at` on of the slabs, int8 `(n, width)` each, -127 … 127.

    `ends` as of `cuts`. `scale` float32 `(3, n)`; `missed` `(3, n)`, the norm of slab - scale * codes, and `left`
    `(2, n)`, the norm of what lies behind a slab, rounded up.
    """
    for r in range(rows.shape[0]):
        row, to = rows[r], at + r
        behind = 0.0
        for slab in range(SLABS - 1, -1, -1):
            begin = ends[slab - 1] if slab else 0
            end = ends[slab]
            if slab < SLABS - 1:
                left[slab, to] = np.float32(np.sqrt(behind) * UP)
            code = first[to]
            if slab == 1:
                code = second[to]
            elif slab == 2:
                code = third[to]
            peak = 0.0
            for j in range(begin, end):
                peak = max(peak, abs(row[j]))
            unit, inverse = np.float32(0), 0.0
            if peak > _LEAST:
                unit = np.float32(peak / 127)
                inverse = 1 / np.float64(unit)
            scale[slab, to] = unit
            rest = 0.0
            for j in range(begin, end):
                whole = min(max(np.rint(row[j] * inverse), -127.0), 127.0)
                code[j - begin] = np.int8(whole)
                off = row[j] - whole * np.float64(unit)
                rest += off * off
                behind += row[j] * row[j]
            missed[slab, to] = np.float32(np.sqrt(rest) * UP)


@kernel
def turned(query: F32, matrix: F64, out: F64) -> None:
    """out = query @ matrix: float32 `(d,)`, float64 `(d, d)` and, out, `(d,)`.

    Not by NumPy: BLAS's threads spin for some 20 ms after a call, on the cores that the scan is to run on.
    """
    out[:] = 0
    for i in range(query.size):
        share, row = np.float64(query[i]), matrix[i]
        for j in range(out.size):
            out[j] += share * row[j]


@exact_kernel
def code_query(query: F64, ends: I64, numbers: I16, told: F64) -> None:
    """A query float64 `(d,)`, turned as the rows are, as `numbers` int16 `(d,)`, and what is to be known of each slab:
    `told` float64 `(3, 4)`, the step of its codes, the norms of what they miss, of the slab, and of what lies behind.
    `ends` int64 `(3,)` as of `cuts`.

    The codes are small enough for sums over any d to fit int32.
    """
    most = min(8000.0, (2.0**31 - 1) / (128 * max(query.size, 1)))
    behind = 0.0
    for slab in range(SLABS - 1, -1, -1):
        begin = ends[slab - 1] if slab else 0
        end = ends[slab]
        peak, norm, rest = 0.0, 0.0, 0.0
        for j in range(begin, end):
            peak = max(peak, abs(query[j]))
            norm += query[j] * query[j]
        step = peak / most
        for j in range(begin, end):
            whole = np.rint(query[j] / step) if step > 0 else 0.0
            numbers[j] = np.int16(whole)
            off = query[j] - whole * step
            rest += off * off
        told[slab, STEP], told[slab, MISSED] = step, np.sqrt(rest) * UP
        told[slab, NORM], told[slab, LEFT] = np.sqrt(norm) * UP, np.sqrt(behind) * UP
        behind += norm


@kernel
def code_dot(row: I8, query: I16) -> np.int32:
    """row . query, exact: int8 and int16 `(width,)`."""
    total = np.int32(0)
    for j in range(query.size):
        total += np.int32(row[j]) * np.int32(query[j])
    return total


@kernel
def code_dots(codes: I8, query: I16, totals: I32) -> None:
    """totals[r] = codes[r] . query, exact: int8 `(n, width)`, int16 `(width,)`, and out int32 `(n,)`.

    A function of its own: in one loop with the bound LLVM finds no vpmaddwd, at half the speed.
    """
    for r in range(codes.shape[0]):
        row, total = codes[r], np.int32(0)
        for j in range(query.size):
            total += np.int32(row[j]) * np.int32(query[j])
        totals[r] = total


@kernel
def first_bounds(
    codes: I8, query: I16, told: F64, scale: F32, missed: F32, left: F32, alpha: float, known: F32, totals: I32,
    upper: F32,
) -> None:  # fmt: skip
    """upper[r] >= known[r] + alpha * q.v for each row, but for BOUND_ERROR, from the first slab; minus infinity stays.

    `codes` int8 `(n, width)`, `scale`, `missed` and `left` float32 `(n,)` of the first slab; `query` int16 `(width,)`
    and `told` float64 `(4,)` of `code_query`; `known` and, out, `upper` float32 `(n,)`; `totals` int32 `(n,)` scratch.
    """
    code_dots(codes, query, totals)
    share = np.float32(alpha * told[STEP])
    off = np.float32(alpha * (told[NORM] + told[MISSED]))  # |v^| <= |v| + |v - v^| <= UP + missed
    behind = np.float32(alpha * told[LEFT])
    always = np.float32(alpha * told[MISSED] * UP)
    for r in range(totals.size):
        upper[r] = known[r] + share * np.float32(totals[r]) * scale[r] + off * missed[r] + behind * left[r] + always


@kernel
def next_bounds(
    codes: I8, query: I16, told: F64, scale: F32, missed: F32, before: F32, left: F32, left_before: float, alpha: float,
    totals: I32, upper: F32,
) -> None:  # fmt: skip
    """The same by one slab more: `before` float32 `(n,)` is what lay behind the slabs so far, `left_before` that of the
    query, and `left` what lies behind this one.
    """
    code_dots(codes, query, totals)
    share = np.float32(alpha * told[STEP])
    off = np.float32(alpha * (told[NORM] + told[MISSED]))
    was = np.float32(alpha * left_before)
    behind = np.float32(alpha * told[LEFT])
    always = np.float32(alpha * told[MISSED] * UP)
    for r in range(totals.size):
        upper[r] += (
            share * np.float32(totals[r]) * scale[r] + off * missed[r] + behind * left[r] - was * before[r] + always
        )

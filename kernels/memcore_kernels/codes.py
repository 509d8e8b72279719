"""How can a dot product be bounded from few bytes? Row-wise int8 codes in slabs of dimensions, and norms of the rest.

A row v, rotated if it has been, is kept in three slabs: v_j as v^_j = scale_j * codes_j, the norm of v_j - v^_j, and
the norm of what lies behind the slab. A query q is taken apart likewise, with whole numbers of 16 bits. Then for each

    q_j.v_j <= q^_j.v^_j + |q_j| |v_j - v^_j| + |q_j - q^_j| |v^_j|        (Cauchy-Schwarz)

where q^_j.v^_j is exact in integers: int8 x int16 products summed in int32 (`lanes`); and what lies behind slab j adds
at most |q behind j| |v behind j|. So the first slab bounds the whole product, and each further one tightens the bound.
A scale a slab, not one a row, since a rotation puts the large numbers first: of a row of 256 real numbers the codes
then miss 0.007.

The first slab is narrow: where age and importance count, its eighth of the bytes leaves 5 % of rows of 256 real
numbers in, and where similarity alone counts, the second slab, to three eighths, leaves 10 %. Scales and norms are kept
in 16 bits, rounded up, since a scan waits for memory: 16 bytes a row in place of 32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memcore_kernels.lanes import LANES, TOGETHER, fetch, row_dot, row_dots
from memcore_kernels.settings import exact_kernel, kernel

I8 = npt.NDArray[np.int8]
I16 = npt.NDArray[np.int16]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U16 = npt.NDArray[np.uint16]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
SLABS = 3
STEP, MISSED, NORM, LEFT = 0, 1, 2, 3  # what `code_query` tells of a slab
AHEAD = 8  # rows here and there of which the caches are told so early: 2,000 of 200,000 took 0.34 ms without, now 0.24
LINE = 64  # bytes that a cache fetches together
UP = 1.000002  # norms of rows and queries are 1 within 1e-6, and every norm is rounded up, so that a bound stays one
BOUND_ERROR = 4e-6  # of a bound for float32 rounding: a dozen sums of terms that are at most 4 together
LEVELS = 65_000.0  # a peak or a norm of 1 in 16 bits: up to 1.008, and the norm of what codes miss of 65,000 numbers


def cuts(dim: int) -> tuple[int, int, int]:
    """Where the slabs of rows of `dim` numbers end. Short rows have one slab, and two empty ones."""
    if dim < 128:
        return dim, dim, dim
    first = max(dim // 256, 1) * 32
    return first, 3 * first, dim


@exact_kernel
def quantise(
    rows: F64, ends: I64, at: int, first: I8, second: I8, third: I8, scale: U16, missed: U16, left: U16
) -> None:
    """Rows float64 `(m, d)` into the rows from `at` on of the slabs, int8 `(n, width)` each, -127 … 127.

    `ends` as of `cuts`. In steps of 1 / LEVELS, rounded up: `scale` uint16 `(3, n)`, 127 times what a code of 1 stands
    for; `missed` `(3, n)`, the norm of what the codes miss of a slab; and `left` `(2, n)`, of what lies behind it.
    """
    for r in range(rows.shape[0]):
        row, to = rows[r], at + r
        behind = 0.0
        for slab in range(SLABS - 1, -1, -1):
            begin = ends[slab - 1] if slab else 0
            end = ends[slab]
            if slab < SLABS - 1:
                left[slab, to] = np.uint16(np.ceil(np.sqrt(behind) * UP * LEVELS))
            code = first[to]
            if slab == 1:
                code = second[to]
            elif slab == 2:
                code = third[to]
            peak = 0.0
            for j in range(begin, end):
                peak = max(peak, abs(row[j]))
            steps = np.ceil(peak * LEVELS)
            unit = steps / (127 * LEVELS)
            inverse = 1 / unit if steps > 0 else 0.0
            scale[slab, to] = np.uint16(steps)
            rest = 0.0
            for j in range(begin, end):
                whole = min(max(np.rint(row[j] * inverse), -127.0), 127.0)
                code[j - begin] = np.int8(whole)
                off = row[j] - whole * unit
                rest += off * off
                behind += row[j] * row[j]
            missed[slab, to] = np.uint16(np.ceil(np.sqrt(rest) * UP * LEVELS))


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
def code_dot(codes: I8, at: int, query: I16) -> np.int32:
    """codes[at] . query, exact: int8 `(n, width)` and int16 `(width,)`."""
    if query.size % LANES == 0:
        return np.int32(row_dot(codes, at, query))
    total = np.int32(0)
    for j in range(query.size):
        total += np.int32(codes[at, j]) * np.int32(query[j])
    return total


@kernel
def code_dots(codes: I8, query: I16, totals: I32) -> None:
    """totals[r] = codes[r] . query, exact: int8 `(n, width)`, int16 `(width,)`, and out int32 `(n,)`."""
    together = codes.shape[0] // TOGETHER * TOGETHER if query.size % LANES == 0 else 0
    for r in range(0, together, TOGETHER):
        row_dots(codes, r, query, totals)
    for r in range(together, codes.shape[0]):
        totals[r] = code_dot(codes, r, query)


@kernel
def shares(told: F64, alpha: float) -> tuple[np.float32, np.float32, np.float32, np.float32]:
    """What alpha times a bound is made of, by a query's `told` `(4,)` of a slab: times the row's code product and its
    scale, times what its codes miss, times what lies behind, and what is always added.
    """
    return (
        np.float32(alpha * told[STEP] / (127 * LEVELS)),
        np.float32(alpha * (told[NORM] + told[MISSED]) / LEVELS),  # |v^| <= |v| + |v - v^| <= UP + missed
        np.float32(alpha * told[LEFT] / LEVELS),
        np.float32(alpha * told[MISSED] * UP),
    )


@kernel
def first_bounds(
    codes: I8, query: I16, told: F64, scale: U16, missed: U16, left: U16, alpha: float, known: F32, totals: I32,
    upper: F32,
) -> None:  # fmt: skip
    """upper[r] >= known[r] + alpha * q.v for each row, but for BOUND_ERROR, from the first slab; minus infinity stays.

    `codes` int8 `(n, width)`, `scale`, `missed` and `left` uint16 `(n,)` of the first slab; `query` int16 `(width,)`
    and `told` float64 `(4,)` of `code_query`; `known` and, out, `upper` float32 `(n,)`; `totals` int32 `(n,)` scratch.
    """
    code_dots(codes, query, totals)
    share, off, behind, always = shares(told, alpha)
    for r in range(totals.size):
        upper[r] = (
            known[r] + share * np.float32(totals[r]) * np.float32(scale[r]) + off * np.float32(missed[r])
            + behind * np.float32(left[r]) + always
        )  # fmt: skip


@kernel
def next_bounds(
    codes: I8, query: I16, told: F64, scale: U16, missed: U16, left: U16, told_before: F64, before: U16, alpha: float,
    totals: I32, upper: F32,
) -> None:  # fmt: skip
    """The same by one slab more: `before` uint16 `(n,)` is what lay behind the slabs so far, by `told_before` `(4,)` of
    the last one, and `left` what lies behind this one. For the third slab, `told[LEFT]` is 0 and `left` any.
    """
    code_dots(codes, query, totals)
    share, off, behind, always = shares(told, alpha)
    was = shares(told_before, alpha)[2]
    for r in range(totals.size):
        upper[r] += (
            share * np.float32(totals[r]) * np.float32(scale[r]) + off * np.float32(missed[r])
            + behind * np.float32(left[r]) - was * np.float32(before[r]) + always
        )  # fmt: skip


@kernel
def next_bounds_of(
    some: I64, codes: I8, query: I16, told: F64, scale: U16, missed: U16, left: U16, told_before: F64, before: U16,
    alpha: float, totals: I32, upper: F32,
) -> None:  # fmt: skip
    """The same for some of the rows, by their numbers int64 `(m,)`: `totals` and `upper` are theirs, `(m,)`."""
    many = some.size if query.size % LANES == 0 else 0
    for c in range(many):
        if c + AHEAD < many:
            ahead = some[c + AHEAD]
            for j in range(0, query.size, LINE):
                fetch(codes, ahead * query.size + j)
            fetch(scale, ahead)
            fetch(missed, ahead)
            fetch(left, ahead)
        totals[c] = row_dot(codes, some[c], query)
    for c in range(many, some.size):
        totals[c] = code_dot(codes, some[c], query)
    share, off, behind, always = shares(told, alpha)
    was = shares(told_before, alpha)[2]
    for c in range(some.size):
        r = some[c]
        upper[c] += (
            share * np.float32(totals[c]) * np.float32(scale[r]) + off * np.float32(missed[r])
            + behind * np.float32(left[r]) - was * np.float32(before[r]) + always
        )  # fmt: skip


@kernel
def estimate(
    first: I8, second: I8, third: I8, scale: U16, missed: U16, at: int, query: I16, told: F64, totals: I32, about: F32
) -> float:
    """about[r] is q.v for each row, float32 `(n,)`, off by at most what is returned, but for BOUND_ERROR.

    The slabs, int8 `(n, width)` each, and `scale` and `missed`, uint16 `(3, room)` as of `quantise`, of which n are
    read from `at` on; `query` int16 `(d,)` and `told` float64 `(3, 4)` of `code_query`; `totals` int32 `(n,)` scratch.
    """
    about[:] = 0
    most, begin = 0.0, 0
    for slab in range(SLABS):
        codes = first
        if slab == 1:
            codes = second
        elif slab == 2:
            codes = third
        width = codes.shape[1]
        if width == 0:
            continue
        code_dots(codes, query[begin : begin + width], totals)
        begin += width
        share, off, _, always = shares(told[slab], 1.0)
        steps, misses = scale[slab, at : at + about.size], missed[slab, at : at + about.size]
        worst = np.uint16(0)
        for r in range(about.size):
            about[r] += share * np.float32(totals[r]) * np.float32(steps[r])
            worst = max(worst, misses[r])
        most += np.float64(off) * np.float64(worst) + np.float64(always)
    return most

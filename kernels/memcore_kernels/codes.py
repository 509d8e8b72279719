"""How can a dot product be bounded from a quarter of the bytes? Row-wise int8 codes, and the norm of what they miss.

A row v is kept as v^ = scale * codes and the norm of v - v^; a query q as q^ = step * whole numbers of 16 bits. Then
|q.v - q^.v^| <= |q| |v - v^| + |q - q^| |v^| (Cauchy-Schwarz), where q^.v^ is exact in integers: int8 x int16 products
summed in int32, for which LLVM emits vpmaddwd or, with VNNI, vpdpwssd.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memcore_kernels.settings import exact_kernel, kernel

I8 = npt.NDArray[np.int8]
I16 = npt.NDArray[np.int16]
I32 = npt.NDArray[np.int32]
F32 = npt.NDArray[np.float32]
UP = 1.000002  # norms of rows and queries are 1 within 1e-6, and every norm is rounded up, so that a bound stays one
_LEAST = np.float32(1e-30)  # a row whose peak is no more has no codes, since its unit has no inverse in float32


@exact_kernel
def quantise(vectors: F32, codes: I8, scale: F32, missed: F32) -> None:
    """float32 `(n, d)` rows into `codes` int8 `(n, d)`, -127 … 127, and `scale` and `missed`, float32 `(n,)`.

    `missed` is the norm of row - scale * codes, rounded up.
    """
    d = vectors.shape[1]
    for r in range(vectors.shape[0]):
        row, code = vectors[r], codes[r]
        peak = np.float32(0)
        for j in range(d):
            peak = max(peak, abs(row[j]))
        unit, inverse = np.float32(0), np.float32(0)
        if peak > _LEAST:
            unit = peak / np.float32(127)
            inverse = np.float32(1) / unit
        scale[r] = unit
        rest = 0.0
        for j in range(d):
            whole = np.rint(row[j] * inverse)
            code[j] = np.int8(whole)
            off = np.float64(row[j]) - np.float64(whole) * np.float64(unit)
            rest += off * off
        missed[r] = np.float32(np.sqrt(rest) * UP)


def query_codes(query: F32) -> tuple[I16, float, float]:
    """A query float32 `(d,)` as int16 codes `(d,)`, their step, and the norm of what they miss, rounded up.

    The codes are small enough for sums over any d to fit int32.
    """
    wide = query.astype(np.float64)
    most = min(8000.0, (2.0**31 - 1) / (128 * max(query.size, 1)))
    step = float(np.abs(wide).max(initial=0)) / most
    if step == 0:
        return np.zeros(query.size, dtype=np.int16), 0.0, 0.0
    codes = np.rint(wide / step)
    rest = wide - codes * step
    return codes.astype(np.int16), step, float(np.sqrt(rest @ rest)) * UP


@kernel
def code_dots(codes: I8, query: I16, totals: I32) -> None:
    """totals[r] = codes[r] . query, exact: int8 `(n, d)`, int16 `(d,)`, and out int32 `(n,)`.

    A function of its own: in one loop with the bound LLVM finds no vpmaddwd, at half the speed.
    """
    for r in range(codes.shape[0]):
        row, total = codes[r], np.int32(0)
        for j in range(query.size):
            total += np.int32(row[j]) * np.int32(query[j])
        totals[r] = total


@kernel
def upper_bounds(
    codes: I8,
    scale: F32,
    missed: F32,
    query: I16,
    step: float,
    query_missed: float,
    known: F32,
    alpha: float,
    totals: I32,
    upper: F32,
) -> None:
    """upper[r] >= known[r] + alpha * cosine for each row, but for float32 rounding; minus infinity stays.

    `codes` int8 `(n, d)`, `scale` and `missed` float32 `(n,)` of the rows; `query` int16 `(d,)`, `step` and
    `query_missed` of the query; `known` and, out, `upper` float32 `(n,)`; `totals` int32 `(n,)` is scratch.
    """
    code_dots(codes, query, totals)
    share = np.float32(alpha * step)
    rest = np.float32(alpha * (UP + query_missed))  # |q| <= UP, and |v^| <= |v| + |v - v^| <= UP + missed[r]
    missing = np.float32(alpha * query_missed * UP)
    for r in range(totals.size):
        upper[r] = known[r] + share * np.float32(totals[r]) * scale[r] + rest * missed[r] + missing

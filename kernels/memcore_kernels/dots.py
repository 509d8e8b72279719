"""How alike are two vectors? Dot products of L2-normalised rows, which are their cosines."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memcore_kernels.settings import exact_kernel, kernel

F32 = npt.NDArray[np.float32]


@kernel
def dot32(row: F32, query: F32) -> np.float32:
    """The dot product of two float32 `(d,)`, summed in float32 in any order: |error| <= d * 2^-24 * |row| * |query|."""
    total = np.float32(0)
    for j in range(query.size):
        total += row[j] * query[j]
    return total


@exact_kernel
def dot64(row: F32, query: F32) -> float:
    """The dot product of two float32 `(d,)` in float64, in a fixed order: the same bits for the same two rows, always.

    Four running sums (elements 0, 4, 8 …; 1, 5, 9 …; and so on), added in pairs, then the rest one by one.
    """
    a = b = c = d = 0.0
    whole = query.size - query.size % 4
    for j in range(0, whole, 4):
        a += np.float64(row[j]) * np.float64(query[j])
        b += np.float64(row[j + 1]) * np.float64(query[j + 1])
        c += np.float64(row[j + 2]) * np.float64(query[j + 2])
        d += np.float64(row[j + 3]) * np.float64(query[j + 3])
    total = (a + b) + (c + d)
    for j in range(whole, query.size):
        total += np.float64(row[j]) * np.float64(query[j])
    return total


@exact_kernel
def cosines(
    vectors: F32, rows: npt.NDArray[np.int64], queries: F32, asked: npt.NDArray[np.int64], out: npt.NDArray[np.float64]
) -> None:
    """out[i] = dot64(vectors[rows[i]], queries[asked[i]]): float32 `(n, d)`, `(q, d)`, int64 `(m,)`, float64 `(m,)`."""
    for i in range(rows.size):
        out[i] = dot64(vectors[rows[i]], queries[asked[i]])

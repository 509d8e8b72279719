"""How alike are rows and a query beyond what all rows have in common? Cosines about a centre.

Texts of one kind have vectors with a direction in common, and with some models every two have a cosine of 0.7 or more.
About the mean m of all rows, likeness(v) = (v - m) . (q - m) / (|q - m| * sqrt(1 - m . m)): the numerator's v is the
only thing that a row needs to be read for, and sqrt(1 - m . m) is the root mean square of |v - m| (Mu and Viswanath,
"All-but-the-top", 2018, take the same mean off).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memcore_kernels.dots import dot32
from memcore_kernels.settings import exact_kernel

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
ONE = float(1 << 30)  # of the whole numbers in which rows are summed: 2^33 rows fit, and their order doesn't matter


@exact_kernel
def add_rows(vectors: F32, first: int, last: int, out: I64) -> None:
    """out += the rows from `first` up to `last`, in 2^-30ths: float32 `(n, d)`, int64 `(d,)`."""
    for r in range(first, last):
        for j in range(out.size):
            out[j] += np.int64(np.rint(np.float64(vectors[r, j]) * ONE))


@exact_kernel
def add_marked(vectors: F32, mask: U8, marked: int, sign: int, out: I64) -> None:
    """out += sign * the rows whose mask is `marked`, in 2^-30ths: float32 `(n, d)`, uint8 `(n,)`, int64 `(d,)`."""
    for r in range(mask.size):
        if mask[r] == marked:
            for j in range(out.size):
                out[j] += sign * np.int64(np.rint(np.float64(vectors[r, j]) * ONE))


@exact_kernel
def likeness(vectors: F32, query: F32, shift: float, scale: float, out: F32) -> None:
    """out[r] = (vectors[r] . query - shift) * scale, cut to [0, 1]: float32 `(n, d)`, `(d,)`, `(n,)`. The product is
    summed in float32; where it is exactly 0, as of a row of zeros, nothing is alike.
    """
    for r in range(out.size):
        out[r] = _cut(dot32(vectors[r], query), shift, scale)


@exact_kernel
def likeness_of(vectors: F32, rows: I64, query: F32, shift: float, scale: float, out: F32) -> None:
    """The same for some rows, by their rising numbers, int64 `(m,)`: those of `out` are written."""
    for r in rows:
        out[r] = _cut(dot32(vectors[r], query), shift, scale)


@exact_kernel
def likely(products: F32, shift: float, scale: float, out: F32) -> None:
    """The same of products that are known: float32 `(n,)` both."""
    for r in range(out.size):
        out[r] = _cut(products[r], shift, scale)


@exact_kernel
def _cut(product: np.float32, shift: float, scale: float) -> np.float32:
    wide = np.float64(product)
    return np.float32(0.0 if wide == 0 else min(max((wide - shift) * scale, 0.0), 1.0))

"""How well do rows match the words of a query? BM25 over postings.

score(row) = the sum over the query's groups of idf * f * (k1 + 1) / (f + k1 * (1 - b + b * length / mean)), where f is
how often the row has a term of the group, the most frequent of them, and idf = ln(1 + (n - df + 0.5) / (df + 0.5)), df
the rows that have one (Robertson and Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009; idf as
Lucene has it, never below 0). A group's postings are lists, one a term. Groups are added in the order they come, in
float64: a score is the same to the bit however the rows lie in chunks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memcore_kernels.settings import exact_kernel

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@exact_kernel
def count_rows(rows: I32, begins: I64, ends: I64, heads: I64, allowed: U8, most: I32, found: I64) -> None:
    """found[g] += how many allowed rows have a term of group g.

    `rows` int32 `(p,)`, of postings: list i is those from `begins[i]` to `ends[i]`; group g has the lists from
    `heads[g]` to `heads[g + 1]`. `allowed` uint8 `(n,)`: a posting of a row behind it does not count. `most` int32
    `(n,)` is scratch, all zero before and after. Out: `found` int64 `(groups,)`.
    """
    for g in range(heads.size - 1):
        for i in range(heads[g], heads[g + 1]):
            for p in range(begins[i], ends[i]):
                r = rows[p]
                if 0 <= r < allowed.size and allowed[r] and most[r] == 0:
                    most[r] = 1
                    found[g] += 1
        for i in range(heads[g], heads[g + 1]):
            for p in range(begins[i], ends[i]):
                if 0 <= rows[p] < allowed.size:
                    most[rows[p]] = 0


@exact_kernel
def add_scores(
    rows: I32, counts: I32, begins: I64, ends: I64, heads: I64, allowed: U8, most: I32, idf: F64, lengths: I32,
    first: int, mean: float, k1: float, b: float, scores: F64,
) -> None:  # fmt: skip
    """Adds each group's part to the scores of allowed rows, float64 `(n,)`. `counts` int32 `(p,)` says how often each
    posting's term stands in its row; `lengths` int32 are those of the rows from `first` on; `idf` float64 `(groups,)`.
    The others as for `count_rows`.
    """
    for g in range(heads.size - 1):
        for i in range(heads[g], heads[g + 1]):
            for p in range(begins[i], ends[i]):
                r = rows[p]
                if 0 <= r < allowed.size and allowed[r]:
                    most[r] = max(most[r], counts[p])
        for i in range(heads[g], heads[g + 1]):
            for p in range(begins[i], ends[i]):
                r = rows[p]
                if 0 <= r < allowed.size and most[r] > 0:
                    f = np.float64(most[r])
                    share = k1 * (1.0 - b + b * np.float64(lengths[r - first]) / mean)
                    scores[r] += idf[g] * f * (k1 + 1.0) / (f + share)
                    most[r] = 0

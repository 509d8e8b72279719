"""What do a turn's neighbours in its session add? Who answers is often the turn before or the one after.

A row gains NEAR of the base score of the turns beside it, FAR of those two away, and WHOLE of the mean of its session's
BEST highest. What it adds to LoCoMo's recall is told by `python -m bench.ablation`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memcore_kernels.settings import exact_kernel

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
F64 = npt.NDArray[np.float64]
NEAR, FAR, WHOLE, BEST = 0.4, 0.2, 0.6, 2
MOST = 2 * NEAR + 2 * FAR + WHOLE  # what a row can gain where bases are at most 1


@exact_kernel
def activate(base: F64, session: I32, taking: U8, names: int, out: F64) -> None:
    """out[r] = what row r gains, 0 ... MOST, where `taking[r]` is not 0, and 0 elsewhere.

    Rows in the order they were stored: `base` float64, `session` int32, codes below `names`, `taking` uint8, `(n,)`;
    out float64 `(n,)`.
    """
    last, best, count = np.full((names, 2), -1), np.zeros((names, BEST)), np.zeros(names, np.int64)
    out[:] = 0
    for r in range(base.size):
        if not taking[r]:
            continue
        s, mine = session[r], base[r]
        for away in range(2):
            share = FAR if away else NEAR
            other = last[s, away]
            if other >= 0:
                out[r] += share * base[other]
                out[other] += share * mine
        last[s, 1], last[s, 0] = last[s, 0], r
        count[s] += 1
        for place in range(BEST):
            if mine > best[s, place]:
                best[s, place], mine = mine, best[s, place]
    for r in range(base.size):
        if taking[r]:
            s = session[r]
            total = 0.0
            for place in range(BEST):
                total += best[s, place]
            out[r] += WHOLE * total / min(count[s], BEST)

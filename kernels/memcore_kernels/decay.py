"""How recent is a row, and how much of its score is known before its vector is read?"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from memcore_kernels.lanes import half_power, highest
from memcore_kernels.settings import exact_kernel, kernel

# Rows a block. At 200,000 rows and weights (.5, .3, .2), 512 took 15 % longer, since each block begins with a wait for
# memory, and 4096 as long; at (.2, .7, .1), where blocks fall out by their known terms, all took the same.
BLOCK = 2048
HOUR = 3.6e9  # microseconds
KNOWN_ERROR = 2e-6  # of `known_terms`: its roundings add up to 4.5e-7, and the worst of 1.6e8 values was off by 1.7e-7
# Half-lives from which all is equally old: 2^-60 is nothing. At 126, where products are denormal, rows took 25 times as
# long, as those of more than a year ago do at the default rate.
_LONG_AGO = np.float32(60)
_FASTEST = 1e20  # half-lives a µs: all is forgotten after the first, and the longest age times this is still a float32


@exact_kernel
def recency(event_time: int, now: int, decay_rate: float) -> float:
    """exp(-lambda * age). `event_time` and `now` in µs, `decay_rate` per hour; a future event has age 0. Float64."""
    return math.exp(-decay_rate * (float(max(now - event_time, 0)) / HOUR))


@kernel
def known_terms(
    event_time: npt.NDArray[np.int64],
    importance: npt.NDArray[np.float32],
    allowed: npt.NDArray[np.uint8],
    now: int,
    decay_rate: float,
    beta: float,
    gamma: float,
    known: npt.NDArray[np.float32],
    peaks: npt.NDArray[np.float32],
) -> None:
    """known[r] = beta * exp(-lambda * age) + gamma * importance, within KNOWN_ERROR; -inf where `allowed[r]` is 0.

    `event_time` int64 µs `(n,)`, `importance` float32 `(n,)`, `allowed` uint8 `(n,)` or `(0,)` for all, `now` in µs,
    `decay_rate` per hour, beta + gamma <= 1. Out, float32: `known` of at least `n`, and `peaks` `(ceil(n / BLOCK),)`,
    the largest of each block.

    exp through libm costs more than the whole scan. Here 2^-x = 2^-i * 2^-f, the first made of its bits, the second a
    polynomial of degree 5, which vectorises. Its coefficients are the minimax ones on [-1, 0] with p(0) = 1: relative
    error 8.5e-8, where Taylor's are off by 2.8e-4 at the far end.
    """
    n = event_time.size
    rate = np.float32(min(decay_rate / math.log(2) / HOUR, _FASTEST))
    b32, g32 = np.float32(beta), np.float32(gamma)
    if beta == 0.0 and gamma == 0.0:  # by similarity alone they need not be read
        known[:n] = 0
    for r in range(n if beta > 0.0 or gamma > 0.0 else 0):
        x = min(np.float32(max(now - event_time[r], 0)) * rate, _LONG_AGO)
        i = np.int32(x)
        f = np.float32(i) - x
        p = np.float32(0.0009449036) * f + np.float32(0.0092057977)
        p = p * f + np.float32(0.0552973598)
        p = p * f + np.float32(0.2401801497)
        p = p * f + np.float32(0.6931437254)
        p = p * f + np.float32(1)
        known[r] = b32 * p * half_power(i) + g32 * importance[r]
    if allowed.size:
        for r in range(n):
            if not allowed[r]:
                known[r] = -np.inf
    for b in range(peaks.size):
        peaks[b] = highest(known[b * BLOCK : min((b + 1) * BLOCK, n)])

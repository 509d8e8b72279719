"""How relevant is each row, from its parts, and which rows need them exactly?

    base = (likeness + words * lexical + time * temporal) / (1 + words + time)
    x = (base + gained) / (1 + most);  relevance = x^3 / (x^3 + half^3)

Likeness can be had from int8 codes, off by an error that is known. An error e of every base is at most e of every x,
since gained is at most `most` times a base: so bounds of the total tell which rows can be among the best, and these,
their neighbours and the best of their sessions are all that must be known exactly.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from memcore_kernels.activation import BEST
from memcore_kernels.settings import exact_kernel, kernel

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


@exact_kernel
def bases(likeness: F32, lexical: F64, temporal: F64, words: float, time: float, out: F64) -> None:
    """out[r] = the base of row r: float32 and float64 `(n,)`; `temporal` `(0,)` is all zeros."""
    whole = 1.0 + words + time
    for r in range(out.size):
        total = np.float64(likeness[r]) + words * lexical[r]
        if temporal.size:
            total += time * temporal[r]
        out[r] = total / whole


@exact_kernel
def relevances(base: F64, gained: F64, most: float, half: float, out: F64) -> None:
    """out[r] = the relevance of row r: float64 `(n,)` each."""
    bar = half * half * half
    for r in range(out.size):
        x = (base[r] + gained[r]) / (1.0 + most)
        cubed = x * x * x
        out[r] = cubed / (cubed + bar)


@kernel
def candidates(
    base: F64, gained: F64, known: F32, most: float, half: float, error: float, alpha: float, slack: float, k: int,
    lower: F32, upper: F32, out: U8,
) -> int:  # fmt: skip
    """out[r] = 1 where the total alpha * relevance + known can be among the k highest, else 0; how many are 1.

    `base` and `gained` float64 `(n,)`, of which x is within `error`; `known` float32 `(n,)` within `slack`, minus
    infinity where a row is not allowed; `lower` and `upper` float32 `(n,)` scratch.
    """
    share, bar = 1.0 / (1.0 + most), half * half * half
    for r in range(out.size):
        x = (base[r] + gained[r]) * share
        low, high = max(x - error, 0.0), x + error
        low, high = low * low * low, high * high * high
        lower[r] = np.float32(alpha * (low / (low + bar))) + known[r]
        upper[r] = np.float32(alpha * (high / (high + bar))) + known[r]
    best = np.full(k, np.float32(-np.inf))  # the k highest, the lowest of them first
    for r in range(out.size):
        value = lower[r]
        if value <= best[0]:
            continue
        place = 0
        while True:
            child = 2 * place + 1
            if child >= k:
                break
            if child + 1 < k and best[child + 1] < best[child]:
                child += 1
            if best[child] >= value:
                break
            best[place] = best[child]
            place = child
        best[place] = value
    least, many = best[0] - np.float32(2 * slack), 0
    for r in range(out.size):
        out[r] = np.uint8(upper[r] >= least and upper[r] > -np.inf)
        if out[r]:
            many += 1
    return many


@exact_kernel
def needed(base: F64, session: I32, taking: U8, names: int, error: float, chosen: U8, beside: U8, out: U8) -> None:
    """out[r] = 1 for each row whose base the gained of a chosen one depends on: itself, its neighbours, and what can be
    among the best of its session. Columns as of `activation.activate`; `base` is within `error`. `beside`, out too, is
    `taking` of the sessions that have a chosen row: enough to activate these by.
    """
    best, asked = np.zeros((names, BEST)), np.zeros(names, np.uint8)
    for r in range(out.size):
        out[r] = chosen[r]
        if not taking[r]:
            continue
        s, mine = session[r], base[r]
        if chosen[r]:
            asked[s] = 1
        for place in range(BEST):
            if mine > best[s, place]:
                best[s, place], mine = mine, best[s, place]
    last = np.full((names, 2), -1)
    for r in range(out.size):
        beside[r] = np.uint8(taking[r] and asked[session[r]])
        if not beside[r]:
            continue
        s = session[r]
        if base[r] >= best[s, BEST - 1] - 2.0 * error:
            out[r] = 1
        for away in range(2):
            other = last[s, away]
            if other >= 0:
                if chosen[r]:
                    out[other] = 1
                if chosen[other]:
                    out[r] = 1
        last[s, 1], last[s, 0] = last[s, 0], r

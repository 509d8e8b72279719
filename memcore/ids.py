"""Which id does a new record get? UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, 12 bits of the fraction, 62 random bits.

Ids rise with the time they were made at, and within one microsecond in the order they were made. Each starts from fresh
operating system randomness, so that a forked child, which inherits the generator's state, makes other ids.
"""

from __future__ import annotations

import os
import uuid

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
_VARIANT = 0b10 << 62
_RANDOM = (1 << 62) - 1


class IdMaker:
    """Not thread-safe: the store calls it under its write lock."""

    def __init__(self) -> None:
        self._prefix = -1
        self._last = 0

    def take(self, n: int, now: int) -> tuple[U64, U64]:
        """`n` new ids at `now` (µs since the epoch), rising: the high and the low halves, uint64 `(n,)` each."""
        millis, rest = divmod(max(now, 0), 1000)
        prefix = millis << 16 | 0x7000 | rest * 4096 // 1000
        if prefix == self._prefix:
            first = self._last + 1 + int.from_bytes(os.urandom(4), "big")
        else:
            first = int.from_bytes(os.urandom(8), "big") >> 3  # 61 bits: room to count upwards
        if first + n > _RANDOM:
            first = int.from_bytes(os.urandom(8), "big") >> 3
        self._prefix, self._last = prefix, first + n - 1
        low = np.arange(n, dtype=np.uint64) + np.uint64(_VARIANT | first)
        return np.full(n, prefix, dtype=np.uint64), low


def to_text(hi: int, lo: int) -> str:
    digits = f"{hi:016x}{lo:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def to_texts(hi: U64, lo: U64) -> list[str]:
    """Many ids as text: one hex dump, then slices, which is five times as fast as formatting each."""
    pairs = np.empty((hi.size, 2), dtype=">u8")
    pairs[:, 0], pairs[:, 1] = hi, lo
    dump = pairs.tobytes().hex()
    return [
        f"{dump[i : i + 8]}-{dump[i + 8 : i + 12]}-{dump[i + 12 : i + 16]}-{dump[i + 16 : i + 20]}-{dump[i + 20 : i + 32]}"
        for i in range(0, len(dump), 32)
    ]


def halves(value: uuid.UUID) -> tuple[int, int]:
    return value.int >> 64, value.int & 0xFFFFFFFFFFFFFFFF

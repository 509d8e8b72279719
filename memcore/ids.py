"""Which id does a new record get? UUIDv7 (RFC 9562): 48 bits of Unix milliseconds, 12 of the fraction, 62 random ones.

Ids sort by the microsecond they were made at, and within one microsecond in the order they were made, as long as the
clock does not go back and forth in between. Each starts from fresh operating system randomness, and a forked child,
which inherits the maker, starts anew: the two make other ids even where a simulated clock stands still.
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
        self._made = (0, -1)  # the process and the first 64 bits of the last ids
        self._last = 0  # the random part of the last id

    def take(self, n: int, now: int) -> tuple[U64, U64]:
        """`n` new ids at `now` (µs since the epoch), rising: the high and the low halves, uint64 `(n,)` each.

        Before 1970 all get the time 0, since a UUIDv7 has no earlier one.
        """
        millis, rest = divmod(max(now, 0), 1000)
        prefix = millis << 16 | 0x7000 | rest * 4096 // 1000  # 1000 µs in 12 bits: each its own
        made = (os.getpid(), prefix)
        if made == self._made:
            first = self._last + 1 + int.from_bytes(os.urandom(4), "big")
        else:
            first = int.from_bytes(os.urandom(8), "big") >> 3  # 61 bits: room to count upwards
        if first + n > _RANDOM:  # after a thousand million calls within one microsecond
            first = int.from_bytes(os.urandom(8), "big") >> 3
        self._made, self._last = made, first + n - 1
        if n == 1:
            return np.array([prefix], dtype=np.uint64), np.array([_VARIANT | first], dtype=np.uint64)
        low = np.arange(n, dtype=np.uint64) + np.uint64(_VARIANT | first)
        return np.full(n, prefix, dtype=np.uint64), low


def to_text(hi: int, lo: int) -> str:
    """One id as text, such as 01890a5d-ac96-774b-bcce-b302099a8057."""
    digits = f"{hi:016x}{lo:016x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def to_texts(hi: U64, lo: U64) -> list[str]:
    """Many ids as text: one hex dump, then slices, which is five times as fast as formatting each."""
    pairs = np.empty((hi.size, 2), dtype=">u8")
    pairs[:, 0], pairs[:, 1] = hi, lo
    dump = pairs.tobytes().hex()
    each = (dump[i : i + 32] for i in range(0, len(dump), 32))
    return [f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}" for text in each]


def halves(value: uuid.UUID) -> tuple[int, int]:
    """An id as the store keeps it: its first and its last 64 bits."""
    return value.int >> 64, value.int & 0xFFFFFFFFFFFFFFFF

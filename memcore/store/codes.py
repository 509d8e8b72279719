"""Which int8 codes stand for a segment's vectors? Derived data: what the vectors say, in a quarter of the bytes.

Rows are rotated by the store's rotation, if it has one, so that the first dimensions tell most of a row (uncentred
PCA), and coded in slabs (`memcore_kernels.codes`). Codes are made in whole blocks, for a tail too: its rows never
change, so codes are added behind those that are there. A rotation is exact, so results never depend on it; one that was
fitted to other rows only leaves more of them to be looked at.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from memcore.store.segment import Segment

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

DERIVED = "derived"  # the folder of a store
BLOCK = 2048  # as of `memcore_kernels.decay`, which writing does without
FITTED = 8 * BLOCK  # coded rows from which a rotation can be had
LEAST_ROTATED = 128  # dimensions: fewer have one slab, and so no use for a rotation
_SAMPLE = 8192  # rows that one is fitted to, at most


class Rotation:
    """An orthonormal `matrix`, float64 `(d, d)`: rows @ matrix are the rotated rows."""

    __slots__ = ("matrix", "name")

    def __init__(self, matrix: F64) -> None:
        self.matrix = matrix
        self.name = hashlib.sha256(matrix.tobytes()).hexdigest()[:16]


def fitted(vectors: F32) -> Rotation:
    """The directions of the most of these rows, float32 `(n, d)`, first: uncentred principal components."""
    sample = vectors[:: -(-len(vectors) // _SAMPLE)].astype(np.float64)
    _, directions = np.linalg.eigh(sample.T @ sample)
    return Rotation(np.ascontiguousarray(directions[:, ::-1]))


class Coder:
    """Finds or makes the codes of a store's segments. All have one rotation, fitted to the first segment that is large
    enough: one a scope would take 0.5 MB each at 256 dimensions, and 19 MB at 1,536. `folder` is where a store in a
    directory keeps what is derived; nothing is written there but by `Maintenance`.
    """

    __slots__ = ("folder", "kept", "rotation")

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.rotation: Rotation | None = None
        self.kept: set[str] = set()  # files that this process has found or made

    def codes(self, segment: Segment, n: int) -> Codes | None:
        """The codes of a segment's first `n` rows, as far as it has any. Never under the lock: it may take a second."""
        upto = segment.coded_upto(n)
        if upto == 0 or (segment.coded is not None and segment.coded.rows >= upto):
            return segment.codes(n, None)
        with _making:  # sixteen threads that all made them at once took 30 s, and one takes 0.3 s
            if segment.coded is not None:
                return segment.codes(n, None)
            rotation = self._rotation(segment)
            if self.folder is not None and segment.source is not None:
                from memcore.store import derived

                segment.coded = derived.of(self.folder, segment, rotation)
            return segment.codes(n, rotation)

    def _rotation(self, segment: Segment) -> Rotation | None:
        dim, rotation = segment.dim, self.rotation
        if rotation is not None and len(rotation.matrix) == dim:
            return rotation
        if dim < LEAST_ROTATED:
            return None
        if self.folder is not None:
            from memcore.store import derived

            self.rotation = derived.read_rotation(self.folder, dim) or self.rotation
        if (self.rotation is None or len(self.rotation.matrix) != dim) and segment.sealed and segment.n >= FITTED:
            self.rotation = fitted(segment.view().columns["vector"])
        return self.rotation if self.rotation is not None and len(self.rotation.matrix) == dim else None


_making = threading.Lock()


def _in_child() -> None:
    global _making
    _making = threading.Lock()  # a thread that is not there may have held it


os.register_at_fork(after_in_child=_in_child)


class Codes:
    """The codes of a segment's first `rows` rows, with room for `room`. Arrays as the kernels take them."""

    __slots__ = ("ends", "heaviest", "left", "missed", "newest", "room", "rotation", "rows", "scale", "slabs")

    def __init__(self, room: int, dim: int, rotation: Rotation | None) -> None:
        from memcore_kernels.codes import SLABS, cuts

        self.rows = 0
        self.room = room
        self.rotation = rotation
        self.ends = cuts(dim)
        self.slabs = [np.empty((room, width), np.int8) for width in np.diff([0, *self.ends]).tolist()]
        self.scale, self.missed = np.empty((SLABS, room), np.uint16), np.empty((SLABS, room), np.uint16)
        self.left = np.empty((SLABS - 1, room), np.uint16)
        blocks = -(-room // BLOCK)
        self.newest, self.heaviest = np.empty(blocks, np.int64), np.empty(blocks, np.float32)

    @classmethod
    def of(cls, rows: int, dim: int, rotation: Rotation | None, arrays: Mapping[str, npt.NDArray[Any]]) -> Codes:
        """Codes whose arrays, by the names of the slots, lie elsewhere. ValueError if they have other sizes."""
        made = cls(0, dim, rotation)
        made.rows = made.room = rows
        widths = np.diff([0, *made.ends]).tolist()
        made.slabs = [arrays[f"slab{i}"].reshape(rows, width) for i, width in enumerate(widths)]
        made.scale, made.missed = arrays["scale"].reshape(-1, rows), arrays["missed"].reshape(-1, rows)
        made.left = arrays["left"].reshape(-1, rows)
        made.newest, made.heaviest = arrays["newest"], arrays["heaviest"]
        if (len(made.scale), len(made.missed), len(made.left)) != (3, 3, 2):
            raise ValueError("not the codes of so many rows")
        if not len(made.newest) == len(made.heaviest) == -(-rows // BLOCK):
            raise ValueError("not the blocks of so many rows")
        return made

    def extend(self, columns: Any, upto: int) -> None:
        """Codes the rows from `rows` up to `upto` of a segment's columns. Two threads that do so write the same."""
        from memcore_kernels.codes import quantise

        ends = np.array(self.ends, np.int64)
        slab0, slab1, slab2 = self.slabs
        for first in range(self.rows, upto, BLOCK):
            last = min(first + BLOCK, upto)
            rows = columns["vector"][first:last].astype(np.float64)
            if self.rotation is not None:
                rows = rows @ self.rotation.matrix
            quantise(rows, ends, first, slab0, slab1, slab2, self.scale, self.missed, self.left)
            self.newest[first // BLOCK] = columns["event_time"][first:last].max()
            self.heaviest[first // BLOCK] = columns["importance"][first:last].max()
        self.rows = upto

    def nbytes(self) -> int:
        arrays = (*self.slabs, self.scale, self.missed, self.left, self.newest, self.heaviest)
        return sum(array.nbytes for array in arrays) * self.rows // max(self.room, 1)

"""Real text to measure with, found on any machine: prose-like lines of the Python sources in this environment.

Lines are taken in the order of sorted paths, each once, so that one environment gives one corpus. Their vectors are
kept in bench/results/ after the first run, which takes about 10 seconds for 210,000 lines.
"""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

import numpy as np
import numpy.typing as npt

from memcore import embed, sample

RESULTS = Path(__file__).parent / "results"
DAY = 86_400.0
NOW = 1_790_000_000.0


def texts(n: int) -> list[str]:
    """`n` lines of prose of at least 25 characters: distinct, as long as there are so many."""
    return sample.lines(n, ("stdlib", "purelib"))


def vectors(n: int) -> npt.NDArray[np.float32]:
    """The default embedder's vectors of `texts(n)`, float32 `(n, 256)`, in an order shuffled with a fixed seed."""
    embedder = embed.resolve("static")
    name = hashlib.sha256(f"{embedder.fingerprint} {n} {sysconfig.get_paths()['purelib']}".encode()).hexdigest()[:16]
    kept = RESULTS / f"corpus-{name}.npy"
    if not kept.exists():
        made = embedder.embed(texts(n))
        np.random.default_rng(0).shuffle(made)
        RESULTS.mkdir(exist_ok=True)
        np.save(kept, made)
    loaded: npt.NDArray[np.float32] = np.load(kept)
    return loaded


def queries(rows: npt.NDArray[np.float32], held_out: npt.NDArray[np.float32], n: int) -> npt.NDArray[np.float32]:
    """`n` queries, L2-normalised: texts that are not among the rows, and rows with noise."""
    rng = np.random.default_rng(3)
    some = rows[rng.integers(0, len(rows), n - len(held_out))]
    noisy = some + np.float32(0.05) * rng.standard_normal(some.shape).astype(np.float32)
    made = np.concatenate([held_out, noisy])
    return np.ascontiguousarray(made / np.linalg.norm(made, axis=1, keepdims=True))


def life(n: int, days: float = 90) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float32]]:
    """Event times (seconds, rising, over `days` before NOW) and importances for `n` rows."""
    rng = np.random.default_rng(1)
    return np.sort(NOW - rng.random(n) * days * DAY), rng.random(n).astype(np.float32)

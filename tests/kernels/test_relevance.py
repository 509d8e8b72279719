"""Relevance from its parts, and which rows must be known exactly for the best to be: nothing may be left out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import drawn
from memcore_kernels import activation, codes, relevance

HALF = 0.085


def total(base, session, taking, names, alpha, known):
    gained, made = np.empty(len(base)), np.empty(len(base))
    activation.activate(base, session, taking, names, gained)
    relevance.relevances(base, gained, activation.MOST, HALF, made)
    return alpha * made + known, gained


def test_by_hand():
    out, made = np.empty(2), np.empty(2)
    relevance.bases(np.array([0.5, 1], np.float32), np.array([0.25, 1.0]), np.zeros(0), 4.0, 0.25, out)
    assert out.tolist() == [1.5 / 5.25, 5 / 5.25]
    relevance.bases(np.array([0.5, 1], np.float32), np.array([0.25, 1.0]), np.array([1.0, 0.5]), 4.0, 0.25, out)
    assert out.tolist() == [1.75 / 5.25, 5.125 / 5.25]
    relevance.relevances(np.array([0.1, 0.0]), np.array([0.1, 0.0]), 1.0, 0.1, made)
    assert made == pytest.approx([0.5, 0])


@drawn.thorough(300)
@given(
    n=st.integers(1, 60), k=st.integers(1, 8), alpha=st.floats(0, 1), seed=st.integers(0, 2**32 - 1),
    error=st.sampled_from((0.0, 1e-4, 0.01, 0.1)), sessions=st.integers(1, 5), tied=st.booleans(),
)  # fmt: skip
def test_what_is_left_out_cannot_be_among_the_best(n, k, alpha, seed, error, sessions, tied):
    """From bases that are off by up to an error: the k best are chosen, and exact bases of what is needed are enough to
    score them to the bit.
    """
    rng = np.random.default_rng(seed)
    base = rng.choice([0.0, 0.1, 0.3], n) if tied else rng.random(n) ** 4
    about = np.clip(base + error * rng.uniform(-1, 1, n), 0, None)
    session, taking = rng.integers(0, sessions, n).astype(np.int32), (rng.random(n) < 0.8).astype(np.uint8)
    known = (rng.random(n) * (1 - alpha)).astype(np.float32)
    known[rng.random(n) < 0.2] = -np.inf
    exact, gained = total(base, session, taking, sessions, alpha, known)
    near = np.empty(n)
    activation.activate(about, session, taking, sessions, near)
    chosen, lower, upper = np.empty(n, np.uint8), np.empty(n, np.float32), np.empty(n, np.float32)
    many = relevance.candidates(about, near, known, activation.MOST, HALF, error, alpha, 4e-6, k, lower, upper, chosen)
    assert many == chosen.sum()
    allowed = np.flatnonzero(np.isfinite(known))
    best = allowed[np.argsort(-exact[allowed], kind="stable")[:k]]
    for row in allowed:  # also what is as good as the last of them
        if len(best) == k and exact[row] >= exact[best[-1]]:
            assert chosen[row]
    assert chosen[best].all()
    assert not chosen[~np.isfinite(known)].any()

    wanted, beside = np.empty(n, np.uint8), np.empty(n, np.uint8)
    relevance.needed(about, session, taking, sessions, error, chosen, beside, wanted)
    mixed = np.where(wanted, base, about)
    again, activated = total(mixed, session, beside, sessions, alpha, known)
    assert (again[chosen != 0] == exact[chosen != 0]).all()
    assert (activated[chosen != 0] == gained[chosen != 0]).all()


def test_few_are_chosen_where_the_error_is_small():
    rng = np.random.default_rng(0)
    n = 5_000
    base, session, taking = rng.random(n) ** 4 * 0.3, np.arange(n, dtype=np.int32) // 50, np.ones(n, np.uint8)
    gained, chosen, wanted = np.empty(n), np.empty(n, np.uint8), np.empty(n, np.uint8)
    activation.activate(base, session, taking, n // 50, gained)
    room = np.empty(n, np.float32), np.empty(n, np.float32)
    many = relevance.candidates(
        base, gained, np.zeros(n, np.float32), activation.MOST, HALF, 1e-3, 1.0, 4e-6, 10, *room, chosen
    )
    assert 10 <= many < 60
    relevance.needed(base, session, taking, n // 50, 1e-3, chosen, np.empty(n, np.uint8), wanted)
    assert many <= wanted.sum() < 8 * many


@pytest.mark.parametrize("dim", [8, 96, 128, 256, 300])
def test_estimates_are_within_what_they_say(dim):
    rng = np.random.default_rng(dim)
    n = 40
    rows = rng.standard_normal((n, dim))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[3] = 0
    query = rng.standard_normal(dim)
    query /= np.linalg.norm(query)
    ends = np.array(codes.cuts(dim), np.int64)
    slabs = [np.empty((n, width), np.int8) for width in np.diff([0, *ends])]
    scale, missed, left = (np.empty((size, n), np.uint16) for size in (3, 3, 2))
    codes.quantise(rows, ends, 0, *slabs, scale, missed, left)
    numbers, told = np.empty(dim, np.int16), np.empty((3, 4))
    codes.code_query(query, ends, numbers, told)
    about = np.empty(n, np.float32)
    off = codes.estimate(*slabs, scale, missed, 0, numbers, told, np.empty(n, np.int32), about)
    assert np.abs(about - rows @ query).max() <= off + codes.BOUND_ERROR
    assert 0 < off < 0.05

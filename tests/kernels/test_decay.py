import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import drawn
import naive
from drawn import HOUR, NOW
from memcore_kernels import decay

EVERY = np.empty(0, dtype=np.uint8)
AGES = st.integers(-(10**17), 3 * 10**17)  # µs: 3,000 years to come to 9,500 years ago


def known_terms(event_time, importance, allowed, decay_rate, beta, gamma):
    n = len(event_time)
    known = np.full(n + 3, 7.0, dtype=np.float32)  # scratch may be longer than the rows
    peaks = np.full(-(-n // decay.BLOCK), 7.0, dtype=np.float32)
    decay.known_terms(event_time, importance, allowed, NOW, decay_rate, beta, gamma, known, peaks)
    assert (known[n:] == 7).all()
    return known[:n], peaks


@drawn.thorough(300)
@given(age=AGES, rate=st.sampled_from(drawn.RATES) | st.floats(0, 1e9))
def test_recency_is_its_twin_to_the_bit(age, rate):
    found = decay.recency(NOW - age, NOW, rate)
    assert found == naive.recency(NOW - age, NOW, rate)
    assert 0 <= found <= 1


def test_recency_by_hand():
    assert decay.recency(NOW - 100 * HOUR, NOW, 0.01) == math.exp(-1)
    assert decay.recency(NOW, NOW, 0.01) == 1
    assert decay.recency(NOW + HOUR, NOW, 0.01) == 1
    assert decay.recency(NOW - 10**17, NOW, 0.0) == 1
    assert decay.recency(NOW - 10**17, NOW, 1e300) == 0
    assert decay.recency(np.int64(NOW - 10**17), NOW, 1e300) == 0  # nor a warning of an overflow, in plain Python


@drawn.thorough(300)
@given(
    data=st.data(),
    n=st.integers(0, 40),
    rate=st.sampled_from(drawn.RATES) | st.floats(0, 1e12),
    shares=drawn.weights(),
)
def test_known_terms_are_as_near_as_they_say(data, n, rate, shares):
    event_time = data.draw(drawn.event_times(n))
    importance, allowed = data.draw(drawn.importances(n)), data.draw(drawn.masks(n))
    known, peaks = known_terms(event_time, importance, allowed, rate, shares[1], shares[2])
    twin = naive.known_terms(event_time, importance, allowed, NOW, rate, shares[1], shares[2])
    assert (np.isneginf(known) == np.isneginf(twin)).all()
    seen = twin > -math.inf
    assert np.abs(known[seen] - twin[seen]).max(initial=0) <= decay.KNOWN_ERROR
    assert peaks.tolist() == ([known.max()] if n else [])


@pytest.mark.parametrize("around", [None, 0, 1, 2, 17, 125, 126])
def test_known_terms_of_very_many_ages(around):
    """All fractions of a half-life, and both sides of its whole numbers, where the table's next entry takes over."""
    n = 2_000 if drawn.PLAIN else 1_000_000
    rng = np.random.default_rng(0)
    halves = rng.uniform(0, 130, n) if around is None else np.abs(around + rng.choice((-1, 1), n) * rng.random(n) ** 8)
    for rate in (1e-4, 0.01, 40.0):
        event_time = NOW - np.minimum(halves * math.log(2) / rate * HOUR, 3e17).astype(np.int64)
        known, _ = known_terms(event_time, np.zeros(n, dtype=np.float32), EVERY, rate, 1.0, 0.0)
        twin = np.exp(-rate * ((NOW - event_time) / HOUR))
        assert np.abs(known - twin).max() <= decay.KNOWN_ERROR / 4  # the constant has something in reserve


def test_known_terms_at_age_zero_and_without_decay_are_whole():
    for rate in (0.0, 0.01, 1e300):
        known, _ = known_terms(np.array([NOW, NOW + 9]), np.zeros(2, dtype=np.float32), EVERY, rate, 1.0, 0.0)
        assert known.tolist() == [1, 1]
    known, _ = known_terms(NOW - np.array([1, 10**9, 10**17]), np.zeros(3, dtype=np.float32), EVERY, 0.0, 1.0, 0.0)
    assert known.tolist() == [1, 1, 1]


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("blocks", [1, 2])
def test_peaks_are_the_largest_of_each_block(blocks, extra):
    n = blocks * decay.BLOCK + extra
    rng = np.random.default_rng(n)
    event_time, importance = NOW - rng.integers(0, 10**12, n), rng.random(n).astype(np.float32)
    for allowed in (EVERY, (rng.random(n) < 0.5).astype(np.uint8), np.zeros(n, dtype=np.uint8)):
        known, peaks = known_terms(event_time, importance, allowed, 0.01, 0.5, 0.5)
        starts = range(0, n, decay.BLOCK)
        assert peaks.tolist() == [known[start : start + decay.BLOCK].max() for start in starts]
    for at in {0, 1, n // 2, n - 2, n - 1}:  # the largest may be anywhere
        known, peaks = known_terms(np.full(n, NOW), (np.arange(n) == at).astype(np.float32), EVERY, 0.0, 0.0, 1.0)
        assert peaks.tolist() == [1.0 if b == at // decay.BLOCK else 0.0 for b in range(len(peaks))]

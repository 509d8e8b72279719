"""What neighbours add, as the twin says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import drawn
import naive
from memcore_kernels import activation

TURNS = st.lists(st.tuples(st.floats(0, 1), st.none() | st.integers(0, 3)), max_size=30)


@drawn.thorough(300)
@given(turns=TURNS)
def test_what_neighbours_add_is_the_twins(turns):
    base, sessions = np.array([b for b, _ in turns]), [s for _, s in turns]
    out = np.full(len(turns), 7.0)
    codes = np.array([9 if s is None else s for s in sessions], np.int32)
    taking = np.array([s is not None for s in sessions], np.uint8)
    activation.activate(base, codes, taking, 10, out)
    assert out.tolist() == pytest.approx(naive.activation(base.tolist(), sessions), abs=1e-12)
    assert out.max(initial=0) <= activation.MOST + 1e-12


def test_by_hand():
    out = np.empty(5)
    base, session = np.array([1.0, 0, 0, 0, 0.5]), np.zeros(5, np.int32)
    activation.activate(base, session, np.ones(5, np.uint8), 1, out)
    # 0.6 * 1.5 / 2 for each, and shares of the ends
    assert out.tolist() == pytest.approx([0.45, 0.85, 0.75, 0.65, 0.45])

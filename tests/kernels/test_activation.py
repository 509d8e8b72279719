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
    assert out.tolist() == pytest.approx([0.3, 0.7, 0.6, 0.5, 0.3])  # 0.6 * 1.5 / 3 for each, and shares of the ends


@drawn.thorough(100)
@given(vectors=drawn.rows(st.integers(0, 5), st.integers(1, 300)), data=st.data())
def test_similarities_are_dot_products(vectors, data):
    query, out = data.draw(drawn.queries(vectors)), np.empty(len(vectors), np.float32)
    activation.similarities(vectors, query, out)
    assert out.tolist() == pytest.approx([naive.dot(row, query) for row in vectors], abs=1e-5)

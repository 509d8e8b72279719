"""Likeness about the centre, as the twin says; and that the sum of rows is the same whatever the order."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import drawn
import naive
from memcore_kernels import centre

ROWS, DIMS = st.integers(0, 12), st.integers(1, 40)


def summed(vectors: np.ndarray) -> list[int]:
    out = np.zeros(vectors.shape[1], np.int64)
    centre.add_rows(vectors, 0, len(vectors), out)
    return out.tolist()


@drawn.thorough(200)
@given(vectors=drawn.rows(ROWS, DIMS), data=st.data())
def test_likeness_is_the_twins(vectors, data):
    query = data.draw(drawn.queries(vectors))
    assume(query.any())
    mean = naive.centre(vectors)
    apart = query - mean
    turned = (apart / naive.norm(apart)).astype(np.float32)
    shift, scale = math.fsum(turned * mean), 1 / math.sqrt(1 - naive.norm(mean) ** 2)
    out = np.full(len(vectors), 7, np.float32)
    centre.likeness(vectors, turned, shift, scale, out)
    for row, found, expected in zip(vectors, out.tolist(), naive.likeness(vectors, query), strict=True):
        if row.any() and naive.dot(row, turned) == 0:
            assert found == 0 or found == pytest.approx(expected, abs=1e-5)  # float32 may or may not see the 0
        else:
            assert found == pytest.approx(expected, abs=1e-5)
        assert 0 <= found <= 1


def test_likeness_by_hand():
    vectors = np.array([[1, 0], [0, 1], [0.6, 0.8], [-1, 0], [0, 0]], np.float32)
    out = np.empty(5, np.float32)
    centre.likeness(vectors, np.array([1, 0], np.float32), 0.2, 1.25, out)
    assert out.tolist() == pytest.approx([1, 0, 0.5, 0, 0])
    centre.likeness(vectors, np.array([1, 0], np.float32), -0.2, 1.25, out)
    assert out.tolist() == pytest.approx([1, 0, 1, 0, 0])  # 1.5 is cut to 1; a row of zeros stays like nothing
    centre.likeness(vectors, np.zeros(2, np.float32), 0.0, 0.0, out)
    assert out.tolist() == [0] * 5


def test_about_the_centre_what_all_have_in_common_counts_for_nothing():
    """Every two of these have a cosine of 0.75 or more; about the centre only the query itself is like it."""
    rng = np.random.default_rng(0)
    own = 0.5 * np.eye(40)[:20] + rng.normal(0, 0.01, (20, 40))
    vectors = np.array([naive.unit(row + np.eye(40)[39]) for row in own])
    assert (vectors @ vectors[3]).min() > 0.75
    alike = naive.likeness(vectors, vectors[3])
    assert alike[3] > 0.6
    assert max(alike[:3] + alike[4:]) < 0.25


@drawn.thorough(200)
@given(vectors=drawn.rows(ROWS, DIMS), data=st.data())
def test_sums_are_whole_numbers_and_the_same_in_any_order(vectors, data):
    expected = naive.whole_sum(vectors)
    assert summed(vectors) == expected
    order = data.draw(st.permutations(range(len(vectors))))
    assert summed(np.ascontiguousarray(vectors[order])) == expected
    out, begin = np.zeros(vectors.shape[1], np.int64), 0
    for end in sorted([*data.draw(st.lists(st.integers(0, len(vectors)), max_size=3)), len(vectors)]):
        centre.add_rows(vectors, begin, end, out)
        begin = end
    assert out.tolist() == expected
    assert (out / centre.ONE / (len(vectors) + 1)).tolist() == pytest.approx(naive.centre(vectors).tolist(), abs=1e-9)


@drawn.thorough(200)
@given(vectors=drawn.rows(ROWS, DIMS), data=st.data())
def test_marked_rows_are_added_and_taken_off(vectors, data):
    n, d = vectors.shape
    mask = np.array(data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)), np.uint8)
    expected = naive.whole_sum(vectors[mask == 1].reshape(-1, d))
    out = np.zeros(d, np.int64)
    centre.add_marked(vectors, mask, 1, 1, out)
    assert out.tolist() == expected
    centre.add_marked(vectors, mask, 0, 1, out)
    assert out.tolist() == naive.whole_sum(vectors)
    centre.add_marked(vectors, mask, 0, -1, out)  # all rows but those that are not marked
    assert out.tolist() == expected
    centre.add_marked(vectors, mask, 1, -1, out)
    assert not out.any()

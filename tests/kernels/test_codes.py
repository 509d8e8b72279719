import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import drawn
import naive
from memcore_kernels import codes

ROUNDING = 6e-7  # of a sum of five float32 terms that are at most 2 together


def quantised(vectors):
    n, d = vectors.shape
    made = np.full((n, d), 99, np.int8), np.full(n, 7, np.float32), np.full(n, 7, np.float32)
    codes.quantise(vectors, *made)
    return made


def bounds(vectors, query, known, alpha):
    made = quantised(vectors)
    numbers, step, missed = codes.query_codes(query)
    totals, upper = np.empty(len(vectors), np.int32), np.empty(len(vectors), np.float32)
    codes.upper_bounds(*made, numbers, step, missed, known, alpha, totals, upper)
    assert totals.tolist() == naive.code_dots(made[0], numbers)
    return upper


@drawn.thorough(300)
@given(vectors=drawn.rows(st.integers(0, 8), st.integers(1, 300)))
def test_codes_and_what_they_miss(vectors):
    made, scale, missed = quantised(vectors)
    for row, code, one, rest in zip(vectors, made, scale.tolist(), missed.tolist(), strict=True):
        twin, twin_one, twin_rest = naive.quantise(row)
        assert abs(one - twin_one) <= 1e-6 * twin_one
        assert np.abs(code.astype(int) - twin).max() <= 1  # halfway, float32 and float64 may round apart
        left = naive.norm(row - code.astype(np.float64) * one)
        assert left <= rest <= left * 1.00001 + 1e-45
        assert rest <= twin_rest * 1.001 + 1e-6


@pytest.mark.parametrize("value", [1e-45, 1e-40, 1e-30, 1.01e-30, 1e-20])
def test_codes_of_rows_that_are_hardly_there(value):
    made, scale, missed = quantised(np.array([[value, -value, 0]], dtype=np.float32))
    assert np.isfinite(scale).all()
    assert np.abs(made).max() <= 127
    left = naive.norm(np.float32([value, -value]) * (scale[0] == 0))
    assert abs(float(missed[0]) - left) <= 1e-5 * value + 1e-45


def test_codes_by_hand():
    made, scale, missed = quantised(np.array([[0.6, -0.8, 0.0], [0, 0, 0], [0, 0, -1]], dtype=np.float32))
    assert made.tolist() == [[95, -127, 0], [0, 0, 0], [0, 0, -127]]
    assert scale.tolist() == [np.float32(np.float32(0.8) / np.float32(127)), 0, np.float32(1 / 127)]
    assert missed[1] == 0
    assert missed[2] < 1e-7


@drawn.thorough(300)
@given(vectors=drawn.rows(1, st.integers(1, 300)))
def test_query_codes_and_what_they_miss(vectors):
    found, step, missed = codes.query_codes(vectors[0])
    twin, twin_step, twin_missed = naive.query_codes(vectors[0])
    assert found.dtype == np.int16
    assert found.tolist() == twin.tolist()
    assert step == pytest.approx(twin_step, rel=1e-12)
    assert twin_missed <= missed <= twin_missed * 1.00001 + 1e-15


@pytest.mark.parametrize("d", [1, 2048, 2100, 4096, 100_000])
def test_no_dot_product_of_codes_overflows(d):
    query = np.full(d, d**-0.5, dtype=np.float32)
    numbers, _, _ = codes.query_codes(query)
    assert int(np.abs(numbers.astype(np.int64)).sum()) * 127 < 2**31
    if not drawn.PLAIN:
        totals, whole = np.empty(2, np.int32), int(numbers.astype(np.int64).sum())
        codes.code_dots(np.stack([np.full(d, 127, np.int8), np.full(d, -127, np.int8)]), numbers, totals)
        assert totals.tolist() == [127 * whole, -127 * whole]


@drawn.thorough(500)
@given(
    vectors=drawn.rows(st.integers(1, 8), st.integers(1, 300)),
    alpha=st.sampled_from((1.0, 0.5, 1e-3)) | st.floats(0, 1),
    data=st.data(),
)
def test_bounds_are_bounds_and_near(vectors, alpha, data):
    query = data.draw(drawn.queries(vectors))
    known = (data.draw(drawn.importances(len(vectors))) * np.float32(1 - alpha)).astype(np.float32)
    upper = bounds(vectors, query, known, alpha)
    _, _, query_missed = naive.query_codes(query)
    for row, before, bound in zip(vectors, known.tolist(), upper.tolist(), strict=True):
        total = before + alpha * naive.dot(row, query)
        assert total <= bound + ROUNDING
        _, _, missed = naive.quantise(row)
        assert bound <= total + 2 * alpha * (missed + query_missed * (1 + missed)) + 1e-5


@pytest.mark.parametrize("steps", [5, 7])
def test_a_bound_holds_where_the_codes_are_longer_than_the_row(steps):
    """Each number but one is just above half a code and rounds up; those of the query, as much below half a step, down.

    A bound that takes |v^| for 1, or for 1.1, is too low by 0.02 or 0.01 here.
    """
    d = 60_000
    row = np.full(d, 0.5001 / 127)
    row[0] = 1
    row = naive.unit(row)
    made, scale, _ = quantised(row[None])
    assert naive.norm(made[0] * float(scale[0])) > 1.5
    most = (2**31 - 1) / (128 * d)
    peak = most / np.sqrt((steps - 0.49) ** 2 * (d - 1) + most**2)  # so that the norm is 1
    query = np.full(d, -(steps - 0.49) * peak / most)
    query[0] = peak
    query = query.astype(np.float32)
    assert naive.norm(query) == pytest.approx(1, abs=1e-6)
    (upper,) = bounds(row[None], query, np.zeros(1, np.float32), 1.0)
    assert naive.dot(row, query) <= float(upper) + ROUNDING


def test_a_row_that_is_out_stays_out():
    rows = np.eye(3, dtype=np.float32)
    upper = bounds(rows, rows[0], np.array([-np.inf, 0, -np.inf], dtype=np.float32), 0.5)
    assert np.isneginf(upper).tolist() == [True, False, True]

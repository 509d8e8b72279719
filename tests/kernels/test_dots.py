import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import drawn
import naive
from memcore_kernels import dots, scan

DIMS = st.integers(1, 300)


@drawn.thorough(300)
@given(vectors=drawn.rows(2, DIMS))
def test_dot64_is_the_same_to_the_bit_as_its_twin_and_near_the_true_sum(vectors):
    found = dots.dot64(vectors[0], vectors[1])
    assert found == naive.dot64(vectors[0], vectors[1])
    assert found == dots.dot64(vectors[1], vectors[0])
    assert abs(found - naive.dot(vectors[0], vectors[1])) <= 1e-14
    assert abs(found - vectors[0].astype(np.float64) @ vectors[1].astype(np.float64)) <= 1e-12


def test_dot64_adds_in_the_order_it_promises():
    # Of this sum float64 keeps the small numbers or loses them, by the order.
    row = np.array([1, 2**-40, -1, 2**-41, 2**-30, 2**-42, 2**-31, 1, 2**-43], dtype=np.float32)
    query = np.array([2.0**60, 1, 2.0**60, 1, 1, 1, 1, 2.0**20, 1], dtype=np.float32)
    assert dots.dot64(row, query) == naive.dot64(row, query)
    assert dots.dot64(row, query) != naive.dot(row, query)


def test_dot64_keeps_what_is_not_a_number():
    row = np.array([math.nan, 1, 0, 0, 1], dtype=np.float32)
    assert math.isnan(dots.dot64(row, np.ones(5, dtype=np.float32)))


@drawn.thorough(300)
@given(vectors=drawn.rows(2, DIMS))
def test_dot32_is_as_near_to_dot64_as_dot_error_says(vectors):
    d = vectors.shape[1]
    for row, query in ((vectors[0], vectors[1]), (vectors[0], vectors[0]), (vectors[0], -vectors[0])):
        assert abs(float(dots.dot32(row, query)) - naive.dot(row, query)) <= scan.dot_error(d)


def test_dot_error_is_no_wider_than_twice_the_textbook_bound():
    for d in (1, 64, 256, 4096):
        assert d * 2.0**-24 < scan.dot_error(d) <= 2 * (d + 8) * 2.0**-24


@drawn.thorough(50)
@given(vectors=drawn.rows(st.integers(0, 20), DIMS), data=st.data())
def test_cosines_are_those_of_the_rows_asked_for(vectors, data):
    n = len(vectors)
    rows = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=30) if n else st.just([])), dtype=np.int64)
    queries = np.stack([data.draw(drawn.queries(vectors)) for _ in range(2)])
    asked = np.array(data.draw(st.lists(st.integers(0, 1), min_size=len(rows), max_size=len(rows))), np.int64)
    out = np.full(len(rows), 7.0)
    dots.cosines(vectors, rows, queries, asked, out)
    assert out.tolist() == naive.cosines(vectors, rows, queries, asked).tolist()

"""Many numbers at once: what the vectors tell is what a loop would."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import drawn
from memcore_kernels import lanes
from memcore_kernels.settings import exact_kernel

FLOATS = st.floats(width=32, allow_nan=False)


@exact_kernel
def dots(codes, query, totals):
    for r in range(0, codes.shape[0], lanes.TOGETHER):
        lanes.row_dots(codes, r, query, totals)


@exact_kernel
def dots_one_by_one(codes, query, totals):
    for r in range(codes.shape[0]):
        totals[r] = lanes.row_dot(codes, r, query)


@exact_kernel
def places_reaching(values, bar, found):
    many = 0
    for at in range(0, values.size, lanes.BITS):
        bits = lanes.bits_reaching(values, at, bar)
        while bits:
            found[many] = at + lanes.lowest(bits)
            bits &= bits - 1
            many += 1
    return many


@exact_kernel
def power(exponent):
    return lanes.half_power(np.int32(exponent))


@exact_kernel
def lowest(bits):
    return lanes.lowest(bits)


@exact_kernel
def doubled(values):
    mine = lanes.lent(values)
    for i in range(mine.size):
        mine[i] *= 2
    return mine.sum()


@drawn.thorough(200)
@given(
    rows=st.integers(0, 3).map(lambda n: n * lanes.TOGETHER),
    width=st.integers(0, 9).map(lambda n: n * lanes.LANES),
    seed=st.integers(0, 2**32),
    ends=st.booleans(),
)
def test_products_of_rows_are_exact(rows, width, seed, ends):
    rng = np.random.default_rng(seed)
    codes = rng.choice((-127, 127), (rows, width)) if ends else rng.integers(-128, 128, (rows, width))
    query = rng.choice((-8000, 8000), width) if ends else rng.integers(-8000, 8001, width)
    expected = (codes @ query).tolist()
    for kernel in (dots, dots_one_by_one):
        totals = np.full(rows, 7, np.int32)
        kernel(codes.astype(np.int8), query.astype(np.int16), totals)
        assert totals.tolist() == expected


@drawn.thorough(300)
@given(values=st.lists(FLOATS | st.just(-np.inf), max_size=70))
def test_the_highest(values):
    assert lanes.highest(np.array(values, np.float32)) == max(values, default=-np.inf)


@drawn.thorough(300)
@given(values=st.lists(FLOATS, min_size=2 * lanes.BITS, max_size=2 * lanes.BITS), data=st.data())
def test_which_reach_a_bar(values, data):
    bar = np.float32(data.draw(st.sampled_from(values) | FLOATS))
    found = np.empty(2 * lanes.BITS, np.int64)
    many = places_reaching(np.array(values, np.float32), bar, found)
    assert found[:many].tolist() == [i for i, value in enumerate(values) if value >= bar]


def test_the_lowest_bit():
    assert [lowest(np.int64(bits)) for bits in (0, 1, 2, 12, -(2**63))] == [64, 0, 1, 2, 63]


@pytest.mark.parametrize("exponent", [0, 1, 2, 100, 126])
def test_powers_of_a_half_are_exact(exponent):
    assert float(power(exponent)) == 0.5**exponent


def test_a_lent_array_is_the_same_array():
    values = np.arange(4.0)
    assert doubled(values) == 12
    assert values.tolist() == [0, 2, 4, 6]


@exact_kernel
def fetched(values, at):
    lanes.fetch(values, at)
    return values[0]


@pytest.mark.parametrize("at", [0, 3, 4, 10**9, -(10**9)])
def test_a_hint_may_point_anywhere(at):
    assert fetched(np.arange(4, dtype=np.int16), at) == 0

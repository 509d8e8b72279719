import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import drawn
import naive
from memcore_kernels import codes

MANY = st.integers(1, 300) | st.sampled_from((127, 128, 129, 256, 512, 600))


def quantised(vectors, at=0):
    """Rows in slabs, as the kernel codes them: the slabs, scale, missed and left, and where the slabs end."""
    n, d = vectors.shape
    ends = codes.cuts(d)
    widths = np.diff([0, *ends])
    made = [np.full((n + at, width), 99, np.int8) for width in widths]
    rest = [np.full((count, n + at), 7, np.uint16) for count in (3, 3, 2)]
    codes.quantise(vectors.astype(np.float64), np.array(ends, np.int64), at, *made, *rest)
    return made, *rest, ends


def bounds(vectors, query, known, alpha):
    """The bounds of the rows after each slab."""
    made, scale, missed, left, ends = quantised(vectors)
    numbers, told = drawn.query_codes(query.astype(np.float64), ends)
    n = len(vectors)
    totals, upper, found = np.empty(n, np.int32), np.empty(n, np.float32), []
    for slab, (begin, end) in enumerate(itertools.pairwise((0, *ends))):
        mine, q = made[slab], numbers[begin:end]
        if slab == 0:
            codes.first_bounds(mine, q, told[0], scale[0], missed[0], left[0], alpha, known, totals, upper)
        else:
            behind = left[slab] if slab < 2 else left[1]
            codes.next_bounds(
                mine, q, told[slab], scale[slab], missed[slab], behind, told[slab - 1], left[slab - 1], alpha, totals,
                upper,
            )  # fmt: skip
        assert totals.tolist() == naive.code_dots(mine, q)
        found.append(upper.copy())
    return found


@pytest.mark.parametrize(
    ("dim", "ends"),
    [(1, (1, 1, 1)), (64, (64, 64, 64)), (127, (127, 127, 127)), (128, (32, 96, 128)), (256, (32, 96, 256)),
     (384, (32, 96, 384)), (768, (96, 288, 768)), (1536, (192, 576, 1536))],
)  # fmt: skip
def test_where_slabs_end(dim, ends):
    assert codes.cuts(dim) == ends


@drawn.thorough(300)
@given(vectors=drawn.rows(st.integers(0, 6), MANY), at=st.integers(0, 3))
def test_codes_and_what_they_miss(vectors, at):
    made, scale, missed, left, ends = quantised(vectors, at)
    for r, row in enumerate(vectors, at):
        begin = 0
        for slab, twin in enumerate(naive.slabs(row, ends)):
            code, one, rest = made[slab][r], scale[slab, r] / (127 * codes.LEVELS), missed[slab, r] / codes.LEVELS
            assert one == pytest.approx(twin.one, rel=1e-12)
            assert np.abs(code.astype(int) - twin.codes).max(initial=0) <= 1  # halfway, the two may round apart
            really = naive.norm(row[begin : ends[slab]] - code.astype(np.float64) * one)
            assert really <= rest <= really * 1.00001 + 1 / codes.LEVELS
            assert rest <= twin.missed * 1.001 + 1e-6 + 1 / codes.LEVELS
            if slab < 2:
                assert twin.left <= left[slab, r] / codes.LEVELS <= twin.left * 1.00001 + 1 / codes.LEVELS
            begin = ends[slab]
    for array in (*made, *(part.T for part in (scale, missed, left))):
        assert (array[:at] == (99 if array.dtype == np.int8 else 7)).all()  # what was there is left alone


@pytest.mark.parametrize("value", [1e-45, 1e-40, 1e-30, 1.01e-30, 1e-20])
def test_codes_of_rows_that_are_hardly_there(value):
    (made, *_), scale, missed, _, _ = quantised(np.array([[value, -value, 0]], dtype=np.float32))
    assert (made.tolist(), scale[0, 0], missed[0, 0]) == ([[0, 0, 0]], 1, 1)


def test_codes_by_hand():
    (made, *_), scale, missed, _, _ = quantised(np.array([[0.6, -0.8, 0.0], [0, 0, 0], [0, 0, -1]], dtype=np.float32))
    assert made.tolist() == [[95, -127, 0], [0, 0, 0], [0, 0, -127]]
    assert scale[0].tolist() == [52_001, 0, 65_000]  # float32(0.8) is a little more
    assert missed[0].tolist() == [102, 0, 0]  # 0.6 is 95.248 codes: 0.248 * 0.8 / 127 is 101.6 steps


@drawn.thorough(300)
@given(vectors=drawn.rows(1, MANY))
def test_query_codes_and_what_they_miss(vectors):
    query = vectors[0]
    ends = codes.cuts(query.size)
    numbers, told = drawn.query_codes(query.astype(np.float64), ends)
    assert numbers.dtype == np.int16
    begin = 0
    for slab, twin in enumerate(naive.query_slabs(query, ends)):
        assert numbers[begin : ends[slab]].tolist() == twin.codes.tolist()
        step, missed, norm, left = told[slab]
        assert step == pytest.approx(twin.one, rel=1e-12)
        for got, want in ((missed, twin.missed), (norm, twin.norm), (left, twin.left)):
            assert want <= got <= want * 1.00001 + 1e-15
        begin = ends[slab]


@pytest.mark.parametrize("d", [1, 2048, 2100, 4096, 100_000])
def test_no_dot_product_of_codes_overflows(d):
    ends = codes.cuts(d)
    numbers, _ = drawn.query_codes(np.full(d, d**-0.5), ends)
    assert int(np.abs(numbers.astype(np.int64)).sum()) * 127 < 2**31
    if not drawn.PLAIN:
        totals, whole = np.empty(2, np.int32), int(numbers.astype(np.int64).sum())
        codes.code_dots(np.stack([np.full(d, 127, np.int8), np.full(d, -127, np.int8)]), numbers, totals)
        assert totals.tolist() == [127 * whole, -127 * whole]
        assert codes.code_dot(np.full((1, d), 127, np.int8), 0, numbers) == 127 * whole


@drawn.thorough(500)
@given(
    vectors=drawn.rows(st.integers(1, 8), MANY),
    alpha=st.sampled_from((1.0, 0.5, 1e-3)) | st.floats(0, 1),
    data=st.data(),
)
def test_bounds_are_bounds_and_each_slab_brings_them_nearer(vectors, alpha, data):
    query = data.draw(drawn.queries(vectors))
    known = (data.draw(drawn.importances(len(vectors))) * np.float32(1 - alpha)).astype(np.float32)
    ends = codes.cuts(query.size)
    asked = naive.query_slabs(query, ends)
    for slab, upper in enumerate(bounds(vectors, query, known, alpha)):
        for row, before, bound in zip(vectors, known.tolist(), upper.tolist(), strict=True):
            total = before + alpha * naive.dot(row, query)
            assert total <= bound + codes.BOUND_ERROR
            parts = naive.slabs(row, ends)
            off = sum(
                2 * (r.missed * (q.norm + q.missed) + q.missed) for r, q in zip(parts[: slab + 1], asked, strict=False)
            )
            off += 2 * parts[slab].left * asked[slab].left
            rounded = (2 * slab + 3) / codes.LEVELS  # of each norm up, and of a peak
            assert bound <= total + alpha * (off + rounded) + 1e-5


@pytest.mark.parametrize("steps", [5, 7])
def test_a_bound_holds_where_the_codes_are_longer_than_the_row(steps):
    """Each number but one is just above half a code and rounds up; those of the query, as much below half a step, down.

    A bound that takes |v^| for 1, or for 1.1, is too low by 0.02 or 0.01 here.
    """
    d = 60_000
    (width, *_) = codes.cuts(d)
    row = np.zeros(d)
    row[:width] = 0.5001 / 127
    row[0] = 1
    row = naive.unit(row)
    (made, *_), scale, _, _, _ = quantised(row[None])
    assert naive.norm(made[0] * (scale[0, 0] / (127 * codes.LEVELS))) > 1.1
    most = (2**31 - 1) / (128 * d)
    peak = most / np.sqrt((steps - 0.49) ** 2 * (width - 1) + most**2)  # so that the norm is 1
    query = np.zeros(d)
    query[:width] = -(steps - 0.49) * peak / most
    query[0] = peak
    query = query.astype(np.float32)
    assert naive.norm(query) == pytest.approx(1, abs=1e-6)
    for upper in bounds(row[None], query, np.zeros(1, np.float32), 1.0):
        assert naive.dot(row, query) <= float(upper[0]) + codes.BOUND_ERROR


def test_a_row_that_is_out_stays_out():
    rows = np.eye(3, 200, dtype=np.float32)
    for upper in bounds(rows, rows[0], np.array([-np.inf, 0, -np.inf], dtype=np.float32), 0.5):
        assert np.isneginf(upper).tolist() == [True, False, True]

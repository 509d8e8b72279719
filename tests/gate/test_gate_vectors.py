"""Vectors from outside: any real numbers in any layout become unit float32 rows in a copy; all else is refused."""

from __future__ import annotations

import hashlib
import math
from array import array
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import memcore
from memcore import DimensionMismatch, InvalidInput, gate

CONVERT = "it must hold real numbers (float or integer): convert it with np.asarray(rows, dtype=np.float32)"
HOLD = "it must hold real numbers (float or integer): leave out what has none"
FINITE = "every number must be finite: leave the vector out"
BYTES = "bytes that may be numbers of any width; pass np.frombuffer(value, dtype=np.float32)"
WIDTH = "one store holds one width: pass vectors of width 2, or open another store for this embedder"
MASKED = "vector has masked numbers; every number must be there: fill them, or leave that row out"
NULL = "every number must be there: leave that row out"

BAD = [
    ([1, math.nan], InvalidInput, f"vector has NaN or infinity at index 1; {FINITE}"),
    ([math.inf, 1], InvalidInput, f"vector has NaN or infinity at index 0; {FINITE}"),
    (np.array([-np.inf, np.nan], dtype=np.float16), InvalidInput, f"vector has NaN or infinity at index 0; {FINITE}"),
    (np.array([0, np.longdouble("1e4000")]), InvalidInput, f"vector has NaN or infinity at index 1; {FINITE}"),
    ([1, 2, 3], DimensionMismatch, f"vector has 3 dimensions and the store has 2; {WIDTH}"),
    ([], DimensionMismatch, f"vector has 0 dimensions and the store has 2; {WIDTH}"),
    ([[1, 2]], DimensionMismatch, "vector has shape (1, 2); it must be one row of 2 numbers"),
    (5.0, DimensionMismatch, "vector has shape (); it must be one row of 2 numbers"),
    (np.array([True, False]), InvalidInput, f"vector has dtype bool; {CONVERT}"),
    ([1j, 2], InvalidInput, f"vector has dtype complex128; {CONVERT}"),
    (["1", "2"], InvalidInput, f"vector has dtype <U1; {CONVERT}"),
    ("12", InvalidInput, f"vector has dtype <U2; {CONVERT}"),
    (np.array([1, 2], dtype="m8[s]"), InvalidInput, f"vector has dtype timedelta64[s]; {CONVERT}"),
    ([2**70, 1], InvalidInput, f"vector has dtype object; {CONVERT}"),
    ([0.1, None], InvalidInput, f"vector holds None (NoneType); {HOLD}"),
    (np.array([0.1, "a"], dtype=object), InvalidInput, f"vector holds 'a' (str); {HOLD}"),
    ([Decimal(1), Decimal(2)], InvalidInput, f"vector holds Decimal('1') (Decimal); {HOLD}"),
    ({0.1: 1}, InvalidInput, f"vector is {{0.1: 1}} (dict); {HOLD}"),
    ({0.5}, InvalidInput, f"vector is {{0.5}} (set); {HOLD}"),
    (b"12345678", InvalidInput, f"vector is b'12345678' (bytes), {BYTES}"),
    (bytearray(2), InvalidInput, f"vector is bytearray(b'\\x00\\x00') (bytearray), {BYTES}"),
    (np.ma.array([1.0, 2.0], mask=[0, 1]), InvalidInput, MASKED),
    (pa.array([1.0, None]), InvalidInput, f"vector has null at index 1; {NULL}"),
    (pa.array([[1.0, None]])[0], InvalidInput, f"vector has null at index 1; {NULL}"),
    (pa.array([True, False]), InvalidInput, f"vector has dtype bool; {CONVERT}"),
    (pa.array([[1.0], None])[1], InvalidInput, f"vector is None (NoneType); {HOLD}"),
    (pa.array(["1", "2"]), InvalidInput, f"vector holds '1' (str); {HOLD}"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "error", "message"), BAD, ids=range(len(BAD)))
def test_a_bad_vector_is_refused(refused, value, error, message):
    refused(lambda ops: ops.remember("x", vector=value), message, error)
    refused(lambda ops: ops.update(ops.list()[0].id, vector=value), message, error)
    refused(lambda ops: ops.recall(vector=value), message, error)
    refused(
        lambda ops: ops.remember_many([{"content": "good", "vector": [1, 0]}, {"content": "x", "vector": value}]),
        f"row 1: {message}. Nothing was stored: 1 of 2 rows is refused; on_invalid='skip' stores the good rows",
        error,
    )


def test_a_view_of_bytes_or_a_buffer_is_refused(refused):
    for value in (
        memoryview(b"12"),
        memoryview(np.float32([1, 2])).cast("B"),
        pa.array([1, 2], pa.int8()).buffers()[1],
    ):
        refused(lambda ops, value=value: ops.remember("x", vector=value), f"vector is {gate.shown(value)}, {BYTES}")
        refused(lambda ops, value=value: ops.recall_many(vectors=[value]), f"vectors is {gate.shown(value)}, {BYTES}")


def test_a_generator_is_refused(refused):
    value = (x for x in (0.1, 0.2))
    refused(lambda ops: ops.remember("x", vector=value), f"vector is {gate.shown(value)}; {HOLD}")


def test_what_numpy_cannot_read_is_refused(refused):
    class Foreign:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("on the GPU")

        def __repr__(self) -> str:
            return "a tensor"

    refused(
        lambda ops: ops.remember("x", vector=Foreign()),
        "vector is a tensor (Foreign), which is not an array of numbers (on the GPU); pass a NumPy array",
    )


UNEVEN = (
    "vectors has rows of several lengths, or nulls in them; every row must have the same number of numbers: leave the "
    "others out"
)
TWO = "it must have two dimensions, (rows, 2)"
PAIR = pa.list_(pa.float32(), 2)
ROWS = "every number must be finite: leave that row out"


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([1.0, 2.0], DimensionMismatch, "vectors has shape (2,); it must have two dimensions, (rows, 2)"),
        (5, DimensionMismatch, "vectors has shape (); it must have two dimensions, (rows, 2)"),
        (np.ones((1, 2, 2)), DimensionMismatch, "vectors has shape (1, 2, 2); it must have two dimensions, (rows, 2)"),
        (np.ones((2, 3)), DimensionMismatch, f"vectors has 3 dimensions and the store has 2; {WIDTH}"),
        ([[1, 2], [3, math.nan]], InvalidInput, f"vectors has NaN or infinity in row 1; {ROWS}"),
        ([[1, 2], None], InvalidInput, f"vectors is None (NoneType); {HOLD}"),
        ([[1, 2], bytearray(2)], InvalidInput, f"vectors is bytearray(b'\\x00\\x00') (bytearray), {BYTES}"),
        (pa.array([[1.0, 2.0], None]), InvalidInput, f"vectors has null at index 1; {NULL}"),
        (pa.array([[1.0, 2.0], [3.0]]), InvalidInput, UNEVEN),
        (pa.array([[1.0, 2.0], [3.0, None]], PAIR), InvalidInput, UNEVEN),
        (pa.array([["1", "2"]]), InvalidInput, f"vectors has dtype <U1; {CONVERT}"),
        (pa.array([[[1.0], [2.0]]]), DimensionMismatch, f"vectors has shape (1, 2, 1); {TWO}"),
    ],
    ids=range(12),
)
def test_bad_rows_are_refused(refused, value, error, message):
    refused(lambda ops: ops.recall_many(vectors=value), message, error)


def test_a_bad_row_far_down_is_told_by_its_place(refused):
    rows = np.ones((5000, 2))
    rows[4711, 1] = np.nan
    refused(lambda ops: ops.recall_many(vectors=rows), f"vectors has NaN or infinity in row 4711; {ROWS}")


@pytest.mark.parametrize(
    "none", [[], (), np.empty((0, 2)), np.empty((0, 0)), pa.array([], PAIR), pa.array([], pa.list_(pa.float32()))]
)
def test_no_rows_are_no_error(ops, none):
    assert ops.recall_many(vectors=none) == []
    assert memcore.open(embedder=None).recall_many(vectors=none) == []


def test_ragged_rows_are_refused(refused):
    with pytest.raises(ValueError, match="inhomogeneous") as numpy_s:
        np.asarray([[1], [1, 2]])
    refused(
        lambda ops: ops.recall_many(vectors=[[1], [1, 2]]),
        f"vectors is [[1], [1, 2]] (list), which is not an array of numbers ({numpy_s.value}); pass a NumPy array",
    )


# Quarters, which every float type holds exactly.
BASE = np.random.default_rng(5).integers(-12, 13, size=(64, 32)) / 4
FORMS = {
    "float32": lambda x: x.astype(np.float32),
    "float16": lambda x: x.astype(np.float16),
    "long double": lambda x: x.astype(np.longdouble),
    "integers": lambda x: (4 * x).astype(np.int8),
    "other byte order": lambda x: x.astype(">f8"),
    "Fortran": np.asfortranarray,
    "every second row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "every second column": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "rows backwards": lambda x: x[::-1].copy()[::-1],
    "columns backwards": lambda x: x[:, ::-1].copy()[:, ::-1],
    "transposed": lambda x: x.T.copy().T,
    "misaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), dtype=np.uint8)[1:].view(np.float64).reshape(x.shape),
    "read-only": lambda x: np.frombuffer(x.tobytes()).reshape(x.shape),
    "broadcast": lambda x: np.broadcast_to(x, (3, *x.shape))[1],
    "list": lambda x: x.tolist(),
    "tuple of tuples": lambda x: tuple(map(tuple, x.tolist())),
    "list of arrays": list,
    "list of array.array": lambda x: [array("d", row) for row in x],
    "memoryview": memoryview,
    "memoryview of an Arrow buffer": lambda x: memoryview(pa.array(x.reshape(-1)).buffers()[1]).cast("d", x.shape),
    "masked without a mask": np.ma.array,
    "Arrow list": lambda x: pa.array(x.tolist()),
    "Arrow large list": lambda x: pa.array(x.tolist(), pa.large_list(pa.float64())),
    "Arrow fixed-size list": lambda x: pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), x.shape[1]),
    "sliced Arrow list": lambda x: pa.array([[0.0], *x.tolist(), [0.0]]).slice(1, len(x)),
    "chunked Arrow list": lambda x: pa.chunked_array([pa.array(x[:9].tolist()), pa.array(x[9:].tolist())]),
    "Arrow tensor": lambda x: pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(x)),
    "list of Arrow arrays": lambda x: [pa.array(row) for row in x],
    "list of Arrow scalars": lambda x: list(pa.array(x.tolist())),
}


def digest(value: object) -> object:
    """What an array, or a list of them, holds."""
    if isinstance(value, (list, tuple)):
        return [digest(item) for item in value]
    if isinstance(value, (pa.Array, pa.ChunkedArray)):
        return value.to_pylist()
    if isinstance(value, pa.Scalar):
        return value.as_py()
    return hashlib.sha256(np.asarray(value).tobytes()).hexdigest()


@pytest.mark.parametrize("form", FORMS)
def test_case_A9_form_and_layout_do_not_count_and_the_caller_s_array_stays_as_it_was(form):
    rows = FORMS[form](BASE.copy())
    each = [memoryview(row) for row in BASE] if isinstance(rows, memoryview) else list(rows)
    before = digest(rows), digest(each)
    mems = [memcore.open(embedder=None, clock=lambda: 1e9) for _ in range(3)]
    for i in range(64):
        mems[0].remember(f"row {i}", vector=BASE[i])
        mems[1].remember(f"row {i}", vector=each[i])
    mems[2].remember_many([{"content": f"row {i}", "vector": vector} for i, vector in enumerate(each)])
    expected, *others = [np.stack([record.vector for record in mem.list()]) for mem in mems]
    for stored in others:
        assert stored.dtype == np.float32
        assert stored.tobytes() == expected.tobytes()
    for mem in mems:
        assert [mem.recall(vector=vector, k=1, weights=(1, 0, 0))[0].content for vector in each[:9]] == [
            f"row {i}" for i in range(9)
        ]
        many = mem.recall_many(vectors=rows, k=3)
        assert [[(hit.content, hit.total_score) for hit in hits] for hits in many] == [
            [(hit.content, hit.total_score) for hit in hits] for hits in mems[0].recall_many(vectors=BASE, k=3)
        ]
    assert (digest(rows), digest(each)) == before


ELEMENTS = {
    np.float64: st.floats(allow_nan=False, allow_infinity=False, width=64),
    np.float32: st.floats(allow_nan=False, allow_infinity=False, width=32),
    np.float16: st.floats(allow_nan=False, allow_infinity=False, width=16),
    np.int64: st.integers(-(2**63), 2**63 - 1),
    np.uint8: st.integers(0, 255),
}
MATRICES = st.sampled_from(list(ELEMENTS)).flatmap(
    lambda dtype: hnp.arrays(dtype, st.tuples(st.integers(1, 5), st.integers(1, 9)), elements=ELEMENTS[dtype])
)


def unit(row: np.ndarray) -> list[float]:
    """The oracle: a row by its highest number, then by its length, in Python's floats."""
    peak = max(abs(float(x)) for x in row)
    if peak == 0:
        return [0.0] * len(row)
    scaled = [float(x) / peak for x in row]
    return [x / math.hypot(*scaled) for x in scaled]


@settings(deadline=None)
@given(MATRICES)
def test_rows_are_unit_or_zero_and_point_where_they_did(rows):
    before = rows.tobytes()
    got = gate.vectors(rows, rows=len(rows), dim=rows.shape[1], what="vectors")
    assert rows.tobytes() == before
    assert (got.dtype, got.shape, got.flags.c_contiguous, got.flags.owndata) == (np.float32, rows.shape, True, True)
    assert not np.shares_memory(got, rows)
    norms = np.linalg.norm(got.astype(np.float64), axis=1)
    assert (np.abs(norms - rows.any(axis=1)) < 1e-6).all()
    for row, made in zip(rows, got, strict=True):
        assert np.abs(made - unit(row)).max() < 1e-6


@settings(deadline=None)
@given(MATRICES, st.randoms(use_true_random=False))
def test_a_row_s_vector_depends_on_its_numbers_alone(rows, random):
    """Not on its neighbours, zero and extreme ones among them, nor on its place or the memory layout; and a second time
    it is kept to the bit."""
    n, d = rows.shape
    got = gate.vectors(rows, rows=n, dim=d, what="vectors")
    alone = [gate.vector(row, dim=d).tobytes() for row in rows]
    assert [row.tobytes() for row in got] == alone
    order = random.sample(range(n), n)
    assert gate.vectors(rows[order], rows=n, dim=d, what="vectors").tobytes() == got[order].tobytes()
    assert gate.vectors(np.asfortranarray(rows), rows=n, dim=d, what="vectors").tobytes() == got.tobytes()
    assert gate.vectors(rows[:, ::-1].copy()[:, ::-1], rows=n, dim=d, what="vectors").tobytes() == got.tobytes()
    assert gate.vectors(got, rows=n, dim=d, what="vectors").tobytes() == got.tobytes()
    assert gate.vectors(got.tolist(), rows=n, dim=d, what="vectors").tobytes() == got.tobytes()


@pytest.mark.parametrize("d", [1, 2, 3, 8, 31, 256, 1536, 8191, 8192, 8193, 20_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_same_for_wide_rows_and_more_rows_than_a_block(d, dtype):
    n = 2500 if d < 300 else 40
    rows = np.random.default_rng(d).normal(size=(n, d)).astype(dtype)
    rows[::7] /= np.linalg.norm(rows[::7].astype(np.float64), axis=1, keepdims=True)
    got = gate.vectors(rows, rows=n, dim=d, what="vectors")
    if dtype is np.float32:
        assert got[::7].tobytes() == rows[::7].tobytes()
    for i in (0, 1, n // 2, n - 1):
        assert gate.vector(rows[i], dim=d).tobytes() == got[i].tobytes()
    odd = np.concatenate([np.zeros((1, d)), rows.astype(np.float64), np.full((1, d), 1e-200)])
    assert gate.vectors(odd, rows=None, dim=d, what="vectors")[1:-1].tobytes() == got.tobytes()
    assert gate.vectors(np.asfortranarray(rows), rows=n, dim=d, what="vectors").tobytes() == got.tobytes()


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        *((np.float32, scale) for scale in (1e-45, 1e-38, 1e-19, 1.0, 1e19, 5e37, 1e38, 3e38)),
        *(
            (np.float64, scale)
            for scale in (5e-324, 1e-308, 1e-200, 1e-160, 1e-100, 1e-99, 1e150, 1e154, 1e155, 1e200, 1e308)
        ),
    ],
)
def test_extreme_numbers_are_normalised_right(ops, scale, dtype):
    large = float(np.finfo(dtype).max)
    assert ops.remember("x", vector=np.array([0, scale], dtype=dtype)).vector.tolist() == [0, 1]
    if 4 * scale < large:
        given = np.array([3, -4]) * dtype(scale)  # exact, even in multiples of the least number there is
        assert ops.remember("x", vector=given).vector == pytest.approx([0.6, -0.8], abs=1e-6)
    given = np.array([large, large], dtype=dtype)
    assert ops.remember("x", vector=given).vector == pytest.approx([0.5**0.5] * 2, abs=1e-6)


@pytest.mark.parametrize("off", [6e-7, 1e-6, 4e-6, -6e-7, -4e-6])
def test_a_row_that_is_nearly_unit_is_normalised_all_the_same(ops, off):
    given = np.array([0.6, 0.8]) * (1 + off)
    assert np.linalg.norm(ops.remember("x", vector=given).vector.astype(np.float64)) == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize("seed", [53, 164])  # of those where another order of the sum shows in float32
def test_the_sum_runs_in_one_order_whatever_the_layout(seed):
    rows = np.random.default_rng(seed).normal(size=(40, 8191))
    plain, columns_first = (
        gate.vectors(form, rows=40, dim=8191, what="vectors") for form in (rows, np.asfortranarray(rows))
    )
    assert plain.tobytes() == columns_first.tobytes()


def test_the_caller_s_numpy_settings_do_not_matter(ops):
    """np.seterr(all="raise") would make an underflow on the way to float32 an error."""
    with np.errstate(all="raise"):
        assert ops.remember("x", vector=[1.0, 1e-300]).vector.tolist() == [1, 0]
        assert ops.remember("x", vector=[1e-300, 0.0]).vector.tolist() == [1, 0]
        assert ops.remember("x", vector=[1e300, 0.0]).vector.tolist() == [1, 0]


def test_what_is_remembered_is_a_copy(ops):
    given = np.array([0.6, 0.8], dtype=np.float32)
    record = ops.remember("x", vector=given)
    given[:] = 0
    assert ops.get(record.id).vector.tolist() == record.vector.tolist() == [np.float32(0.6), np.float32(0.8)]


def test_case_A1_another_width_is_a_mismatch_that_names_both_and_changes_nothing(tmp_path):
    mem = memcore.open(tmp_path / "agent.mem", embedder=None)
    rows = np.eye(8)[:3]
    mem.remember_many([{"content": f"row {i}", "vector": row} for i, row in enumerate(rows)])
    told = (
        "vector has 6 dimensions and the store has 8; one store holds one width: pass vectors of width 8, or open "
        "another store for this embedder"
    )
    for _ in range(2):
        for call in (
            lambda mem: mem.remember("tea at five", vector=np.ones(6)),
            lambda mem: mem.recall(vector=np.ones(6)),
            lambda mem: mem.update(mem.list()[0].id, vector=np.ones(6)),
        ):
            with pytest.raises(DimensionMismatch) as error:
                call(mem)
            assert str(error.value) == told
        with pytest.raises(DimensionMismatch) as error:
            mem.remember_many([{"content": "good", "vector": rows[0]}, {"content": "tea", "vector": np.ones(6)}])
        assert str(error.value).startswith(f"row 1: {told}. Nothing was stored: ")
        with pytest.raises(DimensionMismatch) as error:
            mem.recall_many(vectors=np.ones((2, 6)))
        assert str(error.value) == told.replace("vector has", "vectors has")
        assert [record.content for record in mem.list()] == ["row 0", "row 1", "row 2"]
        assert (np.stack([record.vector for record in mem.list()]) == rows).all()
        mem.close()
        mem = memcore.open(tmp_path / "agent.mem", embedder=None)  # the width outlives the process
    mem.close()


def test_the_first_vector_sets_the_width_of_a_store_that_has_none():
    mem = memcore.open(embedder=None, clock=lambda: 1e9)
    mem.remember("without")
    with pytest.raises(DimensionMismatch) as error:
        mem.remember_many([{"content": "a", "vector": [1, 2]}, {"content": "b"}, {"content": "c", "vector": [1, 2, 3]}])
    assert str(error.value) == (
        "row 2: vector has 3 dimensions and row 0 has 2; one store holds one width: pass vectors of width 2, or open "
        "another store for this embedder. Nothing was stored: 1 of 3 rows is refused; on_invalid='skip' stores the "
        "good rows"
    )
    mem.remember("three", vector=[1, 2, 3])  # the refused batch has set no width
    assert [record.vector is None for record in mem.list()] == [True, False]


def test_case_A3_an_all_zero_vector_is_like_nothing_and_never_first():
    mem = memcore.open(embedder=None, clock=lambda: 1e9)
    for name, vector in (("z", [0, 0, 0, 0]), ("a", [1, 0, 0, 0]), ("b", [0.9, 0.1, 0, 0])):
        mem.remember(name, vector=vector)
    for k in (2, 3):
        for hits in (
            mem.recall(vector=[1, 0, 0, 0], k=k),
            mem.recall_many(vectors=[[1, 0, 0, 0], [0, 1, 0, 0]], k=k)[0],
            mem.recall(vector=[1, 0, 0, 0], k=k, weights=(1, 0, 0)),
        ):
            assert [hit.content for hit in hits] == ["a", "b", "z"][:k]
            assert all(math.isfinite(hit.total_score) for hit in hits)
            assert [hit.semantic_similarity for hit in hits][2:] == [0.0] * (k - 2)
    zero = mem.recall(vector=[0, 0, 0, 0])
    assert [hit.semantic_similarity for hit in zero] == [0.0, 0.0, 0.0]
    assert len(mem.recall(vector=[0, 0, 0, 0], min_similarity=0.1)) == 0


def test_case_A5_nan_and_infinity_never_reach_the_store():
    rng = np.random.default_rng(17)
    good = rng.normal(size=(200, 8))
    nan, inf = rng.normal(size=(2, 8))
    nan[3], inf[0] = np.nan, np.inf
    rows = [{"content": f"row {i}", "vector": row} for i, row in enumerate([*good, nan, inf])]
    mem = memcore.open(embedder=None, clock=lambda: 1e9)
    with pytest.raises(InvalidInput) as error:
        mem.remember_many(rows)
    assert str(error.value) == (
        f"row 200: vector has NaN or infinity at index 3; {FINITE}. Nothing was stored: 2 of 202 rows are refused; "
        "on_invalid='skip' stores the good rows"
    )
    assert len(mem.list()) == 0
    assert mem.remember_many(rows, on_invalid="skip").faults == {
        200: f"vector has NaN or infinity at index 3; {FINITE}",
        201: f"vector has NaN or infinity at index 0; {FINITE}",
    }
    cosines = good @ good[17] / np.linalg.norm(good, axis=1) / np.linalg.norm(good[17])
    best = [f"row {i}" for i in np.argsort(-cosines)[:10]]
    assert [hit.content for hit in mem.recall(vector=good[17], k=10, weights=(1, 0, 0))] == best
    assert best[0] == "row 17"

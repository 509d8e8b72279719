"""Arrays by address, and rows of a file: what the kernels read of parts."""

import os

import numpy as np
import pytest

from memcore_kernels.memory import add, float_row, float_rows, halves, longs


@pytest.fixture
def table(tmp_path):
    """A matrix that a file holds from byte 12 on, and the file's descriptor."""
    rows = np.random.default_rng(0).standard_normal((9, 5)).astype(np.float32)
    path = tmp_path / "rows"
    path.write_bytes(b"x" * 12 + rows.tobytes())
    handle = os.open(path, os.O_RDONLY)
    yield rows, path, handle
    os.close(handle)


def address(array):
    return array.__array_interface__["data"][0]


def test_arrays_are_read_where_they_lie():
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert float_rows(address(rows), 3, 4).tolist() == rows.tolist()
    whole = np.array([-(2**62), 5])
    assert longs(address(whole), 2).tolist() == whole.tolist()
    half = np.array([2**64 - 1], dtype=np.uint64)
    assert halves(address(half), 1).tolist() == half.tolist()


def test_a_row_is_read_from_its_file(table):
    rows, _, handle = table
    elsewhere, room = np.full_like(rows, 7), np.empty(5, np.float32)
    for r in range(9):
        assert float_row(address(elsewhere), handle + 1, 12, r, 5, room).tolist() == rows[r].tolist()
        assert float_row(address(rows), 0, 0, r, 5, room).tolist() == rows[r].tolist()


def test_where_the_file_is_too_short_or_cannot_be_read_memory_is(table):
    rows, path, handle = table
    room = np.empty(5, np.float32)
    os.truncate(path, 12 + 20 * 8 + 4)
    assert float_row(address(rows), handle + 1, 12, 7, 5, room).tolist() == rows[7].tolist()
    assert float_row(address(rows), handle + 1, 12, 8, 5, room).tolist() == rows[8].tolist()


def test_adding_tells_what_was_there():
    counted = np.array([3, 4])
    assert (add(counted, 1, 5), counted.tolist()) == (4, [3, 9])

"""Segments and partitions by themselves: growth, sealing, columns of one value, texts, sweeping and joining, bytes."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest

import memcore
from memcore.store import codes as store_codes
from memcore.store import segment
from memcore.store.catalog import columns_of
from memcore.store.codes import BLOCK, Coder
from memcore.store.partition import SWEEP_SHARE, Partition
from memcore.store.segment import FIXED, MUTABLE, SPARSE, TEXTS, Segment, zeros
from memcore_kernels import decay
from memcore_kernels.codes import LEVELS


def rows(n: int, start: int = 0, dim: int = 2, **columns: Any) -> dict[str, Any]:
    made = columns_of(n)
    for name, values in (
        ("seq", np.arange(start + 1, start + 1 + n)),
        ("id_hi", np.full(n, 7)),
        ("id_lo", np.arange(start + 1, start + 1 + n)),
        ("version", np.ones(n)),
        ("kind", np.ones(n)),
    ):
        made[name] = values.astype(FIXED[name])
    made["content"] = [f"row {i}" for i in range(start, start + n)]
    made["vector"] = np.arange(n * dim, dtype=np.float32).reshape(n, dim)
    return {**made, **columns}


def filled(*batches: dict[str, Any], dim: int = 2) -> Segment:
    made = Segment(dim)
    for batch in batches:
        assert made.append(batch, 0, len(batch["content"])) == len(batch["content"])
    return made


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("sizes", [[1], [1] * 20, [3, 17, 1], [100], [5, 200, 5]], ids=str)
def test_what_is_appended_is_read_back(sizes, sealed):
    made, batches, start = Segment(2), [], 0
    rng = np.random.default_rng(sum(sizes))
    for n in sizes:
        batch = rows(n, start)
        for name in ("importance", "event_time", "expires_at", "session", "level", "confidence", "tokens"):
            batch[name] = rng.integers(0, 3, n).astype(FIXED[name])
        batch["key"] = [None if i % 2 else f"k{i}" for i in range(n)]
        batches.append(batch)
        made.append(batch, 0, n)
        start += n
    if sealed:
        made.seal()
    view = made.view()
    assert view.n == start
    for name in (*FIXED, "vector"):
        assert np.array_equal(view.columns[name], np.concatenate([b[name] for b in batches])), name
        assert view.columns[name].dtype == (np.float32 if name == "vector" else np.dtype(FIXED[name]))
        assert not view.columns[name].flags.writeable
    for name in TEXTS:
        every = [text for b in batches for text in b[name]]
        assert view.texts_at(name, range(start)).to_pylist() == every
        assert [view.text(name, row) for row in range(start)] == every
    back = made.batch(np.arange(start))
    for name in (*FIXED, "vector"):
        assert np.array_equal(back[name], view.columns[name])


def test_appending_is_amortised():
    """No table is rebuilt on each append: rows are copied a few times at most, whatever the number of appends."""
    made, copied = Segment(2), 0
    for i in range(2000):
        before = made._room
        made.append(rows(1, i), 0, 1)
        copied += made.n - 1 if made._room != before else 0
    assert copied < 2 * 2000


def test_a_full_segment_takes_no_more(monkeypatch):
    monkeypatch.setattr(segment, "ROWS", 8)
    made = Segment(2)
    assert made.append(rows(20), 3, 20) == 11
    assert (made.full, made.n) == (True, 8)


def test_texts_are_bounded_too(monkeypatch):
    monkeypatch.setattr(segment, "TEXT_BYTES", 100)
    made = Segment(2)
    long = rows(5, content=["x" * 30] * 5, metadata=["y" * 10, None, None, "y" * 20, None], key=["k" * 5] * 5)
    assert made.append(long, 0, 5) == 3  # 45 + 35 + 35 reaches 100
    assert made.full
    partition = Partition(2)
    partition.append(long, 5)
    assert [s.n for s in partition.segments] == [3, 2]


def test_a_column_of_one_value_takes_its_bytes_once():
    batch = rows(1000)
    for name, value in (("session", 5), ("confidence", 0.5), ("ingested_at", 10**15), ("importance", 0.5)):
        batch[name] = np.full(1000, value, FIXED[name])
    batch["level"] = (np.arange(1000) % 2).astype(FIXED["level"])
    made = filled(batch)
    made.seal()
    assert (made.view().columns["session"] == 5).all()
    for name in ("session", "role", "source", "version", "kind", "confidence", "ingested_at", "has_vector"):
        assert made.view().columns[name].strides == (0,), name
    texts = made.view().texts["content"].nbytes
    assert made.nbytes() == texts + 1000 * (8 + 8 + 8 + 4 + 8 + 2 + 8) + 4 + 4 + 4 + 4 + 1 + 4 + 8 + 1
    assert made.view().columns["importance"].strides == (4,)  # kernels read it
    assert made.view().columns["level"].strides == (2,)


def test_a_sealed_segment_has_no_room_left_over():
    made = filled(rows(1000))
    made.set("access_count", 5, 1)
    assert made._room == 1024
    made.seal()
    assert {len(array) for array in made._arrays.values()} == {1000}


def test_columns_that_are_all_zero_take_nothing():
    made = filled(rows(1000))
    for name in SPARSE:
        assert name not in made._arrays
        assert made.view().zero(name)
    held = made.nbytes()
    made.set("access_count", 3, 0)
    assert made.nbytes() == held
    made.set("access_count", 3, 2)
    assert made.nbytes() == held + 4000
    assert (made.get("access_count", 3), made.get("access_count", 4), made.get("last_access", 3)) == (2, 0, 0)
    assert not made.view().zero("access_count")


@pytest.mark.parametrize("name", MUTABLE)
@pytest.mark.parametrize("sealed", [False, True])
def test_marks_can_be_set_after_sealing_too(name, sealed):
    made = filled(rows(20))
    if sealed:
        made.seal()
    before = made.view()
    one, two = (1, 1) if name == "lapsed" else (5, 6)
    made.set(name, 7, one)
    assert made.view().columns[name].tolist() == [0] * 7 + [one] + [0] * 12
    assert before.columns[name].tolist() == [0] * 20  # a view that had no such column keeps none
    later = made.view()
    made.set(name, 8, two)
    assert later.columns[name].tolist()[7:9] == [one, two]  # and one that had it shares it


def test_zeros_are_read_only_and_free():
    made = zeros("seq", 10**9)
    assert made.shape == (10**9,)
    with pytest.raises(ValueError, match="read-only"):
        made[0] = 1


def test_rows_are_found_by_id():
    batch = rows(50)
    batch["id_hi"][:] = np.arange(50) % 3
    batch["id_lo"][:] = np.arange(50) // 6
    made = filled(batch)
    for sealed in (False, True):
        if sealed:
            made.seal()
        for hi in range(4):
            for lo in range(10):
                same = [i for i in range(50) if (i % 3, i // 6) == (hi, lo)]
                assert made.view().rows_of(hi, lo).tolist() == same
        for many in (2, 3, 5, 40):
            names = {(i % 4, i // 4) for i in range(many)}
            same = [i for i in range(50) if (i % 3, i // 6) in names]
            assert made.view().rows_with(names).tolist() == same
        assert made.view().rows_with(set()).tolist() == []


def test_seqs_are_found():
    batch = rows(20)
    batch["seq"][:] = np.arange(20) * 3 + 1
    made = filled(batch)
    assert [made.row_of(seq) for seq in (1, 4, 58, 0, 2, 59, 100)] == [0, 1, 19, None, None, None, None]


def coded(made: Segment, n: int, rotation: Any = None) -> Any:
    with mock.patch.object(segment, "LEAST_CODED", 4):
        return made.codes(n, rotation)


def test_the_codes_of_a_tail_grow_by_blocks_and_a_sealed_segment_has_all():
    dim = 3
    made = filled(rows(BLOCK + 5, dim=dim), dim=dim)
    assert made.codes(BLOCK + 5, None).rows == BLOCK
    assert coded(made, BLOCK - 1) is None
    made.append(rows(BLOCK, BLOCK + 5, dim=dim), 0, BLOCK)
    codes = made.codes(2 * BLOCK + 5, None)
    assert codes.rows == 2 * BLOCK
    assert made.codes(BLOCK + 5, None) is codes  # an older reader takes as many as it sees
    whole = filled(rows(BLOCK + 5, dim=dim), rows(BLOCK, BLOCK + 5, dim=dim), dim=dim)
    again = whole.codes(2 * BLOCK, None)
    for name in ("scale", "missed", "left"):
        ours, theirs = getattr(codes, name)[:, : 2 * BLOCK], getattr(again, name)[:, : 2 * BLOCK]
        assert np.array_equal(ours, theirs)
    for ours, theirs in zip(codes.slabs, again.slabs, strict=True):
        assert np.array_equal(ours[: 2 * BLOCK], theirs[: 2 * BLOCK])
    made.seal()
    assert made.codes(made.n, None).rows == made.n
    few = filled(rows(20))
    assert few.codes(20, None) is None
    assert coded(few, 20) is None  # not a block
    few.seal()
    assert few.codes(20, None) is None
    assert coded(few, 20).rows == 20
    without = filled(rows(20, dim=0), dim=0)
    without.seal()
    assert coded(without, 20) is None
    without.widen(3)
    assert without.view().columns["vector"].tolist() == [[0.0] * 3] * 20
    assert coded(without, 20).rows == 20


def test_blocks_of_codes_are_those_of_the_kernels():
    assert BLOCK == decay.BLOCK


def test_what_a_block_of_codes_tells_of_its_rows():
    n = BLOCK + 7
    batch = rows(n)
    batch["event_time"] = np.random.default_rng(0).permutation(n).astype(np.int64)
    batch["importance"] = np.random.default_rng(1).random(n).astype(np.float32)
    made = filled(batch)
    made.seal()
    codes = made.codes(n, None)
    blocks = (slice(0, BLOCK), slice(BLOCK, n))
    assert codes.newest.tolist() == [batch["event_time"][block].max() for block in blocks]
    assert codes.heaviest.tolist() == [batch["importance"][block].max() for block in blocks]
    assert codes.nbytes() == n * (2 + 2 * (3 + 3 + 2)) + 2 * 12


def test_one_rotation_for_all_fitted_to_the_first_segment_that_is_large_enough():
    rng = np.random.default_rng(0)
    dim, n = 130, 300
    spread = np.linspace(3, 0.1, dim)
    turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    batch = rows(n, dim=dim)
    vectors = rng.standard_normal((n, dim)) * spread @ turn
    batch["vector"] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    first, small, other = filled(batch, dim=dim), filled(rows(50, dim=dim), dim=dim), filled(batch, dim=dim)
    coder = Coder()
    with mock.patch.multiple(store_codes, FITTED=100), mock.patch.object(segment, "LEAST_CODED", 4):
        small.seal()
        assert coder.codes(small, 50).rotation is None  # too few rows to go by
        assert coder.codes(first, n) is None
        first.seal()
        codes = coder.codes(first, n)
        assert codes.rotation is coder.rotation
        other.seal()
        assert coder.codes(other, n).rotation is coder.rotation
        narrow = filled(rows(n, dim=2))
        narrow.seal()
        assert coder.codes(narrow, n).rotation is None
    matrix = coder.rotation.matrix
    assert np.abs(matrix.T @ matrix - np.eye(dim)).max() < 1e-12
    rotated = batch["vector"] @ matrix
    assert (np.diff((rotated**2).sum(axis=0)) <= 1e-6).all()  # the most of the rows first
    behind = codes.left[0].mean() / LEVELS
    assert behind < 0.7 < np.linalg.norm(batch["vector"][:, codes.ends[0] :], axis=1).mean()


# Partitions


def forgotten(partition: Partition, seqs: list[int], seq: int = 10**6) -> None:
    partition.forget({partition.ref(s).name for s in seqs}, seq)
    partition.sweep({seq}, SWEEP_SHARE)


def left(partition: Partition) -> list[int]:
    return [int(s) for part in partition.segments for s in part.view().columns["seq"]]


def test_a_segment_is_rewritten_when_a_quarter_is_forgotten(monkeypatch):
    monkeypatch.setattr(segment, "ROWS", 16)
    partition = Partition(2)
    partition.append(rows(32), 32)
    first = partition.segments[0]
    forgotten(partition, [1, 2, 3])
    assert partition.segments[0] is first
    forgotten(partition, [4])
    assert partition.segments[0] is not first
    assert left(partition) == list(range(5, 33))
    assert [s.n for s in partition.segments] == [12, 16]
    assert partition.ref(32).text("content") == "row 31"
    assert partition.live() == 28


def test_small_segments_are_joined_and_empty_ones_dropped(monkeypatch):
    monkeypatch.setattr(segment, "ROWS", 16)
    partition = Partition(2)
    partition.append(rows(70), 70)
    assert [s.n for s in partition.segments] == [16, 16, 16, 16, 6]
    forgotten(partition, list(range(1, 17)))
    assert [s.n for s in partition.segments] == [16, 16, 16, 6]
    forgotten(partition, [*range(18, 33), *range(34, 49)])
    assert [s.n for s in partition.segments] == [2, 16, 6]
    assert left(partition) == [17, 33, *range(49, 71)]
    forgotten(partition, list(range(49, 60)))
    assert [s.n for s in partition.segments] == [7, 6]
    assert [s.sealed for s in partition.segments] == [True, False]
    forgotten(partition, [66, 67, 68, 69])
    assert (left(partition), partition.segments[-1].sealed) == ([17, 33, *range(60, 66), 70], False)


def test_joining_minds_the_texts(monkeypatch):
    monkeypatch.setattr(segment, "ROWS", 16)
    monkeypatch.setattr(segment, "TEXT_BYTES", 1000)
    partition = Partition(2)
    partition.append(rows(32, content=["x" * (150 if i % 4 == 0 else 10) for i in range(32)]), 32)
    forgotten(partition, [seq for seq in range(1, 33) if seq % 4 != 1])
    assert [s.n for s in partition.segments] == [4, 4]  # 1,200 characters
    forgotten(partition, [1, 5, 17, 21])
    assert [s.n for s in partition.segments] == [2, 2]  # 600
    forgotten(partition, [9])
    assert [s.n for s in partition.segments] == [3]  # 450


def test_forgetting_everything_again_and_again_leaves_nothing(monkeypatch):
    monkeypatch.setattr(segment, "ROWS", 16)
    partition = Partition(2)
    for cycle in range(50):
        partition.append(rows(40, 40 * cycle), 40)
        forgotten(partition, list(range(40 * cycle + 1, 40 * cycle + 41)))
        assert partition.segments == ()


def test_random_appends_and_forgettings_stay_within_bounds(monkeypatch):
    monkeypatch.setattr(segment, "ROWS", 32)
    rng, partition, held, seq = np.random.default_rng(3), Partition(2), [], 0
    for _ in range(400):
        n = int(rng.integers(1, 40))
        partition.append(rows(n, seq), n)
        held += range(seq + 1, seq + n + 1)
        seq += n
        gone = [s for s in held if rng.random() < 0.3]
        forgotten(partition, gone)
        held = [s for s in held if s not in set(gone)]
        seen = [s for s in left(partition) if not partition.ref(s).get("forgotten_seq")]
        assert seen == held
        assert partition.live() == len(held)
        assert len(left(partition)) <= len(held) * 4 / 3 + 1
        assert len(partition.segments) <= 2 + len(held) / 8  # two neighbours that fill less than half are joined


# Bytes


def test_a_hundred_thousand_rows_take_what_they_must():
    """bench/memory_million.py measures a million, by the process's resident memory."""
    mem = memcore.open(embedder=None)
    rng = np.random.default_rng(0)
    for start in range(0, 100_000, 25_000):
        mem.remember_many(
            pa.table(
                {
                    "content": [
                        f"event {i}: web{i % 97:02} answered in {i % 3000} ms" for i in range(start, start + 25_000)
                    ],
                    "vector": pa.FixedSizeListArray.from_arrays(
                        pa.array(rng.standard_normal(25_000 * 256, dtype=np.float32)), 256
                    ),
                }
            )
        )
    assert mem.stats()["bytes_in_memory"] < 1_150 * 100_000
    mem.recall(vector=rng.standard_normal(256))
    assert mem.stats()["bytes_in_memory"] < 1_420 * 100_000

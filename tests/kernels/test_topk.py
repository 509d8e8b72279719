import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import drawn
import naive
from memcore_kernels import topk

SCORES = st.sampled_from((0.0, -0.0, 0.5, 0.5 + 2**-53, 1.0, -1.0)) | st.floats(-2, 2)
TIMES = st.sampled_from((0, 1, -1, drawn.NOW)) | st.integers(-(2**62), 2**62)
HALVES = st.sampled_from((0, 1, 2**63 - 1, 2**63, 2**64 - 1)) | st.integers(0, 2**64 - 1)
ENTRIES = st.lists(st.tuples(SCORES, TIMES, HALVES, HALVES), max_size=40, unique_by=lambda entry: entry[2:]).map(
    lambda entries: [naive.Entry(*entry, row) for row, entry in enumerate(entries)]
)


def typed(entry):
    """As kernels get it: NumPy scalars of the columns' types."""
    return (
        np.float64(entry.score),
        np.int64(entry.event_time),
        np.uint64(entry.id_hi),
        np.uint64(entry.id_lo),
        np.int64(entry.row),
    )


def empty(k):
    return np.full(k, 7.0), np.full(k, 7), np.full(k, 7, np.uint64), np.full(k, 7, np.uint64), np.full(k, 7)


def offered(entries, k):
    heap, size = empty(k), 0
    for entry in entries:
        size = topk.offer(*heap, size, *typed(entry))
    return heap, size


@drawn.thorough(300)
@given(a=st.tuples(SCORES, TIMES, HALVES, HALVES), b=st.tuples(SCORES, TIMES, HALVES, HALVES))
def test_before_is_the_order_of_results(a, b):
    a, b = naive.Entry(*a, 0), naive.Entry(*b, 0)
    assert bool(topk.before(*typed(a)[:4], *typed(b)[:4])) == naive.before(a, b)


def test_before_by_hand():
    one = (0.5, 100, 7, 9)
    for better in ((0.6, 0, 8, 8), (0.5, 101, 8, 8), (0.5, 100, 6, 10), (0.5, 100, 7, 8)):
        assert topk.before(*typed(naive.Entry(*better, 0))[:4], *typed(naive.Entry(*one, 0))[:4])
        assert not topk.before(*typed(naive.Entry(*one, 0))[:4], *typed(naive.Entry(*better, 0))[:4])


@drawn.thorough(300)
@given(entries=ENTRIES, k=st.integers(0, 45))
def test_a_heap_keeps_the_best_and_its_root_is_the_worst_of_them(entries, k):
    heap, size = offered(entries, k)
    best = naive.best(entries, k)
    assert size == len(best)
    kept = [naive.Entry(*(column[i].item() for column in heap)) for i in range(size)]
    assert sorted(kept, key=naive.rank) == best
    if kept:
        assert kept[0] == best[-1]


@drawn.thorough(200)
@given(entries=ENTRIES, k=st.integers(0, 45), data=st.data())
def test_what_is_kept_does_not_depend_on_the_order_of_offers(entries, k, data):
    heap, size = offered(data.draw(st.permutations(entries)), k)
    scores, rows = topk.ranked(k, *(column[:size] for column in heap))
    best = naive.best(entries, k)
    assert rows.tolist() == [entry.row for entry in best]
    assert scores.tolist() == [entry.score for entry in best]


@drawn.thorough(200)
@given(entries=ENTRIES, k=st.integers(0, 45))
def test_ranked_sorts_and_cuts(entries, k):
    columns = [np.array([entry[i] for entry in entries], like.dtype) for i, like in enumerate(empty(0))]
    scores, rows = topk.ranked(k, *columns)
    assert rows.tolist() == [entry.row for entry in naive.best(entries, k)]
    assert scores.tolist() == [entry.score for entry in naive.best(entries, k)]


@drawn.thorough(300)
@given(entries=ENTRIES, k=st.integers(0, 45))
def test_a_heap_is_brought_into_order(entries, k):
    heap, size = offered(entries, k)
    columns = [column[:size] for column in heap]
    topk.arrange(*columns)
    kept = [naive.Entry(*(column[i].item() for column in columns)) for i in range(size)]
    assert kept == naive.best(entries, k)

"""BM25 over postings in lists, as its twin has it over rows of terms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import drawn
import naive
from memcore_kernels import decay, lexical, scan

K1, B = 0.9, 0.4
ROWS = st.lists(st.lists(st.integers(0, 5), max_size=8), min_size=1, max_size=12)
GROUPS = st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=3, unique=True), max_size=4)


def postings(rows, groups):
    """The lists of the groups' terms: rows, counts, where each begins and ends, and the groups' first lists."""
    found, counts, begins, ends = [], [], [], []
    for term in (term for group in groups for term in group):
        begins.append(len(found))
        mine = [(row, terms.count(term)) for row, terms in enumerate(rows) if term in terms]
        found += [row for row, _ in mine]
        counts += [count for _, count in mine]
        ends.append(len(found))
    heads = np.cumsum([0, *map(len, groups)]).astype(np.int64)
    columns = (
        np.array(found, np.int32),
        np.array(counts, np.int32),
        np.array(begins, np.int64),
        np.array(ends, np.int64),
    )
    return *columns, heads


@drawn.thorough(300)
@given(rows=ROWS, groups=GROUPS, cut=st.integers(0, 3), data=st.data())
def test_counts_and_scores_are_the_twins(rows, groups, cut, data):
    """Rows that are not allowed, and those behind what is allowed, count as if they were not there."""
    found, counts, begins, ends, heads = postings(rows, groups)
    n = max(len(rows) - cut, 0)
    allowed = np.array(data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)), np.uint8)
    most, df = np.zeros(n, np.int32), np.zeros(len(groups), np.int64)
    lexical.count_rows(found, begins, ends, heads, allowed, most, df)
    standing = [terms for terms, passes in zip(rows, allowed.tolist(), strict=False) if passes]
    assert df.tolist() == [sum(any(term in row for term in group) for row in standing) for group in groups]
    assert not most.any()
    idf = np.log1p((len(standing) - df + 0.5) / (df + 0.5))
    mean = max(sum(map(len, standing)) / max(len(standing), 1), 1.0)
    lengths, scores = np.array([len(terms) for terms in rows], np.int32), np.zeros(n)
    lexical.add_scores(found, counts, begins, ends, heads, allowed, most, idf, lengths, 0, mean, K1, B, scores)
    assert not most.any()
    assert scores[allowed == 0].tolist() == [0.0] * int((allowed == 0).sum())
    if groups and standing:
        assert scores[allowed != 0] / (idf.sum() * (K1 + 1)) == pytest.approx(
            naive.bm25(standing, [(group, 1.0) for group in groups]), abs=1e-12
        )


def test_by_hand():
    found, counts, begins, ends, heads = postings([[1, 1, 2], [2]], [[1]])
    df, most, scores = np.zeros(1, np.int64), np.zeros(2, np.int32), np.zeros(2)
    allowed, lengths = np.ones(2, np.uint8), np.array([3, 1], np.int32)
    lexical.count_rows(found, begins, ends, heads, allowed, most, df)
    idf = np.log1p((2 - df + 0.5) / (df + 0.5))
    lexical.add_scores(found, counts, begins, ends, heads, allowed, most, idf, lengths, 0, 2.0, K1, B, scores)
    assert scores.tolist() == [math.log1p(1) * 2 * 1.9 / (2 + 0.9 * (0.6 + 0.4 * 1.5)), 0]


@drawn.thorough(200)
@given(n=st.integers(0, 30), k=st.integers(1, 8), shares=drawn.weights(), data=st.data())
def test_ranking_by_a_relevance_is_the_order_of_results(n, k, shares, data):
    relevance = np.array(
        data.draw(st.lists(st.sampled_from((0.0, 0.25, 0.5)) | st.floats(0, 1), min_size=n, max_size=n))
    )
    times, importance = data.draw(drawn.event_times(n)), data.draw(drawn.importances(n))
    allowed, least = data.draw(drawn.masks(n)), data.draw(st.sampled_from((-math.inf, 0.3)))
    ids = np.arange(n, dtype=np.uint64)
    heap = (np.empty(k), np.empty(k, np.int64), np.empty(k, np.uint64), np.empty(k, np.uint64), np.empty(k, np.int64))
    known, peaks = np.empty(n, np.float32), np.empty(-(-n // decay.BLOCK), np.float32)
    decay.known_terms(times, importance, allowed, drawn.NOW, 0.01, *shares[1:], known, peaks)
    size = scan.rank(relevance, known, times, importance, ids, ids, 5, drawn.NOW, 0.01, *shares, least, *heap, 0)
    order = []
    for r in range(n):
        score = scan.exact_score(relevance[r], times[r], importance[r], drawn.NOW, 0.01, *shares)
        if (not allowed.size or allowed[r]) and score >= least:
            order.append((-score, -int(times[r]), r))
    found = sorted((-heap[0][i], -int(heap[1][i]), int(heap[4][i]) - 5) for i in range(size))
    assert found == sorted(order)[:k]

"""Retrieval figures against a hand-computed example, a slow twin, and a recomputation from the answers file."""

import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcore.errors import InvalidInput
from memcore.replay.metrics import (
    Answer,
    Difference,
    Percentiles,
    Scores,
    Tokens,
    answers_line,
    bootstrap,
    difference,
    evaluate,
    ndcg,
    percentiles,
    read_answers,
    recall_at,
    reciprocal_rank,
    token_means,
)


def answer(retrieved="", evidence="", **fields):
    """An answer over one-letter ids: answer("abc", "c") retrieved a, b, c in this order, and c is the evidence."""
    given = {"trace": "t", "question_index": 0, "question": "who?", **fields}
    return Answer(retrieved=tuple(retrieved), evidence=tuple(evidence), **given)


# --- the twin: slow, and obviously what the docstrings say ----------------------------------------------------------


def slow_recall(retrieved, evidence, k):
    found = 0
    for wanted in evidence:
        if wanted in list(retrieved)[:k]:
            found += 1
    return found / len(evidence)


def slow_reciprocal_rank(retrieved, evidence):
    for position in range(len(retrieved)):
        if retrieved[position] in evidence:
            return 1 / (position + 1)
    return 0.0


def slow_ndcg(retrieved, evidence):
    gained, seen = 0.0, []
    for position in range(min(10, len(retrieved))):
        name = retrieved[position]
        if name in evidence and name not in seen:
            gained += 1 / math.log2(position + 2)
        seen.append(name)
    ideal = 0.0
    for position in range(min(10, len(evidence))):
        ideal += 1 / math.log2(position + 2)
    return gained / ideal


ids = st.sampled_from([f"D{i}" for i in range(25)])
retrieved_lists = st.lists(ids, max_size=30)  # with repeats: a list that a peer's file may hold
evidence_sets = st.sets(ids, min_size=1, max_size=15)


@given(retrieved_lists, evidence_sets, st.integers(1, 40))
def test_measures_equal_their_slow_twins(retrieved, evidence, k):
    assert recall_at(retrieved, evidence, k) == slow_recall(retrieved, evidence, k)
    assert reciprocal_rank(retrieved, evidence) == slow_reciprocal_rank(retrieved, evidence)
    assert ndcg(retrieved, evidence) == pytest.approx(slow_ndcg(retrieved, evidence), abs=1e-12)
    assert 0 <= ndcg(retrieved, evidence) <= 1


@given(st.lists(st.tuples(retrieved_lists, evidence_sets, st.sampled_from("ab")), max_size=8))
def test_evaluate_averages_over_questions_whatever_their_trace(rows):
    found = evaluate((answer(r, e, category=c, trace=f"t{i}") for i, (r, e, c) in enumerate(rows)), (5, 1))
    assert found.ks == (1, 5)
    for scores, group in [(found.overall, rows)] + [
        (found.categories[name], [row for row in rows if row[2] == name]) for name in found.categories
    ]:
        assert scores.questions == len(group)
        for k in (1, 5):
            means = [slow_recall(r, e, k) for r, e, _ in group]
            assert scores.recall[k] == (pytest.approx(sum(means) / len(means)) if group else None)
    assert sorted({row[2] for row in rows}) == list(found.categories)


# --- by hand --------------------------------------------------------------------------------------------------------


def test_a_hand_computed_example():
    answers = [
        answer("abcd", "b", category="one"),  # at rank 2 of 4
        answer("abcd", "ax", category="one"),  # one of two, at rank 1
        answer("ab", "z", category="two"),  # none
        answer("ab", ""),  # not labelled
        answer("ab", "", answerable=False),
        answer("ab", "", unknown_evidence=("D:11:26", "D30:05")),
    ]
    found = evaluate(answers, (1, 2, 4))
    log3 = math.log2(3)
    assert found.overall == Scores(
        questions=3,
        recall={1: 0.5 / 3, 2: 1.5 / 3, 4: 1.5 / 3},
        intervals={1: (0, 0.5), 2: (0, 1), 4: (0, 1)},  # of 27 draws of three, one is the best three times
        mrr=1.5 / 3,
        ndcg=pytest.approx((1 / log3 + 1 / (1 + 1 / log3) + 0) / 3),
    )
    assert found.categories["one"].recall == {1: 0.25, 2: 0.75, 4: 0.75}
    assert found.categories["two"] == Scores(1, {1: 0.0, 2: 0.0, 4: 0.0}, {1: (0, 0), 2: (0, 0), 4: (0, 0)}, 0.0, 0.0)
    assert (found.asked, found.unknown_evidence, found.depth) == (6, 2, 4)
    assert found.left_out == {
        "labelled evidence is not in the trace": 1,
        "unanswerable, no evidence labelled": 1,
        "no evidence labelled": 1,
    }
    assert sum(found.left_out.values()) + found.overall.questions == found.asked


def test_an_unanswerable_question_with_evidence_counts():
    assert evaluate([answer("a", "a", answerable=False)], (5,)).overall.questions == 1


def test_an_id_retrieved_twice_gains_once():
    assert ndcg(["a", "a", "b"], {"a", "b"}) < ndcg(["a", "b", "a"], {"a", "b"}) == 1.0


def test_the_ideal_of_ndcg_has_at_most_ten_gains():
    many = [f"e{i}" for i in range(12)]
    assert ndcg(many, set(many)) == 1.0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_an_interval_lies_within_what_was_found_and_about_its_mean(values):
    (interval,) = bootstrap([[value] for value in values])
    mean, slack = sum(values) / len(values), 1e-12
    assert min(values) - slack <= interval.low <= mean + slack
    assert mean - slack <= interval.high <= max(values) + slack
    assert bootstrap([[value] for value in values]) == [interval]  # the same each time


def test_an_interval_is_that_of_a_share():
    """Of 400 questions with 300 found the standard error is sqrt(.75 * .25 / 400), and 95 % lie within 1.96 of them."""
    shares, none = bootstrap([[float(i < 300), 0.0] for i in range(400)])
    assert shares == pytest.approx((0.75 - 0.0424, 0.75 + 0.0424), abs=0.005)
    assert none == (0, 0)


def test_a_difference_is_told_question_by_question():
    first = [answer("ab", "b"), answer("ab", "b"), answer("ab", "")]
    other = [answer("ba", "b"), answer("x", "b"), answer("ab", "")]
    found = difference(first, other, (1, 2))
    assert found.recall == {1: 0.5, 2: -0.5}  # the third counts in neither
    assert found.intervals == {1: (0, 1), 2: (-1, 0)}
    same = difference(first, first, (1, 2))
    assert (same.recall, same.intervals) == ({1: 0, 2: 0}, {1: (0, 0), 2: (0, 0)})
    assert difference([], [], (1,)) == Difference({1: None}, {1: None})


def test_nothing_asked_is_none_and_not_nan():
    found = evaluate([], (5,))
    assert found.overall == Scores(0, {5: None}, {5: None}, None, None)
    assert (found.asked, found.categories, found.left_out, found.depth) == (0, {}, {}, 0)


def test_ks_are_checked():
    with pytest.raises(InvalidInput) as error:
        evaluate([], ())
    assert str(error.value) == "ks is empty; pass at least one k, such as (5, 10)"
    with pytest.raises(InvalidInput, match=re.escape("k is 0; it must be at least 1")):
        evaluate([], (0,))


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_are_nearest_rank(values):
    found = percentiles(values)
    for percent, value in ((50, found.p50), (95, found.p95), (99, found.p99)):
        assert value in values
        assert sum(v <= value for v in values) * 100 >= percent * len(values)  # enough are at or below
        assert sum(v < value for v in values) * 100 < percent * len(values)  # and it is the smallest such
    assert found.n == len(values)


def test_percentiles_by_hand():
    assert percentiles(range(1, 101)) == Percentiles(100, 50, 95, 99)
    assert percentiles([3.0]) == Percentiles(1, 3.0, 3.0, 3.0)
    assert percentiles([]) == Percentiles(0, None, None, None)
    with pytest.raises(InvalidInput, match=re.escape("a value of the percentiles is nan; it must be a finite number")):
        percentiles([math.nan])


def test_token_means():
    answers = [
        answer(tokens_recalled=100, tokens_history=1000),
        answer(tokens_recalled=300, tokens_history=3000),
        answer(tokens_recalled=5),
    ]
    assert token_means(answers) == Tokens(2, 200.0, 2000.0, 0.9)
    assert token_means([]) == Tokens(0, None, None, None)
    assert token_means([answer(tokens_recalled=0, tokens_history=0)]) == Tokens(1, 0.0, 0.0, None)


# --- the answers file -----------------------------------------------------------------------------------------------


def test_the_line_is_exactly_this():
    line = answers_line(answer("ab", "b", question="quem é 🦊?", category="4 single-hop", unknown_evidence=("D:1",)))
    assert line == (
        '{"trace": "t", "question_index": 0, "question": "quem é 🦊?", "retrieved": ["a", "b"], "evidence": ["b"], '
        '"category": "4 single-hop", "unknown_evidence": ["D:1"]}'
    )


@given(st.text(st.characters(codec="utf-8")) | st.just("a\u2028b\u2029c\u0085d\u000be\nf\\u2028"))
def test_a_line_is_one_line_to_every_reader(text):
    line = answers_line(answer("ab", "b", question=text))
    assert len((line + "\n").splitlines()) == 1
    assert json.loads(line)["question"] == text


@given(st.lists(st.tuples(retrieved_lists, evidence_sets | st.just(set())), min_size=1, max_size=6))
def test_anyone_can_recompute_the_figures_from_the_file(tmp_path_factory, rows):
    answers = [
        answer(r, sorted(e), question_index=i, unknown_evidence=() if e else ("D99",)) for i, (r, e) in enumerate(rows)
    ]
    path = tmp_path_factory.mktemp("answers") / "a.jsonl"
    path.write_text("".join(answers_line(a) + "\n" for a in answers), encoding="utf-8")

    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    counted = [row for row in lines if row["evidence"]]
    found = evaluate(answers, (5, 10)).overall
    for k in (5, 10):
        shares = [len(set(row["retrieved"][:k]) & set(row["evidence"])) / len(row["evidence"]) for row in counted]
        assert found.recall[k] == (pytest.approx(sum(shares) / len(shares)) if shares else None)

    assert read_answers(path) == answers
    assert evaluate(read_answers(path), (5, 10)) == evaluate(answers, (5, 10))


def test_a_file_of_the_five_fields_alone_is_read(tmp_path):
    path = tmp_path / "peer.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"evidence": [], "retrieved": [], "question": "q", "question_index": 3, "trace": "t"}\r\n\n'
    )
    assert read_answers(path) == [answer(question="q", question_index=3)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "has no usable trace, question, category, retrieved, evidence, unknown_evidence, question_index; "),
        (
            '{"trace": "t", "question_index": true, "question": "q", "retrieved": [1], "evidence": []}',
            "has no usable retrieved, question_index; an answer is an object with ",
        ),
        ("{", "is not JSON in UTF-8 ("),
        ("[" * 100_000, "is not JSON in UTF-8 ("),
    ],
)
def test_a_line_that_is_no_answer_is_an_error_with_its_place(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_text(answers_line(answer()) + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(InvalidInput) as error:
        read_answers(path)
    assert str(error.value).startswith(f"{str(path)!r} line 2 {message}")


@pytest.mark.parametrize(
    ("name", "reason"), [("none.jsonl", "No such file or directory"), ("a\0b", "no file can have such a name")]
)
def test_a_missing_answers_file_is_an_error_that_says_why(tmp_path, name, reason):
    path = f"{tmp_path}/{name}"
    with pytest.raises(InvalidInput) as error:
        read_answers(path)
    assert str(error.value) == f"{path!r} cannot be read: {reason}; pass a file that `memcore replay --answers` wrote"

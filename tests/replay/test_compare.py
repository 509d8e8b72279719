"""Several relevances of one replay side by side: the figures, their intervals, and the command line."""

from __future__ import annotations

import json
import random
import statistics
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

import memcore
from drawn import thorough
from memcore.cli import main
from memcore.replay import metrics, runner
from memcore.replay.metrics import Answer, Interval
from memcore.replay.trace import Event, Question, Trace

LIMIT = 200  # events of the shipped trace: all of these are asked soon


def plain_bootstrap(values: list[float], seed: int, resamples: int = 4_000) -> Interval:
    """As the book has it: each time as many rows as there are, drawn one by one."""
    rng = random.Random(seed)
    means = sorted(statistics.fmean(rng.choices(values, k=len(values))) for _ in range(resamples))
    return Interval(means[round(0.025 * resamples)], means[round(0.975 * resamples) - 1])


@pytest.mark.parametrize("n", [2, 5, 30, 200])
@pytest.mark.parametrize("kind", ["recalls", "halves", "differences", "one apart"])
def test_the_interval_is_that_of_a_plain_loop(n, kind):
    rng = np.random.default_rng(n)
    values = {
        "recalls": rng.integers(0, 2, n).astype(float),
        "halves": rng.integers(0, 5, n) / 4,
        "differences": rng.integers(-2, 3, n) / 2,
        "one apart": np.where(np.arange(n) == 0, 1.0, 0.0),
    }[kind].tolist()
    (found,) = metrics.bootstrap([[value] for value in values])
    expected = plain_bootstrap(values, seed=7)
    # The ends are themselves drawn: they differ by a fraction of a standard error, or by one step where n is small.
    step = 1 / n if n > 5 else 1 / 2
    room = 0.3 * statistics.pstdev(values) / n**0.5 + step * (max(values) - min(values)) / 2
    assert found.low == pytest.approx(expected.low, abs=room)
    assert found.high == pytest.approx(expected.high, abs=room)


def test_intervals_cover_the_mean_of_what_was_drawn_from_about_as_often_as_they_say():
    """300 samples of 60 from one distribution: about 95 % of the intervals hold its mean, and hardly less than 88 %."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(300):
        (found,) = metrics.bootstrap(rng.beta(2, 3, (60, 1)).tolist())
        held += found.low <= 0.4 <= found.high
    assert 0.88 < held / 300 < 0.99


VALUES = st.sampled_from([0.0, 0.25, 1 / 3, 0.5, 1.0]) | st.floats(-1, 1)


@thorough(60)
@given(st.integers(1, 3).flatmap(lambda width: st.lists(st.lists(VALUES, min_size=width, max_size=width), min_size=1)))
@example([[0.1]] * 49)
@example([[1.0, 0.0]] * 1000)
def test_the_interval_is_in_order_and_within_what_there_is_and_the_same_again(rows):
    found = metrics.bootstrap(rows)
    assert len(found) == len(rows[0])
    assert metrics.bootstrap(rows) == found
    for (low, high), column in zip(found, zip(*rows, strict=True), strict=True):
        assert type(low) is type(high) is float
        assert min(column) - 1e-12 <= low <= high + 1e-12
        assert high <= max(column) + 1e-12


def test_the_mean_lies_within():
    """Of many rows; of a few the mean may be where 2.5 % of the means cannot reach."""
    rng = np.random.default_rng(2)
    for n in (20, 100, 1_000):
        rows = rng.integers(0, 2, (n, 3)).astype(float)
        for interval, mean in zip(metrics.bootstrap(rows.tolist()), rows.mean(axis=0), strict=True):
            assert interval.low < mean < interval.high


def test_of_one_row_it_is_that_row_and_of_equal_rows_too():
    assert metrics.bootstrap([[0.25, 1.0, 0.0]]) == [(0.25, 0.25), (1.0, 1.0), (0.0, 0.0)]
    for low, high in metrics.bootstrap([[0.1, 1.0]] * 7):
        assert low == pytest.approx(high, abs=1e-15)


def test_columns_are_resampled_together_and_more_rows_narrow_it():
    rows = [[i % 2, 1 - i % 2] for i in range(40)]
    one, other = metrics.bootstrap(rows)
    assert (one.low, one.high) == pytest.approx((1 - other.high, 1 - other.low), abs=1e-12)
    more, _ = metrics.bootstrap(rows * 16)
    assert (more.high - more.low) == pytest.approx((one.high - one.low) / 4, rel=0.15)


def answer(index: int, retrieved: str, evidence: str, **more: Any) -> Answer:
    return Answer("t", index, f"question {index}", tuple(retrieved), tuple(evidence), **more)


FIRST = [answer(0, "abc", "a"), answer(1, "abc", "cd"), answer(2, "abc", ""), answer(3, "abc", "x")]
OTHER = [answer(0, "cba", "a"), answer(1, "dcb", "cd"), answer(2, "cba", ""), answer(3, "xba", "x")]


def test_a_difference_is_of_pairs():
    found = metrics.difference(FIRST, OTHER, (1, 2, 3))
    # Questions 0, 1 and 3 count. At 1: a lost, d won of two, x won; at 2: a lost, both won, x won; at 3: as at 2.
    assert found.recall == {
        1: pytest.approx((-1 + 1 / 2 + 1) / 3),
        2: pytest.approx((-1 + 1 + 1) / 3),
        3: pytest.approx((0 + 1 / 2 + 1) / 3),
    }
    pairs = [[-1, 0.5, 1], [-1, 1, 1], [0, 0.5, 1]]
    expected = metrics.bootstrap([list(row) for row in zip(*pairs, strict=True)])
    assert found.intervals == dict(zip((1, 2, 3), expected, strict=True))
    back = metrics.difference(OTHER, FIRST, (1, 2, 3))
    for k in (1, 2, 3):
        assert back.recall[k] == pytest.approx(-found.recall[k])
        assert back.intervals[k] == pytest.approx((-found.intervals[k].high, -found.intervals[k].low))


def test_a_setting_does_not_differ_from_itself():
    found = metrics.difference(FIRST, FIRST, (1, 2))
    assert found.recall == {1: 0, 2: 0}
    assert found.intervals == {1: (0, 0), 2: (0, 0)}


def test_pairs_tell_more_than_two_means_do():
    """Other finds one more of every ten: the difference is sure, though both intervals are wide."""
    first = [answer(i, "a" if i % 2 else "b", "a") for i in range(100)]
    other = [answer(i, "a" if i % 2 or i % 10 == 0 else "b", "a") for i in range(100)]
    ks = (1,)
    means = [metrics.evaluate(each, ks).overall for each in (first, other)]
    found = metrics.difference(first, other, ks)
    assert found.recall[1] == pytest.approx(means[1].recall[1] - means[0].recall[1]) == pytest.approx(0.1)
    assert means[1].intervals[1].low < means[0].intervals[1].high  # they overlap, so alone they would not tell
    assert found.intervals[1].low > 0


def test_without_a_question_that_counts_there_is_no_difference():
    for answers in ([], [answer(0, "abc", "")]):
        found = metrics.difference(answers, answers, (1, 5))
        assert found.recall == found.intervals == {1: None, 5: None}
        overall = metrics.evaluate(answers, (1, 5)).overall
        assert overall.recall == overall.intervals == {1: None, 5: None}


def test_answers_to_other_questions_are_not_compared():
    with pytest.raises(ValueError, match="zip"):
        metrics.difference(FIRST, OTHER[:-1], (1,))


def test_scores_have_the_intervals_of_their_own_questions():
    answers = [answer(i, "ab", "a" if i % 3 else "b", category=f"c{i % 2}") for i in range(40)]
    found = metrics.evaluate(answers, (1, 2))
    for name, scores in [*found.categories.items(), (None, found.overall)]:
        mine = [a for a in answers if name in (None, a.category)]
        assert scores.intervals[2] == (1, 1)
        (expected,) = metrics.bootstrap([[metrics.recall_at(a.retrieved, set(a.evidence), 1)] for a in mine])
        if name is not None:  # the order of rows, in which overall differs, decides what is drawn
            assert scores.intervals[1] == expected
        assert scores.intervals[1] == pytest.approx(expected, abs=0.1)


START = 1_772_323_200_000_000  # 2026-03-01
TRACE = Trace(
    "t",
    events=tuple(
        Event(f"e{i}", START + i * 3_600_000_000, text)
        for i, text in enumerate(["disk full on db01", "lunch at noon", "who is on call", "the gateway failed"])
    ),
    questions=(
        Question(0, "disk full", evidence=("e0",)),
        Question(1, "why did the gateway fail", evidence=("e3",), time=START + 3 * 3_600_000_000),
    ),
)


def test_what_is_compared_is_asked_in_one_life():
    settings = runner.Settings(ks=(1, 3), relevance="lexical", compare=("lexical", "hybrid", "cosine", "hybrid"))
    with memcore.open(embedder="hashed") as mem:
        report, answers = runner.play([TRACE], mem, settings)
        assert mem.scope("replay", "t").stats()["versions"] == len(TRACE.events)  # written once
    assert [each.relevance for each in report.compared] == ["lexical", "hybrid", "cosine"]
    first = report.compared[0]
    assert first.difference is None
    assert first.scores == report.evaluation.overall == metrics.evaluate(answers, (1, 3)).overall
    assert all(each.difference is not None for each in report.compared[1:])
    assert {each.recall_s.n for each in report.compared} == {2}
    assert report.settings["relevance"] == "lexical"
    assert report.settings["weights"] == [1, 0, 0]


def test_one_alone_is_not_compared():
    for compare in ((), ("hybrid",), ("hybrid", "hybrid")):
        with memcore.open(embedder="hashed") as mem:
            report, _ = runner.play([TRACE], mem, runner.Settings(ks=(1,), compare=compare))
        assert report.compared == []
        assert "## Compared" not in report.to_markdown()


def replay(*arguments: str) -> Any:
    result = CliRunner().invoke(
        main, ["--embedder", "hashed", "replay", "ops_agent", "--limit", str(LIMIT), *arguments]
    )
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compared")
    document = json.loads(
        replay(
            *("--compare", "cosine,lexical,hybrid", "--json"),
            *("--answers", str(folder / "answers.jsonl"), "--report", str(folder / "report.md")),
        )
    )
    return document, folder


def test_compared_figures_are_those_of_single_replays(compared, tmp_path):
    document, folder = compared
    rows = {row["relevance"]: row for row in document["compared"]}
    assert list(rows) == ["cosine", "lexical", "hybrid"]
    given = {}
    for name, row in rows.items():
        path = tmp_path / f"{name}.jsonl"
        single = json.loads(replay("--relevance", name, "--json", "--answers", str(path)))
        assert single["compared"] == []
        assert single["settings"]["relevance"] == name
        assert single["settings"]["weights"] == document["settings"]["weights"] == [1, 0, 0]
        assert row["scores"] == single["evaluation"]["overall"]
        assert row["recall_s"]["n"] == single["recall_s"]["n"] == document["recall_s"]["n"]
        given[name] = metrics.read_answers(path)
    assert document["evaluation"]["overall"] == rows["cosine"]["scores"]
    assert document["evaluation"]["overall"]["questions"] > 10
    assert metrics.read_answers(folder / "answers.jsonl") == given["cosine"]
    assert rows["cosine"]["difference"] is None
    for name in ("lexical", "hybrid"):
        expected = metrics.difference(given["cosine"], given[name], (5, 10, 25, 50))
        found = rows[name]["difference"]
        assert found["recall"] == {str(k): mean for k, mean in expected.recall.items()}
        assert found["intervals"] == {str(k): list(ends) for k, ends in expected.intervals.items()}
        for k in ("5", "10", "25", "50"):
            apart = rows[name]["scores"]["recall"][k] - rows["cosine"]["scores"]["recall"][k]
            assert found["recall"][k] == pytest.approx(apart, abs=1e-12)


def test_the_report_shows_the_rows_side_by_side(compared):
    document, folder = compared
    told = (folder / "report.md").read_text(encoding="utf-8")
    section = told.split("## Compared\n\n")[1].split("\n\n## ")[0].splitlines()
    assert section[0] == "| relevance | R@5 | R@10 | R@25 | R@50 | MRR | nDCG@10 | recall p50 ms |"
    assert section[5:8] == ["", "Beside cosine, question by question, with the 95 % interval:", ""]
    assert section[8] == "| relevance | R@5 | R@10 | R@25 | R@50 |"
    for row, line in zip(document["compared"], section[2:5], strict=True):
        scores = row["scores"]
        figures = [f"{figure:.3f}" for figure in (*scores["recall"].values(), scores["mrr"], scores["ndcg"])]
        assert line.startswith(f"| {' | '.join([row['relevance'], *figures])} | ")
    for row, line in zip(document["compared"][1:], section[10:], strict=True):
        cells = [
            f"{row['difference']['recall'][k]:+.3f} [{low:+.3f}, {high:+.3f}]"
            for k, (low, high) in row["difference"]["intervals"].items()
        ]
        assert line == f"| {' | '.join([row['relevance'], *cells])} |"


def test_spaces_and_repeats_are_fine_and_the_first_is_told_in_detail():
    document = json.loads(replay("--compare", " lexical , hybrid,lexical", "--json", "--k", "5"))
    assert [row["relevance"] for row in document["compared"]] == ["lexical", "hybrid"]
    assert document["settings"]["relevance"] == "lexical"
    assert document["evaluation"]["overall"] == document["compared"][0]["scores"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("--relevance", "hybrid", "--compare", "cosine,lexical"),
            "--relevance and --compare both say what is asked: pass one of them",
        ),
        (("--compare", "cosine,best"), "--compare cosine,best: 'best' is none of cosine, lexical, hybrid"),
        (("--compare", "cosine,,hybrid"), "--compare cosine,,hybrid: '' is none of cosine, lexical, hybrid"),
        (("--compare", "Cosine"), "--compare Cosine: 'Cosine' is none of cosine, lexical, hybrid"),
        (("--relevance", "cosine,lexical"), None),
    ],
)
def test_what_cannot_be_compared_is_a_usage_error(arguments, told, tmp_path):
    report = tmp_path / "report.md"
    result = CliRunner().invoke(main, ["replay", "ops_agent", "--report", str(report), *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""
    if told is None:
        told = "Invalid value for '--relevance': 'cosine,lexical' is not one of 'cosine', 'lexical', 'hybrid'."
    assert result.stderr.splitlines()[-1] == f"Error: {told}"
    assert not report.exists()

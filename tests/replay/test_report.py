"""The report's two forms: the whole Markdown word for word, and JSON that holds every figure."""

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st

from memcore.replay.metrics import Answer, Percentiles, Tokens, difference, evaluate, percentiles
from memcore.replay.report import Compared, Report, TraceCount

NOT_MEASURED = Percentiles(0, None, None, None)


def report(**fields):
    answers = [
        Answer("conv-1", 0, "q", ("a", "b", "c"), ("b",), category="1 multi-hop", unknown_evidence=("D:1",)),
        Answer("conv-1", 1, "q", ("a", "b", "c"), ("a", "x"), category="4 single-hop"),
        Answer("conv-1", 2, "q", ("a",), (), answerable=False, category="5 adversarial"),
    ]
    given = {
        "traces": [TraceCount("conv-1", 1419, 3)],
        "settings": {"embedder": "static", "k": (1, 3), "weights": [0.5, 0.3, 0.2]},
        "evaluation": evaluate(answers, (1, 3)),
        "write_s": percentiles([0.002]),
        "recall_s": percentiles([0.0001, 0.0003]),
        "compared": [],
        "rows_per_second": 123456.789,
        "bytes_on_disk": 2_097_152,
        "bytes_in_memory": None,
        "tokens": Tokens(3, 250.25, 5000.0, 0.94995),
        "tokens_k": 3,
        "problems": ["conv-1: session_4: date | without <turns>\nat all"],
        "elapsed_s": 12.34,
    }
    return Report(**{**given, **fields})


def test_the_markdown_word_for_word():
    assert report().to_markdown() == (
        """\
# memcore replay

1 trace, 1,419 events, 3 questions; played in 12.3 s.

## Retrieval

2 of 3 questions have labelled evidence in their trace; all figures are means over these.
Left out: 1 (unanswerable, no evidence labelled).
In no denominator: 1 evidence id not in their traces.
R@k: the share of a question's evidence among its first k retrieved. MRR: 1 / rank of the first evidence
among the 3 retrieved at most. nDCG@10: binary gain.
In brackets: the 95 % interval, by bootstrap over questions.

| category | questions | R@1 | R@3 | MRR | nDCG@10 |
| --- | ---: | ---: | ---: | ---: | ---: |
| 1 multi-hop | 1 | 0.000 [0.000, 0.000] | 1.000 [1.000, 1.000] | 0.500 | 0.631 |
| 4 single-hop | 1 | 0.500 [0.500, 0.500] | 0.500 [0.500, 0.500] | 1.000 | 0.613 |
| **all** | 2 | 0.250 [0.000, 0.500] | 0.750 [0.500, 1.000] | 0.750 | 0.622 |

## Speed

|  | n | p50 ms | p95 ms | p99 ms |
| --- | ---: | ---: | ---: | ---: |
| write commit | 1 | 2.000 | 2.000 | 2.000 |
| recall | 2 | 0.100 | 0.300 | 0.300 |

Rows written per second: 123,457.

## Size and tokens

|  | value |
| --- | ---: |
| bytes on disk | 2,097,152 |
| bytes in memory | n/a |
| tokens recalled per answer, k = 3 | 250 |
| tokens of the whole history | 5,000 |
| tokens saved | 95.0% |

Tokens: means over 3 answers.

## Settings

| setting | value |
| --- | --- |
| embedder | static |
| k | [1, 3] |
| weights | [0.5, 0.3, 0.2] |

## Traces

| trace | events | questions |
| --- | ---: | ---: |
| conv-1 | 1,419 | 3 |

## Problems

- conv-1: session_4: date \\| without &lt;turns> at all
"""
    )


def test_relevances_are_compared_side_by_side():
    first = [Answer("t", i, "q", ("a", "b"), ("b",)) for i in range(2)]  # at rank 2, both
    other = [Answer("t", 0, "q", ("b", "a"), ("b",)), Answer("t", 1, "q", ("x",), ("b",))]  # one at 1, one not at all
    compared = [
        Compared("hybrid", evaluate(first, (1, 3)).overall, None, percentiles([0.002])),
        Compared("cosine", evaluate(other, (1, 3)).overall, difference(first, other, (1, 3)), percentiles([0.001])),
    ]
    told = report(evaluation=evaluate(first, (1, 3)), compared=compared)
    assert """\
## Compared

| relevance | R@1 | R@3 | MRR | nDCG@10 | recall p50 ms |
| --- | ---: | ---: | ---: | ---: | ---: |
| hybrid | 0.000 | 1.000 | 0.500 | 0.631 | 2.000 |
| cosine | 0.500 | 0.500 | 0.500 | 0.500 | 1.000 |

Beside hybrid, question by question, with the 95 % interval:

| relevance | R@1 | R@3 |
| --- | ---: | ---: |
| cosine | +0.500 [+0.000, +1.000] | -0.500 [-1.000, +0.000] |

## Speed
""" in told.to_markdown()
    hybrid, cosine = json.loads(told.to_json())["compared"]
    assert hybrid["difference"] is None
    assert cosine["difference"]["recall"] == {"1": 0.5, "3": -0.5}
    assert "## Compared" not in report().to_markdown()


def test_the_json_has_every_field_in_order_and_unrounded():
    text = report(rows_per_second=float("inf")).to_json()
    document = json.loads(text)
    assert list(document) == ["title", *(field.name for field in dataclasses.fields(Report))]
    assert document["title"] == "memcore replay"
    assert document["rows_per_second"] is None  # what JSON has no number for
    assert document["evaluation"]["overall"]["recall"] == {"1": 0.25, "3": 0.75}
    assert (
        document["evaluation"]["overall"]["ndcg"]
        == evaluate([Answer("", 0, "", ("a", "b"), ("b",)), Answer("", 0, "", ("a",), ("a", "x"))], (1,)).overall.ndcg
    )
    assert document["evaluation"]["overall"]["intervals"] == {"1": [0, 0.5], "3": [0.5, 1]}
    assert document["recall_s"] == {"n": 2, "p50": 0.0001, "p95": 0.0003, "p99": 0.0003}
    assert document["settings"]["k"] == [1, 3]
    assert text == report(rows_per_second=float("inf")).to_json()  # the same keys in the same order
    assert text.endswith("}\n")


def test_long_lists_are_cut_in_markdown_and_whole_in_json():
    long = report(traces=[TraceCount(f"q{i}", 10, 1) for i in range(500)], problems=[f"problem {i}" for i in range(21)])
    markdown, document = long.to_markdown(), json.loads(long.to_json())
    assert "500 traces, 5,000 events, 500 questions" in markdown
    assert "| q19 | 10 | 1 |\n\n… and 480 more traces; the JSON report has all." in markdown
    assert "- problem 19\n\n… and 1 more problem; the JSON report has all." in markdown
    assert "problem 20" not in markdown
    assert len(document["traces"]) == 500
    assert document["problems"][20] == "problem 20"


def test_a_trace_without_questions_or_problems():
    bare = report(
        evaluation=evaluate([], (5,)),
        problems=(),
        settings={},
        write_s=NOT_MEASURED,
        recall_s=NOT_MEASURED,
        rows_per_second=None,
        tokens=Tokens(0, None, None, None),
    )
    markdown = bare.to_markdown()
    assert "## Retrieval\n\nNo question was asked.\n" in markdown
    assert "## Problems\n\nNone.\n" in markdown
    assert "## Settings" not in markdown
    assert "| recall | 0 | n/a | n/a | n/a |" in markdown
    assert "| tokens saved | n/a |" in markdown
    assert json.loads(bare.to_json())["recall_s"]["p50"] is None


def test_questions_of_which_none_counts():
    markdown = report(evaluation=evaluate([Answer("t", 0, "q", (), ())], (5,))).to_markdown()
    assert "0 of 1 questions have labelled evidence in their trace; all figures are means over these." in markdown
    assert "Left out: 1 (no evidence labelled)." in markdown
    assert "| **all** | 0 | n/a | n/a | n/a |" in markdown


@given(st.text(st.characters()), st.text(st.characters()))  # lone surrogates too: a file name may hold them
def test_names_of_any_text_keep_the_table_and_can_be_written(name, problem):
    told = report(traces=[TraceCount(name, 123, 456)], problems=[problem], settings={name: problem})
    rows = [line for line in told.to_markdown().split("\n") if line.startswith("|") and line.endswith("| 123 | 456 |")]
    assert len(rows) == 1
    assert rows[0].replace("\\|", "").count("|") == 4
    told.to_markdown().encode("utf-8")
    told.to_json().encode("utf-8")

"""How well was it retrieved? Evidence recall@k, MRR and nDCG@10 of answered questions, and percentiles of times.

A question counts when at least one of its labelled evidence ids is in its trace; every mean is over the questions that
count, each with the same weight, whatever trace they come from. E is a question's set of valid evidence ids, and its
retrieved ids stand in rank order, best first.

The measures are pure functions. `answers_line` and `read_answers` are the two ends of the answers file, from which
anyone can recompute every figure of retrieval.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from memcore import gate
from memcore.errors import InvalidInput

NDCG_DEPTH = 10
_RESAMPLES = 2_000
_DRAWN = 4_000_000  # numbers drawn at once

# Why a question does not count, in the order in which the reasons are tried.
NOT_IN_TRACE = "labelled evidence is not in the trace"
UNANSWERABLE = "unanswerable, no evidence labelled"
UNLABELLED = "no evidence labelled"


@dataclass(frozen=True, slots=True)
class Answer:
    """What was retrieved for one question. The ids are the trace's own (`Event.event_id`).

    `retrieved` is in rank order and holds at least the largest k that is evaluated, where the memory holds so many.
    `evidence` holds the valid ids, `unknown_evidence` the labelled ones that are not in the trace. `latency_s` is the
    time of the recall in seconds, `tokens_recalled` counts the tokens of what was recalled and `tokens_history` those
    of all events up to the question; None where it was not measured.
    """

    trace: str
    question_index: int
    question: str
    retrieved: tuple[str, ...]
    evidence: tuple[str, ...]
    unknown_evidence: tuple[str, ...] = ()
    category: str = "all"
    answerable: bool = True
    latency_s: float | None = None
    tokens_recalled: int | None = None
    tokens_history: int | None = None


class Interval(NamedTuple):
    """Where 95 % of the means of resampled questions lie."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Scores:
    """Means over `questions` questions; None where there are none. `intervals` are those of the recalls."""

    questions: int
    recall: dict[int, float | None]  # by k, ascending
    intervals: dict[int, Interval | None]
    mrr: float | None
    ndcg: float | None  # at NDCG_DEPTH


@dataclass(frozen=True, slots=True)
class Difference:
    """How another setting differs from the first, question by question: means of recall at each k, with intervals."""

    recall: dict[int, float | None]
    intervals: dict[int, Interval | None]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The figures of retrieval, with their denominators.

    `asked` counts all questions, `overall.questions` those that count, `left_out` the others by reason. `depth` is the
    length of the longest list of retrieved ids: MRR looks no deeper. `unknown_evidence` counts the labelled ids that
    are not in their traces; no denominator contains them.
    """

    ks: tuple[int, ...]
    asked: int
    overall: Scores
    categories: dict[str, Scores]  # by name, ascending; those with a question that counts
    left_out: dict[str, int]
    unknown_evidence: int
    depth: int


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Nearest-rank percentiles of `n` values, in their unit; None where n is 0."""

    n: int
    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class Tokens:
    """Means over the `answers` for which tokens were counted. `saved` is 1 - recalled / history."""

    answers: int
    recalled: float | None
    history: float | None
    saved: float | None


def recall_at(retrieved: Sequence[str], evidence: AbstractSet[str], k: int) -> float:
    """|E ∩ the first k retrieved| / |E|. `evidence` is not empty."""
    return len(evidence & set(retrieved[:k])) / len(evidence)


def reciprocal_rank(retrieved: Sequence[str], evidence: AbstractSet[str]) -> float:
    """1 / the rank (from 1) of the first retrieved id that is in E; 0.0 where none is."""
    return next((1 / rank for rank, name in enumerate(retrieved, 1) if name in evidence), 0.0)


def ndcg(retrieved: Sequence[str], evidence: AbstractSet[str], depth: int = NDCG_DEPTH) -> float:
    """nDCG at `depth` with binary gains (Järvelin & Kekäläinen 2002, log base 2): DCG / ideal DCG,

        DCG = Σ 1 / log2(rank + 1) over the ranks ≤ depth that hold an id of E,

    and the ideal has an id of E at each of the ranks 1 … min(depth, |E|). An id that is retrieved twice gains once.
    """
    left = set(evidence)
    gains = []
    for rank, name in enumerate(retrieved[:depth], 1):
        if name in left:
            left.remove(name)
            gains.append(_gain(rank))
    return math.fsum(gains) / math.fsum(map(_gain, range(1, min(depth, len(evidence)) + 1)))


def _gain(rank: int) -> float:
    return 1 / math.log2(rank + 1)


def evaluate(answers: Iterable[Answer], ks: Iterable[int]) -> Evaluation:
    """The figures over all `answers`, at each of `ks` (whole numbers from 1; sorted, without repeats)."""
    depths = tuple(sorted({gate.count(k, "k", least=1) for k in ks}))
    if not depths:
        raise InvalidInput("ks is empty; pass at least one k, such as (5, 10)")
    by_category: dict[str, list[tuple[float, ...]]] = {}
    left_out: Counter[str] = Counter()
    asked = unknown = deepest = 0
    for answer in answers:
        asked += 1
        unknown += len(set(answer.unknown_evidence))
        deepest = max(deepest, len(answer.retrieved))
        if not answer.evidence:
            left_out[_reason(answer)] += 1
            continue
        evidence = frozenset(answer.evidence)
        figures = (
            *(recall_at(answer.retrieved, evidence, k) for k in depths),
            reciprocal_rank(answer.retrieved, evidence),
            ndcg(answer.retrieved, evidence),
        )
        by_category.setdefault(answer.category, []).append(figures)
    return Evaluation(
        ks=depths,
        asked=asked,
        overall=_scores(depths, [figures for rows in by_category.values() for figures in rows]),
        categories={name: _scores(depths, by_category[name]) for name in sorted(by_category)},
        left_out={reason: left_out[reason] for reason in (NOT_IN_TRACE, UNANSWERABLE, UNLABELLED) if left_out[reason]},
        unknown_evidence=unknown,
        depth=deepest,
    )


def _reason(answer: Answer) -> str:
    if answer.unknown_evidence:
        return NOT_IN_TRACE
    return UNLABELLED if answer.answerable else UNANSWERABLE


def _scores(ks: tuple[int, ...], rows: list[tuple[float, ...]]) -> Scores:
    """Column means of `rows`: recall at each k, reciprocal rank, nDCG."""
    means = [_mean(column) for column in zip(*rows, strict=True)] if rows else [None] * (len(ks) + 2)
    intervals = bootstrap([row[: len(ks)] for row in rows]) if rows else [None] * len(ks)
    recall = dict(zip(ks, means[:-2], strict=True))
    return Scores(len(rows), recall, dict(zip(ks, intervals, strict=True)), means[-2], means[-1])


def bootstrap(rows: Sequence[Sequence[float]]) -> list[Interval]:
    """The 95 % interval of each column's mean: percentiles of 2,000 means over rows drawn with replacement (Efron and
    Tibshirani, 1993), with a fixed seed. Of one row it is that row.
    """
    columns = np.array(rows, np.float64)
    n = len(columns)
    rng = np.random.default_rng(0)
    at_once = max(_DRAWN // n, 1)  # 100,000 questions, all resamples together, would take 1.6 GB
    sizes = [min(at_once, _RESAMPLES - done) for done in range(0, _RESAMPLES, at_once)]
    drawn = np.concatenate([rng.multinomial(n, np.full(n, 1 / n), size=size) @ columns / n for size in sizes])
    low, high = np.percentile(drawn, (2.5, 97.5), axis=0)
    return [Interval(*ends) for ends in zip(low.tolist(), high.tolist(), strict=True)]


def difference(first: Sequence[Answer], other: Sequence[Answer], ks: Sequence[int]) -> Difference:
    """How much more `other` recalls than `first`, whose answers are to the same questions in the same order."""
    rows = [
        [recall_at(b.retrieved, evidence, k) - recall_at(a.retrieved, evidence, k) for k in ks]
        for a, b in zip(first, other, strict=True)
        if (evidence := frozenset(a.evidence))
    ]
    means = [_mean(column) for column in zip(*rows, strict=True)] if rows else [None] * len(ks)
    intervals = bootstrap(rows) if rows else [None] * len(ks)
    return Difference(dict(zip(ks, means, strict=True)), dict(zip(ks, intervals, strict=True)))


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def percentiles(values: Iterable[float]) -> Percentiles:
    """p50, p95 and p99 by nearest rank: the value at rank ⌈p/100 · n⌉ of the sorted ones, so always a measured one.

    Raises InvalidInput for a value that is not a finite number.
    """
    ordered = sorted(gate.number(value, "a value of the percentiles") for value in values)

    def at(percent: int) -> float | None:
        return ordered[-(-percent * len(ordered) // 100) - 1] if ordered else None

    return Percentiles(len(ordered), at(50), at(95), at(99))


def token_means(answers: Iterable[Answer]) -> Tokens:
    """Mean tokens of what was recalled and of the whole history, over the answers for which both were counted."""
    counted = [
        (answer.tokens_recalled, answer.tokens_history)
        for answer in answers
        if answer.tokens_recalled is not None and answer.tokens_history is not None
    ]
    recalled, history = _mean([pair[0] for pair in counted]), _mean([pair[1] for pair in counted])
    saved = None if recalled is None or not history else 1 - recalled / history
    return Tokens(len(counted), recalled, history, saved)


# --- the answers file -----------------------------------------------------------------------------------------------

# Line ends to str.splitlines, though data in JSON: escaped, so that a reader who splits by it loses no line.
_ESCAPED = str.maketrans({"\u0085": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def answers_line(answer: Answer) -> str:
    """The line of the answers file for `answer`, a JSON object, without its line end.

    {"trace", "question_index", "question", "retrieved", "evidence", "category", "unknown_evidence"}, in that order.
    Text is UTF-8 as it is, not escaped; times and tokens are not in it.
    """
    row = {
        "trace": answer.trace,
        "question_index": answer.question_index,
        "question": answer.question,
        "retrieved": list(answer.retrieved),
        "evidence": list(answer.evidence),
        "category": answer.category,
        "unknown_evidence": list(answer.unknown_evidence),
    }
    return json.dumps(row, ensure_ascii=False).translate(_ESCAPED)


def read_answers(path: str | Path) -> list[Answer]:
    """The answers of a file of `answers_line`s, in file order. "category" and "unknown_evidence" may be missing.

    The file does not say which questions are unanswerable, so those read as unlabelled; the figures are the same. Blank
    lines are fine. Raises InvalidInput for a file that cannot be read and for a line that is no answer, by its number.
    """
    try:
        with Path(path).open("rb") as file:
            return [_answer(raw, f"{str(path)!r} line {n}") for n, raw in enumerate(file, 1) if raw.strip()]
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL or a lone surrogate in the path
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "no file can have such a name"
        raise InvalidInput(
            f"{str(path)!r} cannot be read: {reason}; pass a file that `memcore replay --answers` wrote"
        ) from error


def _answer(raw: bytes, where: str) -> Answer:
    try:
        row: Any = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where} is not JSON in UTF-8 ({error}); write the file anew") from error
    fields = {"category": "all", "unknown_evidence": [], **row} if isinstance(row, dict) else {}
    wrong = [name for name in ("trace", "question", "category") if not isinstance(fields.get(name), str)]
    wrong += [name for name in ("retrieved", "evidence", "unknown_evidence") if not _is_texts(fields.get(name))]
    index = fields.get("question_index")
    if type(index) is not int or index < 0:
        wrong.append("question_index")
    if wrong:
        raise InvalidInput(
            f"{where} has no usable {', '.join(wrong)}; an answer is an object with texts trace and question, a whole "
            "number question_index from 0, and lists of texts retrieved and evidence"
        )
    return Answer(
        trace=fields["trace"],
        question_index=fields["question_index"],
        question=fields["question"],
        retrieved=tuple(fields["retrieved"]),
        evidence=tuple(fields["evidence"]),
        unknown_evidence=tuple(fields["unknown_evidence"]),
        category=fields["category"],
    )


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)

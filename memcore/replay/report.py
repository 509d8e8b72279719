"""How is a replay told? One `Report`, as Markdown to read and as JSON with every figure unrounded.

Every mean stands beside its denominator. A figure that was not measured reads "n/a" in Markdown and null in JSON.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memcore.replay.loaders import encodable
from memcore.replay.metrics import NDCG_DEPTH, Difference, Evaluation, Interval, Percentiles, Scores, Tokens

TITLE = "memcore replay"
_SHOWN = 20  # rows of a list that may be long; JSON has all of them


@dataclass(frozen=True, slots=True)
class TraceCount:
    """How much one trace holds."""

    name: str
    events: int
    questions: int


@dataclass(frozen=True, slots=True)
class Compared:
    """What one of several relevances found, and how that differs from the first; None of the first itself."""

    relevance: str
    scores: Scores
    difference: Difference | None
    recall_s: Percentiles


@dataclass(frozen=True, slots=True)
class Report:
    """What a replay measured. Times are seconds, sizes bytes.

    `settings` holds what the replay ran with, as JSON values. `write_s` are the times of the write commits, `recall_s`
    those of the recalls, one a question. `compared` has all relevances that were asked, if several were.
    `rows_per_second` is events written over the time spent writing them.
    `tokens_k` is the k whose hits `tokens` counts. `problems` is what the loaders and the runner had to repair, skip or
    guess. `elapsed_s` is the whole replay, loading included.
    """

    traces: Sequence[TraceCount]
    settings: Mapping[str, Any]
    evaluation: Evaluation
    write_s: Percentiles
    recall_s: Percentiles
    compared: Sequence[Compared]
    rows_per_second: float | None
    bytes_on_disk: int | None
    bytes_in_memory: int | None
    tokens: Tokens
    tokens_k: int
    problems: Sequence[str]
    elapsed_s: float

    def to_json(self) -> str:
        """One JSON document: the fields above in their order, numbers unrounded, what is not finite null."""
        document = {"title": TITLE, **_plain(self)}
        return json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False) + "\n"

    def to_markdown(self) -> str:
        sections = (
            self._heading(),
            self._retrieval(),
            self._compared(),
            self._speed(),
            self._size(),
            self._settings(),
            self._traces(),
            self._problems(),
        )
        return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"

    def _heading(self) -> list[str]:
        events = sum(trace.events for trace in self.traces)
        questions = sum(trace.questions for trace in self.traces)
        counts = f"{_count(len(self.traces), 'trace')}, {_count(events, 'event')}, {_count(questions, 'question')}"
        return [f"# {TITLE}", "", f"{counts}; played in {self.elapsed_s:,.1f} s."]

    def _retrieval(self) -> list[str]:
        found = self.evaluation
        if not found.asked:
            return ["## Retrieval", "", "No question was asked."]
        counted = f"{found.overall.questions:,} of {found.asked:,} questions"
        lines = [
            "## Retrieval",
            "",
            f"{counted} have labelled evidence in their trace; all figures are means over these.",
        ]
        if found.left_out:
            reasons = "; ".join(f"{number:,} ({reason})" for reason, number in found.left_out.items())
            lines.append(f"Left out: {reasons}.")
        if found.unknown_evidence:
            lines.append(f"In no denominator: {_count(found.unknown_evidence, 'evidence id')} not in their traces.")
        lines += [
            "R@k: the share of a question's evidence among its first k retrieved. MRR: 1 / rank of the first evidence",
            f"among the {found.depth:,} retrieved at most. nDCG@{NDCG_DEPTH}: binary gain.",
            "In brackets: the 95 % interval, by bootstrap over questions.",
            "",
            _row("category", "questions", *(f"R@{k}" for k in found.ks), "MRR", f"nDCG@{NDCG_DEPTH}"),
            _rule(1, len(found.ks) + 3),
            *(_scores_row(name, scores) for name, scores in found.categories.items() if len(found.categories) > 1),
            _scores_row("**all**", found.overall, escape=False),
        ]
        return lines

    def _compared(self) -> list[str]:
        if not self.compared:
            return []
        ks = self.evaluation.ks
        lines = [
            "## Compared",
            "",
            _row("relevance", *(f"R@{k}" for k in ks), "MRR", f"nDCG@{NDCG_DEPTH}", "recall p50 ms"),
            _rule(1, len(ks) + 3),
        ]
        for each in self.compared:
            means = (*each.scores.recall.values(), each.scores.mrr, each.scores.ndcg)
            lines.append(_row(each.relevance, *(_number(mean, ".3f") for mean in means), _ms(each.recall_s.p50)))
        first = self.compared[0].relevance
        lines += ["", f"Beside {first}, question by question, with the 95 % interval:", ""]
        lines += [_row("relevance", *(f"R@{k}" for k in ks)), _rule(1, len(ks))]
        lines += [
            _row(
                each.relevance,
                *(_with_interval(each.difference.recall[k], each.difference.intervals[k], "+.3f") for k in ks),
            )
            for each in self.compared
            if each.difference is not None
        ]
        return lines

    def _speed(self) -> list[str]:
        return [
            "## Speed",
            "",
            _row("", "n", "p50 ms", "p95 ms", "p99 ms"),
            _rule(1, 4),
            *(
                _row(name, f"{times.n:,}", *(_ms(value) for value in (times.p50, times.p95, times.p99)))
                for name, times in (("write commit", self.write_s), ("recall", self.recall_s))
            ),
            "",
            f"Rows written per second: {_number(self.rows_per_second, ',.0f')}.",
        ]

    def _size(self) -> list[str]:
        tokens = self.tokens
        share = "n/a" if tokens.saved is None else f"{tokens.saved:.1%}"
        return [
            "## Size and tokens",
            "",
            _row("", "value"),
            _rule(1, 1),
            _row("bytes on disk", _number(self.bytes_on_disk, ",d")),
            _row("bytes in memory", _number(self.bytes_in_memory, ",d")),
            _row(f"tokens recalled per answer, k = {self.tokens_k}", _number(tokens.recalled, ",.0f")),
            _row("tokens of the whole history", _number(tokens.history, ",.0f")),
            _row("tokens saved", share),
            "",
            f"Tokens: means over {_count(tokens.answers, 'answer')}.",
        ]

    def _settings(self) -> list[str]:
        rows = [_row(_cell(name), _cell(_setting(value))) for name, value in self.settings.items()]
        return ["## Settings", "", _row("setting", "value"), _rule(2, 0), *rows] if rows else []

    def _traces(self) -> list[str]:
        shown = [_row(_cell(trace.name), f"{trace.events:,}", f"{trace.questions:,}") for trace in self.traces[:_SHOWN]]
        return [
            "## Traces",
            "",
            _row("trace", "events", "questions"),
            _rule(1, 2),
            *shown,
            *_more(self.traces, "trace"),
        ]

    def _problems(self) -> list[str]:
        if not self.problems:
            return ["## Problems", "", "None."]
        shown = [f"- {_cell(problem)}" for problem in self.problems[:_SHOWN]]
        return ["## Problems", "", *shown, *_more(self.problems, "problem")]


def _plain(value: Any) -> Any:
    """`value` as JSON values: dataclasses and mappings as objects, other sequences as lists, NaN and infinity as null,
    what JSON does not know as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {encodable(str(key)): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, int) else encodable(str(value))


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(_plain(value), ensure_ascii=False)


def _cell(text: str) -> str:
    """`text` on one line, as text: nothing of a trace's names can end a table cell or begin HTML."""
    line = " ".join(encodable(text).split())
    return line.replace("&", "&amp;").replace("<", "&lt;").replace("|", "\\|")


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _rule(left: int, right: int) -> str:
    """The line under a table's head: `left` columns of text, then `right` columns of numbers."""
    return _row(*["---"] * left, *["---:"] * right)


def _scores_row(name: str, scores: Scores, *, escape: bool = True) -> str:
    recalls = [_with_interval(scores.recall[k], scores.intervals[k], ".3f") for k in scores.recall]
    others = [_number(figure, ".3f") for figure in (scores.mrr, scores.ndcg)]
    return _row(_cell(name) if escape else name, f"{scores.questions:,}", *recalls, *others)


def _with_interval(mean: float | None, interval: Interval | None, form: str) -> str:
    ends = "" if interval is None else f" [{_number(interval.low, form)}, {_number(interval.high, form)}]"
    return _number(mean, form) + ends


def _number(value: float | None, form: str) -> str:
    return "n/a" if value is None or not math.isfinite(value) else format(value, form)


def _ms(seconds: float | None) -> str:
    return _number(None if seconds is None else seconds * 1000, ",.3f")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _more(items: Sequence[Any], what: str) -> Iterable[str]:
    hidden = len(items) - _SHOWN
    return (
        ("", f"… and {hidden:,} more {what if hidden == 1 else what + 's'}; the JSON report has all.")
        if hidden > 0
        else ()
    )

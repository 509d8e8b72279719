"""Build datasets/ops_agent.jsonl from the sources in datasets/ops_agent/.

    python datasets/build_ops_agent.py            write the trace
    python datasets/build_ops_agent.py --check    exit 1 if the committed trace differs

The sources are written by hand and hold labels; this program only parses them, numbers the
events in time order, turns labels into event ids, and refuses whatever would make a figure
measured on the trace wrong. It needs the standard library alone, and the same sources give
the same bytes. The source format is in datasets/README.md.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "ops_agent"
OUTPUT = HERE / "ops_agent.jsonl"
QUESTIONS = "questions.txt"

# São Paulo has had no daylight saving time since 2019, so a fixed offset is exact.
LOCAL = timezone(timedelta(hours=-3))

KINDS = {"e": "episodic", "s": "semantic", "p": "procedural", "w": "working"}
CATEGORIES = (
    "single_fact",
    "changed_fact",
    "recurring_pattern",
    "by_time",
    "cross_language",
    "unanswerable",
)
# Recall searches these two kinds unless told otherwise; evidence of another kind could not
# be found by a default recall however good the ranking is.
EVIDENCE_KINDS = ("episodic", "semantic")
# Greetings and thanks may repeat; anything weightier must be a text of its own.
TRIVIAL_IMPORTANCE = 0.2

HEADER = re.compile(r"^@ (?P<date>\d{4}-\d\d-\d\d) (?P<session>\S+) (?P<role>\S+)$")
EVENT = re.compile(
    r"^(?P<clock>\d\d:\d\d) (?P<kind>[espw]) (?P<importance>1|0?\.\d+)(?P<options>.*?) \| (?P<text>\S.*)$"
)
OPTION = re.compile(r"\s*(?:\{(?P<meta>[^}]*)\}|#(?P<label>[\w-]+)|(?P<name>key|role)=(?P<value>\S+))")
QUESTION = re.compile(r"^= (?P<category>\w+) \| (?P<time>\d{4}-\d\d-\d\d \d\d:\d\d) \|(?P<labels>[\w\s-]*)$")


class SourceError(Exception):
    """A source line that cannot be part of the trace; the message names the place."""


@dataclass
class Event:
    place: str
    time: datetime
    kind: str
    content: str
    session_id: str
    agent_role: str
    importance: float
    key: str | None = None
    label: str | None = None
    metadata: dict = field(default_factory=dict)
    event_id: str = ""

    def row(self) -> dict:
        out = {
            "event_id": self.event_id,
            "time": self.time.isoformat(),
            "kind": self.kind,
            "content": self.content,
            "session_id": self.session_id,
            "agent_role": self.agent_role,
            "importance": self.importance,
        }
        if self.key:
            out["key"] = self.key
        if self.metadata:
            out["metadata"] = self.metadata
        return out


@dataclass
class Question:
    place: str
    time: datetime
    category: str
    labels: list[str]
    question: str = ""
    answer: str | None = None

    def row(self, by_label: dict[str, Event]) -> dict:
        return {
            "question": self.question,
            "time": self.time.isoformat(),
            "evidence": sorted(by_label[label].event_id for label in self.labels),
            "category": self.category,
            "answer": self.answer,
        }


def parse_metadata(text: str, place: str) -> dict:
    out = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or not name or not value:
            raise SourceError(f"{place}: metadata is written {{name=value, name=value}}, got {text!r}")
        out[name] = value
    return out


def parse_events(path: Path) -> list[Event]:
    events: list[Event] = []
    header = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        place = f"{path.name}:{number}"
        if not line.strip() or line.startswith("# "):
            continue
        if line.startswith("@"):
            header = HEADER.match(line)
            if not header:
                raise SourceError(f"{place}: a session starts with '@ DATE SESSION ROLE', got {line!r}")
            continue
        match = EVENT.match(line)
        if not match or header is None:
            raise SourceError(
                f"{place}: an event is 'HH:MM kind importance options | text' under a session, got {line!r}"
            )
        event = Event(
            place=place,
            time=datetime.fromisoformat(f"{header['date']}T{match['clock']}:00").replace(tzinfo=LOCAL),
            kind=KINDS[match["kind"]],
            content=match["text"].strip(),
            session_id=header["session"],
            agent_role=header["role"],
            importance=float(match["importance"]),
        )
        rest = match["options"]
        while rest.strip():
            option = OPTION.match(rest)
            if not option:
                raise SourceError(
                    f"{place}: unknown option {rest.strip()!r}; allowed: key=, role=, #label, {{metadata}}"
                )
            if option["meta"] is not None:
                event.metadata = parse_metadata(option["meta"], place)
            elif option["label"]:
                event.label = option["label"]
            elif option["name"] == "key":
                event.key = option["value"]
            else:
                event.agent_role = option["value"]
            rest = rest[option.end() :]
        events.append(event)
    return events


def parse_questions(path: Path) -> list[Question]:
    questions: list[Question] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        place = f"{path.name}:{number}"
        if not line.strip() or line.startswith("# "):
            continue
        if line.startswith("="):
            match = QUESTION.match(line)
            if not match:
                raise SourceError(
                    f"{place}: a question starts with '= category | YYYY-MM-DD HH:MM | labels', got {line!r}"
                )
            questions.append(
                Question(
                    place=place,
                    time=datetime.fromisoformat(match["time"]).replace(tzinfo=LOCAL),
                    category=match["category"],
                    labels=match["labels"].split(),
                )
            )
        elif line.startswith("? ") and questions and not questions[-1].question:
            questions[-1].question = line[2:].strip()
        elif line.startswith("> ") and questions and questions[-1].answer is None:
            questions[-1].answer = line[2:].strip()
        else:
            raise SourceError(f"{place}: expected '= ', '? ' or '> ', once each for a question, got {line!r}")
    return questions


def check_events(events: list[Event]) -> None:
    labels: dict[str, str] = {}
    times: dict[datetime, str] = {}
    texts: dict[str, str] = {}
    for event in events:
        if not 0.0 <= event.importance <= 1.0:
            raise SourceError(f"{event.place}: importance must be in 0..1, got {event.importance}")
        needs_key = event.kind in ("semantic", "procedural")
        if needs_key != bool(event.key):
            raise SourceError(f"{event.place}: semantic and procedural events have a key, others have none")
        # Two events at one time would leave their order, and so their ids, to the file names.
        if event.time in times:
            raise SourceError(f"{event.place}: same time as {times[event.time]}")
        times[event.time] = event.place
        if event.label:
            if event.label in labels:
                raise SourceError(f"{event.place}: label {event.label!r} is also at {labels[event.label]}")
            labels[event.label] = event.place
        if event.importance > TRIVIAL_IMPORTANCE:
            text = " ".join(event.content.casefold().split())
            if text in texts:
                raise SourceError(f"{event.place}: same text as {texts[text]}")
            texts[text] = event.place


def check_questions(questions: list[Question], events: list[Event]) -> None:
    by_label = {event.label: event for event in events if event.label}
    asked: dict[str, str] = {}
    for q in questions:
        if q.category not in CATEGORIES:
            raise SourceError(f"{q.place}: category {q.category!r} is not one of {', '.join(CATEGORIES)}")
        if not q.question:
            raise SourceError(f"{q.place}: the question has no text")
        if q.question.casefold() in asked:
            raise SourceError(f"{q.place}: same question as {asked[q.question.casefold()]}")
        asked[q.question.casefold()] = q.place
        if q.category == "unanswerable":
            if q.labels or q.answer is not None:
                raise SourceError(f"{q.place}: an unanswerable question has no evidence and no answer")
            continue
        if not q.labels or q.answer is None:
            raise SourceError(f"{q.place}: a {q.category} question needs evidence and an answer")
        if len(set(q.labels)) != len(q.labels):
            raise SourceError(f"{q.place}: a label is given twice")
        if q.category == "recurring_pattern" and len(q.labels) < 2:
            raise SourceError(f"{q.place}: a recurring pattern has at least two events as evidence")
        for label in q.labels:
            event = by_label.get(label)
            if event is None:
                raise SourceError(f"{q.place}: no event has the label {label!r}")
            if event.time >= q.time:
                raise SourceError(f"{q.place}: evidence {label!r} is not earlier than the question")
            if event.kind not in EVIDENCE_KINDS:
                raise SourceError(
                    f"{q.place}: evidence {label!r} is {event.kind}; only {' and '.join(EVIDENCE_KINDS)} can be evidence"
                )
            # An upsert hides the old value from recall: it cannot be found, so it is no evidence.
            if event.key:
                for later in events:
                    if later.key == event.key and later.kind == event.kind and event.time < later.time <= q.time:
                        raise SourceError(
                            f"{q.place}: evidence {label!r} was replaced by {later.place} before the question"
                        )
            # A date asked in local time must be the same date for a reader who thinks in UTC.
            if q.category == "by_time" and event.time.date() != event.time.astimezone(UTC).date():
                raise SourceError(f"{q.place}: evidence {label!r} falls on another date in UTC")


def build(sources: Path = SOURCES) -> str:
    """The whole trace as text: events in time order, then questions in time order."""
    events: list[Event] = []
    for path in sorted(sources.glob("[0-9]*.txt")):
        events.extend(parse_events(path))
    questions = parse_questions(sources / QUESTIONS)
    check_events(events)
    check_questions(questions, events)
    events.sort(key=lambda event: event.time)
    for number, event in enumerate(events, 1):
        event.event_id = f"ev-{number:04d}"
    by_label = {event.label: event for event in events if event.label}
    # A stable sort: questions of the same minute keep the order of the file.
    questions.sort(key=lambda q: q.time)
    rows = [event.row() for event in events] + [q.row(by_label) for q in questions]
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build datasets/ops_agent.jsonl from its sources.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 if the file is not what the sources give"
    )
    args = parser.parse_args(argv)
    try:
        text = build()
    except SourceError as error:
        print(error, file=sys.stderr)
        return 1
    data = text.encode("utf-8")
    if args.check:
        if not OUTPUT.exists() or OUTPUT.read_bytes() != data:
            print(
                f"{OUTPUT.name} is not what the sources give; run: python datasets/build_ops_agent.py", file=sys.stderr
            )
            return 1
        return 0
    OUTPUT.write_bytes(data)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The shipped trace datasets/ops_agent.jsonl is what its sources give, and is fit to measure with."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

DATASETS = Path(__file__).resolve().parents[2] / "datasets"
TRACE = DATASETS / "ops_agent.jsonl"

KINDS = {"episodic", "semantic", "procedural", "working"}
CATEGORIES = {
    "single_fact",
    "changed_fact",
    "recurring_pattern",
    "by_time",
    "cross_language",
    "unanswerable",
}
EVENT_FIELDS = {
    "event_id",
    "time",
    "kind",
    "content",
    "session_id",
    "agent_role",
    "importance",
    "key",
    "metadata",
}

# Words that are frequent in one language and are no word of the other.
# fmt: off
PT = {
    "da", "do", "dos", "das", "que", "um", "uma", "para", "com", "não", "os", "na", "nos",
    "nas", "por", "ao", "mais", "foi", "ele", "ela", "quem", "qual", "quanto", "quantos",
    "como", "onde", "quando", "em", "é", "à", "às", "já", "só", "até", "seu", "sua", "pelo",
    "pela", "isso", "este", "esta", "sem",
}
EN = {
    "the", "of", "and", "to", "is", "for", "with", "on", "that", "it", "was", "by", "an", "at",
    "from", "we", "who", "which", "what", "how", "when", "why", "not", "are", "had", "has",
    "be", "this", "its", "into", "after", "before", "out", "did", "does", "there",
}
# fmt: on


def words(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+", text.casefold())


def language(text: str) -> str | None:
    """The language of a text, pt or en, or None where the words do not tell."""
    found = words(text)
    pt, en = sum(w in PT for w in found), sum(w in EN for w in found)
    return None if pt == en else "pt" if pt > en else "en"


def at(row: dict) -> datetime:
    return datetime.fromisoformat(row["time"])


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return [json.loads(line) for line in TRACE.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def events(rows) -> list[dict]:
    return [row for row in rows if "event_id" in row]


@pytest.fixture(scope="module")
def questions(rows) -> list[dict]:
    return [row for row in rows if "question" in row]


@pytest.fixture(scope="module")
def by_id(events) -> dict[str, dict]:
    return {event["event_id"]: event for event in events}


def run_builder(folder: Path, *args: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(folder / "build_ops_agent.py"), *args],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={"PYTHONIOENCODING": "utf-8"},
    )


@pytest.fixture
def copy(tmp_path) -> Path:
    """A copy of builder, sources and trace that a test may spoil."""
    shutil.copy(DATASETS / "build_ops_agent.py", tmp_path)
    shutil.copy(TRACE, tmp_path)
    shutil.copytree(DATASETS / "ops_agent", tmp_path / "ops_agent")
    return tmp_path


# --- the builder ----------------------------------------------------------------------------


def test_the_committed_trace_is_what_the_sources_give():
    done = run_builder(DATASETS, "--check")
    assert (done.returncode, done.stderr) == (0, "")


def test_check_reports_a_changed_trace_in_one_line(copy):
    trace = copy / "ops_agent.jsonl"
    trace.write_bytes(trace.read_bytes() + b"\n")
    done = run_builder(copy, "--check")
    assert done.returncode == 1
    assert done.stderr == ("ops_agent.jsonl is not what the sources give; run: python datasets/build_ops_agent.py\n")


def test_building_again_gives_the_same_bytes(copy):
    before = TRACE.read_bytes()
    (copy / "ops_agent.jsonl").unlink()
    assert run_builder(copy).returncode == 0
    assert (copy / "ops_agent.jsonl").read_bytes() == before
    assert b"\r" not in before
    assert before.endswith(b"}\n")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        # A later value of the same key makes the labelled evidence unreachable.
        (
            "@ 2026-05-31 extra triage\n18:00 s .5 key=vpn.endpoint | VPN moved again.\n",
            "evidence 'vpn-2' was replaced by 99-extra.txt:2 before the question",
        ),
        ("@ 2026-05-31 extra triage\n17:00 e .5 | Same minute.\n", "same time as "),
        ("@ 2026-05-31 extra triage\n18:00 e .5 #vpn-2 | Label taken.\n", "label 'vpn-2' is also at "),
        ("@ 2026-05-31 extra triage\n18:00 s .5 | No key.\n", "semantic and procedural events have a key"),
        (
            "@ 2026-05-31 extra triage\n18:00 e .5 | catalog-api 2.31.0 out in eleven minutes, error rate flat.\n",
            "same text as ",
        ),
        ("@ 2026-05-31 extra triage\n18:00 x .5 | No such kind.\n", "an event is 'HH:MM kind importance"),
    ],
    ids=["stale evidence", "same time", "same label", "no key", "same text", "no such kind"],
)
def test_a_wrong_event_is_refused_by_place(copy, source, message):
    (copy / "ops_agent" / "99-extra.txt").write_text(source, encoding="utf-8")
    done = run_builder(copy, "--check")
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("= trivia | 2026-06-03 12:00 | vpn-2\n? Which address?\n> One.\n", "category 'trivia' is not one of"),
        ("= single_fact | 2026-06-03 12:00 | nowhere\n? Which address?\n> One.\n", "no event has the label 'nowhere'"),
        ("= single_fact | 2026-03-03 12:00 | vpn-2\n? Which address?\n> One.\n", "is not earlier than the question"),
        ("= single_fact | 2026-06-03 12:00 | rb-disk-2\n? What first?\n> Volume.\n", "is procedural; only"),
        ("= unanswerable | 2026-06-03 12:00 | vpn-2\n? Which address?\n", "has no evidence and no answer"),
        ("= recurring_pattern | 2026-06-03 12:00 | vpn-2\n? Which?\n> One.\n", "at least two events"),
    ],
    ids=["category", "label", "time", "kind", "unanswerable", "one event"],
)
def test_a_wrong_question_is_refused_by_place(copy, source, message):
    path = copy / "ops_agent" / "questions.txt"
    path.write_text(path.read_text(encoding="utf-8") + "\n" + source, encoding="utf-8")
    done = run_builder(copy, "--check")
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.startswith("questions.txt:")


# --- the trace ------------------------------------------------------------------------------


def test_size_and_span(events, questions):
    assert len(events) >= 600
    assert len(questions) >= 80
    span = at(events[-1]) - at(events[0])
    assert 80 <= span.days <= 100


def test_events_come_first_and_both_are_in_time_order(rows, events, questions):
    assert rows == events + questions
    assert all(at(a) < at(b) for a, b in pairwise(events))
    assert all(at(a) <= at(b) for a, b in pairwise(questions))


def test_event_fields(events):
    assert len({event["event_id"] for event in events}) == len(events)
    assert [event["event_id"] for event in events] == sorted(event["event_id"] for event in events)
    for event in events:
        assert set(event) <= EVENT_FIELDS
        assert event["kind"] in KINDS
        assert at(event).tzinfo is not None
        assert event["content"].strip() == event["content"] != ""
        assert event["session_id"]
        assert event["agent_role"]
        assert 0.0 <= event["importance"] <= 1.0
        assert ("key" in event) == (event["kind"] in ("semantic", "procedural"))
        assert all(isinstance(v, (str, int, float, bool)) for v in event.get("metadata", {}).values())


def test_the_mix_of_kinds_roles_and_sessions(events):
    kinds = Counter(event["kind"] for event in events)
    assert set(kinds) == KINDS
    assert kinds["episodic"] > 0.75 * len(events)
    assert len({event["agent_role"] for event in events}) >= 4
    assert len({event["session_id"] for event in events}) >= 100
    changed = Counter(event["key"] for event in events if event["kind"] == "semantic")
    assert sum(count > 1 for count in changed.values()) >= 20


def test_question_fields_and_categories(questions):
    categories = Counter(q["category"] for q in questions)
    assert set(categories) == CATEGORIES
    assert min(categories.values()) >= 12
    assert len({q["question"].casefold() for q in questions}) == len(questions)
    for q in questions:
        assert set(q) == {"question", "time", "evidence", "category", "answer"}
        assert at(q).tzinfo is not None
        unanswerable = q["category"] == "unanswerable"
        assert (q["evidence"] == []) == unanswerable
        assert (q["answer"] is None) == unanswerable
        if q["category"] == "recurring_pattern":
            assert len(q["evidence"]) >= 2


def test_evidence_exists_precedes_the_question_and_can_be_recalled(questions, by_id):
    for q in questions:
        assert len(set(q["evidence"])) == len(q["evidence"])
        for event_id in q["evidence"]:
            assert at(by_id[event_id]) < at(q)
            assert by_id[event_id]["kind"] in ("episodic", "semantic")


def test_keyed_evidence_is_the_current_value(questions, events, by_id):
    for q in questions:
        for event_id in q["evidence"]:
            event = by_id[event_id]
            if "key" not in event:
                continue
            held = [
                e["event_id"]
                for e in events
                if e.get("key") == event["key"] and e["kind"] == event["kind"] and at(e) <= at(q)
            ]
            assert held[-1] == event_id, q["question"]


def test_some_questions_are_asked_in_the_middle_and_most_after_the_end(questions, events):
    early = sum(at(q) < at(events[-1]) for q in questions)
    assert 15 <= early < len(questions) / 2


def test_a_date_is_the_same_date_in_utc(questions, by_id):
    for q in questions:
        if q["category"] == "by_time":
            for event_id in q["evidence"]:
                time = at(by_id[event_id])
                assert time.date() == time.astimezone(UTC).date()


def test_both_languages_are_present(events, questions):
    for texts in ([e["content"] for e in events], [q["question"] for q in questions]):
        found = Counter(map(language, texts))
        known = found["pt"] + found["en"]
        assert known > 0.75 * len(texts)
        assert min(found["pt"], found["en"]) > 0.35 * known


def test_cross_language_questions_cross(questions, by_id):
    for q in questions:
        if q["category"] == "cross_language":
            for event_id in q["evidence"]:
                asked, told = language(q["question"]), language(by_id[event_id]["content"])
                assert asked is not None, q["question"]
                assert asked != told, (q["question"], by_id[event_id]["content"])


def test_variety(events):
    """No text is another one with the numbers changed, and no two are made of the same phrases."""
    texts = [e["content"] for e in events if e["kind"] == "episodic" and e["importance"] > 0.2]
    masked = Counter(re.sub(r"\d+", "0", text.casefold()) for text in texts)
    assert [text for text, count in masked.items() if count > 1] == []

    pairs = [set(pairwise(words(text))) for text in texts]
    for i, a in enumerate(pairs):
        for j in range(i):
            b = pairs[j]
            # Two words alone are too few to tell a template from a habit ("Daily summary").
            if min(len(a), len(b)) >= 3:
                assert len(a & b) <= 0.4 * len(a | b), (texts[i], texts[j])


def test_lengths_vary(events):
    lengths = [len(words(e["content"])) for e in events]
    assert min(lengths) <= 2
    assert max(lengths) >= 40
    assert sum(n >= 12 for n in lengths) > 0.5 * len(lengths)


def test_addresses_are_in_documentation_ranges(rows):
    for row in rows:
        for address in re.findall(r"\b\d{1,3}(?:\.\d{1,3}){3}\b", json.dumps(row)):
            assert address.startswith(("192.0.2.", "198.51.100.", "203.0.113.")), address


def test_the_readme_states_the_real_counts(events, questions):
    stated = dict(re.findall(r"^\| (\w+) \| (\d+) \|$", (DATASETS / "README.md").read_text(encoding="utf-8"), re.M))
    real = {"events": len(events), "questions": len(questions)}
    real |= Counter(event["kind"] for event in events) | Counter(q["category"] for q in questions)
    assert {name: int(count) for name, count in stated.items()} == real

"""A trace is played at its own times, asked in time, and its figures are those of what was retrieved."""

import json
from datetime import UTC, datetime

import pytest

import memcore
from locomo import LOCOMO, needs_locomo
from memcore.replay import loaders, metrics, runner
from memcore.replay.trace import Event, Question, Trace

HOUR = 3_600_000_000
START = int(datetime(2026, 3, 1, tzinfo=UTC).timestamp()) * 1_000_000


def event(name, hours, content, **fields):
    return Event(name, START + hours * HOUR, content, **fields)


def played(trace, ks=(1, 3), **settings):
    with memcore.open(embedder="hashed") as mem:
        report, answers = runner.play([trace], mem, runner.Settings(ks=ks, **settings))
        return report, answers, mem.scope("replay", trace.name).list()


TRACE = Trace(
    "ops",
    events=(
        event("e1", 0, "the billing database ran out of disk", importance=0.9),
        event("e2", 1, "billing owner is Marta", kind="semantic", key="billing-owner"),
        event("e3", 30, "billing owner is Rui", kind="semantic", key="billing-owner"),
        event("e4", 31, "good morning", importance=0.1),
    ),
    questions=(
        Question(0, "who owns billing?", evidence=("e2",), time=START + 2 * HOUR, category="fact"),
        Question(1, "who owns billing?", evidence=("e3",), category="fact"),
        Question(2, "which database ran out of disk?", evidence=("e1",), category="incident"),
        Question(3, "what is the weather?", answerable=False, category="unanswerable"),
    ),
    problems=("line 7 is not JSON",),
)


def test_a_question_is_asked_at_its_time_and_sees_what_stood_then():
    _, answers, _ = played(TRACE, weights=(1, 0, 0))
    assert [a.question_index for a in answers] == [0, 1, 2, 3]
    assert set(answers[0].retrieved) == {"e1", "e2"}  # e3 and e4 had not happened
    assert answers[0].retrieved[0] == "e2"
    assert "e2" not in answers[1].retrieved  # superseded under its key
    assert answers[1].retrieved[0] == "e3"
    assert answers[2].retrieved[0] == "e1"


def test_the_clock_is_the_traces_own():
    _, _, records = played(TRACE)
    assert [r.ingested_at for r in records] == [r.event_time for r in records]
    assert [r.metadata["event_id"] for r in records] == ["e1", "e3", "e4"]
    assert records[0].importance == 0.9


def test_ages_are_counted_to_the_question_not_to_now():
    late = Trace("t", TRACE.events, (Question(0, "disk", ("e1",), time=START + 69 * HOUR),))
    with memcore.open(embedder="hashed") as mem:
        runner.play([late], mem, runner.Settings(ks=(5,), decay_rate="default"))
        hit = next(
            h for h in mem.scope("replay", "t").recall("disk", now=(START + 69 * HOUR) / 1e6) if "disk" in h.content
        )
    assert hit.age_hours == 69
    assert hit.recency_component == pytest.approx(0.5, abs=2e-3)


def test_the_report_counts_and_its_figures_follow_from_the_answers():
    report, answers, _ = played(TRACE)
    assert report.evaluation == metrics.evaluate(answers, (1, 3))
    assert (report.evaluation.asked, report.evaluation.overall.questions) == (4, 3)
    assert report.evaluation.left_out == {metrics.UNANSWERABLE: 1}
    assert (report.write_s.n, report.recall_s.n) == (4, 4)
    assert report.problems == ["ops: line 7 is not JSON"]
    assert report.bytes_on_disk is None
    assert report.bytes_in_memory > 0
    document = json.loads(report.to_json())
    assert document["settings"]["weights"] == [1, 0, 0]  # relevance alone
    assert document["settings"]["relevance"] == "hybrid"
    assert document["settings"]["decay_rate per hour"] == 0.01


def test_tokens_recalled_are_those_of_the_best_hits_against_the_history_so_far():
    report, answers, _ = played(TRACE, ks=(1, 3))
    sizes = {e.event_id: -(-len(e.content) // 4) for e in TRACE.events}
    assert report.tokens_k == 1
    assert answers[0].tokens_history == sizes["e1"] + sizes["e2"]
    assert answers[1].tokens_history == sum(sizes.values())
    assert answers[1].tokens_recalled == sizes[answers[1].retrieved[0]]
    assert runner.tokens_k((5, 10, 25)) == 10


def test_working_memory_becomes_episodic_when_its_session_is_over():
    events = (
        event("w1", 0, "checkout is slow", kind="working", session_id="s1"),
        event("x", 1, "unrelated", session_id="s2"),
        event("w2", 2, "checkout is fine again", kind="working", session_id="s1"),
        event("w3", 3, "new topic", kind="working", session_id="s2"),
    )
    questions = (Question(0, "checkout", ("w1",), time=START + HOUR), Question(1, "checkout", ("w1", "w2")))
    _, answers, records = played(Trace("t", events, questions), ks=(5,))
    assert set(answers[0].retrieved) == {"x"}
    assert {"w1", "w2"} <= set(answers[1].retrieved)
    assert {r.kind for r in records} == {"episodic"}


def test_an_event_that_memory_refuses_is_told_and_the_rest_is_played():
    trace = Trace(
        "t", (event("bad", 0, "x", importance=7.0), event("good", 1, "fine")), (Question(0, "fine", ("good",)),)
    )
    report, answers, records = played(trace)
    assert [r.content for r in records] == ["fine"]
    assert answers[0].retrieved == ("good",)
    assert report.problems == [
        "t: event 'bad' was not remembered: importance is 7; it must be in [0, 1]: divide a rating of 1 to 10 by 10"
    ]


def test_a_question_that_cannot_be_asked_keeps_its_place_in_the_denominator():
    trace = Trace("t", (event("e", 0, "fine"),), (Question(0, "bad \ud800 text", ("e",)), Question(1, "fine", ("e",))))
    report, answers, _ = played(trace)
    assert answers[0].retrieved == ()
    assert report.evaluation.overall.recall[1] == 0.5
    assert "question 0 could not be asked" in report.problems[0]


def test_two_traces_do_not_see_each_other():
    other = Trace(
        "other", (event("o1", 0, "the billing database is on fire"),), (Question(0, "billing database", ("o1",)),)
    )
    with memcore.open(embedder="hashed") as mem:
        report, answers = runner.play([TRACE, other], mem, runner.Settings(ks=(50,)))
    assert [a.trace for a in answers] == ["ops"] * 4 + ["other"]
    assert answers[-1].retrieved == ("o1",)
    assert [t.events for t in report.traces] == [4, 1]


def test_a_store_that_holds_the_trace_already_is_refused(tmp_path):
    with memcore.open(tmp_path / "m", embedder="hashed") as mem:
        report, _ = runner.play([TRACE], mem, runner.Settings())
        assert report.bytes_on_disk > 0
    with memcore.open(tmp_path / "m", embedder="hashed") as mem:
        with pytest.raises(memcore.InvalidInput) as raised:
            runner.play([TRACE], mem, runner.Settings())
        assert str(raised.value) == (
            "the store already holds memories of the trace 'ops'; they would be found too: replay into an empty "
            "directory, or without --store"
        )


def test_no_trace_is_an_error():
    with memcore.open(embedder="hashed") as mem, pytest.raises(memcore.InvalidInput, match="no trace to play"):
        runner.play([], mem, runner.Settings())


def test_progress_counts_every_event_and_question():
    seen = []
    with memcore.open(embedder="hashed") as mem:
        runner.play(
            [TRACE], mem, runner.Settings(), progress=lambda done, total, label: seen.append((done, total, label))
        )
    assert seen == [(i, 8, "ops") for i in range(1, 9)]


def test_a_replay_gives_the_same_answers_each_time():
    lines = [[metrics.answers_line(a) for a in played(TRACE)[1]] for _ in range(2)]
    assert lines[0] == lines[1]


@needs_locomo
def test_locomo_runs_whole_and_anyones_recomputation_gives_the_printed_figures(tmp_path):
    with memcore.open() as mem:
        report, answers = runner.play(loaders.load(LOCOMO), mem, runner.Settings())
    path = tmp_path / "a.jsonl"
    path.write_text("".join(metrics.answers_line(a) + "\n" for a in answers), encoding="utf-8")
    raw = {item["sample_id"]: item["qa"] for item in json.loads(LOCOMO.read_bytes())}
    recalls = {k: [] for k in (5, 10, 25, 50)}
    asked = 0
    for line in path.read_bytes().splitlines():
        row = json.loads(line)
        assert raw[row["trace"]][row["question_index"]]["question"] == row["question"]
        asked += 1
        for k, values in recalls.items():
            if row["evidence"]:
                values.append(len(set(row["retrieved"][:k]) & set(row["evidence"])) / len(row["evidence"]))
    assert asked == sum(map(len, raw.values()))
    for k, values in recalls.items():
        assert report.evaluation.overall.recall[k] == pytest.approx(sum(values) / len(values), abs=1e-12)

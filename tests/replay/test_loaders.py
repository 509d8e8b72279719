"""Each format's rules over tiny invented files; nothing but MemcoreError for anything else."""

import codecs
import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from locomo import LOCOMO, needs_locomo
from memcore.errors import InvalidInput, MemcoreError
from memcore.replay import loaders
from memcore.replay.loaders import FORMATS, load
from memcore.replay.trace import Event, Question

NAMES = "jsonl, locomo, longmemeval, chat, git, parquet"
PASS = f"pass a recorded trace, one of: {NAMES}"  # how messages about a path end
NAME = f"pass format=, one of: {NAMES}"  # about a format that cannot be told
MEND = f"mend the file or name its format, one of: {NAMES}"  # about a file without an event


def us(*parts):
    """A UTC date as µs since the epoch."""
    return int(datetime(*parts, tzinfo=UTC).timestamp()) * 1_000_000


@pytest.fixture
def write(tmp_path):
    """Writes a file of bytes, text, or JSON, and returns its path."""

    def write(name, value):
        path = tmp_path / name
        if isinstance(value, str):
            value = value.encode()
        path.write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())
        return path

    return write


@pytest.fixture
def lines(write):
    """Writes a .jsonl file of the given objects and loads its one trace."""

    def lines(*rows, **options):
        text = "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
        return one(load(write("t.jsonl", text), **options))

    return lines


def one(traces):
    assert len(traces) == 1
    return traces[0]


def event(name="e1", time=1000, content="tea", **more):
    return {"event_id": name, "time": time, "content": content, **more}


GOOD = event("good")


# --- what load refuses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: load(d / "no.json"), f"'DIR/no.json' cannot be read: No such file or directory; {PASS}"),
        (lambda d: load(f"{d}/a\0b"), f"'DIR/a\\x00b' cannot be read: no file can have such a name; {PASS}"),
        (lambda d: load("\ud800"), f"'\\ud800' cannot be read: no file can have such a name; {PASS}"),
        (lambda d: load(5), "path is 5 (int); pass a str or pathlib.Path"),
        (lambda d: load(d, "jsonl"), f"'DIR' cannot be read: Is a directory; {PASS}"),
        (lambda d: load(d, "locomo"), f"'DIR' cannot be read: Is a directory; {PASS}"),
        (lambda d: load(d, "xml"), f"format 'xml' is not known; pass auto or one of: {NAMES}"),
        (lambda d: load(d, limit=0), "limit is 0; it must be at least 1"),
        (lambda d: load(d, limit=True), "limit is True (bool); it must be a whole number of at least 1"),
        (lambda d: load(d), f"cannot tell the format of 'DIR': a directory that is no git repository; {NAME}"),
        (lambda d: load(d, "git"), "'DIR' is no git repository: it has no .git and is not bare; pass its top folder"),
    ],
)
def test_a_wrong_call_is_an_error_word_for_word(tmp_path, call, message):
    with pytest.raises(InvalidInput) as error:
        call(tmp_path)
    assert str(error.value) == message.replace("DIR", str(tmp_path))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt", b"x", f"cannot tell the format of PATH: a file named *.txt; {NAME}"),
        ("a", b"x", f"cannot tell the format of PATH: a file without a suffix; {NAME}"),
        (
            "a.json",
            b'{"x": 1}',
            f"cannot tell the format of PATH: JSON that starts with {{'x': 1}} (dict); {NAME}",
        ),
        ("a.json", b"[]", f"cannot tell the format of PATH: an empty JSON list; {NAME}"),
        ("a.json", b"", f"PATH is empty (0 bytes); {PASS}"),
        ("a.jsonl", b"", f"PATH is empty (0 bytes); {PASS}"),
        ("a.jsonl", b"\n", f"PATH read as jsonl has no valid event (it is empty); {MEND}"),
        (
            "a.jsonl",
            b"{}\n5",
            (
                "PATH read as jsonl has no valid event (problems: 2, the first: line 1: {} (dict) is no object "
                f'with "content" or "question"; skipped); {MEND}'
            ),
        ),
        (
            "a.json",
            b'{"a": 1}\n{"a": 2}',
            (
                "PATH cannot be read: not JSON: Extra data at character 10; a file of one JSON object a line is named "
                '.jsonl or read with format="jsonl"'
            ),
        ),
        (
            "a.json",
            b"\xff\xfe[",
            (
                "PATH cannot be read: not UTF-8: byte 0xff at offset 0; a file of one JSON object a line is named "
                '.jsonl or read with format="jsonl"'
            ),
        ),
        (
            "a.json",
            b'[{"conversation": {}}]',
            (
                "PATH read as locomo has no valid event (problems: 1, the first: qa is None (NoneType) and not a list; "
                f"no questions); {MEND}"
            ),
        ),
    ],
)
def test_a_wrong_file_is_an_error_word_for_word(write, name, data, message):
    path = write(name, data)
    with pytest.raises(InvalidInput) as error:
        load(path)
    assert str(error.value) == message.replace("PATH", repr(str(path)))


def test_what_is_no_parquet_is_an_error_with_arrows_reason(write):
    path = write("a.parquet", b"junk")
    with pytest.raises(InvalidInput) as error:
        load(path)
    assert str(error.value).startswith(f"{str(path)!r} cannot be read as Parquet: Parquet ")
    assert str(error.value).endswith("; write it anew or pass another format")


def test_formats_are_those_of_the_command_line():
    assert FORMATS == ("jsonl", "locomo", "longmemeval", "chat", "git", "parquet")
    assert set(loaders._LOADERS) == set(FORMATS)


@pytest.mark.parametrize(
    ("name", "value", "events"),
    [
        ("t.jsonl", event(), 1),
        ("t.NDJSON", event(), 1),
        ("t.jsonl", {"role": "user", "content": "hi"}, 1),
        ("t.jsonl", {"messages": [{"role": "user", "content": "hi"}]}, 1),
        ("t.jsonl", {"conversation": {"session_1": [{"speaker": "A", "dia_id": "D1:1", "text": "x"}]}, "qa": []}, 1),
        ("t.json", {"conversation": {"session_1": [{"speaker": "A", "dia_id": "D1:1", "text": "x"}]}, "qa": []}, 1),
        ("t.JSON", [7, {"question_id": "q", "haystack_sessions": [[{"role": "user", "content": "x"}]]}], 1),
        ("t.json", [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}], 2),
        ("t.json", [[{"role": "user", "content": "hi"}], [{"role": "user", "content": "ho"}]], 2),
        ("t.json", [{"chat_messages": [{"sender": "human", "text": "hi"}]}], 1),
    ],
)
def test_auto_tells_the_format_by_name_and_shape(write, name, value, events):
    assert len(one(load(write(name, value))).events) == events


def test_text_is_utf8_whatever_the_locale(write):
    path = write("t.jsonl", json.dumps(event(content="água 🦊"), ensure_ascii=False))
    code = f"from memcore.replay.loaders import load; print(ascii(load({str(path)!r})[0].events[0].content))"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True)
    assert done.stdout.decode().strip() == ascii("água 🦊")


# --- jsonl ----------------------------------------------------------------------------------------------------------


def test_jsonl_reads_every_field(lines):
    trace = lines(
        event("b", 2.5, kind="semantic", session_id="s", agent_role="r", importance=1, key="k", metadata={"host": "w"}),
        event("a", "1970-01-01T00:00:01-00:30"),
        event(3, 2),
        {"question": "q?", "time": 9, "evidence": ["b", 3, "b"], "category": 7, "answer": 2022},
        {"question": "r?", "evidence": "a"},
    )
    assert trace.name == "t.jsonl"
    assert trace.events == (
        Event("3", 2_000_000, "tea"),
        Event("b", 2_500_000, "tea", "semantic", "s", "r", 1.0, "k", {"host": "w"}),
        Event("a", 1_801_000_000, "tea"),
    )
    assert trace.questions == (
        Question(0, "q?", ("b", "3"), time=9_000_000, category="7", answer="2022"),
        Question(1, "r?", ("a",)),
    )
    assert trace.problems == ()


def test_jsonl_events_stand_in_time_order_and_file_order_within_one_time(lines):
    trace = lines(event("c", 5), event("a", 5), event("b", 1))
    assert [e.event_id for e in trace.events] == ["b", "c", "a"]


def test_case_M5_unicode_line_ends_are_data(write):
    content = "a\u2028b\u0085c\u000bd\u2029e"
    rows = [{"role": "user", "content": text} for text in ("one", content, "three")]
    raw = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    trace = one(load(write("chat.jsonl", raw)))
    assert [e.content for e in trace.events] == ["one", content, "three"]
    rows = [event(i, content=text) for i, text in enumerate(("one", content, "three"))]
    trace = one(load(write("events.jsonl", "\n".join(json.dumps(row, ensure_ascii=False) for row in rows))))
    assert [e.content for e in trace.events] == ["one", content, "three"]
    assert trace.problems == ()


def test_case_M7_crlf_blank_lines_and_no_final_newline(write):
    rows = [json.dumps(event(f"e{i}")) for i in (1, 2, 3)]
    path = write("t.jsonl", codecs.BOM_UTF8.decode() + rows[0] + "\r\n\r\n" + rows[1] + "\r\n   \r\n" + rows[2])
    trace = one(load(path))
    assert [e.event_id for e in trace.events] == ["e1", "e2", "e3"]
    assert {e.content for e in trace.events} == {"tea"}
    assert trace.problems == ()


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("{oops\n", "line 2: not JSON: Expecting property name enclosed in double quotes at character 2; skipped"),
        ('{"content": NaN}\n', "line 2: not JSON: NaN is no JSON number; skipped"),
        ("9" * 5000 + "\n", "line 2: not JSON: Exceeds the limit (4300 digits) for integer string conversion"),
        ("[" * 100_000 + "\n", "line 2: not JSON that can be read: nested too deeply; skipped"),
        ("[1]\n", 'line 2: [1] (list) is no object with "content" or "question"; skipped'),
        (event(content=7), "line 2: content is 7 (int) and not text; event skipped"),
        (event(content="\u200b \n"), "line 2: content is blank ('\\u200b \\n'); "),
        (event(content="a\0"), "line 2: content holds a NUL character at index 1; "),
        (event(content="a\ud800"), "line 2: content holds a lone surrogate (U+D800 at index 1)"),
        ({"event_id": "e", "content": "x"}, "line 2: time is missing; event skipped"),
        (event(time="2023-05-08T13:56"), "line 2: time is '2023-05-08T13:56', which has no zone; "),
        (event(time="soon"), "line 2: time is 'soon'; give ISO 8601 with a zone such as "),
        (event(time=1683554160000), "line 2: time is 1683554160000 seconds, later than the year 9999; "),
        (event(time=True), "line 2: time is True (bool); "),
        (event(time=[1]), "line 2: time is [1] (list); "),
        (event(time="0001-01-01T00:00:00+01:00"), "line 2: time is 0001-01-01T00:00:00+01:00, which is "),
        (event("good"), "line 2: event id 'good' was used before; event skipped"),
        ({"question": ["q"]}, "line 2: question is ['q'] (list) and not text; question skipped"),
        ({"question": " "}, "line 2: question is blank (' '); "),
    ],
)  # fmt: skip
def test_jsonl_a_bad_line_is_reported_and_the_others_are_read(lines, row, problem):
    trace = lines(GOOD, row, event("last"))
    assert [e.event_id for e in trace.events] == ["good", "last"]
    assert trace.questions == ()
    assert one(trace.problems).startswith(problem)


@pytest.mark.parametrize(
    ("fields", "expected", "problem"),
    [
        ({"event_id": None}, {"event_id": "line-1"}, "line 1: event_id is missing; 'line-1' is used"),
        ({"event_id": " "}, {"event_id": "line-1"},
         "line 1: event_id is ' ' (str) and not a text of 1 to 512 characters; 'line-1' is used"),
        ({"kind": "dream"}, {"kind": "episodic"},
         "line 1: kind is 'dream' (str) and not one of working, episodic, semantic, procedural; episodic is used"),
        ({"session_id": [1]}, {"session_id": "default"},
         "line 1: session_id is [1] (list) and not a text of 1 to 512 characters; 'default' is used"),
        ({"agent_role": "\ud800"}, {"agent_role": "default"},
         "line 1: agent_role is '\\ud800' (str) and not a text of 1 to 512 characters; 'default' is used"),
        ({"key": ""}, {"key": None}, "line 1: key is '' (str) and not a text of 1 to 512 characters; left out"),
        ({"importance": 7}, {"importance": None},
         "line 1: importance is 7 (int) and not a number from 0 to 1; the default is used"),
        ({"importance": True}, {"importance": None},
         "line 1: importance is True (bool) and not a number from 0 to 1; the default is used"),
        ({"metadata": "x"}, {"metadata": {}}, "line 1: metadata is 'x' (str) and not a JSON object; left out"),
        ({"metadata": {"a": ["\0"]}}, {"metadata": {}}, "line 1: metadata.a[0] holds a NUL character"),
        ({"colour": 1}, {}, "field 'colour' is not of the format; left out in 1 lines"),
    ],
)  # fmt: skip
def test_jsonl_a_wrong_optional_field_keeps_the_event(lines, fields, expected, problem):
    trace = lines(event() | fields)
    read = one(trace.events)
    assert {name: getattr(read, name) for name in expected} == expected
    assert one(trace.problems).startswith(problem)


@pytest.mark.parametrize(
    ("fields", "answerable"),
    [
        ({"evidence": [], "category": "unanswerable"}, False),
        ({"category": "unanswerable"}, False),
        ({"evidence": [], "answer": None}, False),
        ({"evidence": []}, True),
        ({"answer": None}, True),
        ({"evidence": ["good"], "category": "unanswerable"}, True),
        ({"evidence": ["gone"], "answer": None}, True),
    ],
)
def test_jsonl_which_questions_are_unanswerable(lines, fields, answerable):
    assert one(lines(GOOD, {"question": "q", **fields}).questions).answerable is answerable


def test_jsonl_questions_keep_their_place_and_unknown_evidence(lines):
    trace = lines(
        {"question": "before its event", "evidence": ["good", "gone", ["x"], "gone"]},
        {"question": "", "evidence": []},
        {"question": "late", "time": "never"},
        GOOD,
    )
    assert trace.questions == (
        Question(0, "before its event", ("good",), ("gone", "['x'] (list)")),
        Question(2, "late"),
    )
    assert trace.problems[0] == "line 1: evidence not in the trace: 'gone', \"['x'] (list)\""
    assert trace.problems[2].endswith("; the question is asked after the last event")
    assert len(trace.problems) == 3


def test_limit_keeps_the_earliest_events_and_tells_what_evidence_is_cut(lines):
    rows = [event("late", 9), event("b", 2), event("a", 1)]
    asked = [{"question": "q", "evidence": e} for e in (["a"], ["a", "late", "gone"], ["late"], [])]
    trace = lines(*rows, *asked, limit=2)
    assert [e.event_id for e in trace.events] == ["a", "b"]
    assert [(q.evidence, q.unknown_evidence) for q in trace.questions] == [
        (("a",), ()),
        (("a",), ("gone", "late")),
        ((), ("late",)),
        ((), ()),
    ]
    assert trace.problems[-1] == (
        "limit 2: the 1 latest events are left out; 1 questions lost all of their evidence, 1 a part of it"
    )
    assert lines(*rows, *asked, limit=3) == lines(*rows, *asked)


# --- LoCoMo ---------------------------------------------------------------------------------------------------------


def turn(name, text="hi", speaker="Ana", **more):
    return {"speaker": speaker, "dia_id": name, "text": text, **more}


def locomo(*qa, **conversation):
    conversation = conversation or {
        "session_1": [turn(f"D1:{i}") for i in (1, 2, 3)],
        "session_1_date_time": "1:56 pm on 8 May, 2023",
    }
    return {"sample_id": "c1", "conversation": {"speaker_a": "Ana", **conversation}, "qa": list(qa)}


def ask(evidence=(), category=4, **more):
    return {"question": "q?", "evidence": list(evidence), "category": category, **more}


def test_case_M1_questions_without_an_answer_key(write):
    trace = one(
        load(
            write(
                "l.json",
                locomo(
                    ask(answer="blue"),
                    ask(category=5, adversarial_answer="red", evidence=["D1:1"]),
                    ask(category=2),
                    ask(category=1, answer=2022),
                    ask(category=5, adversarial_answer="red", answer="green"),
                ),
            )
        )
    )
    assert [(q.index, q.answer, q.answerable, q.category) for q in trace.questions] == [
        (0, "blue", True, "4 single-hop"),
        (1, None, False, "5 adversarial"),
        (2, None, True, "2 temporal"),
        (3, "2022", True, "1 multi-hop"),
        (4, None, False, "5 adversarial"),
    ]
    assert trace.questions[1].evidence == ("D1:1",)
    assert trace.problems == ("question 2: neither answer nor adversarial_answer; kept without an answer",)


@pytest.mark.parametrize(
    ("evidence", "known", "unknown"),
    [
        (["D9:99"], (), ("D9:99",)),
        (["D1:2; D1:3"], ("D1:2", "D1:3"), ()),
        (["D1:3 D1:2,D1:3"], ("D1:3", "D1:2"), ()),
        ([], (), ()),
        ("D1:2", ("D1:2",), ()),
        (["D1:1", "D:11:26", "D1:03", "D"], ("D1:1",), ("D:11:26", "D1:03", "D")),
        (["D1:1; D:2", 5, None, ["D1:2"]], ("D1:1",), ("D:2", "5", "None (NoneType)", "['D1:2'] (list)")),
        (["D1:1", "D1:1"], ("D1:1",), ()),
        (["(D1:2)"], ("D1:2",), ()),
    ],
)
def test_case_M3_evidence_is_split_and_what_is_unknown_reported(write, evidence, known, unknown):
    trace = one(load(write("l.json", [locomo(ask(answer="x") | {"evidence": evidence})])))
    question = one(trace.questions)
    assert (question.evidence, question.unknown_evidence) == (known, unknown)
    expected = (f"question 0: evidence not in the trace: {', '.join(map(repr, unknown))}",) if unknown else ()
    assert trace.problems == expected


def test_locomo_an_id_of_another_form_is_taken_whole(write):
    trace = one(load(write("l.json", locomo(ask(["t 1"], answer="x"), session_1=[turn("t 1")]))))
    assert one(trace.questions).evidence == ("t 1",)


def test_case_M13_sessions_in_numeric_order_dated_from_their_own_session(write):
    conversation = {
        "session_1": [turn("D1:1")],
        "session_1_date_time": "3:07 pm on 2 June, 2031",
        "session_10": [turn("D10:1"), turn("D10:2")],
        "session_10_date_time": "12:00 am on 1 January, 2031",
        "session_2": [turn("D2:1")],
        "session_2_date_time": "12:30 pm on 3 June, 2031",
        "session_3": [turn("D3:1")],
        "session_4_date_time": "1:00 pm on 4 June, 2031",
    }
    trace = one(load(write("l.json", locomo(**conversation))))
    assert {e.event_id: e.time for e in trace.events} == {
        "D1:1": us(2031, 6, 2, 15, 7),
        "D2:1": us(2031, 6, 3, 12, 30),
        "D3:1": us(2031, 6, 3, 12, 30),  # that of session 2
        "D10:1": us(2031, 1, 1),
        "D10:2": us(2031, 1, 1),
    }
    assert [e.event_id for e in trace.events] == ["D10:1", "D10:2", "D1:1", "D2:1", "D3:1"]
    assert trace.problems == (
        (
            "sessions without a readable date take that of the nearest earlier session that has one, else of the "
            "nearest later: session_3 (no date)"
        ),
        "sessions without turns: session_4",
    )
    same_day = {key: value for key, value in conversation.items() if not key.endswith("date_time")}
    trace = one(load(write("l.json", locomo(**same_day, session_1_date_time="3:07 pm on 2 June, 2031"))))
    assert [e.event_id for e in trace.events] == ["D1:1", "D2:1", "D3:1", "D10:1", "D10:2"]


def test_locomo_dates_that_cannot_be_read(write):
    conversation = {
        "session_1": [turn("D1:1")],
        "session_1_date_time": "13:00 pm on 8 May, 2023",
        "session_2": [turn("D2:1")],
        "session_2_date_time": " 1:05 AM on 29 february 2024",
        "session_3": [turn("D3:1")],
        "session_3_date_time": "1:05 am on 30 February, 2024",
        "session_4": [turn("D4:1")],
        "session_4_date_time": 7,
    }
    trace = one(load(write("l.json", locomo(**conversation))))
    assert {e.time for e in trace.events} == {us(2024, 2, 29, 1, 5)}
    assert [e.metadata.get("session_date") for e in trace.events] == [
        "13:00 pm on 8 May, 2023",
        " 1:05 AM on 29 february 2024",
        "1:05 am on 30 February, 2024",
        None,
    ]
    assert one(trace.problems).endswith(
        "later: session_1 ('13:00 pm on 8 May, 2023' (str)), session_3 ('1:05 am on 30 February, 2024' (str)), "
        "session_4 (7 (int))"
    )
    trace = one(load(write("l.json", locomo(session_2=[turn("D2:1")], session_1=[turn("D1:1")]))))
    assert [(e.event_id, e.time) for e in trace.events] == [("D1:1", us(2000, 1, 1)), ("D2:1", us(2000, 1, 1))]
    assert trace.problems == (
        (
            "no session has a readable date; all turns stand at 2000-01-01T00:00Z: session_1 (no date), session_2 (no "
            "date)"
        ),
    )


def test_locomo_a_turn_becomes_an_event(write):
    turns = [
        turn("D1:1", "look", blip_caption="a photo of tea", img_url=["http://x/y.jpg"], query="tea"),
        turn("D1:2", "", blip_caption="a cup"),
        turn("D1:3", "x" * 3000),
    ]
    trace = one(load(write("l.json", locomo(session_1=turns, session_1_date_time="1:56 pm on 8 May, 2023"))))
    assert trace.name == "c1"
    assert trace.events[0] == Event(
        "D1:1",
        us(2023, 5, 8, 13, 56),
        "Ana: look [a photo of tea]",
        session_id="session_1",
        metadata={"speaker": "Ana", "session_date": "1:56 pm on 8 May, 2023", "img_url": ["http://x/y.jpg"]},
    )
    assert trace.events[1].content == "Ana:  [a cup]"
    assert trace.events[2].content == "Ana: " + "x" * 3000
    assert trace.problems == ()


def test_locomo_what_is_broken_is_reported(write):
    conversation = {
        "session_1": [turn("D1:1"), turn("D1:1"), turn(None), turn("D1:4", " "), 7, turn("D1:6", speaker=None)],
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_2": "text",
        "session_2_date_time": "1:56 pm on 9 May, 2023",
    }
    first = locomo({"question": 5}, "row", ask(category=True, answer="x"), {"question": "q"}, **conversation)
    second = locomo() | {"qa": None}
    third = {"conversation": second["conversation"], "qa": []}
    traces = load(write("l.json", ["stray", first, second, third]))
    assert [trace.name for trace in traces] == ["c1", "c1#2", "l.json#4"]
    assert [e.event_id for e in traces[0].events] == ["D1:1", "session_1:2", "D1:6"]
    assert [(q.index, q.category) for q in traces[0].questions] == [(2, "all"), (3, "all")]
    assert traces[0].problems == (
        "entry 1: 'stray' (str) is no object with \"conversation\"; skipped",
        "session_2: 'text' (str) is not a list of turns; skipped",
        "session_1 turn 2: event id 'D1:1' was used before; event skipped",
        "session_1 turn 3: dia_id is None (NoneType); 'session_1:2' is used",
        "session_1 turn 4: no text; skipped",
        "session_1 turn 5: 7 (int) is no turn; skipped",
        "session_1 turn 6: speaker is None (NoneType); 'unknown' is used",
        "question 0: {'question': 5} (dict) has no question text; skipped",
        "question 1: 'row' (str) has no question text; skipped",
        "question 3: neither answer nor adversarial_answer; kept without an answer",
        "question 3: no evidence field",
    )
    assert traces[1].problems == (
        "sample_id 'c1' was used before; this trace is named 'c1#2'",
        "qa is None (NoneType) and not a list; no questions",
    )
    assert traces[2].problems == ()


def test_a_trace_without_events_beside_others_stays_and_says_so(write):
    empty = locomo(ask(["D1:1"], answer="x"), session_1=[])
    traces = load(write("l.json", [locomo(), empty]))
    assert traces[1].events == ()
    assert traces[1].questions[0].unknown_evidence == ("D1:1",)
    assert traces[1].problems[-1] == "no event in this trace"


@needs_locomo
def test_locomo_itself_is_read_whole():
    raw, traces = json.loads(LOCOMO.read_bytes()), load(LOCOMO)
    assert [trace.name for trace in traces] == [item["sample_id"] for item in raw]
    for item, trace in zip(raw, traces, strict=True):
        turns = {
            t["dia_id"]: (key, t)
            for key, value in item["conversation"].items()
            if re.fullmatch(r"session_\d+", key)
            for t in value
        }
        assert {e.event_id for e in trace.events} == turns.keys()
        assert all(turns[e.event_id][0] == e.session_id for e in trace.events)
        assert [q.question for q in trace.questions] == [row["question"] for row in item["qa"]]
        for question, row in zip(trace.questions, item["qa"], strict=True):
            wanted = {name for text in row["evidence"] for name in re.findall(r"D\d+:\d+", text)}
            assert set(question.evidence) == wanted & turns.keys()
            assert question.answerable == (row["category"] != 5)


# --- LongMemEval ----------------------------------------------------------------------------------------------------


def instance(**fields):
    return {
        "question_id": "q1",
        "question_type": "multi-session",
        "question": "Which tea?",
        "answer": 7,
        "question_date": "2023/06/01 (Thu) 09:30",
        "haystack_session_ids": ["s2", "s1"],
        "haystack_dates": ["2023/05/30 (Tue) 23:40", "2023/05/20 (Sat) 02:21"],
        "haystack_sessions": [
            [{"role": "user", "content": "green tea", "has_answer": True}, {"role": "assistant", "content": "noted"}],
            [{"role": "user", "content": "hello"}],
        ],
        "answer_session_ids": ["s2"],
        **fields,
    }


def test_longmemeval_an_instance_becomes_a_trace(write):
    first, second, third = load(write("l.json", [instance(), instance(question_id="q2_abs"), instance()]))
    assert first.name == "q1"
    assert first.events == (
        Event("s1:0", us(2023, 5, 20, 2, 21), "user: hello", session_id="s1",
              metadata={"role": "user", "session_date": "2023/05/20 (Sat) 02:21"}),
        Event("s2:0", us(2023, 5, 30, 23, 40), "user: green tea", session_id="s2",
              metadata={"role": "user", "session_date": "2023/05/30 (Tue) 23:40"}),
        Event("s2:1", us(2023, 5, 30, 23, 40), "assistant: noted", session_id="s2",
              metadata={"role": "assistant", "session_date": "2023/05/30 (Tue) 23:40"}),
    )  # fmt: skip
    assert one(first.questions) == Question(
        0, "Which tea?", ("s2:0",), time=us(2023, 6, 1, 9, 30), category="multi-session", answer="7"
    )
    assert first.problems == second.problems == ()
    assert (one(second.questions).answerable, one(second.questions).evidence) == (False, ())
    assert third.problems == ("question_id 'q1' was used before; this trace is named 'q1#2'",)


def test_longmemeval_without_has_answer_the_sessions_are_the_evidence(write):
    sessions = [[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]] * 3
    item = instance(haystack_sessions=sessions, haystack_session_ids=["s", "s", "x"], answer_session_ids=["s", "gone"])
    trace = one(load(write("l.json", [item])))
    assert one(trace.questions).evidence == ("s:0", "s:1", "s#2:0", "s#2:1")
    assert one(trace.questions).unknown_evidence == ("gone",)
    assert {e.session_id for e in trace.events} == {"s", "s#2", "x"}
    assert trace.problems == (
        "haystack_dates has 2 entries for 3 sessions; they are matched by position",
        (
            "session 3: date None (NoneType) cannot be read; the nearest earlier session's is used, else the nearest "
            "later one's, else 2000-01-01T00:00Z"
        ),
        "session 2: id 's' was used before; 's#2' is used",
        "question: evidence not in the trace: 'gone'",
    )
    assert next(e for e in trace.events if e.event_id == "x:0").time == us(2023, 5, 20, 2, 21)


def test_longmemeval_what_is_broken_is_reported(write):
    item = instance(
        question_id=None,
        question_date="soon",
        haystack_session_ids=None,
        haystack_dates=["2023/13/01 10:00", "?"],
        haystack_sessions=[["turn", {"role": "user", "content": ""}, {"content": "hm"}], 7],
        answer_session_ids=None,
    )
    no_question = instance(question=None)
    traces = load(write("l.json", [{"x": 1}, item, no_question]), "longmemeval")
    assert [(e.event_id, e.content, e.time) for e in traces[0].events] == [
        ("session-1:2", "unknown: hm", us(2000, 1, 1))
    ]
    assert one(traces[0].questions) == Question(0, "Which tea?", category="multi-session", answer="7")
    assert traces[0].problems == (
        'entry 1: {\'x\': 1} (dict) is no object with "haystack_sessions"; skipped',
        "question_id is None (NoneType); 'l.json#2' is used",
        "haystack_session_ids has 0 entries for 2 sessions; they are matched by position",
        ("session 1: date '2023/13/01 10:00' (str) cannot be read; the nearest earlier session's is used, else the "
        "nearest later one's, else 2000-01-01T00:00Z"),
        ("session 2: date '?' (str) cannot be read; the nearest earlier session's is used, else the nearest later "
        "one's, else 2000-01-01T00:00Z"),
        "session 1 turn 1: 'turn' (str) is no turn; skipped",
        "session 1 turn 2: no text; skipped",
        "session 2: 7 (int) is not a list of turns; skipped",
        "question_date 'soon' (str) cannot be read; the question is asked after the last event",
    )  # fmt: skip
    assert traces[1].problems == ("question None (NoneType) is not text; skipped",)


# --- chat -----------------------------------------------------------------------------------------------------------


def said(role, content, **more):
    return {"role": role, "content": content, **more}


def test_chat_content_blocks_and_tools_of_openai_and_anthropic(write):
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "tea"}'}}
    brew = {"type": "tool_use", "id": "c2", "name": "brew", "input": {"cup": "ã"}}
    image = {"type": "image", "source": {}}
    messages = [
        said("system", "Be brief.\n"),
        said("user", [{"type": "text", "text": "what is"}, {"type": "image_url", "image_url": {"url": "x"}}]),
        said("assistant", None, tool_calls=[call]),
        said("tool", "42 hits", tool_call_id="c1"),
        said("tool", "43 hits", tool_call_id="c1", name="own"),
        said("assistant", [{"type": "thinking", "thinking": "secret"}, {"type": "text", "text": "tea"}, brew]),
        said(
            "user", [{"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "hot"}, image]}]
        ),
        said("assistant", [{"type": "document"}, {"type": "refusal", "refusal": "no"}, {"text": {"value": "v"}}, "x"]),
        said("assistant", "", function_call={"name": "old", "arguments": "{}"}),
    ]
    trace = one(load(write("log.json", {"id": "conv", "messages": messages})))
    assert [(e.event_id, e.content, e.metadata) for e in trace.events] == [
        ("conv:0", "Be brief.\n", {"role": "system"}),
        ("conv:1", "what is\n[image]", {"role": "user"}),
        ("conv:2", 'tool_use search: {"q": "tea"}', {"role": "assistant", "tool": "search"}),
        ("conv:3", "tool_result: 42 hits", {"role": "tool", "tool": "search"}),
        ("conv:4", "tool_result: 43 hits", {"role": "tool", "tool": "own"}),
        ("conv:5", 'tea\ntool_use brew: {"cup": "ã"}', {"role": "assistant", "tool": "brew"}),
        ("conv:6", "tool_result: hot\n[image]", {"role": "user", "tool": "brew"}),
        ("conv:7", "[document]\nno\nv\nx", {"role": "assistant"}),
        ("conv:8", "tool_use old: {}", {"role": "assistant", "tool": "old"}),
    ]
    assert {e.session_id for e in trace.events} == {"conv"}
    assert {e.kind for e in trace.events} == {"episodic"}


def test_chat_without_dates_ends_at_the_files_modification_time(write):
    path = write("log.json", [said("user", "a"), said("assistant", "b"), said("user", "c")])
    os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    trace = one(load(path))
    last = 1_700_000_000_123_456
    assert [e.time for e in trace.events] == [last - 120_000_000, last - 60_000_000, last]
    assert {e.session_id for e in trace.events} == {"log.json"}
    assert trace.problems == (
        "no message has a date; they stand one minute apart, the last at the file's modification time",
    )


def test_chat_a_message_without_a_date_takes_the_nearest_earlier_one(write):
    messages = [
        said("user", "a"),
        said("user", "b", time=10),
        said("user", "c", timestamp="1970-01-01T00:00:20Z"),
        said("user", "d", created_at=1_700_000_000_000),
        said("user", "e", time=5),
    ]
    trace = one(load(write("log.json", messages)))
    assert [(e.content, e.time) for e in trace.events] == [
        ("e", 5_000_000),
        ("a", 10_000_000),
        ("b", 10_000_000),
        ("c", 20_000_000),
        ("d", 20_000_000),
    ]
    assert trace.problems[0].startswith("entry 4: time is 1700000000000 seconds, later than the year 9999; ")
    assert trace.problems[0].endswith("; taken as undated")
    assert trace.problems[1] == (
        "2 of 5 messages have no date; each takes that of the nearest earlier message, the first ones that of the "
        "nearest later"
    )


def test_chat_what_is_empty_or_broken_is_reported(write):
    messages = [
        said("user", "a", id="m", time=1),
        said("user", "b", id="m", time=1),
        said("user", "b", id="m#2", time=1),
        said("user", " \u200b", time=1),
        said("assistant", [{"type": "thinking", "thinking": "x"}], time=1),
        said("tool", "", time=1),
        said(None, "c", time=1),
        "text",
        said("user", "d\0", time=1),
        said("user", "e\ud800", time=1),
    ]
    trace = one(load(write("log.json", {"messages": messages, "title": "\ud800", "uuid": 7})))
    assert [(e.event_id, e.content, e.metadata["role"]) for e in trace.events] == [
        ("m", "a", "user"),
        ("m#2", "b", "user"),
        ("m#2#2", "b", "user"),
        ("7:6", "c", "unknown"),
    ]
    assert [problem[:45] for problem in trace.problems] == [
        "entry 1 message 2: id 'm' was used before; 'm",
        "entry 1 message 3: id 'm#2' was used before; ",
        "entry 1 message 4: no content; skipped",
        "entry 1 message 5: no content; skipped",
        "entry 1 message 6: no content; skipped",
        "entry 1 message 7: no role; 'unknown' is used",
        "entry 1 message 8: 'text' (str) is no message",
        "entry 1 message 9: content holds a NUL charac",
        "entry 1 message 10: content holds a lone surr",
    ]


def test_chat_each_conversation_of_a_file_is_a_session(write):
    talks = [
        {"title": "tea", "created_at": 100, "messages": [said("user", "a"), said("user", "b", time=130)]},
        {"title": "tea", "messages": [said("user", "c", time=50)]},
        [said("user", "d", time=60)],
    ]
    trace = one(load(write("log.json", talks)))
    assert [(e.content, e.session_id, e.event_id, e.time // 1_000_000) for e in trace.events] == [
        ("c", "tea#2", "tea#2:0", 50),
        ("d", "log.json", "log.json:0", 60),
        ("a", "tea", "tea:0", 100),
        ("b", "tea", "tea:1", 130),
    ]
    assert trace.problems == ()
    by_line = one(load(write("log.jsonl", "\n".join(map(json.dumps, talks)))))
    assert [(e.content, e.time) for e in by_line.events] == [(e.content, e.time) for e in trace.events]


def test_chat_the_export_of_chatgpt_follows_the_current_branch(write):
    def node(name, parent, text, role="user", time=None):
        content = {"content_type": "text", "parts": [text, {"content_type": "image_asset_pointer"}]}
        message = {"id": name, "author": {"role": role}, "create_time": time, "content": content}
        return {"parent": parent, "message": message, "children": []}

    mapping = {
        "root": {"parent": None, "message": None, "children": ["a"]},
        "a": node("a", "root", "hi", time=10.5),
        "b": node("b", "a", "first try", "assistant", 11),
        "c": node("c", "a", "second try", "assistant", 12),
    }
    talk = {"title": "t", "create_time": 1, "mapping": mapping, "current_node": "c"}
    trace = one(load(write("conversations.json", [talk])))
    assert [(e.event_id, e.content, e.metadata["role"], e.time) for e in trace.events] == [
        ("a", "hi\n[image]", "user", 10_500_000),
        ("c", "second try\n[image]", "assistant", 12_000_000),
    ]
    assert trace.problems == ("entry 1: 1 messages of other branches left out",)
    mapping["root"]["parent"] = "c"  # a loop ends
    assert len(one(load(write("conversations.json", [talk | {"current_node": None}]))).events) == 2


# --- git ------------------------------------------------------------------------------------------------------------

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git command here")
GIT_ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "Zé".encode(),  # bytes: the locale may not know the letter
    "GIT_AUTHOR_EMAIL": "z@example.org",
    "GIT_COMMITTER_NAME": "C",
    "GIT_COMMITTER_EMAIL": "c@example.org",
    "GIT_AUTHOR_DATE": "1700000000 +0000",
}


def git(repository, *arguments, stdin=b"", **environment):
    done = subprocess.run(
        ["git", "-C", str(repository), *arguments],
        input=stdin,
        env=GIT_ENVIRONMENT | environment,
        capture_output=True,
        check=True,
    )
    return done.stdout.decode().strip()


@pytest.fixture
def repository(tmp_path):
    path = tmp_path / "repo"
    path.mkdir()
    git(path, "init", "--quiet")
    return path


def commit(repository, message, time, *options):
    git(repository, "commit", "--quiet", "--allow-empty", "--allow-empty-message", "--cleanup=verbatim", "-F", "-",
        *options, stdin=message, GIT_COMMITTER_DATE=f"{time} +0200")  # fmt: skip
    return git(repository, "rev-parse", "HEAD")


@needs_git
def test_case_M15_separators_inside_messages(repository):
    messages = [
        "a\x1eb\x1fc\n",
        "subject\n\n---\ncommit abc\nAuthor: x\n\n\n",
        "commit 0123456789012345678901234567890123456789",
        "-n --all; rm -rf $HOME `id`\r\n",
        "",
        "a\u2028b\u0085c\x0bd\x0c\n",
        "tree 4b825dc642cb6eb9a060e54bf8d69288fbee4904\n\nparent x\n",
        " \n",
    ]
    hashes = [commit(repository, text.encode(), 1_700_000_000 + i) for i, text in enumerate(messages)]
    trace = one(load(repository))
    assert len(trace.events) == len(set(hashes)) == int(git(repository, "rev-list", "--count", "HEAD"))
    assert [e.event_id for e in trace.events] == hashes
    expected = [text.removesuffix("\n") for text in messages]
    expected[4], expected[7] = (f"commit {hashes[i][:7]} (empty message)" for i in (4, 7))
    assert [e.content for e in trace.events] == expected
    assert trace.name == "repo"
    assert trace.events[1] == Event(
        hashes[1],
        1_700_000_001_000_000,
        "subject\n\n---\ncommit abc\nAuthor: x\n\n",
        session_id="2023-11-14",
        metadata={"author": "Zé", "hash": hashes[1], "subject": "subject"},
    )
    assert trace.problems == tuple(f"commit {hashes[i][:12]}: empty message; {expected[i]!r} is used" for i in (4, 7))


@needs_git
def test_git_every_commit_reachable_from_head_and_no_other(repository):
    commit(repository, b"root", 1_700_000_000)
    main = git(repository, "symbolic-ref", "--short", "HEAD")
    git(repository, "checkout", "--quiet", "-b", "side")
    commit(repository, b"side, older than its parent", 1_600_000_000)
    git(repository, "checkout", "--quiet", main)
    git(repository, "merge", "--quiet", "--no-ff", "-m", "joined", "side", GIT_COMMITTER_DATE="1700000500 +0000")
    git(repository, "checkout", "--quiet", "-b", "elsewhere")
    commit(repository, b"unreachable", 1_700_000_900)
    git(repository, "checkout", "--quiet", main)
    trace = one(load(repository))
    assert [e.content for e in trace.events] == ["side, older than its parent", "root", "joined"]
    assert one(load(repository, limit=1)).events == trace.events[:1]


def raw_commit(repository, message, *headers, author="A <a> 1600000000 +0000", committer="C <c> 1700000000 +0000"):
    """Makes HEAD a commit of these very bytes, which `git commit` would not write, and loads the repository."""
    tree = git(repository, "hash-object", "-w", "-t", "tree", "--stdin")
    head = (f"tree {tree}", f"author {author}", f"committer {committer}", *headers)
    raw = "\n".join(head).encode() + b"\n\n" + message
    name = git(repository, "hash-object", "-w", "-t", "commit", "--stdin", "--literally", stdin=raw)
    git(repository, "update-ref", "--no-deref", "HEAD", name)
    return name, one(load(repository))


@needs_git
def test_git_other_encodings_and_what_does_not_decode(repository):
    _, trace = raw_commit(repository, "ação\n".encode("latin-1"), "encoding ISO-8859-1")
    assert (one(trace.events).content, trace.problems) == ("ação", ())
    name, trace = raw_commit(repository, b"caf\xe9 \xff")
    assert one(trace.events).content == "caf\ufffd \ufffd"
    replaced = "the bytes in question are replaced"
    assert trace.problems == (f"commit {name[:12]}: message does not decode as utf-8; {replaced}",)
    name, trace = raw_commit(repository, "chá".encode(), "encoding no-such-code")
    assert one(trace.events).content == "chá"
    assert trace.problems[0] == f"commit {name[:12]}: message does not decode as no-such-code; {replaced}"
    with pytest.raises(InvalidInput, match="content holds a NUL character at index 1"):
        raw_commit(repository, b"a\0b")


@needs_git
def test_git_a_signed_commit_and_broken_times(repository):
    message, signature = b"message\n\nof two paragraphs\n", "gpgsig -----BEGIN-----\n \n line\n -----END-----"
    _, trace = raw_commit(repository, message, signature)
    assert one(trace.events).content == "message\n\nof two paragraphs"
    assert (one(trace.events).time, trace.problems) == (1_700_000_000_000_000, ())
    _, trace = raw_commit(repository, message, committer="C <c> 99999999999999 +0000")
    assert one(trace.events).time == 1_600_000_000_000_000
    assert one(trace.problems).endswith(": the committer's time cannot be read; the author's is used")
    with pytest.raises(InvalidInput, match="no time; skipped"):
        raw_commit(repository, message, author="nobody", committer="C <c>")


@needs_git
def test_git_a_bare_repository_a_worktree_and_a_hostile_name(repository, tmp_path, monkeypatch):
    commit(repository, b"one", 1_700_000_000)
    git(tmp_path, "clone", "--quiet", "--bare", "--", str(repository), "-n $(id).git")
    git(repository, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as inside a git hook
    for name in ("-n $(id).git", "tree", "repo"):
        trace = one(load(tmp_path / name))
        assert (trace.name, one(trace.events).content) == (name, "one")
    monkeypatch.chdir(repository)
    assert one(load(".")).name == "repo"
    assert one(load(repository.rename(tmp_path / " "))).name == "trace"


@needs_git
def test_git_without_commits_or_without_git_is_an_error_that_says_so(repository, monkeypatch):
    with pytest.raises(InvalidInput) as error:
        load(repository)
    assert str(error.value).startswith(f"{str(repository)!r} has no commit that can be read at HEAD; git says: fatal:")
    commit(repository, b"one", 1_700_000_000)
    commit(repository, b"two", 1_700_000_001)
    parent = git(repository, "rev-parse", "HEAD~")
    (repository / ".git" / "objects" / parent[:2] / parent[2:]).unlink()
    with pytest.raises(InvalidInput) as error:
        load(repository)
    assert str(error.value).startswith(f"{str(repository)!r} cannot be read to the end; git says: ")
    with monkeypatch.context() as patch:
        plain = loaders._git_command
        patch.setattr(loaders, "_git_command", lambda p, *a: ["echo", "0" * 40] if "rev-list" in a else plain(p, *a))
        with pytest.raises(InvalidInput) as error:
            load(repository)
    assert str(error.value) == f"{str(repository)!r} lost the object {'0' * 40} while it was read; load it again"
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InvalidInput) as error:
        load(repository)
    assert str(error.value) == f"cannot read {str(repository)!r}: there is no git command here; install git"


# --- parquet --------------------------------------------------------------------------------------------------------


def table(path, **columns):
    pq.write_table(pa.table(columns), path)
    return one(load(path))


def test_parquet_columns_of_the_event_format(tmp_path):
    trace = table(
        tmp_path / "t.parquet",
        event_id=["b", "a", None],
        time=pa.array([2_000_000, 1_000_000, 3_000_000], pa.timestamp("us", "America/Sao_Paulo")),
        content=pa.array(["two", "one", "three"]).dictionary_encode(),
        kind=["semantic", None, "dream"],
        session_id=["s", None, "s"],
        agent_role=["r", None, "r"],
        importance=pa.array([0.5, None, float("nan")], pa.float32()),
        key=["k", None, None],
        metadata=['{"a": 1}', None, "[]"],
        host=pa.array(["web01", "web02", None]).dictionary_encode(),
        load=[0.25, float("nan"), None],
        up=[True, False, None],
        at=pa.array([date(2024, 1, 2), None, None]),
        tags=[["x"], ["y"], []],
        took=pa.array([1, 2, 3], pa.duration("us")),
        where=pa.array([1, 2, 3], pa.timestamp("us", "No/Where")),
    )
    assert trace.events == (
        Event("a", 1_000_000, "one", metadata={"host": "web02", "up": False}),
        Event("b", 2_000_000, "two", "semantic", "s", "r", 0.5, "k",
              {"host": "web01", "load": 0.25, "up": True, "at": "2024-01-02", "a": 1}),
        Event("row-3", 3_000_000, "three", session_id="s", agent_role="r"),
    )  # fmt: skip
    assert trace.problems == (
        "column 'tags' of type list<element: string> is left out",
        "column 'took' of type duration[us] is left out",
        "column 'where' of type timestamp[us, tz=No/Where] is left out",
        "row 3: event_id is missing; 'row-3' is used",
        "row 3: kind is 'dream' (str) and not one of working, episodic, semantic, procedural; episodic is used",
        "row 3: importance is nan (float) and not a number from 0 to 1; the default is used",
        "row 3: metadata is [] (list) and not a JSON object; left out",
    )


# A text column of "\xff" and "a", of which the first byte is no UTF-8.
NO_UTF8 = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0"), pa.py_buffer(b"\xffa")]
)


def test_parquet_text_that_is_not_utf8_skips_its_row_alone(tmp_path):
    trace = table(tmp_path / "t.parquet", event_id=["a", "b"], time=[1, 2], content=NO_UTF8)
    assert [(e.event_id, e.content) for e in trace.events] == [("b", "a")]
    assert one(trace.problems).startswith("row 1: content holds a lone surrogate (U+DCFF at index 0)")


@pytest.mark.parametrize(
    ("times", "expected", "problems"),
    [
        (pa.array([1, 2], pa.timestamp("s", "UTC")), [1_000_000, 2_000_000], ()),
        (pa.array([1, 2], pa.timestamp("ms")), [1000, 2000], ("the time column has no zone; read as UTC",)),
        (pa.array([1001, 2999], pa.timestamp("ns", "UTC")), [1, 2], ()),
        (pa.array([1, 2.5]), [1_000_000, 2_500_000], ()),
        (pa.array([1, 2], pa.int32()), [1_000_000, 2_000_000], ()),
        (pa.array(["1970-01-01T00:00:01Z", "1970-01-01T01:00:02+01:00"]), [1_000_000, 2_000_000], ()),
        (pa.array([date(1970, 1, 2), date(1970, 1, 3)]), [86_400_000_000, 172_800_000_000], ()),
    ],
)
def test_parquet_times_of_every_type(tmp_path, times, expected, problems):
    trace = table(tmp_path / "t.parquet", event_id=["a", "b"], event_time=times, content=["x", "y"])
    assert [e.time for e in trace.events] == expected
    assert trace.problems == problems


@pytest.mark.parametrize(
    "times",
    [
        pa.array([2**60, None], pa.timestamp("ms", "UTC")),
        pa.array([1_700_000_000_000, None]),
        pa.array([float("nan"), float("inf")]),
        pa.array([Decimal("1.5"), None]),
        pa.array([True, None]),
        pa.array([None, None]),
    ],
)
def test_parquet_a_time_that_is_none_skips_the_row(tmp_path, times):
    with pytest.raises(InvalidInput, match=r"no valid event \(problems: 2, the first: row 1: time is"):
        table(tmp_path / "t.parquet", event_id=["a", "b"], time=times, content=["x", "y"])


def test_parquet_memcores_own_record_table(tmp_path):
    from memcore.schema import record_schema

    schema = record_schema(4)
    values = {
        "id": "00000000-0000-7000-8000-000000000001",
        "tenant_id": "t",
        "project_id": "p",
        "source": "observation",
    }
    values |= {"session_id": "s", "agent_role": "r", "kind": "semantic", "key": "k", "content": "known"}
    values |= {"seq": 1, "version": 1, "level": 0, "access_count": 0, "untrusted": False, "confidence": 1.0}
    values |= {"vector": [1.0, 0, 0, 0], "importance": 0.25, "event_time": 5_000_000, "ingested_at": 6_000_000}
    values |= {"metadata": '{"host": "web01"}'}
    arrays = [pa.array([values.get(field.name)], field.type) for field in schema]
    pq.write_table(pa.table(arrays, schema=schema), tmp_path / "export.parquet")
    trace = one(load(tmp_path / "export.parquet"))
    assert trace.events == (
        Event(values["id"], 5_000_000, "known", "semantic", "s", "r", 0.25, "k", {"host": "web01"}),
    )
    assert trace.problems == ()


def test_parquet_is_read_in_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(loaders, "_BATCH", 3)
    names = [f"e{i}" for i in range(10)]
    trace = table(
        tmp_path / "t.parquet",
        event_id=names,
        time=pa.array(range(10), pa.timestamp("s")),
        content=["x"] * 9 + [None],
        tags=[["x"]] * 10,
    )
    assert [e.event_id for e in trace.events] == names[:9]
    assert trace.problems == (
        "the time column has no zone; read as UTC",
        "column 'tags' of type list<element: string> is left out",
        "row 10: content is None (NoneType) and not text; event skipped",
    )


# --- nothing but MemcoreError ---------------------------------------------------------------------------------------

KEYS = """
    conversation qa session_1 session_2 sample_id session_1_date_time session_2_date_time speaker dia_id text
    blip_caption img_url adversarial_answer haystack_sessions haystack_session_ids haystack_dates question_id
    question_type question_date answer_session_ids has_answer messages mapping chat_messages current_node parent
    children message author sender name id uuid title type parts tool_calls role function_call function arguments
    input tool_use_id tool_call_id timestamp create_time
"""
WORDS = sorted({*loaders._EVENT_FIELDS, *loaders._QUESTION_FIELDS, *re.findall(r"\w+", KEYS)})
SAMPLES = ["1:56 pm on 8 May, 2023", "2023/05/20 (Sat) 02:21", "D1:1", "D1:2; D:3", "2023-05-08T13:56:00Z", "episodic"]
TEXTS = st.text(st.characters(), max_size=6) | st.sampled_from(
    [*SAMPLES, "a", "user", "tool", "text", "tool_use", "tool_result", "thinking", "image"]
)
NUMBERS = st.integers() | st.integers(0, 5) | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS) | TEXTS, inner, max_size=6),
    max_leaves=25,
)


def mapping_of(**fields):
    return st.fixed_dictionaries({}, optional=fields)


TURN_TEXTS = dict.fromkeys(("speaker", "dia_id", "text", "blip_caption", "role", "has_answer", "time", "id"), LEAVES)
TURN_VALUES = dict.fromkeys(("img_url", "content", "tool_calls"), VALUES)
TURNS = st.lists(mapping_of(**TURN_TEXTS, **TURN_VALUES) | VALUES, max_size=4)
QA = st.lists(mapping_of(question=LEAVES, answer=VALUES, adversarial_answer=LEAVES, evidence=VALUES, category=LEAVES))
INSTANCE = {
    **dict.fromkeys(("haystack_session_ids", "haystack_dates", "answer_session_ids", "answer"), VALUES),
    **dict.fromkeys(("question_id", "question", "question_date", "question_type"), LEAVES),
}
SHAPED = {
    "jsonl": st.lists(mapping_of(**dict.fromkeys(loaders._EVENT_FIELDS | loaders._QUESTION_FIELDS, VALUES)) | VALUES),
    "locomo": st.lists(
        st.fixed_dictionaries(
            {"conversation": mapping_of(session_1=TURNS, session_2=TURNS, session_1_date_time=LEAVES)},
            optional={"qa": QA, "sample_id": LEAVES},
        )
        | VALUES,
        max_size=3,
    ),
    "longmemeval": st.lists(
        st.fixed_dictionaries(
            {"haystack_sessions": st.lists(TURNS, max_size=3)},
            optional=INSTANCE,
        )
        | VALUES,
        max_size=3,
    ),
    "chat": TURNS
    | st.lists(mapping_of(messages=TURNS, chat_messages=TURNS, title=LEAVES, created_at=LEAVES), max_size=3)
    | st.lists(
        st.fixed_dictionaries(
            {"mapping": st.dictionaries(TEXTS, mapping_of(message=VALUES, parent=TEXTS, children=VALUES) | VALUES)},
            optional={"current_node": LEAVES},
        ),
        max_size=2,
    ),
}


def check_sane(path, format):
    """Loads, lets MemcoreError pass, and holds what every trace promises."""
    try:
        traces = load(path, format, limit=3)
    except MemcoreError as error:
        str(error).encode("utf-8")
        return
    assert any(trace.events for trace in traces)
    assert len({trace.name for trace in traces}) == len(traces)
    for trace in traces:
        ids = [e.event_id for e in trace.events]
        assert len(set(ids)) == len(ids) <= 3
        assert [e.time for e in trace.events] == sorted(e.time for e in trace.events)
        for text in (trace.name, *ids, *trace.problems, *(e.content for e in trace.events)):
            text.encode("utf-8")
        for question in trace.questions:
            assert set(question.evidence) <= set(ids)
            assert not set(question.unknown_evidence) & set(ids)
        indexes = [q.index for q in trace.questions]
        assert indexes == sorted(set(indexes))


@pytest.mark.parametrize("format", ["auto", "jsonl", "locomo", "longmemeval", "chat"])
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_any_json_loads_or_raises_memcore_errors(tmp_path_factory, format, data):
    kind = data.draw(st.sampled_from(sorted(SHAPED))) if format == "auto" else format
    value = data.draw(SHAPED[kind] | VALUES)
    directory = tmp_path_factory.mktemp("fuzz")
    rows = value if isinstance(value, list) else [value]
    (directory / "f.json").write_text(json.dumps(value), encoding="utf-8")
    (directory / "f.jsonl").write_text("\n".join(map(json.dumps, rows)) or "\n", encoding="utf-8")
    check_sane(directory / "f.json", format)
    check_sane(directory / "f.jsonl", format)


@pytest.mark.parametrize("format", ["auto", *FORMATS])
@settings(deadline=None)
@given(data=st.binary(max_size=200) | st.binary(max_size=200).map(lambda raw: b"PAR1" + raw + b"PAR1"))
def test_any_bytes_raise_memcore_errors(tmp_path_factory, format, data):
    directory = tmp_path_factory.mktemp("fuzz")
    for suffix in ("json", "jsonl", "parquet", "txt"):
        (directory / f"f.{suffix}").write_bytes(data)
        check_sane(directory / f"f.{suffix}", format)


@pytest.mark.parametrize("format", ["auto", "jsonl", "locomo", "longmemeval", "chat"])
@pytest.mark.parametrize("depth", [400, 800, 980, 100_000])
def test_any_depth_of_nesting_raises_memcore_errors(tmp_path, format, depth):
    deep = "[" * depth + "]" * depth
    block = f'[{{"type": "tool_use", "name": "n", "input": {deep}}}]'
    turns, asked = f'[{{"text": "x", "img_url": {deep}}}]', f'[{{"question": "q", "answer": {deep}}}]'
    rows = (
        f'{{"role": "user", "content": {deep}}}',
        f'{{"role": "user", "content": {block}}}',
        f'{{"event_id": "e", "time": 1, "content": "c", "metadata": {{"m": {deep}}}}}',
        f'{{"conversation": {{"session_1": {turns}}}, "qa": {asked}}}',
        f'{{"haystack_sessions": [[{{"content": {deep}}}]]}}',
    )
    for row in rows:
        for name in ("d.json", "d.jsonl"):
            (tmp_path / name).write_text(row, encoding="utf-8")
            check_sane(tmp_path / name, format)


def test_content_that_nests_too_deeply_to_be_rendered(write):
    deep = json.loads("[" * 700 + "]" * 700)
    trace = one(load(write("log.json", [said("user", deep, time=1), said("user", "b", time=2)])))
    assert one(trace.events).content == "b"
    assert trace.problems == ("entry 1: nested too deeply; skipped",)
    path = write("l.json", [instance(haystack_sessions=[[said("user", deep)]])])
    with pytest.raises(InvalidInput) as error:
        load(path)
    assert str(error.value) == f"{str(path)!r} nests its values too deeply to be read; flatten it"


ENCODINGS = [b"encoding " + name for name in (b"utf-7", b"hex", b"utf-16", b"\xff", b"undefined", b"idna", b"x\0")]
HEADERS = [b"author A <a> 1 +0000", b"committer C <c> 2 +0000", b"committer x", *ENCODINGS]


@settings(deadline=None)
@given(head=st.lists(st.sampled_from(HEADERS) | st.binary(max_size=20)), body=st.binary(max_size=60))
def test_any_commit_object_is_read_or_reported(head, body):
    builder = loaders._Builder("t")
    loaders._add_commit(builder, "0" * 40, b"\n".join(head) + b"\n\n" + body)
    assert len(builder.events) == 1 or any("skipped" in problem for problem in builder.problems)


ODD_ARRAYS = [
    pa.array(["a", None]),
    pa.array(["a", "a"], pa.large_string()),
    pa.array(["{", '{"a": NaN}']),
    pa.array(['{"a": 1}', "[" * 9999]),
    pa.array([b"\xff", b""], pa.binary()),
    pa.array([1, None]),
    pa.array([2**64 - 1, 0], pa.uint64()),
    pa.array([0.5, float("inf")]),
    pa.array([True, None]),
    pa.array([None, None]),
    pa.array([{"a": 1}, {"a": None}]),
    pa.array([[1], None]),
    pa.array([{"t": 1}, None], pa.struct([("t", pa.timestamp("ns"))])),
    pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int32())),
    pa.array([2**62, 1], pa.timestamp("ms")),
    pa.array([1, None], pa.timestamp("us", "No/Where")),
    pa.array([1, 2], pa.date64()),
    pa.array([1, 2], pa.time64("ns")),
    pa.array([1, 2], pa.duration("ns")),
    pa.array([Decimal("1.50"), None]),
    NO_UTF8,
]
COLUMNS = [*sorted(loaders._EVENT_FIELDS), "id", "event_time", "extra"]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(columns=st.dictionaries(st.sampled_from(COLUMNS), st.sampled_from(ODD_ARRAYS), min_size=1))
def test_any_table_loads_or_raises_memcore_errors(tmp_path_factory, columns):
    path = tmp_path_factory.mktemp("fuzz") / "t.parquet"
    columns = {"content": pa.array(["x", "y"]), "time": pa.array([1, 2]), **columns}
    pq.write_table(pa.table(columns), path)
    check_sane(path, "parquet")


def test_case_M5_raw_control_characters_inside_json_are_data(write):
    raw = '{"event_id":"e","time":1,"content":"a\u2028b\u0085c\u000bd"}\n'
    trace = one(load(write("t.jsonl", raw)))
    assert [event.content for event in trace.events] == ["a\u2028b\u0085c\u000bd"]

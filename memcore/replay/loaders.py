"""What is in this file? Recorded traces of six formats read into `Trace`s.

`load` is the one way in. Rules that hold for every format:

- Text is decoded as UTF-8 whatever the locale; a byte order mark at the start is skipped. Lines end at b"\\n" only:
  U+2028, U+2029, NEL and VT inside a string are data.
- Times are int64 microseconds since the epoch, UTC. A number is seconds since the epoch, a text is ISO 8601 with an
  offset; years 1 to 9999. A time that is not one of these is never replaced by "now" or by 1970.
- What a loader repairs, skips or guesses is a line in `Trace.problems`; what belongs to no trace (an entry of a list
  that is no conversation) is reported by the first one. The wrong value of an optional field leaves the field at its
  default; an event without usable content or time is skipped.
- What the input gate (`memcore.gate`) would refuse (texts that are blank or hold a NUL or a lone surrogate, ids beyond
  512 characters) is skipped with a problem, so that one row never stops a replay.
- Events come out in event-time order, in file order within one time. `Question.index` is the question's place among
  the questions of its file, so a question that had to be skipped leaves a gap and never shifts the others.
- No event at all is `InvalidInput`. One empty trace beside others stays, so that its questions are still counted.

The rules of one format stand in the docstring of its loader.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memcore import clock, gate
from memcore.errors import InvalidInput
from memcore.replay.trace import Event, Question, Trace

FORMATS = ("jsonl", "locomo", "longmemeval", "chat", "git", "parquet")

_NO_DATE_ANYWHERE = clock.to_micros(datetime(2000, 1, 1, tzinfo=UTC), "the default")
_BOM = b"\xef\xbb\xbf"


def load(path: str | Path, format: str = "auto", *, limit: int | None = None) -> list[Trace]:
    """Read the trace or traces recorded at `path`.

    `format` is "auto" or one of `FORMATS`. "auto" goes by what is there: a directory that is a git repository → git;
    *.parquet → parquet; *.jsonl and *.ndjson → jsonl, unless the first object is a chat message or conversation, or a
    LoCoMo or LongMemEval entry; *.json → by the shape of its first entry.

    `limit` keeps at most that many events of each trace, the earliest in event-time order. Evidence that is cut moves
    to `Question.unknown_evidence` and the trace's problems say how many questions lost all or a part of theirs; the
    questions themselves stay.

    A list holds one trace for each LoCoMo conversation or LongMemEval question, and one trace for any other file.
    Raises `InvalidInput` for a path that cannot be read, a format that is unknown or cannot be told, and a file
    without a single valid event.
    """
    if format != "auto" and format not in FORMATS:
        raise InvalidInput(f"format {format!r} is not known; pass auto or one of: {', '.join(FORMATS)}")
    if limit is not None:
        limit = gate.count(limit, "limit", least=1)
    source = _Source(_existing(path))
    try:
        chosen = _detect(source) if format == "auto" else format
        traces = _LOADERS[chosen](source)
    except OSError as error:
        raise _unreadable(path, error) from error
    except RecursionError as error:
        raise InvalidInput(f"{str(path)!r} nests its values too deeply to be read; flatten it") from error
    if traces and source.stray:
        traces[0] = replace(traces[0], problems=(*source.stray, *traces[0].problems))
    if not any(trace.events for trace in traces):
        problems = [problem for trace in traces for problem in trace.problems] or source.stray
        found = f"problems: {len(problems)}, the first: {problems[0]}" if problems else "it is empty"
        raise InvalidInput(
            f"{str(path)!r} read as {chosen} has no valid event ({found}); "
            f"mend the file or name its format, one of: {', '.join(FORMATS)}"
        )
    return [_finished(trace, limit) for trace in traces]


# --- what a file is -------------------------------------------------------------------------------------------------


class _Source:
    """A path and what was read from it once; `stray` gathers the problems that belong to no trace."""

    def __init__(self, place: Path) -> None:
        self.place = place
        # As a label, since a trace's name is a project's: the folder of a repository may be "/" or " ".
        self.name = _label(encodable(place.name or place.resolve().name)) or "trace"
        self.is_lines = place.suffix.lower() in (".jsonl", ".ndjson")
        self.stray: list[str] = []
        self._document: Any = None

    def items(self) -> Iterator[tuple[str, Any]]:
        """The entries of a file of JSON lines or of a JSON list, or the one entry of any other document; each with
        the words that say where it stands."""
        if self.is_lines:
            yield from ((f"line {number}", value) for number, value in _json_lines(self.place, self.stray.append))
            return
        if self._document is None:
            try:
                self._document = _parse(self.place.read_bytes().removeprefix(_BOM))
            except ValueError as error:
                raise InvalidInput(
                    f"{str(self.place)!r} cannot be read: {error}; "
                    'a file of one JSON object a line is named .jsonl or read with format="jsonl"'
                ) from error
        if isinstance(self._document, list):
            yield from ((f"entry {number}", value) for number, value in enumerate(self._document, 1))
        else:
            yield "entry 1", self._document


def _existing(path: str | Path) -> Path:
    """`path` as a `Path` that exists and is not an empty file."""
    try:
        place = Path(path)
        found = place.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL or a lone surrogate in the path
        raise _unreadable(path, error) from error
    except TypeError as error:
        raise InvalidInput(f"path is {gate.shown(path)}; pass a str or pathlib.Path") from error
    if stat.S_ISREG(found.st_mode) and found.st_size == 0:
        raise InvalidInput(f"{str(path)!r} is empty (0 bytes); pass a recorded trace, one of: {', '.join(FORMATS)}")
    return place


def _unreadable(path: str | Path, error: Exception) -> InvalidInput:
    reason = (error.strerror or str(error)) if isinstance(error, OSError) else "no file can have such a name"
    return InvalidInput(f"{str(path)!r} cannot be read: {reason}; pass a recorded trace, one of: {', '.join(FORMATS)}")


def _detect(source: _Source) -> str:
    """The format of what stands at `source`; see `load`."""
    place, suffix = source.place, source.place.suffix.lower()
    if place.is_dir():
        if _is_git(place):
            return "git"
        seen = "a directory that is no git repository"
    elif suffix == ".parquet":
        return "parquet"
    elif source.is_lines:
        first = next((value for _, value in _json_lines(place, _ignore) if isinstance(value, dict | list)), None)
        return _shape(first) or "jsonl"
    elif suffix == ".json":
        shape = next((shape for _, value in source.items() if (shape := _shape(value))), None)
        if shape:
            return shape
        seen = next((f"JSON that starts with {gate.shown(value)}" for _, value in source.items()), "an empty JSON list")
    else:
        seen = f"a file named *{suffix}" if suffix else "a file without a suffix"
    raise InvalidInput(f"cannot tell the format of {str(place)!r}: {seen}; pass format=, one of: {', '.join(FORMATS)}")


def _shape(value: Any) -> str | None:
    """The format whose entry `value` looks like: locomo, longmemeval, chat, or None for none of them."""
    if isinstance(value, list):
        return "chat" if any(isinstance(v, dict) and _is_message(v) for v in value) else None
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("conversation"), dict):
        return "locomo"
    if isinstance(value.get("haystack_sessions"), list):
        return "longmemeval"
    return "chat" if _is_conversation(value) or _is_message(value) else None


def _is_git(place: Path) -> bool:
    return (place / ".git").exists() or _is_bare_git(place)


def _is_bare_git(place: Path) -> bool:
    return (place / "HEAD").is_file() and (place / "objects").is_dir() and (place / "refs").is_dir()


# --- small pieces that the loaders share ----------------------------------------------------------------------------


class _Builder:
    """One trace in the making. Refuses what the input gate would refuse, and notes it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: dict[str, Event] = {}
        self.questions: list[Question] = []
        self.problems: list[str] = []

    def problem(self, text: str) -> None:
        self.problems.append(encodable(text))

    def add(self, where: str, event: Event) -> None:
        try:
            gate.text(event.content, "content")
            gate.scope_id(event.event_id, "the event id")
            gate.scope_id(event.session_id, "the session id")
        except InvalidInput as error:
            self.problem(f"{where}: {error}; event skipped")
            return
        if event.event_id in self.events:
            self.problem(f"{where}: event id {event.event_id!r} was used before; event skipped")
            return
        try:
            gate.metadata(event.metadata)
        except InvalidInput as error:
            self.problem(f"{where}: {error}; the metadata is left out")
            event = replace(event, metadata={})
        self.events[event.event_id] = event

    def add_question(self, where: str, question: Question) -> None:
        try:
            gate.text(question.question, "question")
        except InvalidInput as error:
            self.problem(f"{where}: {error}; question skipped")
            return
        self.questions.append(question)

    def sort_out(self, where: str, ids: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """`ids` without repeats, parted into those of the trace's events and the others, which are reported."""
        unique = tuple(dict.fromkeys(encodable(name) for name in ids))
        unknown = tuple(name for name in unique if name not in self.events)
        if unknown:
            self.problem(f"{where}: evidence not in the trace: {', '.join(map(repr, unknown))}")
        return tuple(name for name in unique if name in self.events), unknown

    def build(self) -> Trace:
        events = tuple(sorted(self.events.values(), key=lambda event: event.time))
        return Trace(self.name, events, tuple(self.questions), tuple(self.problems))


class _Unique:
    """Gives each name once: the second "a" becomes "a#2"."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._asked: Counter[str] = Counter()

    def __call__(self, name: str) -> str:
        self._asked[name] += 1
        given = name if self._asked[name] == 1 else f"{name}#{self._asked[name]}"
        while given in self._given:
            self._asked[name] += 1
            given = f"{name}#{self._asked[name]}"
        self._given.add(given)
        return given


def encodable(text: str) -> str:
    """`text` with lone surrogates (undecodable bytes of a file name) spelled out, so that it can be written."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _ignore(_: str) -> None:
    """Drops a problem: for a first look at a file whose second reading reports it."""


def _is_blank(text: str) -> bool:
    """Whether the gate sees nothing in `text`. NUL and lone surrogates are other faults, told later by their names."""
    try:
        gate.text(text, "text")
    except InvalidInput:
        return "\0" not in text and encodable(text) == text
    return False


def _microseconds(value: Any) -> int:
    """A time as µs since the epoch: seconds (int, float), ISO 8601 text with an offset, or an aware datetime.

    Raises InvalidInput, also for a time that is outside the years 1 to 9999 in UTC only.
    """
    if value is None:
        raise InvalidInput("time is missing")
    found = clock.parse(value, "time") if isinstance(value, str) else clock.to_micros(value, "time")
    try:
        clock.to_datetime(found)
    except OverflowError:
        raise InvalidInput(f"time is {value}, which is outside the years 1 to 9999 in UTC") from None
    return found


def _utc(*parts: int) -> int:
    """Year, month, day, hour, minute as µs since the epoch. Raises ValueError for a date that does not exist."""
    year, month, day, hour, minute = parts
    return clock.to_micros(datetime(year, month, day, hour, minute, tzinfo=UTC), "date")


def _nearest(times: Sequence[int | None]) -> list[int] | None:
    """Each missing time replaced by the nearest earlier one in the sequence, the first ones by the nearest later one;
    None where there is no time at all."""
    known = next((time for time in times if time is not None), None)
    if known is None:
        return None
    filled = []
    for time in times:
        known = known if time is None else time
        filled.append(known)
    return filled


def _label(value: Any) -> str | None:
    """An id or a name that the gate accepts, as text: a text or a whole number; None for anything else."""
    try:
        return gate.scope_id(str(value) if type(value) is int else value, "label")
    except InvalidInput:
        return None


def _answer_text(value: Any) -> str | None:
    """A gold answer as text: numbers become text (2022 → "2022"), lists JSON."""
    if value is None:
        return None
    return encodable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _parse(raw: bytes) -> Any:
    """JSON text in UTF-8. Raises ValueError with the words for a problem line."""
    try:
        return json.loads(raw.decode("utf-8"), parse_constant=_no_constant, strict=False)  # raw VT and the like
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at character {error.pos + 1}") from error
    except RecursionError as error:
        raise ValueError("not JSON that can be read: nested too deeply") from error
    except ValueError as error:  # _no_constant, and integers of more digits than Python reads
        raise ValueError(f"not JSON: {error}") from error


def _json_lines(place: Path, problem: Callable[[str], None]) -> Iterator[tuple[int, Any]]:
    """The values of a file of one JSON value a line, each with its line number from 1. Reads line by line.

    Lines end at b"\\n" only: str.splitlines would cut a value at U+2028, U+2029, NEL or VT inside its strings.
    """
    with place.open("rb") as file:
        for number, raw in enumerate(file, 1):
            raw = raw.removeprefix(_BOM) if number == 1 else raw
            if not raw.strip():
                continue
            try:
                value = _parse(raw)
            except ValueError as error:
                problem(f"line {number}: {error}; skipped")
                continue
            yield number, value


def _finished(trace: Trace, limit: int | None) -> Trace:
    """The trace with its first `limit` events; see `load`."""
    if not trace.events:
        return replace(trace, problems=(*trace.problems, "no event in this trace"))
    if limit is None or len(trace.events) <= limit:
        return trace
    events = trace.events[:limit]
    kept = {event.event_id for event in events}
    questions, all_lost, part_lost = [], 0, 0
    for question in trace.questions:
        evidence = tuple(name for name in question.evidence if name in kept)
        lost = tuple(name for name in question.evidence if name not in kept)
        all_lost += bool(lost and not evidence)
        part_lost += bool(lost and evidence)
        questions.append(replace(question, evidence=evidence, unknown_evidence=question.unknown_evidence + lost))
    note = (
        f"limit {limit}: the {len(trace.events) - limit} latest events are left out; "
        f"{all_lost} questions lost all of their evidence, {part_lost} a part of it"
    )
    return replace(trace, events=events, questions=tuple(questions), problems=(*trace.problems, note))


# --- jsonl ----------------------------------------------------------------------------------------------------------

_EVENT_FIELDS = frozenset(
    ("event_id", "time", "kind", "content", "session_id", "agent_role", "importance", "key", "metadata")
)
_QUESTION_FIELDS = frozenset(("question", "time", "evidence", "category", "answer"))


def _load_jsonl(source: _Source) -> list[Trace]:
    """The JSONL trace format: one object a line, an event or a question. Streams the file.

    - A line with "content" is an event: {"event_id", "time", "content", "kind"?, "session_id"?, "agent_role"?,
      "importance"?, "key"?, "metadata"?}. A missing event_id becomes "line-N"; an unknown kind becomes episodic; ids,
      sessions, roles and keys may be whole numbers. All that is reported, as are fields of other names, once each.
    - A line with "question" and no "content" is a question: {"question", "time"?, "evidence"?, "category"?,
      "answer"?}. Evidence is a list of event ids of any line of the file, or one id. A wrong or missing time means
      after the end. A question is unanswerable when it names no evidence and either its category is "unanswerable"
      or it has "evidence": [] with "answer": null.
    - CRLF, blank lines, no final newline and a byte order mark are fine. A line that is not such an object is skipped
      and reported with its number. A second event with an id is kept out and reported.
    """
    builder = _Builder(source.name)
    asked: list[tuple[str, dict[str, Any]]] = []
    unknown: Counter[str] = Counter()
    for number, row in _json_lines(source.place, builder.problem):
        where = f"line {number}"
        if not isinstance(row, dict) or not ("content" in row or "question" in row):
            builder.problem(f'{where}: {gate.shown(row)} is no object with "content" or "question"; skipped')
            continue
        unknown.update(row.keys() - (_EVENT_FIELDS if "content" in row else _QUESTION_FIELDS))
        if "content" in row:
            _add_row(builder, where, row, f"line-{number}")
        else:
            asked.append((where, row))
    for name, count in sorted(unknown.items()):
        builder.problem(f"field {name!r} is not of the format; left out in {count} lines")
    for index, (where, row) in enumerate(asked):
        _add_question_row(builder, where, index, row)
    return [builder.build()]


def _add_row(builder: _Builder, where: str, row: Mapping[str, Any], spare_id: str) -> None:
    """One event of the fields of the JSONL format; `spare_id` is its id where it has none."""
    content = row.get("content")
    if not isinstance(content, str):
        builder.problem(f"{where}: content is {gate.shown(content)} and not text; event skipped")
        return
    try:
        time = _microseconds(row.get("time"))
    except ValueError as error:
        builder.problem(f"{where}: {error}; event skipped")
        return

    def instead(name: str, allowed: str, used: str) -> None:
        builder.problem(f"{where}: {name} is {gate.shown(row[name])} and not {allowed}; {used}")

    def label(name: str, spare: str) -> str:
        found = _label(row.get(name))
        if found is None and row.get(name) is not None:
            instead(name, "a text of 1 to 512 characters", f"{spare!r} is used" if spare else "left out")
        return spare if found is None else found

    if row.get("event_id") is None:
        builder.problem(f"{where}: event_id is missing; {spare_id!r} is used")
    kind = "episodic" if row.get("kind") is None else row["kind"]
    if kind not in gate.KINDS:
        instead("kind", f"one of {', '.join(gate.KINDS)}", "episodic is used")
        kind = "episodic"
    importance = row.get("importance")
    if importance is not None and not _is_fraction(importance):
        instead("importance", "a number from 0 to 1", "the default is used")
        importance = None
    metadata = {} if row.get("metadata") is None else row["metadata"]
    if not isinstance(metadata, dict):
        instead("metadata", "a JSON object", "left out")
        metadata = {}
    event = Event(
        event_id=label("event_id", spare_id),
        time=time,
        content=content,
        kind=kind,
        session_id=label("session_id", "default"),
        agent_role=label("agent_role", "default"),
        importance=None if importance is None else float(importance),
        key=label("key", "") or None,
        metadata=metadata,
    )
    builder.add(where, event)


def _is_fraction(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _add_question_row(builder: _Builder, where: str, index: int, row: Mapping[str, Any]) -> None:
    text = row["question"]
    if not isinstance(text, str):
        builder.problem(f"{where}: question is {gate.shown(text)} and not text; question skipped")
        return
    time = None
    if row.get("time") is not None:
        try:
            time = _microseconds(row["time"])
        except ValueError as error:
            builder.problem(f"{where}: {error}; the question is asked after the last event")
    listed = row.get("evidence")
    names = [] if listed is None else listed if isinstance(listed, list) else [listed]
    ids = [_label(name) or gate.shown(name) for name in names]
    evidence, unknown = builder.sort_out(where, ids)
    category = _label(row.get("category")) or "all"
    no_answer = listed == [] and "answer" in row and row["answer"] is None
    question = Question(
        index=index,
        question=text,
        evidence=evidence,
        unknown_evidence=unknown,
        time=time,
        category=category,
        answer=_answer_text(row.get("answer")),
        answerable=bool(ids) or not (category == "unanswerable" or no_answer),
    )
    builder.add_question(where, question)


# --- LoCoMo ---------------------------------------------------------------------------------------------------------

_LOCOMO_CATEGORIES = {
    name[0]: name for name in ("1 multi-hop", "2 temporal", "3 open-domain", "4 single-hop", "5 adversarial")
}
_MONTHS = (  # by name, since strptime's %B follows the locale
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)
_LOCOMO_DATE = re.compile(r"\s*(\d{1,2}):(\d{2})\s*([ap])m\s+on\s+(\d{1,2})\s+([a-z]+),?\s+(\d{4})\s*", re.I | re.ASCII)
_SESSION = re.compile(r"session_([0-9]{1,9})")
_SESSION_DATE = re.compile(r"(session_[0-9]{1,9})_date_time")
_DIA_ID = re.compile(r"D\d+:\d+", re.ASCII)


def _load_locomo(source: _Source) -> list[Trace]:
    """LoCoMo: a list of {sample_id?, conversation, qa}, or one such object; a trace for each conversation.

    - Sessions are taken in numeric order (2 before 10). Every turn has the time of its own session's date
      ("1:56 pm on 8 May, 2023"), read as UTC. A session without a readable date takes that of the nearest earlier
      numbered session that has one, else of the nearest later; where no session has one, all turns stand at
      2000-01-01T00:00Z. That is reported, as is a date without turns.
    - A turn becomes an episodic event: event_id its dia_id (or "session_N:i", reported), session_id "session_N",
      content "speaker: text [blip_caption]", metadata speaker, session_date as written, and img_url.
    - Every qa row is a question of the category its number names. Category 5, and any row that has an
      adversarial_answer and no answer, is not answerable and its answer is None, never the adversarial text. A row
      with neither answer is kept and reported. All are asked after the end.
    - Evidence is a list or a text, and a text may pack several ids. An id is a whole dia_id of the conversation, or
      what matches D\\d+:\\d+; it is not normalised, so "D30:05" is unknown where only D30:5 exists. Remnants such as
      "D:11:26" are unknown evidence too.
    """
    names, traces = _Unique(), []
    for number, (where, item) in enumerate(source.items()):
        if not isinstance(item, dict) or not isinstance(item.get("conversation"), dict):
            source.stray.append(f'{where}: {gate.shown(item)} is no object with "conversation"; skipped')
            continue
        own = _label(item.get("sample_id"))
        builder = _Builder(names(own or (f"{source.name}#{number + 1}" if number else source.name)))
        if own and builder.name != own:
            builder.problem(f"sample_id {own!r} was used before; this trace is named {builder.name!r}")
        _add_locomo_turns(builder, item["conversation"])
        rows = item.get("qa")
        if not isinstance(rows, list):
            builder.problem(f"qa is {gate.shown(rows)} and not a list; no questions")
            rows = []
        for index, row in enumerate(rows):
            _add_locomo_question(builder, index, row)
        traces.append(builder.build())
    return traces


def _add_locomo_turns(builder: _Builder, conversation: Mapping[str, Any]) -> None:
    dated = {match[1] for key in conversation if (match := _SESSION_DATE.fullmatch(key))}
    held = {key for key in conversation if _SESSION.fullmatch(key)}
    sessions = sorted(dated | held, key=lambda name: (int(name.removeprefix("session_")), name))
    times: list[int | None] = []
    undated, empty = [], []
    for session in sessions:
        turns, written = conversation.get(session), conversation.get(f"{session}_date_time")
        try:
            times.append(_locomo_date(written))
        except ValueError:
            times.append(None)
            undated.append(f"{session} ({'no date' if written is None else gate.shown(written)})")
        if not isinstance(turns, list) and turns is not None:
            builder.problem(f"{session}: {gate.shown(turns)} is not a list of turns; skipped")
        elif not turns:
            empty.append(session)
    filled = _nearest(times)
    if undated and filled:
        builder.problem(
            f"sessions without a readable date take that of the nearest earlier session that has one, "
            f"else of the nearest later: {', '.join(undated)}"
        )
    elif undated:
        builder.problem(f"no session has a readable date; all turns stand at 2000-01-01T00:00Z: {', '.join(undated)}")
    if empty:
        builder.problem(f"sessions without turns: {', '.join(empty)}")
    for session, time in zip(sessions, filled or [_NO_DATE_ANYWHERE] * len(sessions), strict=True):
        turns, written = conversation.get(session), conversation.get(f"{session}_date_time")
        date = {"session_date": written} if isinstance(written, str) else {}
        for position, turn in enumerate(turns if isinstance(turns, list) else ()):
            _add_locomo_turn(builder, session, position, turn, time, date)


def _locomo_date(written: Any) -> int:
    """A date such as "1:56 pm on 8 May, 2023", read as UTC, as µs since the epoch. Raises ValueError for others."""
    match = _LOCOMO_DATE.fullmatch(written) if isinstance(written, str) else None
    if match is None or match[5].lower() not in _MONTHS or not 1 <= int(match[1]) <= 12:
        raise ValueError("not a LoCoMo date")
    hour = int(match[1]) % 12 + (12 if match[3].lower() == "p" else 0)
    return _utc(int(match[6]), _MONTHS.index(match[5].lower()) + 1, int(match[4]), hour, int(match[2]))


def _add_locomo_turn(
    builder: _Builder, session: str, position: int, turn: Any, time: int, date: Mapping[str, str]
) -> None:
    where = f"{session} turn {position + 1}"
    if not isinstance(turn, dict):
        builder.problem(f"{where}: {gate.shown(turn)} is no turn; skipped")
        return
    event_id = _label(turn.get("dia_id"))
    if event_id is None:
        event_id = f"{session}:{position}"
        builder.problem(f"{where}: dia_id is {gate.shown(turn.get('dia_id'))}; {event_id!r} is used")
    speaker = _label(turn.get("speaker"))
    if speaker is None:
        speaker = "unknown"
        builder.problem(f"{where}: speaker is {gate.shown(turn.get('speaker'))}; 'unknown' is used")
    text = turn["text"] if isinstance(turn.get("text"), str) else ""
    caption = turn["blip_caption"] if isinstance(turn.get("blip_caption"), str) else ""
    if _is_blank(text) and _is_blank(caption):
        builder.problem(f"{where}: no text; skipped")
        return
    metadata: dict[str, Any] = {"speaker": speaker, **date}
    if turn.get("img_url"):
        metadata["img_url"] = turn["img_url"]
    content = f"{speaker}: {text} [{caption}]" if caption else f"{speaker}: {text}"
    builder.add(where, Event(event_id, time, content, session_id=session, metadata=metadata))


def _add_locomo_question(builder: _Builder, index: int, row: Any) -> None:
    where = f"question {index}"
    if not isinstance(row, dict) or not isinstance(row.get("question"), str):
        builder.problem(f"{where}: {gate.shown(row)} has no question text; skipped")
        return
    number = _label(row.get("category")) or "all"
    adversarial = number == "5" or (row.get("answer") is None and row.get("adversarial_answer") is not None)
    if row.get("answer") is None and row.get("adversarial_answer") is None:
        builder.problem(f"{where}: neither answer nor adversarial_answer; kept without an answer")
    listed = row.get("evidence")
    if listed is None:
        builder.problem(f"{where}: no evidence field")
    parts = [] if listed is None else listed if isinstance(listed, list) else [listed]
    ids = [name for part in parts for name in _locomo_ids(part, builder.events)]
    evidence, unknown = builder.sort_out(where, ids)
    question = Question(
        index=index,
        question=row["question"],
        evidence=evidence,
        unknown_evidence=unknown,
        category=_LOCOMO_CATEGORIES.get(number, number),
        answer=None if adversarial else _answer_text(row.get("answer")),
        answerable=not adversarial,
    )
    builder.add_question(where, question)


def _locomo_ids(written: Any, known: Mapping[str, Event]) -> list[str]:
    """The ids packed in one evidence text, in their order: known ones, well-formed ones, and the malformed remnants."""
    if not isinstance(written, str):
        return [_label(written) or gate.shown(written)]
    if written.strip() in known:
        return [written.strip()]
    remnants = re.split(r"[\s;,]+", _DIA_ID.sub(" ", written))
    return _DIA_ID.findall(written) + [part for part in remnants if any(map(str.isalnum, part))]


# --- LongMemEval ----------------------------------------------------------------------------------------------------

_LONGMEMEVAL_DATE = re.compile(r"\s*(\d{4})/(\d{1,2})/(\d{1,2})\s*(?:\([^)]*\))?\s*(\d{1,2}):(\d{2})\s*", re.ASCII)


def _load_longmemeval(source: _Source) -> list[Trace]:
    """LongMemEval: a list of instances, each one question over its own haystack of sessions; a trace for each.

    - The trace's name is the question_id. Ids, dates and sessions correspond by position and need not be in date
      order. Lists of different lengths are reported; a session without an id is called "session-N" (from 1), one
      without a readable date ("2023/05/20 (Sat) 02:21", read as UTC) takes that of the nearest earlier position that
      has one, else of the nearest later, else 2000-01-01T00:00Z. A session id that comes again becomes "id#2".
    - A turn becomes an episodic event: event_id "<session id>:<turn index from 0>", content "role: text", metadata
      role and session_date as written.
    - The evidence is the turns with has_answer true; where none has, all turns of the answer_session_ids. An instance
      with "_abs" in its question_id is not answerable and has no evidence. question_date is when it is asked,
      question_type its category.
    """
    names, traces = _Unique(), []
    for number, (where, item) in enumerate(source.items(), 1):
        if not isinstance(item, dict) or not isinstance(item.get("haystack_sessions"), list):
            source.stray.append(f'{where}: {gate.shown(item)} is no object with "haystack_sessions"; skipped')
            continue
        own = _label(item.get("question_id"))
        builder = _Builder(names(own or f"{source.name}#{number}"))
        if own is None:
            builder.problem(f"question_id is {gate.shown(item.get('question_id'))}; {builder.name!r} is used")
        elif builder.name != own:
            builder.problem(f"question_id {own!r} was used before; this trace is named {builder.name!r}")
        flagged, of_session = _add_longmemeval_turns(builder, item)
        _add_longmemeval_question(builder, item, flagged, of_session)
        traces.append(builder.build())
    return traces


def _add_longmemeval_turns(builder: _Builder, item: Mapping[str, Any]) -> tuple[list[str], dict[str, list[str]]]:
    """Adds the turns; returns the ids of those that have the answer, and the ids of all by their session's id."""
    sessions = item["haystack_sessions"]
    ids = _aligned(builder, item, "haystack_session_ids", len(sessions))
    dates = _aligned(builder, item, "haystack_dates", len(sessions))
    times: list[int | None] = []
    for position, written in enumerate(dates):
        try:
            times.append(_longmemeval_date(written))
        except ValueError:
            times.append(None)
            builder.problem(
                f"session {position + 1}: date {gate.shown(written)} cannot be read; the nearest earlier session's is "
                "used, else the nearest later one's, else 2000-01-01T00:00Z"
            )
    filled = _nearest(times) or [_NO_DATE_ANYWHERE] * len(sessions)
    unique, flagged = _Unique(), []
    of_session: dict[str, list[str]] = {}
    for position, (session, turns, time) in enumerate(zip(ids, sessions, filled, strict=True)):
        own = _label(session) or f"session-{position + 1}"
        name = unique(own)
        if name != own:
            builder.problem(f"session {position + 1}: id {own!r} was used before; {name!r} is used")
        if not isinstance(turns, list):
            builder.problem(f"session {position + 1}: {gate.shown(turns)} is not a list of turns; skipped")
            continue
        date = {"session_date": dates[position]} if isinstance(dates[position], str) else {}
        for index, turn in enumerate(turns):
            event_id, where = f"{name}:{index}", f"session {position + 1} turn {index + 1}"
            of_session.setdefault(own, []).append(event_id)
            if not isinstance(turn, dict):
                builder.problem(f"{where}: {gate.shown(turn)} is no turn; skipped")
                continue
            if turn.get("has_answer") is True:
                flagged.append(event_id)
            text = _render(turn.get("content"))
            if _is_blank(text):
                builder.problem(f"{where}: no text; skipped")
                continue
            role = _label(turn.get("role")) or "unknown"
            metadata = {"role": role, **date}
            builder.add(where, Event(event_id, time, f"{role}: {text}", session_id=name, metadata=metadata))
    return flagged, of_session


def _aligned(builder: _Builder, item: Mapping[str, Any], name: str, length: int) -> list[Any]:
    """The list `item[name]` brought to `length` by position; a list that is not so long is reported."""
    values = item.get(name)
    values = values if isinstance(values, list) else []
    if len(values) != length:
        builder.problem(f"{name} has {len(values)} entries for {length} sessions; they are matched by position")
    return [*values[:length], *[None] * (length - len(values))]


def _longmemeval_date(written: Any) -> int:
    """A date such as "2023/05/20 (Sat) 02:21", read as UTC, as µs since the epoch. Raises ValueError for others."""
    match = _LONGMEMEVAL_DATE.fullmatch(written) if isinstance(written, str) else None
    if match is None:
        raise ValueError("not a LongMemEval date")
    return _utc(*map(int, match.groups()))


def _add_longmemeval_question(
    builder: _Builder, item: Mapping[str, Any], flagged: list[str], of_session: Mapping[str, list[str]]
) -> None:
    if not isinstance(item.get("question"), str):
        builder.problem(f"question {gate.shown(item.get('question'))} is not text; skipped")
        return
    try:
        time = _longmemeval_date(item.get("question_date"))
    except ValueError:
        time = None
        builder.problem(
            f"question_date {gate.shown(item.get('question_date'))} cannot be read; "
            "the question is asked after the last event"
        )
    answerable = "_abs" not in str(_label(item.get("question_id")))
    ids: list[str] = []
    if answerable:
        listed = item.get("answer_session_ids")
        sessions = [_label(name) or gate.shown(name) for name in listed] if isinstance(listed, list) else []
        ids = flagged or [name for session in sessions for name in of_session.get(session, [session])]
    evidence, unknown = builder.sort_out("question", ids)
    question = Question(
        index=0,
        question=item["question"],
        evidence=evidence,
        unknown_evidence=unknown,
        time=time,
        category=_label(item.get("question_type")) or "all",
        answer=_answer_text(item.get("answer")),
        answerable=answerable,
    )
    builder.add_question("question", question)


# --- chat -----------------------------------------------------------------------------------------------------------

_CHAT_TIMES = ("time", "timestamp", "created_at", "create_time")
_TEXT_BLOCKS = ("text", "input_text", "output_text")
_CALL_BLOCKS = ("tool_use", "server_tool_use", "mcp_tool_use", "function_call", "tool_call")
_HIDDEN_BLOCKS = ("thinking", "redacted_thinking", "reasoning", "thoughts", "reasoning_recap")


@dataclass(slots=True)
class _Message:
    where: str
    session: str
    event_id: str
    time: int | None
    content: str
    metadata: dict[str, Any] = field(default_factory=dict)


def _load_chat(source: _Source) -> list[Trace]:
    """Chat transcripts: one trace, every conversation of the file a session, every message an episodic event.

    - Shapes: {"messages": […]} (OpenAI, Anthropic), a bare list of {"role", "content"}, the exports of ChatGPT
      (a list of {"mapping", "current_node"}; the branch that ends at the current node) and Claude (a list of
      {"chat_messages"}), a list of any of these, or one of them a line in a .jsonl file.
    - Content is the text as it is. Blocks are joined by line ends: tool calls as "tool_use name: {json}", their
      results as "tool_result: …", images as "[image]"; thinking is left out; any other block is "[its type]".
      Metadata: role, and tool where there is one. System messages are events like others. A message without any
      content is skipped and reported.
    - A message's time is its "time", "timestamp", "created_at" or "create_time": seconds or ISO 8601 with an offset.
      A message without one takes that of the nearest earlier message of the file, the first ones that of the nearest
      later (a conversation's own date counts as its first message's). In a file without any date the messages stand
      one minute apart and the last at the file's modification time. Both are reported once.
    - The session is the conversation's id, uuid, title or name, else the file's name; the event id is the message's
      id or uuid, else "<session>:<index from 0>"; repeated ones become "id#2" (and repeated message ids are reported).
    """
    builder, sessions, ids = _Builder(source.name), _Unique(), _Unique()
    messages: list[_Message] = []
    bare: list[tuple[str, Any]] = []
    for where, item in source.items():
        if isinstance(item, list) or (isinstance(item, dict) and _is_conversation(item)):
            title, date, raw = _conversation(builder, where, item)
            placed = [(f"{where} message {i}", message) for i, message in enumerate(raw, 1)]
            found = _messages(builder, sessions(title or source.name), placed, ids)
            if found and found[0].time is None:
                found[0].time = date
            messages += found
        else:
            bare.append((where, item))
    messages += _messages(builder, sessions(source.name), bare, ids)
    for message, time in zip(messages, _chat_times(builder, source.place, messages), strict=True):
        event = Event(message.event_id, time, message.content, session_id=message.session, metadata=message.metadata)
        builder.add(message.where, event)
    return [builder.build()]


def _is_conversation(item: Mapping[str, Any]) -> bool:
    return isinstance(item.get("mapping"), dict) or any(
        isinstance(item.get(name), list) for name in ("messages", "chat_messages")
    )


def _is_message(item: Mapping[str, Any]) -> bool:
    """Has a role and something said. The fields that only an event of the JSONL format has say it is not a chat."""
    said = any(name in item for name in ("content", "text", "tool_calls", "function_call"))
    return said and isinstance(item.get("role", item.get("sender")), str) and not {"event_id", "kind"} & item.keys()


def _conversation(builder: _Builder, where: str, item: Any) -> tuple[str | None, int | None, list[Any]]:
    """A conversation's title, date and raw messages."""
    if isinstance(item, list):
        return None, None, item
    names = ("id", "conversation_id", "uuid", "title", "name")
    title = next((found for name in names if (found := _label(item.get(name)))), None)
    date = _message_time(builder, where, item)
    if isinstance(item.get("mapping"), dict):
        return title, date, _branch(builder, where, item["mapping"], item.get("current_node"))
    listed = item["messages"] if isinstance(item.get("messages"), list) else item["chat_messages"]
    return title, date, listed


def _branch(builder: _Builder, where: str, mapping: Mapping[str, Any], node: Any) -> list[Any]:
    """The messages from the root of a ChatGPT tree to `node`; without one, to the last node that has no children."""
    nodes = {key: value for key, value in mapping.items() if isinstance(value, dict)}
    if not isinstance(node, str) or node not in nodes:
        node = next((key for key in reversed(nodes) if not nodes[key].get("children")), None)
    path: dict[str, Any] = {}
    while isinstance(node, str) and node in nodes and node not in path:  # a tree that loops ends where it began
        path[node] = nodes[node].get("message")
        node = nodes[node].get("parent")
    others = sum(1 for key, value in nodes.items() if key not in path and isinstance(value.get("message"), dict))
    if others:
        builder.problem(f"{where}: {others} messages of other branches left out")
    return [message for message in reversed(path.values()) if message is not None]


def _messages(builder: _Builder, session: str, raw: list[tuple[str, Any]], ids: _Unique) -> list[_Message]:
    """The messages of one conversation that have content."""
    messages: list[_Message] = []
    tools: dict[str, str] = {}  # the name of each tool call by its id, for the results that name only the id
    for index, (where, item) in enumerate(raw):
        if not isinstance(item, dict):
            builder.problem(f"{where}: {gate.shown(item)} is no message; skipped")
            continue
        author = item["author"] if isinstance(item.get("author"), dict) else item
        role = _label(author.get("role", item.get("sender")))
        if role is None:
            role = "unknown"
            builder.problem(f"{where}: no role; 'unknown' is used")
        try:
            content = _message_text(item, role)
        except RecursionError:
            builder.problem(f"{where}: nested too deeply; skipped")
            continue
        named = _tool_names(item, tools)
        if role in ("tool", "function") and (own := _label(author.get("name"))):
            named = [own]
        if _is_blank(content):
            builder.problem(f"{where}: no content; skipped")
            continue
        own_id = _label(item.get("id")) or _label(item.get("uuid"))
        event_id = ids(own_id or f"{session}:{index}")
        if own_id and event_id != own_id:
            builder.problem(f"{where}: id {own_id!r} was used before; {event_id!r} is used")
        metadata: dict[str, Any] = {"role": role}
        if named:
            metadata["tool"] = ", ".join(dict.fromkeys(named))
        messages.append(_Message(where, session, event_id, _message_time(builder, where, item), content, metadata))
    return messages


def _message_time(builder: _Builder, where: str, item: Mapping[str, Any]) -> int | None:
    written = next((item[name] for name in _CHAT_TIMES if item.get(name) is not None), None)
    if written is None:
        return None
    try:
        return _microseconds(written)
    except ValueError as error:
        builder.problem(f"{where}: {error}; taken as undated")
        return None


def _chat_times(builder: _Builder, place: Path, messages: list[_Message]) -> list[int]:
    """A time for every message; see `_load_chat`."""
    filled = _nearest([message.time for message in messages])
    undated = sum(message.time is None for message in messages)
    if filled is None:
        last = place.stat().st_mtime_ns // 1000
        if messages:
            builder.problem(
                "no message has a date; they stand one minute apart, the last at the file's modification time"
            )
        return [last - 60 * clock.MICROS * (len(messages) - 1 - i) for i in range(len(messages))]
    if undated:
        builder.problem(
            f"{undated} of {len(messages)} messages have no date; each takes that of the nearest earlier message, "
            "the first ones that of the nearest later"
        )
    return filled


def _message_text(item: Mapping[str, Any], role: str) -> str:
    content = item.get("content")
    text = _render(content)
    if _is_blank(text) and isinstance(item.get("text"), str):
        text = item["text"]
    if role in ("tool", "function"):
        return "" if _is_blank(text) else f"tool_result: {text}"
    calls = [_call_text(call) for call in _calls(item)]
    return "\n".join([text, *calls] if not _is_blank(text) else calls)


def _calls(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The tool calls that OpenAI keeps beside the content."""
    calls = item["tool_calls"] if isinstance(item.get("tool_calls"), list) else []
    return [call for call in [*calls, item.get("function_call")] if isinstance(call, dict)]


def _call_text(call: Mapping[str, Any]) -> str:
    """A tool call of OpenAI (arguments: JSON text) or Anthropic (input: an object) as "tool_use name: {json}"."""
    called = call["function"] if isinstance(call.get("function"), dict) else call
    given = called.get("input", called.get("arguments"))
    written = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return f"tool_use {_call_name(call)}: {written}"


def _call_name(call: Mapping[str, Any]) -> str:
    called = call["function"] if isinstance(call.get("function"), dict) else call
    return _label(called.get("name")) or "unknown"


def _tool_names(item: Mapping[str, Any], tools: dict[str, str]) -> list[str]:
    """The tools that a message calls or whose results it holds; notes the calls' ids in `tools`."""
    content = item.get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    names = []
    for call in [*_calls(item), *(block for block in blocks if block.get("type") in _CALL_BLOCKS)]:
        names.append(_call_name(call))
        if call_id := _label(call.get("id")):
            tools[call_id] = names[-1]
    results = [item.get("tool_call_id"), *(block.get("tool_use_id") for block in blocks)]
    return names + [tools[key] for result in results if (key := _label(result)) in tools]


def _render(content: Any) -> str:
    """A message's content as text: a text as it is, a list of blocks or parts joined by line ends."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        return "\n".join(text for block in content if not _is_blank(text := _render(block)))
    return _render_block(content) if isinstance(content, dict) else json.dumps(content)


def _render_block(block: Mapping[str, Any]) -> str:
    kind = block.get("type", block.get("content_type"))
    if isinstance(block.get("parts"), list):  # ChatGPT
        return _render(block["parts"])
    if not isinstance(kind, str) or kind in _TEXT_BLOCKS:
        text = block.get("text")
        text = text.get("value") if isinstance(text, dict) else text
        return text if isinstance(text, str) else "" if kind else json.dumps(block, ensure_ascii=False)
    if kind in _HIDDEN_BLOCKS:
        return ""
    if kind in _CALL_BLOCKS:
        return _call_text(block)
    if kind.endswith("tool_result") or kind == "function_call_output":
        result = _render(block.get("content", block.get("output")))
        return "" if _is_blank(result) else f"tool_result: {result}"
    if "image" in kind:
        return "[image]"
    text = block.get("text", block.get("refusal"))  # ChatGPT's code and execution_output, OpenAI's refusal
    return text if isinstance(text, str) else f"[{kind}]"


# --- git ------------------------------------------------------------------------------------------------------------

_PERSON = re.compile(rb"(?P<name>.*?) ?<.*> (?P<seconds>-?[0-9]{1,19}) [+-][0-9]{4}")


def _load_git(source: _Source) -> list[Trace]:
    """The history of a git repository: one trace, one episodic event for each commit reachable from HEAD.

    - event_id is the full hash, time the committer's (else, reported, the author's), session_id the commit's day in
      UTC ("2024-05-01": a commit belongs to no one branch), content the message without its one trailing newline,
      metadata author (name), hash and subject (the message's first line).
    - An empty message becomes "commit <short hash> (empty message)", reported.
    - The bytes of a message cannot be mistaken for structure: the hashes come from `git rev-list` and the objects
      from `git cat-file --batch`, which says each object's length. No text of the repository or the user passes
      through a shell, and replace refs and the environment's GIT_DIR are ignored.
    - Messages are decoded by the commit's encoding header, UTF-8 without one; what does not decode is replaced by
      U+FFFD and reported.
    """
    place = source.place.resolve()
    if not _is_git(place):
        raise InvalidInput(f"{str(place)!r} is no git repository: it has no .git and is not bare; pass its top folder")
    builder = _Builder(source.name)
    for commit, raw in _git_commits(place):
        _add_commit(builder, commit, raw)
    return [builder.build()]


def _git_command(place: Path, *arguments: str) -> list[str]:
    at = ("--git-dir", str(place)) if not (place / ".git").exists() else ("-C", str(place))
    return ["git", "--no-replace-objects", *at, *arguments]


def _git_environment() -> dict[str, str]:
    """The environment without the variables that would point git at another repository (set inside git hooks)."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**kept, "LC_ALL": "C", "GIT_NO_LAZY_FETCH": "1", "GIT_TERMINAL_PROMPT": "0"}


def _git_commits(place: Path) -> Iterator[tuple[str, bytes]]:
    """The hash and the raw object of each commit reachable from HEAD, parents before children."""
    environment = _git_environment()
    try:
        head = subprocess.run(
            _git_command(place, "rev-parse", "--verify", "HEAD^{commit}"),
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise InvalidInput(f"cannot read {str(place)!r}: there is no git command here; install git") from error
    if head.returncode:
        said = head.stderr.decode("utf-8", "replace").strip()
        raise InvalidInput(f"{str(place)!r} has no commit that can be read at HEAD; git says: {said or 'nothing'}")
    with tempfile.TemporaryFile() as errors:
        # rev-list writes straight into cat-file, so that no pipe of ours can fill up and block both.
        with (
            subprocess.Popen(
                _git_command(place, "rev-list", "--topo-order", "--reverse", "HEAD"),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            ) as hashes,
            subprocess.Popen(
                _git_command(place, "cat-file", "--batch"),
                env=environment,
                stdin=hashes.stdout,
                stdout=subprocess.PIPE,
                stderr=errors,
            ) as objects,
        ):
            assert hashes.stdout is not None
            assert objects.stdout is not None
            hashes.stdout.close()  # cat-file holds it now
            while header := objects.stdout.readline():
                commit, *rest = header.decode("ascii").split()
                if len(rest) != 2:  # not "<kind> <size>" but "missing", as when another process prunes meanwhile
                    raise InvalidInput(f"{str(place)!r} lost the object {commit} while it was read; load it again")
                yield commit, objects.stdout.read(int(rest[1]))
                objects.stdout.read(1)  # the newline after each object
        if objects.returncode or hashes.returncode:
            errors.seek(0)
            said = errors.read(2000).decode("utf-8", "replace").strip()
            raise InvalidInput(f"{str(place)!r} cannot be read to the end; git says: {said}; try git fsck there")


def _add_commit(builder: _Builder, commit: str, raw: bytes) -> None:
    where = f"commit {commit[:12]}"
    head, _, body = raw.partition(b"\n\n")  # lines that continue a header start with a blank, so none is empty
    headers: dict[bytes, bytes] = {}
    for line in head.split(b"\n"):
        name, _, value = line.partition(b" ")
        headers.setdefault(name, value)
    encoding = headers.get(b"encoding", b"utf-8").decode("ascii", "replace")

    def decode(text: bytes, what: str) -> str:
        try:
            return text.decode(encoding)
        except (LookupError, ValueError):
            builder.problem(f"{where}: {what} does not decode as {encoding}; the bytes in question are replaced")
        with suppress(LookupError, ValueError):
            return text.decode(encoding, "replace")
        return text.decode("utf-8", "replace")

    people = {name: _PERSON.fullmatch(headers.get(name, b"")) for name in (b"committer", b"author")}
    times = {name: time for name, person in people.items() if person and (time := _commit_time(person)) is not None}
    if not times:
        builder.problem(f"{where}: no time; skipped")
        return
    if b"committer" not in times:
        builder.problem(f"{where}: the committer's time cannot be read; the author's is used")
    time = times.get(b"committer", times.get(b"author", 0))
    content = decode(body.removesuffix(b"\n"), "message")
    subject = content.strip().partition("\n")[0].rstrip()
    if _is_blank(content):
        content = f"commit {commit[:7]} (empty message)"
        builder.problem(f"{where}: empty message; {content!r} is used")
    author = people[b"author"]
    metadata = {"author": decode(author["name"], "author") if author else "", "hash": commit, "subject": subject}
    day = clock.to_datetime(time).date().isoformat()
    builder.add(where, Event(commit, time, content, session_id=day, metadata=metadata))


def _commit_time(person: re.Match[bytes]) -> int | None:
    try:
        return _microseconds(int(person["seconds"]))
    except ValueError:
        return None


# --- parquet --------------------------------------------------------------------------------------------------------

_BATCH = 8192
_TICKS = {"s": (clock.MICROS, 1), "ms": (1000, 1), "us": (1, 1), "ns": (1, 1000)}  # a unit in µs, as a fraction


def _load_parquet(source: _Source) -> list[Trace]:
    """A table of events: one trace, the columns of the JSONL event format by their names. Reads in batches.

    - "id" serves where there is no event_id, "event_time" where there is no time. A time column holds timestamps
      (without a zone: read as UTC and reported), dates (midnight UTC), seconds, or ISO 8601 texts. metadata is JSON
      text or a struct.
    - Any other column goes into metadata when it holds scalars; other columns are left out and reported. In memcore's
      own record table (id and event_time, no event_id) the record's remaining columns (seq, vector, ingested_at …)
      are left out without a word.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from memcore.schema import COLUMNS

    builder = _Builder(source.name)
    try:
        with pq.ParquetFile(source.place) as file:
            names = dict.fromkeys(file.schema_arrow.names)
            is_record = "event_id" not in names and {"id", "event_time"} <= names.keys()
            aliases = {"id": "event_id"} if "event_id" not in names else {}
            aliases |= {"event_time": "time"} if "time" not in names else {}
            unwanted = COLUMNS if is_record else ()
            wanted = [name for name in names if aliases.get(name, name) in _EVENT_FIELDS or name not in unwanted]
            first_row = 1
            for batch in file.iter_batches(batch_size=_BATCH, columns=wanted):
                columns = [(aliases.get(n, n), batch.column(batch.schema.names.index(n))) for n in wanted]
                _add_batch(builder, columns, first_row, batch.num_rows)
                first_row += batch.num_rows
    except (pa.ArrowException, OSError, OverflowError, LookupError, ValueError) as error:  # as Arrow's values raise
        said = str(error).strip().partition("\n")[0]
        raise InvalidInput(
            f"{str(source.place)!r} cannot be read as Parquet: {said}; write it anew or pass another format"
        ) from error
    builder.problems = list(dict.fromkeys(builder.problems))  # each batch reports the columns
    return [builder.build()]


def _add_batch(builder: _Builder, columns: list[tuple[str, Any]], first_row: int, length: int) -> None:
    """`columns`: the names and Arrow arrays of `length` rows, of which the first has the number `first_row`."""
    fields: dict[str, list[Any]] = {}
    extras: dict[str, list[Any]] = {}
    for name, array in columns:
        if name == "time":
            fields[name] = _time_values(builder, array)
        elif name in _EVENT_FIELDS:
            fields[name] = _plain_values(array)
        elif (values := _scalar_values(array)) is not None:
            extras[name] = values
        else:
            builder.problem(f"column {name!r} of type {array.type} is left out")
    for offset in range(length):
        where = f"row {first_row + offset}"
        row = {name: values[offset] for name, values in fields.items()}
        if isinstance(row.get("metadata"), str):
            with suppress(ValueError):  # what is not JSON stays text, which _add_row reports
                row["metadata"] = _parse(row["metadata"].encode("utf-8", "replace"))
        if extras and isinstance(row.get("metadata"), dict | None):
            more = {name: values[offset] for name, values in extras.items() if values[offset] is not None}
            row["metadata"] = {**more, **(row.get("metadata") or {})}
        _add_row(builder, where, row, f"row-{first_row + offset}")


def _time_values(builder: _Builder, array: Any) -> list[Any]:
    """A time column as values that `_microseconds` takes."""
    import pyarrow as pa

    if pa.types.is_date(array.type):
        array = array.cast(pa.timestamp("ms", "UTC"))
    if not pa.types.is_timestamp(array.type):
        return _plain_values(array)
    if array.type.tz is None:
        builder.problem("the time column has no zone; read as UTC")
    times, per = _TICKS[array.type.unit]
    ticks = array.cast(pa.int64()).to_pylist()  # not to_pylist() at once: it needs pandas for nanoseconds
    return [None if tick is None else _moment(tick * times // per) for tick in ticks]


def _moment(microseconds: int) -> datetime | int:
    """An aware datetime, or seconds where there is no such datetime (`_microseconds` then says why not)."""
    try:
        return clock.to_datetime(microseconds)
    except OverflowError:
        return microseconds // clock.MICROS


def _plain_values(array: Any) -> list[Any]:
    """An Arrow array as Python values. Text that is not UTF-8 gets lone surrogates, for which its row is refused."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    try:
        values: list[Any] = array.to_pylist()
    except UnicodeDecodeError:
        raw = array.cast(pa.binary()).to_pylist()
        values = [None if value is None else value.decode("utf-8", "surrogateescape") for value in raw]
    return values


def _scalar_values(array: Any) -> list[Any] | None:
    """A column for metadata: texts, numbers, booleans, and times as text; None where it holds anything else."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        try:
            return _plain_values(array.cast(pa.string()))
        except pa.ArrowException:  # a zone that this host does not know
            return None
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    if text or pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_null(kind):
        return _plain_values(array)
    if pa.types.is_floating(kind):
        return [value if value is None or math.isfinite(value) else None for value in array.to_pylist()]
    return None


_LOADERS: dict[str, Callable[[_Source], list[Trace]]] = {
    "jsonl": _load_jsonl,
    "locomo": _load_locomo,
    "longmemeval": _load_longmemeval,
    "chat": _load_chat,
    "git": _load_git,
    "parquet": _load_parquet,
}

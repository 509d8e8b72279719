"""What a recorded trace is: events with times, questions with labelled evidence, and what was wrong with the file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `time` is int64 microseconds since the epoch, UTC."""

    event_id: str
    time: int
    content: str
    kind: str = "episodic"
    session_id: str = "default"
    agent_role: str = "default"
    importance: float | None = None  # None: the default of `remember`
    key: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Question:
    """A labelled question. `index` counts from 0 within its trace, in file order, and never skips.

    `evidence` holds the ids that exist in the trace, in file order without repeats; `unknown_evidence` the rest, as
    written. `time` is when it is asked (µs UTC); None means after the last event. `answerable` is False for questions
    whose answer is not in the trace (LoCoMo's category 5, LongMemEval's `_abs`).
    """

    index: int
    question: str
    evidence: tuple[str, ...] = ()
    unknown_evidence: tuple[str, ...] = ()
    time: int | None = None
    category: str = "all"
    answer: str | None = None
    answerable: bool = True


@dataclass(frozen=True, slots=True)
class Trace:
    """One agent's recorded life: `events` in event-time order (file order within one time), `questions` in file order.

    `name` is the trace's own (LoCoMo's `sample_id`) or the file's name. `problems` lists, one line each, whatever the
    loader had to repair, skip or guess, so that nothing is dropped in silence.
    """

    name: str
    events: tuple[Event, ...]
    questions: tuple[Question, ...] = ()
    problems: tuple[str, ...] = ()

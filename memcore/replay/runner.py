"""What would memcore have remembered? Plays recorded traces on a simulated clock and asks their questions.

Each trace is one agent's life in a scope of its own (tenant "replay", project the trace's name). Its events are written
one by one at their own times, in event-time order; a question is asked when its time comes, before any later event,
or after the last one if it has none. What a session still holds as working memory becomes episodic after its last
event, as it would when an agent hangs up.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memcore import config, gate
from memcore.agent.working import estimate_tokens
from memcore.clock import to_datetime
from memcore.errors import InvalidInput, MemcoreError
from memcore.replay import metrics
from memcore.replay.report import Compared, Report, TraceCount
from memcore.replay.trace import Event, Question, Trace
from memcore.store.files import bytes_in

if TYPE_CHECKING:
    from memcore.memory import Memory, Scope
    from memcore.search.result import Hit

TENANT = "replay"
DEFAULT_KS = (5, 10, 25, 50)
TOKENS_K = 10  # the hits that an answer's tokens are counted over, where ks has it; else the smallest of ks
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How the memory is asked. `weights` and `decay_rate` None: the store's own. The weights are those of relevance
    alone by default, since what answers a question of a trace is of any age. `compare` names other relevances that are
    asked the same.
    """

    ks: tuple[int, ...] = DEFAULT_KS
    relevance: str = "hybrid"
    weights: tuple[float, float, float] | None = (1.0, 0.0, 0.0)
    decay_rate: float | str | None = None
    compare: tuple[str, ...] = ()


@dataclass(slots=True)
class _Life:
    """One trace being played."""

    trace: Trace
    mem: Memory
    settings: Settings
    reader: Scope
    writers: dict[tuple[str, str], Scope]
    owner: dict[str, str]  # record id -> the event that its standing version tells
    tokens: int
    write_s: list[float]
    answers: dict[str, list[metrics.Answer]]  # by relevance
    problems: list[str]


def play(
    traces: Sequence[Trace], mem: Memory, settings: Settings, *, progress: Progress = lambda done, total, label: None
) -> tuple[Report, list[metrics.Answer]]:
    """Plays the traces into an open memory; the report, and the answers in the order of traces and questions.

    `progress(done, total, label)` is called as events and questions are done. Raises InvalidInput where the memory
    already holds rows of a trace, since they would be found too.
    """
    started = time.perf_counter()
    if not traces:
        raise InvalidInput("there is no trace to play; pass a file that holds one")
    settings = Settings(
        tuple(sorted({gate.count(k, "k", 1) for k in settings.ks})),
        settings.relevance,
        None if settings.weights is None else config.weights(settings.weights),
        settings.decay_rate,
        settings.compare,
    )
    total = sum(len(trace.events) + len(trace.questions) for trace in traces)
    done = itertools.count(1)
    lives = []
    for trace in traces:
        life = _begin(trace, mem, settings)
        lives.append(life)
        for step in _steps(trace):
            if isinstance(step, Event):
                _write(life, step)
            elif isinstance(step, Question):
                for relevance in life.answers:
                    _ask(life, step, relevance)
            else:
                _hang_up(life, *step)
                continue
            progress(next(done), total, trace.name)
        for given in life.answers.values():
            given.sort(key=lambda answer: answer.question_index)
    answers = {name: [answer for life in lives for answer in life.answers[name]] for name in _relevances(settings)}
    return _report(lives, answers, settings, mem, time.perf_counter() - started), answers[settings.relevance]


def _relevances(settings: Settings) -> list[str]:
    """All that are asked, each once."""
    return list(dict.fromkeys((settings.relevance, *settings.compare)))


def _steps(trace: Trace) -> Iterator[Event | Question | tuple[str, str, int]]:
    """Events and questions in simulated time; (session, role, time) where a session with working memory has ended."""
    timed = sorted((q for q in trace.questions if q.time is not None), key=lambda q: (q.time, q.index))
    last = {(e.session_id, e.agent_role): place for place, e in enumerate(trace.events)}
    working = {(e.session_id, e.agent_role) for e in trace.events if e.kind == "working"}
    waiting = iter(timed)
    question = next(waiting, None)
    for place, event in enumerate(trace.events):
        while question is not None and question.time is not None and question.time < event.time:
            yield question
            question = next(waiting, None)
        yield event
        name = (event.session_id, event.agent_role)
        if name in working and last[name] == place:
            yield *name, event.time
    while question is not None:
        yield question
        question = next(waiting, None)
    yield from (q for q in trace.questions if q.time is None)


def _begin(trace: Trace, mem: Memory, settings: Settings) -> _Life:
    reader = mem.scope(TENANT, trace.name)
    if reader.stats()["versions"]:
        raise InvalidInput(
            f"the store already holds memories of the trace {trace.name!r}; they would be found too: replay into an "
            "empty directory, or without --store"
        )
    return _Life(
        trace, mem, settings, reader, {}, {}, 0, [], {name: [] for name in _relevances(settings)},
        [f"{trace.name}: {problem}" for problem in trace.problems],
    )  # fmt: skip


def _write(life: _Life, event: Event) -> None:
    name = (event.session_id, event.agent_role)
    writer = life.writers.get(name)
    if writer is None:
        writer = life.writers[name] = life.mem.scope(TENANT, life.trace.name, *name)
    given: dict[str, Any] = {} if event.importance is None else {"importance": event.importance}
    moment = to_datetime(event.time)
    begun = time.perf_counter()
    try:
        record = writer.remember(
            event.content,
            kind=event.kind,
            key=event.key,
            event_time=moment,
            metadata={**event.metadata, "event_id": event.event_id},
            now=moment,
            **given,
        )
    except MemcoreError as fault:
        life.problems.append(f"{life.trace.name}: event {event.event_id!r} was not remembered: {fault}")
        return
    life.write_s.append(time.perf_counter() - begun)
    life.owner[record.id] = event.event_id
    life.tokens += estimate_tokens(event.content)


def _hang_up(life: _Life, session_id: str, agent_role: str, at: int) -> None:
    life.writers[session_id, agent_role].end_session(now=to_datetime(at))


def _ask(life: _Life, question: Question, relevance: str) -> None:
    settings = life.settings
    moment = question.time if question.time is not None else life.trace.events[-1].time if life.trace.events else 0
    hits: Sequence[Hit] = ()
    begun = time.perf_counter()
    try:
        hits = life.reader.recall(
            question.question,
            k=max(settings.ks[-1], metrics.NDCG_DEPTH),
            relevance=relevance,
            weights=settings.weights,
            decay_rate=settings.decay_rate,
            now=to_datetime(moment),
        )
    except InvalidInput as fault:
        life.problems.append(f"{life.trace.name}: question {question.index} could not be asked: {fault}")
    took = time.perf_counter() - begun
    life.answers[relevance].append(
        metrics.Answer(
            trace=life.trace.name,
            question_index=question.index,
            question=question.question,
            retrieved=tuple(life.owner[hit.id] for hit in hits),
            evidence=question.evidence,
            unknown_evidence=question.unknown_evidence,
            category=question.category,
            answerable=question.answerable,
            latency_s=took,
            tokens_recalled=sum(estimate_tokens(hit.content) for hit in hits[: tokens_k(settings.ks)]),
            tokens_history=life.tokens,
        )
    )


def tokens_k(ks: Sequence[int]) -> int:
    """How many hits an answer's recalled tokens are counted over."""
    return TOKENS_K if TOKENS_K in ks else min(ks)


def _report(
    lives: Sequence[_Life], every: dict[str, list[metrics.Answer]], settings: Settings, mem: Memory, elapsed_s: float
) -> Report:
    answers = every[settings.relevance]
    write_s = [seconds for life in lives for seconds in life.write_s]
    stats = mem.stats()
    rate = config.decay(settings.decay_rate, None, stats["decay_rate"])
    return Report(
        traces=[TraceCount(life.trace.name, len(life.trace.events), len(life.trace.questions)) for life in lives],
        settings={
            "embedder": stats["embedder"]["fingerprint"] if stats["embedder"] else None,
            "relevance": settings.relevance,
            "weights": list(settings.weights or stats["weights"]),
            "decay_rate per hour": rate,
            "half-life in hours": config.half_life_hours(rate),
            "k": list(settings.ks),
        },
        evaluation=metrics.evaluate(answers, settings.ks),
        write_s=metrics.percentiles(write_s),
        recall_s=_recall_s(answers),
        compared=[
            Compared(
                name,
                metrics.evaluate(given, settings.ks).overall,
                None if name == settings.relevance else metrics.difference(answers, given, settings.ks),
                _recall_s(given),
            )
            for name, given in every.items()
            if len(every) > 1
        ],
        rows_per_second=len(write_s) / sum(write_s) if write_s else None,
        bytes_on_disk=bytes_in(Path(stats["path"])) if stats["path"] else None,
        bytes_in_memory=stats["bytes_in_memory"],
        tokens=metrics.token_means(answers),
        tokens_k=tokens_k(settings.ks),
        problems=[problem for life in lives for problem in life.problems],
        elapsed_s=elapsed_s,
    )


def _recall_s(answers: Sequence[metrics.Answer]) -> metrics.Percentiles:
    return metrics.percentiles([answer.latency_s for answer in answers if answer.latency_s is not None])

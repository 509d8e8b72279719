"""What does each part of the hybrid relevance add? `python -m bench.ablation [LOCOMO.json] [--embedder NAME]`

The shipped trace, and a file of LoCoMo if one is named: all events are remembered, each question is asked as of its own
time, and the parts of every row's relevance are put together with some of them left out, by the kernels that recall
uses. Evidence recall at 5, 10, 25 and 50, and what leaving a part out costs at 10, with the 95 % interval by bootstrap
over questions. Raw rows go to bench/results/ablation.jsonl.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

import memcore
from bench.corpus import RESULTS
from memcore.clock import to_datetime
from memcore.replay import loaders, metrics, runner
from memcore.replay.trace import Trace
from memcore.search import relevance
from memcore_kernels import activation
from memcore_kernels.relevance import bases, relevances

KS = (5, 10, 25, 50)
SHIPPED = "datasets/ops_agent.jsonl"
PARTS = ("likeness", "lexical", "temporal", "activation")
# What is left in, beside the plain cosine and the whole.
SETTINGS: dict[str, tuple[str, ...]] = {
    "likeness": ("likeness",),
    "lexical": ("lexical",),
    "likeness + lexical": ("likeness", "lexical"),
    "likeness + lexical + temporal": ("likeness", "lexical", "temporal"),
    "hybrid": PARTS,
    **{f"hybrid without {part}": tuple(name for name in PARTS if name != part) for part in PARTS},
}

F64 = npt.NDArray[np.float64]


def put_together(parts: dict[str, Any], left_in: tuple[str, ...]) -> F64:
    """The relevance of rows in stored order from some of their parts."""
    zeros = np.zeros(len(parts["lexical"]))
    likeness, lexical, temporal = (parts[name] if name in left_in else zeros for name in PARTS[:3])
    base, gained, made = (np.zeros(len(zeros)) for _ in range(3))
    bases(likeness.astype(np.float32), lexical, temporal, relevance.WORDS, relevance.TIME, base)
    if "activation" in left_in:
        sessions = int(parts["session"].max(initial=-1)) + 1
        activation.activate(base, parts["session"], parts["taking"], sessions, gained)
    relevances(base, gained, activation.MOST, relevance.HALF, made)
    return made


def asked(trace: Trace, mem: memcore.Memory) -> Iterator[dict[str, metrics.Answer]]:
    """The answers to each question of a trace, by setting."""
    reader = mem.scope(runner.TENANT, trace.name)
    owner: dict[int, str] = {}
    codes: dict[str, int] = {}
    for event in trace.events:
        writer = mem.scope(runner.TENANT, trace.name, event.session_id, event.agent_role)
        kind = "episodic" if event.kind == "working" else event.kind
        moment = to_datetime(event.time)
        record = writer.remember(event.content, kind=kind, key=event.key, event_time=moment, now=moment)
        owner[record.seq] = event.event_id  # not by id, which later versions have too
        codes.setdefault(event.session_id, len(codes))
    for question in trace.questions:
        at = to_datetime(question.time if question.time is not None else trace.events[-1].time)
        hits = sorted(
            reader.recall(question.question, k=len(trace.events), weights=(1, 0, 0), as_of=at), key=lambda hit: hit.seq
        )
        parts: dict[str, Any] = {name: np.array([getattr(hit, name) for hit in hits]) for name in PARTS[:3]}
        parts["session"] = np.array([codes[hit.session_id] for hit in hits], np.int32)
        turns = [hit.kind == "episodic" and hit.session_id != "default" for hit in hits]
        parts["taking"] = np.array(turns, np.uint8)
        ranked = {"cosine": np.array([hit.cosine for hit in hits])}
        ranked.update((name, put_together(parts, left_in)) for name, left_in in SETTINGS.items())
        yield {
            name: metrics.Answer(
                trace.name,
                question.index,
                question.question,
                tuple(owner[hits[place].seq] for place in np.argsort(-scores, kind="stable")[: KS[-1]]),
                question.evidence,
            )
            for name, scores in ranked.items()
        }


def measure(path: str, embedder: str) -> None:
    answers: dict[str, list[metrics.Answer]] = {}
    for trace in loaders.load(path):
        with memcore.open(embedder=embedder) as mem:
            for answer in asked(trace, mem):
                for name, given in answer.items():
                    answers.setdefault(name, []).append(given)
    print(f"{'':<32}" + "".join(f"{f'R@{k}':>8}" for k in KS) + "   beside hybrid, R@10")
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "ablation.jsonl").open("a") as file:
        for name, given in answers.items():
            found = metrics.evaluate(given, KS).overall
            apart = metrics.difference(answers["hybrid"], given, (10,))
            interval = apart.intervals[10]
            assert interval is not None
            means = "".join(f"{found.recall[k]:>8.3f}" for k in KS)
            told = "" if name == "hybrid" else f"   {apart.recall[10]:+.3f} [{interval.low:+.3f}, {interval.high:+.3f}]"
            print(f"{name:<32}{means}{told}", flush=True)
            row = {"at": time.time(), "trace": path, "embedder": embedder, "setting": name, "recall": found.recall}
            file.write(json.dumps(row) + "\n")


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m bench.ablation")
    arguments.add_argument("locomo", nargs="?")
    arguments.add_argument("--embedder", default="static")
    asked_for = arguments.parse_args()
    for path in (SHIPPED, asked_for.locomo):
        if path is not None:
            print(f"{path}, {asked_for.embedder}")
            measure(path, asked_for.embedder)


if __name__ == "__main__":
    main()

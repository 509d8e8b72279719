"""Who writes until it is killed? `python -m bench.crash_writer`, which `bench.crash` starts.

It reads what to do as one line of JSON from stdin, and tells each deed in a line on stdout: "begin" before the call,
and "done" with its answer after the call has returned. Its threads go on until a line "stop" comes, or the kill does.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import pyarrow  # noqa: F401  # before the line from stdin comes

import memcore
from bench.crash_model import (
    CAPACITY,
    EMBEDDERS,
    Answer,
    Deed,
    Embedder,
    Share,
    Wrong,
    differing,
    fields_of,
    vector_for,
)
from memcore.store import directory, load, maintenance, segment, steps  # noqa: F401

_telling = threading.Lock()


def tell(**told: Any) -> None:
    line = json.dumps({**told, "at": time.monotonic()}).encode() + b"\n"
    with _telling:
        while line:
            line = line[os.write(1, line) :]


def die_at(place: str, nth: int) -> None:
    """Has the process kill itself where `step` is called with this name for the n-th time."""
    harmless, calls = steps.step, 0

    def step(name: str) -> None:
        nonlocal calls
        if name == place:
            calls += 1
            if calls == nth:
                tell(told="dies", place=name)
                os.kill(os.getpid(), signal.SIGKILL)

    for module in list(sys.modules.values()):
        if getattr(module, "step", None) is harmless:
            module.step = step  # type: ignore[attr-defined]


class Writer(threading.Thread):
    """One sequence of deeds, of which the memories are its own."""

    def __init__(
        self,
        mem: memcore.Memory,
        share: Share,
        told: dict[str, Any],
        stop: threading.Event,
        tell: Callable[..., None] = tell,
    ) -> None:
        super().__init__(daemon=True)
        self.tell = tell
        self.mem, self.share, self.loop, self.stopped = mem, share, told["loop"], stop
        self.ops = mem.scope(**share.scope)
        self.rng = random.Random(f"{told['seed']} {self.loop} {share.number}")
        self.weights = told["weights"]
        self.embedders = EMBEDDERS if told["embedder"] else ()

    def run(self) -> None:
        number = 0
        while not self.stopped.is_set():
            deed = self.share.next(self.rng, self.weights, self.loop, number)
            self.tell(told="begin", writer=self.share.number, deed=deed)
            began = time.monotonic()
            try:
                try:
                    answer = self.do(deed)
                except memcore.EmbedderMismatch:  # `reembed` came between embedding and writing; nothing was written
                    answer = self.do(deed)
                fault = self._maintenance().fault
                if fault is not None:
                    raise fault
                self.share.apply(deed, answer, (began, time.monotonic()))
            except Exception as fault:
                sort = fault.sort if isinstance(fault, Wrong) else "wrong"
                self.tell(told="wrong", writer=self.share.number, sort=sort, text=traceback.format_exc())
                return
            self.tell(told="done", writer=self.share.number, answer=answer)
            number += 1

    def do(self, deed: Deed) -> Answer:
        ops, do = self.ops, deed["do"]
        if do == "remember_many":
            rows = [{"content": content, "kind": deed["kind"], **self.fields(content)} for content in deed["contents"]]
            return {"ids": list(ops.remember_many(rows))}
        if do in ("remember", "upsert", "say", "retry"):
            (content,) = deed["contents"]
            record = ops.remember(
                content,
                kind=deed.get("kind", "episodic"),
                key=deed.get("key"),
                idempotency_key=deed.get("retry"),
                **self.fields(content),
            )
            return self._checked(record, content)
        if do == "update":
            (content,) = deed["contents"]
            return self._checked(
                ops.update(deed["id"], content=content, if_version=deed["version"], **self.fields(content)), content
            )
        if do in ("forget", "erase"):
            report = ops.forget(deed["ids"], erase=do == "erase")
            return {"ids": report.ids}
        if do == "restore":
            back = ops.restore(deed["ids"])
            return {"ids": back.ids, "missing": back.missing, "in_use": back.in_use}
        if do == "end":
            return {"ids": ops.end_session()}
        if do == "cool":
            return {"ids": ops.prune(importance_below=deed["below"], recency_below=0.99).ids}
        if do == "reembed":
            other = Embedder(EMBEDDERS[self.mem.stats()["embedder"]["fingerprint"] == EMBEDDERS[0]])
            try:
                return {"embedder": self.mem.reembed(other).embedder}
            except memcore.StoreLocked:  # the others write faster than it embeds; nothing was changed
                return {}
        if do == "compact":
            self.mem.compact()
        elif do == "seal":
            self._maintenance().work(time.time_ns() // 1000)
        elif do == "count":
            return self._count()
        elif do == "look":
            self._look(deed["ids"])
        return {}

    def fields(self, content: str) -> dict[str, Any]:
        vector = None if self.embedders else vector_for(content)
        return {**fields_of(content), **({} if vector is None else {"vector": vector})}

    def _checked(self, record: memcore.Record, content: str) -> Answer:
        if record.content != content or differing(record, self.embedders):
            raise Wrong("torn", f"a call returned {record} for {content!r}")
        return {"ids": [record.id], "seq": record.seq, "version": record.version}

    def _count(self) -> Answer:
        """Adds one to a number that all writers share, by compare-and-swap."""
        shared = self.mem.scope("shared", "p")
        shared.remember("0", kind="semantic", key="count", idempotency_key="count")
        while True:
            record = shared.get(key="count")
            assert record is not None
            try:
                record = shared.update(record.id, content=str(int(record.content) + 1), if_version=record.version)
            except memcore.VersionConflict:
                continue
            return {"version": record.version, "content": record.content}

    def _look(self, ids: list[str]) -> None:
        """Reads what it has written, while others write."""
        for name in ids:
            record, content = self.ops.get(name), self.share.memos[name].content
            if record is None or record.content != content:
                raise Wrong("lost", f"{name} should hold {content!r} and is {record}")
            if wrong := differing(record, self.embedders):
                raise Wrong("torn", f"{wrong} of {record}")
        held = [record.id for record in self.ops.working().entries()]
        if held != self.share.held:
            raise Wrong("lost", f"the working memory should hold {self.share.held} and holds {held}")

    def _maintenance(self) -> maintenance.Maintenance:
        opened = self.mem._engine.directory
        assert opened is not None
        return opened.maintenance


def main() -> None:
    line = sys.stdin.readline()
    if not line:
        return
    told = json.loads(line)
    maintenance.SEAL_ROWS, maintenance.MERGED_FILES = told["seal_rows"], told["merged_files"]
    segment.ROWS = told["segment_rows"]
    if told["place"]:
        die_at(told["place"], told["nth"])
    embedder = Embedder(told["embedder"]) if told["embedder"] else None
    mem = memcore.open(told["path"], embedder=embedder, working_capacity=CAPACITY)
    tell(told="ready")
    stop = threading.Event()
    writers = [Writer(mem, Share.of(share), told, stop) for share in told["shares"]]
    for writer in writers:
        writer.start()
    if not sys.stdin.readline():
        os._exit(3)  # whoever started it is gone
    stop.set()
    for writer in writers:
        writer.join()
    mem.close()
    tell(told="bye")


if __name__ == "__main__":
    main()

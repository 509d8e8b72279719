"""Does the store keep its promise when a process is killed? `python -m bench.crash [--loops 200] [--seed N] [--json]`.

Each loop starts one or two processes of several threads, which write, forget, restore, seal and compact at random on
one store, and tell over a pipe what they are about to do and what was done. A process is killed with SIGKILL: at a
random moment, while it opens the store, or at a named place between two steps of the store (`memcore.store.steps`).
Then the store is opened and compared with what was told. All that was done must be there, whole and once; what was
forgotten must not; and what was under way must have happened wholly or not at all. The next loop goes on with the same
store; every tenth begins afresh.

The seed fixes the deeds of each writer and where and about when it is killed; how far it gets by then is the machine's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import memcore
from bench.crash_model import (
    CAPACITY,
    EMBEDDERS,
    MARK,
    WEIGHTS,
    Deed,
    Memo,
    Share,
    Span,
    Wrong,
    differing,
    maybe_dropped,
    surely_dropped,
)
from memcore.schema import Records

ROOT = Path(__file__).parents[1]
FRESH = 10  # loops that go on with one store
THREADS = 3  # of a process at most
LINES = 1200  # that a process tells at most before it is killed, also if it hasn't come to its place
SORTS = ("lost", "torn", "resurrected", "wrong")
Progress = Callable[[int, int], None]


def places() -> list[str]:
    """The names that the store gives to `step`."""
    sources = sorted(Path(memcore.__path__[0]).rglob("*.py"))
    return sorted({name for path in sources for name in re.findall(r'(?<![.\w])step\("([^"]+)"\)', path.read_text())})


# In the making of a store
NEW = ("before a catalog is made", "before the catalog has its name", "after the catalog has its name")
STAGED = ("staged", "new vectors")  # in the places of re-embedding


@dataclass
class Report:
    """What became of the loops: `wrong` counts by sort, and `faults` tells each."""

    seed: int
    loops: int = 0
    seconds: float = 0.0
    killed: Counter[str] = field(default_factory=Counter)  # by place
    deeds: Counter[str] = field(default_factory=Counter)  # that were acknowledged, by what they were
    finished: int = 0  # deeds that were under way at a kill and had happened
    undone: int = 0  # and those that had not
    rows: int = 0  # row versions that were compared
    verified: int = 0  # times that `verify` was asked
    compacted: int = 0  # times that the bytes of all files were searched for what was forgotten
    wrong: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(self.wrong.values())

    def add(self, loop: int, sort: str, told: str) -> None:
        self.wrong[sort] += 1
        self.faults.append(f"loop {loop}: {sort}: {re.sub('(wörds )+', '… ', told)}")

    def plain(self) -> dict[str, Any]:
        return {
            "seed": self.seed, "loops": self.loops, "seconds": round(self.seconds, 1),
            "killed": dict(sorted(self.killed.items())), "acknowledged": sum(self.deeds.values()),
            "deeds": dict(sorted(self.deeds.items())), "in_flight": {"done": self.finished, "not_done": self.undone},
            "rows_compared": self.rows, "verified": self.verified, "searched": self.compacted,
            **{sort: self.wrong[sort] for sort in SORTS}, "faults": self.faults, "ok": self.ok,
        }  # fmt: skip

    def table(self) -> str:
        lines = [
            f"{self.loops} loops in {self.seconds:.0f} s, seed {self.seed}",
            "",
            f"{'killed':<52}{sum(self.killed.values()):>8,}",
            *(f"  {place:<50}{count:>8,}" for place, count in sorted(self.killed.items(), key=lambda item: item[0])),
            "",
            f"{'acknowledged':<52}{sum(self.deeds.values()):>8,}",
            *(f"  {do:<50}{count:>8,}" for do, count in self.deeds.most_common()),
            f"{'in flight, done':<52}{self.finished:>8,}",
            f"{'in flight, not done':<52}{self.undone:>8,}",
            f"{'row versions compared':<52}{self.rows:>8,}",
            f"{'stores verified':<52}{self.verified:>8,}",
            f"{'stores searched for forgotten bytes':<52}{self.compacted:>8,}",
            "",
            *(f"{sort:<52}{self.wrong[sort]:>8,}" for sort in SORTS),
        ]
        return "\n".join(lines)


# Those who write


class Process:
    """A writer's process, which imports at once and waits for what to do."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self._more = threading.Condition()
        self._over = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self.ended = math.inf
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.crash_writer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=ROOT,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith(b"\n"):  # not cut off by the kill
                with self._more:
                    self.lines.append(json.loads(line))
                    self._over |= self.lines[-1]["told"] == "wrong"
                    self._more.notify_all()
        with self._more:
            self._over = True
            self._more.notify_all()

    def begin(self, **told: Any) -> None:
        self._say(json.dumps(told))

    def stop(self) -> None:
        """Has it end by itself."""
        self._say("stop")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is killed already
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def wait(self, lines: int) -> None:
        """Until it has told so many lines, or that something is wrong, or is no more."""
        with self._more:
            self._more.wait_for(lambda: self._over or len(self.lines) >= lines)

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> None:
        """Waits for its end and for all that it has told."""
        self._process.wait()
        self._reader.join()
        self.ended = time.monotonic()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def died(self) -> bool:
        return self._process.returncode == -signal.SIGKILL

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace").strip()

    def close(self) -> None:
        self.kill()
        self.end()
        self._errors.close()


# What was told, against what is there


class Store:
    """A store, and what it must hold: what all writers were told."""

    def __init__(self, path: Path, embedder: str | None) -> None:
        self.path = path
        self.embedder = embedder
        self.shares: dict[int, Share] = {}
        self.compacts: list[Span] = []
        self.seqs: dict[tuple[str, int, int], int] = {}  # of a memory's version after so many moves, once it is known
        self.counted = 0  # what the number that all share must be at least
        self.begun = 0  # and at most

    def share(self, number: int) -> Share:
        return self.shares.setdefault(number, Share(number))

    def note(self, told: Sequence[tuple[Sequence[dict[str, Any]], float]], report: Report, loop: int) -> list[Any]:
        """Takes note of what processes told until they ended; the deeds that were under way, each with its writer."""
        done: list[tuple[int, Deed, dict[str, Any], Span]] = []
        under_way: list[tuple[int, Deed, Span]] = []
        for lines, ended in told:
            begun: dict[int, tuple[Deed, float]] = {}
            for line in lines:
                if line["told"] == "begin":
                    begun[line["writer"]] = line["deed"], line["at"]
                elif line["told"] == "done":
                    deed, at = begun.pop(line["writer"])
                    done.append((line["writer"], deed, line["answer"], (at, line["at"])))
                elif line["told"] == "wrong":
                    report.add(loop, line["sort"], line["text"])
            under_way += [(writer, deed, (at, ended)) for writer, (deed, at) in begun.items()]
        self.compacts += [span for _, deed, _, span in done if deed["do"] == "compact"]
        self.compacts += [(began, math.inf) for _, deed, (began, _) in under_way if deed["do"] == "compact"]
        versions = []
        for writer, deed, answer, span in done:
            report.deeds[deed["do"]] += 1
            if deed["do"] == "count":
                versions.append(answer["version"])
                continue
            with self._told(report, loop):
                self.share(writer).apply(deed, answer, span, self.compacts)
            if answer.get("seq") and deed["do"] != "retry":
                memo = self.share(writer).memos[answer["ids"][0]]
                self.seqs[memo.id, answer["version"], memo.moves] = answer["seq"]
        if len(set(versions)) < len(versions):
            report.add(loop, "lost", "two writers have made the same version of one number")
        self.begun = self.counted + len(versions) + sum(deed["do"] == "count" for _, deed, _ in under_way)
        self.counted = max([self.counted + len(versions), *(version - 1 for version in versions)])
        return under_way

    @contextlib.contextmanager
    def _told(self, report: Report, loop: int) -> Iterator[None]:
        try:
            yield
        except Wrong as fault:
            report.add(loop, fault.sort, str(fault))

    def compare(self, mem: memcore.Memory, under_way: Sequence[Any], report: Report, loop: int) -> None:
        """Compares all that the store holds with what it must hold."""
        hot: dict[int, dict[str, list[memcore.Record]]] = {}
        cold: dict[int, dict[str, list[memcore.Record]]] = {}
        gone: dict[int, dict[str, memcore.Record]] = {}
        seqs: Counter[int] = Counter()
        for parity in range(2):
            ops = mem.scope(f"tenant {parity}", "p")
            hot[parity], cold[parity] = everything(ops, "hot"), everything(ops, "cold")
            gone[parity] = {record.id: record for record in ops.forgotten()}
            for found, tier in ((hot[parity], "hot"), (cold[parity], "cold")):
                standing = [name for name, rows in found.items() if rows[-1].superseded_at is None]
                if sorted(standing) != sorted(record.id for record in ops.list(tiers=tier)):
                    report.add(loop, "torn", f"list() of {ops} tells other {tier} memories than stand there")
                seqs.update(row.seq for rows in found.values() for row in rows)
        for writer, deed, span in under_way:
            if deed["do"] in ("count", "look", "retry", "seal", "compact", "reembed"):
                continue
            with self._told(report, loop):
                done = self.share(writer).adopt(deed, span, hot[writer % 2], cold[writer % 2])
                report.finished += done
                report.undone += not done
        for share in self.shares.values():
            place = share.number % 2
            self._compare(share, mem, hot[place], cold[place], gone[place], report, loop)
        known = {name for share in self.shares.values() for name in share.memos}
        for name in {name for found in (*hot.values(), *cold.values()) for name in found} - known:
            report.add(loop, "torn", f"memory {name} is there, and no writer knows of it")
        seqs.update(record.seq for record in self._count(mem, report, loop))
        for seq in [seq for seq, count in seqs.items() if count > 1]:
            report.add(loop, "torn", f"the seq {seq} was given twice")

    def look_at_embedder(self, mem: memcore.Memory, processes: Sequence[Process], report: Report, loop: int) -> None:
        """Finds out whose vectors the store has: those that were told last, or, if `reembed` was under way, its own."""
        lines = [line for process in processes for line in process.lines]
        done = [line["answer"]["embedder"] for line in lines if line["told"] == "done" and "embedder" in line["answer"]]
        begun = [line["writer"] for line in lines if line["told"] == "begin" and line["deed"]["do"] == "reembed"]
        last = {line["writer"]: line for line in lines if line["told"] in ("begin", "done", "wrong")}
        under_way = any(last[writer]["told"] != "done" for writer in begun)
        found = mem._engine.catalog.fingerprint
        if not under_way and mem.stats()["memories"] and found != (done[-1] if done else self.embedder):
            report.add(loop, "lost", f"the store was embedded with {done[-1:] or self.embedder}, and has {found}")
        self.embedder = found if self.embedder and found else self.embedder

    def _count(self, mem: memcore.Memory, report: Report, loop: int) -> list[memcore.Record]:
        """Compares the number that all writers add one to."""
        versions = list(mem.scope("shared", "p").history(key="count"))
        if [int(record.content) for record in versions] != list(range(len(versions))):
            report.add(loop, "lost", f"the versions of a number are {[record.content for record in versions]}")
        if not self.counted <= max(len(versions) - 1, 0) <= self.begun:
            told = f"between {self.counted} and {self.begun} were added to a number, and it is {len(versions) - 1}"
            report.add(loop, "lost", told)
        self.counted = max(len(versions) - 1, 0)
        return versions

    def _compare(
        self,
        share: Share,
        mem: memcore.Memory,
        hot: dict[str, list[memcore.Record]],
        cold: dict[str, list[memcore.Record]],
        gone: dict[str, memcore.Record],
        report: Report,
        loop: int,
    ) -> None:
        def wrong(sort: str, told: str) -> None:
            report.add(loop, sort, f"writer {share.number}: {told}")

        ops = mem.scope(**share.scope)
        now = time.monotonic()
        for name, memo in share.memos.items():
            tiers = (cold, hot) if memo.cold else (hot, cold)
            rows, others = (tier.get(name, []) for tier in tiers)
            report.rows += len(rows)
            if others:
                wrong("torn", f"{name} is there, and should be in the {'cold' if memo.cold else 'hot'} tier: {others}")
            if memo.state == "here":
                self._compare_rows(memo, rows, ops.session_id, wrong)
            elif rows:
                wrong("resurrected", f"{name} was {memo.state} and is there: {rows}")
            elif memo.state != "forgotten" or surely_dropped(memo, self.compacts, now):
                if name in gone:
                    wrong("resurrected", f"{name} was {memo.state}, and could be restored")
                memo.state = "erased" if memo.state == "erased" else "dropped"
            elif name not in gone:
                if not maybe_dropped(memo, self.compacts):
                    wrong("lost", f"{name} was forgotten, and cannot be restored")
                memo.state = "dropped"
            elif (gone[name].content, gone[name].version) != (memo.content, len(memo.rows)):
                wrong("torn", f"{name} was forgotten as {memo.rows[-1]} and is kept as {gone[name]}")
        held = [record.id for record in ops.working().entries()]
        if held != share.held:
            wrong("lost", f"the working memory should hold {share.held} and holds {held}")
        for named, name in share.keys.items():
            kind, _, key = named.partition(" ")
            found = ops.get(key=key, kind=kind)
            if found is None or found.id != name:
                wrong("lost", f"the key {named} should name {name} and names {found}")

    def _compare_rows(
        self, memo: Memo, rows: Sequence[memcore.Record], session: str | None, wrong: Callable[[str, str], None]
    ) -> None:
        wanted = [(number, *row) for number, row in enumerate(memo.rows, 1)]
        found = [(row.version, row.content, row.kind) for row in rows]
        if found != wanted:
            sort = "lost" if len(found) < len(wanted) else "torn"
            wrong(sort, f"{memo.id} should have the versions {wanted} and has {found}")
            return
        for row in rows:
            last = row is rows[-1]
            odd = differing(row, (self.embedder,) if self.embedder else ())
            if odd or row.key != memo.key or row.session_id != session:
                wrong("torn", f"{odd} of {row}")
            if (row.superseded_at is None) != (last and not memo.lapsed):
                wrong("torn", f"version {row.version} of {len(rows)} was superseded at {row.superseded_at}")
            known = self.seqs.setdefault((row.id, row.version, memo.moves), row.seq)
            if known != row.seq:
                wrong("torn", f"{row} had the seq {known}")

    def compact(self, mem: memcore.Memory, report: Report, loop: int) -> None:
        """Compacts, after which no file has a byte of what was forgotten."""
        began = time.monotonic()
        mem.compact()
        self.compacts.append((began, time.monotonic()))
        report.compacted += 1
        there = {mark for path in self.path.rglob("*") if path.is_file() for mark in MARK.findall(_bytes(path))}
        for share in self.shares.values():
            for memo in share.memos.values():
                left = [content for content, _ in memo.rows if content[: content.index(">") + 1].encode() in there]
                if memo.state != "here" and left:
                    report.add(loop, "resurrected", f"bytes of {memo.id}, which was {memo.state}, are there: {left}")


def everything(ops: memcore.Scope, tier: str) -> dict[str, list[memcore.Record]]:
    """All versions of a scope's memories in a tier that are not forgotten, oldest first."""
    found: dict[str, list[memcore.Record]] = {}
    snapshot = ops._snapshot((tier,))
    for record in Records(snapshot.table(snapshot.positions(snapshot.masks(ops._every(superseded=True))))):
        found.setdefault(record.id, []).append(record)
    return {name: sorted(rows, key=lambda row: row.version) for name, rows in found.items()}


def _bytes(path: Path) -> bytes:
    """What a file holds, with compressed columns spelled out."""
    if path.suffix != ".parquet":
        return path.read_bytes()
    return path.read_bytes() + repr(pq.read_table(path).to_pydict()).encode()


# One loop after the other


@dataclass(frozen=True)
class Plan:
    """How a loop goes: who writes, and where the first of the processes is killed."""

    threads: tuple[int, ...]  # of each process
    place: str  # or "at random", or "while opening"
    nth: int
    lines: int  # that it has told before it is killed at random
    pause: float  # seconds after that
    survivor: str  # "stop" or "kill": what becomes of the second process
    seal_rows: int
    merged_files: int
    segment_rows: int
    weights: dict[str, float]

    @classmethod
    def drawn(cls, rng: random.Random, *, fresh: bool, embedded: bool, lines: int = LINES) -> Plan:
        """`fresh`: the store is made in this loop. `embedded`: it has an embedder, and its vectors are changed."""
        staged = [name for name in places() if any(part in name for part in STAGED)]
        names = [name for name in places() if name not in NEW and (embedded or name not in staged)]
        place = rng.choices(("at random", "while opening", rng.choice(names)), (45, 5, 50))[0]
        if fresh and rng.random() < 0.5:
            place = rng.choice(NEW)
        rare = 1 if place in ("at random", "while opening") else 3  # what leads to most of the places
        weights = {do: weight * rare if do in ("compact", "seal", "cool") else weight for do, weight in WEIGHTS.items()}
        return cls(
            weights={**weights, "reembed": 0.4 * rare} if embedded else weights,
            # Another process would have to be told of the new embedder.
            threads=tuple(rng.randint(1, THREADS) for _ in range(1 if embedded else rng.choice((1, 2)))),
            place=place,
            nth=rng.choice((1, 1, 2, 3, 5)) * (rng.choice((1, 10, 40)) if "commit" in place else 1),
            lines=rng.randint(2, lines) if rare == 1 else lines,
            pause=rng.random() * (0.2 if place == "while opening" else 0.02),
            survivor=rng.choice(("stop", "kill")),
            seal_rows=rng.choice((20, 60, 200, 1000)[: 4 if rare == 1 else 2]),
            merged_files=rng.choice((2, 3, 5)),
            segment_rows=rng.choice((16, 100, 32_768)),
        )


def run(
    loops: int,
    seed: int,
    folder: Path,
    *,
    lines: int = LINES,
    progress: Progress = lambda done, of: None,
) -> Report:
    """So many loops on stores in a folder. A store in which something was wrong is kept there, and left at that."""
    report, rng = Report(seed), random.Random(seed)
    store = Store(folder / "store 0", None)
    waiting = [Process(), Process()]  # they import while the store of the loop before is compared
    began = time.monotonic()
    try:
        for loop in range(loops):
            fresh = loop % FRESH == 0 or store.path.with_suffix(".kept").exists()
            if fresh:
                store = Store(folder / f"store {loop}", EMBEDDERS[0] if loop // FRESH % 2 else None)
            plan = Plan.drawn(rng, fresh=fresh, embedded=store.embedder is not None, lines=lines)
            chosen = [waiting.pop(0) for _ in plan.threads]
            waiting += [Process() for _ in plan.threads]
            faults = len(report.faults)
            one_loop(store, plan, chosen, loop, seed, report)
            report.loops += 1
            report.seconds = time.monotonic() - began
            if len(report.faults) > faults:
                shutil.copytree(store.path, store.path.with_suffix(".kept"), dirs_exist_ok=True)
                for number, process in enumerate(chosen):
                    told = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in process.lines)
                    (store.path.with_suffix(".kept") / f"loop {loop}, process {number}.jsonl").write_text(told)
            elif (loop + 1) % FRESH == 0:
                shutil.rmtree(store.path, ignore_errors=True)
            progress(loop + 1, loops)
    finally:
        for process in waiting:
            process.close()
    return report


def one_loop(store: Store, plan: Plan, chosen: Sequence[Process], loop: int, seed: int, report: Report) -> None:
    """Has processes write, kills them, and compares."""
    for number, (process, threads) in enumerate(zip(chosen, plan.threads, strict=True)):
        process.begin(
            path=str(store.path),
            loop=loop,
            seed=seed,
            shares=[store.share(THREADS * number + thread).plain() for thread in range(threads)],
            weights=plan.weights,
            embedder=store.embedder,
            seal_rows=plan.seal_rows,
            merged_files=plan.merged_files,
            segment_rows=plan.segment_rows,
            place=None if number or plan.place in ("at random", "while opening") else plan.place,
            nth=plan.nth,
        )
    victim, *others = chosen
    if plan.place == "while opening":
        time.sleep(plan.pause)
    else:
        victim.wait(plan.lines)
        time.sleep(plan.pause)
    victim.kill()
    victim.end()
    for other in others:
        other.wait(len(other.lines) + min(plan.lines, 300))  # it goes on, and takes over what the dead one has left
        if plan.survivor == "stop":
            other.stop()
        else:
            other.kill()
        other.end()
    for process in chosen:
        died = next((line["place"] for line in process.lines if line["told"] == "dies"), None)
        if process.died():
            report.killed[died or ("while opening" if not process.lines else "at random")] += 1
        elif process.lines[-1:] == [] or process.lines[-1]["told"] != "bye" or process is victim:
            report.add(loop, "wrong", f"a writer's process ended by itself: {process.errors()}")
    try:
        under_way = store.note([(process.lines, process.ended) for process in chosen], report, loop)
        with memcore.open(store.path, embedder=None, working_capacity=CAPACITY) as mem:
            store.look_at_embedder(mem, chosen, report, loop)
            store.compare(mem, under_way, report, loop)
            verify(mem, report, loop)
            if loop % 3 == 2:
                store.compact(mem, report, loop)
                store.compare(mem, (), report, loop)
                verify(mem, report, loop)
    except memcore.MemcoreError as fault:
        report.add(loop, "wrong", f"{type(fault).__name__}: {fault}")
    for process in chosen:
        process.close()


def verify(mem: memcore.Memory, report: Report, loop: int) -> None:
    found = mem.verify()
    report.verified += 1
    for problem in found.problems:
        report.add(loop, "wrong", f"verify: {problem}")


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    if not sys.stderr.isatty():
        yield lambda done, of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("loops"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("")
        yield lambda done, of: bar.update(task, completed=done, total=of)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.crash", description="Kill writers, and look what is left.")
    parser.add_argument("--loops", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="as told by an earlier run; a new one by default")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, and nothing else there")
    parser.add_argument("--keep", type=Path, default=None, help="a folder for the stores in which something was wrong")
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else int.from_bytes(os.urandom(4), "big")
    with contextlib.ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        progress = stack.enter_context(_progress())
        report = run(given.loops, seed, folder, progress=progress)
    print(json.dumps(report.plain(), ensure_ascii=False) if given.json else report.table())
    for fault in report.faults:
        print(fault, file=sys.stderr)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())

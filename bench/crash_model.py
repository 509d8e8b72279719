"""What must a store hold after these deeds? The memories of each writer, as its deeds and their answers tell.

A deed is what a writer is about to do, as a dict that goes through a pipe; an answer is what the call returned. Each
memory belongs to one writer, which alone changes it, so that one writer's deeds have one order and one outcome, however
many writers there are. All that a row holds follows from its text, so that a torn row shows.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

CAPACITY = 4  # of the working memory
RECENT = 60  # of its memories a writer changes those that came last
MARK = re.compile(rb"<\d+\.\d+\.\d+\.\d+>")  # in every text; no two texts have the same
F32 = npt.NDArray[np.float32]

Deed = dict[str, Any]
Answer = dict[str, Any]
Span = tuple[float, float]  # when a call began and ended, by the clock that all processes share; inf: it did not end


class Wrong(Exception):
    """An answer or a state that must not be. `sort` is lost, torn, resurrected or wrong."""

    def __init__(self, sort: str, told: str) -> None:
        super().__init__(told)
        self.sort = sort


class Embedder:
    """Vectors that follow from the text and the name; other names have others, and another width."""

    def __init__(self, name: str) -> None:
        self.name = self.fingerprint = name
        self.dim = 8 + len(name)

    def embed(self, texts: Sequence[str], kind: str = "document") -> F32:
        return np.array([vector_of(self.name, text, self.dim) for text in texts], np.float32).reshape(-1, self.dim)


EMBEDDERS = ("crash a", "crash bc")  # `reembed` goes from one to the other


@lru_cache(maxsize=50_000)
def vector_of(name: str, content: str, dim: int) -> F32:
    rng = random.Random(name + content)
    vector = np.array([rng.random() - 0.5 for _ in range(dim)])
    made: F32 = (vector / np.linalg.norm(vector)).astype(np.float32)
    return made


@lru_cache(maxsize=50_000)
def fields_of(content: str) -> dict[str, Any]:
    """The arguments that go with a text, but for its vector."""
    rng = random.Random(content)
    return {
        "importance": rng.randrange(101) / 100,
        "event_time": float(1_700_000_000 + rng.randrange(10_000_000)),
        "expires_at": rng.choice((None, 4_000_000_000.0)),
        "metadata": {"mark": content[: content.index(">") + 1], "n": rng.randrange(1000), "é": "ø" * rng.randrange(9)},
        "source": rng.choice(("observation", "api_query", f"tool {rng.randrange(20)}")),
        "confidence": rng.randrange(101) / 100,
        "untrusted": rng.random() < 0.1,
    }


def vector_for(content: str) -> F32 | None:
    """The vector that goes with a text in a store without an embedder."""
    vector = vector_of("", content, 8)
    return None if vector[0] < -0.3 else vector


def differing(record: Any, embedders: Collection[str]) -> list[str]:
    """Which fields of a record are not what goes with its text, in a store that has one of these embedders, or none."""
    wrong = []
    for name, value in fields_of(record.content).items():
        found = getattr(record, name)
        if name in ("event_time", "expires_at"):
            found = None if found is None else found.timestamp()
        elif isinstance(value, float):
            found = value if abs(found - value) < 1e-6 else found
        if found != value:
            wrong.append(name)
    if embedders:
        wanted = [Embedder(name).embed([record.content])[0] for name in embedders]
    else:
        wanted = [vector_for(record.content)]
    if not any(_same(record.vector, vector) for vector in wanted):
        wrong.append("vector")
    return wrong


def _same(one: F32 | None, other: F32 | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.shape == other.shape and float(np.abs(one - other).max()) < 1e-6


@dataclass
class Memo:
    """One memory: the text and the kind of each version, oldest first.

    `state` is "here", "forgotten", "erased", or "dropped" once it is known that it cannot be restored. `group` names
    the deed that has forgotten it or moved it to the cold tier, and `gone` tells when it was forgotten. `moves` counts
    how often it came back from there, with new seqs.
    """

    id: str
    key: str | None
    rows: list[tuple[str, str]]
    retry: str | None = None
    state: str = "here"
    lapsed: bool = False
    cold: bool = False
    moves: int = 0
    group: str = ""
    gone: Span = (0.0, 0.0)

    @property
    def kind(self) -> str:
        return self.rows[-1][1]

    @property
    def content(self) -> str:
        return self.rows[-1][0]


@dataclass
class Share:
    """The memories of one writer, and what its working memory holds."""

    number: int
    memos: dict[str, Memo] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)  # kind and key -> id, of those that are here
    held: list[str] = field(default_factory=list)
    fallen: list[str] = field(default_factory=list)

    @property
    def scope(self) -> dict[str, str]:
        return {"tenant_id": f"tenant {self.number % 2}", "project_id": "p", "session_id": f"session {self.number}"}

    def recent(self, state: str, *, cold: bool = False) -> list[Memo]:
        """Memories in a state, those first that came last; none that lie in the working memory."""
        found = (
            memo
            for memo in reversed(self.memos.values())
            if memo.state == state and memo.kind != "working" and (memo.cold == cold or state != "here")
        )
        return list(islice(found, RECENT))

    def faded(self, below: float) -> list[str]:
        """The ids of what `prune` moves to the cold tier, whose bound no importance is near."""
        return [
            memo.id
            for memo in self.memos.values()
            if memo.state == "here"
            and not memo.cold
            and memo.kind == "episodic"
            and fields_of(memo.content)["importance"] < below
        ]

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Share:
        memos = {name: Memo(**memo) for name, memo in plain["memos"].items()}
        return cls(**{**plain, "memos": memos})

    # What comes next

    def next(self, rng: random.Random, weights: Mapping[str, float], loop: int, number: int) -> Deed:
        """A deed that can be done now."""

        def texts(n: int) -> list[str]:
            words = rng.choice((1, 1, 3, 20, 200))
            return [f"<{loop}.{self.number}.{number}.{i}> " + "wörds " * words for i in range(n)]

        do = rng.choices(tuple(weights), tuple(weights.values()))[0]
        here = self.recent("here")
        if do == "remember_many":
            return {"do": do, "contents": texts(rng.choice((2, 3, 5, 30))), "kind": "episodic", "key": None}
        if do == "upsert":
            kind = rng.choice(("semantic", "procedural"))
            return {"do": do, "contents": texts(1), "kind": kind, "key": f"key {self.number}.{rng.randrange(6)}"}
        if do == "say":
            return {"do": do, "contents": texts(1), "kind": "working", "key": None}
        if do == "update" and here:
            memo = rng.choice(here)
            return {"do": do, "id": memo.id, "version": len(memo.rows), "contents": texts(1)}
        if do in ("forget", "erase") and here:
            among = here + self.recent("here", cold=True)[:9]
            return {
                "do": do,
                "ids": [memo.id for memo in rng.sample(among, min(len(among), rng.choice((1, 1, 3, 20))))],
            }
        if do == "restore":
            gone = self.recent("forgotten") + self.recent("here", cold=True) + self.recent("erased")[:3]
            if gone:
                group = rng.choice(gone).group
                return {"do": do, "ids": [memo.id for memo in gone if memo.group == group]}
        if do == "retry":
            retried = [memo for memo in here if memo.retry]
            if retried:
                memo = rng.choice(retried)
                return {"do": do, "id": memo.id, "contents": [memo.rows[0][0]], "retry": memo.retry}
        if do == "look" and here:
            return {"do": do, "ids": [memo.id for memo in rng.sample(here, min(len(here), 3))]}
        if do == "cool":
            return {"do": do, "below": rng.choice((0.025, 0.105, 0.305))}
        if do in ("end", "compact", "seal", "count", "reembed"):
            return {"do": do}
        retry = f"retry {loop}.{self.number}.{number}" if rng.random() < 0.3 else None
        kind = rng.choice(("episodic", "semantic"))
        return {"do": "remember", "contents": texts(1), "kind": kind, "key": None, "retry": retry}

    # What was done

    def apply(self, deed: Deed, answer: Answer, span: Span, compacts: Sequence[Span] | None = None) -> None:
        """Takes note of a deed that was done. `compacts` are all compactions, as far as they are known; None: not."""
        do, ids = deed["do"], answer.get("ids", [])
        if do in ("remember", "remember_many", "say"):
            for name, content in zip(ids, deed["contents"], strict=True):
                if name in self.memos:
                    raise Wrong("wrong", f"{do} gave the id {name} a second time")
                self.memos[name] = Memo(name, None, [(content, deed["kind"])], deed.get("retry"))
                if do == "say":
                    self.held.append(name)
            while len(self.held) > CAPACITY:
                self.fallen.append(self.held.pop(0))
                self.memos[self.fallen[-1]].lapsed = True
        elif do == "upsert":
            known = self.keys.setdefault(f"{deed['kind']} {deed['key']}", ids[0])
            if known != ids[0]:
                raise Wrong("wrong", f"the key {deed['key']} named {known}, and was stored as {ids[0]}")
            memo = self.memos.setdefault(known, Memo(known, deed["key"], []))
            memo.rows.append((deed["contents"][0], deed["kind"]))
        elif do == "update":
            memo = self.memos[deed["id"]]
            memo.rows.append((deed["contents"][0], memo.kind))
        elif do in ("forget", "erase"):
            self._told(do, ids, deed["ids"])
            for name in ids:
                memo = self.memos[name]
                memo.state = "erased" if do == "erase" else "forgotten"
                memo.group, memo.gone = f"{ids[0]} {span[0]}", span
                if memo.key is not None:
                    del self.keys[f"{memo.kind} {memo.key}"]
        elif do == "restore":
            self._restore(answer, span, compacts)
        elif do == "cool":
            self._told(do, ids, self.faded(deed["below"]))
            for name in ids:
                self.memos[name].cold, self.memos[name].group = True, f"{ids[0]} {span[0]}"
        elif do == "end":
            left = self.fallen + self.held
            if ids != left:
                raise Wrong("lost", f"the session held {left}, and {ids} were ended")
            for name in ids:
                memo = self.memos[name]
                memo.rows.append((memo.content, "episodic"))
                memo.lapsed = False
            self.held, self.fallen = [], []
        elif do == "retry" and ids != [deed["id"]]:
            raise Wrong("torn", f"a retry stored {ids} beside {deed['id']}")

    def _told(self, do: str, ids: Sequence[str], wanted: Sequence[str]) -> None:
        if sorted(ids) != sorted(wanted):
            raise Wrong("lost", f"{do} should have found {wanted} and found {ids}")

    def _restore(self, answer: Answer, span: Span, compacts: Sequence[Span] | None) -> None:
        for name in answer["ids"]:
            memo = self.memos[name]
            there = memo.cold if memo.state == "here" else memo.state == "forgotten"
            if not there or (memo.state != "here" and surely_dropped(memo, compacts or (), span[0])):
                raise Wrong("resurrected", f"{name} was restored, and had been {memo.state}")
            memo.moves += memo.cold
            memo.state, memo.cold = "here", False
            if memo.key is not None:
                self.keys[f"{memo.kind} {memo.key}"] = name
        for name in answer["missing"]:
            memo = self.memos[name]
            if memo.state == "here":
                raise Wrong("lost", f"{name} was in the cold tier, and could not be restored")
            if memo.state == "forgotten" and compacts is not None and not maybe_dropped(memo, compacts):
                raise Wrong("lost", f"{name} was forgotten, and could not be restored")
            memo.state = "dropped" if memo.state == "forgotten" else memo.state
        for name in answer["in_use"]:
            memo = self.memos[name]
            if memo.key is None or f"{memo.kind} {memo.key}" not in self.keys:
                raise Wrong("wrong", f"{name} was not restored since its key {memo.key} was in use, and it was not")

    # What was in flight

    def adopt(
        self, deed: Deed, span: Span, hot: Mapping[str, Sequence[Any]], cold: Mapping[str, Sequence[Any]]
    ) -> bool:
        """Finds out whether a deed that was never answered has been done, and takes note of it if so.

        `hot` and `cold` are the versions of each memory in the store. A deed that has left a trace counts as done: what
        is then not there is torn.
        """
        do = deed["do"]
        if do in ("remember", "remember_many", "say", "upsert", "update"):
            found = {row.content: name for name, rows in hot.items() for row in rows}
            told = [content for content in deed["contents"] if content in found]
            if not told:
                return False
            if len(told) < len(deed["contents"]):
                raise Wrong("torn", f"{do}: {len(told)} of {len(deed['contents'])} rows are there")
            self.apply(deed, {"ids": [found[content] for content in told]}, span)
        elif do in ("forget", "erase"):
            if all(name in hot or name in cold for name in deed["ids"]):
                return False
            self.apply(deed, {"ids": deed["ids"]}, span)
        elif do == "restore":
            back = [name for name in deed["ids"] if name in hot]
            if not back:
                return False
            self.apply(deed, {"ids": back, "missing": [], "in_use": []}, span)
        elif do == "cool":
            wanted = self.faded(deed["below"])
            if not any(name in cold for name in wanted):
                return False
            self.apply(deed, {"ids": wanted}, span)
        elif do == "end":
            left = self.fallen + self.held
            if not any(name in hot and hot[name][-1].kind == "episodic" for name in left):
                return False
            self.apply(deed, {"ids": left}, span)
        else:
            return False
        return True


def maybe_dropped(memo: Memo, compacts: Iterable[Span]) -> bool:
    """Whether a compaction may have taken a forgotten memory."""
    return any(ended > memo.gone[0] for _, ended in compacts)


def surely_dropped(memo: Memo, compacts: Iterable[Span], before: float) -> bool:
    """Whether a compaction must have taken it by a time."""
    return any(began > memo.gone[1] and ended < before for began, ended in compacts)


# How often a writer does what
WEIGHTS: dict[str, float] = {
    "remember": 30, "remember_many": 9, "upsert": 14, "update": 14, "forget": 8, "erase": 3, "restore": 8, "say": 12,
    "end": 2, "compact": 0.7, "seal": 1.5, "cool": 1.5, "count": 6, "retry": 3, "look": 6,
}  # fmt: skip

"""Cases of bad vectors, of filters and top-k, and of scale, as far as the verbs are there: what users of such systems
have reported must not happen here.
"""

from __future__ import annotations

import ast
import asyncio
import json
import math
import pickle
import shutil
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

import drawn
import memcore
import memcore_kernels
import naive
from memcore.cli import main
from memcore.embed import CallableEmbedder
from memcore.search import filter as filters
from memcore.search import plan as searching
from memcore.search import planner
from memcore.store import graphs, hnsw, segment
from memcore_kernels import codes
from memcore_kernels.decay import BLOCK
from running import run

NOW = 1_900_000_000
MICROS = NOW * 1_000_000
DIM = 8
INDEXES = ("exact", "faiss", "hnswlib")
# Ids that a pattern, a path, a query language or a shell would read as something else; each is one id and no other.
IDS = (
    "ab", "abc", "a_c", "a-c", "a%", "%", "_", "*", "?", "[a]", "\\", "a\\b", "D'Arcy", "Darcy", "DArcy", "'; --",
    "' OR 1=1 --", "a/b", "a", "../../x", "..", ".", "/etc", "a%2Fb", "a=b", "A", "a ", "a\nb", "null", "None",
    "x" * 512,
)  # fmt: skip


@pytest.fixture(params=["ram", "directory"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "ram" else tmp_path / "m"


@pytest.fixture
def mem(path: Path | None) -> Any:
    with memcore.open(path, embedder="hashed", clock=lambda: NOW) as opened:
        yield opened


@pytest.fixture(params=INDEXES)
def index(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An index that answers wherever it can: few rows have a graph, and few of them need pass a filter."""
    name: str = request.param
    if name != "exact":
        pytest.importorskip(name, reason="the extra hnsw is not installed")
    monkeypatch.setattr(graphs, "LEAST_ROWS", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    planner.path().parent.mkdir(parents=True)
    planner.path().write_text(json.dumps({"least_rows": 1, "least_share": 0}))
    return name


@pytest.fixture
def cli(tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Runs a command on the store of this test: (exit code, stdout, stderr)."""

    def command(*arguments: str, scope: Sequence[str] = ()) -> tuple[int, str, str]:
        made = CliRunner().invoke(
            main, ["--store", str(tmp_path / "m"), "--embedder", "hashed", *scope, *arguments], catch_exceptions=False
        )
        return made.exit_code, made.stdout, made.stderr

    return command


def told(hits: Any) -> list[naive.Answer]:
    return [naive.Answer(hit.id, hit.total_score, hit.semantic_similarity) for hit in hits]


def contents(found: Any) -> list[str]:
    return sorted(one.content for one in found)


def plan(hits: memcore.Recall) -> str:
    found: str = hits.explain()["plan"]
    return found


def vectors_of(dim: int) -> Callable[[list[str]], Any]:
    """An embedder's function: each text has a vector of its own."""
    return lambda texts: [np.random.default_rng([dim, *text.encode()]).standard_normal(dim) for text in texts]


def embedder(dim: int, name: str = "model", fingerprint: str | None = None) -> CallableEmbedder:
    return CallableEmbedder(vectors_of(dim), name=name, dim=dim, fingerprint=fingerprint)


class Counting:
    """An embedder that keeps what it was asked."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def __call__(self, texts: list[str]) -> Any:
        self.calls.append(list(texts))
        return vectors_of(DIM)(texts)

    def asked(self) -> list[list[str]]:
        """What it was asked since the last time that this was called."""
        calls, self.calls = self.calls, []
        return calls


# Vectors


ALIKE = (
    "the store holds vectors of 8 dimensions of the embedder 'v1', and is used with 'model', which has the same "
    "fingerprint and gives 6; give it a fingerprint of its own, open the store with embedder=None, and embed all texts "
    "anew with reembed"
)


@pytest.mark.parametrize("fingerprint", [None, "v1"], ids=["its own fingerprint", "the same fingerprint"])
def test_case_A1_an_embedder_of_another_width_is_refused_and_the_store_stays_as_it_was(tmp_path, fingerprint):
    path = tmp_path / "m"
    with memcore.open(path, embedder=embedder(8, fingerprint=fingerprint)) as mem:
        mem.remember_many(["green tea", "black coffee", "water"])
        before = mem.list()
    with pytest.raises(memcore.EmbedderMismatch) as raised:
        memcore.open(path, embedder=embedder(6, fingerprint=fingerprint))
    if fingerprint is None:
        assert str(raised.value) == (
            f"the store {path} holds vectors of the embedder 'callable/model/8' and is opened with 'callable/model/6'; "
            "vectors of two embedders cannot be compared: open it with the embedder of which the fingerprint is "
            "'callable/model/8', or with embedder=None and embed all texts anew with reembed"
        )
    else:
        assert str(raised.value) == ALIKE
    with memcore.open(path, embedder=embedder(8, fingerprint=fingerprint)) as mem:
        assert [(r.id, r.content, r.vector.tolist()) for r in mem.list()] == [
            (r.id, r.content, r.vector.tolist()) for r in before
        ]
        assert mem.recall("water", k=1)[0].content == "water"
        assert mem.verify().ok
    with memcore.open(path, embedder=None) as mem:  # what the message says to do
        assert mem.reembed(embedder(6, fingerprint="v2")).rows == 3
    with memcore.open(path, embedder=embedder(6, fingerprint="v2")) as mem:
        mem.remember("tea at five")
        assert mem.recall("tea at five", k=1, weights=(1, 0, 0))[0].content == "tea at five"
        assert {r.vector.size for r in mem.list()} == {6}


@pytest.mark.parametrize(
    "verb",
    [
        lambda mem: mem.recall("tea"),
        lambda mem: mem.recall("tea", relevance="cosine"),
        lambda mem: mem.recall_many(["tea"]),
        lambda mem: mem.recall_many([f"tea {i}" for i in range(9)], relevance="cosine"),
        lambda mem: mem.recall_many(["tea"] * 9, scopes=[mem.scope("t")] * 9),
        lambda mem: mem.recall_many(["tea"] * 9, scopes=[mem.scope("t")] * 9, relevance="cosine"),
        lambda mem: mem.recall("tea", tiers="cold"),
        lambda mem: mem.remember("tea"),
        lambda mem: mem.remember_many(["tea", "coffee"]),
        lambda mem: mem.update(mem.list()[0], content="tea"),
    ],
    ids=[
        "recall",
        "cosine",
        "one of many",
        "many",
        "scopes",
        "scopes, cosine",
        "cold",
        "remember",
        "remember_many",
        "update",
    ],
)
def test_case_A1_a_width_that_shows_after_both_have_opened_the_store_is_refused_by_every_verb(tmp_path, verb):
    """Neither had a row to go by when it opened the store. A query of 6 numbers must not be read as one of 8."""
    with (
        memcore.open(tmp_path / "m", embedder=embedder(8, fingerprint="v1")) as first,
        memcore.open(tmp_path / "m", embedder=embedder(6, fingerprint="v1")) as second,
    ):
        ids = first.remember_many(["green tea", "black coffee", "water"])
        with pytest.raises(memcore.EmbedderMismatch) as raised:
            verb(second)
        assert str(raised.value) == ALIKE
        assert [r.id for r in first.list()] == ids
        assert first.recall("water", k=1)[0].content == "water"


@pytest.mark.parametrize("relevance", ["cosine", "hybrid"])
def test_case_A1_scopes_that_are_embedded_anew_while_they_are_asked_are_asked_anew(mem, relevance, monkeypatch):
    """The embedder changes between the snapshots of two scopes: the query's old vector goes with none of the new."""
    scopes = [mem.scope(name) for name in ("t1", "t2")]
    for scope in scopes:
        scope.remember_many(["green tea", "black coffee"])
    real, calls = memcore.memory.Scope._snapshot, []

    def snapshot(self: Any, *args: Any, **more: Any) -> Any:
        calls.append(self.tenant_id)
        if calls == ["default", "t1", "t2"]:
            mem.reembed(embedder(6))
        return real(self, *args, **more)

    monkeypatch.setattr(memcore.memory.Scope, "_snapshot", snapshot)
    asked = {"scopes": scopes, "k": 1, "weights": (1, 0, 0), "relevance": relevance}
    found = mem.recall_many(["green tea", "black coffee"], **asked)
    assert [(hits[0].content, round(hits[0].semantic_similarity, 6)) for hits in found] == [
        ("green tea", 1.0), ("black coffee", 1.0),
    ]  # fmt: skip
    assert calls == ["default", "t1", "t2"] * 2


@pytest.mark.parametrize("weights", [(0.5, 0.3, 0.2), (1.0, 0.0, 0.0), (0.0, 0.5, 0.5)], ids=str)
def test_case_A3_a_vector_of_zeros_is_like_nothing_and_never_before_what_is(path, index, weights, monkeypatch):
    monkeypatch.setattr(segment, "ROWS", 4)
    rows = {
        "zeros": [0, 0, 0, 0],
        "less": [0.9, 0.1, 0, 0],
        "same": [1, 0, 0, 0],
        "minus zeros": [-0.0, 0.0, -0.0, 0.0],
    }
    with memcore.open(path, embedder=None, clock=lambda: NOW, index=index) as mem:
        mem.remember_many([{"content": name, "vector": vector} for name, vector in rows.items()])
        mem.compact()
        query = naive.unit([1, 0, 0, 0])
        for k in (1, 2, 3, 4):
            expected = naive.recall(mem.list(), query, k=k, now=MICROS, weights=weights)
            for hits in (
                mem.recall(vector=query, k=k, weights=weights),
                *mem.recall_many(vectors=[query] * 9, k=k, weights=weights),
            ):
                assert told(hits) == expected
                assert index == "exact" or not weights[0] or plan(hits) == f"{index} HNSW, 1 graph"
        if weights[0]:
            hits = mem.recall(vector=query, k=4, weights=weights)
            assert [hit.content for hit in hits[:2]] == ["same", "less"]
            assert [hit.semantic_similarity for hit in hits[2:]] == [0.0, 0.0]
        for found in (mem.recall(vector=[0, 0, 0, 0], k=4), *mem.recall_many(vectors=np.zeros((9, 4)), k=4)):
            assert [hit.semantic_similarity for hit in found] == [0.0] * 4
            assert all(math.isfinite(hit.total_score) for hit in found)
        assert contents(mem.recall(vector=query, min_similarity=1e-6)) == ["less", "same"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_case_A5_what_is_not_finite_is_refused_and_changes_no_neighbour(path, index, bad, monkeypatch):
    monkeypatch.setattr(segment, "ROWS", 100)
    good = np.random.default_rng(5).standard_normal((200, DIM))
    third, first = good[3].copy(), good[4].copy()
    third[3], first[0] = bad, -bad
    rows = [{"content": f"row {i}", "vector": v} for i, v in enumerate([*good, third, first])]
    with memcore.open(path, embedder=None, clock=lambda: NOW, index=index) as mem:
        with pytest.raises(memcore.InvalidInput) as raised:
            mem.remember_many(rows)
        assert str(raised.value) == (
            "row 200: vector has NaN or infinity at index 3; every number must be finite: leave the vector out. "
            "Nothing was stored: 2 of 202 rows are refused; on_invalid='skip' stores the good rows"
        )
        assert (len(mem.list()), mem.stats()["versions"]) == (0, 0)
        done = mem.remember_many(rows, on_invalid="skip")
        assert (len(done), sorted(done.faults)) == (200, [200, 201])
        mem.compact()
        with pytest.raises(memcore.InvalidInput, match="vector has NaN or infinity at index 3"):
            mem.update(done[0], vector=third)
        with pytest.raises(memcore.InvalidInput, match="vector has NaN or infinity at index 0"):
            mem.remember("another", vector=first)
        for ask in (lambda: mem.recall(vector=third), lambda: mem.recall_many(vectors=[good[0], third])):
            with pytest.raises(memcore.InvalidInput, match="NaN or infinity"):
                ask()
        records = mem.list()
        assert len(records) == 200
        for i in (17, 0, 199):
            hits = mem.recall(vector=good[i], k=10, weights=(1, 0, 0))
            assert hits[0].content == f"row {i}"
            assert told(hits) == naive.recall(records, naive.unit(good[i]), k=10, now=MICROS, weights=(1, 0, 0))
            assert index == "exact" or plan(hits).startswith(index)
        assert mem.verify().ok


def test_case_A5_an_embedder_that_gives_nan_leaves_nothing_half_written(path):
    def broken(texts: list[str]) -> Any:
        rows = np.array(vectors_of(DIM)(texts))
        rows[[text.startswith("bad") for text in texts], 2] = math.nan
        return rows

    with memcore.open(path, embedder=CallableEmbedder(broken, name="broken", dim=DIM), clock=lambda: NOW) as mem:
        kept = mem.remember("good", kind="semantic", key="k")
        for verb in (
            lambda: mem.remember("bad"),
            lambda: mem.remember_many(["good too", "bad"]),
            lambda: mem.update(kept, content="bad"),
            *(lambda how=how: mem.recall("bad", relevance=how) for how in ("cosine", "hybrid")),
            *(lambda how=how: mem.recall_many(["good", "bad"], relevance=how) for how in ("cosine", "hybrid")),
            lambda: mem.reembed(CallableEmbedder(lambda texts: [[math.inf]] * len(texts), name="other", dim=1)),
        ):
            with pytest.raises(memcore.InvalidInput, match=r"the result of embedder '\w+' has NaN or infinity in row"):
                verb()
        assert [(r.content, r.version) for r in mem.list()] == [("good", 1)]
        (hit,) = mem.recall("good", k=1, weights=(1, 0, 0), relevance="cosine")
        assert hit.total_score == pytest.approx(1)
        assert mem.verify().ok


EMPTY = """
import sys
import numpy as np, memcore
from memcore.store import graphs, segment
segment.ROWS = graphs.LEAST_ROWS = 2
index, first, *path = sys.argv[1:]
mem = memcore.open(path[0] if path else None, embedder=None, index=index)
one = np.eye(4)[0]
if first == "recall":
    print(len(mem.recall(vector=one)), len(mem.recall()), [len(h) for h in mem.recall_many(vectors=np.eye(4)[[0] * 9])])
if first == "compact":
    mem.compact()
if first == "rows without vectors":
    mem.remember_many(["a", "b", "c"])
    mem.compact()
    for hits in (mem.recall(vector=one), *mem.recall_many(vectors=np.eye(4)[[0] * 9])):
        assert [h.semantic_similarity for h in hits] == [0.0] * 3
    mem.forget(everything=True, erase=True)
mem.remember("x", vector=one)
print([h.content for h in mem.recall(vector=one)])
mem.remember_many([{"content": "y", "vector": np.eye(4)[1]}] * 3)
mem.compact()
hits = mem.recall(vector=one, k=2)
print([h.content for h in hits], hits.explain()["plan"])
mem.forget(everything=True)
mem.compact()
print(len(mem.recall(vector=one)), [len(h) for h in mem.recall_many(vectors=np.eye(4)[[0] * 9])])
mem.close()
"""


@pytest.mark.parametrize("first", ["recall", "compact", "remember", "rows without vectors"])
@pytest.mark.parametrize("name", INDEXES)
def test_case_A7_an_empty_store_answers_whatever_is_asked_of_it_first(name, first, path):
    if name != "exact":
        pytest.importorskip(name, reason="the extra hnsw is not installed")
    nothing = f"0 0 {[0] * 9}\n" if first == "recall" else ""
    used = "exact scan, 1 thread" if name == "exact" else f"{name} HNSW, 1 graph"
    done = run(EMPTY, name, first, *([] if path is None else [path]))
    assert done.stdout == f"{nothing}['x']\n['x', 'y'] {used}\n0 {[0] * 9}\n"


def of_structs(rows: Any) -> Any:
    """Rows that lie between other bytes, so that a number begins anywhere."""
    made = np.zeros(len(rows), np.dtype([("tag", np.int8), ("v", np.float32, (rows.shape[1],))]))
    made["v"] = rows
    return made["v"]


def read_only(rows: Any) -> Any:
    made = np.ascontiguousarray(rows)
    made.flags.writeable = False
    return made


BASE = np.random.default_rng(9).standard_normal((64, 32)).astype(np.float32)
LAYOUTS: dict[str, Any] = {
    "every other row of a transpose": BASE.T[::2],
    "columns backwards": BASE[:, ::-1],
    "rows backwards": BASE[::-1],
    "Fortran order": np.asfortranarray(BASE),
    "a slice of columns": np.concatenate([BASE, BASE], axis=1)[:, 5:37],
    "read-only": read_only(BASE),
    "one row again and again": np.broadcast_to(BASE[3], (10, 32)),
    "of structs, not aligned": of_structs(BASE),
    "other byte order": BASE.astype(">f4"),
    "float64, every third": BASE.astype(np.float64)[::3],
    "float16": BASE.astype(np.float16),
    "whole numbers": (100 * BASE).astype(np.int16)[::2, ::2],
    "of an Arrow buffer": memoryview(pa.py_buffer(BASE.tobytes())).cast("f", BASE.shape),
    "an Arrow column": pa.FixedSizeListArray.from_arrays(pa.array(BASE.reshape(-1)), 32),
    "a slice of an Arrow column": pa.FixedSizeListArray.from_arrays(pa.array(BASE.reshape(-1)), 32)[7:40],
}


def plain_of(given: Any) -> Any:
    """A copy in C order and of a plain type."""
    rows = np.array(given.to_pylist(), np.float32) if isinstance(given, pa.Array) else np.array(given, order="C")
    return rows.astype(np.float64 if rows.dtype.kind == "i" else rows.dtype.newbyteorder("="))


def rows_of(given: Any) -> Any:
    """As `remember_many` takes them, each row as it lies in what is given; a view of two dimensions has no rows."""
    if isinstance(given, pa.Array):
        return pa.table({"content": [f"row {i}" for i in range(len(given))], "vector": given})
    rows = BASE if isinstance(given, memoryview) else given
    return [{"content": f"row {i}", "vector": row} for i, row in enumerate(rows)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_case_A9_vectors_in_any_layout_are_those_of_a_plain_copy(path, layout):
    given = LAYOUTS[layout]
    plain = plain_of(given)

    def seen(mem: memcore.Memory, given: Any) -> list[Any]:
        ids = mem.remember_many(rows_of(given))
        mem.update(ids[-1], vector=given[0] if not isinstance(given, memoryview) else BASE[0])
        asked = {"k": 5, "weights": (1, 0, 0)}
        one = mem.recall(vector=plain[0] if isinstance(given, memoryview) else given[0], **asked)
        found = [one, *mem.recall_many(vectors=given, **asked), *mem.recall_many(vectors=given[:2], **asked)]
        stored = [(record.content, record.vector.tolist()) for record in mem.list()]
        return [stored, *([(hit.content, hit.total_score) for hit in hits] for hits in found)]

    before = pickle.dumps(plain_of(given))
    with (
        memcore.open(path, embedder=None, clock=lambda: NOW) as mem,
        memcore.open(embedder=None, clock=lambda: NOW) as other,
    ):
        assert seen(mem, given) == seen(other, plain)
    assert pickle.dumps(plain_of(given)) == before


def test_case_A9_what_the_caller_writes_into_its_arrays_afterwards_changes_no_memory(mem):
    """Neither into what it passed, nor into what it got, nor into what its embedder returned and uses again."""
    room = np.zeros((4, 4), np.float32)

    def reusing(texts: list[str]) -> Any:
        room[: len(texts)] = np.eye(4)[: len(texts)]
        return room[: len(texts)]

    mem.reembed(CallableEmbedder(reusing, name="reusing", dim=4))
    vector = naive.unit([1, 0, 0, 0])
    first = mem.remember("by hand", vector=vector)
    vector[:] = 0.5
    made = mem.remember("by the embedder")
    room[:] = 9
    for record in (first, made, mem.get(first.id)):
        if record.vector.flags.writeable:
            record.vector[:] = 7
    queries = np.tile(naive.unit([1, 0, 0, 0]), (9, 1))
    many = mem.recall_many(vectors=queries, k=2)
    queries[:] = 3
    for hits in (*many, mem.recall(vector=[1, 0, 0, 0], k=2)):
        assert [hit.semantic_similarity for hit in hits] == [1.0, 1.0]
    assert [record.vector.tolist() for record in mem.list()] == [[1, 0, 0, 0]] * 2


# Filters and top-k


def everywhere(scope: Any) -> list[Any]:
    """What every verb that reads finds in a scope."""
    first, *_ = scope.recall_many(["where does she live"] * 9, k=50)
    (asked,) = (scope._memory or scope).recall_many(["where does she live"], scopes=[scope], k=50)
    return [
        scope.recall("where does she live", k=50), scope.recall(k=50), first, asked, scope.list(),
        scope.recall("where does she live", k=50, where=pc.field("importance") >= 0),
        scope.recall("where does she live", k=50, tiers=("hot", "cold")), scope.list(tiers=("hot", "cold")),
        scope.recall("where does she live", k=50, as_of=NOW + 1), scope.list(as_of=NOW + 1),
    ]  # fmt: skip


def test_case_B1_every_verb_sees_its_own_tenant_alone(mem):
    norway, chile, nobody = (mem.scope(name) for name in ("u1", "u2", "u3"))
    one = norway.remember("she lives in Norway", kind="semantic", key="home", idempotency_key="first")
    other = chile.remember("she lives in Chile", kind="semantic", key="home", idempotency_key="first")
    for scope, expected in (
        (norway, ["she lives in Norway"]),
        (chile, ["she lives in Chile"]),
        (nobody, []),
        (mem, []),
    ):
        assert [contents(found) for found in everywhere(scope)] == [expected] * 10
    assert [r.id for r in norway.history("home")] == [one.id]
    assert (norway.get(key="home").id, norway.get(other.id), list(norway.history(id=other.id))) == (one.id, None, [])
    for scope in (norway, nobody):
        assert len(scope.list(where={"tenant_id": "u2"})) == len(scope.recall(k=9, where={"tenant_id": "u2"})) == 0
        with pytest.raises(memcore.NotFound):
            scope.update(other, content="moved")
        assert scope.forget(other).missing == [other.id]
        assert scope.forget(where={"tenant_id": "u2"}).count == scope.restore(other).count == 0
    with pytest.raises(memcore.NotFound):
        norway.link(one, "caused_by", other)
    norway.remember("under the id of another tenant's memory", id=other.id)
    norway.forget(other, erase=True)
    assert chile.get(other.id).content == "she lives in Chile"


def test_case_B1_many_scopes_in_one_call_get_each_its_own(mem):
    scopes = [mem.scope(tenant, project) for tenant in ("u1", "u2", "u3") for project in ("p1", "p2")]
    for place, scope in enumerate(scopes[:-1]):
        scope.remember_many([f"she lives at {place}, {i}" for i in range(3)])
    order = [5, 0, 3, 0, 1, 4, 2] * 3
    found = mem.recall_many(["where does she live"] * len(order), scopes=[scopes[i] for i in order], k=5)
    assert [contents(hits) for hits in found] == [
        [] if i == 5 else [f"she lives at {i}, {n}" for n in range(3)] for i in order
    ]


def test_case_B1_the_command_line_sees_its_own_tenant_alone(cli):
    for tenant, home in (("u1", "Norway"), ("u2", "Chile")):
        assert cli("remember", f"she lives in {home}", scope=["--tenant", tenant])[0] == 0
    for tenant, expected in (("u1", ["she lives in Norway"]), ("u2", ["she lives in Chile"]), ("u3", [])):
        for verb in (["recall", "where does she live"], ["recall"], ["list"]):
            code, out, err = cli(*verb, "--json", scope=["--tenant", tenant])
            assert (code, [one["content"] for one in json.loads(out)], err) == (0, expected, "")


@pytest.mark.parametrize("erase", [False, True])
def test_case_B2_emptying_one_tenant_leaves_the_others_whole(tmp_path, erase):
    with memcore.open(tmp_path / "m", embedder="hashed", clock=lambda: NOW) as mem:
        a, b, a2 = mem.scope("A"), mem.scope("B"), mem.scope("A", "another project")
        for scope, n in ((a, 3), (b, 4), (a2, 2)):
            scope.remember_many([f"{scope.tenant_id} {i}" for i in range(n)])
        before = [[(r.id, r.content, r.version, r.seq) for r in scope.list()] for scope in (b, a2)]
        assert a.forget(everything=True, erase=erase).count == 3
        for _ in range(2):
            assert [[(r.id, r.content, r.version, r.seq) for r in scope.list()] for scope in (a, b, a2)] == [
                [],
                *before,
            ]
            assert (len(a.recall("A 1")), len(b.recall("B 1", k=9)), len(a2.recall("A 1"))) == (0, 4, 2)
            mem.compact()
    with memcore.open(tmp_path / "m", embedder="hashed", clock=lambda: NOW) as mem:
        found = [mem.scope(*name) for name in (("A",), ("B",), ("A", "another project"))]
        assert [len(scope.list()) for scope in found] == [0, 4, 2]
        assert mem.verify().ok


@pytest.mark.parametrize(
    "asked",
    [
        {}, {"ids": None}, {"where": None}, {"kinds": None}, {"older_than_days": None, "max_access": None},
        {"everything": False}, {"where": {}}, {"where": {"tenant_id": None}}, {"where": {"tenant_id": ""}},
        {"where": {"metadata.user": None}}, {"where": {"metadata.user": None, "key": None}}, {"where": ""},
        {"where": pc.scalar(True)}, {"kinds": []}, {"kinds": ""}, {"ids": ""}, {"ids": [None]}, {"ids": [""]},
        {"everything": None}, {"everything": 1}, {"everything": "no"}, {"older_than_days": ""},
        {"older_than_days": math.inf}, {"older_than_days": -1}, {"max_access": ""}, {"ids": [], "everything": True},
    ],
    ids=str,
)  # fmt: skip
def test_case_B3_a_call_that_names_nothing_forgets_nothing(mem, asked):
    ids = mem.remember_many([f"row {i}" for i in range(5)])
    for erase in (False, True):
        with pytest.raises(memcore.InvalidInput):
            mem.forget(**asked, erase=erase)
    assert [r.id for r in mem.list()] == ids
    assert len(mem.forget([])) == 0


@pytest.mark.parametrize("value", [None, "", " ", "\t"])
@pytest.mark.parametrize("part", ["tenant_id", "project_id"])
def test_case_B3_a_missing_tenant_is_never_all_of_them(mem, part, value):
    mem.remember_many([f"row {i}" for i in range(5)])
    with pytest.raises(memcore.ScopeError):
        mem.scope(**{part: value}).forget(everything=True)
    assert len(mem.list()) == 5


def test_case_B3_a_shell_variable_that_is_empty_forgets_nothing(cli):
    for i in range(3):
        assert cli("remember", f"row {i}")[0] == 0
    for arguments in (
        [], [""], ["--where", ""], ["--where", "session_id="], ["--where", "metadata.user=null"], ["--kind", ""],
        ["--older-than-days", ""], ["--max-access", ""], ["--older-than-days", "-1"],
    ):  # fmt: skip
        code, out, err = cli("forget", *arguments)
        assert (code in (1, 2), out, err != "") == (True, "", True), arguments
    for option in ("--tenant", "--project", "--session", "--role"):
        code, out, err = cli("forget", "--everything", scope=[option, ""])
        assert (code, out, err.count("\n")) == (1, "", 1)
    assert len(json.loads(cli("list", "--json")[1])) == 3


def narrowed(mem: Any, part: str, name: str) -> Any:
    """The scope that has this id as this part of it."""
    return mem.scope(**{"tenant_id": "t", part: name})


@pytest.mark.parametrize("part", ["tenant_id", "project_id", "session_id", "agent_role"])
def test_case_B4_an_id_is_no_prefix_of_another(mem, part):
    ids = ("user", "user2", "use", "user/x", "user.", "User", "user ", "ab", "abc", "ab-c")
    for name in ids:
        narrowed(mem, part, name).remember(name, kind="semantic", key=f"{name} home", metadata={"of": name})
    for name in ids:
        scope = narrowed(mem, part, name)
        assert [contents(found) for found in everywhere(scope)] == [[name]] * 10
        assert contents(scope.list(where={part: name})) == [name]
    whole = mem.scope("t")
    if part in ("session_id", "agent_role"):  # which only narrow: without one all are seen, as with an empty prefix
        assert [contents(found) for found in everywhere(whole)] == [sorted(ids)] * 10
        assert contents(whole.list(where={part: "user"})) == ["user"]
        assert contents(whole.list(where={"metadata.of": "user"})) == ["user"]
        assert whole.get(key="user") is None
    else:
        assert [contents(found) for found in everywhere(whole)] == [[]] * 10
        assert sorted(name[part == "project_id"] for name in mem.scopes()) == sorted(ids)
    assert narrowed(mem, part, "user").forget(everything=True).count == 1
    assert narrowed(mem, part, "us").forget(everything=True).count == 0
    left = {name: len(narrowed(mem, part, name).list()) for name in ids}
    assert left == {**dict.fromkeys(ids, 1), "user": 0}


@pytest.mark.parametrize("part", ["tenant_id", "project_id", "session_id", "agent_role"])
def test_case_B5_an_id_is_no_pattern(mem, part):
    scopes = {name: narrowed(mem, part, name) for name in IDS}
    for name, scope in scopes.items():
        scope.remember(name, event_time=NOW - 86_400 * 400, importance=0)
        scope.remember_many([{"content": name, "source": name, "metadata": {"of": name}}])
    for name, scope in scopes.items():
        assert [contents(found) for found in (scope.list(), scope.recall(name, k=99), scope.recall(k=99))] == [
            [name, name]
        ] * 3
        for where in ({part: name}, pc.field(part) == name, pc.field(part).isin([name])):
            assert contents(scope.list(where=where)) == [name, name]
        for where in ({"source": name}, {"metadata.of": name}, pc.field("metadata.of").isin([name])):
            assert contents(scope.list(where=where)) == contents(
                mem.scope(scope.tenant_id, scope.project_id).list(where=where)
            )
            assert contents(scope.recall(k=99, where=where)) == [name]
    moved = mem.prune()
    assert sorted({one.id for one in moved.moved}) == sorted(one.id for one in moved.moved)
    assert len(moved.moved) == len(IDS)
    for name, scope in scopes.items():
        assert contents(scope.list(tiers="cold")) == contents(scope.recall(k=99, tiers="cold")) == [name]


@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("part", ["tenant_id", "project_id", "session_id", "agent_role"])
def test_case_B7_forgetting_by_an_id_takes_exactly_its_rows(mem, part, erase):
    scopes = {name: narrowed(mem, part, name) for name in IDS}
    for name, scope in scopes.items():
        scope.remember_many([name, name])
        scope.remember(name, event_time=NOW - 86_400 * 400, importance=0)
    mem.prune()
    left = dict.fromkeys(IDS, 3)
    for name in ("D'Arcy", "%", "_", "*", "..", "' OR 1=1 --", "\\", "a"):
        assert scopes[name].forget(everything=True, erase=erase).count == 3
        left[name] = 0
        assert {n: len(scope.list(tiers=("hot", "cold"))) for n, scope in scopes.items()} == left
    mem.compact()
    assert {n: len(scope.list(tiers=("hot", "cold"))) for n, scope in scopes.items()} == left
    assert mem.verify().ok


def test_case_B7_quotes_in_keys_sources_and_metadata_are_text(mem):
    names = [name for name in IDS if len(name) < 100]
    for name in names:
        mem.remember(name, kind="semantic", key=name, source=name, metadata={name: name}, idempotency_key=name)
    assert len(mem.list()) == len(names)
    for name in names:
        assert mem.get(key=name).content == name
        assert [r.content for r in mem.history(name)] == [name]
        assert contents(mem.list(where={f"metadata.{name}": name})) == [name]
        assert mem.remember("again", idempotency_key=name, kind="semantic", key=name).content == name
    assert mem.forget(where={"source": "D'Arcy"}).count == 1
    assert mem.forget(where={"metadata.%": "%"}).count == 1
    assert contents(mem.list()) == sorted(set(names) - {"D'Arcy", "%"})


FAR = 10
SELECTIVE: dict[str, Callable[[Any], tuple[Any, dict[str, Any]]]] = {
    "tenant": lambda mem: (mem.scope("tiny"), {}),
    "session": lambda mem: (mem.scope(session_id="tiny"), {}),
    "role": lambda mem: (mem.scope(agent_role="tiny"), {}),
    "kind": lambda mem: (mem, {"kinds": "procedural"}),
    "source": lambda mem: (mem, {"where": {"source": "tiny"}}),
    "metadata": lambda mem: (mem, {"where": {"metadata.n": 1}}),
    "an expression": lambda mem: (mem, {"where": (pc.field("metadata.n") > 0) & (pc.field("importance") < 0.2)}),
    "what is still true": lambda mem: (mem, {"now": NOW + 100}),
    "what is similar": lambda mem: (mem, {"weights": (0, 0.5, 0.5), "min_similarity": -2, "where": {"metadata.n": 1}}),
}


@pytest.mark.parametrize("by", SELECTIVE)
def test_case_B9_a_filter_that_few_pass_gives_all_that_was_asked_for(path, index, by, monkeypatch):
    """A thousand rows are nearer, and more important, than the ten that pass."""
    monkeypatch.setattr(segment, "ROWS", 250)
    rng = np.random.default_rng(4)
    query = rng.standard_normal(DIM)
    near, far = query + 0.1 * rng.standard_normal((1000, DIM)), -query + 0.5 * rng.standard_normal((FAR, DIM))
    with memcore.open(path, embedder=None, clock=lambda: NOW, index=index) as mem:
        tiny = {
            "importance": 0.1, "session_id": "tiny", "agent_role": "tiny", "kind": "procedural", "source": "tiny",
            "metadata": {"n": 1},
        }  # fmt: skip
        rows = [
            {"content": f"big {i}", "vector": v, "importance": 0.9, "metadata": {"n": 0}} for i, v in enumerate(near)
        ]
        rows = [{**row, "expires_at": NOW + 50} for row in rows]
        for i, vector in enumerate(far):  # one here and one there among the others
            rows.insert(100 * i, {"content": f"tiny {i}", "vector": vector, **tiny})
        mem.remember_many(rows)
        if by == "tenant":
            mem.scope("tiny").remember_many([{"content": f"tiny {i}", "vector": v} for i, v in enumerate(far)])
        mem.compact()
        scope, asked = SELECTIVE[by](mem)
        asked = {"kinds": memcore.KINDS, "weights": (0.8, 0.1, 0.1), **asked}
        queries = np.stack([query, *(query + 0.1 * rng.standard_normal((8, DIM)))])
        records = [r for r in scope.list(kinds=memcore.KINDS) if r.content.startswith("tiny")]
        assert len(records) == FAR
        for k in (1, 5, FAR):
            expected = [
                naive.recall(
                    records, naive.unit(one), k=k, now=asked.get("now", NOW) * 1_000_000, kinds=memcore.KINDS,
                    weights=asked["weights"],
                )
                for one in queries
            ]  # fmt: skip
            assert [told(hits) for hits in scope.recall_many(vectors=queries, k=k, **asked)] == expected
            assert [told(scope.recall(vector=one, k=k, **asked)) for one in queries] == expected
            assert all(len(hits) == k for hits in expected)
        assert len(scope.recall(vector=query, k=FAR + 1, **asked)) == FAR


def test_case_B9_a_graph_that_sees_only_what_is_out_is_not_believed(path, index, monkeypatch):
    """Half of the rows pass, and none of them is among those that a walk keeps in view."""
    monkeypatch.setattr(segment, "ROWS", 3000)
    rng = np.random.default_rng(4)
    query = rng.standard_normal(DIM)
    vectors = np.concatenate([query + 0.2 * rng.standard_normal((1500, DIM)), rng.standard_normal((1500, DIM))])
    with memcore.open(path, embedder=None, clock=lambda: NOW, index=index) as mem:
        mem.remember_many(
            [{"content": str(i), "vector": v, "metadata": {"near": i < 1500}} for i, v in enumerate(vectors)]
        )
        mem.compact()
        asked = {"where": {"metadata.near": False}, "weights": (1, 0, 0)}
        records = mem.list(where=asked["where"])
        expected = naive.recall(records, naive.unit(query), k=5, now=MICROS, weights=(1, 0, 0))
        assert told(mem.recall(vector=query, k=5, **asked)) == expected
        assert [told(hits) for hits in mem.recall_many(vectors=[query] * 9, k=5, **asked)] == [expected] * 9
        assert len(expected) == 5
        if index != "exact":
            assert plan(mem.recall(vector=vectors[-1], k=5, weights=(1, 0, 0))).startswith(index)


def test_case_B11_fewer_rows_than_asked_for_come_once_each_and_none_in_their_place(path, index, monkeypatch):
    monkeypatch.setattr(segment, "ROWS", 3)
    with memcore.open(path, embedder=None, clock=lambda: NOW, index=index) as mem:

        def found(k: int, **more: Any) -> list[str]:
            """What both verbs find."""
            hits = mem.recall(vector=np.ones(DIM), k=k, **more)
            for many in mem.recall_many(vectors=np.ones((9, DIM)), k=k, **more):
                assert told(many) == told(hits)
            assert all(math.isfinite(hit.total_score) and abs(hit.total_score) <= 1 for hit in hits)
            assert len({hit.id for hit in hits}) == len(hits)
            assert len(hits.to_arrow()) == len(hits.ids) == len(list(hits)) == len(hits)
            return contents(hits)

        assert found(5) == []
        ids = mem.remember_many(
            [{"content": f"row {i}", "vector": np.eye(DIM)[i], "metadata": {"n": i}} for i in range(3)]
        )
        mem.compact()
        for k in (3, 4, 10, 10**9):
            assert found(k) == ["row 0", "row 1", "row 2"]
            assert found(k, where={"metadata.n": 1}) == ["row 1"]
            assert found(k, where={"metadata.n": 9}) == found(k, min_score=0.999) == found(k, min_similarity=0.99) == []
        if index != "exact":
            assert plan(mem.recall(vector=np.ones(DIM), k=3)) == f"{index} HNSW, 1 graph"
        mem.forget(ids[2])
        assert found(3) == found(10) == ["row 0", "row 1"]
        mem.forget(everything=True)
        assert found(1) == found(5) == []
        mem.compact()
        assert found(5) == []


def test_case_B11_a_graph_of_few_rows_fills_no_place_with_the_row_before_it(path, index, monkeypatch):
    """Where a walk finds no more it says -1, and before the second graph's rows are those of the first."""
    monkeypatch.setattr(segment, "ROWS", 3)
    monkeypatch.setattr(searching, "MOST_K", 100)
    vectors = np.random.default_rng(11).standard_normal((30, DIM))
    with memcore.open(path, embedder=None, clock=lambda: NOW, index=index) as mem:
        for first, last in ((0, 24), (24, 30)):
            mem.remember_many([{"content": str(i), "vector": vectors[i]} for i in range(first, last)])
            mem.compact()
        records = mem.list()
        for k in (1, 7, 29, 30):
            expected = naive.recall(records, naive.unit(vectors[23]), k=k, now=MICROS)
            hits = mem.recall(vector=vectors[23], k=k)
            assert index == "exact" or plan(hits) == f"{index} HNSW, 2 graphs"
            assert told(hits) == expected
            assert [told(many) for many in mem.recall_many(vectors=[vectors[23]] * 9, k=k)] == [expected] * 9


def test_case_B11_the_command_line_shows_what_there_is(cli):
    assert cli("remember", "only this")[0] == 0
    assert [hit["content"] for hit in json.loads(cli("recall", "this", "-k", "10", "--json")[1])] == ["only this"]
    assert cli("forget", "--everything")[0] == 0
    for verb in (["recall", "this"], ["recall"], ["list"]):
        code, out, err = cli(*verb, "--json")
        assert (code, json.loads(out), err) == (0, [], "")


def test_case_B13_no_id_leads_out_of_the_store_s_directory(tmp_path):
    """Also of the cold tier, whose folders are named after tenants."""
    paths = (
        "..", ".", "../x", "../../x", "/etc", "/", "//", "a/../../x", "%2e%2e/x", "..%2fx", "~", "a\\..\\x", "link",
        "tenant=x", "con", "x" * 512, "ß" * 512,
    )  # fmt: skip
    home, outside = tmp_path / "home", tmp_path / "outside"
    home.mkdir()
    outside.mkdir()
    with memcore.open(home / "m", embedder="hashed", clock=lambda: NOW) as mem:
        for name in paths:
            for scope in (mem.scope(name), mem.scope("t", name), mem.scope("t", "p", name)):
                scope.remember("old", event_time=NOW - 86_400 * 400, importance=0, key=name, source=name)
        assert len(mem.prune().moved) == 3 * len(paths)
        mem.compact()
        for name in paths:
            for scope in (mem.scope(name), mem.scope("t", name), mem.scope("t", "p", name)):
                assert contents(scope.list(tiers="cold")) == ["old"]
        mem.scope("..").forget(everything=True, erase=True)
        mem.compact()
        assert mem.verify().ok
        assert len(mem.scope("../x").list(tiers="cold")) == 1
    assert sorted(found.name for found in tmp_path.iterdir()) == ["home", "outside"]
    assert ([found.name for found in home.iterdir()], list(outside.iterdir())) == (["m"], [])


COUNTS: list[tuple[Any, int | None]] = [  # and how many of four rows there are, None: refused
    (0, 0), (1, 1), (3, 3), (4, 4), (5, 4), (10**9, 4), (2**63, 4), (10**30, 4), (np.int64(2), 2), (np.uint8(2), 2),
    (-1, None), (-(10**30), None), (True, None), (False, None), (np.True_, None), (2.0, None), (0.0, None),
    (np.float32(2), None), (math.nan, None), (math.inf, None), ("3", None), ("", None), (b"3", None), ([], None),
    ([3], None), (3 + 0j, None),
]  # fmt: skip


@pytest.mark.parametrize(("value", "many"), COUNTS, ids=repr)
def test_case_B15_a_limit_is_one_rule_in_every_verb(path, value, many):
    with memcore.open(path, embedder="hashed", clock=lambda: NOW) as mem:
        mem.remember_many([f"row {i}" for i in range(4)])
        verbs = {
            "k": [
                lambda: mem.recall("row", k=value),
                lambda: mem.recall(k=value),
                lambda: mem.recall_many(["row"], k=value)[0],
                lambda: mem.recall_many(["row"] * 9, k=value)[8],
                lambda: mem.recall_many(["row"], scopes=[mem], k=value)[0],
                lambda: mem.recall("row", k=value, where={"kind": "episodic"}),
                lambda: mem.recall("row", k=value, tiers=("hot", "cold")),
            ],
            "limit": [lambda: mem.list(limit=value), lambda: mem.list(limit=value, tiers=("hot", "cold"))],
        }
        for name, several in verbs.items():
            for verb in several:
                if many is not None:
                    assert len(verb()) == many
                    continue
                with pytest.raises(memcore.InvalidInput, match=rf"^{name} is ") as raised:
                    verb()
                assert "\n" not in str(raised.value)
        if many is None:
            with pytest.raises(memcore.InvalidInput, match=r"^offset is "):
                mem.list(offset=value)
        else:
            assert len(mem.list(offset=value)) == max(4 - int(value), 0)


def test_case_B15_none_is_no_number_of_hits_and_no_limit_of_a_list(mem):
    mem.remember_many([f"row {i}" for i in range(7)])
    assert len(mem.list(limit=None)) == 7
    for verb in (lambda: mem.recall(k=None), lambda: mem.recall_many(["row"], k=None), lambda: mem.list(offset=None)):
        with pytest.raises(
            memcore.InvalidInput, match=r"is None \(NoneType\); it must be a whole number of at least 0"
        ):
            verb()


@pytest.mark.parametrize("value", ["0", "1", "4", "1000000000", "-1", "True", "None", "2.0", "", "x"])
def test_case_B15_the_command_line_and_coroutines_have_the_same_rule(cli, value):
    for i in range(4):
        assert cli("remember", f"row {i}")[0] == 0
    for arguments in (["recall", "row", "-k", value], ["recall", "-k", value], ["list", "--limit", value]):
        code, out, err = cli(*arguments, "--json")
        if not value.isdecimal():
            assert (code, out) == (1 if value == "-1" else 2, "")
            assert "-1; it must be at least 0" in err or "is not a valid integer" in err
            continue
        assert (code, len(json.loads(out))) == (0, min(int(value), 4))

    async def recalled(k: Any) -> int:
        async with memcore.open_async(embedder="hashed") as mem:
            await mem.remember_many([f"row {i}" for i in range(4)])
            return len(await mem.recall("row", k=k)) + len(await mem.list(limit=k))

    if value.isdecimal():
        assert asyncio.run(recalled(int(value))) == 2 * min(int(value), 4)
    else:
        with pytest.raises(memcore.InvalidInput, match="k is "):
            asyncio.run(recalled(-1 if value == "-1" else value))


@pytest.mark.parametrize("n", [35, 3000])
def test_case_B17_forgetting_has_no_page_size(mem, n):
    ops, other = mem.scope("t1"), mem.scope("t2")

    def filled() -> list[str]:
        return ops.remember_many([{"content": f"row {i}", "metadata": {"of": "x"}} for i in range(n)])

    other.remember_many(["of another"] * 12)
    for forget in (
        lambda ids: ops.forget(everything=True),
        lambda ids: ops.forget(where={"metadata.of": "x"}),
        lambda ids: ops.forget(kinds="episodic"),
        lambda ids: ops.forget(max_access=10**6),
        lambda ids: ops.forget(ids),
        lambda ids: ops.forget(ops.list()),
    ):
        ids = filled()
        assert (len(ops.list()), len(ops.recall(k=10**6)), len(ops.forgotten()) % n) == (n, n, 0)
        report = forget(ids)
        assert (report.count, len(report), int(report), report.ids) == (n, n, n, ids)
        assert (len(ops.list()), len(ops.recall("row", k=n)), forget([]).count) == (0, 0, 0)
        assert len(other.list()) == 12
    ids = filled()
    ops.forget(everything=True)
    assert (ops.restore(ids).count, len(ops.list())) == (n, n)
    before = len(ops.forgotten())
    assert ops.forget(everything=True, erase=True).count == n
    assert (len(ops.list()), len(ops.forgotten()), ops.restore(ids).count, len(other.list())) == (0, before, 0, 12)


def test_case_B17_the_command_line_forgets_all_of_many(cli, tmp_path):
    with memcore.open(tmp_path / "m", embedder="hashed") as mem:
        mem.scope("t1").remember_many([f"row {i}" for i in range(135)])
        mem.scope("t2").remember("stays")
    scope = ["--tenant", "t1"]
    code, out, err = cli("list", "--json", scope=scope)  # which has a page, and says so
    assert (code, len(json.loads(out)), err) == (0, 50, "memcore: 50 shown; --offset 50 goes on\n")
    for expected in (135, 0):
        code, out, _ = cli("forget", "--everything", "--json", scope=scope)
        assert (code, json.loads(out)["count"]) == (0, expected)
    assert json.loads(cli("list", "--json", scope=scope)[1]) == []
    assert [one["content"] for one in json.loads(cli("list", "--json", scope=["--tenant", "t2"])[1])] == ["stays"]


# Scale


HEAVY = (
    "faiss", "hnswlib", "numba", "llvmlite", "sklearn", "scipy", "anthropic", "langgraph", "mcp", "numpy", "pyarrow",
    "wordllama", "tokenizers", "Stemmer", "rich", "sqlite3", "asyncio",
)  # fmt: skip
LOADED = f"""
import contextlib, io, sys
with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())), contextlib.redirect_stderr(io.StringIO()):
    DO
print([name for name in {HEAVY} if name in sys.modules])
"""
CALL = "from memcore.cli import main\n    for arguments in {}:\n        main(arguments, standalone_mode=False)"


def loaded(do: str) -> list[str]:
    """Which heavy modules a process has loaded that did this."""
    found: list[str] = ast.literal_eval(run(LOADED.replace("DO", do)).stdout)
    return found


def test_case_K1_what_does_nothing_loads_nothing():
    assert loaded("import memcore") == []
    assert loaded(CALL.format([["--help"], ["--version"], *([verb, "--help"] for verb in main.commands)])) == []


def test_case_K1_a_verb_that_scores_nothing_loads_no_compiler_and_no_index(tmp_path):
    path = str(tmp_path / "m")
    with memcore.open(path, embedder="hashed") as mem:
        mem.remember("x", kind="semantic", key="k")
    verbs = (["list"], ["get", "--key", "k"], ["history", "k"], ["stats"], ["forget", "--everything"], ["compact"])
    do = CALL.format([["--store", path, *verb] for verb in verbs])
    assert set(loaded(do)) & {"numba", "llvmlite", "faiss", "hnswlib", "sklearn", "scipy", "wordllama"} == set()
    assert "numba" in loaded(CALL.format([["--store", path, "--embedder", "hashed", "recall", "x"]]))


KERNEL = """
import numpy as np
from memcore_kernels import dots
dots.dot64(np.ones(3, np.float32), np.ones(3, np.float32))
print(sum(dots.dot64.stats.cache_hits.values()), sum(dots.dot64.stats.cache_misses.values()), dots.__file__)
"""


@pytest.mark.skipif(drawn.PLAIN, reason="nothing is compiled")
def test_case_K3_files_that_are_made_anew_find_what_was_compiled(tmp_path, monkeypatch):
    """As in an image's layers: the same sources at the same place, of another time each time."""
    source, installed = Path(memcore_kernels.__file__).parent, tmp_path / "site" / "memcore_kernels"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(installed.parent))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    def install(**more: Any) -> None:
        shutil.rmtree(installed, ignore_errors=True)
        shutil.copytree(source, installed, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns("__pycache__"))

    for expected in ("0 1", "1 0", "1 0"):
        install()
        assert run(KERNEL).stdout == f"{expected} {installed / 'dots.py'}\n"
    (installed / "decay.py").write_text((source / "decay.py").read_text() + "\n# another\n")
    assert run(KERNEL).stdout.startswith("0 1 ")


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """How many rows were given codes, put into graphs, and had their metadata read."""
    rows = {"codes": 0, "graphs": 0, "metadata": 0}
    quantise, add, made = codes.quantise, hnsw.Faiss.add, filters._Values.__init__

    def quantised(table: Any, *more: Any) -> None:
        rows["codes"] += len(table)
        quantise(table, *more)

    def added(self: Any, table: Any, *, threads: int) -> None:
        rows["graphs"] += len(table)
        add(self, table, threads=threads)

    def read(self: Any, scalars: Any, *more: Any) -> None:
        rows["metadata"] += len(scalars)
        made(self, scalars, *more)

    with monkeypatch.context() as patch:
        patch.setattr(codes, "quantise", quantised)
        patch.setattr(hnsw.Faiss, "add", added)
        patch.setattr(filters._Values, "__init__", read)
        yield rows


@pytest.mark.parametrize("kind", ["ram", "directory"])
def test_case_K5_rows_are_derived_from_once_however_often_is_asked_between(kind, tmp_path, monkeypatch):
    """And embedded once, as many together as came together."""
    monkeypatch.setattr(segment, "ROWS", 100)
    monkeypatch.setattr(segment, "LEAST_CODED", 1)
    monkeypatch.setattr(graphs, "LEAST_ROWS", 100)
    for n in (500, 1000, 2000):
        model = Counting()
        path = None if kind == "ram" else tmp_path / str(n)
        with counted(monkeypatch) as rows, memcore.open(
            path, embedder=CallableEmbedder(model, name="counting", dim=DIM), clock=lambda: NOW, index="faiss"
        ) as mem:  # fmt: skip
            model.asked()
            for first in range(0, n, 50):
                mem.remember_many([{"content": f"row {first + i}", "metadata": {"n": first + i}} for i in range(50)])
                assert [len(texts) for texts in model.asked()] == [50]
                for relevance in ("cosine", "hybrid"):
                    (hit,) = mem.recall("row", k=1, where={"metadata.n": first + 7}, relevance=relevance)
                    assert hit.content == f"row {first + 7}"
                    assert len(mem.recall_many(["row", "row", "another"], k=3, relevance=relevance)[2]) == 3
                    assert model.asked() == [["row"], ["row", "another"]]
                if first % 100:
                    mem.compact()
            assert model.asked() == []
            # those in a directory are derived from where they were written, and from their file
            times = 1 if kind == "ram" else 3
            assert n - 100 <= rows["codes"] <= times * n
            assert n <= rows["metadata"] <= times * n
            assert n / 2 <= rows["graphs"] <= 3 * n  # each into a few, ever larger ones


def test_case_K5_codes_of_the_rows_that_are_not_sealed_are_made_once(monkeypatch):
    monkeypatch.setattr(segment, "LEAST_CODED", 1)
    n = 3 * BLOCK + 100
    vectors = np.random.default_rng(5).standard_normal((n, DIM))
    with counted(monkeypatch) as rows, memcore.open(embedder=None, clock=lambda: NOW) as mem:
        for first in range(0, n, 100):
            mem.remember_many(
                [{"content": f"row {i}", "vector": vectors[i]} for i in range(first, min(first + 100, n))]
            )
            assert mem.recall(vector=vectors[first], k=1, weights=(1, 0, 0))[0].content == f"row {first}"
        assert rows["codes"] == 3 * BLOCK


def test_case_K5_metadata_of_the_rows_that_are_not_sealed_is_read_once(mem, monkeypatch):
    """Else a filtered recall after each write takes as long as reading them all."""
    with counted(monkeypatch) as rows:
        for i in range(200):
            mem.remember("row", metadata={"n": i, "odd": i % 2 == 1, "mixed": (i, str(i), i / 2, None)[i % 4]})
            assert len(mem.list(where={"metadata.n": i})) == 1
            assert len(mem.list(where={"metadata.odd": True})) == (i + 1) // 2
            assert len(mem.list(where=pc.field("metadata.mixed").is_null())) == (i + 1) // 4
        assert rows["metadata"] == 3 * 200
        for value, found in (("17", [17]), ("16", []), (16, [16]), (17, [34]), (17.0, [34]), (18, [])):
            assert [r.metadata["n"] for r in mem.list(where={"metadata.mixed": value})] == found


def test_case_K7_compaction_takes_room_for_a_few_segments_and_not_for_all(tmp_path, monkeypatch):
    monkeypatch.setattr(segment, "ROWS", 500)
    rng, most = np.random.default_rng(7), {}
    default = pa.default_memory_pool()
    for segments in (2, 16):
        with memcore.open(tmp_path / str(segments), embedder=None, durability="relaxed") as mem:
            for _ in range(segments):
                mem.remember_many(
                    [
                        {"content": f"row {i} {'x' * 400}", "vector": v, "metadata": {"n": i}}
                        for i, v in enumerate(rng.standard_normal((500, 256)))
                    ]
                )
                mem._engine.directory.maintenance.seal_all()
            mem.compact()
            mem.forget(where={"metadata.n": 5}, erase=True)  # so that each is written anew
            pool = pa.proxy_memory_pool(default)
            pa.set_memory_pool(pool)
            tracemalloc.start()
            try:
                done = mem.compact()
                most[segments] = tracemalloc.get_traced_memory()[1] + pool.max_memory()
            finally:
                tracemalloc.stop()
                pa.set_memory_pool(default)
            assert (done.dropped, done.written, done.removed) == (segments, segments, segments)
            again = mem.compact()
            assert (again.dropped, again.written, again.removed, again.indexed) == (0, 0, 0, 0)
            assert (len(mem.list()), mem.verify().ok) == (499 * segments, True)
    assert most[16] < 1.25 * most[2]
    assert most[2] < 6 * 500 * (256 * 4 + 400)


LIMITED = """
import resource, sys
import numpy as np, memcore
from memcore.store import segment
segment.ROWS = 5000
with memcore.open(sys.argv[1], embedder=None) as mem:
    base = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) << 10
    resource.setrlimit(resource.RLIMIT_AS, (base + (1 << 20) * int(sys.argv[2]), resource.RLIM_INFINITY))
    try:
        print(mem.compact().dropped)
    except (memcore.MemcoreError, MemoryError) as fault:
        print(type(fault).__name__)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_case_K7_compaction_with_too_little_room_leaves_the_store_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(segment, "ROWS", 5000)
    path = tmp_path / "m"
    with memcore.open(path, embedder=None, durability="relaxed") as mem:
        vectors = np.random.default_rng(7).standard_normal((20_000, 128))
        mem.remember_many([{"content": f"row {i}", "vector": v, "metadata": {"n": i}} for i, v in enumerate(vectors)])
        mem.compact()
        mem.forget(where=pc.field("metadata.n") < 10)
    for megabytes in (1, 8, 2000):
        done = run(LIMITED, path, megabytes, check=False)
        with memcore.open(path, embedder=None, create=False) as mem:
            assert (len(mem.list()), mem.verify().ok) == (19_990, True)
    assert (done.returncode, done.stdout) == (0, "10\n")


def test_case_K9_only_what_is_new_or_has_another_text_is_embedded(path, tmp_path):
    model = Counting()
    with memcore.open(path, embedder=CallableEmbedder(model, name="counting", dim=DIM), clock=lambda: NOW) as mem:
        model.asked()
        ids = mem.remember_many(
            [
                {"content": f"row {i}", "kind": "semantic", "key": f"k{i}"} if i % 2 else
                {"content": f"row {i}", "event_time": NOW - 86_400 * 400, "importance": 0.1}
                for i in range(100)
            ]
        )  # fmt: skip
        assert model.asked() == [[f"row {i}" for i in range(100)]]
        for _ in range(3):
            report = mem.prune()
            mem.compact()
            assert mem.verify().ok
        assert mem.restore(ids[0:20:2]).count == 10
        assert report.moved == []
        for id in ids[0:20:2]:
            mem.update(id, metadata={"seen": True})
            mem.update(id, importance=0.2, source="user", confidence=0.5, expires_at=NOW + 10**6, event_time=NOW)
        forgotten = mem.forget(ids[5])
        mem.restore(forgotten)
        mem.forget(ids[7], erase=True)
        assert model.asked() == []
        for i in (1, 3, 9):
            mem.update(ids[i], content=f"changed {i}")
        assert model.asked() == [["changed 1"], ["changed 3"], ["changed 9"]]
        for name in ("e.json", "e.jsonl", "e.parquet"):
            mem.export(tmp_path / name)
            with memcore.open(embedder=CallableEmbedder(model, name="counting", dim=DIM)) as other:
                assert other.import_(tmp_path / name).new == 100 - 1 + 20 + 3
        assert model.asked() == []
        chat = mem.scope(session_id="s").working()
        chat.add("user", "hello")
        assert model.asked() == [["hello"]]
        chat.end()
        mem.recall(k=3)
        mem.recall(vector=np.ones(DIM))
        assert model.asked() == []


@pytest.mark.parametrize("relevance", ["cosine", "hybrid"])
def test_case_K9_equal_queries_are_embedded_once(mem, relevance):
    model = Counting()
    mem.reembed(CallableEmbedder(model, name="counting", dim=DIM))
    scopes = [mem.scope("t1"), mem.scope("t2")]
    for scope in scopes:
        scope.remember_many(["green tea", "black coffee"])
    model.asked()
    queries = ["black coffee", "green tea", "black coffee", " ", "green tea", ""]
    asked = {"scopes": [scopes[i % 2] for i in range(6)], "k": 1, "weights": (1, 0, 0), "relevance": relevance}
    found = mem.recall_many(queries, **asked)
    assert model.asked() == [["black coffee", "green tea", ""]]
    assert [hits[0].content for hits in (*found[:3], found[4])] == [
        "black coffee", "green tea", "black coffee", "green tea",
    ]  # fmt: skip
    assert [round(hits[0].semantic_similarity, 6) for hits in (*found[:3], found[4])] == [1.0] * 4
    assert mem.recall_many([]) == []
    assert model.asked() == []

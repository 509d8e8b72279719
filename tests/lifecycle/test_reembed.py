"""A store comes to another embedder: all vectors at once, none lost, the old ones serving until then."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memcore
from memcore.embed import CallableEmbedder, resolve

NOW = 1_790_000_000
WORDS = ("gateway", "payment", "deploy", "timeout", "café", "rollback", "queue", "disk")
TEXTS = [f"{WORDS[i % 8]} {WORDS[i % 7]} number {i}" for i in range(60)]


def width(dim: int, name: str, interfere: Callable[[list[str]], None] = lambda texts: None) -> Any:
    """An embedder of letter counts; `interfere` is called with the texts before they are embedded."""

    def embed(texts: list[str]) -> Any:
        interfere(list(texts))
        return [[1.0 + text.count(chr(97 + i)) for i in range(dim)] for text in texts]

    return CallableEmbedder(embed, name=name, dim=dim)


@pytest.fixture(params=["ram", "directory"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "ram" else tmp_path / "m"


def filled(path: Path | None) -> memcore.Memory:
    """Rows in files, in the journal and in the cold tier, versions, forgotten ones, two scopes."""
    mem = memcore.open(path, embedder=width(5, "old"), clock=lambda: NOW)
    ops = mem.scope("t", "p")
    ids = ops.remember_many([{"content": text, "event_time": NOW - 3600 * i} for i, text in enumerate(TEXTS)])
    ops.remember("value one", kind="semantic", key="k")
    ops.remember("value two", kind="semantic", key="k")
    ops.forget(ids[:3])
    ops.remember("long ago", importance=0.0, event_time=NOW - 10_000 * 3600)
    assert ops.prune(now=NOW).count == 1
    mem.compact()
    ops.remember("written after the files")
    mem.scope("u").remember("another tenant's")
    return mem


def seen(mem: memcore.Memory) -> list[Any]:
    """All that a reader sees of vectors, but for when and how often."""
    ops = mem.scope("t", "p")
    found: list[Any] = [(r.content, r.vector.tolist()) for r in ops.list(tiers=("hot", "cold"))]
    found += [(r.content, r.version, r.vector.tolist()) for r in ops.history("k")]
    for query in ("payment timeout", "long ago"):
        found += [(h.content, h.total_score) for h in ops.recall(query, k=8, now=NOW, tiers=("hot", "cold"))]
    return [*found, *((r.content, r.vector.tolist()) for r in mem.scope("u").list())]


def test_all_vectors_are_those_of_the_new_embedder(path):
    embedder = width(7, "new")
    with filled(path) as mem:
        before = [r.content for r in mem.scope("t", "p").list()]
        report = mem.reembed(embedder)
        assert (report.embedder, report.dim, report.kept) == (embedder.fingerprint, 7, 0)
        assert report.rows == 62  # two versions of one, the cold one, one of another tenant
        assert [r.content for r in mem.scope("t", "p").list()] == before
        for scope in (mem.scope("t", "p"), mem.scope("u")):
            for record in (*scope.list(tiers=("hot", "cold")), *scope.history("k")):
                assert np.array_equal(record.vector, embedder.embed([record.content])[0]), record.content
        assert mem.stats()["dim"] == 7
        assert mem.stats()["embedder"]["name"] == "new"
        found = seen(mem)
        hit = mem.scope("t", "p").recall("value two", k=1, weights=(1, 0, 0))[0]
        assert (hit.content, round(hit.semantic_similarity, 6)) == ("value two", 1.0)
        mem.remember("and it goes on")
        assert mem.recall("and it goes on", k=1)[0].content == "and it goes on"
        if path is not None:
            assert mem.verify().ok
    if path is not None:
        with memcore.open(path, embedder=embedder, clock=lambda: NOW) as again:
            assert seen(again) == found
            assert again.compact().dropped == 0
            assert again.verify().ok


def test_the_old_vectors_serve_until_the_new_ones_are_there(path):
    answers: list[Any] = []

    def look(texts: list[str]) -> None:
        if mem._engine.embedder.name == "old":
            answers.append(seen(mem))

    with filled(path) as mem:
        before = seen(mem)
        mem.reembed(width(7, "new", look))
        assert len(answers) >= 2
        assert all(answer == before for answer in answers)
        assert seen(mem) != before


def test_what_is_written_meanwhile_gets_new_vectors_too(path):
    rounds: list[int] = []

    def write(texts: list[str]) -> None:
        if len(rounds) < 3:
            rounds.append(len(texts))
            mem.scope("t", "p").remember(f"meanwhile {len(rounds)}")
            mem.scope("v").remember(f"a new scope {len(rounds)}")

    embedder = width(7, "new", write)
    with filled(path) as mem:
        mem.reembed(embedder)
        assert [r.content for r in mem.scope("v").list()] == [f"a new scope {i}" for i in (1, 2, 3)]
        for scope in (mem.scope("t", "p"), mem.scope("v")):
            for record in scope.list():
                assert record.vector.tolist() == embedder.embed([record.content])[0].tolist()
        assert len([r for r in mem.scope("t", "p").list() if r.content.startswith("meanwhile")]) == 3


def test_a_write_that_was_embedded_before_the_change_is_refused(path):
    """Its vector is the old embedder's: nothing may mix the two."""
    with filled(path) as mem:
        old = mem._engine.embedder
        real = old.embed

        def late(texts: Any, kind: str = "document") -> Any:
            made = real(texts, kind)
            old.embed = real
            mem.reembed(width(5, "new"))
            return made

        old.embed = late
        with pytest.raises(memcore.EmbedderMismatch) as raised:
            mem.remember("too late")
        assert str(raised.value) == (
            "the store has come to another embedder (reembed) while this text was embedded; nothing was written: do it "
            "again"
        )
        assert "too late" not in [r.content for r in mem.list()]
        assert mem.remember("too late").vector.tolist() == mem._engine.embedder.embed(["too late"])[0].tolist()


def test_a_question_that_was_embedded_before_the_change_is_embedded_anew(path):
    with filled(path) as mem:
        old = mem._engine.embedder
        real = old.embed

        def late(texts: Any, kind: str = "document") -> Any:
            made = real(texts, kind)
            old.embed = real
            mem.reembed(width(9, "new"))
            return made

        old.embed = late
        hit = mem.scope("t", "p").recall("value two", k=1, weights=(1, 0, 0))[0]
        assert (hit.content, round(hit.semantic_similarity, 6)) == ("value two", 1.0)


def test_an_interrupted_change_leaves_the_old_and_goes_on_where_it_was(tmp_path):
    calls: list[int] = []

    def fail(texts: list[str]) -> None:
        calls.append(len(texts))
        if len(calls) == 2:
            raise ConnectionError("the model's host is gone")

    with filled(tmp_path / "m") as mem:
        before = seen(mem)
        with pytest.raises(ConnectionError):
            mem.reembed(width(7, "new", fail))
        assert seen(mem) == before
        assert mem.stats()["embedder"]["name"] == "old"
    with memcore.open(tmp_path / "m", embedder=width(5, "old"), clock=lambda: NOW) as mem:
        report = mem.reembed(width(7, "new", fail))
        assert report.kept == calls[0] > 20
        assert report.rows + report.kept == 62
        assert mem.verify().ok


def test_compacting_gives_up_what_was_staged(tmp_path):
    """A staged file may hold what was forgotten since."""
    marker = "pin code is ZEBRA-77"
    calls: list[int] = []

    def fail(texts: list[str]) -> None:
        calls.append(len(texts))
        if len(calls) == 2:
            raise ConnectionError

    with filled(tmp_path / "m") as mem:
        record = mem.scope("t", "p").remember(marker)
        with pytest.raises(ConnectionError):
            mem.reembed(width(7, "new", fail))
        held = [file for file in (tmp_path / "m").rglob("*") if file.is_file() and marker.encode() in file.read_bytes()]
        assert len(held) >= 2  # the file, and the one that was staged
        mem.scope("t", "p").forget(record.id)
        mem.compact()
        assert not any(marker.encode() in f.read_bytes() for f in (tmp_path / "m").rglob("*") if f.is_file())
        assert mem.reembed(width(7, "new")).kept == 0
        assert mem.verify().ok


def test_the_embedder_that_a_store_has_is_refused(path):
    with filled(path) as mem, pytest.raises(memcore.InvalidInput) as raised:
        mem.reembed(width(5, "old"))
    assert str(raised.value) == (
        f"the store's vectors are those of {width(5, 'old').fingerprint!r} already; reembed takes another embedder"
    )


def test_progress_is_told(path):
    told: list[tuple[int, int]] = []
    with filled(path) as mem:
        mem.reembed(width(7, "new"), progress=lambda done, total, _: told.append((done, total)))
    assert told[-1][0] == told[-1][1] == 62
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_a_store_without_an_embedder_gets_one(path):
    with memcore.open(path, embedder=None) as mem:
        mem.remember("by hand", vector=[1.0, 0.0])
        mem.remember("without a vector")
        mem.reembed("hashed")
        assert mem.stats()["dim"] == resolve("hashed").dim
        assert mem.recall("without a vector", k=1, weights=(1, 0, 0))[0].content == "without a vector"


def test_another_process_is_refused_from_then_on(tmp_path):
    with memcore.open(tmp_path / "m", embedder="hashed") as mem:
        mem.remember("the first")
        code = (
            "import sys, memcore\n"
            "mem = memcore.open(sys.argv[1], embedder='hashed')\n"
            "assert mem.recall('the first')[0].content == 'the first'\n"
            "print('ready', flush=True)\n"
            "sys.stdin.readline()\n"
            "for verb in (lambda: mem.recall('the first'), lambda: mem.remember('the second')):\n"
            "    try:\n"
            "        verb()\n"
            "    except memcore.EmbedderMismatch as fault:\n"
            "        print(fault)\n"
            "print([r.content for r in mem.list()])\n"
        )
        other = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "m")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        mem.reembed(width(7, "new"))
        out, _ = other.communicate("go\n", timeout=60)
        fingerprint = mem._engine.embedder.fingerprint
    message = (
        f"the store {tmp_path / 'm'} holds vectors of the embedder {fingerprint!r} and is opened with "
        f"{resolve('hashed').fingerprint!r}; vectors of two embedders cannot be compared: open it with the embedder of "
        f"which the fingerprint is {fingerprint!r}, or with embedder=None and embed all texts anew with reembed"
    )
    assert out.splitlines() == [message, message, "['the first']"]


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several files, so that one can be done and another not."""
    monkeypatch.setattr("memcore.store.maintenance.SEAL_ROWS", 30)


def test_the_command_embeds_anew(tmp_path):
    """From whatever embedder the store has, to the one that is named."""
    memcore_of = [str(Path(sys.executable).parent / "memcore"), "--store", str(tmp_path / "m")]
    subprocess.run([*memcore_of, "--embedder", "hashed", "remember", "the gateway"], check=True, capture_output=True)
    refused = subprocess.run([*memcore_of, "recall", "gateway"], capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    done = subprocess.run([*memcore_of, "reembed", "static", "--json"], check=True, capture_output=True, text=True)
    fingerprint = resolve("static").fingerprint
    assert json.loads(done.stdout) == {"rows": 1, "kept": 0, "embedder": fingerprint, "dim": 256}
    found = subprocess.run([*memcore_of, "recall", "gateway", "--json"], check=True, capture_output=True, text=True)
    assert [hit["content"] for hit in json.loads(found.stdout)] == ["the gateway"]


def test_rows_of_a_store_that_had_no_vectors_at_all_have_them_at_once(path):
    with memcore.open(path, embedder=None) as mem:
        mem.remember("the first")
        mem.reembed("hashed")
        assert [row.vector is not None for row in mem.list()] == [True]
        assert mem.recall("the first", k=1)[0].semantic_similarity == pytest.approx(1)


def test_accesses_that_wait_to_be_counted_are_counted(path):
    with memcore.open(path, embedder="hashed") as mem:
        mem.remember("the first")
        for _ in range(3):
            mem.recall("the first", now=50)
        mem.reembed(width(3, "other"))
        assert [(row.access_count, row.last_access.timestamp()) for row in mem.list()] == [(3, 50)]
    with memcore.open(path, embedder=None) as mem:
        assert path is None or [row.access_count for row in mem.list()] == [3]

"""Codes that are kept beside the segment files: found by the next process, made anew without, gone with their rows."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import psutil
import pytest

import memcore
from memcore.store import codes, derived, directory, graphs, segment, snapshot, words
from memcore_kernels import scan

DIM, ROWS = 130, 120
RNG = np.random.default_rng(0)
VECTORS = RNG.standard_normal((3 * ROWS, DIM)) * np.linspace(3, 0.1, DIM)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Segments of a few rows have codes, kept ones, and a rotation."""
    monkeypatch.setattr(segment, "ROWS", ROWS)
    monkeypatch.setattr(segment, "LEAST_CODED", 8)
    monkeypatch.setattr(codes, "FITTED", 50)
    monkeypatch.setattr(derived, "LEAST_KEPT", 16)


def filled(path: Any, n: int = 2 * ROWS) -> memcore.Memory:
    mem = memcore.open(path, embedder=None, clock=lambda: 1.8e9)
    mem.remember_many(
        [{"content": f"row {i}", "vector": VECTORS[i], "event_time": 1.7e9 + i, "importance": 0.5} for i in range(n)]
    )
    return mem


def answers(mem: memcore.Memory) -> list[list[tuple[str, float]]]:
    return [[(hit.content, hit.total_score) for hit in mem.recall(vector=v, k=9)] for v in VECTORS[:20]]


def kept(path: Any) -> list[str]:
    return sorted(file.name for file in (path / "derived").iterdir())


def coded(mem: memcore.Memory) -> list[Any]:
    (partition,) = mem._engine.catalog.partitions.values()
    return [segment.coded for segment in partition.shown.segments]


def mapped(one: Any) -> bool:
    """Whether its arrays are a file's bytes."""
    return not one.slabs[0].flags.owndata and not one.slabs[0].flags.writeable


def test_the_next_process_finds_them(tmp_path):
    with filled(tmp_path) as mem:
        expected = answers(mem)
        mem.compact()
        assert answers(mem) == expected
        names = kept(tmp_path)
        rotation = mem._engine.catalog.coder.rotation.name
    assert len(names) == 3
    assert names[-1] == "rotation.npy"
    with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9) as mem:
        assert answers(mem) == expected
        assert mem.recall(vector=VECTORS[0]).explain()["codes_read"][0] > 0
        assert all(mapped(one) for one in coded(mem))
        assert {one.rotation.name for one in coded(mem)} == {rotation}
    assert kept(tmp_path) == names


def emptied(path: Any) -> None:
    for file in path.iterdir():
        file.unlink()


def cut(path: Any) -> None:
    for file in path.iterdir():
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def garbled(path: Any) -> None:
    for file in path.iterdir():
        file.write_bytes(b"not the codes of anything")


def turned(path: Any) -> None:
    """Another rotation than the codes are for."""
    np.save(path / "rotation.npy", np.linalg.qr(RNG.standard_normal((DIM, DIM)))[0])


def bent(path: Any) -> None:
    """A matrix that is no rotation would make results wrong."""
    np.save(path / "rotation.npy", RNG.standard_normal((DIM, DIM)))


def mixed_up(path: Any) -> None:
    """The codes of another part, of as many rows, under this one's name: what the file says of itself is of no help."""
    for file in path.glob("*.arrow"):
        data = file.read_bytes()
        file.write_bytes(data.replace(b'"rows": 120', b'"rows": 121'))


DAMAGES = {"arrow": (cut, garbled), "npy": (cut, garbled, bent)}  # that show in a file itself


@pytest.mark.parametrize("damage", [emptied, cut, garbled, turned, bent, mixed_up])
def test_without_them_all_is_as_it_was_and_they_are_made_anew(tmp_path, damage):
    with filled(tmp_path) as mem:
        mem.compact()
        expected = answers(mem)
        names = kept(tmp_path)
    damage(tmp_path / "derived")
    with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9) as mem:
        assert answers(mem) == expected
        if damage is not bent:  # a new one is fitted to the same rows, and so the same
            assert not any(mapped(one) for one in coded(mem))
        told = {problem.file for problem in mem.verify().problems}
        assert told == {f"derived/{name}" for name in names if damage in DAMAGES.get(name.split(".")[-1], ())}
        mem.compact()
        assert mem.verify().ok
        assert kept(tmp_path) == names
        assert answers(mem) == expected
        assert all(mapped(one) for one in coded(mem))
    with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9) as mem:
        assert answers(mem) == expected
        assert all(mapped(one) for one in coded(mem))


def test_a_process_that_fitted_another_rotation_takes_the_one_that_is_kept(tmp_path):
    ours = filled(tmp_path)
    opened = directory._open.pop(tmp_path.resolve())  # so that the next is another catalog, as in another process
    theirs = memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9)
    expected = answers(ours)
    assert answers(theirs) == expected
    other = codes.Rotation(np.linalg.qr(RNG.standard_normal((DIM, DIM)))[0])
    for one in theirs._engine.catalog.partitions.values():
        for part in one.shown.segments:
            part.coded = None
    theirs._engine.catalog.coder.rotation = other
    assert answers(theirs) == expected
    ours.compact()
    assert answers(theirs) == expected
    theirs.compact()
    assert answers(theirs) == expected
    assert {one.rotation.name for one in coded(theirs)} == {ours._engine.catalog.coder.rotation.name}
    theirs.close()
    directory._open[tmp_path.resolve()] = opened
    ours.close()


def test_they_go_with_their_rows(tmp_path):
    with filled(tmp_path) as mem:
        mem.compact()
        before = kept(tmp_path)
        mem.forget(where={"content": "row 3"}, erase=True)
        mem.compact()
        after = kept(tmp_path)
        assert len(after) == 3
        assert set(before) & set(after) == {"rotation.npy"}  # the two parts of one file, which was written anew
        mem.forget(everything=True, erase=True)
        (tmp_path / "derived" / ".0123456789abcdef-0.arrow.part").write_bytes(b"of a crash")
        (tmp_path / "derived" / "mine.txt").write_text("not memcore's")
        mem.compact()
        assert kept(tmp_path) == ["mine.txt", "rotation.npy"]


def test_the_background_keeps_them_too(tmp_path, monkeypatch):
    from memcore.store import maintenance

    monkeypatch.setattr(maintenance, "SEAL_ROWS", ROWS)
    monkeypatch.setattr(maintenance.Maintenance, "nudge", lambda self: None)  # its round is the one below
    with filled(tmp_path) as mem:
        mem._engine.directory.maintenance.work(0)
        assert len(kept(tmp_path)) >= 2
        stamp = {name: (tmp_path / "derived" / name).stat().st_mtime_ns for name in kept(tmp_path)}
        mem._engine.directory.maintenance.work(0)
        assert {name: (tmp_path / "derived" / name).stat().st_mtime_ns for name in kept(tmp_path)} == stamp


def test_the_codes_of_another_part_are_not_taken_for_ones_own(tmp_path):
    with filled(tmp_path) as mem:
        mem.compact()
        expected = answers(mem)
    one, other = (tmp_path / "derived" / name for name in kept(tmp_path)[:2])
    one.rename(tmp_path / "one")
    other.rename(one)
    (tmp_path / "one").rename(other)
    with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9) as mem:
        assert answers(mem) == expected
        assert not any(mapped(code) for code in coded(mem))


@pytest.mark.parametrize("bit", range(0, 8 * 128, 3))
def test_a_bit_of_the_rotation_costs_no_more_than_time(tmp_path, bit):
    derived.write_rotation(tmp_path, codes.Rotation(np.eye(4)))
    path = tmp_path / "rotation.npy"
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    found = derived.read_rotation(tmp_path, 4)
    assert found is None or np.array_equal(found.matrix, np.eye(4))


def test_what_was_derived_of_erased_rows_goes_when_sealing_drops_them(tmp_path, monkeypatch):
    from memcore.store import maintenance

    monkeypatch.setattr(maintenance, "SEAL_ROWS", ROWS)
    monkeypatch.setattr(maintenance.Maintenance, "nudge", lambda self: None)
    monkeypatch.setattr(graphs, "LEAST_ROWS", ROWS)
    with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9, index="faiss") as mem:
        mem.remember_many([{"content": f"row {i}", "vector": VECTORS[i]} for i in range(2 * ROWS)])
        mem.compact()
        before = set(kept(tmp_path))
        assert any(name.endswith(".faiss") for name in before)
        (erased,) = mem.list(limit=1)
        (partition,) = mem._engine.catalog.partitions.values()
        (its,) = [segment for segment in partition.shown.segments if segment.row_of(erased.seq) is not None]
        gone = {name for name in before if name.endswith((".faiss", ".faiss.json"))} | {derived.name_of(its.source)}
        assert len(gone) == 3
        assert gone <= before
        mem.forget(erased, erase=True)
        mem.remember_many([{"content": f"more {i}", "vector": VECTORS[i]} for i in range(2 * ROWS)])
        work = mem._engine.directory.maintenance
        work.work(1_800_000_000_000_000)
        if work._grapher is not None:
            work._grapher.join()
        assert not gone & set(kept(tmp_path))


def test_small_parts_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(derived, "LEAST_KEPT", 1000)
    with filled(tmp_path) as mem:
        mem.compact()
        assert answers(mem)
        assert not (tmp_path / "derived").exists()


def test_many_threads_find_the_codes_at_once(tmp_path):
    with filled(tmp_path) as mem:
        mem.compact()
        expected = answers(mem)
    with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9) as mem:
        found: list[Any] = []
        threads = [threading.Thread(target=lambda: found.append(answers(mem))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [expected] * 6


# Vectors that are read one by one


@pytest.fixture
def one_by_one(monkeypatch):
    monkeypatch.setattr(snapshot, "MAPPED", 1)


def test_rows_that_are_read_from_their_file_answer_the_same(tmp_path, one_by_one):
    with filled(tmp_path) as mem:
        expected = answers(mem)
        batch = [hits.ids for hits in mem.recall_many(vectors=VECTORS[:20], k=9)]
        mem.compact()
    with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9) as mem:
        assert answers(mem) == expected
        assert [hits.ids for hits in mem.recall_many(vectors=VECTORS[:20], k=9)] == batch
        (seen,) = [p.seen[1] for p in mem._engine.catalog.partitions.values()]
        assert seen.row_by_row
        (masks,) = seen._masks.values()
        assert (masks.scanned.parts[:, scan.FILE] > 0).all()
        assert [part.vector(3).tolist() for part in seen.parts] == [
            part.columns["vector"][3].tolist() for part in seen.parts
        ]


def test_a_file_that_lies_in_the_place_of_ours_is_not_read(tmp_path, one_by_one):
    with filled(tmp_path) as mem:
        mem.compact()
    with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9) as mem:
        mem.list(limit=1)  # maps the files
        for file in (tmp_path / "segments").iterdir():
            file.rename(tmp_path / "ours")
            file.write_bytes(b"x" * 10)
        (partition,) = mem._engine.catalog.partitions.values()
        assert [one.place()[0] for one in partition.segments] == [-1, -1]
        assert len(mem.recall(vector=VECTORS[0], k=9)) == 9


def test_descriptors_are_closed_with_the_store(tmp_path, one_by_one):
    def open_files() -> int:
        return sum(file.path.endswith(".arrow") for file in psutil.Process().open_files())

    with filled(tmp_path) as mem:
        mem.compact()
    with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9) as mem:
        answers(mem)
        assert open_files() > 0
    gc.collect()
    assert open_files() == 0


def test_threads_that_ask_at_once_make_them_once(monkeypatch):
    made: list[int] = []
    fitted = codes.fitted
    monkeypatch.setattr(codes, "fitted", lambda vectors: made.append(len(vectors)) or fitted(vectors))
    extend = codes.Codes.extend

    def counted(self: Any, columns: Any, upto: int) -> None:
        made.append(-upto)
        extend(self, columns, upto)

    monkeypatch.setattr(codes.Codes, "extend", counted)
    with filled(None) as mem:
        ready = threading.Barrier(8)

        def ask() -> None:
            ready.wait(60)
            mem.recall(vector=VECTORS[0], k=9)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(made) == [-ROWS, -ROWS, ROWS]


# Postings


def by_words(mem: memcore.Memory) -> list[list[tuple[str, float]]]:
    queries = ("row 7", "row", "12 of them")
    return [[(hit.content, hit.lexical) for hit in mem.recall(query, relevance="lexical", k=9)] for query in queries]


def words_kept(path: Any) -> list[str]:
    return [name for name in kept(path) if name.endswith(".words.arrow")]


def test_postings_that_were_made_are_kept_for_the_next_process(tmp_path, monkeypatch):
    with filled(tmp_path) as mem:
        mem.compact()
        assert words_kept(tmp_path) == []  # nobody has asked for words
    with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9) as mem:
        expected = by_words(mem)
    assert len(words_kept(tmp_path)) == 2
    made: list[int] = []
    terms = words.terms
    monkeypatch.setattr(words, "terms", lambda text: made.append(1) or terms(text))
    with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9) as mem:
        assert by_words(mem) == expected
        assert made == []
        assert mem.verify().ok
        mem.remember("row 1000 of them")
        assert by_words(mem) != expected
        assert len(made) == 1


def test_compact_makes_them_where_words_have_been_asked_for(tmp_path):
    with filled(tmp_path, 2 * ROWS) as mem:
        by_words(mem)
        mem.compact()
        first = words_kept(tmp_path)
        assert len(first) == 2
        mem.forget(where={"content": "row 7"}, erase=True)
        mem.compact()
        assert words_kept(tmp_path) != first
        assert len(words_kept(tmp_path)) == 2
        assert not any(content == "row 7" for found in by_words(mem) for content, _ in found)


@pytest.mark.parametrize(
    "harm", ["cut", "gone", "other rows", "another reading", "starts that fall", "rows elsewhere", "garbage"]
)
def test_postings_that_do_not_fit_count_as_not_there(tmp_path, harm):
    with filled(tmp_path) as mem:
        expected = by_words(mem)
        mem.compact()
        assert by_words(mem) == expected
    path = tmp_path / "derived" / words_kept(tmp_path)[0]
    about, cells = derived._opened(path)
    arrays = {name: cells[name].view(dtype).copy() for name, dtype in derived._POSTINGS.items()}
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:100])
    elif harm == "gone":
        path.unlink()
    elif harm == "garbage":
        path.write_bytes(b"x" * 1_000)
    else:
        if harm == "other rows":
            about["rows"] += 1
        elif harm == "another reading":
            about["format"] = derived.READING + 1
        elif harm == "starts that fall":
            arrays["starts"][1] = 1 << 40
        else:
            arrays["rows"][:] = -5
        derived._write(path, about, arrays)
    with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9) as mem:
        found = by_words(mem)
        assert found == expected or harm == "rows elsewhere"  # which no kernel reads behind
    if harm in ("cut", "garbage"):
        with memcore.open(tmp_path, embedder=None, clock=lambda: 1.8e9) as mem:
            assert by_words(mem) == expected


def test_a_damaged_file_of_postings_is_told(tmp_path):
    with filled(tmp_path) as mem:
        by_words(mem)
        mem.compact()
    path = tmp_path / "derived" / words_kept(tmp_path)[0]
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    assert derived.damaged_in(tmp_path / "derived") == [path]

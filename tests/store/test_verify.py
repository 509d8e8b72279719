"""verify and repair: every flipped bit is detected or harmless; what is whole goes on; what is lost is told."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import memcore
from memcore.errors import FormatTooNew, StoreCorrupt, StoreError, StoreLocked
from memcore.store import journal, pages
from memcore.store import segment as segments

CATALOG = "catalog.sqlite"
HEADER = 100  # bytes of a database before its first page


def fill(mem: memcore.Memory, rounds: int = 3) -> None:
    """Two scopes with two sessions each: versions, forgotten rows, counters, links, working memories, accents. The rows
    of all rounds but the last lie in a file each.
    """
    rng = np.random.default_rng(1)
    for number in range(rounds):
        for tenant in ("acme", "ação"):
            for session in ("s1", "s2"):
                ops = mem.scope(tenant, session_id=session)
                ids = ops.remember_many(
                    {
                        "content": f"{number} {session} {i} é" + "x" * int(rng.integers(0, 60)),
                        "vector": rng.standard_normal(8),
                        "kind": "semantic" if i % 2 else "episodic",
                        "key": f"{session} k{i % 4}" if i % 3 else None,
                        "metadata": {"i": i},
                        "importance": i / 16,
                        "idempotency_key": f"{number} {i}",
                    }
                    for i in range(16)
                )
                ops.forget(ids[2:4])
                ops.get(ids[10])
                ops.update(ids[12], content="ação nova", vector=rng.standard_normal(8))
                ops.link(ids[10], "caused_by", ids[12], attributes={"why": "é"})
                ops.working().add("user", f"hello {number}")
        if number < rounds - 1:
            mem._engine.directory.maintenance._seal(frozenset())
    mem._engine.commits.flush_counts()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store that nobody has open."""
    path = tmp_path_factory.mktemp("whole") / "ação é.mem"
    with memcore.open(path, embedder=None) as mem:
        fill(mem)
    return path


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A store as a killed process leaves it: the last commits are in the WAL."""
    path = tmp_path_factory.mktemp("live") / "agent.mem"
    with memcore.open(path, embedder=None) as mem:
        fill(mem)
        copy = path.with_name("killed.mem")
        shutil.copytree(path, copy)
    return copy


@pytest.fixture
def store(whole, tmp_path):
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "copy.mem"))


def told(path: Path) -> tuple[list[str], list[tuple[str, int]]]:
    """All rows of a store, and what could be restored."""
    with memcore.open(path, embedder=None) as mem:
        rows = [
            json.dumps([*scope, record.id, record.version, record.content, record.metadata, record.importance,
                        str(record.event_time), record.session_id, record.kind, record.key, record.access_count,
                        [] if record.vector is None else record.vector.tolist(),
                        f"superseded {record.superseded_at}"])
            for scope in mem.scopes()
            for memory in dict.fromkeys(record.id for record in versions(mem, scope))
            for record in mem.scope(*scope).history(id=memory)
        ]  # fmt: skip
        gone = [(record.id, record.version) for scope in mem.scopes() for record in mem.scope(*scope).forgotten()]
        return sorted(rows), sorted(gone)


def versions(mem: memcore.Memory, scope: tuple[str, str]) -> list[Any]:
    snapshot = mem._engine.catalog.snapshot(scope)
    return list(memcore.Records(snapshot.table(np.arange(snapshot.rows()))))


def rows_of(path: Path, table: str = "rows") -> int:
    connection = sqlite3.connect(path / CATALOG)
    try:
        return connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    finally:
        connection.close()


def change(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path / CATALOG, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def segment_of(path: Path) -> Path:
    return sorted((path / "segments").glob("*.arrow"))[0]


def goes_on(path: Path) -> None:
    """A store that works: it takes a row, compacts, and is clean."""
    with memcore.open(path, embedder=None) as mem:
        ops = mem.scope("acme")
        record = ops.remember("afterwards", vector=np.ones(8))
        mem.compact()
        assert ops.get(record.id).content == "afterwards"
        assert ops.recall(vector=np.ones(8), k=1)[0].id == record.id
        assert mem.verify().ok
    assert memcore.verify(path).ok


# What is whole


def test_a_whole_store_is_ok_and_everything_was_looked_at(whole):
    report = memcore.verify(whole)
    assert report.ok
    assert report.problems == []
    checked = report.checked
    assert (checked["files"], checked["parts"], checked["scopes"]) == (2, 4, 2)
    assert checked["file_rows"] + checked["journal_rows"] == checked["rows"] == 12 * 18
    assert (checked["forgotten"], checked["forgettings"], checked["links"], checked["counters"]) == (24, 12, 12, 12)


def test_an_open_store_is_verified_beside_its_readers_and_writers(tmp_path):
    with memcore.open(tmp_path / "m", embedder=None) as mem:
        fill(mem)
        assert mem.verify().ok
        assert memcore.verify(tmp_path / "m").ok  # the one that is open
        mem.remember("goes on", vector=np.ones(8))
        mem.compact()
        report = mem.verify()
        assert (report.ok, report.checked["forgotten"], report.checked["free_pages"]) == (True, 0, 0)
        assert report.path == str(tmp_path / "m")


def test_a_store_as_a_killed_process_leaves_it_is_ok(live):
    report = memcore.verify(live)
    assert report.ok
    assert report.checked["rows"] == 12 * 18


def test_what_a_crash_leaves_is_no_problem(store):
    (store / "segments" / "0123456789abcdef.arrow").write_bytes(b"half")
    (store / "segments" / ".0123456789abcdea.arrow.part").write_bytes(b"half")
    (store / "mine.txt").write_text("mine")
    report = memcore.verify(store)
    assert report.ok
    assert report.notes == [
        (
            "nothing names segments/.0123456789abcdea.arrow.part, segments/0123456789abcdef.arrow: a crash has left "
            "them, and the next maintenance removes them"
        ),
        "not memcore's: mine.txt",
    ]


@pytest.fixture
def put_back(tmp_path):
    """A store over whose newer files an older catalog was put: one of segments with two new rows, one of the cold tier
    with one.
    """
    path = tmp_path / "put back é"
    with memcore.open(path, embedder=None) as mem:
        mem.remember("an old row")
        mem.compact()
    older = (path / CATALOG).read_bytes()
    before = set(files_of(path))
    with memcore.open(path, embedder=None) as mem:
        mem.remember_many(["a new row", "another new row"])
        mem.remember("a new row that has faded", importance=0.1, event_time=1)
        assert mem.prune().count == 1
        mem.compact()
    newer = (path / CATALOG).read_bytes()
    (path / CATALOG).write_bytes(older)
    cold, segment = sorted(name for name in set(files_of(path)) - before if not name.startswith("aside"))
    return path, segment, cold, newer


def files_of(path: Path) -> list[str]:
    return sorted(
        file.relative_to(path).as_posix() for file in path.rglob("*") if file.suffix in (".arrow", ".parquet")
    )


def test_files_that_are_newer_than_a_catalog_that_was_put_back_are_never_deleted(put_back):
    path, segment, cold, newer = put_back
    asks = "put the one back that was written with it; a repair puts it aside, and goes on without these rows"
    wanted = [
        f"{segment}: holds 2 rows later than the catalog: an older catalog was put back?; {asks}",
        f"{cold}: holds 1 row later than the catalog: an older catalog was put back?; {asks}",
    ]
    assert list(map(str, memcore.verify(path).problems)) == wanted
    with memcore.open(path, embedder=None) as mem:
        assert [record.content for record in mem.list()] == ["an old row"]
        mem.compact()
        assert list(map(str, mem.verify().problems)) == wanted
    (path / CATALOG).write_bytes(newer)
    assert memcore.verify(path).ok
    with memcore.open(path, embedder=None) as mem:
        assert len(mem.list(tiers=("hot", "cold"))) == 4


def test_they_are_kept_also_when_the_older_catalog_has_gone_on(put_back):
    """What was written since has the same seqs."""
    path, segment, cold, _ = put_back
    with memcore.open(path, embedder=None) as mem:
        mem.remember_many([f"written since {i}" for i in range(10)])
        mem.compact()
        mem.forget(mem.list()[:2])
        mem.compact()
        assert {segment, cold} <= set(files_of(path))
        assert [str(problem).partition(" row")[0] for problem in mem.verify().problems] == [
            f"{segment}: holds 2",
            f"{cold}: holds 1",
        ]
    fixed = memcore.verify(path, repair=True)
    assert (fixed.ok, fixed.repair.lost) == (True, {"later_rows": 3})
    assert memcore.verify(path).checked["rows"] == 9


def test_a_repair_puts_files_aside_that_are_newer_than_the_catalog(put_back):
    path, segment, cold, _ = put_back
    held = [(path / name).read_bytes() for name in (segment, cold)]
    fixed = memcore.verify(path, repair=True)
    assert (fixed.ok, fixed.repair.lossless, fixed.repair.lost) == (True, False, {"later_rows": 3})
    assert {segment, cold} <= set(fixed.repair.moved)
    assert [(path / fixed.repair.aside / name).read_bytes() for name in (segment, cold)] == held
    assert (
        f"{segment} holds 2 rows later than the catalog: if an older catalog was put back, they are in no other file "
        f"than that in {fixed.repair.aside}"
    ) in fixed.repair.notes
    assert not {segment, cold} & set(files_of(path))
    with memcore.open(path, embedder=None) as mem:
        assert [record.content for record in mem.list()] == ["an old row"]
        assert mem.import_(path / fixed.repair.aside / cold).new == 1


def test_files_that_are_not_memcores_stay(store):
    mine = [
        store / "segments" / "mine.arrow",
        store / "segments" / "mine.arrow.part",
        store / "segments" / "0123456789ABCDEF.arrow",
        store / "cold" / "mine.parquet",
        store / "cold" / "tenant=acme" / "month=2026-03" / "mine.parquet",
        store / "cold" / ".0123.parquet.part",
        store / "mine.part",
    ]
    left = [
        store / "segments" / "0123456789abcdef.arrow",
        store / "segments" / ".0123456789abcdef.arrow.part",
        store / "cold" / "tenant=acme" / "month=2026-03" / "0123456789abcdef.parquet",
        store / "cold" / ".0123456789abcdef.parquet.part",
    ]
    for file in (*mine, *left):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"half")
    report = memcore.verify(store)
    assert report.ok
    assert [note.partition(" ")[0] for note in report.notes] == ["nothing", "not"]
    assert " and 1 more: a crash has left them" in report.notes[0]
    assert report.notes[1].endswith(" and 4 more")
    with memcore.open(store, embedder=None) as mem:
        mem.compact()
    assert [file for file in left if file.exists()] == []
    (store / "segments" / "0123456789abcdef.arrow").write_bytes(b"half")
    change(store, "UPDATE parts SET rows = rows - 1")
    assert memcore.verify(store, repair=True).ok
    (store / CATALOG).unlink()
    assert memcore.verify(store, repair=True).ok
    assert [file.read_bytes() for file in mine if file.exists()] == [b"half"] * len(mine)


def test_a_store_in_ram_is_checked_too():
    mem = memcore.open(embedder=None)
    first = mem.remember("A", kind="semantic", key="k")
    mem.remember("B", kind="semantic", key="k")
    chat = mem.working()
    for i in range(30):
        chat.add("user", str(i))
    mem.forget(mem.remember("C").id)
    report = mem.verify()
    assert (report.ok, report.path) == (True, None)
    assert report.checked == {"rows": 33, "scopes": 1, "forgotten": 1}
    (partition,) = mem._engine.catalog.partitions.values()
    partition.segments[0].set("superseded_seq", 0, 0)
    assert [str(problem) for problem in mem.verify().problems] == [
        f"scope ('default', 'default'): 1 rows {what}, of {first.id}; export what is here, and import it into another "
        "store"
        for what in ("stand although their memory has a later version", "stand under the key of another one")
    ]


@pytest.mark.parametrize("repair", [False, True])
def test_what_is_no_store_is_an_error(tmp_path, repair):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for name, why in (
        ("none", "is no store: No such file or directory; pass the directory of one"),
        ("file", "is no store: Not a directory; pass the directory of one"),
        ("empty", "is no store: there is no catalog.sqlite in it; pass the directory of one"),
        ("loop", "leads from link to link in a circle; a store is a directory: pass another path"),
    ):
        with pytest.raises(StoreError) as raised:
            memcore.verify(tmp_path / name, repair=repair)
        assert str(raised.value) == f"{tmp_path / name} {why}"
    assert not (tmp_path / "none").exists()


def test_a_newer_format_is_refused_and_left_alone(store):
    change(store, "UPDATE state SET format = 3")
    before = (store / CATALOG).read_bytes()
    for repair in (False, True):
        with pytest.raises(FormatTooNew, match="is in format 3 and this memcore reads up to format 2; upgrade"):
            memcore.verify(store, repair=repair)
    assert (store / CATALOG).read_bytes() == before


# Flipped bits


def flips(path: Path, name: str, seed: int, n: int) -> list[tuple[int, int]]:
    """Places in a file and bits of them, none of an empty file. Names of segments are random, so they don't count."""
    rng, size = random.Random(f"{Path(name).suffix} {seed}"), (path / name).stat().st_size
    return [(rng.randrange(size), 1 << rng.randrange(8)) for _ in range(n if size else 0)]


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def names_of(path: Path) -> list[str]:
    kept = (p for p in path.rglob("*") if p.is_file() and p.suffix not in (".sqlite-shm", ".sqlite-wal"))
    return sorted(p.relative_to(path).as_posix() for p in kept)


@pytest.mark.parametrize("seed", range(4))
def test_every_flipped_bit_is_detected_or_harmless(whole, tmp_path, seed):
    """Also that what is detected can be repaired: the rows that are left are as they were."""
    wanted = told(Path(shutil.copytree(whole, tmp_path / "as it was")))
    detected = 0
    for name in names_of(whole):
        for at, bit in flips(whole, name, seed, 12):
            copy = tmp_path / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(whole, copy)
            flip(copy / name, at, bit)
            if memcore.verify(copy).ok:
                assert name == CATALOG, (name, at)  # a byte that no row uses
                assert told(copy) == wanted, (name, at)
                continue
            detected += 1
            report = memcore.verify(copy, repair=True)
            assert report.ok, (name, at, report.problems)
            rows, gone = told(copy)
            known = wanted[0]
            if name != CATALOG:  # no checksum of a row covers when it was replaced
                known, rows = ([row[: row.index('"superseded')] for row in some] for some in (known, rows))
            changed = set(rows) - set(known)
            assert len(changed) <= len(report.repair.fell_back) + len(report.repair.at_risk), (name, at, changed)
            lost = report.repair.lost
            missing = len(wanted[0]) + len(wanted[1]) - len(rows) - len(gone)
            assert missing <= lost.get("rows", 0) + lost.get("rows_at_most", 0), (name, at)
    assert detected > 12


@pytest.mark.parametrize("seed", range(3))
def test_a_flipped_bit_in_the_wal_never_loses_a_commit_silently(live, tmp_path, seed):
    """SQLite takes a frame that is not whole for the end of the WAL, and would write over what is behind it."""
    name = f"{CATALOG}-wal"
    for at, bit in flips(live, name, seed, 12):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(live, copy)
        flip(copy / name, at, bit)
        before = (copy / name).read_bytes()
        report = memcore.verify(copy)
        assert [problem.file for problem in report.problems] == [name], at
        assert (copy / name).read_bytes() == before
        fixed = memcore.verify(copy, repair=True)
        assert fixed.ok
        assert (copy / fixed.repair.aside / name).read_bytes() == before
        lost = fixed.repair.lost.get("rows", 0) + fixed.repair.lost.get("rows_at_most", 0)
        told = any(note.startswith("how many rows of the journal are lost is not known") for note in fixed.repair.notes)
        assert fixed.checked["rows"] >= 12 * 18 - lost or told
        assert fixed.checked["rows"] >= 8 * 18
        goes_on(copy)


def test_a_damaged_wal_is_refused_when_the_store_is_opened(live, tmp_path):
    copy = Path(shutil.copytree(live, tmp_path / "copy"))
    flip(copy / f"{CATALOG}-wal", 32 + 24 + 100, 1)  # in the page of the first frame
    before = (copy / f"{CATALOG}-wal").read_bytes()
    with pytest.raises(StoreCorrupt) as raised:
        memcore.open(copy, embedder=None)
    assert str(raised.value).startswith(f"{copy / CATALOG}-wal is damaged: frame 1 of ")
    assert str(raised.value).endswith(
        "is not as it was written; nothing was changed. Run memcore verify --repair to go on with what is whole, or "
        "restore the store from an export"
    )
    assert (copy / f"{CATALOG}-wal").read_bytes() == before


def test_a_frame_of_the_wal_that_calls_itself_a_page_of_no_store(live, tmp_path):
    """Its number may be any up to 2³², and that many pages are not looked for."""
    store = tmp_path / "store"
    shutil.copytree(live, store)
    wal = store / f"{CATALOG}-wal"
    dump = bytearray(wal.read_bytes())
    frames = (len(dump) - 32) // (24 + 4096)
    at = 32 + frames // 2 * (24 + 4096)
    dump[at : at + 4] = b"\xff\xff\xff\xfe"
    wal.write_bytes(dump)
    (store / f"{CATALOG}-shm").unlink(missing_ok=True)
    image = pages.Image(store / CATALOG)
    assert image.uncertain
    assert len(list(image.orphans())) > 0  # nothing was walked, so all rows of tables
    report = memcore.verify(store, repair=True)
    assert report.ok
    assert report.found
    with memcore.open(store, embedder=None) as mem:
        assert mem.scopes()


def test_a_torn_end_of_the_wal_is_no_damage(live, tmp_path):
    """A process that is killed in a commit leaves frames without an end; they were never acknowledged."""
    copy = Path(shutil.copytree(live, tmp_path / "copy"))
    wal = copy / f"{CATALOG}-wal"
    frame = wal.read_bytes()[-4120:]
    with wal.open("ab") as file:
        file.write(frame[:2000])
    assert memcore.verify(copy).ok
    with wal.open("ab") as file:
        file.write(frame[2000:])
    assert memcore.verify(copy).ok
    goes_on(copy)


# What does not fit


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE rows SET importance = 0.7 WHERE seq = (SELECT max(seq) FROM rows)", "1 row of the journal are not as"),
        ("UPDATE rows SET content = 'x' WHERE seq = (SELECT max(seq) FROM rows)", "1 row of the journal are not as"),
        (
            "UPDATE rows SET scope = 3 - scope WHERE seq = (SELECT max(seq) FROM rows)",
            "1 row of the journal are not as",
        ),
        ("DELETE FROM marks WHERE superseded_seq > 0 AND lapsed = 0", "rows stand although their memory has a later"),
        (
            "UPDATE marks SET superseded_at = superseded_at + 1000000 WHERE forgotten_seq = 0",
            "rows are said to have stood beside their next version, of ",
        ),
        ("UPDATE marks SET superseded_seq = seq + 1 WHERE forgotten_seq = 0", None),
        ("UPDATE marks SET scope = 3 - scope", "name another scope than the row's; a repair takes it from the rows"),
        ("DELETE FROM forgettings", "rows are forgotten by a commit that is not told; a repair tells of it"),
        ("UPDATE marks SET changed = 1000", "marks are of a later commit than their own, or than the last; a repair"),
        ("UPDATE state SET sealed_upto = 3", "up to which rows are said to lie in files; a repair takes it from the"),
        ("UPDATE parts SET first_seq = first_seq + 1", "tells wrongly of segments/"),
        ("UPDATE parts SET rows = rows - 1", "how many rows they are; a repair takes it from the file"),
        ("UPDATE parts SET scope = 3 - scope", "whose rows they are; a repair takes it from the file"),
        ("UPDATE parts SET about = replace(about, '\"kinds\":[0,', '\"kinds\":[')", "what need not be read; a repair"),
        ("UPDATE segments SET rows = rows + 1", "rows of segments/"),
        ("UPDATE segments SET crc = crc + 1", "its CRC-32 is not the catalog's; 72 of 72 rows are whole; a repair"),
        ("DELETE FROM parts", "does not tell of 36 rows of segments/"),
        ("UPDATE names SET code = code + 100 WHERE code = 2", "72 rows refer to what is not there: rows to names"),
        ("INSERT INTO names VALUES (1000, 'x')", "the codes of names are not 0 and up; a repair takes them from"),
        ("UPDATE links SET attributes = 'x'", "12 links are not as they were written: seq "),
        ("DROP INDEX marks_of_scope", "its schema is not that of a store: marks_of_scope; a repair builds it anew"),
        ("DELETE FROM scopes WHERE id = 2", "rows refer to what is not there: "),
    ],
)
def test_what_does_not_fit_is_told_and_repaired(store, statement, message):
    change(store, statement)
    report = memcore.verify(store)
    if message is None:
        assert report.ok
        return
    assert not report.ok
    assert any(message in str(problem) for problem in report.problems), report.problems
    before = (store / CATALOG).read_bytes()
    fixed = memcore.verify(store, repair=True)
    assert fixed.ok, fixed.problems
    assert fixed.found == report.problems
    assert (store / fixed.repair.aside / CATALOG).read_bytes() == before
    assert fixed.checked["rows"] == report.checked.get("rows", 0) or fixed.checked["rows"] >= 12 * 18 - 1
    goes_on(store)


def test_superseded_marks_follow_from_the_versions(store, whole, tmp_path):
    """Which rows stand is as before, and nothing is seen twice."""
    wanted = told(Path(shutil.copytree(whole, tmp_path / "as it was")))
    change(store, "DELETE FROM marks WHERE superseded_seq > 0 AND lapsed = 0 AND forgotten_seq = 0")
    fixed = memcore.verify(store, repair=True)
    assert fixed.ok
    assert fixed.repair.rebuilt["marks"] > 0
    assert told(store)[0] == wanted[0]


def test_times_of_versions_that_overlap_are_mended(store, whole, tmp_path):
    wanted = told(Path(shutil.copytree(whole, tmp_path / "as it was")))
    change(store, "UPDATE marks SET superseded_at = superseded_at + 1000000 WHERE lapsed = 0 AND forgotten_seq = 0")
    assert told(store) != wanted
    assert memcore.verify(store, repair=True).ok
    assert told(store) == wanted


# Damage


def damaged(path: Path, at: int, data: bytes) -> bytes:
    """Writes over a part of a file; what it is then."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
    return path.read_bytes()


def without_segments(path: Path) -> None:
    for file in (path / "segments").iterdir():
        file.unlink()


def test_case_E5_a_page_of_zeros_in_the_middle_of_the_catalog(store):
    catalog = store / CATALOG
    for middle in range(0, catalog.stat().st_size, 4096):
        copy = store.with_name("copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(store, copy)
        bad = damaged(copy / CATALOG, middle, bytes(4096))
        report = memcore.verify(copy)
        assert not report.ok, middle
        assert report.problems[0].file == CATALOG
        fixed = memcore.verify(copy, repair=True)
        assert fixed.ok, (middle, fixed.problems)
        assert (copy / fixed.repair.aside / CATALOG).read_bytes() == bad
        lost = fixed.repair.lost
        assert fixed.checked["rows"] >= 12 * 18 - lost.get("rows", 0) - lost.get("rows_at_most", 0), middle
        assert fixed.checked["rows"] >= 8 * 18
        assert json.loads((copy / fixed.repair.aside / "report.json").read_text(encoding="utf-8"))["lost"] == lost
        with memcore.open(copy, embedder=None) as mem:
            assert len(mem.scope("acme").list()) > 0
    goes_on(copy)


def test_case_E5_the_first_100_bytes_of_the_catalog_are_replaced(store, whole, tmp_path):
    wanted = told(Path(shutil.copytree(whole, tmp_path / "as it was")))
    bad = damaged(store / CATALOG, 0, b"x" * HEADER)
    with pytest.raises(StoreCorrupt):
        memcore.open(store, embedder=None)
    report = memcore.verify(store)
    assert [problem.file for problem in report.problems] == [CATALOG]
    assert str(report.problems[0]) == (
        f"{CATALOG}: cannot be read: file is not a database; a repair takes from its pages what is whole"
    )
    fixed = memcore.verify(store, repair=True)
    assert fixed.ok
    assert (store / fixed.repair.aside / CATALOG).read_bytes() == bad
    assert (fixed.repair.lost, fixed.repair.at_risk, fixed.repair.fell_back) == ({}, [], [])
    assert told(store) == wanted  # all of it
    goes_on(store)


@pytest.mark.parametrize("damage", ["missing", "empty"])
def test_case_E5_without_the_catalog_what_the_segments_hold_goes_on(store, damage):
    with sqlite3.connect(store / CATALOG) as connection:
        (last,) = connection.execute("SELECT max(last_seq) FROM parts").fetchone()
    connection.close()
    (store / CATALOG).unlink()
    if damage == "empty":
        (store / CATALOG).touch()
    with pytest.raises(StoreCorrupt):
        memcore.open(store, embedder=None)
    assert str(memcore.verify(store).problems[0]) == (
        f"{CATALOG}: is {damage}; a repair builds it anew from what the segments hold; put a copy back, if there is one"
    )
    fixed = memcore.verify(store, repair=True)
    assert fixed.ok
    assert fixed.checked["rows"] == fixed.repair.kept["rows"] == 8 * 18
    assert fixed.repair.rebuilt["names"] == 4
    assert (
        f"how many rows of the journal are lost is not known: nothing that is left tells of rows behind seq {last}, up "
        "to which they lie in files"
    ) in fixed.repair.notes
    with memcore.open(store, embedder=None) as mem:
        assert mem.scopes() == [("acme", "default"), ("ação", "default")]
        record = mem.scope("ação", session_id="s2").list(where={"metadata.i": 13})[-1]
        assert (record.session_id, record.agent_role, record.kind) == ("s2", "default", "semantic")
    goes_on(store)
    assert any(note.startswith("the embedder's fingerprint is lost: open the") for note in fixed.repair.notes)


def test_case_E5_a_repair_that_would_keep_nothing_is_refused(store):
    without_segments(store)
    damaged(store / CATALOG, 0, bytes((store / CATALOG).stat().st_size))
    before = (store / CATALOG).read_bytes()
    with pytest.raises(StoreCorrupt) as raised:
        memcore.verify(store, repair=True)
    assert str(raised.value) == (
        f"no row of the store {store} is whole, in no file of it; nothing was changed: restore it from an export, or "
        "put back files that were lost"
    )
    assert (store / CATALOG).read_bytes() == before
    assert names_of(store) == [CATALOG, "maintenance.lock"]


def test_a_missing_segment_is_given_up_and_the_rest_goes_on(store):
    path = segment_of(store)
    path.unlink()
    name = f"segments/{path.name}"
    report = memcore.verify(store)
    assert str(report.problems[0]) == (
        f"{name}: cannot be read (No such file or directory), and the catalog names 72 rows in it; put it back; a "
        "repair goes on without it"
    )
    fixed = memcore.verify(store, repair=True)
    assert fixed.ok
    assert fixed.repair.lost == {"files": 1, "rows": 72}
    assert f"{name} is missing, with 72 rows whose ids are not known" in fixed.repair.notes
    assert fixed.checked["rows"] == 8 * 18
    goes_on(store)


@pytest.mark.parametrize("left", [0, 1, 1000, 20_000])
def test_a_cut_segment_is_put_aside(store, left):
    path = segment_of(store)
    path.write_bytes(path.read_bytes()[:left])
    fixed = memcore.verify(store, repair=True)
    assert fixed.ok
    assert fixed.repair.lost["rows"] <= 72
    assert fixed.checked["rows"] >= 8 * 18
    assert (store / fixed.repair.aside / "segments" / path.name).stat().st_size == left
    assert not path.exists()
    goes_on(store)


def test_rows_of_a_damaged_segment_that_are_whole_are_kept(store, whole, tmp_path):
    """One row is not as it was written; all others are, with what was replaced and forgotten."""
    wanted = told(Path(shutil.copytree(whole, tmp_path / "as it was")))
    path = segment_of(store)
    damaged(path, path.read_bytes().index(" s1 5 é".encode()), b"_")
    report = memcore.verify(store)
    assert str(report.problems[0]) == (
        f"segments/{path.name}: its CRC-32 is not the catalog's; 71 of 72 rows are whole; a repair takes the rows that "
        "are whole into a new file"
    )
    fixed = memcore.verify(store, repair=True)
    assert fixed.ok
    assert fixed.repair.lost == {"rows": 1}
    (lost,) = fixed.repair.lost_ids
    rows, gone = told(store)
    assert [json.loads(row)[2] for row in wanted[0] if row not in rows] == [lost]
    assert set(rows) <= set(wanted[0])
    assert gone == wanted[1]
    goes_on(store)


def test_a_lost_version_lets_the_one_before_it_stand(tmp_path):
    with memcore.open(tmp_path / "m", embedder=None) as mem:
        first = mem.remember("old", kind="semantic", key="k")
        mem.remember("new", kind="semantic", key="k")
    change(tmp_path / "m", "UPDATE rows SET content = 'x' WHERE content = 'new'")
    fixed = memcore.verify(tmp_path / "m", repair=True)
    assert fixed.ok
    assert (fixed.repair.fell_back, fixed.repair.lost_ids) == ([first.id], [first.id])
    with memcore.open(tmp_path / "m", embedder=None) as mem:
        assert mem.get(key="k").content == "old"


def test_marks_that_are_lost_tell_which_memories_may_be_back(tmp_path):
    path = tmp_path / "m"
    with memcore.open(path, embedder=None) as mem:
        ids = mem.remember_many([f"row {i}" for i in range(20)])
        mem.forget(ids[5])
    connection = sqlite3.connect(path / CATALOG)
    (root,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'marks'").fetchone()
    connection.close()
    damaged(path / CATALOG, 4096 * (root - 1), bytes(4096))
    fixed = memcore.verify(path, repair=True)
    assert fixed.ok
    assert fixed.repair.at_risk == [ids[5]]  # an index tells which rows had marks
    assert "marks are lost: 1 memories may be here although they were forgotten" in fixed.repair.notes
    with memcore.open(path, embedder=None) as mem:
        assert len(mem.list()) == 20


def test_a_scope_is_told_by_its_rows(store):
    """The table of scopes is lost: a row of the journal is given to the scope by whose name its CRC fits."""
    connection = sqlite3.connect(store / CATALOG)
    (root,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'scopes'").fetchone()
    connection.close()
    damaged(store / CATALOG, 4096 * (root - 1), bytes(4096))
    fixed = memcore.verify(store, repair=True)
    assert fixed.ok
    assert fixed.checked["rows"] == 12 * 18
    with memcore.open(store, embedder=None) as mem:
        assert mem.scopes() == [("acme", "default"), ("ação", "default")]
        assert {len(mem.scope(name).list(where={"metadata.i": 10})) for name in ("acme", "ação")} == {6}


def test_a_file_that_a_newer_one_replaced_does_not_bring_back_what_was_forgotten(tmp_path):
    """The catalog is lost, and a file lies there that compaction had replaced, with a row that is gone."""
    path = tmp_path / "m"
    with memcore.open(path, embedder=None) as mem:
        ids = mem.remember_many([f"row {i}" for i in range(10)])
        mem.compact()
        old = segment_of(path)
        data = old.read_bytes()
        mem.forget(ids[3], erase=True)
        mem.compact()
        new = segment_of(path)
    old.write_bytes(data)
    import os

    os.utime(old, (1, 1))
    (path / CATALOG).unlink()
    fixed = memcore.verify(path, repair=True)
    assert fixed.ok
    assert new.exists()
    assert fixed.repair.moved == [f"segments/{old.name}"]
    with memcore.open(path, embedder=None) as mem:
        assert [record.content for record in mem.list()] == [f"row {i}" for i in range(10) if i != 3]


def test_a_repair_beside_another_process_is_refused(store):
    change(store, "UPDATE marks SET changed = 1000")
    before = (store / CATALOG).read_bytes()
    script = "import sys, memcore\nmem = memcore.open(sys.argv[1], embedder=None)\nprint('open', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(store)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreLocked) as raised:
            memcore.verify(store, repair=True)
        assert str(raised.value) == (
            f"the store {store} is open in another process, or was opened by this one; nothing was changed: close it "
            "there, and repair it again"
        )
        other.communicate("\n")
    assert (store / CATALOG).read_bytes() == before
    assert memcore.verify(store, repair=True).ok


def test_an_open_store_repairs_itself(store):
    with memcore.open(store, embedder=None) as mem:
        ops = mem.scope("acme")
        rows = len(ops.list())
        path = segment_of(store)
        damaged(path, path.stat().st_size // 2, b"\0" * 64)
        assert not mem.verify().ok
        report = mem.verify(repair=True)
        assert report.ok
        assert rows - report.repair.lost["rows"] <= len(ops.list()) < rows + 1
        record = ops.remember("goes on", vector=np.ones(8))
        assert ops.get(record.id).content == "goes on"
        assert mem.verify().ok
    goes_on(store)


class Stop(BaseException):
    pass


@pytest.mark.parametrize("at", ["journal.create", "Path.replace 0", "Path.replace 1", "Path.rmdir 0"])
def test_an_interrupted_repair_begins_anew_and_loses_nothing(store, whole, tmp_path, monkeypatch, at):
    wanted = told(Path(shutil.copytree(whole, tmp_path / "as it was")))
    bad = damaged(store / CATALOG, 0, b"x" * HEADER)
    calls = 0

    def stopping(real: Callable[..., Any], after: int) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > after:
                raise Stop
            return real(*arguments)

        return call

    with monkeypatch.context() as patch:
        if at == "journal.create":
            patch.setattr(journal, "create", stopping(journal.create, 0))
        else:
            method, after = at.removeprefix("Path.").split()
            patch.setattr(Path, method, stopping(getattr(Path, method), int(after)))
        with pytest.raises(Stop):
            memcore.verify(store, repair=True)
    if at != "Path.rmdir 0":
        report = memcore.verify(store)
        assert not report.ok
        (aside,) = (store / "aside").iterdir()
        assert str(report.problems[-1]) == (
            f"aside/{aside.name}: a repair was interrupted, and files of the store lie there; a repair puts them back, "
            "and begins anew"
        )
        with pytest.raises(StoreError):
            memcore.open(store, embedder=None)
    fixed = memcore.verify(store, repair=True)
    assert fixed.ok
    assert told(store) == wanted
    assert any(path.read_bytes() == bad for path in (store / "aside").rglob(CATALOG))
    goes_on(store)


# The pages by themselves


def test_pages_tell_the_rows_that_sqlite_tells(tmp_path):
    """Small and large rows, which go on on pages of their own; all kinds of values; after rows were deleted too."""
    rng = random.Random(5)
    path = tmp_path / "x.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT, c BLOB, d REAL, e INTEGER) STRICT")
    connection.execute("BEGIN")
    for i in range(2000):
        text = rng.choice([None, "", "é" * rng.choice([1, 300, 5000])])
        number = rng.choice([None, 0, 1, -1, 2 ** rng.randrange(63), -(2 ** rng.randrange(63))])
        row = (i * 7 - 500, text, rng.randbytes(rng.choice([0, 16, 4000])), rng.choice([0.5, 1.0, -1e300]), number)
        connection.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?)", row)
    connection.execute("COMMIT")
    for statement in ("PRAGMA user_version = 1", "DELETE FROM t WHERE a % 3 = 0", "PRAGMA wal_checkpoint(TRUNCATE)"):
        connection.execute(statement).fetchall()
        image = pages.Image(path)
        found = image.table(image.schema()["t"])
        assert found.complete
        wanted = connection.execute("SELECT * FROM t ORDER BY a").fetchall()
        assert [(row[0], *row[2:]) for row in found.rows] == wanted
    connection.close()


@pytest.mark.parametrize("seed", range(4))
def test_random_bytes_never_break_the_reader_of_pages(whole, tmp_path, seed):
    rng = np.random.default_rng(seed)
    data = bytearray((whole / CATALOG).read_bytes())
    for at in rng.integers(0, len(data), 2000).tolist():
        data[at] = int(rng.integers(0, 256))
    path = tmp_path / CATALOG
    path.write_bytes(data)
    found = pages.tables(path, {"rows": lambda row: len(row) == 23, "marks": lambda row: len(row) == 9})
    assert not found["rows"].complete


def test_the_checksums_of_the_wal_are_those_of_sqlite():
    """Word by word, as the format says it."""
    rng = np.random.default_rng(3)
    for words in (0, 2, 6, 1026):
        rows = rng.integers(0, 2**32, (5, words)).astype(np.uint32)
        before = rng.integers(0, 2**32, (5, 2)).astype(np.uint32)
        for row, start, made in zip(rows.tolist(), before.tolist(), pages._sums(rows, before).tolist(), strict=True):
            s0, s1 = start
            for i in range(0, words, 2):
                s0 = (s0 + row[i] + s1) % 2**32
                s1 = (s1 + row[i + 1] + s0) % 2**32
            assert made == [s0, s1]


# Files of several batches


def test_a_file_has_one_dictionary_a_column_however_many_batches(tmp_path, monkeypatch):
    """Batches of one file with sessions and scopes of their own: Arrow refuses a second dictionary."""
    monkeypatch.setattr(segments, "ROWS", 64)
    with memcore.open(tmp_path / "m", embedder=None) as mem:
        for tenant in range(3):
            for session in range(3):
                mem.scope(f"t{tenant}", session_id=f"s{tenant}{session}").remember_many([str(i) for i in range(30)])
        assert mem.compact().written == 1
        assert mem.verify().ok
        for tenant in range(3):
            for session in range(3):
                ops = mem.scope(f"t{tenant}", session_id=f"s{tenant}{session}")
                assert {(r.tenant_id, r.session_id) for r in ops.list()} == {(f"t{tenant}", f"s{tenant}{session}")}


# Cases of forgetting


MARKERS = ("ZEBRA-77", "zebrinha é 77", "METADATUM-78", "KEY-79", "RETRY-80", "WÖRK-81")


def found_in(path: Path, markers: tuple[str, ...]) -> list[tuple[str, str]]:
    """Which of the texts lie in which files, as UTF-8 or as JSON would escape them."""
    forms = [(m, form) for m in markers for form in {m.encode(), json.dumps(m)[1:-1].encode(), m.encode("utf-16-le")}]
    return [
        (file.relative_to(path).as_posix(), marker)
        for file in path.rglob("*")
        if file.is_file()
        for marker, form in forms
        if form in file.read_bytes()
    ]


@pytest.mark.parametrize("where", ["journal", "sealed", "old segments"])
@pytest.mark.parametrize("erase", [False, True])
def test_case_C1_after_forget_and_compact_no_file_holds_a_byte_of_it(tmp_path, where, erase):
    path = tmp_path / "agent.mem"
    with memcore.open(path, embedder=None) as mem:
        mem.remember_many([f"other {i}" for i in range(50)])
        ids = [
            mem.remember("pin code is ZEBRA-77").id,
            mem.remember("a zebrinha é 77", kind="semantic", key="KEY-79", metadata={"note": "METADATUM-78"}).id,
            mem.remember("x", idempotency_key="RETRY-80").id,
            mem.working().add("user", "WÖRK-81").id,
        ]
        mem.update(ids[2], content="ZEBRA-77 again")
        if where != "journal":
            mem.compact()
        if where == "old segments":
            for i in range(3):
                mem.remember_many([f"later {i} {j}" for j in range(50)])
                mem.compact()
        assert len({marker for _, marker in found_in(path, MARKERS)}) == len(MARKERS)
        assert mem.forget(ids, erase=erase).count == 4
        report = mem.compact()
        assert report.dropped == 5
        assert found_in(path, MARKERS) == []
        checked = mem.verify()
        assert (checked.ok, checked.checked["forgotten"], checked.checked["free_pages"]) == (True, 0, 0)
        assert mem.restore(ids).missing == ids
    assert found_in(path, MARKERS) == []


def test_case_C3_adding_and_deleting_leaves_nothing_behind(tmp_path):
    path = tmp_path / "agent.mem"
    sizes, files = [], []
    with memcore.open(path, embedder=None) as mem:
        for cycle in range(20):
            mem.remember_many(
                [{"content": f"{cycle} {i} " + "x" * 200, "vector": np.eye(32)[i % 32]} for i in range(200)]
            )
            mem.forget(everything=True)
            mem.compact()
            sizes.append(sum(p.stat().st_size for p in path.rglob("*") if p.is_file()))
            files.append(len([p for p in path.rglob("*") if p.is_file()]))
        assert mem.verify().ok
    assert sizes[-1] <= 1.1 * sizes[1]
    assert files[-1] == files[1]
    assert list((path / "segments").iterdir()) == []


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("reopened", [False, True])
def test_case_C5_an_id_that_is_added_again_is_found_once(tmp_path, reopened, compacted):
    path = tmp_path / "agent.mem"
    m1 = "01890a5d-ac96-774b-bcce-b302099a8057"
    mem = memcore.open(path, embedder=None)

    def between() -> None:
        nonlocal mem
        if compacted:
            mem.compact()
        if reopened:
            mem.close()
            mem = memcore.open(path, embedder=None)

    mem.remember("old plan", id=m1, vector=[1.0, 0.0])
    between()
    assert mem.forget(m1).count == 1
    between()
    mem.remember("new plan", id=m1, vector=[0.0, 1.0])
    between()
    hits = mem.recall(vector=[0.0, 1.0], k=10)
    assert [(hit.id, hit.content) for hit in hits] == [(m1, "new plan")]
    assert hits[0].semantic_similarity == pytest.approx(1)
    assert mem.get(m1).content == "new plan"
    assert [record.content for record in mem.list()] == ["new plan"]
    assert mem.verify().ok
    mem.close()

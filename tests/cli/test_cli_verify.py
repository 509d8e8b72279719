"""verify, compact, forgotten, restore and forget --erase on the command line."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import memcore
from memcore.cli import main

BINARY = Path(sys.executable).parent / "memcore"
CATALOG = "catalog.sqlite"
YEAR_2020 = 1_577_836_800  # its first second


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "agent.mem"
    with memcore.open(path, embedder="hashed") as mem:
        mem.remember_many([f"row {i}" for i in range(20)])
        mem.compact()
        mem.remember("later")
    return path


def run(store, *arguments):
    result = CliRunner().invoke(main, ["--store", str(store), "--embedder", "hashed", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def of_json(store, *arguments, code=0):
    exit_code, out, err = run(store, *arguments, "--json")
    assert (exit_code, err) == (code, "")
    return json.loads(out)


def damage(store):
    (segment,) = (store / "segments").iterdir()
    data = segment.read_bytes()
    segment.write_bytes(data.replace(b"row 7", b"row X"))
    return segment.name


def test_a_whole_store(store):
    told = of_json(store, "verify")
    assert (told["ok"], told["problems"], told["repair"]) == (True, [], None)
    assert told["checked"]["rows"] == 21
    code, out, err = run(store, "verify")
    assert (code, err) == (0, "")
    assert out.startswith(f"{store}: all is as it was written\nchecked: ")


def test_a_damaged_store_exits_1_and_is_repaired(store):
    name = damage(store)
    told = of_json(store, "verify", code=1)
    assert told["ok"] is False
    assert told["problems"] == [
        {
            "file": f"segments/{name}",
            "what": "its CRC-32 is not the catalog's; 19 of 20 rows are whole",
            "remedy": "a repair takes the rows that are whole into a new file",
        }
    ]
    code, out, err = run(store, "verify")
    assert (code, err) == (1, "")
    assert f"{store}: 1 problems\n  segments/{name}: its CRC-32 is not the catalog's; 19 of 20" in out
    code, out, err = run(store, "verify", "--repair")
    assert (code, err) == (1, "")
    assert out.startswith(f"{store}: repaired with losses: 1 rows\nrepaired:\n  segments/{name}: ")
    assert "  lost: 1 rows\n  lost ids: " in out
    assert f"segments/{name}" in out.split("moved: ")[1]
    told = of_json(store, "verify")
    assert (told["ok"], told["lossless"], told["checked"]["rows"]) == (True, True, 20)
    (aside,) = (store / "aside").iterdir()
    (note,) = told["notes"]
    assert note == (
        f"aside/{aside.name} holds what a repair put aside, forgotten texts perhaps: delete it when it is not needed "
        "any more"
    )
    assert "row X" not in run(store, "list")[1]


def test_a_store_that_cannot_be_opened_is_verified_and_repaired(store):
    (store / CATALOG).write_bytes(b"x" * 100 + (store / CATALOG).read_bytes()[100:])
    code, _, err = run(store, "list")
    assert code == 1
    assert "memcore verify" in err
    assert of_json(store, "verify", code=1)["problems"][0]["file"] == CATALOG
    told = of_json(store, "verify", "--repair")
    assert (told["ok"], told["lossless"], told["repair"]["lost"]) == (True, True, {})
    assert len(of_json(store, "list")) == 21


def test_a_repair_that_loses_nothing_says_so(store):
    (store / CATALOG).write_bytes(b"x" * 100 + (store / CATALOG).read_bytes()[100:])
    code, out, err = run(store, "verify", "--repair")
    assert (code, err) == (0, "")
    assert out.startswith(f"{store}: repaired, and nothing is lost\nrepaired:\n")


def test_a_repair_with_losses_exits_1_in_json_too(store):
    damage(store)
    told = of_json(store, "verify", "--repair", code=1)
    assert (told["ok"], told["lossless"], told["problems"]) == (True, False, [])
    assert told["repair"]["lost"] == {"rows": 1}
    assert run(store, "verify")[0] == 0


def test_a_repair_without_the_catalog_tells_that_its_losses_are_not_known(store):
    (store / CATALOG).unlink()
    code, out, err = run(store, "verify", "--repair")
    assert (code, err) == (1, "")
    first = out.partition("\n")[0]
    assert first == (
        f"{store}: repaired with losses: marks, so that 20 memories may be here although they were forgotten; some of "
        "the catalog's rows, marks, counters, forgettings, links, cold_marks, state, how many is not known"
    )
    assert run(store, "verify")[0] == 0


def test_cold_files_that_a_repair_puts_aside_are_imported(tmp_path):
    """All rows lie in the cold tier, and the catalog is gone."""
    path = tmp_path / "cold.mem"
    with memcore.open(path, embedder="hashed") as mem:
        ops = mem.scope("acme")
        ids = ops.remember_many(
            {"content": f"row {i}", "importance": 0.1, "event_time": YEAR_2020 + 40 * 86_400 * (i % 2)}
            for i in range(6)
        )
        ops.update(ids[0], content="row 0 again")
        assert set(ops.prune().ids) == set(ids)
        before = [ops.history(id=id, tiers=("hot", "cold")).to_arrow().drop_columns("seq") for id in ids]
        mem.compact()
    (path / CATALOG).unlink()
    report = of_json(path, "verify", code=1)
    assert [problem["file"] for problem in report["problems"]] == [CATALOG]
    assert not any(note.startswith("nothing names cold/") for note in report["notes"])
    told = of_json(path, "verify", "--repair", code=1)
    assert (told["ok"], told["lossless"], told["repair"]["lost"]) == (True, False, {"cold_files": 2})
    aside = told["repair"]["aside"]
    assert (
        "2 whole files of the cold tier are named no more: import each of them with memcore import, from "
        f"{aside}/cold, the latest month first: of a memory with versions in several files those in the first one "
        "count. What was forgotten in them and not compacted comes back with them"
    ) in told["repair"]["notes"]
    assert of_json(path, "verify")["checked"]["rows"] == 0
    files = sorted((path / aside).rglob("*.parquet"), reverse=True)
    for file in files:
        of_json(path, "import", str(file))
    with memcore.open(path, embedder="hashed") as mem:
        ops = mem.scope("acme")
        assert [ops.history(id=id).to_arrow().drop_columns("seq") for id in ids] == before
        assert [record.version for record in ops.history(id=ids[0])] == [1, 2]
        assert ops.recall("row 3", k=1)[0].id == ids[3]
    assert of_json(path, "verify")["ok"] is True


def test_a_store_of_which_no_cold_file_is_whole_is_not_repaired(tmp_path):
    path = tmp_path / "cold.mem"
    with memcore.open(path, embedder="hashed") as mem:
        mem.remember("faded", importance=0.1, event_time=YEAR_2020)
        assert mem.prune().count == 1
        mem.compact()
    (file,) = path.rglob("*.parquet")
    file.write_bytes(file.read_bytes()[:-1])
    (path / CATALOG).unlink()
    code, _, err = run(path, "verify", "--repair")
    assert code == 1
    assert err.startswith(f"memcore: no row of the store {path} is whole, in no file of it; nothing was changed: ")
    assert file.exists()


def test_errors_are_one_line(tmp_path, store):
    code, out, err = run(tmp_path / "none", "verify")
    assert (code, out) == (1, "")
    assert err == f"memcore: {tmp_path / 'none'} is no store: No such file or directory; pass the directory of one\n"
    assert not (tmp_path / "none").exists()
    for file in (store / "segments").iterdir():
        file.unlink()
    (store / CATALOG).write_bytes(bytes(40_960))
    code, out, err = run(store, "verify", "--repair")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"memcore: no row of the store {store} is whole, in no file of it; nothing was changed: ")
    assert CliRunner().invoke(main, ["verify"], env={"MEMCORE_STORE": ""}).exit_code == 2


def test_progress_is_shown_on_a_terminal_alone(store):
    """And stdout stays one JSON document."""
    leader, follower = pty.openpty()
    done = subprocess.run([BINARY, "--store", str(store), "verify", "--json"], stdout=subprocess.PIPE, stderr=follower)
    os.close(follower)
    shown = b""
    try:
        while block := os.read(leader, 4096):
            shown += block
    except OSError:  # how a terminal ends
        pass
    os.close(leader)
    assert json.loads(done.stdout)["ok"] is True
    assert b"verif" in shown
    quiet = subprocess.run([BINARY, "--store", str(store), "verify", "--json"], capture_output=True)
    assert quiet.stderr == b""


def test_forget_restore_forgotten_and_erase(store):
    one, two = (record["id"] for record in of_json(store, "list")[:2])
    assert of_json(store, "forgotten") == []
    assert run(store, "forgotten")[1] == "nothing here\n"
    of_json(store, "forget", one)
    assert [record["id"] for record in of_json(store, "forgotten")] == [one]
    assert of_json(store, "forgotten", "--kind", "semantic") == []
    assert one in run(store, "forgotten")[1]
    assert of_json(store, "restore", one)["ids"] == [one]
    assert of_json(store, "get", one)["id"] == one
    assert of_json(store, "forget", two, "--erase")["ids"] == [two]
    assert of_json(store, "forgotten") == []
    assert of_json(store, "restore", two, code=1) == {"ids": [], "missing": [two], "in_use": [], "count": 0}
    assert of_json(store, "forget", two, code=1)["missing"] == [two]


def test_what_erasing_takes_along_is_told(store):
    one = of_json(store, "list")[0]["id"]
    with memcore.open(store, embedder="hashed") as mem:
        summary = mem.remember("a summary", level=1).id
        mem.link(summary, "summarizes", one)
    told = f"1; and would erase 1 summary of it, for good: {summary}\n"
    assert run(store, "forget", one, "--erase", "--dry-run") == (0, f"would forget {told}", "")
    assert run(store, "forget", one, "--erase") == (0, f"forgot {told.replace('would erase', 'erased')}", "")


@pytest.mark.parametrize("verb", [("compact",), ("verify",), ("reembed", "hashed"), ("import", "rows.jsonl")])
@pytest.mark.parametrize("scope", [("--tenant", "acme"), ("--session", "s1")])
def test_a_scope_before_what_concerns_the_whole_store_is_refused(tmp_path, verb, scope):
    store = tmp_path / "m"
    done = subprocess.run([BINARY, "--store", str(store), *scope, *verb], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    told = f"{verb[0]} concerns the whole store: leave --tenant, --project, --session and --role out"
    if verb[0] == "import":
        told += ": rows say theirs by tenant_id, project_id, session_id and agent_role"
    assert done.stderr.endswith(f"Error: {told}\n")
    assert not store.exists()


def test_an_import_of_no_file_makes_no_store(tmp_path):
    nope = tmp_path / "nope.jsonl"
    assert run(tmp_path / "m", "import", str(nope)) == (1, "", f"memcore: {nope}: No such file or directory\n")
    assert not (tmp_path / "m").exists()


def test_compact_frees_what_was_forgotten(store):
    ids = [record["id"] for record in of_json(store, "list")]
    of_json(store, "forget", ids[3])
    told = of_json(store, "compact")
    assert told["dropped"] == 1
    assert of_json(store, "forgotten") == []
    assert not any(b"row 3" in path.read_bytes() for path in store.rglob("*") if path.is_file())
    code, out, err = run(store, "compact")
    assert (code, err) == (0, "")
    assert out.startswith("dropped 0 rows; ")
    assert of_json(store, "verify")["checked"]["forgotten"] == 0

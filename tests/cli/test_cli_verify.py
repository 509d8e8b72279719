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
    assert (code, err) == (0, "")
    assert f"{store}: all is as it was written\nrepaired:\n  segments/{name}: " in out
    assert "  lost: 1 rows\n  lost ids: " in out
    assert f"segments/{name}" in out.split("moved: ")[1]
    told = of_json(store, "verify")
    assert (told["ok"], told["checked"]["rows"]) == (True, 20)
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
    assert (told["ok"], told["repair"]["lost"]) == (True, {})
    assert len(of_json(store, "list")) == 21


def test_errors_are_one_line(tmp_path, store):
    code, out, err = run(tmp_path / "none", "verify")
    assert (code, out) == (1, "")
    assert err == f"memcore: {tmp_path / 'none'} is no store; pass the directory of one\n"
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
    assert of_json(store, "restore", two) == {"ids": [], "missing": [two], "in_use": [], "count": 0}


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

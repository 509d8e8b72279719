"""The command line as a user has it: real processes for streams and exit codes, in process for the rest."""

import contextlib
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import memcore
from memcore.cli import INDEXES, main
from memcore.search import planner

BINARY = Path(sys.executable).parent / "memcore"
T0 = "2026-03-01T09:30:00Z"
NOBODY = "01890a5d-ac96-774b-bcce-b302099a8057"


@pytest.fixture
def cli(tmp_path):
    """Runs a command on the store of this test: (exit code, stdout, stderr)."""

    def run(*arguments, scope=(), store=tmp_path / "m", **options):
        where = [] if store is None else ["--store", str(store)]
        result = CliRunner().invoke(main, [*where, "--embedder", "hashed", *scope, *arguments], **options)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result.exit_code, result.stdout, result.stderr

    return run


def ok(result):
    code, out, err = result
    assert (code, err) == (0, "")
    return out


def of_json(result):
    return json.loads(ok(result))


def test_remember_then_recall_in_another_process(tmp_path):
    store = str(tmp_path / "agent.mem")
    done = subprocess.run(
        [BINARY, "--store", store, "remember", "HTTP 504 on /billing"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert done.stdout.startswith("remembered ")
    assert done.stderr == ""
    found = subprocess.run([BINARY, "--store", store, "recall", "billing", "--json"], capture_output=True, text=True)
    assert [hit["content"] for hit in json.loads(found.stdout)] == ["HTTP 504 on /billing"]


def test_every_verb_has_help_and_json():
    verbs = {"remember", "recall", "get", "list", "update", "forget", "history", "export", "import", "stats", "replay"}
    verbs |= {"prune", "restore", "reembed", "forgotten", "compact", "verify", "bench", "link", "unlink", "links"}
    assert set(main.commands) == verbs
    for command in main.commands.values():
        assert any(parameter.name == "as_json" for parameter in command.params)
        assert command.help


def test_recall_explains_itself(cli):
    ok(cli("remember", "a deploy failed", "--now", T0))
    told = ok(cli("recall", "deploy", "--now", T0, "--explain"))
    assert told.startswith(ok(cli("recall", "deploy", "--now", T0)))
    assert "\nplan: hybrid, all rows\nrows: 1\npassed filter: 1\n" in told
    by_cosine = ok(cli("recall", "deploy", "--now", T0, "--explain", "--relevance", "cosine"))
    assert "\nplan: exact scan, 1 thread\nrows: 1\npassed filter: 1\n" in by_cosine
    document = of_json(cli("recall", "deploy", "--now", T0, "--explain", "--json"))
    assert document["hits"] == of_json(cli("recall", "deploy", "--now", T0, "--json"))
    assert (document["explain"]["plan"], document["explain"]["rows"]) == ("hybrid, all rows", 1)


def test_the_index_is_chosen_before_the_verb(cli):
    assert INDEXES == planner.INDEXES
    ok(cli("remember", "a deploy failed", scope=("--index", "exact")))
    code, _, err = cli("list", scope=("--index", "none"))
    assert code == 2
    assert "Invalid value for '--index': 'none' is not one of 'auto', 'exact', 'faiss', 'hnswlib'." in err


def test_json_is_one_document_and_nothing_else(cli):
    record = of_json(cli("remember", "a deploy failed", "--metadata", '{"host": "web01"}', "--now", T0, "--json"))
    assert record["content"] == "a deploy failed"
    assert record["ingested_at"] == record["event_time"] == T0
    assert record["metadata"] == {"host": "web01"}
    assert "vector" not in record
    assert [r["id"] for r in of_json(cli("list", "--json"))] == [record["id"]]
    assert of_json(cli("get", record["id"], "--json"))["version"] == 1
    assert of_json(cli("update", record["id"], "--content", "a deploy worked", "--json"))["version"] == 2
    assert [r["version"] for r in of_json(cli("history", "--id", record["id"], "--json"))] == [1, 2]
    hit = of_json(cli("recall", "deploy", "--json", "--now", T0))[0]
    assert hit["age_hours"] == 0
    assert hit["total_score"] == pytest.approx(0.5 * hit["relevance_component"] + 0.3 + 0.2 * 0.5, abs=1e-6)
    assert 0 < hit["likeness"] < 1
    assert 0 < hit["lexical"] < 1
    assert hit["temporal"] == 0
    hit = of_json(cli("recall", "deploy", "--json", "--now", T0, "--relevance", "cosine"))[0]
    assert hit["relevance_component"] == hit["semantic_similarity"]
    assert hit["total_score"] == pytest.approx(0.5 * hit["semantic_similarity"] + 0.3 + 0.2 * 0.5, abs=1e-6)
    assert of_json(cli("stats", "--json"))["memories"] == 1
    assert of_json(cli("forget", record["id"], "--dry-run", "--json")) == {
        "ids": [record["id"]], "missing": [], "dry_run": True, "cascaded": [], "elsewhere": [], "count": 1,
    }  # fmt: skip
    assert of_json(cli("forget", record["id"], "--json"))["count"] == 1
    assert of_json(cli("list", "--json")) == []


def test_options_reach_the_verb(cli):
    of_json(
        cli(
            "remember", "billing owner is Marta", "--kind", "semantic", "--key", "owner", "--importance", "0.7",
            "--source", "told_by_user", "--confidence", "0.6", "--untrusted", "--expires-at", "2026-04-01T00:00:00Z",
            "--event-time", "2026-02-28T23:30:00-03:00", "--now", T0, "--json",
            scope=("--session", "s1", "--role", "triage"),
        )
    )  # fmt: skip
    record = of_json(cli("get", "--key", "owner", "--now", T0, "--json"))
    assert {name: record[name] for name in ("kind", "importance", "source", "confidence", "untrusted")} == {
        "kind": "semantic", "importance": 0.7, "source": "told_by_user", "confidence": 0.6, "untrusted": True,
    }  # fmt: skip
    assert (record["session_id"], record["agent_role"]) == ("s1", "triage")
    assert (record["event_time"], record["expires_at"]) == ("2026-03-01T02:30:00Z", "2026-04-01T00:00:00Z")
    assert cli("get", "--key", "owner", "--now", "2026-04-01T00:00:00Z")[0] == 1  # expired at that very moment


def test_recall_filters_weights_and_moments(cli):
    for host, importance in (("web01", 0.2), ("web02", 0.9)):
        ok(cli("remember", f"disk full on {host}", "--metadata", json.dumps({"host": host, "n": 3}), "--importance",
               str(importance), "--now", T0))  # fmt: skip
    by_importance = of_json(cli("recall", "disk", "--weights", "0,0,1", "--json"))
    assert [hit["metadata"]["host"] for hit in by_importance] == ["web02", "web01"]
    filtered = of_json(cli("recall", "disk", "--where", "metadata.host=web01", "--where", "metadata.n=3", "--json"))
    assert [hit["metadata"]["host"] for hit in filtered] == ["web01"]
    aged = of_json(cli("recall", "disk", "--half-life", "10", "--now", "2026-03-01T19:30:00Z", "--json", "-k", "1"))
    assert aged[0]["recency_component"] == pytest.approx(0.5)
    assert of_json(cli("recall", "disk", "--as-of", "2026-02-01T00:00:00Z", "--json")) == []
    assert of_json(cli("recall", "--kind", "semantic", "--json")) == []
    assert of_json(cli("recall", "disk", "-k", "0", "--json")) == []


def test_people_see_lines(cli):
    ok(cli("remember", "disk full\non web01", "--key", "d", "--now", T0))
    shown = ok(cli("recall", "disk", "--now", "2026-03-03T09:30:00Z"))
    assert "d: disk full on web01" in shown
    assert "2 days ago" in shown
    assert "2026-03-01 09:30Z  episodic   v1 d: disk full on web01" in ok(cli("list"))
    assert ok(cli("get", "--key", "d")).startswith("disk full\non web01\n")
    assert ok(cli("forget", "--everything")) == "forgot 1\n"
    id = of_json(cli("remember", "A", "--kind", "semantic", "--key", "k", "--json", scope=("--session", "s1")))["id"]
    cli("remember", "B", "--kind", "semantic", "--key", "k", scope=("--session", "s2"))
    assert cli("forget", id, scope=("--session", "s1")) == (
        1,
        f"forgot 0; rewritten in another session or role, forget it without --session and --role: {id}\n",
        "",
    )
    assert ok(cli("forget", id)) == "forgot 1\n"
    assert ok(cli("list")) == "nothing here\n"
    assert ok(cli("recall", "disk")) == "nothing found\n"


def test_errors_are_one_line_on_stderr_and_exit_1(cli, tmp_path):
    table = [
        (("remember", "  "), "content is blank"),
        (("recall", "x", "-k", "-1"), "k is -1; it must be at least 0"),
        (("recall", "x", "--weights", "1,1,1"), "sum to 3"),
        (("recall", "x", "--decay-rate", "slow"), "the presets are"),
        (("recall", "x", "--where", "colour=red"), "the columns are"),
        (("recall", "x", "--where", "kind"), "write NAME=VALUE"),
        (("recall", "x", "--now", "2026-03-01T09:30:00"), "has no zone"),
        (("remember", "x", "--metadata", "{"), "--metadata is not JSON"),
        (("remember", "x", "--metadata", "[1]"), "pass a JSON object"),
        (("link", NOBODY, "x", NOBODY, "--attributes", "{"), "--attributes is not JSON"),
        (("link", NOBODY, "x", NOBODY, "--attributes", "[1]"), "--attributes is '[1]'; pass a JSON object"),
        (("link", NOBODY, "x", NOBODY), f"no memory {NOBODY} in tenant"),
        (("link", "x", "x", "y"), "src is 'x' (str); an id is a UUID"),
        (("unlink", "x"), "src is 'x' (str); an id is a UUID"),
        (("links", "--direction", "out"), "links got direction='out' and no id"),
        (("history", "k", "--tiers", "warm"), "tiers is ['warm'] (list); pass one or both of hot, cold"),
        (("get", "no-such-id"), "an id is a UUID"),
        (("get", "--key", "none"), "no memory 'none' in tenant 'default'"),
        (("forget",), "forget got nothing to go by"),
        (("update", NOBODY, "--content", "x"), f"no memory {NOBODY} in tenant"),
        (("import", str(tmp_path / "none.jsonl")), "none.jsonl"),
        (("export", str(tmp_path / "x.txt")), "tells no format"),
        (("replay", str(tmp_path / "none.jsonl")), "none.jsonl"),
        (("replay", "ops_agent", "--k", "five"), "write whole numbers"),
    ]
    for arguments, message in table:
        code, out, err = cli(*arguments)
        assert (code, out) == (1, ""), arguments
        assert err.startswith("memcore: "), arguments
        assert err.count("\n") == 1, arguments
        assert message in err, arguments


def test_usage_errors_exit_2(cli):
    assert cli("remember")[0] == 2
    assert cli("recall", "x", "-k", "many")[0] == 2
    assert cli("remember", "x", "--kind", "vague")[0] == 2
    assert cli("replay", "ops_agent", "--report", "r.txt")[0] == 2
    result = CliRunner().invoke(main, ["stats"], env={"MEMCORE_STORE": ""})
    assert result.exit_code == 2
    assert "--store DIR" in result.stderr


def test_case_B3_an_empty_tenant_is_refused_not_read_as_every_tenant(cli):
    ok(cli("remember", "x", scope=("--tenant", "a")))
    for verb in (("forget", "--everything"), ("list",), ("recall", "x")):
        code, _, err = cli(*verb, scope=("--tenant", ""))
        assert code == 1
        assert err.startswith("memcore: tenant_id is blank")
    assert len(of_json(cli("list", "--json", scope=("--tenant", "a")))) == 1


def test_case_B1_a_scope_sees_its_own_rows_only(cli):
    ok(cli("remember", "lives in Norway", scope=("--tenant", "u1")))
    ok(cli("remember", "lives in Chile", scope=("--tenant", "u2")))
    assert [h["content"] for h in of_json(cli("recall", "where lives", "--json", scope=("--tenant", "u1")))] == [
        "lives in Norway"
    ]
    assert of_json(cli("recall", "where lives", "--json", scope=("--tenant", "u3"))) == []


def test_case_B17_forgetting_has_no_page_size(cli, tmp_path):
    with memcore.open(tmp_path / "m", embedder="hashed") as mem:
        mem.scope("t1").remember_many([f"row {i}" for i in range(35)])
    assert of_json(cli("forget", "--everything", "--json", scope=("--tenant", "t1")))["count"] == 35
    assert of_json(cli("forget", "--everything", "--json", scope=("--tenant", "t1")))["count"] == 0


def test_case_G1_arguments_that_are_not_utf8_are_refused(tmp_path):
    done = subprocess.run(
        [os.fsencode(BINARY), b"--store", os.fsencode(tmp_path / "m"), b"remember", b"note \xff end"],
        capture_output=True,
    )
    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.startswith(b"memcore: content holds a lone surrogate (U+DCFF at index 5)")


def test_case_M5_text_from_standard_input_is_kept_exactly(cli):
    text = "a\u2028b\u0085c\u000bd\r\n  é 猫"
    ok(cli("remember", "-", input=text.encode()))
    assert of_json(cli("list", "--json"))[0]["content"] == text
    code, _, err = cli("remember", "-", input=b"\xff\xfe")
    assert (code, err) == (1, "memcore: standard input is not UTF-8 (invalid start byte at byte 0); convert it first\n")


@pytest.mark.parametrize(
    ("given", "stored"),
    [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), (" a \r", " a \r"), ("a\nb", "a\nb")],
)
def test_the_line_end_of_standard_input_is_not_of_the_text(cli, given, stored):
    record = of_json(cli("remember", "-", "--json", input=given.encode()))
    assert record["content"] == stored
    assert of_json(cli("update", record["id"], "--content", "-", "--json", input=f"{given}".encode()))["version"] == 2
    assert of_json(cli("get", record["id"], "--json"))["content"] == stored
    assert of_json(cli("remember", "a\n", "--json"))["content"] == "a\n"  # an argument is what it is
    assert cli("remember", "-", input=b"\n")[0] == 1


def test_links_by_the_command_line(cli):
    a, b = (of_json(cli("remember", text, "--now", T0, "--json"))["id"] for text in "ab")
    made = of_json(cli("link", a, "caused_by", b, "--attributes", '{"é": 1}', "--now", T0, "--json"))
    assert made == {
        "src_id": a, "relation": "caused_by", "dst_id": b, "attributes": {"é": 1}, "created_at": T0,
        "valid_from": None, "valid_to": None,
    }  # fmt: skip
    assert of_json(cli("links", "--json")) == [made]
    assert ok(cli("links", b, "--direction", "in")) == f'{a}  caused_by  {b}  {{"é": 1}}\n'
    assert ok(cli("links", b, "--direction", "out")) == ok(cli("links", "--relation", "x")) == "nothing here\n"
    since = "2026-03-01T00:00:00Z"
    shown = ok(cli("link", b, "x", a, "--valid-from", since, "--valid-to", T0, "--now", T0))
    assert shown == f"{b}  x  {a}  from {since}  to {T0}\n"
    assert ok(cli("links", "--relation", "x", "--now", "2026-03-01T09:29:00Z")) == shown
    assert of_json(cli("links", "--relation", "x", "--as-of", "2026-03-01T09:29:00Z", "--json")) == []  # not yet made
    assert ok(cli("unlink", a, "y")) == "ended 0\n"
    assert of_json(cli("unlink", a, "caused_by", b, "--now", "2026-03-02T09:30:00Z", "--json")) == {"count": 1}
    assert ok(cli("links")) == "nothing here\n"
    assert len(of_json(cli("links", a, "--as-of", "2026-03-02T00:00:00Z", "--json"))) == 1
    assert ok(cli("links", scope=("--tenant", "another"))) == "nothing here\n"


def test_history_of_what_lies_in_the_cold_tier(cli):
    old = of_json(cli("remember", "HTTP 504", *OLD))["id"]
    assert len(of_json(cli("history", "--id", old, "--json"))) == 1
    ok(cli("prune"))
    hint = "memcore: it lies in the cold tier: --tiers hot,cold shows it\n"
    assert cli("history", "--id", old) == (0, "nothing here\n", hint)
    assert cli("history", "--id", old, "--json") == (0, "[]\n", hint)
    assert [r["id"] for r in of_json(cli("history", "--id", old, "--tiers", "hot,cold", "--json"))] == [old]
    for told, hint in ((("no such key",), "; for one by its id use --id"), (("--id", old[:-1] + "0"), "")):
        named = told[-1]
        assert cli("history", *told) == (
            1,
            "",
            f"memcore: no memory {named!r} in tenant 'default', project 'default': see memcore list{hint}\n",
        )


def test_stats_tell_the_embedder_that_the_store_knows(cli):
    ok(cli("remember", "x"))
    assert of_json(cli("stats", "--json"))["embedder"] == {"name": "hashed", "fingerprint": "hashed/256/1"}
    assert 'embedder         {"name": "hashed", "fingerprint": "hashed/256/1"}\n' in ok(cli("stats"))


def test_a_store_of_vectors_of_its_own(cli, tmp_path):
    with memcore.open(tmp_path / "m", embedder=None) as mem:
        mem.remember("x", vector=[1, 0])
    assert cli("recall", "x")[0] == 1
    none = ("--embedder", "none")
    assert "--embedder none" in cli("recall", "x")[2]
    assert len(of_json(cli("recall", "--json", scope=none))) == 1
    assert of_json(cli("recall", "x", "--json", scope=none))[0]["lexical"] > 0  # by its words
    code, out, err = cli("recall", "x", "--relevance", "cosine", scope=none)
    assert (code, out) == (1, "")
    assert err.startswith("memcore: ")
    ok(cli("remember", "y", scope=none))
    assert len(of_json(cli("list", "--json", scope=none))) == 2
    assert cli("replay", "ops_agent", scope=none)[0] == 2


def test_stats_tell_what_the_store_takes_on_disk(cli, tmp_path):
    ok(cli("remember", "x"))
    assert of_json(cli("stats", "--json"))["bytes_on_disk"] > 4096
    with memcore.open(tmp_path / "m", embedder="hashed") as mem:
        every = [path.stat().st_size for path in (tmp_path / "m").rglob("*") if path.is_file()]
        assert mem.stats()["bytes_on_disk"] == sum(every)
    with memcore.open(embedder=None) as mem:
        assert mem.stats()["bytes_on_disk"] == 0


def test_the_remedy_for_another_embedder_can_be_followed(tmp_path):
    where = ["--store", str(tmp_path / "m")]
    done = CliRunner().invoke(main, [*where, "--embedder", "hashed", "remember", "x"])
    assert done.exit_code == 0
    done = CliRunner().invoke(main, [*where, "remember", "y"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert 'open it with embedder="hashed" (--embedder hashed), or with embedder=None' in done.stderr


def test_python_runs_the_package(tmp_path):
    store = ["--store", str(tmp_path / "m"), "--embedder", "hashed"]
    run = [sys.executable, "-m", "memcore"]
    done = subprocess.run([*run, *store, "remember", "x"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("remembered ")
    done = subprocess.run([*run, *store, "get", NOBODY], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    done = subprocess.run([*run, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"memcore, version {memcore.__version__}\n"


def test_output_is_utf8_whatever_the_locale(tmp_path):
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "cp1252"}
    store = ["--store", str(tmp_path / "m"), "--embedder", "hashed"]
    subprocess.run([BINARY, *store, "remember", "Đà Lạt → 猫"], check=True, env=environment, capture_output=True)
    for extra in ([], ["--json"]):
        done = subprocess.run([BINARY, *store, "list", *extra], check=True, env=environment, capture_output=True)
        assert "Đà Lạt → 猫" in done.stdout.decode("utf-8")
    path = str(tmp_path / "ação.jsonl")
    subprocess.run([BINARY, *store, "export", path], check=True, env=environment, capture_output=True)
    assert Path(path).is_file()


def test_a_reader_that_closes_the_pipe_early_is_no_error(tmp_path):
    with memcore.open(tmp_path / "m", embedder="hashed") as mem:
        mem.remember_many([f"row {i} " + "x" * 90 for i in range(3000)])
    command = f"'{BINARY}' --store '{tmp_path}/m' --embedder hashed list --limit 3000 | head -1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""
    assert "row 0" in done.stdout


OLD = ("--event-time", "2020-01-01T00:00:00Z", "--importance", "0.1", "--json")


def test_prune_recall_of_both_tiers_and_restore(cli):
    old = of_json(cli("remember", "HTTP 504 on /billing", *OLD))["id"]
    cli("remember", "deploy of the billing service")
    told = of_json(cli("prune", "--dry-run", "--json"))
    assert (told["count"], told["examined"], told["dry_run"], told["erased"]) == (1, 2, True, [])
    assert [one["id"] for one in told["moved"]] == [old]
    assert "importance 0.1 is below 0.3, and recency " in told["moved"][0]["why"]
    assert ok(cli("prune", "--dry-run")).startswith(
        f"would move 1 of 2 to the cold tier, and erase 0\n{old} to the cold tier: importance 0.1 is below 0.3, and "
    )
    assert len(of_json(cli("list", "--json"))) == 2
    assert ok(cli("prune")).startswith("moved 1 of 2 to the cold tier, and erased 0\n")
    assert [hit["content"] for hit in of_json(cli("recall", "billing", "--json"))] == ["deploy of the billing service"]
    assert len(of_json(cli("recall", "billing", "--tiers", "hot,cold", "--json"))) == 2
    assert [r["id"] for r in of_json(cli("list", "--tiers", "cold", "--json"))] == [old]
    assert of_json(cli("get", old, "--tiers", "cold", "--json"))["content"] == "HTTP 504 on /billing"
    assert cli("get", old)[0] == 1
    assert of_json(cli("stats", "--json"))["cold"]["memories"] == 1
    assert cli("recall", "--tiers", "warm") == (
        1,
        "",
        "memcore: tiers is ['warm'] (list); pass one or both of hot, cold\n",
    )
    assert ok(cli("restore", old)) == "restored 1\n"
    assert cli("restore", old) == (1, f"restored 0; not to be had: {old}\n", "")
    assert len(of_json(cli("list", "--json"))) == 2


def test_prune_is_of_the_scope_that_is_named_or_of_all(cli):
    for tenant in ("a", "b"):
        cli("remember", tenant, *OLD, scope=("--tenant", tenant))
    assert of_json(cli("prune", "--json", scope=("--tenant", "a")))["count"] == 1
    assert of_json(cli("prune", "--json"))["count"] == 1


def test_prune_erases_what_is_kept_too_long(cli):
    for kind in ("episodic", "semantic"):
        cli("remember", kind, "--kind", kind, *OLD)
    erased = of_json(cli("prune", "--retention-days", "90", "--retention-kind", "semantic", "--json"))["erased"]
    assert len(erased) == 1
    assert erased[0]["why"].endswith("Retention(days=90, kind='semantic') keeps it for 90")
    assert [r["content"] for r in of_json(cli("list", "--tiers", "hot,cold", "--json"))] == ["episodic"]
    assert len(of_json(cli("prune", "--retention-days", "90", "--json"))["erased"]) == 1
    assert cli("prune", "--retention-kind", "semantic")[0] == 2


def test_export_and_import(cli, tmp_path):
    ok(cli("remember", "a", scope=("--tenant", "t1")))
    ok(cli("remember", "b", scope=("--tenant", "t2")))
    for name in ("state.json", "state.jsonl", "state.parquet"):
        assert of_json(cli("export", str(tmp_path / name), "--json"))["rows"] == 2
        other = tmp_path / f"other-{name}"
        assert of_json(cli("import", str(tmp_path / name), "--json", store=other)) == {
            "new": 2,
            "present": 0,
            "links": 0,
        }
        assert of_json(cli("import", str(tmp_path / name), "--json", store=other)) == {
            "new": 0,
            "present": 2,
            "links": 0,
        }
        assert [r["content"] for r in of_json(cli("list", "--json", store=other, scope=("--tenant", "t2")))] == ["b"]


def test_replay_writes_answers_and_reports(cli, tmp_path):
    trace = tmp_path / "t.jsonl"
    rows = [
        {"event_id": "e1", "time": T0, "kind": "episodic", "content": "the disk of db01 is full"},
        {"event_id": "e2", "time": "2026-03-02T09:30:00Z", "kind": "episodic", "content": "good morning"},
        {"question": "which disk is full?", "time": "2026-03-03T09:30:00Z", "evidence": ["e1"]},
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    answers, report = tmp_path / "a.jsonl", tmp_path / "r.json"
    options = ("--embedder", "hashed", "--k", "1,2", "--weights", "1,0,0")
    shown = ok(cli("replay", str(trace), *options, "--answers", str(answers), "--report", str(report), store=None))
    assert shown.startswith("# memcore replay\n")
    assert json.loads(answers.read_text())["retrieved"] == ["e1", "e2"]
    told = json.loads(report.read_text())
    assert told["evaluation"]["overall"]["recall"] == {"1": 1.0, "2": 1.0}
    printed = of_json(cli("replay", str(trace), *options, "--json", store=None))
    assert printed["evaluation"] == told["evaluation"]
    kept = tmp_path / "kept"
    ok(cli("replay", str(trace), store=kept))  # the options before the verb hold for a replay too
    assert len(of_json(cli("list", "--json", store=kept, scope=("--tenant", "replay", "--project", "t.jsonl")))) == 2


def test_replay_compares_relevances(cli):
    options = ("replay", "ops_agent", "--embedder", "hashed", "--limit", "100", "--k", "5")
    told = of_json(cli(*options, "--compare", "lexical, hybrid", "--json", store=None))
    assert [each["relevance"] for each in told["compared"]] == ["lexical", "hybrid"]
    assert (told["settings"]["relevance"], told["settings"]["weights"]) == ("lexical", [1, 0, 0])
    for each in told["compared"]:
        alone = of_json(cli(*options, "--relevance", each["relevance"], "--json", store=None))
        assert each["scores"] == alone["evaluation"]["overall"]
        assert alone["compared"] == []
    lexical, hybrid = (each["scores"]["recall"]["5"] for each in told["compared"])
    assert told["compared"][1]["difference"]["recall"]["5"] == pytest.approx(hybrid - lexical)
    for asked, message in (
        (("--compare", "lexical", "--relevance", "hybrid"), "--relevance and --compare both say what is asked"),
        (("--compare", "lexical,words"), "--compare lexical,words: 'words' is none of cosine, lexical, hybrid"),
    ):
        code, _, err = cli("replay", "ops_agent", *asked, store=None)
        assert code == 2
        assert message in err


def test_replay_checks_where_it_writes_before_it_begins(cli, tmp_path):
    trace = tmp_path / "t.jsonl"
    trace.write_text(json.dumps({"event_id": "e", "time": T0, "content": "x"}) + "\n", encoding="utf-8")
    before = trace.read_bytes()
    for options, message in (
        (("--answers", str(trace)), "or is the trace itself"),
        (("--answers", str(tmp_path / "a.md"), "--report", str(tmp_path / "a.md")), "is named twice"),
        (("--report", str(tmp_path / "none" / "r.md")), "its folder is not there"),
    ):
        code, out, err = cli("replay", str(trace), *options, store=tmp_path / "kept")
        assert (code, out) == (1, "")
        assert message in err
    assert trace.read_bytes() == before
    assert not (tmp_path / "kept").exists()


def test_replay_does_not_go_into_the_store_of_the_environment(tmp_path):
    environment = {"MEMCORE_STORE": str(tmp_path / "mine")}
    result = CliRunner().invoke(main, ["--embedder", "hashed", "replay", "ops_agent", "--limit", "5"], env=environment)
    assert result.exit_code == 0
    assert not (tmp_path / "mine").exists()


def test_export_and_import_show_a_bar_on_a_terminal_alone(cli, tmp_path):
    ok(cli("remember", "a"))
    path = str(tmp_path / "x.jsonl")
    ok(cli("export", path))  # nothing on a stderr that is none
    for store, verb in (("m", "export"), ("other", "import")):
        ours, theirs = pty.openpty()
        done = subprocess.run(
            [BINARY, "--store", str(tmp_path / store), "--embedder", "hashed", verb, path],
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100"}, stdout=subprocess.PIPE, stderr=theirs, check=True,
        )  # fmt: skip
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # what a terminal says when nobody has it open any more
            while block := os.read(ours, 65_536):
                shown += block
        os.close(ours)
        assert verb.encode() in shown
        assert b"1/1" in shown
        assert b"1 rows" in done.stdout


def test_export_and_stats_keep_to_the_scope_that_is_named(cli, tmp_path):
    ok(cli("remember", "of acme", scope=("--tenant", "acme")))
    ok(cli("remember", "of beta", scope=("--tenant", "beta")))
    path = tmp_path / "acme.jsonl"
    assert of_json(cli("export", str(path), "--json", scope=("--tenant", "acme")))["rows"] == 1
    assert "of beta" not in path.read_text(encoding="utf-8")
    assert of_json(cli("stats", "--json", scope=("--tenant", "acme")))["memories"] == 1
    assert of_json(cli("stats", "--json"))["memories"] == 2


def test_list_tells_that_there_is_more(cli):
    for i in range(3):
        ok(cli("remember", f"row {i}"))
    code, out, err = cli("list", "--limit", "2")
    assert (code, out.count("\n"), err) == (0, 2, "memcore: 2 shown; --offset 2 goes on\n")
    assert cli("list", "--limit", "3")[2] == ""


def test_text_cannot_drive_the_terminal(cli):
    ok(cli("remember", "a\x1b]0;title\x07b\nc", "--key", "k"))
    for verb in (("list",), ("recall", "a"), ("get", "--key", "k")):
        assert not {"\x1b", "\x07"} & set(ok(cli(*verb)))


def test_hostile_json_and_a_blank_store_are_one_line_errors(cli):
    deep = "[" * 100_000
    for arguments in (("remember", "x", "--metadata", '{"a":' + deep), ("list", "--where", "metadata.a=\udcff")):
        code, out, err = cli(*arguments)
        assert (code, out, err.count("\n")) == (1, "", 1)
    assert cli("list", "--where", "metadata.a=" + deep)[0] == 0
    code, _, err = cli("list", store="")
    assert (code, err) == (1, "memcore: --store is blank; name the store's directory, for the one you are in as ./\n")


def test_the_shipped_trace_is_found_by_its_name(cli):
    told = of_json(cli("replay", "ops_agent", "--embedder", "hashed", "--limit", "100", "--json"))
    assert told["traces"][0]["events"] == 100


def test_help_and_version_load_nothing_heavy():
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from memcore.cli import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0\n"
        "heavy = {'numpy', 'pyarrow', 'numba', 'faiss', 'wordllama', 'tokenizers', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    done = subprocess.run([BINARY, "--version"], check=True, capture_output=True, text=True)
    assert done.stdout == f"memcore, version {memcore.__version__}\n"

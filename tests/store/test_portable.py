"""export and import: a round trip loses nothing, a second import adds nothing, and a bad file changes nothing."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore.embed import HashedEmbedder
from memcore.store import portable, segment
from memcore.store.snapshot import Selection
from modelled import columns

FORMATS = ("json", "jsonl", "parquet")
EVERY_ROW = Selection(frozenset(range(4)), now=0, expired=True, superseded=True)
T = datetime(2026, 3, 1, 9, 30, 0, 123456, tzinfo=UTC)
ID = "01890a5d-ac96-774b-bcce-b302099a8057"
TEXTS = (
    "plain",
    "a\u2028b\u0085c\x0bd",
    "caf\u00e9 cafe\u0301",
    "🦉👩‍👩‍👧‍👦",
    "CR\r\nLF\r",
    '"quoted" \\ {json}',
    " spaces ",
    "\ufeffBOM",
    "tab\t",
)


def opened(**more: Any) -> memcore.Memory:
    return memcore.open(**{"embedder": None, "clock": lambda: T, **more})


def every(mem: memcore.Memory) -> list[dict[str, Any]]:
    """All versions of all memories in all scopes, in order, with their seqs."""
    rows = []
    for name in mem.scopes():
        snapshot = mem._engine.catalog.snapshot(name)
        for position in snapshot.positions(snapshot.masks(EVERY_ROW)).tolist():
            record = snapshot.record(position)
            rows.append({**columns(record), "seq": record.seq})
    return rows


def filled(mem: memcore.Memory) -> memcore.Memory:
    """A store with something of everything."""
    for tenant in ("acme", "a%", "caf\u00e9"):
        ops = mem.scope(tenant, "p", "s", "r")
        for i, text in enumerate(TEXTS):
            ops.remember(
                text, importance=0.1 * i, event_time=T - timedelta(microseconds=i),
                metadata={"i": i, text: [text, None]},
                vector=np.random.default_rng(i).standard_normal(5), idempotency_key=f"call {i}",
            )  # fmt: skip
        ops.remember(
            "old", kind="semantic", key="k", expires_at=T, source="told_by_user", confidence=0.7, untrusted=True
        )
        ops.remember("new", kind="semantic", key="k", level=3)
        ops.remember("skill", kind="procedural", key="k", metadata={"schema": {"type": "object"}})
        ops.update(ops.get(key="k").id, importance=0.3)
        ops.recall(k=3)
        for i in range(4):
            ops.working().add("user", f"message {i}")
        ops.forget(ops.remember("gone, never to be seen").id)
    return mem


# Round trips


@pytest.mark.parametrize("format", FORMATS)
def test_a_round_trip_loses_nothing(tmp_path, format):
    mem = filled(opened(working_capacity=2))
    path = tmp_path / f"x.{format}"
    assert mem.export(path) == len(every(mem))
    assert b"never to be seen" not in path.read_bytes()
    other = opened(working_capacity=2)
    assert other.import_(path) == portable.ImportReport(new=len(every(mem)), present=0)
    assert every(other) == every(mem)
    assert other.export(tmp_path / "again", format) == len(every(mem))
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    # and it goes on as the first would have
    for store in (mem, other):
        ops = store.scope("acme", "p", "s", "r")
        assert ops.remember("again", idempotency_key="call 3").content == TEXTS[3]
        assert ops.remember("newer", kind="semantic", key="k").version == 3
        assert len(ops.working().entries()) == 2
        assert len(ops.end_session()) == 4
    assert [r["content"] for r in every(other)] == [r["content"] for r in every(mem)]


vectors = st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=3)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
texts = st.text(min_size=1, max_size=20).filter(lambda t: visible(t))


def visible(text: str) -> bool:
    try:
        opened().remember(text)
    except memcore.InvalidInput:
        return False
    return True


@given(
    written=st.lists(
        st.fixed_dictionaries(
            {"content": texts},
            optional={
                "tenant": st.sampled_from(("t", "u")),
                "kind": st.sampled_from(memcore.KINDS),
                "key": st.sampled_from(("a", "b")),
                "importance": st.floats(0, 1),
                "confidence": st.floats(0, 1),
                "event_time": st.datetimes(timezones=st.just(UTC)),
                "expires_at": st.datetimes(timezones=st.just(UTC)),
                "metadata": st.dictionaries(st.text(), json_values, max_size=3).filter(lambda m: storable(m)),
                "vector": vectors,
                "source": texts,
                "now": st.datetimes(timezones=st.just(UTC)),
                "idempotency_key": texts,
            },
        ),
        max_size=12,
    ),
    format=st.sampled_from(FORMATS),
)
@settings(max_examples=120, deadline=None)
def test_a_round_trip_of_any_store(written, format, tmp_path_factory):
    mem = opened(working_capacity=2)
    for row in written:
        mem.scope(row.pop("tenant", "t")).remember(**row)
    path = tmp_path_factory.mktemp("any") / "x"
    mem.export(path, format)
    other = opened(working_capacity=2)
    other.import_(path, format)
    assert every(other) == every(mem)


def storable(metadata: dict[str, Any]) -> bool:
    try:
        opened().remember("x", metadata=metadata)
    except memcore.InvalidInput:
        return False
    return True


@pytest.mark.parametrize("format", FORMATS)
def test_an_import_of_many_batches(tmp_path, format, monkeypatch):
    """Versions of one memory lie in different batches, and scopes interleave."""
    monkeypatch.setattr(portable, "_BATCH", 7)
    monkeypatch.setattr(segment, "ROWS", 8)
    mem = opened()
    for i in range(60):
        mem.scope(f"t{i % 3}").remember(str(i), kind="semantic", key=f"k{i % 4}", vector=[1.0, i] if i % 5 else None)
    mem.export(tmp_path / "x", format)
    other = opened()
    assert other.import_(tmp_path / "x", format).new == 60
    assert every(other) == every(mem)
    assert other.import_(tmp_path / "x", format) == portable.ImportReport(new=0, present=60)


@pytest.mark.parametrize("format", ["json", "jsonl"])
def test_rows_in_any_order_are_put_in_theirs(tmp_path, format, monkeypatch):
    monkeypatch.setattr(portable, "_BATCH", 5)
    mem = opened()
    for i in range(23):
        mem.scope(f"t{i % 2}").remember(str(i), kind="semantic", key=f"k{i % 3}")
    path = tmp_path / f"x.{format}"
    mem.export(path)
    header, rows = read(path)
    np.random.default_rng(0).shuffle(rows)
    written(path, rows, header)
    other = opened()
    other.import_(path)
    assert every(other) == every(mem)


@pytest.mark.parametrize("format", FORMATS)
def test_a_working_memory_that_was_changed_keeps_its_place(tmp_path, format):
    mem = opened()
    chat = mem.working()
    records = [chat.add("user", str(i)) for i in range(4)]
    mem.update(records[1].id, content="one")
    assert [m["content"] for m in chat.messages()] == ["0", "one", "2", "3"]
    mem.export(tmp_path / "x", format)
    other = opened()
    other.import_(tmp_path / "x", format)
    assert other.working().messages() == chat.messages()


def test_an_empty_store(tmp_path):
    for format in FORMATS:
        assert opened().export(tmp_path / format, format) == 0
        assert opened().import_(tmp_path / format, format) == portable.ImportReport(0, 0)


def test_the_format_is_in_the_name_or_said(tmp_path):
    mem = filled(opened())
    for name in ("x.json", "x.JSONL", "x.ndjson", "x.parquet"):
        mem.export(tmp_path / name)
    assert json.loads((tmp_path / "x.json").read_bytes())["memcore"]["memcore_format"] == "1"
    assert (tmp_path / "x.JSONL").read_bytes() == (tmp_path / "x.ndjson").read_bytes()
    for call in (mem.export, mem.import_):
        with pytest.raises(memcore.InvalidInput) as raised:
            call(tmp_path / "x.txt")
        assert str(raised.value) == (
            "the name 'x.txt' tells no format; end it in .json, .jsonl, .ndjson, .parquet, or pass format= one of "
            "json, jsonl, parquet"
        )
        with pytest.raises(memcore.InvalidInput, match="format is 'csv'"):
            call(tmp_path / "x", "csv")


def test_an_export_can_be_read_by_others(tmp_path):
    mem = filled(opened())
    mem.export(tmp_path / "x.parquet")
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.column("content").to_pylist()[0] == TEXTS[0]
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 5)
    mem.export(tmp_path / "x.jsonl")
    header, rows = read(tmp_path / "x.jsonl")
    assert header == {"memcore_format": "1", "embedder": "", "dim": "5", "rows": str(len(rows))}
    assert (rows[0]["event_time"], rows[0]["importance"], rows[3]["importance"]) == (
        "2026-03-01T09:30:00.123456Z",
        0.0,
        0.3,
    )
    assert rows[0]["metadata"] == {"i": 0, "plain": ["plain", None]}


def test_case_D5_the_instant_is_the_same_everywhere(tmp_path):
    moment = datetime(2030, 6, 1, 0, 0, 0, 123000, tzinfo=UTC)
    mem = opened()
    mem.remember("x", event_time=moment)
    for format in FORMATS:
        mem.export(tmp_path / format, format)
        other = opened()
        other.import_(tmp_path / format, format)
        assert other.list()[0].event_time == moment


# Into a store that has something


@pytest.mark.parametrize("format", FORMATS)
def test_case_M11_ones_own_export_adds_nothing(tmp_path, format):
    mem = opened()
    ids = mem.remember_many(
        [{"content": str(i), "level": i % 2, "kind": "semantic", "key": str(i % 18)} for i in range(22)]
    )
    mem.forget(ids[0])
    path = tmp_path / f"x.{format}"
    rows = mem.export(path)
    before = every(mem)
    assert mem.import_(path) == portable.ImportReport(new=0, present=rows)
    assert every(mem) == before
    other = opened()
    assert other.import_(path).new == rows
    assert every(other) == before
    other.export(tmp_path / "again", format)
    assert (tmp_path / "again").read_bytes() == path.read_bytes()
    # what is forgotten stays so where it is forgotten before, and comes back where the file is older than that
    other.forget(ids[3])
    assert other.import_(path).new == 2


def test_what_is_here_stays_and_what_is_new_follows(tmp_path):
    mem = opened()
    first = mem.remember("A")
    mem.export(tmp_path / "x.jsonl")
    mem.update(first.id, content="B")  # changed here since
    mem.remember("C")
    other = opened()
    other.remember("here before")
    other.import_(tmp_path / "x.jsonl")
    assert [(r.content, r.seq) for r in other.list()] == [("here before", 1), ("A", 2)]
    assert mem.import_(tmp_path / "x.jsonl").new == 0
    assert [r.content for r in mem.list()] == ["B", "C"]


@pytest.mark.parametrize(("ours", "theirs", "winner"), [(10, 20, "theirs"), (20, 10, "ours"), (10, 10, "ours")])
@pytest.mark.parametrize("format", FORMATS)
def test_a_key_in_use_goes_to_the_one_ingested_later(tmp_path, format, ours, theirs, winner):
    there = opened()
    there.remember("theirs, first", kind="semantic", key="k", now=theirs - 1)
    there.remember("theirs", kind="semantic", key="k", now=theirs)
    there.export(tmp_path / "x", format)
    here = opened()
    here.remember("ours", kind="semantic", key="k", now=ours)
    assert here.import_(tmp_path / "x", format).new == 2
    assert [r.content for r in here.list()] == [winner]
    assert here.get(key="k").content == winner
    (loser,) = {"ours", "theirs"} - {winner}
    lost = [r for r in every(here) if r["content"] == loser]
    assert lost[0]["superseded_at"].timestamp() == max(ours, theirs)
    assert [r.content for r in here.list(as_of=9)] == (["theirs, first"] if theirs == 10 else [])
    assert here.remember("next", kind="semantic", key="k").version == (3 if winner == "theirs" else 2)
    # the loser is history, can be asked for by its id, and can be forgotten
    assert [r.content for r in here.history(id=lost[0]["id"])][-1] == loser
    assert here.forget(lost[0]["id"]).ids == [lost[0]["id"]]
    assert here.forget(everything=True).count == 1
    assert every(here) == []


def test_a_version_that_a_file_tells_to_have_stood_beside_the_next_one_gave_way_to_it(tmp_path):
    source, path = opened(), tmp_path / "x.jsonl"
    for hour in (0, 1):
        source.remember(f"at {hour}", kind="semantic", key="k", now=T + timedelta(hours=hour))
    source.export(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["superseded_at"] = (T + timedelta(hours=5)).isoformat()
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with opened() as mem:
        mem.import_(path)
        assert [row.content for row in mem.list(as_of=T + timedelta(hours=2))] == ["at 1"]
        assert mem.verify().ok


def test_two_rows_of_a_file_that_claim_one_key(tmp_path):
    rows = []
    for name, now in (("A", 30), ("B", 20), ("C", 30), ("D", 10)):
        mem = opened()
        mem.remember(name, kind="semantic", key="k", now=now)
        mem.export(tmp_path / "x.jsonl")
        rows += read(tmp_path / "x.jsonl")[1]
    written(tmp_path / "x.jsonl", rows)
    mem = opened()
    mem.import_(tmp_path / "x.jsonl")
    assert [r.content for r in mem.list()] == ["C"]
    assert mem.stats()["versions"] == 4
    assert mem.forget(everything=True).count == 4


def test_two_standing_versions_of_one_memory(tmp_path):
    """As in two exports, one made later, put together."""
    mem = opened()
    first = mem.remember("A", now=1)
    mem.export(tmp_path / "x.jsonl")
    rows = read(tmp_path / "x.jsonl")[1]
    mem.update(first.id, content="B", now=5)
    mem.export(tmp_path / "x.jsonl")
    rows += [row for row in read(tmp_path / "x.jsonl")[1] if row["version"] == 2]
    written(tmp_path / "x.jsonl", rows * 2)
    other = opened()
    assert other.import_(tmp_path / "x.jsonl") == portable.ImportReport(new=2, present=2)
    assert every(other) == every(mem)


def test_an_import_is_atomic_to_readers(tmp_path):
    mem = filled(opened())
    rows = mem.export(tmp_path / "x.parquet")
    other = opened()
    seen: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(other.stats()["versions"])

    reader = threading.Thread(target=read)
    reader.start()
    other.import_(tmp_path / "x.parquet")
    done.set()
    reader.join()
    assert set(seen) <= {0, rows}


# Plain rows


def test_case_D9_dates_of_plain_rows_are_kept(tmp_path):
    dates = ["2019-03-04T00:00:00Z", "2021-05-06T12:00:00+02:00", "2023-07-08T00:00:00.5Z"]
    rows = [{"content": f"row {i}", "event_time": date} for i, date in enumerate(dates)]
    written(tmp_path / "x.jsonl", rows[::-1])
    mem = opened()
    assert mem.import_(tmp_path / "x.jsonl") == portable.ImportReport(new=3, present=0)
    found = sorted(mem.list(), key=lambda r: r.event_time)
    assert [r.content for r in found] == ["row 0", "row 1", "row 2"]
    assert [r.event_time for r in found] == [datetime.fromisoformat(date) for date in dates]
    assert {r.ingested_at for r in found} == {T}
    assert [h.content for h in mem.recall(k=3)] == ["row 2", "row 1", "row 0"]
    mem.export(tmp_path / "y.jsonl")
    other = opened()
    other.import_(tmp_path / "y.jsonl")
    assert every(other) == every(mem)


def test_plain_rows_go_where_they_say_and_are_embedded_once(tmp_path):
    asked: list[str] = []

    class Counting(HashedEmbedder):
        def embed(self, texts: Any, kind: Any = "document") -> Any:
            asked.extend(texts)
            return super().embed(texts, kind)

    written(
        tmp_path / "x.jsonl",
        [
            {"content": "a", "tenant_id": "t", "session_id": "s", "metadata": {"n": 1}, "event_time": 5},
            {"content": "b", "kind": "semantic", "key": "k", "importance": 0.9},
            {"content": "c", "kind": "semantic", "key": "k"},
            {"content": "d", "idempotency_key": "once"},
            {"content": "d", "idempotency_key": "once"},
            {"content": "e", "vector": [1.0] + [0.0] * 255},
            {"content": "f", "id": ID},
        ],
    )
    mem = memcore.open(embedder=Counting(256))
    assert mem.import_(tmp_path / "x.jsonl") == portable.ImportReport(new=6, present=1)
    assert asked == ["a", "b", "c", "d", "d", "f"]
    assert [(r.session_id, r.metadata, r.event_time.timestamp()) for r in mem.scope("t").list()] == [("s", {"n": 1}, 5)]
    assert sorted((r.content, r.version) for r in mem.list()) == [("c", 2), ("d", 1), ("e", 1), ("f", 1)]
    assert all(r.vector is not None for r in mem.list())
    assert mem.get(ID).content == "f"
    # an id makes a second import of the row a no-op; the others are new again
    assert mem.import_(tmp_path / "x.jsonl") == portable.ImportReport(new=4, present=3)


def test_whole_rows_without_a_vector_stay_without(tmp_path):
    mem = opened()
    mem.remember("no vector")
    mem.remember("zero", vector=[0.0, 0.0])
    for format in FORMATS:
        mem.export(tmp_path / format, format)
        other = memcore.open(embedder=None)
        other.import_(tmp_path / format, format)
        assert [None if r.vector is None else r.vector.tolist() for r in other.list()] == [None, [0.0, 0.0]]
    written(tmp_path / "x.jsonl", [row for row in read(tmp_path / "jsonl", "jsonl")[1] if "vector" not in row])
    embedding = memcore.open(embedder=lambda texts: [[1.0, 0.0] for _ in texts])
    embedding.import_(tmp_path / "x.jsonl")
    assert embedding.list()[0].vector is None


def test_rows_of_all_kinds_in_one_file(tmp_path):
    mem = opened()
    mem.remember("whole", now=5)
    mem.export(tmp_path / "x.jsonl")
    header, rows = read(tmp_path / "x.jsonl")
    written(tmp_path / "x.jsonl", [{"content": "new"}, {"content": "with an id", "id": ID}, *rows], header)
    other = opened()
    assert other.import_(tmp_path / "x.jsonl").new == 3
    assert [(r.content, r.ingested_at.timestamp()) for r in other.list()] == [
        ("whole", 5), ("with an id", T.timestamp()), ("new", T.timestamp()),
    ]  # fmt: skip


def test_parquet_of_others(tmp_path):
    pq.write_table(
        pa.table(
            {
                "content": ["a", "b"],
                "vector": pa.array([[3.0, 4.0], None], pa.list_(pa.float64())),
                "event_time": pa.array([T, None], pa.timestamp("ns", "America/Sao_Paulo")),
                "metadata": ['{"n": 1}', None],
                "importance": pa.array([1, 0], pa.int8()),
                "key": pa.array(["k", "l"]).dictionary_encode(),
            }
        ),
        tmp_path / "x.parquet",
    )
    mem = opened()
    assert mem.import_(tmp_path / "x.parquet").new == 2
    a, b = mem.list()
    assert (a.vector.tolist(), b.vector) == (np.array([0.6, 0.8], np.float32).tolist(), None)
    assert (a.event_time, b.event_time, a.metadata, a.importance, a.key) == (T, T, {"n": 1}, 1.0, "k")


@pytest.mark.parametrize("end", ["\r\n", "\n"])
def test_case_M7_blank_lines_and_line_ends(tmp_path, end):
    lines = ['{"content": "1"}', "", '{"content": "2"}', "   ", '{"content": "3"}']
    (tmp_path / "x.jsonl").write_bytes(b"\xef\xbb\xbf" + end.join(lines).encode())
    mem = opened()
    mem.import_(tmp_path / "x.jsonl")
    assert [r.content for r in mem.list()] == ["1", "2", "3"]


def test_case_M5_line_separators_inside_a_text(tmp_path):
    line = '{"content":"a\u2028b\u0085c\u2029d"}'
    (tmp_path / "x.jsonl").write_text(f'{{"content":"1"}}\n{line}\n{{"content":"3"}}\n', encoding="utf-8", newline="")
    mem = opened()
    mem.import_(tmp_path / "x.jsonl")
    assert [r.content for r in mem.list()] == ["1", "a\u2028b\u0085c\u2029d", "3"]


# Bad files


def read(path: Path, format: str | None = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    if portable.format_of(path, format) == "json":
        document = json.loads(path.read_bytes())
        return document["memcore"], document["records"]
    first, *rest = path.read_bytes().split(b"\n")[:-1]
    return json.loads(first)["memcore"], [json.loads(line) for line in rest]


def written(path: Path, rows: list[Any], header: dict[str, Any] | None = None) -> Path:
    if path.suffix == ".json":
        path.write_text(
            json.dumps({"memcore": header, "records": rows} if header else {"records": rows}), encoding="utf-8"
        )
    else:
        lines = [*([{"memcore": header}] if header else []), *rows]
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in lines), encoding="utf-8")
    return path


def refused(path: Path, error: type[Exception], message: str, mem: memcore.Memory | None = None) -> None:
    """The import raises this, word for word after the file's path, and leaves the store as it was."""
    mem = mem or filled(opened())
    before = every(mem), mem.stats(), mem.scopes()
    with pytest.raises(error) as raised:
        mem.import_(path)
    assert type(raised.value) is error
    assert str(raised.value) == f"{path}{message}"
    after = every(mem), mem.stats(), mem.scopes()
    assert after == before


GOOD = {"content": "fine"}
BAD_ROWS = [
    (
        {"content": " "},
        "content is blank (' '); it needs at least one visible character: skip it, or say what it means",
    ),
    ({"content": 5}, "content is 5 (int); it must be a text (str): pass str(value) if that is meant"),
    ({"content": "x", "importance": 2}, "importance is 2; it must be in [0, 1]: divide a rating of 1 to 10 by 10"),
    (
        {"content": "x", "vector": "####"},
        "vector is neither a list of numbers nor the base64 of float32; export the file anew",
    ),
    (
        {"content": "x", "vector": "AAA="},
        "vector is neither a list of numbers nor the base64 of float32; export the file anew",
    ),
    ({"content": "x", "kind": "fact"}, "kind is 'fact' (str); the kinds are working, episodic, semantic, procedural"),
    ({"content": "x", "event_time": "2020-01-01T00:00"}, "event_time is '2020-01-01T00:00'"),
    ({"content": "x", "metadata": [1]}, "metadata is [1] (list); it must be a JSON object (dict with text keys)"),
    ({"content": "x", "id": "7"}, "id is '7' (str); an id is a UUID"),
    (
        {"content": "x", "seq": 7},
        "it has seq but not all of id, seq, version, ingested_at; a record is either as export",
    ),
    ({"content": "x", "access_count": 7}, "it has access_count but not all of id, seq, version, ingested_at"),
    ({"content": "x", "color": "red"}, "unknown field 'color' (str); a record has id, seq, version, tenant_id"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_ROWS, ids=[m[:24] for _, m in BAD_ROWS])
@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_a_bad_row_is_named_by_file_and_place(tmp_path, bad, message, suffix, monkeypatch):
    monkeypatch.setattr(portable, "_BATCH", 2)
    path = written(tmp_path / f"x.{suffix}", [GOOD, GOOD, GOOD, bad, GOOD])
    mem = filled(opened())
    before = every(mem)
    with pytest.raises(memcore.InvalidInput) as raised:
        mem.import_(path)
    place = "records[3]" if suffix == "json" else "line 4"
    assert str(raised.value).startswith(f"{path}, {place}: {message}")
    assert "othing was imported" in str(raised.value)
    assert every(mem) == before


def test_blank_lines_and_a_header_count_as_lines(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"memcore": {"memcore_format": "1"}}\n\n{"content": "fine"}\n\n{"content": ""}\n')
    refused(
        path,
        memcore.InvalidInput,
        ", line 5: content is blank (''); it needs at least one visible character: skip it, or say what it means. "
        "Nothing was imported",
    )


WHOLE_FAULTS = [
    ({"seq": -1}, "seq is -1; it must be at least 0"),
    ({"seq": 2**70}, f"seq is {2**70}; it must be at most {2**62}"),
    ({"seq": 1.0}, "seq is 1.0"),
    ({"version": 0}, "version is 0; it must be at least 1"),
    ({"version": 2**31}, f"version is {2**31}; it must be at most {2**30}"),
    ({"version": None}, "it has seq, ingested_at, access_count but not all of id, seq, version, ingested_at"),
    ({"id": None}, "it has seq, version, ingested_at, access_count but not all of id"),
    ({"access_count": "7"}, "access_count is '7'"),
    ({"last_access": "soon"}, "last_access is 'soon'"),
    ({"superseded_at": []}, "superseded_at is [] (list)"),
    ({"ingested_at": "2020-01-01"}, "ingested_at is '2020-01-01'"),
]


@pytest.mark.parametrize(("change", "message"), WHOLE_FAULTS, ids=[str(c) for c, _ in WHOLE_FAULTS])
def test_a_whole_row_with_a_fault_is_named(tmp_path, change, message):
    path = tmp_path / "x.jsonl"
    mem = opened()
    mem.remember_many(["a", "b", "c"])
    mem.export(path)
    header, rows = read(path)
    rows[1] |= change
    written(path, rows, header)
    before = every(mem)
    with pytest.raises(memcore.InvalidInput) as raised:
        mem.import_(path)
    assert str(raised.value).startswith(f"{path}, line 3: {message}")
    assert every(mem) == before


def test_what_is_not_json(tmp_path):
    path = tmp_path / "x.jsonl"
    for line, reason in (
        (b'{"content": "cut', "Unterminated string starting at: line 1 column 13 (char 12)"),
        (b'{"content": "\xff"}', "'utf-8' codec can't decode byte 0xff in position 13: invalid start byte"),
        (b"not json", "Expecting value: line 1 column 1 (char 0)"),
    ):
        path.write_bytes(b'{"content": "fine"}\n' + line + b"\n")
        message = f", line 2 is not JSON ({reason}). Nothing was imported; mend or remove the line"
        refused(path, memcore.InvalidInput, message)
    path.write_bytes(b'{"content": "fine"}\n[1]\n')
    refused(path, memcore.InvalidInput, ", line 2 is [1] (list); each line must be a JSON object")
    path.write_bytes(b'{"content": "' + b"[" * 100_000 + b"\n")
    with pytest.raises(memcore.InvalidInput, match="line 1 is not JSON"):
        opened().import_(path)
    path = tmp_path / "x.json"
    path.write_bytes(b'{"records": [')
    refused(
        path,
        memcore.InvalidInput,
        " is not a JSON document (Expecting value: line 1 column 14 (char 13)). Nothing was imported; use another copy",
    )
    for document in (b"[]", b"{}", b'{"records": {}}', b"null"):
        path.write_bytes(document)
        message = " has no list of 'records'; pass a state document written by export, or use .jsonl"
        refused(path, memcore.InvalidInput, message)
    path.write_bytes(b'{"records": [{"content": "fine"}, "row"]}')
    refused(path, memcore.InvalidInput, ", records[1] is 'row' (str); each record must be a JSON object")


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_was_cut_off_is_refused_wherever_it_was_cut(tmp_path, format):
    mem = opened()
    for i in range(20):
        mem.remember(f"{i} " + "x" * 50, vector=[1.0, i])
    path = tmp_path / f"x.{format}"
    mem.export(path)
    whole = path.read_bytes()
    other = opened()
    other.remember("here")
    ends = {*range(1, len(whole), max(1, len(whole) // 60)), len(whole) - 1}
    lines = [i + 1 for i, byte in enumerate(whole) if byte == 10][1:-1] if format == "jsonl" else []
    before = every(other)
    for end in sorted({*ends, *lines}):
        path.write_bytes(whole[:end])
        if format == "json" and whole[end:].strip() == b"":
            continue  # only the last line end is gone
        if format == "jsonl" and end == len(whole) - 1:
            continue
        with pytest.raises((memcore.InvalidInput, memcore.StoreCorrupt)) as raised:
            other.import_(path)
        assert str(raised.value).startswith(str(path))
        assert every(other) == before


def test_a_file_with_fewer_rows_than_it_tells(tmp_path):
    mem = opened()
    mem.remember_many(["a", "b", "c"])
    path = tmp_path / "x.jsonl"
    mem.export(path)
    header, rows = read(path)
    written(path, rows[:2], header)
    refused(
        path,
        memcore.StoreCorrupt,
        " has 2 rows and its header tells of 3: it was cut off. Nothing was imported; use another copy, or correct "
        "'rows' in its header if rows were taken out on purpose",
    )
    written(path, rows[:2], {**header, "rows": "2"})
    assert opened().import_(path).new == 2


def test_parquet_that_was_damaged(tmp_path):
    mem = opened()
    mem.remember_many(
        [{"content": f"{i} {np.random.default_rng(i).bytes(40).hex()}", "vector": [1.0, i]} for i in range(200)]
    )
    path = tmp_path / "x.parquet"
    mem.export(path)
    whole = path.read_bytes()
    told: list[str] = []
    for start in range(4, len(whole) - 64, len(whole) // 40):
        path.write_bytes(whole[:start] + bytes(64) + whole[start + 64 :])
        other = opened()
        try:
            other.import_(path)
        except (memcore.StoreCorrupt, memcore.InvalidInput) as fault:
            told.append(str(fault))
            assert every(other) == []
        else:
            assert every(other) == every(mem)  # the damage was in bytes that mean nothing
    assert len(told) > 20
    assert all(message.startswith(str(path)) for message in told)


def test_what_is_not_parquet(tmp_path):
    path = tmp_path / "x.parquet"
    for content in (b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b'{"content": "x"}'):
        path.write_bytes(content)
        with pytest.raises(memcore.StoreCorrupt) as raised:
            opened().import_(path)
        assert str(raised.value).startswith(f"{path} is not a whole Parquet file (")
    pq.write_table(pa.table({"content": ["x"], "metadata": ["{"]}), path)
    with pytest.raises(memcore.InvalidInput, match="row 0: metadata is not JSON"):
        opened().import_(path)
    pq.write_table(pa.table({"text": ["x"]}), path)
    with pytest.raises(memcore.InvalidInput, match="row 0: unknown field 'text'"):
        opened().import_(path)


@pytest.mark.parametrize("format", FORMATS)
def test_files_that_cannot_be_read_or_written_tell_the_path_and_the_reason(tmp_path, format):
    for path, reason in ((tmp_path / "none" / "x", "No such file or directory"), (tmp_path, "irectory")):
        with pytest.raises(memcore.StoreError) as raised:
            opened().import_(path, format)
        assert str(raised.value).startswith(f"cannot read {path}: ")
        assert reason in str(raised.value)
    with pytest.raises(memcore.StoreError) as raised:
        opened().export(tmp_path / "none" / "x", format)
    assert str(raised.value) == (
        f"cannot write {tmp_path / 'none' / 'x'}: No such file or directory; check that its folder exists and is "
        "writable"
    )
    (tmp_path / "folder").mkdir()
    with pytest.raises(memcore.StoreError, match="Is a directory; free space there, or choose another place"):
        opened().export(tmp_path / "folder", format)
    assert [p.name for p in tmp_path.iterdir()] == ["folder"]  # nothing half-written stays


def test_a_full_disk_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    mem = filled(opened())
    path = tmp_path / "x.jsonl"
    path.write_text("precious")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(memcore.StoreError) as raised:
        mem.export(path)
    assert (
        str(raised.value) == f"cannot write {path}: No space left on device; free space there, or choose another place"
    )
    assert path.read_text() == "precious"
    assert [p.name for p in tmp_path.iterdir()] == ["x.jsonl"]


def test_who_reads_the_old_file_reads_all_of_it(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text("what was there before")
    with path.open() as reader:
        filled(opened()).export(path)
        assert reader.read() == "what was there before"
    assert read(path)[1]


# Headers


def with_header(path: Path, **changes: Any) -> Path:
    mem = opened()
    mem.remember("x", vector=[1.0, 0.0])
    mem.export(path)
    header, rows = read(path)
    return written(path, rows, {**header, **changes})


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_headers_are_checked(tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    refused(
        with_header(path, memcore_format="2"),
        memcore.FormatTooNew,
        " is in format 2 and this memcore reads up to format 1; upgrade memcore-engine",
        opened(),
    )
    refused(
        with_header(path, embedder="other/3"),
        memcore.EmbedderMismatch,
        " holds vectors of the embedder 'other/3' and this store uses 'hashed/2/1'; vectors of two embedders cannot be "
        "compared: open a store with the embedder of which the fingerprint is 'other/3' (and reembed it "
        "then), or remember the texts anew",
        memcore.open(embedder=HashedEmbedder(2)),
    )
    refused(
        with_header(path),
        memcore.EmbedderMismatch,
        " holds vectors that its writer passed, of no known embedder, and this store uses 'hashed/2/1'; they cannot be "
        "compared: open a store with embedder=None, or remember the texts anew",
        memcore.open(embedder=HashedEmbedder(2)),
    )
    with pytest.raises(memcore.EmbedderMismatch) as raised:
        memcore.open(embedder=HashedEmbedder(2)).import_(with_header(path, embedder="hashed/256/1"))
    told = 'open a store with embedder="hashed" (--embedder hashed) (and reembed it then), or remember the texts anew'
    assert told in str(raised.value)
    assert (raised.value.stored, raised.value.given) == ("hashed/2/1", "hashed/256/1")
    three = opened()
    three.remember("y", vector=[1.0, 0.0, 0.0])
    refused(
        with_header(path),
        memcore.EmbedderMismatch,
        " holds vectors of 2 dimensions and this store has 3; open a store with an embedder of 2 dimensions, or "
        "remember the texts anew",
        three,
    )
    for broken in ({"memcore_format": "x"}, {"dim": "-1"}, {"rows": []}, {"embedder": 5}, {"memcore_format": "0"}):
        with pytest.raises(memcore.StoreCorrupt) as raised:
            opened().import_(with_header(path, **broken))
        assert str(raised.value).startswith(f"{path} has the header {{")
        assert "it must name memcore_format, embedder, dim and rows as export writes them: use another copy" in str(
            raised.value
        )


def test_parquet_headers_are_checked(tmp_path):
    path = tmp_path / "x.parquet"
    mem = opened()
    mem.remember("x", vector=[1.0, 0.0])
    mem.export(path)
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"memcore_format": b"9"}), path)
    with pytest.raises(memcore.FormatTooNew, match="is in format 9"):
        opened().import_(path)


def test_a_row_of_another_width_than_the_file_tells(tmp_path):
    rows = [{"content": "x", "vector": [1.0, 0.0]}, {"content": "y", "vector": [1.0, 0.0, 0.0]}]
    path = written(tmp_path / "x.jsonl", rows)
    with pytest.raises(memcore.DimensionMismatch, match=r"x.jsonl, line 2: vector has 3 dimensions"):
        opened().import_(path)


def test_an_export_names_the_embedder_also_when_the_store_is_opened_without(tmp_path):
    mem = memcore.open(embedder="hashed")
    mem.remember("x")
    mem.export(tmp_path / "x.jsonl")
    other = opened()
    other.import_(tmp_path / "x.jsonl")
    other.export(tmp_path / "y.jsonl")
    assert (tmp_path / "y.jsonl").read_bytes() == (tmp_path / "x.jsonl").read_bytes()
    with pytest.raises(memcore.EmbedderMismatch):
        memcore.open(embedder=HashedEmbedder(64)).import_(tmp_path / "y.jsonl")
    with_header(tmp_path / "z.jsonl", embedder="other/3", dim="0")
    with pytest.raises(memcore.EmbedderMismatch):
        other.import_(tmp_path / "z.jsonl")


# Files of the cold tier


def cold_file(path, embedder):
    """A store whose rows lie in one cold file: that, and all that it holds but for the seqs."""
    with memcore.open(path, embedder=embedder) as mem:
        ops = mem.scope("acme", "p", "s", "r")
        given = {} if embedder else {"vector": np.arange(5.0)}
        ids = ops.remember_many(
            {"content": f"row {i}", "importance": 0.1, "event_time": T, "metadata": {"i": i}, **given} for i in range(6)
        )
        ops.update(ids[2], content="row 2 again", event_time=T, **given)
        ops.forget(ids[3])
        assert ops.prune(now=T + timedelta(days=400)).count == 5
        (file,) = (path / "cold").rglob("*.parquet")
        return file, {id: versions_of(ops, id, tiers=("hot", "cold")) for id in ids}


def versions_of(ops, id, **options):
    return ops.history(id=id, **options).to_arrow().drop_columns("seq").to_pylist()


@pytest.mark.parametrize("embedder", ["hashed", None])
def test_a_file_of_the_cold_tier_is_imported_whole(tmp_path, embedder):
    file, wanted = cold_file(tmp_path / "a", embedder)
    assert "_id_hi" in pq.read_schema(file).names
    with memcore.open(tmp_path / "b", embedder=embedder) as mem:
        assert mem.import_(file) == portable.ImportReport(new=6, present=0)
        ops = mem.scope("acme", "p", "s", "r")
        assert {id: versions_of(ops, id) for id in wanted} == wanted
        assert sorted(map(len, wanted.values())) == [0, 1, 1, 1, 1, 2]
        assert mem.import_(file) == portable.ImportReport(new=0, present=6)


def test_a_file_of_the_cold_tier_tells_the_width_of_its_vectors(tmp_path):
    file, _ = cold_file(tmp_path / "a", None)
    with memcore.open(embedder="hashed") as mem:
        mem.remember("here")
        with pytest.raises(memcore.EmbedderMismatch) as raised:
            mem.import_(file)
        assert f"{file} holds vectors that its writer passed, of no known embedder" in str(raised.value)


def test_a_column_with_an_underscore_is_passed_over_in_files_of_memcore_alone(tmp_path):
    path = tmp_path / "x.parquet"
    table = pa.table({"content": ["a", "b"], "_mine": [1, 2]})
    pq.write_table(table, path)
    with memcore.open(embedder=None) as mem:
        with pytest.raises(memcore.InvalidInput) as raised:
            mem.import_(path)
        assert f"{path}, row 0: unknown field '_mine' (str); a record has " in str(raised.value)
        pq.write_table(table.replace_schema_metadata({"memcore_format": "1"}), path)
        assert mem.import_(path) == portable.ImportReport(new=2, present=0)

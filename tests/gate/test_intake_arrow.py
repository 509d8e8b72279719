"""remember_many over Arrow: each type a column may have, sliced, chunked and with nulls, and what is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcore
from memcore import DimensionMismatch, InvalidInput, gate
from memcore.intake import FIELDS

HOW = "pass a list of texts, a list of dicts or a pyarrow Table: for a single text use remember"
ROWS = np.array([[3, 4], [0, 2], [-1, 0]])
UNIT = np.array([[0.6, 0.8], [0, 1], [-1, 0]], dtype=np.float32)


def contents(scope: Any) -> list[str]:
    return [record.content for record in scope.list()]


def table(**columns: Any) -> pa.Table:
    """A table of three rows with content."""
    return pa.table({"content": ["a", "b", "c"], **columns})


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t,
        lambda t: t.to_batches()[0],
        lambda t: t.to_reader(),
        lambda t: pa.RecordBatchReader.from_batches(t.schema, iter(t.to_batches(1))),
        lambda t: pa.concat_tables([t.slice(0, 1), t.slice(1, 0), t.slice(1)]),
        lambda t: pa.concat_tables([t, t]).slice(2, 3).take([1, 2, 0]),
        lambda t: Frame(t),
    ],
    ids=["table", "batch", "reader", "reader of batches", "chunked", "taken", "data frame"],
)
def test_rows_come_as_a_table_a_batch_a_reader_or_another_library_s_frame(mem, make):
    given = make(table(importance=[0.1, 0.2, 0.3], vector=pa.array(ROWS.tolist())))
    ids = mem.remember_many(given)
    assert [mem.get(id).content for id in ids] == contents(mem) == ["a", "b", "c"]
    assert [record.importance for record in mem.list()] == [0.1, 0.2, 0.3]
    assert np.stack([record.vector for record in mem.list()]).tobytes() == UNIT.tobytes()


class Frame:
    """What polars, pandas and others offer: their columns as an Arrow stream, with text types of their own."""

    def __init__(self, held: pa.Table) -> None:
        place = held.column_names.index("content")
        self._held = held.set_column(place, "content", held.column("content").cast(pa.string_view()))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._held.__arrow_c_stream__(requested_schema)


TEXT_TYPES = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "dictionary of large strings": pa.dictionary(pa.int8(), pa.large_string()),
}


@pytest.mark.parametrize("kind", TEXT_TYPES.values(), ids=TEXT_TYPES)
def test_texts_of_any_string_type(mem, kind):
    texts = ["não há conexão", "b" * 40, "不"]
    columns = {
        "content": pa.array(texts).cast(kind), "kind": pa.array(["semantic", None, "procedural"]).cast(kind),
        "key": pa.array(["k1", None, "k3"]).cast(kind), "source": pa.array([None, "told_by_user", None]).cast(kind),
        "session_id": pa.array(["s1", "s2", None]).cast(kind),
    }  # fmt: skip
    mem.remember_many(pa.table(columns))
    rows = [(r.content, r.kind, r.key, r.source, r.session_id) for r in mem.list()]
    assert rows == [
        (texts[0], "semantic", "k1", "observation", "s1"),
        (texts[1], "episodic", None, "told_by_user", "s2"),
        (texts[2], "procedural", "k3", "observation", "default"),
    ]


@pytest.mark.parametrize(
    "numbers",
    [
        pa.array([0, 1, None], pa.int8()),
        pa.array([0, 1, None], pa.uint64()),
        pa.array([0, 1, None], pa.float64()),
        pa.array([0, 1, None], pa.float32()),
        pa.array(np.array([0, 1, 0.5], np.float16)),
        pa.array([0.0, 1.0, 0.5]).dictionary_encode(),
    ],
    ids=lambda a: str(a.type),
)
def test_shares_of_any_number_type(mem, numbers):
    mem.remember_many(table(importance=numbers))
    assert [record.importance for record in mem.list()] == [0, 1, 0.5]


def test_the_other_scalar_columns(mem):
    ids = [f"00000000-0000-0000-0000-00000000000{i}" for i in range(3)]
    mem.remember_many(
        table(
            id=pa.array([bytes(15) + bytes([i]) for i in range(3)], pa.uuid()),
            untrusted=[True, None, False],
            level=pa.array([1, None, 2], pa.int8()),
            confidence=pa.nulls(3),
            idempotency_key=["call", None, None],
        )
    )
    assert [(r.id, r.untrusted, r.level, r.confidence) for r in mem.list()] == [
        (ids[0], True, 1, 1.0),
        (ids[1], False, 0, 1.0),
        (ids[2], False, 2, 1.0),
    ]
    assert mem.remember("again", idempotency_key="call").id == ids[0]


INSTANT = datetime(2026, 5, 1, 12, 0, 0, 123_456, tzinfo=UTC)


@pytest.mark.parametrize(
    ("unit", "ticks", "expected"),
    [
        ("s", 1_777_636_800, INSTANT.replace(microsecond=0)),
        ("ms", 1_777_636_800_123, INSTANT.replace(microsecond=123_000)),
        ("us", 1_777_636_800_123_456, INSTANT),
        ("ns", 1_777_636_800_123_456_000, INSTANT),
        ("ns", 1_777_636_800_123_456_499, INSTANT),
        ("ns", 1_777_636_800_123_456_500, INSTANT + timedelta(microseconds=1)),
        ("ns", -1_500, datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)),
        ("ns", -1_501, datetime(1969, 12, 31, 23, 59, 59, 999_998, tzinfo=UTC)),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "America/Sao_Paulo", "+09:00"])
def test_timestamps_with_a_zone_are_instants_of_any_unit(mem, unit, ticks, expected, zone):
    times = pa.array([ticks, None, ticks], pa.timestamp(unit, zone))
    mem.remember_many(table(event_time=times, expires_at=times.dictionary_encode()), now=7)
    first, second, third = mem.list(now=-1e9)
    assert first.event_time == first.expires_at == third.event_time == expected
    assert (second.event_time, second.expires_at) == (datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC), None)


def test_seconds_as_numbers(mem):
    mem.remember_many(table(event_time=[1_777_636_800.123456, 0.0, None]), now=7)
    assert [record.event_time.timestamp() for record in mem.list()] == [INSTANT.timestamp(), 0, 7]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_timestamp_without_a_zone_is_refused_whole(refused, unit):
    times = pa.array([1, 2, 3], pa.timestamp(unit))
    for mode in ("raise", "skip"):
        refused(
            lambda ops, mode=mode: ops.remember_many(table(event_time=times), on_invalid=mode),
            f"column 'event_time' has the type timestamp[{unit}], without a zone; times need one: pass "
            f"column.cast(pa.timestamp('{unit}', 'UTC')), or use pyarrow.compute.assume_timezone for local times",
        )


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_what_the_message_says_of_zones_works(mem, unit):
    times = pa.array([1_777_636_800], pa.timestamp("s")).cast(pa.timestamp(unit))
    mem.remember_many(pa.table({"content": ["a"], "event_time": times.cast(pa.timestamp(unit, "UTC"))}))
    local = pc.assume_timezone(times, "Asia/Tokyo")
    mem.remember_many(pa.table({"content": ["b"], "event_time": local}))
    assert [record.event_time.isoformat() for record in mem.list()] == [
        "2026-05-01T12:00:00+00:00",
        "2026-05-01T03:00:00+00:00",
    ]


KIND = (
    "row 1: event_time is {}; a time is a timezone-aware datetime or a number of seconds since the epoch: for a text "
    "use datetime.fromisoformat(text), for a date datetime.combine(date, time(0), tzinfo=timezone.utc). Nothing was "
    "stored: 1 of 3 rows is refused; on_invalid='skip' stores the good rows"
)
YEARS = (
    "row 1: event_time is {} µs, which is outside the years 1 to 9999 in UTC; pass a time within them, or leave it "
    "out. Nothing was stored: 1 of 3 rows is refused; on_invalid='skip' stores the good rows"
)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (pa.array([None, date(2026, 5, 1), None]), KIND.format("datetime.date(2026, 5, 1) (date)")),
        (pa.array([None, date(2026, 5, 1), None], pa.date64()), KIND.format("datetime.date(2026, 5, 1) (date)")),
        (pa.array([None, "2026-05-01", None]), KIND.format("'2026-05-01' (str)")),
        # Casting these to µs would overflow int64 into some other year.
        (pa.array([0, 10**15, 0], pa.timestamp("s", "UTC")), YEARS.format(10**21)),
        (pa.array([0, 18_446_744_073_709, 0], pa.timestamp("s", "UTC")), YEARS.format(18_446_744_073_709 * 10**6)),
        (pa.array([0, -(10**17), 0], pa.timestamp("us", "UTC")), YEARS.format(-(10**17))),
        (pa.array([0, 253_402_300_800_000, 0], pa.timestamp("ms", "UTC")), YEARS.format(253_402_300_800_000_000)),
    ],
    ids=range(7),
)
def test_a_time_that_cannot_be_is_refused(refused, times, message):
    refused(lambda ops: ops.remember_many(table(event_time=times)), message)


VECTOR_TYPES = {
    f"{name} of {numbers}": make(numbers)
    for numbers in (pa.float32(), pa.float64(), pa.float16(), pa.int8(), pa.int64())
    for name, make in (
        ("fixed-size list", lambda numbers: pa.list_(numbers, 2)),
        ("list", lambda numbers: pa.list_(numbers)),
        ("large list", lambda numbers: pa.large_list(numbers)),
        ("list view", lambda numbers: pa.list_view(numbers)),
    )
}


@pytest.mark.parametrize("kind", VECTOR_TYPES.values(), ids=VECTOR_TYPES)
@pytest.mark.parametrize("form", ["whole", "sliced", "chunked", "with null", "all null"])
def test_vectors_of_any_list_type(mem, kind, form):
    number = np.float16 if kind.value_type == pa.float16() else float if pa.types.is_floating(kind.value_type) else int
    rows: list[Any] = [[number(x) for x in row] for row in ROWS]
    expected: list[Any] = UNIT.tolist()
    texts = ["a", "b", "c"]
    if form == "with null":
        rows, expected, texts = [None, *rows, None], [None, *expected, None], ["n", *texts, "m"]
    if form == "all null":
        rows, expected = [None] * 3, [None] * 3
    if form == "sliced":
        rows, texts = [[number(9)] * 2, *rows, None, [number(8)] * 2], ["x", *texts, "y", "z"]
    given = pa.table({"content": texts, "vector": pa.array(rows, kind)})
    if form == "sliced":
        given = given.slice(1, 3)
    if form == "chunked":
        given = pa.concat_tables([given.slice(0, 2), given.slice(2, 0), given.slice(2)])
    mem.remember_many(given)
    assert [None if r.vector is None else r.vector.tolist() for r in mem.list()] == expected


def test_unit_float32_vectors_are_kept_to_the_bit(mem):
    unit = gate.vectors(np.random.default_rng(2).normal(size=(300, 64)), rows=300, dim=64, what="vectors")
    column = pa.FixedSizeListArray.from_arrays(pa.array(unit.reshape(-1)), 64)
    mem.remember_many(pa.table({"content": [f"row {i}" for i in range(300)], "vector": column}))
    assert np.stack([record.vector for record in mem.list()]).tobytes() == unit.tobytes()
    again = mem.list().to_arrow()
    assert again.column("vector").combine_chunks().flatten().to_numpy().tobytes() == unit.tobytes()


def test_tensors_are_vectors(mem):
    mem.remember_many(table(vector=pa.FixedShapeTensorArray.from_numpy_ndarray(ROWS.astype(np.float32))))
    assert np.stack([record.vector for record in mem.list()]).tobytes() == UNIT.tobytes()


FINITE = "vector has NaN or infinity at index 1; every number must be finite: leave the vector out"
NULL = "vector has null at index 1; every number must be there: leave that row out"
WIDTH = (
    "vector has {} dimensions and the store has 2; one store holds one width: pass vectors of width 2, or open another "
    "store for this embedder"
)
REAL = "it must hold real numbers (float or integer)"
BYTES = "bytes that may be numbers of any width; pass np.frombuffer(value, dtype=np.float32)"
PAIR = pa.list_(pa.float32(), 2)


@pytest.mark.parametrize(
    ("column", "message", "error"),
    [
        (pa.array([[1.0, 2.0], [1.0, float("nan")], None]), FINITE, InvalidInput),
        (pa.array([[1.0, 2.0], [1.0, float("inf")], None], PAIR), FINITE, InvalidInput),
        (pa.array([[1.0, 2.0], [1.0, None], [2.0, 3.0]], PAIR), NULL, InvalidInput),
        (pa.array([[1, 2], [1, None], None]), NULL, InvalidInput),
        (pa.array([[1.0, 2.0], [1.0], [2.0, 3.0]]), WIDTH.format(1), DimensionMismatch),
        (pa.array([[1.0, 2.0], [], [2.0, 3.0]]), WIDTH.format(0), DimensionMismatch),
        (pa.array([[1.0, 2.0], [1.0, 2.0, 3.0], None]), WIDTH.format(3), DimensionMismatch),
        (
            pa.array([None, ["1", "2"], None]),
            f"vector holds '1' (str); {REAL}: leave out what has none",
            InvalidInput,
        ),
        (
            pa.array([None, [True, False], None]),
            f"vector has dtype bool; {REAL}: convert it with np.asarray(rows, dtype=np.float32)",
            InvalidInput,
        ),
        (
            pa.array([None, [[1.0, 2.0]], None]),
            "vector has shape (1, 2); it must be one row of 2 numbers",
            DimensionMismatch,
        ),
        (pa.array([None, 5.0, None]), "vector has shape (); it must be one row of 2 numbers", DimensionMismatch),
        (pa.array([None, b"12345678", None]), f"vector is b'12345678' (bytes), {BYTES}", InvalidInput),
    ],
    ids=range(12),
)
def test_a_faulty_vector_is_told_by_its_row(refused, ops, column, message, error):
    refused(
        lambda ops: ops.remember_many(table(vector=column)),
        f"row 1: {message}. Nothing was stored: 1 of 3 rows is refused; on_invalid='skip' stores the good rows",
        error,
    )
    assert ops.remember_many(table(vector=column), on_invalid="skip").faults == {1: message}
    assert contents(ops)[3:] == ["a", "c"]


def test_faults_are_told_by_row_and_the_good_rows_stored(ops):
    ids = ops.remember_many(
        pa.table(
            {
                "content": ["a", None, " ", "d", "e", "f"],
                "importance": [0.1, 0.2, 0.3, 4.0, None, float("nan")],
                "tenant_id": ["acme", "acme", None, "acme", "rival", None],
                "event_time": pa.array([0, 0, 0, 0, 0, None], pa.timestamp("s", "UTC")),
            }
        ),
        on_invalid="skip",
    )
    assert [ops.get(id).content for id in ids] == ["a"]
    assert ids.faults == {
        1: "content is missing; every memory has a text: leave the row out if there is nothing to say",
        2: "content is blank (' '); it needs at least one visible character: skip it, or say what it means",
        3: "importance is 4; it must be in [0, 1]: divide a rating of 1 to 10 by 10",
        4: "tenant_id of the row is 'rival' and the scope's is 'acme'; a scope writes only inside itself: leave "
        "tenant_id out, or write through the scope it belongs to",
        5: "importance is nan; it must be a finite number: leave it out, or mend it",
    }


def test_of_several_faults_of_a_row_the_first_is_told(ops):
    """Also where the vectors come as one array, in which the rows refused before are checked along."""
    vectors = pa.array([[1.0, float("nan")], [float("nan"), 1.0], [3.0, 4.0]], PAIR)
    given = pa.table({"content": [" ", "b", "c"], "vector": vectors})
    assert ops.remember_many(given, on_invalid="skip").faults == {
        0: "content is blank (' '); it needs at least one visible character: skip it, or say what it means",
        1: FINITE.replace("index 1", "index 0"),
    }


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([{"a": 1, "b": "x"}, None, {"a": None}]), [{"a": 1, "b": "x"}, {}, {"a": None, "b": None}]),
        (pa.array([[("host", "web01")], None, []], pa.map_(pa.string(), pa.string())), [{"host": "web01"}, {}, {}]),
        (pa.array(['{"host": "web01", "ports": [80]}', None, "{}"]), [{"host": "web01", "ports": [80]}, {}, {}]),
        (pa.array(['{"a": 1}', None, "{}"], pa.json_(pa.string())), [{"a": 1}, {}, {}]),
        (pa.array(['{"a": 1}', None, '{"a": 1}']).dictionary_encode(), [{"a": 1}, {}, {"a": 1}]),
    ],
    ids=["struct", "map", "JSON text", "JSON type", "dictionary of JSON text"],
)  # fmt: skip
def test_metadata_is_a_struct_a_map_or_json_text(mem, column, expected):
    mem.remember_many(table(metadata=column))
    assert [record.metadata for record in mem.list()] == expected


def test_what_to_arrow_gives_can_be_remembered_elsewhere(mem):
    mem.remember(
        "a", metadata={"host": "web01"}, vector=[3, 4], importance=0.9, event_time=5.5, expires_at=2e9, key="k"
    )
    mem.remember("b")
    given = (
        mem.list()
        .to_arrow()
        .drop_columns(["seq", "version", "ingested_at", "access_count", "last_access", "superseded_at"])
    )
    other = memcore.open(embedder=None, clock=lambda: 9)
    other.remember_many(given)
    for before, after in zip(mem.list(), other.list(), strict=True):
        for name in given.column_names:
            assert np.array_equal(getattr(before, name), getattr(after, name)), name


NOT_JSON = "metadata is {}, which is not JSON ({}); a text column of it holds a JSON object a row"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1", NOT_JSON.format("'[1'", "Expecting ',' delimiter: line 1 column 3 (char 2)")),
        ("[1]", "metadata is [1] (list); it must be a JSON object (dict with text keys)"),
        ('{"a": NaN}', "metadata.a is nan; it must be a finite number: leave it out, or pass None"),
        (
            '{"a": "x\\u0000"}',
            "metadata.a holds a NUL character at index 1; texts are stored whole or not at all: remove it",
        ),
        ('{"a":' * 200 + "1" + "}" * 200, "metadata is nested more than 100 levels deep, or holds itself; flatten it"),
    ],
    ids=range(5),
)
def test_json_text_passes_the_same_gate(refused, text, message):
    refused(
        lambda ops: ops.remember_many(table(metadata=[None, text, None])),
        f"row 1: {message}. Nothing was stored: 1 of 3 rows is refused; on_invalid='skip' stores the good rows",
    )


def test_json_text_too_deep_for_the_reader_is_a_fault_too(ops):
    ids = ops.remember_many(table(metadata=[None, "[" * 100_000, None]), on_invalid="skip")
    assert ids.faults.keys() == {1}
    assert ids.faults[1].startswith("metadata is '[[[[[")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            pa.table({"content": ["x"], "host": [1], "text": [2]}),
            f"unknown field 'host', 'text'; a row has {', '.join(FIELDS)}: put what is your own into 'metadata'",
        ),
        (
            pa.table({"content": ["x"], "seq": [1]}),
            "field 'seq' is kept by the store itself; leave it out, or move records whole with export and import_",
        ),
        (
            pa.table({"key": ["x"], "kind": ["semantic"]}),
            "the table has 'key', 'kind' but no 'content'; every memory has a text: name its column so",
        ),
        (
            pa.table([["x"], ["y"]], names=["content", "content"]),
            "the table has 2 columns named 'content'; each name stands once: drop the others",
        ),
    ],
    ids=range(4),
)
def test_a_table_that_cannot_be_meant_is_refused_whole(refused, rows, message):
    refused(lambda ops: ops.remember_many(rows), message)
    refused(lambda ops: ops.remember_many(rows, on_invalid="skip"), message)


def test_a_map_that_has_a_key_twice_is_refused(refused):
    maps = pa.chunked_array([[[("a", 1), ("a", 2)]]], pa.map_(pa.string(), pa.int64()))
    with pytest.raises(KeyError) as arrow_s:
        maps.to_pylist(maps_as_pydicts="strict")
    refused(
        lambda ops: ops.remember_many(pa.table({"content": ["x"], "metadata": maps})),
        f"column 'metadata' of type map<string, int64> cannot be read ({arrow_s.value}); cast it to a type that Python "
        "has",
    )


def test_a_column_that_python_has_no_type_for_is_refused(refused):
    spans = pa.chunked_array([[1]], pa.duration("ns"))
    try:
        message = (
            f"row 0: importance is {gate.shown(spans.to_pylist()[0])}; it must be a number"  # with pandas installed
        )
    except ValueError as arrow_s:
        message = (
            f"column 'importance' of type duration[ns] cannot be read ({arrow_s}); cast it to a type that Python has"
        )
    with pytest.raises(InvalidInput) as error:
        memcore.open(embedder=None).remember_many(pa.table({"content": ["x"], "importance": spans}))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("kind", [pa.date64(), pa.duration("s")])
def test_what_is_beyond_python_s_types_is_refused(refused, kind):
    beyond = pa.chunked_array([pa.array([2**62]).view(kind)])
    with pytest.raises((OverflowError, ValueError)) as python_s:
        beyond.to_pylist()
    refused(
        lambda ops: ops.remember_many(pa.table({"content": ["x"], "importance": beyond})),
        f"column 'importance' of type {kind} cannot be read ({python_s.value}); cast it to a type that Python has",
    )


def test_a_column_alone_is_no_table(refused):
    texts = pa.chunked_array([["a", "b"]])
    with pytest.raises(ValueError, match="struct") as arrow_s:
        pa.table(texts)
    shown = gate.shown(texts)
    assert "\n" not in shown
    refused(
        lambda ops: ops.remember_many(texts),
        f"remember_many got {shown}, which Arrow does not read as a table ({arrow_s.value}); {HOW}",
    )
    texts = texts.chunk(0)
    refused(lambda ops: ops.remember_many(texts), f"remember_many got {gate.shown(texts)}; {HOW}")


@pytest.mark.parametrize(
    "rows",
    [
        pa.table({}),
        pa.table({"content": pa.array([], pa.string())}),
        table(vector=pa.array(ROWS.tolist())).slice(1, 0),
        table(vector=pa.array(ROWS.tolist(), pa.list_(pa.int64(), 2))).slice(3),
        pa.table(
            {"content": pa.chunked_array([], pa.string()), "vector": pa.chunked_array([], pa.list_(pa.float32(), 2))}
        ),
        pa.table({"content": pa.nulls(0), "event_time": pa.nulls(0), "vector": pa.nulls(0), "metadata": pa.nulls(0)}),
    ],
    ids=range(6),
)
def test_no_rows_are_no_error(mem, rows):
    ids = mem.remember_many(rows)
    assert (list(ids), ids.faults, contents(mem)) == ([], {}, [])


@settings(deadline=None)
@given(st.data())
def test_a_table_is_stored_as_its_rows_would_be(data):
    """However it is cut into chunks and slices, and wherever its nulls are."""
    n = data.draw(st.integers(1, 8))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return data.draw(st.lists(st.none() | values, min_size=n, max_size=n))

    texts = [f"row {i}" for i in range(n)]
    kind = data.draw(st.sampled_from([pa.list_(pa.float32(), 2), pa.list_(pa.float64()), pa.large_list(pa.float32())]))
    vectors = column(st.lists(st.floats(-4, 4, width=32), min_size=2, max_size=2))
    importance = column(st.floats(0, 1))
    times = column(st.integers(0, 2**40))
    whole = pa.table(
        {
            "content": texts,
            "vector": pa.array(vectors, kind),
            "importance": pa.array(importance, pa.float64()),
            "event_time": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )
    padded = pa.concat_tables([whole.slice(0, 1), whole, whole.slice(0, 1)]).combine_chunks().slice(1, n)
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=3)))
    edges = [0, *cuts, n]
    cut = pa.concat_tables([padded.slice(a, b - a) for a, b in pairwise(edges)])
    one, other = (memcore.open(embedder=None, clock=lambda: 1e9) for _ in range(2))
    one.remember_many(cut)
    other.remember_many(
        [
            {"content": c, "vector": v, "importance": i, "event_time": t if t is None else t / 1e6}
            for c, v, i, t in zip(texts, vectors, importance, times, strict=True)
        ]
    )
    for a, b in zip(one.list(), other.list(), strict=True):
        assert (a.content, a.importance, a.event_time) == (b.content, b.importance, b.event_time)
        assert (a.vector is None) == (b.vector is None)
        assert a.vector is None or a.vector.tobytes() == b.vector.tobytes()

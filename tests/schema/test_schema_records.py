"""Records are the schema's columns as Python objects; Records are many of them over one Arrow table."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

import memcore
from memcore import Record, Records, record_schema, schema

NOW = 1_780_000_000.0


@pytest.fixture
def mem() -> memcore.Memory:
    mem = memcore.open(embedder=None, clock=lambda: NOW)
    for i in range(5):
        mem.remember(f"row {i}", vector=[1, i], importance=i / 10, metadata={"i": i} if i else None, key=f"k{i}")
    return mem


@pytest.mark.parametrize("dim", [None, 256])
def test_a_record_s_fields_are_the_schema_s_columns_in_order(dim):
    names = [field.name for field in dataclasses.fields(Record)]
    assert names == record_schema(dim).names == list(schema.COLUMNS)
    assert len(set(names)) == len(names)


def test_the_schema_s_documentation_lists_its_columns_with_their_types():
    listed = []
    for line in re.findall(r"^    - (.+)$", record_schema.__doc__, re.MULTILINE):
        names, kind, null = re.match(
            r"((?:`\w+`(?:, )?)+) (text|int\d+|float32|bool|timestamp|fixed-size list)(\?)?", line
        ).groups()
        listed += [(name, kind, null == "?") for name in re.findall(r"`(\w+)`", names)]
    kinds = {
        pa.string(): "text",
        pa.bool_(): "bool",
        pa.float32(): "float32",
        pa.timestamp("us", tz="UTC"): "timestamp",
        pa.list_(pa.float32(), 3): "fixed-size list",
    }
    assert listed == [
        (field.name, kinds.get(field.type, str(field.type)), field.nullable) for field in record_schema(3)
    ]


def test_the_vector_column_has_the_store_s_width(mem):
    assert record_schema(2).field("vector").type == pa.list_(pa.float32(), 2)
    assert record_schema(None).field("vector").type == pa.null()
    assert mem.list().to_arrow().schema == record_schema(2)
    assert memcore.open(embedder=None).list().to_arrow().schema == record_schema(None)
    assert record_schema(2).metadata == {b"memcore_format": b"1"}


def test_a_record_is_told_in_a_few_lines(mem):
    record = mem.list()[1]
    assert repr(record) == (
        f"Record(id='{record.id}', seq=2, version=1, tenant_id='default', project_id='default', session_id='default', "
        "agent_role='default', kind='episodic', level=0, key='k1', content='row 1', vector=<2 float32>, "
        "importance=0.1, event_time=2026-05-28T20:26:40+00:00, ingested_at=2026-05-28T20:26:40+00:00, expires_at=None, "
        "source='observation', confidence=1.0, untrusted=False, metadata={'i': 1}, access_count=0, last_access=None, "
        "superseded_at=None, idempotency_key=None)"
    )
    wide = memcore.open(embedder=None).remember("x" * 201, vector=np.ones(256))
    assert "vector=<256 float32>" in repr(wide)
    assert f"content='{'x' * 200}'…" in repr(wide)
    assert len(repr(wide)) < 1000


def test_records_are_equal_by_all_their_columns(mem):
    record = mem.list()[1]
    assert record == mem.list()[1]
    assert hash(record) == hash(mem.list()[1])
    for field in dataclasses.fields(Record):
        other = (
            np.array([0, 1], np.float32) if field.name == "vector" else {"b": 1} if field.name == "metadata" else "?"
        )
        assert dataclasses.replace(record, **{field.name: other}) != record, field.name
    assert dataclasses.replace(record, vector=None) != record
    assert dataclasses.replace(record, vector=None) == dataclasses.replace(record, vector=None)
    assert record != record.id
    assert record != None  # noqa: E711
    for twin in (copy.deepcopy(record), pickle.loads(pickle.dumps(record))):
        assert twin == record
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.content = "y"


def test_records_are_a_sequence(mem):
    records = mem.list()
    texts = [record.content for record in records]
    assert texts == [f"row {i}" for i in range(5)]
    assert len(records) == 5
    assert repr(records) == "<Records: 5 rows>"
    assert [records[i].content for i in range(-5, 5)] == texts * 2
    assert [records[np.int64(i)].content for i in (0, -1)] == ["row 0", "row 4"]
    for outside in (5, -6, 10**30):
        with pytest.raises(IndexError) as error:
            records[outside]
        assert str(error.value) == f"row {outside} of 5 records"
    for wrong in (1.0, "1", None):
        with pytest.raises(TypeError):
            records[wrong]
    assert records[2] in records
    assert records.index(records[2]) == 2
    assert [record.content for record in reversed(records)] == texts[::-1]
    assert list(records) == list(records)
    assert bool(records)
    assert not memcore.open(embedder=None).list()


@pytest.mark.parametrize(
    "part",
    [
        slice(None), slice(1, 3), slice(-2, None), slice(3, 1), slice(None, None, 2), slice(None, None, -1),
        slice(4, 0, -2), slice(-99, 99), slice(5, None), slice(0, 0), slice(1, 2, 10**30),
    ],
)  # fmt: skip
def test_a_slice_is_records_again(mem, part):
    records = mem.list()
    got = records[part]
    assert type(got) is Records
    assert list(got) == list(records)[part]
    assert len(got) == len(list(records)[part])
    assert got.to_arrow().schema == records.to_arrow().schema
    assert got.to_arrow().column("content").to_pylist() == [record.content for record in got]


def test_a_slice_with_step_0_is_an_error_as_everywhere(mem):
    with pytest.raises(ValueError, match="zero"):
        mem.list()[::0]


def test_more_records_than_are_made_at_once_over_several_chunks():
    mem = memcore.open(embedder=None, clock=lambda: NOW)
    mem.remember_many([{"content": f"row {i}", "vector": [1, i] if i % 3 else None} for i in range(2500)])
    table = mem.list().to_arrow()
    records = Records(pa.concat_tables([table.slice(0, 7), table.slice(7, 0), table.slice(7)]))
    assert [record.content for record in records] == [f"row {i}" for i in range(2500)]
    for i in (0, 6, 7, 1023, 1024, 2499):
        assert records[i] == mem.list()[i] == list(records)[i]
        assert (records[i].vector is None) == (i % 3 == 0)


def test_a_record_has_the_same_values_read_singly_and_in_a_list(mem):
    one = mem.remember(
        "x", kind="semantic", key="k", level=2, vector=[3, 4], importance=0.9, confidence=0.7, untrusted=True,
        source="mine", event_time=1e9 + 0.000001, expires_at=2e9, metadata={"a": [1, None]}, idempotency_key="call",
    )  # fmt: skip
    assert mem.list()[-1] == one
    assert (one.importance, one.confidence) == (0.9, 0.7)
    assert one.event_time == datetime(2001, 9, 9, 1, 46, 40, 1, tzinfo=UTC)
    assert one.vector.dtype == np.float32
    assert one.metadata == {"a": [1, None]}


def test_a_float32_is_read_as_the_shortest_decimal_that_means_it():
    assert schema.decimal(np.float32(0.9)) == 0.9
    assert schema.decimal(0.1) == 0.1
    assert schema.decimal(np.float32(1 / 3)) == 0.33333334

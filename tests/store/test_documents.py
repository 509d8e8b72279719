"""A JSON document read piece by piece means what json.loads reads at once, wherever the pieces end."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcore.store import documents
from memcore.store.documents import JsonStream

CHUNKS = (1, 2, 3, 7, 16, 1000)
DOCUMENTS = (
    '{"memcore": {"a": 1}, "records":[{"content":"x\\u00e9\\n"}, {"a": [1,2,{"b":null}]}, 12345, true, -1.5e9, "\\""]}',
    '{"a": 1}',
    "{}",
    '{"records": []}',
    '{"records": [  ]  ,\r\n\t"z": {"y":\n[1.25e-3 , false]} }  \n',
    '{"é🦉": "\\ud83e\\udd89 \u2028", "a": "\\\\"}',
    '{"a": 1, "a": 2}',
)


def read(data: bytes) -> dict[str, Any]:
    """The document by its members, the arrays among them by their items."""
    stream = JsonStream(io.BytesIO(data))
    found: dict[str, Any] = {}
    for name in stream.members():
        found[name] = list(stream.items()) if stream.next() == "[" else stream.value()
    stream.end()
    return found


def outcome(load: Callable[[bytes], Any], data: bytes) -> Any:
    """What it reads, or what it says; of text that isn't UTF-8 only that it is not: the place is that in the piece."""
    try:
        return load(data)
    except UnicodeDecodeError as fault:
        return fault.reason
    except ValueError as fault:
        return str(fault)


@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("text", DOCUMENTS)
def test_whole_or_cut_off_anywhere(text, chunk, monkeypatch):
    monkeypatch.setattr(documents, "_CHUNK", chunk)
    whole = text.encode()
    assert read(whole) == json.loads(whole)
    for end in range(1, len(whole)):
        assert outcome(read, whole[:end]) == outcome(json.loads, whole[:end])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1} x', "Extra data: line 1 column 10 (char 9)"),
        ('{"a": 1,\n "b" 2}', "Expecting ':' delimiter: line 2 column 6 (char 14)"),
        ('{"a": [1 2]}', "Expecting ',' delimiter: line 1 column 10 (char 9)"),
        ('{"a": [nul]}', "Expecting value: line 1 column 8 (char 7)"),
        ('{a: 1}', "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ('{"a": "\\x"}', "Invalid \\escape: line 1 column 8 (char 7)"),
        ('{"a": 1 "b": 2}', "Expecting ',' delimiter: line 1 column 9 (char 8)"),
        ("", "Expecting value: line 1 column 1 (char 0)"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_fault_is_told_as_json_tells_it(text, message, chunk, monkeypatch):
    monkeypatch.setattr(documents, "_CHUNK", chunk)
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        json.loads(text)
    assert str(raised.value) == message
    with pytest.raises(ValueError) as raised:  # noqa: PT011
        read(text.encode())
    assert str(raised.value) == message


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(
    document=st.dictionaries(st.text(), values, max_size=4),
    chunk=st.integers(1, 40),
    indent=st.sampled_from((None, 1)),
    ascii=st.booleans(),
    encoding=st.sampled_from(("utf-8", "utf-8-sig", "utf-16-le", "utf-32")),
)
@settings(max_examples=300, deadline=None)
def test_any_document_in_any_pieces(document, chunk, indent, ascii, encoding):
    data = json.dumps(document, indent=indent, ensure_ascii=ascii).encode(encoding, "surrogatepass")
    before, documents._CHUNK = documents._CHUNK, max(4, chunk)  # four bytes tell the encoding
    try:
        assert read(data) == document
    finally:
        documents._CHUNK = before


def test_what_was_passed_is_let_go(monkeypatch):
    """A document of a megabyte in pieces of a kilobyte: no more than some pieces are held at any time."""
    monkeypatch.setattr(documents, "_CHUNK", 1024)
    rows = [{"content": f"row {i} " + "x" * 90} for i in range(10_000)]
    stream = JsonStream(io.BytesIO(json.dumps({"records": rows}).encode()))
    most = 0
    for name in stream.members():
        assert name == "records"
        for place, row in enumerate(stream.items()):
            assert row == rows[place]
            most = max(most, len(stream._text))
    assert most < 4096


def test_a_fault_in_the_middle_does_not_read_to_the_end(monkeypatch):
    monkeypatch.setattr(documents, "_CHUNK", 1024)
    file = io.BytesIO(b'{"records": [{"a": 1}, {"a": oops}, ' + b'{"a": 1},' * 100_000 + b"{}]}")
    stream = JsonStream(file)
    assert next(stream.members()) == "records"
    with pytest.raises(ValueError, match=r"Expecting value: line 1 column 30 \(char 29\)"):
        list(stream.items())
    assert file.tell() < 10_000

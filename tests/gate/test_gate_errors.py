"""The errors themselves: each can be printed, pickled and caught by the root of all."""

from __future__ import annotations

import copy
import pickle

import pytest

import memcore
from memcore import errors, gate

EVERY = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, errors.MemcoreError) and value is not errors.VersionConflict
]


@pytest.mark.parametrize("error", EVERY, ids=lambda error: error.__name__)
def test_each_error_tells_its_message_whatever_that_holds(error):
    told = str(error("key 'a\ud83d' is not here; 'b'"))
    assert told == "key 'a\\ud83d' is not here; 'b'"
    assert told.encode()
    assert str(error()) == ""


@pytest.mark.parametrize("error", EVERY, ids=lambda error: error.__name__)
def test_each_error_survives_another_process(error):
    made = error("disk full; free some")
    for twin in (pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert type(twin) is error
        assert str(twin) == "disk full; free some"


def test_a_version_conflict_keeps_both_versions():
    made = errors.VersionConflict("changed; get it again", expected=3, found=5)
    for twin in (made, pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert (type(twin), str(twin), twin.expected, twin.found) == (type(made), "changed; get it again", 3, 5)


def test_an_embedder_mismatch_keeps_both_fingerprints():
    made = errors.EmbedderMismatch("two embedders", stored="hashed/256/1", given="m1")
    for twin in (made, pickle.loads(pickle.dumps(made)), copy.copy(made)):
        assert (type(twin), str(twin), twin.stored, twin.given) == (type(made), "two embedders", "hashed/256/1", "m1")
    assert (errors.EmbedderMismatch("x").stored, errors.EmbedderMismatch("x").given) == (None, None)


def test_the_builtin_kin():
    assert issubclass(memcore.InvalidInput, ValueError)
    assert issubclass(memcore.ScopeError, memcore.InvalidInput)
    assert issubclass(memcore.DimensionMismatch, memcore.InvalidInput)
    assert issubclass(memcore.NotFound, KeyError)
    assert issubclass(memcore.MissingExtra, ImportError)


def test_a_value_is_shown_cut_with_its_type_and_safe_to_print():
    class Odd:
        def __repr__(self) -> str:
            return "\ud800" * 5

    class Broken:
        def __repr__(self) -> str:
            raise KeyError("no")

    class NoText:
        def __repr__(self):
            return 5

    assert gate.shown(5) == "5 (int)"
    assert gate.shown("x" * 100) == f"'{'x' * 56}… (str)"
    assert gate.shown(Odd()) == "\\ud800\\ud800\\ud800\\ud800\\ud800 (Odd)"
    assert gate.shown(Broken()) == "<unprintable> (Broken)"
    assert gate.shown(NoText()) == "<unprintable> (NoText)"
    assert gate.shown(10**5000) == "<unprintable> (int)"

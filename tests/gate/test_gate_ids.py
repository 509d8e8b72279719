"""The ids of new records: UUIDv7, rising, unique, and others in a forked child."""

from __future__ import annotations

import os
import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcore
from memcore import ids

MOMENTS = st.integers(0, 253_402_300_799_999_999)


def texts(maker: ids.IdMaker, n: int, now: int) -> list[str]:
    return ids.to_texts(*maker.take(n, now))


@given(st.lists(st.tuples(MOMENTS, st.integers(0, 50)), max_size=20))
def test_each_id_is_a_uuid_v7_of_its_moment(takes):
    maker, made = ids.IdMaker(), []
    for now, n in takes:
        for text in texts(maker, n, now):
            got = uuid.UUID(text)
            assert str(got) == text
            assert (got.version, got.variant) == (7, uuid.RFC_4122)
            assert got.int >> 80 == now // 1000
            assert (got.int >> 64 & 0xFFF) == now % 1000 * 4096 // 1000
            made.append(text)
    assert len(set(made)) == len(made)


@given(st.lists(st.tuples(MOMENTS, st.integers(1, 9)), max_size=20))
def test_ids_sort_by_time_and_within_a_microsecond_as_they_were_made(takes):
    maker, made = ids.IdMaker(), []
    for now, n in sorted(takes, key=lambda take: take[0]):
        made += texts(maker, n, now)
    assert made == sorted(set(made))


def test_every_microsecond_has_a_time_of_its_own():
    maker = ids.IdMaker()
    prefixes = [int(maker.take(1, now)[0][0]) for now in range(5_000_000, 5_003_000)]
    assert prefixes == sorted(set(prefixes))


def test_ids_are_unique_over_many_calls_at_a_clock_that_stands_still():
    maker = ids.IdMaker()
    lows = np.concatenate([maker.take(n, 10**15)[1] for n in [1, 2, 1000] * 2000])
    assert len(lows) == 2_006_000
    assert (lows[1:] > lows[:-1]).all()


def test_two_calls_differ_whatever_the_random_bytes_are(monkeypatch):
    monkeypatch.setattr(os, "urandom", bytes)
    maker = ids.IdMaker()
    made = texts(maker, 2, 10**15) + texts(maker, 2, 10**15)
    assert made == sorted(set(made))


def test_the_room_to_count_upwards_is_not_overrun(monkeypatch):
    """At the end of the 62 random bits the next ids start anew: still unique, still of the right variant."""
    maker = ids.IdMaker()
    monkeypatch.setattr(os, "urandom", lambda n: b"\xff" * n)
    seen = [texts(maker, 3, 10**15)]
    maker._last = (1 << 62) - 3
    seen.append(texts(maker, 3, 10**15))
    for text in seen[1]:
        assert uuid.UUID(text).variant == uuid.RFC_4122


def test_times_before_1970_have_the_first_prefix():
    assert uuid.UUID(texts(ids.IdMaker(), 1, -5_000_000)[0]).int >> 80 == 0


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=9))
def test_texts_and_halves_are_two_forms_of_one_id(pairs):
    hi, lo = (np.array([pair[i] for pair in pairs], dtype=np.uint64) for i in (0, 1))
    assert ids.to_texts(hi, lo) == [ids.to_text(*pair) for pair in pairs]
    assert [ids.halves(uuid.UUID(text)) for text in ids.to_texts(hi, lo)] == pairs
    assert [str(uuid.UUID(int=pair[0] << 64 | pair[1])) for pair in pairs] == ids.to_texts(hi, lo)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is POSIX")
def test_a_forked_child_makes_other_ids_though_the_clock_stands_still(python):
    """Both go on from the same state. If the child only drew other 32-bit steps, the two would run side by side."""
    code = """
        import json, os
        from memcore import ids

        maker = ids.IdMaker()
        maker.take(1, 10**15)
        read, write = os.pipe()
        child = os.fork()
        lows = [int(maker.take(1, 10**15)[1][0]) for _ in range(2000)]
        if child == 0:
            os.write(write, json.dumps([lows[0], lows[-1]]).encode())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        theirs = json.loads(os.read(read, 4096))
        apart = theirs[0] > lows[-1] or theirs[1] < lows[0]
        print(apart, theirs[0] < theirs[1], lows == sorted(set(lows)))
    """
    assert python(code) == "True True True"


def test_records_get_them(mem):
    moment = 1_777_636_800.123456
    made = [uuid.UUID(id) for id in mem.remember_many(["a", "b", "c"], now=moment)]
    made.append(uuid.UUID(mem.remember("d", now=moment).id))
    assert made == sorted(set(made))
    assert {(id.version, id.int >> 80) for id in made} == {(7, 1_777_636_800_123)}
    assert memcore.open(embedder=None).remember("e", now=moment).id not in map(str, made)

"""Numbers from outside: shares, counts, flags, ids, weights and rates of decay, each with its error word for word."""

from __future__ import annotations

import enum
import math
import uuid
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcore
from memcore import config, gate

NUMBER = "it must be a number: convert it, or leave it out"
FINITE = "it must be a finite number: leave it out, or mend it"
SHARE = "it must be in [0, 1]: divide a rating of 1 to 10 by 10"
WHOLE = "it must be a whole number of at least"

BAD_SHARES = [
    (1.5, f"1.5; {SHARE}"),
    (7, f"7; {SHARE}"),
    (-0.1, f"-0.1; {SHARE}"),
    (1 + 1e-9, f"1.000000001; {SHARE}"),
    (np.float32(2), f"2; {SHARE}"),
    (True, f"True (bool); {NUMBER}"),
    (np.True_, f"np.True_ (bool); {NUMBER}"),
    ("0.5", f"'0.5' (str); {NUMBER}"),
    (Decimal("0.5"), f"Decimal('0.5') (Decimal); {NUMBER}"),
    (1j, f"1j (complex); {NUMBER}"),
    ([0.5], f"[0.5] (list); {NUMBER}"),
    (math.nan, f"nan; {FINITE}"),
    (math.inf, f"inf; {FINITE}"),
    (np.float64("nan"), f"np.float64(nan); {FINITE}"),
    (10**400, f"1{'0' * 56}…; {FINITE}"),  # float() of it overflows
    (10**5000, f"<unprintable>; {FINITE}"),  # repr() of it fails
    (Fraction(10**400), f"Fraction(1{'0' * 47}…; {FINITE}"),
]


@pytest.mark.parametrize(("value", "message"), BAD_SHARES, ids=[message[:12] for _, message in BAD_SHARES])
@pytest.mark.parametrize("name", ["importance", "confidence"])
def test_a_share_is_a_number_from_0_to_1(refused, name, value, message):
    refused(lambda ops: ops.remember("x", **{name: value}), f"{name} is {message}")
    refused(lambda ops: ops.update(ops.list()[0].id, **{name: value}), f"{name} is {message}")


@pytest.mark.parametrize("value", [0, 1, 0.9, np.float32(0.9), np.float64(0.25), np.int8(1), Fraction(1, 4)])
def test_any_kind_of_number_is_a_share(ops, value):
    record = ops.remember("x", importance=value, confidence=value)
    assert record.importance == record.confidence == float(str(np.float32(value)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, "level is -1; it must be at least 0"),
        (32_768, "level is 32768; it must be at most 32767: 0 is raw, 1 and up are consolidated"),
        (10**5000, "level is <unprintable>; it must be at most 32767: 0 is raw, 1 and up are consolidated"),
        (True, f"level is True (bool); {WHOLE} 0"),
        (1.0, f"level is 1.0 (float); {WHOLE} 0"),
        ("1", f"level is '1' (str); {WHOLE} 0"),
    ],
    ids=range(6),
)
def test_a_level_is_a_small_whole_number(refused, value, message):
    refused(lambda ops: ops.remember("x", level=value), message)


@pytest.mark.parametrize("value", [1, 0, "yes", 1.0])
def test_a_flag_is_true_or_false(refused, value):
    message = f"{value!r} ({type(value).__name__}); it must be True or False"
    refused(lambda ops: ops.remember("x", untrusted=value), f"untrusted is {message}")
    refused(lambda ops: ops.update(ops.list()[0].id, untrusted=value), f"untrusted is {message}")
    refused(lambda ops: ops.forget(everything=value), f"everything is {message}")
    refused(lambda ops: ops.forget(everything=True, dry_run=value), f"dry_run is {message}")


def test_a_numpy_bool_is_a_flag(ops):
    assert ops.remember("x", untrusted=np.True_).untrusted is True


B15 = [
    (0, 0),
    (1, 1),
    (np.int64(2), 2),
    (10**9, 4),
    (10**30, 4),
    (-1, "is -1; it must be at least 0"),
    (-(10**5000), "is <unprintable>; it must be at least 0"),
    (True, f"is True (bool); {WHOLE} 0"),
    (np.True_, f"is np.True_ (bool); {WHOLE} 0"),
    (2.0, f"is 2.0 (float); {WHOLE} 0"),
    ("3", f"is '3' (str); {WHOLE} 0"),
]


@pytest.mark.parametrize(("value", "expected"), B15, ids=[str(i) for i in range(len(B15))])
def test_case_B15_a_limit_is_a_count_by_one_rule_everywhere(refused, ops, value, expected):
    ops.remember("a fourth", vector=[1, 2])
    calls = {
        "k": [
            lambda ops: [len(ops.recall(vector=[1, 0], k=value))],
            lambda ops: [len(ops.recall(k=value))],
            lambda ops: [len(hits) for hits in ops.recall_many(vectors=[[1, 0], [0, 1]], k=value)],
        ],
        "limit": [lambda ops: [len(ops.list(limit=value))]],
        "offset": [lambda ops: [4 - len(ops.list(offset=value))]],
        "max_access": [lambda ops: [min(4, value) if ops.forget(max_access=value, dry_run=True) else None]],
    }
    for what, doors in calls.items():
        for call in doors:
            if isinstance(expected, str):
                refused(call, f"{what} {expected}")
            else:
                assert set(call(ops)) == {expected}


def test_case_B15_none_is_no_count_but_a_list_has_no_limit_unless_given(refused, ops):
    none = f"is None (NoneType); {WHOLE} 0"
    refused(lambda ops: ops.recall(vector=[1, 0], k=None), f"k {none}")
    refused(lambda ops: ops.recall_many(vectors=[[1, 0]], k=None), f"k {none}")
    refused(lambda ops: ops.list(offset=None), f"offset {none}")
    assert len(ops.list(limit=None)) == 3


def test_other_counts(refused, ops):
    some = ops.list()[0].id
    refused(lambda ops: ops.update(some, content="y", if_version=0), "if_version is 0; it must be at least 1")
    refused(lambda ops: ops.update(some, content="y", if_version="1"), f"if_version is '1' (str); {WHOLE} 1")
    refused(lambda ops: ops.forget(older_than_days="30"), f"older_than_days is '30' (str); {NUMBER}")
    refused(lambda ops: ops.forget(older_than_days=math.nan), f"older_than_days is nan; {FINITE}")
    refused(lambda ops: ops.recall(vector=[1, 0], min_score=math.nan), f"min_score is nan; {FINITE}")
    refused(lambda ops: ops.recall(vector=[1, 0], min_similarity="high"), f"min_similarity is 'high' (str); {NUMBER}")
    share = "no similarity or score is above 1: divide percent by 100"
    refused(lambda ops: ops.recall(vector=[1, 0], min_similarity=85), f"min_similarity is 85; {share}")
    refused(lambda ops: ops.recall(vector=[1, 0], min_score=1.5), f"min_score is 1.5; {share}")
    assert len(ops.recall(vector=[1, 0], min_similarity=-2, min_score=-2)) == 3
    refused(lambda _: memcore.open(embedder=None, working_capacity=0), "working_capacity is 0; it must be at least 1")
    refused(lambda _: memcore.open(embedder="hashed", working_tokens=2.5), f"working_tokens is 2.5 (float); {WHOLE} 1")


ID = (
    "an id is a UUID such as '01890a5d-ac96-774b-bcce-b302099a8057', as remember returns it: for a name of your own "
    "use key="
)


@pytest.mark.parametrize(
    "value",
    [
        "web01",
        "",
        5,
        "{01890a5d-ac96-774b-bcce-b302099a8057}",
        "01890a5dac96774bbcceb302099a8057",
        "urn:uuid:01890a5d-ac96-774b-bcce-b302099a8057",
        "01890a5d-ac96-774b-bcce-b302099a805\u0667",  # an Arabic digit, which int() reads
        "\ud800",
    ],
)
def test_an_id_is_a_uuid(refused, value):
    told = f"id is {gate.shown(value)}; {ID}"
    refused(lambda ops: ops.get(value), told)
    refused(lambda ops: ops.update(value, content="x"), told)
    refused(lambda ops: ops.forget(value), told)
    refused(lambda ops: ops.history(id=value), told)
    refused(lambda ops: ops.remember("x", id=value), told)


def test_an_id_may_be_a_uuid_object_or_in_capitals(ops):
    made = ops.remember("x", id=uuid.UUID(int=0xAB))
    assert made.id == "00000000-0000-0000-0000-0000000000ab"
    for form in (made.id, made.id.upper(), uuid.UUID(int=0xAB), np.str_(made.id)):
        assert ops.get(form).id == made.id


class Kind(str, enum.Enum):  # noqa: UP042 - whose str() is the member's name
    LOG = "episodic"
    OTHER = "fact"


def test_kinds(refused, ops):
    names = "working, episodic, semantic, procedural"
    for value, told in (
        ("fact", f"kind is 'fact' (str); the kinds are {names}"),
        (Kind.OTHER, f"kind is <Kind.OTHER: 'fact'> (Kind); the kinds are {names}"),
        (2, f"kind is 2 (int); the kinds are {names}"),
    ):
        refused(lambda ops, value=value: ops.remember("x", kind=value), told)
        refused(lambda ops, value=value: ops.list(kinds=[value]), told)
    for value in ([], (), set(), {}, {"episodic": 1}, None, 5):
        told = f"kinds is {value!r} ({type(value).__name__}); pass one or several of {names}"
        refused(lambda ops, value=value: ops.recall(vector=[1, 0], kinds=value), told)
        refused(lambda ops, value=value: ops.list(kinds=value), told)
    for value, count in (
        ("episodic", 2),
        (Kind.LOG, 2),
        ({"episodic", "semantic"}, 3),
        (["semantic", "semantic"], 1),
        (np.array(["episodic"]), 2),
    ):
        assert len(ops.list(kinds=value)) == len(ops.recall(vector=[1, 0], kinds=value)) == count


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            (0.5, 0.5, 0.5),
            "weights (0.5, 0.5, 0.5) sum to 1.5; alpha + beta + gamma must be 1: divide each by their sum",
        ),
        (
            (0.5, 0.3, 0.200002),
            "weights (0.5, 0.3, 0.200002) sum to 1.000002; alpha + beta + gamma must be 1: divide each by their sum",
        ),
        ((-0.5, 1, 0.5), "weights.alpha is -0.5; it must be in [0, 1], and the three must sum to 1"),
        ((0, 5, 5), "weights.beta is 5; it must be in [0, 1], and the three must sum to 1"),
        ((1, math.nan, 0), f"weights.beta is nan; {FINITE}"),
        ((1, 0, False), f"weights.gamma is False (bool); {NUMBER}"),
        ((1, 0, "0"), f"weights.gamma is '0' (str); {NUMBER}"),
    ],
)
def test_weights_are_shares_of_one(refused, value, message):
    refused(lambda ops: ops.recall(vector=[1, 0], weights=value), message)
    refused(lambda ops: ops.recall_many(vectors=[[1, 0]], weights=value), message)
    refused(lambda _: memcore.open(embedder=None, weights=value), message)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ((1, 0), "(1, 0) (tuple)"),
        ([0.25] * 4, "[0.25, 0.25, 0.25, 0.25] (list)"),
        ("abc", "'abc' (str)"),
        (1, "1 (int)"),
        ({"alpha": 1}, "{'alpha': 1} (dict)"),
        (np.eye(2), "[[1.0, 0.0], [0.0, 1.0]] (list)"),
    ],
)
def test_weights_are_three(refused, value, shown):
    refused(
        lambda ops: ops.recall(vector=[1, 0], weights=value),
        f"weights is {shown}; pass three numbers (alpha, beta, gamma) for relevance, recency and importance, such as "
        "(0.5, 0.3, 0.2)",
    )


@pytest.mark.parametrize(
    "value",
    [(0.5, 0.3, 0.2), [0.5, 0.3, 0.2], np.array([0.5, 0.3, 0.2]), memcore.Weights(), memcore.Weights(0.5, 0.3, 0.2)],
)
def test_weights_come_as_any_triple(ops, value):
    (hit,) = ops.recall(vector=[0, 1], k=1, weights=value)
    assert hit.total_score == pytest.approx(0.5 * 1 + 0.3 * 1 + 0.2 * 0.9, abs=1e-7)


def test_a_third_each_sums_to_one(ops):
    assert config.weights((1 / 3, 1 / 3, 1 / 3)) == (1 / 3, 1 / 3, 1 / 3)
    assert config.weights((0.9999995, 0, 0)).alpha == 0.9999995  # within 1e-6


PRESETS = "the presets are default (0.01/h), focused (0.1/h), balanced (0.05/h), lasting (0.005/h)"
HOURS = "half_life (hours or a timedelta)"


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"decay_rate": "fast"}, f"decay_rate is 'fast'; {PRESETS}: name one or pass a number per hour"),
        ({"decay_rate": "\ud800"}, rf"decay_rate is '\ud800'; {PRESETS}: name one or pass a number per hour"),
        ({"decay_rate": -0.01}, "decay_rate is -0.01; it is per hour and at least 0: pass 0 for no decay"),
        ({"decay_rate": True}, f"decay_rate is True (bool); {NUMBER}"),
        ({"decay_rate": math.inf}, f"decay_rate is inf; {FINITE}"),
        ({"decay_rate": timedelta(1)}, f"decay_rate is datetime.timedelta(days=1) (timedelta); {NUMBER}"),
        ({"half_life": 0}, "half_life is 0 hours; it must be at least a microsecond: for no decay pass decay_rate=0"),
        ({"half_life": -3}, "half_life is -3 hours; it must be at least a microsecond: for no decay pass decay_rate=0"),
        (
            {"half_life": 1e-320},  # ln 2 / 1e-320 is infinite
            "half_life is 9.99989e-321 hours; it must be at least a microsecond: for no decay pass decay_rate=0",
        ),
        (
            {"half_life": timedelta(0)},
            "half_life is 0 hours; it must be at least a microsecond: for no decay pass decay_rate=0",
        ),
        ({"half_life": "3h"}, f"{HOURS} is '3h' (str); {NUMBER}"),
        ({"half_life": False}, f"{HOURS} is False (bool); {NUMBER}"),
        ({"half_life": math.inf}, f"{HOURS} is inf; {FINITE}"),
        (
            {"half_life": 3, "decay_rate": "focused"},
            "decay_rate is 'focused' and half_life is 3; pass one of them (half_life = ln 2 / decay_rate)",
        ),
    ],
    ids=lambda value: ascii(value)[:30] if isinstance(value, dict) else "",
)
def test_a_rate_of_decay(refused, named, message):
    refused(lambda ops: ops.recall(vector=[1, 0], **named), message)
    refused(lambda ops: ops.recall_many(vectors=[[1, 0]], **named), message)
    refused(lambda _: memcore.open(embedder=None, **named), message)


@pytest.mark.parametrize(
    ("named", "rate"),
    [
        ({}, 0.01),
        ({"decay_rate": "default"}, 0.01),
        ({"decay_rate": "focused"}, 0.1),
        ({"decay_rate": "balanced"}, 0.05),
        ({"decay_rate": "lasting"}, 0.005),
        ({"decay_rate": 0}, 0.0),
        ({"decay_rate": np.float32(0.5)}, 0.5),
        ({"half_life": 2}, math.log(2) / 2),
        ({"half_life": timedelta(hours=2)}, math.log(2) / 2),
        ({"half_life": timedelta(minutes=30)}, math.log(2) / 0.5),
    ],
)
def test_recency_follows_the_rate(ops, named, rate):
    now = ops.list()[0].event_time.timestamp()
    (hit,) = ops.recall(k=1, now=now + 3 * 3600, **named)
    assert hit.recency_component == pytest.approx(math.exp(-rate * 3), rel=1e-12)
    if "decay_rate" in named:
        half_life = memcore.half_life_hours(named["decay_rate"])
        assert half_life == (math.log(2) / rate if rate else math.inf)


@pytest.mark.parametrize("rate", [1e-320, 1e-300, 1e6, 1e20, 1e300, 1.7e308])
def test_extreme_rates_leave_scores_finite_and_in_order(ops, rate):
    now = ops.list()[0].event_time.timestamp()
    for age in (0, 1e-6, 1.0, 1e10):
        ops.remember("old", event_time=now - age)
        hits = ops.recall(k=9, now=now, decay_rate=rate)
        assert all(0 <= hit.recency_component <= 1 for hit in hits)
        assert [hit.total_score for hit in hits] == sorted((hit.total_score for hit in hits), reverse=True)
        assert all(math.isfinite(hit.total_score) for hit in hits)


@given(st.floats(0, 1))
def test_a_share_is_kept_as_float32_and_read_as_its_shortest_decimal(value):
    importance = memcore.open(embedder=None, clock=lambda: 1e9).remember("x", importance=value).importance
    assert np.float32(importance) == np.float32(value)
    assert repr(importance) == repr(float(str(np.float32(value))))

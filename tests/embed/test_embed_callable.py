"""A callable as embedder: how it is called, and what its result must be."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from memcore.embed import CallableEmbedder
from memcore.errors import DimensionMismatch, InvalidInput


def lengths(texts):
    return [[len(text), 1, 0] for text in texts]


def wrap(result, **named):
    return CallableEmbedder(lambda texts: result, name="mine", **named)


CONVERT = "it must hold real numbers (float or integer): convert it with np.asarray(rows, dtype=np.float32)"
FINITE = "every number must be finite: leave that row out"
TWO = "it must have two dimensions, (rows, d)"
WIDTH = "one store holds one width: pass vectors of width {}, or open another store for this embedder"


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        ([[1.0, 2.0]], DimensionMismatch, "has 1 rows for 2 texts; it must have one row each"),
        ([1.0, 2.0], DimensionMismatch, f"has shape (2,); {TWO}"),
        (np.zeros((2, 3, 4)), DimensionMismatch, f"has shape (2, 3, 4); {TWO}"),
        (
            np.zeros((2, 0)),
            DimensionMismatch,
            f"has 0 dimensions and the store has at least 1; {WIDTH.format('d')}",
        ),
        ([[1.0, np.nan], [1.0, 2.0]], InvalidInput, f"has NaN or infinity in row 0; {FINITE}"),
        ([[1.0, 0.0], [-np.inf, 2.0]], InvalidInput, f"has NaN or infinity in row 1; {FINITE}"),
        (
            None,
            InvalidInput,
            "is None (NoneType); it must hold real numbers (float or integer): leave out what has none",
        ),
        ([["0.1", "0.2"], ["0.3", "0.4"]], InvalidInput, f"has dtype <U3; {CONVERT}"),
        (np.ones((2, 2), dtype=complex), InvalidInput, f"has dtype complex128; {CONVERT}"),
    ],
    ids=["rows", "flat", "cube", "no width", "nan", "infinity", "none", "texts", "complex"],
)
def test_a_wrong_result_is_named(result, error, text):
    with pytest.raises(error) as raised:
        wrap(result).embed(["a", "b"])
    assert str(raised.value) == f"the result of embedder 'mine' {text}"


def test_ragged_rows_are_named():
    with pytest.raises(
        InvalidInput, match=r"the result of embedder 'mine' is \[\[1\.0\], \[1\.0, 2\.0\]\] \(list\), which is"
    ):
        wrap([[1.0], [1.0, 2.0]]).embed(["a", "b"])


@pytest.mark.parametrize("given", [None, 2])
def test_a_width_that_changes_is_a_mismatch(given):
    widths = iter([2, 3])
    embedder = CallableEmbedder(lambda texts: np.ones((len(texts), next(widths))), name="mine", dim=given)
    embedder.embed(["a"])
    with pytest.raises(DimensionMismatch) as error:
        embedder.embed(["b"])
    assert str(error.value) == (
        f"the result of embedder 'mine' has 3 dimensions and the store has 2; {WIDTH.format(2)}"
    )
    assert embedder.dim == 2


@pytest.mark.parametrize(
    "rows",
    [
        [[3, 4], [0, 0]],
        np.array([[3, 4], [0, 0]], dtype=np.int8),
        np.array([[3e-200, 4e-200], [0, 0]]),
        np.array([[3e200, 4e200], [0, 0]]),
        np.array([[3, 4], [0, 0]], dtype=np.float16),
        np.asfortranarray(np.array([[3, 4], [0, 0]], dtype=np.float32)),
        np.array([[4, 3], [0, 0]], dtype=np.float32)[:, ::-1],
    ],
    ids=["list", "int8", "tiny", "huge", "float16", "fortran", "reversed view"],
)
def test_any_numbers_become_unit_or_zero_float32_rows_in_c_order(rows):
    got = wrap(rows).embed(["a", "b"])
    assert got.dtype == np.float32
    assert got.flags.c_contiguous
    assert got.tolist() == [[np.float32(0.6), np.float32(0.8)], [0, 0]]


def test_the_callables_array_is_not_written_to():
    rows = np.array([[3, 4], [0, 0]], dtype=np.float32)
    rows.flags.writeable = False
    got = wrap(rows).embed(["a", "b"])
    assert not np.shares_memory(got, rows)
    assert rows.tolist() == [[3, 4], [0, 0]]


def test_the_callers_list_is_not_the_callables():
    def emptying(texts):
        rows = lengths(texts)
        texts.clear()
        return rows

    texts = ["a", "bb"]
    assert CallableEmbedder(emptying).embed(texts).shape == (2, 3)
    assert texts == ["a", "bb"]


def test_its_exceptions_come_through_as_they_are():
    fault = ConnectionError("the model is away")

    def failing(texts):
        raise fault

    embedder = CallableEmbedder(failing)
    with pytest.raises(ConnectionError) as error:
        embedder.embed(["a"])
    assert error.value is fault
    with pytest.raises(ConnectionError):
        embedder.dim  # noqa: B018


class Prefixing:
    def by_name(self, texts, kind="document"):
        return [[len(kind), 1] for _ in texts]

    def keyword_only(self, texts, *, batch_size=8, kind="document"):
        return [[len(kind), batch_size / 8] for _ in texts]

    def by_name_third(self, texts, batch_size=8, kind="document"):
        return [[len(kind), batch_size / 8] for _ in texts]

    def by_place(self, texts, prefix):
        return [[len(prefix), 1] for _ in texts]

    def by_place_only(self, texts, kind="document", /):
        return [[len(kind), 1] for _ in texts]

    def other_option(self, texts, batch_size=8):
        return [[batch_size, 1] for _ in texts]

    def swallowing(self, texts, *more, **named):
        return [[8 + len(more) + len(named), 1] for _ in texts]

    __call__ = by_place


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        (Prefixing().by_name, True),
        (Prefixing().keyword_only, True),
        (Prefixing().by_name_third, True),
        (Prefixing().by_place, True),
        (Prefixing().by_place_only, True),
        (Prefixing(), True),
        (functools.partial(Prefixing.by_name, None), True),
        (Prefixing().other_option, False),
        (Prefixing().swallowing, False),
        (functools.partial(Prefixing().by_place, prefix="document"), False),
    ],
)
def test_the_kind_reaches_a_callable_that_takes_it(fn, told):
    embedder = CallableEmbedder(fn)
    document, asked = np.array([8, 1]) / 65**0.5, np.array([5, 1]) / 26**0.5
    assert np.abs(embedder.embed(["a"])[0] - document).max() < 1e-6
    assert np.abs(embedder.embed(["a"], "query")[0] - (asked if told else document)).max() < 1e-6


def test_a_callable_without_a_signature_gets_the_texts_alone():
    """`max` has none; called with the texts alone it returns one of them."""
    with pytest.raises(InvalidInput) as error:
        CallableEmbedder(max).embed(["a", "b"])
    assert str(error.value) == f"the result of embedder 'builtins.max' has dtype <U1; {CONVERT}"


def counting():
    calls = []

    def embed(texts):
        calls.append(texts)
        return lengths(texts)

    return embed, calls


def test_a_given_width_is_believed_until_the_first_result():
    fn, calls = counting()
    embedder = CallableEmbedder(fn, name="mine", dim=4)
    assert embedder.dim == 4
    assert embedder.fingerprint == "callable/mine/4"
    assert embedder.embed([]).shape == (0, 4)
    assert calls == []
    with pytest.raises(DimensionMismatch, match="has 3 dimensions and the store has 4"):
        embedder.embed(["a"])


def test_an_unknown_width_costs_one_call_with_one_short_text():
    fn, calls = counting()
    embedder = CallableEmbedder(fn)
    assert calls == []
    assert embedder.embed([]).shape == (0, 3)
    assert embedder.dim == 3
    assert embedder.fingerprint.endswith("/3")
    assert calls == [["memcore"]]


def test_the_first_result_tells_the_width():
    fn, calls = counting()
    embedder = CallableEmbedder(fn)
    embedder.embed(["a", "b"])
    assert embedder.dim == 3
    assert calls == [["a", "b"]]


def test_names_and_fingerprints():
    here = __name__
    assert CallableEmbedder(lengths).name == f"{here}.lengths"
    assert CallableEmbedder(lengths).fingerprint == f"callable/{here}.lengths/3"
    assert CallableEmbedder(Prefixing().by_name).name == f"{here}.Prefixing.by_name"
    assert CallableEmbedder(Prefixing()).name == f"{here}.Prefixing"
    assert CallableEmbedder(functools.partial(lengths)).name == "functools.partial"
    assert CallableEmbedder(len).name == "builtins.len"
    assert CallableEmbedder(lambda texts: lengths(texts), name="mine").fingerprint == "callable/mine/3"
    assert CallableEmbedder(lengths, fingerprint="mine/v2").fingerprint == "mine/v2"


def test_what_cannot_be_called_is_refused():
    with pytest.raises(InvalidInput) as error:
        CallableEmbedder([1.0, 2.0])
    assert str(error.value) == (
        "embedder is [1.0, 2.0] (list); it must be a callable that takes a list of texts and returns one row of "
        "numbers for each"
    )


async def waiting(texts):
    return lengths(texts)


class Waiting:
    async def __call__(self, texts):
        return lengths(texts)


@pytest.mark.parametrize("fn", [waiting, Waiting()])
def test_async_callables_are_refused_before_they_are_called(fn):
    with pytest.raises(InvalidInput) as error:
        CallableEmbedder(fn, name="mine")
    assert str(error.value) == (
        "embedder 'mine' is async; memcore calls it from ordinary code: pass a function that waits for the result, "
        "such as lambda texts: asyncio.run(embed(texts))"
    )


def test_a_blank_name_and_a_width_of_zero_are_refused():
    with pytest.raises(InvalidInput, match="the embedder's name is blank"):
        CallableEmbedder(lengths, name=" ")
    with pytest.raises(InvalidInput, match="the embedder's fingerprint is blank"):
        CallableEmbedder(lengths, fingerprint="")
    with pytest.raises(InvalidInput, match="dim is 0; it must be at least 1"):
        CallableEmbedder(lengths, dim=0)

"""What every embedder of memcore promises, by generated texts."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memcore.embed import CallableEmbedder, HashedEmbedder, StaticEmbedder
from memcore.errors import InvalidInput

EMBEDDERS = [
    StaticEmbedder(),
    HashedEmbedder(),
    HashedEmbedder(dim=3),
    CallableEmbedder(lambda texts: [[len(text), 1.5, text.count(" ")] for text in texts], name="lengths"),
]
# Code points of every kind, lone surrogates too, and words that come again.
TEXT = st.text(st.characters(), max_size=40) | st.lists(
    st.sampled_from(["paga", "PAGA", "ação", "acao", "db01", "日本語", "हिन्दी", "👍🏽", "\n", "</s>", "x" * 70]),
    max_size=12,
).map(" ".join)

every = pytest.mark.parametrize("embedder", EMBEDDERS, ids=lambda e: f"{e.name}-{e.dim}")


@every
@settings(deadline=None)
@given(texts=st.lists(TEXT, max_size=6))
@example(texts=["", " \t\r\n\u3000", "🎉🎉", "\u0301", "\ud800", "\x00"])
def test_rows_are_unit_or_zero_and_do_not_depend_on_the_batch(embedder, texts):
    got = embedder.embed(texts)
    assert got.shape == (len(texts), embedder.dim)
    assert got.dtype == np.float32
    assert got.flags.c_contiguous
    assert got.flags.owndata
    norms = np.linalg.norm(got.astype(np.float64), axis=1)
    assert ((norms == 0) | (np.abs(norms - 1) < 1e-6)).all()  # false for NaN too

    again = embedder.embed(texts, kind="query")
    reverse = embedder.embed(tuple(texts[::-1]))[::-1]
    alone = [embedder.embed([text])[0] for text in texts]
    for i in range(len(texts)):
        assert got[i].tobytes() == again[i].tobytes() == reverse[i].tobytes() == alone[i].tobytes()


@every
def test_a_large_batch_gives_the_rows_of_its_texts_alone(embedder):
    texts = [f"node {i} {'disk latency ' * (i % 37)}{i * i}" for i in range(700)]
    got = embedder.embed(texts)
    assert len({row.tobytes() for row in got}) > 1
    for i in range(0, 700, 23):
        assert got[i].tobytes() == embedder.embed(texts[i : i + 1])[0].tobytes()


@every
def test_no_texts_give_no_rows_of_the_full_width(embedder):
    assert embedder.embed([]).shape == (0, embedder.dim)
    assert embedder.embed([]).dtype == np.float32


@pytest.mark.parametrize("embedder", EMBEDDERS[:2], ids=lambda e: e.name)
def test_white_space_says_nothing_and_emoji_say_something(embedder):
    got = embedder.embed(["", "   ", "\n\t\u00a0\u2003", "👍", "👍 👍", "🎉"])
    assert not got[:3].any()
    assert got[3].any()
    assert np.abs(got[3] - got[4]).max() < 1e-6
    assert got[3] @ got[5] < 0.9


@every
def test_a_lone_text_is_refused_not_read_letter_by_letter(embedder):
    with pytest.raises(InvalidInput) as error:
        embedder.embed("disk full")
    assert str(error.value) == "texts is 'disk full' (str); embed takes a list of texts: pass [text]"


@every
def test_an_item_that_is_no_text_is_named(embedder):
    with pytest.raises(InvalidInput) as error:
        embedder.embed(["disk full", 504])
    assert str(error.value) == "texts[1] is 504 (int); every item must be a text (str): convert it first"


@every
def test_threads_get_what_one_thread_gets(embedder):
    batches = [[f"ação {i} on web{i % 7:02d}", f"retry {i * 13}"] for i in range(200)]
    expected = [embedder.embed(batch).tobytes() for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        assert [rows.tobytes() for rows in pool.map(embedder.embed, batches)] == expected


@pytest.mark.skipif(sys.platform == "win32", reason="resource and its RSS are POSIX")
@pytest.mark.parametrize("name", ["static", "hashed"])
def test_a_megabyte_is_read_whole_in_bounded_memory(python, name):
    """Words, one run without spaces, and a script without spaces: at most 100 MB more than a short text needs."""
    code = """
        import resource, sys
        from memcore.embed import resolve
        embedder = resolve(sys.argv[1])
        unit = 2**20 if sys.platform == "darwin" else 2**10
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
        embedder.embed(["short"])
        before = peak()
        for text in ("disk full on db01 " * 60_000, "abcdefghij" * 100_000, "日本語の文章です" * 125_000):
            row = embedder.embed([text + "zebra"])[0]
            assert abs(row @ row - 1) < 1e-5
            assert (row != embedder.embed([text + "walrus"])[0]).any(), "the end was not read"
        print(peak() - before)
    """
    assert float(python(code, name)) < 100


def test_importing_the_room_loads_no_model_library(python):
    heavy = {"wordllama", "tokenizers", "safetensors", "numba", "faiss", "pyarrow", "requests"}
    code = """
        import sys
        import memcore.embed
        embedder = memcore.embed.resolve("static")
        embedder.name, embedder.dim, embedder.fingerprint, embedder.embed([])
        print(*sys.modules)
    """
    assert not heavy & set(python(code).split())


def test_resolved_hashed_never_loads_a_model_library(python):
    code = """
        import sys
        from memcore.embed import resolve
        resolve("hashed").embed(["a text"])
        print(*sys.modules)
    """
    assert not {"wordllama", "tokenizers", "safetensors", "numba", "faiss"} & set(python(code).split())

"""Hashed vectors: the same bits everywhere, accents and case folded, word parts shared."""

from __future__ import annotations

import math
import os
import unicodedata
from collections import Counter
from hashlib import blake2b, sha256

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from memcore.embed import HashedEmbedder, hashed
from memcore.errors import InvalidInput

EMBEDDER = HashedEmbedder()
TEXTS = [
    "HTTP 504 on /billing, again: retry retry retry!",
    "A cobrança não passou; srv-prod-db01 está fora do ar",
    "日本語の文章です。カタカナ、ｱｲｳ",
    "हिन्दी में लिखा हुआ",
    "데이터베이스 오류",
    "ระบบล่ม",
    "ошибка базы данных",
    "خطأ في قاعدة البيانات",
    "👍🏽 🎉",
    "x" * 1000,
]


def naive(text: str, dim: int) -> np.ndarray:
    """The docstring's rule word by word, in Python's whole numbers: no cache, no array until the end."""
    words: list[str] = []
    for match in hashed._WORD.finditer(hashed.fold(text)):
        part = match.group()
        if match.group(1):
            words += [part[i : i + n] for n in (1, 2, 3) for i in range(len(part) - n + 1)]
        else:
            words += [part[i : i + 64] for i in range(0, len(part), 64)]
    total = [0] * dim
    for word, count in Counter(words).items():
        features = [word]
        if not hashed._IN_RUN.match(word):
            marked = f"<{word}>"
            features = [f" {word}"] + [marked[i : i + n] for n in (3, 4, 5) for i in range(len(marked) - n + 1)]
        for feature in features:
            digest = blake2b(feature.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            h = sum(byte << 8 * i for i, byte in enumerate(digest))
            total[(h >> 1) % dim] += (1 if h % 2 else -1) * round(256 * (1 + math.log(count)))
    norm = math.sqrt(sum(x * x for x in total))
    return np.array([np.float32(x / norm) if norm else 0 for x in total], dtype=np.float32)


WORD = st.text(st.characters(), max_size=12) | st.sampled_from(["paga", "Ação", "日本語", "हिन्दी", "👍🏽", "y" * 130])


@settings(deadline=None)
@given(words=st.lists(WORD, max_size=12), dim=st.integers(1, 300))
@example(words=TEXTS, dim=256)
@example(words=["a"] * 9 + ["b"] * 3 + ["c"], dim=2)
@example(words=["z" * 64, "x"], dim=1)  # 186 features in one bucket: more than int8 holds
def test_the_vector_is_the_naive_twin_s_to_the_bit(words, dim):
    text = " ".join(words)
    assert HashedEmbedder(dim).embed([text])[0].tobytes() == naive(text, dim).tobytes()


@settings(deadline=None)
@given(words=st.lists(st.text(max_size=8), max_size=10), order=st.randoms())
def test_the_order_of_words_does_not_change_a_bit(words, order):
    shuffled = list(words)
    order.shuffle(shuffled)
    a, b = EMBEDDER.embed([" ".join(words), "\n".join(shuffled)])
    assert a.tobytes() == b.tobytes()


def test_the_bits_are_those_of_every_platform_and_process(python):
    """Written down once: a change of this number is a change of `_SCHEME`, and of every store written with it."""
    code = """
        import hashlib, sys
        from memcore.embed import HashedEmbedder
        rows = HashedEmbedder().embed(sys.argv[1:])
        print(hashlib.sha256(rows.astype("<f4").tobytes()).hexdigest()[:16])
    """
    here = sha256(EMBEDDER.embed(TEXTS).astype("<f4").tobytes()).hexdigest()[:16]
    there = [python(code, *TEXTS, env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONUTF8": "1"}) for seed in ("1", "2")]
    assert [here, *there] == ["0b61c177ed79dc6e"] * 3


def test_a_full_cache_changes_nothing(monkeypatch):
    monkeypatch.setattr(hashed, "_CACHE_BYTES", 0)  # one word
    small = HashedEmbedder()
    assert small._vector.cache_info().maxsize == 1
    assert small.embed(TEXTS).tobytes() == EMBEDDER.embed(TEXTS).tobytes()


def test_many_words_are_summed_in_blocks(monkeypatch):
    text = " ".join(f"node{i}" for i in range(500))
    whole = EMBEDDER.embed([text])
    monkeypatch.setattr(hashed, "_BLOCK_BYTES", 8 * 256 * 7)
    assert EMBEDDER.embed([text]).tobytes() == whole.tobytes() == naive(text, 256).tobytes()


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("Ação", "acao"),
        ("ÀÉÎÕÜ ñ", "aeiou n"),
        ("Straße", "strasse"),
        ("ﬁle ２ K", "file 2 k"),
        ("İstanbul", "istanbul"),
        ("Ёлка", "елка"),
        ("Ἀθῆναι", "αθηναι"),
        ("so\u00adft\u200b \ufe0f", "soft "),
        ("हिन्दी", "हिन्दी"),  # vowel signs and virama are letters
        ("が", "が"),  # so is kana voicing, here decomposed
        ("plain ASCII_1", "plain ascii_1"),
    ],
)
def test_fold(text, folded):
    assert hashed.fold(text) == unicodedata.normalize("NFKD", folded)


@given(st.text(max_size=30))
def test_unicode_forms_fold_alike(text):
    nfc, nfd = unicodedata.normalize("NFC", text), unicodedata.normalize("NFD", text)
    assert hashed.fold(nfc) == hashed.fold(nfd)
    a, b = EMBEDDER.embed([nfc, nfd])
    assert a.tobytes() == b.tobytes()


def test_accents_and_case_do_not_count():
    rows = EMBEDDER.embed(["A ação não funcionou", "a acao nao funcionou", "A AC\u0327A\u0303O NA\u0303O FUNCIONOU"])
    assert (rows == rows[0]).all()
    assert rows[0].any()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("srv-prod_db01.", ["srv", "prod", "db01"]),
        ("«¿Qué?»", ["que"]),
        ("हिन्दी।", ["हिन्दी"]),
        ("👍🏽", ["👍🏽"]),
        ("abc日本語", ["abc", "日", "本", "語", "日本", "本語", "日本語"]),
        ("…—()", []),
        ("k" * 65, ["k" * 64, "k"]),
    ],
)
def test_words(text, words):
    assert list(hashed._words(text)) == words


@pytest.mark.parametrize(
    ("text", "near", "far"),
    [
        ("payment failed", "paymnet faild", "garden flowers"),  # misspelt
        ("database migrations", "the database was migrated", "a walk on the beach"),  # inflected
        ("configuração do servidor", "servidores configurados", "receita de bolo"),
        ("東京都に住んでいます", "東京に住む", "猫が好きです"),
        ("데이터베이스 오류", "데이터베이스에 오류가", "고양이를 좋아해요"),
    ],
)
def test_shared_word_parts_are_nearer(text, near, far):
    a, b, c = EMBEDDER.embed([text, near, far])
    assert a @ b > a @ c + 0.15


def test_a_repeated_word_counts_by_the_logarithm():
    """'disk' four times and 'full' once: the weights 1 + ln 4 and 1 stand to each other as in the vectors alone."""
    dim = 1 << 16  # wide enough that no two features of these words share a bucket
    both, disk, full = HashedEmbedder(dim).embed(["disk full disk disk disk", "disk", "full"])
    assert (both @ disk) / (both @ full) == pytest.approx(1 + math.log(4), rel=2e-3)


def test_the_fingerprint_tells_widths_apart():
    assert EMBEDDER.name == "hashed"
    assert EMBEDDER.dim == 256
    assert EMBEDDER.fingerprint == "hashed/256/1"
    assert HashedEmbedder(dim=64).fingerprint == "hashed/64/1"


@pytest.mark.parametrize(("dim", "got"), [(0, "0"), (2.5, "2.5 (float)"), (True, "True (bool)")])
def test_a_dim_that_is_no_width(dim, got):
    with pytest.raises(InvalidInput) as error:
        HashedEmbedder(dim=dim)
    assert str(error.value).startswith(f"dim is {got}; it must be ")

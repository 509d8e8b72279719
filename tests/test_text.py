"""What is a word, in any script: one form of each, without its accents, and in pieces by script."""

from __future__ import annotations

import itertools
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawn import thorough
from memcore import text


def found(written: str) -> list[str]:
    return re.findall(text.WORD, written)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("", []),
        (" \t\n-–—…!?\"'«»", []),
        ("two words", ["two", "words"]),
        ("snake_case", ["snake", "case"]),
        ("it's", ["it", "s"]),
        ("café", ["café"]),
        ("cafe\u0301 olé", ["cafe\u0301", "olé"]),
        ("x\u0304y", ["x\u0304y"]),  # no composed form
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("বাংলা", ["বাংলা"]),
        ("שָׁלוֹם עוֹלָם", ["שָׁלוֹם", "עוֹלָם"]),
        ("مُحَمَّد", ["مُحَمَّد"]),
        ("मैं।तुम", ["मैं।तुम"[:3], "मैं।तुम"[4:]]),  # the danda ends a sentence
        ("日本語です。", ["日本語です"]),
        ("한국어 텍스트", ["한국어", "텍스트"]),
        ("Ελλάδα и Москва", ["Ελλάδα", "и", "Москва"]),
        ("🎉 party 🎉", ["party"]),
        ("a\u200bb", ["a", "b"]),
        ("\ud800 lone", ["lone"]),
    ],
)
def test_what_words_are(written, expected):
    assert found(written) == expected


@pytest.mark.parametrize(
    "written", ["ação", "Ångström", "ñandú", "Việt", "ё", "が", "한", "हिन्दी", "שָׁ", "ﬁ", "ＡＢＣ１", "①"]
)
def test_forms_of_one_text_are_one(written):
    forms = {text.normal(unicodedata.normalize(form, written)) for form in ("NFC", "NFD", "NFKC", "NFKD")}
    assert forms == {unicodedata.normalize("NFKC", written)}


@pytest.mark.parametrize(
    ("word", "expected"),
    [("plain", "plain"), ("ação", "acao"), ("AÇÃO", "ACAO"), ("ñ", "n"), ("Việt", "Viet"), ("cafe\u0301", "cafe"),
     ("straße", "straße"), ("ø", "ø"), ("й", "и"), ("", ""), ("\u0301", "")],
)  # fmt: skip
def test_a_word_without_its_accents(word, expected):
    assert text.bare(word) == expected
    assert text.bare(expected) == expected


@pytest.mark.parametrize(
    ("word", "pieces"),
    [("word", ["word"]), ("日本語", ["日本語"]), ("iPhoneを買う", ["iPhone", "を買う"]), ("第3回", ["第", "3", "回"]),
     ("PCR検査kit", ["PCR", "検査", "kit"]), ("한국어", ["한국어"]), ("สวัสดี", ["สวัสดี"]), ("ᄒ", ["ᄒ"]),
     ("\U00020000a", ["\U00020000", "a"]), ("", [])],
)  # fmt: skip
def test_pieces_by_script(word, pieces):
    assert list(text.by_script(word)) == pieces
    assert text.dense(word) == bool(pieces and not re.match("[A-Za-z0-9]", pieces[0]))


@thorough(300)
@given(st.text())
def test_nothing_is_lost_or_doubled(written):
    normal = text.normal(written)
    assert text.normal(normal) == normal == unicodedata.normalize("NFKC", written)
    for word in found(normal):
        pieces = list(text.by_script(word))
        assert "".join(pieces) == word
        assert all(pieces)
        kinds = [text.dense(piece) for piece in pieces]
        assert all(a != b for a, b in itertools.pairwise(kinds))
        assert not any(map(unicodedata.combining, text.bare(word)))
    assert re.sub(text.WORD, "", normal) == "".join(re.split(text.WORD, normal))


SIGNS = "\u0301\u0316"  # of two classes: put in order, one goes before all of the other


@pytest.mark.parametrize("pair", [SIGNS, "\uff9e\u0301", "\u0f73\u0f71", "\u093c\u0301"])
def test_signs_without_end_on_one_letter_are_put_in_order_soon(pair):
    """Half a million of them, of which `unicodedata` would not make an end; the letters around them stay."""
    made = text.normal("before a" + pair * 250_000 + "b after")
    assert made.startswith("before ")
    assert made.endswith("b after")
    assert len(made) < 100
    assert text.normal(made) == made


def test_signs_that_are_written_stay():
    for signs in (SIGNS, SIGNS * 15):
        assert text.normal("a" + signs) == unicodedata.normalize("NFKC", "a" + signs)
    zalgo = "".join(letter + SIGNS * 10 for letter in "letters")
    assert text.normal(zalgo) == unicodedata.normalize("NFKC", zalgo)
    marks = "…、。「」🎉" * 50
    assert text.normal(marks) == unicodedata.normalize("NFKC", marks)

"""Which words does a text have? The terms of the lexical index, the same for what is stored and what is asked.

A text is brought to NFKC and its case folded, so that NFC and NFD, full-width and half-width forms are one. Then

- a word is stemmed (Snowball) in the language of its text, which small words and letters tell, and loses its accents;
  one with accents counts as it would without them too, since many type so;
- an identifier such as `srv-prod-db01`, `/v1/billing`, `getUserName` or `a.b@c.org` counts whole and in its parts;
- scripts without spaces between words count by single characters and by pairs of neighbours.

A question is read in every language that stored texts are in: a word is found by any of its stems. One of the small
words that tell a language counts a quarter in it, however rare it is among what is stored: LoCoMo's recall@10 by words
is .68 so, and .63 without. Dates that it names are looked for in the calendar too (`dates`). Terms are hashes of 64
bits; those of a word that is stemmed have its language in them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple

import Stemmer

from memcore.store import dates
from memcore.text import WORD, bare, by_script, dense, normal

LANGUAGES = ("english", "portuguese", "spanish")  # Snowball's names; the first one where nothing tells
# Words of a few letters that are common in one of them, and less so in the others.
_ENGLISH = (
    "the and of is was are were with this that for you it to in on be have has had not they he she his her my your i "
    "what when where who which how did does do we from at by will would can could should a an been there their"
)
_PORTUGUESE = (
    "não nao uma um com para pelo pela pelos pelas dos das nos nas foi são está estão ele ela eles elas isso esse essa "
    "este esta seu sua seus suas meu minha mais mas ou em ao aos à às quando onde quem qual como fazer tem há do da no "
    "na os as o a e de se já também até muito depois antes sem você vocês que eu"
)
_SPANISH = (
    "el los las un una unos unas del al es son fue está están con por para que no sí su sus mi mis tu tus ella ellos "
    "ellas lo le les se pero más muy cuando donde dónde quién qué cuál cómo como hay ya también hasta después antes "
    "sin hacer tiene este esta ese esa la de en y a yo"
)
_LETTERS = ("", "ãõçêô", "ñ¿¡")  # of one of the languages alone: each counts as two small words
_TOLD_BY: dict[str, list[int]] = {}
for _code, _words in enumerate((_ENGLISH, _PORTUGUESE, _SPANISH)):
    for _word in _words.split():
        _TOLD_BY.setdefault(_word, []).append(_code)
# Runs of letters and digits, with what joins the parts of an identifier.
_TOKENS = re.compile(rf"{WORD}(?:[-._/:@+#]+{WORD})*")
_PARTS = re.compile(WORD)
_SEAMS = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=\d)(?=[^\W\d_])|(?<=[^\W\d_])(?=\d)")  # camelCase, db01
_CACHED = 65_536  # tokens: about 20 MB
SMALL = 0.25  # what a small word counts in a question
_LONGEST = 64  # characters of a token that is kept in mind; a longer one is a blob, and hardly comes again


def terms(text: str) -> tuple[list[int], int]:
    """The terms of a text that is stored, each as often as it stands there; and its language, of `LANGUAGES`."""
    text = normal(text)
    tokens = _TOKENS.findall(text)
    code = _language(tokens, text)
    found: list[int] = []
    for token in tokens:
        for forms in _read(token, code):
            found += forms
    return found, code


class Group(NamedTuple):
    """Terms of which any one will do, and by how much it counts."""

    terms: tuple[int, ...]
    weight: float


def asked(text: str, languages: Sequence[int]) -> list[Group]:
    """What a question asks for. `languages` are those of stored texts."""
    text = normal(text)
    tokens = _TOKENS.findall(text)
    named = dates.named(
        [bare(token.casefold()) for token in tokens],
        [token[0].isupper() for token in tokens],
        day_first=_language(tokens, text) != 0,
    )
    weights: dict[tuple[int, ...], float] = {}
    for token, names in zip(tokens, named, strict=True):
        groups = [
            tuple(dict.fromkeys(form for forms in several for form in forms))
            for several in zip(*(_read(token, code) for code in languages or (0,)), strict=True)
        ]
        of_date = [tuple(map(term, names[i : i + 1])) for i in range(len(names))]
        if len(groups) == len(of_date) == 1:
            groups = [groups[0] + of_date[0]]  # the word itself, or a day of that date
        else:
            groups += of_date
        weight = SMALL if token.lower() in _TOLD_BY and not names else 1.0
        for group in groups:
            weights[group] = max(weights.get(group, 0.0), weight)
    return [Group(*each) for each in weights.items()]


@lru_cache(4_096)
def _of_day(day: int) -> tuple[int, ...]:
    return tuple(map(term, dates.of(day * dates.US_OF_DAY)))


def of_date(event_time: int) -> tuple[int, ...]:
    """The terms of the day on which something happened, int64 us UTC."""
    return _of_day(event_time // dates.US_OF_DAY)


def term(name: str) -> int:
    """The hash of a term."""
    return int.from_bytes(blake2b(name.encode("utf-8", "replace"), digest_size=8).digest(), "little")


def language(text: str) -> int:
    """Which of `LANGUAGES` a text is in, as of `normal`."""
    return _language(_TOKENS.findall(text), text)


def _language(tokens: Sequence[str], text: str) -> int:
    told = [0] * len(LANGUAGES)
    for token in tokens:
        for code in _TOLD_BY.get(token.lower(), ()):
            told[code] += 1
    if not text.isascii():
        for code, letters in enumerate(_LETTERS):
            told[code] += 2 * sum(letter in text for letter in letters)
    return max(range(len(told)), key=told.__getitem__)


def _read(token: str, code: int) -> tuple[tuple[int, ...], ...]:
    """The terms of a token: a tuple for each thing that it says, as many in every language."""
    return _kept(token, code) if len(token) <= _LONGEST else _read_anew(token, code)


def _read_anew(token: str, code: int) -> tuple[tuple[int, ...], ...]:
    said: list[tuple[int, ...]] = []
    pieces = [piece for part in _PARTS.findall(token) for piece in by_script(part)]
    if len(pieces) > 1:
        said.append((term("=" + bare(token.casefold())),))
    for piece in pieces:
        if dense(piece):
            said += ((term("-" + gram),) for gram in _grams(piece))
            continue
        parts = [part for part in _SEAMS.split(piece) if part]
        if len(parts) > 1 and len(pieces) + len(parts) > 2:
            said.append((term("=" + bare(piece.casefold())),))
        said += (_forms(part.casefold(), code) for part in parts)
    return tuple(said)


_kept = lru_cache(_CACHED)(_read_anew)


def _grams(piece: str) -> Iterator[str]:
    yield from piece
    yield from map("".join, pairwise(piece))


def _forms(word: str, code: int) -> tuple[int, ...]:
    """The terms of one word: its stem, and that of the word without its accents."""
    if word.isdigit():
        return (term("=" + word),)
    with _stemming:  # a Stemmer has a cache of its own, and is for one thread at a time
        stems = (bare(_STEMMERS[code].stemWord(word)), _STEMMERS[code].stemWord(bare(word)))
    return tuple(dict.fromkeys(term(f"{code}{stem}") for stem in stems))


_STEMMERS = [Stemmer.Stemmer(name) for name in LANGUAGES]
_stemming = threading.Lock()

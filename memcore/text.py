"""What is a word, in any script? The same for the words that are looked up and for those that are embedded."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

# Signs that are written on letters count as letters: `\w` leaves out accents that have no composed form, the points of
# Hebrew and Arabic and the vowel signs of India's scripts.
_SIGNS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u0900-\u0963\u0966-\u0dff"
)
WORD = rf"(?:[^\W_]|[{_SIGNS}])+"
# Scripts that write no spaces between words, and Hangul, whose words take endings.
_DENSE = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3130-\u318f"
    "\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]+"
)
# Where many signs may stand in a row. The two half-width marks are letters of Unicode, and signs once normalized.
_MANY_SIGNS = re.compile("(?:[^\\w\\s!-~]|[\uff9e\uff9f]){64,}")
_MOST_SIGNS = 30  # on one letter, as in Unicode's stream-safe format (UAX 15)


def normal(text: str) -> str:
    """NFKC: composed and decomposed, full-width and half-width forms are one. Of very many signs on one letter the
    first ones are kept: to put them in order, `unicodedata` takes time that grows with the square of how many they are.
    """
    return text if text.isascii() else unicodedata.normalize("NFKC", _MANY_SIGNS.sub(_first_signs, text))


def _first_signs(run: re.Match[str]) -> str:
    kept, signs = [], 0
    for c in run.group():
        signs = signs + 1 if c in "\uff9e\uff9f" or unicodedata.category(c)[0] == "M" else 0
        if signs <= _MOST_SIGNS:
            kept.append(c)
    return "".join(kept)


def bare(word: str) -> str:
    """A word without its accents."""
    if word.isascii():
        return word
    return "".join(c for c in unicodedata.normalize("NFD", word) if not unicodedata.combining(c))


def dense(word: str) -> bool:
    """Whether a word begins in a script without spaces between words."""
    return _DENSE.match(word) is not None


def by_script(word: str) -> Iterator[str]:
    """Pieces of a word that are each in scripts with spaces between words, or in ones without."""
    at = 0
    for found in _DENSE.finditer(word):
        if found.start() > at:
            yield word[at : found.start()]
        yield found.group()
        at = found.end()
    if at < len(word):
        yield word[at:]

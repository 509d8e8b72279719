"""What does a process pay before its first answer? Import, --help, a first recall with and without compiled kernels.

Each round is a fresh process, timed from outside.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

FIRST = "import memcore; m = memcore.open(); m.remember('a deploy failed'); m.recall('deploy')"


def run(*command: str, **environment: str) -> None:
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **environment})


def python(code: str, **environment: str) -> None:
    run(sys.executable, "-c", code, **environment)


@pytest.mark.benchmark(group="import")
@pytest.mark.parametrize("code", ["pass", "import numpy, pyarrow", "import memcore", "import numpy, pyarrow, memcore"])
def bench_import(benchmark: Any, code: str) -> None:
    benchmark.pedantic(lambda: python(code), rounds=10, warmup_rounds=1)


@pytest.mark.benchmark(group="memcore --help")
def bench_help(benchmark: Any) -> None:
    command = str(Path(sys.executable).parent / "memcore")
    benchmark.pedantic(lambda: run(command, "--help"), rounds=10, warmup_rounds=1)


@pytest.mark.benchmark(group="first remember and recall of a process")
def bench_first_call(benchmark: Any) -> None:
    """Kernels come from Numba's cache."""
    benchmark.pedantic(lambda: python(FIRST), rounds=4, warmup_rounds=1)


@pytest.mark.benchmark(group="first remember and recall of a process")
def bench_cold(benchmark: Any) -> None:
    """Every kernel is compiled: what a fresh install pays once, or `memcore.warmup()` at build time."""
    with tempfile.TemporaryDirectory() as folder:
        benchmark.pedantic(lambda: python(FIRST, NUMBA_CACHE_DIR=folder), rounds=1)

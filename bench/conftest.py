"""After pytest-benchmark's own tables: what its rows can't show, such as ratios to a peer measured in the same run."""

from __future__ import annotations

import os
from typing import Any


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    session = getattr(config, "_benchmarksession", None)
    rows = [bench for bench in session.benchmarks if bench.extra_info] if session else []
    if not rows:
        return
    terminalreporter.section("figures beside the times")
    set_here = [name for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE") if name in os.environ]
    terminalreporter.line(f"OpenBLAS variables set: {', '.join(set_here) or 'none'}")
    for bench in rows:
        shown = (f"{name} {_text(value)}" for name, value in bench.extra_info.items() if not isinstance(value, list))
        terminalreporter.line(f"{bench.name:42} {'  '.join(shown)}")


def _text(value: Any) -> str:
    return f"{value:,.3g}" if isinstance(value, float) and value < 1000 else f"{value:,.0f}"

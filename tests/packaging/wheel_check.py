"""Does memcore work as a user installs it? Run by `make wheel-check`; needs a package index, so it is no test.

Builds the sdist, and the wheel from the sdist; checks what is in both; installs the wheel in a clean environment
outside the checkout, its dependencies held to requirements.lock; runs the command, the imports and a replay of the
shipped trace there. Exits with 1 and one line at the first thing that is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
TRACE = ROOT / "datasets" / "ops_agent.jsonl"
SHIPPED_TRACE = "memcore/datasets/ops_agent.jsonl"
IN_SDIST = (
    "pyproject.toml",
    "Makefile",
    "requirements.lock",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "memcore/__init__.py",
    "kernels/memcore_kernels/__init__.py",
    "datasets/ops_agent.jsonl",
    "tests/naive.py",
    "tests/packaging/wheel_check.py",
)


def fail(message: str) -> NoReturn:
    print(f"wheel-check: FAILED: {message}", flush=True)
    sys.exit(1)


def say(message: str) -> None:
    print(f"wheel-check: {message}", flush=True)


def run(*command: str | Path, cwd: Path, env: dict[str, str]) -> str:
    """Run to the end and return stdout; stderr goes through, so that progress and errors show as they come."""
    done = subprocess.run([*command], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        print(done.stdout, flush=True)
        fail(f"exit {done.returncode} from {' '.join(map(str, command))}")
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Without what could lead Python or Numba back to the checkout, or hide that a default doesn't work."""
    led = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "NUMBA_CACHE_DIR", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    return {name: value for name, value in os.environ.items() if name not in led}


def build(out: Path, env: dict[str, str]) -> tuple[Path, Path]:
    """(sdist, wheel). The wheel is built from the sdist: whatever the sdist lacks is missed here."""
    # Without isolation: the backend is pinned in requirements.lock, and nothing is downloaded for the build.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out, env=env)
    sdists, wheels = list(out.glob("*.tar.gz")), list(out.glob("*.whl"))
    if len(sdists) != 1 or len(wheels) != 1:
        fail(f"one sdist and one wheel expected, got {sorted(path.name for path in out.iterdir())}")
    return sdists[0], wheels[0]


def check_sdist(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = [name for name in IN_SDIST if name not in names]
    if missing:
        fail(f"{sdist.name} lacks {', '.join(missing)}")
    say(f"{sdist.name}: {len(names)} files, {sdist.stat().st_size / 1e3:.0f} kB")


def check_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    dist_info = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    stray = [name for name in names if name.split("/")[0] not in ("memcore", "memcore_kernels", dist_info)]
    if stray:
        fail(f"{wheel.name} would put more than memcore and memcore_kernels in site-packages: {', '.join(stray)}")
    # Every module of the checkout, and nothing that isn't one but the trace and the marker of typed packages.
    sources = {
        path.relative_to(base).as_posix()
        for base, package in ((ROOT, "memcore"), (ROOT / "kernels", "memcore_kernels"))
        for path in (base / package).rglob("*.py")
    }
    expected = sources | {"memcore/py.typed", "memcore_kernels/py.typed", SHIPPED_TRACE}
    found = {name for name in names if not name.startswith(dist_info)}
    if missing := sorted(expected - found):
        fail(f"{wheel.name} lacks {', '.join(missing)}")
    if unexpected := sorted(found - expected):
        fail(f"{wheel.name} holds files that are no part of the packages: {', '.join(unexpected)}")
    licence = f"{dist_info}/licenses/LICENSE"
    if licence not in names:
        fail(f"{wheel.name} lacks {licence}")
    say(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size / 1e3:.0f} kB")


def recall_figures(document: object, inside: bool = False) -> Iterator[float]:
    """The numbers that a report holds under a name with `recall` in it, but for times and tokens."""
    if isinstance(document, dict):
        for name, value in document.items():
            named = "recall" in name.lower() and not any(word in name.lower() for word in ("latency", "token", "ms"))
            yield from recall_figures(value, inside or named)
    elif isinstance(document, list):
        for value in document:
            yield from recall_figures(value, inside)
    elif inside and isinstance(document, int | float) and not isinstance(document, bool):
        yield float(document)


def check_installed(wheel: Path, away: Path, env: dict[str, str]) -> None:
    """Install into a new environment and use it from `away`, a directory outside the checkout."""
    venv = away / "venv"
    run(sys.executable, "-m", "venv", venv, cwd=away, env=env)
    python, memcore = venv / "bin" / "python", venv / "bin" / "memcore"
    lock = ROOT / "requirements.lock"
    pip = (python, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--constraint", lock, wheel, cwd=away, env=env)
    run(*pip, "check", cwd=away, env=env)
    say(f"installed in {away}")

    version = wheel.name.split("-")[1]
    printed = run(memcore, "--version", cwd=away, env=env).strip()
    if version not in printed:
        fail(f"`memcore --version` printed {printed!r}, expected {version} in it")
    if "replay" not in run(memcore, "--help", cwd=away, env=env):
        fail("`memcore --help` does not name the verb replay")

    code = "import memcore, memcore_kernels\nprint(memcore.__file__)\nprint(memcore_kernels.__file__)"
    for place in run(python, "-c", code, cwd=away, env=env).splitlines():
        if not Path(place).resolve().is_relative_to(venv.resolve()):
            fail(f"imported from {place}, not from the new environment {venv}")

    started = time.perf_counter()
    printed = run(memcore, "replay", TRACE, "--json", cwd=away, env=env)
    try:
        report = json.loads(printed)
    except ValueError as error:
        fail(f"`memcore replay --json` printed no single JSON document ({error}): {printed[:300]!r}")
    figures = list(recall_figures(report))
    if not figures or max(figures) <= 0:
        fail(f"the report of `memcore replay --json` holds no recall above 0: {printed[:300]!r}")
    say(f"replayed {TRACE.name} in {time.perf_counter() - started:.1f} s")


def main() -> None:
    if not TRACE.is_file():
        fail(f"{TRACE} is not there")
    env = clean_environment()
    with tempfile.TemporaryDirectory(prefix="memcore-wheel-") as name:
        away = Path(name)
        (away / "dist").mkdir()
        sdist, wheel = build(away / "dist", env)
        check_sdist(sdist)
        check_wheel(wheel)
        check_installed(wheel, away, env)
    say("ok")


if __name__ == "__main__":
    main()

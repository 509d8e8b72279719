"""The cache of machine code on disk: whatever is wrong with it, kernels run."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import drawn
import memcore
import memcore_kernels

pytestmark = pytest.mark.skipif(drawn.PLAIN, reason="nothing is compiled")

DOT = """
import numpy as np
from memcore_kernels import dots
print(dots.dot64(np.float32([1, 2, 3]), np.float32([1, 1, 1])), end=" ")
print(sum(dots.dot64.stats.cache_hits.values()), sum(dots.dot64.stats.cache_misses.values()))
"""
RECALL = """
import memcore
mem = memcore.open(embedder=None)
mem.remember_many([{"content": "north", "vector": [1.0, 0.0]}, {"content": "east", "vector": [0.0, 1.0]}])
print([hit.content for hit in mem.recall(vector=[1.0, 0.1])])
"""


def run(program, cache=None, **more):
    """Runs a program with a cache of its own: what it printed, and its warnings."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    if cache is not None:
        environment["NUMBA_CACHE_DIR"] = str(cache)
    environment.update(more.pop("env", {}))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environment, **more
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def entries(cache, ending="nb?"):
    return sorted(cache.rglob(f"*.{ending}"))


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A cache in which DOT's kernels are."""
    cache = tmp_path_factory.mktemp("kept")
    assert run(DOT, cache) == ("6.0 0 1\n", "")
    return cache


@pytest.fixture
def cache(kept, tmp_path):
    return Path(shutil.copytree(kept, tmp_path / "cache"))


def test_a_second_process_compiles_nothing(cache):
    assert run(DOT, cache) == ("6.0 1 0\n", "")


@pytest.mark.parametrize("damage", [b"", b"0123456789", b"\x80\x05garbage", None])
@pytest.mark.parametrize("ending", ["nbi", "nbc"])
def test_a_damaged_entry_is_compiled_anew_and_mended(cache, ending, damage):
    for path in entries(cache, ending):
        path.write_bytes(path.read_bytes()[:-20] if damage is None else damage)
    out, err = run(DOT, cache)
    assert out == "6.0 0 1\n"
    assert err.count("Warning") == 1
    assert "where compiled kernels are kept, cannot be read" in err
    assert "set NUMBA_CACHE_DIR to a folder that can be written to, or empty the one it names" in err
    assert run(DOT, cache) == ("6.0 1 0\n", "")


def test_a_missing_entry_is_compiled_anew(cache):
    for path in entries(cache, "nbc"):
        path.unlink()
    assert run(DOT, cache) == ("6.0 0 1\n", "")


def test_a_folder_that_is_gone_when_code_is_to_be_kept(cache):
    late = (
        "import os, shutil, memcore_kernels.dots\n"
        f"shutil.rmtree({str(cache)!r})\n"
        f"os.symlink('/nonexistent/folder', {str(cache)!r})\n"  # nothing to read and nowhere to write, even for root
    )
    out, err = run(late + DOT, cache)
    assert out == "6.0 0 1\n"
    assert err.count("Warning") == 1
    assert "compiled kernels cannot be kept in" in err


def test_a_change_in_any_kernels_file_makes_the_code_stale(tmp_path, kept):
    """Numba's own cache sees the file of the kernel alone, not the helpers that were compiled into it."""
    copy = shutil.copytree(memcore_kernels.__path__[0], tmp_path / "memcore_kernels")
    environment = {"PYTHONPATH": str(tmp_path)}
    cache = tmp_path / "cache"
    assert run(DOT, cache, env=environment)[0] == "6.0 0 1\n"
    assert run(DOT, cache, env=environment)[0] == "6.0 1 0\n"
    (copy / "topk.py").write_text((copy / "topk.py").read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    assert run(DOT, cache, env=environment)[0] == "6.0 0 1\n"
    assert run(DOT, cache, env=environment)[0] == "6.0 1 0\n"


def test_case_L5_truncated_numba_cache(tmp_path):
    expected = "['north', 'east']\n"
    assert run(RECALL, tmp_path) == (expected, "")
    assert len(entries(tmp_path)) > 10
    for number, path in enumerate(entries(tmp_path)):
        path.write_bytes(path.read_bytes()[: (0, 10)[number % 2]])
    out, err = run(RECALL, tmp_path)
    assert out == expected
    assert err.count("Warning") == 1
    assert run(RECALL, tmp_path) == (expected, "")


def obey_permissions():
    """Takes from root the right to write where nobody may, from the next exec on."""
    PR_CAPBSET_DROP, CAP_DAC_OVERRIDE = 24, 1
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="root obeys no permissions")
def test_case_L1_read_only_install(tmp_path):
    """Installed where nobody may write, run by a user without a home that can be written to."""
    folder = tmp_path / "site"
    for package in (memcore, memcore_kernels):
        source = Path(package.__path__[0])
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    paths = [folder, *folder.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    environment = {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(folder)}
    program = RECALL + f"assert memcore.__file__.startswith({str(folder)!r})\n"
    try:
        out, err = run(program, env=environment, cwd=tmp_path, preexec_fn=obey_permissions)
        assert out == "['north', 'east']\n"
        assert err.count("Warning") == 1
        assert "there is no folder to keep compiled kernels in" in err
        assert sorted(paths) == sorted([folder, *folder.rglob("*")])
    finally:
        for path in paths:
            path.chmod(0o755)


@pytest.mark.skipif(sys.platform != "linux", reason="root obeys no permissions")
@pytest.mark.parametrize("place", ["beside the sources", "in NUMBA_CACHE_DIR"])
@pytest.mark.parametrize("home", ["read-only", "writable"])
def test_case_K3_what_was_warmed_up_is_found_where_nobody_may_write(tmp_path, place, home):
    """An image is warmed up when it is built, and then run by somebody else."""
    site, cache, user = tmp_path / "site", tmp_path / "cache", tmp_path / "home"
    for package in (memcore, memcore_kernels):
        source = Path(package.__path__[0])
        shutil.copytree(source, site / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    cache.mkdir()
    user.mkdir()
    given = cache if place == "in NUMBA_CACHE_DIR" else None
    environment = {"HOME": str(user), "XDG_CACHE_HOME": str(user / "cache"), "PYTHONPATH": str(site)}
    program = (
        "from memcore_kernels import dots\nimport numpy as np\n"
        "row = np.ones(3, np.float32)\nassert dots.dot64(row, row) == 3\nprint(dict(dots.dot64.stats.cache_hits))\n"
    )
    out, _ = run(program, cache=given, env=environment, cwd=tmp_path)
    assert out == "{}\n"  # compiled
    warmed = entries(site if given is None else cache)
    assert warmed
    closed = [path for folder in (site, cache, user) for path in (folder, *folder.rglob("*"))]
    closed = [path for path in closed if home == "read-only" or user not in (path, *path.parents)]
    for path in closed:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        out, err = run(program, cache=given, env=environment, cwd=tmp_path, preexec_fn=obey_permissions)
        assert out != "{}\n"  # found
        assert "Warning" not in err
        assert entries(site if given is None else cache) == warmed
    finally:
        for path in closed:
            path.chmod(0o755)

"""Who imports whom (DESIGN section 10: one way only), and what importing memcore costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import memcore

ROOT = Path(memcore.__file__).resolve().parent
KERNELS = ROOT.parent / "kernels" / "memcore_kernels"
# From the top down: a module may import from its own layer and from those below it.
LAYERS = (
    ("cli", "integrations", "__main__"),
    ("memory", "asynchronous", "calibrate", "engine", "workers"),
    ("lifecycle", "beliefs", "agent", "replay"),
    ("search", "store", "embed", "llm", "intake"),
    ("schema", "config", "ids", "clock", "gate", "errors", "sample", "text"),
    ("memcore_kernels",),
)
HEAVY = ("numpy", "pyarrow", "numba", "faiss", "wordllama", "click", "rich", "Stemmer", "anthropic")


def layer_of(module: str) -> int:
    """The layer of the longest name that a module is in. `module` is without its leading memcore."""
    found = [
        (len(name), place)
        for place, names in enumerate(LAYERS)
        for name in names
        if module == name or module.startswith(name + ".")
    ]
    assert found, f"{module} is in no layer: place it in LAYERS"
    return max(found)[1]


def imports_of(path: Path, tree: ast.AST | None = None, typing_only: bool = False) -> Iterator[tuple[str, bool]]:
    """The memcore modules that a file imports, anywhere in it, and whether for type checking alone."""
    for node in ast.iter_child_nodes(tree or ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for child in node.body:
                yield from imports_of(path, ast.Module([child], []), True)
            for child in node.orelse:
                yield from imports_of(path, ast.Module([child], []), typing_only)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, typing_only) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole if is_module(whole) else node.module or ""), typing_only
        else:
            yield from imports_of(path, node, typing_only)


def is_module(name: str) -> bool:
    head, *rest = name.split(".")
    at = {"memcore": ROOT, "memcore_kernels": KERNELS}.get(head)
    return at is not None and (at.joinpath(*rest).with_suffix(".py").exists() or at.joinpath(*rest).is_dir())


def files() -> list[Path]:
    return sorted([*ROOT.rglob("*.py"), *KERNELS.rglob("*.py")])


def name_of(path: Path) -> str:
    base = ROOT if path.is_relative_to(ROOT) else KERNELS.parent
    return ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("path", files(), ids=name_of)
def test_imports_go_one_way(path):
    name = name_of(path)
    if name == "__init__":
        return  # the package's names, each imported when it is first used
    for imported, typing_only in imports_of(path):
        if imported.split(".")[0] not in ("memcore", "memcore_kernels") or typing_only:
            continue
        module = imported.removeprefix("memcore.")
        if module == "memcore":
            # for its version, or for its public names, which are of the top
            assert layer_of(name) <= layer_of("memory"), f"{name} imports the package itself"
            continue
        assert layer_of(name) <= layer_of(module), f"{name} imports {imported}, which is above it"


def test_kernels_import_nothing_of_memcore():
    for path in KERNELS.rglob("*.py"):
        assert not [name for name, _ in imports_of(path) if name.split(".")[0] == "memcore"]


def test_only_the_clock_reads_the_time():
    for path in ROOT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for call in ("time.time(", "datetime.now(", "utcnow(", "today("):
            assert call not in text or path.name == "clock.py", f"{path} reads the clock by itself"


# What importing costs


def run(script: str) -> str:
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


SHOW = f"\nimport sys\nprint(sorted(name for name in {HEAVY} if name in sys.modules))"


def test_importing_memcore_imports_nothing_heavy():
    assert run("import memcore; memcore.__all__, dir(memcore), memcore.__version__" + SHOW) == "[]"
    assert run("import memcore; memcore.VersionConflict, memcore.ScopeError" + SHOW) == "[]"


def test_a_write_loads_no_compiler():
    script = (
        "import memcore\nmem = memcore.open(embedder=None)\nops = mem.scope('t')\n"
        "first = ops.remember('x', vector=[1.0, 0.0], metadata={'n': 1})\nops.remember_many(['y', 'z'])\n"
        "ops.update(first.id, content='w'), ops.get(first.id), ops.list(where={'metadata.n': 1}), "
        "ops.history(id=first.id)\nops.forget(first.id), ops.working().add('user', 'hello'), ops.end_session(), "
        "mem.stats()\nmemcore.Hit, memcore.Recall"
    )
    assert run(script + SHOW) == "['numpy', 'pyarrow']"
    assert "numba" in run(script + "\nops.recall(k=1)" + SHOW)


def test_every_public_name_is_there():
    script = (
        "import memcore\nfrom memcore import *\n"
        "print([n for n in memcore.__all__ if n not in globals() or globals()[n] is not getattr(memcore, n)])"
    )
    assert run(script) == "[]"
    assert set(memcore.__all__) <= set(dir(memcore))
    with pytest.raises(AttributeError, match="module 'memcore' has no attribute 'remember'"):
        memcore.remember  # noqa: B018


def test_the_embedders_are_there_without_an_import_of_their_own():
    script = "import memcore\nprint(memcore.embed.CallableEmbedder.__name__, 'embed' in dir(memcore))"
    assert run(script) == "CallableEmbedder True"


def test_every_error_is_public():
    from memcore import errors

    defined = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert defined <= set(memcore.__all__)
    assert all(issubclass(getattr(memcore, name), memcore.MemcoreError) for name in defined)

import ast
import importlib
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import drawn
import memcore_kernels
from memcore_kernels import settings

NAMES = [module.name for module in pkgutil.iter_modules(memcore_kernels.__path__)]
MODULES = [importlib.import_module(f"memcore_kernels.{name}") for name in NAMES]
COMPILERS = {"jit", "njit", "vectorize", "guvectorize", "stencil", "cfunc", "prange", "jit_module"}


def imports(module):
    """(module, name) of each import in its source, wherever it stands."""
    for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.module or "", alias.name) for alias in node.names)


def compiled():
    """Every compiled function of the package, by name."""
    from numba.core.dispatcher import Dispatcher

    return {
        f"{module.__name__}.{name}": value
        for module in MODULES
        for name, value in vars(module).items()
        if isinstance(value, Dispatcher) and value.py_func.__module__ == module.__name__
    }


def test_all_modules_are_looked_at():
    assert {"codes", "decay", "dots", "memory", "scan", "settings", "topk"} <= set(NAMES)


@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_kernels_import_nothing_of_memcore(module):
    assert not [name for name, _ in imports(module) if name.partition(".")[0] == "memcore"]


@pytest.mark.parametrize("module", [m for m in MODULES if m is not settings], ids=lambda m: m.__name__)
def test_only_settings_has_a_compiler(module):
    """`memory` and `lanes` have what stands in compiled code itself, and nothing to compile with."""
    free = {"carray", "config", "types"} if module.__name__.endswith((".memory", ".lanes")) else set()
    assert not [
        (name, what) for name, what in imports(module) if (name == "numba" and what not in free) or what in COMPILERS
    ]


def test_fastmath_keeps_nan_and_infinity():
    assert not settings.FASTMATH - {"reassoc", "contract", "arcp", "afn", "nsz"}


@pytest.mark.skipif(drawn.PLAIN, reason="nothing is compiled")
def test_each_kernel_has_the_allowed_options_and_no_other():
    kernels = compiled()
    assert len(kernels) >= 15
    for name, function in kernels.items():
        options = dict(function.targetoptions)
        assert options.pop("fastmath") in (False, settings.FASTMATH), name
        assert options == {"nopython": True, "nogil": True, "boundscheck": None}, name
        assert isinstance(function._cache, settings.Cache), name


@pytest.mark.skipif(drawn.PLAIN, reason="nothing is compiled")
def test_what_decides_the_order_of_results_reorders_no_sum():
    exact = {name.rpartition(".")[2] for name, function in compiled().items() if not function.targetoptions["fastmath"]}
    assert exact >= {"before", "offer", "dot64", "recency", "exact_score", "rescore", "quantise"}


@pytest.mark.skipif(drawn.PLAIN, reason="nothing is compiled")
def test_importing_compiles_nothing():
    program = (
        f"import importlib\n"
        f"from numba.core.dispatcher import Dispatcher\n"
        f"modules = [importlib.import_module('memcore_kernels.' + name) for name in {NAMES}]\n"
        f"import memcore.search.exact\n"
        f"found = [f for m in modules for f in vars(m).values() if isinstance(f, Dispatcher)]\n"
        f"print(len(found), sum(len(f.signatures) for f in found))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    many, signatures = map(int, run.stdout.split())
    assert many >= 15
    assert signatures == 0


@pytest.mark.skipif(drawn.PLAIN, reason="nothing is compiled")
def test_recall_compiles_each_kernel_once_whatever_is_asked(tmp_path):
    """A read-only array, or one of another layout, is another type to Numba: its first query would take seconds. What
    is called by kernels and by Python, with the store's read-only columns, has both types.
    """
    program = """
import json, sys
import numpy as np
import memcore
from memcore.search import exact
from memcore_kernels import activation, centre, codes, decay, dots, lexical, scan
exact.PARALLEL_ROWS = 20
from memcore.store import segment
segment.ROWS, segment.LEAST_CODED = 64, 10
rng = np.random.default_rng(0)
mem = memcore.open(sys.argv[1], embedder="hashed")
mem.remember_many([{"content": f"row {i}", "metadata": {"n": i}} for i in range(5)])
def ask():
    read_only = np.eye(mem.stats()["dim"], dtype=np.float32)[3]
    read_only.flags.writeable = False
    for more in ({}, {"where": {"metadata.n": 3}}, {"kinds": "semantic"}, {"weights": (1, 0, 0)}, {"k": 1},
                 {"decay_rate": 1}, {"min_similarity": 0}, {"min_score": 0}, {"as_of": 1.9e9, "now": 2e9}):
        mem.recall("row 3", **more)
        mem.recall("row 3", relevance="cosine", **more)
        mem.recall(vector=read_only, **more)
        mem.recall(vector=read_only.tolist(), **more)
        mem.recall(**{key: value for key, value in more.items() if key != "min_similarity"})
        mem.recall_many(["row 3"] * 20, relevance="cosine", **more)
        mem.recall_many(vectors=[read_only] * 20, **more)
ask()
mem.remember_many([{"content": f"row {i}", "metadata": {"n": i}} for i in range(5, 200)])
mem.forget(where={"metadata.n": 4})
ask()
mem.close()
mem = memcore.open(sys.argv[1], embedder="hashed")
ask()
mem.forget(list(mem.list(limit=150)))
ask()
kernels = (centre.likeness, centre.add_rows, centre.add_marked, activation.activate, lexical.count_rows,
           lexical.add_scores, scan.rank, scan.scan, scan.screen, scan.rescore, codes.quantise, dots.cosines,
           decay.known_terms, dots.dot64)
print(json.dumps({kernel.__name__: list(map(str, kernel.nopython_signatures)) for kernel in kernels}))
"""
    run = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "store")], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    many = {name: len(signatures) for name, signatures in json.loads(run.stdout).items()}
    assert many.pop("known_terms") in (1, 2)  # what is loaded with a kernel from the cache does not count
    assert many.pop("dot64") in (1, 2)
    expected = {"scan", "screen", "rescore", "quantise", "cosines", "rank"}
    expected |= {"likeness", "add_rows", "add_marked", "activate", "count_rows", "add_scores"}
    assert many == dict.fromkeys(expected, 1)


@pytest.mark.skipif(drawn.PLAIN, reason="nothing is compiled")
def test_after_a_warmup_nothing_is_compiled():
    program = f"""
import importlib, json
import numpy as np
import memcore
from memcore.search import exact
from memcore.store import segment
from numba.core.dispatcher import Dispatcher
memcore.warmup(embedder=None)
modules = [importlib.import_module("memcore_kernels." + name) for name in {NAMES}]
kernels = [f for m in modules for f in vars(m).values() if isinstance(f, Dispatcher)]
before = {{kernel.__name__: len(kernel.signatures) for kernel in kernels}}
segment.ROWS, segment.LEAST_CODED, exact.PARALLEL_ROWS = 64, 10, 20
mem = memcore.open(embedder=None)
rows = np.random.default_rng(0).standard_normal((200, 8))
mem.remember_many([{{"content": "row", "vector": row}} for row in rows])
for more in ({{}}, {{"where": {{"importance": 0.5}}}}, {{"kinds": "semantic"}}, {{"min_similarity": 0.5}}):
    mem.recall(vector=rows[0], **more)
    mem.recall_many(vectors=rows[:20], **more)
print(json.dumps({{k.__name__: len(k.signatures) - before[k.__name__] for k in kernels}}))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert {name: new for name, new in json.loads(run.stdout).items() if new} == {}

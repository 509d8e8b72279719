"""After `memcore.warmup()` nothing is left to compile, whatever is asked."""

import subprocess
import sys

import pytest

CODE = """
import importlib, pkgutil
import numpy as np
import memcore, memcore_kernels

def compiled():
    names = [m.name for m in pkgutil.iter_modules(memcore_kernels.__path__)]
    modules = [importlib.import_module(f"memcore_kernels.{name}") for name in names]
    return {(m.__name__, name): len(value.signatures) for m in modules for name, value in vars(m).items()
            if hasattr(value, "signatures")}

memcore.warmup(EMBEDDER)
before = compiled()
assert sum(before.values()) > 5, before
rng = np.random.default_rng(0)
mem = memcore.open(embedder=None)
mem.remember_many([{"content": "x", "vector": v} for v in rng.standard_normal((40_000, 8)).astype(np.float32)])
mem.remember("y", vector=np.ones(8), kind="semantic", key="k", expires_at=2e9)
mem.recall(vector=np.ones(8), where={"kind": "semantic"})
mem.recall(vector=np.ones(8), min_similarity=0.1, min_score=0.2, weights=(1, 0, 0))
mem.recall(k=3)
mem.recall_many(vectors=rng.standard_normal((20, 8)), k=3, where={"kind": "episodic"})
text = memcore.open(embedder="hashed")
text.remember("a deploy failed")
def ask():
    for relevance in ("cosine", "lexical", "hybrid"):
        text.recall("deploy", relevance=relevance, where={"kind": "episodic"})
        text.recall_many(["deploy", "what failed yesterday"], relevance=relevance)
        if relevance != "cosine":
            mem.recall("x", relevance=relevance)
        if relevance != "lexical":
            text.recall("deploy", relevance=relevance, min_similarity=0.1)
ask()
ids = text.remember_many([f"deploy {i} is done" for i in range(9)]).ids
ask()
text.forget(ids[3])  # one of many: its vector is taken off the sum
ask()
text.forget(ids[4:])  # most: those of the others are added
ask()
text.remember_many([f"row {i} of {i % 7}" for i in range(5_000)])
ask()
assert text.recall("row 5").explain()["plan"] == "hybrid, int8 codes"
assert compiled() == before, {n: c for n, c in compiled().items() if before[n] != c}
"""


@pytest.mark.parametrize("embedder", ["None", "'hashed'"])
def test_nothing_is_compiled_after_a_warm_up(embedder):
    done = subprocess.run(
        [sys.executable, "-c", CODE.replace("EMBEDDER", embedder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr

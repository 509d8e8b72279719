"""Where is the LoCoMo file? Not in this repository: MEMCORE_LOCOMO names it, or it lies in shared/ beside it."""

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "datasets" / "locomo" / "locomo5-dev.json"
LOCOMO = Path(os.environ.get("MEMCORE_LOCOMO", _BESIDE))


def needs_locomo(test):
    """Marks a test that measures LoCoMo, and skips it where the file isn't."""
    skip = pytest.mark.skipif(not LOCOMO.exists(), reason="no LoCoMo file here; name one in MEMCORE_LOCOMO")
    return pytest.mark.locomo(skip(test))

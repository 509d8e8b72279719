"""Which real text is there on any machine? Prose-like lines of Python sources, to measure with."""

from __future__ import annotations

import itertools
import sysconfig
from collections.abc import Iterator
from pathlib import Path

_LETTERS = 0.7  # the share of letters and spaces from which a line counts as prose


def lines(n: int, roots: tuple[str, ...] = ("stdlib",)) -> list[str]:
    """`n` distinct lines of at least 25 characters, in the order of sorted paths, so that one environment gives one
    sample. `roots` are names of `sysconfig` paths. Where there are fewer, two are joined.
    """
    found: dict[str, None] = {}
    for line in itertools.chain.from_iterable(map(_prose, roots)):
        found[line] = None
        if len(found) == n:
            break
    texts = list(found)
    return [texts[i] if i < len(texts) else _joined(texts, i) for i in range(n)]


def _joined(texts: list[str], i: int) -> str:
    n = len(texts)
    return f"{texts[i % n]}; {texts[(i * 7919 + i // n) % n]}"


def _prose(root: str) -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_paths()[root]).rglob("*.py")):
        try:
            source = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        for line in map(str.strip, source.split("\n")):
            if len(line) >= 25 and sum(c.isalpha() or c == " " for c in line) > _LETTERS * len(line):
                yield line

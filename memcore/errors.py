"""What can go wrong, by type. Every message says what was got, what is allowed and what to do next.

All inherit `MemcoreError`, so `except memcore.MemcoreError` catches everything that memcore raises on purpose.
After any of them nothing is half-written. They can be printed whatever value they tell of, and pickled.
"""

from __future__ import annotations

from functools import partial
from typing import Any


def printable(text: str) -> str:
    """The text with lone surrogates spelled out (`\\ud83d`), so that any stream and log can take it."""
    return text.encode("utf-8", "backslashreplace").decode()


class MemcoreError(Exception):
    """The root of all errors that memcore raises on purpose."""

    def __str__(self) -> str:
        return printable(str(self.args[0])) if self.args else ""


class InvalidInput(MemcoreError, ValueError):
    """A value from outside that the gate refuses."""


class DimensionMismatch(InvalidInput):
    """A vector whose width is not the store's."""


class EmbedderMismatch(MemcoreError):
    """The store was written with another embedder than the one it is opened with, or that vectors come from.

    `stored` and `given` are their fingerprints: of the store's vectors, and of the other; None where none is known.
    """

    def __init__(self, *args: object, stored: str | None = None, given: str | None = None) -> None:
        super().__init__(*args)
        self.stored = stored
        self.given = given


class ScopeError(InvalidInput):
    """A scope that is missing, blank or not a text. Scopes fail closed: nothing is read or written."""


class NotFound(MemcoreError, KeyError):
    """No such record in this scope."""


class VersionConflict(MemcoreError):
    """`if_version` did not match: someone else wrote first. `expected` and `found` carry both versions."""

    def __init__(self, message: str, *, expected: int, found: int) -> None:
        super().__init__(message)
        self.expected = expected
        self.found = found

    def __reduce__(self) -> tuple[Any, ...]:  # the inherited one would call the class without the two versions
        return partial(type(self), expected=self.expected, found=self.found), self.args


class StoreError(MemcoreError):
    """The root of the errors about the store's files. `MemcoreError` with a path in its message."""


class StoreCorrupt(StoreError):
    """A file of the store does not hold what it should."""


class StoreLocked(StoreError):
    """Another process has held the store's lock for longer than `lock_timeout`."""


class StoreReadOnly(StoreError):
    """The store's place cannot be written."""


class StoreFull(StoreError):
    """No room is left where the store lies. Nothing of the write was kept; what was acknowledged is safe."""


class StoreClosed(StoreError):
    """The store was closed; open it again."""


class FormatTooNew(StoreError):
    """The file was written by a newer memcore."""


class LLMError(MemcoreError):
    """A model elsewhere did not do what it was asked, or answered with what it should not."""


class LLMRefused(LLMError):
    """It said no: the request, the key or the content is not accepted. To try again would not help."""


class LLMUnavailable(LLMError):
    """It could not be reached, or was too busy, as often as it was tried."""


class MissingExtra(MemcoreError, ImportError):
    """An optional package is not installed; the message gives the pip command."""

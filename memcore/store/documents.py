"""How is a JSON document read that is larger than RAM? Piece by piece: one value at a time, of whatever size it is."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import IO, Any

_CHUNK = 1 << 20  # bytes read at once, at least
_SPACE = " \t\n\r"
_NEAR = 16  # characters before the end of what was read where a fault may come from the cut alone: an escape, a word
_CLOSED = '}]"'  # what the last character of a value may be that more characters can't change
_AFTER = tuple(",]} \t\n\r")  # what follows one otherwise


class JsonStream:
    """The values of a JSON document in any of Unicode's encodings, in their order.

    A fault is a ValueError that tells its line, column and character in the document, as `json.loads` does.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        head = file.read(_CHUNK)
        self._bytes = codecs.getincrementaldecoder(json.detect_encoding(head))("surrogatepass")
        self._decoder = json.JSONDecoder()
        self._text = self._bytes.decode(head, final=not head)
        self._at = 0
        self._ended = not head
        self._before = (0, 1, 1)  # characters, the line and the column at the beginning of the text

    def next(self) -> str:
        """The next character that is no white space, which stays; "" at the end."""
        while True:
            while self._at < len(self._text):
                if self._text[self._at] not in _SPACE:
                    return self._text[self._at]
                self._at += 1
            if not self._read():
                return ""

    def skip(self, expected: str, told: str) -> None:
        """Steps over a character that must be the next one."""
        if self.next() != expected:
            raise self.fault(told)
        self._at += 1

    def value(self) -> Any:
        """The next value, decoded."""
        self.next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except json.JSONDecodeError as fault:
                cut = fault.msg.startswith("Unterminated string") or fault.pos >= len(self._text) - _NEAR
                told = self.fault(fault.msg, fault.pos)
                if not (cut and self._read()):
                    raise told from None
                continue
            if self._text[end - 1] in _CLOSED or self._text[end : end + 1] in _AFTER:
                self._at = end
                return value
            size = end - self._at
            if not self._read():  # nothing that a number could go on with
                self._at += size
                return value

    def members(self) -> Iterator[str]:
        """The names of an object's members. After each, its value is to be read before the next is asked for."""
        self.skip("{", "Expecting value")
        if self.next() != "}":
            while True:
                if self.next() != '"':
                    raise self.fault("Expecting property name enclosed in double quotes")
                name = self.value()
                self.skip(":", "Expecting ':' delimiter")
                yield name
                if self.next() == "}":
                    break
                self.skip(",", "Expecting ',' delimiter")
        self._at += 1

    def items(self) -> Iterator[Any]:
        """The values of an array."""
        self.skip("[", "Expecting value")
        if self.next() != "]":
            while True:
                yield self.value()
                if self.next() == "]":
                    break
                self.skip(",", "Expecting ',' delimiter")
        self._at += 1

    def end(self) -> None:
        """Checks that nothing follows."""
        if self.next():
            raise self.fault("Extra data")

    def fault(self, told: str, at: int | None = None) -> ValueError:
        characters, line, column = self._place(self._at if at is None else at)
        return ValueError(f"{told}: line {line} column {column} (char {characters})")

    def _place(self, at: int) -> tuple[int, int, int]:
        """Characters before a place in the text, its line and its column in the document."""
        characters, line, column = self._before
        lines = self._text.count("\n", 0, at)
        column = at - self._text.rindex("\n", 0, at) if lines else column + at
        return characters + at, line + lines, column

    def _read(self) -> bool:
        """Reads on; False at the end. What was passed is let go; a value that goes on is read in ever larger pieces."""
        if self._ended:
            return False
        self._before, self._text, self._at = self._place(self._at), self._text[self._at :], 0
        more = self._file.read(max(_CHUNK, len(self._text)))
        self._ended = not more
        self._text += self._bytes.decode(more, final=self._ended)
        return not self._ended

"""Where does a verb wait for the disk? It checks and prepares, comes to a write, waits, and makes its result of it.

So that one thread can hand in the writes of many callers, such a verb is written in two parts. What is decorated here
is the first: it returns the `Write` instead of doing it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from memcore.store.commits import Commits, Ticket

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class Write(Generic[R]):
    """What a verb comes to: a `ticket` for what is to be stored, and `then`, which makes the verb's result of it."""

    __slots__ = ("commits", "then", "ticket")

    def __init__(self, commits: Commits, ticket: Ticket, then: Callable[[Any], R]) -> None:
        self.commits = commits
        self.ticket = ticket
        self.then = then

    def done(self) -> R:
        """Does it, and returns the verb's result when it is on disk."""
        return self.then(self.commits.done(self.ticket))


def writes(prepare: Callable[Concatenate[S, P], Write[R]]) -> Callable[Concatenate[S, P], R]:
    """The verb whose first part this is."""

    @functools.wraps(prepare)
    def verb(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return prepare(self, *args, **kwargs).done()

    signature = inspect.signature(prepare)
    returned = str(signature.return_annotation).removeprefix("Write[").removesuffix("]")
    told: Any = verb  # what readers, `help` and type checkers are to see is the verb's own result
    told.__signature__ = signature.replace(return_annotation=returned)
    told.__annotations__ = {**prepare.__annotations__, "return": returned}
    told.prepare = prepare
    return verb


def prepare_of(verb: Callable[P, R]) -> Callable[P, Write[R]]:
    """The first part of a verb that is written in two."""
    return cast("Callable[P, Write[R]]", verb.prepare)  # type: ignore[attr-defined]

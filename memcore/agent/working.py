"""What does the live conversation still hold? First in, first out, within a number of entries and a budget of tokens.

The first system message and the last message always stay, whatever the limits say. What falls out is not lost: it stays
in the store and becomes episodic, with the rest of the conversation, when the session ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from memcore import gate
from memcore.config import WorkingLimits
from memcore.store.catalog import Catalog
from memcore.store.partition import Conversation, Partition
from memcore.store.writes import Write, prepare_of, writes

if TYPE_CHECKING:
    from memcore.memory import Scope
    from memcore.schema import Record

CountTokens = Callable[[str], int]
ROLES = ("system", "user", "assistant", "tool")


def estimate_tokens(text: str) -> int:
    """About how many tokens a language model sees in a text: one for each four bytes of UTF-8, rounded up.

    English is close to four characters a token; accents and other scripts, which take more bytes, take more tokens too.
    """
    return -(-len(text.encode()) // 4)


def evicted(sizes: Sequence[int], system: Sequence[bool], capacity: int, budget: int | None) -> list[int]:
    """Which entries, oldest first, must leave: `sizes` in tokens and `system` (is it a system message?), oldest first.

    Never the first system message, never the last entry; so those two may exceed the limits on their own.
    """
    kept = set(range(len(sizes)))
    fixed = {len(sizes) - 1} | ({list(system).index(True)} if True in system else set())
    total = sum(sizes)
    gone = []
    for place in range(len(sizes)):
        if len(kept) <= capacity and (budget is None or total <= budget):
            break
        if place not in fixed:
            kept.remove(place)
            total -= sizes[place]
            gone.append(place)
    return gone


def make_room(
    catalog: Catalog,
    partition: Partition,
    conversation: Conversation,
    limits: WorkingLimits,
    now: int,
    upto: int | None = None,
) -> None:
    """Lets a conversation's oldest entries fall out, as far as the limits ask; with `upto` as if the entry of this seq
    were the last one. Under the catalog's lock.
    """
    held = list(partition.held.get(conversation, ()))
    if upto is not None:
        del held[held.index(upto) + 1 :]
    if len(held) <= limits.capacity and limits.tokens is None:
        return
    refs = [partition.ref(seq) for seq in held]
    sizes = [ref.get("tokens") for ref in refs]
    if len(held) <= limits.capacity and (limits.tokens is None or sum(sizes) <= limits.tokens):
        return  # before any metadata is read: a message is added far more often than one falls out
    system = [_is_system(ref.text("metadata")) for ref in refs]
    gone = evicted(sizes, system, limits.capacity, limits.tokens)
    if gone:
        catalog.evict(partition, [held[place] for place in gone], now)


def _is_system(metadata: str | None) -> bool:
    return metadata is not None and json.loads(metadata).get("role") == "system"


class Working:
    """The live conversation of one scope (its session and role), as messages.

        chat = ops.working()
        chat.add("user", "the checkout is down")
        chat.messages()      # [{"role": "user", "content": "the checkout is down"}]
        chat.end()           # all of it, evicted messages too, becomes episodic

    The same entries are written by `remember(text, kind="working")` and read by `list(kinds="working")`.
    """

    def __init__(self, scope: Scope, count_tokens: CountTokens) -> None:
        self._scope = scope
        self._count_tokens = count_tokens

    @writes
    def add(self, /, role: str, content: str, *, now: Any = None, **fields: Any) -> Write[Record]:
        """Appends a message; `role` is system, user, assistant or tool. Other arguments as for `remember`."""
        given = fields.pop("metadata", None)
        told = {} if gate.metadata(given) is None else given
        metadata = {**told, "role": gate.choice(role, "role", ROLES)}
        remember = prepare_of(type(self._scope).remember)
        return remember(self._scope, content, kind="working", metadata=metadata, now=now, **fields)

    def entries(self, *, now: Any = None) -> list[Record]:
        """The messages it still holds as records, in the order they were first said."""
        return self._scope._held(now=now)

    def messages(self, *, now: Any = None) -> list[dict[str, str]]:
        """The messages it still holds, oldest first, in the form chat models take."""
        return [{"role": e.metadata.get("role", "user"), "content": e.content} for e in self.entries(now=now)]

    @property
    def tokens(self) -> int:
        """The tokens of what it holds, by the store's `count_tokens`."""
        return sum(self._count_tokens(entry.content) for entry in self.entries())

    def end(self, *, now: Any = None) -> list[str]:
        """Ends the session; the ids of its messages, all of them episodic now. See `Scope.end_session`."""
        return self._scope.end_session(now=now)

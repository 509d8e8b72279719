"""How does an asyncio program use a memory? By the same verbs, to be awaited: they run in threads of the store's own.

    async with memcore.open_async("agent.mem") as mem:
        ops = mem.scope(tenant_id="acme", project_id="billing")
        await ops.remember("HTTP 504 on /billing", importance=0.9)
        for hit in await ops.recall("payment timeouts", k=5):
            print(hit.total_score, hit.content)

A loop never waits for the disk, an embedder or a kernel. Writes of many tasks share commits. A memory belongs to no
loop: several may use it, one after another or at the same time, and other threads beside them.

A task that is cancelled while it waits for a verb that writes has, when `CancelledError` comes, either stored all of it
or nothing, now and later. Which, a second call with the same `idempotency_key` need not know.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from memcore import memory as sync
from memcore.agent.working import Working
from memcore.memory import Memory, Scope
from memcore.workers import Workers

if TYPE_CHECKING:
    from memcore.engine import Engine

P = ParamSpec("P")
R = TypeVar("R")
Verb = Callable[Concatenate[Any, P], R]
Awaitable = Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]


def _read(verb: Verb[P, R]) -> Awaitable[P, R]:
    """A verb that changes nothing: who is cancelled need not wait for it."""
    return _in_a_thread(verb, decided=False)


def _done(verb: Verb[P, R]) -> Awaitable[P, R]:
    """A verb that changes something: when it has begun, who is cancelled waits for its end."""
    return _in_a_thread(verb, decided=True)


def _in_a_thread(verb: Verb[P, R], *, decided: bool) -> Awaitable[P, R]:
    @functools.wraps(verb)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        work = functools.partial(verb, self._sync, *args, **kwargs)
        result: R = await self._workers.do(work, decided=decided)
        return result

    return _named(call, verb)


def _written(verb: Verb[P, R], at_once: Callable[[Engine, dict[str, Any]], bool] = lambda *_: False) -> Awaitable[P, R]:
    """A verb in two parts, whose write is done with those of other tasks. `at_once` tells by the arguments whether the
    first part takes no time worth telling.
    """
    prepare: Any = verb.prepare  # type: ignore[attr-defined]

    @functools.wraps(verb)
    async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        first = functools.partial(prepare, self._sync, *args, **kwargs)
        result: R = await self._workers.write(first, at_once=at_once(self._engine, kwargs))
        return result

    return _named(call, verb)


def _named(call: Awaitable[P, R], verb: Verb[P, R]) -> Awaitable[P, R]:
    call.__qualname__, call.__module__ = f"Async{verb.__qualname__}", __name__
    return call


def _needs_no_model(engine: Engine, given: dict[str, Any]) -> bool:
    return engine.working.tokens is None and (engine.embedder is None or given.get("vector") is not None)


class AsyncScope:
    """A `Scope` whose verbs are awaited: the same arguments, results and errors. Made by `AsyncMemory.scope`."""

    def __init__(self, scope: Scope, workers: Workers, memory: AsyncMemory | None = None) -> None:
        self._sync = scope
        self._engine = scope._engine
        self._workers = workers
        self._memory = memory  # keeps it alive: the store is closed when its `AsyncMemory` is gone
        self.tenant_id = scope.tenant_id
        self.project_id = scope.project_id
        self.session_id = scope.session_id
        self.agent_role = scope.agent_role

    def __repr__(self) -> str:
        return repr(self._sync).replace("<", "<Async", 1)

    remember = _written(Scope.remember, _needs_no_model)
    remember_many = _written(Scope.remember_many)
    update = _written(Scope.update)
    recall = _read(Scope.recall)
    recall_many = _read(Scope.recall_many)
    get = _read(Scope.get)
    list = _read(Scope.list)
    history = _read(Scope.history)
    link = _done(Scope.link)
    links = _read(Scope.links)
    unlink = _done(Scope.unlink)
    forget = _done(Scope.forget)
    restore = _done(Scope.restore)
    forgotten = _read(Scope.forgotten)
    prune = _done(Scope.prune)
    end_session = _done(Scope.end_session)
    export = _done(Scope.export)
    stats = _read(Scope.stats)

    def working(self) -> AsyncWorking:
        """The live conversation of this scope's session and role."""
        return AsyncWorking(self._sync.working(), self)


class AsyncWorking:
    """A `Working` whose methods are awaited, and `await chat.tokens` too."""

    def __init__(self, working: Working, scope: AsyncScope) -> None:
        self._sync = working
        self._engine = scope._engine
        self._workers = scope._workers
        self._scope = scope

    add = _written(Working.add, _needs_no_model)
    entries = _read(Working.entries)
    messages = _read(Working.messages)
    end = _done(Working.end)

    @property
    def tokens(self) -> Coroutine[Any, Any, int]:
        """The tokens of what it holds, by the store's `count_tokens`."""
        working = self._sync
        return self._workers.do(lambda: working.tokens, decided=False)


class AsyncMemory(AsyncScope):
    """An open store: the default scope's verbs, and those of the whole store. Made by `memcore.open_async`."""

    _sync: Memory

    def __init__(self, memory: Memory, workers: Workers) -> None:
        super().__init__(memory, workers)
        catalog = self._engine.catalog
        catalog.on_fork.append(workers.forked)
        self._finalizer = weakref.finalize(self, _let_go, workers, catalog.on_fork)

    scopes = _read(Memory.scopes)
    export = _done(Memory.export)
    import_ = _done(Memory.import_)
    prune = _done(Memory.prune)
    restore = _done(Memory.restore)
    stats = _read(Memory.stats)
    verify = _done(Memory.verify)
    reembed = _done(Memory.reembed)
    compact = _done(Memory.compact)

    def scope(
        self,
        tenant_id: str = "default",
        project_id: str = "default",
        session_id: str | None = None,
        agent_role: str | None = None,
    ) -> AsyncScope:
        """The memory of one tenant's project, perhaps narrowed to a session and an agent role.

        Ids are compared whole, code point by code point. A blank, missing (None) or non-text tenant or project is a
        `ScopeError`. Sessions and roles may be left out: reads then see all of them, and writes go into "default".
        """
        return AsyncScope(self._sync.scope(tenant_id, project_id, session_id, agent_role), self._workers, self)

    async def close(self) -> None:
        """Lets go of the store; all that was acknowledged is on disk already. Closing twice is no error.

        Calls that wait are done, or end with `StoreClosed`; then the store's threads have ended.
        """
        await self._workers.close(self._sync.close)
        self._finalizer()

    async def __aenter__(self) -> AsyncMemory:
        self._engine.check_open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _let_go(workers: Workers, told_of_forks: list[Callable[[], None]]) -> None:
    workers.let_go()
    with suppress(ValueError):
        told_of_forks.remove(workers.forked)


class Opening:
    """What `open_async` returns: to be awaited for the memory, or to be used in `async with`, which also closes it."""

    def __init__(self, open: Callable[[], Memory]) -> None:
        self._open = open
        self._memory: AsyncMemory | None = None

    def __await__(self) -> Generator[Any, None, AsyncMemory]:
        return self._opened().__await__()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name!r} is asked of what open_async returns before it is awaited: mem = await memcore.open_async(…), or "
            "async with memcore.open_async(…) as mem"
        )

    async def _opened(self) -> AsyncMemory:
        workers, made = Workers(), []
        try:
            await workers.do(lambda: made.append(self._open()), decided=True)
        except GeneratorExit:  # the coroutine was closed, and must not wait
            workers.let_go()
            raise
        except BaseException:
            await workers.close(made[0].close if made else lambda: None)
            raise
        return AsyncMemory(made[0], workers)

    async def __aenter__(self) -> AsyncMemory:
        self._memory = await self
        return self._memory

    async def __aexit__(self, *_: object) -> None:
        if self._memory is not None:
            await self._memory.close()


def _awaited(open: Callable[P, Memory]) -> Callable[P, Opening]:
    @functools.wraps(open)
    def open_async(*args: P.args, **kwargs: P.kwargs) -> Opening:
        return Opening(functools.partial(open, *args, **kwargs))

    open_async.__name__ = open_async.__qualname__ = "open_async"
    open_async.__module__ = __name__
    open_async.__annotations__ = {**open.__annotations__, "return": "Opening"}
    open_async.__doc__ = f"{open.__doc__}\n    To be awaited for an `AsyncMemory`, or used in `async with`.\n    "
    return open_async


open_async = _awaited(sync.open)

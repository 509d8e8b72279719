"""Which threads work for event loops? As many as it takes so that no call waits for one that is held up, and one that
hands in the writes.

Writes are prepared by any thread, and handed in by one: all that wait at a time. With a thread for each write, 64 tasks
that remember rows got 8,000 of them on disk a second, and so 20,000: the rest of the time went into waking threads.
Nothing here belongs to a loop; each call knows its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from memcore.errors import StoreClosed
from memcore.store.catalog import CLOSED
from memcore.store.writes import Write

T = TypeVar("T")
STEADY = min(os.cpu_count() or 1, 8)  # threads, unless calls are held up: more of them only take turns
MOST = 64
HELD_UP = 0.005  # seconds in which none of the calls that wait has begun
_TOGETHER = 256  # writes handed in at once: the first of them wait for the last to be prepared


class Call:
    """A call that a task waits for, and what became of it: some `work`, or a verb that writes, whose first part is
    `prepare`. `future` only wakes the task; what it holds is None.
    """

    __slots__ = (
        "_begun", "_off", "_turn", "ended", "fault", "future", "loop", "prepare", "result", "work", "write",
    )  # fmt: skip

    def __init__(
        self, work: Callable[[], Any] | None = None, *, prepare: Callable[[], Write[Any]] | None = None
    ) -> None:
        self.work = work
        self.prepare = prepare
        self.write: Write[Any] | None = None
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.result: Any = None
        self.fault: BaseException | None = None
        self.ended = False
        self._turn = [None]  # to begin it, or to call it off: who takes it decides, since `pop` is atomic
        self._begun = self._off = False

    def prepared(self) -> Write[Any]:
        """What it writes. It is given away: what is written refers to the call."""
        write, self.write = self.write, None
        assert self.prepare is not None
        return self.prepare() if write is None else write

    def begin(self) -> bool:
        """Whether it is to be done; from then on it is."""
        if not self._begun:
            with suppress(IndexError):
                self._turn.pop()
                self._begun = True
        return self._begun

    def call_off(self) -> bool:
        """Whether it had not begun, and so never will. In its loop's thread."""
        if not self._off:
            with suppress(IndexError):
                self._turn.pop()
                self._off = True
        return self._off

    @property
    def off(self) -> bool:
        return self._off

    async def outcome(self, *, decided: bool) -> Any:
        """The result, or the fault. If the task is cancelled, the call is called off; if that is too late and it is to
        be `decided` whether it was done, the task goes on once it is.
        """
        try:
            await self.future
        except asyncio.CancelledError:
            if not self.call_off() and decided:
                while not self.ended:
                    self.future = self.loop.create_future()
                    with suppress(asyncio.CancelledError):
                        await self.future
            raise
        except BaseException:  # the coroutine was closed
            self.call_off()
            raise
        if self.fault is not None:
            try:
                raise self.fault
            finally:
                self.fault = None  # its traceback holds this frame
        return self.result

    def settle(self) -> None:
        """Wakes the task. In its loop's thread."""
        self.ended = True
        if not self.future.done():
            self.future.set_result(None)


class Workers:
    def __init__(self) -> None:
        self.closed = False
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()  # of the lists of threads and of `closed`
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._writes: SimpleQueue[Call | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._writer: threading.Thread | None = None
        self._taken = 0  # calls that a thread has begun with
        self._watched: asyncio.AbstractEventLoop | None = None  # whose timer looks whether calls are held up
        self._closer: threading.Thread | None = None
        self._closing: list[Call] = []  # the calls of `close` that wait

    def forked(self) -> None:
        """In a forked child: the threads and the calls are the parent's."""
        self._begin()

    # Taking calls, in the threads of their loops

    async def do(self, work: Callable[[], T], *, decided: bool) -> T:
        """Has a thread do something. See `Call.outcome` for `decided`."""
        call = Call(work)
        self._take(call)
        result: T = await call.outcome(decided=decided)
        return result

    async def write(self, prepare: Callable[[], Write[T]], *, at_once: bool) -> T:
        """Has a write prepared and done. `at_once`: preparing it takes no time worth telling."""
        call = Call(prepare=prepare)
        if at_once:
            self._hand_in(call)
        else:
            self._take(call)
        result: T = await call.outcome(decided=True)
        return result

    def _take(self, call: Call) -> None:
        with self._lock:
            if self.closed:
                raise StoreClosed(CLOSED)
            self._calls.put(call)
            steady = len(self._threads) >= STEADY
            most = len(self._threads) >= MOST
        if not steady:
            self._take_on(1)
        elif not most and self._watched is not call.loop:
            self._watch(call.loop)

    def _hand_in(self, call: Call, *, taken: bool = False) -> None:
        """To the writing thread; also after the end, if it was `taken` before."""
        with self._lock:
            if self.closed and not taken:
                raise StoreClosed(CLOSED)
            self._writes.put(call)
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_all, name="memcore-async-writer", daemon=True)
                self._writer.start()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        self._watched = loop
        loop.call_later(HELD_UP, self._look, self._taken, loop)

    def _look(self, taken: int, loop: asyncio.AbstractEventLoop) -> None:
        """Takes on threads for all calls that wait, if none has begun since: who is at work is held up."""
        waiting = self._calls.qsize()
        if not waiting or self.closed or len(self._threads) >= MOST:
            self._watched = None
            return
        if self._taken == taken:
            self._take_on(waiting)
        self._watch(loop)

    def _take_on(self, count: int) -> None:
        """Starts a thread, which starts the next of so many: each start may wait for the interpreter for 5 ms, and a
        loop must not wait for 60 of them.
        """
        with self._lock:
            if not self.closed and len(self._threads) < MOST:
                name = f"memcore-async-{len(self._threads) + 1}"
                made = threading.Thread(target=self._work, args=(count - 1,), name=name, daemon=True)
                made.start()
                self._threads.append(made)

    # Working

    def _work(self, others: int) -> None:
        if others:
            self._take_on(others)
        while self._work_once():
            pass

    def _work_once(self) -> bool:
        """Does one call; False for none, to end. Keeps nothing of it while it waits for the next."""
        call = self._calls.get()
        if call is None:
            return False
        self._taken += 1
        if call.off:
            return True
        try:
            if call.prepare is not None:
                call.write = call.prepared()
                self._hand_in(call, taken=True)
                return True
            if call.work is not None and call.begin():
                call.result = call.work()
        except BaseException as fault:  # whatever it is, the task gets it
            call.fault = fault
        _tell([call])
        return True

    def _write_all(self) -> None:
        while self._write_some():
            pass

    def _write_some(self) -> bool:
        """Does the writes that wait; False after the last of all."""
        taken = [self._writes.get()]
        with suppress(Empty):
            while len(taken) < _TOGETHER:
                taken.append(self._writes.get_nowait())
        calls = [call for call in taken if call is not None and not call.off]
        ready: list[tuple[Call, Write[Any]]] = []
        for call in calls:
            try:
                write = call.prepared()
            except BaseException as fault:
                call.fault = fault
            else:
                write.ticket.wanted = call.begin
                ready.append((call, write))
        if ready:
            ready[0][1].commits.run_all([write.ticket for _, write in ready])
        for call, write in ready:
            call.fault = write.ticket.fault
            if call.fault is None:
                try:
                    call.result = write.then(write.ticket.result)
                except BaseException as fault:
                    call.fault = fault
        _tell(calls)
        return None not in taken

    # Ending

    async def close(self, close: Callable[[], object]) -> None:
        """Takes no more calls, lets go of the store, and ends the threads once the calls that were taken have ended:
        done, or with `StoreClosed`. If the task is cancelled, that goes on.
        """
        call = Call()
        with self._lock:
            if self.closed and self._closer is None:
                return
            self._closing.append(call)
            if not self.closed:
                self.closed = True
                self._closer = threading.Thread(
                    target=self._close, args=(close,), name="memcore-async-closer", daemon=True
                )
                self._closer.start()
            closer = self._closer
        await call.outcome(decided=False)
        if closer is not None:
            closer.join()  # it has nothing more to do

    def _close(self, close: Callable[[], object]) -> None:
        fault: BaseException | None = None
        try:
            close()
        except BaseException as raised:
            fault = raised
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()
        self._writes.put(None)  # not before: what they had taken comes there
        if self._writer is not None:
            self._writer.join()
        with self._lock:
            calls, self._closer = self._closing, None
        for call in calls:
            call.fault = fault
        _tell(calls)

    def let_go(self) -> None:
        """Has the threads end, when nobody is there any more to wait for them."""
        with self._lock:
            self.closed = True
            for _ in self._threads:
                self._calls.put(None)
            self._writes.put(None)


def _tell(calls: list[Call]) -> None:
    """Wakes those who wait: each loop once, since waking it is a write into a socket."""
    loops: dict[asyncio.AbstractEventLoop, list[Call]] = {}
    for call in calls:
        loops.setdefault(call.loop, []).append(call)
    for loop, its in loops.items():
        with suppress(RuntimeError):  # the loop has ended, and so have those who waited
            loop.call_soon_threadsafe(_settle, its)


def _settle(calls: list[Call]) -> None:
    for call in calls:
        call.settle()

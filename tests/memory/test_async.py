"""`memcore.open_async`: the same verbs, awaited, on real files and real loops."""

import asyncio
import contextlib
import gc
import inspect
import os
import re
import sqlite3
import subprocess
import sys
import threading

import numpy as np
import pytest

import memcore
from memcore import workers
from memcore.agent.working import Working
from memcore.asynchronous import AsyncMemory, AsyncScope, AsyncWorking
from memcore.memory import Memory, Scope
from memcore.store import commits

NOW = 1_800_000_000
CLOSED = "the store is closed; open it again with memcore.open"


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("memcore-async")]


@pytest.fixture(autouse=True)
def no_thread_stays():
    yield
    gc.collect()
    for thread in threads():
        thread.join(30)
        assert not thread.is_alive(), thread


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agent.mem"


async def turns(count=20):
    """Lets all other tasks of the loop go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(seen):
    """Waits for another thread, while the loop goes on."""
    async with asyncio.timeout(60):
        while not seen():
            await asyncio.sleep(0)


def stored(path):
    """What a reader sees who opens the store anew."""
    with memcore.open(path, embedder=None) as mem:
        return sorted(record.content for record in mem.list())


@contextlib.contextmanager
def locked(path):
    """While another has the store's write lock."""
    other = sqlite3.connect(path / "catalog.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()


class Gate:
    """An embedder that waits until it is let through."""

    dim = 2
    name = fingerprint = "gate"

    def __init__(self):
        self.inside, self.open = threading.Semaphore(0), threading.Event()

    def embed(self, texts, kind="document"):
        self.inside.release()
        assert self.open.wait(60)
        return np.tile(np.float32([1, 0]), (len(texts), 1))

    async def entered(self, count=1):
        for _ in range(count):
            await until(lambda: self.inside.acquire(blocking=False))


# The same verbs


@pytest.mark.parametrize(
    ("sync", "awaited"), [(Scope, AsyncScope), (Memory, AsyncMemory), (Working, AsyncWorking)], ids=lambda c: c.__name__
)
def test_every_verb_is_there_with_its_arguments_and_its_text(sync, awaited):
    names = {name for name in dir(sync) if not name.startswith("_")}
    assert names == {name for name in dir(awaited) if not name.startswith("_")}
    for name in names:
        verb, ours = getattr(sync, name), getattr(awaited, name)
        if isinstance(verb, property):
            assert verb.__doc__ == ours.__doc__
            continue
        assert list(inspect.signature(verb).parameters.values()) == list(inspect.signature(ours).parameters.values())
        if name in ("scope", "working"):
            assert not inspect.iscoroutinefunction(ours)
            assert ours.__doc__ == verb.__doc__
        elif name == "close":
            assert inspect.iscoroutinefunction(ours)
            assert ours.__doc__.startswith(verb.__doc__)
        else:
            assert inspect.iscoroutinefunction(ours)
            assert ours.__wrapped__ is verb, f"{awaited.__name__}.{name} is made of another verb"
            assert ours.__doc__ == verb.__doc__
            assert inspect.signature(ours) == inspect.signature(verb)
            assert ours.__qualname__ == f"Async{verb.__qualname__}"


def test_open_async_takes_what_open_takes():
    sync, ours = inspect.signature(memcore.open), inspect.signature(memcore.open_async)
    assert list(sync.parameters.values()) == list(ours.parameters.values())
    assert memcore.open_async.__doc__.startswith(memcore.open.__doc__)
    assert memcore.open_async.__name__ == "open_async"


def test_a_verb_that_writes_still_tells_its_own_result():
    assert inspect.signature(Scope.remember).return_annotation == "Record"
    assert inspect.signature(Scope.remember_many).return_annotation == "WriteResult"
    assert Scope.update.__annotations__["return"] == "Record"
    assert memcore.open(embedder=None).remember("x").content == "x"


LIFE = [
    ("remember", ("row 0",), {"id": "00000000-0000-7000-8000-000000000000", "metadata": {"n": 0}, "vector": [1, 0]}),
    ("remember", ("row 1",), {"id": "00000000-0000-7000-8000-000000000001", "idempotency_key": "once"}),
    ("remember", ("row 2",), {"id": "00000000-0000-7000-8000-000000000002", "idempotency_key": "once"}),
    ("remember", ("old value",), {"kind": "semantic", "key": "k", "id": "00000000-0000-7000-8000-000000000003"}),
    ("remember", ("new value",), {"kind": "semantic", "key": "k", "now": NOW + 5}),
    ("remember_many", ([{"content": "row 4", "id": "00000000-0000-7000-8000-000000000004"}, {"content": ""}],),
     {"on_invalid": "skip"}),
    ("update", ("00000000-0000-7000-8000-000000000001",), {"content": "row 1b", "if_version": 1}),
    ("recall", (), {"vector": [1, 0], "k": 2}),
    ("recall_many", (), {"vectors": [[1, 0], [0, 1]], "k": 1}),
    ("get", ("00000000-0000-7000-8000-000000000001",), {}),
    ("list", (), {"where": {"metadata.n": 0}}),
    ("history", ("k",), {}),
    ("forget", (), {"where": {"metadata.n": 0}}),
    ("forgotten", (), {}),
    ("restore", ("00000000-0000-7000-8000-000000000000",), {}),
    ("scopes", (), {}),
    ("compact", (), {}),
    ("list", (), {}),
]  # fmt: skip


def told(result):
    """What can be compared of two stores' results."""
    if isinstance(result, memcore.Record):
        return {name: str(getattr(result, name)) for name in memcore.record_schema(2).names}
    if isinstance(result, commits.CompactReport):
        return type(result), result.dropped
    if isinstance(result, (memcore.Records, memcore.Recall, list)):
        return type(result), [told(one) for one in result], getattr(result, "faults", None)
    return type(result), str(result)


def test_the_same_calls_have_the_same_results(tmp_path):
    async def awaited():
        async with memcore.open_async(tmp_path / "async", embedder=None, clock=lambda: NOW) as mem:
            return [told(await getattr(mem, verb)(*args, **kwargs)) for verb, args, kwargs in LIFE]

    with memcore.open(tmp_path / "sync", embedder=None, clock=lambda: NOW) as mem:
        expected = [told(getattr(mem, verb)(*args, **kwargs)) for verb, args, kwargs in LIFE]
    assert asyncio.run(awaited()) == expected


def test_scopes_and_working_memory():
    async def main():
        mem = await memcore.open_async(embedder=None, working_capacity=2, working_tokens=100)
        ops = mem.scope("acme", "billing", session_id="s1", agent_role="triage")
        assert (ops.tenant_id, ops.project_id, ops.session_id, ops.agent_role) == ("acme", "billing", "s1", "triage")
        assert repr(ops).startswith("<AsyncScope tenant_id='acme' project_id='billing' session_id='s1'")
        chat = ops.working()
        for text in ("one", "two", "three"):
            said = await chat.add("user", text, importance=0.75)
            assert (said.content, said.metadata, said.importance) == (text, {"role": "user"}, 0.75)
        assert [entry.content for entry in await chat.entries()] == ["two", "three"]
        assert await chat.messages() == [{"role": "user", "content": "two"}, {"role": "user", "content": "three"}]
        assert await chat.tokens == 3
        assert len(await chat.end()) == 3
        assert len(await ops.list(kinds="episodic")) == 3
        with pytest.raises(memcore.ScopeError, match="tenant_id is blank"):
            mem.scope(" ")
        del mem, chat  # the scope keeps the store open
        gc.collect()
        assert len(await ops.list()) == 3

    asyncio.run(main())


# Opening and closing


def test_what_is_not_awaited_says_so(path):
    opening = memcore.open_async(path, embedder=None)
    with pytest.raises(AttributeError) as raised:
        opening.scope("t")
    assert str(raised.value) == (
        "'scope' is asked of what open_async returns before it is awaited: mem = await memcore.open_async(…), or async "
        "with memcore.open_async(…) as mem"
    )


def test_open_and_close(path):
    async def main():
        mem = await memcore.open_async(path, embedder=None)
        assert isinstance(mem, AsyncMemory)
        await mem.remember("first")
        await mem.close()
        assert not threads()
        await mem.close()
        async with memcore.open_async(path, embedder=None) as again:
            assert [record.content for record in await again.list()] == ["first"]
            scope = again.scope("t")
        assert not threads()
        for call in (again.list, again.remember_many, again.compact, scope.stats, again.close):
            if call == again.close:
                await call()
                continue
            with pytest.raises(memcore.StoreClosed, match=re.escape(CLOSED)):
                await call(*[["x"]] * (call == again.remember_many))
        for call in (lambda: scope.remember("x"), lambda: again.__aenter__()):
            with pytest.raises(memcore.StoreClosed, match=re.escape(CLOSED)):
                await call()
        for call in (again.scope, scope.working):
            with pytest.raises(memcore.StoreClosed, match=re.escape(CLOSED)):
                call()

    asyncio.run(main())


def test_an_error_of_opening_is_typed_and_leaves_nothing(tmp_path):
    (tmp_path / "file").touch()

    async def main():
        with pytest.raises(memcore.StoreError, match=r"a store is a directory: pass another path"):
            await memcore.open_async(tmp_path / "file")
        with pytest.raises(TypeError, match="unexpected keyword argument 'embeder'"):
            async with memcore.open_async(embeder=None):
                pass
        assert not threads()

    asyncio.run(main())


def test_a_cancelled_opening_leaves_nothing_open(path):
    async def main():
        async def opened():
            return await memcore.open_async(path, embedder=None)

        for wait in (0, 1, 2, 3, 5, 8, 13):
            task = asyncio.create_task(opened())
            await turns(wait)
            task.cancel()
            try:
                mem = await task
            except asyncio.CancelledError:
                pass
            else:  # it was quicker
                await mem.close()
            # Who has it open in this process with another durability is refused.
            memcore.open(path, embedder=None, durability="relaxed").close()
        opening = memcore.open_async(path, embedder=None).__await__()
        opening.send(None)
        opening.close()  # as at the end of a loop that was stopped

    asyncio.run(main())


def test_a_store_that_nobody_holds_any_more_is_closed(path):
    async def main():
        mem = await memcore.open_async(path, embedder=None)
        await mem.remember("row")
        await mem.list()
        return threads()

    ours = asyncio.run(main())
    assert len(ours) >= 2
    gc.collect()
    for thread in ours:
        thread.join(30)
        assert not thread.is_alive()
    memcore.open(path, embedder=None, durability="relaxed").close()


@pytest.mark.parametrize("closers", [1, 3])
def test_close_while_tasks_wait(path, closers):
    async def main():
        mem = await memcore.open_async(path, embedder=None)
        with locked(path):
            writing = [asyncio.create_task(mem.remember(f"row {i}", vector=[1, 0])) for i in range(64)]
            many = asyncio.create_task(mem.remember_many(["a", "b"]))
            await turns()
            closing = [asyncio.create_task(mem.close()) for _ in range(closers)]
            await turns()
            with pytest.raises(memcore.StoreClosed, match=re.escape(CLOSED)):
                await mem.remember("too late")
            assert not any(task.done() for task in closing)
        await asyncio.gather(*closing)
        assert not threads()
        done = await asyncio.gather(*writing, many, return_exceptions=True)
        assert {type(one) for one in done} <= {memcore.Record, memcore.memory.WriteResult, memcore.StoreClosed}
        rows = [one.content for one in done if isinstance(one, memcore.Record)]
        return rows + ["a", "b"] * (not isinstance(done[-1], Exception))

    assert sorted(asyncio.run(main())) == stored(path)


def test_close_waits_for_a_call_that_an_embedder_holds_up(path):
    async def main():
        gate = Gate()
        mem = await memcore.open_async(path, embedder=gate)
        task = asyncio.create_task(mem.remember("row"))
        await gate.entered()
        closing = asyncio.create_task(mem.close())
        await turns()
        assert not closing.done()
        gate.open.set()
        await closing
        with pytest.raises(memcore.StoreClosed, match=re.escape(CLOSED)):
            await task

    asyncio.run(main())
    assert stored(path) == []


# The loop and the threads


def test_no_verb_runs_in_the_loops_thread(path):
    seen = set()

    def clock():
        seen.add(threading.current_thread().name)
        return NOW

    def embed(texts):
        seen.add(threading.current_thread().name)
        return [[1.0, 0.0]] * len(texts)

    async def main():
        async with memcore.open_async(path, embedder=embed, clock=clock) as mem:
            first = await mem.remember("by text")
            await mem.remember("by vector", vector=[1, 0])
            await mem.remember_many(["x"])
            await mem.update(first.id, content="y")
            await mem.recall("x")
            await mem.working().add("user", "z")
            await mem.working().end()
            await mem.forget(first.id)
            await mem.list()

    asyncio.run(main())
    assert seen
    assert all(name.startswith("memcore-async") for name in seen), seen


def test_the_loop_goes_on_while_the_disk_and_the_embedder_are_waited_for(path):
    async def main():
        gate = Gate()
        async with memcore.open_async(path, embedder=gate) as mem:
            await mem.remember("before", vector=[1, 0])
            embedding = asyncio.create_task(mem.remember("embedded"))
            await gate.entered()
            with locked(path):
                writing = asyncio.create_task(mem.remember("written", vector=[0, 1]))
                await turns()
                assert [record.content for record in await mem.list()] == ["before"]
                assert len(await mem.recall(vector=[1, 0])) == 1
                assert not writing.done()
            assert (await writing).content == "written"
            assert not embedding.done()
            gate.open.set()
            assert (await embedding).content == "embedded"

    asyncio.run(main())


def test_calls_that_are_held_up_hold_up_no_others():
    """As many threads as it takes, up to 64."""

    async def main():
        gate = Gate()
        mem = await memcore.open_async(embedder=gate)
        tasks = [asyncio.create_task(mem.remember(f"row {i}")) for i in range(workers.MOST + 8)]
        await gate.entered(workers.MOST)
        await turns(200)
        assert not gate.inside.acquire(blocking=False)
        assert (await mem.remember("by vector", vector=[1, 0])).content == "by vector"
        assert len(threads()) == workers.MOST + 1  # and the one that writes
        gate.open.set()
        await asyncio.gather(*tasks)
        assert len(await mem.list()) == workers.MOST + 9
        await mem.close()
        assert not threads()

    asyncio.run(main())


def test_short_calls_need_few_threads():
    async def main():
        async with memcore.open_async(embedder=None) as mem:
            for _ in range(20):
                await mem.remember("row", vector=[1, 0])
                await mem.list()
            assert len(threads()) <= workers.STEADY + 1

    asyncio.run(main())


def test_writes_of_many_tasks_share_commits(path):
    async def main():
        async with memcore.open_async(path, embedder=None) as mem:
            await mem.remember("first", vector=[1, 0])
            made, ours = [], mem._engine.commits
            told, ours.on_commit = ours.on_commit, lambda: made.append(1)
            with locked(path):
                tasks = [asyncio.create_task(mem.remember(f"row {i}", vector=[1, 0])) for i in range(64)]
                await turns()
            records = await asyncio.gather(*tasks)
            ours.on_commit = told
            assert [record.content for record in records] == [f"row {i}" for i in range(64)]
            assert {record.seq for record in records} == set(range(2, 66))
            return len(made)

    assert asyncio.run(main()) <= 2
    assert len(stored(path)) == 65


def test_several_loops_one_after_another_and_at_the_same_time(path):
    async def opened():
        mem = await memcore.open_async(path, embedder=None)
        await mem.remember("first loop")
        return mem

    async def write(name):
        await asyncio.gather(*(mem.remember(f"{name} {i}", vector=[1, 0]) for i in range(20)))
        return len(await mem.list()) >= 20

    mem = asyncio.run(opened())
    abandoned = asyncio.new_event_loop()
    call = mem.remember("abandoned", vector=[1, 0])

    async def begin():
        call.send(None)

    with locked(path):
        abandoned.run_until_complete(begin())
        abandoned.close()  # before the call has ended
    assert asyncio.run(write("second loop"))
    call.close()
    done = []
    loops = [threading.Thread(target=lambda n=n: done.append(asyncio.run(write(f"loop {n}")))) for n in range(4)]
    for thread in loops:
        thread.start()
    for thread in loops:
        thread.join()
    assert done == [True] * 4
    asyncio.run(mem.close())
    assert not threads()
    found = stored(path)
    assert len(found) == 102
    assert "abandoned" in found


def test_beside_threads_that_use_the_same_store(path):
    async def main():
        with memcore.open(path, embedder=None) as plain:
            async with memcore.open_async(path, embedder=None) as mem:
                await asyncio.gather(
                    *(mem.remember(f"task {i}", vector=[1, 0]) for i in range(100)),
                    *(asyncio.to_thread(plain.remember, f"thread {i}", vector=[0, 1]) for i in range(100)),
                )
                assert len(await mem.list()) == len(plain.list()) == 200
            assert len(plain.list()) == 200  # the other still has it open

    asyncio.run(main())
    assert stored(path) == sorted([f"task {i}" for i in range(100)] + [f"thread {i}" for i in range(100)])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_threads_of_its_own(path):
    program = f"""
import asyncio, os, memcore
async def use(mem, name):
    await asyncio.gather(*(mem.remember(f"{{name}} {{i}}", vector=[1, 0]) for i in range(8)))
    await mem.list()
async def opened():
    mem = await memcore.open_async({str(path)!r}, embedder=None)
    await use(mem, "before")
    return mem
mem = asyncio.run(opened())
child = os.fork()
asyncio.run(use(mem, "parent" if child else "child"))
asyncio.run(mem.close())
if child:
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert len(stored(path)) == 24


def test_importing_memcore_imports_no_asyncio():
    script = "import sys, memcore\nmemcore.open(embedder=None).remember('x')\nprint('asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# Errors


def test_errors_arrive_as_they_are():
    async def main():
        async with memcore.open_async(embedder=None) as mem:
            first = await mem.remember("row", vector=[1, 0])
            with pytest.raises(memcore.VersionConflict) as conflict:
                await mem.update(first.id, content="new", if_version=7)
            assert (conflict.value.expected, conflict.value.found) == (7, 1)
            with pytest.raises(memcore.NotFound, match="it was never there, was forgotten, has expired"):
                await mem.update("00000000-0000-7000-8000-00000000ffff", content="new")
            with pytest.raises(memcore.DimensionMismatch, match="vector has 3 dimensions and the store has 2"):
                await mem.remember("row", vector=[1, 0, 0])
            with pytest.raises(memcore.InvalidInput, match="importance is 2"):
                await mem.remember("row", importance=2)
            with pytest.raises(memcore.InvalidInput, match="recall got both a query and a vector"):
                await mem.recall("row", vector=[1, 0])
            with pytest.raises(TypeError, match="unexpected keyword argument 'impotance'"):
                await mem.remember("row", impotance=1)
            with pytest.raises(memcore.InvalidInput, match="role is 'robot'"):
                await mem.working().add("robot", "beep")
            assert len(await mem.list()) == 1

    asyncio.run(main())


def test_a_bad_row_among_those_of_other_tasks_is_its_own_fault(path):
    async def main():
        async with memcore.open_async(path, embedder=None) as mem:
            await mem.remember("first", vector=[1, 0])
            with locked(path):
                tasks = [
                    asyncio.create_task(
                        mem.remember(f"row {i}", vector=[1] * (2 + (i == 3)), importance=0.5 + (i == 5))
                    )
                    for i in range(8)
                ]
                await turns()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(done[3], memcore.DimensionMismatch)
            assert isinstance(done[5], memcore.InvalidInput)
            assert [one.content for one in done if isinstance(one, memcore.Record)] == [
                f"row {i}" for i in (0, 1, 2, 4, 6, 7)
            ]

    asyncio.run(main())


def test_a_locked_store_is_told_to_every_task(path):
    async def main():
        async with memcore.open_async(path, embedder=None, lock_timeout=0.0) as mem:
            with locked(path):
                done = await asyncio.gather(
                    *(mem.remember(f"row {i}", vector=[1, 0]) for i in range(8)), return_exceptions=True
                )
                assert all(isinstance(one, memcore.StoreLocked) for one in done)
                assert "nothing was written: try again" in str(done[0])
            await mem.remember("after")

    asyncio.run(main())
    assert stored(path) == ["after"]


@pytest.mark.parametrize("fault", [StopIteration, KeyError, SystemExit])
def test_whatever_an_embedder_raises_ends_the_call(fault):
    class Faulty(Gate):
        def embed(self, texts, kind="document"):
            raise fault("here")

    async def main():
        mem = await memcore.open_async(embedder=Faulty())
        call = mem.remember("row")
        await until(call.send(None).done)
        told = "coroutine raised StopIteration" if fault is StopIteration else "here"
        with pytest.raises(RuntimeError if fault is StopIteration else fault, match=told):
            call.send(None)
        await mem.close()

    asyncio.run(main())


# Cancelling


async def cancelled(task):
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_cancelled_before_it_begins_nothing_is_stored(path):
    """At once, though another has the store's lock; and nothing is stored later."""

    async def main():
        async with memcore.open_async(path, embedder=None) as mem:
            first = await mem.remember("first", vector=[1, 0])
            unbegun = asyncio.create_task(mem.remember("never begun", vector=[1, 0]))
            await cancelled(unbegun)
            with locked(path):
                tasks = [
                    asyncio.create_task(mem.remember("row", vector=[1, 0])),
                    asyncio.create_task(mem.remember_many([{"content": "one", "vector": [1, 0]}, "two"])),
                    asyncio.create_task(mem.update(first.id, content="new")),
                    asyncio.create_task(mem.working().add("user", "said", vector=[1, 0])),
                ]
                kept = asyncio.create_task(mem.remember("kept", vector=[1, 0]))
                await turns(200)
                for task in tasks:
                    await cancelled(task)
                assert not kept.done()
            await kept
            await mem.remember("after", vector=[1, 0])

    asyncio.run(main())
    assert stored(path) == ["after", "first", "kept"]


def test_cancelled_while_its_text_is_embedded_nothing_is_stored(path):
    async def main():
        gate = Gate()
        async with memcore.open_async(path, embedder=gate) as mem:
            first = await mem.remember("first", vector=[1, 0])
            chat = mem.working()
            for call in (
                lambda: mem.remember("row"),
                lambda: mem.remember_many(["row"]),
                lambda: mem.update(first.id, content="row"),
                lambda: chat.add("user", "row"),
                lambda: mem.recall("row"),
            ):
                task = asyncio.create_task(call())
                await gate.entered()
                await cancelled(task)
            gate.open.set()
            await mem.remember("after")

    asyncio.run(main())
    assert stored(path) == ["after", "first"]


@pytest.mark.parametrize("place", ["before a commit", "after a commit"])
@pytest.mark.parametrize("times", [1, 3])
def test_cancelled_when_it_has_begun_the_task_goes_on_once_it_is_stored(path, monkeypatch, place, times):
    there, go = threading.Event(), threading.Event()

    def step(name):
        if name == place and threading.current_thread().name == "memcore-async-writer":
            there.set()
            assert go.wait(60)

    async def main():
        async with memcore.open_async(path, embedder=None) as mem:
            monkeypatch.setattr(commits, "step", step)
            task = asyncio.create_task(mem.remember("row", vector=[1, 0]))
            await until(there.is_set)
            for _ in range(times):
                task.cancel()
                await turns()
                assert not task.done()
            go.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert [record.content for record in await mem.list()] == ["row"]

    asyncio.run(main())
    assert stored(path) == ["row"]


def test_a_timeout_leaves_a_write_done_or_not_done(path):
    async def main():
        async with memcore.open_async(path, embedder=None) as mem:
            with locked(path), pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await mem.remember("row", idempotency_key="once")
            first = await mem.remember("row", idempotency_key="once")
            assert (await mem.remember("row", idempotency_key="once")).id == first.id

    asyncio.run(main())
    assert stored(path) == ["row"]


VERBS = {
    "remember": lambda mem, first: mem.remember("new", vector=[1, 0]),
    "remember_many": lambda mem, first: mem.remember_many(["new", {"content": "newer", "vector": [1, 0]}]),
    "upsert": lambda mem, first: mem.remember("new", kind="semantic", key="k"),
    "update": lambda mem, first: mem.update(first.id, content="new"),
    "forget": lambda mem, first: mem.forget([first.id]),
    "forget where": lambda mem, first: mem.forget(where={"metadata.n": 1}),
    "working": lambda mem, first: mem.working().add("user", "new"),
    "end_session": lambda mem, first: mem.end_session(),
    "recall": lambda mem, first: mem.recall(vector=[1, 0]),
}


@pytest.mark.parametrize("name", VERBS)
def test_cancelled_anywhere_a_verb_is_done_or_not_done(path, name):
    """After so many turns of the loop, for every number up to the call's end; and what is seen at once stays."""

    async def state(mem):
        return [(r.content, r.kind, r.key, r.version, r.superseded_at) for r in await mem.list(as_of=NOW + 9)]

    async def main():
        async with memcore.open_async(path, embedder=None, clock=lambda: NOW, working_capacity=2) as mem:
            ended = at = 0
            while ended < 3:
                ops = mem.scope(f"{name} {at}")
                first = await ops.remember("first", metadata={"n": 1}, vector=[1, 0])
                await ops.remember("value", kind="semantic", key="k")
                for said in ("a", "b", "c"):
                    await ops.working().add("user", said)
                before = await state(ops)
                task = asyncio.create_task(VERBS[name](ops, first))
                await turns(at)
                task.cancel()
                try:
                    await task
                    ended += 1
                except asyncio.CancelledError:
                    ended = 0
                after = await state(ops)
                whole = mem.scope(f"{name} {at} whole")
                first = await whole.remember("first", metadata={"n": 1}, vector=[1, 0])
                await whole.remember("value", kind="semantic", key="k")
                for said in ("a", "b", "c"):
                    await whole.working().add("user", said)
                await VERBS[name](whole, first)
                assert after in (before, await state(whole)), at
                await ops.remember("later", vector=[1, 0])
                assert [row for row in await state(ops) if row[0] != "later"] == after, at
                at = at + 1 if at < 12 else at * 2

    asyncio.run(main())


def test_driven_by_hand_it_stops_where_it_is_closed(path):
    async def main():
        async with memcore.open_async(path, embedder=None) as mem:
            with locked(path):
                calls = [mem.remember(f"closed {i}", vector=[1, 0]) for i in range(3)]
                for call in calls:
                    assert asyncio.isfuture(call.send(None))
                await turns()
                calls[0].close()
                with pytest.raises(asyncio.CancelledError):
                    calls[1].throw(asyncio.CancelledError())
                with pytest.raises(ZeroDivisionError):
                    calls[2].throw(ZeroDivisionError())
            await mem.remember("after", vector=[1, 0])

    asyncio.run(main())
    assert stored(path) == ["after"]

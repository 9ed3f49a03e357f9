from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, ParamSpec, cast

import pytest

from conftest import LONG, Sidecar
from locksidecar import (
    AsyncClient,
    InvalidRequest,
    LockHeld,
    LockLost,
    NotHolder,
    SessionEnded,
    Skipped,
    Unavailable,
    WaitTimeout,
)
from locksidecar._async_loss import LossCancels
from locksidecar._async_transport import Connection, Stream

P = ParamSpec("P")


def in_loop(function: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(function(*args, **kwargs), LONG))

    return run


@asynccontextmanager
async def two(path: str) -> AsyncIterator[tuple[AsyncClient, AsyncClient]]:
    async with AsyncClient(path, name="one") as one, AsyncClient(path, name="other") as other:
        yield one, other


async def until(what: str, look: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + LONG
    while not await look():
        if time.monotonic() > end:
            raise AssertionError(f"not within {LONG} s: {what}")
        await asyncio.sleep(0.005)


async def waiting(client: AsyncClient, key: str, count: int = 1) -> None:
    async def look() -> bool:
        return (await client.get(key, fresh=True)).queue_length == count

    await until(f"{count} wait", look)


async def free(client: AsyncClient, key: str) -> None:
    async def look() -> bool:
        info = await client.get(key, fresh=True)
        return info.state == "free" and info.queue_length == 0

    await until(f"{key} is free", look)


@in_loop
async def test_held_in_the_body_and_free_after_it(path: str, key: str) -> None:
    async with two(path) as (one, other):
        async with one.lock(key, wait=LONG, ttl=30, data={"by": "me"}) as lock:
            assert (await one.get(key)).mine
            with pytest.raises(LockHeld) as held:
                await other.acquire(key, wait=0)
            assert held.value.holder is not None
            assert held.value.holder.session == "one"
            assert await other.try_acquire(key) is None
            with pytest.raises(WaitTimeout):
                await other.acquire(key, wait=0.05)
        assert lock.released
        assert (await other.get(key)).state == "free"


@in_loop
async def test_tasks_exclude_each_other(path: str, key: str) -> None:
    inside, most = 0, 0

    async def work() -> None:
        nonlocal inside, most
        async with client.lock(key):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    async with AsyncClient(path) as client:
        await asyncio.gather(*(work() for _ in range(50)))
        assert most == 1
        assert len([lock async for lock in client.locks("session")]) == 0


@in_loop
async def test_a_cancelled_wait_leaves_the_queue(path: str, key: str) -> None:
    async with two(path) as (one, other):
        async with one.lock(key):
            waiter = asyncio.create_task(other.acquire(key))
            await waiting(one, key)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(other.acquire(key), 0.05)
        await free(one, key)


@in_loop
async def test_a_grant_that_comes_with_the_cancellation_is_withdrawn(
    path: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In each round the answer has arrived in this process when the task is cancelled.
    granted, received = asyncio.Event(), Connection.data_received

    def data_received(self: Connection, data: bytes) -> None:
        received(self, data)
        if b'"granted":true' in data:
            granted.set()

    monkeypatch.setattr(Connection, "data_received", data_received)
    async with two(path) as (one, other):
        for n in range(20):
            granted.clear()
            task = asyncio.create_task(other.acquire(key, reentrant=n % 2 == 0))
            while not granted.is_set():  # noqa: ASYNC110 // in that round of the loop, not in the next one
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await free(one, key)
        session = other._core.session
        assert session is not None
        assert not session._grants


@in_loop
async def test_a_cancellation_that_comes_with_the_session(path: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    received: list[Stream] = []
    receive = Stream.data_received

    def data_received(self: Stream, data: bytes) -> None:
        receive(self, data)
        received.append(self)

    monkeypatch.setattr(Stream, "data_received", data_received)
    async with AsyncClient(path) as other, other.lock(key):
        for rounds in range(4):  # of the loop, until the task has the session
            received.clear()
            async with AsyncClient(path) as client:
                task = asyncio.create_task(client.acquire(key))
                while not received:  # noqa: ASYNC110 // in that round of the loop, not in the next one
                    await asyncio.sleep(0)
                for _ in range(rounds):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task


@in_loop
async def test_a_cancelled_release_releases(path: str, key: str) -> None:
    async with two(path) as (one, other):
        for _ in range(10):
            lock = await one.acquire(key)
            task = asyncio.create_task(lock.release())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await free(other, key)


@in_loop
async def test_cancelled_in_the_body(path: str, key: str) -> None:
    async with two(path) as (one, other):
        inside = asyncio.Event()

        async def work() -> None:
            async with one.lock(key):
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await other.get(key, fresh=True)).state == "free"


@in_loop
async def test_reentrant_is_per_task(path: str, key: str) -> None:
    async with AsyncClient(path) as client:
        async with client.lock(key, reentrant=True):
            async with client.lock(key, reentrant=True) as inner:
                assert inner.reentry == 2
                assert await asyncio.create_task(client.try_acquire(key, reentrant=True)) is None
            assert (await client.get(key)).mine
        assert (await client.get(key)).state == "free"


@in_loop
async def test_lost_stop_and_check(path: str, key: str) -> None:
    async with two(path) as (one, other):
        lock = await one.acquire(key)
        called: list[int] = []
        lock.lost.on(lambda: called.append(1))
        await other.stop(key, "deploy")
        await lock.stopping.wait()
        assert lock.stopping.reason == "deploy"
        assert (await lock.check()).stopping is not None
        await other.force_release(key)
        await lock.lost.wait()
        assert lock.lost.reason == "forced"
        assert called == [1]
        with pytest.raises(LockLost):
            await lock.release()
        with pytest.raises(ZeroDivisionError):
            async with one.lock(key, max_hold=2) as lost:
                await lost.lost.wait()
                raise ZeroDivisionError


@in_loop
async def test_ttl_locks(path: str, key: str) -> None:
    async with two(path) as (one, other):
        lock = await one.acquire(key, bind="ttl", ttl=60)
        assert (await lock.extend(120)).expires_in > 60
        await lock.update({"step": 1})
        assert (await other.check(key, lock.token)).bind == "ttl"
        assert (await other.extend(key, lock.token, 30)).expires_in <= 30
        assert await other.release(key, lock.token)
        with pytest.raises(NotHolder):
            await lock.check()


@in_loop
async def test_once(path: str, key: str) -> None:
    calls = 0

    async def work() -> dict[str, int]:
        nonlocal calls
        calls += 1
        await waiting(one, key, 2)
        return {"rows": 3}

    async with two(path) as (one, other):
        results = list(await asyncio.gather(one.once(key, work), other.once(key, work), other.once(key, work)))
        assert results == [{"rows": 3}] * 3
        assert calls == 1
        assert await one.once(key, lambda: 7) == 7
        with pytest.raises(TypeError):
            await one.once(key, object)
        assert (await other.get(key)).state == "free"


@in_loop
async def test_many_decorator_events_and_lists(path: str, key: str) -> None:
    async with two(path) as (one, other):

        @one.locked("{name}", wait=0)
        async def work(name: str) -> str:
            return (await other.get(name)).state

        async with other.events(key) as events:
            assert (await events.__anext__()).type == "state"
            assert await work(key) == "held"
            assert [(await events.__anext__()).type for _ in range(2)] == ["acquired", "released"]
        async with one.lock_many([f"{key}:b", f"{key}:a"]) as locks:
            assert [lock.key for lock in locks] == [f"{key}:b", f"{key}:a"]
            assert [x.key async for x in other.locks(prefix=key, page_size=1)] == [f"{key}:a", f"{key}:b"]
        assert [x async for x in other.locks(prefix=key)] == []
        async with one.lock(key) as lock:
            waiter = asyncio.create_task(other.acquire(key, on_success="skip"))
            await waiting(one, key)
            await lock.release("success", 5)
            with pytest.raises(Skipped) as skipped:
                await waiter
            assert skipped.value.result == 5


def test_one_loop_after_the_other(path: str, key: str) -> None:
    client = AsyncClient(path)

    async def hold() -> Any:
        return await client.acquire(key)

    async def again() -> None:
        await free(client, key)
        assert lock.lost
        async with client.lock(key):
            pass
        await client.close()

    lock = asyncio.run(hold())
    asyncio.run(again())


@in_loop
async def test_close_ends_a_wait_on_a_connection_that_was_used_before(path: str, key: str) -> None:
    async with two(path) as (one, closing), one.lock(key):
        async with one.lock(f"{key}:a"), one.lock(f"{key}:b"):  # each of these waits has a connection
            waits = [asyncio.create_task(closing.acquire(f"{key}:{name}", bind="ttl")) for name in "ab"]
            await waiting(one, f"{key}:a")
            await waiting(one, f"{key}:b")
        for task in waits:
            await (await task).release()
        idle = len(closing._transport._idle)
        waiter = asyncio.create_task(closing.acquire(key, bind="ttl"))
        await waiting(one, key)
        assert len(closing._transport._idle) == idle - 1
        await closing.close()
        with pytest.raises(SessionEnded, match="closed"):
            await waiter
        await waiting(one, key, 0)


@in_loop
async def test_a_call_makes_no_connection_for_a_closed_client(path: str, key: str) -> None:
    async with two(path) as (one, closing):
        connect = closing._transport._connect

        async def meanwhile(*how: Any) -> Any:
            await closing.close()
            return await connect(*how)

        async def closed() -> bool:
            return len(closing._transport._sockets) == 0

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(closing._transport, "_connect", meanwhile)
            with pytest.raises(SessionEnded, match="closed"):
                await closing.acquire(key, bind="ttl")
        assert (await one.get(key, fresh=True)).state == "free"
        await until("its connection is closed", closed)


@in_loop
async def test_a_second_loop_at_the_same_time_is_refused(path: str, key: str) -> None:
    async with AsyncClient(path) as client:
        await client.acquire(key)
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, client.get(key))


@in_loop
async def test_a_sidecar_that_restarts_under_a_waiting_client(sidecar: Sidecar, key: str) -> None:
    async with two(sidecar.path) as (one, other):
        lock = await one.acquire(key)
        waiter = asyncio.create_task(other.acquire(key))
        await waiting(one, key)
        await asyncio.to_thread(sidecar.kill)
        await lock.lost.wait()
        assert lock.lost.reason == "disconnected"
        with pytest.raises(Unavailable, match=r"nobody listens|no such socket"):
            await one.acquire(key, wait=0)
        await asyncio.to_thread(sidecar.start)
        granted = await waiter
        assert granted.waited >= 0
        assert (await other.get(key)).mine
        assert await one.try_acquire(key) is None


@in_loop
async def test_a_sidecar_that_hangs(sidecar: Sidecar, key: str) -> None:
    async with AsyncClient(sidecar.path) as client:
        lock = await client.acquire(key)
        sidecar.signal(signal.SIGSTOP)
        client._core.timeout = 0.2
        with pytest.raises(Unavailable, match=r"did not answer .* within 0.2 s"):
            await lock.check()
        sidecar.signal(signal.SIGCONT)
        client._core.timeout = LONG
        await lock.check()


@in_loop
async def test_the_sidecar_is_missing() -> None:
    with pytest.raises(Unavailable, match=r"/nowhere/s\.sock: there is no such socket.*LOCKSIDECAR_SOCKET"):
        await AsyncClient("/nowhere/s.sock").acquire("x")


# Proves: client loss
@in_loop
async def test_a_loss_cancels_the_block() -> None:
    with Sidecar() as sidecar:
        async with AsyncClient(sidecar.path) as client:
            for many in (False, True):
                context: Any = (
                    client.lock_many(["a", "b"], on_loss="cancel") if many else client.lock("b", on_loss="cancel")
                )

                async def work(body: Callable[[], Awaitable[Any]], context: Any = context) -> str:
                    async with context:
                        sidecar.lose("b")
                        await body()
                    return "went on"

                async def hides() -> None:
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.sleep(LONG)

                async def fails() -> None:
                    try:
                        await asyncio.sleep(LONG)
                    finally:
                        raise KeyError

                with pytest.raises(LockLost) as raised:
                    await work(lambda: asyncio.sleep(LONG))
                assert raised.value.__cause__ is None
                with pytest.raises(LockLost):
                    await work(hides)
                with pytest.raises(KeyError):
                    await work(fails)
                task = asyncio.current_task()
                assert sys.version_info < (3, 11) or task is None or task.cancelling() == 0
                async with context:  # it may be used again, and nothing is left of a cancellation
                    await asyncio.sleep(0)
            for one in ("a", "b"):
                assert (await client.get(one)).state == "free"


@in_loop
async def test_a_block_that_others_cancel_at_its_loss_is_cancelled() -> None:
    with Sidecar() as sidecar:
        async with AsyncClient(sidecar.path) as client:

            async def work() -> None:
                task = asyncio.current_task()
                assert task is not None
                async with client.lock("k", on_loss="cancel") as lock:
                    lock.lost.on(task.cancel)
                    sidecar.lose("k")
                    await asyncio.sleep(LONG)

            with pytest.raises(asyncio.CancelledError if sys.version_info >= (3, 11) else LockLost):
                await asyncio.ensure_future(work())
            with pytest.raises(InvalidRequest, match=r'on_loss=.*must be "cancel"'):
                client.lock("k", on_loss="tell")  # type: ignore[arg-type]


class Losable:
    """Stands for a lock that a test loses when it wants."""

    key = "k"
    reason = "forced"

    def __init__(self) -> None:
        self.lost = self

    def on(self, tell: Callable[[], None]) -> None:
        self.lose = tell


@in_loop
async def test_a_loss_between_the_body_and_the_end_of_its_block() -> None:
    """The cancellation comes only when the task waits. It is the block's, and hits nothing after it."""
    lock = Losable()
    cancels = LossCancels(cast(Any, [lock]))
    lock.lose()
    assert isinstance(await cancels.end(None), LockLost)
    await asyncio.sleep(0)


@in_loop
async def test_a_loss_after_the_block_cancels_nothing() -> None:
    lock = Losable()
    cancels = LossCancels(cast(Any, [lock]))
    assert await cancels.end(None) is None
    lock.lose()
    await asyncio.sleep(0)

"""`client.lock(key)` in the hands of those who know `threading.Lock` and redis-py's locks."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import LONG, free, until, waiting
from locksidecar import AsyncClient, AsyncLock, Client, Lock, LockLost, _sync_lock
from test_async import in_loop, two
from test_async import waiting as async_waiting


def test_acquire_and_release(client: Client, other: Client, key: str) -> None:
    mutex, rival = client.lock(key), other.lock(key)
    assert mutex.held is None
    assert not mutex.locked()
    assert mutex.acquire()
    assert mutex.held is not None
    assert mutex.held.token > 0
    assert mutex.locked()
    assert rival.locked()
    assert not rival.acquire(blocking=False)
    assert not rival.acquire(timeout=0.05)
    assert rival.held is None
    mutex.release()
    assert mutex.held is None
    assert rival.acquire(False)
    rival.release()
    assert mutex.acquire(timeout=LONG)  # it may be used again
    mutex.release()
    assert not mutex.locked()


def test_acquire_waits_as_long_as_the_lock_says(client: Client, other: Client, key: str) -> None:
    with client.lock(key) as lock:
        assert not other.lock(key, wait=0).acquire()
        assert not other.lock(key, wait=0.05).acquire(timeout=-1)
        with ThreadPoolExecutor(1) as pool:
            mutex = other.lock(key, wait=0)
            forever = pool.submit(lambda: mutex.acquire(timeout=None) and mutex.held)
            waiting(client, key)
            lock.release()
            assert isinstance(forever.result(LONG), Lock)


def test_acquire_refuses_the_same_arguments_as_threading(client: Client, key: str) -> None:
    with pytest.raises(ValueError, match="timeout"):
        client.lock(key).acquire(False, 1)
    with pytest.raises(ValueError, match="timeout"):
        client.lock(key).acquire(timeout=-5)
    with pytest.raises(TypeError, match="timeout"):
        client.lock(key).acquire(timeout="5")  # type: ignore[arg-type]


def test_release_without_a_lock(client: Client, key: str) -> None:
    mutex = client.lock(key)
    with pytest.raises(RuntimeError, match="not held"):
        mutex.release()
    assert mutex.acquire()
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="not held by this thread"):
        pool.submit(mutex.release).result(LONG)
    mutex.release()
    with pytest.raises(RuntimeError, match="not held"):
        mutex.release()


def test_release_of_a_lost_lock(client: Client, other: Client, key: str) -> None:
    mutex = client.lock(key)
    assert mutex.acquire()
    other.force_release(key)
    with pytest.raises(LockLost):
        mutex.release()
    assert mutex.held is None
    with mutex as lock:  # it may be used again
        assert mutex.held is lock


def test_threads_share_one_object(client: Client, other: Client, key: str) -> None:
    mutex = client.lock(key)
    inside, most = 0, 0

    def enter() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        inside -= 1

    def work(n: int) -> None:
        if n % 2:
            with mutex:
                enter()
        else:
            assert mutex.acquire()
            enter()
            mutex.release()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(40)))
    assert most == 1
    assert not mutex._held


def test_a_thread_with_a_lost_lock_does_not_release_another_one(client: Client, other: Client, key: str) -> None:
    mutex = client.lock(key)
    lost, go_on = threading.Event(), threading.Event()

    def work() -> None:
        with pytest.raises(LockLost):
            with mutex as lock:
                other.force_release(key)
                assert lock.lost.wait(LONG)
                lost.set()
                assert go_on.wait(LONG)

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        assert lost.wait(LONG)
        with mutex as lock:
            go_on.set()
            working.result(LONG)
            assert mutex.held is lock
            assert lock.check()


def test_release_in_a_block(client: Client, key: str) -> None:
    mutex = client.lock(key)
    held, go_on = threading.Event(), threading.Event()

    def work() -> None:
        assert mutex.acquire()
        held.set()
        assert go_on.wait(LONG)
        mutex.release()

    with ThreadPoolExecutor(1) as pool:
        with mutex:
            mutex.release()
            working = pool.submit(work)
            assert held.wait(LONG)
        # The end of the block has not released the lock of the other thread.
        assert mutex.locked()
        go_on.set()
        working.result(LONG)
    assert not mutex.locked()


def test_a_block_may_end_in_another_thread(client: Client, other: Client, key: str) -> None:
    mutex = client.lock(key)
    assert mutex.acquire()
    other.force_release(key)
    with ThreadPoolExecutor(1) as pool:  # as web frameworks do with generators
        pool.submit(mutex.__enter__).result(LONG)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(mutex.__exit__, None, None, None).result(LONG)
    free(client, key)
    with pytest.raises(LockLost):
        mutex.release()


def test_a_second_acquire_of_the_same_thread(client: Client, key: str) -> None:
    mutex = client.lock(key)
    with mutex:
        assert not mutex.acquire(blocking=False)
        assert not mutex.acquire(timeout=0.05)
        with pytest.raises(RuntimeError, match=r"this thread.*for ever.*reentrant=True"):
            mutex.acquire()
        with pytest.raises(RuntimeError, match="for ever"), mutex:
            pytest.fail("entered twice")
    again = client.lock(key, reentrant=True)
    assert again.acquire()
    with again as inner:
        assert inner.reentry == 2
    assert again.locked()
    again.release()
    assert not again.locked()


def test_nothing_is_pickled(client: Client, key: str) -> None:
    with client.lock(key) as lock:
        for it in (client, client.lock(key), lock):
            with pytest.raises(TypeError, match=f"{type(it).__name__}.*cannot be pickled"):
                pickle.dumps(it)
            with pytest.raises(TypeError, match="cannot be pickled"):
                copy.copy(it)


@in_loop
async def test_tasks(path: str, key: str) -> None:
    async with two(path) as (one, other):
        mutex, rival = one.lock(key), other.lock(key)
        with pytest.raises(RuntimeError, match="not held"):
            await mutex.release()
        assert await mutex.acquire()
        assert isinstance(mutex.held, AsyncLock)
        assert await rival.locked()
        assert not await rival.acquire(blocking=False)
        assert not await rival.acquire(timeout=0.05)
        assert not await mutex.acquire(timeout=0.05)
        with pytest.raises(RuntimeError, match=r"this task.*for ever.*reentrant=True"):
            async with mutex:
                pytest.fail("entered twice")
        with pytest.raises(RuntimeError, match="not held by this task"):
            await asyncio.create_task(mutex.release())
        with pytest.raises(ValueError, match="timeout"):
            await mutex.acquire(False, 1)

        async def work() -> None:
            async with mutex as lock:
                assert mutex.held is lock

        tasks = [asyncio.create_task(work()) for _ in range(5)]
        await async_waiting(other, key, 5)
        await mutex.release()
        await asyncio.gather(*tasks)
        assert not mutex._held
        assert not await rival.locked()
        await asyncio.create_task(mutex.__aenter__())
        await mutex.__aexit__(None, None, None)  # the end of a block may be in another task
        assert not await mutex.locked()
        assert await mutex.acquire()
        await other.force_release(key)
        with pytest.raises(LockLost):
            await mutex.release()
        for it in (one, mutex):
            with pytest.raises(TypeError, match=f"{type(it).__name__}.*cannot be pickled"):
                pickle.dumps(it)


def test_made_before_the_loop(path: str, key: str) -> None:
    client = AsyncClient(path)
    mutex = client.lock(key, reentrant=True)

    async def use() -> None:
        assert await mutex.acquire()
        await mutex.release()
        await client.close()

    asyncio.run(use())


def test_ctrl_c_while_acquire_waits(client: Client, other: Client, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutex = client.lock(key)
    take = _sync_lock.take

    def interrupted(*args: object) -> Lock:
        take(*args)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(_sync_lock, "take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        mutex.acquire()
    monkeypatch.undo()
    until("it is withdrawn", lambda: other.get(key, fresh=True).state == "free")
    assert mutex.held is None

# Proves: client self wait
"""One thread or task that wants a key again, and threads that share what they use."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from conftest import LONG, free, waiting
from locksidecar import AsyncClient, Client
from test_async import in_loop

REFUSED = r"holds '.*' already, and would wait for itself for ever: give `reentrant=True`"


def test_a_thread_does_not_wait_for_itself(client: Client, other: Client, key: str) -> None:
    @client.locked(key)
    def again(depth: int) -> None:
        again(depth - 1)

    with pytest.raises(RuntimeError, match=f"this thread {REFUSED}"):
        again(2)
    with pytest.raises(RuntimeError, match=REFUSED):
        client.lead(key, lambda _: client.acquire(key))
    ways: list[Callable[[], Any]] = [
        lambda: client.acquire(key),
        lambda: client.lock(key).acquire(),
        lambda: client.lock(key).__enter__(),
        lambda: client.lock_many([f"{key}:2", key]).__enter__(),
        lambda: client.acquire_many([key]),
        lambda: client.acquire(key, shared=True),
        lambda: client.acquire(key, reentrant=True),  # the first one is not
        lambda: client.acquire(key, on_success="skip"),
        lambda: client.semaphore(key, limit=3).acquire(),
    ]
    with client.lock(key):
        for way in ways:
            with pytest.raises(RuntimeError, match=REFUSED):
                way()
        assert client.try_acquire(key) is None
        pool = ThreadPoolExecutor(1)
        waiter = pool.submit(client.acquire, key)  # another thread may wait
        waiting(other, key)
    waiter.result(LONG).release()
    pool.shutdown()
    with client.lock(key, shared=True), pytest.raises(RuntimeError, match=REFUSED):
        client.acquire(key)
    with client.lock(key, reentrant=True), client.lock(key, reentrant=True):
        pass
    free(other, key)
    free(other, f"{key}:2")


def test_a_lost_lock_is_not_held(client: Client, other: Client, key: str) -> None:
    lock = client.acquire(key)
    other.force_release(key)
    assert lock.lost.wait(LONG)
    client.acquire(key).release()


def test_a_lock_that_another_thread_will_release_is_waited_for_with_a_time(client: Client, key: str) -> None:
    lock = client.acquire(key)
    threading.Timer(0.05, lock.release).start()
    client.acquire(key, wait=LONG).release()


def test_a_thread_may_have_several_permits(client: Client, key: str) -> None:
    gpu = client.semaphore(key, limit=2)
    with gpu, gpu:
        with ThreadPoolExecutor(1) as pool:
            third = pool.submit(gpu.acquire, timeout=0.05)
            assert not third.result(LONG)
    with client.lock(key, shared=True), client.lock(key, shared=True):
        pass
    assert gpu.acquire()
    assert gpu.acquire()
    threading.Timer(0.05, gpu.release).start()  # of another thread, as with threading.Semaphore
    assert gpu.acquire()
    gpu.release(2)


@in_loop
async def test_a_task_does_not_wait_for_itself(path: str, key: str) -> None:
    async with AsyncClient(path) as client:

        @client.locked(key)
        async def again(depth: int) -> None:
            await again(depth - 1)

        async def lead(_: object) -> None:
            await client.acquire(key)

        with pytest.raises(RuntimeError, match=f"this task {REFUSED}"):
            await again(2)
        with pytest.raises(RuntimeError, match=REFUSED):
            await client.lead(key, lead)
        async with client.lock(key):
            for way in (client.acquire(key), client.lock(key).acquire(), client.acquire_many([key])):
                with pytest.raises(RuntimeError, match=REFUSED):
                    await way
            waiter = asyncio.create_task(client.acquire(key))
            await asyncio.sleep(0)
        await (await waiter).release()
        async with client.lock(key, reentrant=True), client.lock(key, reentrant=True):
            pass
        gpu = client.semaphore(key, limit=2)
        async with gpu, gpu:
            pass
        assert (await client.get(key)).state == "free"


# Proves: client groups
def test_threads_share_a_group(client: Client, other: Client, key: str) -> None:
    keys = [f"{key}:{n}" for n in range(3)]
    both, inside, most = client.lock_many(keys), 0, 0

    def work(_: int) -> None:
        nonlocal inside, most
        with both as locks:
            inside += 1
            most = max(most, inside)
            assert all(lock.check().token == lock.token for lock in locks)
            inside -= 1

    with client.lock("x" + key), ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(100)))
    assert most == 1
    assert not both._held
    for one in keys:
        free(other, one)


def test_a_nested_group_leaves_the_outer_locks(client: Client, other: Client, key: str) -> None:
    both = client.lock_many([f"{key}:a", f"{key}:b"], shared=True)
    with both as outer:
        with both as inner:
            assert {lock.token for lock in inner} & {lock.token for lock in outer} == set()
        for lock in outer:
            assert lock.check().token == lock.token
            assert other.get(lock.key).holders_count == 1
    free(other, f"{key}:a")


# Proves: client groups
def test_threads_want_overlapping_keys(client: Client, other: Client, key: str) -> None:
    """Each call waits for the keys that another thread of the client has."""
    inside: set[str] = set()

    def work(n: int) -> None:
        keys = [f"{key}:{n % 3}", f"{key}:{(n + 1) % 3}"]
        with client.lock_many(keys if n % 2 else keys[::-1], wait=LONG):
            assert not inside & set(keys)
            inside.update(keys)
            inside.difference_update(keys)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(60)))
    for n in range(3):
        free(other, f"{key}:{n}")


@in_loop
async def test_tasks_want_overlapping_keys(path: str, key: str) -> None:
    inside: set[str] = set()

    async def work(n: int) -> None:
        keys = [f"{key}:{n % 3}", f"{key}:{(n + 1) % 3}"]
        async with client.lock_many(keys if n % 2 else keys[::-1], wait=LONG):
            assert not inside & set(keys)
            inside.update(keys)
            await asyncio.sleep(0)
            inside.difference_update(keys)

    async with AsyncClient(path) as client:
        await asyncio.gather(*(work(n) for n in range(60)))

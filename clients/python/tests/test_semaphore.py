"""Shared locks and semaphores.

The first class runs CPython's own tests of `threading.BoundedSemaphore` with `client.semaphore`. Their semantics agree,
but for `repr`. An unbounded `threading.Semaphore` has no counterpart: a key has no more places than its limit.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from conftest import LONG, free, until, waiting
from locksidecar import (
    AsyncClient,
    Client,
    InvalidRequest,
    LimitMismatch,
    Lock,
    LockHeld,
    LockLost,
    NotHeld,
    Unsupported,
    WaitTimeout,
    _sync_lock,
)  # fmt: skip
from test_async import free as async_free
from test_async import in_loop, two
from test_async import waiting as async_waiting

cpython: Any = pytest.importorskip("test.lock_tests")


class TestAsBoundedSemaphore(cpython.BoundedSemaphoreTests):  # type: ignore[misc]
    test_repr = None

    @pytest.fixture(autouse=True)
    def semaphores(self, client: Client) -> None:
        client.acquire(f"test:{uuid4().hex}").release()  # the session's thread is not one that a test forgets
        self.semtype = lambda value=1: client.semaphore(f"test:{uuid4().hex}", limit=value)


def test_readers_share_a_lock_and_writers_do_not(client: Client, other: Client, key: str) -> None:
    with client.lock(key, shared=True) as one, other.lock(key, shared=True, wait=0) as two:
        assert (one.mode, one.limit, one.slot) == ("shared", None, None)
        assert two.token > one.token
        with pytest.raises(LockHeld) as held:
            other.acquire(key, wait=0)
        assert (held.value.mode, held.value.limit, held.value.holders_count) == ("shared", None, 2)
        info = other.get(key, fresh=True)
        assert (info.mode, info.limit, info.holders_count, info.state) == ("shared", None, 2, "held")
        assert [(h.token, h.slot, h.stopping, h.holder.session) for h in info.holders] == [
            (one.token, None, None, "one"), (two.token, None, None, "other"),
        ]  # fmt: skip
        assert info.holder == info.holders[0].holder
    with client.lock(key, wait=0) as lock:
        assert lock.mode == "exclusive"
        assert client.get(key).holders == ()


def test_nobody_overtakes_a_waiting_writer(client: Client, other: Client, key: str) -> None:
    reader = client.acquire(key, shared=True)
    with ThreadPoolExecutor(3) as pool:
        writer = pool.submit(other.acquire, key)
        waiting(client, key)
        readers = [pool.submit(c.acquire, key, shared=True) for c in (client, other)]
        waiting(client, key, 3)
        assert not other.lock(key, shared=True).acquire(blocking=False)
        reader.release()
        lock = writer.result(LONG)
        assert not any(r.done() for r in readers)
        lock.release()
        for one in [r.result(LONG) for r in readers]:
            assert one.token > lock.token
            one.release()
    free(client, key)


def test_the_slots_of_a_semaphore(client: Client, other: Client, key: str) -> None:
    gpu = client.semaphore(key, limit=2, data={"by": "me"})
    assert gpu.slot is None
    assert not gpu.locked()
    with gpu as one, other.semaphore(key, limit=2) as two:
        assert [one.slot, two.slot, gpu.slot, one.limit] == [0, 1, 0, 2]
        assert gpu.held is one
        assert gpu.locked()
        with pytest.raises(LockHeld) as held:
            client.acquire(key, shared=True, limit=2, wait=0)
        assert (held.value.limit, held.value.holders_count) == (2, 2)
        assert [h.slot for h in client.get(key, fresh=True).holders] == [0, 1]
        one.release()
        with gpu as again:
            assert again.slot == 0  # the smallest that is free
            assert again.check().slot == 0
    free(client, key)


def test_the_calls_that_wait_are_listed_in_their_order(client: Client, other: Client, key: str) -> None:
    place = other.acquire(key, shared=True, limit=1)
    with ThreadPoolExecutor(2) as pool:
        reader = pool.submit(other.acquire, key, shared=True, limit=1)
        waiting(client, key)
        writer = pool.submit(client.acquire, key, owner="me")
        waiting(client, key, 2)
        for found in (list(client.waiters(key)), list(client.waiters(prefix=key, page_size=1))):
            assert [(w.key, w.position, w.session, w.owner, w.mode, w.limit) for w in found] == [
                (key, 1, "other", None, "shared", 1), (key, 2, "one", "me", "exclusive", None),
            ]  # fmt: skip
            assert all(w.waiting >= 0 and w.pod for w in found)
        assert list(client.waiters(key + "x")) == []
        place.release()
        reader.result().release()
        writer.result().release()
    assert client._core.features is not None
    client._core.features -= {"waiters"}
    with pytest.raises(Unsupported, match="'waiters'"):
        next(client.waiters(key))


@in_loop
async def test_tasks_list_the_calls_that_wait(path: str, key: str) -> None:
    async with two(path) as (one, other):
        async with one.lock(key):
            waits = asyncio.create_task(other.acquire(key))
            await async_waiting(one, key)
            assert [(w.key, w.position, w.mode) async for w in one.waiters()] == [(key, 1, "exclusive")]
        await (await waits).release()


def test_another_limit_is_refused(client: Client, other: Client, key: str) -> None:
    with client.semaphore(key, limit=2):
        for options in ({"limit": 3}, {"limit": None}):
            with pytest.raises(LimitMismatch, match="2") as error:
                other.acquire(key, shared=True, wait=0, **options)
            assert (error.value.limit, error.value.status) == (2, 409)
    with other.semaphore(key, limit=3, wait=0):
        pass
    with pytest.raises(ValueError, match=r"^limit=0 is not between 1 and 1000"):
        client.semaphore(key, limit=0)
    with pytest.raises(TypeError, match="limit=True: it must be a whole number"):
        client.lock(key, shared=True, limit=True)
    with pytest.raises(InvalidRequest, match="limit"):
        client.acquire(key, limit=2)
    with pytest.raises(InvalidRequest, match="reentrant"):
        client.acquire(key, shared=True, reentrant=True)


def test_a_place_is_released_once_by_any_thread(client: Client, key: str) -> None:
    gpu = client.semaphore(key, limit=3)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(gpu.acquire).result(LONG)
    assert gpu.acquire()
    mine = gpu.held
    assert mine is not None
    with gpu:
        gpu.release()  # what this thread has acquired, not what its block has
        assert mine.released
        gpu.release()  # of the thread that is gone
        with pytest.raises(ValueError, match="released more often"):
            gpu.release()
        with pytest.raises(ValueError, match="n must be"):
            gpu.release(0)
        assert client.get(key, fresh=True).holders_count == 1
    free(client, key)


def test_a_lost_place_is_not_released_again(client: Client, other: Client, key: str) -> None:
    gpu = client.semaphore(key, limit=2)
    assert gpu.acquire()
    assert gpu.acquire()
    second = client.get(key, fresh=True).holders[1]
    other.force_release(key, token=second.token)
    assert other.get(key, fresh=True).holders_count == 1
    with pytest.raises(LockLost):
        gpu.release()
    gpu.release()
    with pytest.raises(ValueError, match="released more often"):
        gpu.release()
    with pytest.raises(NotHeld):
        other.force_release(key)
    free(other, key)


def test_a_stop_for_one_or_for_all(client: Client, other: Client, key: str) -> None:
    with client.lock(key, shared=True) as one, client.lock(key, shared=True) as two:
        other.stop(key, "one", token=two.token)
        assert two.stopping.wait(LONG)
        assert two.stopping.reason == "one"
        assert not one.stopping
        other.stop(key, "all")
        assert one.stopping.wait(LONG)
        assert one.stopping.reason == "all"
        with pytest.raises(NotHeld):
            other.stop(key, token=two.token + 1000)


def test_downgrade(client: Client, other: Client, key: str) -> None:
    with ThreadPoolExecutor(2) as pool, client.lock(key) as lock:
        reader = pool.submit(other.acquire, key, shared=True)
        waiting(client, key)
        status = lock.downgrade()
        assert (status.mode, status.token, lock.mode) == ("shared", lock.token, "shared")
        reader.result(LONG).release()
        assert lock.downgrade().mode == "shared"  # it may be repeated
        assert lock.check().mode == "shared"
    free(client, key)


def test_a_wait_for_a_share_ends_in_time_and_keeps_nothing(client: Client, other: Client, key: str) -> None:
    with client.lock(key):
        with pytest.raises(WaitTimeout) as error:
            other.acquire(key, shared=True, wait=0.05)
        assert error.value.mode == "exclusive"
        assert not other.semaphore(key, limit=1).acquire(timeout=0.05)
    free(client, key)


def test_an_interrupted_acquire_keeps_no_place(
    client: Client, other: Client, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu, take = client.semaphore(key, limit=2), _sync_lock.take

    def interrupted(*args: Any) -> Lock:
        take(*args)
        raise KeyboardInterrupt

    with gpu:
        monkeypatch.setattr(_sync_lock, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            gpu.acquire()
        monkeypatch.undo()
        until("it is withdrawn", lambda: other.get(key, fresh=True).holders_count == 1)
    free(other, key)


def test_a_session_may_have_several_shares(path: str, other: Client, key: str) -> None:
    with Client(path) as client:
        tokens = [client.acquire(key, shared=True).token for _ in range(3)]
        assert [h.token for h in other.get(key, fresh=True).holders] == tokens
        client.release(key, tokens[1])
        assert [h.token for h in other.get(key, fresh=True).holders] == [tokens[0], tokens[2]]
    free(other, key)


def test_a_sidecar_without_shared_locks(client: Client, key: str) -> None:
    client.acquire(key).release()
    assert client._core.features is not None
    client._core.features -= {"shared"}
    for call in (lambda: client.acquire(key, shared=True), client.semaphore(key, limit=2).acquire):
        with pytest.raises(Unsupported, match="'shared'"):
            call()


def test_threads_share_the_places(client: Client, key: str) -> None:
    gpu, mutex = client.semaphore(key, limit=3), threading.Lock()
    inside: set[int] = set()
    most = 0

    def work(n: int) -> None:
        nonlocal most
        with gpu as place:
            assert place.slot is not None
            with mutex:
                assert place.slot not in inside
                inside.add(place.slot)
                most = max(most, len(inside))
            with mutex:
                inside.remove(place.slot)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(60)))
    assert 1 <= most <= 3
    free(client, key)


@in_loop
async def test_tasks(path: str, key: str) -> None:
    async with two(path) as (one, other):
        gpu = one.semaphore(key, limit=2)
        async with gpu as place:
            assert (place.slot, gpu.slot) == (0, 0)
            assert await gpu.acquire()
            assert await gpu.locked()
            assert not await gpu.acquire(blocking=False)
            assert not await gpu.acquire(timeout=0.05)
            await asyncio.create_task(gpu.release())
            assert not await gpu.locked()
            with pytest.raises(ValueError, match="released more often"):
                await gpu.release()
        async with other.lock(key) as lock:
            assert await gpu.locked()
            status = await lock.downgrade()
            assert (status.mode, lock.mode) == ("shared", "shared")
        await async_free(other, key)


@in_loop
async def test_a_cancelled_wait_for_a_place_keeps_none(path: str, key: str) -> None:
    async with two(path) as (one, other), other.semaphore(key, limit=1) as place:
        gpu = one.semaphore(key, limit=1)
        tasks = [asyncio.create_task(gpu.acquire()) for _ in range(3)]
        await async_waiting(other, key, 3)
        tasks[0].cancel()
        await place.release()
        tasks[1].cancel()  # its grant may be under way
        for task in tasks[:2]:
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await asyncio.wait_for(tasks[2], LONG)
        await gpu.release()
        await async_free(other, key)


@in_loop
async def test_a_dropped_client_frees_its_places(path: str, key: str) -> None:
    async with AsyncClient(path) as other:
        async with AsyncClient(path) as one:
            await one.semaphore(key, limit=2).acquire()
            await one.acquire(key, shared=True, limit=2)
        await async_free(other, key)

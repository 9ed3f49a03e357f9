# Proves: client own clock
"""A sidecar that hangs: the client knows until when it may rely on a lock."""

from __future__ import annotations

import asyncio
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import LONG, Sidecar, free
from locksidecar import AsyncClient, Client, LockLost, Unavailable
from locksidecar._call import Call
from locksidecar._session import Grant, Session
from locksidecar._signal import Signal
from locksidecar._wire import Answer
from test_async import in_loop

# Half of the silence after which a stream counts as broken.
IN_TIME = 20.0


def test_a_loss_is_told_in_time(sidecar: Sidecar, key: str) -> None:
    with Client(sidecar.path) as client:
        with pytest.raises(LockLost, match="expired"):
            with client.lock(key, ttl=2) as lock, client.lock(f"{key}:long", ttl=3600) as other:
                time.sleep(3)
                assert not lock.lost  # it was renewed, and the client has asked
                sidecar.signal(signal.SIGSTOP)
                began = time.monotonic()
                assert lock.lost.wait(IN_TIME)
                assert time.monotonic() - began > 0.5
                assert lock.lost.reason == "expired"
                assert not other.lost
                sidecar.signal(signal.SIGCONT)
                other.check()
        free(client, key)
        with client.lock(key, wait=LONG):
            pass


def test_each_loss_is_told_in_time(sidecar: Sidecar, key: str) -> None:
    """Meanwhile the client gives back what it has lost before. That has no answer."""
    with Client(sidecar.path) as client:
        first, second = client.acquire(f"{key}:1", ttl=1), client.acquire(f"{key}:2", ttl=2)
        acquired = time.monotonic()
        sidecar.signal(signal.SIGSTOP)
        assert first.lost.wait(IN_TIME)
        assert second.lost.wait(IN_TIME)
        took = time.monotonic() - acquired
        sidecar.signal(signal.SIGCONT)
        assert took < 2.8
        free(client, f"{key}:1")
        free(client, f"{key}:2")


def test_a_question_has_no_more_time_than_the_first_lock() -> None:
    now = time.monotonic()
    session = Session("s", Signal, lambda: None)

    def grant(token: int, ends: float) -> Grant:
        value = {"key": "k", "token": token, "waited_ms": 0, "expires_in_ms": 30000, "reentry": 1}
        return session.hold(value, now - 30 + ends, "me", None, "r", False).grant

    first, second = grant(1, ends=-0.5), grant(2, ends=20)
    assert session.patience(first) == 1.0  # the process was halted, and the sidecar may have renewed both
    assert session.unanswered(first) == [first]
    session.lost(first, "expired")
    assert 19 < session.patience(second) <= 20
    third = grant(3, ends=2)
    assert 1 < session.patience(second) <= 2
    assert 1 < session.patience(third) <= 2
    fourth = grant(4, ends=-0.1)
    assert session.patience(fourth) == 0.25  # the sidecar hangs
    session.answered()
    assert session.patience(fourth) == 1.0


def test_many_releases_delay_no_question(sidecar: Sidecar, key: str) -> None:
    """What is lost is given back. A lock that is held meanwhile comes first."""
    with Client(sidecar.path) as client:
        many = client.acquire_many([f"{key}:{n}" for n in range(100)], ttl=1)
        other = client.acquire(key, ttl=2)
        acquired = time.monotonic()
        sidecar.signal(signal.SIGSTOP)
        assert other.lost.wait(IN_TIME)
        took = time.monotonic() - acquired
        sidecar.signal(signal.SIGCONT)
        assert took < 8  # each release of a lost lock takes 0.1 s
        assert all(lock.lost for lock in many)
        for lock in many:
            free(client, lock.key)


def test_threads_that_wait_for_a_session_fail_together(sidecar: Sidecar, key: str) -> None:
    sidecar.signal(signal.SIGSTOP)
    with Client(sidecar.path, timeout=1) as client:

        def tries(_: int) -> float:
            with pytest.raises(Unavailable, match="did not answer"):
                client.try_acquire(key)
            return time.monotonic()

        began = time.monotonic()
        with ThreadPoolExecutor(20) as threads:
            assert max(threads.map(tries, range(20))) - began < 8
        sidecar.signal(signal.SIGCONT)
        assert client.acquire(key, wait=LONG)


@in_loop
async def test_tasks_that_wait_for_a_session_fail_together(sidecar: Sidecar, key: str) -> None:
    sidecar.signal(signal.SIGSTOP)
    async with AsyncClient(sidecar.path, timeout=1) as client:
        began = time.monotonic()
        failed = await asyncio.gather(*(client.try_acquire(key) for _ in range(20)), return_exceptions=True)
        assert time.monotonic() - began < 8
        assert all(isinstance(one, Unavailable) for one in failed)
        sidecar.signal(signal.SIGCONT)
        assert await client.acquire(key, wait=LONG)


@in_loop
async def test_a_late_question_of_the_last_session_delays_no_loss(
    monkeypatch: pytest.MonkeyPatch, sidecar: Sidecar, key: str
) -> None:
    async with AsyncClient(sidecar.path) as client:
        transport = client._transport
        exchange, goes_on = transport._exchange, asyncio.Event()

        async def late(call: Call) -> Answer:
            if call.method == "PATCH" and call.target.endswith("first"):
                await goes_on.wait()
            return await exchange(call)

        monkeypatch.setattr(transport, "_exchange", late)
        first = await client.acquire(f"{key}:first", ttl=1)
        while not transport._keeping:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        last = transport.core.live_session()
        assert last is not None
        last.end()
        assert first.lost
        second = await client.acquire(f"{key}:second", ttl=1)
        goes_on.set()
        sidecar.signal(signal.SIGSTOP)
        await asyncio.wait_for(second.lost.wait(), IN_TIME)
        sidecar.signal(signal.SIGCONT)


def test_a_short_hang_loses_nothing(sidecar: Sidecar, key: str) -> None:
    with Client(sidecar.path) as client, client.lock(key, ttl=30) as lock:
        sidecar.signal(signal.SIGSTOP)
        assert not lock.lost.wait(1)
        sidecar.signal(signal.SIGCONT)
        lock.check()


def test_a_leader_ends_its_term_in_time(sidecar: Sidecar, key: str) -> None:
    with Client(sidecar.path) as client:
        terms = []

        def work(term: object) -> str:
            terms.append(term)
            if len(terms) > 1:
                return "again"
            sidecar.signal(signal.SIGSTOP)
            ended = term.lost.wait(IN_TIME)  # type: ignore[attr-defined]
            sidecar.signal(signal.SIGCONT)
            return "in time" if ended else "late"

        assert client.lead(key, work, ttl=2) == "again"


@in_loop
async def test_tasks_are_told_in_time(sidecar: Sidecar, key: str) -> None:
    async with AsyncClient(sidecar.path) as client:
        with pytest.raises(LockLost, match="expired"):
            async with client.lock(key, ttl=2) as lock:
                await asyncio.sleep(3)
                assert not lock.lost
                sidecar.signal(signal.SIGSTOP)
                await asyncio.wait_for(lock.lost.wait(), IN_TIME)
                sidecar.signal(signal.SIGCONT)
        terms = 0

        async def work(_: object) -> str:
            nonlocal terms
            terms += 1
            if terms > 1:
                return "again"
            sidecar.signal(signal.SIGSTOP)
            try:
                await asyncio.sleep(IN_TIME)
            finally:
                sidecar.signal(signal.SIGCONT)
            return "late"

        assert await client.lead(key, work, ttl=2) == "again"
        # An app that blocks its loop for longer has still the lock, because the sidecar renews it.
        async with client.lock(f"{key}:2", ttl=1) as lock:
            time.sleep(2)  # noqa: ASYNC251
            await asyncio.sleep(0.5)
            await lock.check()

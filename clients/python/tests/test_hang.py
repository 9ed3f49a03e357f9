# Proves: client own clock
"""A sidecar that hangs: the client knows until when it may rely on a lock."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from conftest import LONG, Sidecar, free
from locksidecar import AsyncClient, Client, LockLost
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

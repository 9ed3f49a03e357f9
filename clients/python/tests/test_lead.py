"""Leaders: campaigns, terms, and the news of a leader."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import LONG, Sidecar, free, line, until, waiting
from locksidecar import AsyncClient, AsyncTerm, Client, LockHeld, SessionEnded, Term, Unavailable
from test_async import free as async_free
from test_async import in_loop, two
from test_async import waiting as async_waiting

Python = Callable[..., "subprocess.Popen[str]"]


def test_the_result_of_the_function_ends_the_campaign(client: Client, other: Client, key: str) -> None:
    def work(term: Term) -> int:
        assert client.leader(key) == {"addr": "a:1"}
        assert not term.lost
        with pytest.raises(LockHeld):
            other.acquire(key, wait=0)
        return term.token

    assert client.leader(key) is None
    assert client.lead(key, work, data={"addr": "a:1"}) > 0
    assert client.leader(key) is None
    free(other, key)


def test_an_exception_of_the_function_goes_on(client: Client, key: str) -> None:
    def work(_: Term) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        client.lead(key, work)
    free(client, key)


@pytest.mark.parametrize("end", ["stop", "force"])
def test_a_term_that_ends_is_followed_by_a_campaign(client: Client, other: Client, key: str, end: str) -> None:
    terms: list[Term] = []
    leading = threading.Semaphore(0)

    def work(term: Term) -> str:
        terms.append(term)
        leading.release()
        if len(terms) == 2:
            return "resigned"
        assert term.lost.wait(LONG)
        return "not the result"

    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(client.lead, key, work)
        assert leading.acquire(timeout=LONG)
        if end == "stop":
            rival = pool.submit(other.acquire, key)
            waiting(client, key)
            other.stop(key, "deploy")
            rival.result(LONG).release()  # it was first in the queue
            assert terms[0].lost.reason == "deploy"
            assert not terms[0].lock.lost
        else:
            other.force_release(key)
        assert leader.result(LONG) == "resigned"
        assert end == "stop" or terms[0].lost.reason == "forced"
        assert terms[1].token > terms[0].token
    free(client, key)


def test_an_error_of_the_function_at_the_end_of_its_term_goes_on(client: Client, other: Client, key: str) -> None:
    def work(term: Term) -> None:
        other.stop(key)
        assert term.lost.wait(LONG)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        client.lead(key, work)
    free(client, key)


def test_a_function_may_raise_the_loss(client: Client, other: Client, key: str) -> None:
    terms: list[Term] = []

    def work(term: Term) -> None:
        terms.append(term)
        if len(terms) == 1:
            other.force_release(key)
            term.lock.check()

    client.lead(key, work)
    assert len(terms) == 2


def test_close_ends_a_campaign(path: str, client: Client, key: str) -> None:
    with client.lock(key), ThreadPoolExecutor(1) as pool:
        own = Client(path)
        leader = pool.submit(own.lead, key, lambda _: None)
        waiting(client, key)
        own.close()
        with pytest.raises(SessionEnded):
            leader.result(LONG)
    free(client, key)


def test_a_campaign_goes_on_after_an_outage(sidecar: Sidecar, key: str, tmp_path: Path) -> None:
    with pytest.raises(Unavailable), Client(tmp_path / "none") as nobody:
        nobody.lead(key, lambda _: None)
    terms: list[Term] = []
    leading = threading.Event()

    def work(term: Term) -> str:
        terms.append(term)
        leading.set()
        return "not the result" if len(terms) == 1 and term.lost.wait(LONG) else "again"

    # Without reconnection an acquire does not wait for the sidecar. A campaign does.
    with Client(sidecar.path, reconnect=0) as client, ThreadPoolExecutor(1) as pool:
        leader = pool.submit(client.lead, key, work)
        assert leading.wait(LONG)
        sidecar.kill()
        assert terms[0].lost.wait(LONG)
        assert terms[0].lost.reason == "disconnected"
        sidecar.start()
        assert leader.result(LONG) == "again"


def test_watch_leader(client: Client, other: Client, key: str) -> None:
    with other.watch_leader(key) as leaders:
        assert next(leaders) is None
        for addr in ("a:1", "b:2"):
            # The watcher is told while the term lasts: a holder that is gone is not named.
            assert client.lead(key, lambda _: next(leaders), data={"addr": addr}) == {"addr": addr}
            assert next(leaders) is None
        with client.lock(key, data=1), other.watch_leader(key) as more:
            assert next(more) == 1
        assert next(leaders) == 1


def test_the_same_data_is_told_once(client: Client, other: Client, key: str) -> None:
    with other.watch_leader(key) as leaders:
        assert next(leaders) is None
        for data in (1, 1, 2):  # shared holders, because an exclusive one is followed by None
            client.acquire(key, shared=True, data=data)
        assert [next(leaders), next(leaders)] == [1, 2]


LEADER = """
import sys
from locksidecar import Client
client = Client(name=sys.argv[2])
def work(term):
    print(sys.argv[2], term.token)
    term.lost.wait()
client.lead(sys.argv[1], work, data={"name": sys.argv[2]})
"""


def test_kill_9_of_the_leader_elects_the_next(python: Python, client: Client, key: str) -> None:
    first = python(LEADER, key, "first")
    name, token = line(first).split()
    second = python(LEADER, key, "second")
    waiting(client, key)
    assert client.leader(key) == {"name": "first"}
    with client.watch_leader(key) as leaders:
        assert next(leaders) == {"name": "first"}
        os.killpg(first.pid, signal.SIGKILL)
        after, greater = line(second).split()
        assert (name, after) == ("first", "second")
        assert int(greater) > int(token)
        told: list[Any] = []
        while {"name": "second"} not in told:
            told.append(next(leaders))
    assert told in ([None, {"name": "second"}], [{"name": "second"}])
    os.killpg(second.pid, signal.SIGINT)
    second.wait(LONG)
    until("nobody leads", lambda: client.leader(key) is None)


@in_loop
async def test_the_task_of_a_term_is_cancelled(path: str, key: str) -> None:
    async with two(path) as (one, other):
        begun = asyncio.Event()
        ends: list[str] = []

        async def work(term: AsyncTerm) -> str:
            begun.set()
            if ends:
                return "resigned"
            try:
                await asyncio.sleep(LONG)
            finally:
                ends.append(f"{term.lost.reason}")
                # The lock is held until the function has ended.
                assert (await other.get(key, fresh=True)).state == "held"
            return "not the result"

        leader = asyncio.create_task(one.lead(key, work, data="one"))
        await begun.wait()
        assert await other.leader(key) == "one"
        await other.stop(key, "deploy")
        assert await leader == "resigned"
        assert ends == ["deploy"]
        assert await one.lead(key, lambda term: term.token) > 0
        await async_free(other, key)


@in_loop
async def test_a_cancelled_lead_ends_its_function_and_its_term(path: str, key: str) -> None:
    async with two(path) as (one, other):
        begun, ended = asyncio.Event(), asyncio.Event()

        async def work(_: AsyncTerm) -> None:
            begun.set()
            try:
                await asyncio.sleep(LONG)
            finally:
                for _try in range(5):  # its end takes a while, and the lock is held until then
                    assert (await other.get(key, fresh=True)).state == "held"
                ended.set()

        leader = asyncio.create_task(one.lead(key, work))
        await begun.wait()
        rival = asyncio.create_task(other.lead(key, work))
        await async_waiting(one, key)
        rival.cancel()  # while it campaigns
        with pytest.raises(asyncio.CancelledError):
            await rival
        leader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leader
        assert ended.is_set()
        await async_free(other, key)


@in_loop
async def test_the_functions_own_cancellation_goes_on(path: str, key: str) -> None:
    async with AsyncClient(path) as client:

        async def work(_: AsyncTerm) -> None:
            raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await client.lead(key, work)
        await async_free(client, key)


@in_loop
async def test_watch_leader_in_a_loop(path: str, key: str) -> None:
    async with two(path) as (one, other), other.watch_leader(key) as leaders:
        assert await leaders.__anext__() is None
        async with one.lock(key, data="one"):
            async for data in leaders:
                assert data == "one"
                break

# Proves: client interrupts
"""Releases and acquires that a signal, a time limit or a cancellation interrupts. The lock objects know the outcome."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from conftest import LONG, Sidecar, free, line
from locksidecar import AsyncClient, Client, InvalidRequest, TooLarge, Unavailable, _sync_transport, _wire
from test_async import in_loop

Python = Callable[..., "subprocess.Popen[str]"]

STORM = """
import random, signal, sys, threading, time
from locksidecar import Client
class Limit(Exception): ...
def handler(*_):
    raise Limit
signal.signal(signal.SIGUSR1, handler)
client = Client()
key, how = sys.argv[1:]
mutex, group, gpu = client.lock(key), client.lock_many([key, key + ":2"]), client.semaphore(key + ":3", limit=1)
def by_hand(it):
    it.acquire()
    it.release()
def block(it):
    with it:
        pass
ways = [lambda: block(mutex), lambda: block(group), lambda: by_hand(mutex), lambda: by_hand(gpu), lambda: block(gpu),
        lambda: block(client.lock(key))]
client.get("warm")
left = interrupted = 0
main = threading.main_thread().ident
for n in range(600):
    def interrupt(pause=random.random() * 0.0006):
        time.sleep(pause)
        signal.pthread_kill(main, signal.SIGUSR1)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        ways[n % len(ways)]()
        while True:
            time.sleep(0.001)  # a signal just before a sleep does not end it
    except Limit:
        interrupted += 1
    thread.join()
    held = list(client.locks("session"))
    left += bool(held)
    for it in (mutex, gpu):  # what was interrupted before its first line has a handle
        while it.held is not None:
            it.held.release()
    for lock in held:
        try:
            client.release(lock.key, lock.token)
        except Exception:
            pass
    mutex._held.clear(); group._held.clear(); gpu._held.clear()
print(interrupted, left)
"""


# Proves: client interrupts
def test_signals_at_any_moment_leave_no_lock(python: Python, client: Client, key: str) -> None:
    interrupted, left = map(int, line(python(STORM, key, "x")).split())
    assert interrupted == 600
    assert left <= 6  # Python looks for signals between the body and the first line of `__exit__`, too


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError, ZeroDivisionError])
@pytest.mark.parametrize("how", ["block", "release", "semaphore", "lock"])
def test_an_interrupted_release_is_known(
    client: Client, key: str, monkeypatch: pytest.MonkeyPatch, how: str, error: type[BaseException]
) -> None:
    """The interruption comes before the answer is read, from a signal's handler. A socket has `TimeoutError`, too."""
    feed, interrupted = _wire.AnswerParser.feed, 0

    def feeding(self: _wire.AnswerParser, data: bytes) -> _wire.Answer | None:
        nonlocal interrupted
        if b'"released":true' in data and threading.current_thread() is threading.main_thread():
            interrupted += 1
            raise error
        return feed(self, data)

    mutex = client.semaphore(key, limit=2) if how == "semaphore" else client.lock(key)
    with monkeypatch.context() as patch:
        if how == "lock":
            lock = client.acquire(key)
            patch.setattr(_wire.AnswerParser, "feed", feeding)
            with pytest.raises(error):
                lock.release()
            assert lock.released
        elif how == "block":
            with pytest.raises(error), mutex:
                patch.setattr(_wire.AnswerParser, "feed", feeding)
        else:
            assert mutex.acquire()
            patch.setattr(_wire.AnswerParser, "feed", feeding)
            with pytest.raises(error):
                mutex.release()
    assert interrupted == 1
    assert mutex.held is None
    assert client.get(key, fresh=True).state == "free"
    with mutex as lock:  # it does not say that this thread would wait for ever
        assert mutex.held is lock


@in_loop
async def test_a_cancelled_release_is_known(path: str, key: str) -> None:
    async with AsyncClient(path) as client:
        mutex = client.lock(key)
        for n in range(60):
            assert await mutex.acquire()
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_later(n * 0.00002, task.cancel)
            try:
                await mutex.release()
                await asyncio.sleep(LONG)
            except asyncio.CancelledError:
                if hasattr(task, "uncancel"):
                    task.uncancel()
            assert mutex.held is None
            assert (await client.get(key, fresh=True)).state == "free"


# Proves: client lost answer
def test_a_release_without_an_answer_may_be_called_again(sidecar: Sidecar, key: str) -> None:
    with Client(sidecar.path, timeout=0.3, ttl=60) as client, Client(sidecar.path) as other:
        other.describe()
        mutex, lock = client.lock(key), client.acquire(f"{key}:2")
        assert mutex.acquire()
        sidecar.signal(signal.SIGSTOP)
        for it in (mutex, lock):
            with pytest.raises(Unavailable):
                it.release()
        with pytest.raises(Unavailable), client.lock(f"{key}:3", wait=0):
            pytest.fail("it got no answer")
        assert mutex.held is not None
        assert not lock.released
        sidecar.signal(signal.SIGCONT)
        client._core.timeout = LONG
        mutex.release()
        assert lock.release()
        assert lock.released
        free(other, key)
        free(other, f"{key}:2")
        free(other, f"{key}:3")


def test_a_release_of_a_ttl_lock_that_the_store_has_forgotten(sidecar: Sidecar, key: str) -> None:
    with Client(sidecar.path, timeout=0.3) as client, Client(sidecar.path) as other:
        other.describe()
        lock = client.acquire(key, bind="ttl", ttl=600)
        sidecar.signal(signal.SIGSTOP)
        with pytest.raises(Unavailable):
            lock.release()
        sidecar.signal(signal.SIGCONT)
        client._core.timeout = LONG
        other.acquire(key, wait=LONG).release()
        assert lock.release()


# Proves: client lost answer
def test_a_block_whose_release_had_no_answer_may_be_entered_again(sidecar: Sidecar, key: str) -> None:
    with Client(sidecar.path, timeout=0.3, ttl=60) as client:
        mutex = client.lock(key)
        with pytest.raises(Unavailable), mutex:
            sidecar.signal(signal.SIGSTOP)
        assert mutex.held is None
        sidecar.signal(signal.SIGCONT)
        client._core.timeout = LONG
        with mutex:
            pass


def test_a_second_interruption_does_not_stop_the_release(
    client: Client, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange, calls = _sync_transport._exchange, 0

    def interrupted(sock: Any, call: Any, *rest: Any) -> _wire.Answer:
        nonlocal calls
        calls += call.method == "DELETE"
        if call.method == "DELETE" and calls == 1:
            raise KeyboardInterrupt
        if call.method == "DELETE" and calls == 2:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.05)
        return exchange(sock, call, *rest)

    lock = client.acquire(key)
    monkeypatch.setattr(_sync_transport, "_exchange", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock.release()
    free(client, key)
    assert lock.released


def test_a_result_that_is_refused_does_not_keep_the_lock(client: Client, key: str) -> None:
    for wrong in (object(), float("nan"), "x" * 5000):
        with pytest.raises((TypeError, InvalidRequest, TooLarge), match="result"):
            with client.lock(key) as lock:
                lock.outcome, lock.result = "success", wrong
        assert client.get(key, fresh=True).state == "free"

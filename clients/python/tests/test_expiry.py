# Proves: client own clock
"""A lock with `bind="ttl"`: nobody tells its end, so this process's clock does."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from conftest import Sidecar, free, line, until
from locksidecar import AsyncClient, Client, LockLost, NotHolder, Unavailable, _signal
from locksidecar._session import Grant
from locksidecar._tasks import AsyncLockSignal
from locksidecar._threads import LockSignal, _clock
from test_async import in_loop

# Before it, a lock of half a second is over. Far after it, one of an hour.
IN_TIME = 20.0

Python = Callable[..., "subprocess.Popen[str]"]


def timers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "locksidecar-clock"]


def test_its_end_is_told_although_the_sidecar_says_nothing(sidecar: Sidecar, key: str) -> None:
    with Client(sidecar.path) as client:
        lock = client.acquire(key, bind="ttl", ttl=0.5)
        called = threading.Event()
        lock.lost.on(called.set)
        with sidecar.hanging():
            assert lock.lost.wait(IN_TIME)
            assert called.wait(IN_TIME)
            assert lock.lost.reason == "expired"
            assert lock.expires_in == 0
            lock.lost.on(called.clear)
            assert not called.is_set()
        free(client, key)
        with pytest.raises(LockLost, match="expired"):
            lock.check()
        with pytest.raises(LockLost, match="expired"):
            lock.release()
        until("no timer is left", lambda: not timers())


def test_the_end_of_a_block_asks_the_store(client: Client, sidecar: Sidecar, path: str, key: str) -> None:
    with Client(sidecar.path) as own, pytest.raises(LockLost, match="expired"):
        with own.lock(key, bind="ttl", ttl=0.5) as lock:
            assert lock.lost.wait(IN_TIME)
            free(own, key)
    with client.lock(key, bind="ttl", ttl=3600) as lock:  # the store has it for longer than the clock here says
        lock.lost.expires(time.monotonic())
        assert lock.lost
    assert lock.released
    assert client.get(key, fresh=True).state == "free"
    assert lock.lost.reason == "expired"


def test_a_failed_release_may_be_repeated_after_the_end(sidecar: Sidecar, key: str) -> None:
    with Client(sidecar.path, timeout=0.3) as client:
        lock = client.acquire(key, bind="ttl", ttl=3600)
        lock.lost.expires(time.monotonic())
        with sidecar.hanging(), pytest.raises(Unavailable):
            lock.release()
        with Client(sidecar.path) as patient:
            until("the sidecar answers", lambda: patient.get(key))
        assert lock.release()


def test_an_extension_moves_its_end(client: Client, key: str) -> None:
    lock = client.acquire(key, bind="ttl", ttl=3600)
    told = threading.Thread(target=lock.lost.wait, args=(IN_TIME,))
    told.start()
    until("a timer", timers)
    lock.extend(0.5)  # sooner than the timer
    told.join(IN_TIME)
    assert not told.is_alive()
    assert lock.lost.reason == "expired"


def test_an_extension_in_time_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(_signal, "time", SimpleNamespace(monotonic=lambda: now))
    lock = Grant("a", 7, None, _signal.Signal)
    lock.note(answer(1000), asked=100.0)
    now = 100.9
    lock.note(answer(2000), asked=100.5)  # it counts from the question
    now = 102.4
    assert not lock.lost
    assert lock.lost.reason is None
    now = 102.5
    assert lock.lost
    assert lock.lost.reason == "expired"


def test_an_extension_that_comes_late_does_not_undo_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(_signal, "time", SimpleNamespace(monotonic=lambda: now))
    lock = Grant("a", 7, None, _signal.Signal)
    lock.note(answer(1000), asked=100.0)
    now = 101.0  # nobody has looked at it in this moment
    lock.note(answer(9000), asked=100.5)
    assert lock.lost.reason == "expired"


def test_an_answer_that_another_thread_reads_late_sets_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(_signal, "time", SimpleNamespace(monotonic=lambda: now))
    lock = Grant("a", 7, None, _signal.Signal)
    lock.note(answer(1000), asked=100.0)
    lock.note(answer(9000), asked=100.2)  # an extension
    lock.note(answer(900), asked=100.1)  # a check that was asked before it
    now = 102.0
    assert not lock.lost


def test_nothing_sets_the_end_of_a_released_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(_signal, "time", SimpleNamespace(monotonic=lambda: now))
    lock = Grant("a", 7, None, _signal.Signal)
    lock.note(answer(1000), asked=100.0)
    lock.released({"released": True, "reentry": 0})
    lock.note(answer(1000), asked=100.1)  # an extension that was carried out before it
    now = 102.0
    assert not lock.lost


@pytest.mark.parametrize("token_of_another", [False, True])
def test_a_released_lock_has_no_end_and_no_timer(client: Client, key: str, token_of_another: bool) -> None:
    lock = client.acquire(key, bind="ttl", ttl=3600)
    lock.lost.on(lambda: None)
    assert lock.lost in _clock._signals
    if token_of_another:
        client.release(key, lock.token)
        with pytest.raises(NotHolder):
            lock.release()
    else:
        lock.release()
        assert not lock.lost
        assert lock.lost._due == math.inf
    assert lock.lost not in _clock._signals
    until("no timer is left", lambda: not timers())


def test_a_lock_without_callbacks_has_no_timer(client: Client, key: str) -> None:
    lock = client.acquire(key, bind="ttl", ttl=3600)
    assert not lock.lost
    assert lock.lost not in _clock._signals
    assert not timers()


def test_a_callback_that_exits_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def exits() -> None:
        raise SystemExit

    first, second = LockSignal(), LockSignal()
    first.on(exits)
    first.expires(time.monotonic() + 0.01)
    second.on(lambda: 1 / 0)
    second.expires(time.monotonic() + 0.02)
    third = LockSignal()
    third.expires(time.monotonic() + 0.03)
    assert third.wait(IN_TIME)
    until("no timer is left", lambda: not timers())
    assert "ZeroDivisionError" in caplog.text


HALTED = """
import os, signal, sys
from locksidecar import Client
lock = Client().acquire(sys.argv[1], bind="ttl", ttl=1)
say = sys.stdout.write  # two threads say something, and print writes a line in pieces
lock.lost.on(lambda: say("called\\n"))
say("asked\\n")
os.kill(os.getpid(), signal.SIGSTOP)
say(f"{lock.lost.wait(20)} {lock.lost.reason}\\n")
"""


def test_a_suspended_process_is_told_when_it_goes_on(client: Client, key: str, python: Python) -> None:
    process = python(HALTED, key)
    assert line(process) == "asked"
    free(client, key)
    os.kill(process.pid, signal.SIGCONT)
    assert {line(process), line(process)} == {"called", "True expired"}


FORKED = """
import os, sys
from locksidecar import Client
lock = Client().acquire(sys.argv[1], bind="ttl", ttl=1)
me = os.getpid()
say = sys.stdout.write  # as above
lock.lost.on(lambda: say(f"called in {'parent' if os.getpid() == me else 'child'}\\n"))
child = os.fork()
if child == 0:
    lock.lost.wait(20)
    say(f"child {lock.lost.reason}\\n")
else:
    os.waitpid(child, 0)
    lock.lost.wait(20)
"""


def test_a_child_process_has_the_clock_and_not_the_callbacks(key: str, python: Python) -> None:
    process = python(FORKED, key)
    assert {line(process), line(process)} == {"called in parent", "child expired"}
    assert process.wait(IN_TIME) == 0
    assert line(process) == ""


@in_loop
async def test_tasks_are_told(sidecar: Sidecar, key: str) -> None:
    async with AsyncClient(sidecar.path) as client:
        lock = await client.acquire(key, bind="ttl", ttl=0.5)
        called = []
        lock.lost.on(lambda: called.append(1))
        with sidecar.hanging():
            await asyncio.wait_for(lock.lost.wait(), IN_TIME)
            assert called == [1]
            assert lock.lost.reason == "expired"
        with pytest.raises(LockLost, match="expired"):
            async with client.lock(f"{key}:2", bind="ttl", ttl=0.5) as lock:
                await asyncio.wait_for(lock.lost.wait(), IN_TIME)
                while (await client.get(f"{key}:2", fresh=True)).state == "held":  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        async with client.lock(f"{key}:3", bind="ttl", ttl=3600) as lock:
            lock.lost.expires(time.monotonic())
            await asyncio.wait_for(lock.lost.wait(), IN_TIME)
        assert lock.released


@in_loop
async def test_a_task_s_timer_moves_and_ends(path: str, key: str) -> None:
    async with AsyncClient(path) as client:
        lock = await client.acquire(key, bind="ttl", ttl=3600)
        lost: AsyncLockSignal = lock.lost
        assert lost._timer is None
        waits = asyncio.ensure_future(lost.wait())
        await asyncio.sleep(0)
        far = lost._timer
        assert far is not None
        await lock.extend(7200)
        assert far.cancelled()
        assert lost._timer is not None
        assert lost._timer.when() > far.when() + 1800
        await lock.release()
        assert lost._timer is None
        assert not waits.done()
        waits.cancel()
        short = await client.acquire(key, bind="ttl", ttl=3600)
        waits = asyncio.ensure_future(short.lost.wait())
        await asyncio.sleep(0)
        await short.extend(0.5)
        await asyncio.wait_for(waits, IN_TIME)


def answer(ms: int) -> dict[str, Any]:
    return {"key": "a", "token": 7, "waited_ms": 0, "expires_in_ms": ms, "reentry": 1}

"""What the integrations share, without any framework."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
import time
from datetime import datetime, timezone

import pytest

from conftest import LONG, Sidecar, until
from locksidecar import AsyncClient, Client, LockLost, LockSignal, Unavailable
from locksidecar.contrib import TickSkipped, held, held_async
from locksidecar.contrib._held import run_held, run_held_async
from locksidecar.contrib._tick import Tick, slot


def test_importing_the_client_imports_no_framework() -> None:
    code = (
        "import sys, locksidecar, locksidecar.contrib\n"
        "print(*{'apscheduler', 'celery', 'django', 'fastapi', 'locksidecar.contrib.apscheduler'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == ""


@pytest.mark.parametrize("name", ["apscheduler", "celery", "django", "fastapi"])
def test_without_the_framework_the_import_says_what_to_install(name: str) -> None:
    code = f"import sys; sys.modules[{name!r}] = None; import locksidecar.contrib.{name}"
    ran = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    assert ran.returncode == 1
    assert f"ImportError: locksidecar.contrib.{name} needs it: pip install 'locksidecar[{name}]'" in ran.stderr


def test_a_loss_raises_in_the_body(client: Client, other: Client, key: str) -> None:
    def body() -> None:
        assert held().token == client.get(key).token
        other.force_release(key)
        while True:
            time.sleep(0.001)

    with pytest.raises(LockLost) as raised:
        run_held(client.acquire(key), body)
    assert raised.value.reason == "forced"
    assert type(raised.value) is LockLost
    with pytest.raises(RuntimeError, match="no lock is held here"):
        held()


def test_the_body_can_catch_the_loss_and_the_caller_still_gets_it(client: Client, other: Client, key: str) -> None:
    reasons = []

    def body() -> None:
        try:
            other.force_release(key)
            while True:
                time.sleep(0.001)
        except LockLost as e:
            reasons.append(e.reason)

    with pytest.raises(LockLost):
        run_held(client.acquire(key), body)
    assert reasons == ["forced"]


def test_a_loss_at_the_end_of_the_body_raises_nothing_later(client: Client, other: Client, key: str) -> None:
    for _ in range(50):
        lock = client.acquire(key)

        def body(lost: LockSignal = lock.lost) -> None:
            other.force_release(key)
            lost.wait(0.0005)  # so that some losses come in the body, and some at its end

        with pytest.raises(LockLost):
            run_held(lock, body)
        for _ in range(1000):
            pass  # an exception that comes too late would come here


def wait_for_ever() -> None:
    while True:
        time.sleep(0.001)


def test_a_loss_before_the_body_interrupts_it(client: Client, other: Client, key: str) -> None:
    # The thread of the body calls the callbacks itself, because the lock is lost when it begins.
    lock = client.acquire(key)
    other.force_release(key)
    assert lock.lost.wait(LONG)
    with pytest.raises(LockLost, match="forced"):
        run_held(lock, wait_for_ever)


def test_a_loss_that_the_body_finds_interrupts_it(client: Client, key: str) -> None:
    lock, rest = client.acquire(key, bind="ttl", ttl=0.5), []
    lock.lost.on(lambda: rest.append("called"))

    def body() -> None:
        while True:
            lock.lost.is_set()

    with pytest.raises(LockLost):
        run_held(lock, body)
    assert rest == ["called"]


def test_a_loss_in_another_thread_does_not_disturb_this_one(client: Client, other: Client, key: str) -> None:
    ends = []

    def work() -> None:
        try:
            run_held(client.acquire(key), wait_for_ever)
        except LockLost as e:
            ends.append(e.reason)

    thread = threading.Thread(target=work)
    thread.start()
    until("it is held", lambda: other.get(key).state == "held")
    other.force_release(key)
    thread.join()
    assert ends == ["forced"]


def test_a_loss_cancels_the_coroutine(path: str, other: Client, key: str) -> None:
    async def body() -> None:
        assert held_async().token
        await asyncio.to_thread(other.force_release, key)
        await asyncio.Event().wait()

    async def main() -> None:
        async with AsyncClient(path) as client:
            with pytest.raises(LockLost, match="forced"):
                await run_held_async(await client.acquire(key), body)
            await asyncio.sleep(0)  # a cancellation that comes too late would come here

            async def swallow() -> None:
                try:
                    await body()
                except asyncio.CancelledError:
                    return

            async def end_with_the_loss() -> None:
                held_async().lost.fire("known")

            for body_that_returns in (swallow, end_with_the_loss):
                with pytest.raises(LockLost):
                    await run_held_async(await client.acquire(key), body_that_returns)
                await asyncio.sleep(0)
                if sys.version_info >= (3, 11):
                    assert asyncio.current_task().cancelling() == 0

    asyncio.run(main())


def test_a_cancellation_by_others_stays_one(path: str, key: str) -> None:
    async def main() -> None:
        async with AsyncClient(path) as client:
            lock = await client.acquire(key)
            task = asyncio.create_task(run_held_async(lock, asyncio.Event().wait))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert lock.released

    asyncio.run(main())


def test_a_tick_runs_once(client: Client, other: Client, key: str) -> None:
    tick = Tick(key, 1700000000.5)
    assert tick.key == f"tick:{key}@2023-11-14T22:13:20.500Z"
    with tick.acquire(client) as lock:
        with pytest.raises(TickSkipped, match="was taken by pod"):
            tick.acquire(other)
        with pytest.raises(TickSkipped, match=f"an earlier run of '{key}' goes on in pod"):
            Tick(key, 1700000060).acquire(other)
        assert other.get(key).holder.data == {"tick": tick.key}  # type: ignore[union-attr]
    for one in (client, other):
        with pytest.raises(TickSkipped, match="was taken by pod"):
            tick.acquire(one)
    with pytest.raises(TickSkipped):
        Tick(key, 1700000060).acquire(other)  # nobody ran it, and nobody will
    with Tick(key, 1700000120).acquire(other) as later:
        assert later.token > lock.token
    with Tick(key, 1700000000.5, attempt=1).acquire(other):
        pass


def test_a_tick_runs_once_among_tasks(path: str, key: str) -> None:
    async def main() -> None:
        async with AsyncClient(path) as one, AsyncClient(path) as two:
            async with await Tick(key, 0).acquire_async(one):
                with pytest.raises(TickSkipped, match="was taken"):
                    await Tick(key, 0).acquire_async(two)
                with pytest.raises(TickSkipped, match="an earlier run"):
                    await Tick(key, 1).acquire_async(two)

    asyncio.run(main())


def test_a_late_process_skips_the_tick() -> None:
    tick = Tick("job", 0, min_hold=60)
    tick.check(time.time() - 29)
    with pytest.raises(TickSkipped, match="s late, more than half of min_hold=60"):
        tick.check(time.time() - 31)


def test_the_key_of_a_period_is_held_until_nobody_takes_it() -> None:
    assert Tick("job", 0, min_hold=600).hold == 600
    assert Tick("job", 0, min_hold=600, every=3600).hold == 4200  # planned in the last second, and late
    day = Tick("job", slot(time.time(), 86400), min_hold=600, every=86400)
    assert day.hold == 86400
    last = Tick("job", time.time() - 86400 + 299, min_hold=600, every=86400)
    with pytest.raises(TickSkipped, match="in the last 300 s of its period"):
        last.check(time.time())
    Tick("job", time.time() - 86400 + 310, min_hold=600, every=86400).check(time.time())


def test_the_loss_in_a_body_can_be_pickled(client: Client, other: Client, key: str) -> None:
    seen: list[BaseException] = []

    def body() -> None:
        try:
            other.force_release(key)
            while True:
                time.sleep(0.001)
        except LockLost as e:
            seen.append(e)
            raise

    with pytest.raises(LockLost):
        run_held(client.acquire(key), body)
    again = pickle.loads(pickle.dumps(seen[0]))
    assert type(again) is LockLost
    assert again.reason == "forced"
    assert (type(seen[0]).__module__, type(seen[0]).__name__) == ("locksidecar.errors", "LockLost")


def test_a_tick_is_not_skipped_for_a_sidecar_that_is_away(sidecar: Sidecar, key: str) -> None:
    with Client(sidecar.path) as client:
        sidecar.kill()
        with pytest.raises(Unavailable):
            Tick(key, 0).acquire(client)


def test_a_slot_contains_the_times_of_its_period() -> None:
    def at(text: str) -> float:
        return datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp()

    assert slot(at("2026-01-01T10:00:42"), 60) == slot(at("2026-01-01T10:00:12"), 60) == at("2026-01-01T10:00:00")
    assert slot(at("2026-01-01T10:01:00"), 60) == at("2026-01-01T10:01:00")

"""The executors for APScheduler, with real schedulers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from queue import Queue
from typing import Any
from uuid import uuid4

import pytest
from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_EXECUTED, EVENT_JOB_MISSED
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from conftest import LONG, Sidecar, until
from locksidecar import AsyncClient, Client, LockLost, Unavailable
from locksidecar.contrib import held, held_async
from locksidecar.contrib.apscheduler import AsyncFleetExecutor, FleetExecutor

ENDS = EVENT_JOB_EXECUTED | EVENT_JOB_ERROR | EVENT_JOB_MISSED


@contextmanager
def scheduling(client: Client, **options: Any) -> Iterator[tuple[BackgroundScheduler, Queue[Any]]]:
    """A scheduler whose default executor is the fleet's, and the events of its jobs."""
    scheduler, events = BackgroundScheduler(executors={"default": FleetExecutor(client, **options)}), Queue[Any]()
    scheduler.add_listener(events.put, ENDS)
    scheduler.start()
    try:
        yield scheduler, events
    finally:
        scheduler.shutdown()


def soon() -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=0.2)


def skipped(caplog: pytest.LogCaptureFixture, why: str) -> Callable[[], bool]:
    return lambda: any("does not run here" in one.getMessage() and why in one.getMessage() for one in caplog.records)


def test_one_of_two_schedulers_runs_a_tick(
    client: Client, other: Client, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tokens: list[int] = []
    with scheduling(client, prefix="") as (one, events), scheduling(other, prefix="") as (two, others):
        at = soon()
        for scheduler in (one, two):
            scheduler.add_job(lambda: tokens.append(held().token), "date", run_date=at, id=key)
        until("one has run it", lambda: events.qsize() + others.qsize() == 1)
        until("the other has skipped it", skipped(caplog, f"{key}@"))
    assert len(tokens) == 1
    assert events.qsize() + others.qsize() == 1  # a skipped tick is no event
    assert client.get(key).state == "free"


# Proves: client once a period
def test_a_period_runs_once_although_min_hold_is_shorter(client: Client, other: Client, key: str) -> None:
    ticks: list[str] = []

    def job() -> None:
        holder = client.get(held().key).holder
        assert holder is not None
        ticks.append(holder.data["tick"])

    with scheduling(client, min_hold=0.6, wait=1) as (one, _), scheduling(other, min_hold=0.6, wait=1) as (two, _):
        start = datetime.now(timezone.utc)
        for scheduler, after in ((one, 0.3), (two, 1.8)):
            at = start + timedelta(seconds=after)
            scheduler.add_job(job, "interval", seconds=3, next_run_time=at, id=key, misfire_grace_time=60)
        until("three periods have run", lambda: len(ticks) >= 3)
    assert len(set(ticks)) == len(ticks)


# Proves: client once a period
@pytest.mark.parametrize(
    ("trigger", "why"),
    [
        (CronTrigger(hour=3, jitter=60), "its trigger has a jitter"),
        (IntervalTrigger(minutes=5, jitter=60), "its trigger has a jitter"),
        (OrTrigger([CronTrigger(hour=3), IntervalTrigger(hours=5)]), "combines intervals"),
        (OrTrigger([CronTrigger(hour=3), OrTrigger([CronTrigger(hour=3, jitter=5)])]), "has a jitter"),
        (IntervalTrigger(weeks=1), "interval of more than a day"),
    ],
)
def test_what_has_no_planned_time_is_refused(
    client: Client, key: str, caplog: pytest.LogCaptureFixture, trigger: Any, why: str
) -> None:
    with scheduling(client) as (scheduler, _):
        scheduler.add_job(lambda: None, trigger, next_run_time=soon(), id=key)
        until("it is refused", lambda: why in caplog.text and "cannot run once in the fleet" in caplog.text)


def test_a_time_that_the_cron_has_not_planned_is_refused(client: Client, key: str) -> None:
    ran: list[int] = []
    with scheduling(client) as (scheduler, events):
        scheduler.add_job(lambda: ran.append(1), "cron", month=2, day=29, next_run_time=soon(), id=key)
        error = events.get(timeout=LONG)
        assert error.code == EVENT_JOB_ERROR
        assert "was not planned for" in str(error.exception)
        both = OrTrigger([CronTrigger(second="*"), CronTrigger(hour=3)])
        scheduler.add_job(lambda: ran.append(2), both, id=key + "2")
        until("what is planned runs", lambda: ran)
    assert set(ran) == {2}


def test_processes_that_count_an_interval_from_different_times_share_its_periods(
    client: Client, other: Client, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ran = []
    with scheduling(client) as (one, events), scheduling(other) as (two, _):
        one.add_job(lambda: ran.append(1), "interval", hours=23, next_run_time=soon(), id=key)
        events.get(timeout=LONG)
        two.add_job(lambda: ran.append(2), "interval", hours=23, next_run_time=soon(), id=key)
        until("the other has skipped the period", skipped(caplog, " was taken by"))
    assert ran == [1]


def test_a_lost_lock_ends_the_job(client: Client, other: Client, key: str) -> None:
    started, over = threading.Event(), threading.Event()

    def job() -> None:
        started.set()
        while not over.wait(0.001):
            pass

    with scheduling(client, prefix="") as (scheduler, events):
        scheduler.add_job(job, "date", run_date=soon(), id=key)
        assert started.wait(LONG)
        other.force_release(key)
        try:
            event = events.get(timeout=LONG)
        finally:
            over.set()
    assert event.code == EVENT_JOB_ERROR
    assert isinstance(event.exception, LockLost)


@pytest.mark.parametrize(("unavailable", "code"), [("fail", EVENT_JOB_ERROR), ("skip", EVENT_JOB_MISSED)])
def test_without_the_sidecar_the_job_does_not_run(
    sidecar: Sidecar, unavailable: str, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    ran: list[int] = []
    with Client(sidecar.path) as client, scheduling(client, unavailable=unavailable) as (scheduler, events):
        sidecar.kill()
        scheduler.add_job(lambda: ran.append(1), "date", run_date=soon(), id="dead")
        event = events.get(timeout=LONG)
    assert event.code == code
    assert isinstance(event.exception, Unavailable)
    assert skipped(caplog, "its lock cannot be acquired")()
    assert ran == []


def test_a_job_needs_an_id(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    ran: list[int] = []
    with scheduling(client) as (scheduler, _):
        scheduler.add_job(lambda: ran.append(1), "date", run_date=soon())
        until("it says so", lambda: "has a random id: give add_job an id" in caplog.text)
    assert ran == []


def test_a_late_tick_does_not_run(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    late = datetime.now(timezone.utc) - timedelta(seconds=6)
    with scheduling(client, min_hold=10) as (scheduler, events):
        scheduler.add_job(print, "date", run_date=late, id=f"late:{uuid4().hex}", misfire_grace_time=1)
        assert events.get(timeout=LONG).code == EVENT_JOB_MISSED
        scheduler.add_job(print, "date", run_date=late, id=f"late:{uuid4().hex}", misfire_grace_time=60)
        until("it says so", skipped(caplog, "more than half of min_hold=10"))
        assert events.empty()


def test_coroutines(path: str, other: Client, key: str) -> None:
    async def main() -> None:
        started, events = asyncio.Event(), asyncio.Queue[Any]()

        async def job() -> None:
            assert held_async().key == key
            started.set()
            await asyncio.Event().wait()

        async with AsyncClient(path) as client:
            executor = AsyncFleetExecutor(client, prefix="")
            scheduler = AsyncIOScheduler(executors={"default": executor})
            scheduler.add_listener(events.put_nowait, ENDS)
            scheduler.start()
            scheduler.add_job(job, "date", run_date=soon(), id=key)
            await asyncio.wait_for(started.wait(), LONG)
            await asyncio.to_thread(other.force_release, key)
            event = await asyncio.wait_for(events.get(), LONG)
            assert event.code == EVENT_JOB_ERROR
            assert isinstance(event.exception, LockLost)
            scheduler.shutdown()

    asyncio.run(main())


def test_coroutines_without_the_sidecar_do_not_run(sidecar: Sidecar) -> None:
    async def main() -> None:
        events, ran = asyncio.Queue[Any](), []

        async def job() -> None:
            ran.append(1)

        async with AsyncClient(sidecar.path) as client:
            await client.describe()
            sidecar.kill()
            scheduler = AsyncIOScheduler(executors={"default": AsyncFleetExecutor(client)})
            scheduler.add_listener(events.put_nowait, ENDS)
            scheduler.start()
            scheduler.add_job(job, "date", run_date=soon(), id="dead")
            event = await asyncio.wait_for(events.get(), LONG)
            assert event.code == EVENT_JOB_ERROR
            assert isinstance(event.exception, Unavailable)
            scheduler.shutdown()
        assert ran == []

    asyncio.run(main())

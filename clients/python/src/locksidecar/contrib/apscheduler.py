"""APScheduler 3: executors that run each tick of a job in one process of the fleet.

scheduler = BackgroundScheduler(executors={"default": {"type": "threadpool"}, "fleet": FleetExecutor(Client())})
scheduler.add_job(close_books, "cron", hour=3, timezone="UTC", id="close-books", executor="fleet")
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from functools import partial
from typing import Any

from .. import errors
from ._held import AWAY, Unavailable, missing, run_held, run_held_async
from ._tick import LONGEST_PERIOD, TICK_HOLD, Tick, TickSkipped, slot

try:
    from apscheduler.events import EVENT_JOB_ERROR, EVENT_JOB_MISSED, JobExecutionEvent
    from apscheduler.executors.asyncio import AsyncIOExecutor
    from apscheduler.executors.base import BaseExecutor, run_coroutine_job, run_job
    from apscheduler.executors.pool import ThreadPoolExecutor
    from apscheduler.triggers.cron import CronTrigger
    from apscheduler.triggers.interval import IntervalTrigger
    from apscheduler.util import iscoroutinefunction_partial
except ImportError as e:
    raise missing("apscheduler", e) from e


class _Run:
    """A job with another function, for APScheduler's own `run_job`."""

    def __init__(self, job: Any, function: Callable[[], Any]) -> None:
        self._job, self.func, self.args, self.kwargs = job, function, (), dict[str, Any]()
        self.misfire_grace_time = None  # it was checked before the tick was taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._job, name)

    def __str__(self) -> str:
        return str(self._job)


class _Fleet(BaseExecutor):
    """The common part of both executors."""

    def __init__(
        self,
        client: Any,
        *,
        min_hold: float = TICK_HOLD,
        wait: float = 0.0,
        unavailable: Unavailable = "fail",
        prefix: str = "job:",
        **pool: Any,
    ) -> None:
        super().__init__(**pool)
        self._client = client
        self._prefix, self._min_hold, self._wait, self._unavailable = prefix, min_hold, wait, unavailable

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        if re.fullmatch("[0-9a-f]{32}", job.id):
            raise ValueError(f"job {job.name!r} has a random id: give add_job an id, the same one in all processes")
        _check(job)

        def over(future: Any) -> None:
            error = asyncio.CancelledError() if future.cancelled() else future.exception()
            if error is not None:
                self._run_job_error(job.id, error, error.__traceback__)
            else:
                self._run_job_success(job.id, future.result())

        self._start(job, run_times).add_done_callback(over)

    def _ticks(self, job: Any, run_times: list[datetime], events: list[Any]) -> Iterator[tuple[datetime, Tick]]:
        """The ticks that this run takes. Those that are too late for misfire_grace_time become events instead."""
        for at in run_times:
            grace, planned = job.misfire_grace_time, at.timestamp()
            if grace is not None and (datetime.now(timezone.utc) - at).total_seconds() > grace:
                events += run_job(job, job._jobstore_alias, [at], self._logger.name)  # it does not call the function
                continue
            # Each process counts an interval from its own start, so a tick is the period that it falls into.
            every = job.trigger.interval_length if isinstance(job.trigger, IntervalTrigger) else 0.0
            first = slot(planned, every) if every else planned
            tick = Tick(self._prefix + job.id, first, self._min_hold, self._wait, every=every)
            try:
                tick.check(planned)
                _check_time(job, at)
            except errors.LocksidecarError as e:
                self._not_run(job, at, e, events)
            else:
                yield at, tick

    def _not_run(self, job: Any, at: datetime, error: errors.LocksidecarError, events: list[Any]) -> None:
        """Says why a tick does not run here, in the log and to the scheduler's listeners."""
        if isinstance(error, TickSkipped):
            self._logger.info('Job "%s" does not run here: %s', job, error)
        else:
            skip = self._unavailable == "skip" and isinstance(error, AWAY)
            say, what = (self._logger.warning, EVENT_JOB_MISSED) if skip else (self._logger.error, EVENT_JOB_ERROR)
            say('Job "%s" does not run here, because its lock cannot be acquired: %s', job, error)
            events.append(JobExecutionEvent(what, job.id, job._jobstore_alias, at, exception=error))


def _check(job: Any) -> None:
    """Raises ValueError if its trigger plans other times in each process."""

    def refuse(why: str, instead: str) -> ValueError:
        return ValueError(
            f"job {job.id!r} cannot run once in the fleet: {why}, so each process plans other times. Use {instead}"
        )

    trigger = job.trigger
    if isinstance(trigger, IntervalTrigger) and trigger.interval_length > LONGEST_PERIOD:
        raise refuse("its interval of more than a day begins when the process does", "a cron trigger")
    for one in _leaves(trigger):
        if getattr(one, "jitter", None):
            raise refuse("its trigger has a jitter", "a trigger without")
        if one is not trigger and isinstance(one, IntervalTrigger):
            raise refuse(
                f"its trigger {trigger} combines intervals, which begin when the process does", "cron triggers"
            )


def _leaves(trigger: Any) -> Iterator[Any]:
    yield trigger
    for one in getattr(trigger, "triggers", ()):
        yield from _leaves(one)


def _check_time(job: Any, at: datetime) -> None:
    """Raises an error if the trigger has not planned this time, as after `modify(next_run_time=...)`."""
    if isinstance(job.trigger, CronTrigger) and job.trigger.get_next_fire_time(None, at) != at:
        raise errors.InvalidRequest(
            400,
            "invalid_request",
            f"job {job.id!r} was not planned for {at} by its trigger {job.trigger}: this time means nothing to the"
            " other processes of the fleet. To run it now, call its function under a lock",
        )


class FleetExecutor(_Fleet, ThreadPoolExecutor):
    """Runs each tick of its jobs in one process of the fleet, in a pool of `max_workers` threads. `client`: a Client.

    The id of a job names its lock. `min_hold`: seconds for which nobody runs the same tick again, of an interval after
    its period; a process that is late by more than half of it skips the tick. A trigger with jitter, and one that
    combines intervals, is refused, because its times are others in each process. `wait`: seconds to wait for the end of
    the run before.
    `unavailable`: without the sidecar a tick does not run, and is an error (`fail`) or missed (`skip`).
    In the job, `held()` is its lock, and a lost lock raises `LockLost`.
    """

    def _start(self, job: Any, run_times: list[datetime]) -> Any:
        return self._pool.submit(self._run, job, run_times)

    def _run(self, job: Any, run_times: list[datetime]) -> list[Any]:
        events: list[Any] = []
        for at, tick in self._ticks(job, run_times, events):
            try:
                lock = tick.acquire(self._client)
            except errors.LocksidecarError as e:
                self._not_run(job, at, e, events)
            else:
                run = _Run(job, partial(run_held, lock, partial(job.func, *job.args, **job.kwargs)))
                events += run_job(run, job._jobstore_alias, [at], self._logger.name)
        return events


class AsyncFleetExecutor(_Fleet, AsyncIOExecutor):
    """As `FleetExecutor`, for coroutine functions in an AsyncIOScheduler, with an AsyncClient. A loss cancels them."""

    def _start(self, job: Any, run_times: list[datetime]) -> Any:
        if not iscoroutinefunction_partial(job.func):
            raise TypeError(f"the function of job {job.id!r} is not `async def`: use FleetExecutor")
        future = self._eventloop.create_task(self._run(job, run_times))
        self._pending_futures.add(future)
        future.add_done_callback(self._pending_futures.discard)
        return future

    async def _run(self, job: Any, run_times: list[datetime]) -> list[Any]:
        events: list[Any] = []
        for at, tick in self._ticks(job, run_times, events):
            try:
                lock = await tick.acquire_async(self._client)
            except errors.LocksidecarError as e:
                self._not_run(job, at, e, events)
            else:
                run = _Run(job, partial(run_held_async, lock, partial(job.func, *job.args, **job.kwargs)))
                events += await run_coroutine_job(run, job._jobstore_alias, [at], self._logger.name)
        return events

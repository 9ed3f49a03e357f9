"""Celery: tasks with a lock, and tasks that run once in each period of a schedule.

@app.task(base=LockedTask, lock_key="report:{customer}", default_retry_delay=5, max_retries=None)
def report(customer): ...

@app.task(base=OnceTask, once_every=3600)  # for the beats of all pods: crontab(minute=0)
def close_books(): ...
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from .. import Client, Duration, Lock, LockOptions, errors
from .._decorator import key_maker
from .._options import seconds
from ._held import AWAY, missing, run_held
from ._tick import LONGEST_PERIOD, TICK_HOLD, Tick, TickSkipped, slot

try:
    from celery import Task
    from celery.exceptions import Ignore
    from celery.utils.time import maybe_iso8601, maybe_make_aware
except ImportError as e:
    raise missing("celery", e) from e

if TYPE_CHECKING:
    BaseTask = Task[..., Any]
else:
    BaseTask = Task

Refusal = Literal["fail", "retry", "skip"]

log = logging.getLogger("locksidecar.contrib")
_SENT = "locksidecar_sent"  # the header with the time for which a task was first sent, in seconds since 1970


class _Base(BaseTask):
    abstract = True
    lock_client: ClassVar[Client] = Client()
    lock_key: ClassVar[str] = ""
    lock_unavailable: ClassVar[Refusal] = "fail"

    def _acquire(self, key: str) -> Lock:
        raise NotImplementedError

    def _refusal(self, error: errors.LocksidecarError) -> Refusal:
        return self.lock_unavailable if isinstance(error, AWAY) else "fail"

    def _key(self, args: Any, kwargs: Any) -> str:
        return key_maker(self.lock_key, self.run)(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            lock = self._acquire(self._key(args, kwargs))
        except errors.LocksidecarError as e:
            self._refuse(e, self._refusal(e))
        return run_held(lock, partial(self.run, *args, **kwargs))

    def _refuse(self, error: errors.LocksidecarError, how: Refusal) -> NoReturn:
        """Ends a task that has no lock, in Celery's ways."""
        if how == "retry":
            self.retry(exc=error)
        if how == "fail":
            raise error
        level = logging.INFO if isinstance(error, (TickSkipped, errors.LockHeld)) else logging.WARNING
        log.log(level, "task %s[%s] does not run: %s", self.name, self.request.id, error)
        if self.request.id is not None and not self.request.is_eager:
            # REVOKED, so a caller that waits for the result gets a TaskRevokedError.
            keep = not (self.ignore_result or self.request.ignore_result)
            self.backend.mark_as_revoked(self.request.id, str(error), request=self.request, store_result=keep)
        raise Ignore(str(error))


class LockedTask(_Base):
    """A task that runs under a lock. A worker that dies frees it. In the task, `held()` is the lock.

    lock_key: the key, with the task's parameters: `"report:{customer}"`. lock_options: those of `client.acquire`;
    without a `wait` the task does not wait. lock_held: what a task is whose lock is held: `retry` (the default, by
    Celery's `default_retry_delay` and `max_retries`), `fail` (with `LockHeld`) or `skip` (state REVOKED).
    lock_unavailable: the same without the sidecar, by default `fail` (with `Unavailable`, for example).
    A lost lock raises `LockLost` in the task, for `autoretry_for` too.
    """

    abstract = True
    lock_options: ClassVar[LockOptions] = {}
    lock_held: ClassVar[Refusal] = "retry"

    def _acquire(self, key: str) -> Lock:
        options: LockOptions = {"wait": 0, **self.lock_options}
        return self.lock_client.acquire(key, **options)

    def _refusal(self, error: errors.LocksidecarError) -> Refusal:
        return self.lock_held if isinstance(error, errors.LockHeld) else super()._refusal(error)


class OnceTask(_Base):
    """A task that runs at most once in each period of its schedule, however many beats send it.

    once_every: the period, at most a day, counted from 1970 in UTC. The time of the first sending decides, or its
    `countdown` or `eta`: retries belong to it. lock_key: by default `task:` and the name of the task. once_min_hold:
    for so long after the period nobody runs it again; a worker that gets the task later than half of it after its time
    does not run it. once_wait: how long to wait for
    the end of the run before. A task that does not run for one of these reasons gets the state REVOKED.
    """

    abstract = True
    once_every: ClassVar[Duration]
    once_min_hold: ClassVar[Duration] = TICK_HOLD
    once_wait: ClassVar[Duration] = 0.0

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Checks the options, when Celery makes the task."""
        super().on_bound(app)
        seconds("once_every", getattr(cls, "once_every", 0.0), least=1, most=LONGEST_PERIOD)

    def apply_async(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """As Celery's. A header gets the time for which it is sent."""
        options["headers"] = {_SENT: self._planned(**options), **(options.get("headers") or {})}
        return super().apply_async(args, kwargs, *rest, **options)

    def _planned(self, countdown: float | None = None, eta: Any = None, **_: Any) -> float:
        if countdown or eta is None:
            return time.time() + (countdown or 0)
        at = maybe_iso8601(eta)
        assert at is not None
        return float(maybe_make_aware(at, self.app.timezone).timestamp())

    def _key(self, args: Any, kwargs: Any) -> str:
        return super()._key(args, kwargs) if self.lock_key else f"task:{self.name}"

    def _acquire(self, key: str) -> Lock:
        sent, attempt = float(self.request.get(_SENT) or time.time()), self.request.retries or 0
        every, min_hold = seconds("", self.once_every), seconds("once_min_hold", self.once_min_hold)
        tick = Tick(key, slot(sent, every), min_hold, seconds("once_wait", self.once_wait), attempt, every)
        if not attempt:
            tick.check(sent)
        return tick.acquire(self.lock_client)

    def _refusal(self, error: errors.LocksidecarError) -> Refusal:
        return "skip" if isinstance(error, TickSkipped) else super()._refusal(error)

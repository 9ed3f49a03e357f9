"""Names of tasks, and waiting in them."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import math
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ._signal import Signal

T = TypeVar("T")

_owners = itertools.count(1)
_tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], str] = weakref.WeakKeyDictionary()


def this_task() -> str:
    """A name that no other task has or had."""
    # Not its id(), which a later task may have too.
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("this must be called in a task, which is what the lock is for")
    if task not in _tasks:
        _tasks[task] = f"task-{next(_owners)}"
    return _tasks[task]


class AsyncLockSignal(Signal):
    """An event in the life of a lock, such as its loss. In a condition it is true after that."""

    __slots__ = ("_event", "_timer")

    def __init__(self) -> None:
        super().__init__()
        self._event: asyncio.Event | None = None  # most locks need none
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self) -> None:
        """Returns when it has happened."""
        if self._event is None:
            self._event = asyncio.Event()
            self.on(self._event.set)
        await self._event.wait()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due != math.inf:
            delay = max(self._due - time.monotonic(), 0)
            self._timer = asyncio.get_running_loop().call_later(delay, self._look)

    def _look(self) -> None:
        self._timer = None
        if not self.is_set():  # the loop may be a moment early
            self._set_timer()


pause = asyncio.sleep


async def to_the_end(pick: Callable[[], T], release: Callable[[T], Awaitable[None]]) -> None:
    """Releases what `pick` gives. A task is cancelled only where it awaits, and there the release goes on."""
    await release(pick())


async def call_until(function: Callable[[], Awaitable[T]] | Callable[[], T], over: AsyncLockSignal) -> T | None:
    """Calls an app's function, and cancels it when the signal happens. Returns None if that ended it.

    It returns when the function has ended, also if this task is cancelled.
    """
    task = asyncio.ensure_future(call(function))
    _tasks[task] = this_task()  # the function works for this task, and has its locks
    over.on(task.cancel)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as e:
            cancelled = e
            task.cancel()
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # it is read, so asyncio does not report it
        raise cancelled
    if task.cancelled() and over:
        return None
    return task.result()


async def call(function: Callable[[], Awaitable[T]] | Callable[[], T]) -> T:
    """Calls an app's function, and awaits an awaitable result."""
    made = function()
    return await made if inspect.isawaitable(made) else made

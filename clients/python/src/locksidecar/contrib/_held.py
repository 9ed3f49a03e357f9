"""Work under a lock, which a loss of the lock ends."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar, cast

from .. import errors
from .._async_lock import AsyncLock
from .._async_loss import LossCancels
from .._sync_lock import Lock

T = TypeVar("T")
Unavailable = Literal["fail", "skip"]

AWAY = (errors.Unavailable, errors.LimitReached, errors.SessionEnded)
"""The errors of an acquire that say nothing about the lock: the sidecar or its store cannot answer now."""

_held: ContextVar[Lock | AsyncLock | None] = ContextVar("locksidecar_held", default=None)


def held() -> Lock:
    """Returns the lock of the running job: its `token`, its `lost`. Raises RuntimeError outside of one."""
    lock = _held.get()
    if lock is None:
        raise RuntimeError("no lock is held here: this is for the body of a job that an integration runs under a lock")
    return cast(Lock, lock)


def held_async() -> AsyncLock:
    """As `held`, in a coroutine."""
    return cast(AsyncLock, held())


class _Interrupt:
    """Raises LockLost in the thread of its block when the lock is lost: between two steps of its Python code."""

    def __init__(self, lock: Lock) -> None:
        def init(error: errors.LockLost) -> None:
            made = errors.lost(lock.key, lock.lost.reason or "")
            errors.LockLost.__init__(error, made.status, made.code, made.detail, made.problem)

        # CPython makes the exception in the thread, without arguments. For Celery and pickle it is the plain class,
        # which they look up by its module.
        # interrupts: it may be raised while this thread itself calls the callbacks of a loss, which must not drop it.
        plain = {"__init__": init, "__module__": errors.LockLost.__module__, "__reduce__": _plain, "interrupts": True}
        self.kind: type[BaseException] = type("LockLost", (errors.LockLost,), plain)
        self._lock = lock
        self._mutex = threading.Lock()
        self._thread: int | None = None

    def __enter__(self) -> None:
        self._thread = threading.get_ident()
        self._lock.lost.on(self._lost)

    def _lost(self) -> None:
        with self._mutex:
            if self._thread is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(self.kind))

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self._thread = None
        # An exception that was set before is raised here at the latest: CPython looks for it at each jump back.
        # This class must not take it back, because CPython 3.10 to 3.12 would then look for one for ever.
        for _step in range(10):
            pass


def _plain(error: errors.LockLost) -> tuple[Any, ...]:
    return errors.LockLost, error.args


def run_held(lock: Lock, function: Callable[[], T]) -> T:
    """Calls a function and releases the lock. A loss raises LockLost in the function, or else after it.

    The exception comes between two steps of Python code: a call into C, such as a read of a socket, ends first.
    """
    interrupt, before = _Interrupt(lock), _held.get()
    try:
        with lock:
            _held.set(lock)
            try:
                with interrupt:
                    return function()
            finally:
                _held.set(before)
    except interrupt.kind as e:
        raise errors.lost(lock.key, lock.lost.reason or "").with_traceback(e.__traceback__) from None


@asynccontextmanager
async def holding(lock: AsyncLock) -> AsyncIterator[AsyncLock]:
    """Holds the lock in its block, and releases it. A loss cancels the block, which then raises LockLost."""
    before = _held.get()
    async with lock:
        cancels = LossCancels([lock])
        _held.set(lock)
        try:
            yield lock
        except BaseException as e:
            raises = await cancels.end(e)
            if raises is e:
                raise
        else:
            raises = await cancels.end(None)
        finally:
            _held.set(before)
        if raises is not None:
            raise raises


async def run_held_async(lock: AsyncLock, function: Callable[[], Awaitable[T]]) -> T:
    """Awaits a function's result and releases the lock. See `holding`."""
    async with holding(lock):
        return await function()


def missing(extra: str, error: ImportError) -> ImportError:
    """The error of an integration whose framework is not installed."""
    return ImportError(f"locksidecar.contrib.{extra} needs it: pip install 'locksidecar[{extra}]' ({error})")

"""What the client for asyncio gives: a lock, and what holds it in an `async with`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from . import errors
from ._acquire import Acquire
from ._async_transport import AsyncTransport
from ._call import UNSET
from ._lock import BaseContext, BaseLock, _Held
from ._options import acquire_options
from ._session import Grant
from ._signal import Signal
from .types import Duration, LockOptions, Outcome, Status

if TYPE_CHECKING:
    from typing_extensions import Self

_owners = itertools.count(1)
_tasks: weakref.WeakKeyDictionary[asyncio.Task[Any], str] = weakref.WeakKeyDictionary()


def this_task() -> str:
    """A name that no other task has, nor had."""
    # Not its id(): that of one which has ended is given to another.
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("this must be called in a task, which is what the lock is for")
    if task not in _tasks:
        _tasks[task] = f"task-{next(_owners)}"
    return _tasks[task]


class AsyncLockSignal(Signal):
    """Something that happens to a lock once. True in a condition once it has happened."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        super().__init__()
        self._event: asyncio.Event | None = None  # most locks need none

    async def wait(self) -> None:
        """Returns when it has happened."""
        if self._event is None:
            self._event = asyncio.Event()
            self.on(self._event.set)
        await self._event.wait()


class AsyncLock(BaseLock):
    """A lock that is held. As an async context manager it is released at the end.

    `lost` happens when it is not held any more, with the `reason`; `stopping` when somebody asks to release it.
    """

    def __init__(self, transport: AsyncTransport, grant: Grant, value: Mapping[str, Any]) -> None:
        super().__init__(grant, value)
        self._transport = transport
        self.lost = cast(AsyncLockSignal, grant.lost)
        self.stopping = cast(AsyncLockSignal, grant.stopping)

    async def release(self, outcome: Outcome | None = None, result: Any = UNSET, *, reentry: int | None = None) -> bool:
        """Releases the lock, or takes off one entry of it; returns whether it is free now.

        `outcome`, and with success a `result` (JSON, at most 4 KiB), are told to those who wait with
        `on_success="skip"` and those who watch. Raises `LockLost`, `NotHolder`, `SidecarUnavailable`. A task that is
        cancelled meanwhile releases it all the same.
        """
        self._begin_release()
        value = await self._transport.run(
            self._transport.core.release(self.key, self.token, self._grant, outcome, result, reentry)
        )
        self._done = True
        return bool(value["released"])

    async def check(self) -> Status:
        """Asks the sidecar whether the lock is still held: raises `LockLost` or `NotHolder` if not."""
        return await self._amend()

    async def extend(self, ttl: Duration) -> Status:
        """Sets the remaining time from now, in seconds. Only with `bind="ttl"`: others need no extending."""
        return await self._amend(ttl=ttl)

    async def update(self, data: Any) -> Status:
        """Replaces the data that others see; None removes it."""
        return await self._amend(data=data)

    async def _amend(self, ttl: Duration | None = None, data: Any = UNSET) -> Status:
        self._begin_release()
        return await self._transport.run(self._transport.core.check(self.key, self.token, self._grant, ttl, data))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._done:
            return
        outcome, result = self._ending(error)
        try:
            await self.release(outcome, result)
        except errors.LocksidecarError as failure:
            if error is None:
                raise
            self._not_released(error, failure)


def new_acquire(transport: AsyncTransport, keys: Sequence[str], options: LockOptions) -> Acquire:
    """Makes the acquire of some keys. This task is the owner of a reentrant one that names none."""
    made = acquire_options(options)
    if made.reentrant and made.owner is None:
        made.owner = this_task()
    return Acquire(transport.core, keys, made)


async def take(transport: AsyncTransport, acquire: Acquire) -> AsyncLock:
    """Acquires one lock."""
    return AsyncLock(transport, *await transport.run(acquire.one()))


async def take_all(transport: AsyncTransport, acquire: Acquire) -> list[AsyncLock]:
    """Acquires several locks, all or none."""
    return [AsyncLock(transport, *one) for one in await transport.run(acquire.many())]


class AsyncLockContext(BaseContext[AsyncLock]):
    """A lock to be acquired: by `async with`, which gives the `AsyncLock`, or by `acquire` and `release`.

    It may be used again and again, and shared between tasks: what one has acquired is its own.
    """

    _us = "task"

    def __init__(self, transport: AsyncTransport, key: str, options: LockOptions) -> None:
        super().__init__(key, options)
        self._transport = transport

    @property
    def held(self) -> AsyncLock | None:
        """The lock that this task holds through this object, with its `token` and `lost`; None if there is none."""
        one = self._last(this_task())
        return None if one is None else one.lock

    async def acquire(self, blocking: bool = True, timeout: Duration | None = -1) -> bool:
        """Acquires the lock, and returns whether this task holds it now. See `LockContext.acquire`."""
        try:
            await self._take(self._waiting(blocking, timeout), block=False)
            return True
        except errors.LockHeld:
            return False

    async def release(self) -> None:
        """Releases the lock that this task acquired last. See `LockContext.release`."""
        one = self._to_release(this_task())
        try:
            await one.lock.__aexit__(None, None, None)
        finally:
            self._over(one)

    async def locked(self) -> bool:
        """Asks whether anybody holds the lock: this task, another one, or another process."""
        return (await self._transport.run(self._transport.core.get(self._key, False))).state == "held"

    async def __aenter__(self) -> AsyncLock:
        return await self._take(self._options, block=True)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        one = self._to_leave(this_task())
        self._held.remove(one)
        await one.lock.__aexit__(kind, error, trace)

    async def _take(self, options: LockOptions, block: bool) -> AsyncLock:
        me, made = this_task(), new_acquire(self._transport, [self._key], options)
        self._may_wait(me, made.options)
        lock = await take(self._transport, made)
        self._held.append(_Held(me, lock, made, block))
        return lock


class AsyncManyContext:
    """`async with client.lock_many(...) as locks`: acquires all at the beginning, releases all at the end."""

    def __init__(self, transport: AsyncTransport, keys: Sequence[str], options: LockOptions) -> None:
        acquire_options(options)  # so that a mistake is found where it is made
        self._transport, self._keys, self._options = transport, keys, options
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> list[AsyncLock]:
        locks = await take_all(self._transport, new_acquire(self._transport, self._keys, self._options))
        for lock in locks:
            self._stack.push_async_exit(lock)
        return locks

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

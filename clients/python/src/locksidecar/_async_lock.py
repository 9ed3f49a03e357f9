"""What the client for asyncio gives: a lock, and what holds it in a block."""

from __future__ import annotations

import contextlib
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
from ._tasks import AsyncLockSignal, this_task
from .types import Duration, LockOptions, Outcome, Status

if TYPE_CHECKING:
    from typing_extensions import Self


class AsyncLock(BaseLock):
    """A lock that is held. As a context manager it is released at the end.

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
        `on_success="skip"` and those who watch. Raises `LockLost`, `NotHolder`, `SidecarUnavailable`.
        A task that is cancelled meanwhile releases it all the same.
        """
        self._begin_release()
        value = await self._transport.run(
            self._transport.core.release(self.key, self.token, self._grant, outcome, result, reentry, self._entry)
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
    """Acquires one lock. If anything is raised until the app has it, `withdraw` what the acquire has got."""
    return AsyncLock(transport, *await transport.run(acquire.one()))


async def take_all(transport: AsyncTransport, acquire: Acquire) -> list[AsyncLock]:
    """Acquires several locks, all or none. See `take`."""
    return [AsyncLock(transport, *one) for one in await transport.run(acquire.many())]


class AsyncLockContext(BaseContext[AsyncLock]):
    """A lock to be acquired: by `async with`, which gives the `AsyncLock`, or by `acquire` and `release`.

    These two work as those of a `threading.Lock`. It may be used again and again, and shared between tasks: what one
    has acquired is its own.
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
        """Acquires the lock, and returns whether this task holds it now.

        timeout: seconds; -1 waits as long as the `wait` of `client.lock`, which is for ever without one; None waits
        for ever. Raises what `client.acquire` raises, but for `LockHeld` and `WaitTimeout`; RuntimeError instead of
        waiting for ever for what this task holds itself.
        """
        acquire = new_acquire(self._transport, [self._key], self._waiting(blocking, timeout))
        try:
            # One line, so that Ctrl-C comes before it or after it.
            return await self._take(acquire, block=False) is not None
        except BaseException as e:
            await self._withdraw(acquire)
            if isinstance(e, errors.LockHeld):
                return False
            raise

    async def release(self) -> None:
        """Releases the lock that this task acquired last.

        Raises RuntimeError if this task holds none through this object, and what `AsyncLock.release` raises: `LockLost`
        if it was lost. After `SidecarUnavailable` it may be called again.
        """
        one = self._to_release(this_task())
        try:
            await one.lock.__aexit__(None, None, None)
        finally:
            self._over(one)

    async def locked(self) -> bool:
        """Asks whether anybody holds the lock: this task, another one, or another process."""
        info = await self._transport.run(self._transport.core.get(self._key, False))
        return info.state == "held"

    async def __aenter__(self) -> AsyncLock:
        acquire = new_acquire(self._transport, [self._key], self._options)
        try:
            return await self._take(acquire, block=True)
        except BaseException:  # from here on the end of the block would release it
            await self._withdraw(acquire)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        one = self._to_leave(this_task())
        self._held.remove(one)
        await one.lock.__aexit__(kind, error, trace)

    async def _take(self, acquire: Acquire, block: bool) -> AsyncLock:
        me = this_task()
        self._may_wait(me, acquire.options)
        lock = await take(self._transport, acquire)
        self._held.append(_Held(me, lock, acquire, block))
        return lock

    async def _withdraw(self, acquire: Acquire) -> None:
        for one in [one for one in self._held if one.acquire is acquire]:
            self._held.remove(one)
        await self._transport.drive(acquire.withdraw())


class AsyncManyContext:
    """`async with client.lock_many(...) as locks`: acquires all at the beginning, releases all at the end."""

    def __init__(self, transport: AsyncTransport, keys: Sequence[str], options: LockOptions) -> None:
        acquire_options(options)  # so that a mistake is found where it is made
        self._transport, self._keys, self._options = transport, keys, options
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> list[AsyncLock]:
        acquire = new_acquire(self._transport, self._keys, self._options)
        try:
            locks = await take_all(self._transport, acquire)
            for lock in locks:
                self._stack.push_async_exit(lock)
            return locks
        except BaseException:
            await self._transport.drive(acquire.withdraw())
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

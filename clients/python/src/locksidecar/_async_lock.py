"""The locks of the client for asyncio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from . import errors
from ._acquire import Acquire
from ._async_transport import AsyncTransport
from ._call import UNSET
from ._lock import BaseBlocks, BaseContext, BaseLock, BaseSemaphore, _Held, not_released
from ._options import acquire_options, key_list, whole
from ._session import Entry
from ._tasks import AsyncLockSignal, this_task, to_the_end
from .types import Duration, LockOptions, Outcome, SemaphoreOptions, Status

if TYPE_CHECKING:
    from typing_extensions import Self


class AsyncLock(BaseLock):
    """A held lock. As a context manager, it is released at the end.

    `lost` is set, with a `reason`, when the lock is lost; `stopping` when somebody asks to release it.
    """

    def __init__(self, transport: AsyncTransport, entry: Entry, value: Mapping[str, Any]) -> None:
        super().__init__(entry, value)
        self._transport = transport
        self.lost = cast(AsyncLockSignal, entry.grant.lost)
        self.stopping = cast(AsyncLockSignal, entry.grant.stopping)

    async def release(self, outcome: Outcome | None = None, result: Any = UNSET, *, reentry: int | None = None) -> bool:
        """Releases the lock, or one entry of it. Returns whether it is free now.

        Waiters with `on_success="skip"` and watchers get the `outcome`, and with success the `result` (JSON, at most
        4 KiB). Raises `LockLost`, `NotHolder`, `Unavailable`. A cancelled task still releases. After
        `Unavailable` it may be called again.
        """
        self._check_released()
        release = self._transport.core.release(self.key, self.token, self._entry, outcome, result, reentry)
        return bool((await self._transport.run(release))["released"])

    async def check(self) -> Status:
        """Checks that the lock is still held. Raises `LockLost` or `NotHolder` if not."""
        return await self._amend()

    async def extend(self, ttl: Duration) -> Status:
        """Sets the remaining time from now, in seconds. Only with `bind="ttl"`, because the sidecar renews others."""
        return await self._amend(ttl=ttl)

    async def update(self, data: Any) -> Status:
        """Replaces the data that others see. None removes it."""
        return await self._amend(data=data)

    async def downgrade(self) -> Status:
        """Makes an exclusive lock shared, under the same token. Shared calls that wait are let in.

        There is no upgrade, because two holders would wait for each other: release the lock, and acquire it.
        """
        return self._downgraded(await self._amend(shared=True))

    async def _amend(self, ttl: Duration | None = None, data: Any = UNSET, shared: bool = False) -> Status:
        self._check_released()
        check = self._transport.core.check(self.key, self.token, self._grant, ttl, data, shared)
        return await self._transport.run(check)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await to_the_end(lambda: [self], partial(leave, self._transport, error))


async def leave(transport: AsyncTransport, body: BaseException | None, locks: Sequence[AsyncLock]) -> None:
    """Ends a block: releases those of its locks that were not. Raises the error of a release if the body has not."""
    ends = [lock._at_end(body) for lock in reversed(locks) if not lock.released]
    if not ends:
        return
    try:
        failures = await transport.run(transport.core.leave(ends))
    except errors.SessionEnded as e:  # the client was closed
        failures = [e]
    not_released(failures, body)


def new_acquire(transport: AsyncTransport, keys: Sequence[str], options: LockOptions) -> Acquire:
    """Makes an acquire of this task. By default the task is the owner of a reentrant one."""
    made, me = acquire_options(options), this_task()
    if made.reentrant and made.owner is None:
        made.owner = me
    return Acquire(transport.core, keys, made, me)


async def take(transport: AsyncTransport, acquire: Acquire) -> AsyncLock:
    """Acquires one lock. If an exception comes before the app has it, the caller calls `acquire.withdraw`."""
    return AsyncLock(transport, *await transport.run(acquire.one()))


async def take_all(transport: AsyncTransport, acquire: Acquire) -> list[AsyncLock]:
    """Acquires several locks, all or none. See `take`."""
    return [AsyncLock(transport, *one) for one in await transport.run(acquire.many())]


class AsyncLockContext(BaseContext[AsyncLock]):
    """A lock to acquire by `async with`, which gives the `AsyncLock`, or by `acquire` and `release`.

    These two work as those of `threading.Lock`. It may be used again, and shared: each task has its own lock.
    """

    _us = "task"

    def __init__(self, transport: AsyncTransport, key: str, options: LockOptions) -> None:
        super().__init__(key, options)
        self._transport = transport

    @property
    def held(self) -> AsyncLock | None:
        """The lock that this task holds through this object, or None."""
        one = self._last(this_task())
        return None if one is None else one.locks[0]

    async def acquire(self, blocking: bool = True, timeout: Duration | None = -1) -> bool:
        """Acquires the lock. Returns whether this task holds it now.

        timeout: seconds. -1 waits as long as the `wait` of `client.lock`, which is for ever by default; None waits for
        ever. Raises as `client.acquire`, without `LockHeld` and `WaitTimeout`. Raises RuntimeError if this task would
        wait for ever for its own lock.
        """
        acquire = new_acquire(self._transport, [self._key], self._waiting(blocking, timeout))
        try:
            # One line, so that Ctrl-C comes before or after it.
            return await self._take(acquire, block=False) is not None
        except BaseException as e:
            await withdraw(self, acquire)
            if isinstance(e, errors.LockHeld):
                return False
            raise

    async def release(self) -> None:
        """Releases the lock that this task acquired last.

        Raises RuntimeError if this task holds none through this object, else as `AsyncLock.release`. After
        `Unavailable` it may be called again.
        """
        await to_the_end(partial(self._to_release, this_task()), self._release)

    async def _release(self, one: _Held[AsyncLock]) -> None:
        try:
            await leave(self._transport, None, one.locks)
        finally:
            self._after_release(one)

    async def locked(self) -> bool:
        """Asks the sidecar whether anybody holds the lock."""
        info = await self._transport.run(self._transport.core.get(self._key, False))
        return info.state == "held"

    async def __aenter__(self) -> AsyncLock:
        acquire = new_acquire(self._transport, [self._key], self._options)
        try:
            return await self._take(acquire, block=True)
        except BaseException:  # the end of the block would release it only later
            await withdraw(self, acquire)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await to_the_end(partial(self._to_leave, this_task()), partial(end_block, self, error))

    async def _take(self, acquire: Acquire, block: bool) -> AsyncLock:
        lock = await take(self._transport, acquire)
        self._note(this_task(), [lock], acquire, block)
        return lock


class AsyncSemaphore(BaseSemaphore[AsyncLock], AsyncLockContext):
    """A semaphore to acquire by `async with`, or by `acquire` and `release`.

    A permit is held as `AsyncLock`, with a `slot`. These methods work as those of `threading.BoundedSemaphore`. It
    may be shared, and a task may have several permits.
    """

    def __init__(self, transport: AsyncTransport, key: str, limit: int, options: SemaphoreOptions) -> None:
        shared = {**options, "shared": True, "limit": whole("limit", limit)}
        super().__init__(transport, key, cast(LockOptions, shared))

    @property
    def slot(self) -> int | None:
        """The slot that this task got last through this object, or None."""
        lock = self.held
        return None if lock is None else lock.slot

    async def release(self, n: int = 1) -> None:
        """Releases permits that `acquire` has got: those of this task first, then of others, the oldest first.

        Raises ValueError if there is none, else as `AsyncLock.release`.
        """
        if n < 1:
            raise ValueError("n must be one or more")
        for _ in range(n):
            await super().release()

    async def locked(self) -> bool:
        """Asks the sidecar whether an acquire would have to wait now."""
        info = await self._transport.run(self._transport.core.get(self._key, False))
        if info.mode == "shared" and info.limit is not None:
            return info.holders_count >= info.limit or info.queue_length > 0
        return info.state == "held"


class AsyncManyContext(BaseBlocks[AsyncLock]):
    """`async with client.lock_many(...) as locks`: acquires and releases all locks.

    It may be used again, and shared: each block has its own locks.
    """

    def __init__(self, transport: AsyncTransport, keys: Sequence[str], options: LockOptions) -> None:
        super().__init__(options)
        self._transport, self._keys = transport, key_list(keys)

    async def __aenter__(self) -> list[AsyncLock]:
        acquire = new_acquire(self._transport, self._keys, self._options)
        try:
            locks = await take_all(self._transport, acquire)
            self._note(this_task(), locks, acquire, block=True)
            return list(locks)
        except BaseException:
            await withdraw(self, acquire)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await to_the_end(partial(self._to_leave, this_task()), partial(end_block, self, error))


async def end_block(
    context: AsyncLockContext | AsyncManyContext, body: BaseException | None, one: _Held[AsyncLock]
) -> None:
    """Ends a block of a context."""
    try:
        await leave(context._transport, body, one.locks)
    finally:
        context._forget(one)


async def withdraw(context: AsyncLockContext | AsyncManyContext, acquire: Acquire) -> None:
    """Gives up an acquire of a context whose caller does not get the locks."""
    context._withdrawn(acquire)
    await context._transport.drive(acquire.withdraw())

# Written by unasync.py: change _async_lock.py.
"""The locks of the client for threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from . import errors
from ._acquire import Acquire
from ._call import UNSET
from ._lock import BaseBlocks, BaseContext, BaseLock, BaseSemaphore, _Held, not_released
from ._options import acquire_options, key_list, whole
from ._session import Entry
from ._sync_transport import Transport
from ._threads import LockSignal, this_thread, to_the_end
from .types import Duration, LockOptions, Outcome, SemaphoreOptions, Status

if TYPE_CHECKING:
    from typing_extensions import Self


class Lock(BaseLock):
    """A held lock. As a context manager, it is released at the end.

    `lost` is set, with a `reason`, when the lock is lost; `stopping` when somebody asks to release it.
    """

    def __init__(self, transport: Transport, entry: Entry, value: Mapping[str, Any]) -> None:
        super().__init__(entry, value)
        self._transport = transport
        self.lost = cast(LockSignal, entry.grant.lost)
        self.stopping = cast(LockSignal, entry.grant.stopping)

    def release(self, outcome: Outcome | None = None, result: Any = UNSET, *, reentry: int | None = None) -> bool:
        """Releases the lock, or one entry of it. Returns whether it is free now.

        Waiters with `on_success="skip"` and watchers get the `outcome`, and with success the `result` (JSON, at most
        4 KiB). Raises `LockLost`, `NotHolder`, `Unavailable`. An interrupted thread still releases. After
        `Unavailable` it may be called again.
        """
        self._check_released()
        release = self._transport.core.release(self.key, self.token, self._entry, outcome, result, reentry)
        return bool((self._transport.run(release))["released"])

    def check(self) -> Status:
        """Checks that the lock is still held. Raises `LockLost` or `NotHolder` if not."""
        return self._amend()

    def extend(self, ttl: Duration) -> Status:
        """Sets the remaining time from now, in seconds. Only with `bind="ttl"`, because the sidecar renews others."""
        return self._amend(ttl=ttl)

    def update(self, data: Any) -> Status:
        """Replaces the data that others see. None removes it."""
        return self._amend(data=data)

    def downgrade(self) -> Status:
        """Makes an exclusive lock shared, under the same token. Shared calls that wait are let in.

        There is no upgrade, because two holders would wait for each other: release the lock, and acquire it.
        """
        return self._downgraded(self._amend(shared=True))

    def _amend(self, ttl: Duration | None = None, data: Any = UNSET, shared: bool = False) -> Status:
        self._check_released()
        check = self._transport.core.check(self.key, self.token, self._grant, ttl, data, shared)
        return self._transport.run(check)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        to_the_end(lambda: [self], partial(leave, self._transport, error))


def leave(transport: Transport, body: BaseException | None, locks: Sequence[Lock]) -> None:
    """Ends a block: releases those of its locks that were not. Raises the error of a release if the body has not."""
    ends = [lock._at_end(body) for lock in reversed(locks) if not lock.released]
    if not ends:
        return
    try:
        failures = transport.run(transport.core.leave(ends))
    except errors.SessionEnded as e:  # the client was closed
        failures = [e]
    not_released(failures, body)


def new_acquire(transport: Transport, keys: Sequence[str], options: LockOptions) -> Acquire:
    """Makes an acquire of this thread. By default the thread is the owner of a reentrant one."""
    made, me = acquire_options(options), this_thread()
    if made.reentrant and made.owner is None:
        made.owner = me
    return Acquire(transport.core, keys, made, me)


def take(transport: Transport, acquire: Acquire) -> Lock:
    """Acquires one lock. If an exception comes before the app has it, the caller calls `acquire.withdraw`."""
    return Lock(transport, *transport.run(acquire.one()))


def take_all(transport: Transport, acquire: Acquire) -> list[Lock]:
    """Acquires several locks, all or none. See `take`."""
    return [Lock(transport, *one) for one in transport.run(acquire.many())]


class LockContext(BaseContext[Lock]):
    """A lock to acquire by `with`, which gives the `Lock`, or by `acquire` and `release`.

    These two work as those of `threading.Lock`. It may be used again, and shared: each thread has its own lock.
    """

    _us = "thread"

    def __init__(self, transport: Transport, key: str, options: LockOptions) -> None:
        super().__init__(key, options)
        self._transport = transport

    @property
    def held(self) -> Lock | None:
        """The lock that this thread holds through this object, or None."""
        one = self._last(this_thread())
        return None if one is None else one.locks[0]

    def acquire(self, blocking: bool = True, timeout: Duration | None = -1) -> bool:
        """Acquires the lock. Returns whether this thread holds it now.

        timeout: seconds. -1 waits as long as the `wait` of `client.lock`, which is for ever by default; None waits for
        ever. Raises as `client.acquire`, without `LockHeld` and `WaitTimeout`. Raises RuntimeError if this thread would
        wait for ever for its own lock.
        """
        acquire = new_acquire(self._transport, [self._key], self._waiting(blocking, timeout))
        try:
            # One line, so that Ctrl-C comes before or after it.
            return self._take(acquire, block=False) is not None
        except BaseException as e:
            withdraw(self, acquire)
            if isinstance(e, errors.LockHeld):
                return False
            raise

    def release(self) -> None:
        """Releases the lock that this thread acquired last.

        Raises RuntimeError if this thread holds none through this object, else as `Lock.release`. After
        `Unavailable` it may be called again.
        """
        to_the_end(partial(self._to_release, this_thread()), self._release)

    def _release(self, one: _Held[Lock]) -> None:
        try:
            leave(self._transport, None, one.locks)
        finally:
            self._after_release(one)

    def locked(self) -> bool:
        """Asks the sidecar whether anybody holds the lock."""
        info = self._transport.run(self._transport.core.get(self._key, False))
        return info.state == "held"

    def __enter__(self) -> Lock:
        acquire = new_acquire(self._transport, [self._key], self._options)
        try:
            return self._take(acquire, block=True)
        except BaseException:  # the end of the block would release it only later
            withdraw(self, acquire)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        to_the_end(partial(self._to_leave, this_thread()), partial(end_block, self, error))

    def _take(self, acquire: Acquire, block: bool) -> Lock:
        lock = take(self._transport, acquire)
        self._note(this_thread(), [lock], acquire, block)
        return lock


class Semaphore(BaseSemaphore[Lock], LockContext):
    """A semaphore to acquire by `with`, or by `acquire` and `release`.

    A permit is held as `Lock`, with a `slot`. These methods work as those of `threading.BoundedSemaphore`. It
    may be shared, and a thread may have several permits.
    """

    def __init__(self, transport: Transport, key: str, limit: int, options: SemaphoreOptions) -> None:
        shared = {**options, "shared": True, "limit": whole("limit", limit)}
        super().__init__(transport, key, cast(LockOptions, shared))

    @property
    def slot(self) -> int | None:
        """The slot that this thread got last through this object, or None."""
        lock = self.held
        return None if lock is None else lock.slot

    def release(self, n: int = 1) -> None:
        """Releases permits that `acquire` has got: those of this thread first, then of others, the oldest first.

        Raises ValueError if there is none, else as `Lock.release`.
        """
        if n < 1:
            raise ValueError("n must be one or more")
        for _ in range(n):
            super().release()

    def locked(self) -> bool:
        """Asks the sidecar whether an acquire would have to wait now."""
        info = self._transport.run(self._transport.core.get(self._key, False))
        if info.mode == "shared" and info.limit is not None:
            return info.holders_count >= info.limit or info.queue_length > 0
        return info.state == "held"


class ManyContext(BaseBlocks[Lock]):
    """`with client.lock_many(...) as locks`: acquires and releases all locks.

    It may be used again, and shared: each block has its own locks.
    """

    def __init__(self, transport: Transport, keys: Sequence[str], options: LockOptions) -> None:
        super().__init__(options)
        self._transport, self._keys = transport, key_list(keys)

    def __enter__(self) -> list[Lock]:
        acquire = new_acquire(self._transport, self._keys, self._options)
        try:
            locks = take_all(self._transport, acquire)
            self._note(this_thread(), locks, acquire, block=True)
            return list(locks)
        except BaseException:
            withdraw(self, acquire)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        to_the_end(partial(self._to_leave, this_thread()), partial(end_block, self, error))


def end_block(context: LockContext | ManyContext, body: BaseException | None, one: _Held[Lock]) -> None:
    """Ends a block of a context."""
    try:
        leave(context._transport, body, one.locks)
    finally:
        context._forget(one)


def withdraw(context: LockContext | ManyContext, acquire: Acquire) -> None:
    """Gives up an acquire of a context whose caller does not get the locks."""
    context._withdrawn(acquire)
    context._transport.drive(acquire.withdraw())

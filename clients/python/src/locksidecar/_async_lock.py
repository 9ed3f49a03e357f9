"""What the client for asyncio gives: a lock, and what holds it in an `async with`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from . import errors
from ._call import UNSET
from ._lock import BaseLock
from ._session import Grant
from ._signal import Signal
from .types import LockOptions, Outcome, Status

if TYPE_CHECKING:
    from typing_extensions import Self

    from ._async import AsyncClient


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

    def __init__(self, client: AsyncClient, grant: Grant, value: Mapping[str, Any]) -> None:
        super().__init__(grant, value)
        self._client = client
        self.lost = cast(AsyncLockSignal, grant.lost)
        self.stopping = cast(AsyncLockSignal, grant.stopping)

    async def release(self, outcome: Outcome | None = None, result: Any = UNSET, *, reentry: int | None = None) -> bool:
        """Releases the lock, or takes off one entry of it; returns whether it is free now.

        `outcome`, and with success a `result` (JSON, at most 4 KiB), are told to those who wait with
        `on_success="skip"` and those who watch. Raises `LockLost`, `NotHolder`, `SidecarUnavailable`. A task that is
        cancelled meanwhile releases it all the same.
        """
        self._begin_release()
        value = await self._client._run(
            self._client._core.release(self.key, self.token, self._grant, outcome, result, reentry)
        )
        self._done = True
        return bool(value["released"])

    async def check(self) -> Status:
        """Asks the sidecar whether the lock is still held: raises `LockLost` or `NotHolder` if not."""
        return await self._amend()

    async def extend(self, ttl: float) -> Status:
        """Sets the remaining time from now, in seconds. Only with `bind="ttl"`: others need no extending."""
        return await self._amend(ttl=ttl)

    async def update(self, data: Any) -> Status:
        """Replaces the data that others see; None removes it."""
        return await self._amend(data=data)

    async def _amend(self, ttl: float | None = None, data: Any = UNSET) -> Status:
        self._begin_release()
        return await self._client._run(self._client._core.check(self.key, self.token, self._grant, ttl, data))

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


class AsyncLockContext:
    """`async with client.lock(...) as lock`: acquires at the beginning, releases at the end."""

    def __init__(self, client: AsyncClient, key: str, options: LockOptions) -> None:
        self._client, self._key, self._options = client, key, options
        self._lock: AsyncLock | None = None

    async def __aenter__(self) -> AsyncLock:
        if self._lock is not None:
            raise RuntimeError("this was entered already; call client.lock() for each `async with`")
        self._lock = await self._client.acquire(self._key, **self._options)
        return self._lock

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lock, self._lock = self._lock, None
        assert lock is not None
        await lock.__aexit__(kind, error, trace)


class AsyncManyContext:
    """`async with client.lock_many(...) as locks`: acquires all at the beginning, releases all at the end."""

    def __init__(self, client: AsyncClient, keys: Sequence[str], options: LockOptions) -> None:
        self._client, self._keys, self._options = client, keys, options
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> list[AsyncLock]:
        locks = await self._client.acquire_many(self._keys, **self._options)
        for lock in locks:
            self._stack.push_async_exit(lock)
        return locks

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

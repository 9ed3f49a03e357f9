"""Blocks whose task is cancelled when their lock is lost, for asyncio: `on_loss="cancel"`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Literal, cast

from . import errors
from ._async_lock import AsyncLock, AsyncLockContext, AsyncManyContext
from ._async_transport import AsyncTransport
from ._tasks import this_task
from .types import LockOptions

OnLoss = Literal["cancel"]

_COUNTED = sys.version_info >= (3, 11)  # Python 3.10 does not count cancellations


class LossCancels:
    """Cancels its task when one of the locks is lost, until its end."""

    def __init__(self, locks: Sequence[AsyncLock]) -> None:
        self._task = cast(Any, asyncio.current_task())  # its methods depend on Python's version
        self._others: int = self._task.cancelling() if _COUNTED else 0
        self._lost: AsyncLock | None = None
        self._over = False
        for lock in locks:
            lock.lost.on(partial(self._cancel, lock))

    def _cancel(self, lock: AsyncLock) -> None:
        if not self._over and self._lost is None:
            self._lost = lock
            self._task.cancel()

    async def end(self, body: BaseException | None) -> BaseException | None:
        """Returns what the block raises: LockLost for its own cancellation, else what its body has raised."""
        self._over = True
        if self._lost is None:
            return body
        cancelled = body if isinstance(body, asyncio.CancelledError) else None
        if cancelled is None:
            try:
                await asyncio.sleep(0)  # the body may have ended before the cancellation came
            except asyncio.CancelledError as e:
                cancelled = e
        if _COUNTED and self._task.uncancel() > self._others and cancelled is not None:
            return cancelled  # others have cancelled the task, too
        if body is None or body is cancelled:
            return errors.lost(self._lost.key, self._lost.lost.reason or "")
        return body


class _Blocks:
    """The blocks that are open. Tasks may share their object."""

    def __init__(self, on_loss: OnLoss) -> None:
        if on_loss != "cancel":
            raise errors.InvalidRequest(400, "invalid_request", f'on_loss={on_loss!r}: it must be "cancel"')
        self._open: list[tuple[str, LossCancels]] = []

    def begin(self, locks: Sequence[AsyncLock]) -> None:
        self._open.append((this_task(), LossCancels(locks)))

    async def end(self, body: BaseException | None, leave: Callable[..., Awaitable[None]]) -> None:
        me = this_task()
        mine = next(one for one in reversed(self._open) if one[0] == me)
        self._open.remove(mine)
        raises = await mine[1].end(body)
        error = body or raises
        await leave(type(error) if error else None, error, error.__traceback__ if error else None)
        if raises is not None and raises is not body:
            raise raises from None


class CancelledLock(AsyncLockContext):
    """As `AsyncLockContext`, but a loss cancels the task of a block, which then raises `LockLost`."""

    def __init__(self, transport: AsyncTransport, key: str, options: LockOptions, on_loss: OnLoss) -> None:
        super().__init__(transport, key, options)
        self._blocks = _Blocks(on_loss)

    async def __aenter__(self) -> AsyncLock:
        lock = await super().__aenter__()
        self._blocks.begin([lock])
        return lock

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._blocks.end(error, super().__aexit__)


class CancelledMany(AsyncManyContext):
    """As `AsyncManyContext`, but a loss of one lock cancels the task of a block, which then raises `LockLost`."""

    def __init__(self, transport: AsyncTransport, keys: Sequence[str], options: LockOptions, on_loss: OnLoss) -> None:
        super().__init__(transport, keys, options)
        self._blocks = _Blocks(on_loss)

    async def __aenter__(self) -> list[AsyncLock]:
        locks = await super().__aenter__()
        self._blocks.begin(locks)
        return locks

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._blocks.end(error, super().__aexit__)

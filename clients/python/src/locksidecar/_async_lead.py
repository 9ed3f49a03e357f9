"""Leaders, for asyncio: a campaign, and the changes of a key's leader."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, TypeVar, cast

from . import _core, errors
from ._async_events import AsyncEventStream
from ._async_lock import AsyncLock, AsyncLockContext
from ._async_transport import AsyncTransport
from ._call import UNSET, Unset
from ._tasks import AsyncLockSignal, call_until, pause
from .types import LockOptions

T = TypeVar("T")

# Seconds between two campaigns in an outage, if the sidecar does not name the time.
_PAUSE = 1.0


class AsyncTerm:
    """A term as leader. `token` is the fencing token: pass it to all that the leader changes.

    `lost` happens when the lock is lost or somebody asks to stop. Then the work must end.
    """

    def __init__(self, lock: AsyncLock) -> None:
        self.lock = lock
        self.token = lock.token
        self.lost = AsyncLockSignal()
        for signal in (lock.lost, lock.stopping):
            signal.on(partial(self._end, signal))

    def _end(self, cause: AsyncLockSignal) -> None:
        self.lost.fire(cause.reason)


async def lead(
    transport: AsyncTransport,
    key: str,
    on_lead: Callable[[AsyncTerm], Awaitable[T]] | Callable[[AsyncTerm], T],
    options: LockOptions,
) -> T:
    """Campaigns, and calls the function for each term. See `AsyncClient.lead`."""
    campaign = AsyncLockContext(transport, key, options)
    while True:
        term: AsyncTerm | None = None
        try:
            async with campaign as lock:
                term = made = AsyncTerm(lock)
                value = await call_until(partial(on_lead, made), made.lost)
                if not made.lost:
                    return cast(T, value)
        except errors.LocksidecarError as e:
            if term is None:
                if not transport.core.may_return(e):
                    raise
                await pause(e.retry_after or _PAUSE)
            elif not (isinstance(e, errors.LockLost) and term.lost):
                raise


class AsyncLeaders(AsyncEventStream):
    """The data of a key's leader, now and after each change: None without a leader. See `AsyncClient.watch_leader`."""

    def __init__(self, transport: AsyncTransport, key: str) -> None:
        super().__init__(transport, key)
        self._last: Any = UNSET

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        while True:
            data = _core.leader_data(await super().__anext__())
            if not isinstance(data, Unset) and data != self._last:
                self._last = data
                return data

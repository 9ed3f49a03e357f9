# Written by unasync.py: change _async_lead.py.
"""Leaders, for threads: a campaign, and the changes of a key's leader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar, cast

from . import _core, errors
from ._call import UNSET, Unset
from ._sync_events import EventStream
from ._sync_lock import Lock, LockContext
from ._sync_transport import Transport
from ._threads import LockSignal, call_until, pause
from .types import LockOptions

T = TypeVar("T")

# Seconds between two campaigns in an outage, if the sidecar does not name the time.
_PAUSE = 1.0


class Term:
    """A term as leader. `token` is the fencing token: pass it to all that the leader changes.

    `lost` happens when the lock is lost or somebody asks to stop. Then the work must end.
    """

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        self.token = lock.token
        self.lost = LockSignal()
        for signal in (lock.lost, lock.stopping):
            signal.on(partial(self._end, signal))

    def _end(self, cause: LockSignal) -> None:
        self.lost.fire(cause.reason)


def lead(
    transport: Transport,
    key: str,
    on_lead: Callable[[Term], T],
    options: LockOptions,
) -> T:
    """Campaigns, and calls the function for each term. See `Client.lead`."""
    campaign = LockContext(transport, key, options)
    while True:
        term: Term | None = None
        try:
            with campaign as lock:
                term = made = Term(lock)
                value = call_until(partial(on_lead, made), made.lost)
                if not made.lost:
                    return cast(T, value)
        except errors.LocksidecarError as e:
            if term is None:
                if not transport.core.may_return(e):
                    raise
                pause(e.retry_after or _PAUSE)
            elif not (isinstance(e, errors.LockLost) and term.lost):
                raise


class Leaders(EventStream):
    """The data of a key's leader, now and after each change: None without a leader. See `Client.watch_leader`."""

    def __init__(self, transport: Transport, key: str) -> None:
        super().__init__(transport, key)
        self._last: Any = UNSET

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            data = _core.leader_data(super().__next__())
            if not isinstance(data, Unset) and data != self._last:
                self._last = data
                return data

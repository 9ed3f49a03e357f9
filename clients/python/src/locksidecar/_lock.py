"""The common part of the locks of `Client` and `AsyncClient`."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, NoReturn, TypeVar

from . import errors
from ._acquire import Acquire
from ._call import UNSET
from ._options import acquire_options, seconds, text
from ._session import Entry
from .types import Bind, Duration, LockOptions, Mode, Outcome, Status, time_of

log = logging.getLogger("locksidecar")


class NotPickled:
    """An object that belongs to this process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be pickled or copied: it belongs to this process. Make a client in each one"
        )


class BaseLock(NotPickled):
    """A held lock. `token` is the fencing token: pass it to the resource that the lock protects.

    `outcome` and `result` may be set in the body of a `with`. Its end sends them. If the body raises, an outcome that
    was set becomes `failure`.
    """

    def __init__(self, entry: Entry, value: Mapping[str, Any]) -> None:
        self._entry, self._grant = entry, entry.grant
        self.key = entry.grant.key
        self.token = entry.grant.token
        self.bind: Bind = value["bind"]
        self.session: str | None = value.get("session")  # its public name
        self.mode: Mode = value.get("mode", "exclusive")
        self.limit: int | None = value.get("limit")
        self.slot: int | None = value.get("slot")  # with a limit: 0 to limit - 1, no other holder has it
        self.reentry: int = value["reentry"]  # the number of this entry of its owner, from 1
        self.waited: float = value["waited_ms"] / 1000
        self._acquired_at: str = value["acquired_at"]
        self.outcome: Outcome | None = None
        self.result: Any = UNSET

    @property
    def acquired_at(self) -> datetime:
        """The time of the grant, by the clock of the store. Informative."""
        return time_of(self._acquired_at)

    @property
    def released(self) -> bool:
        """Whether this entry of the lock was released."""
        return self._entry.released

    @property
    def expires_in(self) -> float:
        """Seconds until the end that the sidecar's last answer named, by this process's clock. Never negative.

        A lock with `bind="ttl"` ends a little later. The sidecar renews a session's lock: `check` has the new value.
        """
        return max(0.0, self._grant.expires_at - time.monotonic())

    def _check_released(self) -> None:
        if self.released:
            raise errors.NotHolder(409, "not_holder", f"lock {self.key!r} was released already", {"reason": "released"})

    def _downgraded(self, status: Status) -> Status:
        self.mode, self.limit, self.slot = status.mode, status.limit, status.slot
        return status

    def _at_end(self, body: BaseException | None) -> tuple[Entry, Outcome | None, Any]:
        """What the end of a `with` releases, and the outcome and the result that it sends."""
        if body is None:
            return self._entry, self.outcome, self.result
        return self._entry, ("failure" if self.outcome is not None else None), UNSET

    def __repr__(self) -> str:
        state = "released" if self.released else "lost" if self._grant.lost else "held"
        return f"<{type(self).__name__} {self.key!r} token={self.token} {state}>"


def not_released(failures: list[errors.LocksidecarError], body: BaseException | None) -> None:
    """Raises the first error of a block's releases, or notes them at the exception of the body, which goes on."""
    first = failures.pop(0) if body is None and failures else None
    for failure in failures:
        text = f"a lock could not be released after that: {failure}"
        about: Any = body or first
        if hasattr(about, "add_note"):
            about.add_note(text)
        log.warning(text)
    if first is not None:
        try:
            raise first
        finally:
            first = about = None  # it refers to this frame


L = TypeVar("L", bound=BaseLock)


@dataclass(eq=False)
class _Held(Generic[L]):
    who: str  # the thread or task
    locks: list[L]
    acquire: Acquire
    block: bool  # the end of a `with` releases it, not `release`
    claims: list[str] = field(default_factory=list)  # who releases it now, if others may: the first one

    def claim(self, me: str) -> bool:
        """Whether this thread is the one that releases it. After an interruption it claims it again."""
        self.claims.append(me)
        return self.claims[0] == me


class BaseBlocks(NotPickled, Generic[L]):
    """What the threads (tasks) that share an object hold through it. Each has its own locks."""

    def __init__(self, options: LockOptions) -> None:
        acquire_options(options)  # so that a mistake is found here
        self._options = options
        # In the order of the grants. Several threads have one at a time if a loss is not known yet.
        self._held: list[_Held[L]] = []

    def _note(self, who: str, locks: list[L], acquire: Acquire, block: bool) -> None:
        for one in [one for one in self._held if not one.block and one.locks[0].released]:
            self._forget(one)  # its release was interrupted
        self._held.append(_Held(who, locks, acquire, block))

    def _forget(self, one: _Held[L]) -> None:
        try:
            self._held.remove(one)
        except ValueError:
            pass  # another thread was faster

    def _withdrawn(self, acquire: Acquire) -> None:
        for one in [one for one in self._held if one.acquire is acquire]:
            self._forget(one)

    def _to_leave(self, me: str) -> _Held[L]:
        # A block may end in another thread than it began in. Then it is the oldest one, because a later one may have
        # been granted after the loss of this one.
        blocks = [one for one in self._held if one.block]
        return next((one for one in reversed(blocks) if one.who == me), blocks[0])


class BaseContext(BaseBlocks[L]):
    """The result of `client.lock(...)`, which acquires and releases the lock any number of times.

    Threads (tasks) may share it. Each has its own lock then.
    """

    _us = ""  # thread, or task

    def __init__(self, key: str, options: LockOptions) -> None:
        super().__init__(options)
        self._key = text("key", key)

    def _waiting(self, blocking: bool, timeout: Duration | None) -> LockOptions:
        """The options of an `acquire` with these arguments."""
        if not blocking:
            if timeout != -1:
                raise ValueError("a timeout is for an acquire that is blocking")
            return {**self._options, "wait": 0}
        if timeout == -1:
            return self._options
        return {**self._options, "wait": None if timeout is None else seconds("timeout", timeout)}

    def _last(self, me: str) -> _Held[L] | None:
        return next((one for one in reversed(self._held) if one.who == me and not one.locks[0].released), None)

    def _to_release(self, me: str) -> _Held[L]:
        one = self._last(me)
        if one is None:
            raise RuntimeError(f"{self._key!r} is not held by this {self._us} through this object")
        return one

    def _after_release(self, one: _Held[L]) -> None:
        """Forgets a lock that is over. A release that has failed may be called again."""
        if not one.block and one.locks[0]._entry.over:
            self._forget(one)


class BaseSemaphore(BaseContext[L]):
    """The common part of `Semaphore` and `AsyncSemaphore`: threads (tasks) share what `acquire` has got."""

    def _to_release(self, me: str) -> _Held[L]:
        free = [one for one in self._held if not one.block and not one.locks[0].released]
        if not free:
            raise ValueError(f"semaphore {self._key!r} was released more often than it was acquired")
        mine, others = [one for one in reversed(free) if one.who == me], [one for one in free if one.who != me]
        for one in mine + others:
            if one.claim(me):
                return one
        raise ValueError(f"semaphore {self._key!r} is being released by others as often as it was acquired")

    def _after_release(self, one: _Held[L]) -> None:
        one.claims.clear()
        super()._after_release(one)

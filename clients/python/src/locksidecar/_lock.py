"""The common part of the locks of `Client` and `AsyncClient`."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from . import errors
from ._acquire import Acquire
from ._call import UNSET
from ._options import AcquireOptions, acquire_options, seconds
from ._session import Grant
from .types import Bind, Duration, LockOptions, Mode, Outcome, Status

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

    def __init__(self, grant: Grant, value: Mapping[str, Any]) -> None:
        self._grant = grant
        self._done = False  # this entry was released
        self._entry: str | None = value.get("_entry")  # the request of this entry, if the lock is reentrant
        self.key = grant.key
        self.token = grant.token
        self.bind: Bind = value["bind"]
        self.session: str | None = value.get("session")  # its public name
        self.mode: Mode = value.get("mode", "exclusive")
        self.limit: int | None = value.get("limit")
        self.slot: int | None = value.get("slot")  # with a limit: 0 to limit - 1, no other holder has it
        self.reentry: int = value["reentry"]  # the number of this entry of its owner, from 1
        self.waited: float = value["waited_ms"] / 1000
        self.acquired_at: str = value["acquired_at"]
        self.outcome: Outcome | None = None
        self.result: Any = UNSET

    @property
    def released(self) -> bool:
        """Whether this entry of the lock was released."""
        return self._done

    @property
    def expires_in(self) -> float:
        """Seconds until the end that the sidecar's last answer named, by this process's clock. Never negative.

        A lock with `bind="ttl"` ends a little later. The sidecar renews a session's lock: `check` has the new value.
        """
        return max(0.0, self._grant.expires_at - time.monotonic())

    def _begin_release(self) -> None:
        if self._done:
            raise errors.NotHolder(409, "not_holder", f"lock {self.key!r} was released already", {"reason": "released"})

    def _downgraded(self, status: Status) -> Status:
        self.mode, self.limit, self.slot = status.mode, status.limit, status.slot
        return status

    def _outcome_at_end(self, error: BaseException | None) -> tuple[Outcome | None, Any]:
        """The outcome and the result that the end of a `with` sends."""
        if error is None:
            return self.outcome, self.result
        return ("failure" if self.outcome is not None else None), UNSET

    def _not_released(self, body: BaseException, failure: errors.LocksidecarError) -> None:
        """Adds the error of the release to the exception of the body, which goes on."""
        text = f"lock {self.key!r} could not be released after that: {failure}"
        if hasattr(body, "add_note"):
            body.add_note(text)
        log.warning(text)

    def __repr__(self) -> str:
        state = "released" if self._done else "lost" if self._grant.lost else "held"
        return f"<{type(self).__name__} {self.key!r} token={self.token} {state}>"


L = TypeVar("L", bound=BaseLock)


@dataclass(frozen=True, eq=False)
class _Held(Generic[L]):
    who: str  # the thread or task
    lock: L
    acquire: Acquire
    block: bool  # the end of a `with` removes it, not `release`


class BaseContext(NotPickled, Generic[L]):
    """The result of `client.lock(...)`, which acquires and releases the lock any number of times.

    Threads (tasks) may share it. Each has its own lock then.
    """

    _us = ""  # thread, or task

    def __init__(self, key: str, options: LockOptions) -> None:
        acquire_options(options)  # so that a mistake is found here
        self._key, self._options = key, options
        # In the order of the grants. Several threads have one at a time if a loss is not known yet.
        self._held: list[_Held[L]] = []

    def _waiting(self, blocking: bool, timeout: Duration | None) -> LockOptions:
        """The options of an `acquire` with these arguments."""
        if not blocking:
            if timeout != -1:
                raise ValueError("a timeout is for an acquire that is blocking")
            return {**self._options, "wait": 0}
        if timeout == -1:
            return self._options
        return {**self._options, "wait": None if timeout is None else seconds("timeout", timeout)}

    def _may_wait(self, me: str, options: AcquireOptions) -> None:
        """Raises if the wait would not end."""
        if options.wait is not None or options.reentrant or options.shared:
            return
        if any(one.who == me and not one.lock.released and not one.lock._grant.lost for one in self._held):
            raise RuntimeError(
                f"this {self._us} holds {self._key!r} through this object already, and would wait for ever: give a"
                " `wait` or a timeout, or `reentrant=True`"
            )

    def _last(self, me: str) -> _Held[L] | None:
        return next((one for one in reversed(self._held) if one.who == me and not one.lock.released), None)

    def _to_release(self, me: str) -> _Held[L]:
        one = self._last(me)
        if one is None:
            raise RuntimeError(f"{self._key!r} is not held by this {self._us} through this object")
        return one

    def _to_leave(self, me: str) -> _Held[L]:
        # A block may end in another thread than it began in. Then it is the oldest one, because a later one may have
        # been granted after the loss of this one.
        blocks = [one for one in self._held if one.block]
        return next((one for one in reversed(blocks) if one.who == me), blocks[0])

    def _over(self, one: _Held[L]) -> None:
        """Removes a lock after its release, which may have failed."""
        if not one.block and (one.lock.released or one.lock._grant.lost):
            self._held.remove(one)


class BaseSemaphore(BaseContext[L]):
    """The common part of `Semaphore` and `AsyncSemaphore`: threads (tasks) share what `acquire` has got."""

    def _to_release(self, me: str) -> _Held[L]:
        while True:
            free = [one for one in self._held if not one.block]
            if not free:
                raise ValueError(f"semaphore {self._key!r} was released more often than it was acquired")
            one = next((one for one in reversed(free) if one.who == me), free[0])
            try:
                self._held.remove(one)
                return one
            except ValueError:
                pass  # another thread releases it

    def _over(self, one: _Held[L]) -> None:
        if not (one.lock.released or one.lock._grant.lost):
            self._held.append(one)

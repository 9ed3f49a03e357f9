"""What the client for threads gives: a lock, and what holds it in a `with`."""

from __future__ import annotations

import contextlib
import threading
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

    from ._sync import Client


class LockSignal(Signal):
    """Something that happens to a lock once. True in a condition once it has happened."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        super().__init__()
        self._event: threading.Event | None = None  # most locks need none

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it happens, at most so many seconds. Returns whether it has happened."""
        if self._event is None:
            self._event = threading.Event()
            self.on(self._event.set)
        return self.is_set() or self._event.wait(timeout)


class Lock(BaseLock):
    """A lock that is held. As a context manager it is released at the end.

    `lost` happens when it is not held any more, with the `reason`; `stopping` when somebody asks to release it.
    """

    def __init__(self, client: Client, grant: Grant, value: Mapping[str, Any]) -> None:
        super().__init__(grant, value)
        self._client = client
        self.lost = cast(LockSignal, grant.lost)
        self.stopping = cast(LockSignal, grant.stopping)

    def release(self, outcome: Outcome | None = None, result: Any = UNSET, *, reentry: int | None = None) -> bool:
        """Releases the lock, or takes off one entry of it; returns whether it is free now.

        `outcome`, and with success a `result` (JSON, at most 4 KiB), are told to those who wait with
        `on_success="skip"` and those who watch. Raises `LockLost`, `NotHolder`, `SidecarUnavailable`.
        """
        self._begin_release()
        value = self._client._run(
            self._client._core.release(self.key, self.token, self._grant, outcome, result, reentry)
        )
        self._done = True
        return bool(value["released"])

    def check(self) -> Status:
        """Asks the sidecar whether the lock is still held: raises `LockLost` or `NotHolder` if not."""
        return self._amend()

    def extend(self, ttl: float) -> Status:
        """Sets the remaining time from now, in seconds. Only with `bind="ttl"`: others need no extending."""
        return self._amend(ttl=ttl)

    def update(self, data: Any) -> Status:
        """Replaces the data that others see; None removes it."""
        return self._amend(data=data)

    def _amend(self, ttl: float | None = None, data: Any = UNSET) -> Status:
        self._begin_release()
        return self._client._run(self._client._core.check(self.key, self.token, self._grant, ttl, data))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._done:
            return
        outcome, result = self._ending(error)
        try:
            self.release(outcome, result)
        except errors.LocksidecarError as failure:
            if error is None:
                raise
            self._not_released(error, failure)


class LockContext:
    """`with client.lock(...) as lock`: acquires at the beginning, releases at the end."""

    def __init__(self, client: Client, key: str, options: LockOptions) -> None:
        self._client, self._key, self._options = client, key, options
        self._lock: Lock | None = None

    def __enter__(self) -> Lock:
        if self._lock is not None:
            raise RuntimeError("this was entered already; call client.lock() for each `with`")
        made = self._client._options(self._options)
        try:
            self._lock = self._client._acquire(self._key, made)
            return self._lock
        except BaseException:  # from here on the body's `with` would release it
            self._lock = None
            self._client._give_back(made)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lock, self._lock = self._lock, None
        assert lock is not None
        lock.__exit__(kind, error, trace)


class ManyContext:
    """`with client.lock_many(...) as locks`: acquires all at the beginning, releases all at the end."""

    def __init__(self, client: Client, keys: Sequence[str], options: LockOptions) -> None:
        self._client, self._keys, self._options = client, keys, options
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> list[Lock]:
        made = self._client._options(self._options)
        try:
            locks = self._client._acquire_many(self._keys, made)
            for lock in locks:
                self._stack.enter_context(lock)
            return locks
        except BaseException:
            self._client._give_back(made)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

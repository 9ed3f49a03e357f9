"""Names of threads, and waiting in them."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar, cast

from ._options import seconds
from ._signal import Signal
from .types import Duration

T = TypeVar("T")

_owners = itertools.count(1)
_owner = threading.local()


def this_thread() -> str:
    """A name that no other thread has or had."""
    # Not its ident, which a later thread may have too.
    if getattr(_owner, "pid", None) != os.getpid():
        _owner.pid, _owner.name = os.getpid(), f"thread-{next(_owners)}"
    return cast(str, _owner.name)


class LockSignal(Signal):
    """An event in the life of a lock, such as its loss. In a condition it is true after that."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        super().__init__()
        self._event: threading.Event | None = None  # most locks need none

    def wait(self, timeout: Duration | None = None) -> bool:
        """Waits until it happens, at most `timeout` seconds. Returns whether it has happened."""
        if timeout is not None:
            timeout = seconds("timeout", timeout, most=threading.TIMEOUT_MAX)
        if self._event is None:
            self._event = threading.Event()
            self.on(self._event.set)
        return self.is_set() or self._event.wait(timeout)


pause = time.sleep


def call_until(function: Callable[[], T], over: LockSignal) -> T | None:
    """Calls an app's function, which looks at the signal by itself."""
    del over
    return function()


def call(function: Callable[[], T]) -> T:
    """Calls an app's function."""
    return function()

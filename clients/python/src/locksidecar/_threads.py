"""Names of threads, and waiting in them."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from . import _fork, errors
from ._options import seconds
from ._signal import Signal
from .types import Duration

T = TypeVar("T")

_owners = itertools.count(1)
_locals: dict[type, Any] = {}


def this_thread() -> str:
    """A name that no other thread has or had."""
    # gevent and eventlet replace this class, perhaps after this module was imported. Then each greenlet is a thread.
    local = _locals.get(threading.local)
    if local is None:
        local = _locals.setdefault(threading.local, threading.local())
    # Not its ident, which a later thread may have too.
    if getattr(local, "pid", None) != os.getpid():
        local.pid, local.name = os.getpid(), f"thread-{next(_owners)}"
    return cast(str, local.name)


def to_the_end(pick: Callable[[], T], release: Callable[[T], None]) -> None:
    """Releases what `pick` gives. If Ctrl-C or a time limit comes meanwhile, it first releases the rest."""
    picked: list[T] = []
    try:
        picked.append(pick())
        release(picked[0])
    except (errors.LocksidecarError, RuntimeError, ValueError):
        raise  # there is nothing to release, or the answer says what has become of it
    except BaseException:
        if not picked:
            picked.append(pick())
        release(picked[0])
        raise


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
        return self.is_set() or self._event.wait(timeout) or self.is_set()

    def _set_timer(self) -> None:
        _clock.watch(self, self._due)


class _Clock:
    """Looks at signals with callbacks when they are due, of `bind="ttl"` locks. One thread, while there are some."""

    def __init__(self) -> None:
        self._signals: set[LockSignal] = set()
        self._begin()
        _fork.register(self)

    def _begin(self) -> None:
        self._kind, self._changed, self._runs = threading.Lock, threading.Condition(), False

    def watch(self, signal: LockSignal, due: float) -> None:
        """Looks at the signal at this time. inf: no more."""
        if self._kind is not threading.Lock:  # gevent or eventlet has replaced it
            self._begin()
        with self._changed:
            if due == math.inf:
                self._signals.discard(signal)
            else:
                self._signals.add(signal)
            if self._signals and not self._runs:
                threading.Thread(target=self._run, args=(self._changed,), name="locksidecar-clock", daemon=True).start()
                self._runs = True
            self._changed.notify()

    def _run(self, changed: threading.Condition) -> None:
        while changed is self._changed:
            with changed:
                if not self._signals:
                    self._runs = False
                    return
                first = min(self._signals, key=lambda one: one._due)
                left = first._due - time.monotonic()
                if left > 0:
                    changed.wait(min(left, threading.TIMEOUT_MAX))
                    continue
                self._signals.discard(first)
            with contextlib.suppress(SystemExit):  # of a callback
                first.is_set()

    def _forked(self) -> None:
        # In the child. The callbacks are the parent's, and the thread is gone.
        for signal in self._signals:
            signal._callbacks.clear()
            signal._event = None
        self._signals = set()
        self._begin()


_clock = _Clock()


def pause(seconds: float) -> None:
    """Waits."""
    time.sleep(seconds)  # looked up now: see `this_thread`


def call_until(function: Callable[[], T], over: LockSignal) -> T | None:
    """Calls an app's function, which looks at the signal by itself."""
    del over
    return function()


def call(function: Callable[[], T]) -> T:
    """Calls an app's function."""
    return function()

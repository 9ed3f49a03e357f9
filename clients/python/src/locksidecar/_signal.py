"""An event in the life of a lock, such as its loss."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

log = logging.getLogger("locksidecar")


class Signal:
    """Happens at most once, with a reason. In a condition it is true after that."""

    __slots__ = ("_callbacks", "_due", "_happened", "_reason")

    def __init__(self) -> None:
        self._happened = False
        self._callbacks: list[Callable[[], object]] = []
        self._reason: str | None = None
        self._due = math.inf  # time.monotonic()

    @property
    def reason(self) -> str | None:
        """Why it has happened, if that is known."""
        return self._reason if self.is_set() else None

    def is_set(self) -> bool:
        """Whether it has happened."""
        if time.monotonic() >= self._due:
            self.fire("expired")
        return self._happened

    __bool__ = is_set

    def on(self, callback: Callable[[], object]) -> None:
        """Calls back when it happens, or at once if it has happened.

        `Client` calls from a thread of its own, or from the call that finds the loss, `AsyncClient` in its event loop:
        return soon. An exception of the callback is logged.
        """
        self._callbacks.append(callback)
        if self._due != math.inf:
            self._set_timer()
        if self.is_set():
            self._call_back()

    def expires(self, due: float) -> None:
        # For this package only: from this time on it has happened, because a lock with bind="ttl" is over then. inf: it
        # was released. What comes after the end does not undo it. Only callbacks need a timer.
        if self.is_set():
            return
        self._due = due
        if self._callbacks:
            self._set_timer()

    def fire(self, reason: str | None, silently: bool = False) -> None:
        # For this package only. silently: without callbacks, because after a fork they are the parent process's.
        if self._happened:
            return
        self._reason = reason
        self._happened = True
        if self._due != math.inf:
            self._due = math.inf
            self._set_timer()
        if not silently:
            self._call_back()

    def _set_timer(self) -> None:
        """Looks again when it is due, or never if that is inf."""

    def _call_back(self) -> None:
        # `on` and `fire` may run here in two threads. pop gives each callback to one of them, so there is no mutex
        # that a fork could leave locked.
        interrupt: Exception | None = None
        while True:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                break
            try:
                callback()
            except Exception as error:
                if hasattr(error, "interrupts"):
                    interrupt = error
                else:
                    log.exception("a callback of a lock has raised")
        if interrupt is not None:
            raise interrupt

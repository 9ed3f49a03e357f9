"""An event in the life of a lock, such as its loss."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger("locksidecar")


class Signal:
    """Happens at most once, with a reason. In a condition it is true after that."""

    __slots__ = ("_callbacks", "_happened", "reason")

    def __init__(self) -> None:
        self._happened = False
        self._callbacks: list[Callable[[], object]] = []
        self.reason: str | None = None

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._happened

    __bool__ = is_set

    def on(self, callback: Callable[[], object]) -> None:
        """Calls back when it happens, or at once if it has happened.

        `Client` calls from the thread that reads the session's events, `AsyncClient` in its event loop: return soon. An
        exception of the callback is logged.
        """
        self._callbacks.append(callback)
        if self._happened:
            self._call_back()

    def fire(self, reason: str | None, silently: bool = False) -> None:
        # For this package only. silently: without callbacks, because after a fork they are the parent process's.
        if self._happened:
            return
        self.reason = reason
        self._happened = True
        if not silently:
            self._call_back()

    def _call_back(self) -> None:
        # `on` and `fire` may run here in two threads. pop gives each callback to one of them, so there is no mutex
        # that a fork could leave locked.
        while True:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return
            try:
                callback()
            except Exception:
                log.exception("a callback of a lock has raised")

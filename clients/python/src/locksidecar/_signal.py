"""Something that happens to a lock once, such as its loss."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger("locksidecar")


class Signal:
    """Happens at most once, with a reason. True in a condition once it has happened."""

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
        """Calls back once it happens; at once if it has happened.

        `Client` calls from the thread that hears the sidecar, `AsyncClient` in its event loop: return soon. What it
        raises is logged.
        """
        self._callbacks.append(callback)
        if self._happened:
            self._call_back()

    def fire(self, reason: str | None, silently: bool = False) -> None:
        # Not part of the public surface: the locks' own. silently: without the callbacks, which are the parent
        # process's when a fork is why.
        if self._happened:
            return
        self.reason = reason
        self._happened = True
        if not silently:
            self._call_back()

    def _call_back(self) -> None:
        # `on` in one thread and `fire` in another may both come here: pop gives each callback to one of them, so
        # no mutex is needed that a fork could leave locked.
        while True:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return
            try:
                callback()
            except Exception:
                log.exception("a callback of a lock has raised")

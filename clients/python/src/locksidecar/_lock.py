"""What a lock of `Client` and one of `AsyncClient` have in common."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from . import errors
from ._call import UNSET
from ._session import Grant
from .types import Bind, Outcome

log = logging.getLogger("locksidecar")


class BaseLock:
    """A lock that is held. `key`, and `token`: the fencing token, to be passed to whatever the lock protects.

    `outcome` and `result` may be set in the body of a `with`; they are told when it ends without an exception. When
    it ends with one, an outcome that was set becomes `failure`.
    """

    def __init__(self, grant: Grant, value: Mapping[str, Any]) -> None:
        self._grant = grant
        self._done = False  # this entry was released
        self.key = grant.key
        self.token = grant.token
        self.bind: Bind = value["bind"]
        self.session: str | None = value.get("session")  # as others see it
        self.reentry: int = value["reentry"]  # 1, or the how manieth entry of its owner this is
        self.waited: float = value["waited_ms"] / 1000
        self.acquired_at: str = value["acquired_at"]
        self.outcome: Outcome | None = None
        self.result: Any = UNSET

    @property
    def released(self) -> bool:
        """Whether this was released (this entry of it, if it was entered several times)."""
        return self._done

    @property
    def expires_in(self) -> float:
        """Seconds until the time that the sidecar's last answer named, on this process's own clock; never negative.

        With `bind="ttl"` the lock is not to be relied on any more then, and ends a little later. A session's lock is
        renewed by the sidecar: ask it (`check`).
        """
        return max(0.0, self._grant.expires_at - time.monotonic())

    def _begin_release(self) -> None:
        if self._done:
            raise errors.NotHolder(409, "not_holder", f"lock {self.key!r} was released already", {"reason": "released"})

    def _ending(self, error: BaseException | None) -> tuple[Outcome | None, Any]:
        """What the end of a `with` says about the work."""
        if error is None:
            return self.outcome, self.result
        return ("failure" if self.outcome is not None else None), UNSET

    def _not_released(self, body: BaseException, failure: errors.LocksidecarError) -> None:
        """The body has raised, and the release too: the body's exception goes on, and says so."""
        text = f"lock {self.key!r} could not be released after that: {failure}"
        if hasattr(body, "add_note"):
            body.add_note(text)
        log.warning(text)

    def __repr__(self) -> str:
        state = "released" if self._done else "lost" if self._grant.lost else "held"
        return f"<{type(self).__name__} {self.key!r} token={self.token} {state}>"

"""Everything that this package raises, in one tree under `LocksidecarError`.

Errors that the sidecar answered with are `ApiError`s and carry its stable `code`; decide by the class or by the
code, never by the text.
"""

from __future__ import annotations

import re
from typing import Any

from .types import Holder

__all__ = [
    "ApiError",
    "Draining",
    "FeatureMissing",
    "Forbidden",
    "InvalidRequest",
    "LimitReached",
    "LockHeld",
    "LockLost",
    "LocksidecarError",
    "NotFound",
    "NotHeld",
    "NotHolder",
    "ProtocolError",
    "SessionEnded",
    "SidecarUnavailable",
    "Skipped",
    "StoreUnavailable",
    "TooLarge",
    "WaitTimeout",
]


class LocksidecarError(Exception):
    """The root of the tree: whatever goes wrong with a lock, and is not a wrong use of this package."""


class SidecarUnavailable(LocksidecarError):
    """The sidecar could not be reached, went away during a call, or did not answer in time.

    `path` is its socket. What a call that got this did is unknown, but for an acquire: a grant whose answer did not
    arrive is released by the sidecar.
    """

    _code = "connection_lost"  # or unreachable, or timeout: what traces say

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


class ProtocolError(LocksidecarError):
    """The answer is not one of a locksidecar: something else listens on the socket."""


class FeatureMissing(LocksidecarError):
    """The sidecar is too old for what was asked for. `feature` is the name that its `GET /v1` lacks."""

    def __init__(self, feature: str, version: str) -> None:
        super().__init__(
            f"the sidecar (version {version}) has no feature {feature!r}, which this call needs: update the sidecar,"
            " or do not use the option"
        )
        self.feature = feature


class Skipped(LocksidecarError):
    """The holder has done what was to be done (`on_success="skip"`); `result` is what it released the lock with."""

    def __init__(self, key: str, result: Any) -> None:
        super().__init__(f"lock {key!r} was released with success by the one who had it; there is nothing left to do")
        self.key = key
        self.result = result


class ApiError(LocksidecarError):
    """The sidecar answered with a problem.

    `status` is HTTP's, `code` the stable code, `detail` the sentence for people, `problem` the whole answer.
    """

    def __init__(self, status: int, code: str, detail: str, problem: dict[str, Any] | None = None) -> None:
        super().__init__(f"{detail} ({code})")
        self.status = status
        self.code = code
        self.detail = detail
        self.problem = problem or {}


class InvalidRequest(ApiError, ValueError):
    """The request is wrong; the detail names the field and what was wrong with it."""


class Forbidden(ApiError):
    """The sidecar does not allow it (breaking locks, or this user id)."""


class NotFound(ApiError):
    """There is no such call: a sidecar that is older than the client's `GET /v1` said, or a wrong path."""


class NotHeld(ApiError):
    """Nobody holds the lock."""


class TooLarge(ApiError):
    """The body, the data or the result is too large (data and result: 4 KiB of JSON)."""


class SessionEnded(ApiError):
    """The session is over, and with it all its locks. The next call of the client opens a new one."""


class NotHolder(ApiError):
    """The token does not hold the key here and now. `reason`: `other_session`, `released` or `unknown_token`."""

    @property
    def reason(self) -> str:
        return str(self.problem.get("reason", ""))


class LockLost(ApiError):
    """The lock was held under this token and is not any more.

    `reason` is the sidecar's (`expired`, `forced`, `max_hold`, `store_lost`, `disconnected`, `shutdown`), or `forked`
    for a lock of the parent process that a child looks at.
    """

    @property
    def reason(self) -> str:
        return str(self.problem.get("reason", ""))


class LockHeld(ApiError):
    """Somebody else has the lock. `holder` says who; None when it has just become free."""

    @property
    def holder(self) -> Holder | None:
        return Holder.from_json(self.problem.get("holder"))

    @property
    def key(self) -> str | None:
        """With several locks: the first that was not to be had."""
        key = self.problem.get("key")
        return None if key is None else str(key)

    @property
    def queue_length(self) -> int | None:
        """How many wait for it; None after a wait, see `WaitTimeout.queue_position`."""
        return self.problem.get("queue_length")


class WaitTimeout(LockHeld):
    """The wait was as long as it was allowed to be, and somebody else still has the lock."""

    @property
    def queue_position(self) -> int | None:
        """How far the wait came: 1 is the next to get the lock."""
        return self.problem.get("queue_position")

    @property
    def waited(self) -> float:
        """How long it waited, in seconds."""
        return float(self.problem.get("waited_ms", 0)) / 1000


class _Later(ApiError):
    @property
    def retry_after(self) -> float | None:
        """After how many seconds another try makes sense; None if the sidecar does not say."""
        return self.problem.get("retry_after")


class LimitReached(_Later):
    """Too many sessions, locks of a session, waiters, watches or connections."""


class StoreUnavailable(_Later):
    """The sidecar cannot reach its database. Nothing was granted, or the sidecar undoes it by itself."""


class Draining(_Later):
    """The sidecar shuts down: releases still work, acquires do not."""


_BY_CODE: dict[str, type[ApiError]] = {
    "invalid_request": InvalidRequest,
    "forbidden": Forbidden,
    "not_found": NotFound,
    "not_held": NotHeld,
    "not_holder": NotHolder,
    "lock_lost": LockLost,
    "session_ended": SessionEnded,
    "too_large": TooLarge,
    "held": LockHeld,
    "wait_timeout": WaitTimeout,
    "limit": LimitReached,
    "store_unavailable": StoreUnavailable,
    "draining": Draining,
}


# The API's names for durations, not inside of a key.
_IN_MS = re.compile(r"(?<![\w:/.\"-])(wait|ttl|max_hold|min_hold)_ms\b")


def from_problem(problem: Any, status: int, retry_after: str | None = None) -> ApiError:
    """Makes the error of a problem document. A code that this version does not know is an `ApiError`."""
    if not isinstance(problem, dict):
        problem = {}
    code = str(problem.get("code", f"http_{status}"))
    detail = str(problem.get("detail") or problem.get("title") or f"the sidecar answered with status {status}")
    if retry_after is not None and retry_after.isdigit():
        problem = {**problem, "retry_after": float(retry_after)}
    return _BY_CODE.get(code, ApiError)(status, code, _IN_MS.sub(r"\1 (in ms)", detail), problem)


def lost(key: str, reason: str) -> LockLost:
    """Makes the error of a lock of which the client knows that it is lost."""
    problem = {"code": "lock_lost", "reason": reason, "key": key}
    return LockLost(410, "lock_lost", f"lock {key!r} is lost, reason: {reason}", problem)

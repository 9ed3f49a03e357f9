"""The exceptions of this package, in one tree under `LocksidecarError`.

An `ApiError` is an answer of the sidecar, with its stable `code`. Decide by the class or the code, never by the text.
"""

from __future__ import annotations

import re
from typing import Any

from .types import Holder, Mode

__all__ = [
    "ApiError",
    "Draining",
    "Forbidden",
    "InvalidRequest",
    "LimitMismatch",
    "LimitReached",
    "LockHeld",
    "LockLost",
    "LocksidecarError",
    "NoAnswer",
    "NotFound",
    "NotHeld",
    "NotHolder",
    "ProtocolError",
    "SessionEnded",
    "Skipped",
    "StoreUnavailable",
    "TooLarge",
    "Unavailable",
    "Unsupported",
    "WaitTimeout",
]


class LocksidecarError(Exception):
    """The root of the tree. A wrong use of this package is a TypeError or ValueError.

    `args` are the arguments of the class. So pickle, and Celery's results in JSON, make the same exception again.
    """

    @property
    def retry_after(self) -> float | None:
        """Seconds until another try is useful. None if the sidecar does not say."""
        return None


class Unavailable(LocksidecarError):
    """The sidecar, or its store, cannot serve now: `NoAnswer`, `Draining` or `StoreUnavailable`."""


class NoAnswer(Unavailable):
    """The sidecar could not be reached, went away during a call, or did not answer in time.

    `path` is its socket. The outcome of the call is unknown. An acquire that raises this withdraws its grant.
    """

    def __init__(self, message: str, path: str = "", code: str = "connection_lost") -> None:
        super().__init__(message, path, code)
        self.path = path
        self._code = code  # or unreachable, or timeout; for traces

    def __str__(self) -> str:
        return str(self.args[0])


class ProtocolError(LocksidecarError):
    """The answer is not from a locksidecar. Something else listens on the socket."""


class Unsupported(LocksidecarError):
    """The sidecar is too old for the call. Its `GET /v1` lacks the name `feature`."""

    def __init__(self, feature: str, version: str) -> None:
        super().__init__(feature, version)
        self.feature = feature

    def __str__(self) -> str:
        feature, version = self.args
        return (
            f"the sidecar (version {version}) has no feature {feature!r}, which this call needs: update the sidecar,"
            " or do not use the option"
        )


class Skipped(LocksidecarError):
    """The holder did the work (`on_success="skip"`). `result` is that of its release."""

    def __init__(self, key: str, result: Any) -> None:
        super().__init__(key, result)
        self.key = key
        self.result = result

    def __str__(self) -> str:
        return f"the holder of lock {self.key!r} released it with success; there is nothing left to do"


class ApiError(LocksidecarError):
    """The sidecar answered with a problem.

    `status` is the HTTP status, `code` the stable code, `detail` a text for people, `problem` the whole answer.
    """

    def __init__(self, status: int, code: str, detail: str, problem: dict[str, Any] | None = None) -> None:
        super().__init__(status, code, detail, problem or {})
        self.status = status
        self.code = code
        self.detail = detail
        self.problem = problem or {}

    def __str__(self) -> str:
        return f"{self.detail} ({self.code})"

    @property
    def retry_after(self) -> float | None:
        return self.problem.get("retry_after")


class InvalidRequest(ApiError, ValueError):
    """The request is wrong. The detail names the field and the reason."""


class Forbidden(ApiError):
    """The sidecar does not allow it (breaking locks, or this user id)."""


class NotFound(ApiError):
    """There is no such call: the sidecar is older than its `GET /v1` said, or the path is wrong."""


class NotHeld(ApiError):
    """The lock is not held."""


class TooLarge(ApiError):
    """The body, the data or the result is too large (data and result: 4 KiB of JSON)."""


class SessionEnded(ApiError):
    """The session and its locks are over. The next call of the client opens a new session."""


class LimitMismatch(ApiError):
    """The shared holders and waiters of the lock name another `limit`; None: they name none. Nothing was granted."""

    @property
    def limit(self) -> int | None:
        return self.problem.get("limit")


class NotHolder(ApiError):
    """The token does not hold the key here and now. `reason`: `other_session`, `released` or `unknown_token`."""

    @property
    def reason(self) -> str:
        return str(self.problem.get("reason", ""))


class LockLost(ApiError):
    """The lock was held under this token, and is lost.

    `reason` is the sidecar's (`expired`, `forced`, `max_hold`, `store_lost`, `disconnected`, `shutdown`), or `forked`
    in a child process, for a lock of its parent.
    """

    @property
    def reason(self) -> str:
        return str(self.problem.get("reason", ""))


class LockHeld(ApiError):
    """Another caller holds the lock. `holder` is None if the lock has just become free."""

    @property
    def holder(self) -> Holder | None:
        return Holder.from_json(self.problem.get("holder"))

    @property
    def key(self) -> str | None:
        """With several locks: the first that was held."""
        key = self.problem.get("key")
        return None if key is None else str(key)

    @property
    def queue_length(self) -> int | None:
        """The number of waiters. None after a wait, see `WaitTimeout.queue_position`."""
        return self.problem.get("queue_length")

    @property
    def mode(self) -> Mode | None:
        """The mode of the holders. None if the lock has just become free."""
        return self.problem.get("mode")

    @property
    def limit(self) -> int | None:
        """The limit of the shared holders, if they have one."""
        return self.problem.get("limit")

    @property
    def kept(self) -> bool:
        """The sidecar of the holder may keep the lock for its next session, so perhaps nobody holds it now."""
        return bool(self.problem.get("kept", False))

    @property
    def holders_count(self) -> int:
        """The number of the holders."""
        return int(self.problem.get("holders_count", 0))


class WaitTimeout(LockHeld):
    """The call waited without success: another caller still holds the lock."""

    @property
    def queue_position(self) -> int | None:
        """The last position in the queue; 1 is the next."""
        return self.problem.get("queue_position")

    @property
    def waited(self) -> float:
        """The wait in seconds."""
        return float(self.problem.get("waited_ms", 0)) / 1000


class LimitReached(ApiError):
    """Too many sessions, locks of a session, waiters, watches or connections."""


class StoreUnavailable(ApiError, Unavailable):
    """The sidecar cannot reach its database. Nothing was granted, or the sidecar withdraws it."""


class Draining(ApiError, Unavailable):
    """The sidecar shuts down. Releases still work, acquires do not."""


_BY_CODE: dict[str, type[ApiError]] = {
    "invalid_request": InvalidRequest,
    "forbidden": Forbidden,
    "unauthorized": Forbidden,
    "not_found": NotFound,
    "not_held": NotHeld,
    "limit_mismatch": LimitMismatch,
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


# The API's names of durations, not inside a key.
_IN_MS = re.compile(r"(?<![\w:/.\"-])(wait|ttl|max_hold|min_hold)_ms\b")


def from_problem(problem: Any, status: int, retry_after: str | None = None) -> ApiError:
    """Makes the error of a problem document. An unknown code is an `ApiError`."""
    if not isinstance(problem, dict):
        problem = {}
    code = str(problem.get("code", f"http_{status}"))
    detail = str(problem.get("detail") or problem.get("title") or f"the sidecar answered with status {status}")
    if retry_after is not None and retry_after.isdigit():
        problem = {**problem, "retry_after": float(retry_after)}
    return _BY_CODE.get(code, ApiError)(status, code, _IN_MS.sub(r"\1 (in ms)", detail), problem)


def lost(key: str, reason: str) -> LockLost:
    """Makes the error of a lost lock."""
    problem = {"code": "lock_lost", "reason": reason, "key": key}
    return LockLost(410, "lock_lost", f"lock {key!r} is lost, reason: {reason}", problem)

"""What the sidecar tells about locks. Durations are seconds; members that a newer sidecar adds are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, TypedDict

__all__ = [
    "Bind",
    "Description",
    "Duration",
    "Event",
    "Holder",
    "LockInfo",
    "LockOptions",
    "OnSuccess",
    "Outcome",
    "Scope",
    "Status",
    "Stopping",
]

Duration = float | timedelta
"""Seconds, or a `timedelta`: what each call takes as a time."""
Bind = Literal["session", "ttl"]
OnSuccess = Literal["acquire", "skip"]
Outcome = Literal["success", "failure"]
Scope = Literal["session", "pod", "all"]


class LockOptions(TypedDict, total=False):
    """The options of an acquire. Durations are seconds or a `timedelta`, at most a day."""

    wait: Duration | None
    """How long to wait in line; None (the default) for ever, 0 not at all."""
    ttl: Duration | None
    """How long the lock outlives a sidecar that has died; with `bind="ttl"`, how long it lasts (0.5 to a day)."""
    bind: Bind
    """`session` (the default): the lock ends with the client's session. `ttl`: it belongs to no session, outlives the
    process, and ends after its `ttl`, or when any caller sends key and token, which can be guessed."""
    owner: str | None
    """Who in the session asks, shown to others; with `reentrant`, whoever says the same enters again."""
    reentrant: bool
    """Enter a lock again that this owner has. Without `owner` that is this thread (`Client`), this task
    (`AsyncClient`)."""
    max_hold: Duration | None
    """The sidecar releases the lock after so long, whatever the app does; it is then lost, reason `max_hold`."""
    min_hold: Duration | None
    """Nobody else gets the lock before so long after the grant, even if it is released."""
    on_success: OnSuccess
    """`skip`: when the holder releases with success while this waits, `Skipped` is raised with its result."""
    data: Any
    """JSON of at most 4 KiB that others see as part of the holder."""
    request_id: str | None
    """A UUID: the same one gets the same grant, in the same client or with `bind="ttl"` anywhere. By default each
    acquire has its own. A call with one that is interrupted or cancelled leaves what it got: ask again with it."""


@dataclass(frozen=True)
class Holder:
    """Who holds a lock. `held` and `expires_in` are seconds, `acquired_at` is RFC 3339 and informative."""

    instance: str
    pod: str
    session: str | None
    owner: str | None
    acquired_at: str
    held: float
    expires_in: float
    data: Any
    traceparent: str | None

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Holder | None:
        """Reads the API's form; None stays None."""
        if value is None:
            return None
        return cls(
            instance=value["instance"],
            pod=value["pod"],
            session=value.get("session"),
            owner=value.get("owner"),
            acquired_at=value["acquired_at"],
            held=value["held_ms"] / 1000,
            expires_in=value["expires_in_ms"] / 1000,
            data=value.get("data"),
            traceparent=value.get("traceparent"),
        )


@dataclass(frozen=True)
class Stopping:
    """Somebody asked the holder to stop."""

    reason: str | None
    requested_at: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Stopping | None:
        """Reads the API's form; None stays None."""
        return None if value is None else cls(reason=value.get("reason"), requested_at=value["requested_at"])


@dataclass(frozen=True)
class LockInfo:
    """One lock, free or held. `token` is None unless this client's session holds it, `holder` when the lock is free."""

    key: str
    type: str
    state: Literal["free", "held"]
    mine: bool
    token: int | None
    holder: Holder | None
    queue_length: int
    stopping: Stopping | None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> LockInfo:
        """Reads the API's form."""
        return cls(
            key=value["key"],
            type=value["type"],
            state=value["state"],
            mine=value["mine"],
            token=value.get("token"),
            holder=Holder.from_json(value.get("holder")),
            queue_length=value["queue_length"],
            stopping=Stopping.from_json(value.get("stopping")),
        )


@dataclass(frozen=True)
class Description:
    """What a sidecar is: its version, and the features that calls may use."""

    version: str
    api: str
    features: frozenset[str]


@dataclass(frozen=True)
class Event:
    """Something that happened to a key that is watched.

    `type` is `state` (the first one), `acquired`, `released`, `expired` or `stopping`, or one that a newer sidecar
    has; `data` is what the API says with it.
    """

    type: str
    key: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Status:
    """What the sidecar says about a lock that is held: the answer to check, extend and update.

    `expires_in` (seconds) is how long the lock may be relied on if the sidecar is not heard of any more.
    """

    key: str
    token: int
    session: str | None
    bind: Bind
    reentry: int
    expires_in: float
    waited: float
    acquired_at: str
    stopping: Stopping | None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Status:
        """Reads the API's form."""
        return cls(
            key=value["key"],
            token=value["token"],
            session=value.get("session"),
            bind=value["bind"],
            reentry=value["reentry"],
            expires_in=value["expires_in_ms"] / 1000,
            waited=value["waited_ms"] / 1000,
            acquired_at=value["acquired_at"],
            stopping=Stopping.from_json(value.get("stopping")),
        )

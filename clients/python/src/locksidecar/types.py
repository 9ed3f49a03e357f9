"""The types of the API. Durations are seconds. Members that a newer sidecar adds are ignored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict

__all__ = [
    "Bind",
    "Description",
    "Duration",
    "Event",
    "Holder",
    "LockInfo",
    "LockOptions",
    "Mode",
    "OnSuccess",
    "Outcome",
    "Scope",
    "SemaphoreOptions",
    "SharedHolder",
    "Status",
    "Stopping",
    "Waiter",
]

Duration = float | timedelta
"""Seconds, or a `timedelta`: each call takes both."""
Bind = Literal["session", "ttl"]
Mode = Literal["exclusive", "shared"]
OnSuccess = Literal["acquire", "skip"]
Outcome = Literal["success", "failure"]
Scope = Literal["all", "pod", "session"]


def time_of(text: str) -> datetime:
    """Reads a time of the API, RFC 3339, with its zone. Python 3.10 itself reads only fractions of 3 or 6 digits."""
    match = re.fullmatch(r"(.{19})(?:\.(\d+))?(.+)", text)
    if match is None:
        raise ValueError(f"{text!r} is no time")
    moment, fraction, zone = match.groups(default="")
    return datetime.fromisoformat(f"{moment}.{fraction[:6]:0<6}{'+00:00' if zone in 'Zz' else zone}")


class SemaphoreOptions(TypedDict, total=False):
    """The options of a semaphore. Durations are seconds or a `timedelta`, at most a day."""

    wait: Duration | None
    """How long to wait in the queue: None (the default) for ever, 0 not at all."""
    ttl: Duration | None
    """How long the lock outlives a dead sidecar. With `bind="ttl"`, how long it lasts. 0.5 s to a day."""
    bind: Bind
    """`session` (the default): the lock ends with the client's session. `ttl`: it outlives the process and ends after
    its `ttl`. Any caller with key and token can release it, and tokens can be guessed."""
    owner: str | None
    """The owner in the session, shown to others. With `reentrant`, the same owner enters again."""
    max_hold: Duration | None
    """After this time the sidecar releases the lock. It is then lost, with the reason `max_hold`."""
    min_hold: Duration | None
    """Until this time after the grant nobody else gets the lock, even if it is released."""
    data: Any
    """JSON of at most 4 KiB, which others see as part of the holder."""
    request_id: str | None
    """A UUID. The same one gets the same grant: in the same client, with `bind="ttl"` anywhere. By default each
    acquire has its own. If a call that names one is interrupted, its grant stays: ask again with the same UUID."""


class LockOptions(SemaphoreOptions, total=False):
    """The options of an acquire."""

    shared: bool
    """Shared holders do not exclude each other. Calls get the lock in their order, so neither mode starves."""
    limit: int | None
    """With `shared`, at most this many holders at a time, 1 to 1000: see `semaphore`. All of a key name the same."""
    reentrant: bool
    """The owner may enter its lock again. The default owner is this thread (`Client`) or task (`AsyncClient`)."""
    on_success: OnSuccess
    """`skip`: if the holder releases with success while this waits, it raises `Skipped` with the result."""


@dataclass(frozen=True)
class Holder:
    """The holder of a lock. `held` and `expires_in` are seconds, `acquired_at` is by the store's clock, informative."""

    instance: str
    pod: str
    session: str | None
    owner: str | None
    acquired_at: datetime
    held: float
    expires_in: float
    data: Any
    traceparent: str | None

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Holder | None:
        """Reads the API's form. None stays None."""
        if value is None:
            return None
        return cls(
            instance=value["instance"],
            pod=value["pod"],
            session=value.get("session"),
            owner=value.get("owner"),
            acquired_at=time_of(value["acquired_at"]),
            held=value["held_ms"] / 1000,
            expires_in=value["expires_in_ms"] / 1000,
            data=value.get("data"),
            traceparent=value.get("traceparent"),
        )


@dataclass(frozen=True)
class Stopping:
    """A request to the holder to stop."""

    reason: str | None
    requested_at: datetime

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Stopping | None:
        """Reads the API's form. None stays None."""
        return None if value is None else cls(reason=value.get("reason"), requested_at=time_of(value["requested_at"]))


@dataclass(frozen=True)
class SharedHolder:
    """One of the holders of a shared lock."""

    holder: Holder
    token: int | None  # None if the sidecar's database role may only read
    slot: int | None  # None without a limit
    stopping: Stopping | None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SharedHolder:
        """Reads the API's form."""
        holder = Holder.from_json(value)
        assert holder is not None
        return cls(
            holder=holder,
            token=value["token"],
            slot=value.get("slot"),
            stopping=Stopping.from_json(value.get("stopping")),
        )


@dataclass(frozen=True)
class LockInfo:
    """One lock. `token` is None unless this client's session holds it. `holder` is None if the lock is free.

    `mode` is None if it is free. Of a shared lock, `holder` is the one that was granted first, and `holders` has the
    first 100. `kept`: the sidecar of the holder may keep the lock for its next session, so perhaps nobody holds it now.
    """

    key: str
    type: str
    state: Literal["free", "held"]
    mine: bool
    token: int | None
    mode: Mode | None
    limit: int | None
    holder: Holder | None
    kept: bool
    holders: tuple[SharedHolder, ...]
    holders_count: int
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
            mode=value.get("mode"),
            limit=value.get("limit"),
            holder=Holder.from_json(value.get("holder")),
            kept=value.get("kept", False),
            holders=tuple(SharedHolder.from_json(one) for one in value.get("holders", ())),
            holders_count=value.get("holders_count", 0),
            queue_length=value["queue_length"],
            stopping=Stopping.from_json(value.get("stopping")),
        )


@dataclass(frozen=True)
class Waiter:
    """A call that waits for a lock. `position` is 1 for the first call of the key, `waiting` is seconds."""

    key: str
    position: int
    pod: str
    session: str | None
    owner: str | None
    mode: Mode
    limit: int | None
    waiting: float
    traceparent: str | None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Waiter:
        """Reads the API's form."""
        return cls(
            key=value["key"],
            position=value["position"],
            pod=value["pod"],
            session=value.get("session"),
            owner=value.get("owner"),
            mode=value["mode"],
            limit=value.get("limit"),
            waiting=value["waiting_ms"] / 1000,
            traceparent=value.get("traceparent"),
        )


@dataclass(frozen=True)
class Description:
    """The version of a sidecar, and its features."""

    version: str
    api: str
    features: frozenset[str]


@dataclass(frozen=True)
class Event:
    """An event of a watched key.

    `type` is `state` (the first one), `acquired`, `released`, `expired`, `stopping`, or one of a newer sidecar. `data`
    has the API's members.
    """

    type: str
    key: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Status:
    """The state of a held lock: the answer to check, extend, update and downgrade.

    `expires_in` is for how many seconds an app may rely on the lock without news from the sidecar.
    """

    key: str
    token: int
    session: str | None
    bind: Bind
    mode: Mode
    limit: int | None
    slot: int | None
    reentry: int
    expires_in: float
    waited: float
    acquired_at: datetime
    stopping: Stopping | None

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Status:
        """Reads the API's form."""
        return cls(
            key=value["key"],
            token=value["token"],
            session=value.get("session"),
            bind=value["bind"],
            mode=value.get("mode", "exclusive"),
            limit=value.get("limit"),
            slot=value.get("slot"),
            reentry=value["reentry"],
            expires_in=value["expires_in_ms"] / 1000,
            waited=value["waited_ms"] / 1000,
            acquired_at=time_of(value["acquired_at"]),
            stopping=Stopping.from_json(value.get("stopping")),
        )

"""The options of an acquire, and durations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import timedelta
from numbers import Real
from typing import Any

from . import _wire, errors
from .types import Bind, Duration, LockOptions, Mode, OnSuccess

LEAST_TTL = 0.5  # seconds
_DAY = 86400.0  # seconds; the sidecar's limit
_MOST_HOLDERS = 1000  # of a semaphore; the sidecar's limit


def seconds(name: str, value: Duration, least: float = 0.0, most: float = _DAY) -> float:
    """A duration in seconds. Raises TypeError, and InvalidRequest (a ValueError) if it is out of range."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"{name}={value!r}: it must be a number of seconds or a timedelta, not {type(value).__name__}")
    if not least <= number <= most:
        limits = f"is not between {least:g} and {most:g} seconds"
        more = " (None waits for ever)" if name == "wait" else ""
        raise errors.InvalidRequest(400, "invalid_request", f"{name}={value!r} {limits}{more}")
    return float(number)


def text(name: str, value: Any) -> str:
    """A text. Raises TypeError, and InvalidRequest (a ValueError) if it has no form in UTF-8."""
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r}: it must be a str, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as e:
        raise errors.InvalidRequest(400, "invalid_request", f"{name}={value!r} has no form in UTF-8 ({e})") from None
    return value


def json(name: str, value: Any) -> Any:
    """A value that has a form in JSON. Raises TypeError, and InvalidRequest (a ValueError) for NaN and the like."""
    try:
        _wire.dump(value)
    except TypeError as e:
        raise TypeError(f"{name}: it must be JSON ({e})") from None
    except (ValueError, RecursionError) as e:
        raise errors.InvalidRequest(400, "invalid_request", f"{name}: it must be JSON ({e})") from None
    return value


def whole(name: str, value: Any) -> int:
    """A whole number. Raises TypeError."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name}={value!r}: it must be a whole number")
    return value


def key_list(keys: Any) -> list[str]:
    """A list of keys. Raises TypeError, and InvalidRequest if one is no text."""
    # A str and bytes have elements as well, which would be the keys.
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        raise TypeError(f"keys={keys!r}: it must be a list of keys, not one {type(keys).__name__}")
    return [text("key", key) for key in keys]


def to_ms(seconds: float) -> int:
    """A time in milliseconds."""
    # Rounded up, because 0 means "not at all".
    return math.ceil(round(seconds * 1000, 6))


@dataclass
class AcquireOptions:
    """The options of an acquire, as in `Client.acquire`."""

    wait: float | None = None
    ttl: float | None = None
    shared: bool = False
    limit: int | None = None
    bind: Bind = "session"
    owner: str | None = None
    reentrant: bool = False
    max_hold: float | None = None
    min_hold: float | None = None
    on_success: OnSuccess = "acquire"
    data: Any = None
    request_id: str | None = None

    @property
    def mode(self) -> Mode:
        """The mode that the locks will have."""
        return "shared" if self.shared else "exclusive"

    def fields(self) -> tuple[dict[str, Any], list[str]]:
        """The members of the request, without the wait and the id, and the features that they need."""
        body: dict[str, Any] = {}
        needs: list[str] = []
        if self.ttl is not None:
            body["ttl_ms"] = to_ms(self.ttl)
        if self.shared:
            body["mode"] = "shared"
            needs.append("shared")
        if self.limit is not None:
            body["limit"] = self.limit
        if self.bind != "session":
            body["bind"] = self.bind
            needs.append("bind_ttl")
        if self.owner is not None:
            body["owner"] = self.owner
            needs.append("reentrant")
        if self.reentrant:
            body["reentrant"] = True
        if self.max_hold is not None:
            body["max_hold_ms"] = to_ms(self.max_hold)
            needs.append("hold")
        if self.min_hold is not None:
            body["min_hold_ms"] = to_ms(self.min_hold)
            needs.append("hold")
        if self.on_success != "acquire":
            body["on_success"] = self.on_success
            needs.append("outcome")
        if self.data is not None:
            body["data"] = self.data
            needs.append("data")
        return body, needs


_OPTIONS = tuple(option.name for option in fields(AcquireOptions))
_TEXTS = ("bind", "owner", "on_success", "request_id")
_LEAST = {"wait": 0.0, "ttl": LEAST_TTL, "max_hold": 0.0, "min_hold": 0.0}


def acquire_options(options: LockOptions) -> AcquireOptions:
    """Checks the options of an acquire. Raises TypeError, and InvalidRequest if a duration is out of range."""
    made: dict[str, Any] = dict(options)
    for name in made:
        if name not in _OPTIONS:
            raise TypeError(f"got an unexpected keyword argument {name!r}; the options are {', '.join(_OPTIONS)}")
    if made.get("wait") == math.inf:
        made["wait"] = None
    for name, least in _LEAST.items():
        if made.get(name) is not None:
            made[name] = seconds(name, made[name], least)
    for name in _TEXTS:
        if made.get(name) is not None:
            text(name, made[name])
    json("data", made.get("data"))
    for name in ("shared", "reentrant"):
        if not isinstance(made.get(name, False), bool):
            raise TypeError(f"{name}={made[name]!r}: it must be True or False")
    limit = made.get("limit")
    if limit is not None and not 1 <= whole("limit", limit) <= _MOST_HOLDERS:
        raise errors.InvalidRequest(400, "invalid_request", f"limit={limit!r} is not between 1 and {_MOST_HOLDERS}")
    return AcquireOptions(**made)

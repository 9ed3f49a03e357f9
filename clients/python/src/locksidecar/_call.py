"""A call, and what the options of an acquire are in it."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import lru_cache
from numbers import Real
from typing import Any, TypeVar
from urllib.parse import quote
from uuid import uuid4

from . import _tracing, _wire, errors
from ._session import Session
from .types import Bind, Duration, LockOptions, OnSuccess

T = TypeVar("T")


class Unset:
    """The type of an argument that was not given, where None means something."""


UNSET = Unset()


class Call:
    """One request, and what is to be known to make it."""

    __slots__ = ("answer", "body", "context", "delay", "joins", "method", "needs", "repeatable", "repeated", "sent",
                 "session", "target", "timeout")  # fmt: skip

    def __init__(
        self,
        method: str,
        target: str,
        body: Any = None,
        *,
        timeout: float | None,
        joins: bool = False,
        session: Session | None = None,
        needs: Iterable[str] = (),
        repeatable: bool = True,
        delay: float = 0.0,
        context: Any = None,
    ) -> None:
        self.method = method
        self.target = target
        self.body = b"" if body is None else _wire.dump(body)
        self.timeout = timeout  # seconds for the answer; None: for ever
        self.joins = joins  # join the client's session; it is opened if need be
        self.session = session  # the session that it joins
        self.needs = needs  # features
        self.repeatable = repeatable  # when a connection closes before it has answered anything
        self.repeated = False
        self.delay = delay  # seconds before it is made
        self.context = context  # that it goes with, for traces; None: the current one
        self.sent = 0.0  # time.monotonic() since when it may have reached the sidecar; 0.0: it was not sent
        self.answer: _wire.Answer | None = None

    def again(self, reused: bool) -> bool:
        """Whether to make it once more, on a fresh connection, when one was closed without having answered anything.

        A connection that has idled may have been closed for long; a fresh one has not. When the session is over, the
        operation decides.
        """
        return reused and self.repeatable and not (self.session is not None and self.session.ended)

    def encode(self) -> bytes:
        """The request's bytes."""
        headers = _tracing.headers(self.context)
        if self.session is not None:
            headers += self.session.header
        return _wire.request(self.method, self.target, headers, self.body)


class Look(Call):
    """A call that only reads."""

    __slots__ = ("_no_cache",)

    def __init__(self, target: str, no_cache: bool, **more: Any) -> None:
        super().__init__("GET", target, **more)
        self._no_cache = no_cache

    def encode(self) -> bytes:
        """The request's bytes."""
        data = super().encode()
        return data.replace(b"\r\n\r\n", b"\r\nCache-Control: no-cache\r\n\r\n", 1) if self._no_cache else data


Steps = Generator[Call, _wire.Answer, T]


@lru_cache(maxsize=1024)
def _quoted(key: str) -> str:
    return quote(key, safe="")


def lock_path(key: str, rest: str = "") -> str:
    """The path of a lock."""
    return f"/v1/locks/{_quoted(key)}{rest}"


LEAST_TTL = 0.5  # seconds
_DAY = 86400.0  # seconds: the most that the sidecar takes


def seconds(name: str, value: Duration, least: float = 0.0, most: float = _DAY) -> float:
    """A duration in seconds. Raises TypeError, and InvalidRequest (a ValueError) when it is out of range."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, Real):
        raise TypeError(f"{name}={value!r}: it must be a number of seconds or a timedelta, not {type(value).__name__}")
    if not least <= number <= most:
        limits = f"is not between {least:g} and {most:g} seconds"
        more = " (None waits for ever)" if name == "wait" else ""
        raise errors.InvalidRequest(400, "invalid_request", f"{name}={value!r} {limits}{more}")
    return float(number)


def to_ms(seconds: float) -> int:
    """A time in milliseconds."""
    # Rounded up: 0.0001 does not mean "not at all".
    return math.ceil(round(seconds * 1000, 6))


@dataclass
class AcquireOptions:
    """The options of an acquire, as in `Client.acquire`."""

    wait: float | None = None
    ttl: float | None = None
    bind: Bind = "session"
    owner: str | None = None
    reentrant: bool = False
    max_hold: float | None = None
    min_hold: float | None = None
    on_success: OnSuccess = "acquire"
    data: Any = None
    request_id: str | None = None
    # Whether the app has named the request: then others may have been told of the same grant.
    named: bool = field(default=False, init=False)
    # The last call that was made with them, and its keys: what it has got is nobody's until it is the app's.
    call: Call | None = field(default=None, init=False)
    keys: Sequence[str] = field(default=(), init=False)
    asked: bool = field(default=False, init=False)  # a call before it may have reached the sidecar

    def fields(self) -> tuple[dict[str, Any], list[str]]:
        """The request's members but for the wait, and the features that they need."""
        body: dict[str, Any] = {}
        needs: list[str] = []
        # The id makes it safe to repeat the call, and to release what it got when no answer came.
        self.named = self.request_id is not None
        if self.request_id is None:
            self.request_id = str(uuid4())
        body["request_id"] = self.request_id
        needs.append("release_by_id")
        if self.ttl is not None:
            body["ttl_ms"] = to_ms(self.ttl)
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


_OPTIONS = tuple(option.name for option in fields(AcquireOptions) if option.init)
_LEAST = {"wait": 0.0, "ttl": LEAST_TTL, "max_hold": 0.0, "min_hold": 0.0}


def acquire_options(options: LockOptions) -> AcquireOptions:
    """Checks the options of an acquire. Raises TypeError, and InvalidRequest for a duration that is out of range."""
    made: dict[str, Any] = dict(options)
    for name in made:
        if name not in _OPTIONS:
            raise TypeError(f"got an unexpected keyword argument {name!r}; the options are {', '.join(_OPTIONS)}")
    if made.get("wait") == math.inf:
        made["wait"] = None
    for name, least in _LEAST.items():
        if made.get(name) is not None:
            made[name] = seconds(name, made[name], least)
    return AcquireOptions(**made)

"""A call: one request, and how it is made."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote

from . import _tracing, _wire
from ._options import text
from ._session import Session

T = TypeVar("T")


class Unset:
    """The type of an argument that was not given, where None has a meaning."""


UNSET = Unset()


class Call:
    """One request, and how it is made."""

    __slots__ = ("after_close", "began", "body", "context", "delay", "joins", "method", "needs", "repeatable",
                 "repeated", "sent", "session", "target", "timeout", "waits")  # fmt: skip

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
        waits: bool = False,
        delay: float = 0.0,
        context: Any = None,
        after_close: bool = False,
    ) -> None:
        self.method = method
        self.target = target
        self.body = b"" if body is None else _wire.dump(body)
        self.timeout = timeout  # seconds for the answer; None: for ever
        self.joins = joins  # join the client's session, and open one if there is none
        self.session = session  # the session that it joins
        self.needs = needs  # features
        self.repeatable = repeatable  # if a connection breaks before the answer is complete
        self.repeated = False  # an earlier one may have been carried out, without an answer
        self.waits = waits  # the sidecar may answer late, so it leaves a connection for the calls that end waits
        self.delay = delay  # seconds before it is made
        self.context = context  # of its trace; None: the current one
        self.after_close = after_close  # a closed client makes it, too: by it close ends the session, or it withdraws
        self.sent = 0.0  # time.monotonic() when it was sent; 0.0: not yet
        self.began = 0.0  # time.monotonic() when its time began, before a connection was made

    def again(self, reused: bool, error: OSError) -> bool:
        """Whether to make it again, on a new connection, after one broke before the answer was complete.

        A reused connection may have been closed before the call. A write tells that by EPIPE: then the sidecar has not
        got the whole call. If the session is over, the operation decides.
        """
        may_be_repeated = self.repeatable or isinstance(error, BrokenPipeError)
        return reused and may_be_repeated and not (self.session is not None and self.session.ended)

    def begin(self) -> None:
        """Its time begins: the answer must come in it, also on a connection that takes long to make."""
        self.began = time.monotonic()

    def left(self) -> float | None:
        """The seconds until it is too late for its answer."""
        return None if self.timeout is None else max(self.began + self.timeout - time.monotonic(), 0.001)

    def late(self) -> bool:
        """Whether the time for its answer is over."""
        # A timer may be early by less than its resolution.
        return self.timeout is not None and time.monotonic() >= self.began + self.timeout - 0.01

    def session_ended(self) -> None:
        """Notes the answer that the session is over."""
        if self.session is not None:
            self.session.end()

    def encode(self) -> bytes:
        """The request's bytes."""
        headers = _tracing.headers(self.context)
        if self.session is not None:
            headers += self.session.header
        return _wire.request(self.method, self.target, headers, self.body)


class Read(Call):
    """A call that only reads."""

    __slots__ = ("_no_cache",)

    def __init__(self, target: str, fresh: bool, **more: Any) -> None:
        super().__init__("GET", target, **more)
        self._no_cache = fresh

    def encode(self) -> bytes:
        """The request's bytes."""
        data = super().encode()
        return data.replace(b"\r\n\r\n", b"\r\nCache-Control: no-cache\r\n\r\n", 1) if self._no_cache else data


Steps = Generator[Call, _wire.Answer, T]


@lru_cache(maxsize=1024)
def _quoted(key: str) -> str:
    return quote(key, safe="")


def lock_path(key: str, rest: str = "") -> str:
    """The path of a lock. Raises TypeError if the key is not a str, and InvalidRequest if it is no text."""
    return f"/v1/locks/{_quoted(text('key', key))}{rest}"

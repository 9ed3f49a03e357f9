"""The connections of the client for asyncio."""

from __future__ import annotations

import asyncio
import math
import socket
import time
from typing import Any, TypeVar, cast

from . import _core, _fork, _wire, errors
from ._call import Call
from ._core import Core
from ._session import Session


class Closed(Exception):
    """The connection was closed before it has answered anything."""


class _Protocol(asyncio.Protocol):
    """A connection. Its socket is noted in `sockets` until it is closed."""

    def __init__(self, core: Core, sockets: _fork.Sockets, sock: socket.socket) -> None:
        self._core, self._sockets, self._sock = core, sockets, sock
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 // asyncio's signature
        self.closed = True
        self._sockets.forget(self._sock)

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def abort(self) -> None:
        """Closes it, without waiting for anything."""
        self.closed = True
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()


class Connection(_Protocol):
    """One for calls, one after the other."""

    def __init__(self, core: Core, sockets: _fork.Sockets, sock: socket.socket) -> None:
        super().__init__(core, sockets, sock)
        self._call: Call | None = None
        self._parser = _wire.AnswerParser()
        self._waiter: asyncio.Future[_wire.Answer] | None = None
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None

    async def exchange(self, call: Call, data: bytes) -> _wire.Answer:
        if self.closed:
            raise Closed
        self._call, self._parser = call, _wire.AnswerParser()
        waiter: asyncio.Future[_wire.Answer] = self._loop.create_future()
        self._waiter = waiter
        self._deadline = math.inf
        if call.timeout is not None:
            self._deadline = self._loop.time() + call.timeout
            self._set_timer()
        call.sent = time.monotonic()
        self.write(data)
        try:
            return await waiter
        finally:
            self._waiter = self._call = None

    def _set_timer(self) -> None:
        # One timer serves many calls: to set and cancel one for each would take longer than the rest.
        if self._timer is not None:
            if self._timer.when() <= self._deadline:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline, self._time)

    def _time(self) -> None:
        self._timer = None
        if self._call is None or self._deadline == math.inf:
            return
        if self._loop.time() < self._deadline:
            self._set_timer()
        else:
            self._fail(self._core.timed_out(self._call))

    def data_received(self, data: bytes) -> None:
        if self._call is None or self._waiter is None:
            self.abort()  # nobody has asked
            return
        try:
            answer = self._parser.feed(data)
        except errors.LocksidecarError as e:
            self._fail(e)
            return
        if answer is not None:
            self._call.answer = answer  # also for a task that was cancelled just now
            if not self._waiter.done():
                self._waiter.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        if self._parser.started:
            self._fail(self._core.broken(f"broke the connection ({exc or 'in the middle of an answer'})"))
        else:
            self._fail(Closed())

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)


class Stream(_Protocol):
    """One that hears events: those of a key, or of the session (then `hear` takes them)."""

    def __init__(self, core: Core, sockets: _fork.Sockets, sock: socket.socket) -> None:
        super().__init__(core, sockets, sock)
        self._parser = _wire.StreamParser()
        self._heard = self._loop.time()
        self._timer = self._loop.call_later(_core.SILENCE, self._silent)
        self._news = asyncio.Event()
        self._error: Exception | None = None
        self.found: list[tuple[str, Any]] = []
        self.session: Session | None = None

    async def filled(self) -> None:
        """Returns when there is an event in `found`."""
        while not self.found:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()

    def fail(self, error: Exception) -> None:
        """Ends it; whoever waits for an event gets the error."""
        self._error = error
        self.abort()

    def hear(self, session: Session) -> None:
        """From now on the events are the session's."""
        self.session = session
        found, self.found = self.found, []
        for name, data in found:
            session.hear(name, data)
        if self.closed:
            session.end()

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        try:
            events = self._parser.feed(data)
        except errors.LocksidecarError as e:
            self._error = e
            self.abort()
            return
        if self.session is not None:
            for name, value in events:
                self.session.hear(name, value)
        elif events:
            self.found += events
            self._news.set()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._timer.cancel()
        if self._error is None:
            self._error = self._core.broken(f"ended the event stream{f' ({exc})' if exc else ''}")
        self._news.set()
        if self.session is not None:
            self.session.end()

    def _silent(self) -> None:
        left = self._heard + _core.SILENCE - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._silent)
            return
        self._error = self._core.broken(f"has said nothing for {_core.SILENCE:g} s")
        if self.session is not None:
            self._sockets.shut()  # the sidecar hangs: the calls that wait would wait for ever
        self.abort()


Conn = TypeVar("Conn", Connection, Stream)

"""How the client for asyncio makes calls: over the transports of its event loop."""

from __future__ import annotations

import asyncio
import inspect
import math
import socket
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

from . import _core, _fork, _wire, errors
from ._call import Call, Steps
from ._core import Core
from ._session import Session

T = TypeVar("T")


class _Protocol(asyncio.Protocol):
    """A connection. `sockets` has its socket until it is closed."""

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
        """Closes it at once."""
        self.closed = True
        if self._transport is not None and not self._loop.is_closed():
            self._transport.abort()


class Connection(_Protocol):
    """A connection for calls, one after the other."""

    def __init__(self, core: Core, sockets: _fork.Sockets, sock: socket.socket) -> None:
        super().__init__(core, sockets, sock)
        self._call: Call | None = None
        self._parser = _wire.AnswerParser()
        self._waiter: asyncio.Future[_wire.Answer] | None = None
        self._deadline = math.inf
        self._timer: asyncio.TimerHandle | None = None

    async def exchange(self, call: Call, data: bytes) -> _wire.Answer:
        if self.closed:
            raise ConnectionResetError("it was closed")
        self._call, self._parser = call, _wire.AnswerParser()
        waiter: asyncio.Future[_wire.Answer] = self._loop.create_future()
        self._waiter = waiter
        self._deadline = math.inf
        left = call.left()
        if left is not None:
            self._deadline = self._loop.time() + left
            self._set_timer()
        call.sent = time.monotonic()
        self.write(data)
        try:
            return await waiter
        finally:
            self._waiter = self._call = None

    def _set_timer(self) -> None:
        # One timer serves many calls, because a timer for each would take longer than the call.
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
            self.abort()  # there is no call
            return
        try:
            answer = self._parser.feed(data)
        except errors.LocksidecarError as e:
            self._fail(e)
            return
        if answer is not None and not self._waiter.done():
            self._waiter.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        # TLS writes also after a call, so there it says nothing about the call.
        plain = self._transport is not None and self._transport.get_extra_info("sslcontext") is None
        kind = BrokenPipeError if plain and isinstance(exc, BrokenPipeError) else ConnectionResetError
        self._fail(kind(str(exc or "it was closed")))

    def _fail(self, error: Exception) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)


class Stream(_Protocol):
    """A connection that receives events: those of a key, or those of a session."""

    def __init__(self, core: Core, sockets: _fork.Sockets, sock: socket.socket) -> None:
        super().__init__(core, sockets, sock)
        self._parser = _wire.StreamParser()
        self._last = self._loop.time()
        self._timer = self._loop.call_later(_core.SILENCE, self._silent)
        self._news = asyncio.Event()
        self._error: Exception | None = None
        self.found: list[tuple[str, Any]] = []
        self.session: Session | None = None

    async def filled(self) -> None:
        """Returns when `found` has an event."""
        while not self.found:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()

    def fail(self, error: Exception) -> None:
        """Ends it. A task that waits for an event gets the error."""
        self._error = error
        self.abort()

    def deliver_to(self, session: Session) -> None:
        """Delivers all events to the session."""
        self.session = session
        found, self.found = self.found, []
        for name, data in found:
            session.receive(name, data)
        if self.closed:
            session.end()

    def data_received(self, data: bytes) -> None:
        self._last = self._loop.time()
        try:
            events = self._parser.feed(data)
        except errors.LocksidecarError as e:
            self._error = e
            self.abort()
            return
        if self.session is not None:
            for name, value in events:
                self.session.receive(name, value)
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
        left = self._last + _core.SILENCE - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._silent)
            return
        self._error = self._core.broken(f"has said nothing for {_core.SILENCE:g} s")
        if self.session is not None:
            self._sockets.shut()  # the sidecar hangs, so waiting calls would not end
        self.abort()


Conn = TypeVar("Conn", Connection, Stream)
_Make = Callable[[Core, _fork.Sockets, socket.socket], Conn]


class AsyncTransport:
    """The connections of one client, and its session. Locks refer to it, not to the client."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._sockets = _fork.Sockets()
        self._turns = _fork.Turns(over_tcp=not core.endpoint.path)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[Connection] = []
        self._opening = asyncio.Lock()
        self._cleanups: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._keeping = False
        _fork.register(self)

    async def run(self, steps: Steps[T]) -> T:
        """Makes the calls of an operation."""
        if self.core.closed:
            raise self.core.is_closed()
        self._attach()
        return await self.drive(steps)

    async def drive(self, steps: Steps[T]) -> T:
        """As `run`, also for a closed client."""
        answer: Any = None
        error: errors.LocksidecarError | None = None
        try:
            while True:
                try:
                    call = steps.send(answer) if error is None else steps.throw(error)
                    answer, error = None, None
                    answer = await self._perform(call)
                except StopIteration as stop:
                    return cast(T, stop.value)
                except GeneratorExit:
                    raise
                except BaseException as e:
                    if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:  # the operation itself raised it
                        raise
                    if isinstance(e, errors.LocksidecarError):
                        error = e
                        continue
                    # Cancelled. The operation cleans up in a task of its own, because this one may be cancelled again.
                    call = steps.throw(e)  # raises the cancellation if there is nothing to do
                    cleanup = asyncio.ensure_future(self._clean_up(steps, call, e))
                    self._cleanups.add(cleanup)
                    cleanup.add_done_callback(self._cleanups.discard)
                    await asyncio.shield(cleanup)
                    raise
        finally:
            error = None  # it refers to this frame

    async def close(self) -> None:
        """Ends the session, and closes all connections."""
        if self.core.closed:
            return
        self.core.closed = True  # a waiting call must not open another session
        session = self.core.live_session()
        if session is not None:
            await self.drive(self.core.end_session(session))
            session.end()
        self._sockets.shut()
        self._drop_idle()

    # Calls.

    async def _clean_up(self, steps: Steps[Any], call: Call, why: BaseException) -> None:
        try:
            while True:
                try:
                    answer = await self._perform(call)
                except errors.LocksidecarError as e:
                    call = steps.throw(e)
                else:
                    call = steps.send(answer)
        except BaseException as e:
            if e is not why:
                raise

    async def _perform(self, call: Call) -> _wire.Answer:
        if call.delay:
            await asyncio.sleep(call.delay)
        if call.joins:
            call.session = self.core.live_session() or await self._open_session()
        elif call.needs and self.core.features is None:
            self.core.learn(await self._exchange(self.core.describe()))
        self.core.require(call)
        return await self._exchange(call)

    async def _exchange(self, call: Call) -> _wire.Answer:
        data = self.core.encode(call)
        call.begin()
        patience = _fork.Patience(self.core.timeout, call)
        while True:
            connection, reused = await self._take(Connection, call, patience)
            try:
                answer = await connection.exchange(call, data)
            except ConnectionError as e:
                connection.abort()
                if not call.again(reused, e):
                    raise self.core.broken(f"broke the connection ({e})") from e
                self._drop_idle()  # after a restart of the sidecar all are dead
                call.repeated = True
                continue
            except BaseException:  # also a cancellation: the close ends a wait at the sidecar
                connection.abort()
                raise
            if answer.last or len(self._idle) >= _core.MAX_IDLE or self.core.closed:
                connection.abort()
            else:
                self._idle.append(connection)
                self._turns.wake()
            return answer

    async def _take(self, make: _Make[Conn], call: Call, patience: _fork.Patience) -> tuple[Conn, bool]:
        """Returns a connection, and whether a call was made on it before. The caller uses it before other tasks run."""
        while True:
            self.core.check_open(call)
            idle = patience.take(self._idle)
            if idle is not None:
                return cast(Any, idle), True
            turn = self._turns.take()
            if turn is None:
                if patience.left() <= 0:
                    raise self.core.unreachable(_fork.no_turn())
                await self._wait_for_turn(patience)
                continue
            try:
                connection = await self._connect(make, call.left())
                try:
                    self.core.check_open(call)  # meanwhile
                except errors.LocksidecarError:
                    connection.abort()
                    raise
                return connection, False
            except OSError as e:
                if not patience.try_again(e, len(self._sockets)):
                    raise self.core.unreachable(e) from e
            finally:
                turn.over()  # it wakes another task, which runs later than this one sends its request
            await asyncio.sleep(patience.PAUSE)

    async def _wait_for_turn(self, patience: _fork.Patience) -> None:
        assert self._loop is not None
        woken = self._loop.create_future()
        with self._turns.waiting(partial(_set, woken)):
            await asyncio.wait({woken}, timeout=max(min(patience.left(), self._turns.LOOK), 0))

    async def _connect(self, make: _Make[Conn], limit: float | None) -> Conn:
        assert self._loop is not None
        sockets = self._sockets
        return await self.core.endpoint.connect_async(
            sockets, self._loop, lambda sock: make(self.core, sockets, sock), limit
        )

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    async def stream(self, call: Call) -> Stream:
        """Makes a call whose answer is an event stream, on a connection of its own."""
        self._attach()
        if self.core.closed:
            raise self.core.is_closed()
        if call.needs and self.core.features is None:
            self.core.learn(await self._exchange(self.core.describe()))
        self.core.require(call)
        data = self.core.encode(call)
        call.begin()
        stream, _ = await self._take(Stream, call, _fork.Patience(self.core.timeout, call, fresh=True))
        stream.write(data)
        return stream

    # The session.

    async def _open_session(self) -> Session:
        began = time.monotonic()
        async with self._opening:
            session = self.core.live_session()
            if session is not None:
                return session
            with self.core.opening(began):
                return await self._new_session()

    async def _new_session(self) -> Session:
        self.core.learn(await self._exchange(self.core.describe()))
        call = self.core.open_session()
        stream = await self.stream(call)
        # Before Python 3.12, asyncio.wait_for loses a cancellation that comes with the answer.
        late = asyncio.get_running_loop().call_later(self.core.timeout, stream.fail, self.core.timed_out(call))
        try:
            await stream.filled()
        except BaseException:
            stream.abort()
            raise
        finally:
            late.cancel()
        session = self.core.opened(stream.found.pop(0)[1], stream.abort)
        session.wake = partial(_wake, weakref.ref(self), session)
        stream.deliver_to(session)
        self.core.adopt(session)
        return session

    def _keep_later(self, session: Session) -> None:
        """Sets the time of the next questions about the session's locks, see `Core.keep`."""
        if self._timer is not None:
            self._timer.cancel()
        pause = session.pause()
        if session.ended or self._keeping or pause == math.inf or self._loop is None:
            return
        # The timer does not keep the client alive.
        self._timer = self._loop.call_later(pause, _wake, weakref.ref(self), session, True)

    async def _keep(self, session: Session) -> None:
        self._keeping = True
        try:
            await self.drive(self.core.keep(session))
        finally:
            self._keeping = False
            self._keep_later(self.core.live_session() or session)  # perhaps another one by now

    def _attach(self) -> None:
        """Binds the client to the running loop."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            if not self._loop.is_closed():
                raise RuntimeError("this AsyncClient is used in another event loop; make one for each loop")
            # The connections ended with their loop, without news to the locks.
            self._sockets.close_copies()
            session = self.core.live_session()
            if session is not None:
                session.end()
        self._loop = loop
        self._turns = _fork.Turns(over_tcp=not self.core.endpoint.path)
        self._idle = []
        self._opening = asyncio.Lock()
        self._cleanups = set()
        self._timer, self._keeping = None, False

    def _forked(self) -> None:
        # In the child. It shares the epoll descriptor of the parent's loop. If a transport ended here, the parent would
        # receive nothing from it.
        self._sockets.close_copies()
        self._loop = None
        self.core.forked()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _wake(transport: weakref.ref[AsyncTransport], session: Session, now: bool = False) -> None:
    alive = transport()
    if alive is None or alive._loop is None:
        return
    if not now:
        alive._keep_later(session)
        return
    task = alive._loop.create_task(alive._keep(session))
    alive._cleanups.add(task)
    task.add_done_callback(alive._cleanups.discard)

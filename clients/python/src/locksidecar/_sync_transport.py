"""How the client for threads makes calls: over sockets, in the calling thread."""

from __future__ import annotations

import contextlib
import inspect
import socket
import threading
import time
import weakref
from typing import Any, TypeVar

from . import _core, _fork, _wire, errors
from ._call import Call, Steps
from ._core import Core
from ._session import Session

T = TypeVar("T")


class Transport:
    """The connections of one client, and its session. Locks refer to it, not to the client."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self._sockets = _fork.Sockets()
        self._turns = _fork.Turns(over_tcp=not core.endpoint.path)
        self._idle: list[socket.socket] = []
        self._opening = threading.Lock()
        self._kind = threading.Lock
        self._reader: threading.Thread | None = None
        _fork.register(self)

    def __del__(self) -> None:
        self._sockets.shut()  # its reader ends
        self._drop_idle()

    def run(self, steps: Steps[T]) -> T:
        """Makes the calls of an operation."""
        if self.core.closed:
            raise self.core.is_closed()
        return self.drive(steps)

    def drive(self, steps: Steps[T]) -> T:
        """As `run`, also for a closed client."""
        self._attach()
        error: errors.LocksidecarError | None = None
        try:
            while True:
                try:
                    call = next(steps) if error is None else steps.throw(error)
                    error = None
                    while True:  # inside the `try`, because Ctrl-C may come when a loop goes on
                        call = steps.send(self._perform(call))
                except StopIteration as stop:
                    value: T = stop.value
                    return value
                except BaseException as e:
                    if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:  # the operation itself raised it
                        raise
                    if not isinstance(e, errors.LocksidecarError):
                        self._clean_up(steps, e)
                        raise
                    error = e
        finally:
            error = None  # it refers to this frame

    def stream(self, call: Call) -> Stream:
        """Makes a call whose answer is an event stream, on a connection of its own."""
        if self.core.closed:
            raise self.core.is_closed()
        self._attach()
        self._learn(call)
        self.core.require(call)
        data = self.core.encode(call)
        call.begin()
        sock, turn = self._take(call, _fork.Patience(self.core.timeout, call, fresh=True))
        try:
            sock.settimeout(call.timeout)
            _send(sock, data, turn)
        except OSError as e:
            self._sockets.close(sock)
            raise self.core.broken(f"broke the connection ({e})") from e
        except BaseException:
            self._sockets.close(sock)
            raise
        return Stream(self.core, self._sockets, sock)

    def close(self) -> None:
        """Ends the session, and closes all connections."""
        if self.core.closed:
            return
        self.core.closed = True  # a waiting call must not open another session
        session = self.core.live_session()
        if session is not None:
            self.drive(self.core.end_session(session))
            session.end()
        self._sockets.shut()
        self._drop_idle()
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(1)

    # Calls.

    def _clean_up(self, steps: Steps[Any], why: BaseException) -> None:
        """Ends an operation that Ctrl-C or a time limit has interrupted: in a thread, which nothing interrupts."""
        try:
            call = steps.throw(why)  # raises the interruption if there is nothing to do
        finally:
            del why  # it refers to this frame
        thread = threading.Thread(target=self._finish, args=(steps, call), name="locksidecar-release", daemon=True)
        thread.start()
        thread.join()

    def _finish(self, steps: Steps[Any], call: Call) -> None:
        try:
            while True:
                try:
                    answer = self._perform(call)
                except errors.LocksidecarError as e:
                    call = steps.throw(e)
                else:
                    call = steps.send(answer)
        except BaseException:  # the interruption, which the caller raises
            pass

    def _perform(self, call: Call) -> _wire.Answer:
        if call.delay:
            time.sleep(call.delay)
        if call.joins:
            call.session = self._open_session()
        else:
            self._learn(call)
        self.core.require(call)
        return self._exchange(call)

    def _learn(self, call: Call) -> None:
        if call.needs and self.core.features is None:
            self.core.learn(self._exchange(self.core.describe()))

    def _exchange(self, call: Call) -> _wire.Answer:
        data = self.core.encode(call)
        call.begin()
        patience = _fork.Patience(self.core.timeout, call)
        while True:
            sock, turn = self._take(call, patience)
            try:
                answer = _exchange(sock, call, data, turn)
            except OSError as e:
                self._sockets.close(sock)
                if isinstance(e, TimeoutError):
                    if not call.late():
                        raise  # not of the socket, but of a signal's handler
                    raise self.core.timed_out(call) from None
                if not call.again(turn is None, e):
                    raise self.core.broken(f"broke the connection ({e})") from e
                self._drop_idle()  # after a restart of the sidecar all are dead
                call.repeated = True
                continue
            except BaseException:  # also KeyboardInterrupt: the close ends a wait at the sidecar
                self._sockets.close(sock)
                raise
            if answer.last or len(self._idle) >= _core.MAX_IDLE or self.core.closed:
                self._sockets.close(sock)
            else:
                self._idle.append(sock)
                self._turns.wake()
                if self.core.closed:  # meanwhile
                    self._drop_idle()
            return answer

    def _take(self, call: Call, patience: _fork.Patience) -> tuple[socket.socket, _fork.Turn | None]:
        """Returns a connection, and the turn of a new one; None: a call was made on it before."""
        while True:
            self.core.check_open(call)
            sock = patience.take(self._idle)
            if sock is not None:
                return sock, None
            turn = self._turns.take()
            if turn is None:
                if patience.left() <= 0:
                    raise self.core.unreachable(_fork.no_turn())
                woken = threading.Event()
                with self._turns.waiting(woken.set):
                    if not patience.takes(self._idle):  # meanwhile
                        woken.wait(max(min(patience.left(), self._turns.LOOK), 0))
                continue
            try:
                sock = self._connect(call.left())
                try:
                    self.core.check_open(call)  # meanwhile
                except BaseException:
                    self._sockets.close(sock)
                    raise
                return sock, turn
            except OSError as e:
                turn.over()
                if not patience.try_again(e, len(self._sockets)):
                    raise self.core.unreachable(e) from e
            except BaseException:
                turn.over()
                raise
            time.sleep(patience.PAUSE)

    def _connect(self, limit: float | None) -> socket.socket:
        return self.core.endpoint.connect(self._sockets, limit)

    def _drop_idle(self) -> None:
        while self._idle:
            with contextlib.suppress(IndexError):
                self._sockets.close(self._idle.pop())

    # The session.

    def _open_session(self) -> Session:
        session = self.core.live_session()
        if session is not None:
            return session
        began = time.monotonic()
        with self._opening:
            session = self.core.live_session()
            if session is not None:
                return session
            with self.core.opening(began):
                return self._new_session()

    def _new_session(self) -> Session:
        self.core.learn(self._exchange(self.core.describe()))
        call = self.core.open_session()
        stream = self.stream(call)
        try:
            stream.filled(call)
            session = self.core.opened(stream.found.pop(0)[1], stream.shut)
            wake = threading.Event()
            session.wake = wake.set
            self._reader = threading.Thread(
                target=stream.deliver_to, args=(session,), name="locksidecar-session", daemon=True
            )
            self._reader.start()
            threading.Thread(
                target=_keep, args=(weakref.ref(self), session, wake), name="locksidecar-keeper", daemon=True
            ).start()
        except BaseException:
            stream.abort()
            raise
        self.core.adopt(session)
        return session

    def _attach(self) -> None:
        """Binds the client to the classes of `threading`. gevent and eventlet may replace them after it was made."""
        if self._kind is not threading.Lock:
            self._kind, self._opening = threading.Lock, threading.Lock()
            self._drop_idle()

    def _forked(self) -> None:
        # In the child. The other threads are gone, and their mutexes stay locked.
        self._sockets.close_copies()
        self._turns = _fork.Turns(over_tcp=not self.core.endpoint.path)
        self._idle = []
        self._kind, self._opening = threading.Lock, threading.Lock()
        self._reader = None
        self.core.forked()


def _keep(transport: weakref.ref[Transport], session: Session, wake: threading.Event) -> None:
    """Asks about the session's locks in time, see `Core.keep`. This does not keep the client alive."""
    while not session.ended and (alive := transport()) is not None:
        alive.drive(alive.core.keep(session))
        del alive
        pause = session.pause()
        wake.wait(pause if pause < threading.TIMEOUT_MAX else None)
        wake.clear()


def _send(sock: socket.socket, data: bytes, turn: _fork.Turn | None) -> None:
    try:
        sock.sendall(data)
    finally:
        if turn is not None:
            turn.over()


def _exchange(sock: socket.socket, call: Call, data: bytes, turn: _fork.Turn | None) -> _wire.Answer:
    parser = _wire.AnswerParser()
    sock.settimeout(call.left())
    call.sent = time.monotonic()
    _send(sock, data, turn)
    while True:
        piece = sock.recv(65536)
        if not piece:
            raise ConnectionResetError("it was closed")
        answer = parser.feed(piece)
        if answer is not None:
            return answer
        if call.late():  # a limit of the socket is one for each piece
            raise TimeoutError
        sock.settimeout(call.left())


class Stream:
    """A connection that receives events: those of a key, or the session's."""

    def __init__(self, core: Core, sockets: _fork.Sockets, sock: socket.socket) -> None:
        self._core, self._sockets, self._sock = core, sockets, sock
        self._parser = _wire.StreamParser()
        self.found: list[tuple[str, Any]] = []

    def filled(self, call: Call | None = None) -> None:
        """Returns when `found` has an event. With `call`, it is the answer to that."""
        self._sock.settimeout(_core.SILENCE if call is None else call.left())
        try:
            while not self.found:
                self._read()
                if call is not None and call.late():
                    raise TimeoutError
        except TimeoutError:
            late = self._core.broken(f"has said nothing for {_core.SILENCE:g} s")
            raise (late if call is None else self._core.timed_out(call)) from None
        except OSError as e:
            raise self._core.broken(f"broke the event stream ({e})") from e
        except BaseException:  # Ctrl-C may have lost data
            self.abort()
            raise

    def deliver_to(self, session: Session) -> None:
        """Reads events until the stream ends. This does not keep the client alive."""
        try:
            self._sock.settimeout(_core.SILENCE)
            while True:
                while self.found:
                    session.receive(*self.found.pop(0))
                self._read()
        except TimeoutError:
            self._sockets.shut()  # the sidecar hangs, so waiting calls would not end
        except (OSError, errors.LocksidecarError):
            pass  # a broken stream ends too
        finally:
            session.end()
            self._sockets.close(self._sock)

    def shut(self) -> None:
        """Ends the connection, so its reader ends too."""
        _fork.end(self._sock)

    def abort(self) -> None:
        """Ends the connection, and closes its descriptor."""
        self.shut()
        self._sockets.close(self._sock)

    def _read(self) -> None:
        data = self._sock.recv(65536)
        if not data:
            raise self._core.broken("ended the event stream")
        self.found += self._parser.feed(data)

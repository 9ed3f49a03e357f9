"""The client for threads."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from . import _core, _decorator, _fork, _wire, errors
from ._call import UNSET, AcquireOptions, Call, Steps, acquire_options
from ._core import Core
from ._lock import NotPickled
from ._session import Session
from ._sync_lock import Lock, LockContext, LockSignal, ManyContext, this_thread
from .types import Description, Duration, Event, LockInfo, LockOptions, Outcome, Scope, Status

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

P = ParamSpec("P")
T = TypeVar("T")


class EventStream:
    """What happens to one key, as an iterator of events. It holds a connection until `close`, or the end of `with`."""

    def __init__(self, client: Client, key: str) -> None:
        self._client, self._key = client, key
        self._sock: socket.socket | None = None
        self._parser = _wire.StreamParser()
        self._found: list[tuple[str, Any]] = []

    def __enter__(self) -> Self:
        """Returns when the key is watched; the first event is its state then."""
        self._fill()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        self._fill()
        return _core.watched(self._key, *self._found.pop(0))

    def _fill(self) -> None:
        try:
            if self._sock is None:
                self._sock = self._client._stream(self._client._core.watch(self._key))
            while not self._found:
                self._found = self._client._read_stream(self._sock, self._parser)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends it. Another thread that waits for the next event gets `SidecarUnavailable`."""
        sock, self._sock = self._sock, None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            self._client._sockets.close(sock)


class _Closed(Exception):
    """The connection was closed before it has answered anything."""


class Client(NotPickled):
    """A client for threads: one session, opened on first use, for this object and this process.

    socket_path: the sidecar's socket; by default `LOCKSIDECAR_SOCKET`, else `/run/locksidecar/locksidecar.sock`.
    name: of the session, shown to others with its locks. ttl: the default of its locks, in seconds or a `timedelta`.
    timeout: how long the sidecar may take for an answer, in seconds, on top of a wait.
    reconnect: how long a call that waits bears an outage of the sidecar, such as its restart, in seconds; other
    calls raise `SidecarUnavailable` at once, and the next one tries again.

    It may be made before a fork and used on both sides: a child opens its own session, and the parent's locks are
    the parent's.
    """

    def __init__(
        self,
        socket_path: str | os.PathLike[str] | None = None,
        *,
        name: str | None = None,
        ttl: Duration | None = None,
        timeout: Duration = 10.0,
        reconnect: Duration = 30.0,
    ) -> None:
        self._core = Core(socket_path, name, ttl, timeout, reconnect, LockSignal)
        self._sockets = _fork.Sockets()
        self._idle: list[socket.socket] = []
        self._opening = threading.Lock()
        self._reader: threading.Thread | None = None
        _fork.register(self)

    # The public surface.

    def acquire(self, key: str, **options: Unpack[LockOptions]) -> Lock:
        """Acquires a lock and returns it; `lock` is the same for a `with`.

        Raises `LockHeld` (with `wait=0`), `WaitTimeout`, `Skipped`, `SidecarUnavailable`, and the other `ApiError`s.
        """
        return self._take(key, options)

    def lock(self, key: str, **options: Unpack[LockOptions]) -> LockContext:
        """`with client.lock("workflow:123", wait=5, ttl=30) as lock`: see `LockOptions` and `acquire`.

        What it returns may be kept and used like a `threading.Lock`: see `LockContext`.
        """
        return LockContext(self, key, options)

    def try_lock(self, key: str, **options: Unpack[LockOptions]) -> Lock | None:
        """Acquires a lock if it is free; None if somebody has it."""
        options["wait"] = 0
        try:
            return self._take(key, options)
        except errors.LockHeld:
            return None

    def acquire_many(self, keys: Sequence[str], **options: Unpack[LockOptions]) -> list[Lock]:
        """Acquires 1 to 100 locks, all or none, without deadlocks in whatever order others name them."""
        made = self._options(options)
        try:
            return self._acquire_many(keys, made)
        except BaseException:
            self._give_back(made)
            raise

    def lock_many(self, keys: Sequence[str], **options: Unpack[LockOptions]) -> ManyContext:
        """`with client.lock_many(["account:7", "account:3"]) as locks`: see `acquire_many`."""
        return ManyContext(self, keys, options)

    def locked(self, key: str, **options: Unpack[LockOptions]) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Decorator: `@client.locked("report:{id}")` holds the lock while the function runs; `{id}` is its argument.

        Raises TypeError for an `async def` and for a generator, whose bodies run later.
        """
        acquire_options(options)  # so that a mistake is found where it is made

        def decorate(function: Callable[P, T]) -> Callable[P, T]:
            _decorator.check(function, wants_async=False)
            make_key = _decorator.key_maker(key, function)

            @functools.wraps(function)
            def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
                with self.lock(make_key(*args, **kwargs), **options):
                    return function(*args, **kwargs)

            return wrapper

        return decorate

    def once(self, key: str, function: Callable[[], T], **options: Unpack[LockOptions]) -> T:
        """Calls the function under the lock; or returns what another holder's `once` returned while this waited.

        The result must be JSON of at most 4 KiB, and all get it as JSON makes it: a tuple is a list. When the function
        raises, the next in line calls it.
        """
        options["on_success"] = "skip"
        try:
            lock = self.acquire(key, **options)
        except errors.Skipped as e:
            return cast(T, e.result)
        with lock:
            lock.outcome = "failure"  # unless the next two lines succeed
            result = cast(T, _wire.as_json(function()))
            lock.release("success", result)
        return result

    def release(
        self, key: str, token: int, outcome: Outcome | None = None, result: Any = UNSET, *, reentry: int | None = None
    ) -> bool:
        """Releases a lock by key and token, such as a `bind="ttl"` lock of another process. See `Lock.release`."""
        return bool(self._run(self._core.release(key, token, None, outcome, result, reentry))["released"])

    def check(self, key: str, token: int) -> Status:
        """Asks whether a lock is held under this token: raises `LockLost` or `NotHolder` if not."""
        return self._run(self._core.check(key, token, None))

    def extend(self, key: str, token: int, ttl: Duration) -> Status:
        """Sets the remaining time of a `bind="ttl"` lock by key and token, in seconds from now."""
        return self._run(self._core.check(key, token, None, ttl))

    def get(self, key: str, *, no_cache: bool = False) -> LockInfo:
        """Shows one lock. `no_cache` asks the store, not the sidecar's memory."""
        return self._run(self._core.get(key, no_cache))

    def locks(
        self, scope: Scope = "pod", *, prefix: str | None = None, type: str | None = None, page_size: int | None = None
    ) -> Iterator[LockInfo]:
        """Lists held locks by key: of this session, of this sidecar (`pod`), or of the whole namespace (`all`)."""
        cursor = None
        while True:
            page, cursor = self._run(self._core.page(scope, prefix, type, page_size, cursor))
            yield from page
            if cursor is None:
                return

    def stop(self, key: str, reason: str | None = None) -> None:
        """Asks the holder of a lock to release it; it may go on. Raises `NotHeld`."""
        self._run(self._core.stop(key, reason))

    def force_release(self, key: str) -> None:
        """Breaks a lock, whoever has it; returns when it is free. Raises `Forbidden`, `NotHeld`."""
        self._run(self._core.force_release(key))

    def events(self, key: str) -> EventStream:
        """Watches a key: `with client.events(key) as events`, `for event in events`. The first is its state.

        Best effort: some events may be missing. When the stream ends, the loop raises `SidecarUnavailable`.
        """
        return EventStream(self, key)

    def describe(self) -> Description:
        """Asks the sidecar for its version and features."""
        return self._run(self._core.ask_features())

    def close(self) -> None:
        """Ends the session and releases what it holds. The client cannot be used any more. May be called twice."""
        if self._core.closed:
            return
        self._core.closed = True  # whoever waits must not open another session
        session = self._core.live_session()
        if session is not None:
            self._drive(self._core.end_session(session))
            session.end()
        self._sockets.shut()
        self._drop_idle()
        if self._reader is not None and self._reader is not threading.current_thread():
            self._reader.join(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_idle"):
            self._sockets.shut()  # the reader sees it and goes
            self._drop_idle()

    # How calls are made.

    def _options(self, options: LockOptions) -> AcquireOptions:
        made = acquire_options(options)
        if made.reentrant and made.owner is None:
            made.owner = this_thread()
        return made

    def _take(self, key: str, options: LockOptions) -> Lock:
        made = self._options(options)
        try:
            return self._acquire(key, made)
        except BaseException:
            self._give_back(made)
            raise

    def _acquire(self, key: str, options: AcquireOptions) -> Lock:
        # Ctrl-C may come at any moment until the app has what this returns: `_give_back` then, with the same options.
        return Lock(self, *self._run(self._core.acquire(key, options)))

    def _acquire_many(self, keys: Sequence[str], options: AcquireOptions) -> list[Lock]:
        return [Lock(self, *one) for one in self._run(self._core.acquire_many(keys, options))]

    def _give_back(self, options: AcquireOptions) -> None:
        self._drive(self._core.give_back(options))

    def _run(self, steps: Steps[T]) -> T:
        """Makes the calls of an operation, in this thread."""
        if self._core.closed:
            raise self._core.is_closed()
        return self._drive(steps)

    def _drive(self, steps: Steps[T]) -> T:
        error: BaseException | None = None
        try:
            while True:
                try:
                    call = next(steps) if error is None else steps.throw(error)
                    error = None
                    while True:  # in the `try`: an interruption may come whenever a loop begins anew
                        call = steps.send(self._perform(call))
                except StopIteration as stop:
                    value: T = stop.value
                    return value
                except BaseException as e:
                    if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:  # the operation itself has raised it
                        raise
                    error = e
        finally:
            error = None  # it refers to this frame

    def _perform(self, call: Call) -> _wire.Answer:
        if call.delay:
            time.sleep(call.delay)
        if call.joins:
            call.session = self._open_session()
        elif call.needs and self._core.features is None:
            self._core.learn(self._exchange(self._core.describe()))
        self._core.require(call)
        return self._exchange(call)

    def _exchange(self, call: Call) -> _wire.Answer:
        data = call.encode()
        while True:
            sock, reused = self._take_idle(), True
            if sock is None:
                sock, reused = self._connect(), False
            try:
                answer = _exchange(sock, call, data)
            except _Closed:
                self._sockets.close(sock)
                if not call.again(reused):
                    raise self._core.broken("closed the connection without an answer") from None
                self._drop_idle()  # the sidecar was restarted: they are all dead
                call.repeated = True
                continue
            except TimeoutError:
                self._sockets.close(sock)
                raise self._core.timed_out(call) from None
            except OSError as e:
                self._sockets.close(sock)
                raise self._core.broken(f"broke the connection ({e})") from e
            except BaseException:  # also KeyboardInterrupt: closing ends a wait at the sidecar
                self._sockets.close(sock)
                raise
            if answer.last or len(self._idle) >= _core.MAX_IDLE or self._core.closed:
                self._sockets.close(sock)
            else:
                self._idle.append(sock)
            return answer

    def _take_idle(self) -> socket.socket | None:
        try:
            return self._idle.pop()
        except IndexError:  # no look before: another thread may take the last one
            return None

    def _connect(self) -> socket.socket:
        sock = self._sockets.new()
        try:
            sock.setblocking(False)
            backlog = _fork.Backlog(self._core.timeout)
            while True:
                try:
                    sock.connect(self._core.path)
                    return sock
                except BlockingIOError as e:
                    backlog.full(e)
                    time.sleep(backlog.PAUSE)
        except OSError as e:
            self._sockets.close(sock)
            raise self._core.unreachable(e) from e
        except BaseException:
            self._sockets.close(sock)
            raise

    def _drop_idle(self) -> None:
        while self._idle:
            with contextlib.suppress(IndexError):
                self._sockets.close(self._idle.pop())

    def _stream(self, call: Call) -> socket.socket:
        """Makes a call whose answer is an event stream, on a connection of its own."""
        if self._core.closed:
            raise self._core.is_closed()
        if call.needs and self._core.features is None:
            self._core.learn(self._exchange(self._core.describe()))
        self._core.require(call)
        sock = self._connect()
        try:
            sock.settimeout(_core.SILENCE)
            sock.sendall(call.encode())
        except OSError as e:
            self._sockets.close(sock)
            raise self._core.broken(f"broke the connection ({e})") from e
        except BaseException:
            self._sockets.close(sock)
            raise
        return sock

    def _read_stream(self, sock: socket.socket, parser: _wire.StreamParser) -> list[tuple[str, Any]]:
        try:
            data = sock.recv(65536)
        except TimeoutError:
            raise self._core.broken(f"has said nothing for {_core.SILENCE:g} s") from None
        except OSError as e:
            raise self._core.broken(f"broke the event stream ({e})") from e
        if not data:
            raise self._core.broken("ended the event stream")
        return parser.feed(data)

    # The session.

    def _open_session(self) -> Session:
        session = self._core.live_session()
        if session is not None:
            return session
        with self._opening:
            session = self._core.live_session()
            if session is not None:
                return session
            self._core.learn(self._exchange(self._core.describe()))
            sock = self._stream(self._core.open_session())
            try:
                parser = _wire.StreamParser()
                events: list[tuple[str, Any]] = []
                sock.settimeout(self._core.timeout)
                while not events:
                    events = self._read_stream(sock, parser)
                session = self._core.opened(events.pop(0)[1], functools.partial(_shut, sock))
                sock.settimeout(_core.SILENCE)
                self._reader = threading.Thread(
                    target=_listen,
                    args=(self._sockets, sock, parser, events, session),
                    name="locksidecar-session",
                    daemon=True,
                )
                self._reader.start()
            except BaseException:
                self._sockets.close(sock)
                raise
            self._core.adopt(session)
            return session

    def _forked(self) -> None:
        # In the child. Threads are gone, and what they had locked stays locked.
        self._sockets.abandon()
        self._idle = []
        self._opening = threading.Lock()
        self._reader = None
        self._core.forked()


def _exchange(sock: socket.socket, call: Call, data: bytes) -> _wire.Answer:
    parser = _wire.AnswerParser()
    sock.settimeout(call.timeout)
    call.sent = time.monotonic()
    try:
        sock.sendall(data)
        while True:
            piece = sock.recv(65536)
            if not piece:
                raise ConnectionResetError("the connection was closed")
            answer = parser.feed(piece)
            if answer is not None:
                call.answer = answer
                return answer
    except (BrokenPipeError, ConnectionResetError):
        if parser.started:
            raise
        raise _Closed from None


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _listen(
    sockets: _fork.Sockets,
    sock: socket.socket,
    parser: _wire.StreamParser,
    events: list[tuple[str, Any]],
    session: Session,
) -> None:
    """Reads a session's stream until it ends. It does not keep the client alive."""
    try:
        while True:
            for name, data in events:
                session.hear(name, data)
            piece = sock.recv(65536)
            if not piece:
                return
            events = parser.feed(piece)
    except TimeoutError:
        sockets.shut()  # the sidecar hangs: the calls that wait would wait for ever
    except (OSError, errors.LocksidecarError):
        pass  # the stream is broken, which is an end as well
    finally:
        session.end()
        sockets.close(sock)

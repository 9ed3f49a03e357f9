"""The client for asyncio. It differs from `_sync` in how calls are made, and in nothing that they say."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from . import _core, _decorator, _fork, _wire, errors
from ._async_connection import Closed, Conn, Connection, Stream
from ._async_lock import AsyncLock, AsyncLockContext, AsyncLockSignal, AsyncManyContext, this_task
from ._call import UNSET, AcquireOptions, Call, Steps, acquire_options
from ._core import Core
from ._lock import NotPickled
from ._session import Session
from .types import Description, Duration, Event, LockInfo, LockOptions, Outcome, Scope, Status

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

P = ParamSpec("P")
T = TypeVar("T")


class AsyncEventStream:
    """What happens to one key, as an async iterator of events. It holds a connection until `close`."""

    def __init__(self, client: AsyncClient, key: str) -> None:
        self._client, self._key = client, key
        self._stream: Stream | None = None

    async def __aenter__(self) -> Self:
        """Returns when the key is watched; the first event is its state then."""
        await self._fill()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        stream = await self._fill()
        return _core.watched(self._key, *stream.found.pop(0))

    async def _fill(self) -> Stream:
        try:
            if self._stream is None:
                self._stream = await self._client._stream(self._client._core.watch(self._key))
            await self._stream.filled()
            return self._stream
        except asyncio.CancelledError:
            raise  # of one wait for an event; the next one goes on
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends it. Another task that waits for the next event gets `SidecarUnavailable`."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort()


class AsyncClient(NotPickled):
    """A client for asyncio: one session, opened on first use, for this object, this process and one event loop.

    The arguments are those of `Client`. It may be made before a fork, or before the loop runs; a child opens its own
    session. For each of several loops that run at the same time, make a client of its own.
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
        self._core = Core(socket_path, name, ttl, timeout, reconnect, AsyncLockSignal)
        self._sockets = _fork.Sockets()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[Connection] = []
        self._opening = asyncio.Lock()
        self._cleanups: set[asyncio.Task[None]] = set()
        _fork.register(self)

    # The public surface.

    async def acquire(self, key: str, **options: Unpack[LockOptions]) -> AsyncLock:
        """Acquires a lock and returns it; `lock` is the same for an `async with`.

        Raises `LockHeld` (with `wait=0`), `WaitTimeout`, `Skipped`, `SidecarUnavailable`, and the other `ApiError`s.
        """
        return await self._acquire(key, self._options(options))

    def lock(self, key: str, **options: Unpack[LockOptions]) -> AsyncLockContext:
        """`async with client.lock("workflow:123", wait=5, ttl=30) as lock`: see `LockOptions` and `acquire`.

        What it returns may be kept, and used by `acquire` and `release`: see `AsyncLockContext`.
        """
        return AsyncLockContext(self, key, options)

    async def try_lock(self, key: str, **options: Unpack[LockOptions]) -> AsyncLock | None:
        """Acquires a lock if it is free; None if somebody has it."""
        options["wait"] = 0
        try:
            return await self.acquire(key, **options)
        except errors.LockHeld:
            return None

    async def acquire_many(self, keys: Sequence[str], **options: Unpack[LockOptions]) -> list[AsyncLock]:
        """Acquires 1 to 100 locks, all or none, without deadlocks in whatever order others name them."""
        grants = await self._run(self._core.acquire_many(keys, self._options(options)))
        return [AsyncLock(self, *one) for one in grants]

    def lock_many(self, keys: Sequence[str], **options: Unpack[LockOptions]) -> AsyncManyContext:
        """`async with client.lock_many(["account:7", "account:3"]) as locks`: see `acquire_many`."""
        return AsyncManyContext(self, keys, options)

    def locked(
        self, key: str, **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """Decorator: `@client.locked("report:{id}")` holds the lock while the function runs; `{id}` is its argument.

        Raises TypeError for what is not an `async def`, and for a generator, whose body runs later.
        """
        acquire_options(options)  # so that a mistake is found where it is made

        def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
            _decorator.check(function, wants_async=True)
            make_key = _decorator.key_maker(key, function)

            @functools.wraps(function)
            async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
                async with self.lock(make_key(*args, **kwargs), **options):
                    return await function(*args, **kwargs)

            return wrapper

        return decorate

    @overload
    async def once(self, key: str, function: Callable[[], Awaitable[T]], **options: Unpack[LockOptions]) -> T: ...
    @overload
    async def once(self, key: str, function: Callable[[], T], **options: Unpack[LockOptions]) -> T: ...
    async def once(self, key: str, function: Callable[[], Any], **options: Unpack[LockOptions]) -> Any:
        """Calls the function under the lock; or returns what another holder's `once` returned while this waited.

        The result must be JSON of at most 4 KiB, and all get it as JSON makes it: a tuple is a list. When the function
        raises, the next in line calls it.
        """
        options["on_success"] = "skip"
        try:
            lock = await self.acquire(key, **options)
        except errors.Skipped as e:
            return e.result
        async with lock:
            lock.outcome = "failure"  # unless the next lines succeed
            made = function()
            result = _wire.as_json(await made if inspect.isawaitable(made) else made)
            await lock.release("success", result)
        return result

    async def release(
        self, key: str, token: int, outcome: Outcome | None = None, result: Any = UNSET, *, reentry: int | None = None
    ) -> bool:
        """Releases a lock by key and token, such as a `bind="ttl"` lock of another process. See `AsyncLock.release`."""
        value = await self._run(self._core.release(key, token, None, outcome, result, reentry))
        return bool(value["released"])

    async def check(self, key: str, token: int) -> Status:
        """Asks whether a lock is held under this token: raises `LockLost` or `NotHolder` if not."""
        return await self._run(self._core.check(key, token, None))

    async def extend(self, key: str, token: int, ttl: Duration) -> Status:
        """Sets the remaining time of a `bind="ttl"` lock by key and token, in seconds from now."""
        return await self._run(self._core.check(key, token, None, ttl))

    async def get(self, key: str, *, no_cache: bool = False) -> LockInfo:
        """Shows one lock. `no_cache` asks the store, not the sidecar's memory."""
        return await self._run(self._core.get(key, no_cache))

    async def locks(
        self, scope: Scope = "pod", *, prefix: str | None = None, type: str | None = None, page_size: int | None = None
    ) -> AsyncIterator[LockInfo]:
        """Lists held locks by key: of this session, of this sidecar (`pod`), or of the whole namespace (`all`)."""
        cursor = None
        while True:
            page, cursor = await self._run(self._core.page(scope, prefix, type, page_size, cursor))
            for one in page:
                yield one
            if cursor is None:
                return

    async def stop(self, key: str, reason: str | None = None) -> None:
        """Asks the holder of a lock to release it; it may go on. Raises `NotHeld`."""
        await self._run(self._core.stop(key, reason))

    async def force_release(self, key: str) -> None:
        """Breaks a lock, whoever has it; returns when it is free. Raises `Forbidden`, `NotHeld`."""
        await self._run(self._core.force_release(key))

    def events(self, key: str) -> AsyncEventStream:
        """Watches a key: `async with client.events(key) as events`, `async for event in events`.

        The first is its state. Best effort: some events may be missing. When the stream ends, the loop raises
        `SidecarUnavailable`.
        """
        return AsyncEventStream(self, key)

    async def describe(self) -> Description:
        """Asks the sidecar for its version and features."""
        return await self._run(self._core.ask_features())

    async def close(self) -> None:
        """Ends the session and releases what it holds. The client cannot be used any more. May be called twice."""
        if self._core.closed:
            return
        self._core.closed = True  # whoever waits must not open another session
        session = self._core.live_session()
        if session is not None:
            await self._drive(self._core.end_session(session))
            session.end()
        self._sockets.shut()
        self._drop_idle()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # How calls are made.

    def _options(self, options: LockOptions) -> AcquireOptions:
        made = acquire_options(options)
        if made.reentrant and made.owner is None:
            made.owner = this_task()
        return made

    async def _acquire(self, key: str, options: AcquireOptions) -> AsyncLock:
        return AsyncLock(self, *await self._run(self._core.acquire(key, options)))

    async def _run(self, steps: Steps[T]) -> T:
        """Makes the calls of an operation, in this task."""
        if self._core.closed:
            raise self._core.is_closed()
        self._attach()
        return await self._drive(steps)

    async def _drive(self, steps: Steps[T]) -> T:
        answer: Any = None
        error: Exception | None = None
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
                except Exception as e:
                    if inspect.getgeneratorstate(steps) == inspect.GEN_CLOSED:  # the operation itself has raised it
                        raise
                    error = e
                except BaseException as e:
                    # Cancelled. What the operation has to clean up it does in a task of its own: this one may be
                    # cancelled again.
                    call = steps.throw(e)
                    cleanup = asyncio.ensure_future(self._clean_up(steps, call, e))
                    self._cleanups.add(cleanup)
                    cleanup.add_done_callback(self._cleanups.discard)
                    await asyncio.shield(cleanup)
                    raise
        finally:
            error = None  # it refers to this frame

    async def _clean_up(self, steps: Steps[Any], call: Call, why: BaseException) -> None:
        try:
            while True:
                try:
                    answer = await self._perform(call)
                except Exception as e:
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
            call.session = self._core.live_session() or await self._open_session()
        elif call.needs and self._core.features is None:
            self._core.learn(await self._exchange(self._core.describe()))
        self._core.require(call)
        return await self._exchange(call)

    async def _exchange(self, call: Call) -> _wire.Answer:
        data = call.encode()
        while True:
            if self._idle:
                connection, reused = self._idle.pop(), True
            else:
                connection, reused = await self._connect(Connection), False
            try:
                answer = await connection.exchange(call, data)
            except Closed:
                connection.abort()
                if not call.again(reused):
                    raise self._core.broken("closed the connection without an answer") from None
                self._drop_idle()  # the sidecar was restarted: they are all dead
                call.repeated = True
                continue
            except BaseException:  # also a cancellation: closing ends a wait at the sidecar
                connection.abort()
                raise
            if answer.last or len(self._idle) >= _core.MAX_IDLE or self._core.closed:
                connection.abort()
            else:
                self._idle.append(connection)
            return answer

    async def _connect(self, make: Callable[[Core, _fork.Sockets, socket.socket], Conn]) -> Conn:
        assert self._loop is not None
        sock = self._sockets.new()
        try:
            sock.setblocking(False)
            backlog = _fork.Backlog(self._core.timeout)
            while True:
                try:
                    sock.connect(self._core.path)  # on a Unix socket this is done at once
                    break
                except BlockingIOError as e:
                    backlog.full(e)
                    await asyncio.sleep(backlog.PAUSE)
            protocol = make(self._core, self._sockets, sock)
            await self._loop.create_unix_connection(lambda: protocol, sock=sock)
            return protocol
        except OSError as e:
            self._sockets.close(sock)
            raise self._core.unreachable(e) from e
        except BaseException:
            self._sockets.close(sock)
            raise

    def _drop_idle(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    async def _stream(self, call: Call) -> Stream:
        """Makes a call whose answer is an event stream, on a connection of its own."""
        self._attach()
        if self._core.closed:
            raise self._core.is_closed()
        if call.needs and self._core.features is None:
            self._core.learn(await self._exchange(self._core.describe()))
        self._core.require(call)
        stream = await self._connect(Stream)
        stream.write(call.encode())
        return stream

    # The session.

    async def _open_session(self) -> Session:
        async with self._opening:
            session = self._core.live_session()
            if session is not None:
                return session
            self._core.learn(await self._exchange(self._core.describe()))
            call = self._core.open_session()
            stream = await self._stream(call)
            # Not asyncio.wait_for: before Python 3.12, a cancellation that comes with the answer is lost in it.
            late = asyncio.get_running_loop().call_later(self._core.timeout, stream.fail, self._core.timed_out(call))
            try:
                await stream.filled()
            except BaseException:
                stream.abort()
                raise
            finally:
                late.cancel()
            session = self._core.opened(stream.found.pop(0)[1], stream.abort)
            stream.hear(session)
            self._core.adopt(session)
            return session

    def _attach(self) -> None:
        """Binds the client to the loop that runs."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            if not self._loop.is_closed():
                raise RuntimeError("this AsyncClient is used in another event loop; make one for each loop")
            # Its connections have ended with their loop; nobody has told the locks.
            self._sockets.abandon()
            session = self._core.live_session()
            if session is not None:
                session.end()
        self._loop = loop
        self._idle = []
        self._opening = asyncio.Lock()
        self._cleanups = set()

    def _forked(self) -> None:
        # In the child. The parent's loop is not touched: both have the same epoll descriptor, so that ending a
        # transport here would make the parent deaf.
        self._sockets.abandon()
        self._loop = None
        self._core.forked()

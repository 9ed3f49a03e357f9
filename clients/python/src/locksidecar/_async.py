"""The client for asyncio."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from . import _core, _decorator, _wire, errors
from ._async_lock import AsyncLock, AsyncLockContext, AsyncManyContext, new_acquire, take, take_all
from ._async_transport import AsyncTransport, Stream
from ._call import UNSET
from ._core import Core
from ._lock import NotPickled
from ._options import acquire_options
from ._tasks import AsyncLockSignal, call
from .types import Description, Duration, Event, LockInfo, LockOptions, Outcome, Scope, Status

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

P = ParamSpec("P")
T = TypeVar("T")


class AsyncEventStream:
    """The events of one key. It holds a connection until `close` or the end of `async with`."""

    def __init__(self, transport: AsyncTransport, key: str) -> None:
        self._transport, self._key = transport, key
        self._stream: Stream | None = None

    async def __aenter__(self) -> Self:
        """Returns when the key is watched. The first event is its state then."""
        await self._filled()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        stream = await self._filled()
        return _core.watched(self._key, *stream.found.pop(0))

    async def _filled(self) -> Stream:
        try:
            if self._stream is None:
                self._stream = await self._transport.stream(self._transport.core.watch(self._key))
            stream = self._stream
            await stream.filled()
            return stream
        except Exception:  # an interruption ends the wait, not the stream
            self.close()
            raise

    def close(self) -> None:
        """Ends the stream. A task that waits for the next event gets `SidecarUnavailable`."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort()


class AsyncClient(NotPickled):
    """A client for asyncio. It has one session in each process, opened on first use.

    socket_path: the sidecar's socket; by default `LOCKSIDECAR_SOCKET`, else `/run/locksidecar/locksidecar.sock`.
    name: the public name of the session. ttl: the default of its locks, in seconds or a `timedelta`.
    timeout: the most seconds for an answer, in addition to a wait.
    reconnect: the most seconds that a waiting call goes on in an outage of the sidecar, such as its restart. Other
    calls raise `SidecarUnavailable` at once.

    It may be made before a fork. The child opens its own session, and the parent keeps its locks.

    It belongs to one event loop, and may be made before that runs.
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
        self._transport = AsyncTransport(self._core)

    async def acquire(self, key: str, **options: Unpack[LockOptions]) -> AsyncLock:
        """Acquires a lock and returns it. Use `lock` for a block.

        Raises `LockHeld` (with `wait=0`), `WaitTimeout`, `Skipped`, `SidecarUnavailable`, and the other `ApiError`s.
        """
        acquire = new_acquire(self._transport, [key], options)
        try:
            return await take(self._transport, acquire)
        except BaseException:
            await self._transport.drive(acquire.withdraw())
            raise

    def lock(self, key: str, **options: Unpack[LockOptions]) -> AsyncLockContext:
        """`async with client.lock("workflow:123", wait=5, ttl=30) as lock`: see `LockOptions` and `acquire`.

        The result also has `acquire` and `release`: see `AsyncLockContext`.
        """
        return AsyncLockContext(self._transport, key, options)

    async def try_lock(self, key: str, **options: Unpack[LockOptions]) -> AsyncLock | None:
        """Acquires a lock if it is free. Returns None if it is held."""
        options["wait"] = 0
        try:
            return await self.acquire(key, **options)
        except errors.LockHeld:
            return None

    async def acquire_many(self, keys: Sequence[str], **options: Unpack[LockOptions]) -> list[AsyncLock]:
        """Acquires 1 to 100 locks, all or none. There are no deadlocks, whatever the order of the keys."""
        acquire = new_acquire(self._transport, keys, options)
        try:
            return await take_all(self._transport, acquire)
        except BaseException:
            await self._transport.drive(acquire.withdraw())
            raise

    def lock_many(self, keys: Sequence[str], **options: Unpack[LockOptions]) -> AsyncManyContext:
        """`async with client.lock_many(["account:7", "account:3"]) as locks`: see `acquire_many`."""
        return AsyncManyContext(self._transport, keys, options)

    def locked(
        self, key: str, **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]:
        """Decorator: `@client.locked("report:{id}")` holds the lock while the function runs. `{id}` is its argument.

        Raises TypeError for a function whose body would not run under the lock, such as a generator.
        """
        acquire_options(options)  # so that a mistake is found here

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
    async def once(
        self, key: str, function: Callable[[], Awaitable[T]] | Callable[[], T], **options: Unpack[LockOptions]
    ) -> T:
        """Calls the function under the lock, or returns the result of another holder's `once` after a wait.

        The result must be JSON of at most 4 KiB. All callers get it as JSON makes it: a tuple is a list. If the
        function raises, the next waiter calls it.
        """
        options["on_success"] = "skip"
        try:
            lock = await self.acquire(key, **options)
        except errors.Skipped as e:
            return cast(T, e.result)
        async with lock:
            lock.outcome = "failure"  # unless the next two lines succeed
            result = cast(T, _wire.as_json(await call(function)))
            await lock.release("success", result)
        return result

    async def release(
        self, key: str, token: int, outcome: Outcome | None = None, result: Any = UNSET, *, reentry: int | None = None
    ) -> bool:
        """Releases a lock by key and token, such as a `bind="ttl"` lock of another process. See `AsyncLock.release`."""
        value = await self._transport.run(self._core.release(key, token, None, outcome, result, reentry))
        return bool(value["released"])

    async def check(self, key: str, token: int) -> Status:
        """Checks that a lock is held under this token. Raises `LockLost` or `NotHolder` if not."""
        return await self._transport.run(self._core.check(key, token, None))

    async def extend(self, key: str, token: int, ttl: Duration) -> Status:
        """Sets the remaining time of a `bind="ttl"` lock by key and token, in seconds from now."""
        return await self._transport.run(self._core.check(key, token, None, ttl))

    async def get(self, key: str, *, no_cache: bool = False) -> LockInfo:
        """Shows one lock. With `no_cache` the sidecar asks the store."""
        return await self._transport.run(self._core.get(key, no_cache))

    async def locks(
        self, scope: Scope = "pod", *, prefix: str | None = None, type: str | None = None, page_size: int | None = None
    ) -> AsyncIterator[LockInfo]:
        """Lists held locks by key: of this session, of this sidecar (`pod`), or of the whole namespace (`all`)."""
        cursor = None
        while True:
            page, cursor = await self._transport.run(self._core.page(scope, prefix, type, page_size, cursor))
            for one in page:
                yield one
            if cursor is None:
                return

    async def stop(self, key: str, reason: str | None = None) -> None:
        """Asks the holder of a lock to release it. The holder may go on. Raises `NotHeld`."""
        await self._transport.run(self._core.stop(key, reason))

    async def force_release(self, key: str) -> None:
        """Breaks a lock of any holder. Returns when it is free. Raises `Forbidden`, `NotHeld`."""
        await self._transport.run(self._core.force_release(key))

    def events(self, key: str) -> AsyncEventStream:
        """Watches a key: `async with client.events(key) as events`, `async for event in events`.

        The first event is the state. Delivery is best effort: events may be missing. The end of the stream raises
        `SidecarUnavailable`.
        """
        return AsyncEventStream(self._transport, key)

    async def describe(self) -> Description:
        """Asks the sidecar for its version and features."""
        return await self._transport.run(self._core.ask_features())

    async def close(self) -> None:
        """Ends the session and releases its locks. The client cannot be used after that. May be called twice."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

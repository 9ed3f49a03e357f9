"""The client for asyncio."""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from . import _decorator, _wire, errors
from ._async_events import AsyncEventStream
from ._async_lead import AsyncLeaders, AsyncTerm, lead
from ._async_lock import AsyncLock, AsyncLockContext, AsyncManyContext, AsyncSemaphore, new_acquire, take, take_all
from ._async_loss import CancelledLock, CancelledMany, OnLoss
from ._async_transport import AsyncTransport
from ._call import UNSET
from ._core import Core
from ._lock import NotPickled
from ._options import acquire_options
from ._tasks import AsyncLockSignal, call
from .types import Description, Duration, LockInfo, LockOptions, Outcome, Scope, SemaphoreOptions, Status, Waiter

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

P = ParamSpec("P")
T = TypeVar("T")


class AsyncClient(NotPickled):
    """A client for asyncio. It has one session in each process, opened on first use.

    socket_path: the sidecar's socket; by default `LOCKSIDECAR_SOCKET`, else `/run/locksidecar/locksidecar.sock`
            if this folder is there, else `~/.locksidecar/locksidecar.sock`.
    url: names the sidecar instead, over TCP: `https://HOST:PORT`, `http://HOST:PORT` or `unix:///PATH`; by default
            `LOCKSIDECAR_URL`, which wins over `LOCKSIDECAR_SOCKET`.
    token_file, ca_file: files with the token, and with the CA of the sidecar's certificate; by default
            `LOCKSIDECAR_TOKEN_FILE` and `LOCKSIDECAR_CA_FILE`.
    name: the public name of the session. ttl: the default of its locks, in seconds or a `timedelta`.
    timeout: the most seconds for an answer, in addition to a wait.
    reconnect: the most seconds that a waiting call goes on in an outage of the sidecar, such as its restart. Other
    calls raise `Unavailable` at once.

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
        url: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self._core = Core(socket_path, name, ttl, timeout, reconnect, AsyncLockSignal, url, token_file, ca_file)
        self._transport = AsyncTransport(self._core)

    async def acquire(self, key: str, **options: Unpack[LockOptions]) -> AsyncLock:
        """Acquires a lock and returns it. Use `lock` for a block.

        Raises `LockHeld` (with `wait=0`), `WaitTimeout`, `Skipped`, `Unavailable`, and the other `ApiError`s.
        """
        acquire = new_acquire(self._transport, [key], options)
        try:
            return await take(self._transport, acquire)
        except BaseException:
            await self._transport.drive(acquire.withdraw())
            raise

    def lock(self, key: str, *, on_loss: OnLoss | None = None, **options: Unpack[LockOptions]) -> AsyncLockContext:
        """`async with client.lock("workflow:123", wait=5, ttl=30) as lock`: see `LockOptions` and `acquire`.

        The result also has `acquire` and `release`: see `AsyncLockContext`.

        on_loss="cancel": a loss of the lock cancels the task in the block, which then raises `LockLost`.
        """
        if on_loss is not None:
            return CancelledLock(self._transport, key, options, on_loss)
        return AsyncLockContext(self._transport, key, options)

    def semaphore(self, key: str, limit: int, **options: Unpack[SemaphoreOptions]) -> AsyncSemaphore:
        """`async with client.semaphore("gpu", limit=5) as permit`: at most `limit` holders, in all pods.

        `permit.slot` is the smallest number from 0 that no other holder has. All that use a key name the same limit, or
        get `LimitMismatch`.
        """
        return AsyncSemaphore(self._transport, key, limit, options)

    async def shared(self, key: str, **options: Unpack[LockOptions]) -> AsyncLock:
        """Waits for a share of a lock: shared holders do not exclude each other. It is `acquire` with `shared=True`."""
        options["shared"] = True
        return await self.acquire(key, **options)

    async def try_acquire(self, key: str, **options: Unpack[LockOptions]) -> AsyncLock | None:
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

    def lock_many(
        self, keys: Sequence[str], *, on_loss: OnLoss | None = None, **options: Unpack[LockOptions]
    ) -> AsyncManyContext:
        """`async with client.lock_many(["account:7", "account:3"]) as locks`: see `acquire_many`, and `lock`."""
        if on_loss is not None:
            return CancelledMany(self._transport, keys, options, on_loss)
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

    async def get(self, key: str, *, fresh: bool = False) -> LockInfo:
        """Shows one lock. With `fresh` the sidecar asks the store."""
        return await self._transport.run(self._core.get(key, fresh))

    async def locks(
        self, scope: Scope = "all", *, prefix: str | None = None, type: str | None = None, page_size: int | None = None
    ) -> AsyncIterator[LockInfo]:
        """Lists held locks by key: of the whole namespace, of this sidecar (`pod`), or of this session (`session`)."""
        cursor = None
        while True:
            page, cursor = await self._transport.run(self._core.page(scope, prefix, type, page_size, cursor))
            for one in page:
                yield one
            if cursor is None:
                return

    async def waiters(
        self, key: str | None = None, *, prefix: str | None = None, page_size: int | None = None
    ) -> AsyncIterator[Waiter]:
        """Lists the calls of all pods that wait for a key, in their order. Without a key: those for all keys."""
        cursor = None
        while True:
            page, cursor = await self._transport.run(self._core.waiters_page(key, prefix, page_size, cursor))
            for one in page:
                yield one
            if cursor is None:
                return

    async def stop(self, key: str, reason: str | None = None, *, token: int | None = None) -> None:
        """Asks the holder of a lock to release it, or all shared holders, or the one that has the token.

        They may go on. Raises `NotHeld`.
        """
        await self._transport.run(self._core.stop(key, reason, token))

    async def force_release(self, key: str, *, token: int | None = None) -> None:
        """Breaks a lock of any holder, or of all shared holders, or of the one that has the token.

        Returns when it is free. Raises `Forbidden`, `NotHeld`.
        """
        await self._transport.run(self._core.force_release(key, token))

    @overload
    async def lead(
        self,
        key: str,
        on_lead: Callable[[AsyncTerm], Awaitable[T]],
        *,
        data: Any = None,
        ttl: Duration | None = None,
        max_hold: Duration | None = None,
        min_hold: Duration | None = None,
    ) -> T: ...
    @overload
    async def lead(
        self,
        key: str,
        on_lead: Callable[[AsyncTerm], T],
        *,
        data: Any = None,
        ttl: Duration | None = None,
        max_hold: Duration | None = None,
        min_hold: Duration | None = None,
    ) -> T: ...
    async def lead(
        self,
        key: str,
        on_lead: Callable[[AsyncTerm], Awaitable[T]] | Callable[[AsyncTerm], T],
        *,
        data: Any = None,
        ttl: Duration | None = None,
        max_hold: Duration | None = None,
        min_hold: Duration | None = None,
    ) -> T:
        """Waits until it is the leader, and calls `on_lead(term)`. At the end of a term it campaigns again.

        A term ends, and `term.lost` happens, when the lock is lost or somebody asks to stop.
        A task is cancelled then.
        The client hears of both at once while the sidecar answers. If it hangs, the lock is lost when its lease ends
        by this process's clock.
        If the function returns before, this gives up the leadership and returns its result. Its exceptions go on.
        A campaign goes on through an outage of the sidecar or its store, if the client has reached them before.
        Otherwise it raises `Unavailable`, `LimitReached`, `SessionEnded`, and always what will not pass, such as
        `InvalidRequest`, `Forbidden`, and `SessionEnded` of a closed client.
        """
        options: LockOptions = {"data": data, "ttl": ttl, "max_hold": max_hold, "min_hold": min_hold}
        return await lead(self._transport, key, on_lead, options)

    async def leader(self, key: str) -> Any:
        """Returns the data of the leader. None without a leader, or if it has no data."""
        holder = (await self.get(key)).holder
        return None if holder is None else holder.data

    def watch_leader(self, key: str) -> AsyncLeaders:
        """The data of the leader, now and after each change: None without a leader. Use it as `events`.

        The data of the next leader comes when it is elected. A later `lock.update` is not an event.
        """
        return AsyncLeaders(self._transport, key)

    def events(self, key: str) -> AsyncEventStream:
        """Watches a key: `async with client.events(key) as events`, `async for event in events`.

        The first event is the state. Delivery is best effort: events may be missing. The end of the stream raises
        `Unavailable`.
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

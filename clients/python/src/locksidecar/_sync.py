# Written by unasync.py: change _async.py.
"""The client for threads."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from . import _decorator, _wire, errors
from ._call import UNSET
from ._core import Core
from ._lock import NotPickled
from ._options import acquire_options
from ._sync_events import EventStream
from ._sync_lead import Leaders, Term, lead
from ._sync_lock import Lock, LockContext, ManyContext, Semaphore, new_acquire, take, take_all
from ._sync_transport import Transport
from ._threads import LockSignal, call
from .types import Description, Duration, LockInfo, LockOptions, Outcome, Scope, SemaphoreOptions, Status, Waiter

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

P = ParamSpec("P")
T = TypeVar("T")


class Client(NotPickled):
    """A client for threads. It has one session in each process, opened on first use.

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
        self._core = Core(socket_path, name, ttl, timeout, reconnect, LockSignal, url, token_file, ca_file)
        self._transport = Transport(self._core)

    def acquire(self, key: str, **options: Unpack[LockOptions]) -> Lock:
        """Acquires a lock and returns it. Use `lock` for a block.

        Raises `LockHeld` (with `wait=0`), `WaitTimeout`, `Skipped`, `Unavailable`, and the other `ApiError`s.
        """
        acquire = new_acquire(self._transport, [key], options)
        try:
            return take(self._transport, acquire)
        except BaseException:
            self._transport.drive(acquire.withdraw())
            raise

    def lock(self, key: str, **options: Unpack[LockOptions]) -> LockContext:
        """`with client.lock("workflow:123", wait=5, ttl=30) as lock`: see `LockOptions` and `acquire`.

        The result also has `acquire` and `release`: see `LockContext`.
        """
        return LockContext(self._transport, key, options)

    def semaphore(self, key: str, limit: int, **options: Unpack[SemaphoreOptions]) -> Semaphore:
        """`with client.semaphore("gpu", limit=5) as permit`: at most `limit` holders, in all pods.

        `permit.slot` is the smallest number from 0 that no other holder has. All that use a key name the same limit, or
        get `LimitMismatch`.
        """
        return Semaphore(self._transport, key, limit, options)

    def shared(self, key: str, **options: Unpack[LockOptions]) -> Lock:
        """Waits for a share of a lock: shared holders do not exclude each other. It is `acquire` with `shared=True`."""
        options["shared"] = True
        return self.acquire(key, **options)

    def try_acquire(self, key: str, **options: Unpack[LockOptions]) -> Lock | None:
        """Acquires a lock if it is free. Returns None if it is held."""
        options["wait"] = 0
        try:
            return self.acquire(key, **options)
        except errors.LockHeld:
            return None

    def acquire_many(self, keys: Sequence[str], **options: Unpack[LockOptions]) -> list[Lock]:
        """Acquires 1 to 100 locks, all or none. There are no deadlocks, whatever the order of the keys."""
        acquire = new_acquire(self._transport, keys, options)
        try:
            return take_all(self._transport, acquire)
        except BaseException:
            self._transport.drive(acquire.withdraw())
            raise

    def lock_many(self, keys: Sequence[str], **options: Unpack[LockOptions]) -> ManyContext:
        """`with client.lock_many(["account:7", "account:3"]) as locks`: see `acquire_many`."""
        return ManyContext(self._transport, keys, options)

    def locked(self, key: str, **options: Unpack[LockOptions]) -> Callable[[Callable[P, T]], Callable[P, T]]:
        """Decorator: `@client.locked("report:{id}")` holds the lock while the function runs. `{id}` is its argument.

        Raises TypeError for a function whose body would not run under the lock, such as a generator.
        """
        acquire_options(options)  # so that a mistake is found here

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
        """Calls the function under the lock, or returns the result of another holder's `once` after a wait.

        The result must be JSON of at most 4 KiB. All callers get it as JSON makes it: a tuple is a list. If the
        function raises, the next waiter calls it.
        """
        options["on_success"] = "skip"
        try:
            lock = self.acquire(key, **options)
        except errors.Skipped as e:
            return cast(T, e.result)
        with lock:
            lock.outcome = "failure"  # unless the next two lines succeed
            result = cast(T, _wire.as_json(call(function)))
            lock.release("success", result)
        return result

    def release(
        self, key: str, token: int, outcome: Outcome | None = None, result: Any = UNSET, *, reentry: int | None = None
    ) -> bool:
        """Releases a lock by key and token, such as a `bind="ttl"` lock of another process. See `Lock.release`."""
        value = self._transport.run(self._core.release(key, token, None, outcome, result, reentry))
        return bool(value["released"])

    def check(self, key: str, token: int) -> Status:
        """Checks that a lock is held under this token. Raises `LockLost` or `NotHolder` if not."""
        return self._transport.run(self._core.check(key, token, None))

    def extend(self, key: str, token: int, ttl: Duration) -> Status:
        """Sets the remaining time of a `bind="ttl"` lock by key and token, in seconds from now."""
        return self._transport.run(self._core.check(key, token, None, ttl))

    def get(self, key: str, *, fresh: bool = False) -> LockInfo:
        """Shows one lock. With `fresh` the sidecar asks the store."""
        return self._transport.run(self._core.get(key, fresh))

    def locks(
        self, scope: Scope = "all", *, prefix: str | None = None, type: str | None = None, page_size: int | None = None
    ) -> Iterator[LockInfo]:
        """Lists held locks by key: of the whole namespace, of this sidecar (`pod`), or of this session (`session`)."""
        cursor = None
        while True:
            page, cursor = self._transport.run(self._core.page(scope, prefix, type, page_size, cursor))
            yield from page
            if cursor is None:
                return

    def waiters(
        self, key: str | None = None, *, prefix: str | None = None, page_size: int | None = None
    ) -> Iterator[Waiter]:
        """Lists the calls of all pods that wait for a key, in their order. Without a key: those for all keys."""
        cursor = None
        while True:
            page, cursor = self._transport.run(self._core.waiters_page(key, prefix, page_size, cursor))
            yield from page
            if cursor is None:
                return

    def stop(self, key: str, reason: str | None = None, *, token: int | None = None) -> None:
        """Asks the holder of a lock to release it, or all shared holders, or the one that has the token.

        They may go on. Raises `NotHeld`.
        """
        self._transport.run(self._core.stop(key, reason, token))

    def force_release(self, key: str, *, token: int | None = None) -> None:
        """Breaks a lock of any holder, or of all shared holders, or of the one that has the token.

        Returns when it is free. Raises `Forbidden`, `NotHeld`.
        """
        self._transport.run(self._core.force_release(key, token))

    def lead(
        self,
        key: str,
        on_lead: Callable[[Term], T],
        *,
        data: Any = None,
        ttl: Duration | None = None,
        max_hold: Duration | None = None,
        min_hold: Duration | None = None,
    ) -> T:
        """Waits until it is the leader, and calls `on_lead(term)`. At the end of a term it campaigns again.

        A term ends, and `term.lost` happens, when the lock is lost or somebody asks to stop.
        The function has to look at it, and to return.
        The client hears of both at once while the sidecar answers. If it hangs, the lock is lost when its lease ends
        by this process's clock.
        If the function returns before, this gives up the leadership and returns its result. Its exceptions go on.
        A campaign goes on through an outage of the sidecar or its store, if the client has reached them before.
        Otherwise it raises `Unavailable`, `LimitReached`, `SessionEnded`, and always what will not pass, such as
        `InvalidRequest`, `Forbidden`, and `SessionEnded` of a closed client.
        """
        options: LockOptions = {"data": data, "ttl": ttl, "max_hold": max_hold, "min_hold": min_hold}
        return lead(self._transport, key, on_lead, options)

    def leader(self, key: str) -> Any:
        """Returns the data of the leader. None without a leader, or if it has no data."""
        holder = (self.get(key)).holder
        return None if holder is None else holder.data

    def watch_leader(self, key: str) -> Leaders:
        """The data of the leader, now and after each change: None without a leader. Use it as `events`.

        The data of the next leader comes when it is elected. A later `lock.update` is not an event.
        """
        return Leaders(self._transport, key)

    def events(self, key: str) -> EventStream:
        """Watches a key: `with client.events(key) as events`, `for event in events`.

        The first event is the state. Delivery is best effort: events may be missing. The end of the stream raises
        `Unavailable`.
        """
        return EventStream(self._transport, key)

    def describe(self) -> Description:
        """Asks the sidecar for its version and features."""
        return self._transport.run(self._core.ask_features())

    def close(self) -> None:
        """Ends the session and releases its locks. The client cannot be used after that. May be called twice."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

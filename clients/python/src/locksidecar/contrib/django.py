"""Django: `manage.py` commands with a lock, and a decorator for views and other functions.

    class Command(LockedCommand):
        lock_key = "close-books:{year}"

        def handle(self, *args, **options): ...

    @locked("order:{pk}")
    def pay(request, pk): ...

The setting `LOCKSIDECAR` has the arguments of the client: `{"socket_path": "/run/locksidecar/locksidecar.sock"}`.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from .. import AsyncClient, Client, LockOptions, errors
from .._decorator import check, key_maker
from .._options import acquire_options
from ._held import AWAY, missing, run_held, run_held_async

try:
    from django.conf import settings
    from django.core.management.base import BaseCommand, CommandError
    from django.db import connections
    from django.http import HttpRequest, HttpResponse
except ImportError as e:
    raise missing("django", e) from e

if TYPE_CHECKING:
    from typing_extensions import Unpack

F = TypeVar("F", bound=Callable[..., Any])


def _arguments() -> dict[str, Any]:
    return dict(getattr(settings, "LOCKSIDECAR", {}))


@functools.lru_cache(None)
def client() -> Client:
    """The client of this process, with the setting `LOCKSIDECAR`."""
    return Client(**_arguments())


class LockedCommand(BaseCommand):
    """A command that runs under a lock. In it, `held()` is the lock, and a lost lock raises `LockLost`.

    lock_key: the key, with the command's options: `"close-books:{year}"`; by default `command:` and its name.
    lock_options: those of `client.acquire`; without a `wait` it does not wait. With `min_hold`, the crons of several
    hosts run it once. lock_held: `fail` (the default: CommandError, exit code 1) or `skip` (says so, exit code 0).
    lock_unavailable: the same without the sidecar. The command does not run in either case.
    """

    lock_key: ClassVar[str] = ""
    lock_options: ClassVar[LockOptions] = {}
    lock_held: ClassVar[Literal["fail", "skip"]] = "fail"
    lock_unavailable: ClassVar[Literal["fail", "skip"]] = "fail"

    def execute(self, *args: Any, **options: Any) -> str | None:
        """Acquires the lock and runs the command as Django does."""
        name = type(self).__module__.rpartition(".")[2]
        key = self.lock_key.format_map(options) if self.lock_key else f"command:{name}"
        wanted: LockOptions = {"wait": 0, **self.lock_options}
        try:
            lock = client().acquire(key, **wanted)
        except (errors.LockHeld, *AWAY) as e:
            by = f", by pod {e.holder.pod!r}" if isinstance(e, errors.LockHeld) and e.holder else ""
            text = f"{name} does not run: {e}{by}"
            if (self.lock_held if isinstance(e, errors.LockHeld) else self.lock_unavailable) == "fail":
                raise CommandError(text) from e
            (options.get("stdout") or self.stdout).write(text + "\n")
            return None
        return run_held(lock, functools.partial(super().execute, *args, **options))


def locked(key: str, **options: Unpack[LockOptions]) -> Callable[[F], F]:
    """Decorator: holds the lock while the function runs. It takes plain functions and `async def`.

    key: with the function's parameters: `"order:{pk}"`. options: those of `client.acquire`; without a `wait` it does
    not wait. A view answers 423 if the lock is held, and 503 without the sidecar or after a lost lock; another function
    raises the error. A lost lock raises `LockLost` in the function, and cancels a coroutine.
    Raises RuntimeError in a transaction, which would end after the release: see `non_atomic_requests`.
    """
    wanted: LockOptions = {"wait": 0, **options}
    acquire_options(wanted)  # so that a mistake is found here

    def decorate(function: F) -> F:
        make_key, wants_async = key_maker(key, function), inspect.iscoroutinefunction(function)
        check(function, wants_async)

        @functools.wraps(function)
        def plain(*args: Any, **kwargs: Any) -> Any:
            _check_transactions(key)
            try:
                lock = client().acquire(make_key(*args, **kwargs), **wanted)
                return run_held(lock, functools.partial(function, *args, **kwargs))
            except errors.LocksidecarError as e:
                return _answer(e, args)

        @functools.wraps(function)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            try:
                # Under WSGI each request has an event loop of its own, and a client belongs to one.
                async with AsyncClient(**_arguments()) as one:
                    lock = await one.acquire(make_key(*args, **kwargs), **wanted)
                    return await run_held_async(lock, functools.partial(function, *args, **kwargs))
            except errors.LocksidecarError as e:
                return _answer(e, args)

        return coroutine if wants_async else plain  # type: ignore[return-value]

    return decorate


def _check_transactions(key: str) -> None:
    for connection in connections.all(initialized_only=True):
        # As Atomic(durable=True) does. Those of Django's TestCase do not count.
        if any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks):
            raise RuntimeError(
                f"lock {key!r} would be released before the transaction ends, and others would read old data"
            )


def _answer(error: errors.LocksidecarError, args: tuple[Any, ...]) -> HttpResponse:
    """The response of a view. Raises the error if this is no view, or if it says nothing about the lock."""
    if args and isinstance(args[0], HttpRequest):
        if isinstance(error, errors.LockHeld):
            return HttpResponse("The lock is held.", status=423)
        if isinstance(error, (errors.LockLost, *AWAY)):
            after = math.ceil(error.retry_after or 1)
            return HttpResponse("The lock cannot be held now.", status=503, headers={"Retry-After": str(after)})
    raise error

"""Invalid arguments are refused before a call is sent, in the words of this package."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from functools import partial, wraps
from typing import Any, cast

import pytest

from conftest import waiting
from locksidecar import AsyncClient, Client, InvalidRequest, LockHeld
from test_async import in_loop


def in_our_words(error: pytest.ExceptionInfo[Exception]) -> None:
    assert "_ms" not in str(error.value)
    assert "AcquireOptions" not in str(error.value)


@pytest.mark.parametrize("option", ["wait", "ttl", "max_hold", "min_hold"])
@pytest.mark.parametrize("value", [-1, -0.001, 86400.001, 3e6, 1e300, float("nan"), timedelta(days=2)])
def test_durations_out_of_range(client: Client, key: str, option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{option}=.* is not between .* and 86400 seconds") as error:
        client.acquire(key, **{option: value})
    assert isinstance(error.value, InvalidRequest)
    in_our_words(error)
    assert client.get(key).state == "free"


@pytest.mark.parametrize("value", ["5", True, Decimal(5), [1]])
def test_durations_of_another_type(client: Client, key: str, value: Any) -> None:
    for option in ("wait", "ttl", "max_hold", "min_hold"):
        with pytest.raises(TypeError, match=rf"^{option}=.*seconds.*timedelta"):
            client.lock(key, **{option: value})
    with pytest.raises(TypeError, match=r"^timeout="):
        Client(timeout=value)


def test_the_error_names_the_way_to_wait_for_ever(client: Client, key: str) -> None:
    with pytest.raises(ValueError, match="None waits for ever"):
        client.acquire(key, wait=-1)
    client.acquire(key, wait=float("inf")).release()


def test_durations_of_a_client() -> None:
    for wrong in ({"ttl": 0.1}, {"timeout": 0}, {"timeout": -1}, {"timeout": 1e7}, {"reconnect": -1}):
        [name] = wrong
        for make in (Client, AsyncClient):
            with pytest.raises(ValueError, match=rf"^{name}=") as error:
                make(**wrong)
            in_our_words(error)
    Client(timeout=timedelta(seconds=1), reconnect=float("inf"), ttl=0.5)


def test_a_timedelta_is_a_duration(path: str, client: Client, other: Client, key: str) -> None:
    second = timedelta(seconds=1)
    with Client(path, ttl=30 * second, timeout=10 * second, reconnect=second) as own:
        with own.lock(key, wait=second, ttl=30 * second, min_hold=0 * second, max_hold=60 * second) as lock:
            assert lock.expires_in > 20
            assert not lock.lost.wait(timedelta(milliseconds=1))
            with pytest.raises(LockHeld):
                client.acquire(key, wait=second / 20)
    ttl = client.acquire(key, bind="ttl", ttl=timedelta(minutes=1))
    assert 60 < ttl.extend(timedelta(minutes=2)).expires_in <= 120
    assert client.extend(key, ttl.token, timedelta(minutes=1)).expires_in <= 60
    assert ttl.release()


def test_refusals_use_the_words_of_this_package(client: Client, key: str) -> None:
    with client.lock(key) as lock:
        for extend in (lock.extend, partial(client.extend, key, lock.token)):
            with pytest.raises(InvalidRequest, match="ttl") as error:
                extend(30)  # the sidecar renews it
            in_our_words(error)
            with pytest.raises(ValueError, match=r"^ttl=0.1 is not between 0.5 and 86400 seconds"):
                extend(0.1)
        with pytest.raises(LockHeld) as held:
            client.acquire(key, wait=0)
        in_our_words(held)
    with pytest.raises(InvalidRequest, match=r"min_hold \(in ms\) is 60000") as error:
        client.acquire(key, bind="ttl", ttl=1, min_hold=60)
    in_our_words(error)
    with pytest.raises(LockHeld, match="the_ttl_ms"), client.lock("the_ttl_ms"):
        client.acquire("the_ttl_ms", wait=0)


def test_unknown_options(client: Client, key: str) -> None:
    async_client = AsyncClient(client._core.path)
    calls: list[Callable[..., Any]] = [
        client.lock, client.acquire, client.try_acquire, client.acquire_many, client.lock_many, client.locked,
        partial(client.once, function=lambda: 1), async_client.lock, async_client.lock_many, async_client.locked,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'wiat'.*\bwait\b.*\bttl\b") as error:
            call(key, wiat=1)  # at its creation, not at its start
        in_our_words(error)
        assert "'call'" not in str(error.value)


@pytest.mark.parametrize("wrong", [5, None, b"k", ["k"]])
def test_keys_of_another_type(client: Client, wrong: Any) -> None:
    for call in (client.acquire, client.get, client.stop, partial(client.release, token=1)):
        with pytest.raises(TypeError, match=r"key=.*: it must be a str, not ") as error:
            call(wrong)
        in_our_words(error)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda c, k: c.acquire(k, data=float("nan")), r"^data: it must be JSON"),
        (lambda c, k: c.lock(k, data=object()), r"^data: it must be JSON"),
        (lambda c, k: c.acquire(k, data="\ud800"), r"^data: it must be JSON"),
        (lambda c, k: c.acquire(k, owner=b"me"), r"^owner=b'me': it must be a str"),
        (lambda c, k: c.acquire(k, request_id=5), r"^request_id=5: it must be a str"),
        (lambda c, k: c.acquire(k, bind=5), r"^bind=5: it must be a str"),
        (lambda c, k: c.acquire(k, shared="yes"), r"^shared='yes': it must be True or False"),
        (lambda c, k: c.acquire(k, reentrant=1), r"^reentrant=1: it must be True or False"),
        (lambda c, _: c.acquire("half:\ud800"), r"^key=.* has no form in UTF-8"),
        (lambda c, _: c.acquire_many(None), r"^keys=None: it must be a list of keys"),
        (lambda c, _: c.lock_many(b"ab"), r"^keys=b'ab': it must be a list of keys, not one bytes"),
        (lambda c, k: c.lock_many([k, None]), r"^key=None: it must be a str"),
        (lambda c, k: c.semaphore(k, None), r"^limit=None: it must be a whole number"),
        (lambda c, _: c.locked(None)(lambda: 1), r"^key=None: it must be a str"),
        (lambda c, k: c.stop(k, b"why"), r"^reason=b'why': it must be a str"),
        (lambda c, k: c.release(k, None), r"^token=None: it must be a whole number"),
        (lambda c, k: c.check(k, b"1"), r"^token=b'1': it must be a whole number"),
        (lambda c, k: c.extend(k, float("nan"), 5), r"^token=nan: it must be a whole number"),
        (lambda c, k: c.release(k, 1, 5), r"^outcome=5: it must be a str"),
        (lambda c, k: c.release(k, 1, "success", float("nan")), r"^result: it must be JSON"),
        (lambda c, _: list(c.locks(prefix=b"x")), r"^prefix=b'x': it must be a str"),
        (lambda c, k: c.acquire(k).update(float("nan")), r"^data: it must be JSON"),
        (lambda *_: cast(Any, Client)(name=b"x"), r"^name=b'x': it must be a str"),
        (lambda *_: cast(Any, Client)(5), r"^socket_path=5: it must be a path"),
        (lambda *_: Client("/tmp/\0.sock"), r"^socket_path=.* has a null character"),
    ],
)
def test_what_is_wrong_is_named(client: Client, key: str, call: Callable[..., Any], names: str) -> None:
    with pytest.raises((TypeError, InvalidRequest), match=names) as error:
        call(client, key)
    in_our_words(error)


def test_one_str_is_no_list_of_keys(client: Client) -> None:
    with pytest.raises(TypeError, match="keys='ab': it must be a list of keys"):
        client.acquire_many("ab", wait=0)
    with pytest.raises(TypeError, match="keys='ab': it must be a list of keys"), client.lock_many("ab"):
        pass


def test_locked_holds_the_lock_while_the_body_runs(client: Client, key: str) -> None:
    async def coroutine() -> None: ...
    def generator() -> Iterator[int]:
        yield 1

    async def asynchronous_generator() -> AsyncIterator[int]:
        yield 1

    wrong: list[tuple[Any, str]] = [
        (coroutine, "AsyncClient.locked"),
        (partial(coroutine), "AsyncClient.locked"),
        (generator, "`with client.lock"),
        (asynchronous_generator, "`async with client.lock"),
    ]
    for function, instead in wrong:
        name = getattr(function, "__name__", "coroutine")
        with pytest.raises(TypeError, match=f"{name}.*released before.*{instead}"):
            client.locked(key)(function)

    @wraps(coroutine)
    def runs_it() -> None:
        assert client.get(key).state == "held"
        asyncio.run(coroutine())

    client.locked(key)(runs_it)()


@in_loop
async def test_locked_of_async_client(path: str, key: str) -> None:
    client = AsyncClient(path)

    def plain() -> int:
        return 1

    def generator() -> Iterator[int]:
        yield 1

    async def asynchronous_generator() -> AsyncIterator[int]:
        yield 1

    async def coroutine() -> str:
        return (await client.get(key)).state

    wrong: list[tuple[Any, str]] = [
        (plain, r"plain.*not `async def`.*Client\.locked"),
        (generator, "generator.*released before.*`with client.lock"),
        (asynchronous_generator, "asynchronous_generator.*released before.*`async with client.lock"),
    ]
    for function, text in wrong:
        with pytest.raises(TypeError, match=text):
            client.locked(key)(function)

    @wraps(coroutine)
    def decorated() -> Any:
        return coroutine()

    assert await client.locked(key)(coroutine)() == "held"
    assert await client.locked(key)(decorated)() == "held"
    assert await client.locked(key)(partial(coroutine))() == "held"
    await client.close()


def test_once_returns_the_same_result_to_all(client: Client, other: Client, key: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def work() -> Any:
        waiting(client, key)
        return {1: (2, 3)}

    with ThreadPoolExecutor(2) as pool:
        results = [pool.submit(c.once, key, work) for c in (client, other)]
        assert [r.result(60) for r in results] == [{"1": [2, 3]}] * 2

    async def main() -> Any:
        async with AsyncClient(client._core.path) as one:
            return await one.once(key, lambda: {1: (2, 3)})

    assert asyncio.run(main()) == {"1": [2, 3]}

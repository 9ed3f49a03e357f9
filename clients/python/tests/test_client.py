from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

import locksidecar
from conftest import LONG, free, until, waiting
from locksidecar import (
    Client,
    InvalidRequest,
    Lock,
    LockHeld,
    LockLost,
    LocksidecarError,
    NotHeld,
    NotHolder,
    SessionEnded,
    Skipped,
    TooLarge,
    Unsupported,
    WaitTimeout,
)


def test_held_in_the_body_and_free_after_it(client: Client, other: Client, key: str) -> None:
    with client.lock(key, wait=LONG, ttl=30) as lock:
        assert lock.token > 0
        assert client.get(key).mine
        assert other.get(key).state == "held"
    assert lock.released
    assert other.get(key).state == "free"


def test_a_lock_released_by_its_token_is_forgotten(client: Client, key: str) -> None:
    lock = client.acquire(key)
    assert client.release(key, lock.token)
    session = client._core.session
    assert session is not None
    assert not session._grants


def test_an_error_names_the_holder(client: Client, other: Client, key: str) -> None:
    with client.lock(key, data={"by": "me"}):
        with pytest.raises(LockHeld) as held:
            other.acquire(key, wait=0)
        assert held.value.holder is not None
        assert held.value.holder.session == "one"
        assert held.value.holder.data == {"by": "me"}
        assert other.try_acquire(key) is None

        def timed_out() -> bool:
            with pytest.raises(WaitTimeout) as timeout:
                other.acquire(key, wait=0.05)
            assert timeout.value.waited >= 0.05
            return timeout.value.queue_position == 1  # none: its time ended before it was in the queue

        until("the error has its position", timed_out)
    lock = other.try_acquire(key)
    assert lock is not None
    with lock:
        assert other.get(key).mine


def test_waits_for_ever_without_wait(client: Client, other: Client, key: str) -> None:
    lock = client.acquire(key)
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(other.acquire, key)
        waiting(client, key)
        assert lock.release()
        second = waiter.result(LONG)
    assert second.token > lock.token
    assert second.waited >= 0  # whole milliseconds, and this may have taken less than one


def test_threads_exclude_each_other(client: Client, key: str) -> None:
    inside, most, tokens = 0, 0, []

    def work(_: int) -> None:
        nonlocal inside, most
        with client.lock(key) as lock:
            inside += 1
            most = max(most, inside)
            tokens.append(lock.token)
            inside -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(80)))
    assert most == 1
    assert tokens == sorted(set(tokens))
    assert len(client._transport._idle) <= 9  # one for each, and one that no waiting call takes


def test_reentrant_is_per_thread(client: Client, key: str) -> None:
    with client.lock(key, reentrant=True) as outer:
        with client.lock(key, reentrant=True) as inner:
            assert (inner.reentry, inner.token) == (2, outer.token)
            with ThreadPoolExecutor(1) as pool:
                assert pool.submit(client.try_acquire, key, reentrant=True).result() is None
        assert client.get(key).mine
    assert client.get(key).state == "free"


def test_entries_may_be_released_in_any_order(client: Client, key: str) -> None:
    outer, inner = (client.acquire(key, owner="workflow", reentrant=True) for _ in range(2))
    assert not outer.release()
    with pytest.raises(NotHolder):
        outer.release()  # it would release the other entry
    assert client.get(key).mine
    assert inner.release()


def test_entries_that_threads_share(client: Client, key: str) -> None:
    locks = [client.acquire(key, owner="workflow", reentrant=True) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(Lock.release, locks)) == [False] * 7 + [True]


def test_the_exception_of_the_body_goes_on(client: Client, other: Client, key: str) -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        with client.lock(key) as lock:
            other.force_release(key)
            assert lock.lost.wait(LONG)
            raise ZeroDivisionError
    assert any("forced" in note for note in getattr(raised.value, "__notes__", ["forced"]))


def test_a_loss_is_raised_at_the_end_of_the_body(client: Client, other: Client, key: str) -> None:
    with pytest.raises(LockLost) as lost:
        with client.lock(key):
            other.force_release(key)
    assert lost.value.reason == "forced"


def test_lost_is_an_event_and_a_callback(client: Client, other: Client, key: str) -> None:
    called = threading.Event()
    lock = client.acquire(key)
    lock.lost.on(lambda: 1 / 0)  # is logged, and the next callback runs
    lock.lost.on(called.set)
    assert not lock.lost
    assert not lock.lost.wait(0.01)
    other.force_release(key)
    assert lock.lost.wait(LONG)
    assert lock.lost
    assert lock.lost.reason == "forced"
    assert called.wait(LONG)
    late = threading.Event()
    lock.lost.on(late.set)
    assert late.is_set()
    with pytest.raises(LockLost):
        lock.check()
    with pytest.raises(LockLost):
        lock.release()


def test_stop(client: Client, other: Client, key: str) -> None:
    with client.lock(key) as lock:
        assert lock.check().stopping is None
        other.stop(key, "deploy")
        assert lock.stopping.wait(LONG)
        assert lock.stopping.reason == "deploy"
        stopping = lock.check().stopping
        assert stopping is not None
        assert stopping.reason == "deploy"
    with pytest.raises(NotHeld):
        other.stop(key)


def test_check_update_and_a_lost_claim(client: Client, other: Client, key: str) -> None:
    with client.lock(key) as lock:
        assert lock.check().token == lock.token
        lock.update({"step": 2})
        holder = other.get(key, fresh=True).holder
        assert holder is not None
        assert holder.data == {"step": 2}
        with pytest.raises(NotHolder) as refused:
            other.check(key, lock.token)
        assert refused.value.reason == "other_session"
        with pytest.raises(InvalidRequest, match="ttl"):
            lock.extend(30)  # the sidecar renews it


def test_ttl_locks_outlive_the_session(client: Client, other: Client, path: str, key: str) -> None:
    with Client(path) as gone:
        asked = time.monotonic()
        lock = gone.acquire(key, bind="ttl", ttl=60)
        assert lock.expires_in <= 57 < lock.expires_in + (time.monotonic() - asked) + 0.01  # less the margin
        assert lock.extend(120).expires_in > 60
        assert lock.expires_in > 60
    assert client.get(key).state == "held"
    assert other.extend(key, lock.token, 30).expires_in <= 30
    assert other.release(key, lock.token)
    with pytest.raises(NotHolder):
        other.check(key, lock.token)


def test_skipping_waiters_get_the_result(client: Client, other: Client, key: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        with client.lock(key) as lock:
            waiter = pool.submit(other.acquire, key, on_success="skip")
            waiting(client, key)
            lock.outcome, lock.result = "success", {"rows": 3}
        with pytest.raises(Skipped) as skipped:
            waiter.result(LONG)
    assert skipped.value.result == {"rows": 3}


def test_once(client: Client, other: Client, key: str) -> None:
    calls, begun, go_on = [], threading.Event(), threading.Event()

    def work() -> dict[str, int]:
        calls.append(1)
        begun.set()
        assert go_on.wait(LONG)
        return {"rows": 3}

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(client.once, key, work)
        assert begun.wait(LONG)
        others = [pool.submit(other.once, key, work) for _ in range(2)]
        waiting(client, key, 2)
        go_on.set()
        assert [f.result(LONG) for f in (first, *others)] == [{"rows": 3}] * 3
    assert calls == [1]


def test_the_next_waiter_calls_a_once_that_failed(client: Client, other: Client, key: str) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def fail() -> int:
        begun.set()
        assert go_on.wait(LONG)
        raise ZeroDivisionError

    with ThreadPoolExecutor(2) as pool, other.events(key) as events:
        first = pool.submit(client.once, key, fail)
        assert begun.wait(LONG)
        second = pool.submit(other.once, key, lambda: 7)
        waiting(client, key)
        go_on.set()
        with pytest.raises(ZeroDivisionError):
            first.result(LONG)
        assert second.result(LONG) == 7
        released = [e.data["outcome"] for e in (next(events) for _ in range(5)) if e.type == "released"]
    assert released == ["failure", "success"]


@pytest.mark.parametrize(("result", "error"), [("x" * 5000, TooLarge), (float("nan"), ValueError), (set(), TypeError)])
def test_once_refuses_a_result_that_is_no_small_json(client: Client, key: str, result: object, error: type) -> None:
    with pytest.raises(error):
        client.once(key, lambda: result)
    assert client.get(key).state == "free"


def test_lock_many(client: Client, other: Client, key: str) -> None:
    keys = [f"{key}:{n}" for n in (2, 1)]
    with client.lock_many(keys) as locks:
        assert [lock.key for lock in locks] == keys
        with pytest.raises(LockHeld) as held:
            with other.lock_many([f"{key}:0", f"{key}:1"], wait=0):
                pytest.fail("held by another")
        assert held.value.key == f"{key}:1"
        assert other.get(f"{key}:0").state == "free"
    assert [other.get(k).state for k in keys] == ["free", "free"]


def test_lock_many_releases_the_rest_of_a_lost_one(client: Client, other: Client, key: str) -> None:
    keys = [f"{key}:{n}" for n in range(3)]
    with pytest.raises(LockLost):
        with client.lock_many(keys):
            other.force_release(keys[1])
    for k in keys:
        assert other.get(k, fresh=True).state == "free"


def test_decorator(client: Client, other: Client) -> None:
    @client.locked("report:{id}:{kind}", wait=0)
    def report(id: int, kind: str = "daily") -> str:
        assert other.get(f"report:{id}:{kind}").state == "held"
        return f"{id} {kind}"

    assert report(7) == "7 daily"
    assert report(id=7, kind="weekly") == "7 weekly"
    assert report.__name__ == "report"
    with other.lock("report:8:daily"), pytest.raises(LockHeld):
        report(8)
    with pytest.raises(ValueError, match=r"'typo'.*report"):
        client.locked("report:{typo}")(report)


def test_events(client: Client, other: Client, key: str) -> None:
    with client.events(key) as events:
        assert next(events).type == "state"
        with other.lock(key) as lock:
            assert next(events).data["holder"]["session"] == "other"
            client.stop(key, "why")
            assert next(events).data["reason"] == "why"
            lock.outcome, lock.result = "success", [1]
        event = next(events)
        assert (event.type, event.key, event.data["result"]) == ("released", key, [1])


def test_locks_lists_all_pages(client: Client, other: Client, key: str) -> None:
    kind = key.replace(":", "")
    keys = sorted(f"{kind}:{n} ä/%" for n in range(5))
    with ExitStack() as stack:
        for k in keys:
            stack.enter_context(client.lock(k))
        assert [lock.key for lock in other.locks(type=kind, page_size=2)] == keys
        assert [lock.key for lock in other.locks("all", prefix=f"{kind}:3")] == [keys[3]]
        assert [lock.key for lock in client.locks("session", prefix=kind)] == keys
        assert list(other.locks("session")) == []


def test_close_releases_before_it_returns(path: str, other: Client, key: str) -> None:
    client = Client(path)
    lock = client.acquire(key)
    client.close()
    client.close()
    assert other.get(key, fresh=True).state == "free"
    assert lock.lost
    with pytest.raises(SessionEnded, match="closed"):
        client.acquire(key)
    until("its reader has closed the stream, too", lambda: len(client._transport._sockets) == 0)


def test_close_ends_the_waits(path: str, client: Client, key: str) -> None:
    with ThreadPoolExecutor(1) as pool, client.lock(key):
        closing = Client(path)
        closing.acquire(f"{key}:other")
        waiter = pool.submit(closing.acquire, key)
        waiting(client, key)
        closing.close()
        with pytest.raises(SessionEnded, match="closed"):
            waiter.result(LONG)


def test_close_ends_a_wait_on_a_connection_that_was_used_before(
    path: str, client: Client, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(2) as pool, client.lock(key):
        closing = Client(path)
        with client.lock(f"{key}:a"), client.lock(f"{key}:b"):  # each of these waits has a connection
            waits = [pool.submit(closing.acquire, f"{key}:{name}", bind="ttl") for name in "ab"]
            waiting(client, f"{key}:a")
            waiting(client, f"{key}:b")
        for one in waits:
            one.result(LONG).release()
        idle = len(closing._transport._idle)
        waiter = pool.submit(closing.acquire, key, bind="ttl")
        waiting(client, key)
        assert len(closing._transport._idle) == idle - 1
        connects: list[float | None] = []
        connect = closing._transport._connect

        def counted(limit: float | None) -> socket.socket:
            connects.append(limit)
            return connect(limit)

        monkeypatch.setattr(closing._transport, "_connect", counted)
        closing.close()
        with pytest.raises(SessionEnded, match="closed"):
            waiter.result(LONG)
        assert len(connects) == 1  # for the withdrawal
        until("nobody waits", lambda: client.get(key, fresh=True).queue_length == 0)


def test_a_call_makes_no_connection_for_a_closed_client(
    path: str, client: Client, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing = Client(path)
    connect = closing._transport._connect

    def meanwhile(limit: float | None) -> socket.socket:
        closing.close()
        return connect(limit)

    monkeypatch.setattr(closing._transport, "_connect", meanwhile)
    with pytest.raises(SessionEnded, match="closed"):
        closing.acquire(key, bind="ttl")
    assert len(closing._transport._sockets) == 0
    assert client.get(key, fresh=True).state == "free"


def test_a_deleted_client_ends_its_session(path: str, other: Client, key: str) -> None:
    Client(path).acquire(key)
    free(other, key)
    until("its thread has ended", lambda: "locksidecar-session" not in {t.name for t in threading.enumerate()})


def test_a_missing_feature_is_an_error(client: Client, key: str) -> None:
    client.acquire(key).release()
    assert client._core.features is not None
    client._core.features -= {"reentrant", "hold"}
    with pytest.raises(Unsupported, match="'reentrant'"):
        client.acquire(key, reentrant=True)
    with pytest.raises(Unsupported, match="'hold'"):
        client.acquire(key, max_hold=1)
    client.acquire(key).release()


def test_bad_arguments(client: Client, key: str) -> None:
    with pytest.raises(TypeError, match="wiat"):
        client.acquire(key, wiat=1)  # type: ignore[call-arg]


def test_all_errors_are_in_one_tree() -> None:
    for name in locksidecar.errors.__all__:
        assert issubclass(getattr(locksidecar, name), LocksidecarError)
    assert len(set(locksidecar.__all__)) == len(locksidecar.__all__)
    for name in locksidecar.__all__:
        assert hasattr(locksidecar, name)

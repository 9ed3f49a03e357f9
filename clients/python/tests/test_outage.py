from __future__ import annotations

import contextlib
import os
import signal
import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from conftest import LONG, Sidecar, until, waiting
from locksidecar import Client, LockLost, LocksidecarError, NoAnswer, ProtocolError, Unavailable, WaitTimeout, _core
from locksidecar._call import Call
from locksidecar._wire import Answer


def test_a_sidecar_that_restarts_under_a_waiting_client(sidecar: Sidecar, key: str) -> None:
    with ThreadPoolExecutor(1) as pool, Client(sidecar.path) as one, Client(sidecar.path) as other:
        lock = one.acquire(key)
        waiter = pool.submit(other.acquire, key)
        waiting(one, key)
        sidecar.kill()
        assert lock.lost.wait(LONG)
        assert lock.lost.reason == "disconnected"
        with pytest.raises(LockLost):
            lock.release()
        with pytest.raises(Unavailable, match=r"nobody listens|no such socket"):
            one.acquire(key, wait=0)
        sidecar.start()
        granted = waiter.result(LONG)
        assert other.get(key).mine
        assert one.try_acquire(key) is None
        granted.release()


def test_a_sidecar_that_drains_under_a_waiting_client(sidecar: Sidecar, key: str) -> None:
    with ThreadPoolExecutor(1) as pool, Client(sidecar.path) as one, Client(sidecar.path) as other:
        one.acquire(key)
        waiter = pool.submit(other.acquire, key)
        waiting(one, key)
        sidecar.stop()
        sidecar.start()
        assert waiter.result(LONG).token


def test_an_idle_client_does_not_notice_a_restart(sidecar: Sidecar, key: str) -> None:
    with Client(sidecar.path) as client:
        with client.lock(key):
            pass
        sidecar.stop()
        sidecar.start()
        with client.lock(key, wait=0):
            pass


def test_a_dead_idle_connection_is_replaced(sidecar: Sidecar, key: str) -> None:
    with Client(sidecar.path) as client:
        lock = client.acquire(key)
        for sock in client._transport._idle:
            sock.shutdown(socket.SHUT_RDWR)
        assert client.get(key).mine
        for sock in client._transport._idle:
            sock.shutdown(socket.SHUT_RDWR)
        assert lock.release()
        client.acquire(key)
        for sock in client._transport._idle:
            sock.shutdown(socket.SHUT_RDWR)
        client.force_release(key)  # it may not be repeated, but nothing was sent


def test_heads_before_the_answer_do_not_prolong_a_call(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener, Client(path, timeout=0.3) as client:
        listener.bind(path)
        listener.listen()

        def serve() -> None:
            app, _ = listener.accept()
            with app, contextlib.suppress(OSError):
                while True:
                    app.sendall(b"HTTP/1.1 102 Processing\r\n\r\n")
                    time.sleep(0.05)

        threading.Thread(target=serve, daemon=True).start()
        started = time.monotonic()
        with pytest.raises(LocksidecarError, match="did not answer"):
            client.get("k")
        assert time.monotonic() - started < 5


def test_a_wait_ends_when_the_outage_is_too_long(sidecar: Sidecar, key: str) -> None:
    with ThreadPoolExecutor(1) as pool, Client(sidecar.path, reconnect=0.3) as client:
        client.acquire(key)
        waiter = pool.submit(client.acquire, key)
        waiting(client, key)
        started = time.monotonic()
        sidecar.kill()
        with pytest.raises(Unavailable):
            waiter.result(LONG)
        assert 0.3 <= time.monotonic() - started < 25  # it would be 30 s


@pytest.mark.parametrize("wait", [0.5])
def test_a_wait_in_an_outage_ends_in_time(sidecar: Sidecar, key: str, wait: float) -> None:
    with ThreadPoolExecutor(1) as pool, Client(sidecar.path, reconnect=3600) as client:
        client.acquire(key)
        waiter = pool.submit(client.acquire, key, wait=wait)
        until("it waits", lambda: waiter.done() or client.get(key, fresh=True).queue_length == 1)
        sidecar.kill()
        with pytest.raises((Unavailable, WaitTimeout)) as ended:
            waiter.result(LONG)
    if ended.type is WaitTimeout:  # its time ended before the sidecar was killed
        assert wait < LONG
        sidecar.start()
        test_a_wait_in_an_outage_ends_in_time(sidecar, key, 10 * wait)


def test_a_sidecar_that_hangs(sidecar: Sidecar, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadPoolExecutor(1) as pool, Client(sidecar.path) as patient, Client(sidecar.path, reconnect=0) as client:
        blocked = patient.acquire(f"{key}:blocked")
        monkeypatch.setattr(_core, "SILENCE", 0.5)  # for streams that are opened from now on
        lock = client.acquire(key)
        waiter = pool.submit(client.acquire, f"{key}:blocked")
        until("it waits", lambda: waiter.done() or patient.get(f"{key}:blocked", fresh=True).queue_length == 1)
        sidecar.signal(signal.SIGSTOP)
        patient._core.timeout = 0.2
        with pytest.raises(Unavailable, match=r"did not answer .* within 0.2 s"):
            blocked.check()
        assert lock.lost.wait(LONG)  # the stream was silent for too long
        with pytest.raises(Unavailable):
            waiter.result(LONG)
        sidecar.signal(signal.SIGCONT)
        with pytest.raises(LockLost):
            lock.check()


def test_a_session_that_ends_is_replaced(sidecar: Sidecar, key: str) -> None:
    with Client(sidecar.path) as client, Client(sidecar.path) as other:
        lock = client.acquire(key)
        session = client._core.session
        assert session is not None
        other._transport.run(other._core.end_session(session))
        assert lock.lost.wait(LONG)
        with client.lock(key, wait=0) as again:
            assert again.token > lock.token


def test_an_answer_ends_the_session(sidecar: Sidecar, key: str) -> None:
    # A call may get its 410 before the reader sees the end of the stream.
    with Client(sidecar.path) as client, Client(sidecar.path) as other:
        lock = client.acquire(key)
        session = client._core.session
        assert session is not None
        session.ended = True  # so the end of the stream has no effect
        other._transport.run(other._core.end_session(session))
        session.ended = False
        with pytest.raises(LockLost) as lost:
            lock.check()
        assert lost.value.reason == "disconnected"
        client._core.session = session
        session.ended = False
        with client.lock(key, wait=0):
            pass


def test_the_sidecar_is_missing(tmp_path: Path) -> None:
    started = time.monotonic()
    with pytest.raises(NoAnswer, match=r"there is no such socket.*LOCKSIDECAR_SOCKET.*mounted") as missing:
        Client(tmp_path / "s.sock").acquire("x")
    assert missing.value.path == str(tmp_path / "s.sock")
    assert missing.value.path in str(missing.value)
    assert time.monotonic() - started < 25  # it does not wait for the 30 s of an outage
    with pytest.raises(Unavailable, match="at most 107 bytes"):
        Client("/" + "x" * 200).get("x")


def test_a_socket_without_a_listener(sidecar: Sidecar) -> None:
    sidecar.kill()
    with pytest.raises(Unavailable, match="nobody listens"):
        Client(sidecar.path).get("x")


def test_the_socket_is_from_the_environment(sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSIDECAR_SOCKET", sidecar.path)
    assert Client().get("x").state == "free"


@pytest.mark.parametrize(
    ("home", "is_pod", "want"),
    [
        ("/home/ada", False, "/home/ada/.locksidecar/locksidecar.sock"),
        ("/home/ada", True, "/run/locksidecar/locksidecar.sock"),
        ("relative", False, "/run/locksidecar/locksidecar.sock"),
        (None, False, "/run/locksidecar/locksidecar.sock"),
    ],
)
def test_the_socket_is_in_the_home_where_no_pod_is(
    home: str | None, is_pod: bool, want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSIDECAR_SOCKET", "")
    if home is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", home)
    monkeypatch.setattr(os.path, "exists", lambda path: is_pod and path == "/run/locksidecar")
    assert Client()._core.path == want


def test_something_else_listens() -> None:
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/s.sock")
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"220 mail.example ESMTP\r\n")
                connection.recv(100)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ProtocolError, match="is this the socket of a locksidecar"):
            Client(f"{folder}/s.sock").get("x")
        thread.join()


def test_no_descriptor_is_left(sidecar: Sidecar, key: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with Client(sidecar.path) as client:
            client.acquire(key).release()
            with client.events(key) as events:
                next(events)
    until("all are closed", lambda: len(os.listdir("/proc/self/fd")) <= before)


# Proves: client deadline
@pytest.mark.parametrize("wait", [0.3, 1.6])
def test_a_wait_without_the_sidecar_ends_in_its_time(sidecar: Sidecar, key: str, wait: float) -> None:
    with Client(sidecar.path) as client:
        client.describe()
        client.acquire(key).release()
        sidecar.kill()
        began = time.monotonic()
        tries: list[float] = []
        connect, perform = client._transport._connect, client._transport._perform
        method = ""

        def performing(call: Call) -> Answer:
            nonlocal method
            method = call.method
            return perform(call)

        def trying(limit: float | None) -> socket.socket:
            if method == "PUT":  # a withdrawal follows at once if the first call was sent before the kill was noticed
                tries.append(time.monotonic() - began)
            return connect(limit)

        client._transport._perform = performing  # type: ignore[method-assign]
        client._transport._connect = trying  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            client.acquire(key, wait=wait)
        # The last try is at the end of the wait, not a pause of up to a second later.
        assert tries[-2] < wait <= tries[-1] + 0.01
        assert tries[-1] - wait < 0.2 or max(b - a for a, b in pairwise(tries)) > 1.1  # the machine paused


def test_a_file_that_is_no_socket(tmp_path: Path) -> None:
    (tmp_path / "s.sock").touch()
    with pytest.raises(Unavailable, match="there is a file, but it is no socket"):
        Client(tmp_path / "s.sock").get("x")

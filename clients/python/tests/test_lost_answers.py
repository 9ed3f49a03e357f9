# Proves: client given up
"""Answers that are lost between the sidecar and the client."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import free
from locksidecar import AsyncClient, Client, LockLost, SessionEnded, Unavailable, _sync_lock


class Relay:
    """A relay that loses answers. The sidecar's side of such a connection stays open."""

    def __init__(self, upstream: str, path: str) -> None:
        self.path = path
        self.lose = 0  # the number of answers to acquires that it loses
        self.refuse = 0  # the number of releases that it answers itself: the store is not available
        self.mute = False  # whether it loses the client's questions for its locks
        self.asked: list[bytes] = []  # the first lines of the requests
        self._upstream = upstream
        self._sockets: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(100)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for sock in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._upstream)
                self._sockets += [client, server]
                lost = threading.Event()
                threading.Thread(target=self._ask, args=(client, server, lost), daemon=True).start()
                threading.Thread(target=self._answer, args=(client, server, lost), daemon=True).start()

    def _ask(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                self.asked.append(data.split(b" HTTP/")[0])
                if data.startswith(b"DELETE /v1/locks/") and self.refuse > 0:
                    self.refuse -= 1
                    body = b'{"status":503,"code":"store_unavailable","detail":"no store"}'
                    client.sendall(b"HTTP/1.1 503 x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
                    continue
                if data.startswith(b"PATCH ") and self.mute:
                    continue
                if data.startswith((b"PUT ", b"POST /v1/locks")) and self.lose > 0:
                    self.lose -= 1
                    lost.set()
                server.sendall(data)
            if not lost.is_set():
                server.shutdown(socket.SHUT_RDWR)

    def _answer(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if lost.is_set():
                    break
                client.sendall(data)
            client.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def relay(path: str) -> Iterator[Relay]:
    with tempfile.TemporaryDirectory() as folder:
        one = Relay(path, str(Path(folder) / "relay"))
        yield one
        one.close()


def test_a_waiting_call_is_repeated_and_gets_the_same_grant(relay: Relay, key: str) -> None:
    with Client(relay.path) as client:
        client.acquire("other").release()
        relay.lose = 2
        lock = client.acquire(key)
        assert len({line for line in relay.asked if line.startswith(b"PUT ")}) == 2
        assert sum(line.startswith(b"PUT ") for line in relay.asked) == 4
        assert client.get(key).mine
        assert lock.release()
        free(client, key)


def test_a_release_that_is_refused_does_not_keep_the_other_locks(relay: Relay, key: str) -> None:
    with Client(relay.path) as client:
        relay.lose, relay.refuse = 2, 1
        with pytest.raises(Unavailable):
            client.acquire_many([f"{key}:a", f"{key}:b", f"{key}:c"], wait=0)
        for name in ("b", "c"):
            assert client.get(f"{key}:{name}").state == "free"


def test_a_repeated_reentry_is_counted_once(relay: Relay, key: str) -> None:
    with Client(relay.path) as client, client.lock(key, reentrant=True) as outer:
        relay.lose = 1
        with client.lock(key, reentrant=True) as inner:
            assert inner.reentry == 2
        assert outer.check().reentry == 1


def test_a_lock_that_is_lost_by_the_clock_is_released_as_often_as_it_was_entered(
    relay: Relay, path: str, key: str
) -> None:
    with Client(relay.path) as client, Client(path) as other:
        with pytest.raises(LockLost, match="expired"):
            with client.lock(key, ttl=1, reentrant=True) as outer, client.lock(key, ttl=1, reentrant=True):
                relay.mute = True
                assert outer.lost.wait(20)
                relay.mute = False
        free(other, key)


@pytest.mark.parametrize("bind", ["session", "ttl"])
def test_a_call_without_an_answer_withdraws_its_grant(relay: Relay, path: str, key: str, bind: str) -> None:
    with Client(relay.path, timeout=1) as client, Client(path) as other:
        client.acquire("other").release()
        client._transport._drop_idle()
        relay.lose = 1
        with pytest.raises(Unavailable):
            client.acquire(key, wait=0, bind=bind)  # type: ignore[arg-type]
        free(other, key)
        relay.lose = 1
        client._transport._drop_idle()
        with pytest.raises(Unavailable):
            client.acquire_many([key, key + "2"], wait=0, bind=bind)  # type: ignore[arg-type]
        free(other, key)
        free(other, key + "2")


def test_a_closed_client_withdraws_its_grant(
    relay: Relay, path: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(path) as other:
        closing = Client(relay.path)
        closing.acquire("other").release()
        closing._transport._drop_idle()
        relay.lose = 1
        connect = closing._transport._connect

        def closes(limit: float | None) -> socket.socket:
            if relay.lose == 0:  # the acquire has lost its answer, and goes on
                closing.close()
            return connect(limit)

        monkeypatch.setattr(closing._transport, "_connect", closes)
        with pytest.raises(SessionEnded, match="closed"):
            closing.acquire(key, bind="ttl")
        free(other, key)
        assert sum(line.startswith(b"PUT ") for line in relay.asked) == 2


def test_a_grant_with_a_request_id_of_the_app_stays(relay: Relay, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    name = "0c57d5d8-4b5c-4d8e-9a52-6b3c2f0a9d01"
    with Client(relay.path) as client:
        first = client.acquire(key, bind="ttl", request_id=name)
        client._transport._drop_idle()
        relay.lose = 1
        with pytest.raises(Unavailable):
            client.acquire(key, wait=0, bind="ttl", request_id=name)
        assert first.check().reentry == 1
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(_sync_lock.Lock, "__init__", interrupted)
            client.lock(key, bind="ttl", request_id=name).acquire()
        assert client.acquire(key, bind="ttl", request_id=name).token == first.token
        first.release()


@pytest.mark.parametrize("bind", ["session", "ttl"])
def test_the_same_with_asyncio(relay: Relay, path: str, key: str, bind: str) -> None:
    async def run() -> None:
        async with AsyncClient(relay.path, timeout=1) as client:
            await (await client.acquire("other")).release()
            relay.lose = 2
            lock = await client.acquire(key, bind=bind)  # type: ignore[arg-type]
            await lock.release()
            client._transport._drop_idle()
            relay.lose = 1
            with pytest.raises(Unavailable):
                await client.acquire(key, wait=0, bind=bind)  # type: ignore[arg-type]
            with Client(path) as other:
                free(other, key)

    asyncio.run(run())

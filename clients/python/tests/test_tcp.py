"""The sidecar over TCP, with TLS of a CA that the test makes, and a token."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conftest import LONG, Sidecar, until
from locksidecar import AsyncClient, Client
from locksidecar.errors import Forbidden, InvalidRequest, LockHeld, LocksidecarError, Unavailable

TOKEN, OTHER = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def openssl(*args: object) -> None:
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True)


class Authority:
    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder, self.file = folder, folder / "ca.crt"
        usage = "keyUsage=critical,keyCertSign"
        key = folder / "ca.key"
        openssl("req", "-x509", *EC, "-keyout", key, "-out", self.file, "-days", 1, "-subj", "/CN=CA", "-addext", usage)

    def settings(self, name: str = "localhost", days: int = 1) -> dict[str, str]:
        """Those of a sidecar with a certificate, and a token."""
        made = self.folder / f"{name}{days}"
        key, request, cert = made.with_suffix(".key"), made.with_suffix(".csr"), made.with_suffix(".crt")
        openssl("req", *EC, "-keyout", key, "-out", request, "-subj", "/CN=x", "-addext", f"subjectAltName=DNS:{name}")
        openssl("x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self.folder / "ca.key", "-CAcreateserial",
                "-copy_extensions", "copy", "-days", days, "-out", cert)  # fmt: skip
        key.chmod(0o600)
        tokens = write(self.folder / "tokens", TOKEN)
        return {"TCP_TLS_CERT_FILE": str(cert), "TCP_TLS_KEY_FILE": str(key), **plain(tokens)}


def plain(tokens: Path) -> dict[str, str]:
    return {"TCP_ADDR": "127.0.0.1:0", "TCP_TOKEN_FILE": str(tokens)}


def write(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file


def port(sidecar: Sidecar) -> int:
    """Its log says it, soon after its first answer."""

    def found() -> int:
        lines = (json.loads(line) for line in sidecar.log().splitlines() if line.startswith("{") and line.endswith("}"))
        return next((int(line["tcp"].rpartition(":")[2]) for line in lines if line["msg"] == "serving"), 0)

    return until("the log has the port", found)


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def test_threads(ca: Authority, tmp_path: Path) -> None:
    token = write(tmp_path / "token", f"{TOKEN}\n{OTHER}\n")
    with Sidecar(**ca.settings()) as sidecar:
        settings: dict[str, Any] = {
            "url": f"https://localhost:{port(sidecar)}",
            "token_file": token,
            "ca_file": ca.file,
        }
        with Client(**settings) as one, Client(**settings) as two:
            lock = one.acquire("k")
            with pytest.raises(LockHeld):
                two.acquire("k", wait=0)
            got: list[int] = []

            def wait() -> None:
                with two.lock("k", wait=LONG) as second:
                    got.append(second.token)

            waiting = threading.Thread(target=wait)
            waiting.start()
            until("it waits", lambda: one.get("k").queue_length == 1)
            lock.release()
            waiting.join(LONG)
            assert got
            with one.events("k") as events:
                assert next(iter(events)).type == "state"
            lost = one.acquire("k")
            sidecar.lose("k")
            assert lost.lost.wait(LONG)
            kept = one.acquire("k")
            sidecar.kill()
            assert kept.lost.wait(LONG)
            sidecar.start()
        assert TOKEN not in sidecar.log()


def test_asyncio(ca: Authority, tmp_path: Path) -> None:
    token = write(tmp_path / "token", TOKEN)

    async def run(sidecar: Sidecar) -> None:
        settings: dict[str, Any] = {
            "url": f"https://localhost:{port(sidecar)}",
            "token_file": token,
            "ca_file": ca.file,
        }
        async with AsyncClient(**settings) as one, AsyncClient(**settings) as two:
            lock = await one.acquire("k")
            with pytest.raises(LockHeld):
                await two.acquire("k", wait=0)
            waiting = asyncio.ensure_future(two.acquire("k", wait=LONG))
            while (await one.get("k")).queue_length != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await lock.release()
            second = await asyncio.wait_for(waiting, LONG)
            sidecar.lose("k")
            await asyncio.wait_for(second.lost.wait(), LONG)
            kept = await one.acquire("k")
            sidecar.kill()
            await asyncio.wait_for(kept.lost.wait(), LONG)
            sidecar.start()

    with Sidecar(**ca.settings()) as sidecar:
        asyncio.run(run(sidecar))
        assert TOKEN not in sidecar.log()


def test_a_forked_child_has_its_own_session(ca: Authority, tmp_path: Path) -> None:
    token = write(tmp_path / "token", TOKEN)
    with Sidecar(**ca.settings()) as sidecar:
        url = f"https://localhost:{port(sidecar)}"
        with Client(url=url, token_file=token, ca_file=ca.file) as client, client.lock("k") as lock:
            child = os.fork()
            if child == 0:
                try:
                    client.acquire("k", wait=0)
                except LockHeld:
                    os._exit(7)
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            assert not lock.lost


class Wire:
    """A relay that carries nothing while it is `mute`. Nothing is closed then, as if a cable was pulled.

    It keeps what comes while it is not `open`.
    """

    def __init__(self, upstream: int) -> None:
        self.mute = False
        self.open = threading.Event()
        self.open.set()
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                pair = (self._listener.accept()[0], socket.create_connection(("127.0.0.1", self._upstream)))
                self._sockets += pair
                for one, two in (pair, pair[::-1]):
                    threading.Thread(target=self._carry, args=(one, two), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.open.wait()
                if not self.mute:
                    target.sendall(data)
            if not self.mute:
                target.shutdown(socket.SHUT_WR)

    @property
    def connections(self) -> int:
        return len(self._sockets) // 2

    def close(self) -> None:
        for one in self._sockets:
            one.close()


BEGINNING, AT_A_TIME = 300, 16


# Proves: client many connections
def test_threads_begin_with_many_calls(ca: Authority, tmp_path: Path) -> None:
    """Above 64 connections that have shown no token, the sidecar ends the oldest."""
    token = write(tmp_path / "token", TOKEN)
    with Sidecar(**ca.settings()) as sidecar, contextlib.closing(Wire(port(sidecar))) as wire:
        url = f"https://localhost:{wire.port}"
        with Client(url=url, token_file=token, ca_file=ca.file) as client, ThreadPoolExecutor(BEGINNING) as pool:
            client.acquire("k").release()
            client._transport._drop_idle()
            turns, before = client._transport._turns, wire.connections
            wire.open.clear()
            calls = pool.map(lambda number: client.acquire(f"many:{number}").release(), range(BEGINNING))

            def others_wait() -> bool:
                assert wire.connections <= before + AT_A_TIME
                return len(turns._waiting) == BEGINNING - AT_A_TIME

            try:
                until("the others wait for their turn", others_wait)
                until("the first ones connect", lambda: wire.connections == before + AT_A_TIME)
            finally:
                wire.open.set()
            assert list(calls) == [True] * BEGINNING
            assert not turns._taken


# Proves: client many connections
def test_tasks_begin_with_many_calls(ca: Authority, tmp_path: Path) -> None:
    token = write(tmp_path / "token", TOKEN)

    async def run(wire: Wire) -> None:
        async with AsyncClient(url=f"https://localhost:{wire.port}", token_file=token, ca_file=ca.file) as client:
            await (await client.acquire("k")).release()
            client._transport._drop_idle()
            turns, before = client._transport._turns, wire.connections
            wire.open.clear()
            calls = [asyncio.ensure_future(client.acquire(f"many:{number}")) for number in range(BEGINNING)]
            while wire.connections < before + AT_A_TIME or len(turns._waiting) < BEGINNING - AT_A_TIME:
                assert wire.connections <= before + AT_A_TIME
                await asyncio.sleep(0.01)
            for call in calls[::3]:  # some have a turn, some wait for one
                call.cancel()
            wire.open.set()
            await asyncio.wait(calls)
            assert [call.cancelled() for call in calls] == [number % 3 == 0 for number in range(BEGINNING)]
            for call in calls:
                assert call.cancelled() or await call.result().release()
            assert not turns._taken
            assert not turns._waiting

    with Sidecar(**ca.settings()) as sidecar, contextlib.closing(Wire(port(sidecar))) as wire:
        asyncio.run(asyncio.wait_for(run(wire), LONG))


# Proves: client own clock
def test_a_lock_ends_in_time_without_a_network(ca: Authority, tmp_path: Path) -> None:
    token = write(tmp_path / "token", TOKEN)
    with Sidecar(**ca.settings(), TTL="2s") as sidecar:
        wire = Wire(port(sidecar))
        settings: dict[str, Any] = {"url": f"https://localhost:{wire.port}", "token_file": token, "ca_file": ca.file}

        async def run() -> tuple[float, float]:
            client = AsyncClient(**settings)
            lock = await client.acquire("a")
            promised = lock._entry.grant.expires_at
            wire.mute = True
            client._transport._drop_idle()  # so that the next question needs a connection
            while not lock.lost:
                promised = lock._entry.grant.expires_at
                await asyncio.sleep(0.01)
            ended = time.monotonic()
            wire.mute = False
            await client.close()
            return promised, ended

        promised, ended = asyncio.run(run())
        assert ended == pytest.approx(promised, abs=0.6)
        with Client(**settings) as client:
            lock = client.acquire("t")
            promised = lock._entry.grant.expires_at
            wire.mute = True
            client._transport._drop_idle()
            while not lock.lost:
                promised = lock._entry.grant.expires_at
                time.sleep(0.01)
            ended = time.monotonic()
            wire.mute = False
        assert ended == pytest.approx(promised, abs=0.6)
        wire.close()


def test_a_lock_ends_in_time_while_its_host_is_looked_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    token = write(tmp_path / "token", TOKEN)
    look_up, answers = socket.getaddrinfo, threading.Event()
    answers.set()

    def slow(host: Any, port: Any, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0) -> Any:
        if not flags & socket.AI_NUMERICHOST:
            answers.wait(60)
        return look_up(host, port, family, type, proto, flags)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with Sidecar(**plain(token), TTL="2s") as sidecar:
        settings: dict[str, Any] = {"url": f"http://localhost:{port(sidecar)}", "token_file": token}

        async def run() -> float:
            async with AsyncClient(**settings) as client:
                lock = await client.acquire("a")
                client._transport._drop_idle()
                answers.clear()
                await asyncio.wait_for(lock.lost.wait(), 20)
                answers.set()
                return time.monotonic() - lock._entry.grant.expires_at

        assert -0.1 < asyncio.run(run()) < 20
        with Client(**settings) as client:
            lock = client.acquire("t")
            client._transport._drop_idle()
            answers.clear()
            assert lock.lost.wait(20)
            assert time.monotonic() > lock._entry.grant.expires_at - 0.1
            answers.set()


def test_a_token_is_read_again(tmp_path: Path) -> None:
    token = write(tmp_path / "token", OTHER)
    with Sidecar(**plain(write(tmp_path / "tokens", TOKEN))) as sidecar:
        with Client(url=f"http://127.0.0.1:{port(sidecar)}", token_file=token) as client:
            with pytest.raises(Forbidden):
                client.get("k")
            write(token, TOKEN)

            def right() -> bool:
                try:
                    return client.get("k").state == "free"
                except Forbidden:
                    return False

            until("the right token", right)


def _threads(settings: dict[str, Any]) -> None:
    with Client(**settings) as client:
        client.get("k")


def _asyncio(settings: dict[str, Any]) -> None:
    async def run() -> None:
        async with AsyncClient(**settings) as client:
            await client.get("k")

    asyncio.run(run())


@pytest.mark.parametrize("get", [_threads, _asyncio])
def test_mistakes(get: Callable[[dict[str, Any]], None], ca: Authority, tmp_path: Path) -> None:
    token, wrong = write(tmp_path / "token", TOKEN), write(tmp_path / "wrong", OTHER)
    odd = write(tmp_path / "odd", "s3cret\rX: y")
    other = Authority(tmp_path / "other")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = listener.getsockname()[1]
    with (
        Sidecar(**ca.settings()) as good,
        Sidecar(**ca.settings(days=-1)) as expired,
        Sidecar(**ca.settings("sidecar.example")) as elsewhere,
        Sidecar(**plain(write(tmp_path / "tokens", TOKEN))) as unencrypted,
    ):
        at = "https://localhost:"
        whole = {"url": f"{at}{port(good)}", "token_file": token, "ca_file": ca.file}
        mistakes: list[tuple[dict[str, Any], type[LocksidecarError], list[str]]] = [
            ({"token_file": wrong}, Forbidden, ["LOCKSIDECAR_TCP_TOKEN_FILE"]),
            ({"token_file": None}, Forbidden, ["LOCKSIDECAR_TCP_TOKEN_FILE"]),
            ({"token_file": "/no/token"}, InvalidRequest, ["LOCKSIDECAR_TOKEN_FILE", "/no/token"]),
            ({"token_file": odd}, InvalidRequest, ["LOCKSIDECAR_TOKEN_FILE"]),
            ({"ca_file": other.file}, Unavailable, ["LOCKSIDECAR_CA_FILE"]),
            ({"ca_file": None}, Unavailable, ["LOCKSIDECAR_CA_FILE"]),
            ({"ca_file": "/no/ca"}, InvalidRequest, ["LOCKSIDECAR_CA_FILE", "/no/ca"]),
            ({"url": f"{at}{port(expired)}"}, Unavailable, ["not valid now", "expired"]),
            ({"url": f"{at}{port(elsewhere)}"}, Unavailable, ["another name", "LOCKSIDECAR_URL"]),
            ({"url": f"http://localhost:{port(good)}"}, InvalidRequest, ["https://"]),
            ({"url": f"{at}{port(unencrypted)}"}, Unavailable, ["TLS", "LOCKSIDECAR_URL"]),
            ({"url": f"{at}{nobody}"}, Unavailable, ["nobody listens", "LOCKSIDECAR_URL"]),
            ({"socket_path": "/s"}, InvalidRequest, ["socket_path", "url"]),
            ({"url": "https://u:s3cret@localhost:1"}, InvalidRequest, ["https://HOST:PORT"]),
            ({"url": "https://localhost"}, InvalidRequest, ["url", "https://HOST:PORT"]),
            ({"url": "https://localhost:1/v1"}, InvalidRequest, ["https://HOST:PORT"]),
            ({"url": "unix://host/s"}, InvalidRequest, ["unix:///PATH"]),
            ({"url": "localhost:1"}, InvalidRequest, ["https://HOST:PORT"]),
        ]
        for change, kind, says in mistakes:
            with pytest.raises(kind) as raised:
                get(whole | change)
            text = str(raised.value)
            for said in says:
                assert said in text, change
            for secret in (TOKEN, OTHER, "s3cret"):
                assert secret not in text, change


def test_which_address_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    for settings, url, path, want in (
        ({}, "", "/env", "/env"),
        ({}, "http://127.0.0.1:1", "/env", "http://127.0.0.1:1"),
        ({}, "unix:///url", "/env", "/url"),
        ({}, "unix:///a%20b", "/env", "/a b"),
        ({"socket_path": "/code"}, "http://127.0.0.1:1", "/env", "/code"),
        ({"url": "https://[::1]:2/"}, "http://127.0.0.1:1", "/env", "https://[::1]:2"),
    ):
        monkeypatch.setenv("LOCKSIDECAR_URL", url)
        monkeypatch.setenv("LOCKSIDECAR_SOCKET", path)
        assert Client(**settings)._core.path == want  # type: ignore[arg-type]
    monkeypatch.setenv("LOCKSIDECAR_URL", "ftp://h:1")
    with pytest.raises(InvalidRequest, match="LOCKSIDECAR_URL"):
        Client()

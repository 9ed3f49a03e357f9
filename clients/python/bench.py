"""What a client costs over the same by hand: acquire and release of a free lock, with a real sidecar in memory.

`Client` is compared with a bare socket, `AsyncClient` with bare asyncio streams, whose loop costs what it costs. Rounds
of all four take turns, so that a busy machine slows all of them; the medians are compared. Exits 1 when a client costs
more than the goal.

With `--spans` both are compared with themselves: with OpenTelemetry's API alone, and with its SDK, whose spans nobody
exports.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from locksidecar import AsyncClient, Client

GOAL = 150.0  # microseconds
ROUNDS, PAIRS = 30, 200


@contextmanager
def sidecar() -> Iterator[str]:
    binary = Path(__file__).parents[2] / "bin" / "locksidecar"
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/s.sock"
        env = {**os.environ, "LOCKSIDECAR_SOCKET": path}
        process = subprocess.Popen([binary, "serve"], env=env, stderr=subprocess.DEVNULL)
        try:
            while not os.path.exists(path):
                if process.poll() is not None:
                    sys.exit(f"{binary} has ended: run `make build`")
                time.sleep(0.01)
            yield path
        finally:
            process.terminate()
            process.wait()


class Bare:
    """As few lines as do the same: a session, and two requests on one other connection."""

    def __init__(self, path: str) -> None:
        self.stream, self.calls = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        self.stream.connect(path)
        self.calls.connect(path)
        self.stream.sendall(b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        said = b""
        while b'"session":"' not in said:
            said += self.stream.recv(4096)
        self.session = said.split(b'"session":"')[1].split(b'"')[0]

        self.head = b" HTTP/1.1\r\nHost: x\r\nLock-Session: " + self.session + b"\r\nContent-Length: 0\r\n\r\n"

    def pair(self) -> None:
        head = self.head
        self.calls.sendall(b"PUT /v1/locks/bench:bare" + head)
        token = self.calls.recv(4096).split(b'"token":')[1].split(b",")[0]
        self.calls.sendall(b"DELETE /v1/locks/bench:bare?token=" + token + head)
        assert b'"released":true' in self.calls.recv(4096)

    async def pairs(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(PAIRS):
            writer.write(b"PUT /v1/locks/bench:streams" + self.head)
            token = (await reader.read(4096)).split(b'"token":')[1].split(b",")[0]
            writer.write(b"DELETE /v1/locks/bench:streams?token=" + token + self.head)
            assert b'"released":true' in await reader.read(4096)


def spans() -> int:
    """Rounds without and with the SDK take turns."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider

    loop, sdk = asyncio.new_event_loop(), TracerProvider()
    names = ("Client", "AsyncClient")
    results: dict[tuple[str, bool], list[float]] = {(name, on): [] for name in names for on in (False, True)}
    with sidecar() as path, Client(path) as client:
        other = AsyncClient(path)

        def by_client() -> None:
            for _ in range(PAIRS):
                client.acquire("bench:sync").release()

        async def pairs() -> None:
            for _ in range(PAIRS):
                lock = await other.acquire("bench:async")
                await lock.release()

        ways: dict[str, Callable[[], object]] = {
            "Client": by_client,
            "AsyncClient": lambda: loop.run_until_complete(pairs()),
        }
        for turn in range(ROUNDS + 1):  # the first makes connections, sessions, caches
            for (name, on), values in results.items():
                trace._TRACER_PROVIDER = sdk if on else None  # an app cannot take it back
                started = time.perf_counter()
                ways[name]()
                if turn:
                    values.append((time.perf_counter() - started) / PAIRS * 1e6)
        loop.run_until_complete(other.close())
    loop.close()
    print("acquire + release of a free lock, median:")
    for name in names:
        without, more = (statistics.median(results[name, on]) for on in (False, True))
        print(f"  {name:11}  API alone {without:6.1f} µs   SDK {more:6.1f} µs   {more - without:+7.1f} µs")
    return 0


def main() -> int:
    results: dict[str, list[float]] = {"bare socket": [], "Client": [], "bare asyncio": [], "AsyncClient": []}
    loop = asyncio.new_event_loop()
    with sidecar() as path, Client(path) as client:
        bare, other = Bare(path), AsyncClient(path)
        reader, writer = loop.run_until_complete(asyncio.open_unix_connection(path))

        async def pairs() -> None:
            for _ in range(PAIRS):
                lock = await other.acquire("bench:async")
                await lock.release()

        def by_socket() -> None:
            for _ in range(PAIRS):
                bare.pair()

        def by_client() -> None:
            for _ in range(PAIRS):
                client.acquire("bench:sync").release()

        ways: list[Callable[[], None]] = [
            by_socket,
            by_client,
            lambda: loop.run_until_complete(bare.pairs(reader, writer)),
            lambda: loop.run_until_complete(pairs()),
        ]
        for way in ways:
            way()  # connections, sessions, caches
        for _ in range(ROUNDS):
            for way, values in zip(ways, results.values(), strict=True):
                started = time.perf_counter()
                way()
                values.append((time.perf_counter() - started) / PAIRS * 1e6)
        loop.run_until_complete(other.close())
        writer.close()
        loop.run_until_complete(writer.wait_closed())
    loop.close()
    median = {name: statistics.median(values) for name, values in results.items()}
    failed = False
    print("acquire + release of a free lock, median:")
    for name, base in (("Client", "bare socket"), ("AsyncClient", "bare asyncio")):
        more = median[name] - median[base]
        failed |= more > GOAL
        print(f"  {base:12} {median[base]:6.1f} µs   {name:11} {median[name]:6.1f} µs   {more:+7.1f} µs")
    print(f"goal: at most {GOAL:+.0f} µs: {'missed' if failed else 'met'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(spans() if "--spans" in sys.argv else main())

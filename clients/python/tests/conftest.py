"""Every test uses a real sidecar, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeVar
from uuid import uuid4

import pytest

from locksidecar import Client
from locksidecar.testing import Sidecar as Sidecar

T = TypeVar("T")
BINARY = Path(__file__).parents[3] / "bin" / "locksidecar"
os.environ["LOCKSIDECAR_BINARY"] = str(BINARY)
LONG = 60.0  # seconds; the limit for every wait of a test

# A shell makes its background processes ignore SIGINT, and their children inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def until(what: str, look: Callable[[], T], seconds: float = LONG) -> T:
    """Calls `look` until its result is true."""
    end = time.monotonic() + seconds
    while not (seen := look()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.005)
    return seen


@pytest.fixture(scope="session")
def shared() -> Iterator[Sidecar]:
    """The sidecar of all tests that do not stop it. Its TTL is an hour, so no lock expires during a test."""
    if not BINARY.exists():
        pytest.exit(f"{BINARY} is not there: run `make build`", returncode=2)
    with Sidecar(TTL="1h") as sidecar:
        yield sidecar


@pytest.fixture
def sidecar() -> Iterator[Sidecar]:
    """A sidecar for one test."""
    with Sidecar() as sidecar:
        yield sidecar


@pytest.fixture
def path(shared: Sidecar) -> str:
    return shared.path


@pytest.fixture
def key() -> str:
    """A key that no other test has."""
    return f"test:{uuid4().hex}"


@pytest.fixture
def client(path: str) -> Iterator[Client]:
    with Client(path, name="one") as client:
        yield client


@pytest.fixture
def other(path: str) -> Iterator[Client]:
    with Client(path, name="other") as client:
        yield client


@pytest.fixture
def python(path: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python processes that use the sidecar. Their output can be read."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *args: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", code, *args],
            env={**os.environ, "LOCKSIDECAR_SOCKET": path},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def line(process: subprocess.Popen[str]) -> str:
    """The next line that a process prints."""
    assert process.stdout is not None
    out: IO[str] = process.stdout
    return out.readline().strip()


def waiting(client: Client, key: str, count: int = 1) -> None:
    """Returns when the key has this number of waiters."""
    until(f"{count} wait for {key}", lambda: client.get(key, fresh=True).queue_length == count)


def free(client: Client, key: str) -> None:
    """Returns when the key is free and has no waiters."""

    def look() -> bool:
        info = client.get(key, fresh=True)
        return info.state == "free" and info.queue_length == 0

    until(f"{key} is free", look)

# Proves: client gevent
"""gevent patches the process after the client was made, as gunicorn's workers do with --preload."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import free, line, until
from locksidecar import Client
from test_processes import _OverSocket

Python = Callable[..., "subprocess.Popen[str]"]

APP = """
import os, time
from locksidecar import Client
client = Client()
mutex = client.lock(os.environ["KEY"], reentrant=True)
if os.environ["USED"]:
    client.acquire(os.environ["KEY"] + ":preload")
inside = 0

def app(environ, start_response):
    global inside
    with mutex, mutex:
        inside += 1
        most = inside
        time.sleep(0.02)  # other greenlets run
        most = max(most, inside)
        inside -= 1
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{most} {type(time.sleep).__module__}".encode()]
"""


@pytest.mark.parametrize("used", ["", "used"])
def test_gunicorn_with_preload_and_gevent(path: str, client: Client, key: str, used: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "app.py").write_text(APP)
        server = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "--preload", "-k", "gevent", "-w", "2", "-b", "unix:g.sock",
             "--log-level", "error", "--no-control-socket", "app:app"],
            cwd=folder, env={**os.environ, "LOCKSIDECAR_SOCKET": path, "KEY": key, "USED": used},
            start_new_session=True,
        )  # fmt: skip
        try:

            def listens() -> bool:
                assert server.poll() is None
                with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                    ask(0)
                    return True
                return False

            def ask(_: int) -> str:
                connection = _OverSocket(f"{folder}/g.sock")
                connection.connect()
                connection.request("GET", "/")
                said = connection.getresponse().read().decode()
                connection.close()
                return said

            until("it listens", listens)
            with ThreadPoolExecutor(20) as pool:
                assert {said.split()[0] for said in pool.map(ask, range(60))} == {"1"}
            free(client, key)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


PATCHED = """
import sys
from locksidecar import Client, LockLost
client = Client()
mutex, again = client.lock(sys.argv[1]), client.lock(sys.argv[1], reentrant=True)
if sys.argv[2]:
    client.get(sys.argv[1])  # a connection stays open
import gevent.monkey
gevent.monkey.patch_all()
import gevent, time
most = inside = 0
def work(it):
    global inside, most
    with it:
        inside += 1
        most = max(most, inside)
        time.sleep(0.005)
        inside -= 1
gevent.joinall([gevent.spawn(work, it) for it in (mutex, again) for _ in range(10)], raise_error=True)
def held():
    with mutex:
        gevent.sleep(60)
one = gevent.spawn(held)
while mutex._held == []:
    gevent.sleep(0.001)
one.kill()  # as a time limit does
try:
    with mutex:
        with mutex:
            pass
except RuntimeError as e:
    print(most, str(e)[:11], client.get(sys.argv[1], fresh=True).state)
"""


@pytest.mark.parametrize("used", ["", "used"])
def test_patched_after_the_client_was_made(python: Python, client: Client, key: str, used: str) -> None:
    assert line(python(PATCHED, key, used)) == "1 this thread free"

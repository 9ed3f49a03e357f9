"""A real sidecar for the tests of an app, which misbehaves on request.

    with Sidecar() as sidecar, Client(sidecar.path) as client, client.lock("report") as lock:
        sidecar.lose("report")
        assert lock.lost.wait(5)

With pytest, the fixture `locksidecar` is such a sidecar, and `Client()` finds it: see `locksidecar.testing.plugin`.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .. import Client, Unavailable

__all__ = ["Sidecar", "find_binary"]

PATIENCE: Final = 60.0
"""The limit in seconds for what a sidecar must do at once: a busy machine may need long."""


def find_binary() -> str:
    """Where the program `locksidecar` is: `LOCKSIDECAR_BINARY`, else beside this Python, else in `PATH`.

    Raises `FileNotFoundError`.
    """
    named = os.environ.get("LOCKSIDECAR_BINARY")
    beside = Path(sysconfig.get_path("scripts"), "locksidecar")  # also if the environment was not activated
    found = named or (str(beside) if beside.exists() else shutil.which("locksidecar"))
    if found is None or not os.access(found, os.X_OK):
        where = "there is no program `locksidecar`"
        if named:
            where = f"LOCKSIDECAR_BINARY={os.path.abspath(named)} is no program"
        raise FileNotFoundError(f'{where}: run `pip install "locksidecar[server]"`, or let LOCKSIDECAR_BINARY name it')
    return found


class Sidecar:
    """A sidecar in a process of its own, on a socket of its own.

    Its store is `memory://`, so its locks end with it. `settings` are those of docs/configuration.md, without the
    prefix: `Sidecar(TTL="2s")`. Anybody may break its locks, and a stop waits for nobody.
    """

    def __init__(self, **settings: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="locksidecar-")  # a short path: sockets need one
        self.path: Final = f"{self._folder.name}/s.sock"
        """The socket, for `Client(path)`."""
        self.env: Final = {"LOCKSIDECAR_SOCKET": self.path}
        """What a process must find in its environment, so that its clients use this sidecar."""
        self._log = Path(self._folder.name, "log")
        self._settings = {"STORE_URL": "memory://", "ALLOW_FORCE": "true", "DRAIN_TIMEOUT": "0s"} | settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the sidecar, and returns when it grants locks. Raises `FileNotFoundError`, `RuntimeError`."""
        if self._process is not None:
            raise RuntimeError("this sidecar runs already")
        env = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSIDECAR_")}
        env |= self.env | {f"LOCKSIDECAR_{name}": value for name, value in self._settings.items()}
        with self._log.open("ab") as log:
            process = self._process = subprocess.Popen([find_binary(), "serve"], env=env, stdout=log, stderr=log)

        def answers() -> bool:
            if process.poll() is not None:
                self._process = None
                raise RuntimeError(f"the sidecar has ended with {process.returncode}. Its log:\n{self.log()}")
            with Client(self.path) as client:
                try:
                    return client.get("ready").state == "free"
                except Unavailable:
                    return False

        _until("the sidecar answers", answers)

    def stop(self) -> None:
        """Stops the sidecar as Kubernetes would (SIGTERM), and waits for its end. Its holders lose their locks."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kills the sidecar, as a crash would. Until `start` it is away: no call is answered."""
        self._end(signal.SIGKILL)

    @contextmanager
    def away(self) -> Iterator[None]:
        """In its body the sidecar is away, and afterwards it is a new one without locks."""
        self.kill()
        try:
            yield
        finally:
            self.start()

    def hang(self) -> None:
        """Lets the sidecar hang until `resume`: calls are accepted and not answered, and leases run out."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a sidecar go on that hangs."""
        self.signal(signal.SIGCONT)

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """In its body the sidecar hangs."""
        self.hang()
        try:
            yield
        finally:
            self.resume()

    def lose(self, key: str, *, token: int | None = None) -> None:
        """Takes a lock from its holder, who is told `lost` with the reason `forced`. Raises `NotHeld`.

        Of a shared lock or a semaphore all holders lose it, or with `token` one.
        """
        with Client(self.path, name="test") as client:
            client.force_release(key, token=token)

    def signal(self, number: int) -> None:
        """Sends a signal to the process. After SIGSTOP it returns when the process has stopped."""
        if self._process is None:
            raise RuntimeError("this sidecar does not run")
        self._process.send_signal(number)
        tasks = Path(f"/proc/{self._process.pid}/task")
        if number == signal.SIGSTOP and tasks.exists():  # its threads do not stop at the same time
            _until(
                "all its threads have stopped",
                lambda: all(") T " in Path(task, "stat").read_text() for task in tasks.iterdir()),
            )

    def log(self) -> str:
        """What the sidecar has logged."""
        return self._log.read_text()

    def close(self) -> None:
        """Kills the sidecar if it runs, and removes its files."""
        self.kill()
        self._folder.cleanup()

    def __enter__(self) -> Sidecar:  # noqa: PYI034 - Self needs Python 3.11
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)  # it may hang
            self._process.send_signal(number)
            self._process.wait(PATIENCE)
            self._process = None


def _until(what: str, look: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not look():
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.005)

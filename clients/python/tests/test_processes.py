"""Processes: killed, forked, interrupted, replaced by exec."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.client
import itertools
import linecache
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from conftest import LONG, Sidecar, free, line, until, waiting
from locksidecar import AsyncClient, Client, Lock, LockContext, LockLost, _sync_lock, _sync_transport, _wire

Python = Callable[..., "subprocess.Popen[str]"]

HOLD = """
import sys, time
from locksidecar import Client
client = Client()
locks = [client.acquire(sys.argv[1] + str(n)) for n in range(3)]
print("held")
client.acquire(sys.argv[2])
"""

HOLD_ASYNC = """
import asyncio, sys
from locksidecar import AsyncClient
async def main():
    client = AsyncClient()
    locks = [await client.acquire(sys.argv[1] + str(n)) for n in range(3)]
    print("held")
    await client.acquire(sys.argv[2])
asyncio.run(main())
"""


@pytest.mark.parametrize("code", [HOLD, HOLD_ASYNC], ids=["threads", "asyncio"])
def test_kill_9_frees_at_once(python: Python, client: Client, key: str, code: str) -> None:
    with client.lock(f"{key}:blocked"):
        process = python(code, key, f"{key}:blocked")
        assert line(process) == "held"
        waiting(client, f"{key}:blocked")
        process.kill()
        for n in range(3):
            client.acquire(f"{key}{n}", wait=LONG).release()  # the lease would last an hour
        waiting(client, f"{key}:blocked", 0)


INTERRUPTED = """
import sys
from locksidecar import Client
client = Client()
try:
    client.acquire(sys.argv[1])
except KeyboardInterrupt:
    print("interrupted", len(list(client.locks("session"))))
import time
time.sleep(60)
"""


def test_ctrl_c_while_waiting(python: Python, client: Client, key: str) -> None:
    with client.lock(key):
        process = python(INTERRUPTED, key)
        waiting(client, key)
        process.send_signal(signal.SIGINT)
        assert line(process) == "interrupted 0"
        waiting(client, key, 0)
    free(client, key)


def test_ctrl_c_when_the_answer_is_there(client: Client, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = _wire.AnswerParser.feed

    def interrupted(self: _wire.AnswerParser, data: bytes) -> _wire.Answer | None:
        if b'"granted":true' in data:
            raise KeyboardInterrupt
        return feed(self, data)

    client.get(key)
    monkeypatch.setattr(_wire.AnswerParser, "feed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.acquire(key)
    free(client, key)


def test_ctrl_c_before_a_release_is_sent(client: Client, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exchange, calls = _sync_transport._exchange, list[str]()

    def interrupted(sock: socket.socket, call: Any, *rest: Any) -> _wire.Answer:
        calls.append(call.method)
        if call.method == "DELETE" and calls.count("DELETE") == 1:
            raise KeyboardInterrupt
        return exchange(sock, call, *rest)

    lock = client.acquire(key)
    monkeypatch.setattr(_sync_transport, "_exchange", interrupted)
    with pytest.raises(KeyboardInterrupt), lock:
        pass
    assert client.get(key, fresh=True).state == "free"


def test_an_interrupted_reentry_leaves_the_outer_lock_its_news(
    client: Client, other: Client, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = _sync_lock.take

    def interrupted(*args: Any) -> Lock:
        take(*args)
        raise KeyboardInterrupt

    outer = client.acquire(key, reentrant=True)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(_sync_lock, "take", interrupted)
        client.lock(key, reentrant=True).acquire()
    assert outer.check().reentry == 1
    other.force_release(key)
    assert outer.lost.wait(LONG)


STORM = """
import os, signal, sys, threading, time
from locksidecar import Client
client = Client()
client.get("warm")
for n in range(int(sys.argv[2])):
    def interrupt(pause=n * 0.00001):
        time.sleep(pause)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    try:
        threading.Thread(target=interrupt).start()
        with client.lock(sys.argv[1]):
            while True:
                time.sleep(0.001)  # a signal just before a sleep does not end it
    except KeyboardInterrupt:
        pass
    # No lock is left, whatever the signal interrupted.
    client.acquire(sys.argv[1], wait=60).release()
print("done", len(list(client.locks("session"))))
"""


def test_ctrl_c_at_any_moment(python: Python, key: str) -> None:
    assert line(python(STORM, key, "150")) == "done 0"


class Acquired:
    """`acquire` and `release` as a block."""

    def __init__(self, mutex: LockContext) -> None:
        self.mutex = mutex

    def __enter__(self) -> None:
        assert self.mutex.acquire()

    def __exit__(self, *_: object) -> None:
        self.mutex.release()


class Leading:
    """The begin of a term as a block."""

    def __init__(self, client: Client, key: str) -> None:
        self.client, self.key = client, key

    def __enter__(self) -> None:
        self.client.lead(self.key, lambda _: sys.settrace(None))

    def __exit__(self, *_: object) -> None: ...


# Proves: client interrupts
@pytest.mark.parametrize("how", ["with", "acquire", "several", "semaphore", "acquire semaphore", "lead"])
def test_ctrl_c_at_every_line(client: Client, other: Client, key: str, how: str) -> None:
    ways: dict[str, Callable[[], Any]] = {
        "with": lambda: client.lock(key),
        "acquire": lambda: Acquired(client.lock(key)),
        "several": lambda: client.lock_many([key, f"{key}:2"]),
        "semaphore": lambda: client.semaphore(key, limit=1),
        "acquire semaphore": lambda: Acquired(client.semaphore(key, limit=1)),
        "lead": lambda: Leading(client, key),
    }
    client.acquire(key).release()  # so that the session is open
    package = str(Path(_sync_transport.__file__).parent)
    for place in itertools.count():
        left = place

        def interrupt(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal left
            if not frame.f_code.co_filename.startswith(package):
                return None
            # The release of a mutex at the end of a `with` counts as a line, but Ctrl-C cannot come there.
            within = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")
            left -= event == "line" and not within
            if event == "line" and left < 0:
                raise KeyboardInterrupt
            return interrupt

        context = ways[how]()
        sys.settrace(interrupt)
        try:
            with context:
                sys.settrace(None)
                break  # all lines were tried
        except KeyboardInterrupt:
            sys.settrace(None)
        free(other, key)
        free(other, f"{key}:2")
    assert place > 50


def in_child(function: Callable[[], object]) -> str:
    """The result of the function in a forked child, or its exception."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(round(LONG))  # ends a child that hangs
        try:
            said = str(function())
        except BaseException as e:
            said = f"{type(e).__name__}: {e}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def sockets() -> int:
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    return found


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_a_session_of_its_own(path: str, client: Client, key: str) -> None:
    lock = client.acquire(key)
    session = client._core.session
    assert session is not None
    called: list[int] = []
    lock.lost.on(lambda: called.append(1))
    assert in_child(lambda: (bool(lock.lost), lock.lost.reason, called)) == "(True, 'forked', [])"
    assert in_child(lambda: client.try_acquire(key)) == "None"  # its session is another one
    assert in_child(lambda: client.acquire(f"{key}:child").check().session != session.id) == "True"
    assert in_child(lambda: lock.release()).startswith("LockLost: ")
    assert not lock.lost
    assert client.get(key).mine
    assert lock.check().token == lock.token
    free(client, f"{key}:child")  # after the sidecar has seen the end of the child's connections
    assert client._core.session is session
    assert lock.release()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_may_use_a_mutex_of_its_parent(client: Client, key: str) -> None:
    mutex = client.lock(key)
    assert in_child(lambda: (mutex.acquire(), mutex.release(), mutex.held)) == "(True, None, None)"  # type: ignore[func-returns-value]
    assert mutex.acquire(timeout=LONG)
    assert in_child(lambda: (mutex.held, mutex.locked(), mutex.acquire(blocking=False))) == "(None, True, False)"
    assert in_child(lambda: mutex.release()).startswith("RuntimeError: ")
    mutex.release()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_keeps_no_descriptor_of_its_parent(path: str, client: Client, key: str) -> None:
    gc.collect()  # what other tests have interrupted while it was made
    lock = client.acquire(key)
    waiter = threading.Thread(
        target=lambda: Client(path).acquire(key, wait=LONG)
    )  # a waiting connection is inherited too
    waiter.start()
    waiting(client, key)
    before = sockets()
    assert before >= 4
    assert in_child(sockets) == "0"
    lock.release()
    waiter.join()


CHILD_LIVES_ON = """
import os, sys, time
from locksidecar import Client
client = Client()
lock = client.acquire(sys.argv[1])
if os.fork() == 0:
    time.sleep(60)
print("held")
time.sleep(60)
"""


def test_a_surviving_child_does_not_keep_locks_of_its_parent(python: Python, client: Client, key: str) -> None:
    process = python(CHILD_LIVES_ON, key)
    assert line(process) == "held"
    assert client.get(key).state == "held"
    process.kill()
    process.wait()
    client.acquire(key, wait=LONG).release()
    os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_while_other_threads_are_busy(client: Client, key: str) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with client.lock(key):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for n in range(20):
            assert in_child(lambda n=n: client.acquire(f"{key}:{n}", wait=LONG).release()) == "True"  # type: ignore[misc]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _work(client: Client, key: str, out: Any) -> None:
    with client.lock(key) as lock:
        out.put(lock.token)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_multiprocessing_with_fork(client: Client, key: str) -> None:
    context = multiprocessing.get_context("fork")
    out = context.Queue()
    with client.lock(key) as lock:
        processes = [context.Process(target=_work, args=(client, key, out)) for _ in range(3)]
        for process in processes:
            process.start()
        waiting(client, key, 3)
    tokens = [out.get(timeout=LONG) for _ in processes]
    for process in processes:
        process.join()
    # Each was granted once. Threads of the children write the queue in any order.
    assert len(set(tokens)) == 3
    assert min(tokens) > lock.token


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_under_asyncio(path: str, key: str) -> None:
    async def child(client: AsyncClient) -> bool:
        return await client.try_acquire(key) is None and await client.try_acquire(f"{key}:child") is not None

    async def main() -> None:
        async with AsyncClient(path) as client:
            lock = await client.acquire(key)
            asyncio.events._set_running_loop(None)  # as in a child of multiprocessing
            said = in_child(lambda: (bool(lock.lost), sockets_of(client), asyncio.run(child(client))))
            asyncio.events._set_running_loop(asyncio.get_event_loop_policy().get_event_loop())
            assert said == "(True, 0, True)"
            # The loop still receives: the child has not removed the sockets from its epoll.
            assert (await lock.check()).token == lock.token
            async with AsyncClient(path) as other:
                await other.stop(key, "why")
                await asyncio.wait_for(lock.stopping.wait(), LONG)
            await lock.release()

    def sockets_of(client: AsyncClient) -> int:
        return len(client._transport._sockets)

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(main())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


COUNT = """
import os
links = [f"/proc/self/fd/{n}" for n in range(3, 64)]
print(sum(os.readlink(link).startswith("socket:") for link in links if os.path.lexists(link)))
"""


def test_exec_closes_the_descriptors(client: Client, key: str) -> None:
    client.acquire(key)
    for sock in client._transport._sockets._open:
        assert not sock.get_inheritable()
    said = subprocess.run([sys.executable, "-c", COUNT], close_fds=False, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "0"


APP = """
import os
from locksidecar import Client
client = Client()
lock = client.acquire(os.environ["KEY"] + ":preload")  # used before the fork

def app(environ, start_response):
    with client.lock(os.environ["KEY"], wait=60) as mine:
        said = f"{os.getpid()} {mine.token} {lock.lost.reason}"
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [said.encode()]
"""


class _OverSocket(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=LONG)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def test_gunicorn_with_preload(path: str, client: Client, key: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "app.py").write_text(APP)
        server = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "--preload", "-w", "2", "-b", "unix:g.sock", "--log-level", "error",
             "--no-control-socket", "app:app"],
            cwd=folder, env={**os.environ, "LOCKSIDECAR_SOCKET": path, "KEY": key}, start_new_session=True,
        )  # fmt: skip
        try:
            workers, tokens = set(), []

            def ask() -> bool:
                assert server.poll() is None
                connection = _OverSocket(f"{folder}/g.sock")
                try:
                    connection.connect()
                except (FileNotFoundError, ConnectionRefusedError):  # it does not listen yet
                    return False
                connection.request("GET", "/")
                said = connection.getresponse().read().decode().split()
                connection.close()
                workers.add(said[0])
                tokens.append(int(said[1]))
                assert said[2] == "forked"
                return len(workers) == 2

            until("both workers answer", ask)
            assert tokens == sorted(set(tokens))
            assert client.get(f"{key}:preload").state == "held"  # the master's
            os.kill(server.pid, signal.SIGKILL)
            client.acquire(f"{key}:preload", wait=LONG)  # although the workers live on
        finally:
            # The whole group, and before the wait for the server: later another process may have the number of a
            # worker.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def test_a_lock_lost_in_the_body_is_raised_at_its_end(shared: Sidecar, client: Client, key: str) -> None:
    with pytest.raises(LockLost) as lost:
        with client.lock(key, max_hold=2) as lock:
            assert lock.lost.wait(LONG)
    assert lost.value.reason == "max_hold"

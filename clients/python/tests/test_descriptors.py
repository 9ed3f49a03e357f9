# Proves: client descriptors
"""Without a free descriptor: waiting calls take all, and the holder still releases."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from conftest import Sidecar, free, line
from locksidecar import Client
from test_hang import IN_TIME

Python = Callable[..., "subprocess.Popen[str]"]

TASKS = """
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
from locksidecar import AsyncClient, Unavailable
async def main():
    async with AsyncClient() as client:
        lock = await client.acquire(sys.argv[1])
        done = []
        async def work():
            async with client.lock(sys.argv[1]):
                done.append(1)
        tasks = [asyncio.create_task(work()) for _ in range(100)]
        more = [client.acquire(sys.argv[1], wait=0.3) for _ in range(10)]
        ends = await asyncio.gather(*more, return_exceptions=True)
        refused = next(e for e in ends if isinstance(e, Unavailable))
        assert "no free file descriptor" in str(refused) and "60 (RLIMIT_NOFILE" in str(refused), refused
        await lock.check()
        await lock.release()
        await asyncio.gather(*tasks)
        print(len(done))
asyncio.run(main())
"""

THREADS = """
import resource, sys, threading
from concurrent.futures import ThreadPoolExecutor
resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
from locksidecar import Client, Unavailable
with Client() as client:
    lock = client.acquire(sys.argv[1])
    done = []
    def work():
        with client.lock(sys.argv[1]):
            done.append(1)
    threads = [threading.Thread(target=work) for _ in range(100)]
    for thread in threads:
        thread.start()
    with ThreadPoolExecutor(10) as pool:
        more = [pool.submit(client.acquire, sys.argv[1], wait=0.3) for _ in range(10)]
        refused = next(e for e in (one.exception() for one in more) if isinstance(e, Unavailable))
    assert "no free file descriptor" in str(refused) and "60 (RLIMIT_NOFILE" in str(refused), refused
    lock.check()
    lock.release()
    for thread in threads:
        thread.join()
    print(len(done))
"""


HANGING_TASKS = """
import asyncio, os, resource, signal, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
from locksidecar import AsyncClient
async def main():
    client = AsyncClient(sys.argv[2], timeout=60)
    acquired = time.monotonic()
    lock = await client.acquire(sys.argv[1], ttl=2)
    os.kill(int(sys.argv[3]), signal.SIGSTOP)
    tasks = [asyncio.create_task(client.get(sys.argv[1])) for _ in range(60)]
    await lock.lost.wait()
    print(lock.lost.reason, time.monotonic() - acquired)
    os._exit(0)
asyncio.run(main())
"""

HANGING_THREADS = """
import os, resource, signal, sys, threading, time
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
from locksidecar import Client
client = Client(sys.argv[2], timeout=60)
acquired = time.monotonic()
lock = client.acquire(sys.argv[1], ttl=2)
os.kill(int(sys.argv[3]), signal.SIGSTOP)
for _ in range(60):
    threading.Thread(target=client.get, args=(sys.argv[1],), daemon=True).start()
lock.lost.wait()
print(lock.lost.reason, time.monotonic() - acquired)
os._exit(0)
"""


OTHER_FILES_AND_TASKS = """
import asyncio, os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
from locksidecar import AsyncClient
async def main():
    async with AsyncClient(sys.argv[2]) as client:
        lock = await client.acquire(sys.argv[1], ttl=4)
        files = []
        try:
            while True:
                files.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
        await asyncio.wait([asyncio.ensure_future(lock.lost.wait())], timeout=6)
        print(lock.lost.reason, (await lock.check()).expires_in > 0, await lock.release())
asyncio.run(main())
"""

OTHER_FILES_AND_THREADS = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
from locksidecar import Client
with Client(sys.argv[2]) as client:
    lock = client.acquire(sys.argv[1], ttl=4)
    files = []
    try:
        while True:
            files.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    lock.lost.wait(6)
    print(lock.lost.reason, lock.check().expires_in > 0, lock.release())
"""


@pytest.mark.parametrize("code", [OTHER_FILES_AND_TASKS, OTHER_FILES_AND_THREADS], ids=["tasks", "threads"])
def test_a_lock_stays_without_a_free_descriptor(python: Python, sidecar: Sidecar, key: str, code: str) -> None:
    """The app has all descriptors. The client asks on a connection that it has kept."""
    assert line(python(code, key, sidecar.path)) == "None True True"


@pytest.mark.parametrize("code", [TASKS, THREADS], ids=["tasks", "threads"])
def test_a_release_gets_through(python: Python, client: Client, key: str, code: str) -> None:
    assert line(python(code, key)) == "100"
    free(client, key)


@pytest.mark.parametrize("code", [HANGING_TASKS, HANGING_THREADS], ids=["tasks", "threads"])
def test_a_loss_is_told_in_time(python: Python, sidecar: Sidecar, key: str, code: str) -> None:
    """The question about the lock gets no descriptor, because the calls that hang have all."""
    assert sidecar._process is not None
    reason, took = line(python(code, key, sidecar.path, str(sidecar._process.pid))).split()
    assert reason == "expired"
    assert 1.5 < float(took) < IN_TIME


def test_the_limit_at_the_first_call_is_named(python: Python, key: str) -> None:
    code = """
import resource, sys
from locksidecar import Client, Unavailable
client = Client()
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
try:
    client.acquire(sys.argv[1])
except Unavailable as e:
    print(e)
"""
    assert "no free file descriptor: its limit is 3 (RLIMIT_NOFILE" in line(python(code, key))

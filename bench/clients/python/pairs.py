"""pairs.py locksidecar|redis SOCKET CALLERS SECONDS: prints the pairs of acquire and release a second, each thread with a key of its own.

Before that, all threads want one key, and it fails if two have it at a time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

library, socket, callers, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
failures: list[BaseException] = []

if library == "locksidecar":
    from locksidecar import Client

    client = Client(socket)

    def acquire(key: str) -> Callable[[], object] | None:
        lock = client.try_acquire(key)
        return lock.release if lock else None

else:
    import redis

    server = redis.Redis(unix_socket_path=socket)

    def acquire(key: str) -> Callable[[], object] | None:
        lock = server.lock(key, timeout=30, blocking=False)
        return lock.release if lock.acquire() else None


def each(lasting: float, pair: Callable[[int], bool]) -> float:
    """Runs all threads for a time, and returns the number of pairs a second."""
    counts = [0] * callers
    began = time.perf_counter()

    def run(i: int) -> None:
        try:
            while time.perf_counter() - began < lasting:
                counts[i] += pair(i)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(counts) / (time.perf_counter() - began)


holders: list[int] = []


def contended(i: int) -> bool:
    release = acquire("bench:one")
    if release is None:
        return False
    holders.append(i)
    time.sleep(0)
    if holders != [i]:
        raise AssertionError(f"{holders} had the lock at a time")
    holders.remove(i)
    release()
    return True


def own(i: int) -> bool:
    release = acquire(f"bench:{i}")
    if release is None:
        raise AssertionError("a key that nobody else uses is held")
    release()
    return True


if each(0.5, contended) == 0:
    raise AssertionError("nobody got the lock")
each(1, own)  # warm
print(round(each(seconds, own)))

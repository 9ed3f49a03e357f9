#!/usr/bin/env python3
"""A pool of worker processes with slots, with the Python client.

At most three workers work at a time, in all pods, and each knows which of the three parts is its own: its slot. A
worker that dies frees its slot at once. Install the client with `pip install locksidecar`.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
from pathlib import Path

from locksidecar import Client

SLOTS, WORKERS, JOBS = 3, 6, 10

client = Client(name="slots.py")
pool = client.semaphore("import:s3", limit=SLOTS, wait=30)


def job(parts: Path) -> None:
    """Works on one part. Two in the same part would be a mistake, which "x" finds."""
    with pool as permit:
        part = parts / f"part-{permit.slot}"
        part.open("x").close()
        part.unlink()


def work(parts: Path) -> None:
    for _ in range(JOBS):
        job(parts)


def hang(working: "multiprocessing.Queue[int]") -> None:
    with pool as permit:
        working.put(permit.slot)
        signal.pause()


def main() -> int:
    fork = multiprocessing.get_context("fork")
    # A worker that hangs in its part, until it is killed.
    working = fork.Queue()
    lost = fork.Process(target=hang, args=(working,))
    lost.start()
    slot = working.get(timeout=30)
    os.kill(lost.pid, signal.SIGKILL)
    lost.join()
    with tempfile.TemporaryDirectory() as folder:
        workers = [fork.Process(target=work, args=(Path(folder),)) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    with pool as permit:
        again = permit.slot
    client.close()
    print(f"{WORKERS} workers made {JOBS} jobs each in {SLOTS} slots; slot {slot} of the killed worker is {again} again")
    return 0 if again == slot == 0 and not any(worker.exitcode for worker in workers) else 1


if __name__ == "__main__":
    sys.exit(main())

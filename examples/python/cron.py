#!/usr/bin/env python3
"""A scheduler in each of two processes, with APScheduler: each tick of the job runs in one of them.

Install with `pip install 'locksidecar[apscheduler]'`.
"""

import logging
import os
import subprocess
import sys
import time
from datetime import datetime, timezone

from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.blocking import BlockingScheduler

from locksidecar import Client
from locksidecar.contrib import held
from locksidecar.contrib.apscheduler import FleetExecutor


def close_books() -> None:
    # Each write of the job has its token, so the late write of an earlier run is refused.
    print("ran, fencing token", held().token, flush=True)


def pod(at: float) -> None:
    """Schedules the job for the time `at`, and says what has become of the tick."""
    logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
    with Client(name="cron.py") as client:
        scheduler = BlockingScheduler(executors={"default": ThreadPoolExecutor(), "fleet": FleetExecutor(client)})
        tick = datetime.fromtimestamp(at, timezone.utc)
        # A job of every day: "cron", hour=3. The id names the lock, so it is the same in all processes.
        # A process that is late by more than a second would not even try the tick.
        scheduler.add_job(close_books, "date", run_date=tick, id="close-books", executor="fleet", misfire_grace_time=60)
        scheduler.start()


def main() -> int:
    at = time.time() + 2
    # With two sidecars on one database, the processes are in different pods.
    first = os.environ.get("LOCKSIDECAR_SOCKET", "")  # empty: the usual one
    sockets = [first, os.environ.get("LOCKSIDECAR_SOCKET_2") or first]
    pods = [
        subprocess.Popen(
            [sys.executable, "-u", __file__, str(at)], env={**os.environ, "LOCKSIDECAR_SOCKET": socket}, stdout=subprocess.PIPE, text=True
        )
        for socket in sockets
    ]
    ran = skipped = 0
    try:
        for number, process in enumerate(pods, 1):
            for line in process.stdout:
                if line.startswith("ran"):
                    ran += 1
                elif "does not run here" in line:
                    skipped += 1
                else:
                    continue
                print(f"process {number}: {line.strip()}")
                break
    finally:
        for process in pods:
            process.kill()
            process.wait()
    return 0 if (ran, skipped) == (1, 1) else 1


if __name__ == "__main__":
    sys.exit(pod(float(sys.argv[1])) if sys.argv[1:] else main())

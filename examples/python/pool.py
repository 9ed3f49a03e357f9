#!/usr/bin/env python3
"""A pool of worker processes that share one account, with the Python client.

The client is made before the fork. Each child opens a session of its own on first use, so a killed worker
loses only its own locks. Install the client with `pip install locksidecar`.
"""

import json
import multiprocessing
import sys
import tempfile
from pathlib import Path

from locksidecar import Client

WORKERS, DEPOSITS = 4, 25

client = Client(name="pool.py")


def deposit(account: Path) -> None:
    """Reads and writes. Two at the same time would lose a deposit."""
    with client.lock("account:1", wait=30) as lock:
        state = json.loads(account.read_text())
        # The guard: the protected resource refuses a smaller token than it has seen.
        if lock.token < state["last_token"]:
            raise RuntimeError("another worker had the lock meanwhile")
        account.write_text(json.dumps({"balance": state["balance"] + 1, "last_token": lock.token}))


def work(account: Path) -> None:
    for _ in range(DEPOSITS):
        deposit(account)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        account = Path(folder, "account.json")
        account.write_text(json.dumps({"balance": 0, "last_token": 0}))
        deposit(account)  # the parent's session is open before the fork
        workers = [multiprocessing.get_context("fork").Process(target=work, args=(account,)) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        balance = json.loads(account.read_text())["balance"]
    client.close()
    print(f"{WORKERS} workers made {DEPOSITS} deposits each, and the parent one: the balance is {balance}")
    return 0 if balance == WORKERS * DEPOSITS + 1 and not any(w.exitcode for w in workers) else 1


if __name__ == "__main__":
    sys.exit(main())

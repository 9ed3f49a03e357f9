#!/usr/bin/env python3
"""A leader among processes, with the Python client: when it dies, the next one leads at once.

Everybody else reads the leader's address from its lock. Install the client with `pip install locksidecar`.
"""

import os
import signal
import subprocess
import sys

from locksidecar import Client, Term

KEY, CANDIDATES = "leader:scheduler", 3


def candidate() -> None:
    """Runs until it is ended. It leads again after a loss."""

    def schedule(term: Term) -> None:
        # Each write of a leader has its token, so a late write of its predecessor is refused.
        print(os.getpid(), term.token, flush=True)
        term.lost.wait()  # the work: it ends when the term does

    with Client(name="leader.py") as client:
        client.lead(KEY, schedule, data={"pid": os.getpid()}, ttl=15)


def main() -> int:
    output, given = os.pipe()
    candidates = {p.pid: p for p in (subprocess.Popen([sys.executable, __file__, "candidate"], stdout=given) for _ in range(CANDIDATES))}
    os.close(given)
    tokens = []
    try:
        with Client() as client, client.watch_leader(KEY) as leaders, open(output) as terms:
            for _ in range(CANDIDATES):
                leader = next(data for data in leaders if data is not None)
                pid, token = map(int, terms.readline().split())
                if pid != leader["pid"] or tokens and token <= tokens[-1]:
                    raise RuntimeError(f"{leader} leads, but {pid} has token {token} after {tokens}")
                print(f"process {len(tokens) + 1} leads, fencing token {token}; kill -9")
                tokens.append(token)
                candidates[pid].send_signal(signal.SIGKILL)
                candidates[pid].wait()
            nobody = next(leaders)  # the last one is dead, too
    finally:
        for process in candidates.values():
            process.kill()
            process.wait()
    return 0 if nobody is None else 1


if __name__ == "__main__":
    sys.exit(candidate() if sys.argv[1:] else main())

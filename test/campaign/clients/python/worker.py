"""A program of the campaign: `worker.py TASK`, with what it is to do as JSON."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import Any

# The memory that a program may take besides its code, with the stacks of its threads. A program that grows beyond it
# ends.
MEMORY = 512 << 20
# Fewer than the tasks of asyncio would need, if all of them waited.
DESCRIPTORS = 16


def main(task: dict[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(0))
    options = {
        "socket_path": task["socket"],
        "name": task["name"],
        "timeout": task["timeout"],
        "reconnect": task["reconnect"],
    }
    program = task["program"]
    if program == "py-gevent" and task["seed"] % 2 == 0:
        patch()  # the other seeds make the client first, as a server does that loads the app and then forks workers
    if program == "py-asyncio":
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, most))
        from locksidecar import AsyncClient

        from tasks import tasks

        tasks(task, AsyncClient(**options))
        return
    from locksidecar import Client

    client = Client(**options)
    if program == "py-gevent":
        patch()
    import blocking

    {"py-threads": blocking.threads, "py-processes": blocking.processes, "py-gevent": blocking.greenlets}[program](
        task, client
    )


def patch() -> None:
    """Lets the standard library wait as gevent does."""
    from gevent import monkey

    monkey.patch_all()


main(json.loads(sys.argv[1]))

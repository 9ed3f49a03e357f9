"""The app in Python of compose.yaml: it shares its work with the app in Node, which has a sidecar of its own."""

import random
import time

from locksidecar import Client


def report(client: Client) -> None:
    """One of all apps makes a report at a time, in the order in which they asked."""
    with client.lock("report:daily", data={"app": "python"}) as lock:
        print(f"the report is mine, fencing token {lock.token}", flush=True)
        time.sleep(random.uniform(1, 4))


def upload(client: Client) -> None:
    """At most two uploads run at a time, in the whole fleet."""
    with client.semaphore("upload:images", limit=2) as permit:
        print(f"an upload in slot {permit.slot}", flush=True)
        time.sleep(random.uniform(0.5, 2))


with Client(name="compose") as client:
    while True:
        random.choice([report, upload])(client)

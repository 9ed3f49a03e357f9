"""Tasks for a real worker: `celery -A celery_app worker`, with a broker and results in the folder CELERY_FOLDER."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery

from locksidecar import Client
from locksidecar.contrib import held
from locksidecar.contrib.celery import LockedTask, OnceTask

folder = Path(os.environ["CELERY_FOLDER"])
app = Celery("celery_app", broker="filesystem://", backend=f"file://{folder}/results")
app.conf.broker_transport_options = {
    "data_folder_in": f"{folder}/queue",
    "data_folder_out": f"{folder}/queue",
    "control_folder": f"{folder}/control",
}
app.conf.result_backend_transport_options = {"polling_interval": 0.05}
for name in ("queue", "control", "results"):
    (folder / name).mkdir(exist_ok=True)
dead = Client(f"{folder}/nothing.sock")


@app.task(base=LockedTask, lock_key="{key}", lock_held="skip")
def locked(key: str) -> int:
    return held().token


@app.task(base=LockedTask, lock_key="{key}", default_retry_delay=0, max_retries=2)
def retried(key: str) -> int:
    return held().token


@app.task(base=LockedTask, lock_key="{key}")
def endless(key: str) -> None:
    Path(folder, key).touch()
    while True:
        time.sleep(0.001)


@app.task(base=OnceTask, once_every=80000, lock_key="{key}")
def once(key: str, fail: bool = False) -> int:
    with open(folder / f"{key}.runs", "a") as runs:
        runs.write("x")
    if fail and not once.request.retries:
        raise once.retry(countdown=0)
    return held().token


@app.task(base=LockedTask, lock_key="{key}", lock_client=dead)
def locked_dead(key: str) -> None:
    Path(folder, key).touch()


@app.task(base=OnceTask, once_every=1, lock_client=dead, lock_key="{key}", lock_unavailable="skip")
def once_dead(key: str) -> None:
    Path(folder, key).touch()


@app.task(base=OnceTask, once_every=80000, lock_key="{key}")
def sent(key: str) -> float:
    return float(sent.request.get("locksidecar_sent"))


@app.task(base=LockedTask, lock_key="{key}", lock_held="fail")
def failing(key: str) -> None: ...

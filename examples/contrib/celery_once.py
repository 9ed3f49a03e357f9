#!/usr/bin/env python3
"""Two Celery workers, and a beat in each pod: both beats send the task, and one worker runs it.

Install with `pip install 'locksidecar[celery]'`.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile

from celery import Celery
from celery.exceptions import TaskRevokedError

from locksidecar.contrib import held
from locksidecar.contrib.celery import OnceTask

FOLDER = os.environ.setdefault("CELERY_FOLDER", tempfile.mkdtemp())

# A broker and results in a folder, so that the example needs no server.
app = Celery("celery_once", broker="filesystem://", backend=f"file://{FOLDER}")
app.conf.broker_transport_options = {"data_folder_in": FOLDER, "data_folder_out": FOLDER, "control_folder": FOLDER}


@app.task(base=OnceTask, once_every=3600)  # for beat_schedule: crontab(minute=0)
def close_books() -> int:
    # Each write of the task has its token, so the late write of an earlier run is refused.
    return held().token


def main() -> int:
    # With two sidecars on one database, the workers are in different pods.
    first = os.environ.get("LOCKSIDECAR_SOCKET", "")  # empty: the usual one
    sockets = [first, os.environ.get("LOCKSIDECAR_SOCKET_2") or first]
    workers = []
    ran = skipped = 0
    try:
        for pod, socket in enumerate(sockets):
            command = [sys.executable, "-m", "celery", "-A", "celery_once", "worker", "-c", "1", "-Q", f"pod{pod}", "-n", f"pod{pod}", "-l", "error"]
            environment = {**os.environ, "LOCKSIDECAR_SOCKET": socket, "PYTHONPATH": os.path.dirname(__file__) + ":" + os.environ.get("PYTHONPATH", "")}
            workers.append(subprocess.Popen(command, env=environment, cwd=FOLDER, stdout=subprocess.DEVNULL, start_new_session=True))
        # As the beat of each pod does it.
        for pod, sent in enumerate([close_books.apply_async(queue=f"pod{pod}") for pod in range(len(sockets))]):
            try:
                print(f"worker {pod + 1} has run it, fencing token {sent.get(timeout=60)}")
                ran += 1
            except TaskRevokedError as e:
                print(f"worker {pod + 1} has not: {e}")
                skipped += 1
    finally:
        for worker in workers:
            os.killpg(worker.pid, signal.SIGKILL)  # with its pool of processes
            worker.wait()
    return 0 if (ran, skipped) == (1, 1) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        shutil.rmtree(FOLDER)

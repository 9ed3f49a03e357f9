"""Tasks with a lock, in a real Celery worker with its pool of forked processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery.exceptions import TaskRevokedError

from conftest import LONG, Sidecar, until
from locksidecar import Client, LockHeld, LockLost, NoAnswer


@pytest.fixture(scope="module")
def tasks(shared: Sidecar, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The module of the tasks. A worker runs them."""
    folder = tmp_path_factory.mktemp("celery")
    os.environ["CELERY_FOLDER"] = str(folder)
    environment = {**os.environ, "LOCKSIDECAR_SOCKET": shared.path, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "-c", "2", "-l", "info"]
    with open(folder / "log", "w") as log:
        worker = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True)
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        import celery_app

        yield celery_app
    except BaseException:
        print((folder / "log").read_text())
        raise
    finally:
        sys.path.pop(0)
        os.killpg(worker.pid, 9)
        worker.wait()
        print((folder / "log").read_text()[-10000:])


def test_a_task_has_its_lock(tasks: Any, client: Client, key: str) -> None:
    assert tasks.locked.delay(key).get(timeout=LONG) > 0
    assert client.get(key).state == "free"


def test_a_held_lock_skips_the_task(tasks: Any, client: Client, key: str) -> None:
    with client.lock(key), pytest.raises(TaskRevokedError, match="is held"):
        tasks.locked.delay(key).get(timeout=LONG)


def test_a_held_lock_retries_the_task(tasks: Any, client: Client, key: str) -> None:
    with client.lock(key):
        result = tasks.retried.delay(key)
        until("it has tried", lambda: result.state == "RETRY")
    assert result.get(timeout=LONG) > 0
    with client.lock(key), pytest.raises(Exception, match="is held"):
        tasks.retried.delay(key).get(timeout=LONG)


def test_a_lost_lock_ends_the_task(tasks: Any, client: Client, key: str) -> None:
    result = tasks.endless.delay(key)
    until("it runs", (tasks.folder / key).exists)
    client.force_release(key)
    with pytest.raises(Exception, match="is lost, reason: forced"):
        result.get(timeout=LONG)


def test_a_task_of_two_beats_runs_once(tasks: Any, client: Client, key: str) -> None:
    ends = []
    for result in [tasks.once.delay(key), tasks.once.delay(key)]:
        try:
            ends.append(result.get(timeout=LONG) > 0)
        except TaskRevokedError as e:
            ends.append("was taken by pod" in str(e) or "an earlier run" in str(e))
    assert ends == [True, True]
    assert (tasks.folder / f"{key}.runs").read_text() == "x"
    assert client.get(key).state == "free"


def test_a_retry_of_a_task_that_runs_once(tasks: Any, key: str) -> None:
    first, second = tasks.once.delay(key, fail=True), tasks.once.delay(key, fail=True)
    ends = []
    for result in (first, second):
        try:
            ends.append(result.get(timeout=LONG))
        except TaskRevokedError:
            ends.append(None)
    assert sorted(end is None for end in ends) == [False, True]
    assert (tasks.folder / f"{key}.runs").read_text() == "xx"


def test_a_task_that_comes_late_does_not_run(tasks: Any, key: str) -> None:
    with pytest.raises(TaskRevokedError, match="s late, more than half of min_hold=600"):
        tasks.once.apply_async([key], headers={"locksidecar_sent": time.time() - 400}).get(timeout=LONG)
    assert not (tasks.folder / f"{key}.runs").exists()


def test_the_time_of_the_sending_decides(tasks: Any, key: str) -> None:
    before = time.time()
    result = tasks.sent.delay(key)
    after = time.time()
    assert before <= result.get(timeout=LONG) <= after


# Proves: client errors
def test_the_caller_catches_the_errors_of_locks(tasks: Any, client: Client, key: str) -> None:
    """Celery makes them again, of their args in JSON."""
    with client.lock(key, data={"by": "me"}), pytest.raises(LockHeld) as held:
        tasks.failing.delay(key).get(timeout=LONG)
    assert held.value.holder is not None
    assert held.value.holder.data == {"by": "me"}
    result = tasks.endless.delay(key)
    until("it runs", (tasks.folder / key).exists)
    client.force_release(key)
    with pytest.raises(LockLost) as lost:
        result.get(timeout=LONG)
    assert lost.value.reason == "forced"
    with pytest.raises(NoAnswer) as away:
        tasks.locked_dead.delay(key + "2").get(timeout=LONG)
    assert away.value.path.endswith("nothing.sock")


def test_the_time_of_a_countdown_decides(tasks: Any, key: str) -> None:
    at = time.time() + 3600
    assert tasks.once._planned(countdown=3600) == pytest.approx(at, abs=30)
    eta = datetime.fromtimestamp(at, timezone.utc)
    assert tasks.once._planned(eta=eta) == pytest.approx(at)
    assert tasks.once._planned(eta=eta.isoformat()) == pytest.approx(at)
    assert tasks.sent.apply_async([key], countdown=2).get(timeout=LONG) <= time.time()


def test_without_the_sidecar_the_task_does_not_run(tasks: Any, key: str) -> None:
    with pytest.raises(Exception, match="cannot reach the sidecar"):
        tasks.locked_dead.delay(key).get(timeout=LONG)
    with pytest.raises(TaskRevokedError, match="cannot reach the sidecar"):
        tasks.once_dead.delay(key).get(timeout=LONG)
    assert not (tasks.folder / key).exists()


def test_the_period_is_needed(tasks: Any) -> None:
    def task() -> None: ...

    with pytest.raises(ValueError, match="once_every"):
        tasks.app.task(base=tasks.OnceTask, name=uuid4().hex)(task)()

"""What a program writes down, and what it is told."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any


class Notes:
    """The history of one process: a line for each beginning and each end. Children of a fork write to the same file."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task = task
        self._file = os.open(task["records"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._numbers = itertools.count(1)

    def begin(self, kind: str, actor: int, **fields: Any) -> dict[str, Any]:
        op = {
            "id": f"{self._task['name']}-{os.getpid()}-{next(self._numbers)}",
            "app": self._task["name"],
            "program": self._task["program"],
            "sidecar": self._task["sidecar"],
            "pid": os.getpid(),
            "actor": actor,
            "kind": kind,
            "call": now(),
            **fields,
        }
        self._write(op)
        return op

    def end(self, op: dict[str, Any], outcome: str, **fields: Any) -> None:
        op.update(fields, outcome=outcome)
        op["return"] = now()
        self._write(op)

    def cancel(self, op: dict[str, Any]) -> None:
        """From now on the call is cancelled. It may never end."""
        op["cancel"] = now()
        self._write(op)

    def add(self, kind: str, actor: int, **fields: Any) -> None:
        self.end(self.begin(kind, actor), "done", **fields)

    def fail(self, op: dict[str, Any], error: BaseException) -> None:
        """The client's error of a call."""
        name = f"{type(error).__module__}.{type(error).__qualname__}"
        if name == "locksidecar.errors.WaitTimeout" and op.get("wait", 0) > 0:
            self.end(op, "timeout")
        elif name == "locksidecar.errors.LockHeld" and op.get("wait", 0) == 0 and op["kind"] == "acquire":
            self.end(op, "timeout")
        else:
            self.end(op, "failed", error=name, text=str(error))

    def _write(self, op: dict[str, Any]) -> None:
        os.write(self._file, (json.dumps(op) + "\n").encode())  # in one piece, so that a kill leaves whole lines


def now() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Commands:
    """What the campaign says: `calm`, `again`, `go`, a line each; the end of its input ends the program."""

    def __init__(self) -> None:
        self.calm = False
        self.ended = False
        self.line: Callable[[], str] = sys.stdin.readline

    def read(self) -> None:
        line = self.line()
        self.calm = line != "go\n"
        self.ended = line == ""


def leave() -> None:
    """Waits for the end that the campaign has for it."""
    while True:
        signal.pause()

# Proves: client errors
"""Exceptions survive pickle, and are made again of their `args`, as Celery's results do."""

from __future__ import annotations

import copy
import json
import pickle
import socketserver
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from locksidecar import Client, LockHeld, LockInfo, LocksidecarError, NoAnswer, Skipped, Unavailable, errors
from locksidecar.contrib import TickSkipped


def made() -> list[LocksidecarError]:
    problem = {"code": "held", "key": "a", "queue_length": 3, "reason": "forced", "holder": None, "retry_after": 2.0}
    api = [
        getattr(errors, name)(423, "held", "lock 'a' is held", problem)
        for name in errors.__all__
        if issubclass(getattr(errors, name), errors.ApiError)
    ]
    return [
        *api,
        errors.from_problem(problem, 423),
        errors.lost("a", "forced"),
        errors.Unsupported("shared", "1.0"),
        Skipped("a", {"rows": 3}),
        Unavailable("away"),
        NoAnswer("it is away", "/s.sock", "timeout"),
        errors.ProtocolError("no HTTP"),
        LocksidecarError("text"),
        TickSkipped("taken"),
    ]


@pytest.mark.parametrize("error", made(), ids=lambda e: type(e).__name__)
def test_an_exception_is_made_again(error: LocksidecarError) -> None:
    for again in (
        pickle.loads(pickle.dumps(error)),
        copy.copy(error),
        type(error)(*json.loads(json.dumps(error.args))),
    ):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert again.__dict__ == error.__dict__


class Refuses(socketserver.StreamRequestHandler):
    """Answers each call with the problem of its server."""

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        code = self.server.code.encode()  # type: ignore[attr-defined]
        body = b'{"code":"%s","detail":"not now"}' % code
        head = b"HTTP/1.1 503 x\r\nContent-Type: application/problem+json\r\nRetry-After: 3\r\nConnection: close\r\n"
        self.wfile.write(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body))


@pytest.mark.parametrize(
    ("code", "kind", "retry_after"),
    [
        (None, NoAnswer, None),
        ("draining", errors.Draining, 3),
        ("store_unavailable", errors.StoreUnavailable, 3),
    ],
)
def test_unavailable_is_any_sidecar_that_cannot_serve_now(
    code: str | None, kind: type[LocksidecarError], retry_after: float | None, tmp_path: Path
) -> None:
    with (
        socketserver.ThreadingUnixStreamServer(str(tmp_path / "s.sock"), Refuses) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        server.code = code  # type: ignore[attr-defined]
        pool.submit(server.serve_forever, 0.01)
        try:
            with (
                Client(tmp_path / ("none" if code is None else "s.sock")) as client,
                pytest.raises(Unavailable) as away,
            ):
                client.get("a")
        finally:
            server.shutdown()
    assert type(away.value) is kind
    assert away.value.retry_after == retry_after


def test_a_limit_is_another_thing_than_unavailable() -> None:
    limit = errors.from_problem({"code": "limit", "detail": "too many"}, 429, "3")
    assert not isinstance(limit, Unavailable)
    assert limit.retry_after == 3


def test_every_exception_is_looked_at() -> None:
    kinds = {type(error).__name__ for error in made()}
    assert set(errors.__all__) <= kinds


def test_an_answer_is_made_again(client: Client, other: Client, key: str) -> None:
    with client.lock(key, data={"by": "me"}), pytest.raises(LockHeld) as held:
        other.acquire(key, wait=0)
    again = LockHeld(*json.loads(json.dumps(held.value.args)))
    assert again.holder == held.value.holder
    assert again.holder is not None
    assert again.holder.data == {"by": "me"}
    assert str(again) == str(held.value)


@pytest.mark.parametrize("kept", [True, False])
def test_a_lock_that_its_sidecar_keeps(kept: bool) -> None:
    shown = {"key": "a", "type": "", "state": "held", "mine": False, "kept": kept, "queue_length": 0}
    assert LockInfo.from_json(shown).kept is kept
    assert LockHeld(423, "held", "lock 'a' is held", {"code": "held", "kept": kept}).kept is kept

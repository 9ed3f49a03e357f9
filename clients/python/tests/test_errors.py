# Proves: client errors
"""Exceptions survive pickle, and are made again of their `args`, as Celery's results do."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

from locksidecar import Client, LockHeld, LockInfo, LocksidecarError, Skipped, Unavailable, errors
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
        Unavailable("it is away", "/s.sock", "timeout"),
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

"""What the stream tells before the answer that it is about was read."""

from __future__ import annotations

from typing import Any

from locksidecar._session import Session
from locksidecar._signal import Signal


def grant(token: int) -> dict[str, Any]:
    return {"key": "a", "token": token, "waited_ms": 500, "expires_in_ms": 1000, "reentry": 1}


def test_news_that_comes_before_the_answer() -> None:
    session = Session("id", Signal, lambda: None)
    session.hear("stop", {"key": "a", "token": 7, "reason": "deploy"})
    session.hear("lost", {"key": "a", "token": 7, "reason": "max_hold"})
    session.hear("of a newer sidecar", {})
    early = session.hold(grant(7), 0.0)
    assert (early.stopping.reason, early.lost.reason) == ("deploy", "max_hold")
    assert not session.hold(grant(8), 0.0).lost


def test_an_answer_that_comes_after_the_end() -> None:
    ended: list[int] = []
    session = Session("id", Signal, lambda: ended.append(1))
    before = session.hold(grant(7), 0.0)
    session.end()
    session.end("again")
    after = session.hold(grant(8), 0.0)
    assert (before.lost.reason, after.lost.reason) == ("disconnected", "disconnected")
    assert ended == [1]


def test_early_news_is_bounded() -> None:
    session = Session("id", Signal, lambda: None)
    for token in range(2000):
        session.hear("lost", {"key": "a", "token": token, "reason": "forced"})
    assert len(session._early) == 1000
    assert session.hold(grant(1999), 0.0).lost


def test_time_counts_from_the_question() -> None:
    session = Session("id", Signal, lambda: None)
    assert session.hold(grant(7), 100.0).expires_at == 101.5

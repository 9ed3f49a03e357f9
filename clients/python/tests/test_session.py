"""Events of the stream that arrive before the answer with the grant."""

from __future__ import annotations

from typing import Any

from locksidecar._session import Grant, Session
from locksidecar._signal import Signal


def grant(token: int) -> dict[str, Any]:
    return {"key": "a", "token": token, "waited_ms": 500, "expires_in_ms": 1000, "reentry": 1}


def hold(session: Session, value: dict[str, Any], asked: float) -> Grant:
    return session.hold(value, asked, "thread-1", None, "id", reentrant=False).grant


def test_news_before_the_answer_is_delivered_with_it() -> None:
    session = Session("id", Signal, lambda: None)
    session.receive("stop", {"key": "a", "token": 7, "reason": "deploy"})
    session.receive("lost", {"key": "a", "token": 7, "reason": "max_hold"})
    session.receive("of a newer sidecar", {})
    early = hold(session, grant(7), 0.0)
    assert (early.stopping.reason, early.lost.reason) == ("deploy", "max_hold")
    assert not hold(session, grant(8), 0.0).lost


def test_a_grant_after_the_end_of_the_session_is_lost() -> None:
    ended: list[int] = []
    session = Session("id", Signal, lambda: ended.append(1))
    before = hold(session, grant(7), 0.0)
    session.end()
    session.end("again")
    after = hold(session, grant(8), 0.0)
    assert (before.lost.reason, after.lost.reason) == ("disconnected", "disconnected")
    assert ended == [1]


def test_undelivered_news_is_bounded() -> None:
    session = Session("id", Signal, lambda: None)
    for token in range(2000):
        session.receive("lost", {"key": "a", "token": token, "reason": "forced"})
    assert len(session._undelivered) == 1000
    assert hold(session, grant(1999), 0.0).lost


def test_time_counts_from_the_question() -> None:
    session = Session("id", Signal, lambda: None)
    assert hold(session, grant(7), 100.0).expires_at == 101.5

"""Bytes in and out, in pieces of any size."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from locksidecar import Draining, LimitReached, ProtocolError, _wire, errors
from locksidecar.types import time_of

ANSWER = b'HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 10\r\nConnection: close\r\n\r\n{"a":"\xc3\xa4"}'
EVENTS = [b":\n\n", b'event: one\ndata: {"text":"\xc3\xa4"}', b"\n\nevent: two\ndata: [1,\ndata: 2]\n\n:", b"\n\n"]
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + b"".join(
    b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in [*EVENTS, b""]
)


INTERIM = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize("before", [b"", INTERIM])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_an_answer_in_pieces(size: int, before: bytes) -> None:
    parser, found, said = _wire.AnswerParser(), list[_wire.Answer](), before + ANSWER
    for n in range(0, len(said), size):
        assert not found
        if answer := parser.feed(said[n : n + size]):
            found.append(answer)
    assert found[0].status == 200
    assert found[0].json() == {"a": "ä"}
    assert found[0].last
    assert found[0].header(b"server") == "x"
    assert found[0].header(b"ser") == ""


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_stream_in_pieces(size: int) -> None:
    parser, events = _wire.StreamParser(), list[tuple[str, Any]]()
    for n in range(0, len(STREAM), size):
        events += parser.feed(STREAM[n : n + size])
    assert events == [("one", {"text": "ä"}), ("two", [1, 2])]


def test_a_stream_that_is_refused() -> None:
    body = b'{"code":"draining","detail":"it stops"}'
    with pytest.raises(Draining, match="it stops"):
        _wire.StreamParser().feed(b"HTTP/1.1 503 x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


@pytest.mark.parametrize(
    "said", [b"220 smtp", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"H" * 99, b"HTTP/1.1 " + b"x" * 99999]
)
def test_bytes_that_are_no_answer(said: bytes) -> None:
    with pytest.raises(ProtocolError, match="is this the socket of a locksidecar"):
        _wire.AnswerParser().feed(said)


def test_bytes_that_are_no_stream() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    for said in (b"xyz\r\n", b"10\r\ndata: no JSON\n\n00\r\n"):
        with pytest.raises(ProtocolError, match="is this the socket of a locksidecar"):
            _wire.StreamParser().feed(head + said)


def test_an_error_of_a_newer_sidecar() -> None:
    error = errors.from_problem({"code": "new", "detail": "why", "more": 1}, 418)
    assert (type(error), error.status, error.code, error.detail) == (errors.ApiError, 418, "new", "why")
    assert error.problem["more"] == 1
    assert errors.from_problem("no document", 502).code == "http_502"


def test_retry_after() -> None:
    error = errors.from_problem({"code": "limit", "detail": "x"}, 429, "3")
    assert isinstance(error, LimitReached)
    assert error.retry_after == 3


def test_errors_can_be_pickled() -> None:
    lost = errors.lost("key", "forced")
    for error in (
        lost,
        errors.NoAnswer("why", "/s"),
        errors.Unsupported("x", "v1"),
        errors.Skipped("k", 1),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.__dict__) == (type(error), str(error), error.__dict__)


@pytest.mark.parametrize(
    ("text", "microseconds", "hours"),
    [
        ("2026-11-28T05:55:15Z", 0, 0),
        ("2026-11-28T05:55:15.5Z", 500_000, 0),
        ("2026-11-28T05:55:15.53721Z", 537_210, 0),
        ("2026-11-28T05:55:15.123456789Z", 123_456, 0),
        ("2026-11-28T05:55:15.1-05:00", 100_000, -5),
    ],
)
def test_times(text: str, microseconds: int, hours: int) -> None:
    zone = timezone(timedelta(hours=hours))
    assert time_of(text) == datetime(2026, 11, 28, 5, 55, 15, microseconds, zone)

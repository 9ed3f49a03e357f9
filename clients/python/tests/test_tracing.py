from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Sampler
from opentelemetry.trace import SpanKind, StatusCode

import locksidecar
from conftest import Sidecar, free, waiting
from locksidecar import (
    AsyncClient,
    Client,
    InvalidRequest,
    LockHeld,
    LockLost,
    NotHolder,
    ProtocolError,
    StoreUnavailable,
    Unavailable,
    Unsupported,
    WaitTimeout,
    _tracing,
    _wire,
)

T = TypeVar("T")


class App:
    """An app with the SDK, and its ended spans."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("app")

    def spans(self) -> list[ReadableSpan]:
        """The ended spans of the client since the last call."""
        found = [one for one in self.exporter.get_finished_spans() if one.name != "work"]
        self.exporter.clear()
        return found

    def results(self) -> list[dict[str, Any]]:
        """The attributes of the client's spans, without tokens and keys."""
        hidden = ("lock.key", "lock.keys", "lock.type", "lock.token", "lock.mode")
        return [{k: v for k, v in about(one).items() if k not in hidden} for one in self.spans()]


def about(span: ReadableSpan) -> dict[str, Any]:
    assert not span.events
    assert span.status.description is None
    return {"name": span.name, "error": span.status.status_code is StatusCode.ERROR, **(span.attributes or {})}


def span(name: str, result: str, error: str | None = None) -> dict[str, Any]:
    more = {} if error is None else {"error.type": error}
    return {"name": name, "error": error is not None, "lock.result": result, **more}


@dataclass
class Sent:
    """A request as it was sent."""

    method: str
    target: str
    traceparent: str

    def by(self, span: ReadableSpan) -> bool:
        return self.traceparent == traceparent(span)


def traceparent(span: Any) -> str:
    it = span.get_span_context()
    return f"00-{it.trace_id:032x}-{it.span_id:016x}-{it.trace_flags:02x}"


def use(monkeypatch: pytest.MonkeyPatch, app: App) -> App:
    # Not the provider of the process, which can be set only once. Other tests need none.
    monkeypatch.setattr(_tracing, "_provider", lambda: app.provider)
    return app


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> App:
    return use(monkeypatch, App())


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Sent]:
    """The requests about locks."""
    found: list[Sent] = []
    real = _wire.request

    def request(method: str, target: str, headers: str, body: bytes) -> bytes:
        if target.startswith("/v1/locks"):
            lines = dict(line.split(": ", 1) for line in headers.splitlines())
            found.append(Sent(method, target, lines.get("traceparent", "")))
        return real(method, target, headers, body)

    monkeypatch.setattr(_wire, "request", request)
    return found


def submit(pool: ThreadPoolExecutor, work: Callable[[], T]) -> Future[T]:
    """Calls it in another thread, in the context of this one."""
    return pool.submit(contextvars.copy_context().run, work)


def test_an_acquire_and_a_release_are_spans_of_the_app_s_trace(
    app: App, sent: list[Sent], client: Client, key: str
) -> None:
    with app.tracer.start_as_current_span("work") as work:
        with client.lock(key, wait=60, data={"secret": 1}) as lock:
            assert trace.get_current_span() is work
            lock.outcome, lock.result = "success", "secret"
        assert trace.get_current_span() is work
    acquire, release = app.spans()
    expected = {"error": False, "lock.key": key, "lock.type": "test", "lock.token": lock.token}
    assert about(acquire) == {"name": "lock.acquire", "lock.result": "granted", "lock.mode": "exclusive", **expected}
    assert about(release) == {"name": "lock.release", "lock.result": "released", **expected}
    for span in (acquire, release):
        assert span.parent == work.get_span_context()
        assert span.kind is SpanKind.CLIENT
        assert span.instrumentation_scope is not None
        assert span.instrumentation_scope.name == "locksidecar"
        assert span.instrumentation_scope.version == locksidecar.__version__
        session = client._core.session
        assert session is not None
        for word in ("secret", session.id):
            assert word not in span.to_json()
    assert [one.method for one in sent] == ["PUT", "DELETE"]
    assert sent[0].by(acquire)
    assert sent[1].by(release)


def test_the_same_with_asyncio(app: App, sent: list[Sent], path: str, key: str) -> None:
    async def main() -> None:
        async with AsyncClient(path) as client, client.lock(key, wait=60):
            assert trace.get_current_span() is work
        assert trace.get_current_span() is work

    with app.tracer.start_as_current_span("work") as work:
        asyncio.run(main())
    acquire, release = app.spans()
    assert [one.name for one in (acquire, release)] == ["lock.acquire", "lock.release"]
    assert acquire.parent == release.parent == work.get_span_context()
    assert sent[0].by(acquire)
    assert sent[1].by(release)


def test_spans_under_the_lock_are_no_children_of_the_acquire(app: App, client: Client, key: str) -> None:
    with client.lock(key):
        app.tracer.start_span("inside").end()
    acquire, inside, release = app.spans()
    assert [one.parent for one in (acquire, inside, release)] == [None, None, None]


def test_results(app: App, client: Client, other: Client, key: str) -> None:
    granted, released = span("lock.acquire", "granted"), span("lock.release", "released")

    lock = client.acquire(key, reentrant=True)
    with client.lock(key, reentrant=True):
        pass
    assert app.results() == [granted, span("lock.acquire", "reentered"), released]

    assert other.try_acquire(key) is None
    with pytest.raises(WaitTimeout):
        other.acquire(key, wait=0.01)
    with pytest.raises(LockHeld):
        other.acquire_many([f"{key}:more", key], wait=0)
    refused = [span("lock.acquire", one) for one in ("held", "wait_timeout", "held")]
    assert app.results() == refused

    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(other.once, key, lambda: 1)
        waiting(client, key)
        lock.release("success", 2)
        assert waiter.result(60) == 2
    assert sorted(app.results(), key=str) == [span("lock.acquire", "skipped"), released]

    with pytest.raises(NotHolder):
        other.release(key, lock.token)
    with pytest.raises(InvalidRequest):
        client.acquire("")
    client.locked(key)(lambda: None)()
    refused = [span("lock.release", "not_holder"), span("lock.acquire", "invalid_request")]
    assert app.results() == [*refused, granted, released]

    lock = client.acquire(key)
    client.force_release(key)
    assert lock.lost.wait(10)
    with pytest.raises(LockLost):
        lock.release()
    assert app.results() == [granted, span("lock.release", "lock_lost")]


def test_several_keys(app: App, client: Client, key: str) -> None:
    with client.lock_many([f"{key}:b", f"{key}:a"]):
        pass
    acquire, *releases = app.spans()
    assert acquire.attributes == {
        "lock.keys": (f"{key}:b", f"{key}:a"),
        "lock.type": "test",
        "lock.result": "granted",
        "lock.mode": "exclusive",
    }
    assert {one.attributes["lock.key"] for one in releases if one.attributes} == {f"{key}:b", f"{key}:a"}
    for lock in client.acquire_many(iter([key, "plain"])):  # type: ignore[arg-type] # it has always been possible
        lock.release()
    assert "lock.type" not in (app.spans()[0].attributes or {})


def test_keys_that_are_invalid(app: App, client: Client) -> None:
    with pytest.raises(InvalidRequest, match="key"):
        client.acquire("half:\ud800")
    with pytest.raises(TypeError):
        client.acquire(None)  # type: ignore[arg-type]
    assert app.spans() == []
    with pytest.raises(InvalidRequest, match="key"):
        client.release("half:\ud800", 1)
    with pytest.raises(TypeError):
        client.release(None, 1)  # type: ignore[arg-type]
    half, none = app.spans()
    assert about(half) == {
        "name": "lock.release",
        "error": False,
        "lock.result": "invalid_request",
        "lock.key": "half:?",
        "lock.type": "half",
        "lock.token": 1,
    }
    assert about(none)["error.type"] == "TypeError"


def test_a_span_tells_the_mode(app: App, client: Client, key: str) -> None:
    client.acquire(key, shared=True).release()
    with client.semaphore(key, limit=2):
        pass
    shared = [one.attributes["lock.mode"] for one in app.spans() if one.attributes and one.name == "lock.acquire"]
    assert shared == ["shared", "shared"]


def test_a_release_of_an_entry_that_is_over_is_one_span(app: App, sent: list[Sent], client: Client, key: str) -> None:
    lock = client.acquire(key, owner="me", reentrant=True)
    client.release(key, lock.token)
    lock._entry.released = False  # as if another handle had released it
    app.spans()
    with pytest.raises(NotHolder):
        lock.release()
    [release] = app.spans()
    assert about(release)["lock.result"] == "not_holder"
    assert [one.method for one in sent[2:]] == ["DELETE"]
    assert all(one.by(release) for one in sent[2:])


def test_one_span_over_all_tries(app: App, sent: list[Sent], sidecar: Sidecar, key: str) -> None:
    with (
        ThreadPoolExecutor(1) as pool,
        Client(sidecar.path) as client,
        Client(sidecar.path) as other,
        app.tracer.start_as_current_span("work") as work,
    ):
        client.acquire(key)
        app.spans()
        waiter = submit(pool, lambda: other.acquire(key))
        waiting(client, key)
        sidecar.kill()
        sidecar.start()
        assert waiter.result(60).token
        [acquire] = app.spans()
        assert about(acquire)["lock.result"] == "granted"
        assert acquire.parent == work.get_span_context()
        tries = [one for one in sent if one.method == "PUT"][1:]
        assert len(tries) > 1
        assert all(one.by(acquire) for one in tries)


def test_no_answer_is_an_error(app: App, sidecar: Sidecar, key: str, tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        Client(str(tmp_path / "none")).acquire(key)
    assert app.results() == [span("lock.acquire", "unreachable", "unreachable")]

    with Client(sidecar.path) as client:
        lock = client.acquire(key)
        app.spans()
        sidecar.signal(signal.SIGSTOP)
        client._core.timeout = 0.2
        with pytest.raises(Unavailable):
            lock.release()
        assert app.results() == [span("lock.release", "timeout", "timeout")]


@pytest.mark.parametrize(("said", "result"), [(b"220 smtp\r\n\r\n", "bad_answer"), (b"", "connection_lost")])
def test_another_server_listens(app: App, key: str, said: bytes, result: str) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        server.bind(f"{folder}/s")
        server.listen()

        def answer() -> None:
            with server.accept()[0] as sock:
                sock.recv(4096)
                sock.sendall(said)

        pool.submit(answer)
        with pytest.raises((ProtocolError, Unavailable)):
            Client(f"{folder}/s").acquire(key)
    assert app.results() == [span("lock.acquire", result, result)]


def test_problems_of_the_sidecar(app: App, client: Client, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client.acquire(f"{key}:first")
    features = client._core.features
    assert features is not None
    client._core.features = features - {"hold"}
    with pytest.raises(Unsupported):
        client.acquire(key, max_hold=1)
    client._core.features = features
    assert app.results()[1:] == [span("lock.acquire", "unsupported")]

    def problem(self: _wire.Answer) -> Mapping[str, Any]:
        raise StoreUnavailable(503, "store_unavailable", "the database is away")

    with monkeypatch.context() as patch, pytest.raises(StoreUnavailable):
        patch.setattr(_wire.Answer, "result", problem)
        client.acquire(key)
    assert app.results() == [span("lock.acquire", "store_unavailable", "store_unavailable")]


def test_a_cancelled_wait_is_abandoned(app: App, path: str, key: str) -> None:
    async def main() -> None:
        async with AsyncClient(path) as one, AsyncClient(path) as other, one.lock(key):
            app.spans()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(other.acquire(key), 0.05)
            assert app.results() == [span("lock.acquire", "caller_left")]

    asyncio.run(main())


def test_a_withdrawal_has_the_context_of_its_acquire(
    app: App, sent: list[Sent], client: Client, other: Client, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("locksidecar._session.Session.hold", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.acquire(key)
    [acquire] = app.spans()
    assert about(acquire)["lock.result"] == "caller_left"
    assert [one.method for one in sent] == ["PUT", "DELETE"]
    assert all(one.by(acquire) for one in sent)
    free(other, key)


def test_an_interrupted_export_leaves_no_lock_behind(app: App, client: Client, other: Client, key: str) -> None:
    class Interrupted(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            raise KeyboardInterrupt(span.name)

    app.provider.add_span_processor(Interrupted())
    with pytest.raises(KeyboardInterrupt):
        client.acquire(key)
    free(other, key)


def test_a_trace_without_sampling_is_marked(
    monkeypatch: pytest.MonkeyPatch, sent: list[Sent], client: Client, key: str
) -> None:
    app = use(monkeypatch, App(ALWAYS_OFF))
    client.acquire(key).release()
    with pytest.raises(NotHolder):
        client.release(key, 1)
    assert app.spans() == []
    assert [int(one.traceparent[-2:], 16) & trace.TraceFlags.SAMPLED for one in sent] == [0, 0, 0]


def test_other_calls_go_with_the_app_s_span(app: App, sent: list[Sent], client: Client, key: str) -> None:
    with app.tracer.start_as_current_span("work") as work:
        client.get(key)
    assert [one.traceparent for one in sent] == [traceparent(work)]
    assert app.spans() == []


@pytest.fixture
def remote() -> Iterator[str]:
    """An app without the SDK, in a span from elsewhere."""
    span = trace.NonRecordingSpan(trace.SpanContext(1, 2, True, trace.TraceFlags(1)))
    token = context.attach(trace.set_span_in_context(span))
    yield traceparent(span)
    context.detach(token)


def test_without_the_sdk_the_app_s_context_goes_on(sent: list[Sent], client: Client, key: str, remote: str) -> None:
    assert _tracing.acquire([key], "exclusive") is _tracing._OFF  # no span without the SDK
    client.acquire(key).release()
    assert [one.traceparent for one in sent] == [remote, remote]


def test_without_a_context_nothing_goes_on(sent: list[Sent], client: Client, key: str) -> None:
    client.acquire(key).release()
    assert [one.traceparent for one in sent] == ["", ""]


def test_an_sdk_that_is_set_up_later(monkeypatch: pytest.MonkeyPatch, client: Client, other: Client, key: str) -> None:
    client.acquire(key).release()
    app = use(monkeypatch, App())
    client.acquire(key)
    [span] = app.spans()
    holder = other.get(key, fresh=True).holder
    assert holder is not None
    assert holder.traceparent == traceparent(span)


@pytest.mark.parametrize("settings", [{}, {"OTEL_PYTHON_TRACER_PROVIDER": "sdk_tracer_provider"}])
def test_the_app_s_provider_is_found(settings: dict[str, str]) -> None:
    code = (
        "from locksidecar import _tracing; from opentelemetry import trace; import os;"
        " from opentelemetry.sdk.trace import TracerProvider; print(_tracing._tracer() is None);"
        " 'OTEL_PYTHON_TRACER_PROVIDER' in os.environ or trace.set_tracer_provider(TracerProvider());"
        " print(_tracing._tracer() is not None)"
    )
    said = subprocess.check_output([sys.executable, "-c", code], env={**os.environ, **settings}, text=True)
    assert said.split() == [str(not settings), "True"]


def test_baggage_goes_as_a_header(app: App, client: Client, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    real = _wire.request

    def request(method: str, target: str, headers: str, body: bytes) -> bytes:
        lines.append(headers)
        return real(method, target, headers, body)

    monkeypatch.setattr(_wire, "request", request)
    token = context.attach(baggage.set_baggage("user", "ä\r\nX: y"))
    try:
        assert _tracing.headers() == "baggage: user=%C3%A4%0D%0AX%3A+y\r\n"
        client.acquire(key)
    finally:
        context.detach(token)
    assert _tracing.headers() == ""
    assert "baggage: user=%C3%A4%0D%0AX%3A+y\r\n" in lines[-1]


def test_without_opentelemetry(path: str, key: str) -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None; from locksidecar import Client;"
        " Client(sys.argv[1]).acquire(sys.argv[2]).release()"
    )
    subprocess.run([sys.executable, "-c", code, path, key], check=True)

from __future__ import annotations

import subprocess
import sys

from opentelemetry import baggage, context
from opentelemetry.sdk.trace import TracerProvider

from locksidecar import Client, _tracing


def test_the_current_span_goes_with_the_call(client: Client, other: Client, key: str) -> None:
    with TracerProvider().get_tracer("test").start_as_current_span("work") as span:
        lock = client.acquire(key)
    holder = other.get(key, no_cache=True).holder
    assert holder is not None
    assert holder.traceparent is not None
    assert holder.traceparent.split("-")[1] == f"{span.get_span_context().trace_id:032x}"
    lock.release()
    client.acquire(key)
    holder = other.get(key, no_cache=True).holder
    assert holder is not None
    assert holder.traceparent is None


def test_baggage_goes_as_a_header() -> None:
    token = context.attach(baggage.set_baggage("user", "ä\r\nX: y"))
    try:
        assert _tracing.headers() == "baggage: user=%C3%A4%0D%0AX%3A+y\r\n"
    finally:
        context.detach(token)
    assert _tracing.headers() == ""


def test_without_opentelemetry(path: str, key: str) -> None:
    code = (
        "import sys; sys.modules['opentelemetry'] = None; from locksidecar import Client;"
        " Client(sys.argv[1]).acquire(sys.argv[2]).release()"
    )
    subprocess.run([sys.executable, "-c", code, path, key], check=True)

"""An app with traces: holds the lock argv[1] in a span `request` until it is told a line; argv[2] may be `async`.

Says `granted <token>`, and at last, when its spans are with the receiver, `released`. The receiver is that of
OTEL_EXPORTER_OTLP_ENDPOINT (HTTP), the service OTEL_SERVICE_NAME.
"""

from __future__ import annotations

import asyncio
import sys

from locksidecar import AsyncClient, Client
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

WAIT = 30.0  # seconds


def sync(key: str) -> None:
    with Client() as client, client.lock(key, wait=WAIT) as lock:
        print("granted", lock.token, flush=True)
        sys.stdin.readline()


async def asynchronous(key: str) -> None:
    async with AsyncClient() as client, client.lock(key, wait=WAIT) as lock:
        print("granted", lock.token, flush=True)
        await asyncio.to_thread(sys.stdin.readline)


def main(key: str, way: str = "sync") -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    with trace.get_tracer("app").start_as_current_span("request"):
        if way == "async":
            asyncio.run(asynchronous(key))
        else:
            sync(key)
    provider.shutdown()  # after it has exported everything
    print("released", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

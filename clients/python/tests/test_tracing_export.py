"""An app with the real exporter: e2e/testdata/traced.py, which the end-to-end tests run too."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

import locksidecar
from conftest import line
from locksidecar import Client

PROGRAM = Path(__file__).parents[3] / "e2e" / "testdata" / "traced.py"


class Receiver:
    """An OTLP receiver. `spans` has each span and its scope by name."""

    def __init__(self) -> None:
        self.spans: dict[str, tuple[str, Span]] = {}
        self.services: set[str] = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)

    def take(self, request: ExportTraceServiceRequest) -> None:
        for resource in request.resource_spans:
            self.services |= {a.value.string_value for a in resource.resource.attributes if a.key == "service.name"}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans[span.name] = f"{scope.scope.name} {scope.scope.version}".strip(), span


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.01,))
    thread.start()
    yield receiver
    receiver.server.shutdown()
    thread.join()
    receiver.server.server_close()


@pytest.mark.parametrize("way", ["sync", "async"])
def test_the_spans_arrive(receiver: Receiver, client: Client, path: str, key: str, way: str) -> None:
    environment = {
        **os.environ,
        "LOCKSIDECAR_SOCKET": path,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.server.server_port}",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "OTEL_SERVICE_NAME": "app",
    }
    command = [sys.executable, str(PROGRAM), key, way]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        token = int(line(process).removeprefix("granted "))
        holder = client.get(key, fresh=True).holder
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.close()
        assert line(process) == "released"
    assert process.returncode == 0
    assert receiver.services == {"app"}
    scope, request = receiver.spans["request"]
    assert scope == "app"
    for name in ("lock.acquire", "lock.release"):
        scope, span = receiver.spans[name]
        assert scope == f"locksidecar {locksidecar.__version__}"
        assert span.kind == Span.SPAN_KIND_CLIENT
        assert (span.trace_id, span.parent_span_id) == (request.trace_id, request.span_id)
        assert {a.value.int_value for a in span.attributes if a.key == "lock.token"} == {token}
    assert holder is not None
    assert holder.traceparent is not None
    assert holder.traceparent.split("-")[2] == receiver.spans["lock.acquire"][1].span_id.hex()

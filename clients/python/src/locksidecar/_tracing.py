"""The trace context of the app, where it has OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_inject: Callable[[dict[str, str]], Any] | None
_current: Callable[[], Any]
try:
    from opentelemetry.context import get_current as _current
    from opentelemetry.propagate import inject as _inject
except ImportError:  # the app has none
    _inject = None

# What the sidecar reads; a propagator may write others.
_NAMES = ("traceparent", "tracestate", "baggage")


def headers() -> str:
    """The header lines that carry the current context to the sidecar; none without OpenTelemetry."""
    if _inject is None or not _current():  # the latter asks for less time than the former takes for nothing
        return ""
    carrier: dict[str, str] = {}
    _inject(carrier)
    return "".join(
        f"{name}: {carrier[name]}\r\n"
        for name in _NAMES
        if name in carrier and carrier[name].isascii() and carrier[name].isprintable()
    )

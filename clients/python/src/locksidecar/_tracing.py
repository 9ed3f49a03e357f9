"""Traces, if the app has OpenTelemetry: spans of acquires and releases, and the context of each call.

No span becomes the current one, so none leaks into the body of a `with` or into another task.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from . import errors
from ._version import __version__

if TYPE_CHECKING:
    from typing_extensions import Self

_inject: Callable[..., Any] | None
_current: Callable[[], Any]
try:
    from opentelemetry import trace as _trace
    from opentelemetry.context import get_current as _current
    from opentelemetry.propagate import inject as _inject
except ImportError:  # the app has none
    _inject = None

# The headers that the sidecar reads. A propagator may write more.
_NAMES = ("traceparent", "tracestate", "baggage")
# The most bytes of a key, and the most characters of one in a span.
_MAX_KEY = 512

# get_tracer_provider() reads the environment at each call until the app sets a provider. This is most of the cost in an
# app without the SDK, so it is avoided.
_peek = _inject is not None and hasattr(_trace, "_TRACER_PROVIDER") and "OTEL_PYTHON_TRACER_PROVIDER" not in os.environ
_known: tuple[Any, Any] = (None, None)  # a provider and its tracer, None if it makes no spans


def headers(context: Any = None) -> str:
    """The header lines of a context, by default the current one. Empty without OpenTelemetry."""
    if _inject is None:
        return ""
    if context is None:
        context = _current()
        if not context:  # faster than to inject nothing
            return ""
    carrier: dict[str, str] = {}
    _inject(carrier, context)
    return "".join(
        f"{name}: {carrier[name]}\r\n"
        for name in _NAMES
        if name in carrier and carrier[name].isascii() and carrier[name].isprintable()
    )


class Operation(Protocol):
    """An acquire or a release with all its calls, for the time of a `with`."""

    context: Any  # of its calls; None: the current one

    def granted(self, grants: Iterable[Mapping[str, Any]]) -> None:
        """Ends it with these grants, if there are any."""

    def released(self) -> None:
        """Ends it with the release."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def acquire(keys: Sequence[str], mode: str) -> Operation:
    """Begins an acquire of one lock or several."""
    tracer = _tracer()
    return _OFF if tracer is None else _Span(tracer, "lock.acquire", {**_about(keys), "lock.mode": mode})


def release(key: str, token: int) -> Operation:
    """Begins a release."""
    tracer = _tracer()
    return _OFF if tracer is None else _Span(tracer, "lock.release", {**_about([key]), "lock.token": token})


def _provider() -> Any:
    return _trace._TRACER_PROVIDER if _peek else _trace.get_tracer_provider()


def _tracer() -> Any:
    """The tracer of the app's provider. None until the app sets one."""
    global _known
    if _inject is None:
        return None
    provider = _provider()
    known, tracer = _known
    if provider is not known:
        tracer = None
        if provider is not None and not isinstance(provider, _trace.ProxyTracerProvider):
            tracer = provider.get_tracer("locksidecar", __version__)
        _known = provider, tracer
    return tracer


def _about(keys: Sequence[str]) -> dict[str, Any]:
    # A key that is no text fails later. A lone surrogate could make an exporter lose the app's other spans.
    texts = [key[:_MAX_KEY].encode("utf-8", "replace").decode() for key in keys if isinstance(key, str)]
    about: dict[str, Any] = {"lock.keys": texts}
    if len(texts) == 1:
        about = {"lock.key": texts[0]}
    types = {key.partition(":")[0] if ":" in key else "" for key in texts}
    if len(types) == 1 and types != {""}:
        about["lock.type"] = types.pop()
    return about


class _Off:
    """No span."""

    __slots__ = ()
    context = None

    def granted(self, grants: Iterable[Mapping[str, Any]]) -> None:
        pass

    def released(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


_OFF = _Off()


class _Span:
    """A span, without events and texts of errors, because they may contain an app's data."""

    __slots__ = ("_span", "context")

    def __init__(self, tracer: Any, name: str, about: dict[str, Any]) -> None:
        parent = _current()
        self._span = tracer.start_span(name, parent, _trace.SpanKind.CLIENT, about)
        self.context = _trace.set_span_in_context(self._span, parent)

    def granted(self, grants: Iterable[Mapping[str, Any]]) -> None:
        grants = list(grants)
        if not grants:
            return
        again = all(grant["reentry"] > 1 for grant in grants)
        self._span.set_attribute("lock.result", "reentered" if again else "granted")
        if len(grants) == 1:
            self._span.set_attribute("lock.token", grants[0]["token"])
        self._span.end()

    def released(self) -> None:
        self._span.set_attribute("lock.result", "released")
        self._span.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not self._span.is_recording():  # it has ended, or is not recorded
            return
        result, failure = _judge(error)
        if result is not None:
            self._span.set_attribute("lock.result", result)
        if failure is not None:
            self._span.set_attribute("error.type", failure)
            self._span.set_status(_trace.StatusCode.ERROR)
        self._span.end()


def _judge(error: BaseException) -> tuple[str | None, str | None]:
    """The result for an error, and the error type if it needs attention."""
    if isinstance(error, errors.Skipped):
        return "skipped", None
    if isinstance(error, errors.ApiError):
        return error.code, error.code if error.status >= 500 else None
    if isinstance(error, errors.Unsupported):
        return "unsupported", None
    if isinstance(error, errors.NoAnswer):
        return error._code, error._code
    if isinstance(error, errors.ProtocolError):
        return "bad_answer", "bad_answer"
    if isinstance(error, Exception):
        return None, type(error).__qualname__
    return "caller_left", None  # a task's cancellation, KeyboardInterrupt

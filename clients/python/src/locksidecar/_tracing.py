"""The app's traces: its context goes with the calls, and acquires and releases are spans in them.

Only where the app has OpenTelemetry. No span is ever the current one: each call is told the context that it goes with,
so nothing of it can leak into the body of a `with`, or into another task.
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

# What the sidecar reads; a propagator may write others.
_NAMES = ("traceparent", "tracestate", "baggage")
# The most characters of a key, which is refused beyond that many bytes.
_MAX_KEY = 512

# To ask for the provider looks into the environment each time, as long as the app has set none: that would be most of
# what an app without the SDK pays. So that is done once, if it can be.
_peek = _inject is not None and hasattr(_trace, "_TRACER_PROVIDER") and "OTEL_PYTHON_TRACER_PROVIDER" not in os.environ
_known: tuple[Any, Any] = (None, None)  # a provider and its tracer; None for the one that makes no spans


def headers(context: Any = None) -> str:
    """The header lines that carry a context to the sidecar, by default the current one; none without OpenTelemetry."""
    if _inject is None:
        return ""
    if context is None:
        context = _current()
        if not context:  # to ask takes less time than to inject nothing
            return ""
    carrier: dict[str, str] = {}
    _inject(carrier, context)
    return "".join(
        f"{name}: {carrier[name]}\r\n"
        for name in _NAMES
        if name in carrier and carrier[name].isascii() and carrier[name].isprintable()
    )


class Operation(Protocol):
    """An acquire or a release, from its beginning to the end of the `with`, whatever tries it takes."""

    context: Any  # what its calls go with; None: the current one

    def granted(self, grants: Iterable[Mapping[str, Any]]) -> None:
        """It ends with these grants; with none, go on."""

    def released(self) -> None:
        """It ends with the release."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def acquire(keys: Sequence[str]) -> Operation:
    """The acquire of one lock, or of several."""
    tracer = _tracer()
    return _OFF if tracer is None else _Span(tracer, "lock.acquire", _about(keys))


def release(key: str, token: int) -> Operation:
    """The release of a lock."""
    tracer = _tracer()
    return _OFF if tracer is None else _Span(tracer, "lock.release", {**_about([key]), "lock.token": token})


def _provider() -> Any:
    return _trace._TRACER_PROVIDER if _peek else _trace.get_tracer_provider()


def _tracer() -> Any:
    """The tracer of the app's provider; None as long as it has set none, which may come later."""
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
    # A key that is none fails by itself, later; and an exporter that fails over half of a surrogate pair would lose the
    # app's other spans, too.
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
    """A span. It has no events and no text of an error: these may tell what an app keeps in a lock."""

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
        if error is None or not self._span.is_recording():  # it has ended, or nobody records it
            return
        result, failure = _judge(error)
        if result is not None:
            self._span.set_attribute("lock.result", result)
        if failure is not None:
            self._span.set_attribute("error.type", failure)
            self._span.set_status(_trace.StatusCode.ERROR)
        self._span.end()


def _judge(error: BaseException) -> tuple[str | None, str | None]:
    """The result that an error is, and the type of error if it is one of those that somebody has to look at."""
    if isinstance(error, errors.Skipped):
        return "skipped", None
    if isinstance(error, errors.ApiError):
        return error.code, error.code if error.status >= 500 else None
    if isinstance(error, errors.FeatureMissing):
        return "unsupported", None
    if isinstance(error, errors.SidecarUnavailable):
        return error._code, error._code
    if isinstance(error, errors.ProtocolError):
        return "bad_answer", "bad_answer"
    if isinstance(error, Exception):
        return None, type(error).__qualname__
    return "abandoned", None  # a task's cancellation, KeyboardInterrupt

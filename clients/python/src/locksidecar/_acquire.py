"""One acquire: its calls, also through an outage, and the release of a grant that its caller does not take."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from . import _tracing, errors
from ._call import Call, Steps, lock_path
from ._core import Core
from ._options import AcquireOptions, to_ms
from ._session import Grant

# Seconds to wait for the answer to a withdrawal. The sidecar carries it out in any case.
_WITHDRAW_PATIENCE = 2.0


class Acquire:
    """An acquire of one lock, or of several.

    All its calls have one request id. So a call may be repeated, and its grant released although the answer was lost.
    """

    def __init__(self, core: Core, keys: Sequence[str], options: AcquireOptions) -> None:
        if isinstance(keys, str):  # a sequence of str as well: its letters would become the keys
            raise TypeError(f"keys={keys!r}: it must be a list of keys, not one str")
        self.keys, self.options = list(keys), options
        self._core = core
        self._named = options.request_id is not None
        self._request_id = options.request_id or str(uuid4())
        # The last two calls that may have got a grant.
        self._call: Call | None = None
        self._before: Call | None = None
        self._grants: list[Grant] = []

    def one(self) -> Steps[tuple[Grant, Mapping[str, Any]]]:
        """Acquires its only key."""
        [key] = self.keys
        with _tracing.acquire(self.keys, self.options.mode) as operation:
            value = yield from self._run("PUT", lock_path(key), {}, [], operation)
            if not value["granted"]:
                raise errors.Skipped(key, value.get("result"))
            if self.options.reentrant:
                value["_entry"] = self._request_id
            return value["_grants"][0], value

    def many(self) -> Steps[list[tuple[Grant, Mapping[str, Any]]]]:
        """Acquires its keys, all or none."""
        with _tracing.acquire(self.keys, self.options.mode) as operation:
            value = yield from self._run("POST", "/v1/locks", {"keys": self.keys}, ["several_keys"], operation)
            return list(zip(value["_grants"], value["locks"], strict=True))

    def _run(
        self, method: str, target: str, body: dict[str, Any], needs: list[str], operation: _tracing.Operation
    ) -> Steps[dict[str, Any]]:
        try:
            return (yield from self._attempt(method, target, body, needs, operation))
        except GeneratorExit:
            raise
        except BaseException:  # also KeyboardInterrupt and a task's cancellation
            yield from self.withdraw()
            raise

    def _attempt(
        self, method: str, target: str, body: dict[str, Any], needs: list[str], operation: _tracing.Operation
    ) -> Steps[dict[str, Any]]:
        fields, fields_need = self.options.fields()
        needs = [*needs, "release_by_id", *fields_need]
        patience = _Patience(self.options.wait, self._core)
        if patience.waits:
            needs.append("wait")
        while True:
            left = patience.left()
            if patience.waits:
                fields["wait_ms"] = -1 if left is None else to_ms(left)
            call = Call(
                method,
                target,
                {**body, "request_id": self._request_id, **fields},
                timeout=None if left is None else max(left, 0) + self._core.timeout,
                joins=self.options.bind == "session",
                needs=needs,
                delay=patience.pause,
                context=operation.context,
            )
            if self._call is not None and self._call.sent:
                self._before = self._call
            self._call = call
            try:
                value: dict[str, Any] = (yield call).result()
                self._grants = value["_grants"] = [self._hold(call, one) for one in _granted(value)]
                if not self._grants:
                    self._call = None  # skipped
                operation.granted(_granted(value))  # here, because Ctrl-C may interrupt an exporter
                return value
            except errors.SessionEnded as e:
                self._call = self._before = None
                call.session_ended()
                patience.bridge(e, call)
            except errors.ApiError as e:
                self._call = None
                if not isinstance(e, errors.Draining):
                    raise
                patience.bridge(e, call)
            except errors.SidecarUnavailable as e:
                patience.bridge(e, call)

    def _hold(self, call: Call, value: Mapping[str, Any]) -> Grant:
        if call.session is not None:
            return call.session.hold(value, call.sent)
        grant = Grant(value["key"], value["token"], None, self._core.new_signal)
        grant.note(value, call.sent)
        return grant

    def withdraw(self) -> Steps[None]:
        """Releases the grant that this has, or may have.

        If the app has named the request, other parts of the app may hold the grant. Then it stays, and the id finds it.
        """
        calls, self._call, self._before = (self._call, self._before), None, None
        call = next((one for one in calls if one is not None and one.sent), None)
        if call is None or self._named:
            return
        grants = {grant.key: grant for grant in self._grants}
        timeout = min(self._core.timeout, _WITHDRAW_PATIENCE)
        for key in self.keys:
            target = lock_path(key, f"?request_id={self._request_id}")
            try:
                value = (
                    yield Call("DELETE", target, timeout=timeout, session=call.session, context=call.context)
                ).result()
            except (errors.SidecarUnavailable, errors.SessionEnded):
                return  # the end of the session, or the TTL, frees them; another exception is under way
            except errors.LocksidecarError:
                continue  # the sidecar goes on with this release; the other locks must not stay held
            if key in grants:
                grants[key].released(value)


class _Patience:
    """How long an acquire goes on, also through an outage of the sidecar."""

    def __init__(self, wait: float | None, core: Core) -> None:
        self._core = core
        self.waits = wait is None or wait != 0
        self._first = wait
        self._deadline = None if wait is None or wait <= 0 else time.monotonic() + wait
        self._began: float | None = None  # the outage
        self._last = 0.0  # the last failure
        self.pause = 0.0
        self._reopened = False

    def left(self) -> float | None:
        """Seconds; None: for ever."""
        if self._began is None or self._deadline is None:
            return self._first
        return max(self._deadline - time.monotonic(), 0.001)

    def bridge(self, error: errors.LocksidecarError, call: Call) -> None:
        """Returns if the call is to be made again after `pause`. Raises the error if not."""
        if self._core.closed:
            raise self._core.is_closed() from error
        if isinstance(error, errors.SessionEnded) and not self._reopened:
            self._reopened = True  # no outage: the next call opens a new session
            return
        if not self.waits or not self._core.reached:
            raise error
        now = time.monotonic()
        if self._began is None or (call.sent and now - self._last > 5):  # it has waited in the queue since
            self._began, self.pause = now, 0.0
        self._last = now
        self.pause = min(max(self.pause * 2, 0.05), 1.0)
        if now - self._began >= self._core.reconnect or (self._deadline is not None and now >= self._deadline):
            raise error


def _granted(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The grants in the answer to an acquire."""
    if "locks" in value:
        return list(value["locks"])
    return [value] if value.get("granted") else []

"""One acquire: its calls, also through an outage, and the release of a grant that its caller does not take."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from . import _tracing, errors
from ._call import Call, Steps, lock_path
from ._core import WITHDRAW_PATIENCE, Core
from ._options import AcquireOptions, key_list, to_ms
from ._session import Entry, Grant


class Acquire:
    """An acquire of one lock, or of several.

    All its calls have one request id. So a call may be repeated, and its grant released although the answer was lost.
    """

    def __init__(self, core: Core, keys: Sequence[str], options: AcquireOptions, who: str) -> None:
        self.keys, self.options = key_list(keys), options
        self._core = core
        self._who = who  # this thread, or task
        self._named = options.request_id is not None
        self._request_id = options.request_id or str(uuid4())
        # The last two calls that may have got a grant.
        self._call: Call | None = None
        self._before: Call | None = None
        self._entries: list[Entry] = []

    def one(self) -> Steps[tuple[Entry, Mapping[str, Any]]]:
        """Acquires its only key."""
        [key] = self.keys
        with _tracing.acquire(self.keys, self.options.mode) as operation:
            value = yield from self._run("PUT", lock_path(key), {}, [], operation)
            if not value["granted"]:
                raise errors.Skipped(key, value.get("result"))
            return self._entries[0], value

    def many(self) -> Steps[list[tuple[Entry, Mapping[str, Any]]]]:
        """Acquires its keys, all or none."""
        with _tracing.acquire(self.keys, self.options.mode) as operation:
            value = yield from self._run("POST", "/v1/locks", {"keys": self.keys}, ["several_keys"], operation)
            return list(zip(self._entries, value["locks"], strict=True))

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
                waits=patience.waits,
                delay=patience.pause,
                context=operation.context,
            )
            if self._call is not None and self._call.sent:
                self._before = self._call
            try:
                yield from self._core.settle(self.keys, self._who, self._may_wait_for)
                self._call = call
                value: dict[str, Any] = (yield call).result()
                self._entries = [self._hold(call, one) for one in _granted(value)]
                if not self._entries:
                    self._call = None  # skipped
                operation.granted(_granted(value))  # here, because Ctrl-C may interrupt an exporter
                return value
            except errors.SessionEnded as e:
                if call.joins:  # its end frees them; without one, the client was closed
                    self._call = self._before = None
                call.session_ended()
                patience.bridge(e, call)
            except errors.ApiError as e:
                self._call = None
                if not isinstance(e, errors.Draining):
                    raise
                patience.bridge(e, call)
            except errors.NoAnswer as e:
                patience.bridge(e, call)

    def _may_wait_for(self, entry: Entry) -> bool:
        """Whether this acquire ends although its thread (task) has this entry."""
        options, mode = self.options, entry.grant.mode
        enters = options.reentrant and mode == "exclusive" and options.owner == entry.owner
        shares = options.shared and mode == "shared"  # another thread may release a permit of a semaphore
        return options.wait is not None or self._named or enters or shares

    def _hold(self, call: Call, value: Mapping[str, Any]) -> Entry:
        mine = (self._who, self.options.owner, self._request_id, self.options.reentrant)
        if call.session is not None:
            return call.session.hold(value, call.sent, *mine)
        grant = Grant(value["key"], value["token"], None, self._core.new_signal)
        grant.note(value, call.sent)
        return Entry(grant, *mine)

    def withdraw(self) -> Steps[None]:
        """Releases the grant that this has, or may have.

        If the app has named the request, other parts of the app may hold the grant. Then it stays, and the id finds it.
        """
        call = next((one for one in (self._call, self._before) if one is not None and one.sent), None)
        if call is None or self._named:
            return
        timeout = min(self._core.timeout, WITHDRAW_PATIENCE)
        for key in self.keys:
            target = lock_path(key, f"?request_id={self._request_id}")
            known = [] if call.session is None else call.session.entries(key, self._who)
            mine = [entry for entry in known if entry.request_id == self._request_id]
            try:
                for entry in mine:
                    entry.unanswered = True
                release = Call(
                    "DELETE", target, timeout=timeout, session=call.session, context=call.context, after_close=True
                )
                value = (yield release).result()
                for entry in mine:
                    entry.give_back(value)
            except (errors.NoAnswer, errors.SessionEnded):
                break  # the end of the session, or the TTL, frees them; another exception is under way
            except errors.LocksidecarError:
                pass  # the sidecar goes on with this release; the other locks must not stay held
        self._call = self._before = None  # here, because an interrupted withdrawal is made again


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
        if now - self._began >= self._core.reconnect or (self._deadline is not None and now >= self._deadline):
            raise error
        self.pause = min(max(self.pause * 2, 0.05), 1.0)
        if self._deadline is not None:
            self.pause = min(self.pause, self._deadline - now)


def _granted(value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The grants in the answer to an acquire."""
    if "locks" in value:
        return list(value["locks"])
    return [value] if value.get("granted") else []

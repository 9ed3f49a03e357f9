"""The state of a session and of what it holds, as far as the client knows it. No I/O."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from ._signal import Signal

# News of grants whose answer is still on its way is kept for so many locks.
_MAX_EARLY = 1000


class Grant:
    """One grant of the sidecar. Several locks of the app share it when its owner has entered more than once."""

    __slots__ = ("entries", "expires_at", "key", "lost", "session", "stopping", "token")

    def __init__(self, key: str, token: int, session: Session | None, new_signal: Callable[[], Signal]) -> None:
        self.key = key
        self.token = token
        self.session = session  # None: bind="ttl"
        self.entries = 1
        self.expires_at = 0.0  # time.monotonic()
        self.lost = new_signal()
        self.stopping = new_signal()

    def note(self, value: Mapping[str, Any], asked: float) -> None:
        """Takes over what an answer says about it. Times count from when it was asked: an answer may be read late."""
        self.expires_at = asked + (value["waited_ms"] + value["expires_in_ms"]) / 1000
        self.entries = value["reentry"]
        stopping = value.get("stopping")
        if stopping is not None:
            self.stopping.fire(stopping.get("reason"))

    def released(self, value: Mapping[str, Any]) -> None:
        """Takes over what the answer to a release says."""
        self.entries = value["reentry"]
        if value["released"] and self.session is not None:
            self.session.forget(self)


class Session:
    """An explicit session: its id, its grants, and what its stream has told.

    The stream may tell of a lock before the answer that grants it was read: such news is kept until then.
    """

    def __init__(self, session_id: str, new_signal: Callable[[], Signal], on_end: Callable[[], None]) -> None:
        self.id = session_id
        self.header = f"Lock-Session: {session_id}\r\n"
        self.ended = False
        self._new_signal = new_signal
        self._on_end = on_end
        self._reason = ""
        self._mutex = threading.Lock()
        self._grants: dict[tuple[str, int], Grant] = {}
        self._early: OrderedDict[tuple[str, int], dict[str, str | None]] = OrderedDict()

    def hold(self, value: Mapping[str, Any], asked: float) -> Grant:
        """Notes a grant of the sidecar, and when it was asked for."""
        name = (value["key"], value["token"])
        with self._mutex:
            early = self._early.pop(name, {})
            grant = self._grants.get(name)
            if grant is None:
                grant = self._grants[name] = Grant(*name, self, self._new_signal)
            if self.ended:
                early["lost"] = self._reason
            if "lost" in early:
                self._grants.pop(name, None)
        grant.note(value, asked)
        self._tell(grant, early)
        return grant

    def forget(self, grant: Grant) -> None:
        """The grant was released."""
        with self._mutex:
            self._grants.pop((grant.key, grant.token), None)

    def hear(self, event: str, data: Mapping[str, Any]) -> None:
        """Takes an event of the stream. Those that a newer sidecar has are none of ours."""
        if event not in ("lost", "stop"):
            return
        name = (data["key"], data["token"])
        news = {event: data.get("reason")}
        with self._mutex:
            grant = self._grants.pop(name, None) if event == "lost" else self._grants.get(name)
            if grant is None:
                self._early.setdefault(name, {}).update(news)
                if len(self._early) > _MAX_EARLY:
                    self._early.popitem(last=False)
        if grant is not None:
            self._tell(grant, news)

    def end(self, reason: str = "disconnected") -> None:
        """The session is over: all that it holds is lost."""
        with self._mutex:
            if self.ended:
                return
            self.ended, self._reason = True, reason
            grants = list(self._grants.values())
            self._grants.clear()
        self._on_end()
        for grant in grants:
            grant.lost.fire(reason)

    def forked(self) -> None:
        """In the child of a fork: the session is the parent's. The mutex may be locked for ever there."""
        self._mutex = threading.Lock()
        self.ended, self._reason = True, "forked"
        for grant in list(self._grants.values()):
            grant.lost.fire("forked", silently=True)
        self._grants.clear()

    def _tell(self, grant: Grant, news: Mapping[str, str | None]) -> None:
        if "stop" in news:
            grant.stopping.fire(news["stop"])
        if "lost" in news:
            grant.lost.fire(news["lost"])

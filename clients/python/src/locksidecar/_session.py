"""A session and its grants, as far as the client knows them. No I/O."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from ._signal import Signal

# The most locks with undelivered news: their grants were not read yet.
_MAX_UNDELIVERED = 1000


class Grant:
    """One grant of the sidecar. Entries of the same owner share it."""

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
        """Takes over an answer about it. Times count from the question, because an answer may be read late."""
        self.expires_at = asked + (value["waited_ms"] + value["expires_in_ms"]) / 1000
        self.entries = value["reentry"]
        stopping = value.get("stopping")
        if stopping is not None:
            self.stopping.fire(stopping.get("reason"))

    def released(self, value: Mapping[str, Any]) -> None:
        """Takes over the answer to a release."""
        self.entries = value["reentry"]
        if value["released"] and self.session is not None:
            self.session.forget(self)


class Session:
    """An explicit session: its id, and its grants.

    The stream may have news of a lock before the answer with its grant is read. Such news is kept until then.
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
        self._undelivered: OrderedDict[tuple[str, int], dict[str, str | None]] = OrderedDict()

    def hold(self, value: Mapping[str, Any], asked: float) -> Grant:
        """Notes a grant, and when it was asked for."""
        name = (value["key"], value["token"])
        with self._mutex:
            news = self._undelivered.pop(name, {})
            grant = self._grants.get(name)
            if grant is None:
                grant = self._grants[name] = Grant(*name, self, self._new_signal)
            if self.ended:
                news["lost"] = self._reason
            if "lost" in news:
                self._grants.pop(name, None)
        grant.note(value, asked)
        self._deliver(grant, news)
        return grant

    def released(self, key: str, token: int, value: Mapping[str, Any]) -> None:
        """Takes over the answer to a release by key and token."""
        with self._mutex:
            grant = self._grants.get((key, token))
        if grant is not None:
            grant.released(value)

    def forget(self, grant: Grant) -> None:
        """The grant was released."""
        with self._mutex:
            self._grants.pop((grant.key, grant.token), None)

    def receive(self, event: str, data: Mapping[str, Any]) -> None:
        """Takes an event of the stream. Events of a newer sidecar are ignored."""
        if event not in ("lost", "stop"):
            return
        name = (data["key"], data["token"])
        news = {event: data.get("reason")}
        with self._mutex:
            grant = self._grants.pop(name, None) if event == "lost" else self._grants.get(name)
            if grant is None:
                self._undelivered.setdefault(name, {}).update(news)
                if len(self._undelivered) > _MAX_UNDELIVERED:
                    self._undelivered.popitem(last=False)
        if grant is not None:
            self._deliver(grant, news)

    def end(self, reason: str = "disconnected") -> None:
        """The session is over, and its locks are lost."""
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
        """In the child of a fork: the session is the parent's. Another thread may have held the mutex."""
        self._mutex = threading.Lock()
        self.ended, self._reason = True, "forked"
        for grant in list(self._grants.values()):
            grant.lost.fire("forked", silently=True)
        self._grants.clear()

    def _deliver(self, grant: Grant, news: Mapping[str, str | None]) -> None:
        if "stop" in news:
            grant.stopping.fire(news["stop"])
        if "lost" in news:
            grant.lost.fire(news["lost"])

"""A session and its grants, as far as the client knows them. No I/O."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from ._signal import Signal

# The most locks with undelivered news: their grants were not read yet.
_MAX_UNDELIVERED = 1000
# The least pause in seconds between two questions about a lock, and the least time for an answer.
_PAUSE = 0.05
_ANSWER = 0.25
# The most seconds for an answer after the time of a lock.
_LATE_ANSWER = 1.0


class Grant:
    """One grant of the sidecar. Entries of the same owner share it."""

    __slots__ = ("ask_at", "asked", "count", "entries", "expires_at", "key", "life", "lost", "mode", "session",
                 "stopping", "token")  # fmt: skip

    def __init__(self, key: str, token: int, session: Session | None, new_signal: Callable[[], Signal]) -> None:
        self.key = key
        self.token = token
        self.session = session  # None: bind="ttl"
        self.mode = "exclusive"
        self.count = 1  # of its entries, by the sidecar
        self.entries: list[Entry] = []  # those of this client that were not released
        self.life = 0.0  # seconds from the last answer to expires_at
        self.ask_at = self.expires_at = 0.0  # time.monotonic()
        self.asked = -math.inf  # when the question was sent whose answer named expires_at; inf: it was released
        self.lost = new_signal()
        self.stopping = new_signal()

    def note(self, value: Mapping[str, Any], asked: float) -> None:
        """Takes over an answer about it. Times count from the question, because an answer may be read late.

        So the answer to an older question, which another thread may read after a newer one, names no time.
        """
        if asked >= self.asked:
            self.asked = asked
            self.life = value["expires_in_ms"] / 1000
            self.expires_at = asked + value["waited_ms"] / 1000 + self.life
            self.ask_at = max(self.expires_at - self.life / 2, asked + _PAUSE)
            if self.session is None:  # nobody asks for it, so this process's clock ends it
                self.lost.expires(self.expires_at)
        self.count = value["reentry"]
        self.mode = value.get("mode", "exclusive")
        stopping = value.get("stopping")
        if stopping is not None:
            self.stopping.fire(stopping.get("reason"))

    def released(self, value: Mapping[str, Any]) -> None:
        """Takes over the answer to a release. It is free then, or has fewer entries."""
        self.count = value["reentry"]
        if value["released"]:
            for entry in self.entries:
                entry.released = True
            self.entries = []
            if self.session is not None:
                self.session.forget(self)
            else:
                self.asked = math.inf
                self.lost.expires(math.inf)

    def lose(self, reason: str | None, silently: bool = False) -> None:
        """It is lost."""
        self.entries = []
        self.lost.fire(reason, silently)


class Entry:
    """One entry of an owner in a grant: one acquire gets it, and one release gives it back.

    Its state follows the answers of the sidecar. It changes where they are read, because the caller may be interrupted.
    """

    __slots__ = ("grant", "owner", "reentrant", "released", "request_id", "unanswered", "who")

    def __init__(self, grant: Grant, who: str, owner: str | None, request_id: str, reentrant: bool) -> None:
        self.grant = grant
        self.who = who  # the thread or task that has acquired it
        self.owner = owner  # that the sidecar knows
        self.request_id = request_id  # of its acquire
        self.reentrant = reentrant  # its release names the request, because the grant may have other entries
        self.released = False
        self.unanswered = False  # a release was sent, and its answer is not known (yet)
        grant.entries.append(self)

    @property
    def over(self) -> bool:
        """Whether it was released or lost."""
        return self.released or bool(self.grant.lost)

    def give_back(self, value: Mapping[str, Any]) -> None:
        """Takes over the answer to its release."""
        self.unanswered, self.released = False, True
        if self in self.grant.entries:
            self.grant.entries.remove(self)
        self.grant.released(value)


class Session:
    """An explicit session: its id, and its grants.

    The stream may have news of a lock before the answer with its grant is read. Such news is kept until then.

    The transport sets `wake`, and asks about each lock at its `ask_at`, see `Core.keep`.
    """

    def __init__(self, session_id: str, new_signal: Callable[[], Signal], on_end: Callable[[], None]) -> None:
        self.id = session_id
        self.header = f"Lock-Session: {session_id}\r\n"
        self.ended = False
        self.wake: Callable[[], None] = lambda: None
        self._new_signal = new_signal
        self._on_end = on_end
        self._reason = ""
        self._mutex = threading.Lock()
        self._grants: dict[str, dict[int, Grant]] = {}  # by key and token
        self._undelivered: OrderedDict[tuple[str, int], dict[str, str | None]] = OrderedDict()
        self._wakes_at = math.inf  # time.monotonic()
        self._shortest = math.inf  # the least life of its grants, in seconds
        self._silent = False  # the last question had no answer

    def hold(
        self, value: Mapping[str, Any], asked: float, who: str, owner: str | None, request_id: str, reentrant: bool
    ) -> Entry:
        """Notes what an acquire got, and when it was asked for."""
        key, token = value["key"], value["token"]
        with self._mutex:
            news = self._undelivered.pop((key, token), {})
            grant = self._grants.get(key, {}).get(token) or Grant(key, token, self, self._new_signal)
            grant.note(value, asked)
            entry = Entry(grant, who, owner, request_id, reentrant)
            if self.ended:
                news["lost"] = self._reason
            if "lost" not in news:  # in one step with its entry, so that a withdrawal finds it
                self._grants.setdefault(key, {})[token] = grant
            self._shortest = min(self._shortest, grant.life)
            sooner = grant.ask_at < self._wakes_at
            if sooner:
                self._wakes_at = grant.ask_at
        if sooner:
            self.wake()
        self._deliver(grant, news)
        return entry

    def entries(self, key: str, who: str) -> list[Entry]:
        """The entries that a thread (task) has in this key."""
        if key not in self._grants:
            return []
        with self._mutex:
            grants = self._grants.get(key, {}).values()
            return [entry for grant in grants for entry in grant.entries if entry.who == who and not entry.over]

    def to_ask(self) -> Grant | None:
        """The grant that must be asked about now, or None. Then `wake` is called for those that come sooner."""
        now = time.monotonic()
        with self._mutex:
            grant = min(self._all(), key=lambda one: one.ask_at, default=None)
            if grant is not None and grant.ask_at <= now:
                return grant
            # Without a grant it comes again in time for a grant of the next moment, so most acquires wake nobody.
            self._wakes_at = min(math.inf if grant is None else grant.ask_at, now + self._shortest / 2)
            return None

    def pause(self) -> float:
        """The seconds until the next question."""
        return max(self._wakes_at - time.monotonic(), 0.0)

    def spare(self) -> float:
        """The seconds until a lock must be asked about."""
        with self._mutex:
            return min((one.ask_at for one in self._all()), default=math.inf) - time.monotonic()

    def patience(self, grant: Grant) -> float:
        """The seconds to wait for the answer to a question: until the first of the locks has had its time."""
        now = time.monotonic()
        with self._mutex:
            first = min((one.expires_at for one in self._all()), default=now)
        if first > now or self._silent:
            return max(first - now, _ANSWER)
        # This process was halted. All of them may have had their time, and the sidecar may well have renewed them.
        return max(min(grant.life / 4, _LATE_ANSWER), _ANSWER)

    def answered(self) -> None:
        """Notes that a question had an answer."""
        self._silent = False

    def unanswered(self, grant: Grant) -> list[Grant]:
        """Notes a question without an answer. Returns the grants that have had their time."""
        self._silent = True
        now = time.monotonic()
        grant.ask_at = now + max((grant.expires_at - now) / 2, _PAUSE)
        with self._mutex:
            return [one for one in self._all() if one.expires_at <= now]

    def released(self, key: str, token: int, value: Mapping[str, Any]) -> None:
        """Takes over the answer to a release by key and token."""
        with self._mutex:
            grant = self._grants.get(key, {}).get(token)
        if grant is not None:
            grant.released(value)

    def lost(self, grant: Grant, reason: str) -> None:
        """The grant is lost, as an answer or the clock says."""
        self.forget(grant)
        grant.lose(reason)

    def forget(self, grant: Grant) -> None:
        """The grant was released or lost."""
        with self._mutex:
            self._pop(grant.key, grant.token)

    def receive(self, event: str, data: Mapping[str, Any]) -> None:
        """Takes an event of the stream. Events of a newer sidecar are ignored."""
        if event not in ("lost", "stop"):
            return
        key, token = name = data["key"], data["token"]
        news = {event: data.get("reason")}
        with self._mutex:
            grant = self._grants.get(key, {}).get(token)
            if grant is None:
                self._undelivered.setdefault(name, {}).update(news)
                if len(self._undelivered) > _MAX_UNDELIVERED:
                    self._undelivered.popitem(last=False)
            elif event == "lost":
                self._pop(key, token)
        if grant is not None:
            self._deliver(grant, news)

    def end(self, reason: str = "disconnected") -> None:
        """The session is over, and its locks are lost."""
        with self._mutex:
            if self.ended:
                return
            self.ended, self._reason = True, reason
            grants = self._all()
            self._grants.clear()
        self._on_end()
        self.wake()
        for grant in grants:
            grant.lose(reason)

    def forked(self) -> None:
        """In the child of a fork: the session is the parent's. Another thread may have held the mutex."""
        self._mutex = threading.Lock()
        self.ended, self._reason = True, "forked"
        for grant in self._all():
            grant.lose("forked", silently=True)
        self._grants.clear()

    def _all(self) -> list[Grant]:
        return [grant for grants in self._grants.values() for grant in grants.values()]

    def _pop(self, key: str, token: int) -> None:
        grants = self._grants.get(key, {})
        if grants.pop(token, None) is not None and not grants:
            del self._grants[key]

    def _deliver(self, grant: Grant, news: Mapping[str, str | None]) -> None:
        if "stop" in news:
            grant.stopping.fire(news["stop"])
        if "lost" in news:
            grant.lose(news["lost"])

"""The operations of a client, without I/O. Both halves of the package run them.

An operation is a generator. It yields calls, is sent their answers or thrown their errors, and returns its result.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import math
import os
import resource
import stat
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from . import _endpoint, _tracing, _wire, errors
from ._call import UNSET, Call, Read, Steps, Unset, lock_path
from ._options import LEAST_TTL, json, seconds, text, to_ms, whole
from ._session import Entry, Grant, Session
from ._signal import Signal
from .types import Description, Duration, Event, LockInfo, Outcome, Scope, Status, Waiter

DEFAULT_SOCKET = "/run/locksidecar/locksidecar.sock"  # in pods, which have this folder
HOME_SOCKET = ".locksidecar/locksidecar.sock"  # elsewhere, in the user's home
# Seconds. A stream has a comment line every 15 s, so a sidecar that is silent for this long is gone or hangs.
SILENCE = 45.0
# Seconds to wait for the answer to a release that nobody waits for. The sidecar carries it out in any case.
WITHDRAW_PATIENCE = 2.0
# The same for a lock that is lost by the clock here, if another one must be asked about.
_PARTING_PATIENCE = 0.1
# The most idle connections of a client.
MAX_IDLE = 16


class Core:
    """The settings of a client, its session, the sidecar's features, and the operations."""

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        name: str | None,
        ttl: Duration | None,
        timeout: Duration,
        reconnect: Duration,
        new_signal: Callable[[], Signal],
        url: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        given = None if path is None or path == "" else _path(path)
        self.endpoint = _endpoint.from_settings(given, _usual_socket, url, token_file, ca_file)
        self.path = self.endpoint.name
        self.timeout = seconds("timeout", timeout, 0.001)
        self.reconnect = seconds("reconnect", reconnect, most=math.inf)
        self.new_signal = new_signal
        self._name = None if name is None else text("name", name)
        self._ttl = None if ttl is None else seconds("ttl", ttl, LEAST_TTL)
        self.session: Session | None = None
        self.features: frozenset[str] | None = None  # of the sidecar; None: not known yet
        self.version = ""
        self.reached = False  # a session was opened in this process
        self.closed = False
        self._not_opened: tuple[float, errors.LocksidecarError] | None = None  # when no session was opened, and why

    # Opening a session.

    @contextlib.contextmanager
    def opening(self, since: float) -> Generator[None, None, None]:
        """Raises what a try to open the session has raised if the caller has waited for that, since this time.

        So the callers that wait at a time wait for one try, and not for one after the other.
        """
        if self._not_opened is not None and self._not_opened[0] >= since:
            raise copy.copy(self._not_opened[1])
        try:
            yield
        except errors.LocksidecarError as e:
            self._not_opened = time.monotonic(), copy.copy(e)  # a copy refers to no frame
            raise

    def ask_features(self) -> Steps[Description]:
        """Asks the sidecar what it can do."""
        value = (yield self.describe()).result()
        return Description(version=value["version"], api=value["api"], features=frozenset(value["features"]))

    def describe(self) -> Call:
        """The call for `learn`."""
        return Call("GET", "/v1", timeout=self.timeout)

    def learn(self, answer: _wire.Answer) -> None:
        """Notes the sidecar's features."""
        value = answer.result()
        self.version, self.features = str(value["version"]), frozenset(value["features"])

    def open_session(self) -> Call:
        """The call whose answer is the session's stream."""
        body: dict[str, Any] = {}
        if self._name is not None:
            body["name"] = self._name
        if self._ttl is not None:
            body["ttl_ms"] = to_ms(self._ttl)
        return Call("POST", "/v1/sessions", body, timeout=self.timeout, needs=["sessions"])

    def opened(self, data: Mapping[str, Any], on_end: Callable[[], None]) -> Session:
        """Makes a session of its first event. `adopt` it when its stream is read."""
        return Session(data["session"], self.new_signal, on_end)

    def adopt(self, session: Session) -> None:
        """Makes it the session of the client."""
        self.session = session
        self.reached = True

    def live_session(self) -> Session | None:
        """The session, if one is open."""
        session = self.session
        return None if session is None or session.ended else session

    def forked(self) -> None:
        """In the child of a fork: forgets the parent's session."""
        if self.session is not None:
            self.session.forked()
        self.session, self.features, self.reached = None, None, False

    def require(self, call: Call) -> None:
        """Raises if the sidecar lacks a feature that the call needs."""
        for feature in call.needs:
            if self.features is not None and feature not in self.features:
                raise errors.Unsupported(feature, self.version)

    def encode(self, call: Call) -> bytes:
        """The call's bytes, as this sidecar wants them."""
        return self.endpoint.encode(call.encode())

    # Errors.

    def may_return(self, error: errors.LocksidecarError) -> bool:
        """Whether to try an acquire again after this error: a sidecar that was reached before may come back."""
        away = (errors.Unavailable, errors.LimitReached, errors.SessionEnded, errors.LockLost)
        return self.reached and not self.closed and isinstance(error, away)

    def is_closed(self) -> errors.SessionEnded:
        """The error of a closed client."""
        return errors.SessionEnded(410, "session_ended", "this client was closed; make another")

    def check_open(self, call: Call) -> None:
        """Raises if the client was closed, so that it must not send this call, nor send it once more."""
        if not self.closed or call.after_close:
            return
        raise self.broken("had not answered when this client was closed") if call.sent else self.is_closed()

    def unreachable(self, cause: OSError) -> errors.NoAnswer:
        """The error if a connection cannot be made."""
        if not self.endpoint.path and cause.errno != errno.EMFILE:
            what = self.endpoint.what_failed(cause)
        elif cause.errno == errno.ENOENT:
            what = (
                "there is no such socket. Check that the sidecar runs (`locksidecar serve`), that LOCKSIDECAR_SOCKET is"
                " the same for it and for this process, and that the socket's folder is mounted into this container"
            )
        elif cause.errno == errno.ECONNREFUSED and not _is_socket(self.path):
            what = "there is a file, but it is no socket. Check LOCKSIDECAR_SOCKET"
        elif cause.errno == errno.ECONNREFUSED:
            what = "the socket is there, but nobody listens. Check that the sidecar still runs, and its log"
        elif cause.errno in (errno.EACCES, errno.EPERM):
            what = (
                f"this process (uid {os.getuid()}) may not use it. Check the sidecar's LOCKSIDECAR_SOCKET_MODE, and"
                " the owner and group of the socket and its folder"
            )
        elif cause.errno == errno.EMFILE:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            what = (
                f"this process has no free file descriptor: its limit is {limit} (RLIMIT_NOFILE, `ulimit -n`), and each"
                " call that waits takes one. Raise the limit, or let fewer calls wait at a time"
            )
        elif cause.errno is None:  # Python's own check
            what = f"{cause} (a socket's path has at most 107 bytes)"
        else:
            what = f"{cause.strerror or cause}. Check that it is the socket of a locksidecar, and that this runs"
        return errors.NoAnswer(f"cannot reach the sidecar at {self.path}: {what}", self.path, "unreachable")

    def broken(self, what: str, code: str = "connection_lost") -> errors.NoAnswer:
        """The error if the answer did not come."""
        text = f"the sidecar at {self.path} {what}. Check that it still runs, and its log"
        return errors.NoAnswer(text, self.path, code)

    def timed_out(self, call: Call) -> errors.NoAnswer:
        """The error if the answer did not come in time."""
        return self.broken(f"did not answer {call.method} {call.target} within {call.timeout:g} s", "timeout")

    # Operations.

    def release(
        self,
        key: str,
        token: int,
        entry: Entry | None,
        outcome: Outcome | None = None,
        result: Any = UNSET,
        reentry: int | None = None,
    ) -> Steps[Mapping[str, Any]]:
        """Releases a lock, or one entry of it: the newest, or that of `entry`.

        `entry` is None if the client does not know it.
        """
        with _tracing.release(key, token) as operation:
            call = self._release_call(key, token, entry, outcome, result, reentry, operation.context)
            value = yield from self._release(key, token, entry, call)
            operation.released()
            return value

    def _release(self, key: str, token: int, entry: Entry | None, call: Call) -> Steps[Mapping[str, Any]]:
        grant = None if entry is None else entry.grant
        _check_lost(grant)
        interruption: BaseException | None = None
        while True:
            try:
                if entry is not None:
                    call.repeated = call.repeated or entry.unanswered
                    entry.unanswered = True
                value = _released(call, (yield call), grant)
                if entry is not None:
                    entry.give_back(value)
                elif call.session is not None:
                    call.session.released(key, token, value)
                break
            except GeneratorExit:
                raise
            except errors.LocksidecarError as e:
                if entry is not None:
                    entry.unanswered = isinstance(e, (errors.NoAnswer, errors.StoreUnavailable))
                known = self._lost_by(grant, e)
                if interruption is not None:
                    break
                raise known from e
            except BaseException as e:
                # Interrupted, so the outcome is unknown. The lock must not stay held, so it asks once more.
                if interruption is not None:
                    raise
                interruption, call.repeated = e, True
        if interruption is not None:
            try:
                raise interruption
            finally:
                interruption = None  # it refers to this frame
        return value

    def _release_call(
        self,
        key: str,
        token: int,
        entry: Entry | None,
        outcome: Outcome | None,
        result: Any,
        reentry: int | None,
        context: Any,
    ) -> Call:
        target = lock_path(key, f"?token={whole('token', token)}")
        needs = []
        if outcome is not None:
            target += f"&outcome={quote(text('outcome', outcome), safe='')}"
            needs.append("outcome")
        if reentry is not None:
            target += f"&reentry={reentry}"
            needs.append("reentrant")
        if entry is not None and entry.reentrant:
            target += f"&request_id={entry.request_id}"
            needs.append("release_by_id")
        return Call(
            "DELETE",
            target,
            None if isinstance(result, Unset) else {"result": json("result", result)},
            timeout=self.timeout,
            session=self.live_session() if entry is None else entry.grant.session,
            needs=needs,
            context=context,
        )

    def leave(self, ends: Iterable[tuple[Entry, Outcome | None, Any]]) -> Steps[list[errors.LocksidecarError]]:
        """Releases the locks of a block, each of them whatever happens to the others. Returns the errors."""
        failures: list[errors.LocksidecarError] = []
        interruption: BaseException | None = None
        for entry, outcome, result in ends:
            key, token = entry.grant.key, entry.grant.token
            try:
                yield from self.release(key, token, entry, outcome, result)
                continue
            except GeneratorExit:
                raise
            except errors.LocksidecarError as e:
                failures.append(e)
            except BaseException as e:
                interruption = interruption or e
            if not entry.over and not entry.unanswered:  # its result was refused, so it is released without
                try:
                    yield from self.release(key, token, entry, None if outcome is None else "failure")
                except errors.LocksidecarError as e:
                    failures.append(e)
        if interruption is not None:
            try:
                raise interruption
            finally:
                interruption = None  # it refers to this frame
        return failures

    def settle(self, keys: Iterable[str], who: str, may_wait: Callable[[Entry], bool]) -> Steps[None]:
        """What comes before an acquire of keys that this thread (task) has acquired before.

        A lock whose release had no answer is released again. Raises RuntimeError if the acquire would wait for a lock
        of this thread, and so for ever.
        """
        session = self.live_session()
        if session is None:
            return
        for key in keys:
            for entry in session.entries(key, who):
                if entry.unanswered:
                    call = self._release_call(key, entry.grant.token, entry, None, UNSET, None, None)
                    try:
                        yield from self._release(key, entry.grant.token, entry, call)
                    except errors.ApiError:
                        pass  # it is lost, or the sidecar goes on with this release
                elif not may_wait(entry):
                    raise RuntimeError(
                        f"this {who.partition('-')[0]} holds {key!r} already, and would wait for itself for ever: give"
                        " `reentrant=True` to both acquires, or this one a `wait` or a timeout"
                    )

    def keep(self, session: Session) -> Steps[None]:
        """Asks about each lock when half of its time is over.

        A sidecar that hangs says nothing of its locks, and others get them when their time is over. So a lock is lost
        if the sidecar has not answered by then. It is released, too: the sidecar may have gone on in this moment, and
        have it. The questions about the other locks come before that.
        """
        owed: deque[Entry] = deque()
        patience = WITHDRAW_PATIENCE
        while True:
            grant = session.to_ask()
            if grant is not None:
                lost = yield from self._ask(session, grant)
                owed += [entry for one in lost for entry in one.entries]
                for one in lost:
                    session.lost(one, "expired")
                continue
            if not owed or session.ended:  # its end releases its locks
                return
            entry = owed.popleft()
            call = self._release_call(entry.grant.key, entry.grant.token, entry, None, UNSET, None, None)
            call.timeout = max(min(patience, session.spare()), _PARTING_PATIENCE)
            try:
                yield call
            except errors.LocksidecarError:
                patience = _PARTING_PATIENCE  # if it was sent, the sidecar carries it out when it goes on

    def _ask(self, session: Session, grant: Grant) -> Steps[list[Grant]]:
        """Asks about a lock. Returns those that are lost because there was no answer."""
        body, timeout = {"token": grant.token}, session.patience(grant)
        call = Call("PATCH", lock_path(grant.key), body, timeout=timeout, session=session)
        try:
            grant.note((yield call).result(), call.sent)
        except (errors.LockLost, errors.NotHolder) as e:
            if e.reason == "released":  # meanwhile
                session.forget(grant)
            else:
                session.lost(grant, e.reason)
        except errors.SessionEnded:
            session.end()
        except errors.LocksidecarError:
            return session.unanswered(grant)
        session.answered()
        return []

    def check(
        self,
        key: str,
        token: int,
        grant: Grant | None,
        ttl: Duration | None = None,
        data: Any = UNSET,
        shared: bool = False,
    ) -> Steps[Status]:
        """Checks that the lock is held. Sets its time (`bind="ttl"`) or its data, or makes it shared."""
        _check_lost(grant)
        body: dict[str, Any] = {"token": whole("token", token)}
        if ttl is not None:
            body["ttl_ms"] = to_ms(seconds("ttl", ttl, LEAST_TTL))
        needs = []
        if not isinstance(data, Unset):
            body["data"] = json("data", data)
            needs.append("data")
        if shared:
            body["mode"] = "shared"
            needs.append("shared")
        call = Call(
            "PATCH",
            lock_path(key),
            body,
            timeout=self.timeout,
            session=self.live_session() if grant is None else grant.session,
            needs=needs,
        )
        try:
            value = (yield call).result()
        except errors.ApiError as e:
            raise self._lost_by(grant, e) from e
        if grant is not None:
            grant.note(value, call.sent)
        return Status.from_json(value)

    def _lost_by(self, grant: Grant | None, error: errors.LocksidecarError) -> errors.LocksidecarError:
        """Notes the loss of a lock if an error says it. Returns the error for the app."""
        if grant is None:
            return error
        if isinstance(error, (errors.LockLost, errors.NotHolder)) and "reentry" not in error.problem:
            if grant.session is not None:
                grant.session.forget(grant)
            grant.lose(error.reason)
        elif isinstance(error, errors.SessionEnded) and grant.session is not None:
            grant.session.end()
            return errors.lost(grant.key, "disconnected")
        return error

    def get(self, key: str, fresh: bool) -> Steps[LockInfo]:
        """Shows one lock."""
        value = yield from self._read(lock_path(key), fresh=fresh)
        return LockInfo.from_json(value)

    def page(
        self, scope: Scope, prefix: str | None, type_: str | None, limit: int | None, cursor: str | None
    ) -> Steps[tuple[list[LockInfo], str | None]]:
        """Lists one page of the held locks, and where the next page begins."""
        _check_texts(scope=scope, prefix=prefix, type=type_)
        query = {"scope": scope, "prefix": prefix, "type": type_, "limit": limit, "cursor": cursor}
        value = yield from self._read("/v1/locks" + _query(query), needs=["list"], joins=scope == "session")
        return [LockInfo.from_json(one) for one in value["locks"]], value.get("next_cursor")

    def waiters_page(
        self, key: str | None, prefix: str | None, limit: int | None, cursor: str | None
    ) -> Steps[tuple[list[Waiter], str | None]]:
        """Lists one page of the calls that wait, for a key or for all, and where the next page begins."""
        path = "/v1/waiters" if key is None else lock_path(key, "/waiters")
        _check_texts(prefix=prefix)
        query = {"prefix": prefix, "limit": limit, "cursor": cursor}
        value = yield from self._read(path + _query(query), needs=["waiters"])
        return [Waiter.from_json(one) for one in value["waiters"]], value.get("next_cursor")

    def _read(self, target: str, *, fresh: bool = False, needs: Iterable[str] = (), joins: bool = False) -> Steps[Any]:
        for last in (False, True):
            call = Read(target, fresh, timeout=self.timeout, session=self.live_session(), needs=needs, joins=joins)
            try:
                return (yield call).result()
            except errors.SessionEnded:
                call.session_ended()
                if last:
                    raise

    def stop(self, key: str, reason: str | None, token: int | None) -> Steps[None]:
        """Asks the holders to stop, or the one with the token."""
        body = {} if reason is None else {"reason": text("reason", reason)}
        target = lock_path(key, "/stop" if token is None else f"/stop?token={token}")
        (yield Call("POST", target, body, timeout=self.timeout, needs=["stop"])).result()

    def force_release(self, key: str, token: int | None) -> Steps[None]:
        """Breaks a lock."""
        # The answer comes when the lock is free, at the latest when its lease ends.
        target = lock_path(key, "?force=true" if token is None else f"?force=true&token={token}")
        (yield Call("DELETE", target, timeout=None, repeatable=False, waits=True)).result()

    def watch(self, key: str) -> Call:
        """The call whose answer is the event stream of a key."""
        return Call("GET", lock_path(key, "/events"), timeout=self.timeout, needs=["events"])

    def end_session(self, session: Session) -> Steps[None]:
        """Ends the session. When this returns, its locks are free, or end with their leases if the store failed."""
        try:
            target = f"/v1/sessions/{quote(session.id, safe='')}"
            yield Call("DELETE", target, timeout=self.timeout, repeatable=False, after_close=True)
        except errors.LocksidecarError:
            pass  # the end of its stream ends it too


def _usual_socket() -> str:
    """The socket of a sidecar that was not told another one; the sidecar has the same rule."""
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home) or os.path.exists(os.path.dirname(DEFAULT_SOCKET)):
        return DEFAULT_SOCKET
    return os.path.join(home, HOME_SOCKET)


def _path(path: str | os.PathLike[str]) -> str:
    try:
        decoded = os.fsdecode(path)
    except TypeError:
        raise TypeError(f"socket_path={path!r}: it must be a path, not {type(path).__name__}") from None
    if "\0" in decoded:
        raise errors.InvalidRequest(400, "invalid_request", f"socket_path={path!r} has a null character")
    return decoded


def _check_texts(**texts: str | None) -> None:
    for name, value in texts.items():
        if value is not None:
            text(name, value)


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return True  # it has just gone


def _check_lost(grant: Grant | None) -> None:
    """Raises if the lock of a session is lost. For a lock with `bind="ttl"` the store decides, not the clock here."""
    if grant is not None and grant.session is not None and grant.lost:
        raise errors.lost(grant.key, grant.lost.reason or "")


def _released(call: Call, answer: _wire.Answer, grant: Grant | None) -> Mapping[str, Any]:
    try:
        value: Mapping[str, Any] = answer.result()
    except errors.NotHolder as e:
        if call.repeated and "reentry" not in e.problem and (e.reason == "released" or _forgotten(e, grant)):
            return {"released": True, "reentry": 0}  # by the first call, whose answer was lost
        raise
    return value


def _forgotten(error: errors.NotHolder, grant: Grant | None) -> bool:
    """Whether the store has forgotten the release of a `bind="ttl"` lock: it remembers that of a key's last grant."""
    if grant is None or grant.session is not None or error.reason != "unknown_token":
        return False
    return not grant.lost


def watched(key: str, name: str, data: Mapping[str, Any]) -> Event:
    """Makes an event of a watched key. Raises a `problem`, which may end the stream."""
    if name == "problem":
        raise errors.from_problem(data, int(data.get("status", 500)))
    return Event(name, key, data)


def leader_data(event: Event) -> Any:
    """The data of the leader after an event: None without a leader, `UNSET` if the event does not tell."""
    if event.type in ("released", "expired"):
        return None
    holder = event.data.get("holder")
    if event.type == "state" or (event.type == "acquired" and holder is not None):
        return None if holder is None else holder.get("data")
    return UNSET


def _query(query: Mapping[str, Any]) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return "?" + urlencode(given, quote_via=quote, safe="") if given else ""

"""Plays the cases of clients/contract through this package. Its README says what the verbs mean."""

from __future__ import annotations

import queue
import re
import sys
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoResult
from pathlib import Path
from typing import Any

from contract.halves import Tasks, Threads
from locksidecar import ApiError, Holder, LockHeld, LockInfo, SharedHolder, Skipped, Status, Stopping

SUITE = Path(__file__).resolve().parents[3] / "contract"
sys.path.insert(0, str(SUITE / "curl"))

# The steps, the prefix, what is saved and what matches are the curl runner's; the calls are not.
import calls as curl  # noqa: E402
import player as curl_player  # noqa: E402

DURATIONS = {"ttl_ms": "ttl", "max_hold_ms": "max_hold", "min_hold_ms": "min_hold"}
OUR_WORDS = re.compile(r"\b(wait|ttl|max_hold|min_hold)\b( \(in ms\))?")  # in errors, for the API's
PLAIN = ("limit", "bind", "owner", "reentrant", "on_success", "data", "request_id")


class Player(curl_player.Player):  # type: ignore[misc]
    """Plays one case with one half of the package."""

    def __init__(self, sidecar: Any, at: dict[str, Any], half: Threads | Tasks, case: dict[str, Any]) -> None:
        super().__init__(sidecar)
        self._at, self._half = at, half
        self._clients: dict[str | None, Any] = {}
        self._locks: dict[tuple[str | None, str, int], list[Any]] = {}
        self._events: dict[str | None, queue.Queue[dict[str, Any]]] = {}
        self._watches: dict[str, Any] = {}
        self._blocks: dict[str, Any] = {}
        self._cancelled = {s["cancel"]["call"] for s in case["steps"] if "cancel" in s}

    def play(self, case: dict[str, Any]) -> None:
        try:
            self._half.play(lambda: super(Player, self).play(case))
        finally:
            for client in self._clients.values():
                self._half.call(client.close).result(60)

    def _step(self, step: dict[str, Any], patience: float) -> None:
        if "start" not in step:
            super()._step(step, patience)
            return
        [verb] = step.keys() - {"start"}
        arguments = self._with_prefix(verb, curl_player.fill_in(step[verb], self.saved))
        name = step["start"]
        self.under_way[name] = _Started(self, name, self._make(verb, arguments, name in self._cancelled))

    def _do(self, verb: str, a: dict[str, Any], patience: float) -> Any:
        if verb in ("open", "close", "watch", "next", "finish", "cancel", "sidecar"):
            return getattr(self, f"_{verb}")(a, patience)
        return self._result(self._make(verb, a), patience)

    def _result(self, future: Future[Any], patience: float) -> Any:
        try:
            return future.result(patience)
        except Skipped as e:
            return {"skipped": True, "key": e.key, "result": e.result}
        except ApiError as e:
            return problem(e)
        except NoResult:
            raise curl.NoAnswer(f"no answer within {patience:.1f} s") from None

    def _client(self, session: str | None) -> Any:
        if session not in self._clients:
            self._clients[session] = self._half.client(**self._at)
        return self._clients[session]

    # Sessions and streams.

    def _open(self, a: dict[str, Any], patience: float) -> Any:
        try:
            client = self._half.client(**self._at, **_seconds(a, {"ttl_ms": "ttl"}), **_some(a, ("name",)))
        except ApiError as e:
            return problem(e)
        self._clients[a["as"]] = client
        self._events[a["as"]] = queue.Queue()
        # A client opens its session with the first call that needs it.
        opened = self._half.call(lambda: self._half.collect(client.locks("session")))
        result = self._result(opened, patience)
        return {"opened": True} if isinstance(result, list) else result

    def _close(self, a: dict[str, Any], patience: float) -> None:
        self._half.call(self._clients[a["session"]].close).result(patience)

    def _watch(self, a: dict[str, Any], patience: float) -> Any:
        client = self._client(None)
        stream = self._watches[a["as"]] = client.events(a["key"])
        result = self._result(self._half.call(lambda: self._half.enter(stream)), patience)
        return {"watching": True} if result is stream else result

    def _next(self, a: dict[str, Any], patience: float) -> Any:
        if a["of"] in self._watches:
            stream = self._watches[a["of"]]
            event = self._half.call(lambda: self._half.following(stream)).result(patience)
            return {"event": event.type, **event.data}
        try:
            return self._events[a["of"]].get(timeout=patience)
        except queue.Empty:
            raise curl.NoAnswer(f"no event within {patience:.1f} s") from None

    # Calls.

    def _make(self, verb: str, a: dict[str, Any], cancellable: bool = False) -> Future[Any]:
        made = getattr(self, f"_make_{verb}")(self._client(a.get("session")), a)
        return self._half.call(made, cancellable)

    def _make_acquire(self, client: Any, a: dict[str, Any]) -> Any:
        return self._then(lambda: client.acquire(a["key"], **_options(a)), lambda lock: self._granted(a, lock))

    def _make_enter(self, client: Any, a: dict[str, Any]) -> Any:
        def enter() -> Any:
            block = self._blocks[a["as"]] = client.lock(a["key"], **_options(a))
            return self._half.enter(block)

        return self._then(enter, lambda lock: self._granted(a, lock))

    def _make_leave(self, _: Any, a: dict[str, Any]) -> Any:
        block, error = self._blocks[a["block"]], _OfTheBlock() if a.get("raise") else None

        def left(swallowed: bool | None) -> Any:
            assert not swallowed
            return {"left": True} if error is None else {"raised": True}

        return self._then(lambda: self._half.leave(block, error), left)

    def _make_acquire_many(self, client: Any, a: dict[str, Any]) -> Any:
        def granted(locks: list[Any]) -> Any:
            return {"granted": True, "locks": [self._granted(a, lock) for lock in locks]}

        return self._then(lambda: client.acquire_many(a["keys"], **_options(a)), granted)

    def _granted(self, a: dict[str, Any], lock: Any) -> dict[str, Any]:
        session = a.get("session")
        held = self._locks.setdefault((session, lock.key, lock.token), [])
        held.append(lock)
        if session in self._events and len(held) == 1:
            events, told = self._events[session], {"key": lock.key, "token": lock.token}

            def lost() -> None:
                ended = lock.lost.reason == "disconnected"
                events.put({"event": "end"} if ended else {"event": "lost", **told, "reason": lock.lost.reason})

            lock.lost.on(lost)
            lock.stopping.on(lambda: events.put({"event": "stop", **told, "reason": lock.stopping.reason}))
        return {
            "granted": True, "key": lock.key, "token": lock.token, "session": lock.session, "bind": lock.bind,
            "reentry": lock.reentry, "expires_in_ms": round(lock.expires_in * 1000), "waited_ms": _ms(lock.waited),
            "mode": lock.mode, "limit": lock.limit, "slot": lock.slot,
        }  # fmt: skip

    def _held(self, a: dict[str, Any]) -> Any:
        locks = self._locks.get((a.get("session"), a["key"], a["token"]), [])
        return next((lock for lock in reversed(locks) if not lock.released), None)

    def _make_release(self, client: Any, a: dict[str, Any]) -> Any:
        lock, more = self._held(a), _some(a, ("outcome", "result", "reentry"))

        def released(free: bool) -> Any:
            entries = lock._grant.count if lock is not None else 0
            return {"key": a["key"], "released": free, "reentry": 0 if free else entries}

        if lock is not None:
            return self._then(lambda: lock.release(**more), released)
        return self._then(lambda: client.release(a["key"], a["token"], **more), released)

    def _make_check(self, client: Any, a: dict[str, Any]) -> Any:
        lock = self._held(a)
        if "data" in a:
            return self._then(lambda: lock.update(a["data"]), status)
        return self._then(lambda: client.check(a["key"], a["token"]) if lock is None else lock.check(), status)

    def _make_extend(self, client: Any, a: dict[str, Any]) -> Any:
        lock, ttl = self._held(a), a["ttl_ms"] / 1000
        return self._then(
            lambda: client.extend(a["key"], a["token"], ttl) if lock is None else lock.extend(ttl), status
        )

    def _make_downgrade(self, _: Any, a: dict[str, Any]) -> Any:
        return self._then(self._held(a).downgrade, status)

    def _make_get(self, client: Any, a: dict[str, Any]) -> Any:
        return self._then(lambda: client.get(a["key"], fresh=a.get("fresh", False)), info)

    def _make_list(self, client: Any, a: dict[str, Any]) -> Any:
        more = {("page_size" if n == "limit" else n): a[n] for n in ("scope", "prefix", "type", "limit") if n in a}

        def listed(locks: list[LockInfo]) -> Any:
            return {"keys": [lock.key for lock in locks], "locks": [info(lock) for lock in locks]}

        return self._then(lambda: self._half.collect(client.locks(**more)), listed)

    def _make_stop(self, client: Any, a: dict[str, Any]) -> Any:
        return self._then(
            lambda: client.stop(a["key"], a.get("reason"), token=a.get("token")),
            lambda _: {"requested": True, "key": a["key"]},
        )

    def _make_force_release(self, client: Any, a: dict[str, Any]) -> Any:
        return self._then(
            lambda: client.force_release(a["key"], token=a.get("token")), lambda _: {"released": True, "key": a["key"]}
        )

    def _make_features(self, client: Any, _: dict[str, Any]) -> Any:
        def described(it: Any) -> Any:
            return {"version": it.version, "api": it.api, "features": sorted(it.features)}

        return self._then(client.describe, described)

    def _then(self, call: Any, convert: Any) -> Any:
        if isinstance(self._half, Threads):
            return lambda: convert(call())

        async def run() -> Any:
            return convert(await call())

        return run


class _OfTheBlock(Exception):
    pass


class _Started:
    """A call under way, in the words of the curl runner."""

    def __init__(self, player: Player, name: str, future: Future[Any]) -> None:
        self._player, self._name, self._future = player, name, future

    def result(self, patience: float) -> Any:
        return self._player._result(self._future, patience)

    def cancel(self) -> None:
        # A call that a failed case has left under way ends with its client.
        if self._name in self._player._cancelled:
            self._player._half.cancel(self._future)


def _some(a: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: a[name] for name in names if name in a}


def _seconds(a: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {ours: a[theirs] / 1000 for theirs, ours in names.items() if theirs in a}


def _options(a: dict[str, Any]) -> dict[str, Any]:
    wait = a.get("wait_ms", 0)
    shared = {"shared": a["mode"] == "shared"} if "mode" in a else {}
    return {"wait": None if wait == -1 else wait / 1000, **shared, **_seconds(a, DURATIONS), **_some(a, PLAIN)}


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def holder(it: Holder | None) -> dict[str, Any] | None:
    if it is None:
        return None
    return {
        "instance": it.instance, "pod": it.pod, "session": it.session, "owner": it.owner,
        "acquired_at": it.acquired_at.isoformat(), "held_ms": _ms(it.held), "expires_in_ms": _ms(it.expires_in),
        "data": it.data, "traceparent": it.traceparent,
    }  # fmt: skip


def shared_holder(it: SharedHolder) -> dict[str, Any]:
    return {**(holder(it.holder) or {}), "token": it.token, "slot": it.slot, "stopping": stopping_of(it.stopping)}


def stopping_of(it: Stopping | None) -> dict[str, Any] | None:
    return None if it is None else {"reason": it.reason, "requested_at": it.requested_at.isoformat()}


def info(it: LockInfo) -> dict[str, Any]:
    return {
        "key": it.key, "type": it.type, "state": it.state, "mine": it.mine, "token": it.token,
        "mode": it.mode, "limit": it.limit, "holder": holder(it.holder), "kept": it.kept,
        "holders_count": it.holders_count, "holders": [shared_holder(one) for one in it.holders],
        "queue_length": it.queue_length, "stopping": stopping_of(it.stopping),
    }  # fmt: skip


def status(it: Status) -> dict[str, Any]:
    return {
        "held": True, "key": it.key, "token": it.token, "reentry": it.reentry, "expires_in_ms": _ms(it.expires_in),
        "mode": it.mode, "limit": it.limit, "slot": it.slot, "stopping": stopping_of(it.stopping),
    }  # fmt: skip


def problem(e: ApiError) -> dict[str, Any]:
    more = {name: value for name, value in e.problem.items() if name not in ("type", "title", "status", "code")}
    if isinstance(e, LockHeld):
        more["holder"] = holder(e.holder)
    return {**more, "error": e.code, "detail": OUR_WORDS.sub(r"\1_ms", e.detail)}

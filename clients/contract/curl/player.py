"""Plays one case against a sidecar."""

import time
import uuid

import calls
from match import difference, fill_in
from suite import SILENT, verb_of

PATIENCE = 60.0  # seconds for one step
HASTE = 0.5  # seconds for a step that cannot succeed
PAUSE = 0.005  # seconds between two calls of an `until`

SUCCESS = {"open": {"opened": True}, "watch": {"watching": True}}  # the default expectations


class Failed(Exception):
    """The result of a step does not match."""


class Player:
    """Plays one case: its sessions and watches, its calls under way, and its saved values."""

    def __init__(self, sidecar, hasty_step=None):
        """hasty_step is the number of a step that is broken on purpose, and does not wait."""
        self.sidecar = sidecar
        self.hasty_step = hasty_step
        self.prefix = f"c{uuid.uuid4().hex[:12]}-"
        self.sessions = {}  # name in the case: id
        self.streams = {}  # of sessions and watches
        self.under_way = {}
        self.blocks = {}  # name in the case: how its lock is released
        self.saved = {}

    def play(self, case):
        """Raises Failed, or calls.NoAnswer, with the number of the step."""
        try:
            for number, step in enumerate(case["steps"], 1):
                try:
                    self._step(step, HASTE if number == self.hasty_step else PATIENCE)
                except (Failed, calls.NoAnswer) as e:
                    raise Failed(f"step {number}, {verb_of(step)}: {e}") from None
        finally:
            for call in self.under_way.values():
                call.cancel()
            for stream in self.streams.values():
                stream.close()

    def _step(self, step, patience):
        verb = verb_of(step)
        arguments = step[verb] or {}
        if verb == "raw":
            arguments = replaced(arguments, "$prefix", self.prefix)
        arguments = self._with_prefix(verb, fill_in(arguments, self.saved))
        if "start" in step:
            self.under_way[step["start"]] = calls.Call(self.sidecar.socket, self._request(verb, arguments))
            return
        deadline = time.monotonic() + patience
        while True:
            # A call under way may end. Only an event may not come at all.
            left = deadline - time.monotonic() if verb == "next" else PATIENCE
            result = self._without_prefix(self._do(verb, arguments, left))
            if verb in SILENT:
                return
            want = fill_in(step.get("expect", step.get("until", SUCCESS.get(verb))), self.saved)
            wrong = difference(want, result)
            if not wrong:
                break
            if "until" not in step or time.monotonic() > deadline:
                raise Failed(f"{wrong}\n    the result was {result}")
            time.sleep(0 if verb == "next" else PAUSE)
        for name, path in step.get("save", {}).items():
            self.saved[name] = member(result, path)

    def _do(self, verb, a, patience):
        if verb in calls.REQUESTS:
            return calls.Call(self.sidecar.socket, self._request(verb, a)).result(patience)
        return getattr(self, f"_{verb}")(a, patience)

    def _request(self, verb, a):
        return calls.REQUESTS[verb](a, self._session(a))

    def _session(self, a):
        if "session" not in a:
            return None
        # A session that was not opened gives an unknown id, which http/ needs.
        return self.sessions.get(a["session"], a["session"])

    # The verbs that are more than one request.

    def _open(self, a, patience):
        stream = calls.Stream(self.sidecar.socket, calls.open_session(a))
        self.streams[a["as"]] = stream
        refused = stream.opened(patience)
        if refused:
            return refused
        self.sessions[a["as"]] = stream.next(patience)["session"]
        return {"opened": True}

    def _close(self, a, patience):
        calls.Call(self.sidecar.socket, calls.close_session(self.sessions[a["session"]])).result(patience)

    def _watch(self, a, patience):
        stream = calls.Stream(self.sidecar.socket, calls.watch(a))
        self.streams[a["as"]] = stream
        return stream.opened(patience) or {"watching": True}

    def _next(self, a, patience):
        return self.streams[a["of"]].next(patience)

    def _list(self, a, patience):
        locks, cursor = [], None
        while True:
            page = calls.Call(self.sidecar.socket, calls.page(a, self._session(a), cursor)).result(patience)
            if "error" in page:
                return page
            locks += page["locks"]
            cursor = page.get("next_cursor")
            if cursor is None:
                return {"keys": [lock["key"] for lock in locks], "locks": locks}

    def _enter(self, a, patience):
        grant = calls.Call(self.sidecar.socket, self._request("acquire", a)).result(patience)
        if "token" in grant:
            self.blocks[a["as"]] = {**a, "token": grant["token"]}
        return grant

    def _leave(self, a, patience):
        end = calls.Call(self.sidecar.socket, self._request("release", self.blocks.pop(a["block"]))).result(patience)
        if a.get("raise"):
            return {"raised": True}
        return end if "error" in end else {"left": True}

    def _finish(self, a, patience):
        return self.under_way.pop(a["call"]).result(patience)

    def _cancel(self, a, patience):
        self.under_way.pop(a["call"]).cancel()

    def _sidecar(self, a, patience):
        self.sidecar.terminate()
        return {"sent": True}

    # The prefix of the keys of this run.

    def _with_prefix(self, verb, a):
        if verb == "raw":
            return a
        a = dict(a)
        for name in ("key", "prefix", "type"):
            if name in a:
                a[name] = self.prefix + a[name]
        if "keys" in a and isinstance(a["keys"], list):
            a["keys"] = [self.prefix + key for key in a["keys"]]
        return a

    def _without_prefix(self, result):
        return replaced(result, self.prefix, "")


def replaced(value, old, new):
    """Returns the value with old replaced by new in all its texts."""
    if isinstance(value, dict):
        return {name: replaced(member, old, new) for name, member in value.items()}
    if isinstance(value, list):
        return [replaced(element, old, new) for element in value]
    return value.replace(old, new) if isinstance(value, str) else value


def member(result, path):
    """Returns the member at a path such as locks.0.token."""
    for name in path.split("."):
        try:
            result = result[int(name)] if isinstance(result, list) else result[name]
        except (KeyError, IndexError, TypeError):
            raise Failed(f"there is no {path} to save") from None
    return result

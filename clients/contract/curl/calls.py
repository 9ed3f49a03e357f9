"""The verbs of the cases, as calls of curl: the request on the wire, and the result of its answer."""

import json
import queue
import subprocess
import threading
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

BASE = "http://localhost"
OPTIONS = (
    "wait_ms", "ttl_ms", "bind", "owner", "reentrant", "max_hold_ms", "min_hold_ms", "on_success", "data", "request_id", "mode", "limit",
)  # fmt: skip


class NoAnswer(Exception):
    """curl failed, or got no answer in time."""


@dataclass
class Request:
    """One request, and the result of its answer."""

    method: str
    path: str
    body: object = None
    session: str | None = None
    headers: dict = field(default_factory=dict)
    options: tuple = ()
    result: object = lambda answer: answer  # from the decoded body of a 2xx answer
    raw: bool = False  # the result is {status, headers, body}

    def command(self, socket):
        command = ["curl", "-sSNig", "--path-as-is", "--unix-socket", socket, "-X", self.method, "-H", "Expect:", *self.options]
        if self.session is not None:
            command += ["-H", f"Lock-Session: {self.session}"]
        for name, value in self.headers.items():
            command += ["-H", f"{name}: {value}"]
        if self.body is not None:
            command += ["--data-binary", "@-"]
        return [*command, BASE + self.path]

    def sent(self):
        """The bytes of the body."""
        if self.body is None:
            return b""
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


class Call:
    """A request under way: one process of curl."""

    def __init__(self, socket, request):
        self.request = request
        self.process = subprocess.Popen(request.command(socket), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            self.process.stdin.write(request.sent())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # curl has ended; its output says why
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.stdin = None

    def result(self, patience):
        """Waits for the answer, at most `patience` seconds."""
        try:
            out, err = self.process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            self.cancel()
            raise NoAnswer(f"no answer in {patience} s: {self.request.method} {self.request.path}") from None
        if self.process.returncode != 0 and not out:
            raise NoAnswer(f"curl ended with {self.process.returncode}: {err.decode().strip()}")
        status, headers, body = parse(out)
        if self.request.raw:
            return {"status": status, "headers": headers, "body": body}
        return self.request.result(body) if status < 300 else refusal(body)

    def cancel(self):
        """Ends curl, which closes its connection."""
        self.process.kill()
        self.process.communicate()


def parse(out):
    """Returns status, headers and body (decoded, if it is JSON) from the output of curl -i."""
    head, _, body = out.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    text = body.decode()
    return int(status_line.split()[1]), headers, json.loads(text) if "json" in headers.get("content-type", "") else text


def refusal(problem):
    """The result of a problem document."""
    return {"error": problem["code"], **{name: value for name, value in problem.items() if name not in ("type", "title", "status", "code")}}


class Stream:
    """An event stream: a process of curl, and its events that were not read yet."""

    def __init__(self, socket, request):
        self.call = Call(socket, request)
        self.events = queue.Queue()
        self.status = queue.Queue(1)
        self.problem = None
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        out = self.call.process.stdout
        status_line = out.readline()
        if not status_line:  # curl could not connect
            self.status.put(0)
            return
        while out.readline().strip():
            pass
        status = int(status_line.split()[1])
        if status != 200:
            self.problem = json.loads(out.read())
        self.status.put(status)
        event = {}
        for line in out if status == 200 else ():
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name in ("event", "data"):
                event[name] = value
            elif not line.strip() and event:
                self.events.put({"event": event["event"], **json.loads(event["data"])})
                event = {}
        self.events.put({"event": "end"})

    def opened(self, patience):
        """Returns None when the stream has begun, or the result of a refusal."""
        try:
            status = self.status.get(timeout=patience)
        except queue.Empty:
            raise NoAnswer(f"no answer in {patience} s: {self.call.request.path}") from None
        if status == 0:
            raise NoAnswer("curl could not connect")
        return refusal(self.problem) if self.problem else None

    def next(self, patience):
        """Returns the next event."""
        try:
            return self.events.get(timeout=max(patience, 0))
        except queue.Empty:
            raise NoAnswer("no further event in time") from None

    def close(self):
        """Ends curl, which closes its connection."""
        self.call.process.kill()
        self.call.process.wait()


def lock_path(key, suffix="", **query):
    query = {name: value for name, value in query.items() if value is not None}
    return f"/v1/locks/{quote(key, safe='')}{suffix}" + (f"?{urlencode(query)}" if query else "")


def chosen(arguments, names):
    return {name: arguments[name] for name in names if name in arguments}


def granted(answer):
    """A grant, or a skip: the holder has done the work."""
    return answer if answer["granted"] else {"skipped": True, "key": answer["key"], "result": answer["result"]}


def held(answer):
    return {"held": True, **{name: value for name, value in answer.items() if name != "granted"}}


# One function for each verb that is a single request. `s` is the id of the session, or None.


def acquire(a, s):
    return Request("PUT", lock_path(a["key"]), chosen(a, OPTIONS), s, result=granted)


def acquire_many(a, s):
    body = {"keys": a["keys"], **chosen(a, OPTIONS)}
    return Request("POST", "/v1/locks", body, s, result=lambda answer: {"granted": True, **answer})


def release(a, s):
    path = lock_path(a["key"], token=a["token"], outcome=a.get("outcome"), reentry=a.get("reentry"))
    return Request("DELETE", path, chosen(a, ["result"]) or None, s)


def force_release(a, s):
    return Request("DELETE", lock_path(a["key"], force="true", token=a.get("token")), None, s)


def check(a, s):
    return Request("PATCH", lock_path(a["key"]), chosen(a, ["token", "data"]), s, result=held)


def extend(a, s):
    return Request("PATCH", lock_path(a["key"]), chosen(a, ["token", "ttl_ms", "data"]), s, result=held)


def downgrade(a, s):
    return Request("PATCH", lock_path(a["key"]), {**chosen(a, ["token"]), "mode": "shared"}, s, result=held)


def get(a, s):
    return Request("GET", lock_path(a["key"]), None, s, {"Cache-Control": "no-cache"} if a.get("fresh") else {})


def stop(a, s):
    return Request("POST", lock_path(a["key"], "/stop", token=a.get("token")), chosen(a, ["reason"]) or None, s)


def features(a, s):
    return Request("GET", "/v1")


def raw(a, s):
    options = ("--http1.0",) if a.get("http") == "1.0" else ()
    return Request(a["method"], a["path"], a.get("body"), s, a.get("headers", {}), options, raw=True)


def open_session(a):
    return Request("POST", "/v1/sessions", chosen(a, ["name", "ttl_ms"]))


def close_session(session):
    return Request("DELETE", f"/v1/sessions/{session}")


def watch(a):
    return Request("GET", lock_path(a["key"], "/events"))


def page(a, s, cursor):
    query = {**chosen(a, ["scope", "prefix", "type", "limit"]), **({"cursor": cursor} if cursor else {})}
    return Request("GET", "/v1/locks?" + urlencode(query), None, s)


REQUESTS = {f.__name__: f for f in (acquire, acquire_many, release, force_release, check, extend, downgrade, get, stop, features, raw)}

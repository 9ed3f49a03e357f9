"""Where the sidecar listens, and how a connection to it is made there."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import errno
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from . import _fork, errors

T = TypeVar("T")
_Addresses = Sequence[tuple[Any, ...]]

# Seconds. A peer that vanishes closes nothing. So the system probes one that says nothing, and ends the connection when
# nothing has come for so long.
PROBE = 3
SILENCE = 15
# The most seconds for a connection and its handshake.
DIAL = 5.0
# The least seconds between two reads of a token's file.
TOKEN_PAUSE = 1.0
MAX_TOKEN = 512
_ALLOWED = "allowed: unix:///PATH, http://HOST:PORT or https://HOST:PORT"


class Endpoint:
    """Where the sidecar listens. `name` is the path of a socket, or a URL."""

    def __init__(self, path: str, url: tuple[str, str] | None, token_file: str | None, ca_file: str | None) -> None:
        self.name = self.path = path  # path is empty over TCP
        self.tls = False
        self._host, self._port = "localhost", 0
        self._authority = "localhost"
        self._ca_file = ca_file
        self._contexts: tuple[type, ssl.SSLContext] | None = None
        self._token: _Token | None = None
        self._lookup: _Lookup | None = None
        if url is not None:
            self._parse(*url)
        if not self.path and token_file:
            self._token = _Token(token_file)

    def _parse(self, where: str, url: str) -> None:
        # A URL with a password, which has no use here, is not shown.
        shown = "no URL of a sidecar" if "@" in url else repr(url)
        wrong = errors.InvalidRequest(400, "invalid_request", f"{where} is {shown}; {_ALLOWED}")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise wrong from None
        if "@" in url or parts.query or parts.fragment or not url.isprintable() or " " in url:
            raise wrong
        if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
            self.name = self.path = unquote(parts.path)
        elif parts.scheme in ("http", "https") and parts.hostname and port and parts.path in ("", "/"):
            self.tls = parts.scheme == "https"
            self._host, self._port, self._authority = parts.hostname, port, parts.netloc
            self.path, self.name = "", f"{parts.scheme}://{parts.netloc}"
        else:
            raise wrong

    def encode(self, request: bytes) -> bytes:
        """The request as it is sent to this sidecar."""
        if self.path:
            return request
        head = f"Host: {self._authority}\r\n"
        if self._token is not None:
            head += f"Authorization: Bearer {self._token.read()}\r\n"
        return request.replace(b"Host: localhost\r\n", head.encode("ascii"), 1)

    def connect(self, sockets: _fork.Sockets, limit: float | None = None) -> socket.socket:
        """Makes a connection, at most for `limit` seconds."""
        if self.path:
            sock = sockets.new()
            try:
                sock.setblocking(False)
                sock.connect(self.path)
                return sock
            except BaseException:
                sockets.close(sock)
                raise
        end = time.monotonic() + _seconds(limit)
        failed: OSError | None = None
        for family, _, _, _, address in self._addresses(end - time.monotonic()):
            sock = sockets.new(family)
            try:
                _notice_silence(sock)
                sock.settimeout(max(end - time.monotonic(), 0.001))
                sock.connect(address)
                if self.tls:
                    sock = sockets.wrap(sock, self._context(), self._host)
                    sock.settimeout(max(end - time.monotonic(), 0.001))
                    sock.do_handshake()
                return sock
            except OSError as e:
                sockets.close(sock)
                failed = failed or e
            except BaseException:
                sockets.close(sock)
                raise
        raise failed or OSError("the host has no address")

    async def connect_async(
        self,
        sockets: _fork.Sockets,
        loop: asyncio.AbstractEventLoop,
        make: Callable[[socket.socket], _fork.T],
        limit: float | None = None,
    ) -> _fork.T:
        """Makes a connection for the protocol that `make` makes for a socket, at most for `limit` seconds."""
        if self.path:
            sock = sockets.new()
            try:
                sock.setblocking(False)
                sock.connect(self.path)  # immediate on a Unix socket
                protocol = make(sock)
                await loop.create_unix_connection(lambda: protocol, sock=sock)  # type: ignore[type-var]
                return protocol
            except BaseException:
                sockets.close(sock)
                raise
        end = time.monotonic() + _seconds(limit)
        failed: OSError | None = None
        lookup = asyncio.ensure_future(loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM))
        for family, _, _, _, address in await _within(lookup, end - time.monotonic()):
            sock = sockets.new(family)
            try:
                _notice_silence(sock)
                sock.setblocking(False)
                await _within(loop.create_task(loop.sock_connect(sock, address)), end - time.monotonic())
                protocol = make(sock)
                context = self._context() if self.tls else None
                await loop.create_connection(
                    lambda protocol=protocol: protocol,
                    sock=sock,
                    ssl=context,
                    server_hostname=self._host if self.tls else None,
                    ssl_handshake_timeout=max(end - time.monotonic(), 0.001) if self.tls else None,
                )
                return protocol
            except OSError as e:
                sockets.close(sock)
                failed = failed or e
            except BaseException:
                sockets.close(sock)
                raise
        raise failed or OSError("the host has no address")

    def _addresses(self, seconds: float) -> _Addresses:
        """The addresses of the host. Calls that need them at the same time share a lookup."""
        with contextlib.suppress(socket.gaierror):  # it is a name
            return socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        lookup = self._lookup
        if lookup is None or lookup.is_over():
            lookup = self._lookup = _Lookup(self._host, self._port)
        return lookup.result(seconds)

    def _context(self) -> ssl.SSLContext:
        if self._ca_file is None and self._contexts is not None and self._contexts[0] is ssl.SSLContext:
            return self._contexts[1]  # gevent may replace the class
        try:
            context = ssl.create_default_context(cafile=self._ca_file)  # it verifies certificate and name
        except (OSError, ValueError) as e:
            text = f"the CA in {self._ca_file!r} (ca_file, or LOCKSIDECAR_CA_FILE) cannot be read: {e}"
            raise errors.InvalidRequest(400, "invalid_request", text) from e
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._contexts = (ssl.SSLContext, context)
        return context

    def what_failed(self, cause: OSError) -> str:
        """Why there is no connection over TCP, and what to look at."""
        if isinstance(cause, ssl.SSLCertVerificationError):
            why = cause.verify_message
            if "ostname mismatch" in why or "IP address mismatch" in why:
                return f"its certificate is for another name ({why}). LOCKSIDECAR_URL has to use a name of it"
            if cause.verify_code in (9, 10):
                return f"its certificate is not valid now: {cause.verify_message}"
            return (
                f"its certificate is of a CA that this process does not trust ({cause.verify_message})."
                " LOCKSIDECAR_CA_FILE names the file of the CA"
            )
        if isinstance(cause, ssl.SSLError):
            return (
                f"it does not speak TLS as this process does ({cause.reason}). Is it http://, or another port?"
                " Check LOCKSIDECAR_URL"
            )
        if isinstance(cause, socket.gaierror):
            return f"its host is not known ({cause.strerror}). Check LOCKSIDECAR_URL"
        if cause.errno == errno.ECONNREFUSED:
            return (
                "nobody listens. Check that it runs, that its LOCKSIDECAR_TCP_ADDR has this port, and LOCKSIDECAR_URL"
            )
        return f"{cause.strerror or cause or type(cause).__name__}. Check LOCKSIDECAR_URL, and the network"


def _seconds(limit: float | None) -> float:
    return DIAL if limit is None else min(limit, DIAL)


async def _within(task: asyncio.Future[T], seconds: float) -> T:
    """Waits for a task. Before Python 3.12, asyncio.wait_for may lose a cancellation."""
    try:
        done, _ = await asyncio.wait({task}, timeout=max(seconds, 0.001))
    finally:
        if not task.done():
            task.cancel()
    if not done:
        raise TimeoutError(errno.ETIMEDOUT, "no connection in time")
    return task.result()


class _Lookup:
    """A lookup of a host, in a thread of its own: the system has no limit for it that a call could set."""

    def __init__(self, host: str, port: int) -> None:
        self._pid = os.getpid()
        self._done = threading.Event()
        self._found: _Addresses | Exception = []
        thread = threading.Thread(target=self._run, args=(host, port), name="locksidecar-lookup", daemon=True)
        try:
            thread.start()
        except RuntimeError as e:
            raise OSError(errno.EAGAIN, str(e)) from None

    def _run(self, host: str, port: int) -> None:
        try:
            self._found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as e:
            self._found = e
        finally:
            self._done.set()

    def is_over(self) -> bool:
        """Whether it has ended. In the child of a fork it has, because its thread is the parent's."""
        return self._done.is_set() or self._pid != os.getpid()

    def result(self, seconds: float) -> _Addresses:
        """Waits for the addresses. Raises what the system has raised, and TimeoutError."""
        if not self._done.wait(max(seconds, 0.001)):
            raise TimeoutError(errno.ETIMEDOUT, "its host was not looked up in time")
        if isinstance(self._found, Exception):
            raise copy.copy(self._found)  # several threads may raise it
        return self._found


def _notice_silence(sock: socket.socket) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": PROBE,
        "TCP_KEEPALIVE": PROBE,  # its name on macOS
        "TCP_KEEPINTVL": PROBE,
        "TCP_KEEPCNT": SILENCE // PROBE,
        "TCP_USER_TIMEOUT": SILENCE * 1000,
    }
    for name, value in options.items():
        option = getattr(socket, name, None)
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


class _Token:
    """A file whose first line is the token. It may be replaced while it is used."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._token = ""
        self._looked = -TOKEN_PAUSE

    def read(self) -> str:
        """The token. Threads may call this at a time: each reads the whole file. An error contains nothing of it."""
        now = time.monotonic()
        if self._token and now - self._looked < TOKEN_PAUSE:
            return self._token
        self._looked = now
        try:
            with open(self._file, "rb") as file:
                token = file.readline(MAX_TOKEN + 2).strip()
        except OSError as e:
            if self._token:  # a file that is away for a moment changes nothing
                return self._token
            raise self._wrong(f"it cannot be read: {e.strerror}") from None
        if not 0 < len(token) <= MAX_TOKEN or any(not 0x20 < byte < 0x7F for byte in token):
            if self._token:
                return self._token
            raise self._wrong(f"its first line is no token: it has up to {MAX_TOKEN} printable characters and no space")
        self._token = token.decode("ascii")
        return self._token

    def _wrong(self, what: str) -> errors.InvalidRequest:
        text = f"the token file {self._file!r} (token_file, or LOCKSIDECAR_TOKEN_FILE): {what}"
        return errors.InvalidRequest(400, "invalid_request", text)


def from_settings(
    path: str | None,
    usual: Callable[[], str],
    url: str | None,
    token_file: str | os.PathLike[str] | None,
    ca_file: str | os.PathLike[str] | None,
) -> Endpoint:
    """Reads the settings. What is set in code wins over the environment, and a URL over a socket."""
    if path is not None and url is not None:
        raise errors.InvalidRequest(400, "invalid_request", "socket_path and url are both given; one names the sidecar")
    env = os.environ.get
    where = None
    if url is not None:
        where = ("url", url)
    elif path is None and env("LOCKSIDECAR_URL"):
        where = ("LOCKSIDECAR_URL", env("LOCKSIDECAR_URL", ""))
    token = os.fspath(token_file) if token_file is not None else env("LOCKSIDECAR_TOKEN_FILE") or None
    ca = os.fspath(ca_file) if ca_file is not None else env("LOCKSIDECAR_CA_FILE") or None
    return Endpoint("" if where else path or env("LOCKSIDECAR_SOCKET") or usual(), where, token, ca)

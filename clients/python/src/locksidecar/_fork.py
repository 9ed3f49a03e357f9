"""Sockets that a child process closes after a fork.

A connection, and so its session, lives as long as any process has its descriptor. So a child closes its copies of the
parent's descriptors, which does not end the connections. No fork comes between the creation of a socket and its note.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from ._call import Call

T = TypeVar("T")

# The most connections over TCP that have sent no request yet. Above 64 that have shown no token, the sidecar ends the
# oldest.
MAX_UNSENT = 16


class _Forks(Protocol):
    def _forked(self) -> None: ...


_clients: weakref.WeakSet[_Forks] = weakref.WeakSet()
_guard = threading.RLock()


def register(client: _Forks) -> None:
    """Calls `client._forked()` in the child of each fork, before anything else runs there."""
    with _guard:
        _clients.add(client)


def _child() -> None:
    global _guard
    _guard = threading.RLock()
    for client in list(_clients):
        client._forked()


if hasattr(os, "register_at_fork"):
    # Lambdas, because a child has another _guard.
    os.register_at_fork(
        before=lambda: _guard.acquire(), after_in_parent=lambda: _guard.release(), after_in_child=_child
    )


def end(sock: socket.socket) -> None:
    """Ends a connection, also one with TLS that another thread reads. `SSLSocket.shutdown` would take TLS from it."""
    with contextlib.suppress(OSError):
        if isinstance(sock, ssl.SSLSocket):
            super(ssl.SSLSocket, sock).shutdown(socket.SHUT_RDWR)
        else:
            sock.shutdown(socket.SHUT_RDWR)


class Sockets:
    """The open sockets of one client in this process."""

    def __init__(self) -> None:
        self._open: set[socket.socket] = set()

    def new(self, family: int = socket.AF_UNIX) -> socket.socket:
        """Makes an unconnected socket. Python makes it close-on-exec."""
        with _guard:
            sock = socket.socket(family, socket.SOCK_STREAM)
            self._open.add(sock)
        return sock

    def wrap(self, sock: socket.socket, context: ssl.SSLContext, host: str) -> ssl.SSLSocket:
        """Replaces a connected socket by one with TLS, whose handshake follows."""
        with _guard:
            wrapped = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
            self._open.discard(sock)  # it has given its descriptor away
            self._open.add(wrapped)
        return wrapped

    def close(self, sock: socket.socket) -> None:
        """Closes a socket."""
        with _guard:
            self._open.discard(sock)
            sock.close()

    def forget(self, sock: socket.socket) -> None:
        """Notes that a socket was closed elsewhere."""
        with _guard:
            self._open.discard(sock)

    def shut(self) -> None:
        """Ends all connections. Their readers see the end, and close them."""
        with _guard:
            for sock in self._open:
                end(sock)

    def close_copies(self) -> None:
        """Closes all descriptors of this process. The connections stay open if the parent has them too."""
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.close()
        self._open = set()

    def __len__(self) -> int:
        return len(self._open)


class Turn:
    """The right to make a connection, until its first request was sent."""

    __slots__ = ("__weakref__", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def over(self) -> None:
        """Gives it to the next call. It may be called again."""
        self._turns.end(self)


class Turns:
    """The turns of one client: over TCP as many as connections may have sent nothing, else any number."""

    # Seconds. A waiting call looks again after that, because an interruption may lose its wake-up.
    LOOK = 1.0

    def __init__(self, over_tcp: bool) -> None:
        self._most = MAX_UNSENT if over_tcp else math.inf
        self._taken: weakref.WeakSet[Turn] = weakref.WeakSet()  # weak, so that an interruption loses none
        self._waiting: deque[Callable[[], object]] = deque()

    def take(self) -> Turn | None:
        """A turn, if one is free."""
        with _guard:
            if len(self._taken) >= self._most:
                return None
            turn = Turn(self)
            self._taken.add(turn)
            return turn

    def end(self, turn: Turn) -> None:
        """See `Turn.over`."""
        with _guard:
            self._taken.discard(turn)
        self.wake()

    @contextlib.contextmanager
    def waiting(self, wake: Callable[[], object]) -> Generator[None, None, None]:
        """Calls `wake` when there may be something for a call: a turn, or an idle connection."""
        self._waiting.append(wake)
        if len(self._taken) < self._most:  # meanwhile
            self.wake()
        try:
            yield
        except BaseException:
            if not self._leave(wake):
                self.wake()  # the next call, because this one does nothing with it
            raise
        self._leave(wake)

    def _leave(self, wake: Callable[[], object]) -> bool:
        """Returns whether it still waited."""
        with _guard:
            waits = wake in self._waiting
            if waits:
                self._waiting.remove(wake)
            return waits

    def wake(self) -> None:
        """Wakes the call that has waited longest."""
        if not self._waiting:
            return
        with _guard:
            wake = self._waiting.popleft() if self._waiting else None
        if wake is not None:
            wake()


def no_turn() -> OSError:
    """Why a call got no turn."""
    return TimeoutError(errno.ETIMEDOUT, f"{MAX_UNSENT} other connections were being made for too long")


class Patience:
    """How long to try to get a connection: if the sidecar's backlog is full, or there is no room for one more.

    Each call that waits for a lock has a connection, so such calls can take all descriptors of this process. The calls
    that end waits must get through. So a call that waits leaves one idle connection, and fails if it can get no other.
    The other calls try until they get an idle one, or their time is over: a lock may be lost then.
    """

    PAUSE = 0.01

    def __init__(self, timeout: float, call: Call, fresh: bool = False) -> None:
        left = call.left()
        self._end = time.monotonic() + (timeout if left is None else min(timeout, left))
        self._waits = call.waits
        self._fresh = fresh  # only a new connection will do

    def take(self, idle: list[T]) -> T | None:
        """Takes an idle connection, if there is one for this call."""
        if self._fresh:
            return None
        try:
            taken = idle.pop()
        except IndexError:  # another thread may take the last one
            return None
        if self._waits and not idle:
            idle.append(taken)
            return None
        return taken

    def takes(self, idle: list[T]) -> bool:
        """Whether `take` would find one."""
        return not self._fresh and len(idle) > self._waits

    def left(self) -> float:
        """The seconds until it ends."""
        return self._end - time.monotonic()

    def try_again(self, error: OSError, connections: int) -> bool:
        """Whether to try again after no new one could be made. `connections`: how many this client has."""
        if self.left() <= 0:
            return False
        if isinstance(error, BlockingIOError):
            return True
        return error.errno in (errno.EMFILE, errno.ENFILE) and not self._waits and not self._fresh and connections > 0

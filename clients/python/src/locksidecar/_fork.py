"""Sockets, and what becomes of them when the process forks.

A session lives as long as its connection, and a connection as long as any process has its descriptor. So a child
closes what it inherits: its descriptor of the parent's connection, not the connection. And it must not miss one: each
socket is noted from its birth, and no fork comes between.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from typing import Protocol


class _Forks(Protocol):
    def _forked(self) -> None: ...


_clients: weakref.WeakSet[_Forks] = weakref.WeakSet()
_guard = threading.RLock()


def register(client: _Forks) -> None:
    """`client._forked()` is called in the child of each fork, before anything else runs there."""
    with _guard:
        _clients.add(client)


def _child() -> None:
    global _guard
    _guard = threading.RLock()
    for client in list(_clients):
        client._forked()


if hasattr(os, "register_at_fork"):
    # The lambdas look _guard up anew: a child has another one.
    os.register_at_fork(
        before=lambda: _guard.acquire(), after_in_parent=lambda: _guard.release(), after_in_child=_child
    )


class Sockets:
    """The open sockets of one client in this process."""

    def __init__(self) -> None:
        self._open: set[socket.socket] = set()

    def new(self) -> socket.socket:
        """Makes one that is not connected yet. Like all of Python's, it is closed on exec."""
        with _guard:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._open.add(sock)
        return sock

    def close(self, sock: socket.socket) -> None:
        """Closes one, and forgets it."""
        with _guard:
            self._open.discard(sock)
            sock.close()

    def forget(self, sock: socket.socket) -> None:
        """Somebody else has closed it."""
        with _guard:
            self._open.discard(sock)

    def shut(self) -> None:
        """Ends all connections; those who read from them see the end, and close them."""
        with _guard:
            for sock in self._open:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def abandon(self) -> None:
        """Closes all descriptors here, and leaves the connections to those who have them too."""
        for sock in self._open:
            with contextlib.suppress(OSError):
                sock.close()
        self._open = set()

    def __len__(self) -> int:
        return len(self._open)


class Backlog:
    """How long to try when the sidecar's line of new connections is full, which a Unix socket says by EAGAIN."""

    PAUSE = 0.01

    def __init__(self, timeout: float) -> None:
        self._end = time.monotonic() + timeout

    def full(self, error: BlockingIOError) -> None:
        """Returns for another try; raises the error when there was time enough."""
        if time.monotonic() >= self._end:
            raise error

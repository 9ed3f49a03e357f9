# Written by unasync.py: change _async_events.py.
"""The events of a key, for threads."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from . import _core
from ._sync_transport import Stream, Transport
from .types import Event

if TYPE_CHECKING:
    from typing_extensions import Self


class EventStream:
    """The events of one key. It holds a connection until `close` or the end of `with`."""

    def __init__(self, transport: Transport, key: str) -> None:
        self._transport, self._key = transport, key
        self._stream: Stream | None = None

    def __enter__(self) -> Self:
        """Returns when the key is watched. The first event is its state then."""
        self._filled()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        stream = self._filled()
        return _core.watched(self._key, *stream.found.pop(0))

    def _filled(self) -> Stream:
        try:
            if self._stream is None:
                self._stream = self._transport.stream(self._transport.core.watch(self._key))
            stream = self._stream
            stream.filled()
            return stream
        except Exception:  # an interruption ends the wait, not the stream
            self.close()
            raise

    def close(self) -> None:
        """Ends the stream. A thread that waits for the next event gets `Unavailable`."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort()

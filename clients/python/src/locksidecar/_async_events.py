"""The events of a key, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING

from . import _core
from ._async_transport import AsyncTransport, Stream
from .types import Event

if TYPE_CHECKING:
    from typing_extensions import Self


class AsyncEventStream:
    """The events of one key. It holds a connection until `close` or the end of `async with`."""

    def __init__(self, transport: AsyncTransport, key: str) -> None:
        self._transport, self._key = transport, key
        self._stream: Stream | None = None

    async def __aenter__(self) -> Self:
        """Returns when the key is watched. The first event is its state then."""
        await self._filled()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        stream = await self._filled()
        return _core.watched(self._key, *stream.found.pop(0))

    async def _filled(self) -> Stream:
        try:
            if self._stream is None:
                self._stream = await self._transport.stream(self._transport.core.watch(self._key))
            stream = self._stream
            await stream.filled()
            return stream
        except Exception:  # an interruption ends the wait, not the stream
            self.close()
            raise

    def close(self) -> None:
        """Ends the stream. A task that waits for the next event gets `Unavailable`."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort()

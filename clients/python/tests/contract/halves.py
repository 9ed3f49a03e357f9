"""How a runner calls `Client` and `AsyncClient`: the same words for both, each call in the background."""

from __future__ import annotations

import asyncio
import inspect
import queue
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from locksidecar import AsyncClient, Client


class Threads:
    """Calls `Client`, each call in a thread. One that will be cancelled runs in the main thread, where Ctrl-C goes."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(16)
        self._main: queue.Queue[tuple[Callable[[], Any], Future[Any]] | None] = queue.Queue()

    def client(self, **options: Any) -> Client:
        return Client(reconnect=0, **options)

    def call(self, function: Callable[[], Any], cancellable: bool = False) -> Future[Any]:
        future: Future[Any] = Future()
        if cancellable:
            self._main.put((function, future))
        else:
            # Not in the pool: a client refuses that a thread waits for a lock of its own.
            threading.Thread(target=_settle, args=(future, function), daemon=True).start()
        return future

    def cancel(self, future: Future[Any]) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        assert isinstance(future.exception(10), KeyboardInterrupt)

    def play(self, play: Callable[[], None]) -> None:
        """Plays in a thread, so that this one is there for the calls that are cancelled."""

        def ending() -> None:
            try:
                play()
            finally:
                self._main.put(None)

        playing = self._pool.submit(ending)
        while (job := self._main.get()) is not None:
            function, future = job
            _settle(future, function)
        playing.result()

    def collect(self, listing: Any) -> list[Any]:
        return list(listing)

    def following(self, stream: Any) -> Any:
        return next(stream)

    def enter(self, stream: Any) -> Any:
        return stream.__enter__()

    def leave(self, block: Any, error: Exception | None) -> Any:
        return block.__exit__(type(error) if error else None, error, None)

    def end(self) -> None:
        self._pool.shutdown()


def _settle(future: Future[Any], function: Callable[[], Any]) -> None:
    try:
        future.set_result(function())
    except BaseException as e:
        future.set_exception(e)


class Tasks:
    """Calls `AsyncClient`, each call in a task of a loop that runs in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def client(self, **options: Any) -> AsyncClient:
        return AsyncClient(reconnect=0, **options)

    def call(self, function: Callable[[], Any], cancellable: bool = False) -> Future[Any]:
        del cancellable  # all are

        async def run() -> Any:
            made = function()
            return await made if inspect.isawaitable(made) else made

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def cancel(self, future: Future[Any]) -> None:
        assert future.cancel()

    def play(self, play: Callable[[], None]) -> None:
        play()

    async def collect(self, listing: Any) -> list[Any]:
        return [one async for one in listing]

    async def following(self, stream: Any) -> Any:
        return await stream.__anext__()

    async def enter(self, stream: Any) -> Any:
        return await stream.__aenter__()

    async def leave(self, block: Any, error: Exception | None) -> Any:
        return await block.__aexit__(type(error) if error else None, error, None)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

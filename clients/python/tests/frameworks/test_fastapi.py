"""The dependency for FastAPI, with a real app."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from conftest import LONG, Sidecar
from locksidecar import AsyncClient, AsyncLock, Client, InvalidRequest
from locksidecar.contrib.fastapi import locked


@asynccontextmanager
async def serving(path: str) -> AsyncIterator[tuple[httpx.AsyncClient, Any]]:
    """An app, and what its endpoints have done."""
    async with AsyncClient(path) as client:
        app, log = FastAPI(), list[Any]()
        started = asyncio.Event()
        OrderLock = Annotated[AsyncLock, locked(client, "{order}")]
        HeaderLock = Annotated[AsyncLock, locked(client, lambda request: request.headers["order"], wait=5)]

        @app.post("/orders/{order}/pay")
        async def pay(lock: OrderLock) -> int:
            log.append("pay")
            return lock.token

        @app.post("/orders/{order}/wait")
        async def wait(lock: OrderLock) -> None:
            started.set()
            await asyncio.Event().wait()

        @app.post("/orders/{order}/thread")
        def thread(lock: OrderLock) -> None:
            ended = threading.Event()
            lock.lost.on(ended.set)
            loop.call_soon_threadsafe(started.set)
            assert ended.wait(LONG)
            log.append(lock.lost.reason)

        @app.post("/orders/{order}/stream")
        async def stream(lock: OrderLock) -> StreamingResponse:
            async def body() -> AsyncIterator[str]:
                yield (await client.get(lock.key, fresh=True)).state

            return StreamingResponse(body())

        @app.post("/header")
        async def header(lock: HeaderLock, request: Request) -> str:
            return lock.key

        loop = asyncio.get_running_loop()
        app.state.started, app.state.log = started, log
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as http:
            yield http, app.state


def test_the_endpoint_holds_the_lock(path: str, client: Client, key: str) -> None:
    async def main() -> None:
        async with serving(path) as (http, state):
            answer = await http.post(f"/orders/{key}/pay")
            assert (answer.status_code, answer.json() > 0) == (200, True)
            assert client.get(key, fresh=True).state == "free"
            with client.lock(key):
                answer = await http.post(f"/orders/{key}/pay")
                assert (answer.status_code, answer.json()) == (423, {"detail": f"lock {key!r} is held"})
            assert state.log == ["pay"]
            assert (await http.post("/header", headers={"order": key})).json() == key

    asyncio.run(main())


def test_the_lock_is_released_before_the_response_is_sent(path: str, key: str) -> None:
    async def main() -> None:
        async with serving(path) as (http, _):
            assert (await http.post(f"/orders/{key}/stream")).text == "free"

    asyncio.run(main())


@pytest.mark.parametrize("endpoint", ["wait", "thread"])
def test_a_lost_lock_is_503(path: str, client: Client, key: str, endpoint: str) -> None:
    async def main() -> None:
        async with serving(path) as (http, state):
            call = asyncio.create_task(http.post(f"/orders/{key}/{endpoint}"))
            await asyncio.wait_for(state.started.wait(), LONG)
            await asyncio.to_thread(client.force_release, key)
            answer = await asyncio.wait_for(call, LONG)
            assert (answer.status_code, answer.json()) == (503, {"detail": f"lock {key!r} was lost"})
            assert state.log == (["forced"] if endpoint == "thread" else [])

    asyncio.run(main())


def test_without_the_sidecar_the_endpoint_does_not_run(sidecar: Sidecar) -> None:
    async def main() -> None:
        async with serving(sidecar.path) as (http, state):
            sidecar.kill()
            answer = await http.post("/orders/7/pay")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert state.log == []

    asyncio.run(main())


def test_a_wrong_option_is_found_at_once(path: str) -> None:
    with pytest.raises(InvalidRequest, match="ttl"):
        locked(AsyncClient(path), "x", ttl=0.1)

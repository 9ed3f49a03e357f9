#!/usr/bin/env python3
"""A FastAPI app in two processes: two requests to pay one order come at the same time, and one of them pays.

Install with `pip install 'locksidecar[fastapi]' uvicorn httpx`.
"""

import asyncio
import os
import subprocess
import sys
from typing import Annotated

import httpx
import uvicorn
from fastapi import FastAPI

from locksidecar import AsyncClient, AsyncLock
from locksidecar.contrib.fastapi import locked

app = FastAPI()
client = AsyncClient(name="fastapi_once")
OrderLock = Annotated[AsyncLock, locked(client, "order:{order_id}")]
may_end = asyncio.Event()


@app.post("/orders/{order_id}/pay")
async def pay(order_id: int, lock: OrderLock) -> dict[str, int]:
    # Each write has the lock's token, so the late write of an earlier request is refused.
    print(f"pays order {order_id}", flush=True)
    await may_end.wait()  # the work
    return {"order": order_id, "token": lock.token}


@app.post("/end")
async def end() -> None:
    may_end.set()


class Server(uvicorn.Server):
    async def startup(self, sockets=None) -> None:
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)  # the port that it has got


async def main() -> int:
    # With two sidecars on one database, the processes are in different pods.
    first = os.environ.get("LOCKSIDECAR_SOCKET", "")  # empty: the usual one
    sockets = [first, os.environ.get("LOCKSIDECAR_SOCKET_2") or first]
    pods = [
        subprocess.Popen([sys.executable, __file__, "serve"], env={**os.environ, "LOCKSIDECAR_SOCKET": socket}, stdout=subprocess.PIPE, text=True)
        for socket in sockets
    ]
    try:
        urls = [f"http://127.0.0.1:{int(pod.stdout.readline())}" for pod in pods]
        async with httpx.AsyncClient(timeout=60) as http:
            first = asyncio.create_task(http.post(f"{urls[0]}/orders/7/pay"))
            print("pod 1", (await asyncio.to_thread(pods[0].stdout.readline)).strip())
            second = await http.post(f"{urls[1]}/orders/7/pay")
            print("pod 2 answers", second.status_code, second.json())
            await http.post(f"{urls[0]}/end")
            answer = await first
            print("pod 1 answers", answer.status_code, answer.json())
    finally:
        for pod in pods:
            pod.kill()
            pod.wait()
    return 0 if (answer.status_code, second.status_code) == (200, 423) else 1


if __name__ == "__main__":
    if sys.argv[1:]:
        Server(uvicorn.Config(app, port=0, log_level="warning")).run()
    else:
        sys.exit(asyncio.run(main()))

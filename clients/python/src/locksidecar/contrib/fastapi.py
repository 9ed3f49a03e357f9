"""FastAPI: a dependency that holds a lock while an endpoint runs.

client = AsyncClient()
OrderLock = Annotated[AsyncLock, locked(client, "order:{order_id}", wait=2)]

@app.post("/orders/{order_id}/pay")
async def pay(order_id: int, lock: OrderLock): ...
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from .. import AsyncClient, AsyncLock, LockOptions, errors
from .._options import acquire_options
from ._held import AWAY, holding, missing

try:
    from fastapi import Depends, HTTPException, Request
except ImportError as e:
    raise missing("fastapi", e) from e

if TYPE_CHECKING:
    from typing_extensions import Unpack


def locked(client: AsyncClient, key: str | Callable[[Request], str], **options: Unpack[LockOptions]) -> Any:
    """A dependency whose value is the `AsyncLock`. It is released before the response is sent.

    key: `"order:{order_id}"` takes parameters of the path; or a function of the request. options: those of
    `client.acquire`; without a `wait` the request does not wait. The response is 423 if the lock is held, and 503
    without the sidecar; the endpoint does not run then. If the lock is lost, a coroutine is cancelled, and the response
    is 503. An endpoint that is a plain function runs to its end in its thread: it looks at `lock.lost`.
    """
    with_wait: LockOptions = {"wait": 0, **options}
    acquire_options(with_wait)  # so that a mistake is found here

    async def dependency(request: Request) -> AsyncIterator[AsyncLock]:
        name = key(request) if callable(key) else key.format_map(request.path_params)
        try:
            lock = await client.acquire(name, **with_wait)
        except errors.LockHeld as e:
            raise HTTPException(423, f"lock {name!r} is held") from e
        except AWAY as e:
            raise _unavailable(f"lock {name!r} cannot be acquired now", e) from e
        try:
            async with holding(lock):
                yield lock
        except errors.LockLost as e:
            raise _unavailable(f"lock {name!r} was lost", e) from e

    # With the default scope the lock would be released after the response, and a loss would come too late for it.
    return Depends(dependency, scope="function")


def _unavailable(text: str, error: errors.LocksidecarError) -> HTTPException:
    after = error.retry_after
    return HTTPException(503, text, headers={"Retry-After": str(math.ceil(after or 1))})

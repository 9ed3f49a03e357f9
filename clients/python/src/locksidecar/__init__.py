"""Distributed locks through a locksidecar, for threads (`Client`) and asyncio (`AsyncClient`).

`with Client().lock("workflow:123", wait=5) as lock` holds a lock in its body. `lock.token` is its fencing token.
"""

from . import errors, types
from ._async import AsyncClient, AsyncEventStream
from ._async_lock import AsyncLock, AsyncLockContext
from ._sync import Client, EventStream
from ._sync_lock import Lock, LockContext
from ._tasks import AsyncLockSignal
from ._threads import LockSignal
from ._version import __version__ as __version__
from .errors import *  # noqa: F403
from .types import *  # noqa: F403

__all__ = [
    "AsyncClient",
    "AsyncEventStream",
    "AsyncLock",
    "AsyncLockContext",
    "AsyncLockSignal",
    "Client",
    "EventStream",
    "Lock",
    "LockContext",
    "LockSignal",
    *errors.__all__,
    *types.__all__,
]

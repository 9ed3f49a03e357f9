"""Distributed locks through a locksidecar, for threads (`Client`) and asyncio (`AsyncClient`).

`with Client().lock("workflow:123", wait=5) as lock` holds a lock in its body. `lock.token` is its fencing token.
"""

from . import errors, types
from ._async import AsyncClient
from ._async_events import AsyncEventStream
from ._async_lead import AsyncLeaders, AsyncTerm
from ._async_lock import AsyncLock, AsyncLockContext, AsyncSemaphore
from ._sync import Client
from ._sync_events import EventStream
from ._sync_lead import Leaders, Term
from ._sync_lock import Lock, LockContext, Semaphore
from ._tasks import AsyncLockSignal
from ._threads import LockSignal
from ._version import __version__ as __version__
from .errors import *  # noqa: F403
from .types import *  # noqa: F403

__all__ = [
    "AsyncClient",
    "AsyncEventStream",
    "AsyncLeaders",
    "AsyncLock",
    "AsyncLockContext",
    "AsyncLockSignal",
    "AsyncSemaphore",
    "AsyncTerm",
    "Client",
    "EventStream",
    "Leaders",
    "Lock",
    "LockContext",
    "LockSignal",
    "Semaphore",
    "Term",
    *errors.__all__,
    *types.__all__,
]

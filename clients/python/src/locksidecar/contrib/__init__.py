"""Locks in Celery, APScheduler, Django and FastAPI: one module for each, which needs the framework.

`pip install locksidecar[celery]` installs the framework too. Importing this package alone imports none of them.
"""

from ._held import held, held_async
from ._tick import TickSkipped

__all__ = ["TickSkipped", "held", "held_async"]

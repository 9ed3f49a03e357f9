"""A tick of a schedule, which runs once in the fleet."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timezone

from .. import errors
from .._async import AsyncClient
from .._async_lock import AsyncLock
from .._sync import Client
from .._sync_lock import Lock

TICK_HOLD = 600.0
"""Seconds for which no host runs a tick again, by default."""
LONGEST_PERIOD = 86400.0
"""Seconds. The sidecar holds a key for a day at most."""


class TickSkipped(errors.LocksidecarError):
    """Another process has the tick, or the tick is too late. The text says which. It is no failure."""


@dataclass(frozen=True)
class Tick:
    """One planned time of a job, which all hosts of the fleet plan too.

    It has a key of its own, `tick:job@time`, which nobody gets again in its time: `min_hold`, and with `every` the
    period before. So a host whose clock is late skips it, and so does one that has it twice. The run has the lock
    `job`: runs do not overlap, and its token grows.
    """

    job: str
    at: float  # seconds since 1970; the same number on all hosts
    min_hold: float = TICK_HOLD
    wait: float = 0.0  # for the end of the run before
    attempt: int = 0  # another attempt at the same tick runs again
    every: float = 0.0  # seconds: the length of a period that begins at `at`, of hosts that plan at other times in it

    @property
    def hold(self) -> float:
        """The seconds for which nobody gets the key again."""
        return min(self.every + self.min_hold, LONGEST_PERIOD)

    @property
    def key(self) -> str:
        """The key of the tick."""
        at = datetime.fromtimestamp(self.at, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return f"tick:{self.job}@{at}" + (f"#{self.attempt}" if self.attempt else "")

    def check(self, planned: float) -> None:
        """Raises TickSkipped if the tick was planned so long ago that its key may be free again."""
        now = time.time()
        late = now - planned
        if late > self.min_hold / 2:
            raise TickSkipped(
                f"{self.key} is {late:.0f} s late, more than half of min_hold={self.min_hold:g}: others may have run it"
            )
        if self.every and now > self.at + self.hold - self.min_hold / 2:  # only if the sidecar's limit has cut the hold
            raise TickSkipped(
                f"{self.key} comes in the last {self.min_hold / 2:g} s of its period, and a key is held for a day at"
                " most: others may have run it"
            )

    def acquire(self, client: Client) -> Lock:
        """Acquires the lock of the run. Raises TickSkipped, or as `client.acquire` if that is not known."""
        try:
            client.acquire(self.key, wait=0, min_hold=self.hold).release()
        except errors.LockHeld as e:
            raise self._taken(e) from None
        try:
            return client.acquire(self.job, wait=self.wait, data={"tick": self.key})
        except errors.LockHeld as e:
            raise self._busy(e) from None

    async def acquire_async(self, client: AsyncClient) -> AsyncLock:
        """As `acquire`."""
        try:
            await (await client.acquire(self.key, wait=0, min_hold=self.hold)).release()
        except errors.LockHeld as e:
            raise self._taken(e) from None
        try:
            return await client.acquire(self.job, wait=self.wait, data={"tick": self.key})
        except errors.LockHeld as e:
            raise self._busy(e) from None

    def _taken(self, e: errors.LockHeld) -> TickSkipped:
        return TickSkipped(f"{self.key} was taken by {_pod(e)}")

    def _busy(self, e: errors.LockHeld) -> TickSkipped:
        return TickSkipped(
            f"{self.key} is skipped in the whole fleet: an earlier run of {self.job!r} goes on in {_pod(e)}"
        )


def _pod(e: errors.LockHeld) -> str:
    return "another process" if e.holder is None else f"pod {e.holder.pod!r}"


def slot(at: float, every: float) -> float:
    """The start of the period of `every` seconds that contains a time. Periods are counted from 1970, in UTC."""
    return at // every * every

<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/** The call has waited for its time, and another caller still holds the lock. */
class WaitTimeout extends LockHeld
{
    /** The last position in the queue; 1 is the next. */
    public function queuePosition(): ?int
    {
        return $this->problem['queue_position'] ?? null;
    }

    /** Seconds. */
    public function waited(): float
    {
        return ($this->problem['waited_ms'] ?? 0) / 1000;
    }
}

<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

use Locksidecar\Holder;

/** Another caller holds the lock. */
class LockHeld extends LocksidecarException
{
    /** Null if the lock has just become free. */
    public function holder(): ?Holder
    {
        return Holder::fromJson($this->problem['holder'] ?? null);
    }

    /** With several locks: the first that was held. */
    public function key(): ?string
    {
        return $this->problem['key'] ?? null;
    }

    /** The number of waiters; null after a wait: see WaitTimeout::queuePosition. */
    public function queueLength(): ?int
    {
        return $this->problem['queue_length'] ?? null;
    }

    /** Of the holders: `exclusive` or `shared`. */
    public function mode(): ?string
    {
        return $this->problem['mode'] ?? null;
    }

    /** Of the shared holders, if they have one. */
    public function limit(): ?int
    {
        return $this->problem['limit'] ?? null;
    }

    public function holdersCount(): int
    {
        return $this->problem['holders_count'] ?? 0;
    }

    /** Whether the sidecar of the holder may keep the lock for its next session, so perhaps nobody holds it. */
    public function kept(): bool
    {
        return $this->problem['kept'] ?? false;
    }
}

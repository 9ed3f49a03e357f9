<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/** The lock was held under this token, and is lost. */
class LockLost extends LocksidecarException
{
    /**
     * The sidecar's (`expired`, `forced`, `max_hold`, `store_lost`, `disconnected`, `shutdown`), or `forked` in a child process, for a lock of
     * its parent.
     */
    public function reason(): string
    {
        return (string) ($this->problem['reason'] ?? '');
    }

    public function key(): ?string
    {
        return $this->problem['key'] ?? null;
    }
}

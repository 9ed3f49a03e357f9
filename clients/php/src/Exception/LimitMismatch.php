<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/** The holders and waiters of the lock name another limit. Nothing was granted. */
class LimitMismatch extends LocksidecarException
{
    /** Null: they name none. */
    public function limit(): ?int
    {
        return $this->problem['limit'] ?? null;
    }
}

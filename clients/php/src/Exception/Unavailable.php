<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/**
 * The sidecar, or its store, cannot do it now.
 *
 * Itself it means that the sidecar could not be reached, went away during the call, or did not answer in time. Then the outcome of the call is
 * unknown. An acquire that raises it has withdrawn its grant.
 */
class Unavailable extends LocksidecarException
{
    /** Seconds until another try is useful; null if the sidecar does not say. */
    public function retryAfter(): ?float
    {
        return $this->problem['retry_after'] ?? null;
    }
}

<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/** The token does not hold the key here and now. */
class NotHolder extends LocksidecarException
{
    /** `other_session`, `released` or `unknown_token`. */
    public function reason(): string
    {
        return (string) ($this->problem['reason'] ?? '');
    }
}

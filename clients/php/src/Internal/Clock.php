<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * The clock of this process, which nobody sets.
 *
 * @internal
 */
final class Clock
{
    /** Seconds. */
    public static function now(): float
    {
        return hrtime(true) / 1e9;
    }
}

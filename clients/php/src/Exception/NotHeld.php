<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/** The lock is not held. */
class NotHeld extends LocksidecarException
{
}

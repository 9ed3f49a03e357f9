<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/** Too many sessions, locks of a session, waiters, watches or connections. */
class LimitReached extends LocksidecarException
{
}

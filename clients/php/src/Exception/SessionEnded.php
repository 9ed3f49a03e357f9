<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/** The session and its locks are over. The next call opens a new one, unless the client was closed. */
class SessionEnded extends LocksidecarException
{
}

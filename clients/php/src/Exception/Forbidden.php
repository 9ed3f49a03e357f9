<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/** The sidecar does not allow it: breaking locks, or this user. */
class Forbidden extends LocksidecarException
{
}

<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/** There is no such call: the sidecar is older than it says, or the path is wrong. */
class NotFound extends LocksidecarException
{
}

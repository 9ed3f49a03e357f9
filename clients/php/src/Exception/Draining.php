<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/** The sidecar shuts down. Releases still work, acquires do not. */
class Draining extends Unavailable
{
}

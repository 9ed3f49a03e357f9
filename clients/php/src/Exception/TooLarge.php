<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/** The body, the data or the result is too large (data and result: 4 KiB of JSON). */
class TooLarge extends LocksidecarException
{
}

<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * A connection broke before the answer was complete.
 *
 * @internal
 */
final class Broken extends \RuntimeException
{
}

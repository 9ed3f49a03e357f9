<?php

declare(strict_types=1);

namespace Locksidecar\Tests;

/** What the handler of a signal throws. */
final class Interrupted extends \Exception
{
}

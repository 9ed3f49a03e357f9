<?php

declare(strict_types=1);

namespace Locksidecar\Tests\Contract;

/** The result of a step does not match. */
final class Failed extends \Exception
{
}

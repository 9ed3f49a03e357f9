<?php

declare(strict_types=1);

namespace Locksidecar\Tests\Contract;

/** The caller of a call leaves. */
final class Cancelled extends \Exception
{
}

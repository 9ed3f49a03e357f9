<?php

declare(strict_types=1);

namespace Locksidecar\Tests\Contract;

/** The app's error in a block. */
final class OfTheBlock extends \Exception
{
}

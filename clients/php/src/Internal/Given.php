<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * That an argument was not given, where null has a meaning.
 *
 * @internal
 */
enum Given
{
    case No;
}

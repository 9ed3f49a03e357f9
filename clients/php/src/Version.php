<?php

declare(strict_types=1);

namespace Locksidecar;

/** The version of this package. */
final class Version
{
    public const NUMBER = '0.1.0';
}

<?php

declare(strict_types=1);

namespace Locksidecar;

/** The version of a sidecar, and its features. */
final readonly class Description
{
    /**
     * @param list<string> $features
     *
     * @internal
     */
    public function __construct(public string $version, public string $api, public array $features)
    {
    }
}

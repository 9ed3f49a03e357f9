<?php

declare(strict_types=1);

namespace Locksidecar;

/**
 * An event of a watched key. `type` is `state` (the first one), `acquired`, `released`, `expired`, `stopping`, or one of a newer sidecar. `data`
 * has the API's members.
 */
final readonly class Event
{
    /**
     * @param array<string, mixed> $data
     *
     * @internal
     */
    public function __construct(public string $type, public string $key, public array $data)
    {
    }
}

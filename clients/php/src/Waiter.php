<?php

declare(strict_types=1);

namespace Locksidecar;

/** A call that waits for a lock. `position` is 1 for the first call of the key, `waiting` is seconds. */
final readonly class Waiter
{
    private function __construct(
        public string $key,
        public int $position,
        public string $pod,
        public ?string $session,
        public ?string $owner,
        public string $mode,
        public ?int $limit,
        public float $waiting,
        public ?string $traceparent,
    ) {
    }

    /**
     * @param array<string, mixed> $value
     *
     * @internal
     */
    public static function fromJson(array $value): self
    {
        return new self(
            $value['key'],
            $value['position'],
            $value['pod'] ?? '',
            $value['session'] ?? null,
            $value['owner'] ?? null,
            $value['mode'] ?? 'exclusive',
            $value['limit'] ?? null,
            $value['waiting_ms'] / 1000,
            $value['traceparent'] ?? null,
        );
    }
}

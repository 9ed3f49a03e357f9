<?php

declare(strict_types=1);

namespace Locksidecar;

/** The holder of a lock. `held` and `expiresIn` are seconds, `acquiredAt` is informative. */
final readonly class Holder
{
    private function __construct(
        public string $instance,
        public string $pod,
        public ?string $session,
        public ?string $owner,
        public \DateTimeImmutable $acquiredAt,
        public float $held,
        public float $expiresIn,
        public mixed $data,
        public ?string $traceparent,
    ) {
    }

    /**
     * @param array<string, mixed>|null $value
     *
     * @internal
     */
    public static function fromJson(?array $value): ?self
    {
        return $value === null ? null : new self(
            $value['instance'] ?? '',
            $value['pod'] ?? '',
            $value['session'] ?? null,
            $value['owner'] ?? null,
            new \DateTimeImmutable($value['acquired_at']),
            $value['held_ms'] / 1000,
            $value['expires_in_ms'] / 1000,
            $value['data'] ?? null,
            $value['traceparent'] ?? null,
        );
    }
}

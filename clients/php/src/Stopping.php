<?php

declare(strict_types=1);

namespace Locksidecar;

/** A request to the holder to stop. `requestedAt` is null in what a lock tells. */
final readonly class Stopping
{
    /** @internal */
    public function __construct(public ?string $reason, public ?\DateTimeImmutable $requestedAt = null)
    {
    }

    /**
     * @param array<string, mixed>|null $value
     *
     * @internal
     */
    public static function fromJson(?array $value): ?self
    {
        if ($value === null) {
            return null;
        }
        $at = $value['requested_at'] ?? null;

        return new self($value['reason'] ?? null, $at === null ? null : new \DateTimeImmutable($at));
    }
}

<?php

declare(strict_types=1);

namespace Locksidecar;

/**
 * One lock. `state` is `free` or `held`. `token` is null unless this client's session holds it. `mode` and `holder` are null if it is free. Of a
 * shared lock, `holder` was granted first, and `holders` has the first 100. `kept`: the sidecar of the holder may keep the lock for its next
 * session, so perhaps nobody holds it now.
 */
final readonly class LockInfo
{
    /** @param list<SharedHolder> $holders */
    private function __construct(
        public string $key,
        public ?string $type,
        public string $state,
        public bool $mine,
        public ?int $token,
        public ?string $mode,
        public ?int $limit,
        public ?Holder $holder,
        public bool $kept,
        public array $holders,
        public int $holdersCount,
        public ?int $queueLength,
        public ?Stopping $stopping,
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
            $value['type'] ?? null,
            $value['state'],
            $value['mine'] ?? false,
            $value['token'] ?? null,
            $value['mode'] ?? null,
            $value['limit'] ?? null,
            Holder::fromJson($value['holder'] ?? null),
            $value['kept'] ?? false,
            array_map(SharedHolder::fromJson(...), $value['holders'] ?? []),
            $value['holders_count'] ?? 0,
            $value['queue_length'] ?? null,
            Stopping::fromJson($value['stopping'] ?? null),
        );
    }

    public function isFree(): bool
    {
        return $this->state === 'free';
    }

    public function isHeld(): bool
    {
        return $this->state === 'held';
    }
}

<?php

declare(strict_types=1);

namespace Locksidecar;

/**
 * The state of a held lock: the answer to check, extend, update and downgrade. An app may rely on the lock for `expiresIn` seconds without news
 * from the sidecar.
 */
final readonly class Status
{
    private function __construct(
        public string $key,
        public int $token,
        public ?string $session,
        public string $bind,
        public string $mode,
        public ?int $limit,
        public ?int $slot,
        public int $reentry,
        public float $expiresIn,
        public float $waited,
        public \DateTimeImmutable $acquiredAt,
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
            $value['token'],
            $value['session'] ?? null,
            $value['bind'],
            $value['mode'] ?? 'exclusive',
            $value['limit'] ?? null,
            $value['slot'] ?? null,
            $value['reentry'],
            $value['expires_in_ms'] / 1000,
            $value['waited_ms'] / 1000,
            new \DateTimeImmutable($value['acquired_at']),
            Stopping::fromJson($value['stopping'] ?? null),
        );
    }
}

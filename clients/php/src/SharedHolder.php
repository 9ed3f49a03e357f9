<?php

declare(strict_types=1);

namespace Locksidecar;

/** One of the holders of a shared lock. `token` is null if the sidecar's database role may only read, `slot` without a limit. */
final readonly class SharedHolder
{
    private function __construct(public Holder $holder, public ?int $token, public ?int $slot, public ?Stopping $stopping)
    {
    }

    /**
     * @param array<string, mixed> $value
     *
     * @internal
     */
    public static function fromJson(array $value): self
    {
        $holder = Holder::fromJson($value);
        \assert($holder !== null);

        return new self($holder, $value['token'] ?? null, $value['slot'] ?? null, Stopping::fromJson($value['stopping'] ?? null));
    }
}

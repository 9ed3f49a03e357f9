<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * A value, and where it was set, for messages.
 *
 * @internal
 */
final class Setting
{
    private function __construct(public readonly string $name, public readonly string $value)
    {
    }

    /** null: it is not set. */
    public static function of(string $name, ?string $value): ?self
    {
        return $value === null || $value === '' ? null : new self($name, Check::text($name, $value));
    }

    /** null: it is not set. */
    public static function ofEnvironment(string $name): ?self
    {
        return self::of($name, (string) getenv($name));
    }
}

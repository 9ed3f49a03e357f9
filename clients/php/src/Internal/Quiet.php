<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * Calls a function of PHP that warns. No error handler of the app sees the warning.
 *
 * @internal
 */
final class Quiet
{
    /** The warning of the last call; empty: none. */
    public static string $warning = '';

    /** @param callable(): mixed $function */
    public static function call(callable $function): mixed
    {
        self::$warning = '';
        set_error_handler(static function (int $_, string $text): bool {
            self::$warning = $text;

            return true;
        });
        try {
            return $function();
        } finally {
            restore_error_handler();
        }
    }
}

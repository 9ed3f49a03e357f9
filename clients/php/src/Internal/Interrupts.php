<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * How an operation lives with signals.
 *
 * With pcntl_async_signals(true), a handler of the app runs between any two steps of the code, and may throw. So an operation holds the signals
 * back, and looks for them only where it waits (Poll). There a handler may throw, and the operation ends what it has begun. Without
 * pcntl_async_signals nothing can come between the steps of an operation.
 *
 * @internal
 */
final class Interrupts
{
    /** Whether an operation holds back the signals of the app. */
    public static bool $held = false;
    /** Whether an operation goes on to its end, whatever comes. */
    public static bool $finishing = false;

    /**
     * Runs an operation, which may be interrupted where it waits.
     *
     * @template T
     *
     * @param callable(): T $operation
     *
     * @return T
     */
    public static function run(callable $operation): mixed
    {
        if (!\function_exists('pcntl_async_signals') || !pcntl_async_signals()) {
            return $operation();
        }
        pcntl_async_signals(false);
        self::$held = true;
        try {
            pcntl_signal_dispatch(); // what came before has its effect before anything begins
            $value = $operation();
        } finally {
            self::$held = false;
            pcntl_async_signals(true);
            pcntl_signal_dispatch();
        }

        return $value; // not in the `try`: a handler that throws in the `finally` may leave it behind, and with it a lock that nobody has
    }

    /**
     * Runs an operation to its end. Signals have their effect after it.
     *
     * @template T
     *
     * @param callable(): T $operation
     *
     * @return T
     */
    public static function finish(callable $operation): mixed
    {
        return self::run(static function () use ($operation): mixed {
            $before = self::$finishing;
            self::$finishing = true;
            try {
                return $operation();
            } finally {
                self::$finishing = $before;
            }
        });
    }

    /** Lets the app's handlers run, if an operation may be interrupted now. */
    public static function look(): void
    {
        if (self::$held && !self::$finishing) {
            pcntl_signal_dispatch();
        }
    }
}

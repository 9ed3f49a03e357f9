<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * Waits for connections.
 *
 * @internal
 */
final class Poll
{
    /** Seconds. A signal that came just before a wait began is looked for so often. */
    private const LOOK = 0.25;

    /** Whether a signal has ended the last wait. */
    public static bool $interrupted = false;

    /**
     * A scheduler of fibers: it suspends the current one until a stream is ready or the time is over, and returns the keys of those that are.
     * The tests have one.
     *
     * @var (\Closure(array<string, resource>, ?float, bool): list<string>)|null
     */
    public static ?\Closure $suspend = null;

    /** The flow of the app that runs: with a scheduler each fiber is one, else the process has one. */
    public static function flow(): string
    {
        $fiber = self::$suspend === null ? null : \Fiber::getCurrent();

        return $fiber === null ? 'process-' . getmypid() : 'fiber-' . spl_object_id($fiber);
    }

    /**
     * Waits until one can be read (or written), at most for these seconds; null: for ever. It may return early.
     *
     * @param array<string, resource> $streams
     *
     * @return list<string> the keys of those that are ready
     */
    public static function wait(array $streams, ?float $seconds, bool $write = false): array
    {
        self::$interrupted = false;
        if (self::$suspend !== null && \Fiber::getCurrent() !== null) {
            try {
                return (self::$suspend)($streams, $seconds, $write);
            } catch (\FiberError) {
                // PHP 8.3 and earlier suspend no destructor
            }
        }
        $seconds = max(0.0, min($seconds ?? 3600.0, Interrupts::$held ? self::LOOK : 3600.0));
        if ($streams === []) {
            usleep((int) ceil($seconds * 1e6));
            Interrupts::look();

            return [];
        }
        $reads = $write ? [] : $streams;
        $writes = $write ? $streams : [];
        $none = [];
        $whole = (int) $seconds;
        $found = Quiet::call(static function () use (&$reads, &$writes, &$none, $whole, $seconds): int|false {
            return stream_select($reads, $writes, $none, $whole, (int) (($seconds - $whole) * 1e6));
        });
        if ($found === false) {
            self::$interrupted = str_contains(Quiet::$warning, 'Interrupted');
            if (!self::$interrupted) {
                throw new Broken(Quiet::$warning); // PHP's select takes descriptors below 1024
            }
            $reads = $writes = [];
        }
        Interrupts::look();

        return array_map('strval', array_keys($write ? $writes : $reads));
    }

    /** Waits for these seconds. */
    public static function sleep(float $seconds): void
    {
        for ($ends = Clock::now() + $seconds; ($left = $ends - Clock::now()) > 0;) {
            self::wait([], $left);
        }
    }
}

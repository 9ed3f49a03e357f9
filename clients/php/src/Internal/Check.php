<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * Checks of arguments.
 *
 * @internal
 */
final class Check
{
    public const LEAST_TTL = 0.5; // seconds
    public const DAY = 86400.0; // seconds; the sidecar's limit
    private const MOST_NESTED = 100; // of JSON
    private const JSON = JSON_THROW_ON_ERROR | JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE | JSON_PRESERVE_ZERO_FRACTION;

    /** A duration in seconds. */
    public static function seconds(string $name, int|float|\DateInterval $value, float $least = 0.0, float $most = self::DAY): float
    {
        if ($value instanceof \DateInterval) {
            $epoch = new \DateTimeImmutable('@0');
            $end = $epoch->add($value);
            $value = $end->getTimestamp() + (int) $end->format('u') / 1e6;
        }
        $number = (float) $value;
        if ($number >= $least && $number <= $most) { // not NAN
            return $number;
        }
        $more = $name === 'wait' ? ' (null waits for ever)' : '';
        throw Problem::invalid("$name: $value is not between $least and $most seconds$more");
    }

    public static function text(string $name, string $value): string
    {
        if (preg_match('//u', $value) === 1) {
            return $value;
        }
        throw Problem::invalid("$name: " . self::show($value) . ' is no text in UTF-8');
    }

    /** A text in a message. */
    public static function show(string $value): string
    {
        return json_encode($value, JSON_INVALID_UTF8_SUBSTITUTE | JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE) ?: '?';
    }

    /**
     * @param array<mixed> $keys
     *
     * @return list<string>
     */
    public static function keys(array $keys): array
    {
        foreach ($keys as $key) {
            if (!\is_string($key)) {
                throw new \TypeError('keys: they must be strings, not ' . get_debug_type($key));
            }
            self::text('key', $key);
        }

        return array_values($keys);
    }

    /** A value as JSON. */
    public static function json(string $name, mixed $value): string
    {
        try {
            return json_encode($value, self::JSON, self::MOST_NESTED);
        } catch (\JsonException $e) {
            throw Problem::invalid("$name: it must be JSON of at most " . self::MOST_NESTED . " levels ({$e->getMessage()})");
        }
    }

    /**
     * The value of a JSON text. Objects are arrays, but for an empty one, which would become an empty list.
     *
     * @throws \JsonException
     */
    public static function fromJson(string $json): mixed
    {
        return self::arrays(json_decode($json, false, 512, JSON_THROW_ON_ERROR));
    }

    /**
     * Refuses a value that JSON cannot carry. Returns it.
     *
     * @template T
     *
     * @param T $value
     *
     * @return T
     */
    public static function data(string $name, mixed $value): mixed
    {
        self::json($name, $value);

        return $value;
    }

    private static function arrays(mixed $value): mixed
    {
        if (!\is_array($value) && (!$value instanceof \stdClass || (array) $value === [])) {
            return $value;
        }

        return array_map(self::arrays(...), (array) $value);
    }

    /** Rounded up, because 0 means "not at all". */
    public static function toMs(float $seconds): int
    {
        return (int) ceil(round($seconds * 1000, 6));
    }
}

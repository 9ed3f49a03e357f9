<?php

declare(strict_types=1);

namespace Locksidecar\Tests\Contract;

/** Compares a result with the expectation of a case: clients/contract/README.md, "Matching". */
final class Matching
{
    private const OPERATORS = ['$gt', '$ge', '$lt', '$le', '$has', '$is', '$any'];

    /**
     * The value with each $name replaced by its saved value, and each {$long: n} by a text of n letters.
     *
     * @param array<string, mixed> $saved
     */
    public static function fillIn(mixed $value, array $saved): mixed
    {
        if (\is_array($value)) {
            return array_keys($value) === ['$long'] ? str_repeat('a', $value['$long']) : array_map(static fn (mixed $one): mixed => self::fillIn($one, $saved), $value);
        }
        if (!\is_string($value) || !str_starts_with($value, '$')) {
            return $value;
        }
        $name = substr($value, 1);

        return \array_key_exists($name, $saved) ? $saved[$name] : throw new \LogicException("nothing was saved as $value");
    }

    /** The difference, or null if got matches. */
    public static function difference(mixed $want, mixed $got, string $at = 'result'): ?string
    {
        $is = "$at is " . json_encode($got) . '; it must be ';
        if ($want instanceof \stdClass) { // an empty map
            return \is_array($got) || $got instanceof \stdClass ? null : $is . 'an object';
        }
        if (!\is_array($want)) {
            return $want === $got ? null : $is . json_encode($want);
        }
        if (self::isOperator($want)) {
            return self::holds((string) array_key_first($want), current($want), $got) ? null : $is . json_encode($want);
        }
        if (!\is_array($got) || (array_is_list($want) && \count($got) !== \count($want))) {
            return $is . json_encode($want);
        }
        foreach ($want as $name => $one) {
            $wrong = self::difference($one, $got[$name] ?? null, "$at.$name");
            if ($wrong !== null) {
                return $wrong;
            }
        }

        return null;
    }

    /** @param array<mixed> $want */
    private static function isOperator(array $want): bool
    {
        $words = array_filter(array_keys($want), static fn (int|string $name): bool => str_starts_with((string) $name, '$'));
        if ($words !== [] && (\count($want) !== 1 || !\in_array($words[0], self::OPERATORS, true))) {
            throw new \LogicException(json_encode($want) . ': an operator stands alone');
        }

        return $words !== [];
    }

    /** The same text for the same JSON. */
    private static function canonical(mixed $value): string
    {
        if (\is_array($value) && !array_is_list($value)) {
            ksort($value);
        }

        return \is_array($value) ? implode(',', [array_is_list($value) ? '[' : '{', ...array_map(static fn (int|string $name, mixed $one): string => "$name:" . self::canonical($one), array_keys($value), $value), '!'])
            : (string) json_encode($value, JSON_PRESERVE_ZERO_FRACTION);
    }

    private static function holds(string $operator, mixed $argument, mixed $got): bool
    {
        $number = \is_int($got) || \is_float($got);

        return match ($operator) {
            '$any' => $got !== null,
            '$is' => self::canonical($argument) === self::canonical($got),
            '$has' => \is_string($got) && str_contains($got, $argument),
            '$gt' => $number && $got > $argument,
            '$ge' => $number && $got >= $argument,
            '$lt' => $number && $got < $argument,
            default => $number && $got <= $argument,
        };
    }
}

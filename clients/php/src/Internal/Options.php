<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * The options of an acquire: see Client.
 *
 * @internal
 */
final class Options
{
    private const MOST_HOLDERS = 1000; // of a semaphore; the sidecar's limit

    public readonly ?float $wait;
    public readonly ?float $ttl;
    public readonly ?float $maxHold;
    public readonly ?float $minHold;

    public function __construct(
        int|float|\DateInterval|null $wait = null,
        int|float|\DateInterval|null $ttl = null,
        public readonly bool $shared = false,
        public readonly ?int $limit = null,
        public readonly string $bind = 'session',
        public ?string $owner = null,
        public readonly bool $reentrant = false,
        int|float|\DateInterval|null $maxHold = null,
        int|float|\DateInterval|null $minHold = null,
        public readonly string $onSuccess = 'acquire',
        public readonly mixed $data = null,
        public readonly ?string $requestId = null,
    ) {
        $this->wait = $wait === null || $wait === INF ? null : Check::seconds('wait', $wait);
        $this->ttl = $ttl === null ? null : Check::seconds('ttl', $ttl, Check::LEAST_TTL);
        $this->maxHold = $maxHold === null ? null : Check::seconds('maxHold', $maxHold);
        $this->minHold = $minHold === null ? null : Check::seconds('minHold', $minHold);
        foreach (['bind' => $bind, 'onSuccess' => $onSuccess, 'owner' => $owner ?? '', 'requestId' => $requestId ?? ''] as $name => $text) {
            Check::text($name, $text);
        }
        if ($limit !== null && ($limit < 1 || $limit > self::MOST_HOLDERS)) {
            throw Problem::invalid("limit: $limit is not between 1 and " . self::MOST_HOLDERS);
        }
        Check::data('data', $data);
    }

    /**
     * Those of a call, which must have names.
     *
     * @param array<int|string, mixed> $options
     */
    public static function of(array $options): self
    {
        if ($options !== [] && array_is_list($options)) {
            throw new \ArgumentCountError('options have names: `wait: 5.0`');
        }

        return new self(...$options);
    }

    /**
     * The members of the request, without the wait and the id.
     *
     * @return array<string, mixed>
     */
    public function fields(): array
    {
        return array_filter([
            'ttl_ms' => self::inMs($this->ttl),
            'mode' => $this->shared ? 'shared' : null,
            'limit' => $this->limit,
            'bind' => $this->bind === 'session' ? null : $this->bind,
            'owner' => $this->owner,
            'reentrant' => $this->reentrant ? true : null,
            'max_hold_ms' => self::inMs($this->maxHold),
            'min_hold_ms' => self::inMs($this->minHold),
            'on_success' => $this->onSuccess === 'acquire' ? null : $this->onSuccess,
            'data' => $this->data,
        ], static fn (mixed $value): bool => $value !== null);
    }

    /**
     * The features that they need.
     *
     * @return list<string>
     */
    public function needs(): array
    {
        return array_keys(array_filter([
            'shared' => $this->shared,
            'bind_ttl' => $this->bind !== 'session',
            'reentrant' => $this->owner !== null,
            'hold' => $this->maxHold !== null || $this->minHold !== null,
            'outcome' => $this->onSuccess !== 'acquire',
            'data' => $this->data !== null,
            'wait' => $this->waits(),
        ]));
    }

    public function waits(): bool
    {
        return $this->wait === null || $this->wait > 0;
    }

    private static function inMs(?float $seconds): ?int
    {
        return $seconds === null ? null : Check::toMs($seconds);
    }
}

<?php

declare(strict_types=1);

namespace Locksidecar;

use Locksidecar\Internal\Options;

/** At most `limit` holders of a key, in all pods. Each holds a permit: a Lock with a `slot`. */
final class Semaphore
{
    /** @var array<string, mixed> */
    private readonly array $options;

    /**
     * @param array<string, mixed> $options
     *
     * @internal
     */
    public function __construct(private readonly Client $client, public readonly string $key, public readonly int $limit, array $options)
    {
        $this->options = [...$options, 'shared' => true, 'limit' => $limit];
        Options::of($this->options); // so that a mistake is found here
    }

    /**
     * Calls `$work` with a permit: see Client::withLock.
     *
     * @template T
     *
     * @param callable(Lock): T $work
     *
     * @return T
     */
    public function with(callable $work, mixed ...$options): mixed
    {
        return $this->client->withLock($this->key, $work, ...[...$this->options, ...$options]);
    }

    /** A permit until the end of its scope: see Client::lock. */
    #[\NoDiscard('the permit is released at once')]
    public function lock(mixed ...$options): Lock
    {
        return $this->client->lock($this->key, ...[...$this->options, ...$options]);
    }

    /** A permit: release it. */
    public function acquire(mixed ...$options): Lock
    {
        return $this->client->acquire($this->key, ...[...$this->options, ...$options]);
    }

    /** As `acquire`; null: there is none. */
    public function tryAcquire(mixed ...$options): ?Lock
    {
        return $this->client->tryAcquire($this->key, ...[...$this->options, ...$options]);
    }
}

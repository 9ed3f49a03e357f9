<?php

declare(strict_types=1);

namespace Locksidecar\Laravel;

use Illuminate\Contracts\Cache\Lock as Contract;
use Illuminate\Contracts\Cache\LockTimeoutException;
use Locksidecar\Client;
use Locksidecar\Exception\LockHeld;
use Locksidecar\Exception\LockLost;
use Locksidecar\Exception\NotHeld;
use Locksidecar\Exception\NotHolder;
use Locksidecar\Lock as Held;

/**
 * A lock of Laravel's cache: see LockProvider. `block` waits in the sidecar's queue, in place of a loop.
 */
final class Lock implements Contract
{
    private readonly string $owner;
    private ?Held $held = null;

    /** @internal */
    public function __construct(private readonly Client $client, private readonly string $name, private readonly int $seconds, ?string $owner)
    {
        $this->owner = $owner ?? bin2hex(random_bytes(8));
    }

    /** The lock while this object holds it: its `token`, whether it is lost. */
    public function held(): ?Held
    {
        return $this->held;
    }

    /**
     * Acquires it if it is free. With a callback: calls it under the lock, and returns its result; false if it is held. A callback that loses its lock
     * ends with LockLost.
     *
     * @param callable|null $callback
     */
    public function get($callback = null): mixed
    {
        return $this->acquire(0, $callback, static fn (): bool => false);
    }

    /**
     * As `get`, and waits for it.
     *
     * @param int $seconds
     * @param callable|null $callback
     *
     * @throws LockTimeoutException
     */
    public function block($seconds, $callback = null): mixed
    {
        return $this->acquire($seconds, $callback, static fn (): never => throw new LockTimeoutException());
    }

    /**
     * Releases it, also in another process with the same owner. Returns false if this owner does not hold it.
     */
    public function release(): bool
    {
        $held = $this->held;
        try {
            if ($held !== null) {
                $held->release();
                $this->held = null;

                return true;
            }
            $holder = $this->client->get($this->name, fresh: true)->holder;
            $data = $holder?->data;
            if (!\is_array($data) || ($data['owner'] ?? null) !== $this->owner || !isset($data['token'])) {
                return false;
            }

            return $this->client->release($this->name, $data['token']);
        } catch (LockLost|NotHolder) {
            $this->held = null;

            return false;
        }
    }

    public function owner(): string
    {
        return $this->owner;
    }

    /** Breaks it, whoever holds it. The sidecar must allow that (LOCKSIDECAR_ALLOW_FORCE). */
    public function forceRelease(): void
    {
        try {
            $this->client->forceRelease($this->name);
        } catch (NotHeld) {
            // it is free
        }
        $this->held = null;
    }

    /** @param callable(): mixed $refused */
    private function acquire(int $wait, ?callable $callback, callable $refused): mixed
    {
        $options = ['wait' => $wait, ...$this->seconds > 0 ? ['bind' => 'ttl', 'ttl' => $this->seconds] : []];
        $begun = false;
        try {
            if ($callback !== null) {
                return $this->client->withLock($this->name, static function () use ($callback, &$begun): mixed {
                    $begun = true;

                    return $callback();
                }, ...$options);
            }
            $this->held = $this->client->acquire($this->name, ...$options);
        } catch (LockHeld $e) {
            return $begun ? throw $e : $refused();
        }
        $told = false;
        try {
            if ($this->seconds > 0) { // so that another process with this owner finds it
                $this->held->update(['owner' => $this->owner, 'token' => $this->held->token]);
            }
            $told = true;
        } finally {
            $told || $this->release();
        }

        return true;
    }
}

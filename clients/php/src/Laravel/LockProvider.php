<?php

declare(strict_types=1);

namespace Locksidecar\Laravel;

use Illuminate\Contracts\Cache\LockProvider as Contract;
use Locksidecar\Client;

/**
 * Laravel's locks: `$this->app->singleton(LockProvider::class, fn () => new \Locksidecar\Laravel\LockProvider(new Client()))`.
 *
 * A lock with seconds lasts so long, and any process can release it by `restoreLock` with its owner. A lock without (0) belongs to this process: it is
 * held until its release or the end of the process, and the sidecar renews it.
 */
final class LockProvider implements Contract
{
    public function __construct(private readonly Client $client)
    {
    }

    /**
     * @param string $name
     * @param int $seconds
     * @param string|null $owner
     */
    public function lock($name, $seconds = 0, $owner = null): Lock
    {
        return new Lock($this->client, $name, $seconds, $owner);
    }

    /**
     * @param string $name
     * @param string $owner
     */
    public function restoreLock($name, $owner): Lock
    {
        return $this->lock($name, 0, $owner);
    }
}

<?php

declare(strict_types=1);

namespace Locksidecar\Symfony;

use Locksidecar\Client;
use Locksidecar\Exception\LocksidecarException;
use Locksidecar\Exception\LockHeld;
use Locksidecar\Exception\LockLost;
use Locksidecar\Exception\NotHolder;
use Locksidecar\Lock;
use Symfony\Component\Lock\BlockingStoreInterface;
use Symfony\Component\Lock\Exception\LockAcquiringException;
use Symfony\Component\Lock\Exception\LockConflictedException;
use Symfony\Component\Lock\Exception\LockReleasingException;
use Symfony\Component\Lock\Key;

/**
 * A store of Symfony's Lock component: `new LockFactory(new LocksidecarStore($client))`.
 *
 * By default its locks belong to this process, as those of the component's FlockStore and PostgreSqlStore: they end with it, the sidecar renews
 * them, and a ttl has no effect. Their keys cannot be serialized. With `expires: true` they last for their ttl, as those of RedisStore: another process
 * that gets the serialized key can refresh and release them.
 */
final class LocksidecarStore implements BlockingStoreInterface
{
    /** @var \WeakMap<Key, Lock> of this process */
    private \WeakMap $locks;

    /** @param float $initialTtl with `expires`: seconds until the first refresh, which LockFactory sends at once */
    public function __construct(private readonly Client $client, private readonly bool $expires = false, private readonly float $initialTtl = 300.0)
    {
        $this->locks = new \WeakMap();
    }

    /** {@inheritdoc} */
    public function save(Key $key): void
    {
        $this->take($key, 0);
    }

    /** {@inheritdoc} */
    public function waitAndSave(Key $key): void
    {
        $this->take($key, null);
    }

    /** {@inheritdoc} */
    public function delete(Key $key): void
    {
        try {
            if (isset($this->locks[$key])) {
                $this->locks[$key]->released() || $this->locks[$key]->release();
            } elseif ($key->hasState(self::class)) {
                $this->client->release((string) $key, $key->getState(self::class));
            }
        } catch (LockLost|NotHolder $e) {
            $this->forget($key);
            throw new LockReleasingException($e->getMessage(), 0, $e);
        } catch (LocksidecarException $e) {
            throw new LockReleasingException($e->getMessage(), 0, $e); // it may be called again
        }
        $this->forget($key);
    }

    /** {@inheritdoc} */
    public function exists(Key $key): bool
    {
        if (isset($this->locks[$key]) && !$this->expires) {
            return !$this->locks[$key]->released() && $this->locks[$key]->lost() === null;
        }
        if (!$key->hasState(self::class)) {
            return false;
        }
        try {
            $this->client->check((string) $key, $key->getState(self::class));

            return true;
        } catch (LockLost|NotHolder) {
            return false;
        }
    }

    /** {@inheritdoc} */
    public function putOffExpiration(Key $key, float $ttl): void
    {
        try {
            if ($this->expires && $key->hasState(self::class)) {
                $asked = microtime(true);
                $status = $this->client->extend((string) $key, $key->getState(self::class), $ttl);
                $key->resetLifetime();
                $key->reduceLifetime($status->expiresIn + $asked - microtime(true));

                return;
            }
        } catch (LockLost|NotHolder $e) {
            throw new LockConflictedException($e->getMessage(), 0, $e);
        }
        if (!$this->exists($key)) {
            throw new LockConflictedException("the lock \"$key\" is not held");
        }
    }

    private function take(Key $key, ?int $wait): void
    {
        if ($this->exists($key)) {
            return; // the same key may be saved again
        }
        $this->forget($key);
        try {
            if ($this->expires) {
                $lock = $this->client->acquire((string) $key, wait: $wait, bind: 'ttl', ttl: $this->initialTtl);
                $key->resetLifetime();
                $key->reduceLifetime($lock->expiresIn());
                $key->setState(self::class, $lock->token);
            } else {
                $key->markUnserializable();
                $lock = $this->client->acquire((string) $key, wait: $wait);
            }
        } catch (LockHeld $e) {
            throw new LockConflictedException($e->getMessage(), 0, $e);
        } catch (LocksidecarException|\LogicException $e) {
            throw new LockAcquiringException($e->getMessage(), 0, $e);
        }
        $this->locks[$key] = $lock;
    }

    private function forget(Key $key): void
    {
        unset($this->locks[$key]);
        $key->removeState(self::class);
    }
}

<?php

declare(strict_types=1);

namespace Locksidecar\Tests\Frameworks;

use Locksidecar\Symfony\LocksidecarStore;
use Locksidecar\Tests\ClientCase;
use Symfony\Component\Lock\Exception\LockAcquiringException;
use Symfony\Component\Lock\Exception\LockConflictedException;
use Symfony\Component\Lock\Exception\LockReleasingException;
use Symfony\Component\Lock\Exception\UnserializableKeyException;
use Symfony\Component\Lock\Key;
use Symfony\Component\Lock\LockFactory;

/** The promises of Symfony's Lock component, with the component. */
final class SymfonyTest extends ClientCase
{
    private function store(bool $expires = false, float $ttl = 300.0): LocksidecarStore
    {
        return new LocksidecarStore($this->client(), $expires, $ttl);
    }

    /** @return iterable<string, array{bool}> */
    public static function kinds(): iterable
    {
        yield 'of the process' => [false];
        yield 'that expire' => [true];
    }

    /** @dataProvider kinds */
    public function testSaveExistsDelete(bool $expires): void
    {
        $store = $this->store($expires);
        $key = new Key($this->key);
        self::assertFalse($store->exists($key));
        $store->save($key);
        self::assertTrue($store->exists($key));
        $store->save($key); // twice
        $store->putOffExpiration($key, 60);
        $store->delete($key);
        self::assertFalse($store->exists($key));
        $store->delete($key); // what is not held
        $this->free($this->key);
        $this->expectException(LockConflictedException::class);
        $store->putOffExpiration($key, 60);
    }

    /** @dataProvider kinds */
    public function testKeysOfOneResource(bool $expires): void
    {
        [$store, $other] = [$this->store($expires), $this->store($expires)];
        [$one, $two] = [new Key($this->key), new Key($this->key)];
        $store->save($one);
        self::assertFalse($store->exists($two));
        foreach ([$store, $other] as $any) {
            self::thrown(LockConflictedException::class, fn () => $any->save($two));
        }
        $other->delete($two);
        self::assertTrue($store->exists($one));
        $store->delete($one);
        $other->save($two);
        self::assertFalse($store->exists($one));
        self::assertTrue($other->exists($two));
        $other->delete($two);
    }

    /** @dataProvider kinds */
    public function testWaitAndSave(bool $expires): void
    {
        [$store, $other] = [$this->store($expires), $this->store($expires)];
        [$one, $two] = [new Key($this->key), new Key($this->key)];
        $store->save($one);
        $waiter = $this->aside(fn () => $other->waitAndSave($two));
        $this->waiting($this->key);
        $store->delete($one);
        $this->result($waiter);
        self::assertTrue($other->exists($two));
        $other->delete($two);
    }

    /** @dataProvider kinds */
    public function testALoss(bool $expires): void
    {
        $store = $this->store($expires);
        $key = new Key($this->key);
        $store->save($key);
        $this->client()->forceRelease($this->key);
        self::assertTrue($this->tasks->until(static fn (): bool => !$store->exists($key)));
        self::thrown(LockConflictedException::class, fn () => $store->putOffExpiration($key, 60));
        self::thrown(LockReleasingException::class, fn () => $store->delete($key));
        $store->save($key);
        self::assertTrue($store->exists($key));
        $store->delete($key);
    }

    public function testAnOutageIsNoConflict(): void
    {
        $store = new LocksidecarStore($this->client($this->own()->path, reconnect: 0));
        $this->own()->kill();
        $this->expectException(LockAcquiringException::class);
        $store->save(new Key($this->key));
    }

    public function testASerializedKeyHoldsItsLockInAnotherProcess(): void
    {
        $store = $this->store(true);
        $key = new Key($this->key);
        $store->save($key);
        self::assertGreaterThan(280, $key->getRemainingLifetime()); // the sidecar's margin is 5%
        [$process, $input, $output] = $this->php('$key = unserialize(base64_decode(fgets(STDIN))); $store = new Locksidecar\Symfony\LocksidecarStore($client, true);'
            . '$before = $store->exists($key); $store->putOffExpiration($key, 50); $store->delete($key); echo json_encode([$before, $store->exists($key)]), "\n";');
        fwrite($input, base64_encode(serialize($key)) . "\n");
        self::assertSame('[true,false]', self::line($output));
        proc_close($process);
        self::assertFalse($store->exists($key));
        $this->free($this->key);
        $own = new Key($this->key);
        $this->store()->save($own);
        $this->expectException(UnserializableKeyException::class);
        serialize($own);
    }

    public function testALockThatExpires(): void
    {
        $store = $this->store(true, 0.5);
        $key = new Key($this->key);
        $store->save($key);
        self::assertTrue($this->tasks->until(static fn (): bool => !$store->exists($key)));
        self::assertTrue($key->isExpired());
        $this->free($this->key);
    }

    /** @dataProvider kinds */
    public function testTheFactory(bool $expires): void
    {
        [$factory, $other] = [new LockFactory($this->store($expires)), new LockFactory($this->store($expires))];
        $lock = $factory->createLock($this->key, 30);
        self::assertTrue($lock->acquire());
        self::assertTrue($lock->isAcquired());
        self::assertFalse($other->createLock($this->key)->acquire());
        $lock->refresh(40);
        self::assertFalse($lock->isExpired());
        $waiter = $this->aside(function () use ($other): bool {
            return $other->createLock($this->key)->acquire(true); // and its end releases it
        });
        $this->waiting($this->key);
        $lock->release();
        self::assertTrue($this->result($waiter));
        $this->free($this->key);
        self::assertTrue($factory->createLock($this->key, 30, false)->acquire());
        self::assertTrue($this->client()->get($this->key)->isHeld(), 'without autoRelease it is held on');
    }
}

<?php

declare(strict_types=1);

namespace Locksidecar\Tests\Frameworks;

use Illuminate\Contracts\Cache\Lock as LockContract;
use Illuminate\Contracts\Cache\LockProvider as ProviderContract;
use Illuminate\Contracts\Cache\LockTimeoutException;
use Locksidecar\Exception\LockLost;
use Locksidecar\Laravel\LockProvider;
use Locksidecar\Tests\ClientCase;

/** Laravel's contracts of a cache lock, with its interfaces. */
final class LaravelTest extends ClientCase
{
    private function provider(): ProviderContract
    {
        return new LockProvider($this->client());
    }

    /** @return iterable<string, array{int}> */
    public static function seconds(): iterable
    {
        yield 'of the process' => [0];
        yield 'with seconds' => [60];
    }

    /** @dataProvider seconds */
    public function testGetAndRelease(int $seconds): void
    {
        [$provider, $other] = [$this->provider(), $this->provider()];
        $lock = $provider->lock($this->key, $seconds);
        self::assertInstanceOf(LockContract::class, $lock);
        self::assertFalse($lock->release());
        self::assertTrue($lock->get());
        self::assertFalse($other->lock($this->key, $seconds)->get());
        self::assertFalse($other->lock($this->key, $seconds)->release());
        self::assertFalse($lock->get(), 'a lock is not reentrant');
        self::assertTrue($lock->release());
        self::assertFalse($lock->release());
        self::assertSame('done', $other->lock($this->key, $seconds)->get(fn (): string => 'done'));
        self::thrown(\DomainException::class, fn () => $other->lock($this->key, $seconds)->get(static fn () => throw new \DomainException()));
        $this->free($this->key);
    }

    /** @dataProvider seconds */
    public function testBlock(int $seconds): void
    {
        [$provider, $other] = [$this->provider(), $this->provider()];
        $lock = $provider->lock($this->key, $seconds);
        self::assertTrue($lock->block(1));
        self::thrown(LockTimeoutException::class, fn () => $other->lock($this->key, $seconds)->block(1));
        $waiter = $this->aside(fn () => $other->lock($this->key, $seconds)->block(self::LONG, static fn (): string => 'mine'));
        $this->waiting($this->key);
        $lock->release();
        self::assertSame('mine', $this->result($waiter));
        $this->free($this->key);
    }

    public function testAnotherProcessReleasesByTheOwner(): void
    {
        $lock = $this->provider()->lock($this->key, 60, 'me');
        self::assertTrue($lock->get());
        self::assertSame('me', $lock->owner());
        self::assertFalse($this->provider()->restoreLock($this->key, 'you')->release());
        self::assertFalse($this->provider()->lock($this->key, 60, 'me')->get(), 'the same owner does not get it twice');
        self::assertTrue($this->provider()->restoreLock($this->key, 'me')->release());
        self::assertFalse($lock->release());
        $this->free($this->key);
    }

    public function testALossAndABreak(): void
    {
        $provider = $this->provider();
        $lock = $provider->lock($this->key);
        $lock->forceRelease();
        self::assertTrue($lock->get());
        $provider->lock($this->key)->forceRelease();
        self::assertFalse($lock->release());
        self::thrown(LockLost::class, fn () => $provider->lock($this->key)->get(fn () => $this->client()->forceRelease($this->key)));
        $short = $provider->lock($this->key, 1);
        self::assertTrue($short->get());
        $this->free($this->key);
        self::assertFalse($short->release());
    }
}

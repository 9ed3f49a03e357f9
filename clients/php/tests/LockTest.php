<?php

declare(strict_types=1);

namespace Locksidecar\Tests;

use Locksidecar\Exception\InvalidRequest;
use Locksidecar\Exception\LimitMismatch;
use Locksidecar\Exception\LockHeld;
use Locksidecar\Exception\LockLost;
use Locksidecar\Exception\NotHolder;
use Locksidecar\Exception\WaitTimeout;
use Locksidecar\Internal\Poll;
use Locksidecar\Lock;
use Locksidecar\Term;

final class LockTest extends ClientCase
{
    public function testACallUnderALock(): void
    {
        $client = $this->client();
        $token = $client->withLock($this->key, function (Lock $lock) use ($client): int {
            self::assertTrue($client->get($this->key)->mine);

            return $lock->token;
        }, wait: new \DateInterval('PT5S'));
        self::assertGreaterThan(0, $token);
        $this->free($this->key);
    }

    /** Proves: client loss */
    public function testACallWithoutItsLockEndsWithAnError(): void
    {
        $client = $this->client();
        $lose = function (Lock $lock): void {
            $this->client()->forceRelease($lock->key);
            self::assertSame('forced', $lock->waitLost(self::LONG)?->reason());
        };
        $lost = self::thrown(LockLost::class, fn () => $client->withLock($this->key, $lose));
        self::assertSame([$this->key, 'forced'], [$lost->key(), $lost->reason()]);
        self::thrown(\DomainException::class, fn () => $client->withLock($this->key, static function (Lock $lock) use ($lose): void {
            $lose($lock);
            throw new \DomainException();
        }));
        self::assertStringContainsString('is lost, reason: forced', $this->said[0]);
        self::thrown(LockLost::class, fn () => $client->withLock($this->key, static function (Lock $lock) use ($lose): void {
            $lose($lock);
            throw $lock->lost();
        }));
        self::assertCount(1, $this->said);
        self::thrown(LockLost::class, fn () => $client->withLocks([$this->key, "$this->key:2"], static fn (array $locks) => $lose($locks[0])));
        $this->free("$this->key:2");
    }

    public function testTheEndOfTheScopeReleases(): void
    {
        $client = $this->client();
        $work = function () use ($client): void {
            $lock = $client->lock($this->key);
            self::assertTrue($client->get($this->key)->isHeld());
            throw new \DomainException((string) $lock->token);
        };
        self::thrown(\DomainException::class, $work);
        $this->free($this->key);
        $lock = $client->lock($this->key);
        $this->client()->forceRelease($this->key);
        $lock->waitLost(self::LONG);
        unset($lock);
        self::assertStringContainsString('at the end of its scope', $this->said[0]);
        $client->acquire($this->key);
        self::assertTrue($client->get($this->key)->mine, 'acquire holds on');
    }

    public function testAHeldLockIsRefused(): void
    {
        $lock = $this->client(name: 'one')->acquire($this->key, data: ['by' => 'me']);
        $other = $this->client();
        self::assertNull($other->tryAcquire($this->key));
        $held = self::thrown(LockHeld::class, fn () => $other->lock($this->key, wait: 0));
        self::assertSame(['one', ['by' => 'me'], 'held', 423], [$held->holder()?->session, $held->holder()?->data, $held->errorCode, $held->status]);
        $late = self::thrown(WaitTimeout::class, fn () => $other->lock($this->key, wait: 0.02));
        self::assertSame(1, $late->queuePosition());
        self::assertGreaterThanOrEqual(0.02, $late->waited());
        $waiter = $this->aside(fn () => $other->acquire($this->key));
        $this->waiting($this->key);
        self::assertTrue($lock->release());
        self::assertGreaterThan($lock->token, $this->result($waiter)->token);
        self::thrown(NotHolder::class, fn () => $lock->release());
        self::thrown(NotHolder::class, fn () => $lock->check());
    }

    /** Proves: client self wait */
    public function testAWaitForItselfIsRefused(): void
    {
        $client = $this->client();
        $lock = $client->lock($this->key);
        $error = self::thrown(\LogicException::class, fn () => $client->lock($this->key));
        self::assertStringContainsString('would wait for itself for ever', $error->getMessage());
        self::thrown(\LogicException::class, fn () => $client->acquireMany(["$this->key:2", $this->key]));
        self::thrown(\LogicException::class, fn () => $client->shared($this->key));
        self::thrown(WaitTimeout::class, fn () => $client->lock($this->key, wait: 0.01));
        $lock->release();
        $outer = $client->lock($this->key, reentrant: true);
        $inner = $client->lock($this->key, reentrant: true);
        self::assertSame([2, $outer->token], [$inner->reentry, $inner->token]);
        self::assertFalse($outer->release());
        self::assertTrue($inner->release());
        $gpu = $client->semaphore("$this->key:gpu", limit: 2);
        [$first, $second] = [$gpu->lock(), $gpu->lock()]; // as many permits as there are
        self::assertSame([0, 1], [$first->slot(), $second->slot()]);
        self::thrown(\LogicException::class, fn () => $gpu->lock());
        $share = $client->shared($this->key);
        self::assertSame('shared', $client->shared($this->key)->mode());
        self::assertNull($share->lost());
    }

    public function testManyPermitsAndShares(): void
    {
        [$client, $other] = [$this->client(), $this->client()];
        $locks = $client->acquireMany([$this->key, "$this->key:2"]);
        self::assertSame([$this->key, "$this->key:2"], array_map(static fn (Lock $lock): string => $lock->key, $locks));
        self::assertSame("$this->key:2", self::thrown(LockHeld::class, fn () => $other->acquireMany(["$this->key:3", "$this->key:2"], wait: 0))->key());
        $this->free("$this->key:3");
        $locks[0]->downgrade();
        self::assertSame('shared', $locks[0]->mode());
        $share = $other->shared($this->key, wait: 0);
        self::assertNull($share->lost());
        $gpu = $client->semaphore("$this->key:gpu", limit: 2);
        $permit = $gpu->acquire();
        self::assertSame([0, 1], [$permit->slot(), $gpu->with(static fn (Lock $lock): ?int => $lock->slot(), wait: 1)]);
        $second = $other->semaphore("$this->key:gpu", limit: 2)->lock();
        self::assertNull($gpu->tryAcquire());
        self::assertSame(2, self::thrown(LimitMismatch::class, fn () => $other->semaphore("$this->key:gpu", limit: 3)->acquire(wait: 0))->limit());
        self::assertTrue($second->release());
    }

    public function testOnce(): void
    {
        [$one, $two] = [$this->client(), $this->client()];
        $calls = 0;
        $work = function () use (&$calls): array {
            ++$calls;
            Poll::sleep(0.1);

            return ['rows' => 120, 'of' => [1.0, 'ü']];
        };
        $first = $this->aside(fn () => $one->once($this->key, $work));
        $second = $this->aside(fn () => $two->once($this->key, $work));
        self::assertSame(['rows' => 120, 'of' => [1.0, 'ü']], $this->result($first));
        self::assertSame($this->result($first), $this->result($second));
        self::assertSame(1, $calls);
        self::thrown(\DomainException::class, fn () => $one->once($this->key, static fn () => throw new \DomainException()));
        $this->free($this->key);
        self::thrown(InvalidRequest::class, fn () => $one->once($this->key, static fn (): float => NAN));
        $this->free($this->key);
    }

    /** Proves: client leader */
    public function testALeader(): void
    {
        [$one, $two, $watcher] = [$this->client(), $this->client(), $this->client()];
        $terms = [];
        $work = static function (Term $term) use (&$terms): string {
            $terms[] = $term;
            while ($term->lost() === null && \count($terms) < 3) {
                Poll::sleep(0.002);
            }

            return 'done';
        };
        $leading = $this->aside(fn () => $one->lead($this->key, $work, data: 'one'));
        self::assertTrue($this->tasks->until(static function () use (&$terms): bool {
            return \count($terms) === 1;
        }));
        $news = $watcher->watchLeader($this->key);
        self::assertSame('one', $news->current());
        self::assertSame('one', $two->leader($this->key));
        $two->stop($this->key, 'deploy');
        self::assertTrue($this->tasks->until(static function () use (&$terms): bool {
            return \count($terms) === 2;
        }));
        self::assertSame('deploy', $terms[0]->lost()?->reason());
        self::assertGreaterThan($terms[0]->token, $terms[1]->token);
        $two->forceRelease($this->key);
        self::assertSame('done', $this->result($leading));
        self::assertSame('forced', $terms[1]->lost()?->reason());
        $this->free($this->key);
    }

    public function testStopEventsAndData(): void
    {
        [$client, $other] = [$this->client(name: 'one'), $this->client()];
        $events = $other->events($this->key);
        self::assertSame('state', $events->next()->type);
        $lock = $client->acquire($this->key);
        self::assertSame('acquired', $events->next()->type);
        self::assertNull($lock->stopping());
        $other->stop($this->key, 'please');
        self::assertSame('stopping', $events->next()->type);
        self::assertTrue($this->tasks->until(static fn (): bool => $lock->stopping()?->reason === 'please'));
        $lock->update(['part' => 2]);
        self::assertSame(['part' => 2], $other->get($this->key, fresh: true)->holder?->data);
        self::assertSame([$this->key], array_map(static fn ($one): string => $one->key, iterator_to_array($client->locks('session'), false)));
        $waiter = $this->aside(fn () => $other->acquire($this->key));
        $this->waiting($this->key);
        self::assertSame([1], array_map(static fn ($one): int => $one->position, iterator_to_array($client->waiters($this->key), false)));
        $lock->release(outcome: 'success', result: ['rows' => 1]);
        $released = $events->next();
        self::assertSame(['released', ['rows' => 1]], [$released->type, $released->data['result']]);
        $this->result($waiter)->release();
    }

    public function testALockThatOutlivesTheProcess(): void
    {
        $client = $this->client();
        $lock = $client->acquire($this->key, bind: 'ttl', ttl: 60);
        $client->close();
        $other = $this->client();
        self::assertSame($lock->token, $other->check($this->key, $lock->token)->token);
        self::assertGreaterThan(1000, $other->extend($this->key, $lock->token, new \DateInterval('PT1H'))->expiresIn);
        self::assertTrue($other->release($this->key, $lock->token));
        $short = $other->acquire($this->key, bind: 'ttl', ttl: 0.5);
        self::assertSame('expired', $short->waitLost(self::LONG)?->reason());
    }

    /** Proves: client wrong use */
    public function testWrongUse(): void
    {
        $client = $this->client();
        $wrong = [
            [InvalidRequest::class, 'wait: -1 is not between', fn () => $client->lock($this->key, wait: -1)],
            [InvalidRequest::class, 'ttl: 0.1 is not between', fn () => $client->lock($this->key, ttl: 0.1)],
            [InvalidRequest::class, 'limit: 0 is not between', fn () => $client->semaphore($this->key, limit: 0)],
            [InvalidRequest::class, 'no text in UTF-8', fn () => $client->lock("\xff")],
            [InvalidRequest::class, 'data: it must be JSON', fn () => $client->lock($this->key, data: NAN)],
            [InvalidRequest::class, 'ttl: NAN is not between', fn () => $client->lock($this->key, ttl: NAN)],
            [\Error::class, 'Unknown named parameter $waits', fn () => $client->lock($this->key, waits: 1)],
            [\ArgumentCountError::class, 'options have names', fn () => $client->lock($this->key, 5)],
            [\TypeError::class, '$wait', fn () => $client->lock($this->key, wait: '5')],
            [\TypeError::class, 'keys: they must be strings', fn () => $client->acquireMany([1])],
            [\Error::class, 'private Locksidecar\Client::__clone', fn () => clone $client],
        ];
        foreach ($wrong as [$class, $text, $work]) {
            self::assertStringContainsString($text, self::thrown($class, $work)->getMessage());
        }
        self::assertTrue($client->get($this->key)->isFree());
        $lock = $client->lock($this->key);
        self::assertStringContainsString('private Locksidecar\Lock::__clone', self::thrown(\Error::class, fn () => clone $lock)->getMessage());
        self::assertTrue($client->get($this->key)->mine);
        self::assertTrue($lock->release());
    }
}

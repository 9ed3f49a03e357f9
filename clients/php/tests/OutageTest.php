<?php

declare(strict_types=1);

namespace Locksidecar\Tests;

use Locksidecar\Client;
use Locksidecar\Exception\Draining;
use Locksidecar\Exception\LimitReached;
use Locksidecar\Exception\LockLost;
use Locksidecar\Exception\NoAnswer;
use Locksidecar\Exception\NotHeld;
use Locksidecar\Exception\ProtocolError;
use Locksidecar\Exception\SessionEnded;
use Locksidecar\Exception\StoreUnavailable;
use Locksidecar\Exception\Unavailable;
use Locksidecar\Internal\Answer;
use Locksidecar\Internal\AnswerParser;
use Locksidecar\Internal\Call;
use Locksidecar\Internal\Clock;
use Locksidecar\Internal\EventConnection;
use Locksidecar\Internal\Grant;
use Locksidecar\Internal\Session;

/** The sidecar restarts, drains, hangs, is away, or is something else; answers are lost. */
final class OutageTest extends ClientCase
{
    protected function tearDown(): void
    {
        EventConnection::$silence = 45.0;
        parent::tearDown();
    }

    public function testASidecarThatRestartsUnderAWaitingClient(): void
    {
        $path = $this->own()->path;
        [$one, $two] = [$this->client($path), $this->client($path)];
        $lock = $one->acquire($this->key);
        $waiter = $this->aside(fn () => $two->acquire($this->key));
        $this->waiting($this->key, 1, $path);
        $this->own()->kill();
        self::assertSame('disconnected', $lock->waitLost(self::LONG)?->reason());
        self::thrown(LockLost::class, fn () => $lock->release());
        $away = self::thrown(Unavailable::class, fn () => $one->lock($this->key, wait: 0));
        self::assertMatchesRegularExpression('/nobody listens|no such socket/', $away->getMessage());
        $this->own()->begin();
        $granted = $this->result($waiter);
        self::assertTrue($two->get($this->key)->mine);
        self::assertNull($one->tryAcquire($this->key));
        $granted->release();
        self::assertTrue($one->withLock($this->key, static fn (): bool => true, wait: 0));
    }

    public function testAnIdleClientDoesNotNoticeARestart(): void
    {
        $client = $this->client($this->own()->path);
        $client->withLock($this->key, static fn (): int => 1);
        $this->own()->stop();
        $this->own()->begin();
        self::thrown(NotHeld::class, fn () => $client->forceRelease($this->key)); // it may not be repeated, but nothing was sent
        self::assertSame(2, $client->withLock($this->key, static fn (): int => 2, wait: 0));
    }

    public function testOtherHeadsMayComeBeforeTheAnswer(): void
    {
        $text = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{\"a\":\"b\"}";
        foreach ([1, 3, \strlen($text)] as $size) {
            $parser = new AnswerParser();
            $answers = array_map($parser->feed(...), str_split($text, $size));
            self::assertSame(['a' => 'b'], array_pop($answers)?->result());
            self::assertSame([], array_filter($answers));
        }
    }

    /** Proves: client deadline */
    public function testAWaitWithoutTheSidecarEndsInItsTime(): void
    {
        $path = $this->own()->path;
        $client = $this->client($path, reconnect: 0.3);
        $other = $this->client($path, reconnect: 3600);
        $other->acquire($this->key);
        $waiter = $this->aside(fn () => $client->acquire($this->key));
        $this->waiting($this->key, 1, $path);
        $patient = $this->aside(fn () => $other->acquire($this->key, wait: 1));
        $this->waiting($this->key, 2, $path);
        $this->own()->kill();
        self::thrown(Unavailable::class, fn () => $this->result($waiter));
        self::thrown(Unavailable::class, fn () => $this->result($patient));
    }

    /** Proves: client own clock */
    public function testALockEndsByOurClockWhileTheSidecarHangs(): void
    {
        $path = $this->own(TTL: '1s', RENEW_INTERVAL: '300ms')->path;
        $client = $this->client($path);
        $lock = $client->acquire($this->key);
        self::assertNull($lock->waitLost(1.5), 'it does not end while the sidecar answers');
        $this->own()->hang();
        $began = hrtime(true);
        self::assertSame('expired', $lock->waitLost(self::LONG)?->reason());
        self::assertLessThan(10, (hrtime(true) - $began) / 1e9);
        $this->own()->resume();
        self::thrown(LockLost::class, fn () => $lock->release());
        $this->free($this->key, $path);
    }

    /** Proves: client own clock */
    public function testAQuestionHasNoMoreTimeThanTheFirstLock(): void
    {
        $session = new Session('s');
        $held = static fn (int $token, float $ends): Grant => $session->hold(
            ['key' => 'k', 'token' => $token, 'waited_ms' => 0, 'expires_in_ms' => 30_000, 'reentry' => 1],
            Clock::now() - 30 + $ends,
        );
        [$first, $second] = [$held(1, -0.5), $held(2, 20)];
        self::assertSame(1.0, $session->patience($first)); // the process was halted, and the sidecar may have renewed both
        $session->silent = true;
        $session->lose($first, 'expired');
        self::assertEqualsWithDelta(20, $session->patience($second), 1);
        $third = $held(3, 2);
        self::assertLessThanOrEqual(2, $session->patience($second));
        self::assertLessThanOrEqual(2, $session->patience($third));
        self::assertSame(0.25, $session->patience($held(4, -0.1))); // the sidecar hangs
    }

    /** Proves: client own clock */
    public function testALossIsToldInTimeAlthoughNoConnectionIsAccepted(): void
    {
        $path = sys_get_temp_dir() . '/link-' . bin2hex(random_bytes(4));
        symlink($this->own()->path, $path);
        $client = $this->client($path, timeout: 20);
        [$first, $second] = [$client->acquire("$this->key:1", ttl: 1), $client->acquire("$this->key:2", ttl: 2)];
        $acquired = Clock::now();
        $this->own()->hang();
        // From now on as if many calls had come to the sidecar, and it could take no more.
        $full = stream_socket_server("unix://$path:full", context: stream_context_create(['socket' => ['backlog' => 1]]));
        $others = [];
        while (($other = @stream_socket_client("unix://$path:full", timeout: 0.1)) !== false) {
            $others[] = $other;
        }
        unlink($path);
        symlink("$path:full", $path);
        self::assertSame('expired', $first->waitLost(self::LONG)?->reason());
        self::assertSame('expired', $second->waitLost(self::LONG)?->reason());
        $took = Clock::now() - $acquired;
        $this->own()->resume();
        unlink($path);
        unlink("$path:full");
        self::assertLessThan(15, $took);
    }

    /** Proves: client deadline */
    public function testASidecarThatHangs(): void
    {
        $path = $this->own()->path;
        EventConnection::$silence = 0.5;
        $client = $this->client($path, reconnect: 0, timeout: 0.4);
        $this->client($path)->acquire("$this->key:2");
        $lock = $client->acquire($this->key, ttl: 3600);
        $waiter = $this->aside(fn () => $client->acquire("$this->key:2"));
        $this->waiting("$this->key:2", 1, $path);
        $this->own()->hang();
        $late = self::thrown(Unavailable::class, fn () => $this->client($path, timeout: 0.2)->get($this->key));
        self::assertStringContainsString('did not answer GET /v1/locks/', $late->getMessage());
        self::thrown(Unavailable::class, fn () => $this->result($waiter));
        self::assertNotNull($lock->waitLost(self::LONG), 'the stream was silent for too long');
        $this->own()->resume();
        self::thrown(LockLost::class, fn () => $lock->check());
    }

    /** Proves: client lost answer */
    public function testAnAcquireWhoseAnswerIsLost(): void
    {
        $relay = new Relay($this->tasks, self::path());
        $client = $this->client($relay->path);
        $again = $this->result($this->aside(function () use ($client, $relay) {
            $client->withLock($this->key, static fn (): int => 1);
            $relay->lose = 1;

            return $client->acquire($this->key);
        }));
        self::assertSame(1, $again->reentry);
        $this->result($this->aside(function () use ($client, $relay, $again): void {
            $again->release();
            $this->forget($client);
            $relay->lose = 1;
            self::thrown(Unavailable::class, fn () => $client->acquire($this->key, wait: 0));
            $this->free($this->key);
            $this->forget($client);
            $relay->lose = 1;
            self::thrown(Unavailable::class, fn () => $client->acquireMany([$this->key, "$this->key:2"], wait: 0, bind: 'ttl', ttl: 3600));
            $this->free($this->key);
            $this->free("$this->key:2");
        }));
    }

    /** Proves: client lost answer */
    public function testAnAcquireWhoseAnswerCannotBeRead(): void
    {
        $relay = new Relay($this->tasks, self::path());
        $client = $this->client($relay->path);
        $this->result($this->aside(function () use ($client, $relay): void {
            $relay->spoil = 1;
            self::thrown(ProtocolError::class, fn () => $client->acquire($this->key, wait: 0, bind: 'ttl', ttl: 3600));
            $this->free($this->key);
            $relay->spoil = 1;
            self::thrown(ProtocolError::class, fn () => $client->acquireMany([$this->key, "$this->key:2"], wait: 0, bind: 'ttl', ttl: 3600));
            $this->free($this->key);
            $this->free("$this->key:2");
        }));
    }

    /** Proves: client lost answer */
    public function testAReleaseWhoseAnswerIsLostMayBeCalledAgain(): void
    {
        $relay = new Relay($this->tasks, self::path());
        $client = $this->client($relay->path);
        $this->result($this->aside(function () use ($client, $relay): void {
            foreach ([[], ['bind' => 'ttl', 'ttl' => 3600], ['reentrant' => true]] as $options) {
                $lock = $client->acquire($this->key, ...$options);
                $relay->loseReleases = 2;
                self::thrown(Unavailable::class, fn () => $lock->release());
                self::assertFalse($lock->released());
                self::assertTrue($lock->release());
                $lock = $client->acquire($this->key, ...$options);
                $relay->loseReleases = 1;
                self::assertTrue($lock->release(), 'the call is made again on a new connection');
                $lock = $client->acquire($this->key);
                $relay->loseReleases = 2;
                self::thrown(Unavailable::class, fn () => $lock->release());
                $next = $client->acquire($this->key);
                self::assertGreaterThan($lock->token, $next->token, 'an acquire first releases again');
                $next->release();
            }
        }));
    }

    public function testALockThatNobodyCanReleaseIsReleasedByTheNextAcquire(): void
    {
        $relay = new Relay($this->tasks, self::path());
        $relay->refuse = true;
        $client = $this->client($relay->path);
        $this->result($this->aside(function () use ($client, $relay): void {
            $kept = $client->acquire("$this->key:3");
            (function () use ($client): void {
                $lock = $client->lock($this->key);
            })(); // its release does not arrive
            self::assertStringContainsString('at the end of its scope', $this->said[0]);
            self::assertTrue($this->client()->get($this->key)->isHeld());
            $relay->refuse = false;
            $client->acquire("$this->key:2");
            self::assertTrue($this->client()->get($this->key)->isFree());
            self::assertNull($kept->lost());
            self::assertTrue($kept->release());
        }));
    }

    public function testALateAnswerDoesNotKeepALostLock(): void
    {
        $path = $this->own(TTL: '1s', RENEW_INTERVAL: '300ms')->path;
        $relay = new Relay($this->tasks, $path);
        $client = $this->client($relay->path);
        $this->result($this->aside(function () use ($client, $relay): void {
            $lock = $client->acquire($this->key);
            $relay->mute = true;
            self::assertSame('expired', $lock->waitLost(self::LONG)?->reason());
            $relay->mute = false;
        }));
        $this->free($this->key, $path); // the client has released what it has given up
    }

    // Proves: client own clock, client given up
    /**
     * A sidecar does not answer, but goes on: the app learns of the loss at the end of the lease, and not only when its locks were given back. All of
     * them are.
     */
    public function testALossIsToldInTimeAndTheLocksAreGivenBack(): void
    {
        $path = $this->own(TTL: '1s', RENEW_INTERVAL: '300ms')->path;
        $relay = new Relay($this->tasks, $path);
        $client = $this->client($relay->path);
        $this->result($this->aside(function () use ($client, $relay): void {
            $locks = $client->acquireMany([$this->key, "$this->key:2"]);
            $relay->mute = true;
            $relay->loseReleases = 2;
            self::assertSame('expired', $locks[0]->waitLost(self::LONG)?->reason());
            self::assertLessThan($locks[0]->entry->grant->expiresAt + 1.0, Clock::now());
            self::assertSame('expired', $locks[1]->lost()?->reason());
        }));
        $this->free($this->key, $path);
        $this->free("$this->key:2", $path);
    }

    public function testUnavailableIsAnySidecarThatCannotServeNow(): void
    {
        $away = self::thrown(Unavailable::class, static fn () => (new Client('/nowhere/s.sock'))->get('k'));
        self::assertInstanceOf(NoAnswer::class, $away);
        self::assertNull($away->retryAfter());
        foreach (['draining' => Draining::class, 'store_unavailable' => StoreUnavailable::class, 'limit' => LimitReached::class] as $code => $class) {
            $path = sys_get_temp_dir() . '/refuses-' . bin2hex(random_bytes(4)) . '.sock';
            $listener = stream_socket_server("unix://$path");
            self::assertNotFalse($listener);
            try {
                $call = $this->aside(static fn () => (new Client($path))->get('k'));
                $socket = stream_socket_accept($listener, self::LONG);
                self::assertNotFalse($socket);
                while (trim((string) fgets($socket)) !== '') {
                }
                $body = "{\"code\":\"$code\",\"detail\":\"not now\"}";
                fwrite($socket, "HTTP/1.1 503 x\r\nRetry-After: 3\r\nConnection: close\r\nContent-Length: " . \strlen($body) . "\r\n\r\n$body");
                $error = self::thrown($class, fn () => $this->result($call));
                fclose($socket);
            } finally {
                fclose($listener);
                unlink($path);
            }
            self::assertSame($code !== 'limit', $error instanceof Unavailable);
            self::assertSame(3.0, $error->retryAfter());
        }
    }

    public function testWhatIsNoSidecar(): void
    {
        $nowhere = self::thrown(Unavailable::class, static fn () => (new Client('/nowhere/s.sock'))->lock('k'));
        self::assertSame('unreachable', $nowhere->errorCode);
        self::assertStringContainsString('cannot reach the sidecar at /nowhere/s.sock: there is no such socket', $nowhere->getMessage());
        self::assertStringContainsString('at most 107 bytes', self::thrown(Unavailable::class, static fn () => (new Client('/' . str_repeat('a', 120)))->lock('k'))->getMessage());
        self::assertStringContainsString('it is no socket', self::thrown(Unavailable::class, static fn () => (new Client(__FILE__))->lock('k'))->getMessage());
        $path = sys_get_temp_dir() . '/other-' . bin2hex(random_bytes(4)) . '.sock';
        $listener = stream_socket_server("unix://$path");
        self::assertNotFalse($listener);
        $call = $this->aside(static fn () => (new Client($path))->lock('k'));
        $other = stream_socket_accept($listener, self::LONG);
        self::assertNotFalse($other);
        fwrite($other, "220 smtp ready\r\n");
        self::thrown(ProtocolError::class, fn () => $this->result($call));
        unlink($path);
    }

    public function testAClosedClient(): void
    {
        $client = $this->client();
        $lock = $client->lock($this->key);
        $client->close();
        $client->close();
        $this->free($this->key);
        self::thrown(SessionEnded::class, fn () => $client->lock($this->key));
        self::thrown(LockLost::class, fn () => $lock->release());
    }

    public function testACallMakesNoConnectionForAClosedClient(): void
    {
        $client = $this->client();
        $transport = (new \ReflectionProperty($client, 'transport'))->getValue($client);
        $pauses = new Call('GET', '/v1', timeout: self::LONG, delay: 0.05);
        $call = $this->aside(static fn () => $transport->perform($pauses, static fn (Answer $answer) => $answer->result()));
        $client->close();
        $ended = self::thrown(SessionEnded::class, fn () => $this->result($call));
        self::assertStringContainsString('was closed', $ended->getMessage());
    }

    /** Its idle connections are gone, so the next call opens one. */
    private function forget(Client $client): void
    {
        $transport = (new \ReflectionProperty($client, 'transport'))->getValue($client);
        (new \ReflectionMethod($transport, 'dropIdle'))->invoke($transport);
    }
}

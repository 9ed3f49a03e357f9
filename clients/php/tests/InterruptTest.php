<?php

declare(strict_types=1);

namespace Locksidecar\Tests;

use Locksidecar\Exception\LocksidecarException;
use Locksidecar\Exception\NotHolder;
use Locksidecar\Exception\Unavailable;

/**
 * Signals whose handlers throw. These tests use no fibers.
 *
 * @requires extension pcntl
 */
final class InterruptTest extends ClientCase
{
    /** Whether the next signal throws. */
    private bool $armed = false;
    private ?int $sender = null;
    /** The file with the time at which the only signal was sent, because a busy machine needs long until the sender has begun. */
    private string $sent;

    protected function setUp(): void
    {
        parent::setUp();
        $this->sent = (string) tempnam(sys_get_temp_dir(), 'sent');
        pcntl_async_signals(true);
        pcntl_signal(SIGUSR1, function (): void {
            if ($this->armed) {
                $this->armed = false;
                throw new Interrupted();
            }
        });
    }

    protected function tearDown(): void
    {
        $this->armed = false;
        if ($this->sender !== null) {
            posix_kill($this->sender, 9);
            while (pcntl_waitpid($this->sender, $status) !== $this->sender) {
            }
        }
        unlink($this->sent);
        pcntl_signal(SIGUSR1, SIG_IGN);
        pcntl_async_signals(false);
        parent::tearDown();
    }

    /** Proves: client interrupts */
    public function testASignalEndsAWait(): void
    {
        [$client, $other] = [$this->client(), $this->client()];
        $lock = $other->acquire($this->key);
        $began = hrtime(true);
        $this->armed = true;
        $this->signals(1, 300_000);
        self::thrown(Interrupted::class, fn () => $client->lock($this->key));
        self::assertLessThan(30, (hrtime(true) - $began) / 1e9);
        $this->waiting($this->key, 0);
        self::assertTrue($lock->release());
        $this->free($this->key);
        self::assertTrue(pcntl_async_signals(), 'the app has its signals again');
    }

    /** Proves: client interrupts */
    public function testInterruptedCallsLeaveNoLock(): void
    {
        $client = $this->client();
        $calls = [
            fn () => $client->withLock($this->key, static fn (): int => 1),
            fn () => $client->lock($this->key)->release(),
            function () use ($client): void {
                $lock = $client->lock($this->key);
                try {
                    usleep(10);
                } finally {
                    $lock->release();
                }
            },
            fn () => $client->withLocks([$this->key, "$this->key:2"], static fn (): int => 1),
        ];
        $began = microtime(true);
        $interrupted = 0;
        $this->signals(100_000, 1500);
        // A busy machine may need long until the sender has begun.
        for ($n = 0; microtime(true) < $began + 4 || $interrupted <= 50; ++$n) {
            self::assertLessThan($began + self::LONG, microtime(true), "only $interrupted of $n calls were interrupted");
            try {
                $this->armed = true;
                $calls[$n % 4]();
                $this->armed = false;
            } catch (Interrupted) {
                ++$interrupted;
            } catch (NotHolder $e) {
                // PHP jumps from the end of a `finally` through its `try`, so a handler that throws just there runs the `finally` again.
                self::assertInstanceOf(Interrupted::class, $e->getPrevious(), "after $n calls: $e");
                ++$interrupted;
            } catch (\LogicException $e) { // the lock of an interrupted call is still held
                self::fail("after $n calls: {$e->getMessage()}");
            } catch (LocksidecarException $e) {
                self::fail("after $n calls: $e");
            } finally {
                $this->armed = false;
            }
        }
        self::assertTrue($client->get($this->key)->isFree());
        self::assertTrue($client->get("$this->key:2")->isFree());
    }

    /** Proves: client interrupts */
    public function testASignalDoesNotEndARelease(): void
    {
        $sidecar = $this->own();
        $lock = $this->client($sidecar->path)->acquire($this->key);
        $sidecar->hang();
        $this->armed = true;
        $this->signals(1, 100_000);
        $began = hrtime(true);
        $helper = pcntl_fork();
        if ($helper === 0) {
            usleep(1_000_000);
            $sidecar->resume();
            posix_kill((int) getmypid(), 9);
        }
        self::thrown(Interrupted::class, fn () => $lock->release());
        self::assertGreaterThan(0.9, (hrtime(true) - $began) / 1e9, 'the sidecar has answered');
        self::assertTrue($lock->released());
        pcntl_waitpid($helper, $status);
        self::assertTrue($this->client($sidecar->path)->get($this->key, fresh: true)->isFree());
    }

    /** Proves: client interrupts */
    public function testAnInterruptedReleaseHoldsTheProcessForTwoSeconds(): void
    {
        $sidecar = $this->own();
        $lock = $this->client($sidecar->path)->acquire($this->key);
        $sidecar->hang();
        $this->armed = true;
        $this->signals(1, 100_000);
        $interrupted = self::thrown(Interrupted::class, fn () => $lock->release());
        self::assertEqualsWithDelta(2.3, $this->sinceSignal(), 0.7, 'two seconds, and the looks for signals');
        self::assertInstanceOf(Unavailable::class, $interrupted->getPrevious());
        $sidecar->resume();
        $this->free($this->key, $sidecar->path);
    }

    /** Proves: client interrupts */
    public function testAHandlerMayUseTheClient(): void
    {
        [$client, $other] = [$this->client(), $this->client()];
        $mine = $client->acquire("$this->key:2");
        $held = $other->acquire($this->key);
        $found = [];
        pcntl_signal(SIGUSR1, static function () use ($mine, $held, &$found): void {
            $found[] = $mine->lost();
            $found[] = $mine->check()->key;
            $held->released() || $held->release();
        });
        $this->signals(1, 200_000);
        self::assertGreaterThan($held->token, $client->lock($this->key)->token);
        self::assertSame([null, "$this->key:2"], $found);
        pcntl_signal(SIGUSR1, static fn () => $client->close());
        $other->acquire($this->key);
        $this->signals(1, 200_000);
        self::thrown(LocksidecarException::class, fn () => $client->lock($this->key, wait: self::LONG));
    }

    /** The seconds since the signal was sent. */
    private function sinceSignal(): float
    {
        return (hrtime(true) - (int) file_get_contents($this->sent)) / 1e9;
    }

    /** Sends signals to this process, by another one. */
    private function signals(int $count, int $microseconds): void
    {
        $me = getmypid();
        $note = $count === 1 ? "file_put_contents('$this->sent', hrtime(true));" : '';
        $code = "for (\$n = 0; \$n < $count; ++\$n) { usleep($microseconds + random_int(0, 300)); $note if (!posix_kill($me, SIGUSR1)) exit; }";
        $this->sender = pcntl_fork();
        if ($this->sender === 0) {
            pcntl_exec(PHP_BINARY, ['-r', $code]);
            posix_kill((int) getmypid(), 9);
        }
    }
}

<?php

declare(strict_types=1);

namespace Locksidecar;

use Locksidecar\Exception\LocksidecarException;
use Locksidecar\Exception\LockLost;
use Locksidecar\Exception\NotHolder;
use Locksidecar\Internal\Amend;
use Locksidecar\Internal\Check;
use Locksidecar\Internal\Clock;
use Locksidecar\Internal\Entry;
use Locksidecar\Internal\Given;
use Locksidecar\Internal\Interrupts;
use Locksidecar\Internal\Problem;
use Locksidecar\Internal\Release;
use Locksidecar\Internal\Transport;

/**
 * A held lock. `token` is the fencing token: pass it to the resource that the lock protects.
 *
 * PHP has no threads, so a lock is noticed to be lost when it is asked: `lost` reads what the sidecar has said, `check` asks it.
 */
final class Lock
{
    public readonly string $key;
    public readonly int $token;
    /** `session` or `ttl`. */
    public readonly string $bind;
    /** The public name of the session. */
    public readonly ?string $session;
    /** The number of this entry of its owner, from 1. */
    public readonly int $reentry;
    /** How many seconds the acquire has waited. */
    public readonly float $waited;
    public readonly \DateTimeImmutable $acquiredAt;

    private ?int $limit;
    private ?int $slot;
    private readonly int $process;

    /**
     * @param array<string, mixed> $value
     *
     * @internal
     */
    public function __construct(
        private readonly Client $client, // which lives as long as its locks
        private readonly Transport $transport,
        /** @internal */
        public readonly Entry $entry,
        array $value,
    ) {
        $this->key = $value['key'];
        $this->token = $value['token'];
        $this->bind = $value['bind'];
        $this->session = $value['session'] ?? null;
        $this->reentry = $value['reentry'];
        $this->waited = $value['waited_ms'] / 1000;
        $this->acquiredAt = new \DateTimeImmutable($value['acquired_at']);
        $this->limit = $value['limit'] ?? null;
        $this->slot = $value['slot'] ?? null;
        $this->process = (int) getmypid();
        $entry->lock = \WeakReference::create($this);
    }

    public function __destruct()
    {
        if (!$this->entry->scoped || $this->entry->released || $this->transport->closed || getmypid() !== $this->process) { // in the child of a fork
            return;
        }
        try {
            $this->release();
        } catch (LocksidecarException $e) {
            $this->transport->log("a lock could not be released at the end of its scope: {$e->getMessage()}");
        }
    }

    /** There are no copies: the end of the scope of one would release the lock of the other. */
    private function __clone()
    {
    }

    /** `exclusive` or `shared`. */
    public function mode(): string
    {
        return $this->entry->grant->mode;
    }

    public function limit(): ?int
    {
        return $this->limit;
    }

    /** With a limit: 0 to limit - 1; no other holder has it. */
    public function slot(): ?int
    {
        return $this->slot;
    }

    /**
     * Why it was lost; null: it is held, or was released. It reads what the sidecar has said, without a wait. When half of the lock's time is over
     * without an answer about it, it asks the sidecar, and the lock is lost if that does not answer before its end. So look often, at least once an
     * hour: a session that is not read for longer ends.
     */
    public function lost(): ?LockLost
    {
        if (!$this->entry->released) {
            Interrupts::run(fn () => $this->transport->look($this->entry->grant));
        }
        $reason = $this->entry->grant->lost();

        return $reason === null ? null : Problem::lost($this->key, $reason);
    }

    /**
     * Waits until it is lost.
     *
     * @param int|float|\DateInterval|null $timeout at most so many seconds; null: for ever
     *
     * @return LockLost|null null: it is held, or was released
     */
    public function waitLost(int|float|\DateInterval|null $timeout = null): ?LockLost
    {
        $seconds = $timeout === null || $timeout === INF ? null : Check::seconds('timeout', $timeout);
        if (!$this->entry->released) {
            Interrupts::run(fn () => $this->transport->awaitLoss($this->entry->grant, $seconds));
        }

        return $this->lost();
    }

    /** Who asks the holder to release it, and why; null: nobody does. It reads what the sidecar has said, without a wait. */
    public function stopping(): ?Stopping
    {
        Interrupts::run(fn () => $this->transport->listen());

        return $this->entry->grant->isStopping ? new Stopping($this->entry->grant->stopping) : null;
    }

    /** Whether this entry of the lock was released. */
    public function released(): bool
    {
        return $this->entry->released;
    }

    /**
     * Seconds until the end that the sidecar's last answer named, by this process's clock. A lock with `bind: 'ttl'` ends a little later. The
     * sidecar renews a session's lock.
     */
    public function expiresIn(): float
    {
        return max(0.0, $this->entry->grant->expiresAt - Clock::now());
    }

    /**
     * Releases the lock, or one entry of it. A signal takes effect after it. After Unavailable it may be called again.
     *
     * @param string|null $outcome `success` or `failure`, for watchers and for waiters with `onSuccess: 'skip'`
     * @param mixed $result with success: JSON of at most 4 KiB for them
     *
     * @return bool whether it is free now
     *
     * @throws LockLost
     * @throws NotHolder
     * @throws Exception\Unavailable
     */
    public function release(?string $outcome = null, mixed $result = Given::No, ?int $reentry = null): bool
    {
        $this->checkReleased();

        return Interrupts::finish(
            fn (): bool => (new Release($this->transport, $this->key, $this->token, $this->entry, $outcome, $result, $reentry))->run()['released'],
        );
    }

    /**
     * Asks the sidecar whether it is still held.
     *
     * @throws LockLost
     * @throws NotHolder
     * @throws Exception\Unavailable
     */
    public function check(): Status
    {
        return $this->amend([]);
    }

    /** Sets the remaining time from now. Only with `bind: 'ttl'`, because the sidecar renews the others. */
    public function extend(int|float|\DateInterval $ttl): Status
    {
        return $this->amend(['ttl_ms' => Check::toMs(Check::seconds('ttl', $ttl, Check::LEAST_TTL))]);
    }

    /** Replaces the data that others see. null removes it. */
    public function update(mixed $data): Status
    {
        return $this->amend(['data' => Check::data('data', $data)], 'data');
    }

    /**
     * Makes an exclusive lock shared, under the same token. Shared calls that wait are let in. There is no upgrade, because two holders would wait
     * for each other.
     */
    public function downgrade(): Status
    {
        $status = $this->amend(['mode' => 'shared'], 'shared');
        $this->limit = $status->limit;
        $this->slot = $status->slot;

        return $status;
    }

    /** @param array<string, mixed> $change */
    private function amend(array $change, string ...$needs): Status
    {
        $this->checkReleased();

        return (new Amend($this->transport, $this->key, $this->token, $change, $this->entry->grant, array_values($needs)))->run();
    }

    private function checkReleased(): void
    {
        if ($this->entry->released) {
            $text = 'lock ' . Check::show($this->key) . ' was released already (not_holder)';
            throw new NotHolder($text, 'not_holder', 409, ['reason' => 'released', 'detail' => $text]);
        }
    }
}

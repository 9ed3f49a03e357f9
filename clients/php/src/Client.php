<?php

declare(strict_types=1);

namespace Locksidecar;

use Locksidecar\Exception\LocksidecarException;
use Locksidecar\Exception\LockHeld;
use Locksidecar\Exception\LockLost;
use Locksidecar\Exception\SessionEnded;
use Locksidecar\Exception\Skipped;
use Locksidecar\Internal\Acquire;
use Locksidecar\Internal\Amend;
use Locksidecar\Internal\Answer;
use Locksidecar\Internal\Call;
use Locksidecar\Internal\Check;
use Locksidecar\Internal\Endpoint;
use Locksidecar\Internal\Given;
use Locksidecar\Internal\Interrupts;
use Locksidecar\Internal\Options;
use Locksidecar\Internal\Poll;
use Locksidecar\Internal\Release;
use Locksidecar\Internal\Tracing;
use Locksidecar\Internal\Transport;
use Psr\Log\LoggerInterface;

/**
 * A client for one process. It has one session in it, opened on first use. It may be made before a fork: the child opens its own session, and the
 * parent keeps its locks.
 *
 * Options of an acquire, which have names; durations are seconds (int, float) or a DateInterval:
 *
 * - `wait`: how long to wait in the queue: null (the default) for ever, 0 not at all
 * - `shared`: true: shared holders do not exclude each other
 * - `limit`: with `shared`: at most this many holders; see `semaphore`
 * - `reentrant`, `owner`: this process, or each call with this owner, may enter its lock again
 * - `ttl`: how long the lock outlives a dead sidecar. With `bind: 'ttl'`, how long it lasts
 * - `bind`: 'ttl': the lock outlives the process. Any caller with key and token can release it, and tokens can be guessed
 * - `maxHold`: after this time the sidecar releases the lock, which is then lost (`max_hold`)
 * - `minHold`: until this time after the grant nobody else gets it, even if it is released
 * - `data`: JSON of at most 4 KiB, which others see as part of the holder
 * - `onSuccess`: 'skip': throws Skipped with the result, if the holder releases with success meanwhile
 * - `requestId`: a UUID of your own: the same one gets the same grant. If such a call is interrupted, its grant stays
 */
final class Client
{
    private const SOCKET = '/run/locksidecar/locksidecar.sock'; // in pods, which have this folder
    private const HOME_SOCKET = '/.locksidecar/locksidecar.sock'; // elsewhere, in the user's home

    private readonly Transport $transport;

    /**
     * @param string|null $socket the sidecar's socket; by default LOCKSIDECAR_SOCKET, else `/run/locksidecar/locksidecar.sock` if this folder is
     *     there, else `~/.locksidecar/locksidecar.sock`
     * @param string|null $name the public name of the session
     * @param int|float|\DateInterval|null $ttl the default of its locks
     * @param int|float|\DateInterval $timeout the most seconds for an answer, in addition to a wait
     * @param int|float|\DateInterval $reconnect the most seconds that a waiting call goes on in an outage of the sidecar, such as its restart.
     *     Other calls throw Unavailable at once
     * @param LoggerInterface|null $logger gets what nobody else can get, such as a release that failed after a block had thrown; by default
     *     error_log does
     * @param (\Closure(): array<string, string>)|null $trace returns the headers `traceparent`, `tracestate`, `baggage` of a call; by default
     *     those of OpenTelemetry's current context, if the app has loaded it
     * @param string|null $url instead of a socket: `https://HOST:PORT`, `http://127.0.0.1:PORT` or `unix:///PATH`; by default LOCKSIDECAR_URL
     * @param string|null $tokenFile over TCP: the file with the token, which is read again when it changes; by default LOCKSIDECAR_TOKEN_FILE
     * @param string|null $caFile with https: the CA of the sidecar's certificate; by default LOCKSIDECAR_CA_FILE, else those of the system
     *
     * @throws Exception\InvalidRequest a setting is wrong
     */
    public function __construct(
        ?string $socket = null,
        ?string $name = null,
        int|float|\DateInterval|null $ttl = null,
        int|float|\DateInterval $timeout = 10,
        int|float|\DateInterval $reconnect = 30,
        ?LoggerInterface $logger = null,
        ?\Closure $trace = null,
        ?string $url = null,
        ?string $tokenFile = null,
        ?string $caFile = null,
    ) {
        $opens = [
            'name' => $name === null ? null : Check::text('name', $name),
            'ttl_ms' => $ttl === null ? null : Check::toMs(Check::seconds('ttl', $ttl, Check::LEAST_TTL)),
        ];
        $this->transport = new Transport(
            Endpoint::fromSettings($socket, $url, $tokenFile, $caFile, self::usualSocket(...)),
            array_filter($opens, static fn (mixed $one): bool => $one !== null),
            Check::seconds('timeout', $timeout, 0.001),
            Check::seconds('reconnect', $reconnect, 0.0, INF),
            new Tracing($trace),
            $logger,
        );
    }

    /** Nobody uses it any more: as `close`. A lock keeps its client. */
    public function __destruct()
    {
        $this->close();
    }

    /** There are no copies: the end of one would end the session of the other, with its locks. */
    private function __clone()
    {
    }

    /**
     * Acquires a lock, and holds it as long as the returned Lock is referred to: it is released at the end of its scope, also after an exception.
     *
     *     $lock = $client->lock('workflow:123', wait: 5.0);
     *     try { … } finally { $lock->release(); }
     *
     * The `finally` throws LockLost if the lock was lost. A scope that ends without `release` only logs that. Without an assignment the lock is
     * released at once.
     *
     * @throws LockHeld with `wait: 0`
     * @throws LocksidecarException WaitTimeout, Skipped, Unavailable and others
     * @throws \LogicException this process holds it already, and would wait for itself for ever
     */
    #[\NoDiscard('the lock is released at once')]
    public function lock(string $key, mixed ...$options): Lock
    {
        return $this->acquireAll([$key], Options::of($options))[0];
    }

    /**
     * Calls `$work` under a lock, and returns its result. A call without its lock always ends with an error: its own, or else LockLost.
     *
     *     $client->withLock('workflow:123', fn (Lock $lock) => …, wait: 5.0);
     *
     * @template T
     *
     * @param callable(Lock): T $work
     *
     * @return T
     *
     * @throws LocksidecarException as `lock`, and LockLost
     */
    public function withLock(string $key, callable $work, mixed ...$options): mixed
    {
        return $this->hold([$key], Options::of($options), static fn (array $locks): mixed => $work($locks[0]));
    }

    /**
     * Acquires a lock that stays held until you release it, or the client or the process ends. After a signal whose handler throws just when this
     * returns, nobody has the Lock, so prefer `withLock` and `lock`.
     *
     * @throws LocksidecarException as `lock`
     */
    public function acquire(string $key, mixed ...$options): Lock
    {
        $lock = $this->acquireAll([$key], Options::of($options))[0];
        $lock->entry->scoped = false; // now nothing can come between, and its caller has it

        return $lock;
    }

    /** As `acquire`, if the lock is free; null: it is held. */
    public function tryAcquire(string $key, mixed ...$options): ?Lock
    {
        try {
            return $this->acquire($key, ...[...$options, 'wait' => 0]);
        } catch (LockHeld) {
            return null;
        }
    }

    /**
     * Acquires 1 to 100 locks, all or none. There are no deadlocks, whatever the order of the keys.
     *
     * @param array<string> $keys
     *
     * @return list<Lock>
     *
     * @throws LocksidecarException as `lock`
     */
    public function acquireMany(array $keys, mixed ...$options): array
    {
        $locks = $this->acquireAll(Check::keys($keys), Options::of($options), true);
        foreach ($locks as $lock) {
            $lock->entry->scoped = false;
        }

        return $locks;
    }

    /**
     * Calls `$work` under 1 to 100 locks: see acquireMany and withLock.
     *
     * @template T
     *
     * @param array<string> $keys
     * @param callable(list<Lock>): T $work
     *
     * @return T
     */
    public function withLocks(array $keys, callable $work, mixed ...$options): mixed
    {
        return $this->hold(Check::keys($keys), Options::of($options), $work, true);
    }

    /**
     * At most `limit` callers have a permit, in all pods. All that use a key name the same limit, or get LimitMismatch.
     *
     *     $client->semaphore('gpu', limit: 5)->with(fn (Lock $permit) => work($permit->slot));
     */
    public function semaphore(string $key, int $limit, mixed ...$options): Semaphore
    {
        return new Semaphore($this, Check::text('key', $key), $limit, $options);
    }

    /** As `lock`, shared: its holders do not exclude each other. Calls get the lock in their order, so neither mode starves. */
    #[\NoDiscard('the lock is released at once')]
    public function shared(string $key, mixed ...$options): Lock
    {
        return $this->lock($key, ...[...$options, 'shared' => true]);
    }

    /**
     * Calls `$work` under the lock, or returns the result of another holder's `once` after a wait. If `$work` throws, the next waiter calls its
     * own.
     *
     * @param callable(Lock): mixed $work its result must be JSON of at most 4 KiB
     *
     * @return mixed the result as JSON makes it: objects are arrays, an empty one is a stdClass
     */
    public function once(string $key, callable $work, mixed ...$options): mixed
    {
        $begun = false;
        try {
            return $this->hold([$key], Options::of([...$options, 'onSuccess' => 'skip']), static function (array $locks) use ($work, &$begun): mixed {
                $begun = true;
                $result = $work($locks[0]);
                $json = Check::json('result', $result);
                $locks[0]->release(outcome: 'success', result: $result);

                return Check::fromJson($json);
            }, false, 'failure');
        } catch (Skipped $e) {
            if ($begun) {
                throw $e;
            }

            return $e->result();
        }
    }

    /**
     * Waits until it is the leader, and calls `$work`. At the end of a term it campaigns again.
     *
     * A term ends when its lock is lost or somebody asks to stop. `$work` has to look at `$term->lost()`, and to return. If it returns before,
     * this gives up the leadership and returns its result. Its errors go on. A campaign goes on through an outage of the sidecar or its store,
     * if the client has reached them before.
     *
     * `$term->lost()` knows at once what a sidecar says that answers. If the sidecar hangs, the lock is lost when its lease ends by this
     * process's clock.
     *
     * @template T
     *
     * @param callable(Term): T $work
     *
     * @return T
     *
     * @throws LocksidecarException that will not pass, such as InvalidRequest and Forbidden; until the client has reached a sidecar, also Unavailable,
     *                              LimitReached and SessionEnded
     */
    public function lead(
        string $key,
        callable $work,
        mixed $data = null,
        int|float|\DateInterval|null $ttl = null,
        int|float|\DateInterval|null $maxHold = null,
        int|float|\DateInterval|null $minHold = null,
    ): mixed {
        while (true) {
            $term = null;
            $over = false;
            try {
                $options = new Options(ttl: $ttl, maxHold: $maxHold, minHold: $minHold, data: $data);
                $value = $this->hold([$key], $options, static function (array $locks) use ($work, &$term, &$over): mixed {
                    $term = new Term($locks[0]);
                    $value = $work($term);
                    $over = $term->lost() !== null;

                    return $value;
                });
                if (!$over) {
                    return $value;
                }
            } catch (LocksidecarException $e) {
                if ($term === null) {
                    $this->awaitReturn($e);
                } elseif (!($e instanceof LockLost) || $term->lost() === null) {
                    throw $e;
                }
            }
        }
    }

    /** The data of the leader; null without a leader, or if it has no data. */
    public function leader(string $key): mixed
    {
        return $this->get($key)->holder?->data;
    }

    /**
     * The data of the leader, now and after each change: null without one. A later `update` of its lock is not an event.
     *
     * @return \Generator<int, mixed>
     */
    public function watchLeader(string $key): \Generator
    {
        $last = Given::No;
        foreach ($this->events($key) as $event) {
            $holder = $event->data['holder'] ?? null;
            $data = match ($event->type) {
                'released', 'expired' => null,
                'state' => $holder['data'] ?? null,
                'acquired' => $holder === null ? Given::No : $holder['data'] ?? null,
                default => Given::No,
            };
            if ($data !== Given::No && $data !== $last) {
                $last = $data;
                yield $data;
            }
        }
    }

    /**
     * Watches a key: `foreach ($client->events($key) as $event)`. The first event is the state. It ends with Unavailable.
     */
    public function events(string $key): EventStream
    {
        return new EventStream($this->transport, $key);
    }

    /**
     * Lists held locks by key.
     *
     * @param string $scope `all` of the whole namespace, `pod` of this sidecar, `session` of this client
     *
     * @return \Generator<int, LockInfo>
     */
    public function locks(string $scope = 'all', ?string $prefix = null, ?string $type = null, ?int $pageSize = null): \Generator
    {
        $query = ['scope' => $scope, 'prefix' => $prefix, 'type' => $type, 'limit' => $pageSize];
        foreach ($this->pages('/v1/locks', $query, 'locks', 'list', $scope === 'session') as $one) {
            yield LockInfo::fromJson($one);
        }
    }

    /**
     * Lists the calls of all pods that wait, in their order: for a key, or for all.
     *
     * @return \Generator<int, Waiter>
     */
    public function waiters(?string $key = null, ?string $prefix = null, ?int $pageSize = null): \Generator
    {
        $path = $key === null ? '/v1/waiters' : Call::lockPath($key, '/waiters');
        foreach ($this->pages($path, ['prefix' => $prefix, 'limit' => $pageSize], 'waiters', 'waiters') as $one) {
            yield Waiter::fromJson($one);
        }
    }

    /**
     * Shows one lock.
     *
     * @param bool $fresh the sidecar asks the store, also for a lock of this pod
     */
    public function get(string $key, bool $fresh = false): LockInfo
    {
        return LockInfo::fromJson($this->read(Call::lockPath($key), fresh: $fresh));
    }

    /**
     * Asks the holder of a lock to release it, or all shared holders, or the one that has the token. They may go on.
     *
     * @throws Exception\NotHeld
     */
    public function stop(string $key, ?string $reason = null, ?int $token = null): void
    {
        $body = $reason === null ? [] : ['reason' => Check::text('reason', $reason)];
        $target = Call::lockPath($key, '/stop' . Call::query(['token' => $token]));
        $this->ask(new Call('POST', $target, $body, $this->transport->timeout, needs: ['stop']));
    }

    /**
     * Breaks a lock of any holder, or of all shared holders, or of the one that has the token. Returns when it is free, at the latest when its
     * lease ends.
     *
     * @throws Exception\Forbidden
     * @throws Exception\NotHeld
     */
    public function forceRelease(string $key, ?int $token = null): void
    {
        $target = Call::lockPath($key, Call::query(['force' => true, 'token' => $token]));
        $this->ask(new Call('DELETE', $target, repeatable: false, waits: true));
    }

    /**
     * Releases a lock by key and token, such as a `bind: 'ttl'` lock of another process. See Lock::release.
     *
     * @return bool whether it is free now
     */
    public function release(string $key, int $token, ?string $outcome = null, mixed $result = Given::No, ?int $reentry = null): bool
    {
        return Interrupts::finish(
            fn (): bool => (new Release($this->transport, $key, $token, null, $outcome, $result, $reentry))->run()['released'],
        );
    }

    /**
     * Asks whether a lock is held under this token.
     *
     * @throws LockLost
     * @throws Exception\NotHolder
     */
    public function check(string $key, int $token): Status
    {
        return (new Amend($this->transport, $key, $token, []))->run();
    }

    /** Sets the remaining time of a `bind: 'ttl'` lock by key and token, from now. */
    public function extend(string $key, int $token, int|float|\DateInterval $ttl): Status
    {
        return (new Amend($this->transport, $key, $token, ['ttl_ms' => Check::toMs(Check::seconds('ttl', $ttl, Check::LEAST_TTL))]))->run();
    }

    /** Asks the sidecar for its version and features. */
    public function describe(): Description
    {
        return Interrupts::run(function (): Description {
            $this->transport->here();
            if ($this->transport->closed) {
                throw $this->transport->trouble->closed();
            }

            return $this->transport->describe();
        });
    }

    /** Ends the session and releases its locks. The client cannot be used after that. May be called twice. */
    public function close(): void
    {
        Interrupts::finish(fn () => $this->transport->close());
    }

    /**
     * For the child of a fork that runs long and does not use this client: it closes the child's copies of the parent's connections, which would
     * keep the locks of a parent that dies. Each other call does that too.
     */
    public function afterFork(): void
    {
        $this->transport->here();
    }

    /**
     * @param list<string> $keys
     *
     * @return list<Lock>
     */
    private function acquireAll(array $keys, Options $options, bool $several = false): array
    {
        return Interrupts::run(function () use ($keys, $options, $several): array {
            $acquire = new Acquire($this->transport, $keys, $options, $several);
            $locks = null;
            try {
                $acquire->run();
                $locks = array_map(fn (array $one): Lock => new Lock($this, $this->transport, ...$one), $acquire->granted);

                return $locks;
            } finally {
                if ($locks === null) {
                    Interrupts::finish(static fn () => $acquire->withdraw());
                }
            }
        });
    }

    /**
     * @template T
     *
     * @param list<string> $keys
     * @param callable(list<Lock>): T $work
     * @param string|null $outcome of work that has not released its locks itself
     *
     * @return T
     */
    private function hold(array $keys, Options $options, callable $work, bool $several = false, ?string $outcome = null): mixed
    {
        $locks = $this->acquireAll($keys, $options, $several);
        try {
            $value = $work($locks);
        } catch (\Throwable $error) {
            foreach ($this->leave($locks, $outcome) as $failure) {
                if (!($error instanceof LockLost && $failure instanceof LockLost && $error->key() === $failure->key())) {
                    $this->transport->log("a lock could not be released: {$failure->getMessage()}");
                }
            }
            throw $error;
        }
        $failures = $this->leave($locks, $outcome);
        foreach (\array_slice($failures, 1) as $failure) {
            $this->transport->log("a lock could not be released: {$failure->getMessage()}");
        }

        return $failures === [] ? $value : throw $failures[0];
    }

    /**
     * @param list<Lock> $locks
     *
     * @return list<LocksidecarException> the errors of their releases
     */
    private function leave(array $locks, ?string $outcome): array
    {
        return Interrupts::finish(static function () use ($locks, $outcome): array {
            $failures = [];
            foreach (array_reverse($locks) as $lock) {
                $lock->entry->scoped = false;
                try {
                    $lock->released() || $lock->release(outcome: $outcome);
                } catch (LocksidecarException $e) {
                    $failures[] = $e;
                }
            }

            return $failures;
        });
    }

    private function awaitReturn(LocksidecarException $error): void
    {
        if (!$this->transport->mayReturn($error)) {
            throw $error;
        }
        Poll::sleep($error->retryAfter() ?? 1.0);
    }

    /** @return array<string, mixed> */
    private function ask(Call $call): array
    {
        return Interrupts::run(fn (): array => $this->transport->perform($call, static fn (Answer $answer): array => $answer->result()));
    }

    /**
     * @param list<string> $needs
     *
     * @return array<string, mixed>
     */
    private function read(string $target, array $needs = [], bool $joins = false, bool $fresh = false): array
    {
        return Interrupts::run(function () use ($target, $needs, $joins, $fresh): array {
            for ($again = true; ; $again = false) {
                $call = new Call('GET', $target, timeout: $this->transport->timeout, session: $this->transport->liveSession(), needs: $needs, joins: $joins, fresh: $fresh);
                try {
                    return $this->ask($call);
                } catch (SessionEnded $e) {
                    $call->session?->end();
                    if (!$again || $this->transport->closed) {
                        throw $e;
                    }
                }
            }
        });
    }

    /**
     * @param array<string, string|int|null> $query
     *
     * @return \Generator<int, array<string, mixed>>
     */
    private function pages(string $path, array $query, string $name, string $feature, bool $joins = false): \Generator
    {
        $cursor = null;
        do {
            $page = $this->read($path . Call::query([...$query, 'cursor' => $cursor]), [$feature], $joins);
            yield from $page[$name];
            $cursor = $page['next_cursor'] ?? null;
        } while ($cursor !== null);
    }

    /** The socket of a sidecar that was not told another one; the sidecar has the same rule. */
    private static function usualSocket(): string
    {
        $home = (string) getenv('HOME');

        return !str_starts_with($home, '/') || file_exists(\dirname(self::SOCKET)) ? self::SOCKET : rtrim($home, '/') . self::HOME_SOCKET;
    }
}

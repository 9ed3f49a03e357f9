<?php

declare(strict_types=1);

namespace Locksidecar\Tests\Contract;

use Locksidecar\Client;
use Locksidecar\EventStream;
use Locksidecar\Exception\LocksidecarException;
use Locksidecar\Exception\LockHeld;
use Locksidecar\Exception\Skipped;
use Locksidecar\Holder;
use Locksidecar\Internal\Poll;
use Locksidecar\Lock;
use Locksidecar\LockInfo;
use Locksidecar\SharedHolder;
use Locksidecar\Status;
use Locksidecar\Stopping;
use Locksidecar\Testing\Sidecar;
use Psr\Log\NullLogger;

/**
 * Plays one case through this package: clients/contract/README.md says what the verbs mean. Each call runs in a fiber of its own, because a client
 * refuses that one waits for a lock of its own.
 */
final class Player
{
    public const PATIENCE = 60.0; // seconds for one step
    private const SUCCESS = ['open' => ['opened' => true], 'watch' => ['watching' => true]];
    private const SILENT = ['close', 'cancel'];
    private const WORDS = ['expect', 'until', 'save', 'start'];
    private const DIRECT = ['open', 'close', 'watch', 'next', 'finish', 'cancel', 'sidecar'];
    private const PLAIN = ['limit' => 'limit', 'bind' => 'bind', 'owner' => 'owner', 'reentrant' => 'reentrant', 'on_success' => 'onSuccess', 'data' => 'data', 'request_id' => 'requestId'];
    private const TIMES = ['ttl_ms' => 'ttl', 'max_hold_ms' => 'maxHold', 'min_hold_ms' => 'minHold'];
    private const SIGNALS = ['TERM' => 15];

    private readonly string $prefix;
    private readonly Tasks $tasks;
    /** @var array<string, Client> */
    private array $clients = [];
    /** @var array<string, list<Lock>> */
    private array $locks = [];
    /** @var array<string, list<array{Lock, list<string>}>> by session: its locks, and what was told of them */
    private array $told = [];
    /** @var array<string, EventStream> */
    private array $watches = [];
    /** @var array<string, array{Task, \stdClass}> */
    private array $blocks = [];
    /** @var array<string, Task> */
    private array $calls = [];
    /** @var list<Task> their ids are not used again */
    private array $all = [];
    /** @var array<string, mixed> */
    private array $saved = [];

    /** @param array<string, string> $where what a client needs to find the sidecar */
    public function __construct(private readonly Sidecar $sidecar, private readonly array $where)
    {
        $this->prefix = 'c' . bin2hex(random_bytes(6)) . '-';
        $this->tasks = new Tasks();
    }

    /** @param list<array<string, mixed>> $steps */
    public function play(array $steps): void
    {
        try {
            foreach ($steps as $n => $step) {
                try {
                    $this->playStep($step);
                } catch (Failed $e) {
                    throw new Failed('step ' . ($n + 1) . ", {$this->verb($step)}: {$e->getMessage()}");
                }
            }
        } finally {
            foreach ([...$this->watches, ...$this->clients] as $one) {
                $one->close();
            }
            $this->tasks->close();
        }
        if ($this->calls !== []) {
            throw new Failed('neither finished nor cancelled: ' . implode(' ', array_keys($this->calls)));
        }
    }

    /** @param array<string, mixed> $step */
    private function verb(array $step): string
    {
        $verbs = array_values(array_diff(array_keys($step), self::WORDS));

        return \count($verbs) === 1 ? $verbs[0] : throw new \LogicException('a step has one verb: ' . implode(' ', $verbs));
    }

    /** @param array<string, mixed> $step */
    private function playStep(array $step): void
    {
        $name = $this->verb($step);
        $arguments = $this->withPrefix((array) Matching::fillIn($step[$name] ?? [], $this->saved));
        if (isset($step['start'])) {
            $this->calls[$step['start']] = $this->start($name, $arguments);

            return;
        }
        for ($ends = microtime(true) + self::PATIENCE; ; usleep($name === 'next' ? 0 : 5000)) {
            $result = \in_array($name, self::DIRECT, true) ? $this->{"step$name"}($arguments) : $this->result($this->start($name, $arguments));
            if (\in_array($name, self::SILENT, true)) {
                return;
            }
            $result = $this->withoutPrefix($result);
            $want = Matching::fillIn($step['expect'] ?? $step['until'] ?? self::SUCCESS[$name], $this->saved);
            $wrong = Matching::difference($want, $result);
            if ($wrong === null) {
                break;
            }
            if (!isset($step['until']) || microtime(true) > $ends) {
                throw new Failed("$wrong\n    the result was " . json_encode($result));
            }
        }
        foreach ($step['save'] ?? [] as $as => $path) {
            $this->saved[$as] = array_reduce(explode('.', $path), static fn (mixed $value, string $part): mixed => $value[$part], $result);
        }
    }

    // Calls, each in a fiber.

    /** @param array<string, mixed> $it */
    private function start(string $name, array $it): Task
    {
        $call = 'call' . str_replace('_', '', $name);
        $task = $this->tasks->start(fn (): mixed => $this->guarded(fn (): mixed => $this->$call($this->client($it['session'] ?? ''), $it)));

        return $this->all[] = $task;
    }

    /** @param callable(): mixed $call */
    private function guarded(callable $call): mixed
    {
        try {
            return $call();
        } catch (Skipped $e) {
            return ['skipped' => true, 'key' => $e->key(), 'result' => $e->result()];
        } catch (LocksidecarException $e) {
            return $this->problem($e);
        } catch (\TypeError|\ArgumentCountError $e) {
            return ['error' => 'invalid_request', 'detail' => self::inApiWords($e->getMessage())];
        }
    }

    private function result(Task $task): mixed
    {
        if (!$this->tasks->until(static fn (): bool => $task->done)) {
            throw new Failed('no answer within ' . self::PATIENCE . ' s');
        }

        return $task->error === null ? $task->value : throw $task->error;
    }

    private function newClient(mixed ...$options): Client
    {
        return new Client(...[...$this->where, 'reconnect' => 0, 'logger' => new NullLogger(), ...$options]);
    }

    private function client(string $session): Client
    {
        return $this->clients[$session] ??= $this->newClient();
    }

    /** @return array<string, mixed> */
    private function problem(LocksidecarException $error): array
    {
        $more = array_diff_key($error->problem, ['type' => 0, 'title' => 0, 'status' => 0, 'code' => 0]);
        if ($error instanceof LockHeld) {
            $more['holder'] = self::holder($error->holder());
        }

        return [...$more, 'error' => $error->errorCode, 'detail' => self::inApiWords($error->problem['detail'] ?? $error->getMessage())];
    }

    private static function inApiWords(string $text): string
    {
        $text = strtr($text, ['maxHold' => 'max_hold', 'minHold' => 'min_hold', 'onSuccess' => 'on_success', 'requestId' => 'request_id']);

        return (string) preg_replace('/\b(wait|ttl|max_hold|min_hold)\b(?!_ms)( \(in ms\))?/', '$1_ms', $text);
    }

    // Sessions and streams.

    /** @param array<string, mixed> $it */
    private function stepOpen(array $it): mixed
    {
        $options = array_filter(['ttl' => isset($it['ttl_ms']) ? $it['ttl_ms'] / 1000 : null, 'name' => $it['name'] ?? null], static fn (mixed $one): bool => $one !== null);
        $made = $this->guarded(fn (): Client => $this->newClient(...$options));
        if (!$made instanceof Client) {
            return $made;
        }
        $this->clients[$it['as']] = $made;
        $this->told[$it['as']] = [];
        // A client opens its session with the first call that needs it.
        $task = $this->tasks->start(fn (): mixed => $this->guarded(static function () use ($made): array {
            iterator_to_array($made->locks('session'));

            return ['opened' => true];
        }));

        return $this->result($this->all[] = $task);
    }

    /** @param array<string, mixed> $it */
    private function stepClose(array $it): void
    {
        $this->clients[$it['session']]->close();
    }

    /** @param array<string, mixed> $it */
    private function stepWatch(array $it): mixed
    {
        return $this->result($this->tasks->start(fn (): mixed => $this->guarded(function () use ($it): array {
            $this->watches[$it['as']] = $this->client('')->events($it['key']);

            return ['watching' => true];
        })));
    }

    /**
     * @param array<string, mixed> $it
     *
     * @return array<string, mixed>
     */
    private function stepNext(array $it): array
    {
        $watch = $this->watches[$it['of']] ?? null;
        if ($watch !== null) {
            return $this->result($this->tasks->start(static function () use ($watch): array {
                $event = $watch->next();

                return ['event' => $event->type, ...$event->data];
            }));
        }
        $found = null;
        $this->tasks->until(function () use ($it, &$found): bool {
            return ($found = $this->news($it['of'])) !== null;
        });

        return $found ?? throw new Failed('no event within ' . self::PATIENCE . ' s');
    }

    /** @return array<string, mixed>|null what a lock of the session says, and was not told yet */
    private function news(string $session): ?array
    {
        foreach ($this->told[$session] as &$one) {
            [$lock, &$told] = $one;
            $lost = $lock->lost();
            $which = ['key' => $lock->key, 'token' => $lock->token];
            if ($lock->stopping() !== null && !\in_array('stop', $told, true)) {
                $told[] = 'stop';

                return ['event' => 'stop', ...$which, 'reason' => $lock->stopping()->reason];
            }
            if ($lost !== null && !\in_array('lost', $told, true)) {
                $told[] = 'lost';

                return $lost->reason() === 'disconnected' ? ['event' => 'end'] : ['event' => 'lost', ...$which, 'reason' => $lost->reason()];
            }
        }

        return null;
    }

    /** @param array<string, mixed> $it */
    private function stepFinish(array $it): mixed
    {
        $task = $this->calls[$it['call']];
        unset($this->calls[$it['call']]);

        return $this->result($task);
    }

    /** @param array<string, mixed> $it */
    private function stepCancel(array $it): void
    {
        $this->tasks->cancel($this->calls[$it['call']]);
        unset($this->calls[$it['call']]);
    }

    /**
     * @param array<string, mixed> $it
     *
     * @return array<string, mixed>
     */
    private function stepSidecar(array $it): array
    {
        $this->sidecar->signal(self::SIGNALS[$it['signal']]);

        return ['sent' => true];
    }

    // The verbs.

    /**
     * @param array<string, mixed> $it
     *
     * @return array<string, mixed>
     */
    private function callAcquire(Client $client, array $it): array
    {
        return $this->granted($it, $client->acquire($it['key'], ...self::options($it)));
    }

    /**
     * @param array<string, mixed> $it
     *
     * @return array<string, mixed>
     */
    private function callAcquireMany(Client $client, array $it): array
    {
        return ['granted' => true, 'locks' => array_map(fn (Lock $lock): array => $this->granted($it, $lock), $client->acquireMany($it['keys'], ...self::options($it)))];
    }

    /** @param array<string, mixed> $it */
    private function callEnter(Client $client, array $it): mixed
    {
        $gate = new \stdClass();
        $gate->raise = $gate->entered = null;
        $block = $this->tasks->start(fn (): mixed => $this->guarded(function () use ($client, $it, $gate): array {
            try {
                $client->withLock($it['key'], function (Lock $lock) use ($it, $gate): void {
                    $gate->entered = $this->granted($it, $lock);
                    while ($gate->raise === null) {
                        Poll::sleep(0.002);
                    }
                    if ($gate->raise) {
                        throw new OfTheBlock();
                    }
                }, ...self::options($it));
            } catch (OfTheBlock) {
                return ['raised' => true];
            }

            return ['left' => true];
        }));
        $this->all[] = $block;
        $this->blocks[$it['as']] = [$block, $gate];
        while ($gate->entered === null && !$block->done) {
            Poll::sleep(0.002);
        }

        return $gate->entered ?? $block->value;
    }

    /** @param array<string, mixed> $it */
    private function callLeave(Client $client, array $it): mixed
    {
        [$block, $gate] = $this->blocks[$it['block']];
        $gate->raise = $it['raise'] ?? false;
        while (!$block->done) {
            Poll::sleep(0.002);
        }

        return $block->value;
    }

    /**
     * @param array<string, mixed> $it
     *
     * @return array<string, mixed>
     */
    private function callRelease(Client $client, array $it): array
    {
        $lock = $this->held($it);
        $more = array_intersect_key($it, ['outcome' => 0, 'result' => 0, 'reentry' => 0]);
        $free = $lock === null ? $client->release($it['key'], $it['token'], ...$more) : $lock->release(...$more);
        $left = array_filter($this->locks[self::name($it)] ?? [], static fn (Lock $one): bool => !$one->released());

        return ['key' => $it['key'], 'released' => $free, 'reentry' => $free ? 0 : \count($left)];
    }

    /**
     * @param array<string, mixed> $it
     *
     * @return array<string, mixed>
     */
    private function callForceRelease(Client $client, array $it): array
    {
        $client->forceRelease($it['key'], $it['token'] ?? null);

        return ['released' => true, 'key' => $it['key']];
    }

    /**
     * @param array<string, mixed> $it
     *
     * @return array<string, mixed>
     */
    private function callCheck(Client $client, array $it): array
    {
        $lock = $this->held($it);
        if (\array_key_exists('data', $it)) {
            return self::status($lock?->update($it['data']) ?? throw new \LogicException('it has no such lock'));
        }

        return self::status($lock === null ? $client->check($it['key'], $it['token']) : $lock->check());
    }

    /**
     * @param array<string, mixed> $it
     *
     * @return array<string, mixed>
     */
    private function callExtend(Client $client, array $it): array
    {
        $lock = $this->held($it);
        $ttl = $it['ttl_ms'] / 1000;

        return self::status($lock === null ? $client->extend($it['key'], $it['token'], $ttl) : $lock->extend($ttl));
    }

    /**
     * @param array<string, mixed> $it
     *
     * @return array<string, mixed>
     */
    private function callDowngrade(Client $client, array $it): array
    {
        return self::status($this->held($it)?->downgrade() ?? throw new \LogicException('it has no such lock'));
    }

    /**
     * @param array<string, mixed> $it
     *
     * @return array<string, mixed>
     */
    private function callGet(Client $client, array $it): array
    {
        return self::info($client->get($it['key'], $it['fresh'] ?? false));
    }

    /**
     * @param array<string, mixed> $it
     *
     * @return array<string, mixed>
     */
    private function callList(Client $client, array $it): array
    {
        $locks = iterator_to_array($client->locks($it['scope'] ?? 'all', $it['prefix'] ?? null, $it['type'] ?? null, $it['limit'] ?? null), false);

        return ['keys' => array_map(static fn (LockInfo $one): string => $one->key, $locks), 'locks' => array_map(self::info(...), $locks)];
    }

    /**
     * @param array<string, mixed> $it
     *
     * @return array<string, mixed>
     */
    private function callStop(Client $client, array $it): array
    {
        $client->stop($it['key'], $it['reason'] ?? null, $it['token'] ?? null);

        return ['requested' => true, 'key' => $it['key']];
    }

    /**
     * @param array<string, mixed> $it
     *
     * @return array<string, mixed>
     */
    private function callFeatures(Client $client, array $it): array
    {
        return (array) $client->describe();
    }

    // Arguments and results, in the API's words.

    /**
     * @param array<string, mixed> $it
     *
     * @return array<string, mixed>
     */
    private static function options(array $it): array
    {
        $wait = $it['wait_ms'] ?? 0;
        $made = ['wait' => $wait === -1 ? null : (is_numeric($wait) ? $wait / 1000 : $wait)];
        foreach (self::PLAIN as $name => $ours) {
            if (\array_key_exists($name, $it)) {
                $made[$ours] = $it[$name];
            }
        }
        foreach (self::TIMES as $name => $ours) {
            if (isset($it[$name])) {
                $made[$ours] = $it[$name] / 1000;
            }
        }

        return isset($it['mode']) ? [...$made, 'shared' => $it['mode'] === 'shared'] : $made;
    }

    /**
     * @param array<string, mixed> $it
     *
     * @return array<string, mixed>
     */
    private function granted(array $it, Lock $lock): array
    {
        $name = self::name(['session' => $it['session'] ?? '', 'key' => $lock->key, 'token' => $lock->token]);
        $this->locks[$name][] = $lock;
        if (isset($it['session'], $this->told[$it['session']]) && \count($this->locks[$name]) === 1) {
            $this->told[$it['session']][] = [$lock, []];
        }

        return ['granted' => true, 'key' => $lock->key, 'token' => $lock->token, 'session' => $lock->session, 'bind' => $lock->bind,
            'reentry' => $lock->reentry, 'expires_in_ms' => self::ms($lock->expiresIn()), 'waited_ms' => self::ms($lock->waited),
            'mode' => $lock->mode(), 'limit' => $lock->limit(), 'slot' => $lock->slot()];
    }

    /** @param array<string, mixed> $it */
    private static function name(array $it): string
    {
        return ($it['session'] ?? '') . " {$it['key']} {$it['token']}";
    }

    /** @param array<string, mixed> $it */
    private function held(array $it): ?Lock
    {
        foreach (array_reverse($this->locks[self::name($it)] ?? []) as $lock) {
            if (!$lock->released()) {
                return $lock;
            }
        }

        return null;
    }

    private static function ms(float $seconds): int
    {
        return (int) round($seconds * 1000);
    }

    /** @return array<string, mixed>|null */
    private static function stopping(?Stopping $it): ?array
    {
        return $it === null ? null : ['reason' => $it->reason, 'requested_at' => $it->requestedAt?->format(\DATE_ATOM)];
    }

    /** @return array<string, mixed>|null */
    private static function holder(?Holder $it): ?array
    {
        return $it === null ? null : ['instance' => $it->instance, 'pod' => $it->pod, 'session' => $it->session, 'owner' => $it->owner,
            'held_ms' => self::ms($it->held), 'expires_in_ms' => self::ms($it->expiresIn), 'data' => $it->data, 'traceparent' => $it->traceparent];
    }

    /** @return array<string, mixed> */
    private static function info(LockInfo $it): array
    {
        $holders = array_map(static fn (SharedHolder $one): array => [...(array) self::holder($one->holder), 'token' => $one->token, 'slot' => $one->slot,
            'stopping' => self::stopping($one->stopping)], $it->holders);

        return ['key' => $it->key, 'type' => $it->type, 'state' => $it->state, 'mine' => $it->mine, 'token' => $it->token, 'mode' => $it->mode,
            'limit' => $it->limit, 'holder' => self::holder($it->holder), 'kept' => $it->kept, 'holders_count' => $it->holdersCount,
            'holders' => $holders, 'queue_length' => $it->queueLength, 'stopping' => self::stopping($it->stopping)];
    }

    /** @return array<string, mixed> */
    private static function status(Status $it): array
    {
        return ['held' => true, 'key' => $it->key, 'token' => $it->token, 'reentry' => $it->reentry, 'expires_in_ms' => self::ms($it->expiresIn),
            'mode' => $it->mode, 'limit' => $it->limit, 'slot' => $it->slot, 'stopping' => self::stopping($it->stopping)];
    }

    // The prefix of the keys of this run.

    /**
     * @param array<string, mixed> $it
     *
     * @return array<string, mixed>
     */
    private function withPrefix(array $it): array
    {
        foreach (['key', 'prefix', 'type'] as $name) {
            if (isset($it[$name])) {
                $it[$name] = $this->prefix . $it[$name];
            }
        }
        if (\is_array($it['keys'] ?? null)) {
            $it['keys'] = array_map(fn (string $key): string => $this->prefix . $key, $it['keys']);
        }

        return $it;
    }

    private function withoutPrefix(mixed $value): mixed
    {
        if (\is_array($value)) {
            return array_map($this->withoutPrefix(...), $value);
        }

        return \is_string($value) ? str_replace($this->prefix, '', $value) : $value;
    }
}

<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

use Locksidecar\Exception\Draining;
use Locksidecar\Exception\LocksidecarException;
use Locksidecar\Exception\NoAnswer;
use Locksidecar\Exception\SessionEnded;
use Locksidecar\Exception\Skipped;

/**
 * An acquire of one lock, or of several: its calls, also through an outage, and the release of a grant that its caller does not take.
 *
 * All its calls have one request id. So a call may be repeated, and its grant released although the answer was lost.
 *
 * @internal
 */
final class Acquire
{
    /** @var list<array{Entry, array<string, mixed>}> what it has got, with the answers */
    public array $granted = [];
    private readonly string $flow;
    private readonly string $headers;
    /** Whether the app has named the request. */
    private readonly bool $named;
    private readonly string $requestId;
    /** The last two calls that may have got a grant. */
    private ?Call $call = null;
    private ?Call $before = null;

    /** @param list<string> $keys */
    public function __construct(
        private readonly Transport $transport,
        private readonly array $keys,
        private readonly Options $options,
        private readonly bool $several = false,
    ) {
        $this->flow = Poll::flow();
        if ($options->reentrant) {
            $options->owner ??= $this->flow;
        }
        $this->headers = $transport->traceHeaders();
        $this->named = $options->requestId !== null;
        $this->requestId = $options->requestId ?? self::uuid();
    }

    /** Acquires. If it throws, `withdraw` comes after it. */
    public function run(): void
    {
        $endurance = new Endurance($this->options->wait, $this->transport);
        while (true) {
            $call = $this->following($endurance);
            try {
                $this->settle();
                $this->before = $this->call?->sent !== null ? $this->call : $this->before;
                $this->call = $call;
                $this->transport->perform($call, fn (Answer $answer) => $this->take($call, $answer->result()));

                return;
            } catch (SessionEnded $e) {
                if ($call->joins) { // its end frees them; without one, the client was closed
                    $this->call = $this->before = null;
                }
                $call->session?->end();
                $endurance->bridge($e, $call);
            } catch (NoAnswer|Draining $e) {
                if ($e instanceof Draining) {
                    $this->call = null;
                }
                $endurance->bridge($e, $call);
            } catch (LocksidecarException $e) {
                if ($e->status !== null) { // an answer that cannot be read may be that of a grant
                    $this->call = null;
                }
                throw $e;
            }
        }
    }

    /**
     * Releases the grant that this has, or may have. If the app has named the request, other parts of the app may hold the grant. Then it
     * stays, and the id finds it.
     */
    public function withdraw(): void
    {
        $call = $this->call?->sent !== null ? $this->call : ($this->before?->sent !== null ? $this->before : null);
        $this->call = $this->before = null;
        if ($call === null || $this->named) {
            return;
        }
        foreach ($this->keys as $key) {
            if (!$this->releaseKey($key, $call)) {
                return;
            }
        }
    }

    private function following(Endurance $endurance): Call
    {
        $left = $endurance->left();
        $body = ['request_id' => $this->requestId, ...$this->options->fields()];
        if ($this->several) {
            $body['keys'] = $this->keys;
        }
        if ($this->options->waits()) {
            $body['wait_ms'] = $left === null ? -1 : Check::toMs($left);
        }

        return new Call(
            $this->several ? 'POST' : 'PUT',
            $this->several ? '/v1/locks' : Call::lockPath($this->keys[0]),
            $body,
            $left === null ? null : $left + $this->transport->timeout,
            joins: $this->options->bind === 'session',
            needs: [...($this->several ? ['several_keys'] : []), 'release_by_id', ...$this->options->needs()],
            waits: $this->options->waits(),
            delay: $endurance->pause,
            headers: $this->headers,
        );
    }

    /** @param array<string, mixed> $value */
    private function take(Call $call, array $value): void
    {
        if (!$this->several && $value['granted'] !== true) {
            $this->call = $this->before = null;
            $key = $this->keys[0];
            $text = 'the holder of lock ' . Check::show($key) . ' released it with success; there is nothing left to do';
            throw new Skipped("$text (skipped)", 'skipped', null, ['key' => $key, 'result' => $value['result'] ?? null]);
        }
        foreach ($this->several ? $value['locks'] : [$value] as $one) {
            if ($call->session !== null) {
                $grant = $call->session->hold($one, (float) $call->sent);
            } else {
                $grant = new Grant($one['key'], $one['token'], null);
                $grant->note($one, (float) $call->sent);
            }
            $this->granted[] = [new Entry($grant, $this->flow, $this->options->owner, $this->requestId, $this->options->reentrant), $one];
        }
    }

    /**
     * What comes before an acquire. Locks that nobody can release any more are released, and those of these keys whose release had no answer. It
     * throws if this would wait for a lock of this process, and so for ever.
     */
    private function settle(): void
    {
        $session = $this->transport->liveSession();
        foreach ($session?->orphans() ?? [] as $entry) {
            $this->releaseAgain($entry);
        }
        foreach ($session === null ? [] : $this->keys as $key) {
            $entries = $session->entries($key, $this->flow);
            foreach ($entries as $entry) {
                if ($entry->unanswered) {
                    $this->releaseAgain($entry);
                } elseif (!$this->mayWaitFor($entry, \count($entries))) {
                    throw new \LogicException('this process holds ' . Check::show($key) . ' already, and would wait for itself for ever: give '
                        . '`reentrant: true` to both acquires, or this one a `wait`');
                }
            }
        }
    }

    private function releaseAgain(Entry $entry): void
    {
        try {
            (new Release($this->transport, $entry->grant->key, $entry->grant->token, $entry))->run();
        } catch (LocksidecarException $e) {
            if ($e instanceof NoAnswer) {
                throw $e;
            }
            // It is lost, or the sidecar goes on with this release.
        }
    }

    /** Whether this acquire ends although this process has this entry, and so many of the key. */
    private function mayWaitFor(Entry $entry, int $count): bool
    {
        $enters = $this->options->reentrant && $entry->grant->mode === 'exclusive' && $this->options->owner === $entry->owner;
        $shares = $this->options->shared && $entry->grant->mode === 'shared' && $count < ($this->options->limit ?? INF);

        return $this->options->wait !== null || $this->named || $enters || $shares;
    }

    /** Returns whether to go on with the other keys. */
    private function releaseKey(string $key, Call $call): bool
    {
        $mine = [];
        foreach ($call->session?->entries($key, $this->flow) ?? [] as $entry) {
            if ($entry->requestId === $this->requestId) {
                $entry->unanswered = true;
                $mine[] = $entry;
            }
        }
        $release = new Call(
            'DELETE',
            Call::lockPath($key, Call::query(['request_id' => $this->requestId])),
            timeout: min($this->transport->timeout, Transport::WITHDRAW),
            session: $call->session,
            headers: $this->headers,
        );
        try {
            $this->transport->performClosed($release, static function (Answer $answer) use ($mine): void {
                $value = $answer->result();
                foreach ($mine as $entry) {
                    $entry->giveBack($value);
                }
            });
        } catch (SessionEnded) {
            return false; // the end of the session, or the TTL, frees them; another exception is under way
        } catch (LocksidecarException $e) {
            // Another answer: the sidecar goes on with this release, and the other locks must not stay held.
            return !$e instanceof NoAnswer;
        }

        return true;
    }

    private static function uuid(): string
    {
        $bytes = random_bytes(16);
        $bytes[6] = \chr(\ord($bytes[6]) & 0x0f | 0x40);
        $bytes[8] = \chr(\ord($bytes[8]) & 0x3f | 0x80);

        return vsprintf('%s%s-%s-%s-%s-%s%s%s', str_split(bin2hex($bytes), 4));
    }
}

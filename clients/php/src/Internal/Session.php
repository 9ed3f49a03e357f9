<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * An explicit session: its id, and its grants. The stream may have news of a lock before the answer with its grant is read. Such news is kept
 * until then.
 *
 * @internal
 */
final class Session
{
    /** The most locks with news that nobody has read. */
    private const MOST_NEWS = 1000;
    /** The least seconds for the answer to a question. */
    private const ANSWER = 0.25;
    /** The most seconds for an answer after the time of a lock. */
    private const LATE_ANSWER = 1.0;

    public bool $ended = false;
    /** Whether the last question had no answer. */
    public bool $silent = false;
    private string $reason = '';
    /** @var array<string, Grant> by token and key */
    private array $grants = [];
    /** @var array<string, array<string, ?string>> by token and key */
    private array $news = [];

    public function __construct(public readonly string $id)
    {
    }

    /**
     * Notes what an acquire got, and when it was asked for.
     *
     * @param array<string, mixed> $value
     */
    public function hold(array $value, float $asked): Grant
    {
        $name = self::name($value['key'], $value['token']);
        $grant = $this->grants[$name] ?? new Grant($value['key'], $value['token'], $this);
        $grant->note($value, $asked);
        $news = $this->news[$name] ?? [];
        unset($this->news[$name]);
        if ($this->ended) {
            $news['lost'] = $this->reason;
        }
        $this->grants[$name] = $grant;
        $this->deliver($grant, $news);

        return $grant;
    }

    /**
     * The entries that a flow of the app has in this key.
     *
     * @return list<Entry>
     */
    public function entries(string $key, string $flow): array
    {
        $found = [];
        foreach ($this->grants as $grant) {
            foreach ($grant->key === $key ? $grant->entries : [] as $entry) {
                if ($entry->flow === $flow && !$entry->isOver()) {
                    $found[] = $entry;
                }
            }
        }

        return $found;
    }

    /** @return list<Entry> */
    public function orphans(): array
    {
        $found = [];
        foreach ($this->grants as $grant) {
            array_push($found, ...array_filter($grant->entries, static fn (Entry $entry): bool => $entry->isOrphan()));
        }

        return $found;
    }

    public function find(string $key, int $token): ?Grant
    {
        return $this->grants[self::name($key, $token)] ?? null;
    }

    /** The seconds to wait for the answer to a question: until the first of the locks has had its time. */
    public function patience(Grant $grant): float
    {
        $first = min(array_map(static fn (Grant $one): float => $one->expiresAt, [$grant, ...array_values($this->grants)]));
        $now = Clock::now();
        if ($first > $now || $this->silent) {
            return max($first - $now, self::ANSWER);
        }

        // This process was halted or did not ask. All of them may have had their time, and the sidecar may well have renewed them.
        return max(min($grant->life / 4, self::LATE_ANSWER), self::ANSWER);
    }

    /**
     * The grants that have had their time.
     *
     * @return list<Grant>
     */
    public function due(): array
    {
        $now = Clock::now();

        return array_values(array_filter($this->grants, static fn (Grant $one): bool => $one->expiresAt <= $now));
    }

    /** The grant is lost, as an answer or the clock says. */
    public function lose(Grant $grant, string $reason): void
    {
        $this->forget($grant);
        $grant->lose($reason);
    }

    /** The grant was released or lost. */
    public function forget(Grant $grant): void
    {
        unset($this->grants[self::name($grant->key, $grant->token)]);
    }

    /**
     * Takes an event of the stream. Events of a newer sidecar are ignored.
     *
     * @param array<string, mixed> $data
     */
    public function receive(string $event, array $data): void
    {
        if ($event !== 'lost' && $event !== 'stop') {
            return;
        }
        $name = self::name($data['key'], $data['token']);
        $news = [$event => $data['reason'] ?? null];
        $grant = $this->grants[$name] ?? null;
        if ($grant !== null) {
            $this->deliver($grant, $news);

            return;
        }
        $this->news[$name] = $news + ($this->news[$name] ?? []);
        if (\count($this->news) > self::MOST_NEWS) {
            array_shift($this->news);
        }
    }

    /** The session is over, and its locks are lost. */
    public function end(string $reason = 'disconnected'): void
    {
        if ($this->ended) {
            return;
        }
        $this->ended = true;
        $this->reason = $reason;
        foreach ($this->grants as $grant) {
            $grant->lose($reason);
        }
        $this->grants = [];
    }

    /** @param array<string, ?string> $news */
    private function deliver(Grant $grant, array $news): void
    {
        if (\array_key_exists('stop', $news)) {
            $grant->stop($news['stop']);
        }
        if (\array_key_exists('lost', $news)) {
            $this->lose($grant, (string) $news['lost']);
        }
    }

    private static function name(string $key, int $token): string
    {
        return "$token $key";
    }
}

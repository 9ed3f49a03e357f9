<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * One grant of the sidecar. Entries of the same owner share it.
 *
 * @internal
 */
final class Grant
{
    /** The least pause in seconds between two questions about a lock. */
    private const PAUSE = 0.05;

    public string $mode = 'exclusive';
    /** The number of its entries, by the sidecar. */
    public int $count = 1;
    /** @var list<Entry> those of this client that were not released */
    public array $entries = [];
    /** By our clock. */
    public float $expiresAt = 0.0;
    /** When half of its time will be over. */
    public float $askAt = 0.0;
    /** Seconds from the last answer to the end that it named. */
    public float $life = 0.0;
    /** Why somebody asks to stop; null: nobody does. */
    public ?string $stopping = null;
    public bool $isStopping = false;
    private ?string $lost = null;
    /** When the question was sent whose answer named the end; INF: it was released. */
    private float $asked = -INF;

    /** @param Session|null $session null with bind `ttl` */
    public function __construct(public readonly string $key, public readonly int $token, public readonly ?Session $session)
    {
    }

    /** Why it is lost, by what is known here; null: it is held, or was released. Nobody but our clock tells the end of a lock with bind `ttl`. */
    public function lost(): ?string
    {
        if ($this->lost === null && $this->session === null && $this->asked !== INF && Clock::now() >= $this->expiresAt) {
            $this->lost = 'expired';
        }

        return $this->lost;
    }

    /**
     * Takes over an answer about it. Times count from the question, because an answer may be read late.
     *
     * @param array<string, mixed> $value
     */
    public function note(array $value, float $asked): void
    {
        if ($asked >= $this->asked) {
            $this->asked = $asked;
            $this->life = $value['expires_in_ms'] / 1000;
            $this->expiresAt = $asked + $value['waited_ms'] / 1000 + $this->life;
            $this->askAt = max($this->expiresAt - $this->life / 2, $asked + self::PAUSE);
        }
        $this->count = $value['reentry'];
        $this->mode = $value['mode'] ?? 'exclusive';
        if (isset($value['stopping'])) {
            $this->stop($value['stopping']['reason'] ?? null);
        }
    }

    /** A question about it had no answer. */
    public function unanswered(): void
    {
        $now = Clock::now();
        $this->askAt = $now + max(($this->expiresAt - $now) / 2, self::PAUSE);
    }

    /** Somebody asks to release it. */
    public function stop(?string $reason): void
    {
        if (!$this->isStopping) {
            $this->isStopping = true;
            $this->stopping = $reason;
        }
    }

    /**
     * Takes over the answer to a release. It is free then, or has fewer entries.
     *
     * @param array<string, mixed> $value
     */
    public function released(array $value): void
    {
        $this->count = $value['reentry'];
        if ($value['released'] !== true) {
            return;
        }
        foreach ($this->entries as $entry) {
            $entry->released = true;
        }
        $this->entries = [];
        $this->asked = INF;
        $this->session?->forget($this);
    }

    /** It is lost. */
    public function lose(string $reason): void
    {
        $this->entries = [];
        $this->lost ??= $reason;
    }
}

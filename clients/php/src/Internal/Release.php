<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

use Locksidecar\Exception\LocksidecarException;
use Locksidecar\Exception\LockLost;
use Locksidecar\Exception\NoAnswer;
use Locksidecar\Exception\NotHolder;
use Locksidecar\Exception\SessionEnded;
use Locksidecar\Exception\StoreUnavailable;

/**
 * The release of a lock, or of one entry of it: the newest, or that of `entry`. `run` is for Interrupts::finish.
 *
 * @internal
 */
final class Release
{
    private readonly Call $call;
    private readonly ?Grant $grant;

    /** @param Entry|null $entry null if the client does not know it */
    public function __construct(
        private readonly Transport $transport,
        private readonly string $key,
        private readonly int $token,
        private readonly ?Entry $entry = null,
        ?string $outcome = null,
        mixed $result = Given::No,
        ?int $reentry = null,
        ?float $timeout = null,
    ) {
        $this->grant = $entry?->grant;
        $name = $entry?->reentrant === true ? $entry->requestId : null;
        $query = ['token' => $token, 'outcome' => $outcome === null ? null : Check::text('outcome', $outcome), 'reentry' => $reentry, 'request_id' => $name];
        $this->call = new Call(
            'DELETE',
            Call::lockPath($key, Call::query($query)),
            $result === Given::No ? null : ['result' => Check::data('result', $result)],
            $timeout ?? $transport->timeout,
            needs: array_keys(array_filter(['outcome' => $outcome, 'reentrant' => $reentry, 'release_by_id' => $name], static fn (mixed $one): bool => $one !== null)),
            session: $entry === null ? $transport->liveSession() : $entry->grant->session,
        );
    }

    /**
     * Throws LockLost, NotHolder, Unavailable. Returns the answer.
     *
     * @return array<string, mixed>
     */
    public function run(): array
    {
        self::checkLost($this->transport, $this->grant);
        if ($this->entry !== null) {
            $this->call->repeated = $this->call->repeated || $this->entry->unanswered;
            $this->entry->unanswered = true;
        }
        try {
            return $this->transport->perform($this->call, $this->note(...));
        } catch (LocksidecarException $e) {
            if ($this->entry !== null) {
                $this->entry->unanswered = $e instanceof NoAnswer || $e instanceof StoreUnavailable;
            }
            throw self::lostBy($this->grant, $e);
        }
    }

    /** Sends it for a lock that is lost already, in case the sidecar has it. */
    public function try(): void
    {
        $this->transport->performClosed($this->call, static fn (): null => null);
    }

    /** Throws if the lock of a session is lost. For a lock with bind `ttl` the store decides, not the clock here. */
    public static function checkLost(Transport $transport, ?Grant $grant): void
    {
        $transport->listen();
        if ($grant?->session !== null && $grant->lost() !== null) {
            throw Problem::lost($grant->key, $grant->lost());
        }
    }

    /** Notes the loss of a lock if an error says it. Returns the error for the app. */
    public static function lostBy(?Grant $grant, LocksidecarException $error): LocksidecarException
    {
        if ($error instanceof LockLost || $error instanceof NotHolder) {
            if ($grant !== null && !\array_key_exists('reentry', $error->problem)) {
                $grant->session?->forget($grant);
                $grant->lose($error->reason());
            }
        } elseif ($error instanceof SessionEnded && $grant?->session !== null) {
            $grant->session->end();

            return Problem::lost($grant->key, 'disconnected');
        }

        return $error;
    }

    /** @return array<string, mixed> */
    private function note(Answer $answer): array
    {
        $value = $this->released($answer);
        if ($this->entry !== null) {
            $this->entry->giveBack($value);
        } else {
            $this->call->session?->find($this->key, $this->token)?->released($value);
        }

        return $value;
    }

    /**
     * A call that was repeated finds what the first one, whose answer was lost, has done.
     *
     * @return array<string, mixed>
     */
    private function released(Answer $answer): array
    {
        try {
            return $answer->result();
        } catch (NotHolder $e) {
            // The store may have forgotten the release of a lock with bind `ttl`. It remembers that of a key's last grant.
            $forgotten = $this->grant !== null && $this->grant->session === null && $e->reason() === 'unknown_token' && $this->grant->lost() === null;
            if ($this->call->repeated && !\array_key_exists('reentry', $e->problem) && ($e->reason() === 'released' || $forgotten)) {
                return ['released' => true, 'reentry' => 0];
            }
            throw $e;
        }
    }
}

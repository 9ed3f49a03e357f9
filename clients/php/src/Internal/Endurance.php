<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

use Locksidecar\Exception\LocksidecarException;
use Locksidecar\Exception\SessionEnded;

/**
 * How long an acquire goes on, also through an outage of the sidecar.
 *
 * @internal
 */
final class Endurance
{
    /** Seconds in the queue after which an outage is another one. */
    private const LONG = 5.0;

    public float $pause = 0.0;
    private readonly bool $waits;
    private readonly ?float $ends;
    /** The outage. */
    private ?float $began = null;
    /** The last failure. */
    private float $last = 0.0;
    private bool $reopened = false;

    public function __construct(private readonly ?float $first, private readonly Transport $transport)
    {
        $this->waits = $first === null || $first > 0;
        $this->ends = $first !== null && $first > 0 ? Clock::now() + $first : null;
    }

    /** Seconds; null: for ever. */
    public function left(): ?float
    {
        return $this->began === null || $this->ends === null ? $this->first : max($this->ends - Clock::now(), 0.001);
    }

    /** Returns if the call is to be made again after `pause`. Throws the error if not. */
    public function bridge(LocksidecarException $error, Call $call): void
    {
        if ($this->transport->closed) {
            throw $this->transport->trouble->closed();
        }
        if ($error instanceof SessionEnded && !$this->reopened) { // no outage: the next call opens a new session
            $this->reopened = true;

            return;
        }
        if (!$this->waits || !$this->transport->reached) {
            throw $error;
        }
        $now = Clock::now();
        if ($this->began === null || ($call->sent !== null && $now - $this->last > self::LONG)) { // it has waited in the queue since
            $this->began = $now;
            $this->pause = 0.0;
        }
        $this->last = $now;
        if ($now - $this->began >= $this->transport->reconnect || ($this->ends !== null && $now >= $this->ends)) {
            throw $error;
        }
        $this->pause = max(0.05, min($this->pause * 2, 1.0));
        if ($this->ends !== null) {
            $this->pause = min($this->pause, $this->ends - $now);
        }
    }
}

<?php

declare(strict_types=1);

namespace Locksidecar;

use Locksidecar\Exception\LockLost;
use Locksidecar\Internal\Problem;

/** A term as leader. `token` is the fencing token: pass it to all that the leader changes. */
final class Term
{
    public readonly int $token;
    private ?LockLost $lost = null;

    /** @internal */
    public function __construct(public readonly Lock $lock)
    {
        $this->token = $lock->token;
    }

    /** Why the term is over: its lock was lost, or somebody asks to stop (the reason is theirs); null: go on. It is as cheap as Lock::lost. */
    public function lost(): ?LockLost
    {
        $this->lost ??= $this->lock->lost();
        if ($this->lost === null && ($stopping = $this->lock->stopping()) !== null) {
            $this->lost = Problem::lost($this->lock->key, $stopping->reason ?? 'stopping');
        }

        return $this->lost;
    }
}

<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/** The holder did the work (`onSuccess: 'skip'`). It is no failure. */
class Skipped extends LocksidecarException
{
    public function key(): string
    {
        return $this->problem['key'];
    }

    /** That of the holder's release. */
    public function result(): mixed
    {
        return $this->problem['result'];
    }
}

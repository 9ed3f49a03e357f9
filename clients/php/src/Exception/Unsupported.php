<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/** The sidecar is too old for the call. */
class Unsupported extends LocksidecarException
{
    /** The name that its `GET /v1` lacks; empty if the sidecar itself refuses the call. */
    public function feature(): string
    {
        return $this->problem['feature'] ?? '';
    }
}

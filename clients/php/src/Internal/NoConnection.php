<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * No connection can be made. Its code is the system's number of the error, if PHP tells it.
 *
 * @internal
 */
final class NoConnection extends \RuntimeException
{
    /** @param bool $isOfTls there is one, without TLS */
    public function __construct(string $message, int $code = 0, public readonly bool $isOfTls = false)
    {
        parent::__construct($message, $code);
    }

    /** Whether this process has no descriptor left. */
    public function isFull(): bool
    {
        // Of a socket that cannot be created PHP does not tell the number.
        return \in_array($this->getCode(), [23, 24], true) || preg_match('/Too many open files|Failed to create unix socket/', $this->getMessage()) === 1;
    }

    /** Whether the sidecar has not yet accepted others. */
    public function isBusy(): bool
    {
        return $this->getCode() === 11;
    }
}

<?php

declare(strict_types=1);

namespace Locksidecar\Exception;

/**
 * The root of all errors of this package, except the wrong use of PHP itself (TypeError, LogicException).
 *
 * `errorCode` is stable: decide by the class or the code, never by the text.
 */
class LocksidecarException extends \RuntimeException
{
    /** The sidecar's code, such as `held`, or one of the client's: `unreachable`, `timeout`, `connection_lost`, `unsupported`, `skipped`, `bad_answer`. */
    public readonly string $errorCode;

    /** The HTTP status, if the sidecar has answered. */
    public readonly ?int $status;

    /** @var array<string, mixed> all that the sidecar has answered */
    public readonly array $problem;

    /**
     * @param array<string, mixed> $problem
     *
     * @internal
     */
    final public function __construct(string $message = '', string $errorCode = '', ?int $status = null, array $problem = [])
    {
        parent::__construct($message);
        $this->errorCode = $errorCode;
        $this->status = $status;
        $this->problem = $problem;
    }

    /** Seconds until another try is useful; null if the sidecar does not say. */
    public function retryAfter(): ?float
    {
        return $this->problem['retry_after'] ?? null;
    }
}

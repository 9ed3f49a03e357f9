<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

use Locksidecar\Exception\NoAnswer;
use Locksidecar\Exception\SessionEnded;

/**
 * The errors of a client that does not reach its sidecar.
 *
 * @internal
 */
final class Trouble
{
    public function __construct(private readonly Endpoint $endpoint)
    {
    }

    /** No connection can be made. */
    public function unreachable(NoConnection $cause): NoAnswer
    {
        return $this->noAnswer("cannot reach the sidecar at {$this->endpoint->name}: {$this->remedy($cause)}", 'unreachable');
    }

    /** The answer did not come. */
    public function broken(string $what, string $code = 'connection_lost'): NoAnswer
    {
        return $this->noAnswer("the sidecar at {$this->endpoint->name} $what. Check that it still runs, and its log", $code);
    }

    /** The answer did not come in time. */
    public function timedOut(Call $call, float $seconds): NoAnswer
    {
        return $this->broken("did not answer {$call->method} {$call->target} within " . round($seconds, 3) . ' s', 'timeout');
    }

    /** The client was closed. */
    public function closed(): SessionEnded
    {
        return new SessionEnded('this client was closed; make another (session_ended)', 'session_ended', 410);
    }

    private function noAnswer(string $text, string $code): NoAnswer
    {
        return new NoAnswer("$text ($code)", $code);
    }

    private function remedy(NoConnection $cause): string
    {
        return match (true) {
            $this->endpoint->path === '' && !$cause->isFull() => $this->endpoint->whatFailed($cause),
            $cause->getCode() === 2 => 'there is no such socket. Check that the sidecar runs (`locksidecar serve`), that LOCKSIDECAR_SOCKET is the '
                . 'same for it and for this process (php-fpm passes only what `env[…]` or `clear_env = no` allows), and that the socket\'s folder '
                . 'is mounted into this container',
            $cause->getCode() === 111 => file_exists($this->endpoint->path) && filetype($this->endpoint->path) !== 'socket'
                ? 'there is a file, but it is no socket. Check LOCKSIDECAR_SOCKET'
                : 'the socket is there, but nobody listens. Check that the sidecar still runs, and its log',
            \in_array($cause->getCode(), [1, 13], true) => 'this process may not use it. Check the sidecar\'s LOCKSIDECAR_SOCKET_MODE, and the '
                . 'owner and group of the socket and its folder',
            $cause->isFull() => 'this process has no free file descriptor. Raise its limit (RLIMIT_NOFILE, `ulimit -n`), or keep fewer files open',
            default => "{$cause->getMessage()}. Check that it is the socket of a locksidecar, and that this runs",
        };
    }
}

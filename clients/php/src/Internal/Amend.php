<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

use Locksidecar\Exception\LocksidecarException;
use Locksidecar\Status;

/**
 * Checks that a lock is held, and changes its time (bind `ttl`), its data or its mode.
 *
 * @internal
 */
final class Amend
{
    private readonly Call $call;

    /**
     * @param array<string, mixed> $change
     * @param list<string> $needs
     */
    public function __construct(
        private readonly Transport $transport,
        string $key,
        int $token,
        array $change,
        private readonly ?Grant $grant = null,
        array $needs = [],
    ) {
        $session = $grant === null ? $transport->liveSession() : $grant->session;
        $this->call = new Call('PATCH', Call::lockPath($key), ['token' => $token, ...$change], $transport->timeout, session: $session, needs: $needs);
    }

    public function run(): Status
    {
        return Interrupts::run(function (): Status {
            Release::checkLost($this->transport, $this->grant);
            try {
                return Status::fromJson($this->transport->perform($this->call, function (Answer $answer): array {
                    $value = $answer->result();
                    $this->grant?->note($value, (float) $this->call->sent);

                    return $value;
                }));
            } catch (LocksidecarException $e) {
                throw Release::lostBy($this->grant, $e);
            }
        });
    }
}

<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * A call: one request, and how it is made.
 *
 * @internal
 */
final class Call
{
    /** The session that it joins. */
    public ?Session $session;
    /** An earlier one may have been carried out, without an answer. */
    public bool $repeated = false;
    /** A closed client makes it, too: by it close ends the session, or it withdraws. */
    public bool $afterClose = false;
    /** When it was sent, by our clock; null: not yet. */
    public ?float $sent = null;
    private readonly string $body;

    /**
     * @param array<string, mixed>|null $body
     * @param float|null $timeout seconds for the answer; null: for ever
     * @param bool $joins join the client's session, and open one if there is none
     * @param list<string> $needs features
     * @param bool $repeatable if a connection breaks before the answer is complete
     * @param bool $waits the sidecar may answer late
     * @param float $delay seconds before it is made
     * @param string|null $headers those of its trace; null: those of now
     * @param bool $fresh the sidecar asks the store
     */
    public function __construct(
        public readonly string $method,
        public readonly string $target,
        ?array $body = null,
        public readonly ?float $timeout = null,
        public readonly bool $joins = false,
        ?Session $session = null,
        public readonly array $needs = [],
        private readonly bool $repeatable = true,
        public readonly bool $waits = false,
        public readonly float $delay = 0.0,
        private readonly ?string $headers = null,
        private readonly bool $fresh = false,
    ) {
        $this->session = $session;
        $this->body = $body === null ? '' : ($body === [] ? '{}' : Check::json('the request', $body));
    }

    /** The path of a lock. */
    public static function lockPath(string $key, string $rest = ''): string
    {
        return '/v1/locks/' . rawurlencode(Check::text('key', $key)) . $rest;
    }

    /**
     * A query without what is null, or nothing.
     *
     * @param array<string, string|int|true|null> $given
     */
    public static function query(array $given): string
    {
        $parts = [];
        foreach ($given as $name => $value) {
            if ($value !== null) {
                $parts[] = "$name=" . rawurlencode($value === true ? 'true' : (string) $value);
            }
        }

        return $parts === [] ? '' : '?' . implode('&', $parts);
    }

    /**
     * Whether to make it again, on a new connection, after one broke before the answer was complete. A reused connection may have been closed
     * before the call. A write tells that by EPIPE: then the sidecar has not got the whole call. If the session is over, the operation decides.
     */
    public function again(bool $reused, Broken $error): bool
    {
        return $reused && ($this->repeatable || str_contains($error->getMessage(), 'errno=32')) && !$this->session?->ended;
    }

    /** @param string $first the lines that each request has */
    public function encode(#[\SensitiveParameter] string $first, Transport $transport): string
    {
        $headers = $first . ($this->headers ?? $transport->traceHeaders());
        $headers .= $this->fresh ? "Cache-Control: no-cache\r\n" : '';
        $headers .= $this->session === null ? '' : "Lock-Session: {$this->session->id}\r\n";
        $headers .= $this->body === '' && $this->method === 'GET' ? '' : 'Content-Length: ' . \strlen($this->body) . "\r\n";

        return "{$this->method} {$this->target} HTTP/1.1\r\n$headers\r\n{$this->body}";
    }
}

<?php

declare(strict_types=1);

namespace Locksidecar;

use Locksidecar\Exception\LocksidecarException;
use Locksidecar\Internal\Call;
use Locksidecar\Internal\EventConnection;
use Locksidecar\Internal\Interrupts;
use Locksidecar\Internal\Problem;
use Locksidecar\Internal\Transport;

/**
 * The events of one key, from all pods. It holds a connection until `close`, or the end of its scope.
 *
 * @implements \IteratorAggregate<int, Event>
 */
final class EventStream implements \IteratorAggregate
{
    private ?EventConnection $stream = null;
    private ?Event $first = null;

    /** @internal */
    public function __construct(private readonly Transport $transport, private readonly string $key)
    {
        $call = new Call('GET', Call::lockPath($key, '/events'), timeout: $transport->timeout, needs: ['events']);
        Interrupts::run(function () use ($call): void {
            $this->transport->here();
            if ($this->transport->closed) {
                throw $this->transport->trouble->closed();
            }
            $this->stream = $this->transport->stream($call);
            try {
                $this->first = $this->made(...$this->transport->event($this->stream, $call));
            } finally {
                if ($this->first === null) {
                    $this->close();
                }
            }
        });
    }

    public function __destruct()
    {
        $this->close();
    }

    /**
     * Waits for the next event. The first one is the state. Events may be missing: delivery is best effort.
     *
     * @throws Exception\Unavailable the stream has ended, or was closed
     */
    public function next(): Event
    {
        if ($this->first !== null) {
            $first = $this->first;
            $this->first = null;

            return $first;
        }
        $this->transport->here();

        return Interrupts::run(function (): Event {
            if ($this->stream === null) {
                throw $this->transport->trouble->broken('ended the event stream');
            }
            try {
                return $this->made(...$this->transport->event($this->stream));
            } catch (LocksidecarException $e) {
                $this->close();
                throw $e;
            }
        });
    }

    /** Each event, until the loop is left or the stream ends with Unavailable. */
    public function getIterator(): \Generator
    {
        while (true) {
            yield $this->next();
        }
    }

    /** Ends the stream. */
    public function close(): void
    {
        if ($this->stream !== null) {
            $this->transport->drop($this->stream->connection);
            $this->stream = null;
        }
        $this->first = null;
    }

    /**
     * Throws a `problem`, which may end the stream.
     *
     * @param array<string, mixed> $data
     */
    private function made(string $name, array $data): Event
    {
        return $name === 'problem' ? throw Problem::error($data, $data['status'] ?? 500) : new Event($name, $this->key, $data);
    }
}

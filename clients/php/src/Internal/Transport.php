<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

use Locksidecar\Description;
use Locksidecar\Exception\LimitReached;
use Locksidecar\Exception\LocksidecarException;
use Locksidecar\Exception\LockLost;
use Locksidecar\Exception\NoAnswer;
use Locksidecar\Exception\NotHolder;
use Locksidecar\Exception\SessionEnded;
use Locksidecar\Exception\Unavailable;
use Locksidecar\Exception\Unsupported;
use Psr\Log\LoggerInterface;

/**
 * How a client makes calls: its settings, its connections, its session, and what the sidecar can do.
 *
 * @internal
 */
final class Transport
{
    /** Seconds to wait for the answer to a release that nobody waits for. The sidecar carries it out in any case. */
    public const WITHDRAW = 2.0;
    /** Seconds in which locks that are lost by our clock are given back, before the app learns of the loss. */
    private const PARTING = 0.1;
    /** The most idle connections. */
    private const MOST_IDLE = 16;
    private const PAUSE = 0.01;

    public readonly Trouble $trouble;
    /** Whether a session was opened in this process. */
    public bool $reached = false;
    public bool $closed = false;
    /** @var list<string>|null those of the sidecar; null: not asked yet */
    private ?array $features = null;
    private string $version = '';
    private ?Session $session = null;
    private ?EventConnection $stream = null;
    private bool $opening = false;
    private int $pid;
    /** @var array<int, Connection> */
    private array $open = [];
    /** @var list<Connection> */
    private array $idle = [];

    /** @param array<string, mixed> $opens the body of the call that opens a session */
    public function __construct(
        private readonly Endpoint $endpoint,
        private readonly array $opens,
        public readonly float $timeout,
        public readonly float $reconnect,
        private readonly Tracing $tracing,
        private readonly ?LoggerInterface $logger,
    ) {
        $this->trouble = new Trouble($endpoint);
        $this->pid = self::process();
    }

    /** Says what nobody else can get, such as a release that failed after a block had thrown. */
    public function log(string $text): void
    {
        $this->logger === null ? error_log("locksidecar: $text") : $this->logger->warning("locksidecar: $text");
    }

    public function traceHeaders(): string
    {
        return $this->tracing->headers();
    }

    /**
     * Makes a call. `$taken` gets the complete answer. Returns its result.
     *
     * @template T
     *
     * @param callable(Answer): T $taken
     *
     * @return T
     */
    public function perform(Call $call, callable $taken): mixed
    {
        $this->here();
        if ($this->closed) {
            throw $this->trouble->closed();
        }

        return $this->make($call, $taken);
    }

    /**
     * As `perform`, also for a closed client.
     *
     * @template T
     *
     * @param callable(Answer): T $taken
     *
     * @return T
     */
    public function performClosed(Call $call, callable $taken): mixed
    {
        $call->afterClose = true;

        return $this->make($call, $taken);
    }

    /** Makes a call whose answer is a stream of events, on a connection of its own. Returns it with its first event, which is not taken. */
    public function stream(Call $call): EventConnection
    {
        if ($this->features === null) {
            $this->describe();
        }
        $this->require($call);
        [$connection] = $this->take($call, Clock::now(), true);
        $opened = false;
        try {
            $this->send($connection, $call, Clock::now());
            $opened = true;

            return new EventConnection($connection);
        } catch (Broken $e) {
            throw $this->trouble->broken("broke the connection ({$e->getMessage()})");
        } finally {
            if (!$opened) {
                $this->drop($connection);
            }
        }
    }

    /**
     * Waits for the next event of a stream.
     *
     * @param Call|null $call the event is the answer to it
     *
     * @return array{string, array<string, mixed>}
     */
    public function event(EventConnection $stream, ?Call $call = null): array
    {
        $ends = Clock::now() + $this->timeout;
        try {
            while (($event = $stream->next()) === null) {
                $left = $call === null ? $stream->patience() : $ends - Clock::now();
                if ($left <= 0) {
                    throw $call === null ? $this->silent() : $this->trouble->timedOut($call, $this->timeout);
                }
                Poll::wait(['events' => $stream->connection->stream], $left);
            }
        } catch (Broken $e) {
            throw $this->trouble->broken("broke the event stream ({$e->getMessage()})");
        }

        return $event;
    }

    /** Asks the sidecar for its version and features. */
    public function describe(): Description
    {
        return $this->exchange(new Call('GET', '/v1', timeout: $this->timeout, headers: ''), function (Answer $answer): Description {
            $value = $answer->result();
            $this->version = (string) $value['version'];
            $this->features = $value['features'];

            return new Description($this->version, (string) $value['api'], $value['features']);
        });
    }

    /** The session, if one is open. It reads what the sidecar has said. */
    public function liveSession(): ?Session
    {
        $this->listen();

        return $this->session === null || $this->session->ended ? null : $this->session;
    }

    /** Reads what the sidecar has said, without a wait. */
    public function listen(): void
    {
        $this->here();
        if ($this->session === null || $this->stream === null || $this->session->ended) {
            return;
        }
        try {
            while (($event = $this->stream->next()) !== null) {
                $this->session->receive(...$event);
            }
            if ($this->stream->patience() <= 0) {
                throw $this->silent();
            }
        } catch (Broken|LocksidecarException) {
            $this->endStream();
        }
    }

    /**
     * Learns whether a lock of the session is lost. It reads what the sidecar has said. A sidecar that hangs says nothing, and others get its
     * locks when their time is over. So from the half of this time on, it asks the sidecar, and a lock is lost if there is no answer by its end.
     */
    public function look(Grant $grant): void
    {
        $this->listen();
        $session = $grant->session;
        if ($session === null || $grant->lost() !== null || $grant->entries === [] || Clock::now() < $grant->askAt) {
            return;
        }
        $call = new Call('PATCH', Call::lockPath($grant->key), ['token' => $grant->token], $session->patience($grant), session: $session, headers: '');
        try {
            $this->perform($call, static fn (Answer $answer) => $grant->note($answer->result(), (float) $call->sent));
            $session->silent = false;
        } catch (LockLost|NotHolder $e) {
            $session->silent = false;
            $e->reason() === 'released' ? $session->forget($grant) : $session->lose($grant, $e->reason());
        } catch (SessionEnded) {
            $this->endStream();
        } catch (LocksidecarException) {
            $session->silent = true;
            $grant->unanswered();
            $this->giveUp($session->due(), $session);
        }
    }

    /** As `look`, and waits until the lock is lost, at most for these seconds; null: for ever. */
    public function awaitLoss(Grant $grant, ?float $seconds): void
    {
        $ends = $seconds === null ? INF : Clock::now() + $seconds;
        while (true) {
            $this->look($grant);
            $now = Clock::now();
            if ($grant->lost() !== null || $grant->entries === [] || $now >= $ends) {
                return;
            }
            $left = min($ends, $grant->session === null ? $grant->expiresAt : $grant->askAt) - $now;
            Poll::wait($this->stream === null ? [] : ['session' => $this->stream->connection->stream], max($left, 0.001));
        }
    }

    /** Whether to try an acquire again after this error: a sidecar that was reached before may come back. */
    public function mayReturn(LocksidecarException $error): bool
    {
        return $this->reached && !$this->closed
            && ($error instanceof Unavailable || $error instanceof LimitReached || $error instanceof SessionEnded || $error instanceof LockLost);
    }

    /** Ends the session, and closes all connections. */
    public function close(): void
    {
        $this->here();
        if ($this->closed) {
            return;
        }
        $session = $this->liveSession();
        $this->closed = true;
        try {
            if ($session !== null) {
                $call = new Call('DELETE', "/v1/sessions/{$session->id}", timeout: self::WITHDRAW, repeatable: false);
                $this->performClosed($call, static fn (): null => null);
            }
        } catch (LocksidecarException) {
            // the end of its stream ends it too
        } finally {
            $this->endStream();
            foreach ($this->open as $connection) {
                $this->drop($connection);
            }
            $this->idle = [];
        }
    }

    /**
     * Notices a fork. The connections are the parent's: this process closes its copies of their descriptors, which does not end them.
     */
    public function here(): void
    {
        if (self::process() === $this->pid) {
            return;
        }
        foreach ($this->open as $connection) {
            $connection->close();
        }
        $this->session?->end('forked');
        $this->open = $this->idle = [];
        $this->session = $this->stream = $this->features = null;
        $this->reached = $this->opening = false;
        $this->pid = self::process();
    }

    /** Ends a connection. In the child of a fork its copy was closed. */
    public function drop(Connection $connection): void
    {
        $this->here();
        unset($this->open[spl_object_id($connection)]);
        $connection->end();
    }

    /** The session is over, by its stream. */
    private function endStream(): void
    {
        $this->session?->end();
        if ($this->stream !== null) {
            $this->drop($this->stream->connection);
            $this->stream = null;
        }
    }

    private function silent(): NoAnswer
    {
        return $this->trouble->broken('has said nothing for ' . EventConnection::$silence . ' s', 'timeout');
    }

    private function require(Call $call): void
    {
        foreach ($this->features === null ? [] : array_diff($call->needs, $this->features) as $lacking) {
            $text = "the sidecar (version {$this->version}) has no feature \"$lacking\", which this call needs: update the sidecar, or do not use the option";
            throw new Unsupported("$text (unsupported)", 'unsupported', null, ['feature' => $lacking, 'detail' => $text]);
        }
    }

    /**
     * These locks are lost by our clock. The sidecar may have gone on in this moment, and have them.
     *
     * @param list<Grant> $grants
     */
    private function giveUp(array $grants, Session $session): void
    {
        $entries = array_merge([], ...array_map(static fn (Grant $grant): array => $grant->entries, $grants));
        foreach ($grants as $grant) {
            $session->lose($grant, 'expired');
        }
        $ends = Clock::now() + self::PARTING;
        foreach ($entries as $entry) {
            try {
                (new Release($this, $entry->grant->key, $entry->grant->token, $entry, timeout: max($ends - Clock::now(), 0.001)))->try();
            } catch (LocksidecarException) {
                // Without an answer, too: the sidecar carries it out when it goes on.
            }
        }
    }

    /**
     * @template T
     *
     * @param callable(Answer): T $taken
     *
     * @return T
     */
    private function make(Call $call, callable $taken): mixed
    {
        if ($call->delay > 0) {
            Poll::sleep($call->delay);
        }
        if ($call->joins) {
            $call->session = $this->openSession();
        } elseif ($call->needs !== [] && $this->features === null) {
            $this->describe();
        }
        $this->require($call);

        return $this->exchange($call, $taken);
    }

    /** Throws if the client was closed, so that it must not send this call, nor send it once more. */
    private function checkOpen(Call $call): void
    {
        if ($this->closed && !$call->afterClose) {
            throw $call->sent === null ? $this->trouble->closed() : $this->trouble->broken('had not answered when this client was closed');
        }
    }

    /**
     * @template T
     *
     * @param callable(Answer): T $taken
     *
     * @return T
     */
    private function exchange(Call $call, callable $taken): mixed
    {
        $began = Clock::now(); // the answer must come in its time, also on a connection that took long to open
        while (true) {
            [$connection, $reused] = $this->take($call, $began, false);
            $answer = null;
            try {
                $this->send($connection, $call, $began);
                $answer = $this->answer($connection, $call, $began);

                return $taken($answer);
            } catch (Broken $e) {
                if (!$call->again($reused, $e)) {
                    throw $this->trouble->broken("broke the connection ({$e->getMessage()})");
                }
                $this->dropIdle(); // after a restart of the sidecar all are dead
                $call->repeated = true;
            } finally {
                $this->putBack($connection, $answer);
            }
        }
    }

    /**
     * Takes an idle connection, or makes one. The other clients limit how many of theirs have sent nothing, because the sidecar ends the oldest of more than
     * 64 without a token. A PHP process makes one call at a time, so it has one such connection.
     *
     * @return array{Connection, bool} it, and whether a call was made on it before
     */
    private function take(Call $call, float $began, bool $fresh): array
    {
        $ends = $began + min($this->timeout, $call->timeout ?? INF);
        while (true) {
            $this->checkOpen($call);
            if (!$fresh && $this->idle !== []) {
                return [array_pop($this->idle), true];
            }
            $connection = new Connection($this->endpoint);
            $this->open[spl_object_id($connection)] = $connection;
            $opened = false;
            try {
                $connection->open($call->timeout === null ? null : $began + $call->timeout);
                $this->checkOpen($call); // meanwhile
                $opened = true;

                return [$connection, false];
            } catch (NoConnection $e) {
                $others = \count($this->open) > 1;
                if (Clock::now() >= $ends || !($e->isBusy() || ($e->isFull() && !$fresh && Poll::$suspend !== null && $others))) {
                    throw $this->trouble->unreachable($e);
                }
            } finally {
                if (!$opened) {
                    $this->drop($connection);
                }
            }
            Poll::sleep(self::PAUSE);
        }
    }

    private function send(Connection $connection, Call $call, float $began): void
    {
        $data = $call->encode($this->endpoint->headers(), $this);
        $call->sent = Clock::now();
        $limit = $call->timeout ?? $call->sent + $this->timeout - $began;
        while ($data !== '') {
            $sent = $connection->write($data);
            $data = substr($data, $sent);
            if ($data !== '') {
                if (Clock::now() >= $began + $limit) {
                    throw $this->trouble->timedOut($call, $limit);
                }
                Poll::wait(['call' => $connection->stream], $began + $limit - Clock::now(), true);
            }
        }
    }

    /** Waits for the answer. Meanwhile it reads what the sidecar says to the session. */
    private function answer(Connection $connection, Call $call, float $began): Answer
    {
        $parser = new AnswerParser();
        $limit = $call->timeout ?? INF;
        while (true) {
            $data = $connection->read();
            $answer = $data === '' ? null : $parser->feed($data);
            if ($answer !== null) {
                return $answer;
            }
            $left = $began + $limit - Clock::now();
            if ($left <= 0) {
                throw $this->trouble->timedOut($call, $limit);
            }
            $streams = ['call' => $connection->stream];
            if ($this->stream !== null) {
                $streams['session'] = $this->stream->connection->stream;
                $left = min($left, max(0.0, $this->stream->patience()));
            }
            $ready = Poll::wait($streams, $left === INF ? null : $left);
            if (Poll::$interrupted && Interrupts::$finishing && !$call->waits) { // somebody wants this process to do something else
                $limit = min($limit, Clock::now() - $began + self::WITHDRAW);
            }
            $silent = $this->stream !== null && $this->stream->patience() <= 0;
            if ($silent || \in_array('session', $ready, true)) {
                $this->listen();
            }
            if ($silent && $this->stream === null) { // the sidecar hangs, so the call would not end
                throw $this->silent();
            }
        }
    }

    private function putBack(Connection $connection, ?Answer $answer): void
    {
        if ($answer !== null && !$answer->isLast() && !$this->closed && \count($this->idle) < self::MOST_IDLE && isset($this->open[spl_object_id($connection)])) {
            $this->idle[] = $connection;
        } else {
            $this->drop($connection);
        }
    }

    private function dropIdle(): void
    {
        foreach ($this->idle as $connection) {
            $this->drop($connection);
        }
        $this->idle = [];
    }

    private function openSession(): Session
    {
        while ($this->opening) { // another fiber opens it
            Poll::sleep(self::PAUSE);
        }
        $session = $this->liveSession();
        if ($session !== null) {
            return $session;
        }
        $this->opening = true;
        $stream = null;
        try {
            $this->describe(); // it may be another sidecar
            $call = new Call('POST', '/v1/sessions', $this->opens, $this->timeout, needs: ['sessions']);
            $stream = $this->stream($call);
            [, $value] = $this->event($stream, $call);
            $this->session = new Session($value['session']);
            $this->stream = $stream;
            $this->reached = true;

            return $this->session;
        } finally {
            $this->opening = false;
            if ($stream !== null && $this->stream !== $stream) {
                $this->drop($stream->connection);
            }
        }
    }

    private static function process(): int
    {
        return (int) getmypid();
    }
}

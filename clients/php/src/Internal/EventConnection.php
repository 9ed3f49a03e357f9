<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * A connection that receives events: those of a key, or the session's.
 *
 * @internal
 */
final class EventConnection
{
    /** Seconds. It has a comment line every 15 s, so a sidecar that is silent for this long is gone or hangs. Tests shorten it. */
    public static float $silence = 45.0;

    private readonly StreamParser $parser;
    /** @var list<array{string, array<string, mixed>}> */
    private array $found = [];

    public function __construct(public readonly Connection $connection)
    {
        $this->parser = new StreamParser();
    }

    /**
     * The next event that has come; null: none yet. Throws Broken, or the error of an answer that is a problem.
     *
     * @return array{string, array<string, mixed>}|null
     */
    public function next(): ?array
    {
        while ($this->found === []) {
            $data = $this->connection->read();
            if ($data === '') {
                return null;
            }
            $this->found = $this->parser->feed($data);
        }

        return array_shift($this->found);
    }

    /** Seconds until a sidecar that goes on saying nothing is gone. */
    public function patience(): float
    {
        return $this->connection->heard + self::$silence - Clock::now();
    }
}

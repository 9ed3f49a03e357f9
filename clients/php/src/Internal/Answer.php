<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * One complete answer.
 *
 * @internal
 */
final class Answer
{
    public function __construct(public readonly int $status, private readonly string $head, private readonly string $body)
    {
    }

    /** The value of a header; empty if there is none. Only a few matter, so they are not all parsed. */
    public static function header(string $head, string $name): string
    {
        return preg_match('/^' . $name . ':[ \t]*([^\r\n]*?)[ \t]*\r?$/mi', $head, $match) === 1 ? $match[1] : '';
    }

    /** Whether the connection closes after it. */
    public function isLast(): bool
    {
        return strcasecmp(self::header($this->head, 'connection'), 'close') === 0;
    }

    /**
     * The body of a success. Throws the error of anything else.
     *
     * @return array<string, mixed>
     */
    public function result(): array
    {
        try {
            $value = Check::fromJson($this->body);
        } catch (\JsonException) {
            throw Problem::notLocksidecar("the answer (status {$this->status}) is not JSON, but " . Check::show(substr($this->body, 0, 80)));
        }
        if ($this->status >= 200 && $this->status < 300 && \is_array($value)) {
            return $value;
        }
        throw Problem::error($value, $this->status, self::header($this->head, 'retry-after'));
    }
}

<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * Parses an answer that is a stream of server-sent events.
 *
 * @internal
 */
final class StreamParser
{
    private readonly AnswerParser $head;
    private string $buffer = '';

    public function __construct()
    {
        $this->head = new AnswerParser();
    }

    /**
     * Takes more bytes. Returns the names and the JSON of the events that they complete, without comments. Throws the error if the answer is a
     * problem.
     *
     * @return list<array{string, array<string, mixed>}>
     */
    public function feed(string $data): array
    {
        $answer = $this->head->feed($data);
        if ($answer !== null) {
            $answer->result();
            throw Problem::notLocksidecar('the answer is not an event stream');
        }
        if (!$this->head->isStreaming()) {
            return [];
        }
        $this->buffer .= $this->head->rest();
        $found = [];
        while (($ends = strpos($this->buffer, "\n\n")) !== false) {
            $event = self::parse(substr($this->buffer, 0, $ends));
            $this->buffer = substr($this->buffer, $ends + 2);
            if ($event !== null) {
                $found[] = $event;
            }
        }

        return $found;
    }

    /** @return array{string, array<string, mixed>}|null */
    private static function parse(string $block): ?array
    {
        $name = 'message';
        $lines = [];
        foreach (explode("\n", $block) as $line) {
            [$field, $value] = explode(':', $line, 2) + [1 => ''];
            $value = str_starts_with($value, ' ') ? substr($value, 1) : $value;
            if ($field === 'event') {
                $name = $value;
            } elseif ($field === 'data') {
                $lines[] = $value;
            }
        }
        if ($lines === []) {
            return null;
        }
        try {
            $data = Check::fromJson(implode("\n", $lines));
        } catch (\JsonException) {
            $data = null;
        }
        if (!\is_array($data)) {
            throw Problem::notLocksidecar('the event stream is broken');
        }

        return [$name, $data];
    }
}

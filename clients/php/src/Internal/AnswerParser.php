<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * Parses one answer of HTTP/1.1 as its bytes arrive. Only what the sidecar speaks: answers with a length or in chunks.
 *
 * @internal
 */
final class AnswerParser
{
    private const MAX_HEAD = 64 * 1024;

    private string $buffer = '';
    private ?string $head = null;
    private int $status = 0;
    private int $length = 0;
    private ?Chunks $chunks = null;

    /** Whether the head is complete and a body in chunks follows: see `rest`. */
    public function isStreaming(): bool
    {
        return $this->chunks !== null;
    }

    /** Takes more bytes. Returns the answer when it is complete. */
    public function feed(string $data): ?Answer
    {
        $this->buffer .= $data;
        if ($this->head === null && !$this->readHead()) {
            return null;
        }
        if ($this->chunks !== null || \strlen($this->buffer) < $this->length) {
            return null;
        }

        return new Answer($this->status, (string) $this->head, substr($this->buffer, 0, $this->length));
    }

    /** The part of a body in chunks that arrived since the last call, decoded. */
    public function rest(): string
    {
        $data = $this->buffer;
        $this->buffer = '';

        return $this->chunks?->feed($data) ?? '';
    }

    private function readHead(): bool
    {
        $ends = strpos($this->buffer, "\r\n\r\n");
        if ($ends === false) {
            if (\strlen($this->buffer) > self::MAX_HEAD || !str_starts_with('HTTP/1.1 ', substr($this->buffer, 0, 9))) {
                throw $this->notHttp($this->buffer);
            }

            return false;
        }
        $this->head = substr($this->buffer, 0, $ends + 4);
        $this->buffer = substr($this->buffer, $ends + 4);
        if (preg_match('~^HTTP/1\.1 (\d{3})~', $this->head, $match) !== 1) {
            throw $this->notHttp($this->head);
        }
        $this->status = (int) $match[1];
        if ($this->status < 200 && $this->status !== 101) { // such as 103 Early Hints of a proxy: the answer follows
            $this->head = null;

            return $this->readHead();
        }
        $length = Answer::header($this->head, 'content-length');
        if (ctype_digit($length)) {
            $this->length = (int) $length;
        } elseif (strcasecmp(Answer::header($this->head, 'transfer-encoding'), 'chunked') === 0) {
            $this->chunks = new Chunks();
        } else {
            throw $this->notHttp($this->head);
        }

        return true;
    }

    private function notHttp(string $data): \Exception
    {
        return Problem::notLocksidecar('the answer is not HTTP/1.1, but ' . Check::show(substr($data, 0, 40)));
    }
}

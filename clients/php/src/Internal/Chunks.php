<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * Removes the framing from a body in chunks.
 *
 * @internal
 */
final class Chunks
{
    private string $buffer = '';
    /** Bytes left of this chunk and its line end. */
    private int $left = 0;
    private bool $ended = false;

    /** Takes more bytes. Returns their content. */
    public function feed(string $data): string
    {
        $this->buffer .= $data;
        $content = '';
        while (!$this->ended && ($this->left > 0 || $this->readSize()) && $this->buffer !== '') {
            $piece = substr($this->buffer, 0, $this->left);
            $this->buffer = substr($this->buffer, \strlen($piece));
            $content .= substr($piece, 0, max(0, min(\strlen($piece), $this->left - 2)));
            $this->left -= \strlen($piece);
        }

        return $content;
    }

    private function readSize(): bool
    {
        $ends = strpos($this->buffer, "\r\n");
        if ($ends === false) {
            return false;
        }
        if (preg_match('/\A[0-9a-f]{1,8}/i', $this->buffer, $match) !== 1) {
            throw Problem::notLocksidecar('the event stream is broken');
        }
        $this->buffer = substr($this->buffer, $ends + 2);
        $size = (int) hexdec($match[0]);
        $this->ended = $size === 0;
        $this->left = $size + 2;

        return !$this->ended;
    }
}

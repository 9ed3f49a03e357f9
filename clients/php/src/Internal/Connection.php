<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * One connection to the sidecar, without waits.
 *
 * @internal
 */
final class Connection
{
    /** When something came the last time. */
    public float $heard;

    /** @param resource $stream */
    private function __construct(public $stream)
    {
        $this->heard = Clock::now();
    }

    public static function open(string $path, float $timeout): self
    {
        if (\strlen($path) > 107) {
            throw new NoConnection('the path is too long: a socket\'s path has at most 107 bytes');
        }
        $number = 0;
        $text = '';
        $stream = Quiet::call(static function () use ($path, $timeout, &$number, &$text): mixed {
            return stream_socket_client("unix://$path", $number, $text, $timeout);
        });
        if ($stream === false) {
            throw new NoConnection($text !== '' ? $text : Quiet::$warning, $number);
        }
        stream_set_blocking($stream, false);

        return new self($stream);
    }

    /** Sends a part. Returns how many bytes; 0: nothing now. */
    public function write(string $data): int
    {
        $this->checkOpen();
        $sent = Quiet::call(fn (): int|false => fwrite($this->stream, $data));
        if ($sent === false || ($sent === 0 && Quiet::$warning !== '')) {
            if (str_contains(Quiet::$warning, 'errno=11')) {
                return 0;
            }
            throw new Broken(Quiet::$warning);
        }

        return $sent;
    }

    /** What has come; empty: nothing yet. */
    public function read(): string
    {
        $this->checkOpen();
        $data = Quiet::call(fn (): string|false => fread($this->stream, 65_536));
        if (\is_string($data) && $data !== '') {
            $this->heard = Clock::now();

            return $data;
        }
        if (feof($this->stream) || Quiet::$warning !== '') {
            throw new Broken(Quiet::$warning !== '' ? Quiet::$warning : 'it was closed');
        }

        return '';
    }

    /** Ends the connection, also if other processes have copies of its descriptor. */
    public function end(): void
    {
        if (\is_resource($this->stream)) {
            Quiet::call(fn (): bool => stream_socket_shutdown($this->stream, STREAM_SHUT_RDWR));
        }
        $this->close();
    }

    /** Closes the descriptor of this process. */
    public function close(): void
    {
        if (\is_resource($this->stream)) {
            Quiet::call(fn (): bool => fclose($this->stream));
        }
    }

    /** A handler of a signal may have closed the client during a wait. */
    private function checkOpen(): void
    {
        if (!\is_resource($this->stream)) {
            throw new Broken('this client has closed it');
        }
    }
}

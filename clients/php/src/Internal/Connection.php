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
    /** The most seconds until a connection is open. */
    private const DIAL = 5.0;
    /**
     * Seconds. A peer that vanishes closes nothing. So the system probes one that says nothing, and ends the connection when nothing has come for so
     * long.
     */
    private const PROBE = 3;
    private const SILENCE = 15;

    /** When something came the last time. */
    public float $heard;
    /** @var resource|null null: it is not open yet */
    public $stream = null;

    public function __construct(private readonly Endpoint $endpoint)
    {
        $this->heard = Clock::now();
    }

    /** Opens it, at most until this time; null: for as long as that takes at most. A signal's handler may throw where it waits. */
    public function open(?float $ends): void
    {
        $ends = min($ends ?? INF, Clock::now() + self::DIAL);
        if ($this->endpoint->path !== '') {
            $this->openSocket($this->endpoint->path, $ends - Clock::now());

            return;
        }
        $context = $this->endpoint->context();
        $failed = null;
        foreach ($this->endpoint->addresses() as $address) {
            try {
                $this->dial($address, $context, $ends);

                return;
            } catch (NoConnection $e) {
                $this->end();
                $failed ??= $e;
            }
        }
        throw $failed ?? new NoConnection('the host has no address');
    }

    /** Sends a part. Returns how many bytes; 0: nothing now. */
    public function write(#[\SensitiveParameter] string $data): int
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

    private function openSocket(string $path, float $timeout): void
    {
        if (\strlen($path) > 107) {
            throw new NoConnection('the path is too long: a socket\'s path has at most 107 bytes');
        }
        $number = 0;
        $text = '';
        $stream = Quiet::call(static function () use ($path, $timeout, &$number, &$text): mixed {
            return stream_socket_client("unix://$path", $number, $text, $timeout);
        });
        $this->stream = $stream === false ? throw new NoConnection($text !== '' ? $text : Quiet::$warning, $number) : $stream;
        stream_set_blocking($this->stream, false);
        $this->heard = Clock::now();
    }

    /**
     * Connects over TCP, and shakes hands.
     *
     * @param resource $context
     */
    private function dial(string $address, mixed $context, float &$ends): void
    {
        $number = 0;
        $text = '';
        $stream = Quiet::call(static function () use ($address, $context, &$number, &$text): mixed {
            return stream_socket_client("tcp://$address", $number, $text, null, STREAM_CLIENT_CONNECT | STREAM_CLIENT_ASYNC_CONNECT, $context);
        });
        $this->stream = $stream === false ? throw new NoConnection(preg_replace('/^.*?\(\): /', '', Quiet::$warning !== '' && $text === '' ? Quiet::$warning : $text), $number) : $stream;
        stream_set_blocking($this->stream, false);
        $this->noticeSilence();
        $this->await($ends, true);
        if (stream_socket_get_name($this->stream, true) === false) {
            $this->throwWhy();
        }
        if ($this->endpoint->encrypted) {
            $this->shakeHands($ends);
        }
        $this->heard = Clock::now();
    }

    private function shakeHands(float &$ends): void
    {
        $methods = STREAM_CRYPTO_METHOD_TLSv1_2_CLIENT | STREAM_CRYPTO_METHOD_TLSv1_3_CLIENT;
        while (($done = Quiet::call(fn (): int|bool => stream_socket_enable_crypto($this->stream, true, $methods))) !== true) {
            if ($done === false) {
                throw new NoConnection(trim((string) preg_replace('/^\w+\(\): |SSL operation failed with code \d+. OpenSSL Error messages:|\s+/', ' ', Quiet::$warning)), 0, true);
            }
            $this->await($ends, false);
        }
    }

    /** Waits until something comes or can be sent, until the end of the time, or of two seconds after a signal that must not end this. */
    private function await(float &$ends, bool $write): void
    {
        $left = $ends - Clock::now();
        if ($left <= 0) {
            throw new NoConnection('no connection in time', 110);
        }
        try {
            $ready = Poll::wait(['call' => $this->stream], $left, $write);
        } catch (Broken $e) {
            throw new NoConnection($e->getMessage());
        }
        if (!\is_resource($this->stream)) {
            throw new NoConnection('this client has closed it');
        }
        if (Poll::$interrupted && Interrupts::$finishing) {
            $ends = min($ends, Clock::now() + Transport::WITHDRAW);
        }
        if ($ready === []) {
            $this->await($ends, $write);
        }
    }

    /** Says why there is no connection: PHP tells it when something is written. */
    private function throwWhy(): never
    {
        Quiet::call(fn (): int|false => fwrite($this->stream, "\n"));
        $known = preg_match('/errno=(\d+) (.*)/', Quiet::$warning, $match) === 1;
        throw new NoConnection($known ? $match[2] : 'no connection', $known ? (int) $match[1] : 0);
    }

    /** Only the extension sockets can set it. Without it, each call still has its limit, and a session that of its comment lines. */
    private function noticeSilence(): void
    {
        $socket = \function_exists('socket_import_stream') ? Quiet::call(fn (): mixed => socket_import_stream($this->stream)) : false;
        if (!$socket instanceof \Socket) {
            return;
        }
        Quiet::call(static function () use ($socket): bool {
            socket_set_option($socket, SOL_SOCKET, SO_KEEPALIVE, 1);
            // PHP has no names of these before 8.3: TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT.
            $options = PHP_OS_FAMILY === 'Linux' ? [4 => self::PROBE, 5 => self::PROBE, 6 => intdiv(self::SILENCE, self::PROBE), 18 => self::SILENCE * 1000] : [];
            foreach ($options as $option => $value) {
                socket_set_option($socket, SOL_TCP, $option, $value);
            }

            return true;
        });
    }

    /** A handler of a signal may have closed the client during a wait. */
    private function checkOpen(): void
    {
        if (!\is_resource($this->stream)) {
            throw new Broken('this client has closed it');
        }
    }
}

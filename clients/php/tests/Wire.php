<?php

declare(strict_types=1);

namespace Locksidecar\Tests;

/** A relay in a process of its own, which carries nothing while it is mute. Nothing is closed then, as if a cable was pulled. */
final class Wire
{
    private const CODE = <<<'PHP'
        $listener = stream_socket_server('tcp://127.0.0.1:0');
        echo substr(strrchr(stream_socket_get_name($listener, false), ':'), 1), "\n";
        [$to, $mute, $open] = [[], false, []];
        while (true) {
            $reads = [STDIN, $listener, ...$open];
            $none = [];
            stream_select($reads, $none, $none, 3600);
            foreach ($reads as $stream) {
                if ($stream === STDIN) {
                    $word = fgets(STDIN) or exit;
                    $mute = $word === "mute\n";
                    echo "done\n";
                } elseif ($stream === $listener) {
                    [$client, $server] = [stream_socket_accept($listener), stream_socket_client("tcp://127.0.0.1:$argv[1]")];
                    [$to[(int) $client], $to[(int) $server]] = [$server, $client];
                    array_push($open, $client, $server);
                } else {
                    $data = (string) fread($stream, 65536);
                    if ($data !== '') {
                        $mute || fwrite($to[(int) $stream], $data);
                    } elseif (feof($stream)) {
                        $mute || stream_socket_shutdown($to[(int) $stream], STREAM_SHUT_WR);
                        $open = array_filter($open, fn ($one) => $one !== $stream);
                    }
                }
            }
        }
        PHP;

    public readonly int $port;
    /** @var resource */
    private $process;
    /** @var array<int, resource> */
    private array $pipes;

    public function __construct(int $upstream)
    {
        $process = proc_open([PHP_BINARY, '-r', self::CODE, '--', (string) $upstream], [['pipe', 'r'], ['pipe', 'w']], $pipes);
        $this->process = \is_resource($process) ? $process : throw new \RuntimeException('no relay');
        $this->pipes = $pipes;
        $this->port = (int) fgets($pipes[1]);
    }

    public function __destruct()
    {
        proc_terminate($this->process, 9);
    }

    public function mute(bool $mute = true): void
    {
        fwrite($this->pipes[0], $mute ? "mute\n" : "open\n");
        fgets($this->pipes[1]);
    }
}

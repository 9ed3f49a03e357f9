<?php

declare(strict_types=1);

namespace Locksidecar\Tests;

use Locksidecar\Internal\Poll;
use Locksidecar\Tests\Contract\Tasks;

/** A relay that loses answers. The sidecar's side of such a connection stays open. It runs in fibers, so its clients must, too. */
final class Relay
{
    public readonly string $path;
    /** The number of answers to acquires that it loses. */
    public int $lose = 0;
    /** The number of answers to releases that it loses. */
    public int $loseReleases = 0;
    /** The number of answers to acquires in whose place it writes what nobody can read. */
    public int $spoil = 0;
    /** Whether it ends connections with releases, which do not arrive. */
    public bool $refuse = false;
    /** Whether it loses the client's questions for its locks. */
    public bool $mute = false;
    /** @var list<resource> */
    private array $kept = [];

    public function __construct(private readonly Tasks $tasks, string $upstream)
    {
        $this->path = sys_get_temp_dir() . '/relay-' . bin2hex(random_bytes(4)) . '.sock';
        $listener = stream_socket_server("unix://{$this->path}") ?: throw new \RuntimeException('no relay');
        stream_set_blocking($listener, false);
        $this->kept[] = $listener;
        $this->tasks->start(function () use ($listener, $upstream): never {
            while (true) {
                Poll::wait(['listener' => $listener], 3600);
                $client = @stream_socket_accept($listener, 0);
                if ($client !== false) {
                    $server = stream_socket_client("unix://$upstream") ?: throw new \RuntimeException('no sidecar');
                    stream_set_blocking($client, false);
                    stream_set_blocking($server, false);
                    $this->kept[] = $server;
                    $this->tasks->start(fn () => $this->pass($client, $server));
                }
            }
        });
    }

    public function __destruct()
    {
        unlink($this->path);
    }

    /**
     * @param resource $client
     * @param resource $server
     */
    private function pass($client, $server): void
    {
        $lost = $acquires = false;
        while (true) {
            Poll::wait(['client' => $client, 'server' => $server], 3600);
            $question = (string) fread($client, 65_536);
            $answer = (string) fread($server, 65_536);
            if ($question !== '') {
                if ($this->refuse && str_starts_with($question, 'DELETE /v1/locks/')) {
                    fclose($client);
                    fclose($server);

                    return;
                }
                if (!(str_starts_with($question, 'PATCH ') && $this->mute)) {
                    $lost = $lost || $this->loses($question);
                    $acquires = preg_match('~^(PUT|POST /v1/locks)~', $question) === 1;
                    fwrite($server, $question);
                }
            } elseif (feof($client) || feof($server) || ($answer !== '' && $lost)) {
                fclose($client);
                $lost || fclose($server);

                return;
            }
            if ($answer !== '') {
                $spoils = $acquires && $this->spoil > 0 && $this->spoil-- > 0;
                fwrite($client, $spoils ? "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{not JSON" : $answer);
            }
        }
    }

    private function loses(string $question): bool
    {
        if ($this->lose > 0 && preg_match('~^(PUT|POST /v1/locks)~', $question) === 1) {
            --$this->lose;

            return true;
        }
        if ($this->loseReleases > 0 && str_starts_with($question, 'DELETE /v1/locks/')) {
            --$this->loseReleases;

            return true;
        }

        return false;
    }
}

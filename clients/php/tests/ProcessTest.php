<?php

declare(strict_types=1);

namespace Locksidecar\Tests;

/** Forks, ends of processes, prefork servers, descriptors. */
final class ProcessTest extends ClientCase
{
    /** Proves: client forks */
    public function testAChildHasASessionOfItsOwn(): void
    {
        $client = $this->client();
        $lock = $client->lock($this->key);
        $said = $this->inChild(function () use ($client, $lock): array {
            $reason = $lock->lost()?->reason();
            $own = $client->acquire("$this->key:2", wait: 0);
            $refused = $client->tryAcquire($this->key);
            unset($lock);

            return [$reason, $refused, $own->release(), $client->get($this->key)->mine];
        });
        self::assertSame(['forked', null, true, false], $said);
        self::assertNull($lock->check()->stopping);
        self::assertNull($lock->lost());
        self::assertTrue($lock->release());
    }

    /** Proves: client forks */
    public function testAChildThatEndsLeavesTheParentsLocks(): void
    {
        $client = $this->client();
        $lock = $client->lock($this->key);
        $lasting = $client->lock("$this->key:2", bind: 'ttl', ttl: 3600);
        self::assertSame('end', $this->inChild(function () use (&$lock, &$lasting): string {
            $lock = $lasting = null; // the destructors in the child

            return 'end';
        }, true));
        self::assertNull($lock->lost());
        self::assertTrue($client->get($this->key)->mine);
        self::assertTrue($lock->release());
        self::assertTrue($lasting->release());
    }

    /** Proves: client forks */
    public function testAChildDoesNotKeepTheLocksOfADeadParent(): void
    {
        [$parent, , $output] = $this->php('$client->acquire($key); if (pcntl_fork() === 0) { $client->afterFork(); echo getmypid(), "\n"; sleep(600); exit; }'
            . ' sleep(600);');
        $child = (int) self::line($output);
        self::assertTrue($this->client()->get($this->key)->isHeld());
        proc_terminate($parent, 9);
        $this->free($this->key);
        posix_kill($child, 9);
        proc_close($parent);
    }

    /** @dataProvider ends */
    public function testTheEndOfAProcessFreesItsLocks(string $end): void
    {
        [$process, $input, $output] = $this->php('$client->acquire($key); echo "held\n"; fgets(STDIN); ' . $end);
        self::assertSame('held', self::line($output));
        self::assertTrue($this->client()->get($this->key)->isHeld());
        fwrite($input, "go\n");
        fclose($input);
        proc_close($process);
        $this->free($this->key);
    }

    /** @return iterable<string, array{string}> */
    public static function ends(): iterable
    {
        yield 'exit' => ['exit(1);'];
        yield 'a fatal error' => ['ini_set("memory_limit", "4M"); str_repeat("a", 1 << 30);'];
        yield 'an exception' => ['throw new Exception();'];
    }

    public function testAKilledProcess(): void
    {
        [$process, , $output] = $this->php('$client->acquire($key); echo "held\n"; sleep(600);');
        self::assertSame('held', self::line($output));
        proc_terminate($process, 9);
        $this->free($this->key);
        proc_close($process);
    }

    /** Requests in the workers of a server: each has its session, which ends with the request, also after a fatal error. */
    public function testAPreforkServer(): void
    {
        $script = sys_get_temp_dir() . '/locksidecar-' . bin2hex(random_bytes(4)) . '.php';
        file_put_contents($script, '<?php require ' . var_export(__DIR__ . '/autoload.php', true) . ';'
            . '$client = new Locksidecar\Client(); $lock = $client->acquire($_GET["key"], wait: 30); usleep(20000); echo $lock->token;'
            . 'if (isset($_GET["die"])) { str_repeat("a", PHP_INT_MAX - 100); }');
        $environment = [...getenv(), 'PHP_CLI_SERVER_WORKERS' => '4', 'LOCKSIDECAR_SOCKET' => self::path()];
        $log = tempnam(sys_get_temp_dir(), 'locksidecar-');
        self::assertIsString($log);
        $said = static fn (string $line): bool => str_contains((string) file_get_contents($log), $line);
        do { // below the ports that the system gives to connections
            $port = random_int(20_000, 32_000);
            file_put_contents($log, '');
            $server = proc_open(['setsid', PHP_BINARY, '-d', 'display_errors=0', '-S', "127.0.0.1:$port", $script], [['file', '/dev/null', 'r'], ['file', '/dev/null', 'w'], ['file', $log, 'a']], $pipes, null, $environment);
            self::assertIsResource($server);
            self::assertTrue($this->tasks->until(static fn (): bool => $said('started') || $said('Failed to listen')));
        } while ($said('Failed to listen') && proc_close($server) >= 0);
        try {
            $requests = [];
            for ($n = 0; $n < 12; ++$n) {
                $request = stream_socket_client("tcp://127.0.0.1:$port");
                self::assertNotFalse($request);
                fwrite($request, 'GET /?key=' . rawurlencode($this->key) . ($n % 3 === 0 ? '&die=1' : '') . " HTTP/1.0\r\n\r\n");
                $requests[] = $request;
            }
            $tokens = [];
            foreach ($requests as $n => $request) {
                $answer = (string) stream_get_contents($request);
                if ($n % 3 !== 0) {
                    $tokens[] = (int) substr((string) strstr($answer, "\r\n\r\n"), 4);
                }
            }
            self::assertCount(8, array_unique(array_filter($tokens)));
            $this->free($this->key);
        } finally {
            posix_kill(-proc_get_status($server)['pid'], 9); // its workers, too
            proc_close($server);
            unlink($script);
            unlink($log);
        }
    }

    /** Proves: client descriptors */
    public function testAReleaseGetsThroughWithoutDescriptors(): void
    {
        $code = '$client->lock($key)->release(); try { (new Client("/nowhere"))->lock("k"); } catch (Throwable) { } $other = new Client('
            . var_export(self::path(), true) . '); $lock = $client->acquire($key); $open = [];' // all classes are loaded
            . 'while (($file = @fopen("/dev/null", "r")) !== false) { $open[] = $file; }'
            . 'try { $other->lock("k"); } catch (Throwable $e) { echo $e->getMessage(), "\n"; } echo json_encode($lock->release()), "\n";';
        [$process, , $output] = $this->php($code, ['sh', '-c', 'ulimit -n 256; exec "$@"', '-']);
        self::assertStringContainsString('no free file descriptor', self::line($output));
        self::assertSame('true', self::line($output));
        $this->free($this->key);
        proc_close($process);
    }

    /** Proves: client own clock */
    public function testALockStaysWithoutAFreeDescriptor(): void
    {
        // The app has all descriptors. The client asks on a connection that it has kept.
        $code = '$client->lock($key)->release(); $lock = $client->acquire($key, ttl: 4); $lock->waitLost(3); $lock->check(); $open = [];' // all classes are loaded
            . 'while (($file = @fopen("/dev/null", "r")) !== false) { $open[] = $file; }'
            . 'echo json_encode([$lock->waitLost(6), $lock->check()->expiresIn > 0, $lock->release()]), "\n";';
        [$process, , $output] = $this->php($code, ['sh', '-c', 'ulimit -n 256; exec "$@"', '-']);
        self::assertSame('[null,true,true]', self::line($output));
        proc_close($process);
    }

    /**
     * The result of `$work` in a forked child.
     *
     * @param callable(): mixed $work
     */
    private function inChild(callable $work, bool $destructs = false): mixed
    {
        $pair = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        self::assertNotFalse($pair);
        $pid = pcntl_fork();
        if ($pid === 0) {
            pcntl_alarm(self::LONG); // ends a child that hangs
            try {
                $value = $work();
            } catch (\Throwable $e) {
                $value = (string) $e;
            }
            fwrite($pair[1], serialize($value));
            fclose($pair[0]);
            fclose($pair[1]);
            if ($destructs) { // those of the client and its locks, as at the end of a script; not of PHPUnit
                $this->tearDown();
            }
            posix_kill((int) getmypid(), 9);
        }
        fclose($pair[1]);
        $said = (string) stream_get_contents($pair[0]);
        pcntl_waitpid($pid, $status);

        return unserialize($said);
    }
}

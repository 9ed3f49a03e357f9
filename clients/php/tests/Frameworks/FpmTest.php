<?php

declare(strict_types=1);

namespace Locksidecar\Tests\Frameworks;

use Locksidecar\Tests\ClientCase;

/** A real php-fpm. Each request has a session of its own, which ends with it, however it ends; its worker goes on. */
final class FpmTest extends ClientCase
{
    private const SCRIPT = <<<'PHP'
        $client = new Locksidecar\Client();
        $lock = $client->acquire($_SERVER['LOCK'], wait: 30);
        $kept = $client->acquire("{$_SERVER['LOCK']}:second");
        echo json_encode([getmypid(), $lock->token, count(scandir('/proc/self/fd')), memory_get_usage()]);
        flush(); // otherwise a fatal error clears it
        register_shutdown_function(fn () => print(' over'));
        match ($_SERVER['END']) {
            'return' => null,
            'exit' => exit(1),
            'fatal' => str_repeat('a', PHP_INT_MAX - 100),
            'timeout' => set_time_limit(1) && (function () { while (true); })(),
            'throw' => throw new Exception('x'),
            'release' => $lock->release(),
        };
        PHP;

    private string $folder;
    /** @var resource */
    private $server;

    protected function setUp(): void
    {
        parent::setUp();
        $programs = glob('/usr/sbin/php-fpm*') ?: [];
        self::assertNotSame([], $programs, 'php-fpm is not installed');
        $this->folder = sys_get_temp_dir() . '/fpm-' . bin2hex(random_bytes(4));
        mkdir($this->folder);
        file_put_contents("$this->folder/index.php", '<?php require ' . var_export(\dirname(__DIR__) . '/autoload.php', true) . '; ' . self::SCRIPT);
        $user = posix_getuid() === 0 ? "user = root\ngroup = root\n" : '';
        file_put_contents("$this->folder/fpm.conf", "[global]\nerror_log = $this->folder/log\ndaemonize = no\n[www]\n{$user}listen = $this->folder/s.sock\npm = static\n"
            . "pm.max_children = 2\nclear_env = no\nphp_admin_value[memory_limit] = 64M\nphp_admin_value[output_buffering] = 0\nphp_admin_flag[log_errors] = off\nphp_admin_flag[display_errors] = off\n");
        $null = ['file', '/dev/null', 'w'];
        $server = proc_open([$programs[0], '-R', '-F', '-y', "$this->folder/fpm.conf"], [['file', '/dev/null', 'r'], $null, $null], $pipes, null, [...getenv(), 'LOCKSIDECAR_SOCKET' => self::path()]);
        $this->server = \is_resource($server) ? $server : self::fail('php-fpm does not start');
        self::assertTrue($this->tasks->until(fn (): bool => str_contains((string) @file_get_contents("$this->folder/log"), 'ready to handle connections')));
    }

    protected function tearDown(): void
    {
        proc_terminate($this->server);
        proc_close($this->server);
        array_map(unlink(...), glob("$this->folder/*") ?: []);
        rmdir($this->folder);
        parent::tearDown();
    }

    /** @dataProvider ends */
    public function testTheEndOfARequestFreesItsLocks(string $end): void
    {
        [$worker] = $this->answer($this->ask($end));
        self::assertTrue(posix_kill($worker, 0), 'the worker goes on');
        $this->free($this->key);
        $this->free("$this->key:second");
    }

    /** @return iterable<string, array{string}> */
    public static function ends(): iterable
    {
        foreach (['return', 'exit', 'fatal', 'timeout', 'throw', 'release'] as $end) {
            yield $end => [$end];
        }
    }

    /** Requests that want the same lock get it one after the other, although there are fewer workers. */
    public function testRequestsExcludeEachOther(): void
    {
        $requests = array_map(fn (int $n): mixed => $this->ask(['return', 'exit', 'fatal'][$n % 3]), range(1, 12));
        $tokens = array_map(fn (mixed $request): int => $this->answer($request)[1], $requests);
        self::assertCount(12, array_unique($tokens));
        $this->free($this->key);
    }

    /** A worker that has served many requests has no more descriptors and no more memory than after its first ones. */
    public function testAWorkerKeepsNothing(): void
    {
        $first = $last = [];
        for ($n = 0; $n < 100; ++$n) {
            [$worker, , $descriptors, $memory] = $this->answer($this->ask(['return', 'exit', 'release'][$n % 3]));
            $n < 10 ? $first[$worker] = [$descriptors, $memory] : $last[$worker] = [$descriptors, $memory];
        }
        self::assertNotSame([], $last);
        foreach ($last as $worker => [$descriptors, $memory]) {
            self::assertArrayHasKey($worker, $first, 'a worker has ended');
            self::assertSame($first[$worker][0], $descriptors);
            self::assertLessThan($first[$worker][1] + 65_536, $memory);
        }
    }

    /**
     * Sends a request of FastCGI.
     *
     * @return resource the connection
     */
    private function ask(string $end): mixed
    {
        $connection = stream_socket_client("unix://$this->folder/s.sock");
        self::assertNotFalse($connection);
        $parameters = '';
        foreach (['SCRIPT_FILENAME' => "$this->folder/index.php", 'REQUEST_METHOD' => 'GET', 'LOCK' => $this->key, 'END' => $end] as $name => $value) {
            $parameters .= \chr(\strlen($name)) . \chr(\strlen($value)) . $name . $value;
        }
        $record = static fn (int $type, string $content): string => pack('CCnnCC', 1, $type, 1, \strlen($content), 0, 0) . $content;
        fwrite($connection, $record(1, pack('nCx5', 1, 0)) . $record(4, $parameters) . $record(4, '') . $record(5, ''));

        return $connection;
    }

    /**
     * What the script has said.
     *
     * @param resource $connection
     *
     * @return list<int>
     */
    private function answer(mixed $connection): array
    {
        $all = (string) stream_get_contents($connection);
        fclose($connection); // as a web server does: the worker waits for that before its next request
        self::assertStringContainsString(' over', $all, $all);
        self::assertSame(1, preg_match('/\[[\d,]+\]/', $all, $said), $all);

        return json_decode($said[0]);
    }
}

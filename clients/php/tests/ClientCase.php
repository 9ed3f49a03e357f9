<?php

declare(strict_types=1);

namespace Locksidecar\Tests;

use Locksidecar\Client;
use Locksidecar\Testing\Sidecar;
use Locksidecar\Tests\Contract\Task;
use Locksidecar\Tests\Contract\Tasks;
use PHPUnit\Framework\TestCase;
use Psr\Log\AbstractLogger;

/** What the tests of the client have in common: a real sidecar, keys of their own, and calls at the same time in fibers. */
abstract class ClientCase extends TestCase
{
    protected const LONG = 60;

    /** Its TTL is an hour, so no lock expires during a test. */
    private static ?Sidecar $shared = null;
    protected string $key;
    /** @var \ArrayObject<int, string> what the clients have said to nobody else */
    protected \ArrayObject $said;
    protected Tasks $tasks;
    protected ?Sidecar $sidecar = null;
    /** @var list<Client> */
    private array $made = [];

    protected function setUp(): void
    {
        self::$shared ??= Sidecar::start(['TTL' => '1h']);
        $this->key = 'test:' . bin2hex(random_bytes(8));
        $this->said = new \ArrayObject();
        $this->tasks = new Tasks();
    }

    protected function tearDown(): void
    {
        foreach ($this->made as $client) {
            $client->close();
        }
        $this->tasks->close();
        $this->sidecar?->close();
    }

    /** The socket of the sidecar of all tests that do not stop it. */
    protected static function path(): string
    {
        return self::$shared?->path ?? throw new \LogicException('setUp has not run');
    }

    /** A sidecar of this test. */
    protected function own(string ...$settings): Sidecar
    {
        return $this->sidecar ??= Sidecar::start($settings);
    }

    protected function client(?string $path = null, mixed ...$options): Client
    {
        $logger = new class($this->said) extends AbstractLogger {
            public function __construct(private readonly \ArrayObject $said)
            {
            }

            public function log($level, $message, array $context = []): void
            {
                $this->said[] = $message;
            }
        };

        return $this->made(new Client($path ?? self::path(), ...['logger' => $logger, ...$options]));
    }

    /** It is closed after the test. */
    protected function made(Client $client): Client
    {
        return $this->made[] = $client;
    }

    /** @param callable(): mixed $work */
    protected function aside(callable $work): Task
    {
        return $this->tasks->start($work);
    }

    protected function result(Task $task): mixed
    {
        self::assertTrue($this->tasks->until(static fn (): bool => $task->done), 'it does not end');

        return $task->error === null ? $task->value : throw $task->error;
    }

    /**
     * The error of a class that `$work` throws.
     *
     * @template T of \Throwable
     *
     * @param class-string<T> $class
     * @param callable(): mixed $work
     *
     * @return T
     */
    protected static function thrown(string $class, callable $work): \Throwable
    {
        try {
            $work();
        } catch (\Throwable $e) {
            self::assertInstanceOf($class, $e, (string) $e);

            return $e;
        }
        self::fail("no $class was thrown");
    }

    protected function waiting(string $key, int $count = 1, ?string $path = null): void
    {
        $client = $this->client($path);
        self::assertTrue($this->tasks->until(static fn (): bool => $client->get($key, fresh: true)->queueLength === $count), "not $count wait");
    }

    protected function free(string $key, ?string $path = null): void
    {
        $client = $this->client($path);
        self::assertTrue($this->tasks->until(static function () use ($client, $key): bool {
            $info = $client->get($key, fresh: true);

            return $info->isFree() && $info->queueLength === 0;
        }), "$key is not free");
    }

    /**
     * Runs PHP code in a process of its own, with the client loaded and `$key` set.
     *
     * @param list<string> $before the command that runs it
     *
     * @return array{resource, resource, resource} the process, its input and its output
     */
    protected function php(string $code, array $before = []): array
    {
        $code = 'require ' . var_export(__DIR__ . '/autoload.php', true) . '; use Locksidecar\Client; $key = ' . var_export($this->key, true)
            . '; $client = new Client(' . var_export(self::path(), true) . "); $code";
        $process = proc_open([...$before, PHP_BINARY, '-d', 'display_errors=0', '-d', 'log_errors=0', '-r', $code], [['pipe', 'r'], ['pipe', 'w']], $pipes);
        self::assertIsResource($process);

        return [$process, $pipes[0], $pipes[1]];
    }

    /** A line of a program, which must come in time. */
    protected static function line(mixed $output): string
    {
        $streams = [$output];
        $none = [];
        self::assertSame(1, stream_select($streams, $none, $none, self::LONG), 'the program says nothing');

        return trim((string) fgets($output));
    }
}

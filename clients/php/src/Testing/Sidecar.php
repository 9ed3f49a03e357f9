<?php

declare(strict_types=1);

namespace Locksidecar\Testing;

use Locksidecar\Client;
use Locksidecar\Exception\Unavailable;

/**
 * A real sidecar for the tests of an app, which misbehaves on request.
 *
 *     $sidecar = Sidecar::start();
 *     $lock = (new Client($sidecar->path))->lock('report');
 *     $sidecar->lose('report');
 *     assert($lock->waitLost(5) !== null);
 *
 * It runs in a process of its own, on a socket of its own. Its store is `memory://`, so its locks end with it. Anybody may break its locks, and a
 * stop waits for nobody. WithSidecar starts one for each test of PHPUnit.
 */
final class Sidecar
{
    /** The limit in seconds for what a sidecar must do at once: a busy machine may need long. */
    private const PATIENCE = 60.0;

    /** The socket, for `new Client($path)`. */
    public readonly string $path;
    private readonly string $folder;
    private readonly int $pid;
    /** @var resource|null */
    private $process = null;

    /** @param array<string, string> $settings those of docs/configuration.md, without the prefix: `['TTL' => '2s']` */
    public function __construct(private readonly array $settings = [])
    {
        $this->folder = sys_get_temp_dir() . '/locksidecar-' . bin2hex(random_bytes(4)); // a short path: sockets need one
        mkdir($this->folder, 0700);
        $this->path = "{$this->folder}/s.sock";
        $this->pid = (int) getmypid();
    }

    public function __destruct()
    {
        $this->close();
    }

    /**
     * Makes one and begins it.
     *
     * @param array<string, string> $settings
     */
    public static function start(array $settings = []): self
    {
        $made = new self($settings);
        $made->begin();

        return $made;
    }

    /** Where the program `locksidecar` is: LOCKSIDECAR_BINARY, else in PATH. */
    public static function findBinary(): string
    {
        $named = (string) getenv('LOCKSIDECAR_BINARY');
        $places = $named !== '' ? [$named] : array_map(static fn (string $folder): string => "$folder/locksidecar", explode(PATH_SEPARATOR, (string) getenv('PATH')));
        foreach ($places as $place) {
            if (is_file($place) && is_executable($place)) {
                return $place;
            }
        }
        $where = $named === '' ? 'no program `locksidecar` is in PATH' : "LOCKSIDECAR_BINARY=$named is no program";
        throw new \RuntimeException("$where: install the sidecar, or let LOCKSIDECAR_BINARY name its program");
    }

    /**
     * Waits until `$look` returns true.
     *
     * @param callable(): bool $look
     *
     * @internal
     */
    public static function until(string $what, callable $look): void
    {
        for ($ends = microtime(true) + self::PATIENCE; !$look(); usleep(5000)) {
            if (microtime(true) > $ends) {
                throw new \RuntimeException('not within ' . self::PATIENCE . " s: $what");
            }
        }
    }

    /**
     * Starts the sidecar, and returns when it grants locks; with `ready: false`, when it answers.
     */
    public function begin(bool $ready = true): void
    {
        if ($this->process !== null) {
            throw new \LogicException('this sidecar runs already');
        }
        $given = [...getenv(), 'LOCKSIDECAR_BINARY' => null];
        $environment = array_filter($given, static fn (string $name): bool => !str_starts_with($name, 'LOCKSIDECAR_'), ARRAY_FILTER_USE_KEY);
        $settings = ['STORE_URL' => 'memory://', 'ALLOW_FORCE' => 'true', 'DRAIN_TIMEOUT' => '0s', ...$this->settings, 'SOCKET' => $this->path];
        foreach ($settings as $name => $value) {
            $environment["LOCKSIDECAR_$name"] = $value;
        }
        $log = ['file', "{$this->folder}/log", 'a'];
        $process = proc_open([self::findBinary(), 'serve'], [['file', '/dev/null', 'r'], $log, $log], $pipes, null, $environment);
        $this->process = \is_resource($process) ? $process : throw new \RuntimeException('the sidecar cannot be started');
        self::until('the sidecar answers', fn (): bool => $this->answers($ready));
    }

    /** Stops the sidecar as Kubernetes would (SIGTERM), and waits for its end. Its holders lose their locks. */
    public function stop(): void
    {
        $this->finish(15);
    }

    /** Kills the sidecar, as a crash would. Until `begin` it is away: no call is answered. */
    public function kill(): void
    {
        $this->finish(9);
    }

    /**
     * While `$work` runs the sidecar is away, and afterwards it is a new one without locks.
     *
     * @param callable(): mixed $work
     */
    public function away(callable $work): mixed
    {
        $this->kill();
        try {
            return $work();
        } finally {
            $this->begin();
        }
    }

    /** Lets the sidecar hang until `resume`: calls are accepted and not answered, and leases run out. */
    public function hang(): void
    {
        $this->signal(19);
        $pid = $this->status()['pid'];
        self::until('all its threads have stopped', static function () use ($pid): bool { // they do not stop at the same time
            foreach (glob("/proc/$pid/task/*/stat") ?: [] as $file) {
                if (!str_contains((string) @file_get_contents($file), ') T ')) {
                    return false;
                }
            }

            return true;
        });
    }

    /** Lets a sidecar go on that hangs. */
    public function resume(): void
    {
        $this->signal(18);
    }

    /**
     * While `$work` runs the sidecar hangs.
     *
     * @param callable(): mixed $work
     */
    public function hanging(callable $work): mixed
    {
        $this->hang();
        try {
            return $work();
        } finally {
            $this->resume();
        }
    }

    /**
     * Takes a lock from its holder, who is told that it is lost, with the reason `forced`. Of a shared lock or a semaphore all holders lose it, or
     * with `token` one. The news may be on its way when this returns: Lock::waitLost.
     *
     * @throws \Locksidecar\Exception\NotHeld
     */
    public function lose(string $key, ?int $token = null): void
    {
        $client = new Client($this->path, name: 'test');
        $client->forceRelease($key, $token);
        $client->close();
    }

    /** Sends a signal to the process. */
    public function signal(int $number): void
    {
        $this->status();
        \assert($this->process !== null);
        proc_terminate($this->process, $number);
    }

    /** What the sidecar has logged. */
    public function log(): string
    {
        return (string) @file_get_contents("{$this->folder}/log");
    }

    /** Kills the sidecar if it runs, and removes its files. */
    public function close(): void
    {
        if ((int) getmypid() !== $this->pid) { // in the child of a fork
            return;
        }
        $this->kill();
        foreach (glob("{$this->folder}/*") ?: [] as $file) {
            unlink($file);
        }
        @rmdir($this->folder);
    }

    private function answers(bool $ready): bool
    {
        if (!$this->status()['running']) {
            throw new \RuntimeException("the sidecar has ended. Its log:\n{$this->log()}");
        }
        $client = new Client($this->path);
        try {
            return $ready ? $client->get('ready')->isFree() : $client->describe()->version !== '';
        } catch (Unavailable) {
            return false;
        } finally {
            $client->close();
        }
    }

    /** @return array<string, mixed> */
    private function status(): array
    {
        return $this->process === null ? throw new \LogicException('this sidecar does not run') : proc_get_status($this->process);
    }

    private function finish(int $signal): void
    {
        if ($this->process === null) {
            return;
        }
        proc_terminate($this->process, 18); // it may hang
        proc_terminate($this->process, $signal);
        proc_close($this->process); // waits for its end
        $this->process = null;
    }
}

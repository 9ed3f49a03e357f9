<?php

// A program of the campaign: `php worker.php TASK`, with what it is to do as JSON. Children of a fork, which use their parent's client, and whose calls are
// interrupted by signals.

declare(strict_types=1);

require __DIR__ . '/../../../../clients/php/tests/autoload.php';

use Locksidecar\Client;
use Locksidecar\Exception\LimitReached;
use Locksidecar\Exception\LocksidecarException;
use Locksidecar\Exception\LockHeld;
use Locksidecar\Exception\Unavailable;
use Locksidecar\Exception\WaitTimeout;
use Locksidecar\Lock;
use Locksidecar\Semaphore;

const KEYS = ['k0', 'k1', 'k2', 'k3'];
const FORMS = ['block', 'block', 'acquire', 'acquire', 'try', 'many', 'semaphore', 'permit', 'nested'];
const LIMIT = 2;
// How long an object that all children use may take until it was granted again, when nothing fails.
const AGAIN = 20;

/** The campaign interrupts a call. */
final class Struck extends Exception
{
}

/** The history: a line for each beginning and each end. All children write into one file. */
final class Notes
{
    /** @var resource */
    private $file;
    private int $number = 0;

    public function __construct(private readonly array $task)
    {
        $this->file = fopen($task['records'], 'a');
        stream_set_write_buffer($this->file, 0); // a line in one piece
    }

    public function begin(string $kind, int $actor, mixed ...$fields): ArrayObject
    {
        $pid = getmypid();
        $op = new ArrayObject([
            'id' => "{$this->task['name']}-$pid-" . ++$this->number, 'app' => $this->task['name'], 'program' => $this->task['program'],
            'sidecar' => $this->task['sidecar'], 'pid' => $pid, 'actor' => $actor, 'kind' => $kind, 'call' => $this->now(), ...$fields,
        ]);
        $this->write($op);

        return $op;
    }

    public function end(ArrayObject $op, string $outcome, mixed ...$fields): void
    {
        foreach ([...$fields, 'outcome' => $outcome, 'return' => $this->now()] as $name => $value) {
            $op[$name] = $value;
        }
        $this->write($op);
    }

    /** From now on it is cancelled. It may never end. */
    public function cancel(ArrayObject $op): void
    {
        $op['cancel'] = $this->now();
        $this->write($op);
    }

    public function add(string $kind, int $actor, mixed ...$fields): void
    {
        $this->end($this->begin($kind, $actor), 'done', ...$fields);
    }

    public function fail(ArrayObject $op, Throwable $error): void
    {
        $wait = $op['wait'] ?? 0;
        if ($error instanceof Struck) {
            $this->end($op, 'cancelled');
        } elseif ($op['kind'] === 'acquire' && $error::class === ($wait === 0 ? LockHeld::class : WaitTimeout::class)) {
            $this->end($op, 'timeout');
        } else {
            $this->end($op, 'failed', error: $error::class, text: $error->getMessage());
        }
    }

    private function now(): int
    {
        return hrtime(true) + $this->task['offset'];
    }

    private function write(ArrayObject $op): void
    {
        fwrite($this->file, json_encode($op->getArrayCopy(), JSON_THROW_ON_ERROR) . "\n");
    }
}

/** One acquire, and what becomes of it. */
final class Hold
{
    private ?ArrayObject $release = null;
    private bool $granted = false;

    public function __construct(private readonly Program $program, private readonly Notes $notes, private readonly int $actor, private readonly ArrayObject $op)
    {
    }

    /** @param list<string> $keys */
    public function run(string $form, array $keys, ?float $wait): void
    {
        try {
            try {
                $this->{'_' . $form}($keys, ['wait' => $wait, 'ttl' => $this->program->task['ttl'], 'data' => $this->op['id']]);
            } finally {
                $this->program->exposed = null;
            }
            if ($this->release !== null) {
                $this->notes->end($this->release, 'done');
            }
        } catch (Throwable $e) {
            $this->program->exposed = null;
            if ($this->granted) {
                $this->release ?? $this->leaves(false);
            }
            $this->notes->fail($this->granted ? $this->release : $this->op, $e);
        }
    }

    private function got(Lock ...$locks): void
    {
        $this->program->exposed = null;
        $this->granted = true;
        $this->notes->end(
            $this->op, 'granted', keys: array_map(static fn (Lock $one): string => $one->key, $locks), tokens: array_map(static fn (Lock $one): int => $one->token, $locks),
        );
    }

    /** Now and then for longer than a lease. It learns of a loss by its looks. */
    private function rest(Lock ...$locks): void
    {
        $seconds = mt_rand() < 0.98 * mt_getrandmax() ? [0, 0.005, 0.02, 0.05][mt_rand(0, 3)] : 1 + 7 * mt_rand() / mt_getrandmax();
        for ($ends = hrtime(true) + $seconds * 1e9; ($left = $ends - hrtime(true)) > 0;) {
            usleep((int) min(10_000, $left / 1000));
            foreach ($locks as $n => $lock) {
                if ($this->isLost($lock)) {
                    unset($locks[$n]);
                }
            }
            $this->program->orphaned();
        }
    }

    private function isLost(Lock $lock): bool
    {
        $lost = $lock->lost() !== null;
        if ($lost) {
            $this->notes->add('lost', $this->actor, hold: $this->op['id'], keys: [$lock->key]);
        }

        return $lost;
    }

    private function leaves(bool $exposed = true): void
    {
        $this->release = $this->notes->begin('release', $this->actor, form: $this->op['form'], hold: $this->op['id']);
        $this->program->exposed = $exposed ? $this->release : null;
    }

    private function body(Lock ...$locks): void
    {
        $this->got(...$locks);
        $this->rest(...$locks);
        $this->leaves();
    }

    private function _block(array $keys, array $options): void
    {
        $this->program->exposed = $this->op;
        $this->program->client->withLock($keys[0], fn (Lock $lock) => $this->body($lock), ...$options);
    }

    private function _many(array $keys, array $options): void
    {
        $this->program->exposed = $this->op;
        $this->program->client->withLocks($keys, fn (array $locks) => $this->body(...$locks), ...$options);
    }

    private function _semaphore(array $keys, array $options): void
    {
        $this->program->exposed = $this->op;
        $this->program->semaphore->with(fn (Lock $permit) => $this->body($permit), ...$options);
    }

    /** Not exposed: between the return and the assignment an interruption loses the lock, whatever the client does. */
    private function _acquire(array $keys, array $options): void
    {
        $this->holds($this->program->client->acquire($keys[0], ...$options));
    }

    private function _through(array $keys, array $options): void
    {
        $lock = $this->program->client->acquire($keys[0], ...$options);
        $this->got($lock);
        while (!$this->isLost($lock) && !$this->program->isCalm()) {
            usleep(10_000);
            $this->program->orphaned();
        }
        $this->release($lock);
    }

    private function _permit(array $keys, array $options): void
    {
        $this->holds($this->program->semaphore->acquire(...$options));
    }

    private function _try(array $keys, array $options): void
    {
        unset($options['wait']);
        $lock = $this->program->client->tryAcquire($keys[0], ...$options);
        if ($lock === null) {
            $this->notes->end($this->op, 'timeout');

            return;
        }
        $this->holds($lock);
    }

    private function holds(Lock $lock): void
    {
        $this->got($lock);
        $this->rest($lock);
        $this->release($lock);
    }

    private function release(Lock $lock): void
    {
        while (true) {
            $this->leaves(false);
            try {
                $lock->release();

                return;
            } catch (Unavailable|LimitReached $e) {
                $this->notes->fail($this->release, $e);
                usleep(200_000);
            }
        }
    }

    private function _nested(array $keys, array $options): void
    {
        $options['reentrant'] = true;
        $this->program->exposed = $this->op;
        $this->program->client->withLock($keys[0], function (Lock $lock) use ($keys, $options): void {
            $this->got($lock);
            $enter = $this->notes->begin('enter', $this->actor, form: 'nested', keys: $keys, wait: $this->op['wait'], hold: $this->op['id']);
            try {
                $this->program->client->withLock($keys[0], function (Lock $inner) use (&$enter): void {
                    $this->notes->end($enter, 'granted', tokens: [$inner->token]);
                    $this->rest($inner);
                    $enter = $this->notes->begin('leave', $this->actor, form: 'nested', hold: $this->op['id']);
                }, ...$options);
                $this->notes->end($enter, 'done');
            } catch (LocksidecarException $e) {
                $this->notes->fail($enter, $e);
            }
            $this->leaves();
        }, ...$options);
    }
}

/** One client, made before the forks, and what the children do. */
final class Program
{
    public readonly Client $client;
    public readonly Semaphore $semaphore;
    /** What the next signal cancels. */
    public ?ArrayObject $exposed = null;
    private readonly Notes $notes;
    private readonly int $parent;
    /** @var array{resource, resource} the parent closes the second one, so that the children see an end at the first one, and are calm. A signal may be lost */
    private array $goOn;
    /** @var list<int> */
    private array $children = [];
    private int $starts = 0;
    private ?Lock $kept = null;

    public function __construct(public readonly array $task)
    {
        $this->notes = new Notes($task);
        $this->parent = (int) getmypid();
        $this->client = new Client($task['socket'], name: $task['name'], timeout: $task['timeout'], reconnect: $task['reconnect']);
        $this->semaphore = $this->client->semaphore('s0', limit: LIMIT, ttl: $task['ttl']);
        pcntl_async_signals(true);
        pcntl_signal(SIGTERM, static fn () => exit(0));
        // Before the forks, because a child may be struck at once.
        pcntl_signal(SIGUSR1, function (): void {
            if ($this->exposed !== null) {
                $this->notes->cancel($this->exposed);
                $this->exposed = null;
                throw new Struck('struck');
            }
        });
    }

    public function run(): never
    {
        $this->work();
        while (($word = $this->command()) !== '') {
            match ($word) {
                'calm' => $this->calm(),
                'again' => $this->again(),
                default => $this->work(),
            };
        }
        $this->quieten();
        $this->client->close();
        $this->notes->add('quiet', -1, form: 'closed');
        while (true) { // until SIGTERM
            sleep(1);
        }
    }

    /** The next command of the campaign; empty at the end. Meanwhile signals strike the children. */
    private function command(): string
    {
        while (true) {
            $read = [STDIN];
            $write = $except = [];
            if (@stream_select($read, $write, $except, 0, [200, 500, 1000, 2000, 10_000][mt_rand(0, 4)]) > 0) {
                return trim((string) fgets(STDIN));
            }
            if ($this->children !== []) {
                posix_kill($this->children[array_rand($this->children)], SIGUSR1);
            }
        }
    }

    private function work(): void
    {
        ++$this->starts;
        $this->goOn = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
        for ($actor = 0; $actor <= $this->task['actors']; ++$actor) {
            $pid = pcntl_fork();
            if ($pid === 0) {
                $this->children = [];
                fclose($this->goOn[1]);
                $this->act($actor);
            }
            $this->children[] = $pid;
        }
    }

    /** What a child does until it is told to be calm. */
    private function act(int $actor): never
    {
        mt_srand($this->task['seed'] * 1000 + $this->starts * 100 + $actor);
        while (!$this->isCalm()) {
            $actor < $this->task['actors'] ? $this->once($actor) : $this->through($actor);
            usleep(mt_rand(0, 50_000));
            $this->orphaned();
        }
        $this->client->close();
        exit(0);
    }

    /** Whether this child is to end. */
    public function isCalm(): bool
    {
        $read = [$this->goOn[0]];
        $write = $except = [];

        return (bool) @stream_select($read, $write, $except, 0);
    }

    /** A child whose parent was killed ends, too. */
    public function orphaned(): void
    {
        if (getmypid() !== $this->parent && posix_getppid() !== $this->parent) {
            posix_kill((int) getmypid(), SIGKILL);
        }
    }

    private function once(int $actor): void
    {
        $forms = array_values($this->task['forms'] ? array_intersect(FORMS, $this->task['forms']) : FORMS);
        $form = $forms[mt_rand(0, count($forms) - 1)];
        $wait = $form === 'try' ? 0 : [0, 50, 200, 1000, 2000, -1][mt_rand(0, 5)];
        $keys = KEYS;
        shuffle($keys);
        $keys = match ($form) {
            'many' => array_slice($keys, 0, mt_rand(2, 3)),
            'semaphore', 'permit' => ['s0'],
            // Now and then a key that nobody else wants. The call is quick then, so a signal meets all its steps.
            default => [mt_rand(0, 9) < 4 ? "own:{$this->task['name']}:$actor" : $keys[0]],
        };
        $op = $this->notes->begin('acquire', $actor, form: $form, keys: $keys, wait: $wait, limit: $keys === ['s0'] ? LIMIT : 0);
        (new Hold($this, $this->notes, $actor, $op))->run($form, $keys, $wait < 0 ? null : $wait / 1000);
    }

    /** Holds a lock until it is lost, also while the sidecar is frozen. */
    private function through(int $actor): void
    {
        $keys = ["through:{$this->task['name']}"];
        $op = $this->notes->begin('acquire', $actor, form: 'through', keys: $keys, wait: -1, limit: 0);
        (new Hold($this, $this->notes, $actor, $op))->run('through', $keys, null);
    }

    private function quieten(): void
    {
        if ($this->children !== []) {
            fclose($this->goOn[1]);
        }
        foreach ($this->children as $child) {
            while (pcntl_waitpid($child, $status) !== $child) {
            }
            if (!pcntl_wifexited($status) || pcntl_wexitstatus($status) !== 0) {
                throw new RuntimeException("a child has ended with $status");
            }
        }
        $this->children = [];
    }

    private function calm(): void
    {
        $this->quieten();
        $this->kept = $this->client->acquire("keep:{$this->task['name']}", wait: AGAIN, ttl: $this->task['ttl'], data: 'kept');
        $this->notes->add('quiet', -1, keys: [$this->kept->key], tokens: [$this->kept->token]);
    }

    private function again(): void
    {
        $this->kept->release();
        foreach (KEYS as $key) {
            $this->use('block', [$key], fn () => $this->client->withLock($key, static fn (Lock $lock) => null, wait: AGAIN));
        }
        $this->use('semaphore', ['s0'], fn () => $this->semaphore->with(static fn (Lock $permit) => null, wait: AGAIN));
        $this->use('many', KEYS, fn () => $this->client->withLocks(KEYS, static fn (array $locks) => null, wait: AGAIN));
        $this->notes->add('quiet', -1, form: 'again');
    }

    private function use(string $form, array $keys, Closure $run): void
    {
        $op = $this->notes->begin('again', -1, form: $form, keys: $keys);
        try {
            $run();
            $this->notes->end($op, 'done');
        } catch (LocksidecarException $e) {
            $this->notes->fail($op, $e);
        }
    }
}

(new Program(json_decode($argv[1], true, 64, JSON_THROW_ON_ERROR)))->run();

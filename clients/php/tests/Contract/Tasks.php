<?php

declare(strict_types=1);

namespace Locksidecar\Tests\Contract;

use Locksidecar\Internal\Poll;

/** Runs calls at the same time, each in a fiber of its own. */
final class Tasks
{
    /** @var array<int, array{\Fiber<mixed, mixed, mixed, mixed>, array<string, resource>, float, bool}> */
    private array $waiting = [];

    public function __construct()
    {
        Poll::$suspend = static fn (array $streams, ?float $seconds, bool $write): array => \Fiber::suspend([$streams, $seconds, $write]);
    }

    public function close(): void
    {
        Poll::$suspend = null;
        $this->waiting = [];
    }

    /** @param callable(): mixed $work */
    public function start(callable $work): Task
    {
        $task = new Task($work);
        $this->waits($task->fiber, $task->fiber->start());

        return $task;
    }

    /** Its caller leaves. */
    public function cancel(Task $task): void
    {
        if (isset($this->waiting[spl_object_id($task->fiber)])) {
            unset($this->waiting[spl_object_id($task->fiber)]);
            $this->waits($task->fiber, $task->fiber->throw(new Cancelled()));
        }
        $this->until(static fn (): bool => $task->done);
    }

    /** @param callable(): bool $look */
    public function until(callable $look): bool
    {
        for ($ends = microtime(true) + Player::PATIENCE; !$look(); $this->step()) {
            if (microtime(true) > $ends) {
                return false;
            }
        }

        return true;
    }

    /** Lets those go on whose wait is over. */
    private function step(): void
    {
        $now = microtime(true);
        $reads = $writes = $none = [];
        $next = $now + 0.005;
        foreach ($this->waiting as $id => [, $streams, $ends, $write]) {
            $next = min($next, $ends);
            foreach ($streams as $name => $stream) {
                if (!\is_resource($stream)) { // another call has closed it
                    $this->waiting[$id][2] = $next = $now;
                    continue;
                }
                $write ? $writes["$id $name"] = $stream : $reads["$id $name"] = $stream;
            }
        }
        $pause = (int) (max(0, $next - $now) * 1e6);
        $reads === [] && $writes === [] ? usleep($pause) : stream_select($reads, $writes, $none, 0, $pause);
        $ready = [];
        foreach (array_keys($reads + $writes) as $name) {
            [$id, $key] = explode(' ', $name);
            $ready[$id][] = $key;
        }
        foreach ($this->waiting as $id => [$fiber, , $ends]) {
            if (isset($ready[$id]) || microtime(true) >= $ends) {
                unset($this->waiting[$id]);
                $this->waits($fiber, $fiber->resume($ready[$id] ?? []));
            }
        }
    }

    /** @param \Fiber<mixed, mixed, mixed, mixed> $fiber */
    private function waits(\Fiber $fiber, mixed $for): void
    {
        if (!$fiber->isTerminated()) {
            [$streams, $seconds, $write] = $for;
            $this->waiting[spl_object_id($fiber)] = [$fiber, $streams, $seconds === null ? INF : microtime(true) + $seconds, $write];
        }
    }
}

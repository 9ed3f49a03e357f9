<?php

declare(strict_types=1);

namespace Locksidecar\Tests\Contract;

/** A call that runs in a fiber. */
final class Task
{
    public bool $done = false;
    public mixed $value = null;
    public ?\Throwable $error = null;
    /** @var \Fiber<mixed, mixed, mixed, mixed> */
    public readonly \Fiber $fiber;

    /** @param callable(): mixed $work */
    public function __construct(callable $work)
    {
        $this->fiber = new \Fiber(function () use ($work): void {
            try {
                $this->value = $work();
            } catch (\Throwable $e) {
                $this->error = $e;
            }
            $this->done = true;
        });
    }
}

<?php

declare(strict_types=1);

namespace Locksidecar\Internal;

/**
 * One entry of an owner in a grant: one acquire gets it, and one release gives it back. Its state follows the answers of the sidecar.
 *
 * @internal
 */
final class Entry
{
    public bool $released = false;
    /** Whether the end of the scope of its Lock releases it. */
    public bool $scoped = true;
    /** @var \WeakReference<\Locksidecar\Lock>|null */
    public ?\WeakReference $lock = null;
    /** Whether a release was sent, and its answer is not known (yet). */
    public bool $unanswered = false;

    /**
     * @param string $flow that of the app that has acquired it
     * @param bool $reentrant its release names the request, because the grant may have other entries
     */
    public function __construct(
        public readonly Grant $grant,
        public readonly string $flow,
        public readonly ?string $owner,
        public readonly string $requestId,
        public readonly bool $reentrant,
    ) {
        $grant->entries[] = $this;
    }

    /** Whether nobody can release it any more: a signal or an outage came in the way of the end of its scope. */
    public function isOrphan(): bool
    {
        return $this->scoped && !$this->isOver() && $this->lock !== null && $this->lock->get() === null;
    }

    /** Whether it was released or lost. */
    public function isOver(): bool
    {
        return $this->released || $this->grant->lost() !== null;
    }

    /**
     * Takes over the answer to its release.
     *
     * @param array<string, mixed> $value
     */
    public function giveBack(array $value): void
    {
        $this->unanswered = false;
        $this->released = true;
        $this->grant->entries = array_values(array_filter($this->grant->entries, fn (self $one): bool => $one !== $this));
        $this->grant->released($value);
    }
}

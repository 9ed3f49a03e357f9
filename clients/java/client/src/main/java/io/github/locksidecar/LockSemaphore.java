package io.github.locksidecar;

import org.jspecify.annotations.Nullable;

/**
 * A semaphore: a key with at most so many holders at a time, in all pods. Each permit is a {@link HeldLock} with a
 * {@link HeldLock#slot()}, and any thread may release it. A thread may have several permits.
 */
public final class LockSemaphore {
  private final LockClient client;
  private final String key;
  private final LockOptions options;

  LockSemaphore(LockClient client, String key, LockOptions options) {
    this.client = client;
    this.key = key;
    this.options = options;
  }

  /**
   * Acquires a permit.
   *
   * @return the permit, which {@link HeldLock#close()} releases
   * @throws InterruptedException if the thread was interrupted
   * @throws LimitMismatchException if other callers name another limit
   * @throws LocksidecarException as {@link LockClient#acquire(String, LockOptions)}
   */
  public HeldLock acquire() throws InterruptedException {
    return client.acquire(key, options);
  }

  /**
   * Acquires a permit if there is one.
   *
   * @return the permit, or null
   */
  public @Nullable HeldLock tryAcquire() {
    return client.tryAcquire(key, options);
  }
}

package io.github.locksidecar.shedlock;

import java.time.Duration;
import java.util.Optional;
import net.javacrumbs.shedlock.core.ClockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;

/**
 * A lock that is unlocked or extended once. After a refused extension it can still be unlocked, unlike ShedLock's
 * {@code AbstractSimpleLock}: the task keeps the lock, and others wait for its end.
 */
abstract class ReleasableLock implements SimpleLock {
  final LockConfiguration configuration;
  private boolean over;

  ReleasableLock(LockConfiguration configuration) {
    this.configuration = configuration;
  }

  abstract void release();

  /** Extends it, or returns empty. */
  abstract Optional<SimpleLock> extended(LockConfiguration next);

  @Override
  public final void unlock() {
    requireValid();
    release();
    over = true;
  }

  @Override
  public final Optional<SimpleLock> extend(Duration lockAtMostFor, Duration lockAtLeastFor) {
    requireValid();
    Optional<SimpleLock> longer =
        extended(new LockConfiguration(ClockProvider.now(), configuration.getName(), lockAtMostFor, lockAtLeastFor));
    over = longer.isPresent();
    return longer;
  }

  private void requireValid() {
    if (over) {
      throw new IllegalStateException(
          "Lock " + configuration.getName() + " is not valid, it has already been unlocked or extended");
    }
  }
}

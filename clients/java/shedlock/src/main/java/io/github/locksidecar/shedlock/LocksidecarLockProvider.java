package io.github.locksidecar.shedlock;

import io.github.locksidecar.HeldLock;
import io.github.locksidecar.LockClient;
import io.github.locksidecar.LockOptions;
import java.time.Duration;
import java.util.Optional;
import net.javacrumbs.shedlock.core.ExtensibleLockProvider;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.SimpleLock;

/**
 * ShedLock's locks from the locksidecar beside the app.
 *
 * <p>{@code lockAtMostFor} is the lock's {@code max_hold}: after it the sidecar releases the lock, although the task hangs
 * or its process is halted. {@code lockAtLeastFor} is its {@code min_hold}. The lock belongs to the client's session. So if
 * the process dies, the lock is free at once, or at the end of {@code lockAtLeastFor}. A long {@code lockAtMostFor} costs
 * nothing.
 */
public final class LocksidecarLockProvider implements ExtensibleLockProvider {
  /** The sidecar's longest hold. */
  private static final Duration DAY = Duration.ofDays(1);

  private final LockClient client;
  private final String prefix;

  /**
   * A provider whose keys begin with {@code shedlock:}.
   *
   * @param client of this process
   */
  public LocksidecarLockProvider(LockClient client) {
    this(client, "shedlock:");
  }

  /**
   * A provider whose keys begin with a prefix.
   *
   * @param client of this process
   * @param prefix of the keys; may be empty. The part before its colon is the type of the locks
   */
  public LocksidecarLockProvider(LockClient client, String prefix) {
    this.client = client;
    this.prefix = prefix;
  }

  /**
   * Acquires a lock if it is free.
   *
   * @param configuration of the lock. A {@code lockAtMostFor} of more than a day is no limit
   * @return the lock, or empty if another process or task holds it
   * @throws io.github.locksidecar.LocksidecarException if the sidecar cannot answer, or refuses the call
   */
  @Override
  public Optional<SimpleLock> lock(LockConfiguration configuration) {
    String key = prefix + configuration.getName();
    HeldLock lock = client.tryAcquire(key, options(configuration.getLockAtMostFor(), configuration.getLockAtLeastFor()));
    return lock == null ? Optional.empty() : Optional.of(new SidecarLock(client, configuration, new Granted(lock)));
  }

  static LockOptions options(Duration atMost, Duration atLeast) {
    LockOptions options = LockOptions.defaults();
    options = atMost.compareTo(DAY) > 0 ? options : options.maxHold(atMost);
    return atLeast.isZero() ? options : options.minHold(atLeast);
  }
}

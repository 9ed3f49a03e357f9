package io.github.locksidecar.spring;

import io.github.locksidecar.LockClient;
import io.github.locksidecar.LockOptions;
import io.github.locksidecar.LocksidecarException;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.ExpirableLockRegistry;
import org.springframework.integration.support.locks.RenewableLockRegistry;

/**
 * Spring Integration's locks from the locksidecar beside the app. Waiting calls queue in order, in all pods.
 *
 * <p>The sidecar renews the locks while the process lives. If the process dies, its locks are free at once. A thread whose
 * lock was lost must unlock it, which throws {@link io.github.locksidecar.LockLostException}, before it can lock again. So a
 * {@code LockRegistryLeaderInitiator} revokes the leadership at its next heartbeat.
 */
public final class LocksidecarLockRegistry
    implements RenewableLockRegistry<DistributedLock>, ExpirableLockRegistry<DistributedLock> {
  /** The most locks that it remembers. Locks that are not held are forgotten first. */
  private static final int MAX_LOCKS = 100_000;

  private final LockClient client;
  private final String prefix;
  private final LockOptions options;
  private final Map<String, RegistryLock> locks = new LinkedHashMap<>(16, 0.75f, true);

  /**
   * A registry whose keys begin with {@code spring:}.
   *
   * @param client of this process
   */
  public LocksidecarLockRegistry(LockClient client) {
    this(client, "spring:", LockOptions.defaults());
  }

  /**
   * A registry with its own prefix and options.
   *
   * @param client of this process
   * @param prefix of the keys; may be empty. The part before its colon is the type of the locks
   * @param options of each acquire, except the wait
   */
  public LocksidecarLockRegistry(LockClient client, String prefix, LockOptions options) {
    this.client = client;
    this.prefix = prefix;
    this.options = options;
  }

  /**
   * The lock of a key. It is reentrant for its thread.
   *
   * @param lockKey a string
   * @return the lock; it makes no call yet
   * @throws IllegalStateException if too many locks are held
   */
  @Override
  public DistributedLock obtain(Object lockKey) {
    return lock(lockKey);
  }

  private RegistryLock lock(Object lockKey) {
    if (!(lockKey instanceof String key)) {
      String type = lockKey == null ? "null" : lockKey.getClass().getName();
      throw new IllegalArgumentException("the key of a lock must be a String, not " + type);
    }
    synchronized (locks) {
      RegistryLock lock = locks.computeIfAbsent(key, one -> new RegistryLock(client.lock(prefix + one, options)));
      lock.obtained();
      if (locks.size() > MAX_LOCKS) {
        forget(0, lock);
      }
      if (locks.size() > MAX_LOCKS) {
        locks.remove(key);
        throw new IllegalStateException("this process uses " + MAX_LOCKS + " locks already");
      }
      return lock;
    }
  }

  private void forget(long age, RegistryLock except) {
    locks.values().removeIf(lock -> lock != except && !lock.inUse() && lock.age() >= age);
  }

  /**
   * Forgets locks of this object that nobody in this process holds or waits for. This frees memory only.
   *
   * @param age milliseconds since they were last obtained
   */
  @Override
  public void expireUnusedOlderThan(long age) {
    synchronized (locks) {
      locks.values().removeIf(lock -> !lock.inUse() && lock.age() >= age);
    }
  }

  /**
   * Checks that this thread still holds the lock. The sidecar renews it by itself, for as long as the process lives.
   *
   * @param lockKey the key of a lock that this thread holds
   * @throws IllegalStateException if this thread does not hold it, or it is lost
   */
  @Override
  public void renewLock(Object lockKey) {
    try {
      lock(lockKey).check();
    } catch (LocksidecarException e) {
      throw new IllegalStateException("lock \"" + lockKey + "\" cannot be renewed", e);
    }
  }

  /**
   * As {@link #renewLock(Object)}. A time is not needed: the lock lasts while the process lives, so also for the time.
   *
   * @param lockKey the key of a lock that this thread holds
   * @param ttl how long the lock must last at least
   */
  @Override
  public void renewLock(Object lockKey, Duration ttl) {
    renewLock(lockKey);
  }
}

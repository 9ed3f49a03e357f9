package io.github.locksidecar;

import java.util.List;

/** Several locks that were acquired together. {@link #close()} releases all of them. */
public final class HeldLocks implements AutoCloseable {
  private final List<HeldLock> locks;

  HeldLocks(List<HeldLock> locks) {
    this.locks = List.copyOf(locks);
  }

  /**
   * The locks.
   *
   * @return in the order of the keys
   */
  public List<HeldLock> all() {
    return locks;
  }

  /**
   * The lock of a key.
   *
   * @param key one of the keys
   * @return its lock
   * @throws IllegalArgumentException if the key is none of them
   */
  public HeldLock get(String key) {
    return locks.stream()
        .filter(lock -> lock.key().equals(key))
        .findFirst()
        .orElseThrow(() -> new IllegalArgumentException("\"" + key + "\" is none of the acquired keys"));
  }

  /**
   * Releases all locks that were not released before, also after an error.
   *
   * @throws LocksidecarException the first error, with the others among its suppressed ones
   */
  @Override
  public void close() {
    LocksidecarException first = null;
    for (HeldLock lock : locks) {
      try {
        lock.close();
      } catch (LocksidecarException e) {
        if (first == null) {
          first = e;
        } else {
          first.addSuppressed(e);
        }
      }
    }
    if (first != null) {
      throw first;
    }
  }
}

package io.github.locksidecar;

import org.jspecify.annotations.Nullable;

/**
 * The holder did the work, so this call need not do it: see {@link LockOptions#skipIfDone()}. It is not a failure.
 */
public final class SkippedException extends LocksidecarException {
  private static final long serialVersionUID = 1L;

  /** The key of the lock. */
  private final String key;

  /** JSON as Java values. */
  private final transient @Nullable Object result;

  /**
   * Makes it.
   *
   * @param key the key of the lock
   * @param result the result of the holder's release
   */
  public SkippedException(String key, @Nullable Object result) {
    super("skipped", "the holder of lock \"" + key + "\" released it with success; there is nothing left to do", null);
    this.key = key;
    this.result = result;
  }

  /**
   * The key of the lock.
   *
   * @return the key
   */
  public String key() {
    return key;
  }

  /**
   * The result of the holder's release.
   *
   * @return JSON as Java values (map, list, string, number, boolean), or null
   */
  public @Nullable Object result() {
    return result;
  }
}

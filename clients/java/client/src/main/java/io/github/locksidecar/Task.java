package io.github.locksidecar;

import org.jspecify.annotations.Nullable;

/**
 * Work under a lock.
 *
 * @param <T> its result
 * @param <E> what it throws
 */
@FunctionalInterface
public interface Task<T extends @Nullable Object, E extends Exception> {
  /**
   * Does the work.
   *
   * @return its result
   * @throws E as the work does
   */
  T call() throws E;
}

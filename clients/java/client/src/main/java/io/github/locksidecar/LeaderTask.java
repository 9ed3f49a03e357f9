package io.github.locksidecar;

import org.jspecify.annotations.Nullable;

/**
 * What a leader does.
 *
 * @param <T> its result
 * @param <E> what it throws
 */
@FunctionalInterface
public interface LeaderTask<T extends @Nullable Object, E extends Exception> {
  /**
   * Leads until the work is done or the term is over. It must then return soon: the lock is released when it has returned.
   *
   * @param term the term, with the fencing token
   * @return the result of {@link LockClient#lead}, if the term is not over
   * @throws E as the work does
   * @throws InterruptedException if the thread was interrupted, which the end of the term does
   */
  T lead(Term term) throws E, InterruptedException;
}

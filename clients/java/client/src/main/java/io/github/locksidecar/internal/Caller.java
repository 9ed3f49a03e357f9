package io.github.locksidecar.internal;

/** Makes the calls that a session needs for its own locks. */
@FunctionalInterface
interface Caller {
  /**
   * Makes a call.
   *
   * @param call the call
   * @return its answer
   * @throws InterruptedException if the thread was interrupted
   */
  Answer perform(Call call) throws InterruptedException;
}

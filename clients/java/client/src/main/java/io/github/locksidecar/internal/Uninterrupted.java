package io.github.locksidecar.internal;

/** Runs calls that must finish although their thread is interrupted. */
public final class Uninterrupted {
  private Uninterrupted() {}

  /**
   * A call that an interrupt may end.
   *
   * @param <T> its result
   */
  @FunctionalInterface
  public interface Interruptible<T> {
    /**
     * Makes the call.
     *
     * @return its result
     * @throws InterruptedException if the thread was interrupted; then it may be made again
     */
    T call() throws InterruptedException;
  }

  /**
   * Makes a call, and again after each interrupt. The thread's interrupt status is set at the end if it was interrupted.
   *
   * @param <T> the call's result
   * @param call the call; it may be made more than once
   * @return its result
   */
  public static <T> T run(Interruptible<T> call) {
    boolean interrupted = Thread.interrupted();
    try {
      while (true) {
        try {
          return call.call();
        } catch (InterruptedException e) {
          interrupted = true;
        }
      }
    } finally {
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }
}

package io.github.locksidecar.internal;

import java.time.Duration;

/** Monotonic time of this process: nanoseconds, always above zero. Never is {@link #NEVER}. */
public final class Clock {
  /** A time or a duration without end. */
  public static final long NEVER = Long.MAX_VALUE;

  private static final long START = System.nanoTime() - 1;

  private Clock() {}

  /**
   * The present time.
   *
   * @return nanoseconds since the start of the process, above zero
   */
  public static long now() {
    return System.nanoTime() - START;
  }

  /** The time after a duration. */
  static long after(long nanos) {
    return nanos == NEVER ? NEVER : now() + nanos;
  }

  /** The duration until a time, at least a nanosecond. */
  static long until(long time) {
    return time == NEVER ? NEVER : Math.max(time - now(), 1);
  }

  /**
   * A duration in nanoseconds.
   *
   * @param duration the duration
   * @return at most {@link #NEVER}, at least the negative of it
   */
  public static long nanos(Duration duration) {
    try {
      return duration.toNanos();
    } catch (ArithmeticException e) {
      return duration.isNegative() ? -NEVER : NEVER;
    }
  }

  /**
   * A duration in milliseconds, rounded up, because 0 means "not at all".
   *
   * @param duration the duration
   * @return milliseconds
   */
  public static long millis(Duration duration) {
    long millis = duration.toMillis();
    return duration.equals(Duration.ofMillis(millis)) ? millis : millis + 1;
  }

  /** Nanoseconds in milliseconds, rounded up. */
  static long millis(long nanos) {
    return (nanos + 999_999) / 1_000_000;
  }
}

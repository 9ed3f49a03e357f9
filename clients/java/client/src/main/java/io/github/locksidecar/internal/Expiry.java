package io.github.locksidecar.internal;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;

/**
 * The end of a bind:ttl lock by the clock here, because nobody tells it. What comes after the end does not undo the loss. There is a
 * timer only while the app waits for the loss, so an app may leave such locks to their end.
 */
final class Expiry {
  /** Of all such locks of this process, because they outlive their client. Its thread ends when there are none. */
  static final ScheduledThreadPoolExecutor TIMERS = timers();

  private final CompletableFuture<String> lost;
  private volatile long end = Clock.NEVER;
  /** When the question was sent whose answer named the end; {@link Clock#NEVER}: it was released, or it is lost. */
  private long asked = Long.MIN_VALUE;
  private boolean watched;
  private @Nullable Future<?> timer;

  Expiry(CompletableFuture<String> lost) {
    this.lost = lost;
    lost.thenRun(this::cancel);
  }

  private static ScheduledThreadPoolExecutor timers() {
    ScheduledThreadPoolExecutor made = new ScheduledThreadPoolExecutor(1, task -> {
      Thread thread = new Thread(task, "locksidecar-clock");
      thread.setDaemon(true);
      return thread;
    });
    made.setRemoveOnCancelPolicy(true);
    made.setKeepAliveTime(1, TimeUnit.SECONDS);
    made.allowCoreThreadTimeOut(true);
    return made;
  }

  /**
   * An answer names its end.
   *
   * @param when the question was sent. Another thread may read the answer to an older question after a newer one
   * @return whether it counts
   */
  boolean set(long when, long named) {
    if (isOver()) {
      return false;
    }
    synchronized (this) {
      if (when < asked) {
        return false;
      }
      asked = when;
      end = named;
      plan();
      return true;
    }
  }

  /** The app waits for the loss. */
  synchronized void watch() {
    watched = true;
    plan();
  }

  /** It was released, or it is lost. */
  synchronized void cancel() {
    asked = Clock.NEVER;
    end = Clock.NEVER;
    plan();
  }

  /** Whether its time is over. Then it is lost. */
  boolean isOver() {
    boolean over = Clock.now() >= end;
    if (over) {
      lost.complete("expired");
    }
    return over;
  }

  private void plan() {
    if (timer != null) {
      timer.cancel(false);
      timer = null;
    }
    if (watched && end != Clock.NEVER && !lost.isDone()) {
      timer = TIMERS.schedule(this::isOver, end - Clock.now(), TimeUnit.NANOSECONDS);
    }
  }
}

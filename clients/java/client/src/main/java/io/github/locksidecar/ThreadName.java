package io.github.locksidecar;

import java.util.concurrent.atomic.AtomicLong;

/** A name of the current thread that no other thread has or had. The id of a thread may be used again. */
final class ThreadName {
  private static final AtomicLong LAST = new AtomicLong();
  private static final ThreadLocal<String> NAME = ThreadLocal.withInitial(() -> "thread-" + LAST.incrementAndGet());

  private ThreadName() {}

  static String current() {
    return NAME.get();
  }
}

package io.github.locksidecar.internal;

/** How long the locks of one TTL are held without news from the sidecar. The session's monitor guards the changes. */
final class Lease {
  /** Between two questions, in ns. */
  private static final long LEAST_PAUSE = 50_000_000;

  private volatile long until;
  private long due;

  /** When it ends, as the last news says. By {@link Clock}. */
  long until() {
    return until;
  }

  /** When to ask for one of its locks. */
  long due() {
    return due;
  }

  /** Sets its end, for a bind:ttl lock. Nobody asks for such a lock. */
  void set(long end) {
    until = end;
  }

  /** Notes news: it ends no sooner than this. */
  void prove(long end) {
    until = Math.max(until, end);
    plan();
  }

  /** The next question comes after a third of the rest. */
  void plan() {
    long now = Clock.now();
    due = now + Math.max((until - now) / 3, LEAST_PAUSE);
  }
}

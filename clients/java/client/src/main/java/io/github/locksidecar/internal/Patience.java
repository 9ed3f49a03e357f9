package io.github.locksidecar.internal;

import io.github.locksidecar.LocksidecarException;
import io.github.locksidecar.SessionEndedException;

/** How long an acquire goes on, also through an outage of the sidecar. */
final class Patience {
  private static final long LEAST_PAUSE = 50_000_000;
  private static final long LONGEST_PAUSE = 1_000_000_000;

  /** A call that has waited for longer than this was in the queue, so a new outage begins. In ns. */
  private static final long QUEUED = 5_000_000_000L;

  private final Transport transport;
  private final long wait;
  private final long deadline;
  private long began; // of the outage; 0: none
  private boolean late; // a part of the wait is over
  private long last; // failure
  private long pause;
  private boolean reopened;

  Patience(Transport transport, long wait) {
    this.transport = transport;
    this.wait = wait;
    this.deadline = Clock.after(wait);
  }

  boolean waits() {
    return wait != 0;
  }

  /** Nanoseconds that are left of the wait. */
  long left() {
    if (!late || wait == Clock.NEVER) {
      return wait;
    }
    return Math.max(deadline - Clock.now(), 1_000_000);
  }

  /** Nanoseconds before the next call. */
  long pause() {
    return pause;
  }

  /** Other calls had to be made first. */
  void spend() {
    late = true;
  }

  /**
   * Returns if the call is to be made again after the pause. Throws the error if not.
   *
   * @param sent when the call was sent; 0: not at all
   */
  void bridge(LocksidecarException error, long sent) {
    if (transport.closed()) {
      throw transport.isClosed();
    }
    if (error instanceof SessionEndedException && !reopened) {
      reopened = true; // no outage: the next call opens a new session
      return;
    }
    if (!waits() || !transport.reached()) {
      throw error;
    }
    long now = Clock.now();
    if (began == 0 || (sent != 0 && now - last > QUEUED)) {
      began = now;
      late = true;
      pause = 0;
    }
    last = now;
    pause = Math.min(Math.max(pause * 2, LEAST_PAUSE), LONGEST_PAUSE);
    if (now - began >= transport.settings.reconnect() || now >= deadline) {
      throw error;
    }
  }
}

package io.github.locksidecar;

import java.util.Locale;

/** How the work under a lock ended. Waiters with {@link LockOptions#skipIfDone()} and watchers get it. */
public enum Outcome {
  /** The work is done. */
  SUCCESS,
  /** The work is not done: the next waiter tries it. */
  FAILURE;

  String word() {
    return name().toLowerCase(Locale.ROOT);
  }
}

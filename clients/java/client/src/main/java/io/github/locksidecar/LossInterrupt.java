package io.github.locksidecar;

import org.jspecify.annotations.Nullable;

/** Interrupts a thread at most once, and never after it was disarmed. */
final class LossInterrupt {
  private @Nullable Thread owner;

  LossInterrupt(@Nullable Thread owner) {
    this.owner = owner;
  }

  synchronized void fire() {
    if (owner != null) {
      owner.interrupt();
      owner = null;
    }
  }

  synchronized void disarm() {
    owner = null;
  }
}

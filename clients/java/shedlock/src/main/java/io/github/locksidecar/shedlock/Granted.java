package io.github.locksidecar.shedlock;

import io.github.locksidecar.HeldLock;
import io.github.locksidecar.LockLostException;
import io.github.locksidecar.NotHolderException;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** A grant, and when it came. */
final class Granted {
  private static final Logger LOG = LoggerFactory.getLogger(LocksidecarLockProvider.class);

  final HeldLock lock;
  final long since = System.nanoTime();

  Granted(HeldLock lock) {
    this.lock = lock;
  }

  /**
   * Releases it. Returns false if it was lost before. This is no error, because a task may run for longer than
   * lockAtMostFor.
   */
  boolean release() {
    try {
      lock.release();
      return true;
    } catch (LockLostException e) {
      LOG.warn("lock {} was lost before its task ended, reason: {}", lock.key(), e.reason());
    } catch (NotHolderException e) {
      LOG.warn("lock {} was released before its task ended", lock.key());
    }
    return false;
  }
}

package io.github.locksidecar.shedlock;

import io.github.locksidecar.LockClient;
import io.github.locksidecar.LockOptions;
import io.github.locksidecar.LocksidecarException;
import io.github.locksidecar.Waiter;
import java.time.Duration;
import java.util.Iterator;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import net.javacrumbs.shedlock.core.LockConfiguration;

/**
 * The next grant of a lock that is held, with other limits. The limits of a grant do not change. So the next grant queues
 * behind the present one, and the release of the present one hands the key over: the key is never free in between.
 *
 * <p>If the present grant's lockAtLeastFor is not over, it keeps the key until then, and the next grant comes at its end.
 */
final class Extension {
  /** How long the hand-over may take. */
  private static final Duration PATIENCE = Duration.ofSeconds(10);

  private final CompletableFuture<Granted> next = new CompletableFuture<>();
  private final Thread thread;
  private final Duration atLeast;

  private Extension(LockClient client, String key, LockOptions options, Duration atLeast) {
    this.atLeast = atLeast;
    this.thread = new Thread(() -> acquire(client, key, options), "locksidecar-extend");
    thread.setDaemon(true);
    thread.start();
  }

  private void acquire(LockClient client, String key, LockOptions options) {
    try {
      Granted granted = new Granted(client.acquire(key, options));
      if (!next.complete(granted)) {
        granted.release(); // it was cancelled at the same time
      }
    } catch (InterruptedException | LocksidecarException e) {
      next.completeExceptionally(e);
    }
  }

  /**
   * Extends a grant. Returns empty if it is lost, or if another caller waits for the lock: that one would get it.
   *
   * @param atLeast the lockAtLeastFor of the grant
   * @param wanted the next limits
   */
  static Optional<Extension> of(LockClient client, Granted now, Duration atLeast, LockConfiguration wanted) {
    if (now.lock.isLost()) {
      return Optional.empty();
    }
    Duration kept = positive(atLeast.minusNanos(System.nanoTime() - now.since));
    Duration nextAtLeast = positive(wanted.getLockAtLeastFor().minus(kept));
    Duration nextAtMost = wanted.getLockAtMostFor().minus(kept);
    if (nextAtMost.isNegative() || nextAtMost.isZero()) {
      throw new IllegalArgumentException(
          "lockAtMostFor " + wanted.getLockAtMostFor() + " ends before the lockAtLeastFor of the lock, in " + kept);
    }
    String owner = UUID.randomUUID().toString();
    LockOptions options =
        LocksidecarLockProvider.options(nextAtMost, nextAtLeast).owner(owner).maxWait(kept.plus(PATIENCE));
    String key = now.lock.key();
    Extension made = new Extension(client, key, options, nextAtLeast);
    boolean queued = false;
    try {
      queued = made.firstInQueue(client, key, owner) && now.release();
    } finally {
      if (!queued) { // also after an error: nobody would release the next grant
        made.cancel();
      }
    }
    if (!queued) {
      return Optional.empty();
    }
    return kept.isZero() ? made.granted().map(granted -> made) : Optional.of(made);
  }

  private static Duration positive(Duration duration) {
    return duration.isNegative() ? Duration.ZERO : duration;
  }

  private boolean firstInQueue(LockClient client, String key, String owner) {
    while (!next.isDone()) {
      Iterator<Waiter> waiters = client.waiters(key).iterator();
      if (waiters.hasNext()) {
        return owner.equals(waiters.next().owner());
      }
      Thread.onSpinWait();
    }
    return true; // the present grant was lost, or the call has failed: granted() knows
  }

  /** The lockAtLeastFor of the next grant. */
  Duration atLeast() {
    return atLeast;
  }

  /** The next grant. Waits for it. Empty if it did not come. */
  Optional<Granted> granted() {
    boolean interrupted = false;
    try {
      while (true) {
        try {
          return Optional.of(next.get());
        } catch (InterruptedException e) {
          interrupted = true;
        } catch (CancellationException e) {
          return Optional.empty();
        } catch (ExecutionException e) {
          return Optional.empty(); // acquire has these causes: the sidecar refused it, or it was cancelled
        }
      }
    } finally {
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }

  /** Releases the next grant, or gives it up. */
  void release() {
    if (next.isDone()) {
      granted().ifPresent(Granted::release);
    } else if (atLeast.isZero()) {
      cancel(); // the grant before keeps the key for long enough
    } else {
      Thread release = new Thread(() -> granted().ifPresent(Granted::release), "locksidecar-extend");
      release.setDaemon(true);
      release.start();
    }
  }

  private void cancel() {
    if (next.cancel(false)) {
      thread.interrupt();
    } else {
      granted().ifPresent(Granted::release);
    }
  }
}

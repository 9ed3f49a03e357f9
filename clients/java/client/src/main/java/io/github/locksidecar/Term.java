package io.github.locksidecar;

import io.github.locksidecar.internal.Clock;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.jspecify.annotations.Nullable;

/**
 * A term as leader. It is over when the lock is lost or somebody asks to stop. Then the thread that leads is interrupted,
 * and the work must end.
 */
public final class Term {
  private final HeldLock lock;
  private final CompletableFuture<@Nullable String> over = new CompletableFuture<>();
  private volatile boolean ending;
  private @Nullable Thread leader;

  Term(HeldLock lock) {
    this.lock = lock;
  }

  /**
   * The fencing token. Pass it to all that the leader changes.
   *
   * @return the token of the lock
   */
  public long token() {
    return lock.token();
  }

  /**
   * The lock.
   *
   * @return the lock, which the end of the term releases
   */
  public HeldLock lock() {
    return lock;
  }

  /**
   * Completes with the reason, or null, when the term is over.
   *
   * @return a stage that only this client completes
   */
  public CompletionStage<@Nullable String> over() {
    return over.minimalCompletionStage();
  }

  /**
   * Whether the term is over.
   *
   * @return true if the work must end
   */
  public boolean isOver() {
    return ending;
  }

  /**
   * Waits until the term is over. Then the interrupt status of the thread that leads is clear, so that its clean-up may
   * block.
   *
   * @param timeout how long to wait at most
   * @return whether the term is over
   * @throws InterruptedException if the thread was interrupted for another reason
   */
  public boolean await(Duration timeout) throws InterruptedException {
    try {
      over.get(Clock.nanos(timeout), TimeUnit.NANOSECONDS);
    } catch (TimeoutException e) {
      return false;
    } catch (InterruptedException e) {
      if (!ending) {
        throw e;
      }
    } catch (ExecutionException e) {
      throw new IllegalStateException(e);
    }
    synchronized (this) { // the interrupt has come
      if (Thread.currentThread() == leader) {
        Thread.interrupted();
      }
    }
    return true;
  }

  /** Ends it whenever its lock is lost, or somebody asks to stop. */
  void begin(Thread thread) {
    synchronized (this) {
      leader = thread;
    }
    lock.lost().thenAccept(this::end);
    lock.stopping().thenAccept(this::end);
  }

  /** Ends it. */
  void end(@Nullable String reason) {
    synchronized (this) {
      if (!ending) {
        ending = true;
        if (leader != null) {
          leader.interrupt();
        }
      }
    }
    over.complete(reason);
  }
}

package io.github.locksidecar;

import io.github.locksidecar.internal.Problem;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;
import org.jspecify.annotations.Nullable;

/**
 * The lock of a key as a {@link Lock}. It is reentrant for its thread, and may be shared between threads: each thread has a
 * lock of its own.
 *
 * <p>If a thread's lock was lost, the thread must call {@link #unlock()}, which throws {@link LockLostException}, before it
 * can lock again. Until then all methods that lock throw this error too, because a new grant would hide the loss.
 */
public final class KeyLock implements Lock {
  private static final Duration LONGEST_WAIT = Duration.ofDays(1);

  private final LockClient client;
  private final String key;
  private final LockOptions options;
  private final ThreadLocal<Deque<HeldLock>> entries = new ThreadLocal<>();

  KeyLock(LockClient client, String key, LockOptions options) {
    this.client = client;
    this.key = key;
    this.options = options.has("mode") ? options : options.reentrant();
  }

  /**
   * The lock that this thread acquired last through this object.
   *
   * @return the lock with its token, or null if this thread holds none
   */
  public @Nullable HeldLock held() {
    Deque<HeldLock> mine = entries.get();
    return mine == null ? null : mine.peek();
  }

  /**
   * Waits for the lock, without limit. An interrupt does not end the wait, but it may cost the place in the queue.
   *
   * @throws LocksidecarException as {@link LockClient#acquire(String, LockOptions)}
   */
  @Override
  public void lock() {
    enter(options.waitForever());
  }

  /**
   * As {@link #lock()}, but an interrupt ends the wait. A grant that is under way is then withdrawn.
   *
   * @throws InterruptedException if the thread was interrupted
   */
  @Override
  public void lockInterruptibly() throws InterruptedException {
    enterInterruptibly(options.waitForever());
  }

  /**
   * Acquires the lock if it is free.
   *
   * @return whether this thread holds it now
   */
  @Override
  public boolean tryLock() {
    try {
      enter(options.maxWait(Duration.ZERO));
      return true;
    } catch (LockHeldException e) {
      return false;
    }
  }

  /**
   * Waits for the lock.
   *
   * @param time how long; more than a day counts as a day
   * @param unit of the time
   * @return whether this thread holds it now
   * @throws InterruptedException if the thread was interrupted
   */
  @Override
  public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
    return tryLock(Duration.ofNanos(unit.toNanos(time)), options);
  }

  /**
   * Waits for the lock with a {@code ttl} of its own, as in {@link LockOptions#ttl}.
   *
   * @param wait how long; more than a day counts as a day
   * @param ttl how long the lock outlives a dead sidecar
   * @return whether this thread holds it now
   * @throws InterruptedException if the thread was interrupted
   */
  public boolean tryLock(Duration wait, Duration ttl) throws InterruptedException {
    return tryLock(wait, options.ttl(ttl));
  }

  /**
   * Waits for the lock without limit, with a {@code ttl} of its own, as in {@link LockOptions#ttl}.
   *
   * @param ttl how long the lock outlives a dead sidecar
   */
  public void lock(Duration ttl) {
    enter(options.ttl(ttl).waitForever());
  }

  private boolean tryLock(Duration wait, LockOptions with) throws InterruptedException {
    Duration atMost = wait.compareTo(LONGEST_WAIT) > 0 ? LONGEST_WAIT : wait.isNegative() ? Duration.ZERO : wait;
    try {
      enterInterruptibly(with.maxWait(atMost));
      return true;
    } catch (LockHeldException e) {
      return false;
    }
  }

  private void enter(LockOptions with) {
    HeldLock outer = outer();
    if (outer == null) {
      push(client.acquireUninterruptibly(key, with, null));
    } else {
      pushInner(outer, () -> client.acquireUninterruptibly(key, with.maxWait(Duration.ZERO), outer));
    }
  }

  private void enterInterruptibly(LockOptions with) throws InterruptedException {
    HeldLock outer = outer();
    if (outer == null) {
      push(client.acquire(key, with));
    } else {
      pushInner(outer, () -> client.acquire(key, with.maxWait(Duration.ZERO), outer));
    }
  }

  /** The lock that this thread enters again, or null. Throws if it is lost, because a new grant would hide the loss. */
  private @Nullable HeldLock outer() {
    HeldLock last = held();
    if (last == null || last.isReleased()) {
      return null;
    }
    requireNotLost(last);
    return options.has("reentrant") ? last : null;
  }

  private interface Entry<E extends Exception> {
    HeldLock acquired() throws E;
  }

  /** Enters a held lock again, which needs no wait. A refusal, or another token, means that the lock was lost just now. */
  private <E extends Exception> void pushInner(HeldLock outer, Entry<E> entry) throws E {
    try {
      HeldLock inner = entry.acquired();
      if (inner.token() == outer.token()) {
        push(inner);
        return;
      }
      inner.release();
    } catch (LockHeldException e) {
      // Another caller has it already.
    }
    outer.check();
    throw Problem.lost(key, "expired");
  }

  /**
   * Releases the entry that this thread acquired last. An interrupted thread still releases. If this throws, the thread has
   * given the entry up all the same: the client or the sidecar goes on with its release, or it was lost.
   *
   * @throws IllegalMonitorStateException if this thread holds no lock through this object
   * @throws LockLostException if its lock was lost
   * @throws NoAnswerException if no answer came; a sidecar that hangs releases the lock when it goes on
   */
  @Override
  public void unlock() {
    HeldLock last = held();
    if (last == null) {
      throw new IllegalMonitorStateException("this thread does not hold \"" + key + "\" through this object");
    }
    pop();
    last.close(held() != null);
  }

  /**
   * Not supported, because a wait for a condition would need a queue of its own in the store. Use
   * {@link LockClient#events} to be told of a key's changes.
   *
   * @return never
   */
  @Override
  public Condition newCondition() {
    throw new UnsupportedOperationException(
        "locksidecar has no conditions: newCondition() is not supported; LockClient.events tells of a key's changes");
  }

  private void requireNotLost(HeldLock last) {
    if (last.isLost()) {
      throw Problem.lost(key, last.lost().toCompletableFuture().join());
    }
  }

  private void push(HeldLock lock) {
    Deque<HeldLock> mine = entries.get();
    if (mine == null) {
      mine = new ArrayDeque<>(2);
      entries.set(mine);
    }
    mine.push(lock);
  }

  private void pop() {
    Deque<HeldLock> mine = entries.get();
    mine.pop();
    if (mine.isEmpty()) {
      entries.remove();
    }
  }

  @Override
  public String toString() {
    return "KeyLock[" + key + "]";
  }
}

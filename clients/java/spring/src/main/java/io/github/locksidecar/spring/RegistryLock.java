package io.github.locksidecar.spring;

import io.github.locksidecar.HeldLock;
import io.github.locksidecar.KeyLock;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Condition;
import org.springframework.integration.support.locks.DistributedLock;

/** A lock of the registry, which knows whether a thread of this process uses it. */
final class RegistryLock implements DistributedLock {
  private final KeyLock lock;
  private final AtomicInteger uses = new AtomicInteger();
  private volatile long obtainedAt;

  RegistryLock(KeyLock lock) {
    this.lock = lock;
  }

  void obtained() {
    obtainedAt = System.nanoTime();
  }

  boolean inUse() {
    return uses.get() > 0;
  }

  /** Milliseconds since it was last obtained. */
  long age() {
    return TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - obtainedAt);
  }

  void check() {
    HeldLock held = lock.held();
    if (held == null) {
      throw new IllegalStateException("this thread does not hold " + lock);
    }
    held.check();
  }

  private interface Attempt<E extends Exception> {
    boolean locked() throws E;
  }

  /** A lock is in use while a call waits for it, and from its success until its unlock. */
  private <E extends Exception> boolean using(Attempt<E> attempt) throws E {
    boolean locked = false;
    uses.incrementAndGet();
    try {
      locked = attempt.locked();
      return locked;
    } finally {
      if (!locked) {
        uses.decrementAndGet();
      }
    }
  }

  @Override
  public void lock() {
    using(
        () -> {
          lock.lock();
          return true;
        });
  }

  @Override
  public void lock(Duration ttl) {
    using(
        () -> {
          lock.lock(ttl);
          return true;
        });
  }

  @Override
  public void lockInterruptibly() throws InterruptedException {
    using(
        () -> {
          lock.lockInterruptibly();
          return true;
        });
  }

  @Override
  public boolean tryLock() {
    return using(lock::tryLock);
  }

  @Override
  public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
    return using(() -> lock.tryLock(time, unit));
  }

  @Override
  public boolean tryLock(Duration waitTime, Duration ttl) throws InterruptedException {
    return using(() -> lock.tryLock(waitTime, ttl));
  }

  @Override
  public void unlock() {
    HeldLock held = lock.held();
    try {
      lock.unlock();
    } finally {
      if (held != null) { // the thread has given it up, also without an answer
        uses.decrementAndGet();
      }
    }
  }

  @Override
  public Condition newCondition() {
    return lock.newCondition();
  }

  @Override
  public String toString() {
    return lock.toString();
  }
}

package io.github.locksidecar;

import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import org.jspecify.annotations.Nullable;

/** A campaign for the leadership, term after term: {@link LockClient#lead}. */
final class Campaign<T extends @Nullable Object, E extends Exception> {
  /** Between two campaigns in an outage, if the sidecar does not name the time. */
  private static final Duration PAUSE = Duration.ofSeconds(1);

  private final LockClient client;
  private final String key;
  private final LockOptions options;
  private final LeaderTask<T, E> task;

  Campaign(LockClient client, String key, LockOptions options, LeaderTask<T, E> task) {
    this.client = client;
    this.key = key;
    this.options = options;
    this.task = task;
  }

  T run() throws InterruptedException, E {
    while (true) {
      HeldLock lock;
      try {
        lock = client.acquire(key, options);
      } catch (LocksidecarException e) {
        if (!client.mayReturn(e)) {
          throw e;
        }
        Duration pause = e.retryAfter();
        Thread.sleep((pause == null ? PAUSE : pause).toMillis());
        continue;
      }
      Term term = new Term(lock);
      try (lock) {
        T result = lead(term);
        if (!term.isOver()) {
          lock.release();
          return result;
        }
      } catch (LocksidecarException e) {
        if (!term.isOver() || !client.mayReturn(e)) {
          throw e;
        }
      }
    }
  }

  /** Runs the task in a thread of its own, so that an interrupt by the end of the term differs from one of the caller. */
  private T lead(Term term) throws InterruptedException, E {
    FutureTask<T> work = new FutureTask<>(() -> task.lead(term));
    CountDownLatch ended = new CountDownLatch(1);
    Thread leader = new Thread(() -> runAndSay(work, ended), "locksidecar-lead-" + key);
    leader.setDaemon(true);
    term.begin(leader);
    leader.start();
    if (term.isOver()) { // an interrupt before the start has no effect
      leader.interrupt();
    }
    try {
      ended.await();
    } catch (InterruptedException e) {
      term.end("interrupted");
      awaitUninterruptibly(ended);
      throw e;
    }
    return result(work, term);
  }

  private static void runAndSay(FutureTask<?> work, CountDownLatch ended) {
    try {
      work.run();
    } finally {
      ended.countDown();
    }
  }

  private static void awaitUninterruptibly(CountDownLatch ended) {
    boolean interrupted = false;
    while (true) {
      try {
        ended.await();
        break;
      } catch (InterruptedException e) {
        interrupted = true;
      }
    }
    if (interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  @SuppressWarnings("unchecked") // a task throws only E, InterruptedException and unchecked errors
  private T result(FutureTask<T> work, Term term) throws InterruptedException, E {
    try {
      return work.get();
    } catch (ExecutionException e) {
      Throwable cause = e.getCause();
      if (cause instanceof InterruptedException && term.isOver()) {
        return (T) null; // the campaign goes on
      }
      if (cause instanceof Error error) {
        throw error;
      }
      if (cause instanceof InterruptedException interrupted) {
        throw interrupted;
      }
      throw (E) cause;
    }
  }
}

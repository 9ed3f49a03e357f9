package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.internal.FakeSidecar;
import io.github.locksidecar.testing.Sidecar;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.locks.LockSupport;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** An interrupt ends a wait, and nothing else. It never leaks a grant. */
@Timeout(60)
class InterruptTest {
  private static Sidecar sidecar;

  @BeforeAll
  static void start() {
    sidecar = Sidecar.inMemory();
  }

  @AfterAll
  static void end() {
    sidecar.close();
  }

  /** A call in a thread of its own. */
  static final class InThread<T> {
    final FutureTask<T> task;
    final Thread thread;

    InThread(Callable<T> call) {
      task = new FutureTask<>(call);
      thread = new Thread(task);
      thread.start();
    }

    T result() throws Exception {
      return task.get(30, TimeUnit.SECONDS);
    }

    Throwable error() {
      return assertThrows(ExecutionException.class, () -> task.get(30, TimeUnit.SECONDS)).getCause();
    }
  }

  static void awaitQueue(LockClient client, String key, int length) {
    while (client.getFresh(key).queueLength() != length) {
      Sidecar.pause();
    }
  }

  @Test
  void anInterruptEndsAWait() throws Exception {
    LockClient client = sidecar.client();
    HeldLock held = client.acquire("wait");
    InThread<HeldLock> waiting = new InThread<>(() -> client.acquire("wait"));
    awaitQueue(client, "wait", 1);
    waiting.thread.interrupt();
    assertTrue(waiting.error() instanceof InterruptedException);
    awaitQueue(client, "wait", 0);
    assertFalse(held.isLost(), "the session lives on");
    held.release();
    assertFalse(client.getFresh("wait").held());
  }

  @Test
  void anInterruptedThreadDoesNotAcquire() {
    LockClient client = sidecar.client();
    Thread.currentThread().interrupt();
    assertThrows(InterruptedException.class, () -> client.acquire("interrupted"));
    assertFalse(Thread.interrupted());
    assertFalse(client.getFresh("interrupted").held());
  }

  /** The sidecar has granted the lock, and the answer is under way when the interrupt comes. */
  // Proves: client interrupts
  @Test
  void aGrantWhoseAnswerIsInterruptedIsWithdrawn() throws Exception {
    try (FakeSidecar between = FakeSidecar.before(sidecar.socket());
        LockClient client = LockClient.builder().socket(between.socket()).build()) {
      client.acquire("first").release(); // the session is open
      between.holdNextAnswerTo("PUT /v1/locks/leak");
      InThread<HeldLock> acquiring = new InThread<>(() -> client.acquire("leak"));
      between.awaitHeldAnswer();
      assertTrue(sidecar.client().getFresh("leak").held(), "the sidecar has granted it");
      acquiring.thread.interrupt();
      assertTrue(acquiring.error() instanceof InterruptedException);
      assertFalse(sidecar.client().getFresh("leak").held(), "the grant leaks");
    }
  }

  @Test
  void aReleaseThatIsRefusedDoesNotKeepTheOtherLocks() throws Exception {
    try (FakeSidecar between = FakeSidecar.before(sidecar.socket());
        LockClient client = LockClient.builder().socket(between.socket()).build()) {
      client.acquire("first").release(); // the session is open
      between.holdNextAnswerTo("POST /v1/locks");
      InThread<HeldLocks> acquiring =
          new InThread<>(() -> client.acquireMany(List.of("many:a", "many:b", "many:c"), LockOptions.defaults()));
      between.awaitHeldAnswer();
      between.refuseNext("DELETE /v1/locks/many");
      acquiring.thread.interrupt();
      assertTrue(acquiring.error() instanceof InterruptedException);
      assertFalse(sidecar.client().getFresh("many:b").held());
      assertFalse(sidecar.client().getFresh("many:c").held());
    }
  }

  @Test
  void aReleaseInAnInterruptedThreadReleases() throws Exception {
    LockClient client = sidecar.client();
    HeldLock lock = client.acquire("release");
    Thread.currentThread().interrupt();
    lock.close();
    assertTrue(Thread.interrupted(), "the interrupt status is kept");
    assertFalse(client.getFresh("release").held());
  }

  // Proves: client interrupts
  @Test
  void aReleaseWhoseAnswerIsInterruptedEnds() throws Exception {
    try (FakeSidecar between = FakeSidecar.before(sidecar.socket());
        LockClient client = LockClient.builder().socket(between.socket()).build()) {
      HeldLock lock = client.acquire("late");
      between.holdNextAnswerTo("DELETE /v1/locks/late");
      InThread<Boolean> releasing =
          new InThread<>(
              () -> {
                lock.release();
                return Thread.currentThread().isInterrupted();
              });
      between.awaitHeldAnswer();
      releasing.thread.interrupt();
      assertTrue(releasing.result(), "released, and the interrupt status is kept");
    }
  }

  @Test
  void lockIsNotEndedByAnInterrupt() throws Exception {
    LockClient client = sidecar.client();
    HeldLock held = client.acquire("lock");
    KeyLock lock = client.lock("lock");
    InThread<Boolean> waiting =
        new InThread<>(
            () -> {
              lock.lock();
              boolean interrupted = Thread.currentThread().isInterrupted();
              lock.unlock();
              return interrupted;
            });
    awaitQueue(client, "lock", 1);
    waiting.thread.interrupt();
    held.release();
    assertTrue(waiting.result(), "it got the lock, and the interrupt status is kept");
    assertFalse(client.getFresh("lock").held());
  }

  @Test
  void aLossInterruptsTheOwner() throws Exception {
    LockClient client = sidecar.client();
    InThread<String> working =
        new InThread<>(
            () -> {
              LockOptions options = LockOptions.defaults().maxHold(Duration.ofMillis(100)).interruptOnLoss();
              try (HeldLock lock = client.acquire("loss", options)) {
                Thread.sleep(30_000);
                return "not interrupted";
              } catch (InterruptedException e) {
                return e.getSuppressed()[0].getClass().getSimpleName();
              }
            });
    assertEquals("LockLostException", working.result());
  }

  @Test
  void aLossAfterTheReleaseHasBegunDoesNotInterrupt() {
    LossInterrupt interrupt = new LossInterrupt(Thread.currentThread());
    interrupt.disarm(); // the release begins
    interrupt.fire(); // the news of the loss comes
    assertFalse(Thread.interrupted());
  }

  /** The store has forgotten the key when the release is repeated, so it does not know the token. */
  // Proves: client interrupts
  @Test
  void aReleaseOfABindTtlLockWhoseAnswerIsInterruptedEnds() throws Exception {
    try (FakeSidecar between = FakeSidecar.before(sidecar.socket());
        LockClient client = LockClient.builder().socket(between.socket()).build()) {
      HeldLock lock = client.acquire("ttl", LockOptions.defaults().bindTtl().ttl(Duration.ofMinutes(1)));
      between.holdNextAnswerTo("DELETE /v1/locks/ttl");
      InThread<Boolean> releasing = new InThread<>(lock::release);
      between.awaitHeldAnswer();
      sidecar.client().acquire("ttl").release(); // another grant
      releasing.thread.interrupt();
      assertTrue(releasing.result());
    }
  }

  /** Interrupts come at any moment of an acquire, a change and a release. */
  // Proves: client interrupts
  @Test
  void noInterruptLeavesALockWithoutAHolder() throws Exception {
    hammer(sidecar, 5000, 500_000);
  }

  /** Four threads work while so many interrupts come, with pauses of up to so many nanoseconds, and once after them. */
  static void hammer(Sidecar sidecar, int interrupts, int pause) throws Exception {
    LockClient client = sidecar.client();
    AtomicBoolean over = new AtomicBoolean();
    List<InThread<Integer>> workers = new ArrayList<>();
    for (int i = 0; i < 4; i++) {
      int kind = i;
      workers.add(new InThread<>(() -> {
        int done = 0;
        for (boolean last = false; !last; done++) {
          boolean afterAll = over.get();
          try {
            work(client, kind);
            last = afterAll;
          } catch (InterruptedException e) {
            // The next one.
          }
        }
        return done;
      }));
    }
    for (int i = 0; i < interrupts; i++) {
      workers.get(i % workers.size()).thread.interrupt();
      LockSupport.parkNanos(ThreadLocalRandom.current().nextInt(pause));
    }
    over.set(true);
    for (InThread<Integer> worker : workers) {
      assertTrue(worker.result() > 0);
    }
    LockClient other = sidecar.client();
    for (String key : List.of("hammer", "hammer:a", "hammer:b", "hammer:ttl")) {
      awaitQueue(other, key, 0);
      HeldLock free = other.tryAcquire(key);
      assertNotNull(free, key + " is held by nobody");
      free.release();
    }
  }

  private static void work(LockClient client, int kind) throws InterruptedException {
    switch (kind) {
      case 0 -> {
        try (HeldLock lock = client.acquire("hammer")) {
          lock.check();
        }
      }
      case 1 -> {
        KeyLock lock = client.lock("hammer");
        lock.lockInterruptibly();
        try {
          if (lock.tryLock(1, TimeUnit.SECONDS)) {
            lock.unlock();
          }
        } finally {
          lock.unlock();
        }
      }
      case 2 -> {
        try (HeldLocks locks = client.acquireMany(List.of("hammer:b", "hammer:a"), LockOptions.defaults())) {
          locks.get("hammer:a").update(1);
        }
      }
      default -> {
        LockOptions options = LockOptions.defaults().bindTtl().ttl(Duration.ofMinutes(10));
        try (HeldLock lock = client.acquire("hammer:ttl", options)) {
          lock.extend(Duration.ofMinutes(20));
        }
      }
    }
  }

  @Test
  void closeEndsAWait() throws Exception {
    LockClient client = sidecar.client();
    LockClient other = sidecar.client();
    other.acquire("closing");
    InThread<HeldLock> waiting = new InThread<>(() -> client.acquire("closing"));
    awaitQueue(other, "closing", 1);
    client.close();
    assertTrue(waiting.error() instanceof SessionEndedException);
    awaitQueue(other, "closing", 0);
  }
}

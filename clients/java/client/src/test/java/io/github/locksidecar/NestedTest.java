// Proves: client self wait
package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.testing.Sidecar;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

/** A thread that would wait for itself for ever gets an error at once. */
@Timeout(60)
class NestedTest {
  private static final LockOptions FOREVER = LockOptions.defaults();
  private static Sidecar sidecar;
  private static LockClient client;

  @BeforeAll
  static void start() {
    sidecar = new Sidecar(Map.of("STORE_URL", "memory://", "ALLOW_FORCE", "true"));
    client = sidecar.client();
  }

  @AfterAll
  static void end() {
    sidecar.close();
  }

  private static void assertRefused(String remedy, Executable call) {
    String message = assertThrows(IllegalStateException.class, call).getMessage();
    assertTrue(message.contains(remedy) && message.contains("detach()"), message);
  }

  @Test
  void eachCallThatWaitsForEverIsRefused() throws Exception {
    try (HeldLock lock = client.acquire("nested")) {
      assertRefused("reentrant()", () -> client.acquire("nested"));
      assertRefused("reentrant()", () -> client.acquire("nested", FOREVER.reentrant()));
      assertRefused("reentrant()", () -> client.acquire("nested", FOREVER.bindTtl()));
      assertRefused("reentrant()", () -> client.acquireMany(List.of("free", "nested"), FOREVER));
      assertRefused("reentrant()", () -> client.once("nested", () -> "inner"));
      assertRefused("reentrant()", () -> client.lead("nested", FOREVER, term -> "inner"));
      assertRefused("reentrant()", () -> client.shared("nested"));
      assertRefused("reentrant()", client.lock("nested")::lock);
      assertRefused("reentrant()", client.lock("nested")::lockInterruptibly);
      assertNull(client.tryAcquire("nested"), "a call that does not wait is answered");
      assertThrows(
          WaitTimeoutException.class, () -> client.acquire("nested", FOREVER.maxWait(Duration.ofMillis(20))));
      assertFalse(client.getFresh("free").held());
    }
    assertFalse(client.getFresh("nested").held());
    client.acquire("nested").release();
  }

  @Test
  void aLockOfAThreadAndItsOthers() throws Exception {
    KeyLock lock = client.lock("mixed");
    lock.lock();
    assertRefused("reentrant()", () -> client.acquire("mixed"));
    client.acquire("mixed", FOREVER.reentrant()).release();
    lock.unlock();
    client.acquire("mixed").release();
  }

  @Test
  void aReentrantLockIsEntered() throws Exception {
    LockOptions reentrant = FOREVER.reentrant();
    try (HeldLock outer = client.acquire("reentrant", reentrant);
        HeldLock inner = client.acquire("reentrant", reentrant)) {
      assertEquals(outer.token(), inner.token());
      assertEquals(2, inner.reentry());
    }
    assertFalse(client.getFresh("reentrant").held());
  }

  /** Threads of one client want overlapping groups of keys, in different orders. Each key is in two of them. */
  @Test
  void threadsWithOverlappingGroupsWaitForEachOther() throws Exception {
    Map<String, AtomicInteger> holders = new ConcurrentHashMap<>();
    List<InterruptTest.InThread<Integer>> threads = new ArrayList<>();
    for (List<String> keys : List.of(List.of("g:a", "g:b"), List.of("g:b", "g:c"), List.of("g:c", "g:a"))) {
      threads.add(new InterruptTest.InThread<>(() -> {
        int most = 0;
        for (int i = 0; i < 50; i++) {
          try (HeldLocks locks = client.acquireMany(keys, FOREVER)) {
            for (HeldLock lock : locks.all()) {
              most = Math.max(most, holders.computeIfAbsent(lock.key(), any -> new AtomicInteger()).incrementAndGet());
            }
            for (HeldLock lock : locks.all()) {
              holders.get(lock.key()).decrementAndGet();
            }
          }
        }
        return most;
      }));
    }
    for (InterruptTest.InThread<Integer> thread : threads) {
      assertEquals(1, thread.result(), "holders of a key at a time");
    }
  }

  @Test
  void anotherThreadWaits() throws Exception {
    HeldLock lock = client.acquire("thread");
    InterruptTest.InThread<Long> waiting = new InterruptTest.InThread<>(() -> client.acquire("thread").token());
    InterruptTest.awaitQueue(client, "thread", 1);
    lock.release();
    assertTrue(waiting.result() > lock.token());
  }

  /** Another thread releases the lock, so the first may wait for it. */
  @Test
  void aDetachedLockIsWaitedFor() throws Exception {
    HeldLock lock = client.acquire("detached").detach();
    InterruptTest.InThread<Boolean> releasing =
        new InterruptTest.InThread<>(
            () -> {
              InterruptTest.awaitQueue(client, "detached", 1);
              return lock.release();
            });
    client.acquire("detached").release();
    assertTrue(releasing.result());
  }

  @Test
  void theEndOfALockInAnyWayEndsTheRefusal() throws Exception {
    HeldLock released = client.acquire("ended");
    new InterruptTest.InThread<>(released::release).result();
    HeldLock forced = client.acquire("ended");
    client.forceRelease("ended");
    forced.lost().toCompletableFuture().get(10, TimeUnit.SECONDS);
    HeldLock byToken = client.acquire("ended");
    client.release("ended", byToken.token());
    client.acquire("ended").release();
  }

  /** The app names owners, such as its tasks, which may share a thread. */
  @Test
  void anotherOwnerIsAnotherHolder() throws Exception {
    HeldLock lock = client.acquire("owner", FOREVER.owner("a"));
    assertRefused("reentrant()", () -> client.acquire("owner", FOREVER.owner("a")));
    assertThrows(
        WaitTimeoutException.class, () -> client.acquire("owner", FOREVER.owner("b").maxWait(Duration.ofMillis(20))));
    lock.release();
  }

  @Test
  void aRepeatByTheSameIdGetsTheSameGrant() throws Exception {
    LockOptions options = FOREVER.requestId(UUID.randomUUID().toString());
    HeldLock lock = client.acquire("id", options);
    assertEquals(lock.token(), client.acquire("id", options).token());
    lock.release();
  }

  @Test
  void permitsAreRefusedIfTheThreadHasAll() throws Exception {
    LockSemaphore two = client.semaphore("two", 2);
    HeldLock first = two.acquire();
    HeldLock second = two.acquire();
    assertRefused("all permits", two::acquire);
    second.release();
    two.acquire().release();
    assertRefused("release it first", () -> client.acquire("two"));
    first.release();
  }

  @Test
  void sharesDoNotWaitForEachOther() throws Exception {
    HeldLock first = client.shared("shares");
    client.shared("shares").release();
    assertRefused("release it first", () -> client.acquire("shares"));
    first.release();
    HeldLock writer = client.acquire("shares");
    assertRefused("reentrant()", () -> client.shared("shares"));
    writer.downgrade();
    client.shared("shares").release();
    writer.release();
  }
}

package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.testing.Sidecar;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The lock of a key as a {@link Lock}. */
@Timeout(60)
class KeyLockTest {
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

  private static boolean inAnotherThread(Callable<Boolean> call) throws Exception {
    return new InterruptTest.InThread<>(call).result();
  }

  @Test
  void itsThreadEntersAgain() {
    KeyLock lock = client.lock("again");
    lock.lock();
    assertTrue(lock.tryLock());
    assertEquals(2, lock.held().reentry());
    lock.unlock();
    assertTrue(client.getFresh("again").held());
    lock.unlock();
    assertFalse(client.getFresh("again").held());
    assertNull(lock.held());
  }

  @Test
  void twoObjectsOfAKeyAreOneLockOfAThread() {
    client.lock("two").lock();
    assertTrue(client.lock("two").tryLock());
  }

  // Proves: promise 13
  @Test
  void anotherThreadDoesNotEnter() throws Exception {
    KeyLock lock = client.lock("other");
    lock.lock();
    assertFalse(inAnotherThread(lock::tryLock));
    assertFalse(inAnotherThread(() -> lock.tryLock(50, TimeUnit.MILLISECONDS)));
    lock.unlock();
    assertTrue(inAnotherThread(lock::tryLock));
  }

  @Test
  void anotherThreadDoesNotUnlock() throws Exception {
    KeyLock lock = client.lock("unlock");
    lock.lock();
    assertTrue(inAnotherThread(() -> {
      assertThrows(IllegalMonitorStateException.class, lock::unlock);
      return true;
    }));
    assertTrue(client.getFresh("unlock").held());
    lock.unlock();
    assertThrows(IllegalMonitorStateException.class, lock::unlock);
  }

  @Test
  void aWaitEndsWithTheLock() throws Exception {
    KeyLock lock = client.lock("turn");
    lock.lockInterruptibly();
    InterruptTest.InThread<Boolean> waiting = new InterruptTest.InThread<>(() -> lock.tryLock(1, TimeUnit.DAYS));
    InterruptTest.awaitQueue(client, "turn", 1);
    lock.unlock();
    assertTrue(waiting.result());
  }

  // Proves: client loss
  @Test
  void afterALossItMustBeUnlockedFirst() throws Exception {
    KeyLock lock = client.lock("lost");
    lock.lock();
    HeldLock held = lock.held();
    assertNotNull(held);
    client.forceRelease("lost");
    held.lost().toCompletableFuture().get(10, TimeUnit.SECONDS);
    assertThrows(LockLostException.class, lock::tryLock);
    assertThrows(LockLostException.class, lock::lock);
    assertThrows(LockLostException.class, lock::unlock);
    assertTrue(lock.tryLock());
    lock.unlock();
  }

  @Test
  void theTtlOfACallIsItsOwn() throws Exception {
    KeyLock lock = client.lock("ttl", LockOptions.defaults().ttl(Duration.ofSeconds(5)));
    assertTrue(lock.tryLock(Duration.ofSeconds(1), Duration.ofSeconds(1)));
    assertTrue(lock.held().expiresIn().compareTo(Duration.ofSeconds(1)) <= 0);
    lock.unlock();
  }

  /** The idiom for a wait without limit. */
  @Test
  void theLongestWaitIsAllowed() throws Exception {
    KeyLock lock = client.lock("longest");
    assertTrue(lock.tryLock(Long.MAX_VALUE, TimeUnit.DAYS));
    lock.unlock();
    assertTrue(lock.tryLock(Long.MIN_VALUE, TimeUnit.DAYS));
    lock.unlock();
  }

  @Test
  void conditionsAreRefusedByName() {
    Lock lock = client.lock("condition");
    String message = assertThrows(UnsupportedOperationException.class, lock::newCondition).getMessage();
    assertTrue(message.contains("newCondition"), message);
  }
}

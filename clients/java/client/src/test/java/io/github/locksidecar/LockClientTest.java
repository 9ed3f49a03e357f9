package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.testing.Sidecar;
import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The calls that the contract suite does not have, because they are Java's. */
@Timeout(60)
class LockClientTest {
  private static Sidecar sidecar;
  private static LockClient client;

  @BeforeAll
  static void start() {
    sidecar = Sidecar.inMemory();
    client = sidecar.client();
  }

  @AfterAll
  static void end() {
    sidecar.close();
  }

  /** Otherwise the client would remember the grant until the end of its session. */
  @Test
  void aLockThatIsReleasedByItsTokenIsForgotten() throws Exception {
    LockClient client = sidecar.client();
    HeldLock lock = client.acquire("by-token");
    assertTrue(client.release("by-token", lock.token()));
    assertEquals(0, lock.entries());
  }

  @Test
  void tryAcquireReturnsNullForAHeldLock() {
    try (HeldLock lock = client.tryAcquire("try")) {
      assertNotNull(lock);
      try (HeldLock other = client.tryAcquire("try")) {
        assertNull(other);
      }
    }
    assertFalse(client.getFresh("try").held());
  }

  // Proves: client loss
  @Test
  void aBlockThatLostItsLockEndsWithAnError() {
    LockOptions options = LockOptions.defaults().maxHold(Duration.ofMillis(50));
    LockLostException error =
        assertThrows(
            LockLostException.class,
            () -> {
              try (HeldLock lock = client.acquire("block", options)) {
                assertEquals("max_hold", lock.lost().toCompletableFuture().get(10, TimeUnit.SECONDS));
                assertTrue(lock.isLost());
              }
            });
    assertEquals("max_hold", error.reason());
  }

  @Test
  void theErrorOfABlockSuppressesTheLoss() {
    LockOptions options = LockOptions.defaults().maxHold(Duration.ofMillis(50));
    IllegalStateException error =
        assertThrows(
            IllegalStateException.class,
            () -> {
              try (HeldLock lock = client.acquire("error", options)) {
                lock.lost().toCompletableFuture().get(10, TimeUnit.SECONDS);
                throw new IllegalStateException("of the block");
              }
            });
    assertTrue(error.getSuppressed()[0] instanceof LockLostException);
  }

  @Test
  void theAppCannotCompleteALoss() throws Exception {
    try (HeldLock lock = client.acquire("complete")) {
      lock.lost().toCompletableFuture().complete("the app");
      assertFalse(lock.isLost());
      assertNotNull(lock.check());
    }
  }

  @Test
  void aRequestToStopIsTold() throws Exception {
    try (HeldLock lock = client.acquire("stop")) {
      assertFalse(lock.isStopping());
      client.stop("stop", "deploy");
      assertEquals("deploy", lock.stopping().toCompletableFuture().get(10, TimeUnit.SECONDS));
      assertEquals("deploy", lock.check().stopping().reason());
    }
  }

  @Test
  void severalLocksAreReleasedTogether() throws Exception {
    try (HeldLocks locks = client.acquireMany(List.of("account:7", "account:3"), LockOptions.defaults())) {
      assertEquals(List.of("account:7", "account:3"), locks.all().stream().map(HeldLock::key).toList());
      locks.get("account:3").release();
      assertThrows(IllegalArgumentException.class, () -> locks.get("account:1"));
    }
    assertFalse(client.getFresh("account:7").held());
  }

  @Test
  void aSemaphoreHasSlots() throws Exception {
    LockSemaphore gpu = client.semaphore("gpu", 2);
    try (HeldLock first = gpu.acquire()) {
      HeldLock second = gpu.acquire();
      assertEquals(List.of(0, 1), List.of(first.slot(), second.slot()));
      assertNull(gpu.tryAcquire());
      second.release();
      try (HeldLock again = gpu.tryAcquire()) {
        assertEquals(1, again.slot());
      }
      LimitMismatchException error = assertThrows(LimitMismatchException.class, client.semaphore("gpu", 3)::acquire);
      assertEquals(2, error.limit());
    }
  }

  @Test
  void sharedHoldersDoNotExcludeEachOther() throws Exception {
    try (HeldLock first = client.shared("index");
        HeldLock second = client.shared("index")) {
      assertTrue(first.token() < second.token());
      assertNull(client.tryAcquire("index"));
    }
  }

  @Test
  void onceRunsOnceForCallersThatWait() throws Exception {
    CompletableFuture<Void> go = new CompletableFuture<>();
    InterruptTest.InThread<Object> first =
        new InterruptTest.InThread<>(
            () ->
                client.once(
                    "pull",
                    () -> {
                      go.get();
                      return Map.of("digest", List.of(1, "x"));
                    }));
    while (!client.getFresh("pull").held()) {
      Sidecar.pause();
    }
    InterruptTest.InThread<Object> second =
        new InterruptTest.InThread<>(
            () ->
                client.once(
                    "pull",
                    () -> {
                      throw new AssertionError("it ran twice");
                    }));
    InterruptTest.awaitQueue(client, "pull", 1);
    go.complete(null);
    assertEquals(Map.of("digest", List.of(1, "x")), first.result());
    assertEquals(first.result(), second.result());
  }

  @Test
  void aFailedOnceIsTriedByTheNext() throws Exception {
    assertThrows(
        IOException.class,
        () ->
            client.once(
                "fail",
                () -> {
                  throw new IOException("disk");
                }));
    assertEquals("done", client.once("fail", () -> "done"));
    assertThrows(IllegalArgumentException.class, () -> client.once("fail", Object::new));
    assertThrows(IllegalArgumentException.class, () -> client.once("fail", () -> Double.NaN));
    assertFalse(client.getFresh("fail").held());
  }

  @Test
  void aCallerThatWaitsDoesTheWorkThatFailed() throws Exception {
    CompletableFuture<Void> go = new CompletableFuture<>();
    InterruptTest.InThread<Object> first =
        new InterruptTest.InThread<>(
            () ->
                client.once(
                    "retry",
                    () -> {
                      go.get();
                      throw new IOException("disk");
                    }));
    while (!client.getFresh("retry").held()) {
      Sidecar.pause();
    }
    InterruptTest.InThread<Object> second = new InterruptTest.InThread<>(() -> client.once("retry", () -> "second"));
    InterruptTest.awaitQueue(client, "retry", 1);
    go.complete(null);
    assertTrue(first.error() instanceof IOException);
    assertEquals("second", second.result());
  }

  @Test
  void eventsBeginWithTheState() throws Exception {
    try (KeyEvents events = client.events("watched")) {
      assertEquals("state", events.next().type());
      client.acquire("watched").release();
      assertEquals("acquired", events.next().type());
      assertEquals("released", events.next().type());
    }
  }

  @Test
  void theEndOfAWatchIsAnError() throws Exception {
    KeyEvents events = client.events("end");
    events.next();
    InterruptTest.InThread<KeyEvent> waiting = new InterruptTest.InThread<>(events::next);
    events.close();
    assertTrue(waiting.error() instanceof UnavailableException);
  }

  @Test
  void aClientWithoutASidecarNamesTheSocket() {
    try (LockClient lonely = LockClient.builder().socket("/tmp/none/s.sock").build()) {
      UnavailableException error =
          assertThrows(UnavailableException.class, () -> lonely.acquire("key"));
      assertTrue(error.getMessage().contains("/tmp/none/s.sock: there is no such socket"), error.getMessage());
      assertEquals("unreachable", error.code());
    }
  }

  @Test
  void aClosedClientSaysSo() {
    LockClient closed = sidecar.client();
    closed.close();
    closed.close();
    assertThrows(SessionEndedException.class, () -> closed.acquire("key"));
    assertThrows(SessionEndedException.class, () -> closed.get("key"));
    assertThrows(SessionEndedException.class, closed::describe);
  }

  @Test
  void theEndOfAClientFreesItsLocks() throws Exception {
    LockClient other = sidecar.client();
    HeldLock lock = other.acquire("freed");
    other.close();
    assertFalse(client.getFresh("freed").held());
    assertEquals("disconnected", lock.lost().toCompletableFuture().get());
  }

  @Test
  void optionsAreChecked() {
    assertThrows(InvalidRequestException.class, () -> LockOptions.defaults().ttl(Duration.ofMillis(499)));
    assertThrows(InvalidRequestException.class, () -> LockOptions.defaults().maxWait(Duration.ofDays(2)));
    assertThrows(InvalidRequestException.class, () -> LockOptions.defaults().limit(0));
    assertThrows(IllegalArgumentException.class, () -> LockOptions.defaults().data(new Object()));
  }
}

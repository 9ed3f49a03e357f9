package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.internal.FakeSidecar;
import io.github.locksidecar.testing.Sidecar;
import java.time.Duration;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A sidecar that restarts, hangs, or loses an answer. */
@Timeout(60)
class OutageTest {
  private Sidecar sidecar;

  @BeforeEach
  void start() {
    sidecar = Sidecar.inMemory();
  }

  @AfterEach
  void end() {
    sidecar.close();
  }

  @Test
  void aKilledSidecarLosesTheLocksAndTheNextCallOpensASession() throws Exception {
    LockClient client = sidecar.client();
    HeldLock lock = client.acquire("key");
    sidecar.kill();
    assertEquals("disconnected", lock.lost().toCompletableFuture().get(10, TimeUnit.SECONDS));
    assertThrows(SidecarUnavailableException.class, () -> client.tryAcquire("key"));
    assertThrows(LockLostException.class, lock::close);
    sidecar.start("/readyz");
    try (HeldLock again = client.tryAcquire("key")) {
      assertNotNull(again);
    }
  }

  @Test
  void aWaitGoesOnThroughARestart() throws Exception {
    LockClient client = sidecar.client();
    client.acquire("key");
    LockClient other = sidecar.client();
    InterruptTest.InThread<HeldLock> waiting = new InterruptTest.InThread<>(() -> other.acquire("key"));
    InterruptTest.awaitQueue(client, "key", 1);
    sidecar.kill();
    sidecar.start("/readyz");
    assertTrue(waiting.result().check().token() > 0);
  }

  @Test
  void aWaitEndsWithItsPatience() throws Exception {
    LockClient client =
        LockClient.builder().socket(sidecar.socket()).reconnect(Duration.ofMillis(300)).build();
    client.acquire("key").release();
    sidecar.kill();
    SidecarUnavailableException error =
        assertThrows(SidecarUnavailableException.class, () -> client.acquire("key"));
    assertEquals(SidecarUnavailableException.Kind.UNREACHABLE, error.kind());
    client.close();
  }

  @Test
  void aHaltedSidecarIsATimeout() throws Exception {
    LockClient client = LockClient.builder().socket(sidecar.socket()).timeout(Duration.ofMillis(200)).build();
    client.acquire("key").release();
    sidecar.signal("STOP");
    SidecarUnavailableException error = assertThrows(SidecarUnavailableException.class, () -> client.get("key"));
    assertEquals(SidecarUnavailableException.Kind.TIMEOUT, error.kind());
    sidecar.signal("CONT");
    assertFalse(client.get("key").held());
    client.close();
  }

  @Test
  void aLostAnswerIsAskedForAgainUnderTheSameId() throws Exception {
    try (FakeSidecar between = FakeSidecar.before(sidecar.socket());
        LockClient client = LockClient.builder().socket(between.socket()).build()) {
      client.acquire("first").release();
      between.cutNextAnswerTo("PUT /v1/locks/key");
      HeldLock lock = client.acquire("key");
      between.awaitHeldAnswer(); // the first answer was lost
      assertEquals(lock.token(), lock.check().token());
      lock.release();
      assertFalse(sidecar.client().getFresh("key").held(), "the first grant leaks");
    }
  }

  @Test
  void aTryWhoseAnswerIsLostLeavesNoGrant() throws Exception {
    try (FakeSidecar between = FakeSidecar.before(sidecar.socket());
        LockClient client = LockClient.builder().socket(between.socket()).timeout(Duration.ofMillis(300)).build()) {
      client.acquire("first").release();
      between.holdNextAnswerTo("PUT /v1/locks/key");
      assertThrows(SidecarUnavailableException.class, () -> client.tryAcquire("key"));
      assertFalse(sidecar.client().getFresh("key").held(), "the grant leaks");
    }
  }

  @Test
  void aReleaseWhoseAnswerIsLostHasReleased() throws Exception {
    try (FakeSidecar between = FakeSidecar.before(sidecar.socket());
        LockClient client = LockClient.builder().socket(between.socket()).build()) {
      HeldLock lock = client.acquire("key");
      between.cutNextAnswerTo("DELETE /v1/locks/key");
      assertTrue(lock.release());
    }
  }

  @Test
  void aDrainingSidecarGetsNoNewLocks() throws Exception {
    LockClient client = sidecar.client();
    HeldLock lock = client.acquire("key");
    sidecar.terminate();
    while (true) {
      try {
        client.tryAcquire("other").release();
      } catch (DrainingException e) {
        break;
      }
    }
    lock.release();
    sidecar.await();
  }
}

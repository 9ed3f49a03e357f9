// Proves: client own clock
package io.github.locksidecar.internal;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.HeldLock;
import io.github.locksidecar.LockClient;
import io.github.locksidecar.LockLostException;
import io.github.locksidecar.LockOptions;
import io.github.locksidecar.NotHolderException;
import io.github.locksidecar.UnavailableException;
import io.github.locksidecar.testing.Sidecar;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A bind:ttl lock: nobody tells its end, so this process's clock does. */
@Timeout(60)
class ExpiryTest {
  private static final long HOUR = Duration.ofHours(1).toNanos();
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

  private static LockOptions lasting(Duration ttl) {
    return LockOptions.defaults().bindTtl().ttl(ttl);
  }

  private static String reason(CompletableFuture<String> lost) throws Exception {
    return lost.get(20, TimeUnit.SECONDS);
  }

  private static void awaitFree(String key) {
    while (client.getFresh(key).held()) {
      Sidecar.pause();
    }
  }

  @Test
  void itsEndIsToldAlthoughTheSidecarSaysNothing() throws Exception {
    HeldLock watched = client.acquire("watched", lasting(Duration.ofMillis(500)));
    HeldLock other = client.acquire("other", lasting(Duration.ofMillis(500)));
    CompletableFuture<Boolean> told = watched.lost().thenApply(reason -> watched.isLost()).toCompletableFuture();
    sidecar.signal("STOP");
    try {
      assertTrue(told.get(20, TimeUnit.SECONDS));
      assertEquals("expired", reason(watched.lost().toCompletableFuture()));
      while (!other.isLost()) { // nobody waits for its loss
        Sidecar.pause();
      }
    } finally {
      sidecar.signal("CONT");
    }
    awaitFree("watched");
    assertEquals("expired", assertThrows(LockLostException.class, watched::check).reason());
    assertEquals("expired", assertThrows(LockLostException.class, watched::close).reason());
  }

  /** The store has extended it. Only the client got no answer in time. */
  @Test
  void theEndOfABlockAsksTheStore() throws Exception {
    try (FakeSidecar between = FakeSidecar.before(sidecar.socket());
        LockClient own = LockClient.builder().socket(between.socket()).timeout(Duration.ofSeconds(1)).build()) {
      HeldLock lock = own.acquire("asked", lasting(Duration.ofSeconds(4)));
      between.holdNextAnswerTo("PATCH /v1/locks/asked");
      assertThrows(UnavailableException.class, () -> lock.extend(Duration.ofHours(1)));
      assertEquals("expired", reason(lock.lost().toCompletableFuture()));
      lock.extend(Duration.ofHours(2));
      assertTrue(lock.isLost(), "a late extension has undone the loss");
      lock.close();
      assertTrue(lock.isReleased());
      assertFalse(client.getFresh("asked").held());
    }
  }

  @Test
  void anInterruptIsSentToo() throws Exception {
    HeldLock lock = client.acquire("interrupted", lasting(Duration.ofMillis(500)).interruptOnLoss());
    assertThrows(InterruptedException.class, () -> Thread.sleep(20_000));
    assertTrue(lock.isLost());
  }

  @Test
  void anExtensionMovesItsEnd() throws Exception {
    HeldLock lock = client.acquire("moved", lasting(Duration.ofHours(1)));
    CompletableFuture<String> lost = lock.lost().toCompletableFuture();
    lock.extend(Duration.ofMillis(500));
    assertEquals("expired", reason(lost));
  }

  @Test
  void anExtensionInTimeKeepsIt() {
    CompletableFuture<String> lost = new CompletableFuture<>();
    Expiry expiry = new Expiry(lost);
    expiry.watch();
    expiry.set(1, Clock.now() + HOUR);
    expiry.set(2, Clock.now() + 2 * HOUR);
    assertFalse(expiry.isOver());
    assertFalse(lost.isDone());
    expiry.cancel();
  }

  @Test
  void anExtensionThatComesLateDoesNotUndoTheLoss() {
    CompletableFuture<String> lost = new CompletableFuture<>();
    Expiry expiry = new Expiry(lost);
    expiry.set(1, Clock.now()); // nobody looks in this moment
    expiry.set(2, Clock.now() + HOUR);
    assertEquals("expired", lost.getNow(""));
  }

  @Test
  void anAnswerThatAnotherThreadReadsLateSetsNothingBack() {
    Expiry expiry = new Expiry(new CompletableFuture<>());
    assertTrue(expiry.set(2, Clock.now() + HOUR));
    assertFalse(expiry.set(1, Clock.now())); // it was asked before
    assertFalse(expiry.isOver());
  }

  @Test
  void nothingSetsTheEndOfAReleasedLock() {
    Expiry expiry = new Expiry(new CompletableFuture<>());
    expiry.set(1, Clock.now() + HOUR);
    expiry.cancel();
    assertFalse(expiry.set(2, Clock.now())); // an extension that was carried out before the release
    assertFalse(expiry.isOver());
  }

  @Test
  void aReleasedOrLostLockLeavesNoTimer() throws Exception {
    int before = Expiry.TIMERS.getQueue().size();
    HeldLock released = client.acquire("released", lasting(Duration.ofHours(1)));
    assertEquals(before, Expiry.TIMERS.getQueue().size(), "nobody waits for the loss");
    released.lost();
    assertEquals(before + 1, Expiry.TIMERS.getQueue().size());
    released.extend(Duration.ofHours(2));
    assertEquals(before + 1, Expiry.TIMERS.getQueue().size());
    released.release();
    assertFalse(released.isLost());
    released.lost();
    assertEquals(before, Expiry.TIMERS.getQueue().size());
    HeldLock lost = client.acquire("elsewhere", lasting(Duration.ofHours(1)));
    lost.lost();
    client.release("elsewhere", lost.token());
    assertThrows(NotHolderException.class, lost::check);
    assertEquals(before, Expiry.TIMERS.getQueue().size());
  }
}

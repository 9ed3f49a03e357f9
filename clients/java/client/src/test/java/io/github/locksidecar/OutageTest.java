package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.internal.FakeSidecar;
import io.github.locksidecar.testing.App;
import io.github.locksidecar.testing.Sidecar;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

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

  // Proves: client loss
  @Test
  void aKilledSidecarLosesTheLocksAndTheNextCallOpensASession() throws Exception {
    LockClient client = sidecar.client();
    HeldLock lock = client.acquire("key");
    sidecar.kill();
    assertEquals("disconnected", lock.lost().toCompletableFuture().get(10, TimeUnit.SECONDS));
    assertThrows(UnavailableException.class, () -> client.tryAcquire("key"));
    assertThrows(LockLostException.class, lock::close);
    sidecar.start("/readyz");
    try (HeldLock again = client.tryAcquire("key")) {
      assertNotNull(again);
    }
  }

  // Proves: client deadline
  /** They wait for one try, and not for one after the other. */
  @Test
  void threadsThatWaitForASessionFailTogether() throws Exception {
    sidecar.signal("STOP");
    try (LockClient client = sidecar.builder().timeout(Duration.ofSeconds(1)).build()) {
      long began = System.nanoTime();
      List<InterruptTest.InThread<HeldLock>> threads = new ArrayList<>();
      for (int i = 0; i < 20; i++) {
        threads.add(new InterruptTest.InThread<>(() -> client.tryAcquire("key")));
      }
      for (InterruptTest.InThread<HeldLock> one : threads) {
        assertInstanceOf(NoAnswerException.class, one.error());
      }
      long took = System.nanoTime() - began;
      sidecar.signal("CONT");
      assertTrue(took < TimeUnit.SECONDS.toNanos(8), "it took " + took / 1_000_000 + " ms");
      client.acquire("key").release();
    }
  }

  // Proves: client own clock
  /** As if many calls had come to a sidecar that hangs, and it could take no more. */
  @Test
  void aLossIsToldInTimeAlthoughNoConnectionIsAccepted(@TempDir Path folder) throws Exception {
    Path link = Files.createSymbolicLink(folder.resolve("s"), Path.of(sidecar.socket()));
    UnixDomainSocketAddress full = UnixDomainSocketAddress.of(folder.resolve("full"));
    List<SocketChannel> others = new ArrayList<>();
    try (ServerSocketChannel server = ServerSocketChannel.open(StandardProtocolFamily.UNIX).bind(full, 1);
        LockClient client = LockClient.builder().socket(link.toString()).timeout(Duration.ofSeconds(60)).build()) {
      long acquired = System.nanoTime();
      HeldLock first = client.acquire("first", LockOptions.defaults().ttl(Duration.ofSeconds(1)));
      HeldLock second = client.acquire("second", LockOptions.defaults().ttl(Duration.ofSeconds(2)));
      sidecar.signal("STOP");
      fill(full, others);
      Files.delete(link);
      Files.createSymbolicLink(link, full.getPath());
      assertEquals("expired", first.lost().toCompletableFuture().get(30, TimeUnit.SECONDS));
      assertEquals("expired", second.lost().toCompletableFuture().get(30, TimeUnit.SECONDS));
      long took = (System.nanoTime() - acquired) / 1_000_000;
      server.close();
      sidecar.signal("CONT");
      assertTrue(took < 20_000, "it took " + took + " ms");
    } finally {
      for (SocketChannel other : others) {
        other.close();
      }
    }
  }

  private static void fill(UnixDomainSocketAddress server, List<SocketChannel> others) throws IOException {
    while (true) {
      SocketChannel one = SocketChannel.open(StandardProtocolFamily.UNIX);
      others.add(one);
      one.configureBlocking(false);
      try {
        if (!one.connect(server)) {
          return;
        }
      } catch (IOException e) {
        return;
      }
    }
  }

  // Proves: client deadline
  @Test
  void aSessionThatBeginsWithTheHeadOnlyEndsInTime() throws Exception {
    String description = "{\"version\":\"v1\",\"api\":\"v1\",\"features\":[\"sessions\",\"release_by_id\"]}";
    try (FakeSidecar fake = FakeSidecar.answeringInTurn(
            "HTTP/1.1 200 OK\r\nContent-Length: " + description.length() + "\r\n\r\n" + description,
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
        LockClient client = LockClient.builder().socket(fake.socket()).timeout(Duration.ofMillis(500)).build()) {
      InterruptTest.InThread<HeldLock> acquires = new InterruptTest.InThread<>(() -> client.tryAcquire("key"));
      assertEquals("timeout", assertInstanceOf(NoAnswerException.class, acquires.error()).code());
    }
  }

  /** A call that may not be repeated goes on with another connection if nothing was sent on the one that was kept. */
  @Test
  void aKeptConnectionThatIsClosedCostsNoCall() throws Exception {
    LockClient client = sidecar.client();
    client.acquire("key").release();
    client.get("key"); // the first that was kept is in reserve
    sidecar.kill();
    sidecar.start("/readyz");
    assertThrows(ForbiddenException.class, () -> client.forceRelease("key")); // the answer of the sidecar
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
    UnavailableException error =
        assertThrows(UnavailableException.class, () -> client.acquire("key"));
    assertEquals("unreachable", error.code());
    client.close();
  }

  // Proves: client deadline
  @Test
  void aHaltedSidecarIsATimeout() throws Exception {
    LockClient client = LockClient.builder().socket(sidecar.socket()).timeout(Duration.ofMillis(200)).build();
    client.acquire("key").release();
    sidecar.signal("STOP");
    UnavailableException error = assertThrows(UnavailableException.class, () -> client.get("key"));
    assertEquals("timeout", error.code());
    sidecar.signal("CONT");
    assertFalse(client.get("key").held());
    client.close();
  }

  // Proves: client lost answer
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

  // Proves: client lost answer
  @Test
  void aTryWhoseAnswerIsLostLeavesNoGrant() throws Exception {
    try (FakeSidecar between = FakeSidecar.before(sidecar.socket());
        LockClient client = LockClient.builder().socket(between.socket()).timeout(Duration.ofMillis(300)).build()) {
      client.acquire("first").release();
      between.holdNextAnswerTo("PUT /v1/locks/key");
      assertThrows(UnavailableException.class, () -> client.tryAcquire("key"));
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

  /** The sidecar goes on with such a release, so the thread does not wait for itself. */
  // Proves: client given up
  @Test
  void aReleaseThatTheStoreHasNotConfirmedDoesNotRefuseTheThread() throws Exception {
    try (FakeSidecar between = FakeSidecar.before(sidecar.socket());
        LockClient client = LockClient.builder().socket(between.socket()).build()) {
      HeldLock lock = client.acquire("key");
      between.refuseNext("DELETE /v1/locks/key");
      assertThrows(StoreUnavailableException.class, lock::release);
      InterruptTest.InThread<Boolean> releasing =
          new InterruptTest.InThread<>(() -> {
            InterruptTest.awaitQueue(sidecar.client(), "key", 1);
            return lock.release();
          });
      try (HeldLock again = client.acquire("key")) {
        assertTrue(again.token() > lock.token());
      }
      assertTrue(releasing.result());
    }
  }

  // Proves: client lost answer
  @Test
  void anUnlockWithoutAnAnswerGivesTheEntryUp() throws Exception {
    LockClient client = LockClient.builder().socket(sidecar.socket()).timeout(Duration.ofMillis(500)).build();
    KeyLock lock = client.lock("key");
    lock.lock();
    lock.lock();
    sidecar.signal("STOP");
    assertThrows(UnavailableException.class, lock::unlock);
    assertThrows(UnavailableException.class, lock::unlock);
    assertNull(lock.held());
    sidecar.signal("CONT");
    assertFreeAgain(client, lock);
    client.close();
  }

  /** The lock is lost after the unlock. The thread was told of the trouble already. */
  // Proves: client lost answer
  @Test
  void aLossAfterAnUnlockWithoutAnAnswerDoesNotStopTheThread() throws Exception {
    LockClient client = LockClient.builder().socket(sidecar.socket()).timeout(Duration.ofMillis(500)).build();
    KeyLock lock = client.lock("key");
    lock.lock();
    HeldLock held = lock.held();
    sidecar.signal("STOP");
    assertThrows(UnavailableException.class, lock::unlock);
    sidecar.kill();
    held.lost().toCompletableFuture().get(10, TimeUnit.SECONDS);
    sidecar.start("/readyz");
    assertFreeAgain(client, lock);
    client.close();
  }

  /** The thread can lock again, and nothing stays held. */
  private static void assertFreeAgain(LockClient client, KeyLock lock) throws InterruptedException {
    assertTrue(lock.tryLock(30, TimeUnit.SECONDS));
    assertEquals(1, lock.held().reentry());
    lock.unlock();
    while (client.getFresh("key").held()) {
      Sidecar.pause();
    }
  }

  /** As Spring's leader does: its heartbeat enters the lock again, and a failure unlocks it. */
  // Proves: client deadline
  @Test
  void aThreadLearnsBeforeTheEndOfItsLeaseThatTheSidecarHangs() throws Exception {
    LockClient client = sidecar.client();
    KeyLock lock = client.lock("key");
    lock.lock();
    HeldLock held = lock.held();
    assertTrue(lock.tryLock(500, TimeUnit.MILLISECONDS));
    sidecar.signal("STOP");
    assertThrows(UnavailableException.class, lock::unlock);
    assertThrows(UnavailableException.class, () -> lock.tryLock(500, TimeUnit.MILLISECONDS));
    assertThrows(UnavailableException.class, lock::unlock);
    assertFalse(held.expiresIn().isZero(), "the lease has ended before");
    sidecar.signal("CONT");
    assertFreeAgain(client, lock);
  }

  /** Locks of two TTLs, and an entry of one. None of them makes a call while the sidecar hangs. */
  // Proves: client own clock
  @Test
  void aLockIsLostAtTheEndOfItsLeaseAlthoughTheSidecarHangs() throws Exception {
    LockClient client = LockClient.builder().socket(sidecar.socket()).ttl(Duration.ofSeconds(4)).build();
    KeyLock lock = client.lock("key");
    lock.lock();
    lock.lock();
    HeldLock longer = client.acquire("longer", LockOptions.defaults().ttl(Duration.ofSeconds(8)));
    sidecar.signal("STOP");
    Duration left = lock.held().expiresIn();
    assertEquals("expired", lock.held().lost().toCompletableFuture().get(left.toMillis() + 1000, TimeUnit.MILLISECONDS));
    assertFalse(longer.isLost());
    assertEquals("expired", longer.lost().toCompletableFuture().get(longer.expiresIn().toMillis() + 1000, TimeUnit.MILLISECONDS));
    assertThrows(LockLostException.class, lock::unlock);
    assertThrows(LockLostException.class, lock::unlock);
    assertThrows(LockLostException.class, longer::close);
    sidecar.signal("CONT");
    assertFreeAgain(client, lock);
    client.close();
  }

  /** The client asks for one of its locks, so it has them for longer than the first answers promised. */
  // Proves: client own clock
  @Test
  void locksAreHeldWhileTheSidecarAnswers() throws Exception {
    LockClient client = LockClient.builder().socket(sidecar.socket()).ttl(Duration.ofSeconds(1)).build();
    HeldLock first = client.acquire("first");
    HeldLock second = client.acquire("second");
    assertThrows(TimeoutException.class, () -> second.lost().toCompletableFuture().get(3, TimeUnit.SECONDS));
    assertFalse(first.expiresIn().isZero());
    assertFalse(second.expiresIn().isZero());
    first.release();
    second.release();
    client.close();
  }

  /** It is halted while it waits for an answer. When it goes on, its lease has ended, as far as it knows. */
  // Proves: client own clock
  @Test
  void anAppThatWasHaltedForLongerThanItsLeaseAsksFirst() throws Exception {
    try (FakeSidecar between = FakeSidecar.before(sidecar.socket())) {
      between.holdNextAnswerTo("PATCH /v1/locks/key");
      try (App app = new App(HaltedApp.class, between.socket())) {
        between.awaitHeldAnswer();
        app.signal("STOP");
        Thread.sleep(6000); // for longer than the lease
        app.signal("CONT");
        assertEquals("released", app.awaitLine("")); // and not "lost"
      }
    }
  }

  /** The sidecar has it still, each entry of it. Only the client got no answers. */
  // Proves: client given up
  @Test
  void aLockThatIsGivenUpIsReleasedWhenTheSidecarAnswers() throws Exception {
    try (FakeSidecar between = FakeSidecar.before(sidecar.socket());
        LockClient client = LockClient.builder().socket(between.socket()).ttl(Duration.ofSeconds(1)).build()) {
      KeyLock lock = client.lock("key");
      lock.lock();
      lock.lock();
      between.hang();
      assertEquals("expired", lock.held().lost().toCompletableFuture().get(10, TimeUnit.SECONDS));
      LockClient other = sidecar.client();
      assertTrue(other.getFresh("key").held());
      between.goOn();
      other.acquire("key").release();
    }
  }

  /** Else the thread would enter the lock that it has released. */
  // Proves: client given up
  @Test
  void anAcquireGoesBehindAReleaseWithoutAnAnswer() throws Exception {
    try (FakeSidecar between = FakeSidecar.before(sidecar.socket());
        LockClient client = LockClient.builder().socket(between.socket()).timeout(Duration.ofMillis(300)).build()) {
      KeyLock lock = client.lock("key");
      lock.lock();
      long token = lock.held().token();
      between.dropNext("DELETE /v1/locks/key");
      assertThrows(UnavailableException.class, lock::unlock);
      assertTrue(lock.tryLock());
      assertEquals(1, lock.held().reentry());
      assertTrue(lock.held().token() > token);
      lock.unlock();
    }
  }

  /** Nobody repeats it but the client: the app has given the lock up. */
  // Proves: client given up
  @Test
  void aReleaseThatDidNotArriveIsRepeated() throws Exception {
    try (FakeSidecar between = FakeSidecar.before(sidecar.socket());
        LockClient client = LockClient.builder().socket(between.socket()).timeout(Duration.ofMillis(300)).build()) {
      KeyLock lock = client.lock("key");
      lock.lock();
      between.dropNext("DELETE /v1/locks/key");
      assertThrows(UnavailableException.class, lock::unlock);
      sidecar.client().acquire("key").release();
    }
  }

  /** As above, for an acquire that gave up: its grant and its withdrawal got no answer. */
  // Proves: client given up
  @Test
  void aWithdrawalThatDidNotArriveIsRepeated() throws Exception {
    try (FakeSidecar between = FakeSidecar.before(sidecar.socket());
        LockClient client = LockClient.builder().socket(between.socket()).timeout(Duration.ofMillis(300)).build()) {
      client.acquire("first").release();
      between.holdNextAnswerTo("PUT /v1/locks/key");
      between.dropNext("DELETE /v1/locks/key");
      assertThrows(UnavailableException.class, () -> client.tryAcquire("key"));
      sidecar.client().acquire("key").release();
    }
  }

  // Proves: client own clock
  @Test
  void aTermEndsWithItsLeaseAlthoughTheSidecarHangs() throws Exception {
    LockClient client = LockClient.builder().socket(sidecar.socket()).ttl(Duration.ofSeconds(5)).build();
    BlockingQueue<Term> terms = new LinkedBlockingQueue<>();
    BlockingQueue<Duration> ends = new LinkedBlockingQueue<>();
    InterruptTest.InThread<String> leading =
        new InterruptTest.InThread<>(() -> client.lead("key", LockOptions.defaults(), term -> {
          terms.add(term);
          if (ends.isEmpty()) {
            term.await(Duration.ofSeconds(30));
            ends.add(term.lock().expiresIn());
          }
          return "second";
        }));
    Term first = terms.take();
    sidecar.signal("STOP");
    assertEquals("expired", first.over().toCompletableFuture().get(10, TimeUnit.SECONDS));
    sidecar.signal("CONT");
    assertEquals("second", leading.result());
    assertTrue(terms.take().token() > first.token());
    assertFalse(client.getFresh("key").held());
    client.close();
  }

  /** The leader asks for its lock, so it leads for longer than the first answer promised. */
  // Proves: client own clock
  @Test
  void aTermGoesOnWhileTheSidecarAnswers() throws Exception {
    LockClient client = LockClient.builder().socket(sidecar.socket()).ttl(Duration.ofSeconds(2)).build();
    boolean over = client.lead("key", LockOptions.defaults(), term -> term.await(Duration.ofSeconds(4)));
    assertFalse(over);
    client.close();
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

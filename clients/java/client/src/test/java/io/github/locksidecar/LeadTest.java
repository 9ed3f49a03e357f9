package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.testing.Sidecar;
import java.io.IOException;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Leaders. */
@Timeout(60)
class LeadTest {
  private static final LockOptions OPTIONS = LockOptions.defaults();
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

  @Test
  void theResultOfTheTaskEndsTheCampaign() throws Exception {
    assertEquals("done", client.lead("result", OPTIONS, term -> "done"));
    assertFalse(client.getFresh("result").held());
  }

  @Test
  void anErrorOfTheTaskGoesOn() throws Exception {
    assertThrows(IOException.class, () -> client.lead("error", OPTIONS, term -> {
      throw new IOException("disk");
    }));
    assertFalse(client.getFresh("error").held());
  }

  @Test
  void aRequestToStopEndsTheTermAndItCampaignsAgain() throws Exception {
    BlockingQueue<Long> tokens = new LinkedBlockingQueue<>();
    AtomicInteger terms = new AtomicInteger();
    InterruptTest.InThread<String> leading =
        new InterruptTest.InThread<>(() -> client.lead("stop", OPTIONS, term -> {
          boolean isFirst = terms.incrementAndGet() == 1;
          tokens.add(term.token());
          return isFirst ? String.valueOf(term.await(Duration.ofSeconds(30))) : "second";
        }));
    long first = tokens.take();
    client.stop("stop", "deploy");
    long second = tokens.take();
    assertTrue(second > first);
    assertEquals("second", leading.result());
  }

  // Proves: client leader
  @Test
  void aLossInterruptsTheTask() throws Exception {
    BlockingQueue<Term> terms = new LinkedBlockingQueue<>();
    BlockingQueue<Boolean> interrupted = new LinkedBlockingQueue<>();
    AtomicInteger count = new AtomicInteger();
    InterruptTest.InThread<String> leading =
        new InterruptTest.InThread<>(() -> client.lead("loss", OPTIONS, term -> {
          terms.add(term);
          if (count.incrementAndGet() > 1) {
            return "second";
          }
          try {
            Thread.sleep(30_000);
          } catch (InterruptedException e) {
            interrupted.add(term.isOver());
            throw e;
          }
          return "not interrupted";
        }));
    while (terms.isEmpty()) {
      Sidecar.pause();
    }
    client.forceRelease("loss");
    assertTrue(interrupted.take());
    assertEquals("second", leading.result());
    assertEquals("forced", terms.take().over().toCompletableFuture().get());
  }

  // Proves: client leader
  @Test
  void theLockIsHeldUntilTheTaskHasReturned() throws Exception {
    CountDownLatch cleaning = new CountDownLatch(1);
    CountDownLatch clean = new CountDownLatch(1);
    LockClient second = sidecar.client();
    InterruptTest.InThread<Boolean> leading =
        new InterruptTest.InThread<>(() -> client.lead("clean", OPTIONS, term -> {
          assertTrue(term.await(Duration.ofSeconds(30)));
          cleaning.countDown();
          clean.await(); // the interrupt is consumed, so this waits
          throw new IllegalStateException("enough");
        }));
    while (!second.getFresh("clean").held()) {
      Sidecar.pause();
    }
    second.stop("clean", null);
    cleaning.await();
    assertNull(second.tryAcquire("clean"));
    clean.countDown();
    assertEquals("enough", leading.error().getMessage());
    second.acquire("clean").release();
  }

  @Test
  void anInterruptOfTheCallerEndsIt() throws Exception {
    CountDownLatch begun = new CountDownLatch(1);
    CountDownLatch ended = new CountDownLatch(1);
    InterruptTest.InThread<Boolean> leading =
        new InterruptTest.InThread<>(() -> client.lead("caller", OPTIONS, term -> {
          begun.countDown();
          try {
            return term.await(Duration.ofSeconds(30));
          } finally {
            ended.countDown();
          }
        }));
    begun.await();
    leading.thread.interrupt();
    assertTrue(leading.error() instanceof InterruptedException);
    assertEquals(0, ended.getCount(), "the task has returned before");
    assertFalse(client.getFresh("caller").held());
  }

  @Test
  void othersSeeTheLeader() throws Exception {
    CountDownLatch over = new CountDownLatch(1);
    try (LeaderWatch watch = client.watchLeader("seen")) {
      assertNull(watch.next());
      InterruptTest.InThread<Object> leading =
          new InterruptTest.InThread<>(() -> client.lead("seen", OPTIONS.data(Map.of("addr", "a:1")), term -> {
            over.await();
            return null;
          }));
      assertEquals(Map.of("addr", "a:1"), watch.next());
      assertEquals(Map.of("addr", "a:1"), client.leader("seen"));
      over.countDown();
      assertNull(watch.next());
      leading.result();
      assertNull(client.leader("seen"));
    }
  }
}

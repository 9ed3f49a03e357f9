package io.github.locksidecar.internal;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.HeldLock;
import io.github.locksidecar.LockClient;
import io.github.locksidecar.LockOptions;
import io.github.locksidecar.testing.TlsSidecar;
import java.net.InetAddress;
import java.net.SocketTimeoutException;
import java.net.UnknownHostException;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A name that the system does not look up for long. */
@Timeout(60)
class LookupTest {
  private final CountDownLatch answers = new CountDownLatch(1);
  private final AtomicInteger lookups = new AtomicInteger();

  @AfterEach
  void answer() {
    Lookup.names = InetAddress::getAllByName;
    answers.countDown();
  }

  private InetAddress[] late(String host) throws UnknownHostException {
    lookups.incrementAndGet();
    try {
      answers.await();
    } catch (InterruptedException e) {
      throw new AssertionError(e);
    }
    return InetAddress.getAllByName(host);
  }

  // Proves: client own clock
  @Test
  void aLossIsToldInTimeWhileTheHostIsLookedUp() throws Exception {
    try (TlsSidecar sidecar = TlsSidecar.inMemory()) {
      LockClient client = sidecar.client();
      long acquired = System.nanoTime();
      HeldLock first = client.acquire("first", LockOptions.defaults().ttl(Duration.ofSeconds(1)));
      HeldLock second = client.acquire("second", LockOptions.defaults().ttl(Duration.ofSeconds(2)));
      Lookup.names = this::late;
      sidecar.signal("STOP");
      assertEquals("expired", first.lost().toCompletableFuture().get(30, TimeUnit.SECONDS));
      assertEquals("expired", second.lost().toCompletableFuture().get(30, TimeUnit.SECONDS));
      long took = (System.nanoTime() - acquired) / 1_000_000;
      answer();
      sidecar.signal("CONT");
      assertTrue(took < 20_000, "it took " + took + " ms");
      assertTrue(lookups.get() > 0);
    }
  }

  @Test
  void callsShareALookup() throws Exception {
    Lookup.names = this::late;
    Lookup lookup = new Lookup("localhost");
    for (int i = 0; i < 3; i++) {
      assertThrows(SocketTimeoutException.class, () -> lookup.addresses(1_000_000));
    }
    assertEquals(1, lookups.get());
    answers.countDown();
    assertTrue(lookup.addresses(30_000_000_000L).length > 0);
    assertTrue(new Lookup("127.0.0.1").addresses(1)[0].isLoopbackAddress());
    assertTrue(new Lookup("::1").addresses(1)[0].isLoopbackAddress());
  }
}

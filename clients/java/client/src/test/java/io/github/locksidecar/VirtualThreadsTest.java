package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.testing.Sidecar;
import io.github.locksidecar.testing.TlsSidecar;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The client in virtual threads. The tests are compiled for Java 17, so they find the executor by its name. */
@Timeout(120)
@Tag("virtual-threads")
class VirtualThreadsTest {
  private static final int THREADS = 500;

  private static ExecutorService virtualThreads() throws ReflectiveOperationException {
    return (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
  }

  /** Far more calls wait than there are carrier threads. */
  @Test
  void manyWaitForOneLock() throws Exception {
    manyWait(Sidecar.inMemory());
  }

  // Proves: client many connections
  @Test
  void manyWaitForOneLockOverTls() throws Exception {
    manyWait(TlsSidecar.inMemory());
  }

  private static void manyWait(Sidecar started) throws Exception {
    int[] count = {0};
    try (Sidecar sidecar = started) {
      LockClient client = sidecar.client();
      ExecutorService executor = virtualThreads();
      HeldLock first = client.acquire("key");
      List<Future<?>> calls = new ArrayList<>();
      for (int i = 0; i < THREADS; i++) {
        calls.add(
            executor.submit(
                () -> {
                  try (HeldLock lock = client.acquire("key")) {
                    count[0]++; // the lock alone protects it
                  }
                  return null;
                }));
      }
      InterruptTest.awaitQueue(client, "key", THREADS);
      first.release();
      for (Future<?> call : calls) {
        call.get(60, TimeUnit.SECONDS);
      }
      executor.shutdown();
    }
    assertEquals(THREADS, count[0]);
  }

  @Test
  void anInterruptEndsAWait() throws Exception {
    interruptedWait(Sidecar.inMemory());
  }

  @Test
  void anInterruptEndsAWaitOverTls() throws Exception {
    interruptedWait(TlsSidecar.inMemory());
  }

  private static void interruptedWait(Sidecar started) throws Exception {
    try (Sidecar sidecar = started) {
      LockClient client = sidecar.client();
      ExecutorService executor = virtualThreads();
      HeldLock held = client.acquire("key");
      Future<?> waiting = executor.submit(() -> client.acquire("key"));
      InterruptTest.awaitQueue(client, "key", 1);
      executor.shutdownNow();
      assertTrue(executor.awaitTermination(30, TimeUnit.SECONDS));
      assertTrue(waiting.isDone());
      InterruptTest.awaitQueue(client, "key", 0);
      held.release();
      assertFalse(client.getFresh("key").held());
    }
  }
}

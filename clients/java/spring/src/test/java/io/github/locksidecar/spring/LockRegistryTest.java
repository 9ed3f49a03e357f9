package io.github.locksidecar.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.LockClient;
import io.github.locksidecar.LockLostException;
import io.github.locksidecar.LockOptions;
import io.github.locksidecar.LocksidecarException;
import io.github.locksidecar.testing.Sidecar;
import io.github.locksidecar.testing.TlsSidecar;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.integration.support.locks.DistributedLock;
import org.springframework.integration.support.locks.LockRegistry;

/** The registry, and Boot's configuration of it. */
@Timeout(60)
class LockRegistryTest {
  private static Sidecar sidecar;
  private static LockClient client;
  private static LocksidecarLockRegistry registry;

  @BeforeAll
  static void start() {
    sidecar = new Sidecar(Map.of("STORE_URL", "memory://", "ALLOW_FORCE", "true"));
    client = sidecar.client();
    registry = new LocksidecarLockRegistry(client);
  }

  @AfterAll
  static void end() {
    sidecar.close();
  }

  private static boolean inAnotherThread(Callable<Boolean> call) throws Exception {
    ExecutorService executor = Executors.newSingleThreadExecutor();
    try {
      return executor.submit(call).get(30, TimeUnit.SECONDS);
    } finally {
      executor.shutdown();
    }
  }

  @Test
  void aLockIsReentrantForItsThreadOnly() throws Exception {
    DistributedLock lock = registry.obtain("a");
    lock.lock();
    assertTrue(registry.obtain("a").tryLock());
    assertFalse(inAnotherThread(() -> registry.obtain("a").tryLock(20, TimeUnit.MILLISECONDS)));
    lock.unlock();
    assertTrue(client.getFresh("spring:a").held());
    lock.unlock();
    assertFalse(client.getFresh("spring:a").held());
    assertThrows(IllegalMonitorStateException.class, lock::unlock);
  }

  @Test
  void workRunsUnderALock() throws Exception {
    assertEquals("done", registry.executeLocked("b", () -> {
      assertTrue(client.getFresh("spring:b").held());
      return "done";
    }));
    client.acquire("spring:b");
    assertThrows(TimeoutException.class, () -> registry.executeLocked("b", Duration.ofMillis(20), () -> "never"));
  }

  @Test
  void aRenewalChecksTheLock() {
    assertThrows(IllegalStateException.class, () -> registry.renewLock("c"));
    DistributedLock lock = registry.obtain("c");
    lock.lock(Duration.ofSeconds(1));
    registry.renewLock("c");
    registry.renewLock("c", Duration.ofHours(1));
    client.forceRelease("spring:c");
    assertThrows(IllegalStateException.class, () -> registry.renewLock("c"));
    assertThrows(LockLostException.class, lock::tryLock);
    assertThrows(LockLostException.class, lock::unlock);
    assertTrue(lock.tryLock());
    lock.unlock();
  }

  @Test
  void unusedLocksAreForgotten() throws Exception {
    DistributedLock unused = registry.obtain("unused");
    DistributedLock used = registry.obtain("used");
    assertTrue(used.tryLock(Duration.ZERO, Duration.ofSeconds(1)));
    registry.expireUnusedOlderThan(3_600_000);
    assertSame(unused, registry.obtain("unused"));
    registry.expireUnusedOlderThan(0);
    assertNotSame(unused, registry.obtain("unused"));
    assertSame(used, registry.obtain("used"));
    used.unlock();
    registry.expireUnusedOlderThan(0);
    assertNotSame(used, registry.obtain("used"));
  }

  /** For scheduled work in each pod: a short run does not let the next pod run it again in the same period. */
  // Proves: client once a period
  @Test
  void aLockWithMinHoldIsHeldForThePeriod() throws Exception {
    LockOptions options = LockOptions.defaults().minHold(Duration.ofSeconds(2));
    LocksidecarLockRegistry periodic = new LocksidecarLockRegistry(client, "spring:", options);
    LockRegistry<?> otherPod = new LocksidecarLockRegistry(sidecar.client(), "spring:", options);
    DistributedLock lock = periodic.obtain("period");
    long began = System.nanoTime();
    assertTrue(lock.tryLock());
    lock.unlock();
    boolean again = lock.tryLock() || otherPod.obtain("period").tryLock();
    assertTrue(!again || System.nanoTime() - began >= 2_000_000_000L, "twice in a period");
    assertTrue(otherPod.obtain("period").tryLock(30, TimeUnit.SECONDS) || again);
    assertTrue(System.nanoTime() - began >= 2_000_000_000L, "it was free too early");
  }

  @Test
  void aKeyIsAString() {
    assertThrows(IllegalArgumentException.class, () -> registry.obtain(1));
    assertTrue(assertThrows(IllegalArgumentException.class, () -> registry.obtain(null)).getMessage().contains("not null"));
  }

  @EnableAutoConfiguration
  static class Plain {}

  @Test
  void bootFindsASidecarOverTcp() throws Exception {
    try (TlsSidecar own = TlsSidecar.inMemory()) {
      Map<String, String> where = own.environment();
      SpringApplication app = new SpringApplication(Plain.class);
      try (ConfigurableApplicationContext context =
          app.run("--locksidecar.url=" + own.url(),
              "--locksidecar.token-file=" + where.get("LOCKSIDECAR_TOKEN_FILE"), "--locksidecar.ca-file=" + where.get("LOCKSIDECAR_CA_FILE"))) {
        context.getBean(LockRegistry.class).obtain("boot").lock();
        assertTrue(own.client().getFresh("spring:boot").held());
      }
    }
  }

  @Test
  void bootHasProperties() throws Exception {
    SpringApplication app = new SpringApplication(Plain.class);
    try (ConfigurableApplicationContext context =
        app.run("--locksidecar.socket=" + sidecar.socket(), "--locksidecar.ttl=1s", "--locksidecar.timeout=2s")) {
      LockRegistry<?> found = context.getBean(LockRegistry.class);
      assertTrue(found instanceof LocksidecarLockRegistry);
      found.obtain("boot").lock();
      assertTrue(client.getFresh("spring:boot").holder().expiresIn().compareTo(Duration.ofSeconds(1)) <= 0);
      sidecar.signal("STOP");
      String error = assertThrows(LocksidecarException.class, () -> context.getBean(LockClient.class).get("a")).getMessage();
      sidecar.signal("CONT");
      assertTrue(error.contains("within 2.0 s"), error);
    }
    assertFalse(client.getFresh("spring:boot").held(), "the end of the app releases its locks");
  }
}

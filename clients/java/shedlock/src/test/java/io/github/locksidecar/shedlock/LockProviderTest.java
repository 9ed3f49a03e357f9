package io.github.locksidecar.shedlock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.HeldLock;
import io.github.locksidecar.LockClient;
import io.github.locksidecar.StoreUnavailableException;
import io.github.locksidecar.internal.FakeSidecar;
import io.github.locksidecar.testing.Sidecar;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import net.javacrumbs.shedlock.core.DefaultLockingTaskExecutor;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockExtender;
import net.javacrumbs.shedlock.core.LockingTaskExecutor;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** ShedLock holds its providers to these rules (AbstractExtensibleLockProviderIntegrationTest of its repository). */
@Timeout(60)
class LockProviderTest {
  private static final Duration HOUR = Duration.ofHours(1);
  private static Sidecar sidecar;
  private static LockClient client;
  private static LocksidecarLockProvider provider;
  private static LocksidecarLockProvider otherProcess;

  private final String name = UUID.randomUUID().toString();

  @BeforeAll
  static void start() {
    sidecar = Sidecar.inMemory();
    client = sidecar.client();
    provider = new LocksidecarLockProvider(client);
    otherProcess = new LocksidecarLockProvider(sidecar.client());
  }

  @AfterAll
  static void end() {
    sidecar.close();
  }

  private Optional<SimpleLock> lock(Duration atMost, Duration atLeast) {
    return provider.lock(new LockConfiguration(Instant.now(), name, atMost, atLeast));
  }

  private SimpleLock locked(Duration atMost, Duration atLeast) {
    return lock(atMost, atLeast).orElseThrow();
  }

  private boolean isHeld() {
    return client.getFresh("shedlock:" + name).held();
  }

  private void assertRefused() {
    assertTrue(otherProcess.lock(new LockConfiguration(Instant.now(), name, HOUR, Duration.ZERO)).isEmpty());
  }

  private void awaitFree() {
    while (isHeld()) {
      Sidecar.pause();
    }
  }

  @Test
  void aLockIsHeldUntilItIsUnlocked() {
    SimpleLock lock = locked(HOUR, Duration.ZERO);
    assertTrue(isHeld());
    lock.unlock();
    assertFalse(isHeld());
  }

  @Test
  void aHeldLockIsRefused() {
    SimpleLock lock = locked(HOUR, Duration.ZERO);
    assertTrue(lock(HOUR, Duration.ZERO).isEmpty());
    assertTrue(otherProcess.lock(new LockConfiguration(Instant.now(), name, HOUR, Duration.ZERO)).isEmpty());
    lock.unlock();
    locked(HOUR, Duration.ZERO).unlock();
  }

  @Test
  void locksOfTwoNamesAreIndependent() {
    SimpleLock lock = locked(HOUR, Duration.ZERO);
    SimpleLock other =
        provider.lock(new LockConfiguration(Instant.now(), name + "2", HOUR, Duration.ZERO)).orElseThrow();
    lock.unlock();
    other.unlock();
  }

  // Proves: client ShedLock
  @Test
  void aLockEndsAfterLockAtMostFor() {
    SimpleLock lock = locked(Duration.ofMillis(100), Duration.ZERO);
    awaitFree();
    locked(HOUR, Duration.ZERO).unlock();
    lock.unlock(); // too late, and no error
  }

  // Proves: client ShedLock
  @Test
  void aLockIsKeptForLockAtLeastFor() {
    long began = System.nanoTime();
    locked(HOUR, Duration.ofSeconds(2)).unlock();
    assertTrue(lock(HOUR, Duration.ZERO).isEmpty());
    awaitFree();
    assertTrue(System.nanoTime() - began >= Duration.ofSeconds(2).toNanos(), "it was free too early");
    locked(HOUR, Duration.ZERO).unlock();
  }

  /** The next grant is in the queue then, and would get the lock when the task releases it. */
  // Proves: client ShedLock
  @Test
  void anErrorOfAnExtensionLeavesNoLock() throws Exception {
    try (FakeSidecar between = FakeSidecar.before(sidecar.socket());
        LockClient failing = LockClient.builder().socket(between.socket()).build()) {
      LockConfiguration configuration = new LockConfiguration(Instant.now(), name, HOUR, Duration.ZERO);
      SimpleLock lock = new LocksidecarLockProvider(failing).lock(configuration).orElseThrow();
      between.refuseNext("GET /v1/locks/");
      assertThrows(StoreUnavailableException.class, () -> lock.extend(HOUR, Duration.ZERO));
      lock.unlock();
      awaitFree();
      locked(HOUR, Duration.ZERO).unlock();
    }
  }

  @Test
  void aDeadProcessFreesItsLockAtOnce() {
    LockClient dying = sidecar.client();
    new LocksidecarLockProvider(dying).lock(new LockConfiguration(Instant.now(), name, HOUR, Duration.ZERO)).orElseThrow();
    assertTrue(lock(HOUR, Duration.ZERO).isEmpty());
    dying.close();
    locked(HOUR, Duration.ZERO).unlock();
  }

  @Test
  void aSecondUnlockIsRefused() {
    SimpleLock lock = locked(HOUR, Duration.ZERO);
    lock.unlock();
    assertThrows(IllegalStateException.class, lock::unlock);
  }

  @Test
  void anExtensionReplacesLockAtMostFor() {
    SimpleLock lock = locked(Duration.ofSeconds(2), Duration.ZERO);
    SimpleLock longer = lock.extend(HOUR, Duration.ZERO).orElseThrow().extend(HOUR, Duration.ZERO).orElseThrow();
    assertEquals(1, client.getFresh("shedlock:" + name).holdersCount());
    long end = System.nanoTime() + Duration.ofMillis(2500).toNanos();
    while (System.nanoTime() < end) {
      assertRefused();
    }
    longer.unlock();
    assertFalse(isHeld());
  }

  @Test
  void anExtensionEndsAfterItsLockAtMostFor() {
    locked(HOUR, Duration.ZERO).extend(Duration.ofMillis(100), Duration.ZERO).orElseThrow();
    awaitFree();
  }

  @Test
  void anExtensionHasItsOwnLockAtLeastFor() {
    SimpleLock longer = locked(HOUR, Duration.ZERO).extend(HOUR, Duration.ofMinutes(30)).orElseThrow();
    longer.unlock();
    assertTrue(isHeld());
  }

  @Test
  void anExtensionBeforeTheEndOfLockAtLeastForKeepsIt() {
    long began = System.nanoTime();
    SimpleLock longer = locked(HOUR, Duration.ofSeconds(1)).extend(HOUR, Duration.ZERO).orElseThrow();
    longer.unlock();
    assertTrue(isHeld());
    awaitFree();
    assertTrue(System.nanoTime() - began >= Duration.ofSeconds(1).toNanos(), "it was free too early");
  }

  @Test
  void anExtensionIsHeldAfterTheLockAtLeastForBeforeIt() {
    SimpleLock longer = locked(HOUR, Duration.ofMillis(300)).extend(HOUR, Duration.ofSeconds(1)).orElseThrow();
    long end = System.nanoTime() + Duration.ofMillis(600).toNanos();
    while (System.nanoTime() < end) {
      assertRefused();
    }
    longer.unlock();
    assertRefused(); // until its own lockAtLeastFor
    awaitFree();
  }

  @Test
  void anEndedOrUnlockedLockIsNotExtended() {
    SimpleLock ended = locked(Duration.ofMillis(20), Duration.ZERO);
    awaitFree();
    assertTrue(ended.extend(HOUR, Duration.ZERO).isEmpty());
    assertFalse(isHeld());
    SimpleLock unlocked = locked(HOUR, Duration.ZERO);
    unlocked.unlock();
    assertThrows(IllegalStateException.class, () -> unlocked.extend(HOUR, Duration.ZERO));
  }

  @Test
  void anExtendedLockIsReplacedByItsExtension() {
    SimpleLock lock = locked(HOUR, Duration.ZERO);
    SimpleLock longer = lock.extend(HOUR, Duration.ZERO).orElseThrow();
    assertThrows(IllegalStateException.class, () -> lock.extend(HOUR, Duration.ZERO));
    assertThrows(IllegalStateException.class, lock::unlock);
    longer.unlock();
  }

  // Proves: client ShedLock
  @Test
  void aLockThatOthersWaitForIsNotExtendedAndStaysHeld() throws Exception {
    SimpleLock lock = locked(HOUR, Duration.ZERO);
    LockClient waiting = sidecar.client();
    ExecutorService executor = Executors.newSingleThreadExecutor();
    Future<HeldLock> turn = executor.submit(() -> waiting.acquire("shedlock:" + name));
    while (client.getFresh("shedlock:" + name).queueLength() != 1) {
      Sidecar.pause();
    }
    long token = client.getFresh("shedlock:" + name).token();
    assertTrue(lock.extend(HOUR, Duration.ZERO).isEmpty());
    assertEquals(token, client.getFresh("shedlock:" + name).token());
    assertFalse(turn.isDone());
    client.stop("shedlock:" + name, null); // it is still the holder
    executor.shutdownNow();
    assertTrue(executor.awaitTermination(30, TimeUnit.SECONDS));
  }

  @Test
  void aTaskWhoseLockWasNotExtendedReleasesItAtItsEnd() throws Exception {
    LockClient waiting = sidecar.client();
    ExecutorService executor = Executors.newSingleThreadExecutor();
    List<Future<HeldLock>> turn = new ArrayList<>();
    new DefaultLockingTaskExecutor(provider)
        .executeWithLock(
            (Runnable)
                () -> {
                  turn.add(executor.submit(() -> waiting.acquire("shedlock:" + name)));
                  while (client.getFresh("shedlock:" + name).queueLength() != 1) {
                    Sidecar.pause();
                  }
                  assertThrows(
                      LockExtender.LockCanNotBeExtendedException.class,
                      () -> LockExtender.extendActiveLock(HOUR, Duration.ZERO));
                },
            new LockConfiguration(Instant.now(), name, HOUR, Duration.ZERO));
    turn.get(0).get(30, TimeUnit.SECONDS).release();
    executor.shutdown();
  }

  @Test
  void tasksOfManyThreadsDoNotOverlap() throws Exception {
    LockingTaskExecutor tasks = new DefaultLockingTaskExecutor(provider);
    int[] counts = {0, 0};
    ExecutorService threads = Executors.newFixedThreadPool(8);
    List<Future<?>> done = new ArrayList<>();
    for (int i = 0; i < 8; i++) {
      int one = i % 2;
      done.add(
          threads.submit(
              () -> {
                int[] runs = {0};
                while (runs[0] < 20) {
                  tasks.executeWithLock(
                      (Runnable)
                          () -> {
                            counts[one]++; // the lock alone protects it
                            runs[0]++;
                          },
                      new LockConfiguration(Instant.now(), name + one, HOUR, Duration.ofMillis(2)));
                }
              }));
    }
    for (Future<?> one : done) {
      one.get(50, TimeUnit.SECONDS);
    }
    threads.shutdown();
    assertEquals(80, counts[0]);
    assertEquals(80, counts[1]);
  }
}

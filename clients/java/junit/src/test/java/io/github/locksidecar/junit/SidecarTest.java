package io.github.locksidecar.junit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeout;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.ForbiddenException;
import io.github.locksidecar.HeldLock;
import io.github.locksidecar.LockClient;
import io.github.locksidecar.NotHeldException;
import io.github.locksidecar.UnavailableException;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

class SidecarTest {
  private static final long LIMIT = 60;

  @RegisterExtension static final Sidecar OF_ALL = new Sidecar();
  @RegisterExtension final Sidecar sidecar = new Sidecar();

  @Test
  void aLockIsLostOnRequest() throws Exception {
    HeldLock lock = sidecar.client().acquire("key");
    sidecar.lose("key");
    assertEquals("forced", lock.lost().toCompletableFuture().get(LIMIT, TimeUnit.SECONDS));
    assertThrows(NotHeldException.class, () -> sidecar.lose("key"));
  }

  @Test
  void itHangsAndGoesOn() {
    try (LockClient client = LockClient.builder().socket(sidecar.socket()).timeout(Duration.ofMillis(200)).build()) {
      sidecar.hang();
      assertThrows(UnavailableException.class, () -> client.get("key"));
      sidecar.resume();
      assertFalse(client.get("key").held());
    }
  }

  /** Each client would wait for its answer for 10 s. */
  @Test
  void theEndDoesNotWaitForOneThatHangs() throws Exception {
    for (String key : List.of("a", "b", "c", "d")) {
      sidecar.client().acquire(key);
    }
    sidecar.hang();
    assertTimeout(Duration.ofSeconds(20), sidecar::close);
  }

  @Test
  void itIsAwayAndComesBackWithoutLocks() throws Exception {
    LockClient client = sidecar.client();
    HeldLock lock = client.acquire("key");
    sidecar.kill();
    assertNotNull(lock.lost().toCompletableFuture().get(LIMIT, TimeUnit.SECONDS));
    assertThrows(UnavailableException.class, () -> client.get("key"));
    sidecar.start();
    assertFalse(client.get("key").held());
    assertThrows(IllegalStateException.class, sidecar::start);
  }

  /** The working directory of a test is that of its module, so a relative path easily leads elsewhere. */
  @Test
  void aMissingProgramIsNamed() {
    String absolute = Path.of("bin/none").toAbsolutePath().toString();
    String message = assertThrows(IllegalStateException.class, () -> Sidecar.binary(Map.of("LOCKSIDECAR_BINARY", "bin/none"))).getMessage();
    assertTrue(message.contains("LOCKSIDECAR_BINARY=" + absolute + " is no program"), message);
    message = assertThrows(IllegalStateException.class, () -> Sidecar.binary(Map.of("PATH", "/nowhere"))).getMessage();
    assertTrue(message.contains("let LOCKSIDECAR_BINARY name it"), message);
  }

  /** The sidecar of an instance field is a new one for each test: the second repetition would wait for the first. */
  @RepeatedTest(2)
  void eachTestHasItsOwn() throws Exception {
    assertNotNull(sidecar.client().tryAcquire("mine"));
  }

  /** The one of a static field is the same for all tests of the class. */
  @RepeatedTest(2)
  void theClassHasOne() {
    HeldLock lock = OF_ALL.client().tryAcquire("ours");
    assertEquals(lock == null, held);
    held = true;
  }

  private static boolean held;

  @Test
  void settingsReachItAndAWrongOneIsNamed() throws Exception {
    try (Sidecar strict = new Sidecar(Map.of("ALLOW_FORCE", "false"))) {
      strict.start();
      strict.client().acquire("key");
      assertThrows(ForbiddenException.class, () -> strict.lose("key"));
    }
    try (Sidecar wrong = new Sidecar(Map.of("TTL", "15"))) {
      assertTrue(assertThrows(IllegalStateException.class, wrong::start).getMessage().contains("LOCKSIDECAR_TTL"));
    }
  }
}

// Proves: client wrong use
package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.testing.Sidecar;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.api.io.TempDir;

/** Wrong arguments are refused with an error that names them. */
@Timeout(60)
class WrongUseTest {
  private static final LockOptions OPTIONS = LockOptions.defaults();
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

  private static void assertInvalid(String text, Executable call) {
    String message = assertThrows(InvalidRequestException.class, call).getMessage();
    assertTrue(message.contains(text), message);
  }

  private static void assertNotJson(String text, Executable call) {
    String message = assertThrows(IllegalArgumentException.class, call).getMessage();
    assertTrue(message.contains("data is not JSON") && message.contains(text), message);
  }

  @Test
  void nullIsRefused() {
    assertInvalid("key is null", () -> client.acquire(null));
    assertInvalid("key is null", () -> client.tryAcquire(null));
    assertInvalid("key is null", () -> client.get(null));
    assertInvalid("key is null", () -> client.release(null, 1));
    assertInvalid("key is null", () -> client.check(null, 1));
    assertInvalid("key is null", () -> client.lock(null));
    assertInvalid("key is null", () -> client.semaphore(null, 2));
    assertInvalid("key is null", () -> client.events(null));
    assertInvalid("key is null", () -> client.once(null, () -> 1));
    assertInvalid("key is null", () -> client.lead(null, OPTIONS, term -> 1));
    assertInvalid("keys is null", () -> client.acquireMany(null, OPTIONS));
    assertInvalid("a key of keys is null", () -> client.acquireMany(Arrays.asList("a", null), OPTIONS));
    assertInvalid("options is null", () -> client.acquire("a", null));
    assertInvalid("options is null", () -> client.tryAcquire("a", null));
    assertInvalid("options is null", () -> client.acquireMany(List.of("a"), null));
    assertInvalid("options is null", () -> client.lock("a", null));
    assertInvalid("options is null", () -> client.semaphore("a", 2, null));
    assertInvalid("work is null", () -> client.once("a", null));
    assertInvalid("task is null", () -> client.lead("a", OPTIONS, null));
    assertInvalid("maxWait is null", () -> OPTIONS.maxWait(null));
    assertInvalid("ttl is null", () -> OPTIONS.ttl(null));
    assertInvalid("owner is null", () -> OPTIONS.owner(null));
    assertInvalid("requestId is null", () -> OPTIONS.requestId(null));
    assertInvalid("data is null", () -> OPTIONS.data(null));
    assertInvalid("name is null", () -> LockClient.builder().name(null));
    assertInvalid("socket is null", () -> LockClient.builder().socket(null));
    assertInvalid("timeout is null", () -> LockClient.builder().timeout(null));
  }

  @Test
  void durationsOutOfRangeAreRefused() {
    assertInvalid("maxWait is -1 ms; it must be 0 to 86400000 ms", () -> OPTIONS.maxWait(Duration.ofMillis(-1)));
    assertInvalid("maxWait is", () -> OPTIONS.maxWait(Duration.ofSeconds(Long.MAX_VALUE)));
    assertInvalid("maxHold is", () -> OPTIONS.maxHold(Duration.ofSeconds(Long.MIN_VALUE)));
  }

  /** All texts with half a surrogate pair would be one key. */
  @Test
  void halfOfASurrogatePairIsRefused() {
    assertInvalid("key is no Unicode text", () -> client.acquire("a\ud800"));
    assertInvalid("key is no Unicode text", () -> client.get("a\ud800"));
    assertInvalid("a key of keys is no Unicode text", () -> client.acquireMany(List.of("\udc00"), OPTIONS));
    assertInvalid("owner is no Unicode text", () -> OPTIONS.owner("\ud800"));
  }

  @Test
  void whatIsNoJsonIsRefused() {
    assertNotJson("NaN", () -> OPTIONS.data(Double.NaN));
    assertNotJson("Infinity", () -> OPTIONS.data(Map.of("a", List.of(Float.POSITIVE_INFINITY))));
    assertNotJson("NaN", () -> OPTIONS.data(new Object[] {Double.NaN}));
    assertNotJson("name 1", () -> OPTIONS.data(Map.of(1, 2)));
    assertNotJson("Thread", () -> OPTIONS.data(Thread.currentThread()));
    Map<String, Object> itself = new HashMap<>();
    itself.put("itself", itself);
    assertNotJson("levels", () -> OPTIONS.data(itself));
  }

  @Test
  void aSocketIsAPath(@TempDir Path folder) throws Exception {
    for (String wrong : List.of("", "unix:///tmp/s.sock", "http://localhost:15625", "/tmp/\0")) {
      assertInvalid("the path of a socket, such as /run/locksidecar/", () -> LockClient.builder().socket(wrong));
    }
    Path file = Files.createFile(folder.resolve("file"));
    assertUnreachable(file + ": this is no socket, but a plain file", file.toString());
    assertUnreachable("this is no socket, but a folder", folder.toString());
    assertUnreachable("there is no such socket", folder.resolve("none").toString());
    assertUnreachable("at most 107 bytes", folder.resolve("long".repeat(40)).toString());
  }

  private static void assertUnreachable(String text, String socket) {
    try (LockClient at = LockClient.builder().socket(socket).build()) {
      String message = assertThrows(UnavailableException.class, () -> at.get("a")).getMessage();
      assertTrue(message.contains(text), message);
    }
  }
}

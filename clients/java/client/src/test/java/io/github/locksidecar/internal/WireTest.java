package io.github.locksidecar.internal;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.grack.nanojson.JsonObject;
import io.github.locksidecar.DrainingException;
import io.github.locksidecar.LimitReachedException;
import io.github.locksidecar.LockClient;
import io.github.locksidecar.LockHeldException;
import io.github.locksidecar.LocksidecarException;
import io.github.locksidecar.NoAnswerException;
import io.github.locksidecar.ProtocolException;
import io.github.locksidecar.StoreUnavailableException;
import io.github.locksidecar.UnavailableException;
import java.io.IOException;
import java.net.StandardProtocolFamily;
import java.net.UnixDomainSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Map;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Answers in pieces, and answers of others. */
@Timeout(60)
class WireTest {
  private static final String ABOUT =
      "HTTP/1.1 200 OK\r\nContent-Length: 53\r\n\r\n{\"version\":\"v1\",\"api\":\"v1\",\"features\":[\"events\",\"a\"]}";

  private static void with(LockClientTask task, String... pieces) throws Exception {
    try (FakeSidecar fake = FakeSidecar.answering(pieces);
        LockClient client = LockClient.builder().socket(fake.socket()).timeout(Duration.ofSeconds(5)).build()) {
      task.run(client);
    }
  }

  private interface LockClientTask {
    void run(LockClient client) throws Exception;
  }

  @Test
  void anAnswerMayComeInPieces() throws Exception {
    with(
        client -> assertEquals("v1", client.describe().version()),
        ABOUT.substring(0, 20), ABOUT.substring(20, 39), ABOUT.substring(39, 60), ABOUT.substring(60));
  }

  @Test
  void otherHeadsMayComeBeforeTheAnswer() throws Exception {
    with(
        client -> assertEquals("v1", client.describe().version()),
        "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 10", "0 Continue\r\n\r\n" + ABOUT);
  }

  /** The time of a call is that of all its tries: here of one on a kept connection that breaks, and of one that is not answered. */
  @Test
  void allTriesHaveOneEnd() throws Exception {
    Path socket = Files.createTempDirectory(Path.of("/tmp"), "lsw").resolve("s");
    try (ServerSocketChannel server = ServerSocketChannel.open(StandardProtocolFamily.UNIX)) {
      server.bind(UnixDomainSocketAddress.of(socket));
      Thread serves = new Thread(() -> serveThree(server));
      serves.setDaemon(true);
      serves.start();
      try (LockClient client = LockClient.builder().socket(socket.toString()).timeout(Duration.ofSeconds(1)).build()) {
        client.describe(); // its connection is that in reserve
        client.describe();
        long began = System.nanoTime();
        assertThrows(UnavailableException.class, client::describe);
        Duration took = Duration.ofNanos(System.nanoTime() - began);
        assertTrue(took.compareTo(Duration.ofMillis(1500)) < 0, took.toString());
      }
    }
  }

  private static void serveThree(ServerSocketChannel server) {
    try {
      for (int i = 0; i < 2; i++) {
        SocketChannel app = server.accept();
        app.read(ByteBuffer.allocate(4096));
        app.write(ByteBuffer.wrap(ABOUT.getBytes(StandardCharsets.ISO_8859_1)));
        if (i == 1) {
          app.read(ByteBuffer.allocate(4096));
          Thread.sleep(800);
          app.close();
        }
      }
      server.accept(); // and says nothing
    } catch (IOException | InterruptedException e) {
      // the end of the test
    }
  }

  @Test
  void anotherServerIsNamed() throws Exception {
    for (String answer :
        new String[] {
          "-ERR unknown command\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 abc\r\nContent-Length: 0\r\n\r\n",
          "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
        }) {
      with(
          client -> {
            String message = assertThrows(ProtocolException.class, client::describe).getMessage();
            assertTrue(message.endsWith("is this the socket of a locksidecar?"), message);
          },
          answer);
    }
  }

  @Test
  void anUnknownCodeKeepsItsStatus() throws Exception {
    with(
        client -> {
          LocksidecarException error = assertThrows(LocksidecarException.class, () -> client.get("key"));
          assertEquals(LocksidecarException.class, error.getClass());
          assertEquals(418, error.status());
          assertEquals("teapot", error.code());
        },
        "HTTP/1.1 418 Teapot\r\nContent-Length: 17\r\n\r\n{\"code\":\"teapot\"}");
  }

  private static LocksidecarException refusal(String... pieces) throws Exception {
    List<LocksidecarException> errors = new ArrayList<>();
    with(client -> errors.add(assertThrows(LocksidecarException.class, () -> client.get("key"))), pieces);
    return errors.get(0);
  }

  private static LocksidecarException refusedWith(String code) throws Exception {
    String body = "{\"code\":\"" + code + "\"}";
    return refusal("HTTP/1.1 503 x\r\nRetry-After: 3\r\nContent-Length: " + body.length() + "\r\n\r\n" + body);
  }

  @Test
  void unavailableIsAnySidecarThatCannotServeNow() throws Exception {
    for (LocksidecarException error : List.of(refusedWith("draining"), refusedWith("store_unavailable"))) {
      assertInstanceOf(UnavailableException.class, error);
      assertEquals(Duration.ofSeconds(3), error.retryAfter());
    }
    assertInstanceOf(DrainingException.class, refusedWith("draining"));
    assertInstanceOf(StoreUnavailableException.class, refusedWith("store_unavailable"));
    try (LockClient client = LockClient.builder().socket("/tmp/no-such-socket").build()) {
      UnavailableException away = assertThrows(UnavailableException.class, () -> client.get("key"));
      assertInstanceOf(NoAnswerException.class, away);
      assertEquals("unreachable", away.code());
      assertEquals(0, away.status());
      assertNull(away.retryAfter());
    }
    LocksidecarException limit = assertInstanceOf(LimitReachedException.class, refusedWith("limit"));
    assertFalse(limit instanceof UnavailableException);
    assertEquals(Duration.ofSeconds(3), limit.retryAfter());
  }

  @Test
  void chunksMaySplitCharactersAndEvents() throws Exception {
    String head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    String event = ":\n\nevent: state\ndata: {\"a\":\"\u00c3\u00a9\"}\n\n"; // two bytes of a letter
    int middle = event.indexOf('\u00a9');
    String chunks = chunk(event.substring(0, middle)) + chunk(event.substring(middle));
    try (FakeSidecar fake = FakeSidecar.answering(head, chunks.substring(0, 9), chunks.substring(9))) {
      Transport transport = new Transport(new Settings(Endpoint.socket(fake.socket()), Map.of(), 5_000_000_000L, 0));
      try (Stream stream = transport.stream(new Call("GET", "/v1/locks/a/events", null, 5_000_000_000L))) {
        Event next = stream.next();
        assertEquals("state", next.name());
        assertEquals("\u00e9", next.data().getString("a"));
      }
      transport.close();
    }
  }

  private static String chunk(String text) {
    return Integer.toHexString(text.length()) + "\r\n" + text + "\r\n";
  }

  @Test
  void newsBeforeItsGrantIsKept() {
    Session session = new Session("id", call -> {
      throw new NoAnswerException("unreachable", "there is none", "", null);
    }, () -> {});
    JsonObject grant = new JsonObject(Map.of("key", "k", "token", 7, "waited_ms", 0, "expires_in_ms", 1000, "reentry", 1));
    session.receive(new Event("lost", new JsonObject(Map.of("key", "k", "token", 7, "reason", "forced"))));
    session.receive(new Event("stop", new JsonObject(Map.of("key", "k", "token", 7, "reason", "why"))));
    session.receive(new Event("new-in-a-later-version", new JsonObject()));
    Grant held = session.hold(grant, 1, new AcquireRequest(Map.of(), List.of(), 0, null, null), "request");
    assertEquals("forced", held.lost.getNow(""));
    assertEquals("why", held.stopping.getNow(""));
  }

  @Test
  void aLockThatItsSidecarKeepsSaysSo() throws Exception {
    for (boolean kept : new boolean[] {true, false}) {
      String lock = "{\"key\":\"a\",\"type\":\"\",\"state\":\"held\",\"mine\":false,\"holders\":[],\"kept\":" + kept + "}";
      with(
          client -> assertEquals(kept, client.get("a").kept()),
          "HTTP/1.1 200 OK\r\nContent-Length: " + lock.length() + "\r\n\r\n" + lock);
      LocksidecarException held = Problem.error(Map.of("code", "held", "detail", "no", "kept", kept), 423, "");
      assertEquals(kept, assertInstanceOf(LockHeldException.class, held).kept());
    }
  }

  @Test
  void keysAreQuoted() {
    assertEquals("/v1/locks/a%2Fb%20%2A%2B%3F%C3%A9~", Target.lock("a/b *+?\u00e9~").replace("%7E", "~"));
  }

  @Test
  void namesOfTheApiInErrorsAreOurs() {
    LocksidecarException error = Problem.error(Map.of("code", "invalid_request", "detail", "field wait_ms is -2; key x:wait_ms"), 400, "");
    assertEquals("field maxWait (in ms) is -2; key x:wait_ms", error.detail());
  }
}

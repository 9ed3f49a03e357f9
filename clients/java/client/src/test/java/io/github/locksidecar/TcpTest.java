package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.testing.App;
import io.github.locksidecar.testing.Authority;
import io.github.locksidecar.testing.Sidecar;
import io.github.locksidecar.testing.TcpProxy;
import io.github.locksidecar.testing.TlsSidecar;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.time.Duration;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.condition.EnabledOnOs;
import org.junit.jupiter.api.condition.OS;
import org.junit.jupiter.api.io.TempDir;

/** The sidecar over TCP, with TLS of a CA that the test makes, and a token. */
@Timeout(120)
class TcpTest {
  private static final String OTHER_TOKEN = "fedcba9876543210fedcba9876543210";

  @TempDir private static Path folder;

  private static TlsSidecar sidecar;
  private static Authority ca;
  private static Authority other;
  private static Path token;

  @BeforeAll
  static void start() {
    sidecar = TlsSidecar.inMemory();
    ca = new Authority(folder.resolve("ca"));
    other = new Authority(folder.resolve("other"));
    token = Authority.write(folder.resolve("token"), Authority.TOKEN + "\n" + OTHER_TOKEN + "\n");
  }

  @AfterAll
  static void end() {
    sidecar.close();
  }

  /** Locks, waits, events, losses. */
  @Test
  void everythingWorksAsOnTheSocket() throws Exception {
    try (TlsSidecar own = TlsSidecar.start(Map.of("ALLOW_FORCE", "true"), "/readyz")) {
      LockClient one = own.client();
      LockClient two = own.client();
      HeldLock lock = one.acquire("k");
      assertNull(two.tryAcquire("k"));
      InterruptTest.InThread<HeldLock> waiting = new InterruptTest.InThread<>(() -> two.acquire("k"));
      InterruptTest.awaitQueue(one, "k", 1);
      lock.release();
      HeldLock second = waiting.result();
      assertTrue(second.token() > lock.token());
      try (KeyEvents events = two.events("k")) {
        assertEquals("state", events.next().type());
      }
      one.forceRelease("k");
      assertEquals("forced", second.lost().toCompletableFuture().get(30, TimeUnit.SECONDS));
      HeldLock kept = one.acquire("k");
      own.kill();
      assertEquals("disconnected", kept.lost().toCompletableFuture().get(30, TimeUnit.SECONDS));
      assertFalse(own.log().contains(Authority.TOKEN), own.log());
    }
  }

  @Test
  void anInterruptEndsAWait() throws Exception {
    LockClient client = sidecar.client();
    HeldLock held = client.acquire("wait");
    InterruptTest.InThread<HeldLock> waiting = new InterruptTest.InThread<>(() -> client.acquire("wait"));
    InterruptTest.awaitQueue(client, "wait", 1);
    waiting.thread.interrupt();
    assertInstanceOf(InterruptedException.class, waiting.error());
    InterruptTest.awaitQueue(client, "wait", 0);
    assertFalse(held.isLost(), "the session lives on");
    held.release();
  }

  /** Interrupts come at any moment, also of a handshake. */
  @Test
  void noInterruptLeavesALockWithoutAHolder() throws Exception {
    InterruptTest.hammer(sidecar, 300, 20_000_000);
  }

  @Test
  void closeEndsAWait() throws Exception {
    LockClient one = sidecar.client();
    LockClient two = sidecar.client();
    one.acquire("closing");
    InterruptTest.InThread<HeldLock> waiting = new InterruptTest.InThread<>(() -> two.acquire("closing"));
    InterruptTest.awaitQueue(one, "closing", 1);
    two.close();
    assertInstanceOf(SessionEndedException.class, waiting.error());
    InterruptTest.awaitQueue(one, "closing", 0);
  }

  @Test
  void threadsShareAClient() throws Exception {
    LockClient client = sidecar.client();
    int[] count = {0};
    List<InterruptTest.InThread<Integer>> threads =
        Stream.generate(() -> new InterruptTest.InThread<>(() -> {
          for (int i = 0; i < 25; i++) {
            try (HeldLock lock = client.acquire("count")) {
              count[0]++; // the lock alone protects it
            }
          }
          return 0;
        })).limit(8).toList();
    for (InterruptTest.InThread<Integer> thread : threads) {
      thread.result();
    }
    assertEquals(200, count[0]);
  }

  @Test
  void aKilledAppFreesItsLock() throws Exception {
    try (App app = new App(HolderApp.class, sidecar.environment(), "", System.getProperty("java.class.path"))) {
      app.awaitLine("held");
      LockClient client = sidecar.client();
      InterruptTest.InThread<HeldLock> waiting = new InterruptTest.InThread<>(() -> client.acquire("app"));
      InterruptTest.awaitQueue(client, "app", 1);
      app.kill();
      waiting.result().release();
    }
  }

  /** An app that holds a lock, and finds its sidecar by the environment. */
  static final class HolderApp {
    public static void main(String[] arguments) throws Exception {
      HeldLock lock = LockClient.create().acquire("app");
      System.out.println("held " + lock.token());
      Thread.sleep(Duration.ofHours(1).toMillis());
    }
  }

  /** Its session and its calls notice a peer that vanishes. */
  @Test
  @EnabledOnOs(OS.LINUX)
  void aConnectionThatSaysNothingIsProbed() throws Exception {
    try (Sidecar own = new Sidecar(Authority.plain(folder));
        LockClient client = LockClient.builder().url("http://127.0.0.1:" + own.port()).tokenFile(token).build()) {
      HeldLock lock = client.acquire("k");
      String port = String.format(Locale.ROOT, ":%04X", own.port());
      while (true) {
        // The kind of its timer is 02 if it probes; then its time in hundredths of a second.
        List<String> timers = timers(port);
        assertTrue(timers.size() >= 2, timers.toString()); // the session's, and one for calls
        if (timers.stream().allMatch(timer -> timer.startsWith("02:") && Integer.parseInt(timer.substring(3), 16) <= 300)) {
          break;
        }
        Sidecar.pause();
      }
      lock.release();
    }
  }

  private static List<String> timers(String port) throws IOException {
    return Stream.of("/proc/self/net/tcp", "/proc/self/net/tcp6")
        .flatMap(file -> {
          try {
            return Files.readAllLines(Path.of(file)).stream();
          } catch (IOException e) {
            return Stream.empty(); // there is no IPv6
          }
        })
        .map(row -> row.trim().split("\\s+"))
        .filter(row -> row[2].endsWith(port) && row[3].equals("01"))
        .map(row -> row[5])
        .toList();
  }

  @Test
  void aTokenIsReadAgain() throws Exception {
    Path file = Authority.write(folder.resolve("rotated"), OTHER_TOKEN);
    try (Sidecar own = new Sidecar(Authority.plain(folder));
        LockClient client = LockClient.builder().url("http://127.0.0.1:" + own.port()).tokenFile(file).build()) {
      assertEquals("unauthorized", assertThrows(ForbiddenException.class, () -> client.get("k")).code());
      Authority.write(file, Authority.TOKEN);
      while (!isRight(client)) {
        Sidecar.pause();
      }
      Files.delete(file); // for a moment, while it is replaced
      long end = System.nanoTime() + 1_100_000_000;
      while (System.nanoTime() < end) {
        Sidecar.pause();
      }
      assertFalse(client.get("k").held());
    }
  }

  private static boolean isRight(LockClient client) {
    try {
      return !client.get("k").held();
    } catch (ForbiddenException e) {
      return false;
    }
  }

  /** What a mistake makes of the right settings, the error, and what it says. */
  private record Mistake(String name, UnaryOperator<LockClientBuilder> change, Class<? extends Exception> kind, String... says) {}

  // Each error says what is wrong, and the setting to look at. It never contains a token.
  @TestFactory
  Stream<DynamicTest> mistakes() throws IOException {
    int nobody;
    try (ServerSocket listener = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
      nobody = listener.getLocalPort();
    }
    Sidecar good = new Sidecar(ca.settings());
    Sidecar expired = new Sidecar(ca.settings("DNS:localhost", -1));
    Sidecar elsewhere = new Sidecar(ca.settings("DNS:sidecar.example", 1));
    Sidecar unencrypted = new Sidecar(Authority.plain(folder));
    String at = "https://localhost:";
    Path wrong = Authority.write(folder.resolve("wrong"), OTHER_TOKEN);
    Path empty = Authority.write(folder.resolve("empty"), "\n");
    Path odd = Authority.write(folder.resolve("odd"), "s3cret\rX: y");
    Path longer = Authority.write(folder.resolve("longer"), "s3cret".repeat(200));
    Class<? extends Exception> invalid = InvalidRequestException.class;
    Class<? extends Exception> unavailable = UnavailableException.class;
    Class<? extends Exception> forbidden = ForbiddenException.class;
    Stream<Mistake> all = Stream.of(
        new Mistake("wrong token", b -> b.tokenFile(wrong), forbidden, "LOCKSIDECAR_TCP_TOKEN_FILE"),
        new Mistake("no token", b -> LockClient.builder().url(at + good.port()).caFile(ca.file), forbidden, "LOCKSIDECAR_TCP_TOKEN_FILE"),
        new Mistake("no token file", b -> b.tokenFile(Path.of("/no/token")), invalid, "tokenFile", "/no/token"),
        new Mistake("empty token file", b -> b.tokenFile(empty), invalid, "tokenFile", "first line"),
        new Mistake("token with a break", b -> b.tokenFile(odd), invalid, "tokenFile"),
        new Mistake("long token", b -> b.tokenFile(longer), invalid, "512"),
        new Mistake("wrong CA", b -> b.caFile(other.file), unavailable, "does not trust", "caFile", other.file.toString()),
        new Mistake("the JVM's CAs", b -> LockClient.builder().url(at + good.port()).tokenFile(token), unavailable, "LOCKSIDECAR_CA_FILE", "does not trust"),
        new Mistake("no CA file", b -> b.caFile(Path.of("/no/ca")), invalid, "caFile", "/no/ca"),
        new Mistake("empty CA file", b -> b.caFile(empty), invalid, "caFile", "PEM"),
        new Mistake("expired", b -> b.url(at + expired.port()), unavailable, "not valid now", "expired"),
        new Mistake("another name", b -> b.url(at + elsewhere.port()), unavailable, "another name", "url"),
        new Mistake("an address for a name", b -> b.url("https://127.0.0.1:" + good.port()), unavailable, "another name", "127.0.0.1"),
        new Mistake("HTTP to TLS", b -> b.url("http://localhost:" + good.port()), invalid, "https://"),
        new Mistake("TLS to HTTP", b -> b.url(at + unencrypted.port()), unavailable, "TLS", "url"),
        new Mistake("nobody listens", b -> b.url(at + nobody), unavailable, "nobody listens", "LOCKSIDECAR_TCP_ADDR", "url"),
        new Mistake("no such host", b -> b.url("https://no-such-host.invalid:1"), unavailable, "not known", "url"),
        new Mistake("two places", b -> b.socket("/s"), invalid, "socket", "url"),
        new Mistake("a password", b -> b.url("https://u:s3cret@localhost:1"), invalid, "url", "https://HOST:PORT"),
        new Mistake("no port", b -> b.url("https://localhost"), invalid, "url", "https://HOST:PORT"),
        new Mistake("no such port", b -> b.url("https://localhost:70000"), invalid, "url", "70000"),
        new Mistake("a path", b -> b.url("https://localhost:1/v1"), invalid, "url"),
        new Mistake("a query", b -> b.url("https://localhost:1?a=b"), invalid, "url"),
        new Mistake("host and path", b -> b.url("unix://host/s"), invalid, "unix:///PATH"),
        new Mistake("no scheme", b -> b.url("localhost:1"), invalid, "url"),
        new Mistake("a line break", b -> b.url("http://localhost:1\r\nX: y"), invalid, "url"),
        new Mistake("half an address", b -> b.url("http://[::1:1"), invalid, "url"));
    return all
        .map(one -> DynamicTest.dynamicTest(one.name(), () -> {
          LockClientBuilder right = LockClient.builder().url(at + good.port()).tokenFile(token).caFile(ca.file);
          for (boolean acquires : new boolean[] {true, false}) {
            Exception error = assertThrows(one.kind(), () -> {
              try (LockClient client = one.change().apply(right).build()) {
                if (acquires) {
                  client.acquire("k");
                } else {
                  client.get("k");
                }
              }
            });
            for (String said : one.says()) {
              assertTrue(error.getMessage().contains(said), "no " + said + " in " + error.getMessage());
            }
            String trace = trace(error);
            for (String secret : List.of(Authority.TOKEN, OTHER_TOKEN, "s3cret")) {
              assertFalse(trace.contains(secret), trace);
            }
          }
        }))
        .onClose(() -> List.of(good, expired, elsewhere, unencrypted).forEach(Sidecar::close));
  }

  /** A release may go over the connection in reserve if the name of the host cannot be looked up. A client that has reached no sidecar has none, so it does not wait for it. */
  @Test
  @Timeout(60)
  void aHostThatWasNeverKnownIsToldAtOnce() {
    try (LockClient client = LockClient.builder().url("http://no-such-host.invalid:1").timeout(Duration.ofMinutes(10)).build()) {
      assertThrows(UnavailableException.class, () -> client.check("k", 7));
      assertThrows(UnavailableException.class, () -> client.release("k", 7));
    }
  }

  private static String trace(Exception error) {
    StringWriter text = new StringWriter();
    error.printStackTrace(new PrintWriter(text));
    return text.toString();
  }

  @Test
  void aCertificateForTheAddressIsOne() {
    try (Sidecar own = new Sidecar(ca.settings("IP:127.0.0.1", 1));
        LockClient client = LockClient.builder().url("https://127.0.0.1:" + own.port()).tokenFile(token).caFile(ca.file).build()) {
      assertFalse(client.get("k").held());
    }
  }

  /** The certificate of the server is of another CA. So the client ends the handshake, and sends nothing of the app. */
  // Proves: threat tcp
  @Test
  void nothingIsSentBeforeTheCertificateIsVerified() throws Exception {
    Authority.Signed signed = other.sign("DNS:localhost", 1);
    Path store = folder.resolve("server.p12");
    char[] password = "changeit".toCharArray();
    Process made = new ProcessBuilder("openssl", "pkcs12", "-export", "-in", signed.certificate().toString(), "-inkey", signed.key().toString(),
        "-out", store.toString(), "-passout", "pass:changeit").inheritIO().start();
    assertEquals(0, made.waitFor());
    KeyManagerFactory keys = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
    keys.init(KeyStore.getInstance(store.toFile(), password), password);
    SSLContext context = SSLContext.getInstance("TLS");
    context.init(keys.getKeyManagers(), null, null);
    try (ServerSocket server = context.getServerSocketFactory().createServerSocket(0, 1, InetAddress.getByName("127.0.0.1"));
        LockClient client =
            LockClient.builder().url("https://localhost:" + server.getLocalPort()).tokenFile(token).caFile(ca.file).build()) {
      CompletableFuture<byte[]> received = CompletableFuture.supplyAsync(() -> {
        try (Socket accepted = server.accept()) {
          return accepted.getInputStream().readAllBytes();
        } catch (IOException e) {
          return new byte[0]; // the client ended the handshake
        }
      });
      assertThrows(UnavailableException.class, () -> client.get("k"));
      assertEquals(0, received.get(30, TimeUnit.SECONDS).length);
    }
  }

  /** The connection of the session is reset, as by a device on the way that has forgotten it. The call that waits has another one. */
  @Test
  void aCallThatWaitsEndsWithTheConnectionOfItsSession() throws Exception {
    try (Sidecar own = new Sidecar(Authority.plain(folder));
        TcpProxy proxy = new TcpProxy(own.port());
        LockClient here = own.client();
        LockClient client =
            LockClient.builder().url("http://127.0.0.1:" + proxy.port()).tokenFile(token).reconnect(Duration.ZERO).build()) {
      here.acquire("other");
      HeldLock lock = client.acquire("mine");
      InterruptTest.InThread<HeldLock> waiting = new InterruptTest.InThread<>(() -> client.acquire("other"));
      InterruptTest.awaitQueue(here, "other", 1);
      proxy.holdAnswers();
      proxy.resetSession();
      assertEquals("disconnected", lock.lost().toCompletableFuture().get(10, TimeUnit.SECONDS));
      assertInstanceOf(UnavailableException.class, waiting.error());
    }
  }

  /** The system accepts for it, so a connection is made. */
  @Test
  void aServerThatSaysNothing() throws Exception {
    try (ServerSocket server = new ServerSocket(0, 50, InetAddress.getByName("127.0.0.1"))) {
      String at = "localhost:" + server.getLocalPort();
      try (LockClient client = LockClient.builder().url("https://" + at).tokenFile(token).caFile(ca.file).build()) {
        long began = System.nanoTime();
        UnavailableException error = assertThrows(UnavailableException.class, () -> client.acquire("k"));
        assertEquals("unreachable", error.code());
        assertTrue(error.getMessage().contains("within 5000 ms. Check url, and the network"), error.getMessage());
        assertTrue(System.nanoTime() - began < 9_000_000_000L, "the limit is for all of it, and not for each part");
        InterruptTest.InThread<HeldLock> connecting = new InterruptTest.InThread<>(() -> client.acquire("k"));
        while (connecting.thread.getState() != Thread.State.RUNNABLE || !inHandshake(connecting.thread)) {
          Sidecar.pause();
        }
        connecting.thread.interrupt();
        assertInstanceOf(InterruptedException.class, connecting.error());
      }
      try (LockClient client =
          LockClient.builder().url("http://" + at).tokenFile(token).timeout(Duration.ofMillis(300)).build()) {
        UnavailableException error = assertThrows(UnavailableException.class, () -> client.acquire("k"));
        assertEquals("timeout", error.code());
      }
    }
  }

  private static boolean inHandshake(Thread thread) {
    return Stream.of(thread.getStackTrace()).anyMatch(at -> at.getMethodName().equals("startHandshake"));
  }

  /** What is set in code wins over the environment, and a URL over a socket. */
  @Test
  void whichAddressWins() {
    Map<String, String> both = Map.of("LOCKSIDECAR_URL", "http://127.0.0.1:1", "LOCKSIDECAR_SOCKET", "/env");
    assertEquals("/env", address(LockClient.builder(), Map.of("LOCKSIDECAR_URL", "", "LOCKSIDECAR_SOCKET", "/env")));
    assertEquals("http://127.0.0.1:1", address(LockClient.builder(), both));
    assertEquals("/url", address(LockClient.builder(), Map.of("LOCKSIDECAR_URL", "unix:///url", "LOCKSIDECAR_SOCKET", "/env")));
    assertEquals("/a b+c", address(LockClient.builder(), Map.of("LOCKSIDECAR_URL", "unix:///a%20b+c")));
    assertEquals("/code", address(LockClient.builder().socket("/code"), both));
    assertEquals("https://[::1]:2", address(LockClient.builder().url("https://[::1]:2/"), both));
    String error =
        assertThrows(InvalidRequestException.class, () -> address(LockClient.builder(), Map.of("LOCKSIDECAR_URL", "ftp://h:1"))).getMessage();
    assertTrue(error.startsWith("LOCKSIDECAR_URL is \"ftp://h:1\"; allowed: unix:///PATH"), error);
  }

  private static String address(LockClientBuilder builder, Map<String, String> environment) {
    return builder.endpoint(environment, path -> false).name();
  }
}

package io.github.locksidecar.junit;

import io.github.locksidecar.LockClient;
import io.github.locksidecar.UnavailableException;
import java.io.File;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * A sidecar in a process of its own, on a socket of its own, which misbehaves on request. Its store is {@code memory://}, so its locks end with it. Anybody
 * may break its locks, and a stop waits for nobody.
 *
 * <pre>{@code
 * @RegisterExtension final Sidecar sidecar = new Sidecar(); // one for each test; static: one for all tests of the class
 *
 * @Test void theReportEndsWhenItsLockIsLost() {
 *   Report report = Report.start(sidecar.client());
 *   sidecar.lose("report:daily");
 *   report.awaitEnd();
 * }
 * }</pre>
 *
 * <p>Without JUnit's callbacks, {@link #start} and {@link #close} do the same. A Spring app finds it by the property {@code locksidecar.socket}.
 */
public final class Sidecar implements AutoCloseable, BeforeAllCallback, BeforeEachCallback, AfterEachCallback, AfterAllCallback {
  /** The limit for what a sidecar must do at once: a busy machine may need long. */
  private static final Duration PATIENCE = Duration.ofSeconds(60);

  private final Map<String, String> settings;
  private final List<LockClient> clients = new ArrayList<>();
  private @Nullable Path folder;
  private @Nullable Process process;
  private boolean ofTheClass;

  /** One with the usual settings. */
  public Sidecar() {
    this(Map.of());
  }

  /** One with settings of docs/configuration.md, without their prefix: {@code Map.of("TTL", "2s")}. */
  public Sidecar(Map<String, String> settings) {
    this.settings = Map.copyOf(settings);
  }

  /** The socket, for {@code LockClient.builder().socket(…)} and {@code LOCKSIDECAR_SOCKET}. */
  public synchronized String socket() {
    return folder().resolve("s.sock").toString();
  }

  /** A client that ends with the sidecar. */
  public synchronized LockClient client() {
    LockClient made = LockClient.builder().socket(socket()).build();
    clients.add(made);
    return made;
  }

  /**
   * Starts it, also again after its end, and returns when it grants locks.
   *
   * @throws IllegalStateException if it runs already, if the program is not there, or with its log if it ends
   */
  public synchronized void start() {
    if (process != null) {
      throw new IllegalStateException("this sidecar runs already");
    }
    ProcessBuilder builder = new ProcessBuilder(binary(System.getenv()), "serve");
    Map<String, String> environment = builder.environment();
    environment.keySet().removeIf(name -> name.startsWith("LOCKSIDECAR_") || name.startsWith("KUBERNETES_"));
    environment.putAll(
        Map.of(
            "LOCKSIDECAR_SOCKET", socket(),
            "LOCKSIDECAR_STORE_URL", "memory://",
            "LOCKSIDECAR_ALLOW_FORCE", "true",
            "LOCKSIDECAR_DRAIN_TIMEOUT", "0s"));
    settings.forEach((name, value) -> environment.put("LOCKSIDECAR_" + name, value));
    builder.redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.appendTo(folder().resolve("log").toFile()));
    Process started;
    try {
      started = builder.start();
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    process = started;
    until("the sidecar answers", () -> answers(started));
  }

  /** Stops it as Kubernetes would (SIGTERM), and waits for its end. Its holders lose their locks. */
  public synchronized void stop() {
    end(false);
  }

  /** Kills it, as a crash would. Until {@link #start} it is away: no call is answered. */
  public synchronized void kill() {
    end(true);
  }

  /** Lets it hang until {@link #resume}: calls are accepted and not answered, and leases run out. */
  public synchronized void hang() {
    signal("STOP");
    until("all its threads have stopped", this::hangs);
  }

  /** Lets it go on after {@link #hang}. */
  public synchronized void resume() {
    signal("CONT");
  }

  /**
   * Takes a lock from its holder, who is told that it is lost, with the reason {@code forced}. Of a shared lock or a semaphore all holders lose it.
   *
   * @throws io.github.locksidecar.NotHeldException if nobody holds it
   */
  public void lose(String key) {
    try (LockClient client = LockClient.builder().socket(socket()).build()) {
      client.forceRelease(key);
    }
  }

  /** What it has logged. */
  public synchronized String log() {
    try {
      return Files.readString(folder().resolve("log"));
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  /** Ends its clients, kills it if it runs, and removes its files. */
  @Override
  public synchronized void close() {
    if (process != null) {
      resume(); // if it hangs, each client would wait for its answer in vain
    }
    clients.forEach(LockClient::close);
    clients.clear();
    end(true);
    Path gone = folder;
    folder = null;
    if (gone == null) {
      return;
    }
    try (Stream<Path> files = Files.walk(gone)) {
      files.sorted(Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  @Override
  public void beforeAll(ExtensionContext context) {
    ofTheClass = true; // JUnit calls it for static fields only
    start();
  }

  @Override
  public void beforeEach(ExtensionContext context) {
    if (!ofTheClass) {
      start();
    }
  }

  @Override
  public void afterEach(ExtensionContext context) {
    if (!ofTheClass) {
      close();
    }
  }

  @Override
  public void afterAll(ExtensionContext context) {
    close();
  }

  /** Where the program {@code locksidecar} is: {@code LOCKSIDECAR_BINARY}, else in {@code PATH}. */
  static String binary(Map<String, String> environment) {
    String named = environment.get("LOCKSIDECAR_BINARY");
    if (named != null && !named.isEmpty()) {
      if (!Files.isExecutable(Path.of(named))) {
        throw new IllegalStateException("LOCKSIDECAR_BINARY=" + Path.of(named).toAbsolutePath() + " is no program");
      }
      return named;
    }
    for (String place : environment.getOrDefault("PATH", "").split(File.pathSeparator)) {
      Path program = Path.of(place, "locksidecar");
      if (Files.isExecutable(program)) {
        return program.toString();
      }
    }
    throw new IllegalStateException("there is no program locksidecar in PATH: unpack one of the releases there, or let LOCKSIDECAR_BINARY name it");
  }

  private Path folder() {
    if (folder == null) {
      try {
        folder = Files.createTempDirectory(Path.of("/tmp"), "lsj"); // short: a socket's path has at most 107 bytes
      } catch (IOException e) {
        throw new UncheckedIOException(e);
      }
    }
    return folder;
  }

  private boolean answers(Process started) {
    if (!started.isAlive()) {
      process = null;
      throw new IllegalStateException("the sidecar has ended with " + started.exitValue() + ". Its log:\n" + log());
    }
    try (LockClient client = LockClient.builder().socket(socket()).build()) {
      return !client.get("ready").held();
    } catch (UnavailableException e) {
      return false;
    }
  }

  private boolean hangs() {
    Path tasks = Path.of("/proc", Long.toString(running().pid()), "task");
    if (!Files.exists(tasks)) {
      return true; // another system than Linux
    }
    try (Stream<Path> all = Files.list(tasks)) {
      for (Path one : all.toList()) {
        String stat = Files.readString(one.resolve("stat"));
        if (stat.charAt(stat.lastIndexOf(')') + 2) != 'T') {
          return false;
        }
      }
      return true;
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }

  private void signal(String name) {
    try {
      new ProcessBuilder("kill", "-" + name, Long.toString(running().pid())).start().waitFor();
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    } catch (InterruptedException e) {
      throw interrupted();
    }
  }

  private Process running() {
    Process running = process;
    if (running == null) {
      throw new IllegalStateException("this sidecar does not run");
    }
    return running;
  }

  private void end(boolean atOnce) {
    Process ended = process;
    if (ended == null) {
      return;
    }
    if (atOnce) {
      ended.destroyForcibly();
    } else {
      signal("CONT"); // it may hang
      ended.destroy();
    }
    try {
      if (!ended.waitFor(PATIENCE.toSeconds(), TimeUnit.SECONDS)) {
        throw new IllegalStateException("the sidecar did not end within " + PATIENCE.toSeconds() + " s");
      }
    } catch (InterruptedException e) {
      throw interrupted();
    }
    process = null;
  }

  private static void until(String what, BooleanSupplier is) {
    for (long end = System.nanoTime() + PATIENCE.toNanos(); !is.getAsBoolean(); ) {
      if (System.nanoTime() > end) {
        throw new IllegalStateException("not within " + PATIENCE.toSeconds() + " s: " + what);
      }
      try {
        Thread.sleep(5);
      } catch (InterruptedException e) {
        throw interrupted();
      }
    }
  }

  private static IllegalStateException interrupted() {
    Thread.currentThread().interrupt();
    return new IllegalStateException("interrupted");
  }
}

package io.github.locksidecar.testing;

import io.github.locksidecar.LockClient;
import io.github.locksidecar.LockClientBuilder;
import io.github.locksidecar.internal.Raw;
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
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** A running sidecar of {@code make build}, on a socket of its own. */
public class Sidecar implements AutoCloseable {
  private static final Duration START_LIMIT = Duration.ofSeconds(60);

  private static final Pattern SERVING = Pattern.compile("\"msg\":\"serving\".*\"tcp\":\"[^\"]*:(\\d+)\"");

  private final Path folder;
  private final Map<String, String> settings;
  private final List<LockClient> clients = new ArrayList<>();
  private Process process;

  /** Starts one. The settings are environment variables without their prefix. */
  public Sidecar(Map<String, String> settings) {
    this(settings, "/readyz");
  }

  /** Starts one, and waits until this path is answered with 200. */
  public Sidecar(Map<String, String> settings, String until) {
    try {
      folder = Files.createTempDirectory(Path.of("/tmp"), "lsj"); // short: a socket's path has at most 107 bytes
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    this.settings = settings;
    start(until);
  }

  /** One with the embedded store. */
  public static Sidecar inMemory() {
    return new Sidecar(Map.of("STORE_URL", "memory://"));
  }

  /** The root of the repository. */
  public static Path root() {
    Path at = Path.of("").toAbsolutePath();
    while (at != null && !Files.exists(at.resolve("go.mod"))) {
      at = at.getParent();
    }
    if (at == null) {
      throw new IllegalStateException("not in the repository: there is no go.mod above " + Path.of("").toAbsolutePath());
    }
    return at;
  }

  public String socket() {
    return folder.resolve("s.sock").toString();
  }

  /** The settings of a client that finds it. */
  public LockClientBuilder builder() {
    return LockClient.builder().socket(socket());
  }

  /** A client that ends with the sidecar. */
  public synchronized LockClient client() {
    LockClient made = builder().build();
    clients.add(made);
    return made;
  }

  /** The port at which it listens. Its log says it, soon after its first answer. */
  public int port() {
    long end = System.nanoTime() + START_LIMIT.toNanos();
    while (System.nanoTime() < end) {
      Matcher serving = SERVING.matcher(log());
      int port = 0;
      while (serving.find()) { // the last one, if it was started again
        port = Integer.parseInt(serving.group(1));
      }
      if (port != 0) {
        return port;
      }
      pause();
    }
    throw new IllegalStateException("no port in its log:\n" + log());
  }

  /** Starts it, or starts it again after its end. */
  public void start(String until) {
    Path binary = root().resolve("bin/locksidecar");
    if (!Files.exists(binary)) {
      throw new IllegalStateException("there is no " + binary + ": `make build` makes it");
    }
    ProcessBuilder builder = new ProcessBuilder(binary.toString(), "serve");
    builder.environment().keySet().removeIf(name -> name.startsWith("LOCKSIDECAR_") || name.startsWith("KUBERNETES_"));
    builder.environment().put("LOCKSIDECAR_SOCKET", socket());
    builder.environment().put("LOCKSIDECAR_LOG_LEVEL", "warn");
    settings.forEach((name, value) -> builder.environment().put("LOCKSIDECAR_" + name, value));
    File log = folder.resolve("log").toFile();
    builder.redirectErrorStream(true).redirectOutput(ProcessBuilder.Redirect.appendTo(log));
    try {
      process = builder.start();
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
    long end = System.nanoTime() + START_LIMIT.toNanos();
    while (Raw.status(socket(), until) != 200) {
      if (!process.isAlive() || System.nanoTime() > end) {
        String tail = log();
        close();
        throw new IllegalStateException("the sidecar did not become ready; its log:\n" + tail);
      }
      pause();
    }
  }

  /** Its log. */
  public String log() {
    try {
      return Files.readString(folder.resolve("log"));
    } catch (IOException e) {
      return e.toString();
    }
  }

  /** Asks it to stop, and does not wait. */
  public void terminate() {
    process.destroy();
  }

  /** Ends it at once. */
  public void kill() {
    process.destroyForcibly();
    await();
  }

  /** Halts it (STOP), or lets it go on (CONT). When this returns, it is halted: its threads stop one after the other. */
  public void signal(String name) {
    try {
      new ProcessBuilder("kill", "-" + name, Long.toString(process.pid())).start().waitFor();
      while (name.equals("STOP") && !halted()) {
        pause();
      }
    } catch (IOException | InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }

  private boolean halted() throws IOException {
    Path tasks = Path.of("/proc", Long.toString(process.pid()), "task");
    if (!Files.exists(tasks)) {
      return true; // nobody here can tell
    }
    try (Stream<Path> all = Files.list(tasks)) {
      for (Path one : all.toList()) {
        String stat = Files.readString(one.resolve("stat"));
        if (stat.charAt(stat.lastIndexOf(')') + 2) != 'T') {
          return false;
        }
      }
    }
    return true;
  }

  /** Waits for its end. */
  public void await() {
    try {
      if (!process.waitFor(60, TimeUnit.SECONDS)) {
        throw new IllegalStateException("the sidecar did not end");
      }
    } catch (InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }

  /** Waits between two looks at something that sends no event. */
  public static void pause() {
    try {
      Thread.sleep(5);
    } catch (InterruptedException e) {
      throw new IllegalStateException(e);
    }
  }

  /** Ends it and its clients, and removes its folder. */
  @Override
  public synchronized void close() {
    if (process != null) {
      clients.forEach(LockClient::close);
      process.destroyForcibly();
    }
    try (Stream<Path> files = Files.walk(folder)) {
      files.sorted(Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
    } catch (IOException e) {
      throw new UncheckedIOException(e);
    }
  }
}

package io.github.locksidecar.testing;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import java.util.stream.Stream;

/** An app in a JVM of its own, which says words, a line each. */
public final class App implements AutoCloseable {
  private final Process process;
  private final LinkedBlockingQueue<Line> unread = new LinkedBlockingQueue<>();
  private final List<String> all = new CopyOnWriteArrayList<>();

  private record Line(String text, long at) {}

  /** Starts the class's main, with LOCKSIDECAR_SOCKET set. */
  public App(Class<?> main, String socket) throws IOException {
    this(main, socket, "");
  }

  /** Starts the class's main after a command of the shell, such as {@code ulimit -n 60}. */
  public App(Class<?> main, String socket, String before) throws IOException {
    this(main, socket, before, System.getProperty("java.class.path"));
  }

  /** Starts the class's main with another class path. */
  public App(Class<?> main, String socket, String before, String classPath) throws IOException {
    this(main, Map.of("LOCKSIDECAR_SOCKET", socket), before, classPath);
  }

  /** Starts the class's main with these variables. */
  public App(Class<?> main, Map<String, String> environment, String before, String classPath) throws IOException {
    ProcessBuilder builder =
        new ProcessBuilder(
            "sh", "-c", before + "\nexec \"$@\"", "app", System.getProperty("java.home") + "/bin/java",
            "-XX:TieredStopAtLevel=1", "-cp", classPath, main.getName());
    builder.environment().putAll(environment);
    process = builder.redirectErrorStream(true).start();
    Thread reader = new Thread(this::read);
    reader.setDaemon(true);
    reader.start();
  }

  private void read() {
    try (BufferedReader output =
        new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8))) {
      for (String line = output.readLine(); line != null; line = output.readLine()) {
        all.add(line);
        unread.add(new Line(line, System.nanoTime()));
      }
    } catch (IOException e) {
      // It was killed.
    }
  }

  /** Waits until it says the word again. Returns when it said so, by System.nanoTime(). */
  public long await(String word) throws InterruptedException {
    return next(word::equals, word).at();
  }

  /** Waits for a line that begins with this. */
  public String awaitLine(String start) throws InterruptedException {
    return next(line -> line.startsWith(start), start).text();
  }

  private Line next(Predicate<String> wanted, String word) throws InterruptedException {
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
    while (true) {
      Line line = unread.poll(end - System.nanoTime(), TimeUnit.NANOSECONDS);
      if (line == null) {
        throw new AssertionError("it did not say \"" + word + "\" within a minute, but:\n" + String.join("\n", all));
      }
      if (wanted.test(line.text())) {
        return line;
      }
    }
  }

  /** How often it has said the word. */
  public List<String> said(String word) {
    return lines().filter(word::equals).toList();
  }

  /** All that it has said. */
  public Stream<String> lines() {
    return all.stream();
  }

  /** Halts it (STOP), or lets it go on (CONT). */
  public void signal(String name) throws IOException, InterruptedException {
    new ProcessBuilder("kill", "-" + name, Long.toString(process.pid())).start().waitFor();
  }

  /** Ends what it reads. */
  public void tell() throws IOException {
    process.getOutputStream().close();
  }

  /** Ends it as kill -9 does. */
  public void kill() throws InterruptedException {
    process.destroyForcibly().waitFor();
  }

  @Override
  public void close() throws InterruptedException {
    kill();
  }
}

// Proves: client descriptors
package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.testing.App;
import io.github.locksidecar.testing.Sidecar;
import io.github.locksidecar.testing.TlsSidecar;
import java.io.File;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.jar.JarOutputStream;
import java.util.stream.Stream;
import java.util.zip.ZipEntry;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** A process whose waiting calls use up all its file descriptors. */
@Timeout(120)
class DescriptorsTest {
  @TempDir private static Path folder;

  private static String classPath;

  /** A class of a folder needs a descriptor whenever one is loaded. An app has the client in a jar, which stays open. */
  @BeforeAll
  static void makeJars() throws IOException {
    List<String> jars = new ArrayList<>();
    for (String entry : System.getProperty("java.class.path").split(File.pathSeparator)) {
      jars.add(Files.isDirectory(Path.of(entry)) ? jar(Path.of(entry), jars.size()) : entry);
    }
    classPath = String.join(File.pathSeparator, jars);
  }

  private static String jar(Path classes, int number) throws IOException {
    Path made = folder.resolve(number + ".jar");
    try (JarOutputStream jar = new JarOutputStream(Files.newOutputStream(made));
        Stream<Path> files = Files.walk(classes)) {
      for (Path file : files.filter(Files::isRegularFile).toList()) {
        jar.putNextEntry(new ZipEntry(classes.relativize(file).toString()));
        Files.copy(file, jar);
      }
    }
    return made.toString();
  }

  private static App app(Class<?> main, Sidecar sidecar, String more) throws IOException {
    return new App(main, sidecar.socket(), "ulimit -n 60; " + more, classPath);
  }

  @Test
  void aReleaseGetsThroughAlthoughWaitingCallsHaveAllDescriptors() throws Exception {
    try (Sidecar sidecar = Sidecar.inMemory();
        App app = app(ManyWaitApp.class, sidecar, "")) {
      String error = app.awaitLine("error ");
      assertTrue(error.contains(sidecar.socket()) && error.contains("no free file descriptor"), error);
      assertTrue(error.contains("ulimit -n"), error);
      app.await("checked");
      app.await("released");
      app.await("entered 150");
      app.await("closed");
      assertFalse(sidecar.client().getFresh("key").held());
    }
  }

  @Test
  void aReleaseGetsThroughOverTls() throws Exception {
    try (TlsSidecar sidecar = TlsSidecar.inMemory();
        App app = new App(ManyWaitApp.class, sidecar.environment(), "ulimit -n 60", classPath)) {
      String error = app.awaitLine("error ");
      assertTrue(error.contains(sidecar.url()) && error.contains("no free file descriptor"), error);
      app.await("checked");
      app.await("released");
      app.await("entered 150");
      app.await("closed");
      assertFalse(sidecar.client().getFresh("key").held());
    }
  }

  /** The connection in reserve was lost to a sidecar that hung. */
  @Test
  void aReleaseGetsThroughAfterAHang() throws Exception {
    try (Sidecar sidecar = Sidecar.inMemory();
        App app = app(ManyWaitApp.class, sidecar, "export LOCKSIDECAR_TEST_HANG=1")) {
      app.awaitLine("error ");
      sidecar.signal("STOP");
      app.await("no answer");
      sidecar.signal("CONT");
      app.await("released");
      app.await("entered 150");
    }
  }

  // Proves: client own clock
  /** The question about a lock gets no descriptor, because the calls that hang have all. */
  @Test
  void aLossIsToldInTimeAlthoughCallsThatHangHaveAllDescriptors() throws Exception {
    try (Sidecar sidecar = Sidecar.inMemory();
        App app = app(HangingApp.class, sidecar, "")) {
      app.await("acquired");
      sidecar.signal("STOP");
      app.tell();
      String lost = app.awaitLine("lost ");
      sidecar.signal("CONT");
      assertTrue(lost.startsWith("lost expired "), lost);
      long took = Long.parseLong(lost.substring("lost expired ".length()));
      assertTrue(took > 1500 && took < 20_000, lost);
    }
  }

  // Proves: client own clock
  /** The app has all descriptors. The client asks on a connection that it has kept. */
  @Test
  void aLockStaysAlthoughTheAppHasAllDescriptors() throws Exception {
    try (Sidecar sidecar = Sidecar.inMemory();
        App app = app(CrowdedApp.class, sidecar, "")) {
      app.await("full");
      app.await("not lost");
      app.await("released");
    }
  }

  /** What the JDK could not load once is missing until the end of the process. */
  @Test
  void callsWorkAgainAfterCallsWithoutADescriptor() throws Exception {
    try (Sidecar sidecar = Sidecar.inMemory();
        App app = app(FirstCallApp.class, sidecar, "")) {
      for (int i = 0; i < 2; i++) {
        String error = app.awaitLine("error ");
        assertTrue(error.contains("no free file descriptor"), error);
      }
      app.awaitLine("acquired ");
      app.await("closed");
    }
  }
}

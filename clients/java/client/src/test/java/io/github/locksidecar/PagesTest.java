package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.testing.Sidecar;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.net.URI;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Supplier;
import java.util.regex.Pattern;
import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** The examples in the documents compile and run against a sidecar, but not those of frameworks: other tests run these. */
@Timeout(60)
class PagesTest {
  private static final Pattern BLOCK = Pattern.compile("^```java\n(.*?)^```$", Pattern.MULTILINE | Pattern.DOTALL);
  private static final List<String> OF_FRAMEWORKS = List.of("@Bean", "lockRegistry", "@RegisterExtension");

  /** Ends an example that goes on for ever: it has done its work. */
  public static final class Done extends RuntimeException {
    private static final long serialVersionUID = 1;
  }

  @ParameterizedTest
  @CsvSource({"README.md, 1", "docs/get-started.md, 1", "docs/guide.md, 12", "clients/java/README.md, 1"})
  void theExamplesRun(String page, int number, @TempDir Path classes) throws Exception {
    List<String> examples = BLOCK.matcher(Files.readString(Sidecar.root().resolve(page)))
        .results()
        .map(found -> found.group(1))
        .filter(code -> OF_FRAMEWORKS.stream().noneMatch(code::contains))
        .toList();
    assertEquals(number, examples.size(), "the number of examples is wrong, or the test reads the page wrongly");
    try (Sidecar sidecar = Sidecar.inMemory();
        URLClassLoader loader = new URLClassLoader(new URL[] {classes.toUri().toURL()}, getClass().getClassLoader())) {
      compile(classes, examples, sidecar.socket());
      for (int i = 0; i < examples.size(); i++) {
        String code = examples.get(i);
        boolean endless = code.contains("client.lead(") || code.contains("client.events(");
        AtomicInteger done = new AtomicInteger();
        Supplier<String> work = () -> {
          done.incrementAndGet();
          if (endless) {
            throw new Done();
          }
          return "done";
        };
        try (LockClient client = sidecar.client(); HeldLock other = client.acquire("account:of-a-list")) {
          loader.loadClass("Example" + i).getMethod("run", LockClient.class, Supplier.class).invoke(null, client, work);
        } catch (InvocationTargetException e) {
          if (!endless || !(e.getCause() instanceof Done)) {
            throw new AssertionError(code, e.getCause());
          }
        }
        assertTrue(done.get() > 0 || code.startsWith("LockClient client ="), "this did no work:\n" + code);
      }
    }
  }

  /** Compiles each example as the method of a class. */
  private static void compile(Path classes, List<String> examples, String socket) {
    List<JavaFileObject> sources = new java.util.ArrayList<>();
    for (int i = 0; i < examples.size(); i++) {
      String code = examples.get(i).replace("LockClient.create()", "LockClient.builder().socket(\"" + socket + "\").build()");
      String parameter = code.contains("LockClient client =") ? "ofTheTest" : "client";
      sources.add(new Source("Example" + i, """
          import io.github.locksidecar.*;
          import java.time.Duration;
          import java.util.List;
          import java.util.Map;
          import java.util.function.Supplier;

          public class %1$s {
            private static Supplier<String> work;
            private static final List<String> parts = List.of("a", "b");

            static final class System {
              static final Out out = new Out();
            }

            static final class Out {
              void println(Object line) { work.get(); }
            }

            static void write(long token) { work.get(); }
            static void work(String part) { work.get(); }
            static void read() { work.get(); }
            static void render(int slot) { work.get(); }
            static String pull(String name) { return work.get(); }
            static void transfer(List<Long> tokens) { work.get(); }

            public static void run(LockClient %2$s, Supplier<String> toDo) throws Exception {
              work = toDo;
              {
                %3$s
              }
            }
          }
          """.formatted("Example" + i, parameter, code)));
    }
    StringWriter messages = new StringWriter();
    JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
    List<String> options = List.of("-d", classes.toString(), "-cp", System.getProperty("java.class.path"));
    assertTrue(compiler.getTask(messages, null, null, options, null, sources).call(), messages::toString);
  }

  private static final class Source extends SimpleJavaFileObject {
    private final String code;

    Source(String name, String code) {
      super(URI.create("string:///" + name + ".java"), Kind.SOURCE);
      this.code = code;
    }

    @Override
    public CharSequence getCharContent(boolean ignoreEncodingErrors) {
      return code;
    }
  }
}

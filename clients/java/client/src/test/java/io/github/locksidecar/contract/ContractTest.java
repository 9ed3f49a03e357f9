package io.github.locksidecar.contract;

import static org.junit.jupiter.api.Assertions.assertTrue;

import com.grack.nanojson.JsonParser;
import io.github.locksidecar.LockClient;
import io.github.locksidecar.testing.Sidecar;
import io.github.locksidecar.testing.Store;
import io.github.locksidecar.testing.TlsSidecar;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicContainer;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;
import org.snakeyaml.engine.v2.api.Load;
import org.snakeyaml.engine.v2.api.LoadSettings;

/**
 * The contract suite of clients/contract through this client, on all stores, or on those of CONTRACT_STORES. With CONTRACT_OVER=tcp the
 * client calls the sidecar over TCP, with TLS and a token.
 */
class ContractTest {
  private static final Path CASES = Sidecar.root().resolve("clients/contract/cases");

  @TestFactory
  Stream<DynamicContainer> contract() throws Exception {
    // Settings that name a store, in place of our own.
    String given = System.getenv("CONTRACT_STORE");
    String names = Objects.requireNonNullElse(System.getenv("CONTRACT_STORES"), "memory postgres etcd");
    Map<String, Map<String, Object>> files = new TreeMap<>();
    try (Stream<Path> paths = Files.list(CASES)) {
      for (Path path : paths.filter(path -> path.toString().endsWith(".yaml")).toList()) {
        files.put(path.getFileName().toString(), load(path));
      }
    }
    assertTrue(files.size() >= 10, "the suite is not in " + CASES);
    List<String> stores = given != null ? List.of("given") : List.of(names.trim().split(" +"));
    return stores.stream().map(store -> ofStore(store, given, store.equals(stores.get(0)), files));
  }

  @SuppressWarnings("unchecked")
  private static Map<String, Object> load(Path path) throws Exception {
    Map<String, Object> file =
        (Map<String, Object>) new Load(LoadSettings.builder().build()).loadFromString(Files.readString(path));
    known(path.toString(), file.keySet(), Set.of("about", "sidecar", "ready", "cases"));
    for (Map<String, Object> one : (List<Map<String, Object>>) file.get("cases")) {
      known(path + ": " + one.get("name"), one.keySet(), Set.of("name", "features", "steps"));
    }
    return file;
  }

  private static void known(String where, Set<String> members, Set<String> known) {
    assertTrue(known.containsAll(members), () -> where + " has unknown members: " + members);
  }

  private static DynamicContainer ofStore(
      String store, String given, boolean first, Map<String, Map<String, Object>> files) {
    Store[] server = new Store[1];
    Map<String, String> settings = new HashMap<>();
    DynamicTest start =
        DynamicTest.dynamicTest(
            "start of the store",
            () -> {
              if (given != null) {
                JsonParser.object().from(given).forEach((name, value) -> settings.put(name, (String) value));
              } else {
                server[0] = new Store(store);
                settings.put("STORE_URL", server[0].url());
              }
            });
    DynamicTest end =
        DynamicTest.dynamicTest(
            "end of the store",
            () -> {
              if (server[0] != null) {
                server[0].close();
              }
            });
    Stream<DynamicContainer> ofFiles =
        files.entrySet().stream()
            // A file that names its own store runs once.
            .filter(file -> !sidecarSettings(file.getValue()).containsKey("STORE_URL") || (first && given == null))
            .map(file -> ofFile(file.getKey(), file.getValue(), settings));
    return DynamicContainer.dynamicContainer(store, Stream.concat(Stream.concat(Stream.of(start), ofFiles), Stream.of(end)));
  }

  @SuppressWarnings("unchecked")
  private static Map<String, String> sidecarSettings(Map<String, Object> file) {
    return (Map<String, String>) file.getOrDefault("sidecar", Map.of());
  }

  @SuppressWarnings("unchecked")
  private static DynamicContainer ofFile(String name, Map<String, Object> file, Map<String, String> store) {
    Sidecar[] sidecar = new Sidecar[1];
    DynamicTest start =
        DynamicTest.dynamicTest(
            "start",
            () -> {
              Map<String, String> settings = new HashMap<>(store);
              settings.put("NAMESPACE", name);
              settings.putAll(sidecarSettings(file));
              String until = Boolean.FALSE.equals(file.get("ready")) ? "/v1" : "/readyz";
              boolean overTcp = "tcp".equals(System.getenv("CONTRACT_OVER"));
              sidecar[0] = overTcp ? TlsSidecar.start(settings, until) : new Sidecar(settings, until);
            });
    DynamicTest end = DynamicTest.dynamicTest("end", () -> sidecar[0].close());
    Stream<DynamicTest> cases =
        ((List<Map<String, Object>>) file.get("cases"))
            .stream().map(one -> DynamicTest.dynamicTest((String) one.get("name"), () -> play(sidecar[0], one)));
    return DynamicContainer.dynamicContainer(name, Stream.concat(Stream.concat(Stream.of(start), cases), Stream.of(end)));
  }

  @SuppressWarnings("unchecked")
  private static void play(Sidecar sidecar, Map<String, Object> one) throws Exception {
    Set<String> has;
    try (LockClient client = sidecar.builder().build()) {
      has = client.describe().features();
    }
    List<String> needed = (List<String>) one.getOrDefault("features", List.of());
    assertTrue(has.containsAll(needed), () -> "not run: the sidecar lacks one of " + needed);
    try (Player player = new Player(sidecar)) {
      player.play((List<Map<String, Object>>) one.get("steps"));
    }
  }
}

package io.github.locksidecar.contract;

import static io.github.locksidecar.contract.Results.members;

import io.github.locksidecar.HeldLock;
import io.github.locksidecar.KeyEvents;
import io.github.locksidecar.LockClient;
import io.github.locksidecar.LockClientBuilder;
import io.github.locksidecar.LockQuery;
import io.github.locksidecar.LocksidecarException;
import io.github.locksidecar.Scope;
import io.github.locksidecar.SkippedException;
import io.github.locksidecar.testing.Sidecar;
import java.time.Duration;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Plays one case through the client: clients/contract/README.md. */
final class Player implements AutoCloseable {
  private static final long PATIENCE = 60; // seconds for one step
  private static final Set<String> STEP_MEMBERS = Set.of("expect", "until", "save", "start");

  private final Sidecar sidecar;
  private final String prefix = "c" + UUID.randomUUID().toString().substring(0, 12).replace("-", "") + "-";
  private final ExecutorService threads = Executors.newCachedThreadPool();
  private final Map<String, Object> saved = new HashMap<>();
  private final Map<String, Calls> sessions = new HashMap<>();
  private final Map<String, KeyEvents> watches = new HashMap<>();
  private final Map<String, HeldLock> blocks = new HashMap<>();
  private final Map<String, Future<Map<String, Object>>> started = new HashMap<>();

  Player(Sidecar sidecar) {
    this.sidecar = sidecar;
  }

  void play(List<Map<String, Object>> steps) throws Exception {
    int number = 0;
    for (Map<String, Object> step : steps) {
      number++;
      try {
        step(step);
      } catch (AssertionError | Exception e) {
        throw new AssertionError("step " + number + ", " + step + ": " + e.getMessage(), e);
      }
    }
    if (!started.isEmpty()) {
      throw new AssertionError("neither finished nor cancelled: " + started.keySet());
    }
  }

  @Override
  public void close() throws InterruptedException {
    started.values().forEach(call -> call.cancel(true));
    watches.values().forEach(KeyEvents::close);
    sessions.values().forEach(one -> one.client.close());
    threads.shutdownNow();
    if (!threads.awaitTermination(PATIENCE, TimeUnit.SECONDS)) {
      throw new AssertionError("a call did not end with its client");
    }
  }

  @SuppressWarnings("unchecked")
  private void step(Map<String, Object> step) throws Exception {
    List<String> verbs = step.keySet().stream().filter(name -> !STEP_MEMBERS.contains(name)).toList();
    if (verbs.size() != 1) {
      throw new IllegalArgumentException("a step has one verb");
    }
    String verb = verbs.get(0);
    Object given = step.get(verb) == null ? Map.of() : step.get(verb);
    Map<String, Object> arguments = withPrefix((Map<String, Object>) Match.fillIn(given, saved));
    if (step.containsKey("start")) {
      started.put((String) step.get("start"), threads.submit(() -> made(verb, arguments)));
      return;
    }
    Object want = step.containsKey("expect") ? step.get("expect") : step.getOrDefault("until", Map.of());
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE);
    while (true) {
      Object result = without(does(verb, arguments));
      String wrong = Match.difference(Match.fillIn(want, saved), result, "result");
      if (wrong == null) {
        save((Map<String, Object>) step.getOrDefault("save", Map.of()), result);
        return;
      }
      if (!step.containsKey("until") || System.nanoTime() > end) {
        throw new AssertionError(wrong + "; the result was " + result);
      }
      Sidecar.pause();
    }
  }

  private void save(Map<String, Object> names, Object result) {
    names.forEach(
        (name, path) -> {
          Object value = result;
          for (String member : ((String) path).split("\\.")) {
            value = value instanceof List<?> list ? list.get(Integer.parseInt(member)) : ((Map<?, ?>) value).get(member);
          }
          saved.put(name, value);
        });
  }

  private Map<String, Object> does(String verb, Map<String, Object> a) throws Exception {
    return switch (verb) {
      case "finish" -> result(started.remove((String) a.get("call")));
      case "cancel" -> {
        started.remove((String) a.get("call")).cancel(true);
        yield members();
      }
      case "sidecar" -> {
        sidecar.terminate();
        yield members("sent", true);
      }
      default -> result(threads.submit(() -> made(verb, a)));
    };
  }

  private static Map<String, Object> result(Future<Map<String, Object>> call) throws Exception {
    try {
      return call.get(PATIENCE, TimeUnit.SECONDS);
    } catch (TimeoutException e) {
      throw new AssertionError("no answer within " + PATIENCE + " s");
    } catch (ExecutionException e) {
      throw e.getCause() instanceof Exception cause ? cause : e;
    }
  }

  private Map<String, Object> made(String verb, Map<String, Object> a) throws Exception {
    return refused(
        () ->
            switch (verb) {
              case "open" -> open(a);
              case "close" -> {
                session(a).client.close();
                yield members();
              }
              case "watch" -> {
                watches.put((String) a.get("as"), session(a).client.events((String) a.get("key")));
                yield members("watching", true);
              }
              case "next" -> next((String) a.get("of"));
              case "enter" -> {
                HeldLock lock = session(a).enter((String) a.get("key"), a);
                blocks.put((String) a.get("as"), lock);
                yield Results.granted(lock);
              }
              case "leave" -> leave(blocks.remove((String) a.get("block")), Boolean.TRUE.equals(a.get("raise")));
              default -> session(a).make(verb, a);
            });
  }

  private static Map<String, Object> refused(Callable<Map<String, Object>> call) throws Exception {
    try {
      return call.call();
    } catch (SkippedException e) {
      return members("skipped", true, "key", e.key(), "result", e.result());
    } catch (LocksidecarException e) {
      if (e.status() == 0) {
        throw e;
      }
      return Results.problem(e);
    }
  }

  private synchronized Calls session(Map<String, Object> a) {
    String name = (String) a.getOrDefault("session", "");
    return sessions.computeIfAbsent(name, one -> new Calls(sidecar.builder().build()));
  }

  private Map<String, Object> open(Map<String, Object> a) {
    LockClientBuilder builder = sidecar.builder();
    if (a.containsKey("name")) {
      builder.name((String) a.get("name"));
    }
    if (a.containsKey("ttl_ms")) {
      builder.ttl(Duration.ofMillis(((Number) a.get("ttl_ms")).longValue()));
    }
    LockClient client = builder.build();
    synchronized (this) {
      sessions.put((String) a.get("as"), new Calls(client));
    }
    client.locks(LockQuery.of(Scope.SESSION)).iterator().hasNext(); // opens the session
    return members("opened", true);
  }

  private Map<String, Object> next(String of) throws InterruptedException {
    KeyEvents watch = watches.get(of);
    if (watch != null) {
      return Results.event(watch.next());
    }
    Map<String, Object> event = sessions.get(of).events.poll(PATIENCE, TimeUnit.SECONDS);
    if (event == null) {
      throw new AssertionError("no event within " + PATIENCE + " s");
    }
    return event;
  }

  private static Map<String, Object> leave(HeldLock lock, boolean raise) {
    try (lock) {
      if (raise) {
        throw new OfTheBlock();
      }
    } catch (OfTheBlock e) {
      return members("raised", true);
    }
    return members("left", true);
  }

  private static final class OfTheBlock extends RuntimeException {
    private static final long serialVersionUID = 1L;
  }

  // The prefix of the keys of this run.

  private Map<String, Object> withPrefix(Map<String, Object> given) {
    Map<String, Object> a = new LinkedHashMap<>(given);
    for (String name : List.of("key", "prefix", "type")) {
      a.computeIfPresent(name, (same, value) -> prefix + value);
    }
    a.computeIfPresent("keys", (same, keys) -> ((List<?>) keys).stream().map(key -> prefix + key).toList());
    return a;
  }

  private Object without(Object value) {
    if (value instanceof Map<?, ?> map) {
      Map<String, Object> made = new LinkedHashMap<>();
      map.forEach((name, member) -> made.put((String) name, without(member)));
      return made;
    }
    if (value instanceof List<?> list) {
      return list.stream().map(this::without).toList();
    }
    return value instanceof String text ? text.replace(prefix, "") : value;
  }
}

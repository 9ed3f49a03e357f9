package io.github.locksidecar.contract;

import static io.github.locksidecar.contract.Results.members;

import io.github.locksidecar.HeldLock;
import io.github.locksidecar.LockClient;
import io.github.locksidecar.LockInfo;
import io.github.locksidecar.LockOptions;
import io.github.locksidecar.LockQuery;
import io.github.locksidecar.LockStatus;
import io.github.locksidecar.Outcome;
import io.github.locksidecar.Scope;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.LinkedBlockingQueue;

/** The calls of one session of a case: a client, its locks, and the news of them. */
final class Calls {
  final LockClient client;
  final BlockingQueue<Map<String, Object>> events = new LinkedBlockingQueue<>();
  private final List<HeldLock> locks = new CopyOnWriteArrayList<>();

  Calls(LockClient client) {
    this.client = client;
  }

  Map<String, Object> make(String verb, Map<String, Object> a) throws InterruptedException {
    String key = (String) a.get("key");
    long token = a.get("token") instanceof Number number ? number.longValue() : 0;
    return switch (verb) {
      case "acquire" -> acquire(key, a);
      case "acquire_many" -> {
        List<Object> got = new ArrayList<>();
        for (HeldLock lock : client.acquireMany(strings(a.get("keys")), options(a)).all()) {
          got.add(hold(lock));
        }
        yield members("granted", true, "locks", got);
      }
      case "release" -> release(key, token, a);
      case "force_release" -> {
        if (token == 0) {
          client.forceRelease(key);
        } else {
          client.forceRelease(key, token);
        }
        yield members("released", true, "key", key);
      }
      case "check" -> Results.status(check(key, token, a));
      case "extend" -> {
        HeldLock lock = held(key, token);
        Duration ttl = millis(a, "ttl_ms");
        yield Results.status(lock == null ? client.extend(key, token, ttl) : lock.extend(ttl));
      }
      case "downgrade" -> Results.status(held(key, token).downgrade());
      case "get" -> Results.info(Boolean.TRUE.equals(a.get("fresh")) ? client.getFresh(key) : client.get(key));
      case "list" -> list(a);
      case "stop" -> {
        String reason = (String) a.get("reason");
        if (token == 0) {
          client.stop(key, reason);
        } else {
          client.stop(key, token, reason);
        }
        yield members("requested", true, "key", key);
      }
      case "features" -> {
        var it = client.describe();
        yield members("version", it.version(), "api", it.api(), "features", it.features().stream().sorted().toList());
      }
      default -> throw new IllegalArgumentException("this runner does not know " + verb);
    };
  }

  private Map<String, Object> acquire(String key, Map<String, Object> a) throws InterruptedException {
    return hold(client.acquire(key, options(a)));
  }

  /** Acquires for a block. */
  HeldLock enter(String key, Map<String, Object> a) throws InterruptedException {
    HeldLock lock = client.acquire(key, options(a));
    hold(lock);
    return lock;
  }

  private Map<String, Object> hold(HeldLock lock) {
    boolean first = locks.stream().noneMatch(one -> one.key().equals(lock.key()) && one.token() == lock.token());
    locks.add(0, lock.detach()); // the threads of the player may release it, and wait for it
    if (first) {
      lock.lost().thenAccept(reason -> events.add(
          reason.equals("disconnected")
              ? members("event", "end")
              : members("event", "lost", "key", lock.key(), "token", lock.token(), "reason", reason)));
      lock.stopping().thenAccept(reason -> events.add(
          members("event", "stop", "key", lock.key(), "token", lock.token(), "reason", reason)));
    }
    return Results.granted(lock);
  }

  private HeldLock held(String key, long token) {
    return locks.stream()
        .filter(one -> one.key().equals(key) && one.token() == token && !one.isReleased())
        .findFirst()
        .orElse(null);
  }

  private Map<String, Object> release(String key, long token, Map<String, Object> a) {
    HeldLock lock = held(key, token);
    Outcome outcome = a.containsKey("outcome") ? Outcome.valueOf(((String) a.get("outcome")).toUpperCase(Locale.ROOT)) : null;
    int reentry = a.containsKey("reentry") ? ((Number) a.get("reentry")).intValue() : 0;
    boolean free;
    if (lock == null) {
      free =
          reentry != 0 ? client.releaseEntry(key, token, reentry)
              : outcome == null ? client.release(key, token) : client.release(key, token, outcome, a.get("result"));
    } else if (reentry != 0) {
      free = lock.releaseEntry(reentry);
    } else if (a.containsKey("result")) {
      free = lock.release(outcome, a.get("result"));
    } else {
      free = outcome == null ? lock.release() : lock.release(outcome);
    }
    return members("key", key, "released", free, "reentry", free || lock == null ? 0 : lock.entries());
  }

  private LockStatus check(String key, long token, Map<String, Object> a) {
    HeldLock lock = held(key, token);
    if (a.containsKey("data")) {
      return lock.update(a.get("data"));
    }
    return lock == null ? client.check(key, token) : lock.check();
  }

  private Map<String, Object> list(Map<String, Object> a) {
    LockQuery query = LockQuery.of(Scope.valueOf(((String) a.getOrDefault("scope", "all")).toUpperCase(Locale.ROOT)));
    query = a.containsKey("prefix") ? query.prefix((String) a.get("prefix")) : query;
    query = a.containsKey("type") ? query.type((String) a.get("type")) : query;
    query = a.containsKey("limit") ? query.pageSize(((Number) a.get("limit")).intValue()) : query;
    List<Object> keys = new ArrayList<>();
    List<Object> infos = new ArrayList<>();
    for (LockInfo one : client.locks(query)) {
      keys.add(one.key());
      infos.add(Results.info(one));
    }
    return members("keys", keys, "locks", infos);
  }

  private static LockOptions options(Map<String, Object> a) {
    LockOptions options = LockOptions.defaults();
    long wait = a.containsKey("wait_ms") ? ((Number) a.get("wait_ms")).longValue() : 0;
    options = wait == -1 ? options.waitForever() : options.maxWait(Duration.ofMillis(wait));
    options = a.containsKey("ttl_ms") ? options.ttl(millis(a, "ttl_ms")) : options;
    options = "ttl".equals(a.get("bind")) ? options.bindTtl() : options;
    options = a.containsKey("owner") ? options.owner((String) a.get("owner")) : options;
    options = Boolean.TRUE.equals(a.get("reentrant")) ? options.reentrant() : options;
    options = a.containsKey("max_hold_ms") ? options.maxHold(millis(a, "max_hold_ms")) : options;
    options = a.containsKey("min_hold_ms") ? options.minHold(millis(a, "min_hold_ms")) : options;
    options = "skip".equals(a.get("on_success")) ? options.skipIfDone() : options;
    options = a.containsKey("data") ? options.data(a.get("data")) : options;
    options = a.containsKey("request_id") ? options.requestId((String) a.get("request_id")) : options;
    options = "shared".equals(a.get("mode")) ? options.shared() : options;
    return a.containsKey("limit") ? options.limit(((Number) a.get("limit")).intValue()) : options;
  }

  private static Duration millis(Map<String, Object> a, String name) {
    return Duration.ofMillis(((Number) a.get(name)).longValue());
  }

  private static List<String> strings(Object list) {
    return ((List<?>) list).stream().map(String.class::cast).toList();
  }
}

package io.github.locksidecar.contract;

import io.github.locksidecar.HeldLock;
import io.github.locksidecar.Holder;
import io.github.locksidecar.KeyEvent;
import io.github.locksidecar.LockHeldException;
import io.github.locksidecar.LockInfo;
import io.github.locksidecar.LockStatus;
import io.github.locksidecar.LocksidecarException;
import io.github.locksidecar.SharedHolder;
import io.github.locksidecar.Stopping;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The client's results and errors in the words of the contract. */
final class Results {
  private Results() {}

  /** A map of names and values. Unlike Map.of it takes null. */
  static Map<String, Object> members(Object... pairs) {
    Map<String, Object> made = new LinkedHashMap<>();
    for (int i = 0; i < pairs.length; i += 2) {
      made.put((String) pairs[i], pairs[i + 1]);
    }
    return made;
  }

  static Map<String, Object> granted(HeldLock lock) {
    return members(
        "granted", true, "key", lock.key(), "token", lock.token(), "session", lock.session(), "bind",
        lock.session() == null ? "ttl" : "session", "reentry", lock.reentry(), "expires_in_ms",
        lock.expiresIn().toMillis(), "waited_ms", lock.waited().toMillis(), "mode", mode(lock.isShared()), "limit",
        limit(lock.limit()), "slot", slot(lock.slot()));
  }

  static Map<String, Object> status(LockStatus it) {
    return members(
        "held", true, "key", it.key(), "token", it.token(), "reentry", it.reentry(), "expires_in_ms",
        it.expiresIn().toMillis(), "mode", mode(it.shared()), "limit", limit(it.limit()), "slot", slot(it.slot()),
        "stopping", stopping(it.stopping()));
  }

  static Map<String, Object> info(LockInfo it) {
    return members(
        "key", it.key(), "type", it.type(), "state", it.held() ? "held" : "free", "mine", it.mine(), "token",
        it.token() == 0 ? null : it.token(), "mode", it.held() ? mode(it.shared()) : null, "limit", limit(it.limit()),
        "holder", holder(it.holder()), "kept", it.kept(), "holders_count", it.holdersCount(), "holders",
        it.holders().stream().map(Results::sharedHolder).toList(), "queue_length", it.queueLength(), "stopping",
        stopping(it.stopping()));
  }

  static Map<String, Object> event(KeyEvent it) {
    Map<String, Object> made = members("event", it.type());
    made.putAll(it.data());
    return made;
  }

  static Map<String, Object> problem(LocksidecarException e) {
    Map<String, Object> made = new LinkedHashMap<>(e.problem());
    List.of("type", "title", "status", "code").forEach(made::remove);
    if (e instanceof LockHeldException held) {
      made.put("holder", holder(held.holder()));
    }
    made.put("error", e.code());
    made.put("detail", theirNames(e.detail()));
    return made;
  }

  private static String theirNames(String detail) {
    return detail
        .replaceAll("\\bmaxWait\\b( \\(in ms\\))?", "wait_ms")
        .replaceAll("\\bttl\\b( \\(in ms\\))?", "ttl_ms")
        .replaceAll("\\bmaxHold\\b( \\(in ms\\))?", "max_hold_ms")
        .replaceAll("\\bminHold\\b( \\(in ms\\))?", "min_hold_ms");
  }

  private static Map<String, Object> holder(Holder it) {
    if (it == null) {
      return null;
    }
    return members(
        "instance", it.instance(), "pod", it.pod(), "session", it.session(), "owner", it.owner(), "acquired_at",
        it.acquiredAt().toString(), "held_ms", it.held().toMillis(), "expires_in_ms", it.expiresIn().toMillis(), "data", it.data(),
        "traceparent", it.traceparent());
  }

  private static Map<String, Object> sharedHolder(SharedHolder it) {
    Map<String, Object> made = holder(it.holder());
    made.put("token", it.token());
    made.put("slot", slot(it.slot()));
    made.put("stopping", stopping(it.stopping()));
    return made;
  }

  private static Map<String, Object> stopping(Stopping it) {
    return it == null ? null : members("reason", it.reason(), "requested_at", it.requestedAt().toString());
  }

  private static String mode(boolean shared) {
    return shared ? "shared" : "exclusive";
  }

  private static Integer limit(int limit) {
    return limit == 0 ? null : limit;
  }

  private static Integer slot(int slot) {
    return slot < 0 ? null : slot;
  }
}

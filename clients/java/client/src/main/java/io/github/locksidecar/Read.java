package io.github.locksidecar;

import com.grack.nanojson.JsonObject;
import io.github.locksidecar.internal.Operations;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/** Reads the API's forms. Members that a newer sidecar adds are ignored. */
final class Read {
  private Read() {}

  static @Nullable Holder holder(@Nullable Object value) {
    if (!(value instanceof JsonObject it)) {
      return null;
    }
    return new Holder(
        it.getString("instance"), it.getString("pod"), it.getString("session"), it.getString("owner"),
        time(it, "acquired_at"), millis(it, "held_ms"), millis(it, "expires_in_ms"), it.get("data"),
        it.getString("traceparent"));
  }

  static LockInfo info(JsonObject it) {
    List<SharedHolder> holders = new ArrayList<>();
    Operations.list(it, "holders").forEach(one -> holders.add(sharedHolder((JsonObject) one)));
    return new LockInfo(
        it.getString("key"), it.getString("type"), "held".equals(it.getString("state")), it.getBoolean("mine"),
        it.getLong("token"), shared(it), it.getInt("limit"), holder(it.get("holder")),
        it.getBoolean("kept"), List.copyOf(holders), it.getInt("holders_count"), it.getInt("queue_length"), stopping(it));
  }

  private static SharedHolder sharedHolder(JsonObject it) {
    Holder holder = holder(it);
    if (holder == null) {
      throw new IllegalStateException("a holder is no object");
    }
    return new SharedHolder(holder, it.getLong("token"), slot(it), stopping(it));
  }

  static Waiter waiter(JsonObject it) {
    return new Waiter(
        it.getString("key"), it.getInt("position"), it.getString("pod"), it.getString("session"), it.getString("owner"),
        shared(it), it.getInt("limit"), millis(it, "waiting_ms"), it.getString("traceparent"));
  }

  static LockStatus status(JsonObject it) {
    return new LockStatus(
        it.getString("key"), it.getLong("token"), it.getString("session"), shared(it), it.getInt("limit"), slot(it),
        it.getInt("reentry"), millis(it, "expires_in_ms"), stopping(it));
  }

  static Description description(JsonObject it) {
    Set<String> features = new HashSet<>();
    Operations.list(it, "features").forEach(one -> features.add(String.valueOf(one)));
    return new Description(it.getString("version"), it.getString("api"), Set.copyOf(features));
  }

  static boolean shared(JsonObject it) {
    return "shared".equals(it.getString("mode"));
  }

  static int slot(JsonObject it) {
    return it.getInt("slot", -1);
  }

  static Duration millis(JsonObject it, String name) {
    return Duration.ofMillis(it.getLong(name));
  }

  static Instant time(JsonObject it, String name) {
    return Instant.parse(it.getString(name));
  }

  private static @Nullable Stopping stopping(JsonObject it) {
    JsonObject stop = it.getObject("stopping");
    return stop == null ? null : new Stopping(stop.getString("reason"), time(stop, "requested_at"));
  }
}

package io.github.locksidecar;

import io.github.locksidecar.internal.AcquireRequest;
import io.github.locksidecar.internal.Clock;
import io.github.locksidecar.internal.Json;
import io.github.locksidecar.internal.Problem;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import org.jspecify.annotations.Nullable;

/**
 * The options of an acquire. Immutable: each method returns a copy with the option.
 *
 * <p>Without options a call waits for ever, for an exclusive lock of this client's session. A duration out of range throws
 * {@link InvalidRequestException}.
 */
public final class LockOptions {
  private static final Duration DAY = Duration.ofDays(1);
  private static final Duration LEAST_TTL = Duration.ofMillis(500);

  /** The features that the API's members need. */
  private static final Map<String, String> FEATURES =
      Map.of(
          "mode", "shared", "bind", "bind_ttl", "owner", "reentrant", "max_hold_ms", "hold", "min_hold_ms", "hold",
          "on_success", "outcome", "data", "data");

  private static final LockOptions DEFAULTS = new LockOptions(Map.of(), Clock.NEVER, null, false);

  /** The API's members. */
  private final Map<String, @Nullable Object> fields;

  private final long wait;
  private final @Nullable String requestId;
  private final boolean interrupts;

  private LockOptions(
      Map<String, @Nullable Object> fields, long wait, @Nullable String requestId, boolean interrupts) {
    this.fields = fields;
    this.wait = wait;
    this.requestId = requestId;
    this.interrupts = interrupts;
  }

  /**
   * No options: wait for ever.
   *
   * @return the options
   */
  public static LockOptions defaults() {
    return DEFAULTS;
  }

  private LockOptions with(String field, Object value) {
    Map<String, @Nullable Object> more = new TreeMap<>(fields);
    more.put(field, value);
    return new LockOptions(Collections.unmodifiableMap(more), wait, requestId, interrupts);
  }

  /**
   * How long to wait in the queue. {@link Duration#ZERO} does not wait.
   *
   * @param maxWait at most a day
   * @return these options with it
   */
  public LockOptions maxWait(Duration maxWait) {
    check("maxWait", maxWait, Duration.ZERO);
    return new LockOptions(fields, Clock.nanos(maxWait), requestId, interrupts);
  }

  /**
   * Waits without limit, which is the default.
   *
   * @return these options with it
   */
  public LockOptions waitForever() {
    return new LockOptions(fields, Clock.NEVER, requestId, interrupts);
  }

  /**
   * How long the lock outlives a dead sidecar, rounded up to one of 21 steps (less than twice as long). A living sidecar
   * renews the lock. With {@link #bindTtl()}, how long the lock lasts in total.
   *
   * @param ttl 500 ms to a day
   * @return these options with it
   */
  public LockOptions ttl(Duration ttl) {
    check("ttl", ttl, LEAST_TTL);
    return with("ttl_ms", Clock.millis(ttl));
  }

  /**
   * Shared holders do not exclude each other. Calls get the lock in their order, so neither readers nor writers starve.
   *
   * @return these options with it
   */
  public LockOptions shared() {
    return with("mode", "shared");
  }

  /**
   * With {@link #shared()}, at most this many holders at a time: see {@link LockClient#semaphore}.
   *
   * @param limit 1 to 1000; all callers of a key name the same
   * @return these options with it
   */
  public LockOptions limit(int limit) {
    if (limit < 1 || limit > 1000) {
      throw Problem.invalid("limit is " + limit + "; it must be 1 to 1000");
    }
    return with("limit", limit);
  }

  /**
   * The lock belongs to no session: it outlives the process, and ends after its {@link #ttl} unless it is extended. Every
   * caller with key and token can release it, and a caller can guess other tokens from its own.
   *
   * @return these options with it
   */
  public LockOptions bindTtl() {
    return with("bind", "ttl");
  }

  /**
   * The owner in the session. Other callers see it. With {@link #reentrant()}, calls of the same owner enter again.
   *
   * @param owner 1 to 255 bytes
   * @return these options with it
   */
  public LockOptions owner(String owner) {
    return with("owner", Problem.text("owner", owner));
  }

  /**
   * The owner may enter its lock again. The default owner is the thread.
   *
   * @return these options with it
   */
  public LockOptions reentrant() {
    return with("reentrant", true);
  }

  /**
   * The sidecar releases the lock after this time, whatever the app does. The lock is then lost, with the reason
   * {@code max_hold}.
   *
   * @param maxHold at most a day
   * @return these options with it
   */
  public LockOptions maxHold(Duration maxHold) {
    check("maxHold", maxHold, Duration.ZERO);
    return with("max_hold_ms", Clock.millis(maxHold));
  }

  /**
   * Nobody else gets the lock until this time after the grant, although it is released.
   *
   * @param minHold at most a day
   * @return these options with it
   */
  public LockOptions minHold(Duration minHold) {
    check("minHold", minHold, Duration.ZERO);
    return with("min_hold_ms", Clock.millis(minHold));
  }

  /**
   * If the holder releases with {@link Outcome#SUCCESS} while this call waits, the call throws {@link SkippedException}
   * with the holder's result, and gets no lock.
   *
   * @return these options with it
   */
  public LockOptions skipIfDone() {
    return with("on_success", "skip");
  }

  /**
   * JSON that other callers see as part of the holder.
   *
   * @param data map, list, string, number or boolean, at most 4 KiB as JSON
   * @return these options with it
   * @throws IllegalArgumentException if a part of it is not JSON
   */
  public LockOptions data(Object data) {
    return with("data", Problem.required("data", Json.copy("data", data)));
  }

  /**
   * The app's own id of the acquire: the same id gets the same grant. If a call with it is interrupted, the client does not
   * withdraw its grant: ask again with the same id.
   *
   * @param requestId a UUID
   * @return these options with it
   */
  public LockOptions requestId(String requestId) {
    return new LockOptions(fields, wait, Problem.required("requestId", requestId), interrupts);
  }

  /**
   * A loss of the lock interrupts the thread that acquired it, unless it has begun to release it. Its interrupt status may
   * still be set when {@link HeldLock#close()} throws {@link LockLostException}.
   *
   * @return these options with it
   */
  public LockOptions interruptOnLoss() {
    return new LockOptions(fields, wait, requestId, true);
  }

  boolean interrupts() {
    return interrupts;
  }

  boolean has(String field) {
    return fields.containsKey(field);
  }

  AcquireRequest request() {
    LockOptions complete = has("reentrant") && !has("owner") ? owner(ThreadName.current()) : this;
    List<String> needs = complete.fields.keySet().stream().map(FEATURES::get).filter(Objects::nonNull).toList();
    return new AcquireRequest(complete.fields, needs, wait, requestId, (String) fields.get("owner"));
  }

  static void check(String name, Duration value, Duration least) {
    if (Problem.required(name, value).compareTo(least) < 0 || value.compareTo(DAY) > 0) {
      throw Problem.invalid(
          name + " is " + Clock.nanos(value) / 1_000_000 + " ms; it must be "
              + least.toMillis() + " to " + DAY.toMillis() + " ms");
    }
  }
}

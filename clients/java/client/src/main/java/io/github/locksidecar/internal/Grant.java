package io.github.locksidecar.internal;

import com.grack.nanojson.JsonObject;
import java.util.concurrent.CompletableFuture;
import org.jspecify.annotations.Nullable;

/** One grant of the sidecar. The entries of a reentrant lock share it. */
public final class Grant {
  /** The key. */
  public final String key;

  /** The fencing token. */
  public final long token;

  /** Completed with the reason when the lock is lost. */
  public final CompletableFuture<String> lost = new CompletableFuture<>();

  /** Completed with the reason, or null, when somebody asks to release the lock. */
  public final CompletableFuture<@Nullable String> stopping = new CompletableFuture<>();

  /** The session that holds it; null: bind:ttl. */
  final @Nullable Session session;

  private volatile int entries = 1;
  private volatile long expiresAt;

  Grant(String key, long token, @Nullable Session session) {
    this.key = key;
    this.token = token;
    this.session = session;
  }

  /** Takes over an answer about it. Times count from the question, because an answer may be read late. */
  void note(JsonObject value, long asked) {
    expiresAt = asked + (value.getLong("waited_ms") + value.getLong("expires_in_ms")) * 1_000_000;
    entries = value.getInt("reentry");
    JsonObject stop = value.getObject("stopping");
    if (stop != null) {
      stopping.complete(stop.getString("reason"));
    }
  }

  /** Takes over the answer to a release. */
  void released(JsonObject value) {
    entries = value.getInt("reentry");
    if (value.getBoolean("released") && session != null) {
      session.forget(this);
    }
  }

  /**
   * How often its owner has entered the lock, as the last answer said.
   *
   * @return the number; 0 after the release
   */
  public int entries() {
    return entries;
  }

  /**
   * The end that the last answer named.
   *
   * @return the time by {@link Clock}
   */
  public long expiresAt() {
    return expiresAt;
  }

  /**
   * Throws if it is lost.
   *
   * @throws io.github.locksidecar.LockLostException with the reason
   */
  public void requireHeld() {
    if (lost.isDone()) {
      throw Problem.lost(key, lost.join());
    }
  }
}

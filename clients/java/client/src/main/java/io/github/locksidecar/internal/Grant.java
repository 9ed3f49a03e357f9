package io.github.locksidecar.internal;

import com.grack.nanojson.JsonObject;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import org.jspecify.annotations.Nullable;

/** One grant of the sidecar. The entries of a reentrant lock share it. */
public final class Grant {
  /** The least time for the answer to a call that must come before the lease ends. In ns. */
  private static final long LEAST_PATIENCE = 200_000_000;

  /** The key. */
  public final String key;

  /** The fencing token. */
  public final long token;

  /** Completed with the reason when the lock is lost. See {@link #lost()}. */
  final CompletableFuture<String> lost = new CompletableFuture<>();

  /** Completed with the reason, or null, when somebody asks to release the lock. */
  public final CompletableFuture<@Nullable String> stopping = new CompletableFuture<>();

  /** The session that holds it; null: bind:ttl. */
  final @Nullable Session session;

  /** The lease of the session's locks of its TTL. Of a bind:ttl lock it is its own. */
  final Lease lease;

  /** With bind:ttl, its end by the clock here. */
  private final @Nullable Expiry expiry;

  /** The first request that got it. */
  final AcquireRequest request;

  /** The thread that acquired it, and may wait for itself; null: another thread may release it. */
  volatile @Nullable Thread thread;

  private volatile boolean shared;
  private volatile int entries = 1;

  /** The requests whose entries were not released. */
  private final Set<String> requests = ConcurrentHashMap.newKeySet();

  /** Whether the last call about it had no answer. */
  private volatile boolean silent;

  Grant(String key, long token, @Nullable Session session, Lease lease, AcquireRequest request) {
    this.key = key;
    this.token = token;
    this.session = session;
    this.expiry = session == null ? new Expiry(lost) : null;
    this.lease = lease;
    this.request = request;
  }

  /** Takes over an answer about it. Times count from the question, because an answer may be read late. */
  void note(JsonObject value, long asked) {
    if (session != null) {
      session.prove(lease, end(value, asked));
    }
    if (expiry != null && expiry.set(asked, end(value, asked))) {
      lease.set(end(value, asked));
    }
    entries = value.getInt("reentry");
    shared = "shared".equals(value.getString("mode"));
    silent = false;
    JsonObject stop = value.getObject("stopping");
    if (stop != null) {
      stopping.complete(stop.getString("reason"));
    }
  }

  /** The end of a lease that an answer names. */
  static long end(JsonObject value, long asked) {
    return asked + (value.getLong("waited_ms") + value.getLong("expires_in_ms")) * 1_000_000;
  }

  /** A request has got an entry. */
  void entered(String requestId) {
    requests.add(requestId);
  }

  /** The releases of its entries. Each names its request, because the owner may have entered again since. */
  List<Call> releases() {
    return requests.stream().map(this::release).toList();
  }

  private Call release(String requestId) {
    String query = Target.query(Map.of("token", token, "request_id", requestId));
    Call call = new Call("DELETE", Target.lock(key) + query, null, Clock.NEVER);
    call.session = session;
    call.urgent = true;
    return call;
  }

  /** The entry of a request was released. */
  void left(@Nullable String requestId) {
    if (requestId != null) {
      requests.remove(requestId);
    }
  }

  /** Takes over the answer to a release. */
  void released(JsonObject value) {
    entries = value.getInt("reentry");
    silent = false;
    boolean free = value.getBoolean("released");
    if (free && session != null) {
      session.forget(this);
    }
    if (free && expiry != null) {
      expiry.cancel();
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
   * The end that the last answer about a lock of its lease named.
   *
   * @return the time by {@link Clock}
   */
  public long expiresAt() {
    return lease.until();
  }

  boolean shared() {
    return shared;
  }

  /** Another thread may release it, so the thread that acquired it may wait for it. */
  public void detach() {
    if (session != null) {
      session.detach(this);
    }
  }

  /** A call about it had no answer. */
  void silent() {
    silent = true;
  }

  /**
   * How long to wait for the answer to a call that must end before the lease does, by this process's clock: a third of what is
   * left of the lease. So such a call, its withdrawal and the release after them end in time.
   *
   * @param timeout the longest time
   * @return nanoseconds
   */
  long inTime(long timeout) {
    return Math.min(timeout, Math.max((expiresAt() - Clock.now()) / 3, LEAST_PATIENCE));
  }

  /** How long to wait for the answer to a release: after a call without an answer no longer than the lease allows. */
  long toRelease(long timeout) {
    return silent ? inTime(timeout) : timeout;
  }

  /**
   * What happens when it is lost.
   *
   * @return completed with the reason then
   */
  public CompletableFuture<String> lost() {
    if (expiry != null) {
      expiry.watch();
    }
    return lost;
  }

  /**
   * Whether it is lost.
   *
   * @return true after the loss
   */
  public boolean isLost() {
    return expiry != null && expiry.isOver() || lost.isDone();
  }

  /**
   * Throws if the lock of a session is lost. For a bind:ttl lock the store decides, not the clock here.
   *
   * @throws io.github.locksidecar.LockLostException with the reason
   */
  void requireHeld() {
    if (session != null && lost.isDone()) {
      throw Problem.lost(key, lost.join());
    }
  }
}

package io.github.locksidecar.internal;

import com.grack.nanojson.JsonObject;
import io.github.locksidecar.LockLostException;
import io.github.locksidecar.LocksidecarException;
import io.github.locksidecar.NotHolderException;
import io.github.locksidecar.SessionEndedException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * An explicit session: its id and its grants.
 *
 * <p>The stream may have news of a lock before the answer with its grant is read. Such news is kept until then.
 */
final class Session {
  /** The most locks with undelivered news: their grants were not read yet. */
  private static final int MAX_UNDELIVERED = 1000;

  /** The reason of locks that were lost with their session. */
  static final String DISCONNECTED = "disconnected";

  final String id;

  /** The header line of a call that joins it. */
  final String header;

  private final Runnable onEnd;
  private final Keeper keeper;
  private final Owed owed;
  private final Map<Name, Grant> grants = new HashMap<>();

  /** By TTL. Null is that of the session. */
  private final Map<@Nullable Object, Lease> leases = new HashMap<>();

  private final Map<Name, News> undelivered = new LinkedHashMap<>();
  private volatile boolean ended;

  /** The grants by the thread that acquired them, while it may wait for itself. */
  private final Map<Own, List<Grant>> own = new HashMap<>();

  private record Name(String key, long token) {}

  private record Own(Thread thread, String key) {}

  /** What the stream said of a lock whose grant was not read yet. */
  private static final class News {
    @Nullable String lost;
    boolean stop;
    @Nullable String stopReason;
  }

  /**
   * Makes a session.
   *
   * @param id the sidecar's name of it; only this client knows it
   * @param caller makes its own calls
   * @param onEnd runs once, when it ends
   */
  Session(String id, Caller caller, Runnable onEnd) {
    this.id = id;
    this.header = "Lock-Session: " + id + "\r\n";
    this.keeper = new Keeper(this, caller);
    this.owed = new Owed(this, caller);
    this.onEnd = onEnd;
  }

  boolean ended() {
    return ended;
  }

  /** Notes a grant, when it was asked for, and the request whose entry it is. */
  Grant hold(JsonObject value, long asked, AcquireRequest request, String requestId) {
    Name name = new Name(value.getString("key"), value.getLong("token"));
    Grant grant;
    News news;
    synchronized (this) {
      news = Objects.requireNonNullElseGet(undelivered.remove(name), News::new);
      Lease lease = leases.computeIfAbsent(request.fields().get("ttl_ms"), any -> new Lease());
      grant = grants.computeIfAbsent(name, one -> attach(new Grant(one.key(), one.token(), this, lease, request)));
      grant.entered(requestId);
      prove(grant.lease, Grant.end(value, asked)); // in one step: a lease without locks is forgotten
      if (ended) {
        news.lost = DISCONNECTED;
      }
      if (news.lost != null) {
        remove(grant);
      }
    }
    grant.note(value, asked);
    deliver(grant, news);
    return grant;
  }

  /** Takes over the answer to a release by key and token. */
  void released(String key, long token, JsonObject value) {
    Grant grant;
    synchronized (this) {
      grant = grants.get(new Name(key, token));
    }
    if (grant != null) {
      grant.released(value);
    }
  }

  // The leases of its locks.

  /** The app may rely on a lease until this time. */
  synchronized void prove(Lease lease, long end) {
    lease.prove(end);
    keeper.watch(lease.due());
  }

  /** The lease whose question comes next, or null. One that is due and has no locks is forgotten: the next grant makes it again. */
  synchronized @Nullable Lease nextLease() {
    long now = Clock.now();
    leases.values().removeIf(lease -> lease.due() <= now && anyOf(lease) == null);
    return leases.values().stream().min(Comparator.comparingLong(Lease::due)).orElse(null);
  }

  /** A lock of a lease, or null. */
  synchronized @Nullable Grant anyOf(Lease lease) {
    return grants.values().stream().filter(grant -> grant.lease == lease).findAny().orElse(null);
  }

  /** When the first of the leases of its locks ends. */
  synchronized long firstEnd() {
    return grants.values().stream().mapToLong(Grant::expiresAt).min().orElse(Clock.NEVER);
  }

  /** The question for one of its locks has ended. */
  synchronized void plan(Lease lease) {
    lease.plan();
  }

  /** The sidecar does not answer: the locks whose lease has ended are lost. If it goes on in time, it has them, so they are released. */
  void giveUp() {
    List<Grant> over;
    synchronized (this) {
      long now = Clock.now();
      over = grants.values().stream().filter(grant -> grant.expiresAt() <= now).toList();
      over.forEach(this::remove);
    }
    over.forEach(grant -> grant.releases().forEach(call -> owe(grant.key, call, grant)));
    over.forEach(grant -> grant.lost.complete("expired"));
  }

  /**
   * Notes what an answer to the client's own question or release says about a lock. "Released" is no loss: its holder has done this.
   *
   * @return whether the lock is over
   */
  boolean noteEnd(Grant grant, LocksidecarException answer) {
    if (answer instanceof SessionEndedException) {
      end();
      return true;
    }
    boolean gone = answer instanceof LockLostException || answer instanceof NotHolderException;
    if (!gone || answer.problem().containsKey("reentry")) {
      return false;
    }
    forget(grant);
    String reason = answer instanceof LockLostException lost ? lost.reason() : ((NotHolderException) answer).reason();
    if (!reason.equals("released")) {
      grant.lost.complete(reason);
    }
    return true;
  }

  // Releases that had no answer.

  /** Repeats a release that had no answer: see {@link Owed}. */
  void owe(String key, Call call, @Nullable Grant grant) {
    if (!ended) {
      owed.add(key, call, grant);
    }
  }

  /** Makes the releases that it owes of a key. Returns whether there was any. */
  boolean settle(String key, long timeout) throws InterruptedException {
    return owed.settle(key, timeout);
  }

  /** The grant was released, or is lost. */
  synchronized void forget(Grant grant) {
    remove(grant);
  }

  private void remove(Grant grant) {
    grants.remove(new Name(grant.key, grant.token), grant);
    detach(grant);
  }

  private Grant attach(Grant grant) {
    Thread thread = Thread.currentThread();
    grant.thread = thread;
    own.computeIfAbsent(new Own(thread, grant.key), any -> new ArrayList<>(1)).add(grant);
    return grant;
  }

  synchronized void detach(Grant grant) {
    Thread thread = grant.thread;
    if (thread != null) {
      grant.thread = null;
      own.computeIfPresent(new Own(thread, grant.key), (any, held) -> held.remove(grant) && held.isEmpty() ? null : held);
    }
  }

  /** Refuses a call that would wait for its own thread for ever. Another owner that the app has named is another holder. */
  synchronized void refuseSelfWait(String key, AcquireRequest wanted) {
    List<Grant> held = own.getOrDefault(new Own(Thread.currentThread(), key), List.of());
    int shares = 0;
    for (Grant grant : held) {
      if (wanted.enters(grant.request)) {
        return;
      }
      if (!Objects.equals(wanted.owner(), grant.request.owner())) {
        continue;
      }
      shares++;
      if (!wanted.shared() || !grant.shared() || shares == wanted.limit()) {
        throw new IllegalStateException(selfWait(grant, wanted));
      }
    }
  }

  private static String selfWait(Grant grant, AcquireRequest wanted) {
    String remedy = "To enter a lock again, acquire it with reentrant() each time";
    if (grant.shared()) {
      remedy = wanted.shared() ? "It has all permits of the limit" : "A share cannot become exclusive: release it first";
    }
    return "this thread holds lock \"" + grant.key + "\" (token " + grant.token + "), and would wait for itself for ever. "
        + remedy + ". If another thread releases the lock, call detach() on it first, or give this call a maxWait";
  }

  /** Takes an event of the stream. Events of a newer sidecar are ignored. */
  void receive(Event event) {
    boolean lost = event.name().equals("lost");
    if (!lost && !event.name().equals("stop")) {
      return;
    }
    Name name = new Name(event.data().getString("key"), event.data().getLong("token"));
    String reason = event.data().getString("reason");
    Grant grant;
    News news;
    synchronized (this) {
      grant = grants.get(name);
      if (lost && grant != null) {
        remove(grant);
      }
      news = grant != null ? new News() : undelivered.computeIfAbsent(name, one -> new News());
      if (lost) {
        news.lost = Objects.requireNonNullElse(reason, "");
      } else {
        news.stop = true;
        news.stopReason = reason;
      }
      if (undelivered.size() > MAX_UNDELIVERED) {
        undelivered.remove(undelivered.keySet().iterator().next());
      }
    }
    if (grant != null) {
      deliver(grant, news);
    }
  }

  /** The session is over, and its locks are lost. */
  void end() {
    List<Grant> all;
    synchronized (this) {
      if (ended) {
        return;
      }
      ended = true;
      all = new ArrayList<>(grants.values());
      grants.clear();
      own.clear();
    }
    keeper.end();
    onEnd.run();
    all.forEach(grant -> grant.lost.complete(DISCONNECTED));
  }

  private static void deliver(Grant grant, News news) {
    if (news.stop) {
      grant.stopping.complete(news.stopReason);
    }
    if (news.lost != null) {
      grant.lost.complete(news.lost);
    }
  }
}

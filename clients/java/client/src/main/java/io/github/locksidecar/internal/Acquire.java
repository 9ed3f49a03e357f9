package io.github.locksidecar.internal;

import com.grack.nanojson.JsonObject;
import io.github.locksidecar.DrainingException;
import io.github.locksidecar.LocksidecarException;
import io.github.locksidecar.NoAnswerException;
import io.github.locksidecar.SessionEndedException;
import io.github.locksidecar.SkippedException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;

/**
 * An acquire of one lock, or of several, also through an outage.
 *
 * <p>All its calls have one request id. So a call may be repeated, and its grant released although the answer was lost.
 */
public final class Acquire {
  /** Nanoseconds to wait for the answer to a withdrawal. The sidecar carries it out in any case. */
  private static final long WITHDRAW_PATIENCE = 2_000_000_000L;

  private final Transport transport;
  private final List<String> keys;
  private final AcquireRequest request;
  private final @Nullable Grant entered;
  private final String requestId;
  private final Patience patience;

  // The last two calls that may have got a grant.
  private @Nullable Call call;
  private @Nullable Call before;
  private List<Granted> granted = List.of();

  /**
   * Prepares an acquire.
   *
   * @param transport makes its calls
   * @param keys the keys of the locks
   * @param request the options
   * @param entered the lock that is held and entered again, or null. It lives only in the present session, so an outage ends
   *     this acquire, and its calls end before the lease does
   */
  public Acquire(Transport transport, List<String> keys, AcquireRequest request, @Nullable Grant entered) {
    this.transport = transport;
    this.keys = keys;
    this.request = request;
    this.entered = entered;
    this.requestId = request.requestId() == null ? newId() : request.requestId();
    this.patience = new Patience(transport, request.maxWait());
  }

  // Names a call in its own session, so it need not be hard to guess.
  private static String newId() {
    ThreadLocalRandom random = ThreadLocalRandom.current();
    long high = random.nextLong() & ~0xF000L | 0x4000L;
    long low = random.nextLong() & ~(0xC0L << 56) | 0x80L << 56;
    return new UUID(high, low).toString();
  }

  /**
   * Acquires its only key. If this throws, nothing stays granted.
   *
   * @return the grant
   * @throws InterruptedException if the thread was interrupted
   */
  public Granted one() throws InterruptedException {
    List<Granted> got = run("PUT", Target.lock(keys.get(0)), null);
    return got.get(0);
  }

  /**
   * Acquires its keys, all or none. If this throws, nothing stays granted.
   *
   * @return the grants, in the order of the keys
   * @throws InterruptedException if the thread was interrupted
   */
  public List<Granted> many() throws InterruptedException {
    return run("POST", "/v1/locks", keys);
  }

  /**
   * As {@link #one}, but an interrupt does not end it. It may cost the place in the queue. The request id finds a grant
   * whose answer was lost by the interrupt.
   *
   * @return the grant
   */
  public Granted oneUninterruptibly() {
    try (Tracing.Span span = Tracing.acquire(keys, request.mode())) {
      try {
        return Uninterrupted.run(() -> attempt("PUT", Target.lock(keys.get(0)), null, span)).get(0);
      } catch (RuntimeException | Error e) {
        span.failed(e);
        withdraw();
        throw e;
      }
    }
  }

  private List<Granted> run(String method, String target, @Nullable List<String> several) throws InterruptedException {
    try (Tracing.Span span = Tracing.acquire(keys, request.mode())) {
      try {
        return attempt(method, target, several, span);
      } catch (InterruptedException | RuntimeException | Error e) {
        span.failed(e);
        withdraw();
        throw e;
      }
    }
  }

  private List<Granted> attempt(String method, String target, @Nullable List<String> several, Tracing.Span span)
      throws InterruptedException {
    while (true) {
      TimeUnit.NANOSECONDS.sleep(patience.pause());
      if (!settled()) {
        continue;
      }
      Call next = newCall(method, target, several);
      next.trace = span.headers();
      if (call != null && call.sent != 0) {
        before = call;
      }
      refuseSelfWait();
      call = next;
      try {
        JsonObject value = transport.perform(next).result();
        granted = grants(next, value);
        span.granted(granted);
        return granted;
      } catch (SkippedException e) {
        call = null;
        throw e;
      } catch (SessionEndedException e) {
        call = null;
        before = null;
        if (next.session != null) {
          next.session.end();
        }
        if (entered != null) {
          throw Problem.lost(entered.key, Session.DISCONNECTED);
        }
        patience.bridge(e, next.sent);
      } catch (DrainingException e) {
        call = null;
        patience.bridge(e, next.sent);
      } catch (NoAnswerException e) {
        unanswered(e, next.sent);
      } catch (LocksidecarException e) {
        call = e.status() == 0 ? call : null; // the sidecar has answered
        throw e;
      }
    }
  }

  private void unanswered(NoAnswerException error, long sent) {
    if (entered != null) {
      entered.silent();
      throw error;
    }
    patience.bridge(error, sent);
  }

  /** Makes the releases that the session owes of these keys. Returns false if there was no answer: then it is tried again. */
  private boolean settled() throws InterruptedException {
    Session live = transport.liveSession();
    if (live == null || !request.joins()) {
      return true;
    }
    try {
      for (String key : keys) {
        if (live.settle(key, inTime(transport.settings.timeout()))) {
          patience.spend();
        }
      }
      return true;
    } catch (NoAnswerException e) {
      unanswered(e, 0);
      return false;
    }
  }

  /** A call about a lock that is held must end before its lease does. */
  private long inTime(long timeout) {
    return entered == null ? timeout : entered.inTime(timeout);
  }

  /** An acquire with an id of the app may be a repeat, whose grant is held. */
  private void refuseSelfWait() {
    Session live = transport.liveSession();
    if (live != null && request.maxWait() == Clock.NEVER && request.requestId() == null) {
      keys.forEach(key -> live.refuseSelfWait(key, request));
    }
  }

  private Call newCall(String method, String target, @Nullable List<String> several) {
    Map<String, @Nullable Object> body = new TreeMap<>(request.fields());
    body.put("request_id", requestId);
    if (several != null) {
      body.put("keys", several);
    }
    long left = patience.left();
    if (patience.waits()) {
      body.put("wait_ms", left == Clock.NEVER ? -1 : Clock.millis(left));
    }
    long timeout = left == Clock.NEVER ? Clock.NEVER : left + transport.settings.timeout();
    Call made = new Call(method, target, body, inTime(timeout)).needs("release_by_id");
    made.needs.addAll(request.needs());
    if (several != null) {
      made.needs("several_keys");
    }
    if (patience.waits()) {
      made.needs("wait");
    }
    made.joins = request.joins();
    return made;
  }

  private List<Granted> grants(Call by, JsonObject value) {
    List<Granted> got = new ArrayList<>();
    if (value.has("locks")) {
      value.getArray("locks").forEach(one -> got.add(grant(by, (JsonObject) one)));
    } else if (value.getBoolean("granted")) {
      got.add(grant(by, value));
    } else {
      throw new SkippedException(keys.get(0), value.get("result"));
    }
    return got;
  }

  private Granted grant(Call by, JsonObject value) {
    Grant grant;
    if (by.session != null) {
      grant = by.session.hold(value, by.sent, request, requestId);
    } else {
      grant = new Grant(value.getString("key"), value.getLong("token"), null, new Lease(), request);
      grant.note(value, by.sent);
    }
    return new Granted(grant, value, request.reentrant() ? requestId : null);
  }

  /**
   * Releases the grant that this has, or may have, also if the thread is interrupted. If the app has named the request,
   * other parts of the app may hold the grant. Then the grant stays, and the id finds it.
   */
  public void withdraw() {
    Call by = call != null && call.sent != 0 ? call : before;
    call = null;
    before = null;
    if (by == null || by.sent == 0 || request.requestId() != null) {
      return;
    }
    long timeout = inTime(Math.min(transport.settings.timeout(), WITHDRAW_PATIENCE));
    boolean silent = false;
    for (String key : keys) {
      Call release = new Call("DELETE", Target.lock(key) + "?request_id=" + requestId, null, timeout);
      release.session = by.session;
      release.urgent = true;
      try {
        if (!silent) {
          JsonObject value = Uninterrupted.run(() -> transport.perform(release)).result();
          granted.stream().map(Granted::grant).filter(grant -> grant.key.equals(key)).forEach(grant -> {
            grant.left(requestId);
            grant.released(value);
          });
          continue;
        }
      } catch (NoAnswerException e) {
        silent = true; // Another error is under way.
      } catch (SessionEndedException e) {
        return; // Its end frees them.
      } catch (LocksidecarException e) {
        continue; // The sidecar goes on with this release. The other locks must not stay held.
      }
      if (by.session != null) { // a bind:ttl lock ends with its TTL
        by.session.owe(key, release, null);
      }
    }
  }
}

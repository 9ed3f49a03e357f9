package io.github.locksidecar.internal;

import com.grack.nanojson.JsonArray;
import com.grack.nanojson.JsonObject;
import io.github.locksidecar.LockLostException;
import io.github.locksidecar.LocksidecarException;
import io.github.locksidecar.NoAnswerException;
import io.github.locksidecar.NotHolderException;
import io.github.locksidecar.SessionEndedException;
import java.util.LinkedHashMap;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/** The calls of a client except acquires. They finish although their thread is interrupted. */
public final class Operations {
  private final Transport transport;

  /**
   * Makes the calls of a transport.
   *
   * @param transport makes the calls
   */
  public Operations(Transport transport) {
    this.transport = transport;
  }

  /**
   * A release, and the options that it has.
   *
   * @param key the key
   * @param token the token
   * @param grant null if the client does not know it
   * @param entry the request id of the entry to end, or null: the newest
   * @param outcome {@code success}, {@code failure} or null
   * @param body with the result; null: without a body
   * @param reentry the required number of entries; 0: any
   * @param inner whether the lock stays held by another entry, so the answer must come before its lease ends
   * @param repeated whether a release before had no answer, or the store did not confirm it
   */
  public record Release(
      String key,
      long token,
      @Nullable Grant grant,
      @Nullable String entry,
      @Nullable String outcome,
      @Nullable Map<String, @Nullable Object> body,
      int reentry,
      boolean inner,
      boolean repeated) {}

  /**
   * Releases a lock, or one entry of it.
   *
   * @param release what to release
   * @return the API's answer
   */
  public JsonObject release(Release release) {
    try (Tracing.Span span = Tracing.release(release.key(), release.token())) {
      try {
        JsonObject value = released(release, span);
        span.released();
        return value;
      } catch (RuntimeException | Error e) {
        span.failed(e);
        throw e;
      }
    }
  }

  private JsonObject released(Release release, Tracing.Span span) {
    Grant grant = release.grant();
    if (grant != null) {
      grant.requireHeld();
    }
    Map<String, Object> query = new LinkedHashMap<>();
    query.put("token", release.token());
    Call call;
    if (release.outcome() != null) {
      query.put("outcome", release.outcome());
    }
    if (release.reentry() != 0) {
      query.put("reentry", release.reentry());
    }
    if (release.entry() != null) {
      query.put("request_id", release.entry());
    }
    call = new Call("DELETE", Target.lock(release.key()) + Target.query(query), release.body(), timeout(release));
    call.trace = span.headers();
    call.repeated = release.repeated();
    call.urgent = true;
    if (release.outcome() != null) {
      call.needs("outcome");
    }
    if (release.reentry() != 0) {
      call.needs("reentrant");
    }
    if (release.entry() != null) {
      call.needs("release_by_id");
    }
    call.session = grant == null ? transport.liveSession() : grant.session;
    JsonObject value;
    try {
      value = untilAnswered(call, grant);
    } catch (LocksidecarException e) {
      noteError(grant, e);
      if (e instanceof NoAnswerException && grant != null && grant.session != null && release.reentry() == 0) {
        grant.session.owe(grant.key, call, grant);
      }
      throw e;
    }
    if (grant != null) {
      grant.left(release.entry());
      grant.released(value);
    } else if (call.session != null) {
      call.session.released(release.key(), release.token(), value);
    }
    return value;
  }

  private long timeout(Release release) {
    Grant grant = release.grant();
    if (grant == null) {
      return timeout();
    }
    return release.inner() ? grant.inTime(timeout()) : grant.toRelease(timeout());
  }

  /** Makes a release, and again if an interrupt has cost its answer. */
  private JsonObject untilAnswered(Call call, @Nullable Grant grant) {
    try {
      return result(call);
    } catch (NotHolderException e) {
      if (call.repeated && !e.problem().containsKey("reentry") && isReleased(e.reason(), grant)) {
        JsonObject value = new JsonObject(); // by the first call, whose answer was lost
        value.put("released", true);
        value.put("reentry", 0);
        return value;
      }
      throw e;
    }
  }

  /** The store may forget the end of a bind:ttl lock. While its time is not over, only a release ends it. */
  private static boolean isReleased(String reason, @Nullable Grant grant) {
    boolean forgotten = reason.equals("unknown_token") && grant != null && grant.session == null;
    return reason.equals("released") || forgotten && !grant.isLost();
  }

  private JsonObject result(Call call) {
    return Uninterrupted.run(
            () -> {
              try {
                return transport.perform(call);
              } catch (InterruptedException e) {
                call.repeated |= call.sent != 0;
                throw e;
              }
            })
        .result();
  }

  /** Notes what an error says about a lock: its loss, or that there was no answer. */
  private static void noteError(@Nullable Grant grant, LocksidecarException error) {
    if (grant == null) {
      return;
    }
    if (error instanceof NoAnswerException) {
      grant.silent();
    }
    boolean gone = error instanceof LockLostException || error instanceof NotHolderException;
    if (gone && !error.problem().containsKey("reentry")) {
      if (grant.session != null) {
        grant.session.forget(grant);
      }
      grant.lost.complete(
          error instanceof LockLostException lost ? lost.reason() : ((NotHolderException) error).reason());
    } else if (error instanceof SessionEndedException && grant.session != null) {
      grant.session.end();
      throw Problem.lost(grant.key, Session.DISCONNECTED);
    }
  }

  /**
   * Checks that the lock is held. Sets its time (bind:ttl) or its data, or makes it shared.
   *
   * @param key the key
   * @param token the token
   * @param grant null if the client does not know it
   * @param changes the API's members, without the token
   * @param needs the features that they need
   * @return the API's answer
   */
  public JsonObject check(
      String key,
      long token,
      @Nullable Grant grant,
      Map<String, @Nullable Object> changes,
      String... needs) {
    if (grant != null) {
      grant.requireHeld();
    }
    Map<String, @Nullable Object> body = new LinkedHashMap<>(changes);
    body.put("token", token);
    Call call = new Call("PATCH", Target.lock(key), body, timeout()).needs(needs);
    call.urgent = true;
    call.session = grant == null ? transport.liveSession() : grant.session;
    JsonObject value;
    try {
      value = result(call);
    } catch (LocksidecarException e) {
      noteError(grant, e);
      throw e;
    }
    if (grant != null) {
      grant.note(value, call.sent);
    }
    return value;
  }

  /**
   * Shows one lock.
   *
   * @param key the key
   * @param fresh whether the sidecar asks the store
   * @return the API's answer
   */
  public JsonObject get(String key, boolean fresh) {
    return read(Target.lock(key), fresh, false);
  }

  /**
   * Shows a page of a list.
   *
   * @param path {@code /v1/locks}, {@code /v1/waiters}, or the waiters of a key
   * @param query the API's members; those that are null are left out
   * @param ofSession whether it belongs to this client's session
   * @param feature the feature that it needs
   * @return the API's answer
   */
  public JsonObject page(
      String path, Map<String, ? extends @Nullable Object> query, boolean ofSession, String feature) {
    return read(path + Target.query(query), false, ofSession, feature);
  }

  /**
   * The path of the waiters.
   *
   * @param key a key, or null for all
   * @return the path
   */
  public static String waiters(@Nullable String key) {
    return key == null ? "/v1/waiters" : Target.lock(key) + "/waiters";
  }

  private JsonObject read(String target, boolean fresh, boolean joins, String... needs) {
    for (boolean last = false; ; last = true) {
      Call call = new Call("GET", target, null, timeout()).needs(needs);
      call.noCache = fresh;
      call.joins = joins;
      call.session = transport.liveSession();
      try {
        return result(call);
      } catch (SessionEndedException e) {
        if (last || call.session == null) {
          throw e;
        }
        call.session.end();
      }
    }
  }

  /**
   * Asks the holders to stop.
   *
   * @param key the key
   * @param reason why, or null
   * @param token of one holder; 0: all
   */
  public void stop(String key, @Nullable String reason, long token) {
    Map<String, Object> body = reason == null ? Map.of() : Map.of("reason", reason);
    String target = Target.lock(key) + "/stop" + (token == 0 ? "" : "?token=" + token);
    result(new Call("POST", target, body, timeout()).needs("stop"));
  }

  /**
   * Breaks a lock. Returns when it is free.
   *
   * @param key the key
   * @param token of one holder; 0: all
   */
  public void forceRelease(String key, long token) {
    String target = Target.lock(key) + "?force=true" + (token == 0 ? "" : "&token=" + token);
    // The answer comes when the lock is free, at the latest when its lease ends.
    Call call = new Call("DELETE", target, null, Clock.NEVER);
    call.repeatable = false;
    result(call);
  }

  /**
   * Watches a key.
   *
   * @param key the key
   * @return the stream of its events
   * @throws InterruptedException if the thread was interrupted
   */
  public Stream watch(String key) throws InterruptedException {
    return transport.stream(new Call("GET", Target.lock(key) + "/events", null, timeout()).needs("events"));
  }

  /**
   * Asks the sidecar what it can do.
   *
   * @return the API's answer
   */
  public JsonObject describe() {
    return Uninterrupted.run(
            () -> {
              if (transport.closed()) {
                throw transport.isClosed();
              }
              return transport.describe();
            })
        .result();
  }

  /**
   * The elements of a list.
   *
   * @param value an answer
   * @param name the member that is a list
   * @return the list; empty if there is none
   */
  public static JsonArray list(JsonObject value, String name) {
    return value.getArray(name, new JsonArray());
  }

  private long timeout() {
    return transport.settings.timeout();
  }
}

package io.github.locksidecar.internal;

import com.grack.nanojson.JsonObject;
import java.util.ArrayList;
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
  private final Map<Name, Grant> grants = new HashMap<>();
  private final Map<Name, News> undelivered = new LinkedHashMap<>();
  private volatile boolean ended;

  private record Name(String key, long token) {}

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
   * @param onEnd runs once, when it ends
   */
  Session(String id, Runnable onEnd) {
    this.id = id;
    this.header = "Lock-Session: " + id + "\r\n";
    this.onEnd = onEnd;
  }

  boolean ended() {
    return ended;
  }

  /** Notes a grant, and when it was asked for. */
  Grant hold(JsonObject value, long asked) {
    Name name = new Name(value.getString("key"), value.getLong("token"));
    Grant grant;
    News news;
    synchronized (this) {
      news = Objects.requireNonNullElseGet(undelivered.remove(name), News::new);
      grant = grants.computeIfAbsent(name, one -> new Grant(one.key(), one.token(), this));
      if (ended) {
        news.lost = DISCONNECTED;
      }
      if (news.lost != null) {
        grants.remove(name);
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

  /** The grant was released, or is lost. */
  synchronized void forget(Grant grant) {
    grants.remove(new Name(grant.key, grant.token), grant);
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
      grant = lost ? grants.remove(name) : grants.get(name);
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
    }
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

package io.github.locksidecar.internal;

import io.github.locksidecar.LocksidecarException;
import io.github.locksidecar.NoAnswerException;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * The releases of a session that had no answer. The sidecar may hold such a lock, and nobody here has it any more. So they are repeated
 * until an answer comes, or the session is over. A new acquire of the key first waits for them: it would enter a lock that is being
 * released, or wait for it.
 */
final class Owed {
  /** How long a repeated release waits for its answer. In ns. */
  private static final long PATIENCE = 2_000_000_000L;

  private static final long LEAST_PAUSE = 50;
  private static final long LONGEST_PAUSE = 1000;

  private final Session session;
  private final Caller caller;
  private final Map<String, Release> releases = new LinkedHashMap<>();
  private boolean repeating;

  private record Release(String key, Call call, @Nullable Grant grant) {}

  Owed(Session session, Caller caller) {
    this.session = session;
    this.caller = caller;
  }

  /**
   * Notes a release without an answer.
   *
   * @param call it names what it releases, so that it may be repeated
   * @param grant null if the client does not know it
   */
  synchronized void add(String key, Call call, @Nullable Grant grant) {
    releases.put(call.target, new Release(key, call, grant));
    if (!repeating) {
      Thread made = new Thread(this::repeat, "locksidecar-release");
      made.setDaemon(true);
      try {
        made.start();
        repeating = true;
      } catch (OutOfMemoryError e) {
        // No more threads: the next one, or the next acquire of the key, tries again.
      }
    }
  }

  /**
   * Releases what is owed of a key.
   *
   * @param timeout how long to wait for each answer, in ns
   * @return whether there was any
   * @throws NoAnswerException without an answer
   */
  boolean settle(String key, long timeout) throws InterruptedException {
    List<Release> of;
    synchronized (this) {
      if (releases.isEmpty()) {
        return false;
      }
      of = releases.values().stream().filter(one -> one.key().equals(key)).toList();
    }
    for (Release one : of) {
      settle(one, timeout);
    }
    return !of.isEmpty();
  }

  private void settle(Release release, long timeout) throws InterruptedException {
    Grant grant = release.grant();
    try {
      var value = caller.perform(release.call().copy(timeout)).result();
      if (grant != null) {
        grant.released(value);
      }
    } catch (NoAnswerException e) {
      throw e;
    } catch (LocksidecarException e) { // it is over, or the sidecar goes on with this release
      if (grant != null) {
        session.noteEnd(grant, e);
      }
    }
    synchronized (this) {
      releases.remove(release.call().target, release);
    }
  }

  private void repeat() {
    long pause = LEAST_PAUSE;
    for (Release one = first(); one != null; one = first()) {
      try {
        Thread.sleep(pause);
        settle(one, PATIENCE);
        pause = LEAST_PAUSE;
      } catch (Throwable e) { // no answer; or an error of the JVM: without this thread they stay held
        pause = Math.min(pause * 2, LONGEST_PAUSE);
      }
    }
  }

  private synchronized @Nullable Release first() {
    Release first = session.ended() || releases.isEmpty() ? null : releases.values().iterator().next();
    repeating = first != null;
    return first;
  }
}

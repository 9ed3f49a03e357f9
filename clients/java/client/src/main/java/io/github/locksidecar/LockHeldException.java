package io.github.locksidecar;

import java.util.Map;
import org.jspecify.annotations.Nullable;

/** Another caller holds the lock. */
public class LockHeldException extends LocksidecarException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the error of a problem document.
   *
   * @param status the HTTP status
   * @param code the stable code
   * @param detail a text for people
   * @param problem all members of the answer
   */
  public LockHeldException(int status, String code, String detail, Map<String, @Nullable Object> problem) {
    super(status, code, detail, problem);
  }

  /**
   * The holder; of a shared lock the one that was granted first.
   *
   * @return the holder, or null if the lock has just become free
   */
  public @Nullable Holder holder() {
    return Read.holder(problem().get("holder"));
  }

  /**
   * Of several locks, the first one that was held.
   *
   * @return the key, or null for a call with one key
   */
  public @Nullable String key() {
    return text("key");
  }

  /**
   * The number of calls that wait for the lock.
   *
   * @return the number; -1 if the answer does not have it
   */
  public int queueLength() {
    return (int) number("queue_length", -1);
  }

  /**
   * The number of holders.
   *
   * @return the number
   */
  public int holdersCount() {
    return (int) number("holders_count", 0);
  }

  /**
   * Whether the sidecar of the holder may keep the lock for its next session, so that perhaps nobody holds it now.
   *
   * @return whether it may
   */
  public boolean kept() {
    return Boolean.TRUE.equals(problem().get("kept"));
  }

  /**
   * The limit of the shared holders.
   *
   * @return the limit; 0 if they have none
   */
  public int limit() {
    return (int) number("limit", 0);
  }
}

package io.github.locksidecar;

import java.util.Map;
import org.jspecify.annotations.Nullable;

/** The lock was held under this token, and is lost. */
public final class LockLostException extends LocksidecarException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the error of a problem document.
   *
   * @param status the HTTP status
   * @param code the stable code
   * @param detail a text for people
   * @param problem all members of the answer
   */
  public LockLostException(int status, String code, String detail, Map<String, @Nullable Object> problem) {
    super(status, code, detail, problem);
  }

  /**
   * Why.
   *
   * @return {@code expired}, {@code forced}, {@code max_hold}, {@code store_lost}, {@code disconnected} or {@code shutdown}
   */
  public String reason() {
    String reason = text("reason");
    return reason == null ? "" : reason;
  }
}

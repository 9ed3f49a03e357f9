package io.github.locksidecar;

import java.util.Map;
import org.jspecify.annotations.Nullable;

/** The shared holders and waiters of the key name another limit. Nothing was granted. */
public final class LimitMismatchException extends LocksidecarException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the error of a problem document.
   *
   * @param status the HTTP status
   * @param code the stable code
   * @param detail a text for people
   * @param problem all members of the answer
   */
  public LimitMismatchException(int status, String code, String detail, Map<String, @Nullable Object> problem) {
    super(status, code, detail, problem);
  }

  /**
   * The present limit.
   *
   * @return the limit; 0 if the holders name none
   */
  public int limit() {
    return (int) number("limit", 0);
  }
}

package io.github.locksidecar;

import java.util.Map;
import org.jspecify.annotations.Nullable;

/** The session and its locks are over. The client's next call opens a new session. */
public final class SessionEndedException extends LocksidecarException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the error of a problem document.
   *
   * @param status the HTTP status
   * @param code the stable code
   * @param detail a text for people
   * @param problem all members of the answer
   */
  public SessionEndedException(int status, String code, String detail, Map<String, @Nullable Object> problem) {
    super(status, code, detail, problem);
  }
}

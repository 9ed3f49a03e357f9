package io.github.locksidecar;

import java.util.Map;
import org.jspecify.annotations.Nullable;

/** The token does not hold the key here and now. */
public final class NotHolderException extends LocksidecarException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the error of a problem document.
   *
   * @param status the HTTP status
   * @param code the stable code
   * @param detail a text for people
   * @param problem all members of the answer
   */
  public NotHolderException(int status, String code, String detail, Map<String, @Nullable Object> problem) {
    super(status, code, detail, problem);
  }

  /**
   * Why.
   *
   * @return {@code other_session}, {@code released} or {@code unknown_token}
   */
  public String reason() {
    String reason = text("reason");
    return reason == null ? "" : reason;
  }
}

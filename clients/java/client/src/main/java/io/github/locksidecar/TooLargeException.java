package io.github.locksidecar;

import java.util.Map;
import org.jspecify.annotations.Nullable;

/** The body, the data or the result is too large (data and result: 4 KiB of JSON). */
public final class TooLargeException extends LocksidecarException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the error of a problem document.
   *
   * @param status the HTTP status
   * @param code the stable code
   * @param detail a text for people
   * @param problem all members of the answer
   */
  public TooLargeException(int status, String code, String detail, Map<String, @Nullable Object> problem) {
    super(status, code, detail, problem);
  }
}

package io.github.locksidecar;

import java.util.Map;
import org.jspecify.annotations.Nullable;

/** There is no such call: the sidecar is older than its {@code GET /v1} said, or the path is wrong. */
public final class NotFoundException extends LocksidecarException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the error of a problem document.
   *
   * @param status the HTTP status
   * @param code the stable code
   * @param detail a text for people
   * @param problem all members of the answer
   */
  public NotFoundException(int status, String code, String detail, Map<String, @Nullable Object> problem) {
    super(status, code, detail, problem);
  }
}

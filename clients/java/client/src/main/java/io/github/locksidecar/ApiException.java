package io.github.locksidecar;

import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * The sidecar refused a call. Decide by the class or by {@link #code()}, never by the text.
 *
 * <p>A code that this client does not know is an {@code ApiException} itself. Then judge by {@link #status()}: 4xx is
 * final, 429 and 503 may be tried again.
 */
public class ApiException extends LocksidecarException {
  private static final long serialVersionUID = 1L;

  /** The HTTP status. */
  private final int status;

  /** The stable code. */
  private final String code;

  /** For people. */
  private final String detail;

  /** All members. */
  private final transient @Nullable Map<String, @Nullable Object> problem;

  /**
   * Makes the error of a problem document.
   *
   * @param status the HTTP status
   * @param code the stable code
   * @param detail a text for people
   * @param problem all members of the answer
   */
  public ApiException(int status, String code, String detail, Map<String, @Nullable Object> problem) {
    super(detail + " (" + code + ")", null);
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.problem = problem;
  }

  /**
   * The HTTP status of the answer.
   *
   * @return 400 to 599
   */
  public int status() {
    return status;
  }

  /**
   * The stable code of the error, such as {@code held}.
   *
   * @return the code
   */
  public String code() {
    return code;
  }

  /**
   * A text for people. It may change.
   *
   * @return the text
   */
  public String detail() {
    return detail;
  }

  /**
   * All members of the answer, as the API names them. Empty after deserialization.
   *
   * @return JSON as Java values
   */
  public Map<String, @Nullable Object> problem() {
    return problem == null ? Map.of() : problem;
  }

  /**
   * A member that is a text.
   *
   * @param name the API's name of the member
   * @return the text, or null if there is none
   */
  final @Nullable String text(String name) {
    return problem().get(name) instanceof String text ? text : null;
  }

  /**
   * A member that is a number.
   *
   * @param name the API's name of the member
   * @param none the result if there is none
   * @return the number
   */
  final long number(String name, long none) {
    return problem().get(name) instanceof Number number ? number.longValue() : none;
  }
}

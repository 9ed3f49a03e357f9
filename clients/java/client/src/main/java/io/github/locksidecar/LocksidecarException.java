package io.github.locksidecar;

import java.time.Duration;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * The root of all errors of this client. Decide by the class or by {@link #code()}, never by the text. Only a value that is no
 * JSON is an {@link IllegalArgumentException}, and a thread that would wait for itself gets an {@link IllegalStateException}.
 *
 * <p>A code that this client does not know is a {@code LocksidecarException} itself. Then judge by {@link #status()}: 4xx is
 * final, 429 and 503 may be tried again.
 */
public class LocksidecarException extends RuntimeException {
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
  public LocksidecarException(int status, String code, String detail, Map<String, @Nullable Object> problem) {
    super(detail + " (" + code + ")");
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.problem = problem;
  }

  /** An error of the client itself. */
  LocksidecarException(String code, String detail, @Nullable Throwable cause) {
    super(detail, cause);
    this.status = 0;
    this.code = code;
    this.detail = detail;
    this.problem = null;
  }

  /**
   * The HTTP status of the answer.
   *
   * @return 400 to 599; 0 if the sidecar has not refused the call
   */
  public int status() {
    return status;
  }

  /**
   * The stable code of the error: the sidecar's, such as {@code held}, or one of the client: {@code unreachable}, {@code
   * connection_lost}, {@code timeout}, {@code unsupported}, {@code skipped}, {@code bad_answer}.
   *
   * @return the code
   */
  public String code() {
    return code;
  }

  /**
   * When another try is useful.
   *
   * @return the time from now, or null if the sidecar does not say
   */
  public @Nullable Duration retryAfter() {
    long seconds = number("retry_after", -1);
    return seconds < 0 ? null : Duration.ofSeconds(seconds);
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

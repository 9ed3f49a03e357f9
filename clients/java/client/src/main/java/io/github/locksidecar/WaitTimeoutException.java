package io.github.locksidecar;

import java.time.Duration;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/** The call waited without success: another caller still holds the lock. */
public final class WaitTimeoutException extends LockHeldException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the error of a problem document.
   *
   * @param status the HTTP status
   * @param code the stable code
   * @param detail a text for people
   * @param problem all members of the answer
   */
  public WaitTimeoutException(int status, String code, String detail, Map<String, @Nullable Object> problem) {
    super(status, code, detail, problem);
  }

  /**
   * The last position in the queue.
   *
   * @return 1 is the next one; -1 if the answer does not have it
   */
  public int queuePosition() {
    return (int) number("queue_position", -1);
  }

  /**
   * How long the call has waited.
   *
   * @return the time
   */
  public Duration waited() {
    return Duration.ofMillis(number("waited_ms", 0));
  }
}

package io.github.locksidecar;

import java.time.Duration;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/** A call that may succeed later. */
public abstract class TryLaterException extends ApiException {
  private static final long serialVersionUID = 1L;

  TryLaterException(int status, String code, String detail, Map<String, @Nullable Object> problem) {
    super(status, code, detail, problem);
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
}

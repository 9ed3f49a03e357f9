package io.github.locksidecar.internal;

import io.github.locksidecar.DrainingException;
import io.github.locksidecar.ForbiddenException;
import io.github.locksidecar.InvalidRequestException;
import io.github.locksidecar.LimitMismatchException;
import io.github.locksidecar.LimitReachedException;
import io.github.locksidecar.LockHeldException;
import io.github.locksidecar.LockLostException;
import io.github.locksidecar.LocksidecarException;
import io.github.locksidecar.NotFoundException;
import io.github.locksidecar.NotHeldException;
import io.github.locksidecar.NotHolderException;
import io.github.locksidecar.SessionEndedException;
import io.github.locksidecar.StoreUnavailableException;
import io.github.locksidecar.TooLargeException;
import io.github.locksidecar.WaitTimeoutException;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;

/** Makes errors of the sidecar's problem documents. */
public final class Problem {
  /** The API's names of durations, not inside a key. */
  private static final Pattern IN_MS = Pattern.compile("(?<![\\w:/.\"-])(wait|ttl|max_hold|min_hold)_ms\\b");

  private static final Map<String, String> OUR_NAMES =
      Map.of("wait", "maxWait", "ttl", "ttl", "max_hold", "maxHold", "min_hold", "minHold");

  private Problem() {}

  /**
   * Makes the error of a problem document. An unknown code is a {@link LocksidecarException}.
   *
   * @param document the document
   * @param status the HTTP status
   * @param retryAfter the header of this name, or empty
   * @return the error
   */
  public static LocksidecarException error(Map<String, @Nullable Object> document, int status, String retryAfter) {
    Map<String, @Nullable Object> problem = document;
    if (!retryAfter.isEmpty() && retryAfter.length() < 10 && retryAfter.chars().allMatch(Character::isDigit)) {
      problem = new HashMap<>(document);
      problem.put("retry_after", Long.valueOf(retryAfter));
    }
    String code = text(problem, "code", "http_" + status);
    String detail = text(problem, "detail", text(problem, "title", "the sidecar answered with status " + status));
    return make(code, status, ours(detail), problem);
  }

  private static String ours(String detail) {
    if (!detail.contains("_ms")) {
      return detail;
    }
    return IN_MS.matcher(detail).replaceAll(found -> OUR_NAMES.get(found.group(1)) + " (in ms)");
  }

  private static String text(Map<String, @Nullable Object> problem, String name, String none) {
    return problem.get(name) instanceof String text && !text.isEmpty() ? text : none;
  }

  private static LocksidecarException make(String code, int status, String detail, Map<String, @Nullable Object> problem) {
    return switch (code) {
      case "invalid_request" -> new InvalidRequestException(status, code, detail, problem);
      case "forbidden", "unauthorized" -> new ForbiddenException(status, code, detail, problem);
      case "not_found" -> new NotFoundException(status, code, detail, problem);
      case "not_held" -> new NotHeldException(status, code, detail, problem);
      case "limit_mismatch" -> new LimitMismatchException(status, code, detail, problem);
      case "not_holder" -> new NotHolderException(status, code, detail, problem);
      case "lock_lost" -> new LockLostException(status, code, detail, problem);
      case "session_ended" -> new SessionEndedException(status, code, detail, problem);
      case "too_large" -> new TooLargeException(status, code, detail, problem);
      case "held" -> new LockHeldException(status, code, detail, problem);
      case "wait_timeout" -> new WaitTimeoutException(status, code, detail, problem);
      case "limit" -> new LimitReachedException(status, code, detail, problem);
      case "store_unavailable" -> new StoreUnavailableException(status, code, detail, problem);
      case "draining" -> new DrainingException(status, code, detail, problem);
      default -> new LocksidecarException(status, code, detail, problem);
    };
  }

  /**
   * Makes the error of a lost lock.
   *
   * @param key the key
   * @param reason why
   * @return the error
   */
  public static LockLostException lost(String key, String reason) {
    Map<String, @Nullable Object> problem = Map.of("code", "lock_lost", "reason", reason, "key", key);
    return new LockLostException(410, "lock_lost", "lock \"" + key + "\" is lost, reason: " + reason, problem);
  }

  /**
   * Makes the error of a second release.
   *
   * @param key the key
   * @return the error
   */
  public static NotHolderException released(String key) {
    Map<String, @Nullable Object> problem = Map.of("code", "not_holder", "reason", "released", "key", key);
    return new NotHolderException(409, "not_holder", "lock \"" + key + "\" was released already", problem);
  }

  /**
   * Refuses null.
   *
   * @param <T> the type of the argument
   * @param name of the argument
   * @param value of the argument
   * @return the value
   */
  public static <T> T required(String name, @Nullable T value) {
    if (value == null) {
      throw invalid(name + " is null");
    }
    return value;
  }

  /**
   * Refuses a text that is null, or has half a surrogate pair: all such texts would be one text in UTF-8.
   *
   * @param name of the argument
   * @param value of the argument
   * @return the value
   */
  public static String text(String name, @Nullable String value) {
    if (!StandardCharsets.UTF_8.newEncoder().canEncode(required(name, value))) {
      throw invalid(name + " is no Unicode text: it has half of a surrogate pair");
    }
    return value;
  }

  /**
   * Makes the error of an option that the client refuses itself.
   *
   * @param detail names the option, and what is allowed
   * @return the error
   */
  public static InvalidRequestException invalid(String detail) {
    return new InvalidRequestException(400, "invalid_request", detail, Map.of("code", "invalid_request"));
  }
}

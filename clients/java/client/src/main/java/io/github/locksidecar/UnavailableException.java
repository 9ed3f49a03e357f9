package io.github.locksidecar;

import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * The sidecar, or its store, cannot serve now: {@link NoAnswerException}, {@link DrainingException} or {@link
 * StoreUnavailableException}.
 */
public abstract class UnavailableException extends LocksidecarException {
  private static final long serialVersionUID = 1L;

  UnavailableException(int status, String code, String detail, Map<String, @Nullable Object> problem) {
    super(status, code, detail, problem);
  }

  UnavailableException(String code, String detail, @Nullable Throwable cause) {
    super(code, detail, cause);
  }
}

package io.github.locksidecar;

import org.jspecify.annotations.Nullable;

/**
 * The root of all errors of this client. Only a value that is no JSON is an {@link IllegalArgumentException}, and a thread that
 * would wait for itself gets an {@link IllegalStateException}.
 */
public abstract class LocksidecarException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  LocksidecarException(String message, @Nullable Throwable cause) {
    super(message, cause);
  }
}

package io.github.locksidecar;

import org.jspecify.annotations.Nullable;

/** The root of all errors of this client. A wrong use of the client is an {@link IllegalArgumentException}. */
public abstract class LocksidecarException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  LocksidecarException(String message, @Nullable Throwable cause) {
    super(message, cause);
  }
}

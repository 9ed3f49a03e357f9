package io.github.locksidecar;

import org.jspecify.annotations.Nullable;

/**
 * The sidecar could not be reached, went away during a call, or did not answer in time.
 *
 * <p>The outcome of the call is unknown. An acquire that throws this withdraws its grant.
 */
public final class UnavailableException extends LocksidecarException {
  private static final long serialVersionUID = 1L;

  /** What happened, in one word for traces. */
  public enum Kind {
    /** No connection could be made. */
    UNREACHABLE,
    /** The connection ended before the answer. */
    CONNECTION_LOST,
    /** No answer came in time. */
    TIMEOUT
  }

  /** The sidecar's socket or URL. */
  private final String address;

  /** What happened. */
  private final Kind kind;

  /**
   * Makes the error.
   *
   * @param kind what happened
   * @param message for people
   * @param address the path of the sidecar's socket, or its URL
   * @param cause the error of the connection, if there is one
   */
  public UnavailableException(Kind kind, String message, String address, @Nullable Throwable cause) {
    super(message, cause);
    this.kind = kind;
    this.address = address;
  }

  /**
   * The path of the sidecar's socket, or its URL.
   *
   * @return the address
   */
  public String address() {
    return address;
  }

  /**
   * What happened, in one word.
   *
   * @return the kind
   */
  public Kind kind() {
    return kind;
  }
}

package io.github.locksidecar;

import org.jspecify.annotations.Nullable;

/**
 * The sidecar could not be reached ({@code unreachable}), went away during a call ({@code connection_lost}), or did not answer in
 * time ({@code timeout}).
 *
 * <p>The outcome of the call is unknown. An acquire that throws this withdraws its grant.
 */
public final class NoAnswerException extends UnavailableException {
  private static final long serialVersionUID = 1L;

  /** The sidecar's socket or URL. */
  private final String address;

  /**
   * Makes the error.
   *
   * @param code what happened
   * @param detail for people
   * @param address the path of the sidecar's socket, or its URL
   * @param cause the error of the connection, if there is one
   */
  public NoAnswerException(String code, String detail, String address, @Nullable Throwable cause) {
    super(code, detail, cause);
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
}

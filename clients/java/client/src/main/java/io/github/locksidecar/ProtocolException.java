package io.github.locksidecar;

/** The answer is not from a locksidecar. Something else listens on the socket. */
public final class ProtocolException extends LocksidecarException {
  private static final long serialVersionUID = 1L;

  /**
   * Makes the error.
   *
   * @param what what the answer was
   */
  public ProtocolException(String what) {
    super("bad_answer", what + ": is this the socket of a locksidecar?", null);
  }
}

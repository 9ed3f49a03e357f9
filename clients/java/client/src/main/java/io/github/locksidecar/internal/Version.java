package io.github.locksidecar.internal;

/** The version of this client. */
final class Version {
  static final String CLIENT = "0.1.0";

  private Version() {}
}

package io.github.locksidecar;

import java.util.Locale;

/** Which locks a list has. */
public enum Scope {
  /** Those of this client's session. */
  SESSION,
  /** Those of the sidecar. */
  POD,
  /** Those of the namespace. */
  ALL;

  String word() {
    return name().toLowerCase(Locale.ROOT);
  }
}

package io.github.locksidecar;

/** The sidecar is too old for the call: its {@code GET /v1} does not name the feature. */
public final class UnsupportedException extends LocksidecarException {
  private static final long serialVersionUID = 1L;

  /** The feature's name. */
  private final String feature;

  /**
   * Makes the error.
   *
   * @param feature the name of the feature
   * @param version the version of the sidecar
   */
  public UnsupportedException(String feature, String version) {
    super(
        "unsupported",
        "the sidecar (version " + version + ") has no feature \"" + feature
            + "\", which this call needs: update the sidecar, or do not use the option",
        null);
    this.feature = feature;
  }

  /**
   * The missing feature.
   *
   * @return its name in {@code GET /v1}
   */
  public String feature() {
    return feature;
  }
}

import org.jspecify.annotations.NullMarked;

/** A real sidecar for the tests of an app: see {@link io.github.locksidecar.junit.Sidecar}. */
@NullMarked
module io.github.locksidecar.junit {
  requires transitive io.github.locksidecar;
  requires transitive org.junit.jupiter.api;
  requires static transitive org.jspecify;

  exports io.github.locksidecar.junit;
}

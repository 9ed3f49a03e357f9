import org.jspecify.annotations.NullMarked;

/** ShedLock's locks from the locksidecar beside the app. */
@NullMarked
module io.github.locksidecar.shedlock {
  requires transitive io.github.locksidecar;
  requires transitive net.javacrumbs.shedlock.core;
  requires static transitive org.jspecify;

  exports io.github.locksidecar.shedlock;
}

import org.jspecify.annotations.NullMarked;

/** Distributed locks through the locksidecar beside the app. Begin at {@link io.github.locksidecar.LockClient}. */
@NullMarked
module io.github.locksidecar {
  requires com.grack.nanojson;
  requires jdk.net;
  requires static transitive org.jspecify;
  requires static io.opentelemetry.api;
  requires static io.opentelemetry.context;

  exports io.github.locksidecar;
}

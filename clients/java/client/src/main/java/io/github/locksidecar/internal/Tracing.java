package io.github.locksidecar.internal;

import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Traces, if the app has OpenTelemetry: spans of acquires and releases, and the context of each call.
 *
 * <p>No span becomes the current one, so the work under a lock is no child of a client's span.
 */
abstract class Tracing {
  private static final Tracing INSTANCE = find();

  // OtelTracing is loaded only here, so an app without OpenTelemetry needs none of its classes.
  private static Tracing find() {
    try {
      return new OtelTracing();
    } catch (LinkageError e) { // not on the class path, or older than we know it
      return new None();
    }
  }

  /** The header lines of the current context; empty if there is none. */
  static String current() {
    return INSTANCE.headers();
  }

  /** Begins an acquire of one lock or several. */
  static Span acquire(List<String> keys, String mode) {
    return INSTANCE.begin("lock.acquire", keys, mode, 0);
  }

  /** Begins a release. */
  static Span release(String key, long token) {
    return INSTANCE.begin("lock.release", List.of(key), null, token);
  }

  abstract String headers();

  abstract Span begin(String name, List<String> keys, @Nullable String mode, long token);

  /** An acquire or a release with all its calls. It ends at the end of a block at the latest. */
  interface Span extends AutoCloseable {
    /** The header lines of its calls; null: those of the current context. */
    @Nullable String headers();

    /** It got these grants. */
    void granted(List<Granted> grants);

    /** It has released the lock. */
    void released();

    /** It throws this. */
    void failed(Throwable error);

    @Override
    void close();
  }

  /** Without OpenTelemetry. */
  private static final class None extends Tracing {
    @Override
    String headers() {
      return "";
    }

    @Override
    Span begin(String name, List<String> keys, @Nullable String mode, long token) {
      return NoSpan.INSTANCE;
    }
  }

  /** Nothing is recorded. */
  enum NoSpan implements Span {
    INSTANCE;

    @Override
    public @Nullable String headers() {
      return null;
    }

    @Override
    public void granted(List<Granted> grants) {}

    @Override
    public void released() {}

    @Override
    public void failed(Throwable error) {}

    @Override
    public void close() {}
  }
}

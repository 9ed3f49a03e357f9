package io.github.locksidecar.internal;

import io.github.locksidecar.LocksidecarException;
import io.github.locksidecar.NoAnswerException;
import io.github.locksidecar.ProtocolException;
import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.OpenTelemetry;
import io.opentelemetry.api.baggage.propagation.W3CBaggagePropagator;
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.trace.SpanBuilder;
import io.opentelemetry.api.trace.SpanKind;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.api.trace.Tracer;
import io.opentelemetry.api.trace.propagation.W3CTraceContextPropagator;
import io.opentelemetry.context.Context;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** Traces by OpenTelemetry. Its spans have no texts of errors, because these may contain an app's data. */
final class OtelTracing extends Tracing {
  private static final AttributeKey<List<String>> KEYS = AttributeKey.stringArrayKey("lock.keys");

  /** The most characters of a key in a span. */
  private static final int MAX_KEY = 512;

  private record Known(OpenTelemetry provider, Tracer tracer) {}

  private volatile @Nullable Known known;

  OtelTracing() {
    tracer(); // fails here with an older OpenTelemetry
  }

  // getOrNoop, because get() would set a provider before the app sets its own.
  private Tracer tracer() {
    OpenTelemetry provider = GlobalOpenTelemetry.getOrNoop();
    Known now = known;
    if (now == null || now.provider() != provider) {
      now = new Known(provider, provider.getTracer("locksidecar", Version.CLIENT));
      known = now;
    }
    return now.tracer();
  }

  @Override
  String headers() {
    return headers(Context.current());
  }

  // The sidecar reads these headers, whatever propagators the app has.
  private static String headers(Context context) {
    if (context == Context.root()) {
      return "";
    }
    StringBuilder lines = new StringBuilder();
    W3CTraceContextPropagator.getInstance().inject(context, lines, OtelTracing::line);
    W3CBaggagePropagator.getInstance().inject(context, lines, OtelTracing::line);
    return lines.toString();
  }

  private static void line(@Nullable StringBuilder lines, String name, String value) {
    if (lines != null && value.chars().allMatch(c -> c >= ' ' && c < 127)) {
      lines.append(name).append(": ").append(value).append("\r\n");
    }
  }

  @Override
  Tracing.Span begin(String name, List<String> keys, @Nullable String mode, long token) {
    Context parent = Context.current();
    SpanBuilder builder = tracer().spanBuilder(name).setParent(parent).setSpanKind(SpanKind.CLIENT);
    if (mode != null) {
      builder.setAttribute("lock.mode", mode);
    }
    if (token != 0) {
      builder.setAttribute("lock.token", token);
    }
    about(builder, keys);
    io.opentelemetry.api.trace.Span span = builder.startSpan();
    if (!span.isRecording()) {
      return NoSpan.INSTANCE;
    }
    return new Recorded(span, headers(parent.with(span)));
  }

  private static void about(SpanBuilder builder, List<String> keys) {
    List<String> texts = keys.stream().map(OtelTracing::shortened).toList();
    if (texts.size() == 1) {
      builder.setAttribute("lock.key", texts.get(0));
    } else {
      builder.setAttribute(KEYS, texts);
    }
    List<String> types = texts.stream().map(key -> key.substring(0, Math.max(key.indexOf(':'), 0))).distinct().toList();
    if (types.size() == 1 && !types.get(0).isEmpty()) {
      builder.setAttribute("lock.type", types.get(0));
    }
  }

  private static String shortened(String key) {
    return key.length() <= MAX_KEY ? key : key.substring(0, MAX_KEY);
  }

  /** A span. It may be closed more than once. */
  private record Recorded(io.opentelemetry.api.trace.Span span, String headers) implements Tracing.Span {
    @Override
    public void granted(List<Granted> grants) {
      boolean again = grants.stream().allMatch(one -> one.value().getInt("reentry") > 1);
      span.setAttribute("lock.result", again ? "reentered" : "granted");
      if (grants.size() == 1) {
        span.setAttribute("lock.token", grants.get(0).grant().token);
      }
    }

    @Override
    public void released() {
      span.setAttribute("lock.result", "released");
    }

    @Override
    public void failed(Throwable error) {
      if (error instanceof LocksidecarException ours) {
        boolean unanswered = ours instanceof NoAnswerException || ours instanceof ProtocolException;
        result(ours.code(), unanswered || ours.status() >= 500);
      } else if (error instanceof InterruptedException) {
        result("caller_left", false);
      } else {
        span.setAttribute("error.type", error.getClass().getName());
        span.setStatus(StatusCode.ERROR);
      }
    }

    private void result(String result, boolean bad) {
      span.setAttribute("lock.result", result);
      if (bad) {
        span.setAttribute("error.type", result);
        span.setStatus(StatusCode.ERROR);
      }
    }

    @Override
    public void close() {
      span.end();
    }
  }
}

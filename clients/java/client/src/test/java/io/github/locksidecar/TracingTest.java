package io.github.locksidecar;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.locksidecar.testing.Sidecar;
import io.opentelemetry.api.GlobalOpenTelemetry;
import io.opentelemetry.api.common.AttributeKey;
import io.opentelemetry.api.trace.Span;
import io.opentelemetry.api.trace.SpanKind;
import io.opentelemetry.api.trace.StatusCode;
import io.opentelemetry.context.Scope;
import io.opentelemetry.sdk.OpenTelemetrySdk;
import io.opentelemetry.sdk.testing.exporter.InMemorySpanExporter;
import io.opentelemetry.sdk.trace.SdkTracerProvider;
import io.opentelemetry.sdk.trace.data.SpanData;
import io.opentelemetry.sdk.trace.export.SimpleSpanProcessor;
import java.time.Duration;
import java.util.List;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Spans, and the context of calls. */
@Timeout(60)
class TracingTest {
  private static final InMemorySpanExporter EXPORTER = InMemorySpanExporter.create();
  private static final SdkTracerProvider PROVIDER =
      SdkTracerProvider.builder().addSpanProcessor(SimpleSpanProcessor.create(EXPORTER)).build();
  private static Sidecar sidecar;
  private static LockClient client;

  @BeforeAll
  static void start() throws Exception {
    sidecar = Sidecar.inMemory();
    client = sidecar.client();
    client.acquire("before").release(); // the client may be used before the app sets its SDK
    OpenTelemetrySdk.builder().setTracerProvider(PROVIDER).buildAndRegisterGlobal();
  }

  @AfterAll
  static void end() {
    GlobalOpenTelemetry.resetForTest();
    sidecar.close();
  }

  @AfterEach
  void reset() {
    EXPORTER.reset();
  }

  private static String attribute(SpanData span, String name) {
    return span.getAttributes().get(AttributeKey.stringKey(name));
  }

  @Test
  void anAcquireAndAReleaseAreSpansOfTheAppsTrace() throws Exception {
    Span app = PROVIDER.get("app").spanBuilder("work").startSpan();
    long token;
    String traceparent;
    try (Scope scope = app.makeCurrent();
        HeldLock lock = client.acquire("job:1")) {
      token = lock.token();
      assertEquals(app, Span.current(), "the work is no child of the client's span");
      traceparent = client.get("job:1").holder().traceparent();
    }
    List<SpanData> spans = EXPORTER.getFinishedSpanItems();
    assertEquals(List.of("lock.acquire", "lock.release"), spans.stream().map(SpanData::getName).toList());
    for (SpanData span : spans) {
      assertEquals(app.getSpanContext().getTraceId(), span.getTraceId());
      assertEquals(app.getSpanContext().getSpanId(), span.getParentSpanId());
      assertEquals(SpanKind.CLIENT, span.getKind());
      assertEquals("job:1", attribute(span, "lock.key"));
      assertEquals("job", attribute(span, "lock.type"));
      assertEquals(token, span.getAttributes().get(AttributeKey.longKey("lock.token")));
    }
    assertEquals("granted", attribute(spans.get(0), "lock.result"));
    assertEquals("released", attribute(spans.get(1), "lock.result"));
    assertTrue(traceparent.contains(spans.get(0).getSpanId()), "the call carries the context of the span");
  }

  @Test
  void aHeldLockIsNoErrorOfASpan() throws Exception {
    try (HeldLock lock = client.acquire("held")) {
      EXPORTER.reset();
      assertNull(client.tryAcquire("held"));
      LockOptions brief = LockOptions.defaults().maxWait(Duration.ofMillis(20));
      assertThrows(WaitTimeoutException.class, () -> client.acquire("held", brief));
    }
    List<SpanData> spans = EXPORTER.getFinishedSpanItems();
    assertEquals("held", attribute(spans.get(0), "lock.result"));
    assertEquals("wait_timeout", attribute(spans.get(1), "lock.result"));
    assertEquals(StatusCode.UNSET, spans.get(1).getStatus().getStatusCode());
  }

  @Test
  void anUnreachableSidecarIsAnErrorOfASpan() {
    try (LockClient lonely = LockClient.builder().socket("/tmp/none/s").build()) {
      assertThrows(UnavailableException.class, () -> lonely.acquire("key"));
    }
    SpanData span = EXPORTER.getFinishedSpanItems().get(0);
    assertEquals("unreachable", attribute(span, "error.type"));
    assertEquals(StatusCode.ERROR, span.getStatus().getStatusCode());
    assertTrue(span.getStatus().getDescription().isEmpty(), "texts of errors may contain an app's data");
    assertTrue(span.getEvents().isEmpty());
  }
}

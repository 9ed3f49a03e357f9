package locksidecarotel_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
	"github.com/locksidecar/locksidecar/clients/go/locksidecarotel"
	"github.com/locksidecar/locksidecar/clients/go/locksidecartest"
)

type traced struct {
	client *locksidecar.Client
	spans  *tracetest.SpanRecorder
	tracer oteltrace.Tracer
}

func start(t *testing.T, sidecar *locksidecartest.Sidecar) *traced {
	t.Helper()
	spans := tracetest.NewSpanRecorder()
	provider := trace.NewTracerProvider(trace.WithSpanProcessor(spans))
	return &traced{
		sidecar.ClientWith(locksidecar.Config{Tracer: locksidecarotel.Tracer(locksidecarotel.WithTracerProvider(provider))}),
		spans, provider.Tracer("app"),
	}
}

// named are the ended spans of a name, with their attributes.
func (s *traced) named(name string) (found []trace.ReadOnlySpan, attributes []map[attribute.Key]attribute.Value) {
	for _, span := range s.spans.Ended() {
		if span.Name() == name {
			all := map[attribute.Key]attribute.Value{}
			for _, one := range span.Attributes() {
				all[one.Key] = one.Value
			}
			found, attributes = append(found, span), append(attributes, all)
		}
	}
	return found, attributes
}

func TestSpansOfAnAcquireAndItsRelease(t *testing.T) {
	s := start(t, locksidecartest.Start(t, nil))
	ctx, app := s.tracer.Start(t.Context(), "app")
	lock, err := s.client.Acquire(ctx, "order:1")
	if err != nil {
		t.Fatal(err)
	}
	if of := oteltrace.SpanFromContext(lock.Context()); of != app {
		t.Error("the span of the acquire is the current one of the work under the lock")
	}
	// Others see the context of the call.
	info, err := s.client.Get(ctx, "order:1", locksidecar.Fresh())
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	app.End()
	acquires, about := s.named("lock.acquire")
	releases, of := s.named("lock.release")
	if len(acquires) != 1 || len(releases) != 1 {
		t.Fatalf("%d acquires and %d releases have a span", len(acquires), len(releases))
	}
	acquire, release := acquires[0], releases[0]
	for _, span := range []trace.ReadOnlySpan{acquire, release} {
		if span.Parent().SpanID() != app.SpanContext().SpanID() || span.SpanKind() != oteltrace.SpanKindClient || span.Status().Code != codes.Unset {
			t.Errorf("%s: the parent is %s, the kind %s, the status %v", span.Name(), span.Parent().SpanID(), span.SpanKind(), span.Status())
		}
	}
	for key, want := range map[attribute.Key]string{"lock.key": "order:1", "lock.type": "order", "lock.mode": "exclusive", "lock.result": "granted"} {
		if about[0][key].AsString() != want {
			t.Errorf("%s is %q, want %q", key, about[0][key].AsString(), want)
		}
	}
	if about[0]["lock.token"].AsInt64() != lock.Token() || of[0]["lock.token"].AsInt64() != lock.Token() || of[0]["lock.result"].AsString() != "released" {
		t.Errorf("the token is %d; acquire: %v, release: %v", lock.Token(), about[0], of[0])
	}
	want := "00-" + acquire.SpanContext().TraceID().String() + "-" + acquire.SpanContext().SpanID().String() + "-01"
	if info.Holder == nil || info.Holder.Traceparent != want {
		t.Errorf("others see %+v, and not the span of the acquire, %s", info.Holder, want)
	}
}

func TestSpansOfFailures(t *testing.T) {
	sidecar := locksidecartest.Start(t, nil)
	s := start(t, sidecar)
	lock, err := sidecar.Client().Acquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	_, held, err := s.client.TryAcquire(t.Context(), "k")
	if held || err != nil {
		t.Fatal(err)
	}
	_, err = s.client.AcquireMany(t.Context(), []string{"k", "a:\xff"}, locksidecar.Wait(0))
	if err == nil {
		t.Fatal("a key that is no UTF-8 was granted")
	}
	sidecar.Kill()
	_, err = s.client.Acquire(t.Context(), "k", locksidecar.Wait(0))
	if !errors.Is(err, locksidecar.ErrUnavailable) {
		t.Fatal(err)
	}
	_ = lock
	spans, about := s.named("lock.acquire")
	if len(spans) != 3 {
		t.Fatalf("%d spans", len(spans))
	}
	if about[0]["lock.result"].AsString() != "held" || spans[0].Status().Code != codes.Unset || about[0]["lock.type"].AsString() != "" {
		t.Errorf("a held lock: %v, %v", about[0], spans[0].Status())
	}
	if keys := about[1]["lock.keys"].AsStringSlice(); len(keys) != 2 || keys[1] != "a:\uFFFD" {
		t.Errorf("the keys are %q", keys)
	}
	if code := about[2]["error.type"].AsString(); spans[2].Status().Code != codes.Error || code != about[2]["lock.result"].AsString() || code == "" {
		t.Errorf("without a sidecar: %v, %v", about[2], spans[2].Status())
	}
}

// badValues writes what net/http refuses.
type badValues struct{ propagation.TraceContext }

func (badValues) Inject(_ context.Context, carrier propagation.TextMapCarrier) {
	carrier.Set("tracestate", "a=ü\n")
	carrier.Set("b3", "0")
}

func TestHeaders(t *testing.T) {
	provider := trace.NewTracerProvider()
	ctx, span := provider.Tracer("app").Start(t.Context(), "app")
	defer span.End()
	member, err := baggage.NewMember("k", "v")
	if err != nil {
		t.Fatal(err)
	}
	bag, err := baggage.New(member)
	if err != nil {
		t.Fatal(err)
	}
	ctx = baggage.ContextWithBaggage(ctx, bag)
	// An app that sets no propagator sends its span, and no baggage.
	header := http.Header{}
	locksidecarotel.Tracer().Inject(ctx, header)
	if header.Get("Traceparent") == "" || header.Get("Baggage") != "" {
		t.Errorf("without a propagator: %v", header)
	}
	header = http.Header{}
	locksidecarotel.Tracer(locksidecarotel.WithPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))).Inject(ctx, header)
	if header.Get("Traceparent") == "" || header.Get("Baggage") != "k=v" {
		t.Errorf("with W3C's: %v", header)
	}
	header = http.Header{}
	locksidecarotel.Tracer(locksidecarotel.WithPropagator(badValues{})).Inject(ctx, header)
	if header.Get("Traceparent") == "" || len(header) != 1 {
		t.Errorf("with a bad one: %v", header)
	}
	header = http.Header{}
	locksidecarotel.Tracer().Inject(t.Context(), header)
	if len(header) != 0 {
		t.Errorf("outside of a span: %v", header)
	}
}

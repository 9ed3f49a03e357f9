package telemetry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// sent is a client that keeps the last batch, as a collector reads it.
type sent struct {
	otlptrace.Client
	last *tracepb.TracesData
}

func (*sent) Start(context.Context) error { return nil }

func (c *sent) UploadTraces(_ context.Context, all []*tracepb.ResourceSpans) error {
	wire, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: all})
	if err != nil {
		return err
	}
	c.last = &tracepb.TracesData{}
	return proto.Unmarshal(wire, c.last)
}

// export returns what a collector gets of spans from OpenTelemetry's exporter, and from ours.
func export(t *testing.T, spans []sdktrace.ReadOnlySpan) (theirs, ours *tracepb.TracesData) {
	t.Helper()
	var a, b sent
	exporter, err := otlptrace.New(t.Context(), &a)
	if err := errors.Join(err, exporter.ExportSpans(t.Context(), spans), (&spanExporter{client: &b}).ExportSpans(t.Context(), spans)); err != nil {
		t.Fatal(err)
	}
	return a.last, b.last
}

// everyValue has each type of value, and those that are easily forgotten.
func everyValue() []attribute.KeyValue {
	return []attribute.KeyValue{
		attribute.String("s", "x"), attribute.String("empty", ""), attribute.String("long", strings.Repeat("ü", 20_000)),
		attribute.Bool("yes", true), attribute.Bool("no", false),
		attribute.Int64("i", 1), attribute.Int64("zero", 0), attribute.Int64("negative", math.MinInt64),
		attribute.Float64("f", -1.5), attribute.Float64("none", 0),
		attribute.StringSlice("ss", []string{"a", ""}), attribute.StringSlice("no ss", nil), attribute.BoolSlice("bs", []bool{true, false}),
		attribute.Int64Slice("is", []int64{0, 7}), attribute.Float64Slice("fs", []float64{0, 7}),
		attribute.ByteSlice("bytes", []byte{0, 255}),
		attribute.Slice("mixed", attribute.StringValue("a"), attribute.SliceValue(attribute.Int64Value(1))),
		attribute.Map("map", attribute.String("k", "v"), attribute.Map("deep", attribute.Bool("b", true))),
		{Key: "nothing"},
	}
}

// A collector gets the same of a span as from OpenTelemetry's exporter.
func TestSpansAreEncodedAsOpenTelemetryDoes(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	about := resource.NewWithAttributes("https://example.com/schema", append(everyValue(), attribute.String("service.name", "x"))...)
	limits := sdktrace.NewSpanLimits()
	limits.AttributeCountLimit, limits.LinkCountLimit, limits.EventCountLimit, limits.AttributePerEventCountLimit, limits.AttributePerLinkCountLimit = 25, 3, 2, 2, 2
	p := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder), sdktrace.WithResource(about), sdktrace.WithRawSpanLimits(limits))
	plain, other := p.Tracer("plain"), p.Tracer("other", trace.WithInstrumentationVersion("v1"), trace.WithSchemaURL("https://example.com/other"), trace.WithInstrumentationAttributes(everyValue()...))
	state, err := trace.ParseTraceState("a=1,b=2")
	if err != nil {
		t.Fatal(err)
	}
	remote := trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1, 2}, SpanID: trace.SpanID{3}, TraceFlags: trace.FlagsSampled | trace.FlagsRandom, TraceState: state, Remote: true,
	})
	local := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{9}, SpanID: trace.SpanID{9}, TraceState: state})
	for i, kind := range []trace.SpanKind{
		trace.SpanKindUnspecified, trace.SpanKindInternal, trace.SpanKindServer, trace.SpanKindClient, trace.SpanKindProducer, trace.SpanKindConsumer,
	} {
		ctx := context.Background()
		if i%2 == 0 {
			ctx = trace.ContextWithRemoteSpanContext(ctx, remote)
		}
		ctx, parent := plain.Start(ctx, fmt.Sprint("parent", i), trace.WithSpanKind(kind), trace.WithTimestamp(time.Unix(-1, 0)))
		_, span := other.Start(ctx, "", trace.WithAttributes(everyValue()...))
		for j := range 2 * i {
			span.AddEvent(fmt.Sprint("event", j), trace.WithAttributes(everyValue()[:i]...), trace.WithTimestamp(time.Unix(int64(j), 5)))
			span.AddLink(trace.Link{SpanContext: local, Attributes: everyValue()[:i]})
			span.AddLink(trace.Link{SpanContext: remote})
			span.SetAttributes(attribute.Int(fmt.Sprint("more", j), j))
		}
		span.SetStatus([]codes.Code{codes.Unset, codes.Error, codes.Ok}[i%3], "why")
		span.End()
		parent.End()
	}
	theirs, ours := export(t, recorder.Ended())
	if n := len(ours.GetResourceSpans()[0].GetScopeSpans()); n != 2 || len(recorder.Ended()) != 12 {
		t.Errorf("%d scopes, %d spans", n, len(recorder.Ended()))
	}
	if !proto.Equal(theirs, ours) {
		t.Errorf("OpenTelemetry's: %v\n\nours: %v", theirs, ours)
	}
}

// One text that is not UTF-8 does not lose the whole batch.
func TestATextThatIsNotUTF8IsSent(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	_, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("x").Start(t.Context(), "a\xff", trace.WithAttributes(attribute.String("k", "b\xfe")))
	span.End()
	var got sent
	if err := (&spanExporter{client: &got}).ExportSpans(t.Context(), recorder.Ended()); err != nil {
		t.Fatal(err)
	}
	one := got.last.GetResourceSpans()[0].GetScopeSpans()[0].GetSpans()[0]
	if one.GetName() != "a\uFFFD" || one.GetAttributes()[0].GetValue().GetStringValue() != "b\uFFFD" {
		t.Errorf("%v", one)
	}
}

// Spans are sent without an object for each of them: the batch's message, and what the SDK copies of a span's events and links.
func TestSpansAreEncodedInPlace(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("x")
	for range 100 {
		_, span := tracer.Start(t.Context(), "lock.acquire", trace.WithAttributes(attribute.String("lock.key", "k"), attribute.Int64("lock.token", 1)))
		span.End()
	}
	spans, b := recorder.Ended(), []byte(nil)
	b = appendSpans(b, spans)
	if n := testing.AllocsPerRun(10, func() { b = appendSpans(b[:0], spans) }); n > 10 {
		t.Errorf("%v allocations for 100 spans", n)
	}
}

// What it costs to send a batch of 512 spans as they are of calls: encoded, without the network.
func BenchmarkExport(b *testing.B) {
	recorder := tracetest.NewSpanRecorder()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder), sdktrace.WithSampler(sdktrace.AlwaysSample())).Tracer("x")
	for range 512 {
		_, span := tracer.Start(b.Context(), "lock.acquire", trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
			attribute.String("http.request.method", "PUT"), attribute.String("http.route", "/v1/locks/{key}"), attribute.String("network.transport", "unix"),
			attribute.String("lock.key", "bench:1"), attribute.String("lock.type", "bench"), attribute.String("lock.namespace", "default"), attribute.String("lock.session", "0a1b2c3d"),
			attribute.String("lock.bind", "session"), attribute.String("lock.mode", "exclusive"), attribute.Int64("lock.wait_ms", 0), attribute.Int64("lock.ttl_ms", 15000),
			attribute.Int64("lock.token", 1<<50), attribute.String("lock.result", "granted"), attribute.Int("http.response.status_code", 200)))
		span.End()
	}
	theirs, err := otlptrace.New(b.Context(), &encodes{})
	if err != nil {
		b.Fatal(err)
	}
	for name, exporter := range map[string]sdktrace.SpanExporter{"opentelemetry": theirs, "ours": &spanExporter{client: &encodes{}}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := exporter.ExportSpans(b.Context(), recorder.Ended()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// encodes is a client that sends nothing.
type encodes struct{ sent }

func (*encodes) UploadTraces(_ context.Context, all []*tracepb.ResourceSpans) error {
	_, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: all})
	return err
}

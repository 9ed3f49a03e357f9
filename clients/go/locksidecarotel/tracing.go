// Package locksidecarotel makes the client's spans with OpenTelemetry. It is a module of its own, because the client needs only the standard library.
//
//	client := locksidecar.New(locksidecar.Config{Tracer: locksidecarotel.Tracer()})
//
// Each acquire and each release has a span, with all its calls below it, and none is the current span of the work under the lock. What they have:
// https://github.com/locksidecar/locksidecar/blob/main/docs/api.md#traces.
package locksidecarotel

import (
	"context"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	locksidecar "github.com/locksidecar/locksidecar/clients/go"
)

const (
	scope = "github.com/locksidecar/locksidecar/clients/go"
	// longest is the most bytes of a key, as the sidecar limits it.
	longest = 512
)

// Option is an option of Tracer.
type Option func(*tracer)

// WithTracerProvider makes spans with this provider. Default: the global one, also if the app sets it later.
func WithTracerProvider(provider trace.TracerProvider) Option {
	return func(t *tracer) { t.provider = provider }
}

// WithPropagator writes the headers of calls with this propagator. Default: the global one. If it writes no traceparent, as the one that an app has
// not set, the span's is sent.
func WithPropagator(propagator propagation.TextMapPropagator) Option {
	return func(t *tracer) { t.propagator = propagator }
}

// Tracer is for [locksidecar.Config].
func Tracer(opts ...Option) locksidecar.Tracer {
	t := &tracer{provider: otel.GetTracerProvider(), propagator: otel.GetTextMapPropagator()}
	for _, option := range opts {
		option(t)
	}
	t.tracer = t.provider.Tracer(scope)
	return t
}

type tracer struct {
	provider   trace.TracerProvider
	propagator propagation.TextMapPropagator
	tracer     trace.Tracer
}

// Start begins the span of an operation.
func (t *tracer) Start(ctx context.Context, span locksidecar.Span) (context.Context, func(locksidecar.SpanEnd)) {
	//nolint:spancheck // the caller ends it
	ctx, s := t.tracer.Start(ctx, span.Name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(about(&span)...))
	return ctx, func(end locksidecar.SpanEnd) { //nolint:spancheck // the caller ends it
		if s.IsRecording() {
			s.SetAttributes(attribute.String("lock.result", end.Result))
			if end.Token != 0 {
				s.SetAttributes(attribute.Int64("lock.token", end.Token))
			}
			if end.Failed { // without the text of the error, which may contain an app's data
				s.SetAttributes(attribute.String("error.type", end.Result))
				s.SetStatus(codes.Error, "")
			}
		}
		s.End()
	}
}

func about(span *locksidecar.Span) []attribute.KeyValue {
	keys := make([]string, len(span.Keys))
	for i, key := range span.Keys {
		keys[i] = printed(key)
	}
	attributes := []attribute.KeyValue{attribute.StringSlice("lock.keys", keys)}
	if len(keys) == 1 {
		attributes[0] = attribute.String("lock.key", keys[0])
	}
	if span.Type != "" {
		attributes = append(attributes, attribute.String("lock.type", printed(span.Type)))
	}
	if span.Mode != "" {
		attributes = append(attributes, attribute.String("lock.mode", string(span.Mode)))
	}
	if span.Token != 0 {
		attributes = append(attributes, attribute.Int64("lock.token", span.Token))
	}
	return attributes
}

// printed is a key that an exporter can write. A key that is too long or no UTF-8 is refused later, and must not take other spans with it.
func printed(key string) string { return strings.ToValidUTF8(key[:min(len(key), longest)], "\uFFFD") }

// Inject writes the headers that the sidecar reads. A propagator may write more.
func (t *tracer) Inject(ctx context.Context, header http.Header) {
	carrier := propagation.MapCarrier{}
	t.propagator.Inject(ctx, carrier)
	if carrier["traceparent"] == "" {
		propagation.TraceContext{}.Inject(ctx, carrier)
	}
	for _, name := range []string{"traceparent", "tracestate", "baggage"} {
		if value := carrier[name]; value != "" && isHeader(value) {
			header.Set(name, value)
		}
	}
}

// isHeader reports whether a value can be sent. net/http would refuse the whole call otherwise.
func isHeader(value string) bool {
	return strings.IndexFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}

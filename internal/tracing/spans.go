package tracing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Carry returns ctx with only the span of from, because work that outlives a call must not end with it.
func Carry(ctx, from context.Context) context.Context {
	return trace.ContextWithSpan(ctx, trace.SpanFromContext(from))
}

// Recorded reports whether the span in ctx is recorded, even after its end. IsRecording is false then, but work
// for a call may end later.
func Recorded(ctx context.Context) bool {
	return trace.SpanContextFromContext(ctx).IsSampled()
}

// Past makes a span from began until now, as a child of the one in parent. If that is not recorded, it makes
// none. t must not be nil.
func (t *Tracer) Past(parent, name string, began time.Time, attrs ...attribute.KeyValue) {
	sc := Parse(parent)
	if !sc.IsSampled() {
		return
	}
	_, span := t.tracer.Start(trace.ContextWithRemoteSpanContext(context.Background(), sc), name,
		trace.WithTimestamp(began), trace.WithAttributes(t.common...), trace.WithAttributes(attrs...))
	span.End()
}

// Batch begins the span of a store operation on behalf of calls, given by their contexts. It is a child of the
// first recorded call, with a link to each recorded one and a link back from each of the others. If none is
// recorded, there is no span. The returned function ends it. t must not be nil.
func (t *Tracer) Batch(ctx context.Context, operation string, calls []context.Context, size int) (context.Context, func(error)) {
	recorded := spansOf(calls)
	if len(recorded) == 0 {
		return ctx, func(error) {}
	}
	links := make([]trace.Link, len(recorded))
	for i, s := range recorded {
		links[i] = trace.Link{SpanContext: s.SpanContext(), Attributes: []attribute.KeyValue{Link.String(LinkCall)}}
	}
	ctx, span := t.tracer.Start(trace.ContextWithSpan(ctx, recorded[0]), "store.batch", trace.WithLinks(links...),
		trace.WithAttributes(t.common...), trace.WithAttributes(Operation.String(operation), BatchSize.Int(size)))
	back := trace.Link{SpanContext: span.SpanContext(), Attributes: []attribute.KeyValue{Link.String(LinkBatch)}}
	for _, s := range recorded[1:] {
		s.AddLink(back)
	}
	return ctx, func(err error) {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		span.End()
	}
}

// Requests returns a function that begins the span of a request to a server, if the context has a recorded span. The system is a
// value of db.system.name, and describe makes an error's text. There are no spans if p is nil.
func Requests(p trace.TracerProvider, system string, describe func(error) string) func(ctx context.Context, name string) (context.Context, func(error)) {
	var tracer trace.Tracer
	if p != nil {
		tracer = p.Tracer(Scope + "/store/" + system)
	}
	return func(ctx context.Context, name string) (context.Context, func(error)) {
		if tracer == nil || !Recorded(ctx) {
			return ctx, func(error) {}
		}
		//nolint:spancheck // the caller ends it
		ctx, span := tracer.Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attribute.String("db.system.name", system)))
		return ctx, func(err error) { //nolint:spancheck // the caller ends it
			if err != nil {
				span.SetStatus(codes.Error, describe(err))
			}
			span.End()
		}
	}
}

// spansOf returns the recorded spans of contexts without repetitions, because the locks of a group share a call.
func spansOf(calls []context.Context) []trace.Span {
	var recorded []trace.Span
	var seen map[trace.SpanID]struct{} // made at the first recorded span, because often there is none
	for i, ctx := range calls {
		if !Recorded(ctx) {
			continue
		}
		if seen == nil {
			seen = make(map[trace.SpanID]struct{}, len(calls)-i)
		}
		s := trace.SpanFromContext(ctx)
		if _, twice := seen[s.SpanContext().SpanID()]; !twice {
			seen[s.SpanContext().SpanID()] = struct{}{}
			recorded = append(recorded, s)
		}
	}
	return recorded
}

// SpanContext returns the context of the span in ctx.
func SpanContext(ctx context.Context) trace.SpanContext { return trace.SpanContextFromContext(ctx) }

package tracing

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"strings"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// sampling decides about a call before its span, because the SDK makes a span, a context and ids before it asks its
// sampler, and most calls are not sampled.
type sampling struct {
	sampler sdktrace.Sampler // nil: the SDK decides
	// follows: a call that its app did not sample is not sampled here.
	follows bool
}

// SampleBy makes Sample decide with the sampler of the tracer's provider.
func (t *Tracer) SampleBy(s sdktrace.Sampler) {
	// A ratio takes the smaller ids. If the sampler does not take even this one, it follows the app.
	least := trace.TraceID{0: 1}
	app := trace.NewSpanContext(trace.SpanContextConfig{TraceID: least, SpanID: trace.SpanID{1}, Remote: true})
	of := sdktrace.SamplingParameters{ParentContext: trace.ContextWithRemoteSpanContext(context.Background(), app), TraceID: least, Kind: trace.SpanKindServer}
	t.sampler, t.follows = s, s.ShouldSample(of).Decision == sdktrace.Drop
}

// Sample reports whether a call may be sampled, by the traceparent of its app, which may be empty. If so, the span of root is the
// parent of a call without a traceparent. A call that is not sampled costs no allocation.
func (t *Tracer) Sample(traceparent []byte) (root context.Context, may bool) {
	root = context.Background()
	if t.sampler == nil {
		return root, true
	}
	if known := Known(traceparent); len(known) > 0 {
		return root, !t.follows || sampled(known)
	}
	// The sampler decides by the id, so the SDK must use the same one. It takes the trace id of a parent without a span id, and makes a root.
	var id trace.TraceID
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:8], rand.Uint64()) //nolint:gosec // as the SDK's own ids: no secret
		binary.NativeEndian.PutUint64(id[8:], rand.Uint64()) //nolint:gosec // likewise
	}
	if t.sampler.ShouldSample(sdktrace.SamplingParameters{ParentContext: root, TraceID: id, Kind: trace.SpanKindServer}).Decision == sdktrace.Drop {
		return root, false
	}
	return trace.ContextWithSpanContext(root, trace.NewSpanContext(trace.SpanContextConfig{TraceID: id})), true
}

// sampled reads the flag of a known traceparent.
func sampled(known []byte) bool { return strings.IndexByte("13579bdf", known[length-1]) >= 0 }

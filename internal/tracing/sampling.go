package tracing

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"strings"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// sampling asks the sampler before a span is made. The SDK would make a span, a context and ids first, and most calls are
// not sampled.
type sampling struct {
	sampler sdktrace.Sampler // nil: the SDK decides
	// follows: a call that its app did not sample is not sampled here.
	follows bool
}

// SampleBy makes Sample decide with the sampler of the tracer's provider.
func (t *Tracer) SampleBy(s sdktrace.Sampler) {
	// A call whose app did not sample it. A sampler by ratio takes the smallest ids, so one that drops this id drops all calls of that kind.
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
	// A sampler by ratio decides by the trace id, so the span must get the id that was asked about. The SDK takes it from a parent
	// that has no span id, and makes a root span.
	var id trace.TraceID
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:8], rand.Uint64()) //nolint:gosec // no secret; the SDK makes its ids so, too
		binary.NativeEndian.PutUint64(id[8:], rand.Uint64()) //nolint:gosec // likewise
	}
	if t.sampler.ShouldSample(sdktrace.SamplingParameters{ParentContext: root, TraceID: id, Kind: trace.SpanKindServer}).Decision == sdktrace.Drop {
		return root, false
	}
	return trace.ContextWithSpanContext(root, trace.NewSpanContext(trace.SpanContextConfig{TraceID: id})), true
}

// sampled reads the flag of a known traceparent.
func sampled(known []byte) bool { return strings.IndexByte("13579bdf", known[length-1]) >= 0 }

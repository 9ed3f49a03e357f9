package locksidecar

import (
	"context"
	"errors"
	"net/http"
	"strings"
)

// Tracer makes spans of acquires and releases. With OpenTelemetry, Start is a call of a tracer's Start with the kind client, and Inject one of the
// propagator's Inject with a propagation.HeaderCarrier. What the spans should have: docs/api.md, Traces.
type Tracer interface {
	// Start begins a span, a child of the one of ctx. Calls are made with the returned context, and end is called once.
	Start(ctx context.Context, span Span) (_ context.Context, end func(SpanEnd))
	// Inject writes the trace headers of ctx: traceparent, tracestate and baggage.
	Inject(ctx context.Context, header http.Header)
}

// Span is an operation on locks.
type Span struct {
	// Name is lock.acquire or lock.release.
	Name string
	Keys []string
	// Type is what all keys have before their first colon; empty if there is no such part.
	Type string
	// Mode is of an acquire.
	Mode Mode
	// Token is of a release.
	Token int64
}

// SpanEnd is what became of an operation.
type SpanEnd struct {
	// Result is granted, reentered, skipped, released, a code of an Error, or caller_left.
	Result string
	// Token is of a grant of one key.
	Token int64
	// Failed: without an answer, or with one from 500. A held lock is no failure.
	Failed bool
}

type traceKey struct{}

// WithTraceparent returns a context whose calls send these W3C headers. It is for apps without OpenTelemetry; a Tracer has its own.
// An empty tracestate is not sent.
func WithTraceparent(ctx context.Context, traceparent, tracestate string) context.Context {
	return context.WithValue(ctx, traceKey{}, [2]string{traceparent, tracestate})
}

func (t *transport) inject(ctx context.Context, header http.Header) {
	if pair, ok := ctx.Value(traceKey{}).([2]string); ok {
		header.Set("Traceparent", pair[0])
		if pair[1] != "" {
			header.Set("Tracestate", pair[1])
		}
	}
	if t.tracer != nil {
		t.tracer.Inject(ctx, header)
	}
}

// traced runs an operation in a span.
func (t *transport) traced(ctx context.Context, span Span, run func(ctx context.Context) (SpanEnd, error)) error {
	if t.tracer == nil {
		_, err := run(ctx)
		return err
	}
	span.Type = typeOf(span.Keys)
	ctx, end := t.tracer.Start(ctx, span)
	done, err := run(ctx)
	if err != nil {
		done = judged(err)
	}
	end(done)
	return err
}

func typeOf(keys []string) string {
	kind := ""
	for i, key := range keys {
		part, _, has := strings.Cut(key, ":")
		if !has || i > 0 && part != kind {
			return ""
		}
		kind = part
	}
	return kind
}

func judged(err error) SpanEnd {
	var e *Error
	if errors.As(err, &e) {
		return SpanEnd{Result: e.Code, Failed: e.Status >= 500 || e.Status == 0 && isCode(e, "unreachable", "connection_lost", "timeout", "bad_answer")}
	}
	return SpanEnd{Result: "caller_left"}
}

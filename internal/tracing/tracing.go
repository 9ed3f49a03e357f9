// Package tracing makes the spans of the sidecar, through the API of OpenTelemetry.
//
// # Spans
//
//	lock.acquire   server    a call; child of what the app sent as traceparent
//	├ lock.wait    internal  in line, with links to who held the lock, and to the
//	│                        release that handed it over
//	├ store.batch  internal  one operation for many calls, with links to all of them
//	│ └ (SQL)      client    made by the tracer of the PostgreSQL driver
//	└ lock.held    internal  from the grant to its end, and why it ended
//	lock.release   server    a call, with a link to the acquire of its lock
//
// A batch is the child of the first recorded call that it carries, and each other call gets a link to it. So
// each trace leads to its statements, and a sampler that follows the parent decides for all.
//
// Between pods, the lock row carries the traceparents of the acquire that holds the lock and of the release
// that handed it over. A call that is not recorded has the traceparent of its app there, if any.
//
// Most calls are not recorded. The sampler decides about a call before anything of its span is made, see Sample.
//
// A nil [Tracer] makes no spans. Spans never contain the data that apps attach to a lock.
package tracing

import (
	"context"
	"encoding/hex"
	"log/slog"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Scope is the instrumentation scope of spans and metrics.
const Scope = "github.com/locksidecar/locksidecar"

// The attributes of spans. Durations are integers in milliseconds, as in the API.
const (
	// Key is the key of the lock. Keys are the first of several in request order, and KeyCount is their number.
	Key      = attribute.Key("lock.key")
	Keys     = attribute.Key("lock.keys")
	KeyCount = attribute.Key("lock.key_count")
	// Type is the part of the key before the first colon.
	Type = attribute.Key("lock.type")
	// Namespace is LOCKSIDECAR_NAMESPACE.
	Namespace = attribute.Key("lock.namespace")
	// Bind is session or ttl.
	Bind = attribute.Key("lock.bind")
	// Mode is exclusive or shared.
	Mode = attribute.Key("lock.mode")
	// Session is the public name of the session.
	Session = attribute.Key("lock.session")
	// Token is the fencing token.
	Token = attribute.Key("lock.token")
	// WaitLimit is wait_ms of the request; -1: for ever. TTL is its ttl_ms.
	WaitLimit = attribute.Key("lock.wait_ms")
	TTL       = attribute.Key("lock.ttl_ms")
	// Kept is true if the call got a key that its sidecar had kept, without the store.
	Kept = attribute.Key("lock.kept")
	// Reentry is the present number of entries.
	Reentry = attribute.Key("lock.reentry")
	// Result is granted, reentered, skipped, released, or the code of the problem.
	Result = attribute.Key("lock.result")
	// Outcome is that of a release: success or failure.
	Outcome = attribute.Key("lock.outcome")
	// GrantedBy says how a wait ended in a grant: hand_off, or free.
	GrantedBy = attribute.Key("lock.granted_by")
	// Position is the queue position at the begin of the wait, 1 for the first.
	Position = attribute.Key("lock.queue_position")
	// EndReason is why a lock ended: released, session_ended, or the reason of the loss.
	EndReason = attribute.Key("lock.end_reason")
	// HolderPod, HolderSession and HolderInstance describe the holder of the lock.
	HolderPod      = attribute.Key("lock.holder.pod")
	HolderSession  = attribute.Key("lock.holder.session")
	HolderInstance = attribute.Key("lock.holder.instance")
	// Operation is the operation of the store in a batch. BatchSize is the number of its calls.
	Operation = attribute.Key("store.operation")
	BatchSize = attribute.Key("store.batch.size")
	// Link is the kind of a link: see the constants below.
	Link = attribute.Key("lock.link")
)

// The kinds of links.
const (
	// LinkHolder leads to the acquire of a lock from a wait, or from an acquire that the lock denies.
	LinkHolder = "holder"
	// LinkRelease leads from a wait to the release that handed the lock over.
	LinkRelease = "release"
	// LinkAcquire leads from a release to the acquire of its lock.
	LinkAcquire = "acquire"
	// LinkCall leads from a batch to a call that it carries. LinkBatch leads back.
	LinkCall  = "call"
	LinkBatch = "batch"
)

// Tracer makes spans. A nil Tracer makes none.
type Tracer struct {
	tracer trace.Tracer
	common []attribute.KeyValue
	sampling
}

// New makes a tracer. Each span of a call gets the common attributes.
func New(p trace.TracerProvider, common ...attribute.KeyValue) *Tracer {
	return &Tracer{tracer: p.Tracer(Scope), common: common}
}

// Start begins a span, a child of ctx's. Callers check that t is not nil before they make attributes.
func (t *Tracer) Start(ctx context.Context, name string, kind trace.SpanKind, attrs ...attribute.KeyValue) (context.Context, trace.Span) {
	//nolint:spancheck // the caller ends it
	return t.tracer.Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(t.common...), trace.WithAttributes(attrs...))
}

// Begin begins a span that End ends. It gets all its attributes there, because the SDK copies those that a span has for each one that is added.
func (t *Tracer) Begin(ctx context.Context, name string, kind trace.SpanKind) (context.Context, trace.Span) {
	if kind == trace.SpanKindServer {
		return t.tracer.Start(ctx, name, server...) //nolint:spancheck // End ends it
	}
	return t.tracer.Start(ctx, name, trace.WithSpanKind(kind)) //nolint:spancheck // End ends it
}

// server is the option of most spans, made once.
var server = []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindServer)}

// End ends a span with its attributes. It may change the array behind them.
func (t *Tracer) End(span trace.Span, attrs []attribute.KeyValue) {
	span.SetAttributes(append(attrs, t.common...)...)
	span.End()
}

// LinkTo is a link to the span that a traceparent names; false if it names none.
func LinkTo(traceparent, what string, attrs ...attribute.KeyValue) (trace.Link, bool) {
	sc := Parse(traceparent)
	return trace.Link{SpanContext: sc, Attributes: append(attrs, Link.String(what))}, sc.IsValid()
}

// Logger is a logger whose lines have the trace_id of a traceparent. Without one it is log itself.
func Logger(log *slog.Logger, traceparent string) *slog.Logger {
	if id := TraceID(traceparent); id != "" {
		return log.With("trace_id", id)
	}
	return log
}

// Parse reads a W3C traceparent. If it is malformed, the result is not valid.
func Parse(traceparent string) trace.SpanContext {
	return trace.SpanContextFromContext(Extract(context.Background(), traceparent, ""))
}

// Extract returns ctx with the remote span that a W3C traceparent and tracestate name. If the traceparent is malformed or empty, it returns ctx.
func Extract(ctx context.Context, traceparent, tracestate string) context.Context {
	if traceparent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, &carrier{traceparent, tracestate})
}

// Format writes a span context as a W3C traceparent. It is empty if the context is not valid.
func Format(sc trace.SpanContext) string {
	if !sc.IsValid() {
		return ""
	}
	id, span, flags := sc.TraceID(), sc.SpanID(), sc.TraceFlags()&(trace.FlagsSampled|trace.FlagsRandom)
	b := append(make([]byte, 0, length), "00-"...) // does not leave the stack
	b = append(hex.AppendEncode(b, id[:]), '-')
	b = append(hex.AppendEncode(b, span[:]), '-')
	return string(hex.AppendEncode(b, []byte{byte(flags)}))
}

// carrier contains the headers. It avoids a map for each call.
type carrier struct{ traceparent, tracestate string }

// Get implements [propagation.TextMapCarrier].
func (c *carrier) Get(name string) string {
	switch name {
	case "traceparent":
		return c.traceparent
	case "tracestate":
		return c.tracestate
	}
	return ""
}

// Set implements [propagation.TextMapCarrier]. It is not used.
func (*carrier) Set(string, string) {}

// Keys implements [propagation.TextMapCarrier].
func (*carrier) Keys() []string { return []string{"traceparent", "tracestate"} }

// TraceID returns the trace id of a W3C traceparent, or empty if malformed. It does not allocate.
func TraceID(traceparent string) string {
	if Known(traceparent) == "" {
		return ""
	}
	return traceparent[3:35]
}

// length is that of version-traceid-parentid-flags.
const length = 2 + 1 + 32 + 1 + 16 + 1 + 2

// Known is the part of a traceparent that this version knows (version-traceid-parentid-flags), or empty if
// malformed. A later version may have more. It does not allocate.
func Known[T string | []byte](traceparent T) T {
	var none T
	v := traceparent
	if len(v) < length || len(v) > length && (v[0] == '0' && v[1] == '0' || v[length] != '-') || v[0] == 'f' && v[1] == 'f' {
		return none
	}
	id, parent := false, false // one digit is not zero
	for i := range length {
		switch c := v[i]; {
		case i == 2 || i == 35 || i == 52:
			if c != '-' {
				return none
			}
		case (c < '0' || c > '9') && (c < 'a' || c > 'f'):
			return none
		case c == '0':
		case i > 2 && i < 35:
			id = true
		case i > 35 && i < 52:
			parent = true
		}
	}
	if !id || !parent {
		return none
	}
	return v[:length]
}

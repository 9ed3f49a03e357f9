package proxy

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/lease"
	"github.com/locksidecar/locksidecar/proxy/internal/conn"
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
	"github.com/locksidecar/locksidecar/store"
)

// The names of spans, and the routes of their calls.
const (
	spanAcquire = "lock.acquire"
	spanRelease = "lock.release"
	spanAmend   = "lock.amend"
	spanGet     = "lock.get"
	spanList    = "lock.list"
	spanStop    = "lock.stop"
	spanForce   = "lock.force"
	spanWaiters = "lock.waiters"

	routeLocks = "/v1/locks"
	routeKey   = "/v1/locks/{key}"
	routeStop  = "/v1/locks/{key}/stop"

	routeRelease    = "/v1/locks/{key}/release"
	routeWaiters    = "/v1/locks/{key}/waiters"
	routeAllWaiters = "/v1/waiters"
)

// callSpan is the recorded span of a call. For other calls it is nil, and its methods do nothing.
type callSpan struct {
	trace.Span
	tracer *tracing.Tracer
	// ctx contains the span, and the baggage of the call.
	ctx context.Context
	// traceparent identifies the span.
	traceparent string
	// attrs are the attributes that the span gets at its end.
	attrs []attribute.KeyValue
	// problem is the code of the answer, empty without a problem.
	problem string
}

// maxAttributes is how many attributes a span usually has.
const maxAttributes = 16

// spans are callSpans that have ended.
var spans = sync.Pool{New: func() any { return &callSpan{attrs: make([]attribute.KeyValue, 0, maxAttributes)} }}

// startSpan begins the span of the call, if there is a Tracer that samples it. key is empty for several keys.
func (k *call) startSpan(name, route, key string) {
	t := k.srv.cfg.Tracer
	if t == nil {
		return
	}
	// A malformed or repeated traceparent counts as absent.
	var sent []byte
	if k.traces == 1 {
		sent = k.trace
	}
	root, may := t.Sample(sent)
	if !may {
		return
	}
	ctx, span := t.Begin(k.remote(root, sent), name, trace.SpanKindServer)
	if !span.SpanContext().IsSampled() {
		return
	}
	x := spans.Get().(*callSpan)
	x.Span, x.tracer, x.ctx, x.traceparent = span, t, ctx, tracing.Format(span.SpanContext())
	x.set(method(k.ctx.Method()), semconv.HTTPRoute(route), transport(k.c.Kind))
	if key != "" {
		x.set(tracing.Key.String(key))
		x.setType(store.TypeOf(key))
	}
	k.span = x
}

// maxState limits the bytes of a tracestate (W3C). Each span and batch keeps a copy, so a long one could
// exceed what a collector accepts.
const maxState = 512

// remote returns ctx with the baggage and the trace context that the app sent.
func (k *call) remote(ctx context.Context, traceparent []byte) context.Context {
	if len(k.baggage) > 0 {
		if bag, err := baggage.Parse(string(k.baggage)); err == nil {
			ctx = baggage.ContextWithBaggage(ctx, bag)
		}
	}
	state := k.state
	if len(state) > maxState {
		state = nil
	}
	return tracing.Extract(ctx, string(traceparent), string(state))
}

func method(name []byte) attribute.KeyValue {
	switch string(name) {
	case "PUT":
		return semconv.HTTPRequestMethodPut
	case "DELETE":
		return semconv.HTTPRequestMethodDelete
	}
	return semconv.HTTPRequestMethodKey.String(string(name))
}

func transport(k conn.Kind) attribute.KeyValue {
	if k == conn.Unix {
		return semconv.NetworkTransportUnix
	}
	return semconv.NetworkTransportTCP
}

// set sets attributes of the span. The last value of each counts.
func (x *callSpan) set(attrs ...attribute.KeyValue) { x.attrs = append(x.attrs, attrs...) }

// setType sets the type of a lock. Keys without a colon have none.
func (x *callSpan) setType(name string) {
	if name != "" {
		x.set(tracing.Type.String(name))
	}
}

// setAcquire records the request. fallback is the TTL if neither the request nor a session has one.
func (x *callSpan) setAcquire(r *lease.Request, s *lease.Session, fallback time.Duration) {
	if x == nil {
		return
	}
	wait := r.Wait.Milliseconds()
	if r.Wait == lease.WaitForever {
		wait = -1
	}
	if s != nil {
		fallback = s.TTL()
	}
	ttl := cmp.Or(r.TTL, fallback)
	x.set(tracing.Bind.String(r.Bind.String()), tracing.Mode.String(r.Mode()), tracing.WaitLimit.Int64(wait), tracing.TTL.Int64(ttl.Milliseconds()))
	if r.Bind == lease.BindSession {
		x.setSession(s)
	}
}

// maxSpanKeys limits the keys of a span, because thousands of spans are in memory if a collector does not answer.
const maxSpanKeys = 16

// setKeys records the keys, and their type if all have the same.
func (x *callSpan) setKeys(keys []string) {
	if x == nil {
		return
	}
	name := store.TypeOf(keys[0])
	for _, key := range keys {
		if store.TypeOf(key) != name {
			name = ""
		}
	}
	x.set(tracing.Keys.StringSlice(keys[:min(len(keys), maxSpanKeys)]), tracing.KeyCount.Int(len(keys)))
	x.setType(name)
}

func (x *callSpan) setSession(s *lease.Session) {
	if x != nil && s != nil {
		x.set(tracing.Session.String(s.Name()))
	}
}

func (x *callSpan) setClaim(token int64, s *lease.Session) {
	if x == nil {
		return
	}
	if token != 0 { // otherwise it is claimed by a request id
		x.set(tracing.Token.Int64(token))
	}
	x.setSession(s)
}

// setRelease records the request. force: it breaks the lock.
func (x *callSpan) setRelease(r *lease.ReleaseRequest, force bool) {
	switch {
	case x == nil:
	case force:
		x.SetName(spanForce)
	case r.Outcome != store.NoOutcome:
		x.set(tracing.Outcome.String(wire.OutcomeName(r.Outcome)))
	}
}

func (x *callSpan) granted(all []lease.Grant) {
	if x == nil {
		return
	}
	result := metrics.Granted
	if len(all) == 1 {
		g := &all[0]
		x.set(tracing.Token.Int64(g.Token))
		if g.Reentry > 1 {
			result = metrics.Reentered
		}
		x.setReentry(g.Reentry)
	}
	x.setResult(result)
}

func (x *callSpan) amended(g *lease.Grant) {
	if x == nil {
		return
	}
	x.setReentry(g.Reentry)
	x.setResult(metrics.Granted)
}

func (x *callSpan) setReentry(n int) {
	if n > 1 {
		x.set(tracing.Reentry.Int(n))
	}
}

func (x *callSpan) released(r *lease.Released) {
	switch {
	case x == nil:
	case r.Reentry == 0:
		x.setResult(metrics.Released)
	default:
		x.setReentry(r.Reentry)
		x.setResult(metrics.Reentered)
	}
}

func (x *callSpan) setResult(result string) {
	if x != nil {
		x.set(tracing.Result.String(result))
	}
}

// setProblem records that the answer is a problem. The last one counts.
func (x *callSpan) setProblem(code string) {
	if x != nil {
		x.problem = code
	}
}

// end ends the span, because the answer is built. Only a failure of the sidecar is an error.
func (x *callSpan) end(status int) {
	if x == nil {
		return
	}
	x.set(semconv.HTTPResponseStatusCode(status))
	if x.problem != "" {
		x.setResult(x.problem)
	}
	if status >= 500 {
		x.set(semconv.ErrorTypeKey.String(x.problem))
		x.SetStatus(codes.Error, x.problem)
	}
	x.tracer.End(x.Span, x.attrs)
	clear(x.attrs)
	*x = callSpan{attrs: x.attrs[:0]}
	spans.Put(x)
}

// traceparent is the trace context that the call passes on: its span's, or the app's if valid. It omits
// fields of later versions, because long ones or invalid UTF-8 would fail the whole batch.
func (k *call) traceparent() string {
	if k.span != nil {
		return k.span.traceparent
	}
	if k.traces != 1 {
		return ""
	}
	return string(tracing.Known(k.trace))
}

func (k *call) logger() *slog.Logger { return tracing.Logger(k.srv.log, k.traceparent()) }

package proxy

import (
	"cmp"
	"context"
	"log/slog"
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

// callSpan is the span of a call. Without a Tracer it is nil, and its methods do nothing.
type callSpan struct {
	trace.Span
	// ctx contains the span, and the baggage of the call.
	ctx context.Context
	// traceparent identifies the span.
	traceparent string
	// problem is the code of the answer, empty without a problem.
	problem string
}

// startSpan begins the span of the call, if there is a Tracer. key is empty for several keys.
func (k *call) startSpan(name, route, key string) {
	if k.srv.cfg.Tracer != nil {
		k.span = k.newSpan(name, route, key)
	}
}

func (k *call) newSpan(name, route, key string) *callSpan {
	attrs := make([]attribute.KeyValue, 0, 5)
	attrs = append(attrs, semconv.HTTPRequestMethodKey.String(string(k.ctx.Method())), semconv.HTTPRoute(route), transport(k.c.Kind))
	if key != "" {
		attrs = append(attrs, tracing.Key.String(key))
		attrs = appendType(attrs, store.TypeOf(key))
	}
	ctx, span := k.srv.cfg.Tracer.Start(k.remote(), name, trace.SpanKindServer, attrs...)
	return &callSpan{Span: span, ctx: ctx, traceparent: tracing.Format(span.SpanContext())}
}

// maxState limits the bytes of a tracestate (W3C). Each span and batch keeps a copy, so a long one could
// exceed what a collector accepts.
const maxState = 512

// remote is the trace context that the app sent. A malformed or repeated traceparent counts as absent.
func (k *call) remote() context.Context {
	ctx := context.Background()
	if len(k.baggage) > 0 {
		if bag, err := baggage.Parse(string(k.baggage)); err == nil {
			ctx = baggage.ContextWithBaggage(ctx, bag)
		}
	}
	if k.traces != 1 {
		return ctx
	}
	parent := tracing.Parse(string(k.trace))
	if !parent.IsValid() {
		return ctx
	}
	if len(k.state) > 0 && len(k.state) <= maxState {
		if state, err := trace.ParseTraceState(string(k.state)); err == nil {
			parent = parent.WithTraceState(state)
		}
	}
	return trace.ContextWithRemoteSpanContext(ctx, parent)
}

func transport(k conn.Kind) attribute.KeyValue {
	if k == conn.Unix {
		return semconv.NetworkTransportUnix
	}
	return semconv.NetworkTransportTCP
}

// appendType appends the type of a lock. Keys without a colon have no type.
func appendType(attrs []attribute.KeyValue, name string) []attribute.KeyValue {
	if name == "" {
		return attrs
	}
	return append(attrs, tracing.Type.String(name))
}

// off reports that the span is not recorded.
func (x *callSpan) off() bool { return x == nil || !x.IsRecording() }

// setAcquire records the request. fallback is the TTL if neither the request nor a session has one.
func (x *callSpan) setAcquire(r *lease.Request, s *lease.Session, fallback time.Duration) {
	if x.off() {
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
	x.SetAttributes(tracing.Bind.String(r.Bind.String()), tracing.Mode.String(r.Mode()), tracing.WaitLimit.Int64(wait), tracing.TTL.Int64(ttl.Milliseconds()))
	if r.Bind == lease.BindSession {
		x.setSession(s)
	}
}

// maxSpanKeys limits the keys of a span, because thousands of spans are in memory if a collector does not answer.
const maxSpanKeys = 16

// setKeys records the keys, and their type if all have the same.
func (x *callSpan) setKeys(keys []string) {
	if x.off() {
		return
	}
	name := store.TypeOf(keys[0])
	for _, key := range keys {
		if store.TypeOf(key) != name {
			name = ""
		}
	}
	x.SetAttributes(appendType([]attribute.KeyValue{tracing.Keys.StringSlice(keys[:min(len(keys), maxSpanKeys)]), tracing.KeyCount.Int(len(keys))}, name)...)
}

func (x *callSpan) setSession(s *lease.Session) {
	if s != nil && !x.off() {
		x.SetAttributes(tracing.Session.String(s.Name()))
	}
}

func (x *callSpan) setClaim(token int64, s *lease.Session) {
	if x.off() {
		return
	}
	if token != 0 { // otherwise it is claimed by a request id
		x.SetAttributes(tracing.Token.Int64(token))
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
		x.SetAttributes(tracing.Outcome.String(wire.OutcomeName(r.Outcome)))
	}
}

func (x *callSpan) granted(all []lease.Grant) {
	if x.off() {
		return
	}
	result := metrics.Granted
	if len(all) == 1 {
		g := &all[0]
		x.SetAttributes(tracing.Token.Int64(g.Token))
		if g.Reentry > 1 {
			result = metrics.Reentered
		}
		x.setReentry(g.Reentry)
	}
	x.setResult(result)
}

func (x *callSpan) amended(g *lease.Grant) {
	x.setReentry(g.Reentry)
	x.setResult(metrics.Granted)
}

func (x *callSpan) setReentry(n int) {
	if n > 1 && !x.off() {
		x.SetAttributes(tracing.Reentry.Int(n))
	}
}

func (x *callSpan) released(r *lease.Released) {
	if r.Reentry == 0 {
		x.setResult(metrics.Released)
		return
	}
	x.setReentry(r.Reentry)
	x.setResult(metrics.Reentered)
}

func (x *callSpan) setResult(result string) {
	if !x.off() {
		x.SetAttributes(tracing.Result.String(result))
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
	if !x.off() {
		x.SetAttributes(semconv.HTTPResponseStatusCode(status))
		if x.problem != "" {
			x.setResult(x.problem)
		}
		if status >= 500 {
			x.SetAttributes(semconv.ErrorTypeKey.String(x.problem))
			x.SetStatus(codes.Error, x.problem)
		}
	}
	x.End()
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
	return tracing.Known(string(k.trace[:min(len(k.trace), 56)])) // one byte more than the known fields suffices to detect further ones
}

func (k *call) logger() *slog.Logger { return tracing.Logger(k.srv.log, k.traceparent()) }

package proxy

import (
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
	"github.com/locksidecar/locksidecar/proxy/internal/wire"
	"github.com/locksidecar/locksidecar/store"
)

// The spans of calls, and the routes where they are made.
const (
	spanAcquire = "lock.acquire"
	spanRelease = "lock.release"
	spanAmend   = "lock.amend"
	spanGet     = "lock.get"
	spanList    = "lock.list"
	spanStop    = "lock.stop"
	spanForce   = "lock.force"

	routeLocks = "/v1/locks"
	routeKey   = "/v1/locks/{key}"
	routeStop  = "/v1/locks/{key}/stop"

	routeRelease = "/v1/locks/{key}/release"
)

// callSpan is the span of a call. Its methods do nothing when there is none (nil),
// which is so without a Tracer, and for calls that are not about locks.
type callSpan struct {
	trace.Span
	// ctx holds the span, and the baggage of the call.
	ctx context.Context
	// traceparent names the span, for those to whom the call leads.
	traceparent string
	// problem is the code of the answer, empty if it is none.
	problem string
}

// startSpan begins the span of the call, if there is a Tracer. key is empty for a
// call that is not about one key.
func (k *call) startSpan(name, route, key string) {
	if k.srv.cfg.Tracer != nil {
		k.span = k.newSpan(name, route, key)
	}
}

func (k *call) newSpan(name, route, key string) *callSpan {
	attrs := make([]attribute.KeyValue, 0, 5)
	attrs = append(attrs, semconv.HTTPRequestMethodKey.String(string(k.ctx.Method())), semconv.HTTPRoute(route), k.c.kind.transport())
	if key != "" {
		attrs = append(attrs, tracing.Key.String(key))
		attrs = appendType(attrs, store.TypeOf(key))
	}
	ctx, span := k.srv.cfg.Tracer.Start(k.remote(), name, trace.SpanKindServer, attrs...)
	return &callSpan{Span: span, ctx: ctx, traceparent: tracing.Format(span.SpanContext())}
}

// maxState is the most bytes of a tracestate that are handed on, as many as the standard
// asks for. Each span of the call keeps it, and each batch that carries the call: of long
// ones, one app could make more than a collector takes.
const maxState = 512

// remote is what the call tells of where it comes from. What is malformed counts as
// absent, says the standard; so does a traceparent that is given twice.
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

// transport is how calls come in.
func (k kind) transport() attribute.KeyValue {
	if k == kindUnix {
		return semconv.NetworkTransportUnix
	}
	return semconv.NetworkTransportTCP
}

// appendType appends the type of a lock. Keys without a colon have none.
func appendType(attrs []attribute.KeyValue, name string) []attribute.KeyValue {
	if name == "" {
		return attrs
	}
	return append(attrs, tracing.Type.String(name))
}

// off: nobody would see what is said.
func (x *callSpan) off() bool { return x == nil || !x.IsRecording() }

// setAcquire tells what an acquire asks for. fallback is the TTL where neither the
// request nor a session names one.
func (x *callSpan) setAcquire(r *lease.Request, s Session, fallback time.Duration) {
	if x.off() {
		return
	}
	wait := r.Wait.Milliseconds()
	if r.Wait == lease.WaitForever {
		wait = -1
	}
	ttl := r.TTL
	if s != nil {
		or(&ttl, s.TTL())
	}
	or(&ttl, fallback)
	x.SetAttributes(tracing.Bind.String(r.Bind.String()), tracing.WaitLimit.Int64(wait), tracing.TTL.Int64(ttl.Milliseconds()))
	if r.Bind == lease.BindSession {
		x.setSession(s)
	}
}

// maxSpanKeys is how many keys of a call its span shows: spans stand in a queue of
// thousands when a collector hangs, and each key may have 512 bytes.
const maxSpanKeys = 16

// setKeys tells of which keys the call is, and of their type, if it is the same.
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

// setSession tells the session in whose name the call speaks, by its public name.
func (x *callSpan) setSession(s Session) {
	if s != nil && !x.off() {
		x.SetAttributes(tracing.Session.String(s.Name()))
	}
}

// setClaim tells under which token something is claimed.
func (x *callSpan) setClaim(token int64, s Session) {
	if x.off() {
		return
	}
	if token != 0 { // else it is claimed by a request id
		x.SetAttributes(tracing.Token.Int64(token))
	}
	x.setSession(s)
}

// setRelease tells what a release says. force: it breaks the lock, and says nothing.
func (x *callSpan) setRelease(r *lease.ReleaseRequest, force bool) {
	switch {
	case x == nil:
	case force:
		x.SetName(spanForce)
	case r.Outcome != store.NoOutcome:
		x.SetAttributes(tracing.Outcome.String(wire.OutcomeName(r.Outcome)))
	}
}

// granted tells what was granted: one lock, or several.
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

// amended tells that a grant still holds.
func (x *callSpan) amended(g *lease.Grant) {
	x.setReentry(g.Reentry)
	x.setResult(metrics.Granted)
}

// setReentry tells how often the lock is entered now, if that is more than once.
func (x *callSpan) setReentry(n int) {
	if n > 1 && !x.off() {
		x.SetAttributes(tracing.Reentry.Int(n))
	}
}

// released tells what is left after a release.
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

// setProblem notes that the answer is a problem: the last one counts.
func (x *callSpan) setProblem(code string) {
	if x != nil {
		x.problem = code
	}
}

// end ends the span: the answer is built. What an app does wrong, or does not get,
// is no error; what the sidecar cannot do is.
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

// traceparent is the W3C trace context that the call hands on: that of its span; or
// without one the app's, empty if there is none or it is not valid. What a later version
// has behind it is left out: it may be anything, and as long as a head, and the store's
// batch with the calls of others would fail at what is no UTF-8.
func (k *call) traceparent() string {
	if k.span != nil {
		return k.span.traceparent
	}
	if k.traces != 1 {
		return ""
	}
	return wire.Traceparent(k.trace)
}

// logger is for lines about the call: they name its trace.
func (k *call) logger() *slog.Logger { return k.srv.logFor(k.traceparent()) }

// logFor is for lines about a call with this traceparent, which may be empty.
func (s *Server) logFor(traceparent string) *slog.Logger {
	if id := tracing.TraceID(traceparent); id != "" {
		return s.log.With("trace_id", id)
	}
	return s.log
}

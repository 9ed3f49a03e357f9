// Package observe makes the spans, metrics and log lines of package lease. No other room uses
// OpenTelemetry. Events contain values: keys, tokens, times, codes, trace contexts. Every event is reported
// after its decision, and its caller never waits. The package does not read other parts of lease.
//
// # Spans
//
// If the span in a call's context is not recorded, its [Call] and the [Hold] of its lock are nil, and their
// methods do nothing.
//
// lock.wait lasts from the queueing of a call's first attempt until the call returns. A call for several
// keys has one for each key in whose queue it is. Links lead from it to the acquires of the previous
// holders, and to the release that handed the lock over.
//
// lock.held begins when the lock is published to the app. It ends when the lock leaves the session.
//
// store.batch is one operation of the store for calls, including calls that have left. The releases after a dropped
// connection belong to the lock.held that ended. Background retries, renewals, checks and revocations have no span.
//
// A trace continues in another sidecar: the store keeps the acquire's trace context with the lock, and
// gives the release's to the next holder. A release without a request has the acquire's.
//
// # Metrics
//
// Each acquire of a key has one result. A call for several keys has one for each key, once all are decided.
// Held locks are counted when the metrics are read, including unpublished ones, because others wait for
// them. The end of a hold is counted with its reason, unless the lock was never published.
//
// # Log
//
// Each refusal that should not happen has one line: of a claim, by a limit, in an outage. Held locks and
// callers that leave are normal, so these are debug lines. If a call has a trace, its lines name it.
package observe

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/batcher"
	"github.com/locksidecar/locksidecar/internal/metrics"
	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/store"
)

// Recorder is the interface of [metrics.Locks]. Tests use another one.
type Recorder interface {
	Acquired(ctx context.Context, key string, shared bool, result string, waited time.Duration)
	Waits(key string, change int)
	Ended(ctx context.Context, key, reason string, held time.Duration)
	Releases(key, result string)
	HandedOff(ctx context.Context, took time.Duration)
	Cached(kind string)
	Renewed(took time.Duration, kept, lost, failed int)
	SessionEnded(reason string)
	Observe(state func() State)
	ObserveFleet(fleet func() (store.Stats, bool))
}

// Tracer makes spans.
type Tracer = tracing.Tracer

// State contains the values of the gauges when metrics are read.
type State = metrics.State

// HeldLocks counts locks by their mode.
type HeldLocks = metrics.HeldLocks

// Observer makes the spans, metrics and log lines. The embedded Recorder handles events that are only counted.
type Observer struct {
	Recorder

	log    *slog.Logger
	tracer *tracing.Tracer // nil: no spans
	// batches: operations of the store have spans.
	batches bool
}

// New makes an observer. A nil tracer makes no spans. With inline, operations of the store take almost no
// time and have no spans.
func New(log *slog.Logger, recorder Recorder, tracer *tracing.Tracer, inline bool) *Observer {
	if recorder == nil {
		recorder = (*metrics.Locks)(nil) // counts nothing
	}
	return &Observer{Recorder: recorder, log: log, tracer: tracer, batches: tracer != nil && !inline}
}

// Results of calls that succeed.
const (
	Granted   = metrics.Granted
	Reentered = metrics.Reentered
	Released  = metrics.Released
)

// Codes of problems with a lock, as in the API. CallerLeft is never sent.
const (
	Held    = "held"
	Timeout = "wait_timeout"
	Skipped = metrics.Skipped
	Limit   = "limit"

	LimitMismatch = "limit_mismatch"
	Unsupported   = "unsupported"
	Draining      = "draining"
	Unavailable   = "store_unavailable"
	Lost          = "lock_lost"
	NotHolder     = "not_holder"
	NotHeld       = "not_held"
	Invalid       = "invalid_request"
	CallerLeft    = "caller_left"
	Internal      = "internal"
)

// Reasons for the end of a session's lock that are not losses. SessionEnded is also the code of a problem.
const (
	SessionEnded = "session_ended"
	Shutdown     = "shutdown"
)

// Kinds of answers without a statement.
const (
	CachedDenied = "held_cache"
	CachedHeld   = "held_here"
	CachedEntry  = "entry"
	CachedRepeat = "repeat"
	CachedRead   = "read"
	CachedCheck  = "check"
	CachedEnd    = "ended"
)

func (o *Observer) recorded(ctx context.Context) bool {
	return o.tracer != nil && tracing.Recorded(ctx)
}

// Along returns ctx, which outlives the call, with the span of the call.
func (o *Observer) Along(ctx, call context.Context) context.Context {
	if !o.recorded(call) {
		return ctx
	}
	return tracing.Carry(ctx, call)
}

// Denied records the holder of the key in the span of a call that did not wait.
func (o *Observer) Denied(ctx context.Context, lock *store.Lock) {
	if o.recorded(ctx) {
		span := trace.SpanFromContext(ctx)
		span.SetAttributes(holderOf(&lock.Holder)...)
		linkHolder(span, lock.Token, &lock.Holder)
	}
}

// LinkAcquire links the span of a release to the acquire of its lock.
func (o *Observer) LinkAcquire(ctx context.Context, traceparent string) {
	if !o.recorded(ctx) {
		return
	}
	if link, ok := tracing.LinkTo(traceparent, tracing.LinkAcquire); ok {
		trace.SpanFromContext(ctx).AddLink(link)
	}
}

// HandedOver records that an attempt has won its lock by a hand-off: how long ago, and by which release.
func (o *Observer) HandedOver(c *Call, by string, ago time.Duration) {
	c.granted("hand_off", by)
	o.HandedOff(c.Carry(context.Background()), ago)
}

// Renewal records how long a renewal of leases took, how many were due, and how many the store confirmed.
func (o *Observer) Renewal(took time.Duration, due, kept int, err error) {
	lost, failed := due-kept, 0
	if err != nil {
		lost, failed = 0, due-kept
	}
	o.Renewed(took, kept, lost, failed)
}

// Lane returns cfg for the lane of an operation, with spans.
func (o *Observer) Lane(operation string, cfg batcher.Config) batcher.Config {
	if o.batches {
		cfg.Trace = func(ctx context.Context, calls []context.Context) (context.Context, func(error)) {
			return o.tracer.Batch(ctx, operation, calls, len(calls))
		}
	}
	return cfg
}

// Batch begins the span of an operation that carries out several items for one call.
func (o *Observer) Batch(ctx context.Context, operation string, of *Call, items int) (context.Context, func(error)) {
	if !o.batches {
		return ctx, func(error) {}
	}
	return o.tracer.Batch(ctx, operation, []context.Context{of.Carry(ctx)}, items)
}

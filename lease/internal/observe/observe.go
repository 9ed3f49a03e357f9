// Package observe makes the spans, metrics and log lines of package lease. No other room uses
// OpenTelemetry. Events contain values: keys, tokens, times, codes, trace contexts. Every event is reported
// after its decision, and its caller never waits. The package does not read other parts of lease.
//
// # Spans
//
// If the span in a call's context is not recorded, its [Trace] and the [Hold] of its lock are nil, and their
// methods do nothing.
//
// lock.wait lasts from the queueing of a call's first attempt until the call returns. A call for several
// keys has one for each key in whose queue it is. Links lead from it to the acquires of the previous
// holders, and to the release that handed the lock over.
//
// lock.held begins when the lock is delivered to the app. It ends when the lock leaves the session.
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
// Held locks are counted when the metrics are read, including undelivered ones, because others wait for
// them. The end of a hold is counted with its reason, unless the lock was never delivered.
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
	KeptGranted()
	Recalled(hadPaid bool)
	Renewed(took time.Duration, renewed, lost, failed int)
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

// Renewal records how long a renewal of leases took, how many were due, and how many the store confirmed.
func (o *Observer) Renewal(took time.Duration, due, renewed int, err error) {
	lost, failed := due-renewed, 0
	if err != nil {
		lost, failed = 0, due-renewed
	}
	o.Renewed(took, renewed, lost, failed)
}

// Refusal is a refused call.
type Refusal struct {
	Operation, Key, Traceparent string
	// Code is the code of Err.
	Code string
	Err  error
}

// Refused logs a refused call, except a wrong claim, which has its own line. Held locks and calls that give
// up are normal, so these are debug lines.
func (o *Observer) Refused(ctx context.Context, r Refusal) {
	level := slog.LevelWarn
	switch r.Code {
	case NotHolder, Lost, Skipped:
		return
	case Held, Timeout, CallerLeft, SessionEnded, Draining:
		level = slog.LevelDebug
	}
	if o.log.Enabled(ctx, level) {
		tracing.Logger(o.log, r.Traceparent).Log(ctx, level, "call refused", "operation", r.Operation, "key", r.Key, "code", r.Code, "error", r.Err)
	}
}

// Claim is a call's statement that it holds a lock.
type Claim struct {
	Operation, Key string
	Token          int64
	Session        string // empty: none
	Traceparent    string // of the call
}

// ClaimRefused logs a claim on a lock that the caller does not hold.
func (o *Observer) ClaimRefused(c Claim, reason string) {
	tracing.Logger(o.log, c.Traceparent).Warn("claim refused", "operation", c.Operation, "key", c.Key, "token", c.Token, "session", c.Session,
		"reason", reason)
}

// Lock is a lock that a session holds or held.
type Lock struct {
	Key            string
	Token          int64
	Session, Owner string
	Traceparent    string // of its acquire
}

// MaxHoldOver logs that a lock is released because its max_hold is over.
func (o *Observer) MaxHoldOver(l Lock) {
	tracing.Logger(o.log, l.Traceparent).Warn("lock held for its max_hold, released", l.attributes()...)
}

// AskedToStop logs that the holder of a lock is asked to stop.
func (o *Observer) AskedToStop(l Lock) {
	tracing.Logger(o.log, l.Traceparent).Info("holder asked to stop", l.attributes()...)
}

// Broken logs that a lock is broken.
func (o *Observer) Broken(l Lock) {
	tracing.Logger(o.log, l.Traceparent).Warn("lock broken on request", l.attributes()...)
}

func (l Lock) attributes() []any {
	return []any{"key", l.Key, "token", l.Token, "session", l.Session, "owner", l.Owner}
}

// WaitsForItself logs that a call waits for a key that its own session holds.
func (o *Observer) WaitsForItself(key, session, traceparent string) {
	tracing.Logger(o.log, traceparent).Warn("a call waits for a key that its own session holds", "key", key, "session", session)
}

// StopSent logs that a call has asked the holder of a key to stop. instance names this sidecar.
func (o *Observer) StopSent(ctx context.Context, key, instance string) {
	tracing.Logger(o.log, tracing.Format(tracing.SpanContext(ctx))).Info("the holder of a lock is asked to stop", "key", key, "instance", instance)
}

// OutcomeUnknown logs that an acquire is withdrawn because its outcome is unknown.
func (o *Observer) OutcomeUnknown(key, traceparent string, err error) {
	tracing.Logger(o.log, traceparent).Warn("the outcome of an acquire is unknown, so the acquire is withdrawn", "key", key, "error", err)
}

// HandedBack logs that a grant is handed back.
func (o *Observer) HandedBack(key string, token int64, traceparent string) {
	if o.log.Enabled(context.Background(), slog.LevelDebug) {
		tracing.Logger(o.log, traceparent).Debug("grant handed back, its call has left", "key", key, "token", token)
	}
}

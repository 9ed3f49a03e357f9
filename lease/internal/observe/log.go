package observe

import (
	"context"
	"log/slog"

	"github.com/locksidecar/locksidecar/internal/tracing"
)

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
	log := o.log
	if o.tracer != nil {
		log = tracing.Logger(o.log, tracing.Format(tracing.SpanContext(ctx)))
	}
	log.Info("the holder of a lock is asked to stop", "key", key, "instance", instance)
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

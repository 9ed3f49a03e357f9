package observe

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/locksidecar/locksidecar/internal/tracing"
	"github.com/locksidecar/locksidecar/store"
)

// Hold is the span of a lock that a session holds. It is nil if the acquire is not recorded. The session's
// mutex guards it until the lock leaves the session.
type Hold struct {
	tracer *tracing.Tracer
	shared bool
	span   trace.Span // nil until the lock is published
	// at contains the span, or before its begin the span of the acquire.
	at context.Context
}

// Context contains the span of the lock, for work after the lock has left its session.
func (h *Hold) Context() context.Context {
	if h == nil {
		return context.Background()
	}
	return h.at
}

// Begin begins the span when the lock is published.
func (h *Hold) Begin(key string, token int64, session string) {
	if h == nil {
		return
	}
	_, h.span = h.tracer.Start(h.at, "lock.held", trace.SpanKindInternal,
		ofKey(key, tracing.Token.Int64(token), tracing.Session.String(session), modeOf(h.shared))...)
	// Without the span of the call, because this would stay in memory while the lock is held.
	h.at = trace.ContextWithSpan(context.Background(), h.span)
}

// HoldEnded reports the end of a session's lock with the reason (Released, SessionEnded, or that of the
// loss), and how long it was held.
func (o *Observer) HoldEnded(h *Hold, key, reason string, held time.Duration) {
	if h != nil && h.span != nil {
		h.span.SetAttributes(tracing.EndReason.String(reason))
		if reason != Released && reason != SessionEnded && reason != Shutdown {
			h.span.SetStatus(codes.Error, "the lock was lost: "+reason)
		}
		h.span.End()
	}
	o.Ended(h.Context(), key, reason, held)
}

// HeldUntilNow makes the span of a bind:ttl lock when it is released here, because the lock had no session.
func (o *Observer) HeldUntilNow(lock *store.Lock, token int64) {
	if o.tracer != nil {
		o.tracer.Past(lock.Holder.Traceparent, "lock.held", time.Now().Add(-lock.Holder.HeldFor),
			ofKey(lock.Key, tracing.Token.Int64(token), tracing.EndReason.String(Released))...)
	}
}
